/* See inmate.h.
 *
 *   qemu-system-x86_64 -name ... (as the broker starts QEMU)    serve
 *   inmate --list                                               the tables, as lines of fields between tabs
 *   inmate --free FACTS NAME                                    one case, here and now, without a jail
 *
 * Facts are lines NAME=VALUE of the file `facts` in the parent of the program's directory. Whoever connects
 * to the control socket and does not speak QMP is the suite: RUN NAME answers RESULT held|escaped|broken
 * TEXT; START NAME and STOP begin and end a pursuit. */
#include "inmate.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"

#define CONTROL_FD 3
#define AGENT_FD 4
#define PEERS_MAX 16
#define IN_MAX (4u << 20)
#define CASE_MS 40000
#define SEND_MS 10000
#define CRASH_STATUS 99

static char facts[16384];
static bool freedom;
static int inherited[64];
static unsigned inherited_count;
static int passed_fd = -1;
static struct peer peers[PEERS_MAX];
static int crash_fd = -1; /* where a crash is told */
static volatile bool stop_pursuit;
static pthread_t pursuing;
static bool pursues;

static const struct inmate_case *const tables[] = {cases_files,     cases_processes, cases_network,
                                                   cases_privilege, cases_kernel,    cases_limits};

/* --- facts --- */

static const char *find_fact(const char *name)
{
    size_t n = strlen(name);
    for (const char *line = facts; *line; line += strlen(line) + 1)
        if (strncmp(line, name, n) == 0 && line[n] == '=')
            return line + n + 1;
    return NULL;
}

bool fact_given(const char *name)
{
    return find_fact(name) != NULL;
}

const char *fact(const char *name)
{
    const char *value = find_fact(name);
    if (!value) {
        (void)fprintf(stderr, "inmate: the fact %s is missing\n", name);
        exit(CRASH_STATUS);
    }
    return value;
}

long fact_number(const char *name)
{
    return strtol(fact(name), NULL, 10);
}

bool in_freedom(void)
{
    return freedom;
}

/* Lines become strings, one behind the other, an empty one at the end. */
static bool read_facts(const char *path)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, facts, sizeof(facts) - 2) : -1;
    for (ssize_t i = 0; i < n; i++)
        if (facts[i] == '\n')
            facts[i] = '\0';
    return n > 0;
}

static void count_fds(void)
{
    for (int fd = 0; fd < 4096 && inherited_count < ARRAY_LEN(inherited); fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            inherited[inherited_count++] = fd;
}

unsigned inherited_fds(int *fds, unsigned max)
{
    unsigned n = inherited_count < max ? inherited_count : max;
    memcpy(fds, inherited, n * sizeof(*fds));
    return n;
}

int given_fd(void)
{
    return passed_fd;
}

/* --- attempts --- */

static void note(struct attempt *a, const char *text)
{
    size_t used = strlen(a->got);
    (void)snprintf(a->got + used, sizeof(a->got) - used, "%s%s", used ? "; " : "", text);
}

/* An escape stands in front, however much was tried. */
static void note_escape(struct attempt *a, const char *text)
{
    char before[sizeof(a->got)];
    (void)str_copy(before, sizeof(before), a->got);
    (void)snprintf(a->got, sizeof(a->got), "%.200s%s%.380s", text, before[0] ? "; " : "", before);
    a->escaped = true;
}

#define FORMAT(text, fmt)                             \
    do {                                              \
        va_list ap;                                   \
        va_start(ap, fmt);                            \
        (void)vsnprintf(text, sizeof(text), fmt, ap); \
        va_end(ap);                                   \
    } while (0)

bool tried(struct attempt *a, long rc, const char *fmt, ...)
{
    int reason = errno;
    char what[160];
    char text[256];
    FORMAT(what, fmt);
    (void)snprintf(text, sizeof(text), "%s: %s", what, rc < 0 ? strerrorname_np(reason) : "DONE");
    if (rc < 0)
        note(a, text);
    else
        note_escape(a, text);
    return rc < 0;
}

void saw(struct attempt *a, bool escape, const char *fmt, ...)
{
    char text[256];
    FORMAT(text, fmt);
    if (escape)
        note_escape(a, text);
    else
        note(a, text);
}

void broken(struct attempt *a, const char *fmt, ...)
{
    char text[256];
    FORMAT(text, fmt);
    note(a, text);
    a->broken = true;
}

void tried_open(struct attempt *a, const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK, 0600);
    (void)tried(a, fd, "%s %s", (flags & O_ACCMODE) == O_RDONLY ? "read" : "write", path);
    if (fd >= 0)
        (void)close(fd);
}

