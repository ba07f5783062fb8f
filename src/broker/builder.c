/* space-builder: started by space-privd as process 1 of a pid namespace, so that its end is the end of
 * everything it started.
 *
 *   space-builder tar|debian WORK UID-FIRST DISK-MIB seed-user|plain SUITE [PACKAGE...]
 *
 * Descriptors: 0 the archive (tar), 2 the log, 3 the result, 4 the host's network namespace. The result is
 * one line: "ok DIGEST BYTES" with WORK/out/rootfs.raw made, or "error CODE MESSAGE". */
#include "broker/builder.h"
#include "broker/spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/proc.h"
#include "base/str.h"
#include "broker/protocol.h"

#define RESULT_FD 3
#define HOST_NET_FD 4
#define ITEMS_MAX 40
#define FS_BLOCK 4096
#define GROW_MAX_GIB 256
#define SPACE_LOW (64ULL << 20)

/* --- roots of the steps --- */

struct root {
    struct jail_system system;
    struct jail_item items[ITEMS_MAX];
    unsigned count;
    char work[5][300];
};

static void add(struct root *r, enum jail_entry entry, const char *to, const char *from)
{
    if (r->count < ITEMS_MAX - 1)
        r->items[r->count++] = (struct jail_item){.entry = entry, .to = to, .from = from, .optional = true};
}

static void add_work(struct root *r, unsigned slot, const struct builder *b, const char *name, const char *to)
{
    (void)snprintf(r->work[slot], sizeof(r->work[slot]), "%s/%s", b->work, name);
    add(r, JAIL_BIND_RW, to, r->work[slot]);
}

/* Programs and libraries, and the devices every program expects. */
static void root_base(struct root *r)
{
    memset(r, 0, sizeof(*r));
    r->count = jail_system_items(&r->system, r->items);
    add(r, JAIL_BIND_ALL, "dev/null", "/dev/null");
    add(r, JAIL_BIND_ALL, "dev/zero", "/dev/zero");
    add(r, JAIL_BIND_ALL, "dev/urandom", "/dev/urandom");
    add(r, JAIL_BIND_ALL, "dev/random", "/dev/random");
}

static void root_tree(struct root *r, const struct builder *b)
{
    root_base(r);
    add(r, JAIL_BIND, "etc/ld.so.cache", "/etc/ld.so.cache");
    add(r, JAIL_BIND, "etc/mke2fs.conf", "/etc/mke2fs.conf");
    add(r, JAIL_BIND_ALL, "etc/mtab", "/dev/null"); /* mke2fs asks what is mounted: nothing */
    add_work(r, 0, b, "tree", "work/tree");
    add_work(r, 1, b, "out", "work/out");
    add_work(r, 2, b, "tmp", "tmp");
}

/* For package installation: the host's configuration, readable as for any user, and /proc to mount the
 * chroot's own from. No /sys: in a user namespace without a network of its own nobody may mount one, and
 * mmdebstrap before 0.8.6 gives up there. Where there is none it goes on without. */
static void root_packages(struct root *r, const struct builder *b)
{
    root_base(r);
    add(r, JAIL_BIND_ALL, "dev/full", "/dev/full");
    add(r, JAIL_BIND_ALL, "dev/tty", "/dev/tty");
    add(r, JAIL_BIND_ALL, "dev/ptmx", "/dev/ptmx");
    add(r, JAIL_LINK, "dev/fd", "/proc/self/fd");
    add(r, JAIL_LINK, "dev/stdin", "/proc/self/fd/0");
    add(r, JAIL_LINK, "dev/stdout", "/proc/self/fd/1");
    add(r, JAIL_LINK, "dev/stderr", "/proc/self/fd/2");
    add(r, JAIL_DIR, "dev/pts", NULL);
    add(r, JAIL_DIR, "dev/shm", NULL);
    add(r, JAIL_BIND, "etc", "/etc");
    add(r, JAIL_BIND, "var/lib/dpkg", "/var/lib/dpkg");
    add(r, JAIL_BIND, "run/systemd/resolve", "/run/systemd/resolve"); /* where resolv.conf may point */
    add(r, JAIL_BIND_ALL, "proc", "/proc");
    add_work(r, 0, b, "tmp", "tmp");
}

