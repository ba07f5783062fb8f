/* guestctl: drives a guest's agent over its socket, without the daemon. For developers, tests and the bench.
 *
 *   guestctl SOCKET identify NAME GENERATION
 *   guestctl SOCKET exec [-i] [-t] [-u USER] [-d CWD] [-T TIMEOUT_MS] [-r COUNT] ARGV...
 *   guestctl SOCKET sh TEXT
 *   guestctl SOCKET flood ARGV...            counts and times the output instead of writing it
 *   guestctl SOCKET forward LOCAL_PORT PORT  connections to the first come out at the second in the guest
 *   guestctl SOCKET read PATH | write PATH | stat PATH | rm PATH | mkdir PATH | sync | quiesce | shutdown
 *
 * Exit status: the command's for exec and sh, else 0, or 1 with the error on standard error. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/str.h"
#include "guest/guest.h"

#define ROOM 1048576

struct ctl {
    struct loop *loop;
    struct guest *g;
    char **args; /* after the command */
    int status;
    struct guest_exec exec;
    struct guest_process *process;
    unsigned repeat;
    int64_t started_ns, best_ns, sum_ns;
    unsigned runs;
    bool quiet;
    uint64_t bytes;
    struct loop_fd input;
    struct guest_file *file;
    const char *command;
    bool began;
};

static void finish(struct ctl *c, int status)
{
    c->status = status;
    loop_stop(c->loop);
}

static void fail(struct ctl *c, const struct error *e)
{
    (void)fprintf(stderr, "guestctl: %s: %s\n", error_slug(e->code), e->message);
    finish(c, 1);
}

static void on_done(void *arg, const struct error *err)
{
    struct ctl *c = arg;
    if (err)
        fail(c, err);
    else
        finish(c, 0);
}

static void put(int fd, const void *data, size_t n)
{
    struct error e = ERROR_INIT;
    const char *p = data;
    while (n > 0) {
        ssize_t w = write(fd, p, n);
        if (w <= 0)
            exit(1);
        p += w;
        n -= (size_t)w;
    }
    (void)e;
}

static void start_exec(struct ctl *c);

static void on_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n)
{
    struct ctl *c = arg;
    c->bytes += n;
    if (!c->quiet)
        put(stream == GUEST_STDERR ? 2 : 1, data, n);
    guest_process_taken(c->process, stream, offset + n, ROOM);
}

static void report_runs(const struct ctl *c, int64_t took)
{
    if (c->quiet)
        (void)printf("%" PRIu64 " bytes in %.3f s: %.1f MB/s\n", c->bytes, (double)took / 1e9,
                     (double)c->bytes * 1e3 / (double)took);
    if (c->runs > 1)
        (void)printf("%u runs: best %.2f ms, mean %.2f ms\n", c->runs, (double)c->best_ns / 1e6,
                     (double)c->sum_ns / 1e6 / c->runs);
}

static void on_exited(void *arg, const struct guest_result *r)
{
    struct ctl *c = arg;
    int64_t took = clock_mono_ns() - c->started_ns;
    c->best_ns = c->runs == 0 || took < c->best_ns ? took : c->best_ns;
    c->sum_ns += took;
    c->runs++;
    guest_process_release(c->process);
    if (r->reason == GUEST_REASON_START_FAILED)
        (void)fprintf(stderr, "guestctl: start_failed: %s\n", r->message);
    else if (r->reason != GUEST_REASON_EXIT)
        (void)fprintf(stderr, "guestctl: reason %d signal %d\n", (int)r->reason, r->signal);
    if (c->runs < c->repeat) {
        start_exec(c);
        return;
    }
    report_runs(c, took);
    finish(c, r->reason == GUEST_REASON_EXIT ? r->exit_code : 128 + r->signal);
}

static void on_stdin_room(void *arg)
{
    struct ctl *c = arg;
    loop_fd_events(&c->input, EPOLLIN);
}

