/* Loop devices, found again by the file behind them. */
#pragma once

#include <stddef.h>

#include "base/error.h"

#define LOOPDEV_PATH_MAX 32

/* The device whose backing file is this one; ERROR_NOT_FOUND when there is none. */
int loopdev_find(const char *file, char path[LOOPDEV_PATH_MAX], struct error *err);

/* The same, attaching a free device when there is none. It detaches itself when its last user goes:
 * *ret_fd (the caller's) holds it until it is mounted. */
int loopdev_attach(const char *file, char path[LOOPDEV_PATH_MAX], int *ret_fd, struct error *err);

/* Detaches every device of that file (at once, or when the last user closes it). */
int loopdev_detach(const char *file, struct error *err);
