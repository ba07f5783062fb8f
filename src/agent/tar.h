/* The tar format: a reader of ustar, pax and GNU streams and a writer of pax ones. No file is opened and no
 * name is judged here: archive_read.c and archive_write.c do that.
 *
 * Names are bytes. They are never converted: not from the UTF-8 that pax asks for, and not to it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

#define TAR_BLOCK 512
#define TAR_NAME_MAX 65536     /* bytes of a name or a link's text, with the NUL */
#define TAR_PAX_MAX 1048576    /* bytes of one entry's extended header */
#define TAR_GLOBAL_MAX 65536   /* bytes of all global extended headers together */
#define TAR_SEGMENTS_MAX 65536 /* pieces of a sparse file */
#define TAR_OWNER_MAX 256      /* bytes of an owner's name, with the NUL; a longer one is as none */
#define TAR_XATTR_NAME_MAX 256 /* of the kernel: XATTR_NAME_MAX and the NUL */

enum tar_type { TAR_FILE, TAR_HARD_LINK, TAR_SYMLINK, TAR_CHAR, TAR_BLOCK_DEVICE, TAR_DIRECTORY, TAR_FIFO };

struct tar_segment {
    uint64_t offset, size; /* bytes [offset, offset + size) of the file are in the archive; the rest is 0 */
};

struct tar_entry {
    enum tar_type type;
    const char *name;         /* as it is in the archive; never empty */
    const char *link;         /* of links, else "" */
    const char *user, *group; /* names; "" when there are none */
    uint32_t mode;            /* 07777 at most */
    uint32_t uid, gid;        /* never the kernel's "no id" */
    uint32_t major, minor;    /* of devices */
    int64_t mtime_s;
    uint32_t mtime_ns;
    uint64_t size; /* of the file; 0 of anything else */
    bool sparse;   /* else the whole file is in the archive */
    const struct tar_segment *segments;
    size_t segment_count;
    const unsigned char *pax; /* read: the extended header, for tar_xattr */
    size_t pax_n;
};

/* --- reading --- */
struct tar_reader;

enum tar_result { TAR_BAD = -1, TAR_END = 0, TAR_ENTRY = 1 };

/* Reads from fd, which stays the caller's. NULL when memory is short. */
struct tar_reader *tar_reader_create(int fd);
void tar_reader_destroy(struct tar_reader *r); /* NULL is accepted */

/* The next entry, past what is left of the one before; valid until the next call. TAR_END: the archive's end
 * mark was read. TAR_BAD: tar_why says what is wrong. */
enum tar_result tar_next(struct tar_reader *r, struct tar_entry *ret);

/* Some of what is left of the entry's data, segment after segment, at most `most` bytes. Returns how many are
 * at *ret (which is the reader's, until the next call); 0: no more; -1: the archive ends in the middle. */
ssize_t tar_data(struct tar_reader *r, size_t most, const unsigned char **ret);

/* How much of the entry's data may be taken from fd past the reader, now: 0 while it holds some itself. What
 * was taken is told with tar_taken. */
uint64_t tar_direct(const struct tar_reader *r);
void tar_taken(struct tar_reader *r, uint64_t n);

/* Reads fd to its end. */
void tar_drain(struct tar_reader *r);

/* What is wrong, after TAR_BAD. */
const char *tar_why(const struct tar_reader *r);
/* It is not the archive that is wrong: there is no memory for it. */
bool tar_no_memory(const struct tar_reader *r);

/* The next extended attribute of an entry that was read; *cursor starts at 0. False: there is no more. The
 * value is not NUL-terminated. */
bool tar_xattr(const struct tar_entry *e, size_t *cursor, char name[TAR_XATTR_NAME_MAX],
               const unsigned char **ret_value, size_t *ret_n);

/* --- writing --- */

/* Appends one extended attribute to the records that tar_put is given. False when they do not fit. */
bool tar_put_xattr(struct buf *pax, const char *name, const void *value, size_t n);

/* Appends an entry's headers: what a ustar header cannot hold goes into an extended header, together with the
 * records in `pax`, which is empty afterwards. e->pax is not looked at. After it come the entry's data (of a
 * sparse file: its segments, one behind the other), filled up to a whole block. False when it does not fit.
 */
bool tar_put(struct buf *out, const struct tar_entry *e, struct buf *pax);

/* Appends the end mark. */
bool tar_put_end(struct buf *out);

/* Bytes of a sparse file's map, which stand in front of its data (tar_put appends them). */
uint64_t tar_stored_size(const struct tar_entry *e);
