/* The guest protocol's codec, shared by both ends: no I/O, no state beyond what the caller passes in.
 * docs/design/protocol.md explains the whole; this header is the wire format.
 *
 * Everything is big-endian. A frame is
 *
 *     u16 marker  u8 type  u8 flags  u32 length  u32 channel  u32 tag  |  payload  |  u32 tag
 *
 * `tag` is drawn from the epoch of the connection and is never 0, so that a frame of another epoch, or one
 * whose tail was lost and replaced by padding, cannot pass. Control payloads are fields, each
 *
 *     u16 tag  u8 type  u8 zero  u32 length  |  value
 *
 * and are checked against the message table before a handler sees them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

/* Where the agent listens when it has no port of its own but a vsock device. */
#define PROTO_VSOCK_PORT 1024

/* Versions spoken. What a version added, the table says (`since`); a host that finds an agent of an earlier
 * release in a running guest does without it. */
#define PROTO_VERSION_LOWEST 1
/* 2: QUIESCE; HELLO tells of a frozen guest; PONG of its clock.
 * 3: DIAL; FILE lists, moves, copies, links, changes attributes, watches and archives. */
#define PROTO_VERSION 3
#define PROTO_VERSION_TREES 3 /* the first with these operations of FILE, and with owners for WRITE */
#define PROTO_MARKER 0xA5C3
#define PROTO_HEADER 16
#define PROTO_TRAILER 4
#define PROTO_OVERHEAD (PROTO_HEADER + PROTO_TRAILER)
#define PROTO_PAYLOAD_MAX 65536
#define PROTO_FRAME_MAX (PROTO_PAYLOAD_MAX + PROTO_OVERHEAD)

#define PROTO_DATA_PRELUDE 16 /* u8 stream, u8 fin, 6 zero bytes, u64 offset */
#define PROTO_DATA_BEFORE (PROTO_HEADER + PROTO_DATA_PRELUDE) /* what precedes the bytes of a DATA frame */
/* One frame from the guest is one write of at most 32 KiB, the most a virtio port takes at a time. */
#define PROTO_DATA_MAX (32768 - PROTO_OVERHEAD - PROTO_DATA_PRELUDE)

#define PROTO_SYNC_SIZE 40
#define PROTO_PADDING (PROTO_FRAME_MAX + PROTO_SYNC_SIZE) /* zero bytes that end any half-sent frame */

#define PROTO_OUTPUT_WINDOW 262144 /* credit a stream from the guest starts with */
#define PROTO_STDIN_WINDOW 65536   /* credit stdin starts with */
#define PROTO_WRITE_WINDOW 262144  /* credit a file being written starts with */
#define PROTO_CONN_WINDOW 262144   /* credit either direction of a connection starts with */

#define PROTO_STRINGS_MAX 1048576 /* bytes of argv and env together, NULs included */
#define PROTO_STRINGS_COUNT 16384 /* argv and env entries together */
#define PROTO_EXEC_MAX (PROTO_STRINGS_MAX + 8 * PROTO_STRINGS_COUNT + 32768)
#define PROTO_PROCESSES_MAX 512
#define PROTO_FILES_MAX 64
#define PROTO_WATCHES_MAX 16 /* of the file operations, those that watch */
#define PROTO_CONNS_MAX 256
#define PROTO_PATH_MAX 4096

enum proto_flag { PROTO_MORE = 1 /* the message goes on in the next frame */ };

