/* What the files of src/session share; nobody else includes it. */
#pragma once

#include <uthash.h>
#include <utlist.h>

#include "base/buf.h"
#include "base/id.h"
#include "session/journal.h"
#include "session/session.h"
#include "session/spec.h"

#define STREAMS 2
#define RECORD_VERSION 1
#define WINDOW (4 * 1024 * 1024)         /* most credit a guest gets ahead, per stream */
#define READ_BYTES (256 * 1024)          /* one read back from a journal */
#define SPEC_KEPT_MAX (16 * 1024 * 1024) /* bytes of commands known per sandbox */
#define SESSIONS_PER_PROCESS 64
#define CUTS_MAX 32 /* rollbacks told apart; older ones are taken together */
#define TOKEN_BYTES 32
#define DIGEST_BYTES 32
#define WRITER_SIZE (PROCESS_WRITER_MAX + 1)

/* One sandbox's processes. */
struct bucket {
    char sandbox_id[ID_SIZE];
    struct guest *guest;  /* link object while there is one */
    struct process *head; /* newest first */
    unsigned count;
    unsigned live; /* asked to start, not exited */
    size_t spec_bytes;
    uint64_t kept;                  /* bytes of all journals */
    struct pending_signal *signals; /* not answered by the guest yet */
    UT_hash_handle hh;
};

struct session {
    char id[ID_SIZE];
    struct process *process;
    unsigned char digest[DIGEST_BYTES]; /* SHA-256 of the token */
    int64_t created_ms;
    int64_t expires_ms;
    struct session *prev, *next; /* of the process, oldest first */
    UT_hash_handle hh;
};

struct stream {
    struct journal *j; /* NULL: not open, or no byte yet */
    uint64_t base;     /* start and end while there is no file */
    uint64_t floor;    /* its end is not before this, whatever a journal says that a crash has cut */
    uint64_t acked;    /* what the guest was told is taken */
    uint64_t credit;   /* offset up to which the guest may send */
    uint64_t kept;     /* bytes counted in bucket.kept, also while the journal is not open */
};

struct process_reader {
    struct process *p;
    struct process_reader_events events;
    void *arg;
    uint64_t at[STREAMS]; /* next offset to give */
    bool told;            /* started() was called */
    bool resting;         /* output() took less than offered */
    bool leaving;         /* was told so: its sandbox is suspended */
    bool over;            /* result() or interrupted() was called */
    bool closed;
    bool busy;                 /* counted in sandbox_busy */
    bool warm;                 /* what comes next has just been brought into memory */
    struct process_warm *cold; /* is being brought there */
    struct loop_deferred pump;
    struct process_reader *prev, *next;
};

struct process_wait {
    struct process *p;
    void (*fn)(void *arg, struct process *p);
    void *arg;
    struct loop_timer timer;
    struct process_wait *prev, *next;
};

/* A rollback: from then on the bytes at `at` and behind are others than before. */
struct cut {
    int64_t branch; /* the process's from then on */
    uint64_t at[STREAMS];
};

/* A signal on its way to the guest. */
struct pending_signal {
    struct bucket *b;
    void (*done)(void *arg, const struct error *err); /* NULL: nobody waits any more */
    void *arg;
    struct pending_signal *prev, *next;
};

struct process {
    struct sessions *s;
    struct bucket *b;
    char id[ID_SIZE];
    char guest_id[ID_SIZE]; /* what a forked guest knows it by; "": its own id */
    char origin[ID_SIZE];   /* the process of another sandbox that it is a copy of; "" */
    enum process_state state;
    bool start_wanted; /* was asked to start */
    bool sent;         /* the guest was asked, by this daemon or an earlier one */
    bool maybe;        /* whether the guest knows it nobody here can tell: it is asked first */
    bool adopted;
    bool owed;  /* ended, but its guest could not be told yet that it may forget it */
    bool brief; /* exec: recorded as running only when it takes a while */
    bool stdin_closed;
    bool input_ready; /* the guest has said what it has of stdin */
    bool revived;     /* while a snapshot is being applied: it is of it */
    bool durable;     /* the result is */
    bool warned;      /* about its guest's output or its journal, once */
    json_t *spec;
    size_t spec_bytes;
    uint64_t journal_bytes;
    int64_t branch; /* counts up with each rollback */
    struct cut cuts[CUTS_MAX];
    unsigned cut_count;
    unsigned seals; /* counts up when a seal that is under way must not be written any more */
    uint64_t seq;
    int64_t created_ms, started_ms, finished_ms;
    uint32_t pid;
    json_t *result; /* NULL while there is none */
    struct guest_process *gp;
    struct stream stream[STREAMS];
    struct buf feed;     /* stdin that goes to the guest before any other */
    bool feeding;        /* its stdin is closed after that */
    bool input_kept;     /* its record holds the feed, and what of it the guest has not said to have: */
    uint64_t kept_end;   /* durably up to this offset */
    uint64_t kept_next;  /* and, once that is durable as well, this; */
    uint64_t kept_mark;  /* the guest has all of it with this mark; UINT64_MAX: it was not asked yet */
    bool keep_due;       /* kept_next is not durable yet, */
    bool keep_failed;    /* and to make it so is to be tried again */
    uint64_t stdin_base; /* without word of the guest: where the feed begins */
    bool stdin_noted;    /* and that is known to the byte, */
    bool noted_here;     /* by this daemon: nobody has given the guest any since */
    size_t feed_before;  /* so much of the feed is an earlier daemon's, which may have given it */
    bool end_due;        /* stdin ends, and the guest is not known to have all that stands before that: */
    uint64_t end_at;     /* so much */
    char writer[WRITER_SIZE]; /* whose turn to write it is; "": of those who do not state their place */
    uint64_t writer_base;     /* since this offset */
    bool writer_due;  /* that, or what else the record is to say first, is not durable yet: nothing leaves */
    bool turn_failed; /* to make it so is to be tried again */
    unsigned walk;    /* readers are being called: none of them may be freed */
    struct process_reader *readers;
    struct process_wait *waits;
    struct session *sessions;
    struct loop_deferred ack;   /* acknowledge what this turn brought */
    struct loop_deferred ended; /* tell readers and waits */
    struct loop_timer record;   /* `brief`: record that it runs */
    struct loop_timer retry;    /* a journal's header, or the result's record, is not on disk */
    struct process *prev, *next;
    UT_hash_handle hh;
};

