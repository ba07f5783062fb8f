#include "agent/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "agent/launch.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"

#define DRAIN_NS (2 * CLOCK_NS_PER_S)
/* STARTED waits this long for company: a short command then costs one write to the port instead of two. */
#define STARTED_WAIT_NS (15 * CLOCK_NS_PER_MS)
#define PIPE_LARGE 1048576
#define PIPE_GROW 32768 /* a read of this much: the writer wants a larger pipe */
/* And of this much: a ring that takes all of such a pipe while the host has not acknowledged what came
 * before. Else the writer and this process would change places all the time. */
#define RING_GROW 262144
#define RING_WIDE 4194304
#define WIDE_MAX 4 /* streams that have one */

struct process *process_find(struct agent *a, uint32_t channel)
{
    for (struct process *p = a->processes; p; p = p->next)
        if (p->channel == channel)
            return p;
    return NULL;
}

bool process_running(const struct agent *a)
{
    const struct process *p = a->processes;
    while (p && p->ended)
        p = p->next;
    return p != NULL;
}

static struct process *find_id(struct agent *a, const char *id)
{
    for (struct process *p = a->processes; p; p = p->next)
        if (strcmp(p->id, id) == 0)
            return p;
    return NULL;
}

static void must_tell(struct process *p)
{
    p->agent->tell = true;
}

/* Both streams at their end, the process reaped: EXIT may follow the last byte. */
static void check_closed(struct process *p)
{
    if (p->closed || !p->ended || p->out[0].fd >= 0 || p->out[1].fd >= 0)
        return;
    p->closed = true;
    p->drain_deadline = 0;
    cgroup_drop(&p->agent->cgroups, &p->group);
    must_tell(p);
}

static void end_stream(struct process *p, int i)
{
    agent_unwatch(p->agent, &p->out_watch[i]);
    out_end(&p->out[i]);
    check_closed(p);
}

/* For a stream of which n bytes came at once. */
static void widen(struct process *p, int i, uint64_t n)
{
    struct agent *a = p->agent;
    struct out *o = &p->out[i];
    if (n < PIPE_GROW || p->terminal >= 0)
        return;
    if (!p->grown[i]) {
        p->grown[i] = true;
        (void)fcntl(o->fd, F_SETPIPE_SZ, PIPE_LARGE);
    }
    if (n < RING_GROW || p->wide[i] || a->wide == WIDE_MAX)
        return;
    link_unpin(&a->link, o->ring, o->size);
    p->wide[i] = out_grow(o, RING_WIDE);
    a->wide += p->wide[i];
}

/* Reads what a stream has; stops watching it while there is no room. */
static void fill(struct process *p, int i)
{
    struct out *o = &p->out[i];
    if (o->fd < 0)
        return;
    uint64_t before = o->end;
    if (!out_has_room(o)) {
        agent_unwatch(p->agent, &p->out_watch[i]);
        return;
    }
    int got = out_fill(o);
    if (got > 0)
        agent_has_read(p->agent);
    if (got < 0)
        end_stream(p, i);
    else
        widen(p, i, o->end - before);
}

static void on_output(struct watch *w, uint32_t events)
{
    struct process *p = w->arg;
    int i = w == &p->out_watch[1];
    /* A pipe without writers and without bytes need not be asked again. */
    if ((events & (EPOLLIN | EPOLLHUP)) == EPOLLHUP && p->terminal < 0)
        end_stream(p, i);
    else
        fill(p, i);
}

static void feed(struct process *p)
{
    enum in_state state = in_flush(&p->in);
    if (state == IN_WAITS)
        agent_watch(p->agent, &p->in_watch, EPOLLOUT);
    else
        agent_unwatch(p->agent, &p->in_watch);
    if (state == IN_ENDED)
        in_end(&p->in);
    if (p->channel && in_must_tell(&p->in))
        must_tell(p);
}

static void on_input(struct watch *w, uint32_t events)
{
    (void)events;
    feed(w->arg);
}