enum proto_type {
    PROTO_HELLO = 1, /* guest: right after the acknowledged SYNC; the link is up */
    PROTO_LOST,      /* guest: what came in made no sense; synchronise again */
    PROTO_PING,
    PROTO_PONG,
    PROTO_REPLY, /* guest: the one answer to a request */
    PROTO_IDENTIFY,
    PROTO_SHUTDOWN,
    PROTO_SYNCFS,
    PROTO_EXEC, /* host: start, or find again by its id, and attach to the channel */
    PROTO_ATTACH,
    PROTO_STARTED, /* guest: answer to EXEC and ATTACH */
    PROTO_EXIT,
    PROTO_RELEASE,
    PROTO_SIGNAL,
    PROTO_RESIZE,
    PROTO_DATA,
    PROTO_WINDOW,
    PROTO_FILE, /* host: one file operation on a channel of its own */
    PROTO_FILE_OPENED,
    PROTO_FILE_COMMIT,
    PROTO_FILE_CLOSE,
    PROTO_FILE_DONE, /* guest: how it ended; the channel is free again */
    PROTO_QUIESCE,   /* host: freeze every process until IDENTIFY has succeeded */
    PROTO_DIAL,   /* host: connect to a TCP port of the guest's loopback interface, on a channel of its own */
    PROTO_DIALED, /* guest: the connection stands; data may flow both ways */
    PROTO_CONN_CLOSE, /* host: reset it, it is not needed any more */
    PROTO_CONN_DONE, /* guest: it is over: both directions have ended (code 0), or why; the channel is free */
    PROTO_TYPE_END
};

enum proto_stream {
    PROTO_STDIN = 0,
    PROTO_STDOUT = 1,
    PROTO_STDERR = 2,
    PROTO_FILE_DATA = 3,
    PROTO_TO_GUEST = 4, /* of a connection; fin: the peer's half is closed */
    PROTO_TO_HOST = 5
};

/* Those up to WRITE are of version 1, the rest of version 3. READ, LIST, WATCH and ARCHIVE_READ answer
 * FILE_OPENED, then file data, then FILE_DONE; WRITE and ARCHIVE_WRITE take file data until FILE_COMMIT; the
 * others are answered by FILE_DONE alone. */
enum proto_file_op {
    PROTO_OP_STAT = 1,
    PROTO_OP_REMOVE,
    PROTO_OP_MKDIR,
    PROTO_OP_READ,
    PROTO_OP_WRITE,
    PROTO_OP_LIST,    /* records (proto_entry_*) of what is below a directory */
    PROTO_OP_MOVE,    /* PATH to TARGET */
    PROTO_OP_COPY,    /* PATH to TARGET */
    PROTO_OP_CHMOD,   /* MODE and OWNER, each when given */
    PROTO_OP_SYMLINK, /* PATH becomes a link with the text TARGET */
    PROTO_OP_WATCH,   /* records (proto_change_*) until closed; FILE_OPENED: from here on none is missed */
    PROTO_OP_ARCHIVE_READ,  /* a tar stream of PATH */
    PROTO_OP_ARCHIVE_WRITE, /* a tar stream is unpacked into the directory PATH */
    PROTO_OP_END
};

enum proto_file_flag {
    PROTO_FILE_REPLACE = 1, /* MOVE, COPY: an existing target that is not a directory gives way */
    PROTO_FILE_PARENTS = 2  /* MOVE, COPY, SYMLINK, ARCHIVE_WRITE: missing directories are made (0755) */
};

enum proto_reason {
    PROTO_REASON_EXIT = 1,
    PROTO_REASON_SIGNAL,
    PROTO_REASON_TIMEOUT,
    PROTO_REASON_OOM_KILLED,
    PROTO_REASON_START_FAILED
};

enum proto_exec_flag { PROTO_EXEC_STDIN = 1, PROTO_EXEC_PTY = 2 };