struct sessions {
    struct sessions_config config;
    char *journal_dir;
    int dir_fd;
    unsigned char boot[JOURNAL_BOOT_SIZE];
    struct loop_pool *pool;    /* sealing journals, removing directories */
    struct loop_pool *warmers; /* reading journals that are not in memory */
    struct bucket *buckets;
    struct process *processes;
    struct session *sessions;
    struct loop_timer sweep;
    uint64_t seq;
    unsigned live;
    unsigned readers;
    bool swept; /* the first look is over */
    bool ending;
    unsigned char *scratch; /* READ_BYTES */
    sessions_link link;
    void *link_arg;
};

/* --- record.c --- */
size_t spec_size(const json_t *spec); /* as spec_read counts it, for the bound on what is kept */
void process_put(struct process *p);
int process_load(struct sessions *s, const char *id, const json_t *body, struct process **ret,
                 struct error *err);
void session_put(struct session *se);
int session_load(struct sessions *s, const char *id, const json_t *body, struct error *err);

/* --- table.c: making and forgetting --- */
struct bucket *bucket_get(struct sessions *s, const char *sandbox_id); /* makes it; NULL: out of memory */
struct bucket *bucket_find(struct sessions *s, const char *sandbox_id);
/* Links a zeroed process with its id, spec and limits set into the tables. */
void process_link(struct sessions *s, struct bucket *b, struct process *p);
/* A new process from a request; takes the spec out of it. Makes room by forgetting exited ones. */
int process_make(struct sessions *s, struct bucket *b, struct spec_request *q, struct process **ret,
                 struct error *err);
void bucket_sort(struct bucket *b); /* newest first */
/* Makes room for one more by forgetting exited ones that nobody looks at. */
int bucket_room(struct bucket *b, size_t bytes, struct error *err);
void process_free(struct process *p);                     /* memory only */
void process_forget(struct process *p);                   /* records, journals, memory */
void bucket_forget(struct sessions *s, struct bucket *b); /* all its processes, and its journal directory */
void bucket_free(struct sessions *s, struct bucket *b);   /* memory only */
/* Ends what cannot go on when a sandbox is in this state. */
void bucket_end(struct bucket *b, enum sandbox_state state, const char *message);
void session_free(struct session *se);
/* Starts the periodic look for what is to be forgotten, and removes journals that nobody owns. */
void sweep_start(struct sessions *s);

/* --- process.c: life and the guest's callbacks --- */
void process_prepare(struct process *p); /* its timers */
void process_begin(struct process *p, struct guest *g);
void process_adopt(struct process *p, struct guest *g);
/* Drops the guest's part of it, and what is under way for its end. */
void process_detach(struct process *p);
const char *process_guest_id(const struct process *p);
/* The link is about to go: drops the process's part of it; the process goes on in the guest, or sleeps. */
void process_unlink_guest(struct process *p, bool sleeps);
/* Answers all signals under way with why. Only when the link is about to go, so that no answer follows. */
void signals_fail(struct bucket *b, const struct error *why);
/* Its sandbox is gone: ends here, with that as its result. */
void process_end_gone(struct process *p, const char *message);
int process_check_running(const struct process *p, struct error *err);