static void watch_streams(struct process *p)
{
    for (int i = 0; i < 2; i++) {
        p->out_watch[i] = (struct watch){.fd = p->out[i].fd, .fn = on_output, .arg = p};
        if (p->out[i].fd >= 0)
            agent_watch(p->agent, &p->out_watch[i], EPOLLIN);
    }
    p->in_watch = (struct watch){.fd = p->in.fd, .fn = on_input, .arg = p};
}

/* The main process also by itself: one of root's may have left the group. */
static void kill_tree(struct process *p)
{
    if (!cgroup_kill(&p->group) && p->pid > 0)
        (void)kill(-p->pid, SIGKILL);
    if (p->pid > 0 && !p->ended)
        (void)kill(p->pid, SIGKILL);
}

/* At the latest then: what was promised before stands. */
static void kill_by(struct process *p, int64_t when)
{
    if (!p->kill_at || when < p->kill_at)
        p->kill_at = when;
}

static void signal_tree(struct process *p, int signal)
{
    if (signal == SIGKILL)
        kill_tree(p);
    else if (!cgroup_signal(&p->group, signal))
        (void)kill(-p->pid, signal);
}

static void unlink_process(struct agent *a, struct process *p)
{
    struct process **at = &a->processes;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    p->next = a->dead_processes;
    a->dead_processes = p;
    a->process_count--;
    for (int i = 0; i < 2; i++) {
        agent_unwatch(a, &p->out_watch[i]);
        if (p->out[i].ring)
            link_unpin(&a->link, p->out[i].ring, p->out[i].size);
        out_finish(&p->out[i]);
        a->wide -= p->wide[i];
    }
    agent_unwatch(a, &p->in_watch);
    in_finish(&p->in);
    cgroup_drop(&a->cgroups, &p->group);
    if (p->terminal >= 0)
        (void)close(p->terminal);
    p->terminal = -1;
}

bool process_pending(const struct agent *a)
{
    for (const struct process *p = a->processes; p; p = p->next)
        if (!p->closed || (p->channel && !p->told_exit))
            return true;
    return false;
}

void process_free_dead(struct agent *a)
{
    while (a->dead_processes) {
        struct process *p = a->dead_processes;
        a->dead_processes = p->next;
        free(p);
    }
}

void process_free_all(struct agent *a)
{
    while (a->processes) {
        if (!a->processes->ended)
            kill_tree(a->processes);
        unlink_process(a, a->processes);
    }
    process_free_dead(a);
}

/* EXIT for a channel that has no process. */
static void send_refusal(struct agent *a, uint32_t channel, const char *why)
{
    struct process p = {.channel = channel,
                        .reason = PROTO_REASON_START_FAILED,
                        .closed = true,
                        .out = {{.fd = -1}, {.fd = -1}}};
    (void)str_copy(p.message, sizeof(p.message), why);
    process_tell(a, &p);
}

/* When the table is full, a result that nobody is attached to gives way, the oldest first. */
static void evict(struct agent *a)
{
    struct process *last = NULL;
    for (struct process *p = a->processes; p; p = p->next)
        if (p->closed && p->channel == 0)
            last = p;
    if (last)
        unlink_process(a, last);
}

static const char *attach(struct agent *a, struct process *p, uint32_t channel, const struct proto_fields *f)
{
    const uint64_t offsets[2] = {proto_get_u64(f, PROTO_F_STDOUT, 0), proto_get_u64(f, PROTO_F_STDERR, 0)};
    const uint64_t limits[2] = {proto_get_u64(f, PROTO_F_STDOUT_LIMIT, 0),
                                proto_get_u64(f, PROTO_F_STDERR_LIMIT, 0)};
    if (p->channel != 0)
        return "a process that is attached already";
    for (int i = 0; i < 2; i++)
        if (out_rewind(&p->out[i], offsets[i], limits[i]) < 0) {
            send_refusal(a, channel, "output at that offset is gone");
            return NULL;
        }
    p->channel = channel;
    p->tell_started = p->pid > 0;
    p->started_due = 0;
    p->told_exit = false;
    p->in.announced = in_limit(&p->in); /* STARTED carries it */
    for (int i = 0; i < 2; i++)
        if (p->out[i].fd >= 0 && !p->out_watch[i].events)
            agent_watch(a, &p->out_watch[i], EPOLLIN);
    must_tell(p);
    return NULL;
}

