/* One stream's journal: a bounded ring of bytes in one file, addressed by stream offset.
 *
 * File: one 4 KiB header block (magic, version, capacity, oldest offset, end offset, boot id, checksum), then
 * the ring; the byte at offset o is at o modulo capacity. The file grows with the output, never beyond the
 * capacity.
 *
 * What survives: a killed daemon loses nothing that journal_safe() covered, because data and header are in
 * the page cache before it says so, and no byte is overwritten before the header has stopped naming it. A
 * host that crashed may have written the pages in any order, so a journal of an earlier boot that was not
 * sealed (journal_seal) is taken as empty up to its end: bytes are lost and counted, none are invented. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define JOURNAL_HEADER 4096
#define JOURNAL_BOOT_SIZE 16
#define JOURNAL_CAPACITY_MIN 4096

struct journal;

/* This boot's identity, from the kernel. Never fails: zeros when the kernel does not tell. */
void journal_boot(unsigned char ret[JOURNAL_BOOT_SIZE]);

/* Creates an empty journal file (an existing one is replaced) that begins at offset `at`. */
int journal_create(int dir_fd, const char *name, uint64_t capacity, uint64_t at,
                   const unsigned char boot[JOURNAL_BOOT_SIZE], struct journal **ret, struct error *err);

/* Opens an existing one. ERROR_NOT_FOUND when there is none, ERROR_INTERNAL when its header is not whole or
 * not of this version. */
int journal_load(int dir_fd, const char *name, const unsigned char boot[JOURNAL_BOOT_SIZE],
                 struct journal **ret, struct error *err);

void journal_close(struct journal *j); /* NULL is accepted */

uint64_t journal_start(const struct journal *j); /* oldest offset kept */
uint64_t journal_end(const struct journal *j);   /* one past the newest */

/* Bytes that appending may drop beyond what the capacity asks for: a reader this far from the oldest
 * end is safe when at most journal_capacity() - journal_step() bytes are ahead of it. */
uint64_t journal_capacity(const struct journal *j);
uint64_t journal_step(const struct journal *j);

/* Offset up to which the file itself tells the truth about what was taken: what a guest may be
 * acknowledged. Behind journal_end only while the header cannot be written. */
uint64_t journal_safe(const struct journal *j);

/* Appends n bytes at the end, dropping the oldest as needed. Bytes that the disk does not take (full) are
 * dropped as well: the end advances all the same, and the ring goes on in the space that it has. */
void journal_append(struct journal *j, const void *data, size_t n);

/* Tries again to write the header; true when journal_safe is journal_end. */
bool journal_settle(struct journal *j);

/* Reads at most n bytes at offset, which lies within start..end; *ret_n is 0 at the end. */
int journal_read(const struct journal *j, uint64_t offset, void *to, size_t n, size_t *ret_n,
                 struct error *err);

/* The same without waiting for the disk: *ret_n is also 0 when the page cache has nothing at offset. Such
 * bytes are warmed on another thread first. */
int journal_read_now(const struct journal *j, uint64_t offset, void *to, size_t n, size_t *ret_n,
                     struct error *err);

/* Brings n bytes at offset into the page cache: prepare, run (on another thread), close. */
struct journal_warm {
    int fd; /* own descriptor; -1 when there is nothing to do */
    uint64_t capacity, offset;
    size_t n;
};
void journal_warm_prepare(const struct journal *j, uint64_t offset, size_t n, struct journal_warm *ret);
void journal_warm_run(const struct journal_warm *w); /* blocking; touches no journal */
void journal_warm_close(struct journal_warm *w);

/* Drops the oldest bytes up to offset, which lies within start..end, and gives their space back. False when
 * the header could not be written; then nothing has changed. */
bool journal_drop(struct journal *j, uint64_t offset);

/* Takes the bytes from `end` on back, which lies within start..end: others follow there. False when the
 * header could not be written; then nothing has changed. Writes to disk when the journal was sealed. */
bool journal_cut(struct journal *j, uint64_t end);

/* A new journal file (an existing one is replaced) with the bytes of this one up to `end`, which lies within
 * its start..end. Shares them with it where the file system can; else only the newest 4 MiB are copied, and
 * the new one starts there. */
int journal_copy(const struct journal *from, uint64_t end, int dir_fd, const char *name,
                 const unsigned char boot[JOURNAL_BOOT_SIZE], struct journal **ret, struct error *err);

/* Makes a journal durable as it is and says so in its header: prepare, sync (on another thread), write, sync
 * again, close. */
struct journal_seal {
    int fd; /* own descriptor; -1 when there is nothing to do */
    uint64_t start, end;
    unsigned char header[64];
};
void journal_seal_prepare(const struct journal *j, struct journal_seal *ret);
void journal_seal_sync(const struct journal_seal *seal); /* blocking; touches no journal */
/* j: the journal itself when it is still open, else NULL: then nothing was appended or dropped meanwhile.
 * False: it could not be written, or bytes were appended or dropped. */
bool journal_seal_write(const struct journal_seal *seal, struct journal *j);
void journal_seal_close(struct journal_seal *seal);
