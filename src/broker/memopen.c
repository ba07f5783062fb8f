/* Preloaded into a jailed VMM. QEMU before 8.2 opens the file behind its memory for reading and writing
 * even when it maps it privately (share=off). A sandbox's VMM must not have golden memory, which all
 * sandboxes of a release share, open for writing; in its jail the file is on a read-only mount, where
 * such an open fails. A private writable mapping needs a readable descriptor only, so opens of exactly
 * the file named by SPACE_MEM_PATH lose their write access here. Newer versions have an option for
 * it (readonly=on,rom=off); this serves all of them alike.
 *
 * Not a security boundary: that is the read-only mount and the file's owner and mode. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The fortified names have no public prototypes. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);

static int flags_for(const char *path, int flags)
{
    const char *mem = getenv("SPACE_MEM_PATH");
    if (!mem || strcmp(mem, path) != 0 || (flags & O_ACCMODE) != O_RDWR)
        return flags;
    return (flags & ~(O_ACCMODE | O_CREAT)) | O_RDONLY;
}

/* Straight to the kernel: no other library is asked, so nothing can go round in circles. */
static int open_at(int dir, const char *path, int flags, mode_t mode)
{
    return (int)syscall(SYS_openat, dir, path, flags_for(path, flags) | O_LARGEFILE, mode);
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
