#include "agent/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"

#define RING_SIZE 262144
/* What a few files are given that turn out to be large: while one is waited for, the others of its way (disk,
 * host, this process) go on. */
#define WIDE_WINDOW (4u << 20)             /* the most that a host gives; less where the ring is smaller */
#define WIDE_PIPE 1048576                  /* the same for what goes through a pipe */
#define WIDE_FROM (PROTO_WRITE_WINDOW / 2) /* bytes after which a file is large */
#define WIDE_MAX 8
#define CHILD_DATA 3
#define CHILD_CONTROL 4
/* For the child of a closed operation to end by itself: one that has half of something to clear away is not
 * killed before. */
#define CLOSE_GRACE_NS (5 * CLOCK_NS_PER_S)
#define TIDY_GRACE_NS (60 * CLOCK_NS_PER_S)

struct file *file_find(struct agent *a, uint32_t channel)
{
    for (struct file *f = a->files; f; f = f->next)
        if (f->channel == channel)
            return f;
    return NULL;
}

static void end_with(struct file *f, int code, const char *message)
{
    if (f->done)
        return;
    f->done = true;
    f->code = code;
    (void)str_copy(f->message, sizeof(f->message), message);
    f->agent->tell = true;
}

static void end_input(struct file *f)
{
    agent_unwatch(f->agent, &f->in_watch);
    in_end(&f->in);
}

static void end_output(struct file *f)
{
    agent_unwatch(f->agent, &f->out_watch);
    out_end(&f->out);
    f->agent->tell = true;
}

static void release(struct file *f)
{
    struct agent *a = f->agent;
    struct file **at = &a->files;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    f->next = a->dead_files;
    a->dead_files = f;
    a->file_count--;
}

/* A closed operation whose child is gone is over. */
static void check_over(struct file *f)
{
    if (f->channel == 0 && f->pid == 0)
        release(f);
}

void file_free_dead(struct agent *a)
{
    while (a->dead_files) {
        struct file *f = a->dead_files;
        a->dead_files = f->next;
        free(f);
    }
}

/* Lets go of everything but the child, which sees its pipes end and cleans up. */
static void let_go(struct file *f)
{
    end_input(f);
    end_output(f);
    if (f->out.ring)
        link_unpin(&f->agent->link, f->out.ring, f->out.size);
    out_finish(&f->out);
    in_finish(&f->in);
    f->in.ring = NULL;
    share_unmap(f->shared, f->shared_size);
    f->shared = NULL;
    agent_unwatch(f->agent, &f->control_watch);
    if (f->control >= 0)
        (void)close(f->control);
    f->control = -1;
    f->channel = 0;
    if (f->pid && !f->tidies)
        (void)kill(f->pid, SIGKILL);
    f->kill_at = f->pid ? clock_mono_ns() + (f->tidies ? TIDY_GRACE_NS : CLOSE_GRACE_NS) : 0;
    check_over(f);
}

/* --- memory shared with the child (share.h) --- */

/* READ: bytes of the file stand in the next half. */
static bool take_half(struct file *f, uint32_t filled)
{
    if (!f->shared || f->writes || f->halves == 2 || filled == 0 || filled > SHARE_HALF)
        return false;
    if (!f->out.ring)
        out_lend(&f->out, f->shared, f->shared_size);
    unsigned slots = 0;
    for (uint32_t at = 0; at < filled; at += SHARE_DATA, slots++) {
        uint32_t n = filled - at < SHARE_DATA ? filled - at : SHARE_DATA;
        if (!out_add(&f->out, share_slot(f->shared, f->next_half, slots), n))
            return false;
    }
    f->half[f->halves++] = slots;
    f->next_half ^= 1;
    return true;
}

static void watch_output(struct file *f)
{
    /* What is shared goes first, and leaves its place to what comes through the pipe. */
    if (f->out.fd >= 0 && !f->out_watch.events && f->halves == 0 && out_has_room(&f->out))
        agent_watch(f->agent, &f->out_watch, EPOLLIN);
}