/* --- the steps --- */

static int run_packages(const struct step *s, struct step_result *r, struct error *err)
{
    (void)r;
    struct debian *d = calloc(1, sizeof(*d));
    if (!d)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = debian_plan(s->b, d, err);
    (void)setenv("TMPDIR", "/tmp", 1);
    (void)setenv("DEBIAN_FRONTEND", "noninteractive", 1);
    if (rc == 0 && chdir("/tmp") < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "/tmp of the jail");
    if (rc == 0)
        rc = step_execute(d->argv, err);
    free(d);
    return rc;
}

static int run_extract(const struct step *s, struct step_result *r, struct error *err)
{
    (void)r;
    (void)umask(0);
    if (chdir("/work/tree") < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "the tree");
    return extract_archive(STDIN_FILENO, (uint64_t)s->b->disk_mib << 20, err);
}

/* A UUID from the digest, so that the same content gives the same file system identity. */
static void make_uuid(const char *digest, char to[40])
{
    (void)snprintf(to, 40, "%.8s-%.4s-4%.3s-8%.3s-%.12s", digest, digest + 8, digest + 13, digest + 17,
                   digest + 20);
}

static bool is_zero(const unsigned char *p, size_t n)
{
    return n > 0 && p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

static int punch(int fd, off_t at, off_t n, struct error *err)
{
    if (n <= 0 || fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, n) == 0 ||
        errno == EOPNOTSUPP)
        return 0;
    return error_errno(err, ERROR_INTERNAL, errno, "punch a hole");
}

/* Blocks of zeros in [at, at + n) become holes. */
static int dig_block(int fd, const unsigned char *block, off_t at, ssize_t n, struct error *err)
{
    for (ssize_t i = 0; i < n; i += FS_BLOCK) {
        ssize_t run = i;
        while (run < n && is_zero(block + run, n - run < FS_BLOCK ? (size_t)(n - run) : FS_BLOCK))
            run += FS_BLOCK;
        if (run > i && punch(fd, at + i, run - i, err) < 0)
            return ERROR_INTERNAL;
        i = run;
    }
    return 0;
}

/* What was written as zeros, or set aside without being written (journal, inode tables), becomes holes. */
static int dig_holes(int fd, struct error *err)
{
    static unsigned char block[1 << 20];
    struct stat st;
    if (fstat(fd, &st) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "size of the image");
    off_t at = 0;
    while (at < st.st_size) {
        off_t data = lseek(fd, at, SEEK_DATA);
        if (punch(fd, at, (data < 0 ? st.st_size : data) - at, err) < 0)
            return ERROR_INTERNAL;
        if (data < 0)
            break;
        ssize_t n = pread(fd, block, sizeof(block), data);
        if (n <= 0)
            return error_errno(err, ERROR_INTERNAL, errno, "read the image");
        if (dig_block(fd, block, data, n, err) < 0)
            return ERROR_INTERNAL;
        at = data + n;
    }
    return 0;
}

/* Sparse ext4 with room in its group descriptors to grow while it is mounted. Inode tables are known to be
 * zero, so that no guest writes them once more in the background. */
static int make_image(const struct builder *b, const char *digest, struct error *err)
{
    char uuid[40];
    char options[160];
    char blocks[24];
    make_uuid(digest, uuid);
    (void)snprintf(options, sizeof(options), "root_owner=0:0,lazy_itable_init=0,hash_seed=%s,resize=%llu",
                   uuid, (unsigned long long)GROW_MAX_GIB * (1ULL << 30) / FS_BLOCK);
    (void)snprintf(blocks, sizeof(blocks), "%llu", (unsigned long long)b->disk_mib * ((1 << 20) / FS_BLOCK));
    char *const argv[] = {"mke2fs", "-q", "-F",    "-t", "ext4",       "-b",
                          "4096",   "-m", "0",     "-L", "space",      "-U",
                          uuid,     "-E", options, "-d", "/work/tree", "/work/out/rootfs.raw",
                          blocks,   NULL};
    if (step_execute(argv, err) < 0) {
        struct statvfs v;
        if (statvfs("/work/out", &v) == 0 && (uint64_t)v.f_bavail * v.f_frsize < SPACE_LOW)
            return error_set(err, ERROR_NO_SPACE, "the pool is full");
        return err->code;
    }
    AUTO_CLOSE int fd = open("/work/out/rootfs.raw", O_RDWR | O_CLOEXEC);
    int rc = fd < 0 ? error_errno(err, ERROR_INTERNAL, errno, "open the image") : dig_holes(fd, err);
    if (rc == 0 && fsync(fd) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "write the image");
    return rc;
}

