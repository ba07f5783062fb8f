#include "spaced/limits.h"

#include <sys/resource.h>

#define PLACES_MAX 4096
#define PLACES_MIN 16
#define REST_MIN 256 /* store, log, workers, and some sandboxes */

void limits_divide(uint64_t descriptors, struct limits *ret)
{
    uint64_t rest = descriptors / 4 < REST_MIN ? REST_MIN : descriptors / 4;
    uint64_t each = descriptors > rest ? (descriptors - rest) / 2 : 0;
    each = each < PLACES_MIN ? PLACES_MIN : each;
    each = each > PLACES_MAX ? PLACES_MAX : each;
    *ret = (struct limits){
        .descriptors = descriptors, .connections = (unsigned)each, .websockets = (unsigned)each};
}

bool limits_are_full(const struct limits *l)
{
    return l->connections == PLACES_MAX && l->websockets == PLACES_MAX;
}

void limits_take(struct limits *ret)
{
    struct rlimit files = {.rlim_cur = 1024, .rlim_max = 1024};
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        struct rlimit more = {.rlim_cur = files.rlim_max, .rlim_max = files.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &more) == 0)
            files = more;
    }
    limits_divide(files.rlim_cur, ret);
}
