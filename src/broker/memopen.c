/* Preloaded into a jailed VMM, for two things about the file behind its memory.
 *
 * QEMU before 8.2 opens the file behind its memory for reading and writing
 * even when it maps it privately (share=off). A sandbox's VMM must not have golden memory, which all
 * sandboxes of a release share, open for writing; in its jail the file is on a read-only mount, where
 * such an open fails. A private writable mapping needs a readable descriptor only, so opens of exactly
 * the file named by SPACE_MEM_PATH lose their write access here. Newer versions have an option for
 * it (readonly=on,rom=off); this serves all of them alike.
 *
 * Where a snapshot's memory is the same as the golden's (SPACE_MEM_SAME: "PAGE:COUNT PAGE:COUNT ...",
 * hexadecimal) the golden's file, SPACE_MEM_UNDER, is mapped over it: its pages are in memory already.
 * Without that the VM would be the same, only slower.
 *
 * Not a security boundary: that is the read-only mount and the file's owner and mode. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The fortified names have no public prototypes. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);

#define PAGE 4096ULL

static int memory_fd = -1; /* the last one opened */

static bool is_memory(const char *path)
{
    const char *mem = getenv("SPACE_MEM_PATH");
    return mem && strcmp(mem, path) == 0;
}

/* Straight to the kernel: no other library is asked, so nothing can go round in circles. */
static int open_at(int dir, const char *path, int flags, mode_t mode)
{
    bool memory = is_memory(path);
    if (memory && (flags & O_ACCMODE) == O_RDWR)
        flags = (flags & ~(O_ACCMODE | O_CREAT)) | O_RDONLY;
    int fd = (int)syscall(SYS_openat, dir, path, flags | O_LARGEFILE, mode);
    if (memory)
        memory_fd = fd;
    return fd;
}

static void *map_at(void *at, size_t n, int prot, int flags, int fd, off64_t from)
{
    return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, from); /* failure is MAP_FAILED as it stands */
}

/* Maps what of the file under the memory belongs into `at`, where `from` of it is. */
static bool lay_under(char *at, uint64_t n, int prot, uint64_t from)
{
    const char *same = getenv("SPACE_MEM_SAME");
    const char *path = getenv("SPACE_MEM_UNDER");
    int fd =
        same && path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_LARGEFILE, 0) : -1;
    bool laid = true;
    while (fd >= 0 && laid && *same) {
        char *end;
        uint64_t first = strtoull(same, &end, 16) * PAGE;
        uint64_t last = first + (*end == ':' ? strtoull(end + 1, &end, 16) * PAGE : 0);
        same = *end == ' ' ? end + 1 : "";
        if (first < from)
            first = from;
        if (last > from + n)
            last = from + n;
        /* A mapping that fails may have taken away what was there. */
        laid = first >= last || map_at(at + (first - from), last - first, prot, MAP_PRIVATE | MAP_FIXED, fd,
                                       (off64_t)first) != MAP_FAILED;
    }
    if (fd >= 0)
        (void)syscall(SYS_close, fd);
    return laid;
}

static void *map(void *at, size_t n, int prot, int flags, int fd, off64_t from)
{
    void *to = map_at(at, n, prot, flags, fd, from);
    bool memory = fd >= 0 && fd == memory_fd && (flags & MAP_TYPE) == MAP_PRIVATE && prot & PROT_WRITE;
    if (to == MAP_FAILED || !memory || lay_under(to, n, prot, (uint64_t)from))
        return to;
    (void)syscall(SYS_munmap, to, n);
    return MAP_FAILED;
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t from)
{
    return map(at, n, prot, flags, fd, from);
}

void *mmap64(void *at, size_t n, int prot, int flags, int fd, off64_t from)
{
    return map(at, n, prot, flags, fd, from);
}

static mode_t mode_arg(int flags, va_list *ap)
{
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(*ap, mode_t) : 0;
}

#define OPEN(name)                                   \
    int name(const char *path, int flags, ...)       \
    {                                                \
        va_list ap;                                  \
        va_start(ap, flags);                         \
        mode_t mode = mode_arg(flags, &ap);          \
        va_end(ap);                                  \
        return open_at(AT_FDCWD, path, flags, mode); \
    }

#define OPENAT(name)                                    \
    int name(int dir, const char *path, int flags, ...) \
    {                                                   \
        va_list ap;                                     \
        va_start(ap, flags);                            \
        mode_t mode = mode_arg(flags, &ap);             \
        va_end(ap);                                     \
        return open_at(dir, path, flags, mode);         \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int __open_2(const char *path, int flags)
{
    return open_at(AT_FDCWD, path, flags, 0);
}

int __open64_2(const char *path, int flags)
{
    return open_at(AT_FDCWD, path, flags, 0);
}

int __openat_2(int dir, const char *path, int flags)
{
    return open_at(dir, path, flags, 0);
}

int __openat64_2(int dir, const char *path, int flags)
{
    return open_at(dir, path, flags, 0);
}
