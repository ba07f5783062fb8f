#include "agent/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "agent/spawn.h"
#include "base/cleanup.h"
#include "base/str.h"

#define PATH_DEFAULT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define RING_LARGE 1048576
#define RING_SMALL 131072
#define LARGE_PROCESSES 16 /* this many may hold a large ring: memory stays bounded */

struct job {
    struct user user;
    char **argv;    /* owned array of borrowed strings */
    char **env;     /* owned array, borrowed strings */
    char *defaults; /* owned: the text of the default environment */
    const char *path;
    int child[3]; /* owned: the process's ends, but for the agent's own */
    int null;     /* /dev/null */
    int near[3];  /* owned: the agent's ends; [0] for writing */
    bool pty;
};

static void job_finish(struct job *j)
{
    free(j->argv);
    free(j->env);
    free(j->defaults);
    for (int i = 0; i < 3; i++) {
        if (j->child[i] >= 0 && j->child[i] != j->null)
            (void)close(j->child[i]);
        if (j->near[i] >= 0)
            (void)close(j->near[i]);
    }
}

static int refuse(struct process *p, const char *what)
{
    (void)str_copy(p->message, sizeof(p->message), what);
    return -1;
}

static size_t count_strings(const struct proto_fields *f, uint16_t tag)
{
    size_t cursor = 0, n = 0;
    while (proto_next_string(f, tag, &cursor))
        n++;
    return n;
}

static int make_argv(struct process *p, struct job *j, const struct proto_fields *f)
{
    const char *shell = proto_get_string(f, PROTO_F_SHELL, NULL);
    size_t n = count_strings(f, PROTO_F_ARG), cursor = 0, i = 0;
    if ((n == 0) == !shell)
        return refuse(p, "either a command or a shell text must be given");
    j->argv = calloc(n + 4, sizeof(char *));
    if (!j->argv)
        return refuse(p, "the agent is out of memory");
    if (shell) {
        bool bash = access("/bin/bash", X_OK) == 0;
        j->argv[i++] = (char *)(bash ? "/bin/bash" : "/bin/sh");
        j->argv[i++] = (char *)"-lc";
        j->argv[i++] = (char *)shell;
    }
    while (i < n + 3) {
        const char *arg = proto_next_string(f, PROTO_F_ARG, &cursor);
        if (!arg)
            break;
        j->argv[i++] = (char *)arg;
    }
    return j->argv[0][0] ? 0 : refuse(p, "the command's name is empty");
}

static bool has_key(char *const *env, size_t n, const char *setting)
{
    size_t key = strcspn(setting, "=") + 1;
    for (size_t i = 0; i < n; i++)
        if (strncmp(env[i], setting, key) == 0)
            return true;
    return false;
}

/* Copies s and its end; returns what is behind it. */
static char *put_text(char *to, const char *s)
{
    size_t n = strlen(s) + 1;
    memcpy(to, s, n);
    return to + n;
}

/* The settings of a pair each, as far as they have a value, one after the other in one text: this is done for
 * every command. Returns how many, or -1. */
static int put_settings(char **ret_text, const char *const pairs[][2], size_t n, char **ret_settings)
{
    size_t bytes = 1, count = 0;
    for (size_t i = 0; i < n; i++)
        bytes += pairs[i][1] ? strlen(pairs[i][0]) + strlen(pairs[i][1]) + 2 : 0;
    char *at = malloc(bytes);
    *ret_text = at;
    if (!at)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (!pairs[i][1])
            continue;
        ret_settings[count++] = at;
        at = put_text(at, pairs[i][0]);
        at[-1] = '=';
        at = put_text(at, pairs[i][1]);
    }
    return (int)count;
}

/* Default environment first, then what was given; a default that was given too is left out. */
static int make_env(struct process *p, struct job *j, const struct proto_fields *f)
{
    const struct user *u = &j->user;
    size_t n = count_strings(f, PROTO_F_ENV), cursor = 0, given = 0;
    const char *term = proto_get_string(f, PROTO_F_TERM, "xterm-256color");
    const char *const pairs[][2] = {{"PATH", PATH_DEFAULT},        {"HOME", u->home},   {"USER", u->name},
                                    {"LOGNAME", u->name},          {"SHELL", u->shell}, {"LANG", "C.UTF-8"},
                                    {"TERM", j->pty ? term : NULL}};
    char *settings[ARRAY_LEN(pairs)];
    j->env = calloc(n + ARRAY_LEN(pairs) + 1, sizeof(char *));
    AUTO_FREE char **list = calloc(n + 1, sizeof(char *));
    int defaults = put_settings(&j->defaults, pairs, ARRAY_LEN(pairs), settings);
    if (!j->env || !list || defaults < 0)
        return refuse(p, "the agent is out of memory");
    for (const char *s; (s = proto_next_string(f, PROTO_F_ENV, &cursor));)
        list[given++] = (char *)s;
    size_t at = 0;
    for (int i = 0; i < defaults; i++)
        if (!has_key(list, given, settings[i]))
            j->env[at++] = settings[i];
    memcpy(j->env + at, list, given * sizeof(char *));
    for (size_t i = 0; j->env[i]; i++)
        if (strncmp(j->env[i], "PATH=", 5) == 0)
            j->path = j->env[i] + 5;
    return 0;
}

