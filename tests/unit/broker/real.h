/* A real space-privd in a state directory of its own, and blocking calls to it. Root only: a test that
 * uses it skips (exit code 77) elsewhere. */
#pragma once

#include "unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/proc.h"
#include "base/str.h"
#include "broker/broker.h"
#include "broker/lease.h"
#include "broker/server.h"
#include "loop/loop.h"

#define REAL_SKIP 77
#define REAL_DIGEST "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

struct real {
    char *dir;
    struct loop *loop;
    struct broker *broker;
    struct privd_lease lease;
    bool gone;
    uint32_t pool_mib;       /* size of a pool image made now; 0: the default */
    const char *firecracker; /* that VMM's program; NULL: there is none */
};

/* The answer to the last call. */
struct answer {
    bool done;
    struct error err;
    struct broker_info info;
    struct broker_vmm_info vmm;
    bool sealed;
    size_t count;
    char ids[8][ID_SIZE];
    char digest[BROKER_DIGEST_SIZE];
    uint64_t bytes;
};

static inline void real_gone(void *arg)
{
    ((struct real *)arg)->gone = true;
}

static inline void real_open(struct real *r)
{
    struct error err = ERROR_INIT;
    int fd = -1;
    r->gone = false;
    assert_ok(privd_lease_acquire(r->dir, &r->lease, &err), &err);
    assert_ok(server_start(r->dir, r->pool_mib, r->firecracker ? r->firecracker : "", &r->lease, &fd, &err),
              &err);
    assert_ok(loop_create(&r->loop, &err), &err);
    assert_ok(broker_create(r->loop, fd, real_gone, r, &r->broker, &err), &err);
}

static inline void real_close(struct real *r)
{
    broker_destroy(r->broker);
    loop_destroy(r->loop);
    r->broker = NULL;
    r->loop = NULL;
}

static inline void real_start_sized(struct real *r, uint32_t pool_mib)
{
    memset(r, 0, sizeof(*r));
    r->pool_mib = pool_mib;
    r->dir = unit_mkdir();
    assert_int_equal(chmod(r->dir, 0711), 0);
    real_open(r);
}

static inline void real_start(struct real *r)
{
    real_start_sized(r, 0);
}

static inline void real_stop(struct real *r)
{
    struct error err = ERROR_INIT;
    real_close(r);
    assert_ok(server_purge(r->dir, &err), &err);
    assert_ok(fs_remove_tree(AT_FDCWD, r->dir, &err), &err);
    free(r->dir);
}

static inline void real_wait(struct real *r, const bool *done, int seconds)
{
    int64_t deadline = clock_mono_ns() + seconds * CLOCK_NS_PER_S;
    while (!*done) {
        if (clock_mono_ns() > deadline)
            fail_msg("no answer from the broker in %d s", seconds);
        loop_turn(r->loop, 200);
    }
}

static inline void answer_error(struct answer *a, const struct error *err)
{
    a->done = true;
    if (err)
        a->err = *err;
}

static inline void on_done(void *arg, const struct error *err)
{
    answer_error(arg, err);
}

static inline void on_info(void *arg, const struct error *err, const struct broker_info *info)
{
    struct answer *a = arg;
    if (info)
        a->info = *info;
    answer_error(a, err);
}

static inline void on_vmm(void *arg, const struct error *err, const struct broker_vmm_info *vmm)
{
    struct answer *a = arg;
    if (vmm) {
        a->vmm = *vmm;
        (void)close(TAKE_FD(a->vmm.run_fd)); /* nobody looks: it would hold the pool */
    }
    answer_error(a, err);
}

static inline void on_has(void *arg, const struct error *err, bool sealed)
{
    ((struct answer *)arg)->sealed = sealed;
    answer_error(arg, err);
}

static inline void on_list(void *arg, const struct error *err, const char (*ids)[ID_SIZE], size_t n)
{
    struct answer *a = arg;
    a->count = n;
    for (size_t i = 0; i < n && i < ARRAY_LEN(a->ids); i++)
        (void)str_copy(a->ids[i], ID_SIZE, ids[i]);
    answer_error(a, err);
}

