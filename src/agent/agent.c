#include "agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

#include "agent/boot.h"
#include "agent/conn.h"
#include "agent/file.h"
#include "agent/process.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define EVENTS_MAX 64
#define GRACE_MAX_MS 600000
#define SOON_NS (CLOCK_NS_PER_MS / 4)

void agent_watch(struct agent *a, struct watch *w, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = w};
    if (w->events == events)
        return;
    if (epoll_ctl(a->epoll, w->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, w->fd, &e) == 0)
        w->events = events;
}

void agent_unwatch(struct agent *a, struct watch *w)
{
    if (w->events)
        (void)epoll_ctl(a->epoll, EPOLL_CTL_DEL, w->fd, NULL);
    w->events = 0;
}

void agent_reply(struct agent *a, uint32_t request, int code, const char *message)
{
    struct buf body;
    buf_init(&body, 1024);
    (void)proto_put_u32(&body, PROTO_F_REQUEST, request);
    (void)proto_put_u32(&body, PROTO_F_CODE, (uint32_t)-code);
    (void)proto_put_string(&body, PROTO_F_MESSAGE, message);
    (void)link_send(&a->link, PROTO_REPLY, 0, &body);
    buf_finish(&body);
}

static void on_up(void *arg)
{
    struct agent *a = arg;
    struct buf body;
    buf_init(&body, 1024);
    (void)proto_put_string(&body, PROTO_F_AGENT, SPACE_VERSION);
    (void)proto_put_bytes(&body, PROTO_F_BOOT, a->boot_id, sizeof(a->boot_id));
    (void)proto_put_u64(&body, PROTO_F_GENERATION, a->identity.generation);
    (void)proto_put_u32(&body, PROTO_F_PROCESSES, PROTO_PROCESSES_MAX);
    (void)proto_put_u32(&body, PROTO_F_FILES, PROTO_FILES_MAX);
    if (a->link.version >= 2)
        (void)proto_put_u32(&body, PROTO_F_FROZEN, freeze_is_on(a));
    (void)link_send(&a->link, PROTO_HELLO, 0, &body);
    buf_finish(&body);
}

static void on_down(void *arg)
{
    struct agent *a = arg;
    process_detach_all(a);
    file_close_all(a);
    conn_close_all(a);
    freeze_link_down(a);
    memset(a->syncs, 0, sizeof(a->syncs)); /* nobody waits for them any more */
}

static void start_sync(struct agent *a, uint32_t request)
{
    struct agent_sync *s = a->syncs;
    while (s < a->syncs + AGENT_SYNCS_MAX && s->pid)
        s++;
    pid_t pid = s < a->syncs + AGENT_SYNCS_MAX ? fork() : -1;
    if (pid < 0) {
        agent_reply(a, request, ERROR_CAPACITY, "the guest cannot start another sync");
        return;
    }
    if (pid == 0) {
        (void)close_range(3, ~0U, 0); /* it may take long: no pipe of a process may stay open because of it */
        sync();
        _exit(0);
    }
    *s = (struct agent_sync){pid, request};
}

static void shut_down(struct agent *a, const struct proto_fields *f)
{
    uint32_t grace = proto_get_u32(f, PROTO_F_GRACE, 0);
    agent_reply(a, proto_get_u32(f, PROTO_F_REQUEST, 0), 0, NULL);
    if (a->stopping)
        return;
    a->stopping = true;
    a->stop_at = clock_mono_ns() + (grace < GRACE_MAX_MS ? grace : GRACE_MAX_MS) * CLOCK_NS_PER_MS;
    if (!freeze_kill(a) && a->init)
        (void)kill(-1, SIGTERM);
}

static void identify(struct agent *a, const struct proto_fields *f)
{
    char why[256] = "";
    int code = agent_identify(a, f, why, sizeof(why));
    agent_reply(a, proto_get_u32(f, PROTO_F_REQUEST, 0), code, code ? why : NULL);
}

static const char *on_link_message(struct agent *a, const struct proto_message *m,
                                   const struct proto_fields *f)
{
    struct buf body;
    switch (m->type) {
    case PROTO_PING:
        buf_init(&body, 64);
        (void)proto_put_u64(&body, PROTO_F_TOKEN, proto_get_u64(f, PROTO_F_TOKEN, 0));
        if (a->link.version >= 2)
            (void)proto_put_u64(&body, PROTO_F_MONO, (uint64_t)clock_mono_ns());
        (void)link_send(&a->link, PROTO_PONG, 0, &body);
        buf_finish(&body);
        break;
    case PROTO_IDENTIFY:
        identify(a, f);
        break;
    case PROTO_QUIESCE:
        freeze_begin(a, proto_get_u32(f, PROTO_F_REQUEST, 0), proto_get_u32(f, PROTO_F_LIMIT, 0));
        break;
    case PROTO_SHUTDOWN:
        shut_down(a, f);
        break;
    case PROTO_SYNCFS:
        start_sync(a, proto_get_u32(f, PROTO_F_REQUEST, 0));
        break;
    default:
        return "a message that this agent does not handle";
    }
    return NULL;
}