/* Fields. A number means the same in every message. Bit 15 marks a field an older peer may skip. */
enum proto_tag {
    PROTO_F_REQUEST = 1,
    PROTO_F_CODE,
    PROTO_F_MESSAGE,
    PROTO_F_AGENT,
    PROTO_F_BOOT,
    PROTO_F_SANDBOX,
    PROTO_F_HOSTNAME,
    PROTO_F_MACHINE,
    PROTO_F_GENERATION,
    PROTO_F_SEED,
    PROTO_F_WALL,
    PROTO_F_GRACE,
    PROTO_F_PROCESS,
    PROTO_F_ARG,
    PROTO_F_SHELL,
    PROTO_F_ENV,
    PROTO_F_CWD,
    PROTO_F_USER,
    PROTO_F_FLAGS,
    PROTO_F_ROWS,
    PROTO_F_COLS,
    PROTO_F_TERM,
    PROTO_F_TIMEOUT,
    PROTO_F_PID,
    PROTO_F_REASON,
    PROTO_F_EXIT,
    PROTO_F_SIGNAL,
    PROTO_F_TREE,
    PROTO_F_STDIN,
    PROTO_F_STDIN_LIMIT,
    PROTO_F_STDOUT,
    PROTO_F_STDERR,
    PROTO_F_STDOUT_LIMIT,
    PROTO_F_STDERR_LIMIT,
    PROTO_F_CPU,
    PROTO_F_RSS,
    PROTO_F_OP,
    PROTO_F_PATH,
    PROTO_F_MODE,
    PROTO_F_RECURSIVE,
    PROTO_F_OFFSET,
    PROTO_F_LENGTH,
    PROTO_F_STAT,
    PROTO_F_TOKEN,
    PROTO_F_PROCESSES,
    PROTO_F_FILES,
    PROTO_F_LIMIT,
    PROTO_F_FROZEN,
    PROTO_F_MONO,
    PROTO_F_TARGET, /* the second path of a file operation, or a link's text */
    PROTO_F_DEPTH,  /* LIST: levels below the directory, at least 1 */
    PROTO_F_AFTER,  /* LIST: go on behind this path (relative to the directory) */
    PROTO_F_OWNER,  /* "USER", "USER:GROUP" or ":GROUP", names or numbers */
    PROTO_F_PORT,
    PROTO_F_END
};
#define PROTO_F_OPTIONAL 0x8000u

enum proto_field_type {
    PROTO_U32 = 1,
    PROTO_U64,
    PROTO_BYTES,
    PROTO_STRING /* NUL-terminated, no other NUL */
};

enum proto_from { PROTO_FROM_HOST = 1, PROTO_FROM_GUEST = 2 };
/* When a message is permitted, as a mask. */
enum proto_state { PROTO_AFTER_SYNC = 1, PROTO_UP = 2 };
enum proto_channel { PROTO_ON_LINK, PROTO_ON_CHANNEL };
enum proto_format { PROTO_FIELDS, PROTO_FIXED };

struct proto_field {
    uint16_t tag;
    uint8_t type; /* enum proto_field_type */
    bool required;
    uint32_t max; /* most bytes, for BYTES (exact when min == max) and STRING (with the NUL) */
    uint32_t min;
    uint32_t max_count; /* how often it may appear */
};

struct proto_message {
    uint8_t type;
    const char *name;
    uint8_t from;    /* enum proto_from */
    uint8_t states;  /* mask of enum proto_state */
    uint8_t channel; /* enum proto_channel: on channel 0 or on another */
    uint8_t format;
    uint32_t min, max; /* bytes of payload, continuations together */
    const struct proto_field *fields;
    size_t field_count;
    uint8_t since; /* the version that has it; 0: all */
};

/* The row of a type, or NULL. */
const struct proto_message *proto_message(unsigned type);

/* --- synchronisation --- */
struct proto_sync {
    uint64_t epoch;
    uint16_t version_low, version_high; /* SYNC: what the host speaks */
    uint16_t version;                   /* SYNC_ACK: what was chosen, 0 when refused */
    uint32_t payload_max;
};

void proto_sync_put(unsigned char to[PROTO_SYNC_SIZE], const struct proto_sync *s);
void proto_sync_ack_put(unsigned char to[PROTO_SYNC_SIZE], const struct proto_sync *s);

/* Looks for a whole, valid SYNC (ack: SYNC_ACK) in n bytes. Returns how many bytes of the front are
 * settled and may be dropped; *ret_found tells whether they end with one, which is then in *ret. */
