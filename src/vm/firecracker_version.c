#include "vm/firecracker_version.h"

#include <stdlib.h>
#include <string.h>

/* "1.16.1" -> 1, 16, 1; what is missing is 0. */
static void parts_of(const char *version, unsigned long ret[3])
{
    for (int i = 0; i < 3; i++) {
        char *end;
        ret[i] = strtoul(version, &end, 10);
        version = *end == '.' ? end + 1 : end;
    }
}

static bool is_older(const char *version, unsigned long major, unsigned long minor, unsigned long micro)
{
    unsigned long have[3];
    parts_of(version, have);
    if (have[0] != major)
        return have[0] < major;
    return have[1] != minor ? have[1] < minor : have[2] < micro;
}

bool firecracker_is_usable(const char *version)
{
    return !is_older(version, 1, 12, 0);
}

bool firecracker_has_bad_jailer(const char *version)
{
    return is_older(version, 1, 13, 2) || strcmp(version, "1.14.0") == 0;
}