static const char *on_new_channel(struct agent *a, uint8_t type, uint32_t channel,
                                  const struct proto_fields *f)
{
    if (process_find(a, channel) || file_find(a, channel) || conn_find(a, channel))
        return "a channel that is in use";
    if (type == PROTO_DIAL)
        return conn_dial(a, channel, f);
    if (type == PROTO_EXEC)
        return process_exec(a, channel, f);
    return type == PROTO_ATTACH ? process_attach(a, channel, f) : file_start(a, channel, f);
}

static const char *on_process_message(struct agent *a, struct process *p, uint8_t type,
                                      const struct proto_frame *frame, const struct proto_fields *f)
{
    struct proto_data d;
    struct proto_window w;
    switch (type) {
    case PROTO_RELEASE:
        return process_release(a, p);
    case PROTO_SIGNAL:
        return process_signal(a, p, f);
    case PROTO_RESIZE:
        return process_resize(p, f);
    case PROTO_DATA:
        return proto_data_get(frame, &d) < 0 ? "malformed data" : process_data(p, &d);
    case PROTO_WINDOW:
        return proto_window_get(frame, &w) < 0 ? "a malformed window" : process_window(p, &w);
    default:
        return "a message for files on the channel of a process";
    }
}

static const char *on_file_message(struct file *file, uint8_t type, const struct proto_frame *frame)
{
    struct proto_data d;
    struct proto_window w;
    switch (type) {
    case PROTO_FILE_COMMIT:
        return file_commit(file);
    case PROTO_FILE_CLOSE:
        return file_close(file);
    case PROTO_DATA:
        return proto_data_get(frame, &d) < 0 ? "malformed data" : file_data(file, &d);
    case PROTO_WINDOW:
        return proto_window_get(frame, &w) < 0 ? "a malformed window" : file_window(file, &w);
    default:
        return "a message for processes on the channel of a file";
    }
}

static const char *on_conn_message(struct conn *c, uint8_t type, const struct proto_frame *frame)
{
    struct proto_data d;
    struct proto_window w;
    switch (type) {
    case PROTO_CONN_CLOSE:
        return conn_close(c);
    case PROTO_DATA:
        return proto_data_get(frame, &d) < 0 ? "malformed data" : conn_data(c, &d);
    case PROTO_WINDOW:
        return proto_window_get(frame, &w) < 0 ? "a malformed window" : conn_window(c, &w);
    default:
        return "a message for processes or files on the channel of a connection";
    }
}

static const char *on_message(void *arg, const struct proto_message *m, const struct proto_frame *frame,
                              const struct proto_fields *f)
{
    struct agent *a = arg;
    struct process *p;
    struct file *file;
    struct conn *c;
    if (m->channel == PROTO_ON_LINK)
        return on_link_message(a, m, f);
    if (m->type == PROTO_EXEC || m->type == PROTO_ATTACH || m->type == PROTO_FILE || m->type == PROTO_DIAL)
        return on_new_channel(a, m->type, frame->channel, f);
    if ((p = process_find(a, frame->channel)))
        return on_process_message(a, p, m->type, frame, f);
    if ((file = file_find(a, frame->channel)))
        return on_file_message(file, m->type, frame);
    if ((c = conn_find(a, frame->channel)))
        return on_conn_message(c, m->type, frame);
    /* The channel has just ended on this side, and the host could not know yet. */
    if (m->type == PROTO_SIGNAL)
        agent_reply(a, proto_get_u32(f, PROTO_F_REQUEST, 0), ERROR_CONFLICT, "the process has ended");
    return NULL;
}

static unsigned char *on_place(void *arg, uint32_t channel, const struct proto_data *d, size_t done,
                               size_t *ret_room)
{
    const struct file *file = file_find(arg, channel);
    return file ? file_place(file, d, done, ret_room) : NULL;
}

static const char *on_placed(void *arg, uint32_t channel, const struct proto_data *d)
{
    struct file *file = file_find(arg, channel);
    return file ? file_placed(file, d) : NULL; /* it has ended in the middle of it */
}

static void drop_connection(struct agent *a)
{
    if (a->conn_fd < 0)
        return;
    agent_unwatch(a, &a->port_watch);
    (void)close(a->conn_fd);
    a->conn_fd = -1;
    a->link.fd = -1;
    link_down(&a->link);
}

/* An event may be of the connection that this one has replaced within the turn. */
static bool is_over(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) == 1;
}

