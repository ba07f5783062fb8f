/* space-privd: the privileged broker. See docs/design/privilege.md and space-privd(8). */
#include "broker/privd.h"

#include <cap-ng.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/str.h"

#define EXIT_USAGE 2
#define EXIT_BUSY 3 /* another broker serves the state directory */
#define WORKERS 8
#define LOCK_WAIT_S 20
#define END_S 10 /* longest time for what is under way at the end; less than the next broker waits */

/* What root is kept for; everything else is given up for good, also for the programs it executes. Builds need
 * more: they are the spawner's, builder_serve.c. */
static const struct {
    int capability;
    const char *why;
} kept[] = {
    {CAP_SYS_ADMIN, "make namespaces and the jails' roots"},
    {CAP_SETUID, "become a sandbox's uid in its jail"},
    {CAP_SETGID, "the same for groups"},
    {CAP_SETPCAP, "empty the bounding set of a VMM"},
    {CAP_CHOWN, "give disks and memory files to a sandbox's uid and back to root"},
    {CAP_FOWNER, "change the mode of, and remove, files of leased uids"},
    {CAP_DAC_OVERRIDE, "open and remove files of leased uids, whatever their mode"},
    {CAP_MKNOD, "the three or four devices of a jail"},
    {CAP_SYS_PTRACE, "read the changed memory of a VMM, which runs under another uid, for a snapshot"},
    {CAP_KILL, "end VMMs and builds, which run under other uids"},
};

static int drop_capabilities(struct error *err)
{
    capng_clear(CAPNG_SELECT_BOTH);
    for (size_t i = 0; i < ARRAY_LEN(kept); i++)
        (void)capng_update(CAPNG_ADD, CAPNG_EFFECTIVE | CAPNG_PERMITTED | CAPNG_BOUNDING_SET,
                           (unsigned)kept[i].capability);
    int rc = capng_apply(CAPNG_SELECT_BOTH);
    return rc < 0 ? error_set(err, ERROR_INTERNAL, "capabilities cannot be reduced (%d)", rc) : 0;
}

/* On every thread, when all there are have begun. */
static int confine(struct privd *p, struct error *err)
{
    if (FILTER_SANITIZED) {
        LOG(LOG_WARN, "no system call filter: this build has a sanitizer", "pid=%d", (int)getpid());
        return 0;
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || filter_install(&p->filters[FILTER_BROKER], true) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "install the broker's system call filter");
    return 0;
}

static void on_alarm(int sig)
{
    (void)sig;
}

/* One broker per state directory. An earlier one whose channel has just closed may still be ending: wait
 * for it, a while. */
static int lock(const char *state_dir, int *ret_fd, struct error *err)
{
    AUTO_FREE char *path = str_printf("%s/privd/lock", state_dir);
    AUTO_CLOSE int fd = path ? open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        return error_errno(err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno, "%s/privd/lock",
                           state_dir);
    struct sigaction a = {.sa_handler = on_alarm}; /* no SA_RESTART: flock is interrupted */
    (void)sigaction(SIGALRM, &a, NULL);
    (void)alarm(LOCK_WAIT_S);
    int rc = flock(fd, LOCK_EX);
    (void)alarm(0);
    if (rc < 0)
        return error_set(err, ERROR_CONFLICT, "another space-privd serves %s", state_dir);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* What is under way is brought to its end, but not at any price: a worker may be writing gigabytes, or wait
 * for a VMM that does not want to be read, and the next broker waits for the lock. What is cut short then is
 * what a crash would have cut short. */
static void end_in_time(void)
{
    struct sigaction a = {.sa_handler = SIG_DFL};
    (void)sigaction(SIGALRM, &a, NULL);
    (void)alarm(END_S);
}

static void raise_nofile(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max; /* two descriptors for each VMM */
        (void)setrlimit(RLIMIT_NOFILE, &r);
    }
}

static void on_signal(struct loop_signal *s, int signo)
{
    (void)signo;
    loop_stop(s->arg);
}

static int serve(struct privd *p, const struct privd_options *o, struct error *err)
{
    static const int signals[] = {SIGTERM, SIGINT, 0};
    struct loop_signal watch = {0};
    int rc = drop_capabilities(err);
    if (rc == 0)
        rc = loop_create(&p->loop, err);
    if (rc == 0)
        rc = loop_signal_start(p->loop, &watch, signals, on_signal, p->loop, err);
    if (rc == 0)
        rc = loop_pool_create(p->loop, "privd", WORKERS, JOBS_MAX + 16, &p->workers, err);
    if (rc == 0)
        rc = channel_create(p, o->channel_fd, &p->channel, err);
    if (rc == 0)
        rc = confine(p, err);
    if (rc < 0)
        return rc;
    loop_run(p->loop);
    end_in_time();
    builds_finish(p);
    jobs_finish(p);
    privd_snapshots_free(p); /* their timers are the loop's */
    for (struct sandbox *s = p->sandboxes; s; s = s->hh.next)
        vmm_watch_finish(s);
    channel_destroy(p->channel);
    loop_signal_stop(&watch);
    loop_destroy(p->loop);
    return 0;
}