static struct process *create(struct agent *a, const char *id)
{
    struct process *p = malloc(sizeof(*p));
    if (!p)
        return NULL;
    memset(p, 0, sizeof(*p));
    p->agent = a;
    p->terminal = -1;
    p->group = cgroup_none();
    (void)str_copy(p->id, sizeof(p->id), id);
    in_init(&p->in, -1, PROTO_STDIN_WINDOW, false);
    for (int i = 0; i < 2; i++)
        out_init(&p->out[i], i ? PROTO_STDERR : PROTO_STDOUT, -1, 0);
    p->next = a->processes;
    a->processes = p;
    a->process_count++;
    return p;
}

const char *process_exec(struct agent *a, uint32_t channel, const struct proto_fields *f)
{
    const char *id = proto_get_string(f, PROTO_F_PROCESS, "");
    uint32_t timeout = proto_get_u32(f, PROTO_F_TIMEOUT, 0);
    struct process *p = find_id(a, id);
    if (p)
        return attach(a, p, channel, f);
    if (freeze_is_on(a)) { /* it would be born frozen, and this process waits until it has become a program */
        send_refusal(a, channel, "the sandbox's processes are frozen");
        return NULL;
    }
    if (a->process_count >= PROTO_PROCESSES_MAX)
        evict(a);
    if (a->process_count >= PROTO_PROCESSES_MAX || a->stopping || !(p = create(a, id))) {
        send_refusal(a, channel,
                     a->stopping ? "the sandbox is shutting down"
                                 : "the limit of 512 processes has been reached");
        return NULL;
    }
    if (pace_command(&a->pace) && a->init)
        pace_apply(&a->pace);
    if (launch(a, p, f) < 0) {
        p->reason = PROTO_REASON_START_FAILED;
        p->ended = true;
    } else if (timeout) {
        p->deadline = clock_mono_ns() + timeout * CLOCK_NS_PER_MS;
        p->grace = proto_get_u32(f, PROTO_F_GRACE, 0) * CLOCK_NS_PER_MS;
    }
    watch_streams(p);
    check_closed(p);
    const char *why = attach(a, p, channel, f);
    if (p->in.fd < 0) /* with stdin the host waits for STARTED: it carries the first credit */
        p->started_due = clock_mono_ns() + STARTED_WAIT_NS;
    return why;
}

const char *process_attach(struct agent *a, uint32_t channel, const struct proto_fields *f)
{
    struct process *p = find_id(a, proto_get_string(f, PROTO_F_PROCESS, ""));
    if (p)
        return attach(a, p, channel, f);
    send_refusal(a, channel, "unknown process");
    return NULL;
}

const char *process_release(struct agent *a, struct process *p)
{
    /* A released process that still runs only loses its channel: another attach may follow. */
    if (p->told_exit)
        unlink_process(a, p);
    p->channel = 0;
    return NULL;
}

const char *process_signal(struct agent *a, struct process *p, const struct proto_fields *f)
{
    uint32_t request = proto_get_u32(f, PROTO_F_REQUEST, 0);
    uint32_t signal = proto_get_u32(f, PROTO_F_SIGNAL, 0);
    uint32_t grace = proto_get_u32(f, PROTO_F_GRACE, 0);
    bool tree = proto_get_u32(f, PROTO_F_TREE, 0) != 0;
    if (signal < 1 || signal > 64) {
        agent_reply(a, request, ERROR_INVALID, "no such signal");
    } else if (p->ended) {
        agent_reply(a, request, ERROR_CONFLICT, "the process has ended");
    } else {
        if (tree)
            signal_tree(p, (int)signal);
        else
            (void)kill(p->pid, (int)signal);
        if (grace)
            kill_by(p, clock_mono_ns() + grace * CLOCK_NS_PER_MS);
        agent_reply(a, request, 0, NULL);
    }
    return NULL;
}