static inline void on_build(void *arg, const struct error *err, const char *digest, uint64_t bytes)
{
    struct answer *a = arg;
    if (digest)
        (void)str_copy(a->digest, sizeof(a->digest), digest);
    a->bytes = bytes;
    answer_error(a, err);
}

static inline void on_bytes(void *arg, const struct error *err, uint64_t bytes)
{
    ((struct answer *)arg)->bytes = bytes;
    answer_error(arg, err);
}

/* Runs one call and waits for its answer. */
#define CALL(r, a, seconds, fn, ...)           \
    do {                                       \
        memset((a), 0, sizeof(*(a)));          \
        fn((r)->broker, __VA_ARGS__);          \
        real_wait((r), &(a)->done, (seconds)); \
    } while (0)

#define assert_answer(a)                                        \
    do {                                                        \
        if ((a)->err.code != 0)                                 \
            fail_msg("%d %s", (a)->err.code, (a)->err.message); \
    } while (0)

/* A template of `mib` MiB of zeros but for a mark: enough for a VMM to have a disk. */
static inline void real_template(struct real *r, unsigned mib)
{
    AUTO_FREE char *dir = str_printf("%s/pool/templates/" REAL_DIGEST, r->dir);
    AUTO_FREE char *path = str_printf("%s/rootfs.raw", dir);
    assert_int_equal(mkdir(dir, 0750), 0);
    AUTO_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0444);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)mib << 20), 0);
    assert_int_equal(pwrite(fd, "template", 8, 0), 8);
}

