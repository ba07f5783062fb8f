/* Real template builds: archives good and hostile, digests, the image's content as e2fsprogs sees it,
 * cancelling, and that a build leaves nothing but its release. Needs root, tar and e2fsprogs. */
#include "real.h"

#include <archive.h>
#include <archive_entry.h>
#include <sys/mman.h>

static struct real real;

/* Runs a program; its output (bounded) into text. Returns its wait status. */
static int run(char *const argv[], char *text, size_t size)
{
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    struct proc_spawn s = {.argv = argv, .stdin_fd = -1, .stdout_fd = fds[1], .stderr_fd = fds[1]};
    pid_t pid;
    int pidfd;
    struct error err = ERROR_INIT;
    assert_ok(proc_spawn(&s, &pid, &pidfd, &err), &err);
    (void)close(pidfd);
    (void)close(fds[1]);
    size_t n = 0;
    for (ssize_t got; n < size - 1 && (got = read(fds[0], text + n, size - 1 - n)) > 0;)
        n += (size_t)got;
    text[n] = '\0';
    (void)close(fds[0]);
    return proc_wait(pid);
}

/* --- archives made entry by entry --- */

struct made {
    struct archive *a;
    int fd;
};

static void archive_begin(struct made *m)
{
    m->fd = memfd_create("archive", MFD_CLOEXEC);
    m->a = archive_write_new();
    assert_true(m->fd >= 0);
    assert_int_equal(archive_write_set_format_pax_restricted(m->a), ARCHIVE_OK);
    assert_int_equal(archive_write_add_filter_gzip(m->a), ARCHIVE_OK);
    assert_int_equal(archive_write_open_fd(m->a, m->fd), ARCHIVE_OK);
}

struct item {
    const char *path;
    mode_t mode; /* with type */
    uid_t uid;
    const char *data; /* content, or link target */
    const char *hardlink;
    time_t mtime;
};

static void archive_add(struct made *m, const struct item *i)
{
    struct archive_entry *e = archive_entry_new();
    archive_entry_set_pathname(e, i->path);
    archive_entry_set_mode(e, i->mode);
    archive_entry_set_uid(e, i->uid);
    archive_entry_set_gid(e, i->uid);
    archive_entry_set_mtime(e, i->mtime, 0);
    size_t n = S_ISREG(i->mode) && i->data && !i->hardlink ? strlen(i->data) : 0;
    archive_entry_set_size(e, (la_int64_t)n);
    if (S_ISLNK(i->mode))
        archive_entry_set_symlink(e, i->data);
    if (i->hardlink)
        archive_entry_set_hardlink(e, i->hardlink);
    if (S_ISCHR(i->mode)) {
        archive_entry_set_rdevmajor(e, 1);
        archive_entry_set_rdevminor(e, 1);
    }
    if (S_ISREG(i->mode) && n > 0)
        archive_entry_xattr_add_entry(e, "user.note", "kept", 4);
    assert_int_equal(archive_write_header(m->a, e), ARCHIVE_OK);
    if (n > 0)
        assert_int_equal(archive_write_data(m->a, i->data, n), n);
    archive_entry_free(e);
}

static int archive_end(struct made *m)
{
    assert_int_equal(archive_write_close(m->a), ARCHIVE_OK);
    (void)archive_write_free(m->a);
    assert_int_equal(lseek(m->fd, 0, SEEK_SET), 0);
    return m->fd;
}

static int tree_archive(time_t mtime, const char *content)
{
    const struct item items[] = {
        {"./", S_IFDIR | 0755, 0, NULL, NULL, mtime},
        {"./bin/", S_IFDIR | 0755, 0, NULL, NULL, mtime},
        {"./bin/tool", S_IFREG | 04755, 0, content, NULL, mtime},
        {"./bin/other", S_IFREG | 04755, 0, NULL, "./bin/tool", mtime},
        {"./etc/", S_IFDIR | 0755, 0, NULL, NULL, mtime},
        {"./etc/owned", S_IFREG | 0640, 33, "by www-data", NULL, mtime},
        {"./etc/absolute", S_IFLNK | 0777, 0, "/etc/shadow", NULL, mtime},
        {"./dev/", S_IFDIR | 0755, 0, NULL, NULL, mtime},
        {"./dev/mem", S_IFCHR | 0666, 0, NULL, NULL, mtime},
        {"./big-uid", S_IFREG | 0600, 3000000, "x", NULL, mtime},
    };
    struct made m;
    archive_begin(&m);
    for (size_t i = 0; i < ARRAY_LEN(items); i++)
        archive_add(&m, &items[i]);
    return archive_end(&m);
}