static void on_input(struct loop_fd *w, uint32_t events)
{
    struct ctl *c = w->arg;
    static char data[4096];
    ssize_t n = read(0, data, sizeof(data));
    (void)events;
    if (n <= 0) {
        loop_fd_stop(w);
        guest_process_stdin_close(c->process);
        return;
    }
    size_t taken = guest_process_stdin(c->process, data, (size_t)n);
    if (taken < (size_t)n) {
        (void)fprintf(stderr, "guestctl: stdin is full\n");
        loop_fd_events(w, 0);
    }
}

static void start_exec(struct ctl *c)
{
    static const struct guest_process_events events = {NULL, on_output, on_exited, on_stdin_room};
    struct error e = ERROR_INIT;
    id_new("pr", c->exec.process_id);
    c->started_ns = clock_mono_ns();
    if (guest_process_start(c->g, &c->exec, &events, c, &c->process, &e) < 0) {
        fail(c, &e);
        return;
    }
    if (c->exec.stdin_open && !c->input.active &&
        loop_fd_start(c->loop, &c->input, 0, EPOLLIN, on_input, c, &e) < 0)
        fail(c, &e);
}

static void do_exec(struct ctl *c)
{
    int argc = 0, opt;
    char **argv = c->args - 1;
    uint64_t n;
    while (argv[argc])
        argc++;
    optind = 1;
    while ((opt = getopt(argc, argv, "+itu:d:T:r:")) != -1) {
        switch (opt) {
        case 'i':
            c->exec.stdin_open = true;
            break;
        case 't':
            c->exec.pty = true;
            c->exec.rows = 24;
            c->exec.cols = 80;
            break;
        case 'u':
            c->exec.user = optarg;
            break;
        case 'd':
            c->exec.cwd = optarg;
            break;
        default:
            if (!optarg || !str_to_u64(optarg, 1, 1000000, &n)) {
                finish(c, 2);
                return;
            }
            if (opt == 'T')
                c->exec.timeout_ms = (uint32_t)n;
            else
                c->repeat = (unsigned)n;
        }
    }
    c->exec.argv = (const char *const *)argv + optind;
    start_exec(c);
}

static void do_shell(struct ctl *c)
{
    c->exec.shell = c->args[0];
    start_exec(c);
}

static void do_flood(struct ctl *c)
{
    c->quiet = true;
    do_exec(c);
}

static void do_identify(struct ctl *c)
{
    struct guest_identity id = {.generation = 1};
    id_new("sb", id.sandbox_id);
    (void)str_copy(id.hostname, sizeof(id.hostname), c->args[0] ? c->args[0] : "sandbox");
    if (c->args[0] && c->args[1])
        (void)str_to_u64(c->args[1], 0, UINT64_MAX, &id.generation);
    id_random(id.machine_id, sizeof(id.machine_id));
    id_random(id.seed, sizeof(id.seed));
    guest_identify(c->g, &id, on_done, c);
}

static void on_read_data(void *arg, const void *data, size_t n)
{
    struct ctl *c = arg;
    put(1, data, n);
    guest_file_taken(c->file, n);
}

static void do_read(struct ctl *c)
{
    static const struct guest_read_events events = {NULL, on_read_data, on_done};
    struct error e = ERROR_INIT;
    if (guest_file_read(c->g, NULL, c->args[0], 0, UINT64_MAX, &events, c, &c->file, &e) < 0)
        fail(c, &e);
}

static void push_more(void *arg)
{
    static char data[65536];
    static size_t have, at;
    struct ctl *c = arg;
    for (;;) {
        if (at == have) {
            ssize_t n = read(0, data, sizeof(data));
            if (n <= 0) {
                guest_file_commit(c->file);
                return;
            }
            have = (size_t)n;
            at = 0;
        }
        at += guest_file_push(c->file, data + at, have - at);
        if (at < have)
            return;
    }
}

static void on_written(void *arg, const struct error *err, const struct guest_stat *st)
{
    (void)st;
    on_done(arg, err);
}

