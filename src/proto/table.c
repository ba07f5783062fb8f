/* The one table of messages. */
#include "base/cleanup.h"
#include "base/id.h"
#include "proto/proto.h"

#define NUM32(tag, required)                  \
    {                                         \
        (tag), PROTO_U32, (required), 4, 4, 1 \
    }
#define NUM64(tag, required)                  \
    {                                         \
        (tag), PROTO_U64, (required), 8, 8, 1 \
    }
#define STR(tag, required, max)                      \
    {                                                \
        (tag), PROTO_STRING, (required), (max), 1, 1 \
    }
#define BYTES(tag, required, size)                        \
    {                                                     \
        (tag), PROTO_BYTES, (required), (size), (size), 1 \
    }
#define LIST(tag, max, count)                         \
    {                                                 \
        (tag), PROTO_STRING, false, (max), 1, (count) \
    }

static const struct proto_field hello_fields[] = {
    STR(PROTO_F_AGENT, true, 64),   BYTES(PROTO_F_BOOT, true, 16), NUM64(PROTO_F_GENERATION, true),
    NUM32(PROTO_F_PROCESSES, true), NUM32(PROTO_F_FILES, true),    NUM32(PROTO_F_FROZEN, false),
};
static const struct proto_field lost_fields[] = {STR(PROTO_F_MESSAGE, true, 256)};
static const struct proto_field ping_fields[] = {NUM64(PROTO_F_TOKEN, true)};
static const struct proto_field pong_fields[] = {NUM64(PROTO_F_TOKEN, true), NUM64(PROTO_F_MONO, false)};
static const struct proto_field reply_fields[] = {
    NUM32(PROTO_F_REQUEST, true),
    NUM32(PROTO_F_CODE, true),
    STR(PROTO_F_MESSAGE, false, 512),
};
static const struct proto_field identify_fields[] = {
    NUM32(PROTO_F_REQUEST, true),     STR(PROTO_F_SANDBOX, true, ID_SIZE), STR(PROTO_F_HOSTNAME, true, 64),
    BYTES(PROTO_F_MACHINE, true, 16), NUM64(PROTO_F_GENERATION, true),     BYTES(PROTO_F_SEED, true, 64),
    NUM64(PROTO_F_WALL, true),        NUM64(PROTO_F_MONO, false),
};
static const struct proto_field shutdown_fields[] = {NUM32(PROTO_F_REQUEST, true),
                                                     NUM32(PROTO_F_GRACE, true)};
