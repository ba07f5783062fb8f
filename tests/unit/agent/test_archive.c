/* Archives in and out, as the agent makes and unpacks them. As root: owners, devices, other users. */
#include "unit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "agent/filework.h"
#include "base/cleanup.h"
#include "base/proc.h"
#include "jobs.h"
#include "proto/proto.h"
#include "tarball.h"

#define STRANGER "4242"

static char *dir;
static struct tarball t;
static struct outcome o;

/* They are linked because they are named: file_work does without them. */
int (*const needed[])(const struct file_job *) = {archive_read_work, archive_write_work};

static int setup(void **state)
{
    (void)state;
    dir = work_dir_make(0);
    tarball_init(&t);
    return 0;
}

/* In memory: for what would take the disk long. */
static int setup_fast(void **state)
{
    (void)state;
    dir = work_dir_make(262144);
    tarball_init(&t);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    job_limit_memory(0);
    work_dir_remove(dir);
    tarball_finish(&t);
    outcome_finish(&o);
    return 0;
}

static char *at(const char *name)
{
    static char path[32][4096];
    static unsigned turn;
    turn = (turn + 1) % 32;
    (void)snprintf(path[turn], sizeof(path[turn]), "%s/%s", dir, name);
    return path[turn];
}

static void put(const char *name, const char *text)
{
    int fd = open(at(name), O_WRONLY | O_CREAT | O_EXCL, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    (void)close(fd);
}

static void has(const char *name, const char *text)
{
    char got[4096] = "";
    AUTO_CLOSE int fd = open(at(name), O_RDONLY | O_NOFOLLOW);
    if (fd < 0)
        fail_msg("%s is not there", name);
    ssize_t n = read(fd, got, sizeof(got) - 1);
    assert_true(n >= 0);
    assert_string_equal(got, text);
}

static struct stat look(const char *name)
{
    struct stat st;
    if (lstat(at(name), &st) < 0)
        fail_msg("%s is not there", name);
    return st;
}

static bool there(const char *name)
{
    struct stat st;
    return lstat(at(name), &st) == 0;
}

static void unpack_job(struct file_job *job)
{
    job_run(job, buf_head(&t.b), buf_len(&t.b), true, &o);
    assert_int_equal(o.ends, 1);
}

/* Ends t and unpacks it. */
static void unpack(const char *to, const char *user)
{
    struct file_job job = job_new(PROTO_OP_ARCHIVE_WRITE, at(to));
    tarball_end(&t);
    job.user = user;
    unpack_job(&job);
}

static void unpacks(const char *to)
{
    unpack(to, "root");
    if (o.code)
        fail_msg("%d: %s", o.code, o.message);
    buf_consume(&t.b, buf_len(&t.b));
}

/* t is refused with this code and a text that names all of these. */
static void refuses(const char *to, int code, const char *name, const char *why)
{
    unpack(to, "root");
    if (o.code != code || !strstr(o.message, name) || !strstr(o.message, why))
        fail_msg("%d: %s", o.code, o.message);
    buf_consume(&t.b, buf_len(&t.b));
}

static void pack(const char *from)
{
    struct file_job job = job_new(PROTO_OP_ARCHIVE_READ, at(from));
    job_run(&job, NULL, 0, false, &o);
    if (o.code)
        fail_msg("%d: %s", o.code, o.message);
    assert_int_equal(o.opened, 1);
    assert_int_equal(o.ends, 1);
    buf_consume(&t.b, buf_len(&t.b));
    tarball_raw(&t, o.data, o.n);
}

static void run(char *const *argv, int in, int out)
{
    struct proc_spawn spawn = {.argv = argv, .stdin_fd = in, .stdout_fd = out, .stderr_fd = -1};
    struct error err = ERROR_INIT;
    pid_t pid;
    int pidfd;
    assert_ok(proc_spawn(&spawn, &pid, &pidfd, &err), &err);
    (void)close(pidfd);
    assert_int_equal(proc_wait(pid), 0);
}

static void sh(const char *command)
{
    char *const argv[] = {"/bin/sh", "-ec", (char *)command, NULL};
    assert_int_equal(setenv("D", dir, 1), 0);
    run(argv, -1, -1);
}

/* --- comparing trees --- */

static void same_content(const char *a, const char *b)
{
    static char x[65536], y[65536];
    AUTO_CLOSE int f = open(a, O_RDONLY), g = -1;
    g = open(b, O_RDONLY);
    ssize_t n;
    while ((n = read(f, x, sizeof(x))) > 0) {
        assert_int_equal(read(g, y, sizeof(y)), n);
        assert_memory_equal(x, y, n);
    }
    assert_int_equal(n, 0);
    (void)close(g);
}

static void same_xattrs(const char *a, const char *b)
{
    char x[4096], y[4096], v[4096], w[4096];
    ssize_t n = llistxattr(a, x, sizeof(x)), k = llistxattr(b, y, sizeof(y));
    assert_int_equal(n, k);
    for (const char *key = x; key < x + n; key += strlen(key) + 1) {
        ssize_t size = lgetxattr(a, key, v, sizeof(v));
        assert_int_equal(lgetxattr(b, key, w, sizeof(w)), size);
        assert_memory_equal(v, w, size);
    }
}

static void same_file(const char *a, const char *b, bool attributes)
{
    struct stat x, y;
    char to[2][4096];
    assert_int_equal(lstat(a, &x), 0);
    if (lstat(b, &y) < 0)
        fail_msg("%s is not there", b);
    assert_int_equal(x.st_mode, y.st_mode);
    assert_int_equal(x.st_uid, y.st_uid);
    assert_int_equal(x.st_gid, y.st_gid);
    assert_int_equal(x.st_rdev, y.st_rdev);
    if (x.st_mtim.tv_sec != y.st_mtim.tv_sec || x.st_mtim.tv_nsec != y.st_mtim.tv_nsec)
        fail_msg("%s has another time", b);
    if (!S_ISDIR(x.st_mode)) {
        assert_int_equal(x.st_nlink, y.st_nlink);
        assert_int_equal(x.st_size, y.st_size);
    }
    if (S_ISLNK(x.st_mode)) {
        ssize_t n = readlink(a, to[0], 4096);
        assert_int_equal(readlink(b, to[1], 4096), n);
        assert_memory_equal(to[0], to[1], n);
    }
    if (S_ISREG(x.st_mode))
        same_content(a, b);
    if (attributes)
        same_xattrs(a, b);
}

static unsigned same_tree(const char *a, const char *b, bool attributes)
{
    AUTO_CLOSEDIR DIR *d = opendir(a);
    struct dirent *e;
    unsigned count = 1;
    assert_non_null(d);
    same_file(a, b, attributes);
    while ((e = readdir(d))) {
        char *x = NULL, *y = NULL;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        assert_true(asprintf(&x, "%s/%s", a, e->d_name) > 0 && asprintf(&y, "%s/%s", b, e->d_name) > 0);
        if (e->d_type == DT_DIR)
            count += same_tree(x, y, attributes);
        else
            same_file(x, y, attributes);
        count++;
        free(x);
        free(y);
    }
    return count;
}

/* A bit of everything. user.* attributes where the file system has them. */
static bool make_tree(void)
{
    char name[260];
    sh("mkdir -p \"$D/a/sub/deep/er\" \"$D/a/closed\" \"$D/a/open\"; cd \"$D/a\"; echo one > sub/one; : > "
       "empty;"
       "head -c 300000 /dev/urandom > large; head -c 65536 /dev/urandom > even; ln large sub/hard; ln large "
       "sub/deep/hard;"
       "ln -s ../../../etc/passwd sub/soft; ln -s nowhere 'sub/dang ling'; ln sub/soft sub/softer; mkfifo "
       "fifo; mknod null c 1 3;"
       "truncate -s 5M holes; printf x | dd of=holes bs=1 seek=2000000 conv=notrunc status=none; truncate -s "
       "3M nothing;"
       "printf end | dd of=tail bs=1 seek=1000000 status=none;"
       "chmod 640 sub/one; chmod 4755 empty; chmod 2750 open; chmod 1777 sub/deep; chown -h 1234:4321 even "
       "sub/soft sub/deep fifo;"
       "touch -h -d '1969-12-31 23:59:58.5 UTC' sub/soft; touch -d '2030-01-02 03:04:05.123456789 UTC' empty "
       "sub/deep/er;"
       "echo in > closed/in; chmod 555 closed; touch -d '2001-01-01' closed open sub/deep sub .");
    memset(name, 'x', 255);
    name[255] = '\0';
    memcpy(name, "a/open/\xff\n\x01 =", 12);
    name[12] = 'y';
    put(name, "odd");
    memcpy(name, "a/sub/\xc3\xa4\xc3\xb6", 10);
    put(name, "long");
    bool xattrs = setxattr(at("a/even"), "user.with=sign%", "v\0w", 3, 0) == 0 &&
                  setxattr(at("a/closed"), "user.dir", "d", 1, 0) == 0;
    sh("cd \"$D/a\"; touch -d '2001-01-01 00:00:00.000000001' open sub");
    return xattrs;
}

static void what_is_packed_is_unpacked(void **state)
{
    struct file_job job = job_new(PROTO_OP_ARCHIVE_WRITE, NULL);
    (void)state;
    if (!make_tree())
        print_message("no extended attributes here\n");
    pack("a");
    assert_int_equal(o.opened_stat.type, 2);
    char *to = strdup(at("made/b/"));
    job.path = to;
    unpack_job(&job);
    assert_int_equal(o.code, ERROR_NO_SUCH_FILE);
    job.flags = PROTO_FILE_PARENTS;
    unpack_job(&job);
    free(to);
    if (o.code)
        fail_msg("%d: %s", o.code, o.message);
    assert_true(o.has_stat);
    assert_int_equal(o.stat.type, 2);
    assert_true(same_tree(at("a"), at("made/b"), true) > 20);
    assert_int_equal(look("made/b/large").st_ino, look("made/b/sub/deep/hard").st_ino);
    assert_int_equal(look("made/b/sub/soft").st_ino, look("made/b/sub/softer").st_ino);
    assert_true(look("made/b/holes").st_blocks * 512 < 1000000);
    assert_int_equal(look("made/b/nothing").st_blocks, 0);
}

static void one_file(void **state)
{
    (void)state;
    put("file", "text");
    pack("file");
    assert_int_equal(o.opened_stat.type, 1);
    assert_int_equal(mkdir(at("to"), 0755), 0);
    unpacks("to");
    has("to/file", "text");
    assert_int_equal(symlink("file", at("link")), 0);
    pack("link");
    buf_consume(&t.b, buf_len(&t.b));
    struct file_job job = job_new(PROTO_OP_ARCHIVE_READ, at("missing"));
    job_run(&job, NULL, 0, false, &o);
    assert_int_equal(o.code, ERROR_NO_SUCH_FILE);
    assert_int_equal(o.opened, 0);
    job.path = "/dev/null";
    job_run(&job, NULL, 0, false, &o);
    assert_int_equal(o.code, ERROR_INVALID);
}

/* --- other programs --- */

static void gnu_tar_reads_it(void **state)
{
    (void)state;
    (void)make_tree();
    pack("a");
    AUTO_CLOSE int fd = open(at("a.tar"), O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_int_equal(write(fd, o.data, o.n), o.n);
    sh("mkdir \"$D/b\"; tar --xattrs --xattrs-include='*' -xpf \"$D/a.tar\" -C \"$D/b\"");
    assert_true(same_tree(at("a"), at("b"), true) > 20);
}

static void python_reads_it(void **state)
{
    (void)state;
    (void)make_tree();
    pack("a");
    AUTO_CLOSE int fd = open(at("a.tar"), O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_int_equal(write(fd, o.data, o.n), o.n);
    sh("python3 -c 'import sys,tarfile\n"
       "t=tarfile.open(sys.argv[1]); n={m.name:m for m in t}\n"
       "assert n[\"holes\"].size==5<<20, n[\"holes\"].size\n"
       "d=t.extractfile(\"holes\").read(); assert d.count(0)==len(d)-1 and d[2000000]==120\n"
       "assert n[\"sub/hard\"].islnk() or n[\"large\"].islnk()\n"
       "assert n[\"empty\"].mtime==1893553445.1234567 or abs(n[\"empty\"].mtime-1893553445.123)<0.01\n"
       "assert n[\"even\"].uid==1234 and n[\"even\"].gid==4321 and n[\"sub/one\"].uname==\"root\"\n"
       "' \"$D/a.tar\"");
}

static void from_gnu_tar(const char *format)
{
    char command[512];
    (void)snprintf(command, sizeof(command), "tar -C \"$D/a\" %s -cf \"$D/%s.tar\" .", format, "x");
    sh(command);
    AUTO_CLOSE int fd = open(at("x.tar"), O_RDONLY);
    struct stat st = look("x.tar");
    void *p = malloc((size_t)st.st_size);
    assert_int_equal(read(fd, p, (size_t)st.st_size), st.st_size);
    buf_consume(&t.b, buf_len(&t.b));
    tarball_raw(&t, p, (size_t)st.st_size);
    free(p);
    struct file_job job = job_new(PROTO_OP_ARCHIVE_WRITE, at("b"));
    job.flags = PROTO_FILE_PARENTS;
    unpack_job(&job);
    if (o.code)
        fail_msg("%s: %d: %s", format, o.code, o.message);
}

static void gnu_tar_writes_it(void **state)
{
    (void)state;
    static const char *const pax[] = {"--sparse --format=pax --xattrs --xattrs-include='*'",
                                      "--sparse --format=pax --sparse-version=0.0",
                                      "--sparse --format=pax --sparse-version=0.1"};
    bool xattrs = make_tree();
    for (size_t i = 0; i < ARRAY_LEN(pax); i++) {
        from_gnu_tar(pax[i]);
        assert_true(same_tree(at("a"), at("b"), xattrs && i == 0) > 20);
        sh("rm -rf \"$D/b\"");
    }
    sh("find \"$D/a\" -exec touch -h -d '2001-01-01' {} +"); /* these know no parts of a second */
    from_gnu_tar("--sparse --format=gnu");
    assert_true(same_tree(at("a"), at("b"), false) > 20);
    sh("rm -rf \"$D/b\"; rm -rf \"$D\"/a/open/* \"$D\"/a/sub/*x \"$D/a/holes\"; find \"$D/a\" -exec touch -h "
       "-d '2001-01-01' {} +");
    from_gnu_tar("--format=ustar");
    assert_true(same_tree(at("a"), at("b"), false) > 15);
}

static void names_are_owners(void **state)
{
    struct file_job job = job_new(PROTO_OP_ARCHIVE_WRITE, at("."));
    unsigned char h[512];
    (void)state;
    memset(h, 0, sizeof(h));
    tarball_header(h, '0', "named", "", 0);
    memcpy(h + 108, "0000777", 8);
    memcpy(h + 116, "0000777", 8);
    memcpy(h + 265, "daemon", 7);
    memcpy(h + 297, "adm", 4);
    tarball_checksum(h);
    tarball_raw(&t, h, 512);
    memcpy(h, "others", 7);
    memcpy(h + 265, "nobody-of-that-name", 20);
    memcpy(h + 297, "12", 3);
    tarball_checksum(h);
    tarball_raw(&t, h, 512);
    unpacks(".");
    assert_int_equal(look("named").st_uid, 1);
    assert_int_equal(look("named").st_gid, 4);
    assert_int_equal(look("others").st_uid, 0777);
    assert_int_equal(look("others").st_gid, 0777);
    /* With an owner given, everything is that one's, and lends nobody its rights. */
    memcpy(h + 100, "0006755", 8);
    tarball_checksum(h);
    tarball_raw(&t, h, 512);
    tarball_put(&t, '0', "deep/er/file", NULL, "x");
    tarball_put(&t, '2', "deep/link", "x", NULL);
    tarball_put(&t, '5', "deep/dir", NULL, NULL);
    tarball_end(&t);
    job.owner = "12:13";
    unpack_job(&job);
    assert_int_equal(o.code, 0);
    static const char *const all[] = {"others", "deep", "deep/er", "deep/er/file", "deep/link", "deep/dir"};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        assert_int_equal(look(all[i]).st_uid, 12);
        assert_int_equal(look(all[i]).st_gid, 13);
    }
    assert_int_equal(look("others").st_mode & 07777, 0755);
}

static void as_another_user(void **state)
{
    unsigned char h[512];
    struct stat st;
    (void)state;
    assert_int_equal(mkdir(at("home"), 0755), 0);
    tarball_header(h, '0', "run", "", 0);
    memcpy(h + 100, "0006755", 8); /* set-user-ID root */
    tarball_checksum(h);
    tarball_raw(&t, h, 512);
    unpack("home", STRANGER);
    assert_int_equal(o.code, ERROR_PERMISSION);
    assert_non_null(strstr(o.message, "'run'"));
    assert_int_equal(chown(at("home"), 4242, 4242), 0);
    unpack("home", STRANGER);
    if (o.code)
        fail_msg("%s", o.message);
    st = look("home/run");
    assert_int_equal(st.st_uid, 4242);
    assert_int_equal(st.st_gid, 4242);
    assert_int_equal(st.st_mode & 07777, 0755);
    buf_consume(&t.b, buf_len(&t.b));
    tarball_header(h, '3', "device", "", 0);
    memcpy(h + 329, "0000001", 8); /* 0:0 is no device, and everybody's to make */
    tarball_checksum(h);
    tarball_raw(&t, h, 512);
    unpack("home", STRANGER);
    assert_int_equal(o.code, ERROR_PERMISSION);
    assert_false(there("home/device"));
    /* What it may not read is not left out in silence. */
    put("home/secret", "s");
    assert_int_equal(chmod(at("home/secret"), 0600), 0);
    struct file_job job = job_new(PROTO_OP_ARCHIVE_READ, at("home"));
    job.user = STRANGER;
    job_run(&job, NULL, 0, false, &o);
    assert_int_equal(o.code, ERROR_PERMISSION);
    assert_non_null(strstr(o.message, "'secret'"));
}

static void closed_directories_are_filled(void **state)
{
    unsigned char h[512];
    (void)state;
    assert_int_equal(mkdir(at("home"), 0755) | chown(at("home"), 4242, 4242), 0);
    tarball_header(h, '5', "closed/", "", 0);
    memcpy(h + 100, "0000500", 8);
    tarball_checksum(h);
    tarball_raw(&t, h, 512);
    tarball_put(&t, '0', "other/file", NULL, "x");
    tarball_put(&t, '0', "closed/file", NULL, "x");
    unpack("home", STRANGER);
    if (o.code)
        fail_msg("%s", o.message);
    assert_int_equal(look("home/closed").st_mode & 07777, 0500);
    assert_int_equal(look("home/closed").st_mtim.tv_sec, 1);
    has("home/closed/file", "x");
}

static void the_top_keeps_its_looks(void **state)
{
    unsigned char h[512];
    (void)state;
    assert_int_equal(mkdir(at("tmp"), 0755) | chmod(at("tmp"), 01777), 0);
    tarball_header(h, '5', "./", "", 0);
    memcpy(h + 108, "0000777", 8);
    tarball_checksum(h);
    tarball_raw(&t, h, 512);
    tarball_put(&t, '0', "./f", NULL, "x");
    unpacks("tmp");
    assert_int_equal(look("tmp").st_mode & 07777, 01777);
    assert_int_equal(look("tmp").st_uid, 0);
}

/* --- what would lead out --- */

static void canary(void)
{
    sh("mkdir -p \"$D/in\" \"$D/out\"; echo safe > \"$D/out/file\"");
}

static void canary_lives(void)
{
    has("out/file", "safe\n");
    assert_int_equal(look("out/file").st_nlink, 1);
    assert_int_equal(look("out/file").st_mode & 07777, 0644);
    sh("test \"$(ls -A \"$D/out\")\" = file; test \"$(cd \"$D\"; echo *)\" = 'in out'; rm -rf \"$D\"/in/*");
}

static void names_that_lead_out(void **state)
{
    static const char *const names[] = {"../file", "a/../../out/file", "..", "./..", "a/..",
                                        "/..",     "//../out/file"};
    (void)state;
    canary();
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        tarball_put(&t, '0', "before", NULL, "stays");
        tarball_put(&t, '0', names[i], NULL, "evil");
        refuses("in", ERROR_INVALID, names[i], "out of the directory");
        has("in/before", "stays");
        tarball_pax(&t, 'x', "path", names[i]);
        tarball_put(&t, '5', "x", NULL, NULL);
        refuses("in", ERROR_INVALID, names[i], "out of the directory");
        tarball_put(&t, '1', "hard", names[i], NULL);
        refuses("in", ERROR_INVALID, "hard", "out of the directory");
        canary_lives();
    }
    char *absolute = strdup(at("out/file"));
    tarball_put(&t, '0', absolute, NULL, "below");
    unpacks("in");
    char below[4200];
    (void)snprintf(below, sizeof(below), "in%s", absolute);
    has(below, "below");
    tarball_put(&t, '1', "hard", absolute + 1, NULL);
    unpacks("in");
    assert_int_equal(look("in/hard").st_ino, look(below).st_ino);
    free(absolute);
    canary_lives();
}

static void links_that_lead_out(void **state)
{
    (void)state;
    canary();
    /* The archive's own. */
    tarball_put(&t, '2', "link", "../out", NULL);
    tarball_put(&t, '0', "link/file", NULL, "evil");
    refuses("in", ERROR_INVALID, "link/file", "symbolic link");
    tarball_put(&t, '2', "link", "../out/file", NULL);
    tarball_put(&t, '0', "link", NULL, "mine"); /* replaces the link */
    unpacks("in");
    has("in/link", "mine");
    canary_lives();
    tarball_put(&t, '2', "a", "..", NULL);
    tarball_put(&t, '5', "a/out", NULL, NULL);
    refuses("in", ERROR_INVALID, "a/out", "symbolic link");
    tarball_put(&t, '2', "a", "../out", NULL);
    tarball_put(&t, '5', "a/", NULL, NULL);
    refuses("in", ERROR_NOT_DIRECTORY, "a/", "symbolic link");
    tarball_put(&t, '2', "a", "../out", NULL);
    tarball_put(&t, '1', "hard", "a/file", NULL);
    refuses("in", ERROR_INVALID, "hard", "symbolic link");
    /* A hard link to a link is that link, and is not followed either. */
    tarball_put(&t, '2', "a", "../out/file", NULL);
    tarball_put(&t, '1', "b", "a", NULL);
    tarball_put(&t, '0', "b", NULL, "mine");
    unpacks("in");
    has("in/b", "mine");
    canary_lives();
    /* Somebody else's. */
    assert_int_equal(symlink("../out", at("in/theirs")), 0);
    tarball_put(&t, '0', "theirs/deep/file", NULL, "evil");
    refuses("in", ERROR_INVALID, "theirs/deep/file", "symbolic link");
    tarball_put(&t, '6', "theirs/fifo", NULL, NULL);
    refuses("in", ERROR_INVALID, "theirs/fifo", "symbolic link");
    canary_lives();
}

/* While it is unpacked, somebody with rights in the directory keeps changing it to a link and back. */
static void links_put_there_meanwhile(void **state)
{
    struct file_job job = job_new(PROTO_OP_ARCHIVE_WRITE, at("in"));
    (void)state;
    canary();
    for (unsigned i = 0; i < 400; i++) {
        tarball_put(&t, '0', "a/new", NULL, "evil");
        tarball_put(&t, '0', "b/new", NULL, "evil");
    }
    tarball_end(&t);
    pid_t pid = fork();
    if (pid == 0) {
        char *a = strdup(at("in/a")), *away = strdup(at("in/away"));
        for (;;) {
            (void)rename(a, away);
            (void)!symlink("../out", a);
            (void)unlink(a);
            (void)rename(away, a);
        }
    }
    for (unsigned i = 0; i < 60; i++)
        unpack_job(&job);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    canary_lives();
}

/* --- what is there already --- */

static void what_is_there_is_replaced(void **state)
{
    (void)state;
    canary();
    put("in/file", "old");
    assert_int_equal(link(at("in/file"), at("in/other")), 0);
    AUTO_CLOSE int reader = open(at("in/file"), O_RDONLY);
    tarball_put(&t, '0', "file", NULL, "new");
    unpacks("in");
    has("in/file", "new");
    has("in/other", "old");
    char old[4] = "";
    assert_int_equal(read(reader, old, 3), 3);
    assert_string_equal(old, "old");
    assert_int_equal(symlink("../out/file", at("in/link")), 0);
    tarball_put(&t, '0', "link", NULL, "new");
    unpacks("in");
    has("in/link", "new");
    tarball_put(&t, '1', "file", "other", NULL);
    tarball_put(&t, '1', "file", "file", NULL);
    tarball_put(&t, '1', "other", "file", NULL);
    unpacks("in");
    has("in/file", "old");
    assert_int_equal(look("in/file").st_nlink, 2);
    assert_int_equal(mkdir(at("in/dir"), 0755), 0);
    tarball_put(&t, '0', "dir", NULL, "new");
    refuses("in", ERROR_IS_DIRECTORY, "'dir'", "directory");
    tarball_put(&t, '5', "file", NULL, NULL);
    refuses("in", ERROR_NOT_DIRECTORY, "'file'", "in its place");
    tarball_put(&t, '0', "file/below", NULL, "x");
    refuses("in", ERROR_NOT_DIRECTORY, "'file/below'", "");
    tarball_put(&t, '1', "hard", "missing", NULL);
    refuses("in", ERROR_NO_SUCH_FILE, "'hard'", "");
    sh("test -z \"$(find \"$D\" -name '.space-*')\"");
    canary_lives();
}

static void names_that_cannot_be(void **state)
{
    char name[300];
    (void)state;
    memset(name, 'x', sizeof(name));
    name[256] = '\0';
    tarball_pax(&t, 'x', "path", name);
    tarball_put(&t, '0', "x", NULL, "x");
    refuses(".", ERROR_INVALID, "xxx", "too long");
    name[255] = '\0';
    tarball_pax(&t, 'x', "path", name);
    tarball_put(&t, '0', "x", NULL, "whole");
    unpacks(".");
    has(name, "whole");
    tarball_put(&t, '2', "link", "", NULL);
    refuses(".", ERROR_INVALID, "'link'", "nothing");
    tarball_put(&t, '0', "./", NULL, NULL);
    unpacks("."); /* a directory in old archives */
    tarball_put(&t, '2', ".", "x", NULL);
    refuses(".", ERROR_INVALID, "'.'", "");
}

static void long_paths(void **state)
{
    char path[6000] = "";
    (void)state;
    for (unsigned i = 0; i < 500; i++)
        memcpy(path + 10 * i, "directory/", 11);
    memcpy(path + 5000, "file", 5);
    tarball_pax(&t, 'x', "path", path);
    tarball_put(&t, '0', "x", NULL, "deep");
    path[5000] = '\0';
    tarball_pax(&t, 'x', "path", path);
    tarball_put(&t, '5', "x", NULL, NULL);
    unpacks(".");
    sh("cd \"$D\"; i=0; while [ $i -lt 500 ]; do cd -P directory; i=$((i + 1)); done; test \"$(cat file)\" = "
       "deep");
}

/* --- failures --- */

static void no_half_file_on_a_full_disk(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    char *small = work_dir_make(1024), *text = malloc(300001);
    char *keep = dir;
    memset(text, 'x', 300000);
    text[300000] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        tarball_put(&t, '0', names[i], NULL, text);
    dir = small;
    refuses(".", ERROR_NO_SPACE, "'d'", "");
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        assert_int_equal(there(names[i]), i < 3);
        if (there(names[i]))
            assert_int_equal(look(names[i]).st_size, 300000);
    }
    sh("test -z \"$(find \"$D\" -name '.space-*')\"");
    dir = keep;
    work_dir_remove(small);
    free(text);
}