static void do_write(struct ctl *c)
{
    static const struct guest_write_events events = {push_more, on_written};
    struct guest_write w = {.path = c->args[0], .mode = UINT32_MAX, .parents = true};
    struct error e = ERROR_INIT;
    if (guest_file_write(c->g, &w, &events, c, &c->file, &e) < 0)
        fail(c, &e);
    else
        push_more(c);
}

static void on_stat(void *arg, const struct error *err, const struct guest_stat *st)
{
    if (st)
        (void)printf("type %d mode %o uid %u gid %u size %" PRIu64 " inode %" PRIu64 "\n", (int)st->type,
                     st->mode, st->uid, st->gid, st->size, st->inode);
    on_done(arg, err);
}

static void do_stat(struct ctl *c)
{
    guest_file_stat(c->g, NULL, c->args[0], on_stat, c);
}

static void do_rm(struct ctl *c)
{
    guest_file_remove(c->g, NULL, c->args[0], true, on_done, c);
}

static void do_mkdir(struct ctl *c)
{
    guest_file_mkdir(c->g, NULL, c->args[0], true, on_done, c);
}

static void do_sync(struct ctl *c)
{
    guest_sync(c->g, on_done, c);
}

static void do_quiesce(struct ctl *c)
{
    guest_quiesce(c->g, 2000, on_done, c);
}

static void do_shutdown(struct ctl *c)
{
    guest_shutdown(c->g, 1000, on_done, c);
}

/* --- forward --- */
struct forwarded {
    struct ctl *ctl;
    struct guest_conn *conn;
    struct loop_fd local;
    struct loop_deferred gone;
    struct buf in, out; /* from the local end, to it */
    bool in_ended, out_ended;
};

static void free_forwarded(void *arg)
{
    struct forwarded *f = arg;
    guest_conn_close(f->conn);
    buf_finish(&f->in);
    buf_finish(&f->out);
    free(f);
}

static void drop(struct forwarded *f)
{
    if (!f->local.active)
        return;
    loop_fd_stop(&f->local);
    (void)close(f->local.fd);
    loop_defer(f->ctl->loop, &f->gone, free_forwarded, f);
}

static void local_events(struct forwarded *f)
{
    uint32_t events = buf_len(&f->in) || f->in_ended ? 0 : EPOLLIN;
    loop_fd_events(&f->local, events | (buf_len(&f->out) ? EPOLLOUT : 0));
}

static void push_local(void *arg)
{
    struct forwarded *f = arg;
    buf_consume(&f->in, guest_conn_push(f->conn, buf_head(&f->in), buf_len(&f->in)));
    local_events(f);
}

static void write_local(struct forwarded *f)
{
    ssize_t n = 0;
    while (buf_len(&f->out) && (n = buf_write(&f->out, f->local.fd)) > 0)
        guest_conn_taken(f->conn, (size_t)n);
    if (n < 0 && errno != EAGAIN)
        drop(f);
    else if (f->out_ended && buf_len(&f->out) == 0)
        (void)shutdown(f->local.fd, SHUT_WR);
    if (f->local.active)
        local_events(f);
}

static void on_local(struct loop_fd *w, uint32_t events)
{
    struct forwarded *f = w->arg;
    if (events & EPOLLOUT)
        write_local(f);
    if (!f->local.active || !(events & (EPOLLIN | EPOLLERR | EPOLLHUP)) || buf_len(&f->in) || f->in_ended)
        return;
    ssize_t n = buf_read(&f->in, w->fd, 65536);
    if (n > 0) {
        push_local(f);
    } else if (n == 0) {
        f->in_ended = true;
        guest_conn_end(f->conn);
        local_events(f);
    } else if (errno != EAGAIN) {
        drop(f);
    }
}

static void on_forward_data(void *arg, const void *data, size_t n)
{
    struct forwarded *f = arg;
    (void)buf_append(&f->out, data, n); /* never more than the window */
    if (f->local.active)
        write_local(f);
}