static int run_image(const struct step *s, struct step_result *r, struct error *err)
{
    AUTO_CLOSE int tree = open("/work/tree", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (tree < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "the tree");
    int rc = tree_finish(tree, s->b->seed_user, err);
    if (rc == 0)
        rc = digest_tree(tree, r->digest, &r->bytes, err);
    if (rc < 0)
        return rc;
    /* The rest is inode tables, journal and the ends of blocks: mke2fs decides on the close cases. */
    if (r->bytes >= (uint64_t)s->b->disk_mib << 20)
        return error_field(err, ERROR_TOO_LARGE, "disk_mib", "%llu MiB of files do not fit a disk of %u MiB",
                           (unsigned long long)(r->bytes >> 20), s->b->disk_mib);
    builder_log("content %.12s..., %llu MiB; making an image of %u MiB", r->digest,
                (unsigned long long)(r->bytes >> 20), s->b->disk_mib);
    return make_image(s->b, r->digest, err);
}

/* --- putting them together --- */

static int extract(const struct builder *b, int archive_fd, struct error *err)
{
    struct root root;
    root_tree(&root, b);
    struct step s = {.b = b,
                     .name = "extract",
                     .items = root.items,
                     .stdin_fd = archive_fd,
                     .stdout_fd = -1,
                     .run = run_extract};
    struct step_result r;
    int rc = step_start(&s, err);
    return rc < 0 ? rc : step_wait(&s, &r, err);
}

/* mmdebstrap and the extraction at the same time, joined by a pipe. When both fail, the archive that
 * ended early is the consequence: the packages' error is the one to report. */
static int install_packages(const struct builder *b, struct error *err)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "pipe");
    AUTO_CLOSE int reader = fds[0];
    AUTO_CLOSE int writer = fds[1];
    struct root root;
    root_packages(&root, b);
    struct step s = {.b = b,
                     .name = "packages",
                     .items = root.items,
                     .network = true,
                     .proc = true,
                     .all_capabilities = true,
                     .stdin_fd = -1,
                     .stdout_fd = writer,
                     .run = run_packages};
    int rc = step_start(&s, err);
    if (rc < 0)
        return rc;
    (void)close(TAKE_FD(writer));
    struct error extract_err = ERROR_INIT;
    struct step_result r;
    int extracted = extract(b, reader, &extract_err);
    (void)close(TAKE_FD(reader));
    if (extracted < 0)
        (void)proc_signal(s.child.pidfd, SIGKILL); /* nobody takes what it makes */
    rc = step_wait(&s, &r, err);
    if (extracted < 0 && (rc == 0 || extracted == ERROR_NO_SPACE || extracted == ERROR_TOO_LARGE)) {
        *err = extract_err;
        return extracted;
    }
    return rc;
}

static int image(const struct builder *b, struct step_result *r, struct error *err)
{
    struct root root;
    root_tree(&root, b);
    struct step s = {
        .b = b, .name = "image", .items = root.items, .stdin_fd = -1, .stdout_fd = -1, .run = run_image};
    int rc = step_start(&s, err);
    if (rc == 0)
        rc = step_wait(&s, r, err);
    if (rc == 0 && !protocol_digest(r->digest))
        rc = error_set(err, ERROR_INTERNAL, "the image step reported no digest");
    return rc;
}