size_t proto_sync_find(const unsigned char *p, size_t n, bool ack, struct proto_sync *ret, bool *ret_found);

/* The frame tag of an epoch: never 0. */
uint32_t proto_epoch_tag(uint64_t epoch);

/* The highest version spoken here and by a peer that speaks low to high, or 0. */
uint16_t proto_version_choose(uint16_t low, uint16_t high);

/* --- frames --- */
struct proto_frame {
    uint8_t type;
    uint8_t flags;
    uint32_t channel;
    uint32_t length;
    const unsigned char *payload;
};

enum proto_parse { PROTO_BAD = -1, PROTO_SHORT = 0, PROTO_WHOLE = 1 };

/* Reads one frame at p. from: who sent it; states: the link's current enum proto_state. Checks marker,
 * tags, flags, type, direction, state, channel and size before a byte of payload is used. PROTO_BAD
 * names the fault in *ret_why. A whole frame takes length + PROTO_OVERHEAD bytes. */
enum proto_parse proto_frame_parse(const unsigned char *p, size_t n, uint32_t tag, enum proto_from from,
                                   enum proto_state state, struct proto_frame *ret, const char **ret_why);

/* Writes a header; the trailer goes after `length` bytes of payload. */
void proto_header_put(unsigned char *p, uint8_t type, uint8_t flags, uint32_t length, uint32_t channel,
                      uint32_t tag);

/* Appends a whole message, split into frames as needed. False when `out` has no room (unchanged). */
bool proto_send(struct buf *out, uint32_t tag, uint8_t type, uint32_t channel, const void *payload, size_t n);

/* --- DATA and WINDOW --- */
struct proto_data {
    enum proto_stream stream;
    bool fin;
    uint64_t offset;
    const unsigned char *bytes;
    size_t n;
};

struct proto_window {
    enum proto_stream stream;
    uint64_t acked; /* everything before it has arrived for good */
    uint64_t limit; /* nothing at or after it may be sent yet */
};

int proto_data_get(const struct proto_frame *f, struct proto_data *ret);

/* The same of the first PROTO_DATA_BEFORE bytes of a frame whose header proto_frame_parse has looked at and
 * which is not whole. -1 also when it is no DATA. */
int proto_data_begin(const unsigned char *p, uint32_t *ret_channel, struct proto_data *ret);
void proto_data_put(unsigned char to[PROTO_DATA_PRELUDE], enum proto_stream stream, bool fin,
                    uint64_t offset);
bool proto_data_send(struct buf *out, uint32_t tag, uint32_t channel, const struct proto_data *d);
int proto_window_get(const struct proto_frame *f, struct proto_window *ret);
bool proto_window_send(struct buf *out, uint32_t tag, uint32_t channel, const struct proto_window *w);

/* --- fields --- */
/* Appends one field. False when there is no room. */
bool proto_put_u32(struct buf *b, uint16_t tag, uint32_t v);
bool proto_put_u64(struct buf *b, uint16_t tag, uint64_t v);
bool proto_put_bytes(struct buf *b, uint16_t tag, const void *v, size_t n);
bool proto_put_string(struct buf *b, uint16_t tag, const char *v); /* NULL appends nothing: success */

/* A checked payload. Getters never fail on one: an absent field gives the default. */
struct proto_fields {
    const unsigned char *p;
    size_t n;
};

/* Checks a whole payload against its message: every field known or optional, of its type and size, not
 * too often, none missing. 0, or -1 with the fault named in *ret_why. */
int proto_fields_check(const struct proto_message *m, const unsigned char *p, size_t n,
                       struct proto_fields *ret, const char **ret_why);
uint32_t proto_get_u32(const struct proto_fields *f, uint16_t tag, uint32_t absent);
uint64_t proto_get_u64(const struct proto_fields *f, uint16_t tag, uint64_t absent);
const char *proto_get_string(const struct proto_fields *f, uint16_t tag, const char *absent);
const unsigned char *proto_get_bytes(const struct proto_fields *f, uint16_t tag, size_t *ret_n);
/* The next value of a repeated string after *cursor (starts at 0), or NULL. */
const char *proto_next_string(const struct proto_fields *f, uint16_t tag, size_t *cursor);

