/* Synchronisation records, frames, DATA and WINDOW. */
#include <string.h>

#include "base/bytes.h"
#include "proto/proto.h"

/* No prefix of a magic is also its suffix, so a search may drop everything before a partial match. */
static const unsigned char sync_magic[16] = "\xF1SPACE-SYNC\r\n\x1A\xB7\x02";
static const unsigned char ack_magic[16] = "\xF2SPACE-SACK\r\n\x1A\xB7\x03";

static uint32_t sync_check(const unsigned char *p)
{
    uint32_t h = 2166136261u; /* FNV-1a: against chance, not against malice */
    for (size_t i = 0; i < PROTO_SYNC_SIZE - 4; i++)
        h = (h ^ p[i]) * 16777619u;
    return h;
}

static void record_put(unsigned char *to, const unsigned char *magic, const uint16_t words[2],
                       uint32_t payload_max, uint64_t epoch)
{
    memcpy(to, magic, 16);
    bytes_put_u16(to + 16, words[0]);
    bytes_put_u16(to + 18, words[1]);
    bytes_put_u32(to + 20, payload_max);
    bytes_put_u64(to + 24, epoch);
    bytes_put_u32(to + 32, 0);
    bytes_put_u32(to + 36, sync_check(to));
}

void proto_sync_put(unsigned char to[PROTO_SYNC_SIZE], const struct proto_sync *s)
{
    record_put(to, sync_magic, (const uint16_t[]){s->version_low, s->version_high}, s->payload_max, s->epoch);
}

void proto_sync_ack_put(unsigned char to[PROTO_SYNC_SIZE], const struct proto_sync *s)
{
    record_put(to, ack_magic, (const uint16_t[]){s->version, 0}, s->payload_max, s->epoch);
}

static bool record_get(const unsigned char *p, bool ack, struct proto_sync *ret)
{
    if (bytes_get_u32(p + 36) != sync_check(p) || bytes_get_u32(p + 32) != 0)
        return false;
    *ret = (struct proto_sync){.payload_max = bytes_get_u32(p + 20), .epoch = bytes_get_u64(p + 24)};
    if (ack) {
        ret->version = bytes_get_u16(p + 16);
    } else {
        ret->version_low = bytes_get_u16(p + 16);
        ret->version_high = bytes_get_u16(p + 18);
    }
    return true;
}

size_t proto_sync_find(const unsigned char *p, size_t n, bool ack, struct proto_sync *ret, bool *ret_found)
{
    const unsigned char *magic = ack ? ack_magic : sync_magic;
    size_t at = 0;
    *ret_found = false;
    while (at < n) {
        const unsigned char *hit = memchr(p + at, magic[0], n - at);
        if (!hit)
            return n;
        at = (size_t)(hit - p);
        size_t have = n - at;
        if (memcmp(hit, magic, have < 16 ? have : 16) != 0) {
            at++;
            continue;
        }
        if (have < PROTO_SYNC_SIZE)
            return at;
        if (record_get(hit, ack, ret)) {
            *ret_found = true;
            return at + PROTO_SYNC_SIZE;
        }
        at++;
    }
    return n;
}

uint32_t proto_epoch_tag(uint64_t epoch)
{
    uint32_t tag = (uint32_t)(epoch ^ (epoch >> 32));
    return tag ? tag : 1;
}

uint16_t proto_version_choose(uint16_t low, uint16_t high)
{
    if (low > high || low > PROTO_VERSION || high < PROTO_VERSION_LOWEST)
        return 0;
    return high < PROTO_VERSION ? high : PROTO_VERSION;
}

static const char *header_fault(const unsigned char *p, uint32_t tag, enum proto_from from,
                                enum proto_state state)
{
    if (bytes_get_u16(p) != PROTO_MARKER)
        return "no frame where one must begin";
    if (bytes_get_u32(p + 12) != tag)
        return "a frame of another epoch";
    const struct proto_message *m = proto_message(p[2]);
    if (!m)
        return "a message of unknown type";
    if (!(m->from & from))
        return "a message in the wrong direction";
    if (!(m->states & state))
        return "a message that is not permitted in this state";
    if ((bytes_get_u32(p + 8) != 0) != (m->channel == PROTO_ON_CHANNEL))
        return "a message on the wrong channel";
    uint32_t length = bytes_get_u32(p + 4);
    if (p[3] & ~PROTO_MORE)
        return "unknown frame flags";
    if (p[3] && (m->max <= PROTO_PAYLOAD_MAX || length == 0))
        return "a continued message that may not be continued";
    if (length > PROTO_PAYLOAD_MAX || length > m->max)
        return "a frame that is too large";
    if (length < m->min)
        return "a frame that is too short";
    return NULL;
}

