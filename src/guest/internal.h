/* What the parts of the host's end share. See guest.h for the contract.
 *
 * Callbacks may destroy the guest or release the very object they are about. So: a callback is the last thing
 * done to an object; whoever calls one is between guest_enter and guest_leave, and memory is freed when the
 * outermost leaves. */
#pragma once

#include "guest/guest.h"
#include "proto/proto.h"

#define GUEST_CALLS_MAX 256
#define GUEST_PROCESSES_MAX 1024
#define GUEST_FILES_MAX 256
#define GUEST_TX_MAX (8u << 20)
#define GUEST_TX_HIGH (256u << 10) /* stream data waits while more than this is queued */
#define GUEST_RX_MAX (512u << 10)
#define GUEST_RX_STEP (256u << 10)
#define GUEST_STDIN_MAX (64u << 10)
#define GUEST_PUSH_MAX (256u << 10)
#define GUEST_BREAKS_MAX 3 /* breaks of the protocol within the time below are final */
#define GUEST_BREAKS_MS 60000

enum guest_link {             /* one function makes transitions: link_set in link.c */
                  LINK_DOWN,  /* waiting to connect */
                  LINK_DIAL,  /* connected to the VMM, which asks the guest for the agent's port */
                  LINK_SYNC,  /* connected; looking for the acknowledgement of our epoch */
                  LINK_HELLO, /* acknowledged; HELLO must follow */
                  LINK_READY,
                  LINK_FINAL /* given up */
};

struct call {
    struct call *prev, *next;
    guest_done done;
    guest_stat_done stat_done;
    void *arg;
    uint32_t request; /* answered by REPLY; or */
    uint32_t channel; /* answered by FILE_DONE */
    uint8_t type;     /* of the request: enum proto_type; 0: a file operation */
    bool settled;     /* the answer is known and will be given by the deferred call */
    bool expired;     /* the owner has its answer; the guest's may still come */
    struct error error;
};

/* Finding out what time it is in the guest, before it is told who it is. */
struct clock_probe {
    struct call *call; /* of guest_identify; NULL: none is waiting */
    struct guest_identity id;
    uint64_t token; /* of the PING that is out */
    int64_t sent;   /* when, by the monotonic clock */
    unsigned tries;
    int64_t best;  /* the shortest way there and back so far, */
    uint64_t mono; /* the guest's monotonic clock then */
    int64_t wall;  /* and the wall clock here, half way */
};

/* An owner asked for stdin before this mark. */
struct stdin_question {
    uint64_t mark;
    int64_t due; /* the latest time for the answer; 0: not all of it has been sent */
};

struct guest_process {
    struct guest *g; /* NULL: inert */
    struct guest_process *prev, *next;
    struct guest_process_events events;
    void *arg;
    char id[ID_SIZE];
    uint32_t channel;
    struct buf exec;   /* the EXEC message until it is answered; empty for one taken up */
    bool announced;    /* EXEC or ATTACH has been sent in this epoch */
    bool known;        /* the agent has it: ATTACH after a resync, not EXEC */
    bool attached;     /* STARTED came in this epoch */
    bool told_started; /* the owner knows */
    bool ended, released;
    uint64_t received[2], acked[2], limit[2]; /* by the owner's word */
    uint64_t told_acked[2], told_limit[2];    /* what the agent was last told */
    unsigned frames[2];                       /* since the last window */
    uint32_t step[2];                         /* how far it is to move before the next one, */
    unsigned in_time[2];                      /* how often it has */
    struct loop_timer late;                   /* runs while a step is begun; then it is told at once: */
    bool is_late;
    struct buf in; /* stdin from in_base on */
    uint64_t in_base, in_sent, in_limit;
    uint64_t in_has; /* the agent has so much, by WINDOW, STARTED or PONG: not before in_base */
    bool in_fin, in_fin_sent, in_short;
    uint64_t in_arrived; /* marks of stdin (an offset, and one for its end): the agent has it so far, */
    uint64_t in_owed;    /* the owner wants to hear of that much, which has been sent; */
    uint64_t in_pinged;  /* this will have arrived with the PONG that is awaited; 0: not asked about */
    /* Owned; in time: by marks, and by times. Marks differ, so there are no more than bytes that a link
     * queues. */
    struct stdin_question *in_questions;
    /* In order: those before `first` are answered, those before `timed` have a time, and there is room. */
    unsigned in_question_first, in_question_timed, in_question_end, in_question_room;
    struct loop_timer overdue; /* its end must have come by then; */
    int64_t overdue_left;      /* ms: held while there was so much left */
    int64_t overdue_since;     /* when its time was over; 0: not yet */
    bool overdue_asked;        /* its end has not come, and the link was made anew since */
    unsigned overdue_rounds;   /* it was waited for longer, as output still came: */
    uint64_t overdue_had;      /* so much then */
};

enum guest_file_kind { GUEST_FILE_READS, GUEST_FILE_WRITES, GUEST_FILE_LISTS, GUEST_FILE_WATCHES };