static char log_text[65536];

static void build(struct answer *a, int source_fd, uint32_t disk_mib, bool user)
{
    char id[ID_SIZE];
    id_new("tp", id);
    AUTO_CLOSE int log_fd = memfd_create("log", MFD_CLOEXEC);
    struct broker_build_spec spec = {.build_id = id,
                                     .kind = BROKER_BUILD_TAR,
                                     .source_fd = source_fd,
                                     .suite = "",
                                     .seed_user = user,
                                     .disk_mib = disk_mib,
                                     .log_fd = log_fd};
    CALL(&real, a, 60, broker_template_build, &spec, on_build, a);
    ssize_t n = pread(log_fd, log_text, sizeof(log_text) - 1, 0);
    log_text[n > 0 ? n : 0] = '\0';
}

static unsigned entries(const char *name)
{
    AUTO_FREE char *path = str_printf("%s/%s", real.dir, name);
    AUTO_CLOSEDIR DIR *d = opendir(path);
    assert_non_null(d);
    unsigned n = 0;
    struct dirent *e;
    while ((e = readdir(d)))
        n += e->d_name[0] != '.';
    return n;
}

static void assert_no_leftovers(void)
{
    assert_int_equal(entries("pool/building"), 0);
    assert_int_equal(entries("pool/trash"), 0);
    assert_int_equal(entries("privd/builds"), 0);
}

/* debugfs's answer about a path of a release's image. */
static void debugfs(const char *digest, const char *request, char *text, size_t size)
{
    AUTO_FREE char *image = str_printf("%s/pool/templates/%s/rootfs.raw", real.dir, digest);
    char *argv[] = {"debugfs", "-R", (char *)request, image, NULL};
    assert_int_equal(run(argv, text, size), 0);
}

static void assert_in_image(const char *digest, const char *request, const char *expect)
{
    char text[16384];
    debugfs(digest, request, text, sizeof(text));
    if (!strstr(text, expect))
        fail_msg("%s: no \"%s\" in:\n%s", request, expect, text);
}

static int setup(void **state)
{
    (void)state;
    real_start(&real);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    real_stop(&real);
    return 0;
}

static void test_archive(void **state)
{
    (void)state;
    struct answer a;
    AUTO_CLOSE int fd = tree_archive(1000000000, "#!/bin/true\n");
    int64_t began = clock_mono_ns();
    build(&a, fd, 64, true);
    assert_answer(&a);
    print_message("built in %.0f ms; log:\n%s", (double)(clock_mono_ns() - began) / 1e6, log_text);
    assert_int_equal(strlen(a.digest), 64);
    assert_true(a.bytes > 0 && a.bytes < 4096);
    AUTO_FREE char *image = str_printf("%s/pool/templates/%s/rootfs.raw", real.dir, a.digest);
    struct stat st;
    assert_int_equal(stat(image, &st), 0);
    assert_int_equal(st.st_size, 64 << 20);
    assert_true(st.st_blocks * 512 < 2 << 20); /* sparse, an empty journal too */
    assert_int_equal(st.st_mode & 07777, 0444);
    assert_int_equal(st.st_uid, 0);
    char text[16384];
    char *check[] = {"e2fsck", "-f", "-n", image, NULL};
    assert_int_equal(run(check, text, sizeof(text)), 0);
    char *dump[] = {"dumpe2fs", image, NULL};
    assert_int_equal(run(dump, text, sizeof(text)), 0);
    assert_non_null(strstr(text, "ITABLE_ZEROED"));
    assert_in_image(a.digest, "stat /bin/tool", "Mode:  04755");
    assert_in_image(a.digest, "stat /bin/tool", "Links: 2");
    assert_in_image(a.digest, "stat /bin/tool", "user.note");
    assert_in_image(a.digest, "stat /etc/owned", "User:    33");
    assert_in_image(a.digest, "stat /etc/absolute", "Fast link dest: \"/etc/shadow\"");
    assert_in_image(a.digest, "stat /big-uid", "User: 65534");
    assert_in_image(a.digest, "stat /dev/mem", "File not found");
    assert_in_image(a.digest, "stat /tmp", "Mode:  01777");
    assert_in_image(a.digest, "cat /etc/hostname", "sandbox");
    assert_in_image(a.digest, "cat /etc/passwd", "user:x:1000:1000::/home/user:");
    assert_in_image(a.digest, "stat /home/user", "User:  1000");
    assert_in_image(a.digest, "cat /etc/sudoers.d/space-user", "NOPASSWD");
    assert_in_image(a.digest, "stat /lost+found", "Type: directory");
    assert_no_leftovers();
}

