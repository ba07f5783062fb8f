/* The child's side of work on files: what the parts of it share (filework.c, file*.c, archive_*.c,
 * watch_work.c). Everything here runs in a child of its own that has become the user and then exits: it may
 * block, what it allocates ends with it, and SIGKILL may end it at any moment when it does not write. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "agent/file.h"
#include "base/error.h"

/* --- answers; the first end that is reported counts, and an operation reports exactly one --- */

/* The enum error_code for an errno. */
int work_code(int errnum);

/* Ends the operation with an errno's code and the text "what: strerror". Returns -1. */
int work_failed(const struct file_job *j, int errnum, const char *what);

/* Ends it with a code (enum error_code) and a text of its own, which is cut at 255 bytes. Returns -1. */
int work_refused(const struct file_job *j, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* READ, LIST, WATCH, ARCHIVE_READ: what was asked for stands open; before the first byte of data. */
void work_opened(const struct file_job *j, const struct stat *st);

/* Ends it well. st: required after WRITE, ARCHIVE_WRITE (of the directory unpacked into) and STAT, NULL else.
 * All data must have been written before. */
void work_succeeded(const struct file_job *j, const struct stat *st);

void work_to_stat(const struct stat *st, struct proto_stat *ret);

/* --- data --- */

/* Writes all n bytes to j->data, waiting as long as the host takes. 0, or -1 when nobody reads any more: end
 * without a report then. */
int work_put(const struct file_job *j, const void *p, size_t n);
/* The same to any descriptor; -1 with errno. */
int work_write(int fd, const void *p, size_t n);

#define WORK_BLOCK 1048576
#define WORK_NARROW 131072 /* what is used of it by one of many */
/* Memory for one block of a large file, aligned for work_direct; freed by the end of the child. NULL when
 * there is none. */
unsigned char *work_block(void);

/* Switches a descriptor to reading and writing past the page cache, or back. Whether that changed anything:
 * many file systems cannot do it, and some only say so when it is tried (EINVAL). */
bool work_direct(int fd, bool on);

/* WRITE: everything before this offset of the stream, which stood in j->shared, is in the file. */
void work_taken(const struct file_job *j, uint64_t offset);

/* WRITE, ARCHIVE_WRITE: the data (read from j->data) has ended. Whether the host has said that this was all;
 * else it has given up, and what is half made has to go. */
bool work_committed(const struct file_job *j);

/* --- shared steps --- */

/* Makes every missing directory (0755) above the last part of an absolute path; one that is there is fine. 0,
 * or -1 with errno. The path is as before when it returns. */
int work_make_parents(char *path);

#define WORK_TEMP_SIZE 48
/* A name for a temporary file beside another: random, so that it can be made with O_EXCL. 0, or -1 with
 * errno. */
int work_temp_name(char to[WORK_TEMP_SIZE]);

/* Whether the host has closed the operation: one that changes much stops then, and clears away what is half
 * made. */
bool work_abandoned(const struct file_job *j);

/* The directory and the name in it that an absolute path means. */
struct work_place {
    char *path; /* owned */
    int dir;    /* owned: O_PATH */
    const char *name;
};

void work_place_finish(struct work_place *p);

/* Finds it, with parents made when asked for. Slashes at the end are dropped; links are followed but for the
 * last name, which is not empty, "." or "..": EINVAL. 0, or -1 with errno. */
int work_find_place(const char *path, bool parents, struct work_place *ret);

/* Makes the file, link or directory from (in from_dir) stand at `to` instead, at once: what is no directory
 * there gives way when `replace` says so. 0, or -1 with errno (EEXIST, EISDIR, EXDEV); nothing is changed
 * then. */
int work_put_in_place(int from_dir, const char *from, const struct work_place *to, bool replace);

/* Sees to it that a directory's entries are on the disk, as far as its file system can. */
void work_sync_dir(int dir);

/* --- the operations of other files; each reports its own end --- */
#define WORK_LIST_MAX 10000 /* entries of one listing */

int list_work(const struct file_job *j);
int write_work(const struct file_job *j);
int copy_work(const struct file_job *j);
int move_work(const struct file_job *j);
int symlink_work(const struct file_job *j);
int chmod_work(const struct file_job *j);
int archive_read_work(const struct file_job *j);
int archive_write_work(const struct file_job *j);
/* Ends by itself when what is watched is gone; by SIGKILL when the host closes it. Also when nobody reads
 * j->data any more (poll tells POLLERR). */
int watch_work(const struct file_job *j);