/* --- input.c --- */
#define LINK_INPUT_MAX (64 * 1024)            /* what a link queues; it goes where the process goes, */
#define FEED_MAX (SPEC_BYTES_MAX + 64 * 1024) /* together with what waits before it */
#define INPUT_MAX (FEED_MAX + LINK_INPUT_MAX)
/* What of its stdin was taken and has not been sent, in base64; NULL: nothing. New reference. */
json_t *process_input_json(const struct process *p);
json_t *process_input_at(const struct process *p); /* where that begins; NULL: not known */
/* Gives that (may be NULL) as the first input of its next link; false when it cannot be read. */
bool process_input_set(struct process *p, const json_t *input);
/* The link is about to go: takes back what it has not sent. How much it has sent, for process_input_rest,
 * which comes when it is gone. `sleeps`: its guest has all of that, and stands still. */
uint64_t process_input_keep(struct process *p, bool sleeps);
void process_input_rest(struct process *p, uint64_t sent);
/* What a record has of its input; false: no memory. */
bool process_input_put(const struct process *p, json_t *body);
void process_input_load(struct process *p, const json_t *body);
/* Where in its stdin the feed begins; NULL: not known. */
void process_input_place(struct process *p, const json_t *at);
/* Remembers what the link knows, which is about to be of no use any more. */
void process_input_note(struct process *p);
void process_input_end(struct process *p); /* it has exited: what was told as taken stays that */
/* The guest has said what it has: it takes more. */
void process_input_opened(struct process *p);
/* Gives what waits, as far as there is room. */
void process_input_feed(struct process *p);
void process_input_arrived(struct process *p, uint64_t mark);
/* The disk has refused something a while ago. */
void process_input_retry(struct process *p);
/* An earlier daemon was to give it all its input, and the guest has not got it: it must not run on this. */
bool process_input_is_cut(const struct process *p);
void process_input_stop(struct process *p); /* nothing of it is under way any more */
/* Whether the record holds it. What it holds is told as taken when it is durable; until then the input
 * settles. */
void process_input_noted(struct process *p, bool kept);
bool process_input_settling(const struct process *p);
/* Its sandbox was to be suspended and is not: the record holds what it does until the guest has it. */
void process_input_stays(struct process *p);

/* --- stream.c: journals and credit --- */
const char *stream_suffix(unsigned i);
/* Opens the journal of a stream that has one. */
void stream_open(struct process *p, unsigned i);
uint64_t stream_start(const struct process *p, unsigned i);
uint64_t stream_end(const struct process *p, unsigned i);
void stream_append(struct process *p, unsigned i, const void *data, size_t n);
/* Tries again what the disk refused; false while it still does. */
bool streams_settle(struct process *p);
/* Makes both journals durable, and takes their word for it after a restart of the host. */
void streams_seal(struct process *p);
/* Takes stream i of p to offset `at` with what journal `from` (of `p` itself, or of another process that it
 * is a copy of; NULL: none) keeps of before; a gap when that is nothing. */
int stream_revive(struct process *p, unsigned i, struct process *from, int64_t branch, uint64_t at,
                  struct error *err);
/* From now on the bytes behind `at` are not those of before. */
void streams_branch(struct process *p, int64_t branch, const uint64_t at[STREAMS]);
void streams_close(struct process *p);
void streams_ack_later(struct process *p);
void streams_unlink(struct process *p);
/* Takes the journals of a process that has ended away: who reads them gets a gap. */
void streams_evict(struct process *p);

/* --- room.c: the bound over a sandbox's journals --- */
/* Counts what a stream's open journal keeps; as `kept` bytes. */
void stream_count(struct process *p, unsigned i);
void stream_count_as(struct process *p, unsigned i, uint64_t kept);
/* Drops what is beyond the bound. */
void bucket_trim(struct bucket *b);
/* How many unread bytes every stream of every running process may have within the bound. */
uint64_t bucket_share(const struct bucket *b);
/* Counts the files that an earlier daemon has left. */
void bucket_measure(struct sessions *s, const struct bucket *b);

/* --- warm.c --- */
/* Brings n bytes of an open journal into memory and then calls fn. NULL: not now, and fn is not called. */
struct process_warm *stream_warm(struct process *p, unsigned i, uint64_t offset, size_t n,
                                 void (*fn)(void *arg), void *arg);

/* --- reader.c --- */
void readers_output(struct process *p, unsigned i, uint64_t offset, const void *data, size_t n);
void readers_pump_later(struct process *p);
void readers_stdin_room(struct process *p);
void readers_stdin_arrived(struct process *p, uint64_t mark);
void readers_stdin_kept(struct process *p); /* nothing of it settles any more */
void readers_stdin_silent(struct process *p, uint64_t mark);
void readers_overdue(struct process *p);
/* Its sandbox is suspended. */
bool process_asleep(const struct process *p);
/* Their sandbox is suspended: they get what is journalled, then leave. */
void readers_suspended(struct process *p);
/* It sleeps no more: who was still to leave does. */
void readers_awake(struct process *p);
/* Its streams have gone back: they leave, to come back where it goes on. */
void readers_rolled_back(struct process *p);
void readers_interrupt(struct process *p, const char *reason, const char *message);
/* Offset up to which some reader has taken a stream; false when nobody follows it. */
bool readers_fastest(const struct process *p, unsigned i, uint64_t *ret);
void waits_fire(struct process *p);
