/* What tar_read.c and tar_pax.c share: the values of extended headers, and numbers. */
#pragma once

#include "agent/tar.h"

struct tar_slice {
    const unsigned char *p; /* NULL: not given */
    size_t n;
};

struct tar_segments {
    struct tar_segment *v; /* owned */
    size_t n, cap;
};

/* What extended headers say about an entry. Slices point into the records. */
struct tar_values {
    bool has_size, has_real, has_uid, has_gid, has_mtime, half_segment;
    bool map_in_data; /* GNU.sparse 1.0: the map stands in front of the data */
    bool sparse;
    uint64_t size, real, uid, gid;
    int64_t mtime_s;
    uint32_t mtime_ns;
    struct tar_slice path, link, user, group, sparse_path;
    struct tar_segments *segments; /* the caller's */
};

/* Reads records into *v. global: of a global header, which may not say what only one entry can have. 0, or -1
 * with the fault at *ret_why. */
int tar_pax_values(const unsigned char *p, size_t n, bool global, struct tar_values *v, const char **ret_why);

/* Steps to the next record: 1, 0 (there is none), or -1 (not a record). */
int tar_pax_next(const unsigned char *p, size_t n, size_t *cursor, struct tar_slice *ret_key,
                 struct tar_slice *ret_value);

/* Adds a piece of a sparse file's map, which must lie behind those there are. */
int tar_add_segment(struct tar_segments *s, uint64_t offset, uint64_t size, const char **ret_why);

/* A decimal number of n digits. */
bool tar_decimal(const unsigned char *p, size_t n, uint64_t *ret);

/* A number of a header: octal, or binary after a byte of 80 or FF (negative). */
bool tar_number(const unsigned char *p, size_t n, int64_t *ret);