/* --- running cases --- */

static const struct inmate_case *find_case(const char *name)
{
    for (size_t t = 0; t < ARRAY_LEN(tables); t++)
        for (const struct inmate_case *c = tables[t]; c->name; c++)
            if (strcmp(c->name, name) == 0)
                return c;
    return NULL;
}

static const char *word_of(const struct attempt *a)
{
    return a->escaped ? "escaped" : a->broken ? "broken" : "held";
}

static void put_result(int fd, const struct attempt *a)
{
    char line[sizeof(a->got) + 64];
    int n = snprintf(line, sizeof(line), "RESULT %s %s", word_of(a), a->got);
    for (int i = 0; i < n; i++)
        if (line[i] == '\n' || line[i] == '\t')
            line[i] = ' ';
    line[n] = '\n';
    (void)!write(fd, line, (size_t)n + 1);
}

/* A fault of this program is not a refusal by the jail. */
static void on_crash(int sig)
{
    char line[] = "RESULT broken crashed by signal 00\n";
    line[sizeof(line) - 4] = (char)('0' + sig / 10);
    line[sizeof(line) - 3] = (char)('0' + sig % 10);
    (void)!write(crash_fd, line, sizeof(line) - 1);
    _exit(CRASH_STATUS);
}

static void run_here(const struct inmate_case *c, int fd)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    struct attempt a = {0};
    crash_fd = fd;
    for (size_t i = 0; i < ARRAY_LEN(crashes); i++)
        (void)signal(crashes[i], on_crash);
    c->run(&a);
    if (a.got[0] == '\0')
        broken(&a, "nothing was tried");
    put_result(fd, &a);
}

/* Reads the child's line, for as long as a case may take; the rest of what went on comes from how it ended.
 */