static void cut_archives(void **state)
{
    (void)state;
    assert_int_equal(mkdir(at("in"), 0755), 0);
    tarball_put(&t, '0', "first", NULL, "1");
    tarball_pax(&t, 'x', "mtime", "5.5");
    tarball_put(&t, '0', "second", NULL, "22");
    tarball_put(&t, '5', "third", NULL, NULL);
    tarball_end(&t);
    size_t whole = buf_len(&t.b);
    for (size_t n = 0; n < whole; n += 100) {
        struct file_job job = job_new(PROTO_OP_ARCHIVE_WRITE, at("in"));
        bool good = n >= whole - 512; /* one zero block is an end */
        job_run(&job, buf_head(&t.b), n, true, &o);
        assert_int_equal(o.ends, 1);
        assert_int_equal(o.code, good ? 0 : ERROR_INVALID);
        if (n > 1024 + 512 && !good)
            assert_non_null(strstr(o.message, n < 2560 ? "first" : n < 3584 ? "second" : "third"));
        assert_int_equal(there("in/first"), n >= 513);
        if (n >= 1024)
            has("in/first", "1");
        if (there("in/second"))
            has("in/second", "22");
        sh("test -z \"$(find \"$D\" -name '.space-*')\"; rm -rf \"$D\"/in/*");
    }
}

