#include "agent/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <linux/sched/types.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STACK_SIZE 65536
#define CHILD_FDS_FROM 10 /* the child moves its descriptors above 0-2 before it places them */

enum stage { STAGE_NONE, STAGE_FDS, STAGE_TTY, STAGE_USER, STAGE_CWD, STAGE_LOOKUP, STAGE_EXEC };

struct child {
    const struct spawn *s;
    bool same_user; /* as the agent */
    volatile enum stage stage;
    volatile int error;
    volatile bool found; /* the program is there and may be run */
};

static int fail(struct child *c, enum stage stage)
{
    c->error = errno;
    c->stage = stage;
    return 127;
}

static int place_fds(const struct spawn *s)
{
    int moved[3];
    for (int i = 0; i < 3; i++) {
        bool away = s->fds[i] > 2; /* of where they are to be */
        moved[i] = away ? s->fds[i] : fcntl(s->fds[i], F_DUPFD_CLOEXEC, CHILD_FDS_FROM);
        if (moved[i] < 0)
            return -1;
    }
    for (int i = 0; i < 3; i++)
        if (dup2(moved[i], i) < 0)
            return -1;
    return 0;
}

static void reset_inherited(void)
{
    struct sigaction dfl = {.sa_handler = SIG_DFL};
    sigset_t none;
    sigemptyset(&none);
    struct sched_attr normal = {.size = sizeof(normal), .sched_policy = SCHED_NORMAL};
    /* The agent itself has a high priority (main.c), and is a batch process now and then (pace.h). */
    (void)syscall(SYS_sched_setattr, 0, &normal, 0);
    (void)sigaction(SIGPIPE, &dfl, NULL);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Whether the child may run a file. Like access(2), as it has one identity only; but that call makes and
 * throws away credentials each time, for the case that there are two. */
static bool may_run(const char *path)
{
    long rc = syscall(SYS_faccessat2, AT_FDCWD, path, X_OK, AT_EACCESS);
    if (rc < 0 && errno == ENOSYS)
        rc = access(path, X_OK);
    return rc == 0;
}

/* Tries each directory of PATH, as execvp(3) does, and keeps the most telling error. */
static void search_and_exec(struct child *c)
{
    const struct spawn *s = c->s;
    char full[4096];
    size_t name_n = strlen(s->argv[0]);
    int kept = ENOENT;
    for (const char *dir = s->path; dir; dir = *dir == ':' ? dir + 1 : NULL) {
        size_t n = strcspn(dir, ":");
        if (n + name_n + 2 <= sizeof(full)) {
            memcpy(full, dir, n);
            full[n] = '/';
            memcpy(full + n + (n > 0), s->argv[0], name_n + 1);
            /* Looked at first: an execve that fails has made and thrown away an address space. */
            if (may_run(full)) {
                (void)execve(full, s->argv, s->env);
                c->found = true;
            }
            if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) {
                return;
            }
            if (errno == EACCES)
                kept = EACCES;
        }
        dir += n;
    }
    errno = kept;
}

static int run_child(void *arg)
{
    struct child *c = arg;
    const struct spawn *s = c->s;
    if (setsid() < 0 || place_fds(s) < 0)
        return fail(c, STAGE_FDS);
    if (s->tty && ioctl(0, TIOCSCTTY, 0) < 0)
        return fail(c, STAGE_TTY);
    reset_inherited();
    (void)umask(022);
    if (!c->same_user && user_become(s->user) < 0)
        return fail(c, STAGE_USER);
    if (s->cwd ? chdir(s->cwd) < 0 : chdir(s->user->home) < 0 && chdir("/") < 0)
        return fail(c, STAGE_CWD);
    if (strchr(s->argv[0], '/')) {
        (void)execve(s->argv[0], s->argv, s->env);
        int error = errno;
        c->found = access(s->argv[0], X_OK) == 0;
        errno = error;
        return fail(c, STAGE_EXEC);
    }
    search_and_exec(c);
    return fail(c, STAGE_LOOKUP);
}