/* --- a message that comes in several frames --- */
struct proto_assembly {
    struct buf body;
    uint8_t type; /* 0: none under way */
    uint32_t channel;
};

void proto_assembly_init(struct proto_assembly *a);
void proto_assembly_finish(struct proto_assembly *a);
void proto_assembly_reset(struct proto_assembly *a);

/* Adds a frame. PROTO_WHOLE: *ret_p and *ret_n are the message's payload, valid until the next call;
 * PROTO_SHORT: more frames follow; PROTO_BAD: with the fault named. */
enum proto_parse proto_assemble(struct proto_assembly *a, const struct proto_frame *f,
                                const unsigned char **ret_p, size_t *ret_n, const char **ret_why);

/* --- stat --- */
#define PROTO_STAT_SIZE 40
struct proto_stat {
    uint32_t type; /* 1 regular, 2 directory, 3 symlink, 4 other */
    uint32_t mode, uid, gid;
    uint64_t size;
    int64_t mtime_ns;
    uint64_t inode;
};
void proto_stat_put(unsigned char to[PROTO_STAT_SIZE], const struct proto_stat *s);
void proto_stat_get(const unsigned char from[PROTO_STAT_SIZE], struct proto_stat *ret);

/* --- records in the data of LIST and WATCH ---
 *
 *     entry:  u32 length of the whole | stat (40 bytes) | u16 name's length | u16 link's length
 *             | name | link
 *     change: u32 length of the whole | u8 kind | u8 1: of a directory | u16 name's length
 *             | u16 to's length | u16 zero | name | to
 *
 * Names are paths relative to the directory that was asked about (empty: itself), of any bytes but NUL;
 * "to" is the new name of what moved within it. Records may be cut anywhere by frames. */
#define PROTO_RECORD_MAX (4 + PROTO_STAT_SIZE + 8 + 2 * PROTO_PATH_MAX)

struct proto_entry {
    struct proto_stat stat; /* of a link itself, not of what it names */
    const char *name;
    size_t name_n;    /* 1 to PROTO_PATH_MAX - 1 */
    const char *link; /* a symbolic link's text */
    size_t link_n;    /* 0 when it is none; at most PROTO_PATH_MAX - 1 */
};

enum proto_change_kind {
    PROTO_CHANGE_CREATED = 1,
    PROTO_CHANGE_MODIFIED,   /* content */
    PROTO_CHANGE_ATTRIBUTES, /* mode, owner, times, links */
    PROTO_CHANGE_REMOVED,    /* also: moved out of what is watched */
    PROTO_CHANGE_MOVED,      /* within what is watched; to is the new name */
    PROTO_CHANGE_OVERFLOW,   /* changes were lost; look at the directory again */
    PROTO_CHANGE_KIND_END
};

struct proto_change {
    enum proto_change_kind kind;
    bool directory;
    const char *name;
    size_t name_n;
    const char *to;
    size_t to_n;
};

/* Write a record of at most PROTO_RECORD_MAX bytes and return its size; 0 when it does not fit the format. */
size_t proto_entry_put(unsigned char to[PROTO_RECORD_MAX], const struct proto_entry *e);
size_t proto_change_put(unsigned char to[PROTO_RECORD_MAX], const struct proto_change *c);
/* Read one record at p. PROTO_WHOLE: *ret_size bytes were it, ret points into p. PROTO_BAD names the fault.
 */
enum proto_parse proto_entry_get(const unsigned char *p, size_t n, struct proto_entry *ret, size_t *ret_size,
                                 const char **ret_why);
enum proto_parse proto_change_get(const unsigned char *p, size_t n, struct proto_change *ret,
                                  size_t *ret_size, const char **ret_why);
