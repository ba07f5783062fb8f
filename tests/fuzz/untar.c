/* What `space cp` unpacks on the user's machine: any bytes, as from a hostile guest, into a directory in
 * memory. Nothing beside that directory may change, and nothing half made may stay. The first byte chooses
 * whether the directory holds something beforehand, whether owners and bits are kept, and in which pieces the
 * stream comes. */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/filetree.h"
#include "cli/untar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

#define BLOCK 512
#define CHECKSUM 148
#define MAGIC 257
#define TEMPORARY 23 /* bytes of the name of a temporary file */

#define CANARY "nobody touches this"

struct stream {
    const uint8_t *p;
    size_t left, piece;
};

static char top[64];
static int top_fd;
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
    int fd = openat(top_fd, "canary", O_WRONLY | O_CREAT | O_EXCL, 0640);
    check(write(fd, CANARY, sizeof(CANARY)) == sizeof(CANARY), "a file");
    check(fstat(fd, &canary) == 0 && close(fd) == 0, "a file");
    (void)setrlimit(RLIMIT_FSIZE, &file_size);
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)umask(0);
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
    DIR *d = fdopendir(openat(top_fd, ".", O_RDONLY | O_DIRECTORY));
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
    check(strncmp(name, ".space-", 7) != 0 || strlen(name) != TEMPORARY, "a temporary file");
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

static ssize_t give(void *arg, void *to, size_t n, struct error *err)
{
    struct stream *s = arg;
    (void)err;
    if (n > s->left)
        n = s->left;
    if (n > s->piece)
        n = s->piece;
    memcpy(to, s->p, n);
    s->p += n;
    s->left -= n;
    return (ssize_t)n;
}

static void passed(void *arg, const char *name, const char *why)
{
    (void)arg;
    check(*name != 0 && *why != 0, "what was passed over");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = ERROR_INIT;
    const struct tree_visit visit = {.entry = no_temporary, .missed = missed, .leave = leave};
    if (!top_fd)
        set_up();
    if (size == 0)
        return 0;
    struct stream s = {data + 1, size - 1, data[0] & 4 ? 700 : 65536};
    bool furnished = data[0] & 1;
    check(mkdirat(top_fd, "in", 0755) == 0, "a directory");
    if (furnished)
        furnish();
    struct untar_config config = {.dir_fd = openat(top_fd, "in", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                                  .made = !furnished,
                                  .keep = (data[0] & 2) != 0,
                                  .read = give,
                                  .passed = passed,
                                  .arg = &s};
    if (untar(&config, &err) < 0)
        check(*err.message && err.code < 0, "a reason");
    (void)close(config.dir_fd);
    nothing_changed(furnished);
    check(tree_walk(openat(top_fd, "in", O_RDONLY | O_DIRECTORY | O_CLOEXEC), &visit) == 0,
          "what was unpacked");
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