/* clone3(2) with a function and a stack of its own: the C library has no wrapper for it. The caller is
 * suspended until the child has become another program or is gone (CLONE_VFORK). */
static long clone_call(struct clone_args *args, int (*fn)(void *), void *arg)
{
#if defined(__x86_64__)
    register int (*fn_reg)(void *) __asm__("r12") = fn;
    register void *arg_reg __asm__("r13") = arg;
    long ret;
    __asm__ volatile("syscall\n\t"
                     "testq %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xorl %%ebp, %%ebp\n\t"
                     "movq %%r13, %%rdi\n\t"
                     "callq *%%r12\n\t"
                     "movl %%eax, %%edi\n\t"
                     "movl %[nr_exit], %%eax\n\t"
                     "syscall\n\t"
                     "1:\n\t"
                     : "=a"(ret)
                     : "0"((long)SYS_clone3), "D"(args), "S"(sizeof(*args)), "r"(fn_reg),
                       "r"(arg_reg), [nr_exit] "i"(SYS_exit)
                     : "rcx", "r11", "memory");
    return ret;
#else
#error "clone_call is not written for this processor"
#endif
}

static pid_t start(struct child *c, void *stack)
{
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_VFORK,
        .exit_signal = SIGCHLD,
        .stack = (uintptr_t)stack,
        .stack_size = STACK_SIZE,
    };
    if (c->s->cgroup >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)c->s->cgroup;
    }
    long pid = clone_call(&args, run_child, c);
    if (pid < 0)
        errno = (int)-pid;
    return pid < 0 ? -1 : (pid_t)pid;
}

static void explain(const struct child *c, char *to, size_t size)
{
    const struct spawn *s = c->s;
    const char *why = strerror(c->error);
    if (c->stage == STAGE_CWD)
        (void)snprintf(to, size, "cannot enter the working directory '%.120s': %s",
                       s->cwd ? s->cwd : s->user->home, why);
    else if (c->stage == STAGE_USER)
        (void)snprintf(to, size, "cannot become user '%s': %s", s->user->name, why);
    else if (c->error == ENOENT && c->found)
        (void)snprintf(to, size, "cannot run '%.120s': its interpreter or loader was not found", s->argv[0]);
    else if (c->stage == STAGE_LOOKUP && c->error == ENOENT)
        (void)snprintf(to, size, "'%.120s' was not found in PATH", s->argv[0]);
    else if (c->error == E2BIG)
        (void)snprintf(to, size,
                       "cannot run '%.60s': arguments or environment are too large: a single one has at most "
                       "131071 bytes, all together a quarter of the stack's limit",
                       s->argv[0]);
    else if (c->error == ENOEXEC)
        (void)snprintf(to, size, "cannot run '%.120s': %s: no program of this machine, nor a script with #!",
                       s->argv[0], why);
    else if (c->stage == STAGE_LOOKUP || c->stage == STAGE_EXEC)
        (void)snprintf(to, size, "cannot run '%.120s': %s", s->argv[0], why);
    else
        (void)snprintf(to, size, "cannot prepare the process: %s", why);
}

pid_t spawn_process(const struct spawn *s, char *ret_why, size_t why_size)
{
    static void *stack; /* one child at a time runs on it; made once, as this is the hot path */
    struct child c = {.s = s, .same_user = user_is_own(s->user)};
    if (!stack) {
        void *p =
            mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
        if (p == MAP_FAILED) {
            (void)snprintf(ret_why, why_size, "cannot prepare the process: %s", strerror(errno));
            return -1;
        }
        stack = p;
    }
    sigset_t all, old;
    sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &old); /* no handler of ours may run on the child's side */
    pid_t pid = start(&c, stack);
    int saved = errno;
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    if (pid >= 0 && c.stage == STAGE_NONE)
        return pid; /* a failed child is reaped with the others */
    if (pid < 0) {
        c.error = saved;
        c.stage = STAGE_FDS;
    }
    explain(&c, ret_why, why_size);
    return pid < 0 ? SPAWN_UNBORN : -1;
}