static void await_child(pid_t pid, int fd, int to)
{
    char line[1024];
    struct attempt a = {0};
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ssize_t n = poll(&p, 1, CASE_MS) == 1 ? read(fd, line, sizeof(line)) : -1;
    int status = 0;
    (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    while (waitpid(-1, NULL, WNOHANG) > 0) { /* what it left to its init, this program */
    }
    if (n > 0)
        (void)!write(to, line, (size_t)n);
    else if (n < 0)
        broken(&a, "no end within %d s", CASE_MS / 1000);
    else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
        saw(&a, false, "the filter of system calls ended the process");
    else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        saw(&a, false, "the kernel ended the process for its memory");
    else
        broken(&a, "ended with status %#x", (unsigned)status);
    if (n <= 0)
        put_result(to, &a);
}

/* In a child, where the jail permits one; else here, where a filter that kills ends all. */
static void run_case(const char *name, int to)
{
    const struct inmate_case *c = find_case(name);
    int ends[2];
    struct attempt a = {0};
    if (!c || pipe2(ends, O_CLOEXEC) < 0) {
        broken(&a, "no such case, or no pipe: %s", name);
        put_result(to, &a);
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        run_here(c, ends[1]);
        _exit(0);
    }
    if (pid < 0) {
        run_here(c, to);
    } else {
        (void)close(ends[1]);
        await_child(pid, ends[0], to);
        ends[1] = -1;
    }
    (void)close(ends[0]);
    if (ends[1] >= 0)
        (void)close(ends[1]);
}

static void *pursue(void *arg)
{
    const struct inmate_pursuit *p = arg;
    p->run(&stop_pursuit);
    return NULL;
}

static void start_pursuit(const char *name, int to)
{
    struct attempt a = {0};
    const struct inmate_pursuit *p = pursuits;
    while (p->name && strcmp(p->name, name) != 0)
        p++;
    stop_pursuit = false;
    if (!p->name || pursues || pthread_create(&pursuing, NULL, pursue, (void *)p) != 0) {
        broken(&a, "%s cannot be begun", name);
    } else {
        pursues = true;
        saw(&a, false, "begun");
    }
    put_result(to, &a);
}

static void end_pursuit(int to)
{
    struct attempt a = {0};
    stop_pursuit = true;
    if (pursues)
        (void)pthread_join(pursuing, NULL);
    pursues = false;
    saw(&a, false, "ended");
    put_result(to, &a);
}

/* --- the control channel --- */

bool peer_send(struct peer *p, const void *data, size_t n)
{
    const char *at = data;
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    time_t limit = now.tv_sec + SEND_MS / 1000;
    while (n > 0) {
        ssize_t sent = send(p->fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            at += sent;
            n -= (size_t)sent;
            continue;
        }
        struct pollfd w = {.fd = p->fd, .events = POLLOUT};
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        if ((sent < 0 && errno != EAGAIN && errno != EINTR) || now.tv_sec >= limit || poll(&w, 1, 1000) < 0)
            return false;
    }
    return true;
}

static bool send_text(struct peer *p, const char *text)
{
    return peer_send(p, text, strlen(text));
}

static void greet(struct peer *p)
{
    char text[256];
    char *end;
    unsigned long major = strtoul(fact("qemu_version"), &end, 10);
    unsigned long minor = *end == '.' ? strtoul(end + 1, &end, 10) : 0;
    unsigned long micro = *end == '.' ? strtoul(end + 1, &end, 10) : 0;
    (void)snprintf(text, sizeof(text),
                   "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": %lu, \"minor\": %lu, \"major\": %lu}, "
                   "\"package\": \"\"}, \"capabilities\": []}}\r\n",
                   micro, minor, major);
    (void)send_text(p, text);
}

/* Every command succeeds; what some have to say beyond that. */
static void answer_command(struct peer *p, const char *line)
{
    static const struct {
        const char *command, *value, *event;
    } answers[] = {
        {"query-status", "{\"status\": \"inmigrate\", \"running\": false, \"singlestep\": false}", NULL},
        {"migrate-incoming", "{}", "{\"event\": \"MIGRATION\", \"data\": {\"status\": \"completed\"}}\r\n"},
        {"ringbuf-read", "\"\"", NULL},
        {"add-fd", "{\"fdset-id\": 0, \"fd\": 9}", NULL},
    };
    const char *id = strstr(line, "\"id\":");
    const char *value = "{}";
    const char *event = NULL;
    char text[512];
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        if (strstr(line, answers[i].command)) {
            value = answers[i].value;
            event = answers[i].event;
        }
    }
    (void)snprintf(text, sizeof(text), "{\"return\": %s, \"id\": %ld}\r\n", value,
                   id ? strtol(id + 5, NULL, 10) : 0);
    if (send_text(p, text) && event)
        (void)send_text(p, event);
}

static void serve_line(struct peer *p, char *line)
{
    if (line[0] == '{') {
        if (!lie_at(p, ON_COMMAND, 0))
            answer_command(p, line);
    } else if (str_starts(line, "RUN ")) {
        run_case(line + 4, p->fd);
    } else if (str_starts(line, "START ")) {
        start_pursuit(line + 6, p->fd);
    } else if (strcmp(line, "STOP") == 0) {
        end_pursuit(p->fd);
    }
}

/* Reads once; a descriptor that comes along is kept: an attacker would. */
static ssize_t receive(struct peer *p)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    void *at = buf_reserve(&p->in, 65536);
    struct iovec iov = {.iov_base = at, .iov_len = 65536};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.space,
                         .msg_controllen = sizeof(control.space)};
    ssize_t n = at ? recvmsg(p->fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) : 0;
    if (n > 0)
        buf_added(&p->in, (size_t)n);
    struct cmsghdr *h = n >= 0 ? CMSG_FIRSTHDR(&msg) : NULL;
    if (h && h->cmsg_type == SCM_RIGHTS) {
        if (passed_fd >= 0)
            (void)close(passed_fd);
        memcpy(&passed_fd, CMSG_DATA(h), sizeof(int));
    }
    return n;
}

static void drop(struct peer *p)
{
    (void)close(p->fd);
    p->fd = -1;
    buf_finish(&p->in);
}