const char *process_resize(struct process *p, const struct proto_fields *f)
{
    struct winsize size = {.ws_row = (unsigned short)proto_get_u32(f, PROTO_F_ROWS, 0),
                           .ws_col = (unsigned short)proto_get_u32(f, PROTO_F_COLS, 0)};
    if (p->terminal >= 0)
        (void)ioctl(p->terminal, TIOCSWINSZ, &size);
    return NULL;
}

const char *process_data(struct process *p, const struct proto_data *d)
{
    if (d->stream != PROTO_STDIN || in_data(&p->in, d) < 0)
        return "stdin that does not fit";
    feed(p);
    return NULL;
}

const char *process_window(struct process *p, const struct proto_window *w)
{
    if (w->stream != PROTO_STDOUT && w->stream != PROTO_STDERR)
        return "a window of a stream that does not exist";
    int i = w->stream == PROTO_STDERR;
    if (out_window(&p->out[i], w->acked, w->limit) < 0)
        return "an acknowledgement of what was not sent";
    if (p->out[i].fd >= 0 && !p->out_watch[i].events && out_has_room(&p->out[i]))
        agent_watch(p->agent, &p->out_watch[i], EPOLLIN);
    return NULL;
}

static void set_result(struct process *p, int status)
{
    bool killed = WIFSIGNALED(status);
    p->exit_code = killed ? 0 : WEXITSTATUS(status);
    p->signal = killed ? WTERMSIG(status) : 0;
    p->reason = killed ? PROTO_REASON_SIGNAL : PROTO_REASON_EXIT;
    bool as_if_killed =
        p->signal == SIGKILL || p->exit_code == 128 + SIGKILL; /* a shell reports its child's end so */
    if (p->timed_out) {
        p->reason = PROTO_REASON_TIMEOUT;
        p->signal = p->killed ? SIGKILL : SIGTERM;
    } else if (as_if_killed && cgroup_oom(&p->group)) {
        p->reason = PROTO_REASON_OOM_KILLED;
        p->signal = SIGKILL;
    }
}

bool process_reaped(struct agent *a, pid_t pid, int status, const struct rusage *usage)
{
    struct process *p = a->processes;
    while (p && (p->pid != pid || p->ended))
        p = p->next;
    if (!p)
        return false;
    p->cpu_ms = (uint64_t)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000 +
                (uint64_t)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1000;
    p->max_rss = (uint64_t)usage->ru_maxrss * 1024;
    set_result(p, status);
    p->ended = true;
    kill_tree(p); /* what the main process leaves behind must not hold the streams or live on */
    p->deadline = p->kill_at = 0;
    p->drain_deadline = clock_mono_ns() + DRAIN_NS;
    for (int i = 0; i < 2; i++)
        fill(p, i);
    check_closed(p);
    if (p->channel)
        must_tell(p);
    return true;
}

void process_detach_all(struct agent *a)
{
    for (struct process *p = a->processes; p; p = p->next) {
        p->channel = 0;
        p->tell_started = false;
    }
}

static void put_exit(struct buf *b, const struct process *p)
{
    (void)proto_put_u32(b, PROTO_F_REASON, p->reason);
    (void)proto_put_u32(b, PROTO_F_EXIT, (uint32_t)p->exit_code);
    (void)proto_put_u32(b, PROTO_F_SIGNAL, (uint32_t)p->signal);
    (void)proto_put_u64(b, PROTO_F_STDOUT, p->out[0].end);
    (void)proto_put_u64(b, PROTO_F_STDERR, p->out[1].end);
    (void)proto_put_u64(b, PROTO_F_CPU, p->cpu_ms);
    (void)proto_put_u64(b, PROTO_F_RSS, p->max_rss);
    (void)proto_put_string(b, PROTO_F_MESSAGE, p->message[0] ? p->message : NULL);
}