struct guest_file {
    struct guest *g;
    struct guest_file *prev, *next;
    enum guest_file_kind kind; /* which of the events are used */
    struct guest_read_events read;
    struct guest_write_events write;
    struct guest_list_events list;
    struct guest_watch_events watch;
    void *arg;
    uint32_t channel;
    bool writes, opened, ended, commit, commit_sent, push_short, closed;
    bool failed; /* error is to be told by the deferred call */
    struct error error;
    uint64_t received, taken, told; /* read */
    unsigned frames;                /* received that the agent has no word of */
    uint32_t step;                  /* how far `taken` moves in a large file before the agent hears of it; */
    struct loop_timer silence;      /* nothing may come before that: */
    uint64_t heard;                 /* `received` when it was started */
    struct buf out;                 /* write: from out_sent on; nothing is sent twice */
    uint64_t out_acked, out_sent, out_limit;
    struct buf part;      /* list, watch: the beginning of a record */
    uint32_t depth, left; /* list: levels; entries that may still come */
    char *last;           /* owned: list: the name of the entry before, or what the listing goes on behind */
    size_t last_n;
};

struct guest_conn {
    struct guest *g; /* NULL: inert */
    struct guest_conn *prev, *next;
    struct guest_conn_events events;
    void *arg;
    uint32_t channel;
    bool opened;
    bool done;   /* the owner knows of the end */
    bool failed; /* error is to be told by the deferred call */
    struct error error;
    uint64_t received, taken, told; /* from the guest; told: the limit that it knows */
    bool got_fin;
    struct buf out; /* not sent yet */
    uint64_t out_sent, out_acked, out_limit;
    bool fin, fin_sent, push_short;
};

struct guest {
    struct loop *loop;
    char *socket_path; /* owned */
    char *sandbox_id;  /* owned */
    uint32_t vsock_port;
    unsigned ready_timeout_ms, lost_timeout_ms;
    struct guest_events events;
    void *arg;
    enum guest_link link;
    int fd; /* owned */
    struct loop_fd watch;
    struct loop_timer retry, deadline, alive;
    struct loop_timer stdin_late; /* not later than the first `due` of a question about stdin */
    struct loop_timer quiesce;    /* while one is under way: the latest time for its answer */
    struct loop_deferred flush;
    struct loop_timer linger; /* the last moment for what was sent in its own time: */
    size_t lingering;         /* so many bytes of tx, which may wait for company until then */
    struct buf rx, tx;
    struct proto_assembly assembly;
    uint64_t epoch;
    uint16_t version; /* of this epoch */
    uint32_t tag;
    unsigned attempt; /* SYNCs on this connection */
    unsigned waited;  /* times nothing was answered on this connection */
    unsigned sync_ms; /* time for an answer to a SYNC */
    unsigned backoff_ms;
    bool was_ready, held, destroyed;
    bool wants_write;
    struct clock_probe probe;
    bool frozen;    /* by the guest's word */
    bool quiescing; /* QUIESCE is unanswered */
    unsigned quiesce_ms;
    bool let_go; /* it ran on: owners who were refused room are to be told */
    unsigned depth;
    int64_t last_heard;
    int64_t ready_since;                  /* when the link became ready the last time */
    int64_t breaks[GUEST_BREAKS_MAX - 1]; /* times of the last ones; 0: none */
    uint64_t ping;                        /* token awaited; 0: none */
    uint64_t stdin_ping;                  /* the same of the one that asks for stdin */
    uint32_t next_channel, next_request;
    int64_t late; /* bytes that may still come on channels given up */
    struct call *calls;
    struct guest_process *processes, *dead_processes;
    struct guest_file *files, *dead_files;
    struct guest_conn *conns, *dead_conns;
    unsigned call_count, process_count, file_count, conn_count;
    bool conns_first; /* whose turn it is to send */
};

/* guest.c */
void guest_enter(struct guest *g);
void guest_leave(struct guest *g); /* may free g */
void guest_flush_later(struct guest *g);

/* Sends when something else is sent, or after a moment: what nobody waits for does not wake the guest alone.
 */
bool guest_send_along(struct guest *g, uint8_t type, uint32_t channel, struct buf *body);
/* Handles one whole message. 0, or -1 with the fault named. */
int guest_message(struct guest *g, const struct proto_frame *f, const char **ret_why);
/* The link is up: everything that waits for it is sent. */
void guest_link_up(struct guest *g);
/* The link is gone: what cannot survive it is told so. */
void guest_link_gone(struct guest *g, const struct error *why);
uint32_t guest_new_channel(struct guest *g);
/* Sends a control message; false when the queue is full. Empties body. */
bool guest_send(struct guest *g, uint8_t type, uint32_t channel, struct buf *body);
/* An error from the guest: code and text are not trusted. */
void guest_error(const struct proto_fields *f, struct error *ret);
/* A new call; NULL when there are too many. */
struct call *guest_call_new(struct guest *g, guest_done done, guest_stat_done stat_done, void *arg);
void guest_call_fail(struct guest *g, struct call *c, const struct error *err);
/* Sends a request and remembers who waits for its answer. body holds its fields but the request number. The
 * call, settled when it could not be sent; NULL without memory even for that. */