static const struct proto_field quiesce_fields[] = {NUM32(PROTO_F_REQUEST, true), NUM32(PROTO_F_LIMIT, true)};
static const struct proto_field request_fields[] = {NUM32(PROTO_F_REQUEST, true)};
static const struct proto_field exec_fields[] = {
    STR(PROTO_F_PROCESS, true, ID_SIZE),
    LIST(PROTO_F_ARG, PROTO_STRINGS_MAX, PROTO_STRINGS_COUNT),
    LIST(PROTO_F_ENV, PROTO_STRINGS_MAX, PROTO_STRINGS_COUNT),
    STR(PROTO_F_SHELL, false, PROTO_STRINGS_MAX),
    STR(PROTO_F_CWD, false, PROTO_PATH_MAX),
    STR(PROTO_F_USER, false, 256),
    NUM32(PROTO_F_FLAGS, true),
    NUM32(PROTO_F_ROWS, false),
    NUM32(PROTO_F_COLS, false),
    STR(PROTO_F_TERM, false, 64),
    NUM32(PROTO_F_TIMEOUT, true),
    NUM32(PROTO_F_GRACE, false), /* optional: an agent of an earlier release kills at once */
    NUM64(PROTO_F_STDOUT_LIMIT, true),
    NUM64(PROTO_F_STDERR_LIMIT, true),
};
static const struct proto_field attach_fields[] = {
    STR(PROTO_F_PROCESS, true, ID_SIZE), NUM64(PROTO_F_STDOUT, true),       NUM64(PROTO_F_STDERR, true),
    NUM64(PROTO_F_STDOUT_LIMIT, true),   NUM64(PROTO_F_STDERR_LIMIT, true),
};
static const struct proto_field started_fields[] = {
    NUM32(PROTO_F_PID, true),
    NUM64(PROTO_F_STDIN, true),
    NUM64(PROTO_F_STDIN_LIMIT, true),
};
static const struct proto_field exit_fields[] = {
    NUM32(PROTO_F_REASON, true), NUM32(PROTO_F_EXIT, true),        NUM32(PROTO_F_SIGNAL, true),
    NUM64(PROTO_F_STDOUT, true), NUM64(PROTO_F_STDERR, true),      NUM64(PROTO_F_CPU, true),
    NUM64(PROTO_F_RSS, true),    STR(PROTO_F_MESSAGE, false, 256),
};
static const struct proto_field signal_fields[] = {
    NUM32(PROTO_F_REQUEST, true), NUM32(PROTO_F_SIGNAL, true), NUM32(PROTO_F_TREE, true),
    NUM32(PROTO_F_GRACE, false), /* likewise */
};
static const struct proto_field resize_fields[] = {NUM32(PROTO_F_ROWS, true), NUM32(PROTO_F_COLS, true)};
static const struct proto_field file_fields[] = {
    NUM32(PROTO_F_OP, true),         STR(PROTO_F_PATH, true, PROTO_PATH_MAX),
    STR(PROTO_F_USER, false, 256),   NUM32(PROTO_F_MODE, false),
    NUM32(PROTO_F_RECURSIVE, false), NUM64(PROTO_F_OFFSET, false),
    NUM64(PROTO_F_LENGTH, false),    STR(PROTO_F_TARGET, false, PROTO_PATH_MAX),
    NUM32(PROTO_F_FLAGS, false),     NUM32(PROTO_F_DEPTH, false),
    NUM32(PROTO_F_LIMIT, false),     STR(PROTO_F_AFTER, false, PROTO_PATH_MAX),
    STR(PROTO_F_OWNER, false, 256),
};
static const struct proto_field opened_fields[] = {BYTES(PROTO_F_STAT, true, PROTO_STAT_SIZE)};
static const struct proto_field done_fields[] = {
    NUM32(PROTO_F_CODE, true),
    STR(PROTO_F_MESSAGE, false, 512),
    BYTES(PROTO_F_STAT, false, PROTO_STAT_SIZE),
};

static const struct proto_field dial_fields[] = {NUM32(PROTO_F_PORT, true)};
static const struct proto_field conn_done_fields[] = {NUM32(PROTO_F_CODE, true),
                                                      STR(PROTO_F_MESSAGE, false, 512)};

#define HOST PROTO_FROM_HOST
#define GUEST PROTO_FROM_GUEST
#define FIELDS(f) PROTO_FIELDS, 0, 4096, (f), ARRAY_LEN(f)
#define EMPTY PROTO_FIELDS, 0, 4096, NULL, 0