/* The host's own kernel as platform image; false when it has none. */
static inline bool real_platform(struct real *r)
{
    glob_t g;
    if (glob("/boot/vmlinuz-*", 0, NULL, &g) != 0)
        return false;
    AUTO_FREE char *dir = str_printf("%s/platform/" REAL_DIGEST, r->dir);
    AUTO_FREE char *kernel = str_printf("%s/vmlinuz", dir);
    AUTO_FREE char *initrd = str_printf("%s/initrd", dir);
    struct error err = ERROR_INIT;
    assert_ok(fs_mkdir_p(dir, 0755, &err), &err);
    AUTO_CLOSE int from = open(g.gl_pathv[0], O_RDONLY | O_CLOEXEC);
    AUTO_CLOSE int to = open(kernel, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    assert_ok(fs_copy_sparse(from, to, &err), &err);
    assert_ok(fs_write_atomic(AT_FDCWD, initrd, "no initrd", 9, 0644, &err), &err);
    globfree(&g);
    return true;
}

/* Gone, or a zombie that only waits for its parent. */
static inline bool real_has_ended(pid_t pid)
{
    AUTO_FREE char *path = str_printf("/proc/%d/status", (int)pid);
    AUTO_FREE char *text = NULL;
    size_t n;
    return fs_read_file(AT_FDCWD, path, 65536, &text, &n, NULL) < 0 || strstr(text, "State:\tZ") != NULL;
}

/* The broker's process id: this test's own child with that command line. Others have it for a moment
 * too, children that an earlier broker cloned and that have not executed. */
static inline pid_t real_broker_pid(const struct real *r)
{
    AUTO_FREE char *ours = str_printf("\nPPid:\t%d\n", (int)getpid());
    AUTO_CLOSEDIR DIR *d = opendir("/proc");
    struct dirent *e;
    while ((e = readdir(d))) {
        uint64_t pid;
        if (!str_to_u64(e->d_name, 2, INT32_MAX, &pid))
            continue;
        AUTO_FREE char *path = str_printf("/proc/%s/cmdline", e->d_name);
        AUTO_FREE char *status_path = str_printf("/proc/%s/status", e->d_name);
        AUTO_FREE char *text = NULL;
        AUTO_FREE char *status = NULL;
        size_t n;
        size_t status_n;
        if (fs_read_file(AT_FDCWD, path, 65536, &text, &n, NULL) < 0 ||
            fs_read_file(AT_FDCWD, status_path, 65536, &status, &status_n, NULL) < 0)
            continue;
        for (size_t i = 0; i < n; i++)
            if (text[i] == '\0')
                text[i] = ' ';
        if (strstr(text, "space-privd ") && strstr(text, r->dir) && strstr(status, ours))
            return (pid_t)pid;
    }
    return 0;
}

/* --- leftovers --- */

static inline unsigned real_entries(const struct real *r, const char *name)
{
    AUTO_FREE char *path = str_printf("%s/%s", r->dir, name);
    AUTO_CLOSEDIR DIR *d = opendir(path);
    assert_non_null(d);
    unsigned n = 0;
    struct dirent *e;
    while ((e = readdir(d)))
        n += e->d_name[0] != '.';
    return n;
}

/* Processes under the lease's VMM and build uids, zombies aside. */
static inline unsigned real_leased_processes(const struct real *r)
{
    unsigned n = 0;
    AUTO_CLOSEDIR DIR *d = opendir("/proc");
    struct dirent *e;
    while ((e = readdir(d))) {
        uint64_t pid;
        struct stat st;
        if (!str_to_u64(e->d_name, 2, INT32_MAX, &pid) || fstatat(dirfd(d), e->d_name, &st, 0) < 0)
            continue;
        if (st.st_uid > r->lease.uid_first && st.st_uid - r->lease.uid_first < LEASE_BLOCK)
            n += !real_has_ended((pid_t)pid);
    }
    return n;
}

static inline void real_assert_clean(const struct real *r)
{
    assert_int_equal(real_entries(r, "pool/sandboxes"), 0);
    assert_int_equal(real_entries(r, "pool/building"), 0);
    assert_int_equal(real_entries(r, "pool/trash"), 0);
    assert_int_equal(real_entries(r, "privd/sandboxes"), 0);
    assert_int_equal(real_entries(r, "privd/builds"), 0);
    /* A child that the broker had just cloned when it was killed ends by itself, at its gate. */
    int64_t deadline = clock_mono_ns() + 5 * CLOCK_NS_PER_S;
    while (real_leased_processes(r) > 0 && clock_mono_ns() < deadline)
        (void)poll(NULL, 0, 5);
    assert_int_equal(real_leased_processes(r), 0);
    AUTO_FREE char *groups = str_printf("/sys/fs/cgroup/*/space-%s/sb_*", r->lease.server_id);
    glob_t g;
    assert_int_equal(glob(groups, 0, NULL, &g), GLOB_NOMATCH);
}

/* --- QMP --- */

static inline int unix_connect(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    assert_true(str_copy(a.sun_path, sizeof(a.sun_path), path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

/* Sends one QMP command (with a descriptor when pass >= 0) and reads until `expect` shows. */
static inline void qmp(int fd, const char *command, int pass, const char *expect)
{
    struct iovec iov = {.iov_base = (void *)command, .iov_len = strlen(command)};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (pass >= 0) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &pass, sizeof(pass));
    }
    if (iov.iov_len > 0)
        assert_int_equal(sendmsg(fd, &m, MSG_NOSIGNAL), iov.iov_len);
    char text[16384];
    size_t n = 0;
    for (;;) {
        struct pollfd f = {.fd = fd, .events = POLLIN};
        if (poll(&f, 1, 10000) != 1)
            fail_msg("%s: no %s in \"%.*s\"", command, expect, (int)n, text);
        ssize_t got = read(fd, text + n, sizeof(text) - 1 - n);
        if (got <= 0)
            fail_msg("%s: the VMM has ended", command);
        n += (size_t)got;
        text[n] = '\0';
        if (strstr(text, expect))
            return;
        if (strstr(text, "\"error\""))
            fail_msg("%s -> %s", command, text);
    }
}

/* Asks again until the answer holds `expect`. */
static inline void qmp_until(int fd, const char *command, const char *expect)
{
    int64_t deadline = clock_mono_ns() + 20 * CLOCK_NS_PER_S;
    char text[16384];
    do {
        assert_true(clock_mono_ns() < deadline);
        assert_int_equal(write(fd, command, strlen(command)), strlen(command));
        ssize_t got = read(fd, text, sizeof(text) - 1);
        assert_true(got > 0);
        text[got] = '\0';
        (void)poll(NULL, 0, 5);
    } while (!strstr(text, expect));
}