enum proto_parse proto_frame_parse(const unsigned char *p, size_t n, uint32_t tag, enum proto_from from,
                                   enum proto_state state, struct proto_frame *ret, const char **ret_why)
{
    if (n < PROTO_HEADER)
        return PROTO_SHORT;
    const char *fault = header_fault(p, tag, from, state);
    if (fault) {
        *ret_why = fault;
        return PROTO_BAD;
    }
    uint32_t length = bytes_get_u32(p + 4);
    if (n < length + PROTO_OVERHEAD)
        return PROTO_SHORT;
    if (bytes_get_u32(p + PROTO_HEADER + length) != tag) {
        *ret_why = "a frame without its end";
        return PROTO_BAD;
    }
    *ret = (struct proto_frame){p[2], p[3], bytes_get_u32(p + 8), length, p + PROTO_HEADER};
    return PROTO_WHOLE;
}

void proto_header_put(unsigned char *p, uint8_t type, uint8_t flags, uint32_t length, uint32_t channel,
                      uint32_t tag)
{
    bytes_put_u16(p, PROTO_MARKER);
    p[2] = type;
    p[3] = flags;
    bytes_put_u32(p + 4, length);
    bytes_put_u32(p + 8, channel);
    bytes_put_u32(p + 12, tag);
}

bool proto_send(struct buf *out, uint32_t tag, uint8_t type, uint32_t channel, const void *payload, size_t n)
{
    size_t frames = n == 0 ? 1 : (n + PROTO_PAYLOAD_MAX - 1) / PROTO_PAYLOAD_MAX;
    unsigned char *p = buf_reserve(out, n + frames * PROTO_OVERHEAD);
    const unsigned char *from = payload;
    if (!p)
        return false;
    buf_added(out, n + frames * PROTO_OVERHEAD);
    do {
        uint32_t part = n < PROTO_PAYLOAD_MAX ? (uint32_t)n : PROTO_PAYLOAD_MAX;
        n -= part;
        proto_header_put(p, type, n ? PROTO_MORE : 0, part, channel, tag);
        if (part) {
            memcpy(p + PROTO_HEADER, from, part);
            from += part;
        }
        bytes_put_u32(p + PROTO_HEADER + part, tag);
        p += part + PROTO_OVERHEAD;
    } while (n);
    return true;
}

static bool zero(const unsigned char *p, size_t n)
{
    while (n--)
        if (*p++)
            return false;
    return true;
}

int proto_data_get(const struct proto_frame *f, struct proto_data *ret)
{
    const unsigned char *p = f->payload;
    size_t n = f->length - PROTO_DATA_PRELUDE;
    uint64_t offset = bytes_get_u64(p + 8), end;
    if (p[0] > PROTO_TO_HOST || p[1] > 1 || !zero(p + 2, 6) || __builtin_add_overflow(offset, n, &end))
        return -1;
    *ret = (struct proto_data){p[0], p[1], offset, p + PROTO_DATA_PRELUDE, n};
    return 0;
}

int proto_data_begin(const unsigned char *p, uint32_t *ret_channel, struct proto_data *ret)
{
    const struct proto_frame f = {p[2], p[3], bytes_get_u32(p + 8), bytes_get_u32(p + 4), p + PROTO_HEADER};
    if (f.type != PROTO_DATA || proto_data_get(&f, ret) < 0)
        return -1;
    *ret_channel = f.channel;
    return 0;
}

void proto_data_put(unsigned char to[PROTO_DATA_PRELUDE], enum proto_stream stream, bool fin, uint64_t offset)
{
    memset(to, 0, 8);
    to[0] = (unsigned char)stream;
    to[1] = fin;
    bytes_put_u64(to + 8, offset);
}

bool proto_data_send(struct buf *out, uint32_t tag, uint32_t channel, const struct proto_data *d)
{
    size_t length = PROTO_DATA_PRELUDE + d->n;
    unsigned char *p = buf_reserve(out, length + PROTO_OVERHEAD);
    if (!p)
        return false;
    proto_header_put(p, PROTO_DATA, 0, (uint32_t)length, channel, tag);
    proto_data_put(p + PROTO_HEADER, d->stream, d->fin, d->offset);
    if (d->n)
        memcpy(p + PROTO_HEADER + PROTO_DATA_PRELUDE, d->bytes, d->n);
    bytes_put_u32(p + PROTO_HEADER + length, tag);
    buf_added(out, length + PROTO_OVERHEAD);
    return true;
}

int proto_window_get(const struct proto_frame *f, struct proto_window *ret)
{
    const unsigned char *p = f->payload;
    struct proto_window w = {p[0], bytes_get_u64(p + 8), bytes_get_u64(p + 16)};
    if (p[0] > PROTO_TO_HOST || !zero(p + 1, 7) || w.acked > w.limit)
        return -1;
    *ret = w;
    return 0;
}

bool proto_window_send(struct buf *out, uint32_t tag, uint32_t channel, const struct proto_window *w)
{
    unsigned char p[24] = {(unsigned char)w->stream};
    bytes_put_u64(p + 8, w->acked);
    bytes_put_u64(p + 16, w->limit);
    return proto_send(out, tag, PROTO_WINDOW, channel, p, sizeof(p));
}