/* Nothing of a file is being written to the port: what has been sent has gone, and its place is free. No
 * epoch will ask for it again. */
static void make_room(struct file *f)
{
    out_forget_sent(&f->out);
    while (f->halves > 0) {
        unsigned later = f->halves == 2 ? f->half[1] : 0;
        f->half[0] = f->out.count > later ? f->out.count - later : 0;
        if (f->half[0] > 0)
            break;
        f->half[0] = later;
        f->halves--;
        f->give_back++;
    }
    const struct share_word w = {.filled = 0};
    while (f->give_back > 0 && share_tell(f->control, &w))
        f->give_back--;
    watch_output(f);
}

/* WRITE: tells the child of what is worth it, and of the end. */
static void feed_shared(struct file *f)
{
    struct share_word w = {f->in.received, f->committed};
    if (f->done || f->control < 0 || f->told_commit)
        return;
    if (!w.last)
        w.filled = share_worth(w.filled, f->shared_size);
    if ((w.last || w.filled > f->told_filled) && share_tell(f->control, &w)) {
        f->told_filled = w.filled;
        f->told_commit = w.last;
    }
    if (in_must_tell(&f->in))
        f->agent->tell = true;
}

/* WRITE: what was shared is in the file. */
static bool take_room(struct file *f, uint64_t taken)
{
    if (!f->shared || !f->writes || taken > f->told_filled || in_taken(&f->in, taken) < 0)
        return false;
    feed_shared(f);
    return true;
}

/* --- the child's word --- */

static void take_report(struct file *f, struct file_report *r)
{
    bool good = true;
    if (r->opened) {
        if (r->has_stat)
            proto_stat_put(f->stat, &r->stat);
        f->has_stat = r->has_stat;
        f->tell_opened = true;
        f->agent->tell = true;
    } else if (r->filled) {
        good = take_half(f, r->filled);
    } else if (r->taken) {
        good = take_room(f, r->taken);
    } else {
        if (r->has_stat)
            proto_stat_put(f->stat, &r->stat);
        f->has_stat = r->has_stat;
        r->message[sizeof(r->message) - 1] = '\0';
        end_with(f, r->code, r->message);
    }
    if (!good)
        end_with(f, ERROR_INTERNAL, "the file operation told of what cannot be");
}

/* Whether there was one, or an end. */
static bool read_report(struct file *f)
{
    struct file_report r;
    ssize_t n = recv(f->control, &r, sizeof(r), MSG_DONTWAIT);
    /* A child that ended without reading the commit resets the socket; its report stands behind that error.
     */
    if (n < 0 && errno == ECONNRESET)
        n = recv(f->control, &r, sizeof(r), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n == sizeof(r)) {
        take_report(f, &r);
        return true;
    }
    agent_unwatch(f->agent, &f->control_watch);
    end_with(f, ERROR_INTERNAL, "the file operation ended without an answer");
    return false;
}

static void on_report(struct watch *w, uint32_t events)
{
    (void)events;
    (void)read_report(w->arg);
}

static void on_output(struct watch *w, uint32_t events)
{
    struct file *f = w->arg;
    (void)events;
    if (f->out.fd < 0)
        return;
    /* What the child has shared it has told of before it wrote to the pipe or closed it. */
    while (f->shared && f->control_watch.events && read_report(f))
        ;
    if (f->halves > 0 || !out_has_room(&f->out))
        agent_unwatch(f->agent, &f->out_watch);
    else if (out_fill(&f->out) < 0)
        end_output(f);
}

/* --- what goes to the child --- */

static void feed(struct file *f)
{
    if (f->in.ring) {
        feed_shared(f);
        return;
    }
    enum in_state state = in_flush(&f->in);
    if (state == IN_WAITS) {
        agent_watch(f->agent, &f->in_watch, EPOLLOUT);
        return;
    }
    if (state == IN_ENDED)
        end_input(f);
    else
        agent_unwatch(f->agent, &f->in_watch);
    if (f->committed && f->in.fd >= 0) {
        (void)send(f->control, "C", 1,
                   MSG_NOSIGNAL | MSG_DONTWAIT); /* before the end, so that it is there in time */
        end_input(f);
    }
    if (in_must_tell(&f->in))
        f->agent->tell = true;
}

