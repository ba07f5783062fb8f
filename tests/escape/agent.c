/* The inmate as a guest's agent: enough of the protocol for a sandbox to be called running. */
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "inmate.h"
#include "proto/proto.h"

static void send_message(struct peer *p, uint8_t type, uint32_t channel, const struct buf *payload)
{
    struct buf out;
    buf_init(&out, 65536);
    if (proto_send(&out, p->tag, type, channel, buf_head(payload), buf_len(payload)))
        (void)peer_send(p, buf_head(&out), buf_len(&out));
    buf_finish(&out);
}

static void send_hello(struct peer *p)
{
    static const unsigned char boot[16] = "an inmate's boot";
    struct buf b;
    buf_init(&b, 4096);
    (void)proto_put_string(&b, PROTO_F_AGENT, "inmate");
    (void)proto_put_bytes(&b, PROTO_F_BOOT, boot, sizeof(boot));
    (void)proto_put_u64(&b, PROTO_F_GENERATION, 0);
    (void)proto_put_u32(&b, PROTO_F_PROCESSES, PROTO_PROCESSES_MAX);
    (void)proto_put_u32(&b, PROTO_F_FILES, PROTO_FILES_MAX);
    send_message(p, PROTO_HELLO, 0, &b);
    buf_finish(&b);
}

static void meet(struct peer *p)
{
    struct proto_sync s;
    bool found;
    buf_consume(&p->in, proto_sync_find(buf_head(&p->in), buf_len(&p->in), false, &s, &found));
    if (!found)
        return;
    unsigned char ack[PROTO_SYNC_SIZE];
    s.version = PROTO_VERSION;
    s.payload_max = PROTO_PAYLOAD_MAX;
    proto_sync_ack_put(ack, &s);
    p->tag = proto_epoch_tag(s.epoch);
    p->synced = peer_send(p, ack, sizeof(ack));
    if (p->synced && !lie_at(p, ON_SYNC, 0))
        send_hello(p);
}

static void reply(struct peer *p, const struct proto_fields *f)
{
    struct buf b;
    buf_init(&b, 4096);
    (void)proto_put_u32(&b, PROTO_F_REQUEST, proto_get_u32(f, PROTO_F_REQUEST, 0));
    (void)proto_put_u32(&b, PROTO_F_CODE, 0);
    send_message(p, PROTO_REPLY, 0, &b);
    buf_finish(&b);
}

static void pong(struct peer *p, const struct proto_fields *f)
{
    struct buf b;
    struct timespec now;
    buf_init(&b, 4096);
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    (void)proto_put_u64(&b, PROTO_F_TOKEN, proto_get_u64(f, PROTO_F_TOKEN, 0));
    (void)proto_put_u64(&b, PROTO_F_MONO, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
    send_message(p, PROTO_PONG, 0, &b);
    buf_finish(&b);
}

/* A command begins and has ended, with status 0 and no output. */
static void pretend(struct peer *p, uint32_t channel)
{
    struct buf b;
    buf_init(&b, 4096);
    (void)proto_put_u32(&b, PROTO_F_PID, 2);
    (void)proto_put_u64(&b, PROTO_F_STDIN, 0);
    (void)proto_put_u64(&b, PROTO_F_STDIN_LIMIT, 0);
    send_message(p, PROTO_STARTED, channel, &b);
    buf_finish(&b);
    buf_init(&b, 4096);
    (void)proto_put_u32(&b, PROTO_F_REASON, PROTO_REASON_EXIT);
    (void)proto_put_u32(&b, PROTO_F_EXIT, 0);
    (void)proto_put_u32(&b, PROTO_F_SIGNAL, 0);
    static const uint16_t zeros[] = {PROTO_F_STDOUT, PROTO_F_STDERR, PROTO_F_CPU, PROTO_F_RSS};
    for (size_t i = 0; i < sizeof(zeros) / sizeof(zeros[0]); i++)
        (void)proto_put_u64(&b, zeros[i], 0);
    send_message(p, PROTO_EXIT, channel, &b);
    buf_finish(&b);
}

static void refuse_file(struct peer *p, uint32_t channel)
{
    struct buf b;
    buf_init(&b, 4096);
    (void)proto_put_u32(&b, PROTO_F_CODE, 1);
    (void)proto_put_string(&b, PROTO_F_MESSAGE, "no");
    send_message(p, PROTO_FILE_DONE, channel, &b);
    buf_finish(&b);
}

static void take(struct peer *p, const struct proto_frame *f)
{
    const struct proto_message *m = proto_message(f->type);
    struct proto_fields fields = {0};
    const char *why;
    if (!m || (m->format == PROTO_FIELDS && proto_fields_check(m, f->payload, f->length, &fields, &why) < 0))
        return;
    switch (f->type) {
    case PROTO_PING:
        pong(p, &fields);
        return;
    case PROTO_IDENTIFY:
        reply(p, &fields);
        (void)lie_at(p, ON_IDENTIFIED, 0);
        return;
    case PROTO_SHUTDOWN:
    case PROTO_SYNCFS:
    case PROTO_QUIESCE:
    case PROTO_SIGNAL:
        reply(p, &fields);
        return;
    case PROTO_EXEC:
    case PROTO_ATTACH: /* on a new link, after a lie has ended the one before */
        if (!lie_at(p, ON_EXEC, f->channel))
            pretend(p, f->channel);
        return;
    case PROTO_FILE:
        refuse_file(p, f->channel);
        return;
    default:
        return;
    }
}

void agent_serve(struct peer *p)
{
    if (!p->synced)
        meet(p);
    while (p->synced && buf_len(&p->in) > 0) {
        struct proto_frame f;
        const char *why = "";
        enum proto_parse got =
            proto_frame_parse(buf_head(&p->in), buf_len(&p->in), p->tag, PROTO_FROM_HOST, PROTO_UP, &f, &why);
        if (got == PROTO_SHORT)
            return;
        if (got == PROTO_BAD) { /* another epoch's, or a new SYNC */
            p->synced = false;
            meet(p);
            continue;
        }
        take(p, &f);
        buf_consume(&p->in, f.length + PROTO_OVERHEAD);
    }
}
