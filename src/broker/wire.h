/* The broker channel's encoding, shared by spaced and space-privd: one datagram of a SOCK_SEQPACKET
 * socket is one message, a fixed header and typed, length-checked fields. Integers are big-endian.
 *
 *   header   u16 version, u16 type, u32 id
 *   field    u8 kind, then u32 | u64 | (u16 length, bytes) | (u16 count, count x (u16 length, bytes))
 *
 * A message type is described by a table of fields (struct wire_field) that is used to write, to read
 * and to check it, so both ends agree by construction. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

#define WIRE_VERSION 1
#define WIRE_MESSAGE_MAX 65536
#define WIRE_HEADER_SIZE 8
#define WIRE_FDS_MAX 2
#define WIRE_LIST_BYTES 16384
#define WIRE_LIST_MAX 512

enum wire_kind { WIRE_U32 = 1, WIRE_U64, WIRE_STR, WIRE_LIST };

/* Strings, one after the other with their NULs. */
struct wire_list {
    uint32_t count;
    uint32_t used;
    char data[WIRE_LIST_BYTES];
};

struct wire_field {
    const char *name; /* NULL ends a table */
    enum wire_kind kind;
    size_t offset;                /* of the member in the message's struct */
    size_t size;                  /* STR: of the member, NUL included */
    uint64_t min, max;            /* numbers: smallest and largest; LIST: count */
    bool (*check)(const char *s); /* STR and each entry of a LIST; NULL: any text without NUL */
};

struct wire_header {
    uint16_t type;
    uint32_t id;
};

/* Appends a string; false when the list is full. */
bool wire_list_add(struct wire_list *l, const char *s);

/* The entry after prev (NULL: the first), or NULL at the end. */
const char *wire_list_next(const struct wire_list *l, const char *prev);

/* Smallest and largest size of a message with these fields, header included. */
void wire_bounds(const struct wire_field *fields, size_t *ret_min, size_t *ret_max);

/* Writes header and fields of the struct at `from`. Returns the size, or 0 when it does not fit. */
size_t wire_encode(const struct wire_header *h, const struct wire_field *fields, const void *from,
                   unsigned char *to, size_t size);

/* Reads the header of a message. ERROR_PROTOCOL when it is too short or of another version. */
int wire_decode_header(const unsigned char *p, size_t n, struct wire_header *ret, struct error *err);

/* Reads and checks the fields after the header into the struct at `to`; nothing may be left over.
 * ERROR_PROTOCOL for a broken encoding, ERROR_INVALID (with the field's name) for a value that its table
 * does not allow; *to is then undefined. */
int wire_decode(const struct wire_field *fields, const unsigned char *p, size_t n, void *to,
                struct error *err);

/* Sends one message with up to WIRE_FDS_MAX descriptors. Returns 0 or -1 with errno (EAGAIN when the
 * socket is full). */
int wire_send(int fd, const void *data, size_t n, const int *fds, unsigned fd_count);

/* Receives one message. Returns its size, 0 at the end of the channel, or -1 with errno; EMSGSIZE when
 * it, or what came with it, was cut. *ret_fd_count descriptors (close-on-exec) are the caller's. */
ssize_t wire_recv(int fd, void *to, size_t size, int fds[WIRE_FDS_MAX], unsigned *ret_fd_count);