static void given_up(void **state)
{
    struct file_job job = job_new(PROTO_OP_ARCHIVE_WRITE, at("."));
    (void)state;
    tarball_put(&t, '0', "first", NULL, "1");
    tarball_put(&t, '0', "second", NULL, "2");
    tarball_end(&t);
    job_run(&job, buf_head(&t.b), buf_len(&t.b), false, &o); /* all came, but the host does not say so */
    assert_int_equal(o.ends, 0);
    job_run(&job, buf_head(&t.b), 512 + 512 + 513, false, &o);
    has("first", "1");
    sh("test -z \"$(find \"$D\" -name '.space-*')\"");
    tarball_raw(&t, "what comes behind the end is not looked at", 42);
    job_run(&job, buf_head(&t.b), buf_len(&t.b), true, &o);
    assert_int_equal(o.code, 0);
}

/* --- much of it --- */

static void nine_gigabytes(void **state)
{
    (void)state;
    sh("mkdir \"$D/a\"; cd \"$D/a\"; truncate -s 9G big; printf begin | dd of=big conv=notrunc status=none;"
       "printf end | dd of=big bs=1 seek=9663676400 conv=notrunc status=none");
    pack("a");
    assert_true(o.n < 100000);
    assert_int_equal(mkdir(at("b"), 0755), 0);
    unpacks("b");
    assert_int_equal(look("b/big").st_size, 9663676416LL);
    sh("cd \"$D/b\"; test \"$(head -c 5 big)\" = begin; test \"$(tail -c 16 big | tr -d '\\0')\" = end");
}

