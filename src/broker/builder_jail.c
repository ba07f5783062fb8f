/* Steps of a build, each a process in a user namespace of its own. space-builder has one thread, so
 * what runs after the clone may allocate. */
#include <cap-ng.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/proc.h"
#include "base/str.h"
#include "broker/builder.h"

#define HOST_NET_FD 4
#define STEP_NOFILE 1024
#define STEP_NPROC 4096

void builder_log(const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof(line) - 1, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    size_t len = strlen(line);
    line[len++] = '\n';
    (void)!write(STDERR_FILENO, line, len); /* nobody may read the log: not the build's concern */
}

/* --- in the jail --- */

/* Over a tree whose ids are mapped, root of the namespace needs these; a step that installs packages
 * also mounts and makes namespaces. */
static int keep_capabilities(const struct step *s, struct jail_fail *fail)
{
    static const int kept[] = {CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_SETFCAP};
    if (s->all_capabilities)
        return 0;
    capng_clear(CAPNG_SELECT_BOTH);
    for (size_t i = 0; i < ARRAY_LEN(kept); i++)
        (void)capng_update(CAPNG_ADD, CAPNG_EFFECTIVE | CAPNG_PERMITTED | CAPNG_BOUNDING_SET,
                           (unsigned)kept[i]);
    if (capng_apply(CAPNG_SELECT_BOTH) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return jail_failed(fail, "reduce", "capabilities");
    return 0;
}

/* Closes what the step was started with but for its own streams and report: above all the builder's
 * result, which a step that parses hostile data must not be able to write. */
static void close_rest(int report)
{
    (void)close_range(STDERR_FILENO + 1, (unsigned)report - 1, 0);
    (void)close_range((unsigned)report + 1, ~0U, 0);
}

/* Process 1 of the step's pid namespace. */
static void step_main(const struct step *s)
{
    /* Killing the step's outer process is then enough to end everything in it. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    close_rest(s->result[1]);
    struct step_result r = {0};
    struct error err = ERROR_INIT;
    /* Package scripts look at /proc. Refused on hosts that hide parts of theirs: the host's stays then. */
    if (s->proc)
        (void)mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    r.code = s->run(s, &r, &err);
    if (r.code < 0)
        (void)str_copy(r.message, sizeof(r.message), err.message);
    (void)!write(s->result[1], &r, sizeof(r));
    _exit(0);
}

/* What the step still needs, at known numbers; the rest closes on exec. */
static int place(const struct step *s, int null_fd, struct jail_fail *fail)
{
    const int fds[] = {s->stdin_fd >= 0 ? s->stdin_fd : null_fd, s->stdout_fd >= 0 ? s->stdout_fd : null_fd,
                       STDERR_FILENO};
    return jail_place_fds(fds, ARRAY_LEN(fds), fail);
}

static int wait_for_maps(const struct step *s, struct jail_fail *fail)
{
    char byte = 'r';
    if (write(s->ready[1], &byte, 1) != 1 || read(s->maps[0], &byte, 1) != 1)
        return jail_failed(fail, "wait for the", "id maps");
    if (setgroups(0, NULL) < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        return jail_failed(fail, "become root of", "the jail");
    return 0;
}

/* The root is built with the host's privileges, then the namespaces are made that belong to the user
 * namespace, so that nothing inside has a right over anything outside. */
static int step_child(void *arg, int gate_fd, struct jail_fail *fail)
{
    const struct step *s = arg;
    char at[300];
    (void)snprintf(at, sizeof(at), "%s/root", s->b->work);
    AUTO_CLOSE int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (s->network && setns(HOST_NET_FD, CLONE_NEWNET) < 0)
        return jail_failed(fail, "enter the host's", "network");
    if (place(s, null_fd, fail) < 0 || jail_enter_root(at, s->items, fail) < 0)
        return -1;
    int flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS |
                (s->network ? 0 : CLONE_NEWNET);
    if (unshare(flags) < 0)
        return jail_failed(fail, "make a user", "namespace");
    if (wait_for_maps(s, fail) < 0 || keep_capabilities(s, fail) < 0)
        return -1;
    /* A file of the tree is never larger than the disk it goes to. */
    if (jail_limits((uint64_t)s->b->disk_mib << 20, STEP_NOFILE, STEP_NPROC, fail) < 0)
        return -1;
    if (jail_wait_gate(gate_fd, fail) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0)
        step_main(s);
    if (pid < 0)
        return jail_failed(fail, "fork", s->name);
    (void)proc_wait(pid);
    _exit(0);
}

/* --- the builder's side --- */

static int write_map(pid_t pid, const char *file, uid_t first, struct error *err)
{
    char path[48];
    char text[48];
    (void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
    int n = snprintf(text, sizeof(text), "0 %u %u\n", first, BUILDER_IDS);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, (size_t)n) != n)
        return error_errno(err, ERROR_INTERNAL, errno, "write %s", path);
    return 0;
}

static void close_pipes(struct step *s)
{
    int *const pipes[] = {s->ready, s->maps, s->result};
    for (size_t i = 0; i < ARRAY_LEN(pipes); i++)
        for (int end = 0; end < 2; end++)
            if (pipes[i][end] >= 0) {
                (void)close(pipes[i][end]);
                pipes[i][end] = -1;
            }
}

static int open_pipes(struct step *s, struct error *err)
{
    int *const pipes[] = {s->ready, s->maps, s->result};
    for (size_t i = 0; i < ARRAY_LEN(pipes); i++)
        pipes[i][0] = pipes[i][1] = -1;
    for (size_t i = 0; i < ARRAY_LEN(pipes); i++)
        if (pipe2(pipes[i], O_CLOEXEC) < 0) {
            close_pipes(s);
            return error_errno(err, ERROR_INTERNAL, errno, "pipe");
        }
    return 0;
}

/* Waits until the child is in its user namespace and maps it. A child that failed before that says why
 * through the clone's error pipe. */
static int map_ids(struct step *s, struct error *err)
{
    char byte;
    (void)close(TAKE_FD(s->ready[1]));
    if (read(s->ready[0], &byte, 1) != 1)
        return jail_wait_exec(&s->child, err) < 0 ? err->code
                                                  : error_set(err, ERROR_INTERNAL, "%s ended early", s->name);
    int rc = write_map(s->child.pid, "uid_map", s->b->uid_first, err);
    if (rc == 0)
        rc = write_map(s->child.pid, "gid_map", s->b->uid_first, err);
    if (rc == 0 && write(s->maps[1], &byte, 1) != 1)
        rc = error_errno(err, ERROR_INTERNAL, errno, "start %s", s->name);
    return rc;
}

int step_start(struct step *s, struct error *err)
{
    s->child = (struct jail_child)JAIL_CHILD_INIT;
    int rc = open_pipes(s, err);
    if (rc < 0)
        return rc;
    rc = jail_clone(CLONE_NEWNS, NULL, 0, step_child, s, &s->child, err);
    if (rc == 0)
        rc = map_ids(s, err);
    if (rc < 0) {
        jail_abort(&s->child);
        close_pipes(s);
        return error_wrap(err, "%s", s->name);
    }
    jail_open_gate(&s->child);
    (void)close(TAKE_FD(s->result[1]));
    s->started = true;
    return 0;
}

/* Accepts a report only in its whole size and with its texts ended. */
static int read_result(struct step *s, struct step_result *r, struct error *err)
{
    size_t n = 0;
    memset(r, 0, sizeof(*r));
    while (n < sizeof(*r)) {
        ssize_t got = read(s->result[0], (char *)r + n, sizeof(*r) - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return error_set(err, ERROR_INTERNAL, "it ended without a result");
        n += (size_t)got;
    }
    r->message[sizeof(r->message) - 1] = '\0';
    r->digest[sizeof(r->digest) - 1] = '\0';
    if (r->code < 0)
        return error_set(err, r->code, "%s", r->message);
    return 0;
}

int step_wait(struct step *s, struct step_result *ret, struct error *err)
{
    struct error why = ERROR_INIT;
    int rc = read_result(s, ret, err);
    /* Ended before it could report: a step of entering the jail may have said what failed. */
    if (rc < 0 && ret->code == 0 && jail_wait_exec(&s->child, &why) < 0 && err) {
        *err = why;
        rc = why.code;
    }
    (void)proc_wait(s->child.pid);
    jail_abort(&s->child);
    close_pipes(s);
    return rc < 0 ? error_wrap(err, "%s", s->name) : 0;
}

int step_execute(char *const argv[], struct error *err)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)execvp(argv[0], argv);
        builder_log("%s: %s", argv[0], strerror(errno));
        _exit(127);
    }
    if (pid < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "fork");
    /* As process 1 it also inherits what the program leaves behind. */
    int status = 0;
    for (pid_t got = 0; got != pid;) {
        got = waitpid(-1, &status, 0);
        if (got < 0 && errno != EINTR)
            return error_errno(err, ERROR_INTERNAL, errno, "wait for %s", argv[0]);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return error_set(err, ERROR_UNAVAILABLE, "%s is not installed on this host", argv[0]);
    return error_set(err, ERROR_BUILD_FAILED, "%s failed (%s %d)", argv[0],
                     WIFEXITED(status) ? "exit status" : "signal",
                     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}