static int make_pipe(int *ret_read, int *ret_write, int near_end)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -1;
    *ret_read = fds[0];
    *ret_write = fds[1];
    return fcntl(fds[near_end], F_SETFL, O_NONBLOCK);
}

static int make_pipes(struct agent *a, struct process *p, struct job *j, bool with_stdin)
{
    if (with_stdin)
        (void)make_pipe(&j->child[0], &j->near[0], 1);
    else
        j->child[0] = a->null;
    (void)make_pipe(&j->near[1], &j->child[1], 0);
    (void)make_pipe(&j->near[2], &j->child[2], 0);
    for (int i = 0; i < 3; i++)
        if (j->child[i] < 0 || (j->near[i] < 0 && (i > 0 || with_stdin)))
            return refuse(p, "the agent is out of file descriptors");
    return 0;
}

static int make_pty(struct agent *a, struct process *p, struct job *j, const struct proto_fields *f)
{
    struct winsize size = {.ws_row = (unsigned short)proto_get_u32(f, PROTO_F_ROWS, 24),
                           .ws_col = (unsigned short)proto_get_u32(f, PROTO_F_COLS, 80)};
    int unlock = 0;
    AUTO_CLOSE int master = openat(a->ptmx_dir, "ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) < 0)
        return refuse(p, "no pseudo-terminal is to be had");
    j->child[0] = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    (void)ioctl(master, TIOCSWINSZ, &size);
    struct termios t;
    if (j->child[0] >= 0 && tcgetattr(j->child[0], &t) == 0) {
        t.c_iflag |= IUTF8; /* erasing takes whole characters */
        (void)tcsetattr(j->child[0], TCSANOW, &t);
    }
    j->child[1] = fcntl(j->child[0], F_DUPFD_CLOEXEC, 3);
    j->child[2] = fcntl(j->child[0], F_DUPFD_CLOEXEC, 3);
    j->near[0] = fcntl(master, F_DUPFD_CLOEXEC, 3);
    j->near[1] = fcntl(master, F_DUPFD_CLOEXEC, 3);
    if (j->child[2] < 0 || j->near[1] < 0 || fchown(j->child[0], j->user.uid, j->user.gid) < 0)
        return refuse(p, "no pseudo-terminal is to be had");
    p->terminal = TAKE_FD(master);
    return 0;
}

static int prepare(struct agent *a, struct process *p, struct job *j, const struct proto_fields *f)
{
    uint32_t flags = proto_get_u32(f, PROTO_F_FLAGS, 0);
    const char *who = proto_get_string(f, PROTO_F_USER, "root");
    if (flags & ~(uint32_t)(PROTO_EXEC_STDIN | PROTO_EXEC_PTY))
        return refuse(p, "a flag that this agent does not know");
    if (user_find_cached(&a->users, "/etc", who, &j->user) < 0) {
        (void)snprintf(p->message, sizeof(p->message), "there is no user '%.64s'", who);
        return -1;
    }
    j->pty = flags & PROTO_EXEC_PTY;
    if (make_argv(p, j, f) < 0 || make_env(p, j, f) < 0)
        return -1;
    return j->pty ? make_pty(a, p, j, f) : make_pipes(a, p, j, flags & PROTO_EXEC_STDIN);
}

int launch(struct agent *a, struct process *p, const struct proto_fields *f)
{
    CLEANUP(job_finish) struct job j = {.child = {-1, -1, -1}, .near = {-1, -1, -1}, .null = a->null};
    size_t ring = a->process_count <= LARGE_PROCESSES ? RING_LARGE : RING_SMALL;
    if (prepare(a, p, &j, f) < 0)
        return -1;
    p->group = cgroup_take(&a->cgroups);
    struct spawn s = {
        .argv = j.argv,
        .env = j.env,
        .path = j.path,
        .cwd = proto_get_string(f, PROTO_F_CWD, NULL),
        .user = &j.user,
        .fds = {j.child[0], j.child[1], j.child[2]},
        .tty = j.pty,
        .cgroup = p->group.fd,
    };
    pid_t pid = spawn_process(&s, p->message, sizeof(p->message));
    if (pid == SPAWN_UNBORN && p->group.fd >= 0) { /* removed by the guest, or told to take no processes */
        cgroup_replace(&a->cgroups, &p->group);
        s.cgroup = p->group.fd;
        pid = spawn_process(&s, p->message, sizeof(p->message));
    }
    if (pid < 0)
        return -1;
    p->pid = pid;
    p->message[0] = '\0';
    in_init(&p->in, TAKE_FD(j.near[0]), PROTO_STDIN_WINDOW, j.pty);
    out_init(&p->out[0], PROTO_STDOUT, TAKE_FD(j.near[1]), ring);
    out_init(&p->out[1], PROTO_STDERR, TAKE_FD(j.near[2]), ring);
    return 0;
}
