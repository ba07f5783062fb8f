/* Which Firecracker can be used. No I/O. */
#pragma once

#include <stdbool.h>

#define FIRECRACKER_OLDEST "1.12"
#define FIRECRACKER_INSTALL                                             \
    "put the program `firecracker` of a release "                       \
    "(github.com/firecracker-microvm/firecracker), " FIRECRACKER_OLDEST \
    " or newer, into /usr/local/bin, or name it: firecracker = PATH"

/* Whether "1.16.1" is new enough: snapshots, ACPI and the socket device as they are needed here. */
bool firecracker_is_usable(const char *version);

/* Whether the jailer of the same release follows a symbolic link when it starts (CVE-2026-1386). It is never
 * used here. */
bool firecracker_has_bad_jailer(const char *version);
