/* Lies and floods on the two channels to the server. One is chosen by the fact `lie`, and told when its
 * moment comes. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/bytes.h"
#include "inmate.h"
#include "proto/proto.h"

#define FLOOD_S 4

static char block[65536];

static void repeat(struct peer *p, const void *data, size_t n)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    time_t end = now.tv_sec + FLOOD_S;
    while (now.tv_sec < end && peer_send(p, data, n))
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
}

static void repeat_text(struct peer *p, const char *text)
{
    size_t n = strlen(text);
    size_t used = 0;
    for (; used + n <= sizeof(block); used += n)
        memcpy(block + used, text, n);
    repeat(p, block, used);
}

static void send_text(struct peer *p, const char *text)
{
    (void)peer_send(p, text, strlen(text));
}

/* --- control --- */

static void control_noise(struct peer *p, uint32_t channel)
{
    (void)channel;
    for (size_t i = 0; i < sizeof(block); i++)
        block[i] = (char)(i * 2654435761u >> 13);
    repeat(p, block, sizeof(block));
}

static void control_endless_line(struct peer *p, uint32_t channel)
{
    (void)channel;
    memset(block, 'a', sizeof(block));
    send_text(p, "{\"QMP\": \"");
    repeat(p, block, sizeof(block));
}

static void control_deep(struct peer *p, uint32_t channel)
{
    (void)channel;
    memset(block, '[', 60000);
    block[60000] = '\n';
    (void)peer_send(p, block, 60001);
}

static void control_silent(struct peer *p, uint32_t channel)
{
    (void)p;
    (void)channel;
}

static void control_events(struct peer *p, uint32_t channel)
{
    (void)channel;
    repeat_text(p, "{\"event\": \"STOP\", \"data\": {}}\r\n{\"event\": \"MIGRATION\", \"data\": {\"status\": "
                   "\"x\"}}\r\n");
}

static void control_wrong_ids(struct peer *p, uint32_t channel)
{
    (void)channel;
    send_text(p, "{\"return\": {}, \"id\": 4000000000000000000}\r\n");
}

static void control_wrong_types(struct peer *p, uint32_t channel)
{
    (void)channel;
    send_text(p, "{\"return\": [[[]]], \"id\": \"one\", \"error\": 7, \"event\": {}}\r\n");
}

static void control_errors(struct peer *p, uint32_t channel)
{
    static char text[61440];
    (void)channel;
    memset(block, 'e', 60000);
    block[60000] = '\0';
    for (int id = 1; id <= 4; id++) {
        (void)snprintf(text, sizeof(text),
                       "{\"error\": {\"class\": \"x\", \"desc\": \"\\u001b[2J%.60000s\"}, \"id\": %d}\r\n",
                       block, id);
        send_text(p, text);
    }
}

static void control_hangup(struct peer *p, uint32_t channel)
{
    (void)channel;
    send_text(p, "{\"event\": \"SHUTDOWN\", \"data\": {\"guest\": true, \"reason\": "
                 "\"guest-\\u0000\\u001b[2Jpanic\"}}\r\n");
    (void)shutdown(p->fd, SHUT_RDWR);
}

/* --- agent --- */

static void agent_zeros(struct peer *p, uint32_t channel)
{
    (void)channel;
    memset(block, 0, sizeof(block));
    repeat(p, block, sizeof(block));
}

/* Acknowledges epochs that nobody has begun. */
static void agent_acks(struct peer *p, uint32_t channel)
{
    unsigned char ack[PROTO_SYNC_SIZE];
    struct proto_sync s = {.version = PROTO_VERSION, .payload_max = PROTO_PAYLOAD_MAX, .epoch = 42};
    (void)channel;
    proto_sync_ack_put(ack, &s);
    for (size_t at = 0; at + sizeof(ack) <= sizeof(block); at += sizeof(ack))
        memcpy(block + at, ack, sizeof(ack));
    repeat(p, block, sizeof(block) / sizeof(ack) * sizeof(ack));
}

static void agent_no_hello(struct peer *p, uint32_t channel)
{
    (void)p;
    (void)channel;
}

/* A header that announces more than there may be, then bytes without end. */
static void agent_giant(struct peer *p, uint32_t channel)
{
    unsigned char header[PROTO_HEADER];
    proto_header_put(header, PROTO_DATA, 0, UINT32_MAX, channel ? channel : 1, p->tag);
    (void)peer_send(p, header, sizeof(header));
    agent_zeros(p, channel);
}

static void agent_noise(struct peer *p, uint32_t channel)
{
    control_noise(p, channel);
}