void agent_has_read(struct agent *a)
{
    if (pace_output(&a->pace, clock_mono_ns()) && a->init)
        pace_apply(&a->pace);
}

static void on_port(struct watch *w, uint32_t events)
{
    struct agent *a = w->arg;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        link_read(&a->link);
    /* Room is of no interest until a write finds none: each write would be followed by word of it. */
    if (events & EPOLLOUT && !link_waits(&a->link))
        agent_watch(a, w, w->events & ~(uint32_t)EPOLLOUT);
    /* A port stays when its host goes; a connection does not. */
    if (a->conn_fd >= 0 && (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) && is_over(a->conn_fd))
        drop_connection(a);
}

/* The host has connected, to take the place of what it had before: it holds one connection at a time, and may
 * know of the old one's end before this side does. */
static void on_listen(struct watch *w, uint32_t events)
{
    struct agent *a = w->arg;
    struct sockaddr_vm peer = {0};
    socklen_t n = sizeof(peer);
    (void)events;
    int fd = accept4(w->fd, (struct sockaddr *)&peer, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    /* A unix socket has no address here: the tests' host. */
    if (peer.svm_family == AF_VSOCK && peer.svm_cid != VMADDR_CID_HOST) {
        (void)close(fd); /* somebody in the guest, through its own loopback */
        return;
    }
    drop_connection(a);
    a->conn_fd = fd;
    a->link.fd = fd;
    a->port_watch = (struct watch){.fd = fd, .fn = on_port, .arg = a};
    agent_watch(a, &a->port_watch, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
}

static void reaped_sync(struct agent *a, pid_t pid)
{
    for (size_t i = 0; i < AGENT_SYNCS_MAX; i++)
        if (a->syncs[i].pid == pid) {
            a->syncs[i].pid = 0;
            agent_reply(a, a->syncs[i].request, 0, NULL);
        }
}

static void on_child(struct watch *w, uint32_t events)
{
    struct agent *a = w->arg;
    struct signalfd_siginfo info[4]; /* one is enough to read: the kernel keeps one SIGCHLD at a time */
    struct rusage usage;
    int status;
    pid_t pid;
    (void)events;
    (void)!read(a->signals, info, sizeof(info));
    while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
        if (!process_reaped(a, pid, status, &usage) && !file_reaped(a, pid))
            reaped_sync(a, pid);
    }
    a->untidy = true;
}

static bool tell_all(struct agent *a)
{
    if (!a->tell)
        return false;
    a->tell = false;
    for (struct process *p = a->processes; p; p = p->next)
        process_tell(a, p);
    for (struct file *f = a->files, *next; f; f = next) {
        next = f->next;
        file_tell(a, f);
    }
    for (struct conn *c = a->conns, *next; c; c = next) {
        next = c->next;
        conn_tell(a, c);
    }
    return true;
}

/* One data frame of whoever's turn it is. */
static bool send_data(struct agent *a)
{
    unsigned n = a->process_count + a->file_count + a->conn_count, from = n ? a->turn++ % n : 0, i = 0;
    for (int round = 0; round < 2; round++, i = 0) {
        for (struct process *p = a->processes; p; p = p->next)
            if ((i++ >= from || round) && process_send(a, p))
                return true;
        for (struct file *f = a->files; f; f = f->next)
            if ((i++ >= from || round) && file_send(a, f))
                return true;
        for (struct conn *c = a->conns; c; c = c->next)
            if ((i++ >= from || round) && conn_send(a, c))
                return true;
    }
    return false;
}

/* Hands one message or frame to the link; false when there is none. */
static bool give_one(struct agent *a)
{
    return a->link.up && (tell_all(a) || send_data(a));
}

static void pump(struct agent *a)
{
    bool more = true;
    while (link_write(&a->link)) {
        if (!more)
            return;
        more = give_one(a);
        /* Each write to the port interrupts the host: what is small goes together, as far as it is there. */
        while (more && link_gathers(&a->link))
            more = give_one(a);
    }
    if (a->port_watch.events)
        agent_watch(a, &a->port_watch, a->port_watch.events | EPOLLOUT);
}

static int64_t sooner(int64_t a, int64_t b)
{
    return !a || (b && b < a) ? b : a;
}

static int64_t deadlines(struct agent *a)
{
    int64_t now = clock_mono_ns();
    int64_t next = sooner(process_deadlines(a, now), file_deadlines(a, now));
    next = sooner(next, conn_deadlines(a, now));
    next = sooner(next, freeze_deadlines(a, now));
    if (!a->stopping)
        return next;
    if (a->stop_at <= now || !process_pending(a)) {
        if (a->init)
            boot_power_off();
        process_free_all(a);
        a->stop_at = now + CLOCK_NS_PER_S;
    }
    return sooner(next, a->stop_at);
}

static int wait_ms(const struct agent *a, int64_t next, int max_wait_ms)
{
    int64_t ms = max_wait_ms;
    if (next) {
        int64_t until = (next - clock_mono_ns()) / CLOCK_NS_PER_MS + 1;
        until = until < 0 ? 0 : until;
        ms = ms < 0 || until < ms ? until : ms;
    }
    int tidy = cgroups_tidy_after_ms(&a->cgroups);
    if (a->untidy && (ms < 0 || ms > tidy))
        ms = tidy;
    return (int)(ms > 3600000 ? 3600000 : ms);
}

/* Waits for events. Who asks one thing after the other over a connection asks again as soon as it has its
 * answer; to a guest whose processor has gone to sleep meanwhile that costs more than the answer itself. So,
 * as long as the last one came that soon, the processor is kept awake for a moment, for nothing but work that
 * there is. */
static int await(struct agent *a, struct epoll_event *events, int ms)
{
    bool answered = a->answered && a->asked == 0 && ms != 0;
    int n = 0;
    a->answered = false;
    if (!answered)
        return epoll_wait(a->epoll, events, EVENTS_MAX, ms);
    int64_t soon = clock_mono_ns() + SOON_NS;
    if (a->prompt) {
        while ((n = epoll_wait(a->epoll, events, EVENTS_MAX, 0)) == 0 && clock_mono_ns() < soon)
            (void)sched_yield();
        a->prompt = n > 0;
        return n ? n : epoll_wait(a->epoll, events, EVENTS_MAX, ms);
    }
    n = epoll_wait(a->epoll, events, EVENTS_MAX, ms);
    a->prompt = n > 0 && clock_mono_ns() < soon;
    return n;
}

void agent_turn(struct agent *a, int max_wait_ms)
{
    struct epoll_event events[EVENTS_MAX];
    int64_t next = deadlines(a);
    if (a->tell || link_waits(&a->link))
        pump(a);
    int n = await(a, events, wait_ms(a, next, max_wait_ms));
    for (int i = 0; i < n; i++) {
        struct watch *w = events[i].data.ptr;
        if (w->events) /* not stopped by one before it */
            w->fn(w, events[i].events);
    }
    pump(a);
    while (a->link.more_input && buf_len(&a->link.tx) == 0) {
        link_read(&a->link);
        pump(a);
    }
    cgroups_settle(&a->cgroups);
    if (n == 0 && a->untidy)
        a->untidy = cgroups_tidy(&a->cgroups);
    process_free_dead(a);
    file_free_dead(a);
    conn_free_dead(a);
}

static int open_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0 || signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        return -1;
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

int agent_init(struct agent *a, const struct agent_config *config)
{
    static const struct link_ops ops = {on_up, on_down, on_message, on_place, on_placed};
    memset(a, 0, sizeof(*a));
    a->init = config->init;
    a->epoll = epoll_create1(EPOLL_CLOEXEC);
    a->signals = open_signals();
    a->null = open("/dev/null", O_RDWR | O_CLOEXEC);
    a->random = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
    a->ptmx_dir = open("/dev/pts", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cgroups_init(&a->cgroups, config->cgroup_fd);
    freeze_init(a);
    (void)!getrandom(a->boot_id, sizeof(a->boot_id), GRND_INSECURE);
    if (a->epoll < 0 || a->signals < 0 || a->null < 0 || link_init(&a->link, config->port_fd, &ops, a) < 0)
        return -1;
    a->signal_watch = (struct watch){.fd = a->signals, .fn = on_child, .arg = a};
    agent_watch(a, &a->signal_watch, EPOLLIN);
    a->conn_fd = -1;
    if (config->port_fd < 0) {
        a->listen_watch = (struct watch){.fd = config->listen_fd, .fn = on_listen, .arg = a};
        agent_watch(a, &a->listen_watch, EPOLLIN);
        return a->signal_watch.events && a->listen_watch.events ? 0 : -1;
    }
    a->listen_watch.fd = -1;
    a->port_watch = (struct watch){.fd = config->port_fd, .fn = on_port, .arg = a};
    /* Edge-triggered: a port without a host is at its end for as long as that lasts. */
    agent_watch(a, &a->port_watch, EPOLLIN | EPOLLOUT | EPOLLET);
    return a->signal_watch.events && a->port_watch.events ? 0 : -1;
}

void agent_finish(struct agent *a)
{
    file_close_all(a);
    file_free_dead(a);
    conn_close_all(a);
    conn_free_dead(a);
    process_free_all(a);
    freeze_finish(a);
    link_finish(&a->link);
    cgroups_finish(&a->cgroups);
    const int fds[] = {a->epoll, a->signals, a->null, a->random, a->ptmx_dir, a->conn_fd, a->listen_watch.fd};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        cleanup_close(&fds[i]);
}