/* JSON of one message has no line end in it, so QMP can be read by lines; qemu's own client need not send
 * one. */
static void serve_control(struct peer *p)
{
    for (;;) {
        char *head = (char *)buf_head(&p->in);
        size_t n = buf_len(&p->in);
        if (n == 0)
            return;
        char *end = memchr(head, '\n', n);
        if (!end && head[0] == '{') { /* one object a message: its end is where the braces close */
            int depth = 0;
            for (size_t i = 0; i < n && !end; i++) {
                depth += head[i] == '{' ? 1 : head[i] == '}' ? -1 : 0;
                end = depth == 0 ? head + i : NULL;
            }
        }
        if (!end)
            return;
        size_t len = (size_t)(end - head) + 1;
        AUTO_FREE char *line = strndup(head, len);
        buf_consume(&p->in, len);
        if (!line)
            return;
        line[strcspn(line, "\r\n")] = '\0';
        serve_line(p, line);
        if (p->fd < 0)
            return;
    }
}

static void serve(struct peer *p)
{
    ssize_t n = receive(p);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        drop(p);
        return;
    }
    if (p->agent)
        agent_serve(p);
    else
        serve_control(p);
}

static void welcome(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct peer *p = peers;
    while (p < peers + PEERS_MAX && p->fd >= 0)
        p++;
    if (fd < 0 || p == peers + PEERS_MAX) {
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    *p = (struct peer){.fd = fd, .agent = listener == AGENT_FD};
    buf_init(&p->in, IN_MAX);
    if (!lie_at(p, p->agent ? ON_AGENT : ON_CONTROL, 0) && !p->agent)
        greet(p);
}

static int serve_for_ever(void)
{
    for (size_t i = 0; i < PEERS_MAX; i++)
        peers[i].fd = -1;
    for (;;) {
        struct pollfd p[PEERS_MAX + 2] = {{.fd = CONTROL_FD, .events = POLLIN},
                                          {.fd = AGENT_FD, .events = POLLIN}};
        for (size_t i = 0; i < PEERS_MAX; i++)
            p[i + 2] = (struct pollfd){.fd = peers[i].fd, .events = POLLIN};
        if (poll(p, PEERS_MAX + 2, -1) < 0 && errno != EINTR)
            return 1;
        for (size_t i = 0; i < PEERS_MAX; i++)
            if (peers[i].fd >= 0 && p[i + 2].fd == peers[i].fd && p[i + 2].revents)
                serve(&peers[i]);
        for (int i = 0; i < 2; i++)
            if (p[i].revents & POLLIN)
                welcome(p[i].fd);
    }
}

/* --- start --- */

static int list(void)
{
    for (size_t t = 0; t < ARRAY_LEN(tables); t++)
        for (const struct inmate_case *c = tables[t]; c->name; c++)
            (void)printf("case\t%s\t%s\t%s\t%s%s%s\n", c->name, c->tries, c->must,
                         c->marks & PROVEN ? "proven " : "", c->marks & MAY_END ? "may-end " : "",
                         c->marks & USES_UP ? "uses-up " : "");
    for (const struct inmate_lie *l = lies; l->name; l++)
        (void)printf("lie\t%s\t%s\t%s\t\n", l->name, l->tries, l->must);
    return 0;
}

int main(int argc, char **argv)
{
    count_fds();
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
    if (argc == 2 && strcmp(argv[1], "--list") == 0)
        return list();
    if (argc == 4 && strcmp(argv[1], "--free") == 0) {
        const struct inmate_case *c = find_case(argv[3]);
        freedom = true;
        if (!read_facts(argv[2]) || !c)
            return 2;
        run_here(c, STDOUT_FILENO);
        return 0;
    }
    char path[4096];
    (void)str_copy(path, sizeof(path), argv[0]);
    for (int up = 0; up < 2 && strrchr(path, '/'); up++)
        *strrchr(path, '/') = '\0';
    size_t n = strlen(path);
    (void)snprintf(path + n, sizeof(path) - n, "/facts");
    if (!read_facts(path)) {
        (void)fprintf(stderr, "inmate: no facts at %s: %s\n", path, strerror(errno));
        return 2;
    }
    return serve_for_ever();
}