static void send_fields(struct agent *a, struct process *p, uint8_t type, struct buf *body)
{
    (void)link_send(&a->link, type, p->channel, body);
    buf_finish(body);
}

void process_tell(struct agent *a, struct process *p)
{
    struct buf body;
    buf_init(&body, 2048);
    if (p->tell_started && (p->closed || p->started_due <= clock_mono_ns())) {
        p->tell_started = false;
        (void)proto_put_u32(&body, PROTO_F_PID, (uint32_t)p->pid);
        (void)proto_put_u64(&body, PROTO_F_STDIN, p->in.received);
        (void)proto_put_u64(&body, PROTO_F_STDIN_LIMIT, p->in.announced);
        send_fields(a, p, PROTO_STARTED, &body);
    }
    if (p->channel && p->in.window && in_must_tell(&p->in)) {
        struct proto_window w = {PROTO_STDIN, p->in.received, in_limit(&p->in)};
        p->in.announced = w.limit;
        (void)proto_window_send(&a->link.tx, a->link.tag, p->channel, &w);
    }
    if (p->channel && p->closed && !p->told_exit && out_drained(&p->out[0]) && out_drained(&p->out[1])) {
        p->told_exit = true;
        put_exit(&body, p);
        send_fields(a, p, PROTO_EXIT, &body);
    }
}

bool process_send(struct agent *a, struct process *p)
{
    for (int i = 0; p->channel && i < 2; i++) {
        struct out *o = &p->out[i];
        const unsigned char *frame;
        if (!out_ready(o))
            continue;
        if (p->tell_started) { /* first; the frame follows in the next round */
            p->started_due = 0;
            must_tell(p);
            return true;
        }
        size_t n = out_take(o, p->channel, a->link.tag, a->link.scratch, &frame);
        link_frame(&a->link, frame, n);
        if (p->closed && out_drained(o))
            must_tell(p);
        return true;
    }
    return false;
}

static void give_up_streams(struct process *p)
{
    for (int i = 0; i < 2; i++) {
        if (p->out[i].fd < 0)
            continue;
        agent_unwatch(p->agent, &p->out_watch[i]);
        out_end(&p->out[i]);
    }
    check_closed(p);
}

/* A tree that is to end within its grace time: also what has stopped itself has to run for that. */
static void time_out(struct process *p, int64_t now)
{
    p->deadline = 0;
    p->timed_out = true;
    kill_by(p, now + p->grace);
    if (p->grace == 0)
        return;
    signal_tree(p, SIGTERM);
    signal_tree(p, SIGCONT);
}

static void meet_deadlines(struct process *p, int64_t now)
{
    if (p->deadline && p->deadline <= now)
        time_out(p, now);
    if (p->kill_at && p->kill_at <= now) {
        p->kill_at = 0;
        p->killed = true;
        kill_tree(p);
    }
    if (p->drain_deadline && p->drain_deadline <= now) {
        p->drain_deadline = 0;
        /* Bytes that the host has no room for yet are no reason to give up: only an idle stream is. */
        if (out_has_room(&p->out[0]) && out_has_room(&p->out[1]))
            give_up_streams(p);
        else
            p->drain_deadline = now + DRAIN_NS;
    }
    if (p->tell_started && p->started_due <= now)
        must_tell(p);
}

int64_t process_deadlines(struct agent *a, int64_t now)
{
    int64_t next = 0;
    for (struct process *p = a->processes; p; p = p->next) {
        meet_deadlines(p, now);
        const int64_t all[] = {p->deadline, p->kill_at, p->drain_deadline,
                               p->tell_started && p->started_due > now ? p->started_due : 0};
        for (size_t i = 0; i < ARRAY_LEN(all); i++)
            if (all[i] && (!next || all[i] < next))
                next = all[i];
    }
    return next;
}
