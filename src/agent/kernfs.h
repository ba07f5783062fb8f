/* File systems that hold no files of anybody's, but what the kernel makes up when it is read. */
#pragma once

#include <stdbool.h>

/* Whether the directory is on one of them (/proc, /sys, control groups, terminals, ...). */
bool kernfs_is(int fd);