static void test_digest_is_of_the_content(void **state)
{
    (void)state;
    struct answer a;
    struct answer b;
    struct answer c;
    AUTO_CLOSE int one = tree_archive(1000000000, "same");
    AUTO_CLOSE int two = tree_archive(1500000000, "same");
    AUTO_CLOSE int three = tree_archive(1000000000, "more");
    build(&a, one, 64, false);
    assert_answer(&a);
    build(&b, two, 64, false); /* other times; installs over the first: success */
    assert_answer(&b);
    assert_string_equal(a.digest, b.digest);
    build(&c, three, 64, false);
    assert_answer(&c);
    assert_string_not_equal(a.digest, c.digest);
    assert_no_leftovers();
}

static void refuse(const struct item *items, size_t count, int code, const char *words)
{
    struct made m;
    struct answer a;
    archive_begin(&m);
    for (size_t i = 0; i < count; i++)
        archive_add(&m, &items[i]);
    AUTO_CLOSE int fd = archive_end(&m);
    build(&a, fd, 16, false);
    if (a.err.code != code || !strstr(a.err.message, words))
        fail_msg("%d %s; expected %d with \"%s\"", a.err.code, a.err.message, code, words);
    assert_no_leftovers();
}

static void test_hostile_archives(void **state)
{
    (void)state;
    unsigned before = entries("pool/templates");
    const struct item up[] = {{"../escape", S_IFREG | 0644, 0, "x"}};
    refuse(up, 1, ERROR_INVALID, "leads out");
    const struct item middle[] = {{"a/../../escape", S_IFREG | 0644, 0, "x"}};
    refuse(middle, 1, ERROR_INVALID, "leads out");
    const struct item through[] = {{"out", S_IFLNK | 0777, 0, "/tmp"},
                                   {"out/escape", S_IFREG | 0644, 0, "x"}};
    refuse(through, 2, ERROR_INVALID, "symlink");
    const struct item hard[] = {{"h", S_IFREG | 0644, 0, NULL, "../../../etc/passwd"}};
    refuse(hard, 1, ERROR_INVALID, "leads out");
    AUTO_FREE char *big = malloc((17 << 20) + 1);
    memset(big, 'b', 17 << 20);
    big[17 << 20] = '\0';
    const struct item large[] = {{"big", S_IFREG | 0644, 0, big}};
    refuse(large, 1, ERROR_TOO_LARGE, "16 MiB");
    char deep[600] = "";
    for (int i = 0; i < 140; i++)
        memcpy(deep + 2 * i, "d/", 3);
    const struct item down[] = {{deep, S_IFDIR | 0755, 0, NULL}};
    refuse(down, 1, ERROR_INVALID, "deep");
    const struct item tmp[] = {{"tmp", S_IFREG | 0644, 0, "no directory"}};
    refuse(tmp, 1, ERROR_INVALID, "tmp");
    refuse(NULL, 0, ERROR_INVALID, "empty");
    struct answer a;
    AUTO_CLOSE int noise = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    build(&a, noise, 16, false);
    assert_int_equal(a.err.code, ERROR_INVALID);
    assert_int_equal(entries("pool/templates"), before);
}

/* A hostile tree's own links must not lead the finishing step anywhere either. */
static void test_links_of_the_tree_stay_inside(void **state)
{
    (void)state;
    const struct item items[] = {{"etc", S_IFLNK | 0777, 0, "/real-etc"},
                                 {"real-etc/", S_IFDIR | 0755, 0, NULL},
                                 {"real-etc/passwd", S_IFLNK | 0777, 0, "../../../../work/probe"},
                                 {"work/", S_IFDIR | 0755, 0, NULL}};
    struct made m;
    struct answer a;
    archive_begin(&m);
    for (size_t i = 0; i < ARRAY_LEN(items); i++)
        archive_add(&m, &items[i]);
    AUTO_CLOSE int fd = archive_end(&m);
    build(&a, fd, 16, true);
    assert_answer(&a);
    assert_in_image(a.digest, "cat /work/probe", "user:x:1000");
}