static void on_input(struct watch *w, uint32_t events)
{
    (void)events;
    feed(w->arg);
}

struct ends {
    int data[2];    /* owned; [0] the agent's */
    int control[2]; /* owned; [0] the agent's */
};

static void ends_finish(struct ends *e)
{
    for (int i = 0; i < 2; i++) {
        if (e->data[i] >= 0)
            (void)close(e->data[i]);
        if (e->control[i] >= 0)
            (void)close(e->control[i]);
    }
}

static int open_ends(struct ends *e, bool writes)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -1;
    e->data[0] = fds[writes ? 1 : 0];
    e->data[1] = fds[writes ? 0 : 1];
    (void)fcntl(fds[0], F_SETPIPE_SZ, RING_SIZE);
    if (fcntl(e->data[0], F_SETFL, O_NONBLOCK) < 0)
        return -1;
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, e->control);
}

/* The child keeps nothing of the agent's but its two descriptors: it may outlive much of what is open now. */
static void child(struct file_job *job, const struct ends *e)
{
    sigset_t none;
    int data = fcntl(e->data[1], F_DUPFD, 10);
    int control = fcntl(e->control[1], F_DUPFD, 10);
    if (dup2(data, CHILD_DATA) < 0 || dup2(control, CHILD_CONTROL) < 0)
        _exit(1);
    if (close_range(CHILD_CONTROL + 1, ~0U, 0) < 0)
        _exit(1);
    job->data = CHILD_DATA;
    job->control = CHILD_CONTROL;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    file_work(job);
    _exit(0);
}

static int start_child(struct file *f, struct file_job *job)
{
    CLEANUP(ends_finish) struct ends e = {{-1, -1}, {-1, -1}};
    if (open_ends(&e, f->writes) < 0)
        return -1;
    pid_t pid = fork();
    if (pid < 0)
        return -1;
    if (pid == 0)
        child(job, &e);
    f->pid = pid;
    f->control = TAKE_FD(e.control[0]);
    f->control_watch = (struct watch){.fd = f->control, .fn = on_report, .arg = f};
    agent_watch(f->agent, &f->control_watch, EPOLLIN);
    if (f->shared)
        (void)madvise(f->shared, f->shared_size, MADV_DONTFORK); /* no other child's business */
    if (f->writes && f->shared) {
        in_lend(&f->in, f->shared, f->shared_size);
    } else if (f->writes) {
        in_init(&f->in, TAKE_FD(e.data[0]), PROTO_WRITE_WINDOW, false);
        f->in.through = true;
        f->in_watch = (struct watch){.fd = f->in.fd, .fn = on_input, .arg = f};
    } else {
        f->out.fd = TAKE_FD(e.data[0]);
        f->out.limit = PROTO_OUTPUT_WINDOW;
        f->out_watch = (struct watch){.fd = f->out.fd, .fn = on_output, .arg = f};
        agent_watch(f->agent, &f->out_watch, EPOLLIN);
    }
    return 0;
}

static const char *refuse(struct agent *a, uint32_t channel, const char *why)
{
    struct buf body;
    buf_init(&body, 1024);
    (void)proto_put_u32(&body, PROTO_F_CODE, (uint32_t)-ERROR_CAPACITY);
    (void)proto_put_string(&body, PROTO_F_MESSAGE, why);
    (void)link_send(&a->link, PROTO_FILE_DONE, channel, &body);
    buf_finish(&body);
    return NULL;
}

static bool is_write(uint32_t op)
{
    return op == PROTO_OP_WRITE || op == PROTO_OP_ARCHIVE_WRITE;
}

static bool tidies(uint32_t op)
{
    return is_write(op) || op == PROTO_OP_COPY || op == PROTO_OP_MOVE;
}

static unsigned count_watches(const struct agent *a)
{
    unsigned n = 0;
    for (const struct file *f = a->files; f; f = f->next)
        n += f->watches;
    return n;
}