static void put_frame(struct peer *p, uint8_t type, uint32_t channel, const struct buf *payload,
                      unsigned times)
{
    struct buf out;
    buf_init(&out, 1 << 20);
    for (unsigned i = 0; i < times; i++)
        (void)proto_send(&out, p->tag, type, channel, buf_head(payload), buf_len(payload));
    (void)peer_send(p, buf_head(&out), buf_len(&out));
    buf_finish(&out);
}

static void put_number(struct peer *p, uint8_t type, uint32_t channel, const uint16_t *tags, unsigned n,
                       uint64_t v)
{
    struct buf b;
    buf_init(&b, 4096);
    for (unsigned i = 0; i < n; i++)
        (void)proto_put_u64(&b, tags[i], v);
    put_frame(p, type, channel, &b, 64);
    buf_finish(&b);
}

static void agent_pongs(struct peer *p, uint32_t channel)
{
    static const uint16_t tags[] = {PROTO_F_TOKEN};
    (void)channel;
    for (int i = 0; i < 2000; i++)
        put_number(p, PROTO_PONG, 0, tags, 1, 7);
}

static void agent_hellos(struct peer *p, uint32_t channel)
{
    static const uint16_t tags[] = {PROTO_F_GENERATION};
    (void)channel;
    put_number(p, PROTO_HELLO, 0, tags, 1, UINT64_MAX);
}

/* Replies to requests that were never made. */
static void agent_replies(struct peer *p, uint32_t channel)
{
    struct buf b;
    (void)channel;
    buf_init(&b, 4096);
    (void)proto_put_u32(&b, PROTO_F_REQUEST, 0x7fffffff);
    (void)proto_put_u32(&b, PROTO_F_CODE, 0);
    for (int i = 0; i < 500; i++)
        put_frame(p, PROTO_REPLY, 0, &b, 64);
    buf_finish(&b);
}

static void start(struct peer *p, uint32_t channel)
{
    struct buf b;
    buf_init(&b, 4096);
    (void)proto_put_u32(&b, PROTO_F_PID, 2);
    (void)proto_put_u64(&b, PROTO_F_STDIN, 0);
    (void)proto_put_u64(&b, PROTO_F_STDIN_LIMIT, 0);
    put_frame(p, PROTO_STARTED, channel, &b, 1);
    buf_finish(&b);
}

static void put_data(struct peer *p, uint32_t channel, enum proto_stream stream, uint64_t offset, size_t n)
{
    struct buf out;
    struct proto_data d = {.stream = stream, .offset = offset, .bytes = (unsigned char *)block, .n = n};
    buf_init(&out, 1 << 20);
    if (proto_data_send(&out, p->tag, channel, &d))
        (void)peer_send(p, buf_head(&out), buf_len(&out));
    buf_finish(&out);
}

/* Output without regard to credit. */
static void exec_beyond_credit(struct peer *p, uint32_t channel)
{
    start(p, channel);
    for (uint64_t i = 0; i < 4096; i++)
        put_data(p, channel, PROTO_STDOUT, i * 32000, 32000);
}

static void exec_gap(struct peer *p, uint32_t channel)
{
    start(p, channel);
    put_data(p, channel, PROTO_STDOUT, UINT64_MAX - 100, 50);
}

static void exec_other_channel(struct peer *p, uint32_t channel)
{
    start(p, channel);
    for (uint32_t i = 1; i < 500; i++)
        put_data(p, channel + i * 1000, PROTO_STDOUT, 0, 100);
}

static void exec_wrong_stream(struct peer *p, uint32_t channel)
{
    start(p, channel);
    put_data(p, channel, PROTO_TO_HOST, 0, 100);
    put_data(p, channel, PROTO_FILE_DATA, 0, 100);
}

/* The end before the beginning, twice, with output that was never sent. */
static void exec_ends(struct peer *p, uint32_t channel)
{
    static const uint16_t numbers[] = {PROTO_F_STDOUT, PROTO_F_STDERR, PROTO_F_CPU, PROTO_F_RSS};
    struct buf b;
    buf_init(&b, 4096);
    (void)proto_put_u32(&b, PROTO_F_REASON, PROTO_REASON_EXIT);
    (void)proto_put_u32(&b, PROTO_F_EXIT, 0);
    (void)proto_put_u32(&b, PROTO_F_SIGNAL, 0);
    for (size_t i = 0; i < 4; i++)
        (void)proto_put_u64(&b, numbers[i], UINT64_MAX);
    put_frame(p, PROTO_EXIT, channel, &b, 2);
    buf_finish(&b);
}