static int run(struct privd *p, const struct privd_options *o, struct error *err)
{
    AUTO_CLOSE int lock_fd = -1;
    int rc = lock(o->state_dir, &lock_fd, err);
    if (o->purge) {
        if (rc == ERROR_NOT_FOUND)
            return 0;
        if (rc == 0 && !str_copy(p->state_dir, sizeof(p->state_dir), o->state_dir))
            rc = error_set(err, ERROR_INVALID, "the state directory's path is too long");
        return rc < 0 ? rc : privd_purge_all(p, err);
    }
    if (rc == 0)
        rc = privd_set_up(p, o, err);
    return rc < 0 ? rc : serve(p, o, err);
}

static void usage(FILE *to)
{
    (void)fprintf(to,
                  "usage: space-privd --state-dir DIR --channel-fd N [--pool-size-mib N] [--qemu PROGRAM]\n"
                  "                   [--firecracker PROGRAM]\n"
                  "       space-privd --state-dir DIR --purge\n"
                  "       [--log-level debug|info|warn|error] [--log-json]\n"
                  "Started by spaced; see space-privd(8).\n");
}

enum {
    OPT_STATE_DIR = 256,
    OPT_CHANNEL_FD,
    OPT_PURGE,
    OPT_POOL_SIZE,
    OPT_QEMU,
    OPT_FIRECRACKER,
    OPT_LOG_LEVEL,
    OPT_LOG_JSON,
    OPT_HELP
};

static const struct option options[] = {
    {"state-dir", required_argument, NULL, OPT_STATE_DIR},
    {"channel-fd", required_argument, NULL, OPT_CHANNEL_FD},
    {"purge", no_argument, NULL, OPT_PURGE},
    {"pool-size-mib", required_argument, NULL, OPT_POOL_SIZE},
    {"qemu", required_argument, NULL, OPT_QEMU},
    {"firecracker", required_argument, NULL, OPT_FIRECRACKER},
    {"log-level", required_argument, NULL, OPT_LOG_LEVEL},
    {"log-json", no_argument, NULL, OPT_LOG_JSON},
    {"help", no_argument, NULL, OPT_HELP},
    {0},
};

struct log_options {
    enum log_level level;
    bool json;
};

static bool set_option(int option, struct privd_options *o, struct log_options *l)
{
    uint64_t n;
    switch (option) {
    case OPT_STATE_DIR:
        o->state_dir = optarg;
        return true;
    case OPT_CHANNEL_FD:
        if (!str_to_u64(optarg, 3, 1024, &n))
            return false;
        o->channel_fd = (int)n;
        return true;
    case OPT_PURGE:
        o->purge = true;
        return true;
    case OPT_POOL_SIZE:
        if (!str_to_u64(optarg, 0, UINT32_MAX, &n))
            return false;
        o->pool_size_mib = (uint32_t)n;
        return true;
    case OPT_QEMU:
        o->qemu = optarg;
        return true;
    case OPT_FIRECRACKER:
        o->firecracker = optarg;
        return true;
    case OPT_LOG_LEVEL:
        return log_level_parse(optarg, &l->level);
    case OPT_LOG_JSON:
        l->json = true;
        return true;
    default:
        return false;
    }
}

static bool parse(int argc, char **argv, struct privd_options *o)
{
    struct log_options l = {.level = LOG_INFO};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
        if (option == OPT_HELP) {
            usage(stdout);
            exit(EXIT_SUCCESS);
        }
        if (!set_option(option, o, &l))
            return false;
    }
    log_setup("space-privd", l.level, l.json);
    return optind == argc && o->state_dir && o->purge == (o->channel_fd < 0);
}

int main(int argc, char **argv)
{
    fault_init();
    struct privd_options o = {.channel_fd = -1};
    if (!parse(argc, argv, &o)) {
        usage(stderr);
        return EXIT_USAGE;
    }
    if (geteuid() != 0) {
        (void)fprintf(stderr, "space-privd: needs root; it is started by spaced\n");
        return EXIT_FAILURE;
    }
    if (o.channel_fd >= 0 && fcntl(o.channel_fd, F_SETFD, FD_CLOEXEC) < 0) {
        (void)fprintf(stderr, "space-privd: descriptor %d: %s\n", o.channel_fd, strerror(errno));
        return EXIT_USAGE;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)umask(022);
    raise_nofile();
    struct privd *p = calloc(1, sizeof(*p));
    struct error err = ERROR_INIT;
    int rc = p ? run(p, &o, &err) : error_set(&err, ERROR_NO_MEMORY, "out of memory");
    if (rc < 0)
        LOG(LOG_ERROR, "space-privd ends", "reason=" LOG_Q, err.message);
    if (p)
        privd_tear_down(p);
    free(p);
    return rc == 0 ? EXIT_SUCCESS : rc == ERROR_CONFLICT ? EXIT_BUSY : EXIT_FAILURE;
}