static struct file_job job_of(const struct proto_fields *m)
{
    return (struct file_job){
        .op = proto_get_u32(m, PROTO_F_OP, 0),
        .path = proto_get_string(m, PROTO_F_PATH, ""),
        .user = proto_get_string(m, PROTO_F_USER, "root"),
        .target = proto_get_string(m, PROTO_F_TARGET, ""),
        .owner = proto_get_string(m, PROTO_F_OWNER, NULL),
        .after = proto_get_string(m, PROTO_F_AFTER, NULL),
        .mode = proto_get_u32(m, PROTO_F_MODE, UINT32_MAX),
        .flags = proto_get_u32(m, PROTO_F_FLAGS, 0),
        .depth = proto_get_u32(m, PROTO_F_DEPTH, 1),
        .limit = proto_get_u32(m, PROTO_F_LIMIT, 0),
        .recursive = proto_get_u32(m, PROTO_F_RECURSIVE, 0) != 0,
        .offset = proto_get_u64(m, PROTO_F_OFFSET, 0),
        .length = proto_get_u64(m, PROTO_F_LENGTH, UINT64_MAX),
    };
}

/* One at a time has a large ring. */
static size_t ring_size(const struct agent *a)
{
    for (const struct file *o = a->files; o; o = o->next)
        if (o->shared && o->shared_size == SHARE_IN_LARGE)
            return SHARE_IN_SIZE;
    return SHARE_IN_LARGE;
}

/* One of a few that may turn out to be large. Without memory its data goes through the pipe. */
static void share_memory(struct file *f, struct file_job *job)
{
    bool may = job->op == PROTO_OP_READ || job->op == PROTO_OP_WRITE;
    f->shared_size = f->writes ? ring_size(f->agent) : SHARE_OUT_SIZE;
    f->shared = may && !job->narrow ? share_map(f->shared_size) : NULL;
    job->shared = f->shared;
    job->shared_size = f->shared_size;
}

const char *file_start(struct agent *a, uint32_t channel, const struct proto_fields *m)
{
    struct file_job job = job_of(m);
    if (job.op < PROTO_OP_STAT || job.op >= PROTO_OP_END ||
        (job.op > PROTO_OP_WRITE && a->link.version < PROTO_VERSION_TREES))
        return "a file operation that does not exist";
    if (job.op == PROTO_OP_WATCH && count_watches(a) >= PROTO_WATCHES_MAX)
        return refuse(a, channel, "the limit of 16 watches at a time has been reached");
    struct file *f = a->file_count < PROTO_FILES_MAX ? malloc(sizeof(*f)) : NULL;
    if (!f)
        return refuse(a, channel, "the limit of 64 file operations at a time has been reached");
    job.narrow = a->file_count >= WIDE_MAX;
    memset(f, 0, sizeof(*f));
    f->agent = a;
    f->channel = channel;
    f->control = -1;
    f->writes = is_write(job.op);
    f->tidies = tidies(job.op);
    f->watches = job.op == PROTO_OP_WATCH;
    in_init(&f->in, -1, PROTO_WRITE_WINDOW, false);
    out_init(&f->out, PROTO_FILE_DATA, -1, RING_SIZE);
    share_memory(f, &job);
    f->next = a->files;
    a->files = f;
    a->file_count++;
    if (start_child(f, &job) < 0)
        end_with(f, ERROR_CAPACITY, "the guest cannot start another process");
    return NULL;
}

const char *file_commit(struct file *f)
{
    if (!f->writes || f->committed)
        return "a commit of what is not being written";
    f->committed = true;
    feed(f);
    return NULL;
}

const char *file_close(struct file *f)
{
    let_go(f);
    return NULL;
}

static void widen(struct file *f)
{
    unsigned wide = 0;
    for (const struct file *o = f->agent->files; o; o = o->next)
        wide += o->in.window > PROTO_WRITE_WINDOW;
    if (f->in.ring) /* the memory is there */
        in_widen(&f->in, f->shared_size < WIDE_WINDOW ? f->shared_size : WIDE_WINDOW);
    else if (wide < WIDE_MAX)
        in_widen(&f->in, WIDE_PIPE);
}