static void exec_windows(struct peer *p, uint32_t channel)
{
    struct buf out;
    struct proto_window w = {.stream = PROTO_STDIN, .acked = UINT64_MAX, .limit = UINT64_MAX};
    start(p, channel);
    buf_init(&out, 1 << 20);
    for (int i = 0; i < 1000; i++)
        (void)proto_window_send(&out, p->tag, channel, &w);
    (void)peer_send(p, buf_head(&out), buf_len(&out));
    buf_finish(&out);
}

/* Says LOST each time: the host would synchronise for ever. */
static void agent_lost(struct peer *p, uint32_t channel)
{
    struct buf b;
    (void)channel;
    buf_init(&b, 4096);
    (void)proto_put_string(&b, PROTO_F_MESSAGE, "\x1b[2Jlost");
    put_frame(p, PROTO_LOST, 0, &b, 200);
    buf_finish(&b);
}

const struct inmate_lie lies[] = {
    {"control-noise", "random bytes in place of QMP's greeting", "that sandbox fails", ON_CONTROL,
     control_noise},
    {"control-endless-line", "a line of QMP without end", "that sandbox fails, memory stays bounded",
     ON_CONTROL, control_endless_line},
    {"control-deep", "JSON 60,000 levels deep", "that sandbox fails", ON_CONTROL, control_deep},
    {"control-silent", "no greeting at all", "that sandbox fails or waits, alone", ON_CONTROL,
     control_silent},
    {"control-events", "events without end in place of an answer", "nobody else waits", ON_COMMAND,
     control_events},
    {"control-wrong-ids", "answers to commands that were not given", "that sandbox fails or waits, alone",
     ON_COMMAND, control_wrong_ids},
    {"control-wrong-types", "numbers where QMP has objects", "that sandbox fails", ON_COMMAND,
     control_wrong_types},
    {"control-errors", "errors of 60 KB with a terminal's commands", "that sandbox fails, its text is clean",
     ON_COMMAND, control_errors},
    {"control-hangup", "a SHUTDOWN with control bytes, then the end of the channel", "that sandbox fails",
     ON_COMMAND, control_hangup},
    {"agent-zeros", "zeros without end in place of an acknowledgement", "that sandbox fails or waits, alone",
     ON_AGENT, agent_zeros},
    {"agent-noise", "random bytes without end", "that sandbox fails or waits, alone", ON_AGENT, agent_noise},
    {"agent-acks", "acknowledgements of epochs that nobody began", "that sandbox fails or waits, alone",
     ON_AGENT, agent_acks},
    {"agent-no-hello", "an acknowledgement, then silence", "that sandbox fails or waits, alone", ON_SYNC,
     agent_no_hello},
    {"agent-giant", "a frame of 4 GiB", "that sandbox fails, memory stays bounded", ON_SYNC, agent_giant},
    {"agent-lost", "LOST again and again", "that sandbox fails or waits, alone", ON_SYNC, agent_lost},
    {"agent-hellos", "malformed HELLOs", "that sandbox fails", ON_SYNC, agent_hellos},
    {"agent-pongs", "PONGs to no PING", "that sandbox fails", ON_IDENTIFIED, agent_pongs},
    {"agent-replies", "replies to requests that were not made", "that sandbox fails or they are dropped",
     ON_IDENTIFIED, agent_replies},
    {"exec-beyond-credit", "128 MiB of output without credit",
     "no exit status is invented, memory stays bounded", ON_EXEC, exec_beyond_credit},
    {"exec-gap", "output at an offset near 2^64", "no exit status is invented", ON_EXEC, exec_gap},
    {"exec-other-channel", "output of commands that were not started", "no exit status is invented", ON_EXEC,
     exec_other_channel},
    {"exec-wrong-stream", "a connection's and a file's data on a command's channel",
     "no exit status is invented", ON_EXEC, exec_wrong_stream},
    {"exec-ends", "the end of a command that has not begun, twice, with 2^64 bytes of output",
     "no exit status is invented", ON_EXEC, exec_ends},
    {"exec-windows", "credit for 2^64 bytes of input, acknowledged before they were sent",
     "no exit status is invented", ON_EXEC, exec_windows},
    {0},
};

bool lie_at(struct peer *p, enum moment moment, uint32_t channel)
{
    if (!fact_given("lie"))
        return false;
    for (const struct inmate_lie *l = lies; l->name; l++) {
        if (l->moment == moment && strcmp(l->name, fact("lie")) == 0) {
            l->tell(p, channel);
            return true;
        }
    }
    return false;
}
