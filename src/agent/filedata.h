/* What is in a file and what is said about it, from one descriptor to another. Functions return 0, or -1 with
 * errno. */
#pragma once

#include <sys/stat.h>

#include "agent/filework.h"

/* Copies the content into a new, empty file: extents are shared where the file system can, holes stay holes,
 * and what has no size (as in /proc) is read to its end. ECANCELED when the host has closed the operation. */
int data_copy(const struct file_job *j, int from, int to);

/* Gives a copy its owner, extended attributes, mode and times, in the order in which none undoes another, and
 * each as far as the user may: who cannot give the owner does not give the set-user-id bit either. */
int data_attributes(int from, int to, const struct stat *st);

/* The mode of what an O_PATH descriptor stands for, which is no link: kernels before 6.6 have no call for
 * that. */
int data_mode(int fd, mode_t mode);
