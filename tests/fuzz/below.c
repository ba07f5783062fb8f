#include "below.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/filetree.h"

#define BLOCK 512
#define CHECKSUM 148
#define MAGIC 257
#define PREFIX ".space-"
#define AGENT_DIGITS 24
#define CLIENT_DIGITS 16

#define CANARY "nobody touches this"

static char top[64];
static int top_fd;
static struct stat canary;
static bool was_furnished;

void below_check(bool good, const char *what)
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
    below_check(mkdtemp(top) != NULL, "a directory");
    if (geteuid() == 0 && unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
        (void)mount("tmpfs", top, "tmpfs", 0, "size=256m,mode=755");
    (void)atexit(clean_up);
    top_fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = openat(top_fd, "canary", O_WRONLY | O_CREAT | O_EXCL, 0640);
    below_check(write(fd, CANARY, sizeof(CANARY)) == sizeof(CANARY), "a file");
    below_check(fstat(fd, &canary) == 0 && close(fd) == 0, "a file");
    (void)setrlimit(RLIMIT_FSIZE, &file_size);
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)umask(0);
}

int below_begin(bool furnished)
{
    if (!top_fd)
        set_up();
    was_furnished = furnished;
    below_check(mkdirat(top_fd, "in", 0755) == 0, "a directory");
    if (furnished) {
        below_check(symlinkat("..", top_fd, "in/up") == 0 && symlinkat("../canary", top_fd, "in/l") == 0,
                    "links");
        below_check(linkat(top_fd, "canary", top_fd, "in/h", 0) == 0 && mkdirat(top_fd, "in/d", 0700) == 0,
                    "a link");
    }
    return top_fd;
}

const char *below_path(void)
{
    return top;
}

static void nothing_changed(void)
{
    struct stat st;
    char text[sizeof(CANARY)];
    unsigned names = 0;
    int fd = openat(top_fd, "canary", O_RDONLY | O_CLOEXEC);
    below_check(fd >= 0 && read(fd, text, sizeof(text)) == sizeof(text) &&
                    memcmp(text, CANARY, sizeof(text)) == 0,
                "content");
    below_check(fstat(fd, &st) == 0 && st.st_ino == canary.st_ino && st.st_mode == canary.st_mode &&
                    st.st_uid == canary.st_uid && st.st_gid == canary.st_gid &&
                    st.st_size == canary.st_size && st.st_mtim.tv_sec == canary.st_mtim.tv_sec &&
                    st.st_mtim.tv_nsec == canary.st_mtim.tv_nsec,
                "attributes");
    below_check(was_furnished || st.st_nlink == 1, "a link to what is outside");
    (void)close(fd);
    DIR *d = fdopendir(openat(top_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    below_check(d != NULL, "the directory");
    while (readdir(d))
        names++;
    (void)closedir(d);
    below_check(names == 4, "a name outside");
}

/* What follows the prefix: the agent's names end with .tmp, those of `space cp` with the digits. */
static bool is_temporary(const char *rest)
{
    size_t digits = strspn(rest, "0123456789abcdef");
    return (digits == AGENT_DIGITS && strcmp(rest + digits, ".tmp") == 0) ||
           (digits == CLIENT_DIGITS && rest[digits] == '\0');
}

static int no_temporary(void *arg, int dir, const char *name)
{
    struct stat st;
    (void)arg;
    if (strncmp(name, PREFIX, strlen(PREFIX)) == 0)
        below_check(!is_temporary(name + strlen(PREFIX)), "a temporary file");
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

void below_end(void)
{
    const struct tree_visit visit = {.entry = no_temporary, .missed = missed, .leave = leave};
    nothing_changed();
    below_check(tree_walk(openat(top_fd, "in", O_RDONLY | O_DIRECTORY | O_CLOEXEC), &visit) == 0,
                "what was unpacked");
    below_check(tree_remove(top_fd, "in") == 0, "it goes");
}

void below_mend(uint8_t *data, size_t size, unsigned seed)
{
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
}