static void much_in_little_memory(void **state)
{
    (void)state;
    sh("mkdir \"$D/a\"; cd \"$D/a\"; i=0; while [ $i -lt 40 ]; do mkdir d$i; i=$((i + 1)); done;"
       "seq 5000 | split -l 1 -a 4 - d1/; head -c 40000000 /dev/zero > d2/zero; seq 5000 | split -l 1 -a 4 - "
       "d3/");
#ifndef __SANITIZE_ADDRESS__
    job_limit_memory(64U << 20);
#endif
    pack("a");
    assert_int_equal(mkdir(at("b"), 0755), 0);
    unpack("b", "root");
    job_limit_memory(0);
    assert_int_equal(o.code, 0);
    sh("diff -r \"$D/a\" \"$D/b\"");
}

static void what_the_kernel_makes_up_is_left_out(void **state)
{
    struct file_job job = job_new(PROTO_OP_ARCHIVE_READ, at("a"));
    (void)state;
    sh("mkdir -p \"$D/a/proc\"; mount -t proc proc \"$D/a/proc\"");
    job_run(&job, NULL, 0, false, &o);
    sh("umount \"$D/a/proc\"");
    assert_int_equal(o.code, 0);
    assert_int_equal(o.n, 4 * 512 + 2 * 1024); /* two directories with their times, and the end */
}

int main(void)
{
    if (geteuid() != 0) {
        (void)fputs("skipped: not root\n", stderr);
        return 77;
    }
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define FAST(name) cmocka_unit_test_setup_teardown(name, setup_fast, teardown)
        TEST(what_is_packed_is_unpacked),
        TEST(one_file),
        TEST(gnu_tar_reads_it),
        TEST(python_reads_it),
        TEST(gnu_tar_writes_it),
        TEST(names_are_owners),
        TEST(as_another_user),
        TEST(closed_directories_are_filled),
        TEST(the_top_keeps_its_looks),
        TEST(names_that_lead_out),
        TEST(links_that_lead_out),
        FAST(links_put_there_meanwhile),
        TEST(what_is_there_is_replaced),
        TEST(names_that_cannot_be),
        FAST(long_paths),
        TEST(no_half_file_on_a_full_disk),
        FAST(cut_archives),
        TEST(given_up),
        TEST(nine_gigabytes),
        FAST(much_in_little_memory),
        TEST(what_the_kernel_makes_up_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
