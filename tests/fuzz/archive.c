/* Any bytes are unpacked below a directory in memory. Nothing beside that directory may change, nothing half
 * made may stay, and it ends with exactly one report; then what is there is packed again, and must be an
 * archive. The first byte chooses whether the directory holds something beforehand. */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/filetree.h"
#include "agent/filework.h"
#include "agent/tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

#define BLOCK 512
#define CHECKSUM 148
#define MAGIC 257

#define CANARY "nobody touches this"

static char top[64];
static int top_fd, etc_fd, work_fd, control[2];
static struct stat canary;

static void check(bool good, const char *what)
{
    if (good)
        return;
    (void)fprintf(stderr, "violated: %s\n", what);
    abort();
}

static void clean_up(void)
{
    (void)umount2(top, MNT_DETACH);
    (void)rmdir(top);
}

static void set_up(void)
{
    /* Files may be as large as they say only as far as memory goes. */
    const struct rlimit file_size = {64U << 20, 64U << 20};
    (void)snprintf(top, sizeof(top), "%s/space-fuzz-XXXXXX",
                   access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    check(mkdtemp(top) != NULL, "a directory");
    if (geteuid() == 0 && unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
        (void)mount("tmpfs", top, "tmpfs", 0, "size=256m,mode=755");
    (void)atexit(clean_up);
    top_fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    work_fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    etc_fd = open("/etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = openat(top_fd, "canary", O_WRONLY | O_CREAT | O_EXCL, 0640);
    check(write(fd, CANARY, sizeof(CANARY)) == sizeof(CANARY), "a file");
    check(fstat(fd, &canary) == 0 && close(fd) == 0, "a file");
    check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, control) == 0, "a socket");
    (void)setrlimit(RLIMIT_FSIZE, &file_size);
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)umask(0);
}

static int file_with(const void *data, size_t size)
{
    int fd = memfd_create("archive", MFD_CLOEXEC);
    check(fd >= 0 && write(fd, data, size) == (ssize_t)size && lseek(fd, 0, SEEK_SET) == 0,
          "a file in memory");
    return fd;
}

/* What somebody else may have put there. */
static void furnish(void)
{
    check(symlinkat("..", top_fd, "in/up") == 0 && symlinkat("../canary", top_fd, "in/l") == 0, "links");
    check(linkat(top_fd, "canary", top_fd, "in/h", 0) == 0 && mkdirat(top_fd, "in/d", 0700) == 0, "a link");
}

static void nothing_changed(bool furnished)
{
    struct stat st;
    char text[sizeof(CANARY)];
    unsigned names = 0;
    int fd = openat(top_fd, "canary", O_RDONLY);
    check(fd >= 0 && read(fd, text, sizeof(text)) == sizeof(text) && memcmp(text, CANARY, sizeof(text)) == 0,
          "content");
    check(fstat(fd, &st) == 0 && st.st_ino == canary.st_ino && st.st_mode == canary.st_mode &&
              st.st_uid == canary.st_uid && st.st_gid == canary.st_gid && st.st_size == canary.st_size &&
              st.st_mtim.tv_sec == canary.st_mtim.tv_sec && st.st_mtim.tv_nsec == canary.st_mtim.tv_nsec,
          "attributes");
    check(furnished || st.st_nlink == 1, "a link to what is outside");
    (void)close(fd);
    int copy = openat(top_fd, ".", O_RDONLY | O_DIRECTORY);
    DIR *d = fdopendir(copy);
    check(d != NULL, "the directory");
    while (readdir(d))
        names++;
    (void)closedir(d);
    check(names == 4, "a name outside");
}

static int no_temporary(void *arg, int dir, const char *name)
{
    struct stat st;
    (void)arg;
    check(strncmp(name, ".space-", 7) != 0 || strlen(name) < 30, "a temporary file");
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static int missed(void *arg, int dir, const char *name, bool again)
{
    (void)arg;
    (void)dir;
    (void)name;
    (void)again;
    return 0;
}

static int leave(void *arg, int dir, const char *name, int fd)
{
    (void)arg;
    (void)dir;
    (void)name;
    (void)fd;
    return 0;
}

/* The code of the one end that was reported. */
static int end(void)
{
    struct file_report r;
    int code = 1;
    while (recv(control[0], &r, sizeof(r), MSG_DONTWAIT) == sizeof(r))
        if (!r.opened) {
            check(code == 1, "two ends");
            code = r.code;
        }
    check(code != 1, "no end");
    check(code != ERROR_INTERNAL, "an error without a name");
    return code;
}

static void unpack(struct file_job *job, const uint8_t *data, size_t size)
{
    job->op = PROTO_OP_ARCHIVE_WRITE;
    job->data = file_with(data, size);
    check(send(control[0], "C", 1, 0) == 1, "a commit");
    (void)archive_write_work(job);
    (void)close(job->data);
    char word;
    (void)recv(job->control, &word, 1, MSG_DONTWAIT); /* when it ended before it looked */
    (void)end();
}

static void pack(struct file_job *job)
{
    struct tar_entry e;
    enum tar_result r;
    job->op = PROTO_OP_ARCHIVE_READ;
    job->data = file_with("", 0);
    (void)archive_read_work(job);
    if (end() == 0) {
        check(lseek(job->data, 0, SEEK_SET) == 0, "the archive");
        struct tar_reader *reader = tar_reader_create(job->data);
        check(reader != NULL, "memory");
        while ((r = tar_next(reader, &e)) == TAR_ENTRY)
            ;
        check(r == TAR_END, "an archive of its own");
        tar_reader_destroy(reader);
    }
    (void)close(job->data);
    check(fchdir(work_fd) == 0, "the way back"); /* it may be anywhere, in a process of its own */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[96];
    const struct tree_visit visit = {.entry = no_temporary, .missed = missed, .leave = leave};
    if (!top_fd)
        set_up();
    if (size == 0)
        return 0;
    bool furnished = data[0] & 1;
    struct file_job job = {.path = path,
                           .user = "root",
                           .target = "",
                           .mode = UINT32_MAX,
                           .control = control[1],
                           .uid = (uid_t)-1,
                           .gid = (gid_t)-1,
                           .etc = etc_fd};
    (void)snprintf(path, sizeof(path), "%s/in", top);
    check(mkdirat(top_fd, "in", 0755) == 0, "a directory");
    if (furnished)
        furnish();
    unpack(&job, data + 1, size - 1);
    nothing_changed(furnished);
    check(tree_walk(openat(top_fd, "in", O_RDONLY | O_DIRECTORY | O_CLOEXEC), &visit) == 0,
          "what was unpacked");
    pack(&job);
    check(tree_remove(top_fd, "in") == 0, "it goes");
    return 0;
}

/* Chance would hardly ever find a checksum. Most inputs get right ones. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    size = LLVMFuzzerMutate(data, size, max);
    for (size_t at = 1; seed % 16 && at + BLOCK <= size; at += BLOCK) {
        uint8_t *h = data + at;
        char text[16];
        unsigned sum = 0;
        if (memcmp(h + MAGIC, "ustar", 5) != 0)
            continue;
        memset(h + CHECKSUM, ' ', 8);
        for (size_t i = 0; i < BLOCK; i++)
            sum += h[i];
        (void)snprintf(text, sizeof(text), "%06o", sum);
        memcpy(h + CHECKSUM, text, 7);
    }
    return size;
}