static const struct proto_message messages[] = {
    {PROTO_HELLO, "HELLO", GUEST, PROTO_AFTER_SYNC, PROTO_ON_LINK, FIELDS(hello_fields)},
    {PROTO_LOST, "LOST", GUEST, PROTO_AFTER_SYNC | PROTO_UP, PROTO_ON_LINK, FIELDS(lost_fields)},
    {PROTO_PING, "PING", HOST, PROTO_UP, PROTO_ON_LINK, FIELDS(ping_fields)},
    {PROTO_PONG, "PONG", GUEST, PROTO_UP, PROTO_ON_LINK, FIELDS(pong_fields)},
    {PROTO_REPLY, "REPLY", GUEST, PROTO_UP, PROTO_ON_LINK, FIELDS(reply_fields)},
    {PROTO_IDENTIFY, "IDENTIFY", HOST, PROTO_UP, PROTO_ON_LINK, FIELDS(identify_fields)},
    {PROTO_SHUTDOWN, "SHUTDOWN", HOST, PROTO_UP, PROTO_ON_LINK, FIELDS(shutdown_fields)},
    {PROTO_SYNCFS, "SYNCFS", HOST, PROTO_UP, PROTO_ON_LINK, FIELDS(request_fields)},
    {PROTO_EXEC, "EXEC", HOST, PROTO_UP, PROTO_ON_CHANNEL, PROTO_FIELDS, 0, PROTO_EXEC_MAX, exec_fields,
     ARRAY_LEN(exec_fields)},
    {PROTO_ATTACH, "ATTACH", HOST, PROTO_UP, PROTO_ON_CHANNEL, FIELDS(attach_fields)},
    {PROTO_STARTED, "STARTED", GUEST, PROTO_UP, PROTO_ON_CHANNEL, FIELDS(started_fields)},
    {PROTO_EXIT, "EXIT", GUEST, PROTO_UP, PROTO_ON_CHANNEL, FIELDS(exit_fields)},
    {PROTO_RELEASE, "RELEASE", HOST, PROTO_UP, PROTO_ON_CHANNEL, EMPTY},
    {PROTO_SIGNAL, "SIGNAL", HOST, PROTO_UP, PROTO_ON_CHANNEL, FIELDS(signal_fields)},
    {PROTO_RESIZE, "RESIZE", HOST, PROTO_UP, PROTO_ON_CHANNEL, FIELDS(resize_fields)},
    {PROTO_DATA, "DATA", HOST | GUEST, PROTO_UP, PROTO_ON_CHANNEL, PROTO_FIXED, PROTO_DATA_PRELUDE,
     PROTO_PAYLOAD_MAX, NULL, 0},
    {PROTO_WINDOW, "WINDOW", HOST | GUEST, PROTO_UP, PROTO_ON_CHANNEL, PROTO_FIXED, 24, 24, NULL, 0},
    {PROTO_FILE, "FILE", HOST, PROTO_UP, PROTO_ON_CHANNEL, PROTO_FIELDS, 0, 16384, file_fields,
     ARRAY_LEN(file_fields)},
    {PROTO_FILE_OPENED, "FILE_OPENED", GUEST, PROTO_UP, PROTO_ON_CHANNEL, FIELDS(opened_fields)},
    {PROTO_FILE_COMMIT, "FILE_COMMIT", HOST, PROTO_UP, PROTO_ON_CHANNEL, EMPTY},
    {PROTO_FILE_CLOSE, "FILE_CLOSE", HOST, PROTO_UP, PROTO_ON_CHANNEL, EMPTY},
    {PROTO_FILE_DONE, "FILE_DONE", GUEST, PROTO_UP, PROTO_ON_CHANNEL, FIELDS(done_fields)},
    {PROTO_QUIESCE, "QUIESCE", HOST, PROTO_UP, PROTO_ON_LINK, FIELDS(quiesce_fields), 2},
    {PROTO_DIAL, "DIAL", HOST, PROTO_UP, PROTO_ON_CHANNEL, FIELDS(dial_fields), 3},
    {PROTO_DIALED, "DIALED", GUEST, PROTO_UP, PROTO_ON_CHANNEL, EMPTY, 3},
    {PROTO_CONN_CLOSE, "CONN_CLOSE", HOST, PROTO_UP, PROTO_ON_CHANNEL, EMPTY, 3},
    {PROTO_CONN_DONE, "CONN_DONE", GUEST, PROTO_UP, PROTO_ON_CHANNEL, FIELDS(conn_done_fields), 3},
};

const struct proto_message *proto_message(unsigned type)
{
    /* The rows are in the order of their types, from 1 (a unit test holds them to it). */
    return type >= 1 && type <= ARRAY_LEN(messages) ? &messages[type - 1] : NULL;
}
