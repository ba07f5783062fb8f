/* Files and directories, done safely: atomic replacement, bounded reads, tree removal that follows no
 * symbolic link. Paths are relative to a directory descriptor where one is given (AT_FDCWD else). */
#pragma once

#include <dirent.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

/* Replaces a file: temporary file beside it, write, fsync, rename, fsync of the directory. After a
 * crash the old or the new content is there, whole. */
int fs_write_atomic(int dir_fd, const char *name, const void *data, size_t n, mode_t mode, struct error *err);

/* Reads a whole file of at most max bytes into heap memory, NUL-terminated past *ret_len (the NUL not
 * counted). The caller frees *ret. ERROR_NOT_FOUND when absent, ERROR_TOO_LARGE when longer. */
int fs_read_file(int dir_fd, const char *name, size_t max, char **ret, size_t *ret_len, struct error *err);

/* Connects to the unix socket at a path of any length, not blocking. Its last name may be in a directory that
 * somebody else can write: only a socket itself is taken, no link to one. The descriptor, or -1 with errno.
 */
int fs_connect_socket(int dir_fd, const char *path);

/* Opens a directory to be read; NULL with errno. */
DIR *fs_open_dir(int dir_fd, const char *name);

/* Creates a directory and its parents; an existing one is fine. */
int fs_mkdir_p(const char *path, mode_t mode, struct error *err);

/* Removes name below dir_fd with everything in it, without following links or crossing into other
 * file systems. Absent is success. */
int fs_remove_tree(int dir_fd, const char *name, struct error *err);

/* Writes all n bytes to fd (a regular file or pipe in blocking mode). */
int fs_write_all(int fd, const void *data, size_t n, struct error *err);

/* The same at an offset, and reading n bytes from one; a file that ends before is an error. */
int fs_write_at(int fd, const void *data, size_t n, off_t at, struct error *err);
int fs_read_at(int fd, void *to, size_t n, off_t at, struct error *err);

/* Shares the extents of one file with another (FICLONE). ERROR_UNSUPPORTED when the file system
 * cannot (EOPNOTSUPP, EXDEV, EINVAL). */
int fs_reflink(int from_fd, int to_fd, struct error *err);

/* Copies a file's data keeping holes (SEEK_DATA), for file systems without reflinks. */
int fs_copy_sparse(int from_fd, int to_fd, struct error *err);