static bool takes_data(const struct file *f)
{
    return f->writes && !f->committed;
}

/* r: of the function that has taken it. */
static const char *took(struct file *f, int r)
{
    if (r < 0)
        return "file data that does not fit";
    if (f->in.received >= WIDE_FROM && f->in.window == PROTO_WRITE_WINDOW)
        widen(f);
    feed(f);
    return NULL;
}

const char *file_data(struct file *f, const struct proto_data *d)
{
    bool good = takes_data(f) && d->stream == PROTO_FILE_DATA && !d->fin;
    return took(f, good ? in_data(&f->in, d) : -1);
}

unsigned char *file_place(const struct file *f, const struct proto_data *d, size_t done, size_t *ret_room)
{
    return takes_data(f) ? in_place(&f->in, d, done, ret_room) : NULL;
}

const char *file_placed(struct file *f, const struct proto_data *d)
{
    return took(f, takes_data(f) ? in_placed(&f->in, d) : -1);
}

const char *file_window(struct file *f, const struct proto_window *w)
{
    if (f->writes || w->stream != PROTO_FILE_DATA || out_window(&f->out, w->acked, w->limit) < 0)
        return "a window that does not fit";
    watch_output(f);
    return NULL;
}

bool file_reaped(struct agent *a, pid_t pid)
{
    for (struct file *f = a->files; f; f = f->next)
        if (f->pid == pid) {
            f->pid = 0;
            f->kill_at = 0;
            check_over(f);
            return true;
        }
    return false;
}

void file_close_all(struct agent *a)
{
    for (struct file *f = a->files, *next; f; f = next) {
        next = f->next;
        if (f->channel)
            let_go(f);
    }
}

void file_tell(struct agent *a, struct file *f)
{
    struct buf body;
    if (!f->channel)
        return;
    buf_init(&body, 1024);
    if (f->tell_opened) {
        f->tell_opened = false;
        (void)proto_put_bytes(&body, PROTO_F_STAT, f->stat, sizeof(f->stat));
        (void)link_send(&a->link, PROTO_FILE_OPENED, f->channel, &body);
        buf_consume(&body, buf_len(&body));
    }
    if (f->writes && !f->done && in_must_tell(&f->in)) {
        struct proto_window w = {PROTO_FILE_DATA, f->in.received, in_limit(&f->in)};
        f->in.announced = w.limit;
        (void)proto_window_send(&a->link.tx, a->link.tag, f->channel, &w);
    }
    if (f->done && !f->told_done && out_drained(&f->out)) {
        f->told_done = true;
        (void)proto_put_u32(&body, PROTO_F_CODE, (uint32_t)-f->code);
        (void)proto_put_string(&body, PROTO_F_MESSAGE, f->message[0] ? f->message : NULL);
        if (f->has_stat)
            (void)proto_put_bytes(&body, PROTO_F_STAT, f->stat, sizeof(f->stat));
        (void)link_send(&a->link, PROTO_FILE_DONE, f->channel, &body);
        let_go(f); /* the channel is free; what the host still sends on it is late */
    }
    buf_finish(&body);
}

bool file_send(struct agent *a, struct file *f)
{
    const unsigned char *frame;
    if (!f->channel)
        return false;
    make_room(f);
    if (!out_ready(&f->out))
        return false;
    size_t n = out_take(&f->out, f->channel, a->link.tag, a->link.scratch, &frame);
    link_frame(&a->link, frame, n);
    if (out_drained(&f->out))
        a->tell = true;
    return true;
}

int64_t file_deadlines(struct agent *a, int64_t now)
{
    int64_t next = 0;
    for (struct file *f = a->files; f; f = f->next) {
        if (f->kill_at && f->kill_at <= now) {
            f->kill_at = 0;
            (void)kill(f->pid, SIGKILL);
        }
        if (f->kill_at && (!next || f->kill_at < next))
            next = f->kill_at;
    }
    return next;
}
