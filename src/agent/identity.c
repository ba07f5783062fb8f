/* What makes a restored or forked guest different from its origin. */
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/hosts.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"

#define RUN_DIR "/run/space"

static int reseed(int fd, const unsigned char *seed, size_t n)
{
    int pool[2 + 64 / sizeof(int)]; /* struct rand_pool_info: bits of entropy, bytes, the bytes */
    if (n > 64) {
        errno = EINVAL;
        return -1;
    }
    pool[0] = (int)n * 8;
    pool[1] = (int)n;
    memcpy(pool + 2, seed, n);
    if (ioctl(fd, RNDADDENTROPY, pool) < 0)
        return -1;
    return ioctl(fd, RNDRESEEDCRNG);
}

static int set_clock(uint64_t wall_ns)
{
    struct timespec ts = {(time_t)(wall_ns / CLOCK_NS_PER_S), (long)(wall_ns % CLOCK_NS_PER_S)};
    return clock_settime(CLOCK_REALTIME, &ts);
}

/* Text of the same length goes over the old in one write: a reader sees one or the other, as with a rename,
 * for far less work of the kernel. A restore writes little else than such texts. */
static bool write_over(const char *path, const char *text)
{
    struct stat st;
    size_t n = strlen(text);
    if (lstat(path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1 || st.st_size != (off_t)n)
        return false;
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && pwrite(fd, text, n, 0) == (ssize_t)n;
}

/* Replaces a small file; the guest owns the directory, so links are not followed and nothing is waited on. */
static int write_text(const char *path, const char *text)
{
    char temp[128];
    if (write_over(path, text))
        return 0;
    (void)snprintf(temp, sizeof(temp), "%s.space", path);
    (void)unlink(temp);
    AUTO_CLOSE int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    if (write(fd, text, strlen(text)) == (ssize_t)strlen(text) && fchmod(fd, 0644) == 0 &&
        rename(temp, path) == 0)
        return 0;
    (void)unlink(temp);
    return -1;
}

/* Names for programs that look in files. The root file system may be read-only: then /etc/machine-id, if
 * there is one, is covered by the file in /run. */
static void write_names(const char *hostname, const char *machine)
{
    char line[80];
    struct stat st;
    (void)snprintf(line, sizeof(line), "%s\n", hostname);
    (void)write_text("/etc/hostname", line);
    hosts_update("/etc/hosts", hostname, write_text);
    (void)snprintf(line, sizeof(line), "%s\n", machine);
    (void)write_text("/run/machine-id", line);
    if (write_text("/etc/machine-id", line) < 0 && errno == EROFS && lstat("/etc/machine-id", &st) == 0 &&
        S_ISREG(st.st_mode))
        (void)mount("/run/machine-id", "/etc/machine-id", NULL, MS_BIND, NULL);
}

static int failed(char *why, size_t size, const char *what)
{
    (void)snprintf(why, size, "%s: %s", what, strerror(errno));
    return ERROR_INTERNAL;
}

static void read_identity(const struct proto_fields *f, struct agent_identity *ret)
{
    size_t n;
    *ret = (struct agent_identity){.generation = proto_get_u64(f, PROTO_F_GENERATION, 0)};
    (void)str_copy(ret->sandbox, sizeof(ret->sandbox), proto_get_string(f, PROTO_F_SANDBOX, ""));
    (void)str_copy(ret->hostname, sizeof(ret->hostname), proto_get_string(f, PROTO_F_HOSTNAME, ""));
    memcpy(ret->machine, proto_get_bytes(f, PROTO_F_MACHINE, &n), sizeof(ret->machine));
}

static int set_names(const struct agent_identity *id, char *ret_why, size_t why_size)
{
    char machine[33];
    if (sethostname(id->hostname, strlen(id->hostname)) < 0)
        return failed(ret_why, why_size, "cannot set the hostname");
    str_hex(id->machine, sizeof(id->machine), machine);
    write_names(id->hostname, machine);
    return 0;
}

static bool same_names(const struct agent_identity *a, const struct agent_identity *b)
{
    return strcmp(a->hostname, b->hostname) == 0 && memcmp(a->machine, b->machine, sizeof(a->machine)) == 0;
}

/* What programs see of the identity. The generation comes last: who sees it sees the others as well. A
 * sandbox that is itself again, after a pause or a restore, keeps what its owner has made of the names since.
 */
static int become(const struct agent_identity *was, const struct agent_identity *id, char *ret_why,
                  size_t why_size)
{
    char text[32];
    int code = same_names(was, id) ? 0 : set_names(id, ret_why, why_size);
    if (code)
        return code;
    (void)snprintf(text, sizeof(text), "%llu\n", (unsigned long long)id->generation);
    if (mkdir(RUN_DIR, 0755) < 0 && errno != EEXIST)
        return failed(ret_why, why_size, "cannot make " RUN_DIR);
    if (write_text(RUN_DIR "/sandbox", id->sandbox) < 0 || write_text(RUN_DIR "/generation", text) < 0)
        return failed(ret_why, why_size, "cannot write the generation");
    return 0;
}

static bool same(const struct agent_identity *a, const struct agent_identity *b)
{
    return a->generation == b->generation && strcmp(a->sandbox, b->sandbox) == 0 && same_names(a, b);
}

int agent_identify(struct agent *a, const struct proto_fields *f, char *ret_why, size_t why_size)
{
    /* When it was that time: the host knows by this machine's own clock, or it was when the message came. */
    uint64_t then = proto_get_u64(f, PROTO_F_MONO, (uint64_t)clock_mono_ns());
    size_t n;
    const unsigned char *seed = proto_get_bytes(f, PROTO_F_SEED, &n);
    struct agent_identity id;
    read_identity(f, &id);
    if (reseed(a->random, seed, n) < 0)
        return failed(ret_why, why_size, "cannot reseed the kernel's random numbers");
    if (set_clock(proto_get_u64(f, PROTO_F_WALL, 0) + (uint64_t)clock_mono_ns() - then) < 0)
        return failed(ret_why, why_size, "cannot set the clock");
    if (!same(&id, &a->identity)) {
        int code = become(&a->identity, &id, ret_why, why_size);
        if (code)
            return code;
    }
    a->identity = id;
    if (freeze_end(a) < 0)
        return failed(ret_why, why_size, "cannot let the processes run on");
    return 0;
}
