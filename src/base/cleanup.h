/* Scope-bound ownership: cleanup attributes for memory, descriptors and directories.
 *
 * A variable marked with one of these starts at NULL or -1 and is released when its scope ends.
 * Hand ownership over with TAKE(), which empties the variable. One idiom per function: a function
 * that uses these does not use goto ladders. */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Closes a descriptor and keeps errno. Negative descriptors are ignored. */
static inline void cleanup_close(const int *fd)
{
    if (*fd >= 0) {
        int saved = errno;
        (void)close(*fd);
        errno = saved;
    }
}

static inline void cleanup_free(void *p)
{
    int saved = errno;
    free(*(void **)p);
    errno = saved;
}

static inline void cleanup_fclose(FILE **f)
{
    if (*f)
        (void)fclose(*f);
}

static inline void cleanup_closedir(DIR **d)
{
    if (*d)
        (void)closedir(*d);
}

/* Held for its clean-up alone, a variable is not "unused". */
#define CLEANUP(fn) __attribute__((cleanup(fn), unused))
#define AUTO_FREE CLEANUP(cleanup_free)
#define AUTO_CLOSE CLEANUP(cleanup_close)
#define AUTO_FCLOSE CLEANUP(cleanup_fclose)
#define AUTO_CLOSEDIR CLEANUP(cleanup_closedir)

/* Moves a value out of an owning variable, leaving its empty value (NULL) behind. */
#define TAKE(p)                     \
    ({                              \
        __typeof__(p) taken_ = (p); \
        (p) = NULL;                 \
        taken_;                     \
    })

/* The same for a descriptor: leaves -1 behind. */
#define TAKE_FD(fd)        \
    ({                     \
        int taken_ = (fd); \
        (fd) = -1;         \
        taken_;            \
    })

/* Number of elements of a real array. */
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