struct call *guest_request(struct guest *g, uint8_t type, uint32_t channel, struct buf *body, guest_done done,
                           void *arg);
void guest_stat_of(const unsigned char *p, struct guest_stat *ret);

/* link.c */
int guest_link_start(struct guest *g, struct error *err);
void guest_link_finish(struct guest *g);
/* Writes what is queued as far as the socket takes it. */
void guest_link_flush(struct guest *g);
/* No more connection is tried; tells. */
void guest_link_give_up(struct guest *g, const struct error *why);
/* The link broke: tells, and connects again unless it is final. */
void guest_link_break(struct guest *g, const struct error *why);
/* Handles n bytes at p as if they had come in; for the socket and for tests. */
size_t guest_link_input(struct guest *g, const unsigned char *p, size_t n);

/* Sends it for a call that exists. */
void guest_call_send(struct guest *g, struct call *c, uint8_t type, uint32_t channel, struct buf *body);

/* deadline.c */
void guest_deadlines_init(struct guest *g);
void guest_deadline_init(struct guest_process *p);
void guest_deadlines_hold(struct guest *g, bool held);
/* The owner wants to hear of stdin before the mark. */
void guest_stdin_question(struct guest_process *p, uint64_t mark);
/* The agent has all before the mark. */
void guest_stdin_told(struct guest_process *p, uint64_t mark);
/* So much has been sent: the agent's time for what was asked about it begins, unless it runs. */
void guest_stdin_sent(struct guest_process *p, uint64_t mark);
/* No time runs until it has been sent in another epoch. */
void guest_stdin_unsent(struct guest_process *p);

/* identify.c */
/* Whether the PONG was one that is waited for. */
bool guest_identify_pong(struct guest *g, const struct proto_fields *f);
void guest_identify_link_gone(struct guest *g);

/* quiesce.c */
void guest_quiesce_init(struct guest *g);
/* No process may be started and no stdin sent now: the guest is frozen, or may be. */
bool guest_is_quiet(const struct guest *g);
/* A request of this type has been answered. */
void guest_quiesce_answered(struct guest *g, uint8_t type, bool fine);
void guest_quiesce_link_up(struct guest *g, bool frozen);
void guest_quiesce_link_gone(struct guest *g);

/* process.c */
/* Tells owners whose stdin was not taken that it is now. */
void guest_process_tell_rooms(struct guest *g);
int guest_process_message(struct guest_process *p, const struct proto_message *m, const struct proto_frame *f,
                          const struct proto_fields *fields, const char **ret_why);
void guest_process_pump(struct guest_process *p);
/* Asks the agent for the stdin that owners want to hear of. After the pumping. */
void guest_stdin_ask(struct guest *g);
/* Whether the PONG was the answer to that. */
bool guest_stdin_pong(struct guest *g, const struct proto_fields *f);
void guest_process_link_gone(struct guest_process *p);
void guest_process_free(struct guest_process *p);

/* file.c */
struct file_request {
    uint32_t op;
    const char *user, *path;
    const char *target, *owner, *after; /* NULL: not sent */
    const char *target_field;           /* what the caller calls it */
    uint32_t mode;
    bool recursive;
    uint64_t offset, length;
    uint32_t flags, depth, limit; /* 0: not sent */
};

/* Sends the request and makes the object that its answers are for. */
int guest_file_create(struct guest *g, const struct file_request *r, enum guest_file_kind kind, void *arg,
                      struct guest_file **ret, struct error *err);
/* A request that FILE_DONE answers; one of done and stat_done. */
void guest_file_simple(struct guest *g, const struct file_request *r, guest_done done,
                       guest_stat_done stat_done, void *arg);
int guest_file_message(struct guest_file *f, const struct proto_message *m, const struct proto_frame *frame,
                       const struct proto_fields *fields, const char **ret_why);
void guest_file_pump(struct guest_file *f);

/* Tells writers of the room that sending has made; callbacks may do anything. */
void guest_file_settle(struct guest *g);
void guest_file_fail(struct guest_file *f, const struct error *err); /* tells its owner */
void guest_file_free(struct guest_file *f);

/* records.c: bytes of a listing or watch. 0, or -1 with the fault named. */
int guest_records_data(struct guest_file *f, const unsigned char *p, size_t n, const char **ret_why);

/* conn.c */
int guest_conn_message(struct guest_conn *c, const struct proto_message *m, const struct proto_frame *frame,
                       const struct proto_fields *fields, const char **ret_why);
void guest_conn_pump(struct guest_conn *c);
void guest_conn_pump_all(struct guest *g);
/* Tells owners what could not be told from inside a call: that theirs has failed, or that there is room. */
void guest_conn_settle(struct guest *g);
void guest_conn_link_gone(struct guest *g, const struct error *why);
void guest_conn_free(struct guest_conn *c);
