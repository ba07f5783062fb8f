/* A guest and a controller made of memory: tests play both. */
#pragma once

#include "guest/guest.h"
#include "sandbox/sandbox.h"

#define FAKE_MAX 64

struct guest_process {
    struct guest_process *next;
    char id[ID_SIZE];
    char argv[512]; /* joined by blanks, or "shell:" and the text */
    char env[1024]; /* joined by ';' */
    char cwd[128], user[64], term[64];
    bool pty, stdin_open;
    uint16_t rows, cols;
    uint32_t timeout_ms;
    bool adopted;
    uint64_t adopted_at[2];
    struct guest_process_events events;
    void *arg;
    uint64_t taken[2], room[2];
    unsigned taken_calls;
    char input[65536];
    size_t input_n, input_max; /* at most input_max bytes are taken */
    bool input_closed;
    size_t unsent;       /* the last bytes of the input are still in the link's queue */
    bool far;            /* what is given is on its way until the test says that it has arrived: */
    size_t arrived;      /* so much of it */
    uint64_t input_base; /* what an earlier daemon had given it */
    unsigned asked;      /* how often it was asked what it has */
    uint64_t ends_within;
    unsigned input_closes;
    int signal;
    bool signal_tree;
    unsigned signals;       /* how many so far, */
    int first_signal;       /* and the first one */
    uint32_t grace_ms;      /* of the command; of the last terminate */
    guest_done signal_done; /* answered by fake_signal_answer */
    void *signal_arg;
    bool exited, released;
};

struct guest_file {
    char what[16]; /* read, write, list, watch, pack, unpack */
    bool writing, committed, closed;
    char path[256], user[64];
    uint64_t offset, length;
    uint32_t mode;
    bool parents;
    char owner[64]; /* "(none)" */
    uint32_t depth, limit;
    char after[256]; /* "(none)" */
    bool recursive;
    struct guest_read_events read;
    struct guest_write_events write;
    struct guest_list_events list;
    struct guest_watch_events watch;
    void *arg;
    unsigned char *data; /* written */
    size_t n, push_max;  /* at most push_max bytes are taken in all, until it is raised */
    uint64_t taken;
};

/* A one-shot question, answered by the test. */
struct fake_question {
    char what[16]; /* stat, remove, mkdir, move, copy, chmod, symlink */
    char path[256], user[64];
    bool flag;       /* recursive, parents */
    char other[256]; /* the second path, or a link's text */
    char owner[64];  /* "(none)" */
    uint32_t mode;
    unsigned flags; /* enum guest_file_flags */
    guest_stat_done stat;
    guest_done done;
    void *arg;
    bool cancelled;
};

struct guest {
    struct guest_process *processes; /* newest first */
    unsigned started;
    struct guest_file *file;       /* the last one opened */
    size_t push_max;               /* of files opened from now on; 0: no bound */
    struct fake_question question; /* the last one asked */
    bool refuse_start;
    size_t input_max; /* of processes started from now on; 0: all that fits */
};

struct guest *fake_guest_create(void);
void fake_guest_free(struct guest *g);
struct guest_process *fake_process(struct guest *g, const char *id); /* the newest of that id; NULL: none */

void fake_started(struct guest_process *p, uint32_t pid);
/* Gives output as the link would: at the offset that comes next. */
void fake_output(struct guest_process *p, enum guest_stream stream, uint64_t offset, const void *data,
                 size_t n);
void fake_exit(struct guest_process *p, int code);
void fake_result(struct guest_process *p, enum guest_reason reason, int code, int signal,
                 const char *message);
void fake_signal_answer(struct guest_process *p, const struct error *err);

/* --- the controller --- */
struct sandbox {
    char id[ID_SIZE];
    char project[64];
    enum sandbox_state state;
    bool auto_wake;
    json_t *env;
    struct guest *guest;
    int busy;
    unsigned touched;
    bool hidden; /* forgotten: not found any more */
};

struct sandboxes {
    struct sandbox sandbox[4];
    unsigned count;
    struct {
        sandbox_changed changed;
        sandbox_guest guest;
        void *arg;
    } observer[4];
    unsigned observers;
    struct sandbox_ready *waiting;
    unsigned waits; /* sandbox_when_running calls so far */
    struct loop *loop;
};

struct sandboxes *fake_sandboxes_create(struct loop *l);
void fake_sandboxes_free(struct sandboxes *s);
struct sandbox *fake_sandbox_new(struct sandboxes *s, const char *project, enum sandbox_state state);
/* Moves it and tells the observers; also answers who waits for it to run. */
void fake_move(struct sandboxes *s, struct sandbox *sb, enum sandbox_state to);
/* A link comes up (g) or goes down (NULL). */
void fake_link(struct sandboxes *s, struct sandbox *sb, struct guest *g, const struct error *why);
/* Answers everyone who waits, with err or success. */
void fake_ready(struct sandboxes *s, const struct error *err);