static void on_forward_end(void *arg)
{
    struct forwarded *f = arg;
    f->out_ended = true;
    if (f->local.active)
        write_local(f);
}

static void on_forward_closed(void *arg, const struct error *err)
{
    if (err)
        (void)fprintf(stderr, "guestctl: %s: %s\n", error_slug(err->code), err->message);
    drop(arg);
}

static void on_forward(struct loop_fd *w, uint32_t events)
{
    static const struct guest_conn_events conn = {NULL, on_forward_data, on_forward_end, push_local,
                                                  on_forward_closed};
    struct ctl *c = w->arg;
    struct error e = ERROR_INIT;
    const int yes = 1;
    uint64_t port = 0;
    (void)events;
    int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct forwarded *f = fd >= 0 ? calloc(1, sizeof(*f)) : NULL;
    if (!f)
        return;
    f->ctl = c;
    buf_init(&f->in, 65536);
    buf_init(&f->out, 262144);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    (void)str_to_u64(c->args[1], 1, UINT16_MAX, &port);
    if (guest_dial(c->g, (uint16_t)port, &conn, f, &f->conn, &e) < 0 ||
        loop_fd_start(c->loop, &f->local, fd, EPOLLIN, on_local, f, &e) < 0)
        fail(c, &e);
}

static void do_forward(struct ctl *c)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct error e = ERROR_INIT;
    const int yes = 1;
    uint64_t port = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (!c->args[1] || !str_to_u64(c->args[0], 1, UINT16_MAX, &port)) {
        finish(c, 2);
        return;
    }
    at.sin_port = htons((uint16_t)port);
    if (bind(fd, (const struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, 64) < 0) {
        perror("guestctl");
        finish(c, 1);
        return;
    }
    if (loop_fd_start(c->loop, &c->input, fd, EPOLLIN, on_forward, c, &e) < 0)
        fail(c, &e);
}

static const struct command {
    const char *name;
    unsigned args;
    void (*run)(struct ctl *c);
} commands[] = {
    {"identify", 0, do_identify}, {"exec", 1, do_exec},       {"sh", 1, do_shell},
    {"flood", 1, do_flood},       {"forward", 2, do_forward}, {"read", 1, do_read},
    {"write", 1, do_write},       {"stat", 1, do_stat},       {"rm", 1, do_rm},
    {"mkdir", 1, do_mkdir},       {"sync", 0, do_sync},       {"quiesce", 0, do_quiesce},
    {"shutdown", 0, do_shutdown},
};

static void on_ready(struct guest *g, void *arg)
{
    struct ctl *c = arg;
    (void)g;
    if (c->began)
        return; /* a reconnection: what was under way goes on */
    c->began = true;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(commands[i].name, c->command) == 0 && (commands[i].args == 0 || c->args[0])) {
            commands[i].run(c);
            return;
        }
    (void)fprintf(stderr, "guestctl: no such command, or too few arguments: %s\n", c->command);
    finish(c, 2);
}

static void on_lost(struct guest *g, const struct error *why, bool final, void *arg)
{
    (void)g;
    (void)fprintf(stderr, "guestctl: lost: %s\n", why->message);
    if (final)
        finish(arg, 1);
}

int main(int argc, char **argv)
{
    static const struct guest_events events = {on_ready, on_lost};
    struct ctl c = {.repeat = 1};
    struct error e = ERROR_INIT;
    if (argc < 3) {
        (void)fprintf(stderr, "usage: guestctl SOCKET COMMAND ARGUMENTS...\n");
        return 2;
    }
    struct guest_config config = {.socket_path = argv[1], .sandbox_id = "guestctl"};
    c.command = argv[2];
    c.args = argv + 3;
    if (loop_create(&c.loop, &e) < 0 || guest_create(c.loop, &config, &events, &c, &c.g, &e) < 0) {
        (void)fprintf(stderr, "guestctl: %s\n", e.message);
        return 1;
    }
    loop_run(c.loop);
    guest_destroy(c.g);
    return c.status;
}