/* The places the steps work in belong to the jails' root; `root` is where they mount theirs. */
static int make_places(const struct builder *b, struct error *err)
{
    const char *const names[] = {"tree", "out", "tmp", "root"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        AUTO_FREE char *path = str_printf("%s/%s", b->work, names[i]);
        bool ours = strcmp(names[i], "root") == 0;
        if (!path || mkdir(path, 0755) < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "make %s", names[i]);
        if (!ours && chown(path, b->uid_first, b->uid_first) < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "own %s", names[i]);
    }
    return 0;
}

static int build(const struct builder *b, struct step_result *r, struct error *err)
{
    int rc = make_places(b, err);
    if (rc == 0)
        rc = b->debian ? install_packages(b, err) : extract(b, STDIN_FILENO, err);
    return rc < 0 ? rc : image(b, r, err);
}

/* The mount namespace is this build's own: a /proc of its pid namespace, where its children have the numbers
 * it knows them by, apart from the host's. */
static int own_proc(struct error *err)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "mount /proc");
    return 0;
}

static bool parse(int argc, char **argv, struct builder *b)
{
    uint64_t uid;
    uint64_t disk;
    if (argc < 7 || !str_to_u64(argv[3], 65536, INT32_MAX, &uid) ||
        !str_to_u64(argv[4], 1, REQUEST_DISK_MIB_MAX, &disk) || !protocol_suite(argv[6]))
        return false;
    b->debian = strcmp(argv[1], "debian") == 0;
    b->work = argv[2];
    b->uid_first = (uid_t)uid;
    b->disk_mib = (uint32_t)disk;
    b->seed_user = strcmp(argv[5], "seed-user") == 0;
    b->suite = argv[6];
    b->packages = argv + 7;
    b->package_count = (unsigned)(argc - 7);
    for (int i = 7; i < argc; i++)
        if (!protocol_package(argv[i]))
            return false;
    return b->work[0] == '/' && (b->debian || strcmp(argv[1], "tar") == 0);
}

/* "serve STATE_DIR UID_FIRST": the spawner. */
static bool parse_serve(int argc, char **argv, uid_t *ret_uid_first)
{
    uint64_t uid;
    if (argc != 4 || strcmp(argv[1], "serve") != 0 || argv[2][0] != '/' ||
        !str_to_u64(argv[3], 65536, INT32_MAX, &uid))
        return false;
    *ret_uid_first = (uid_t)uid;
    return true;
}

int main(int argc, char **argv)
{
    struct builder b = {0};
    uid_t uid_first;
    (void)umask(022);
    if (parse_serve(argc, argv, &uid_first)) {
        (void)signal(SIGPIPE, SIG_IGN);
        if (fcntl(SPAWNER_CHANNEL_FD, F_SETFD, FD_CLOEXEC) < 0 ||
            fcntl(SPAWNER_HOST_NET_FD, F_SETFD, FD_CLOEXEC) < 0)
            return 2;
        return spawner_serve(argv[2], uid_first);
    }
    if (!parse(argc, argv, &b)) {
        (void)fprintf(stderr, "space-builder: started by space-privd only; see space-privd(8)\n");
        return 2;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    if (fcntl(RESULT_FD, F_SETFD, FD_CLOEXEC) < 0 || fcntl(HOST_NET_FD, F_SETFD, FD_CLOEXEC) < 0)
        return 2;
    struct error err = ERROR_INIT;
    struct step_result r = {0};
    int rc = own_proc(&err);
    if (rc == 0)
        rc = build(&b, &r, &err);
    char line[700];
    int n = rc < 0 ? snprintf(line, sizeof(line), "error %d %s\n", -rc, err.message)
                   : snprintf(line, sizeof(line), "ok %s %llu\n", r.digest, (unsigned long long)r.bytes);
    if (rc < 0)
        builder_log("build failed: %s", err.message);
    for (char *p = line; p < line + n - 1; p++)
        if (*p == '\n')
            *p = ' ';
    return fs_write_all(RESULT_FD, line, (size_t)n, NULL) < 0 ? 1 : 0;
}