static void test_cancel(void **state)
{
    (void)state;
    int pipe_fds[2];
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    char id[ID_SIZE];
    id_new("tp", id);
    AUTO_CLOSE int log_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    struct broker_build_spec spec = {.build_id = id,
                                     .kind = BROKER_BUILD_TAR,
                                     .source_fd = pipe_fds[0],
                                     .suite = "",
                                     .disk_mib = 16,
                                     .log_fd = log_fd};
    struct answer a = {0};
    struct answer other;
    broker_template_build(real.broker, &spec, on_build, &a); /* waits for bytes that never come */
    CALL(&real, &other, 5, broker_info, on_info, &other);    /* others are served meanwhile */
    assert_answer(&other);
    CALL(&real, &other, 5, broker_template_build, &spec, on_build, &other);
    assert_int_equal(other.err.code, ERROR_CONFLICT);
    assert_false(a.done);
    broker_template_build_cancel(real.broker, id);
    real_wait(&real, &a.done, 10);
    assert_true(a.err.code < 0);
    assert_non_null(strstr(a.err.message, "canceled"));
    assert_no_leftovers();
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
}

/* A number of /proc/PID/FILE after this text; -1 without it. */
static long proc_number(pid_t pid, const char *file, const char *after)
{
    AUTO_FREE char *path = str_printf("/proc/%d/%s", (int)pid, file);
    AUTO_FREE char *text = NULL;
    size_t n;
    struct error err = ERROR_INIT;
    assert_ok(fs_read_file(AT_FDCWD, path, 1 << 16, &text, &n, &err), &err);
    const char *at = strstr(text, after);
    return at ? strtol(at + strlen(after), NULL, 10) : -1;
}

/* The spawner's child, not the broker's: under no filter of the broker's, and the first to go when memory
 * runs short. Returns the spawner. */
static pid_t assert_spawned(pid_t builder, pid_t broker)
{
    pid_t spawner = (pid_t)proc_number(builder, "status", "\nPPid:");
    assert_int_not_equal(spawner, broker);
    assert_int_equal(proc_number(spawner, "status", "\nPPid:"), broker);
    assert_int_equal(proc_number(builder, "status", "\nSeccomp:"),
                     proc_number(getpid(), "status", "\nSeccomp:"));
    assert_int_equal(proc_number(builder, "oom_score_adj", ""), 500);
    return spawner;
}

/* The broker dies in the middle of a build: the next one ends what is left of it. */
static void test_crash_during_a_build(void **state)
{
    (void)state;
    int pipe_fds[2];
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    char id[ID_SIZE];
    id_new("tp", id);
    AUTO_CLOSE int log_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    struct broker_build_spec spec = {.build_id = id,
                                     .kind = BROKER_BUILD_TAR,
                                     .source_fd = pipe_fds[0],
                                     .suite = "",
                                     .disk_mib = 16,
                                     .log_fd = log_fd};
    struct answer a = {0};
    struct answer other;
    broker_template_build(real.broker, &spec, on_build, &a);
    CALL(&real, &other, 5, broker_info, on_info, &other);
    AUTO_FREE char *record = str_printf("%s/privd/builds/%s", real.dir, id);
    AUTO_FREE char *text = NULL;
    size_t n;
    struct error err = ERROR_INIT;
    assert_ok(fs_read_file(AT_FDCWD, record, 100, &text, &n, &err), &err);
    pid_t builder = (pid_t)strtol(text, NULL, 10);
    assert_true(proc_start_time(builder) != 0);
    pid_t broker = real_broker_pid(&real);
    pid_t spawner = assert_spawned(builder, broker);
    assert_int_equal(kill(broker, SIGKILL), 0);
    real_wait(&real, &real.gone, 10);
    (void)proc_wait(broker);
    real_close(&real);
    real_open(&real);
    CALL(&real, &other, 30, broker_info, on_info, &other);
    assert_answer(&other);
    assert_true(real_has_ended(builder));
    for (int i = 0; i < 1000 && !real_has_ended(spawner); i++)
        (void)poll(NULL, 0, 10);
    assert_true(real_has_ended(spawner)); /* with the broker, by itself */
    assert_no_leftovers();
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
}

