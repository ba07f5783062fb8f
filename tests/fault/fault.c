#include "fault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/types.h>

#define FDS_MAX 256 /* far more than a test opens */

static struct {
    bool armed;
    bool hit;
    long left;
    int errnum;
} state;

void fault_arm(long at, int errnum)
{
    state.armed = true;
    state.hit = false;
    state.left = at;
    state.errnum = errnum;
}

bool fault_disarm(void)
{
    state.armed = false;
    return state.hit;
}

int fault_open_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < FDS_MAX; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

long fault_each(int errnum, int (*op)(void *arg), void (*check)(void *arg, int rc), void *arg)
{
    for (long n = 0; n < 10000; n++) {
        fault_arm(n, errnum);
        int rc = op(arg);
        bool hit = fault_disarm();
        check(arg, rc);
        if (!hit)
            return rc == 0 ? n : -1;
    }
    return -1;
}

static bool fails(void)
{
    if (!state.armed || state.hit || state.left-- > 0)
        return false;
    state.hit = true;
    errno = state.errnum;
    return true;
}

/* The linker gives the real function the name __real_NAME and sends calls of NAME to __wrap_NAME. */
#define WRAP(type, name, failure, params, args)          \
    type __real_##name params;                           \
    type __wrap_##name params;                           \
    type __wrap_##name params                            \
    {                                                    \
        return fails() ? (failure) : __real_##name args; \
    }

WRAP(void *, malloc, NULL, (size_t n), (n))
WRAP(void *, calloc, NULL, (size_t n, size_t size), (n, size))
WRAP(void *, realloc, NULL, (void *p, size_t n), (p, n))
WRAP(char *, strdup, NULL, (const char *s), (s))
WRAP(char *, strndup, NULL, (const char *s, size_t n), (s, n))
WRAP(ssize_t, write, -1, (int fd, const void *p, size_t n), (fd, p, n))
WRAP(ssize_t, read, -1, (int fd, void *p, size_t n), (fd, p, n))
WRAP(int, fsync, -1, (int fd), (fd))
WRAP(int, renameat, -1, (int from, const char *a, int to, const char *b), (from, a, to, b))
WRAP(int, unlinkat, -1, (int dir, const char *name, int flags), (dir, name, flags))
WRAP(int, mkdir, -1, (const char *path, mode_t mode), (path, mode))

/* What openat is called with large file offsets, which the project compiles with. */
int __real_openat64(int dir, const char *name, int flags, mode_t mode);
int __wrap_openat64(int dir, const char *name, int flags, ...);
int __wrap_openat64(int dir, const char *name, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return fails() ? -1 : __real_openat64(dir, name, flags, mode);
}