static void test_remove(void **state)
{
    (void)state;
    struct answer a;
    AUTO_CLOSE int fd = tree_archive(1000000000, "to be removed");
    build(&a, fd, 16, false);
    assert_answer(&a);
    unsigned before = entries("pool/templates");
    char digest[BROKER_DIGEST_SIZE];
    (void)str_copy(digest, sizeof(digest), a.digest);
    CALL(&real, &a, 10, broker_template_remove, digest, on_done, &a);
    assert_answer(&a);
    assert_int_equal(entries("pool/templates"), before - 1);
    CALL(&real, &a, 10, broker_template_remove, digest, on_done, &a); /* absent */
    assert_answer(&a);
    assert_no_leftovers();
}

static void test_requests_are_checked(void **state)
{
    (void)state;
    struct answer a;
    char id[ID_SIZE];
    id_new("tp", id);
    AUTO_CLOSE int log_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    const char *const bad[] = {"bash", "--hook=x", NULL};
    struct broker_build_spec spec = {.build_id = id,
                                     .kind = BROKER_BUILD_DEBIAN,
                                     .source_fd = -1,
                                     .suite = "",
                                     .packages = bad,
                                     .disk_mib = 16,
                                     .log_fd = log_fd};
    CALL(&real, &a, 5, broker_template_build, &spec, on_build, &a);
    assert_int_equal(a.err.code, ERROR_INVALID);
    assert_string_equal(a.err.field, "packages");
    spec.packages = NULL;
    spec.suite = "../etc";
    CALL(&real, &a, 5, broker_template_build, &spec, on_build, &a);
    assert_int_equal(a.err.code, ERROR_INVALID);
    CALL(&real, &a, 5, broker_template_remove, "../../etc", on_done, &a);
    assert_int_equal(a.err.code, ERROR_INVALID);
}

/* A pool too small for what is built: a clear error, nothing left, and the space is there again. */
static void test_full_pool(void **state)
{
    (void)state;
    enum { PIECE = 1 << 20, PIECES = 400 };
    struct real all = real;
    struct answer a;
    uint64_t free_before = 0;
    real_start_sized(&real, 600);
    CALL(&real, &a, 60, broker_info, on_info, &a);
    assert_answer(&a);
    bool image = strcmp(a.info.pool_kind, "loop-btrfs") == 0;
    if (image) {
        assert_true(a.info.pool_total_bytes <= 600ULL << 20);
        AUTO_CLOSE int log_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        int pipe_fds[2];
        assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
        free_before = a.info.pool_free_bytes;
        pid_t feeder = fork();
        if (feeder == 0) {
            /* A stored archive of data that no file system can make smaller. */
            static unsigned char piece[PIECE];
            struct archive *w = archive_write_new();
            (void)archive_write_set_format_pax_restricted(w);
            (void)archive_write_open_fd(w, pipe_fds[1]);
            for (int i = 0; i < PIECES; i++) {
                struct archive_entry *e = archive_entry_new();
                char name[16];
                (void)snprintf(name, sizeof(name), "f%d", i);
                id_random(piece, sizeof(piece));
                archive_entry_set_pathname(e, name);
                archive_entry_set_mode(e, S_IFREG | 0644);
                archive_entry_set_size(e, PIECE);
                if (archive_write_header(w, e) != ARCHIVE_OK || archive_write_data(w, piece, PIECE) != PIECE)
                    _exit(0);
                archive_entry_free(e);
            }
            (void)archive_write_close(w);
            _exit(0);
        }
        (void)close(pipe_fds[1]);
        build(&a, pipe_fds[0], 1024, false);
        (void)close(pipe_fds[0]);
        (void)proc_wait(feeder);
        print_message("%d %s\n", a.err.code, a.err.message);
        assert_int_equal(a.err.code, ERROR_NO_SPACE);
        assert_no_leftovers();
        assert_int_equal(entries("pool/templates"), 0);
        AUTO_CLOSE int small = tree_archive(1000000000, "fits");
        build(&a, small, 64, false);
        assert_answer(&a);
    } else {
        print_message("skipped: the pool is no image here (free %llu)\n", (unsigned long long)free_before);
    }
    real_stop(&real);
    real = all;
}

int main(void)
{
    if (geteuid() != 0) {
        print_message("skipped: needs root for namespaces, loop devices and uids\n");
        return REAL_SKIP;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_archive),          cmocka_unit_test(test_digest_is_of_the_content),
        cmocka_unit_test(test_hostile_archives), cmocka_unit_test(test_links_of_the_tree_stay_inside),
        cmocka_unit_test(test_cancel),           cmocka_unit_test(test_crash_during_a_build),
        cmocka_unit_test(test_remove),           cmocka_unit_test(test_requests_are_checked),
        cmocka_unit_test(test_full_pool),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
