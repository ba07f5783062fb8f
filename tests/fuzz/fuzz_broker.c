/* The broker channel's parser, both ways. The first byte chooses: a request with that many descriptors as
 * space-privd reads it, or a reply as spaced does. What is accepted must encode to the same bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "broker/protocol.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_request(const uint8_t *data, size_t size, unsigned fd_count)
{
    static unsigned char again[WIRE_MESSAGE_MAX];
    struct error err = ERROR_INIT;
    struct request *q = calloc(1, sizeof(*q));
    if (!q)
        abort();
    if (request_decode(data, size, fd_count, q, &err) == 0) {
        size_t n = request_encode(q, again, sizeof(again));
        if (n != size || memcmp(again, data, n) != 0)
            abort();
        if (q->sandbox_id[0] && !protocol_sandbox_id(q->sandbox_id))
            abort();
        if (q->snapshot_id[0] && !protocol_snapshot_id(q->snapshot_id))
            abort();
        if (q->source_id[0] && !protocol_snapshot_id(q->source_id))
            abort();
        if (strchr(q->key, '/') || strchr(q->digest, '/') || strchr(q->platform, '/') ||
            strchr(q->suite, '/'))
            abort();
    } else if (err.code == 0) {
        abort(); /* refused without a reason */
    }
    free(q);
}

static void try_reply(const uint8_t *data, size_t size, unsigned fd_count)
{
    static unsigned char again[WIRE_MESSAGE_MAX];
    struct error err = ERROR_INIT;
    struct reply *r = calloc(1, sizeof(*r));
    if (!r)
        abort();
    if (reply_decode(data, size, fd_count, r, &err) == 0) {
        size_t n = reply_encode(r, again, sizeof(again));
        if (n != size || memcmp(again, data, n) != 0)
            abort();
    }
    free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    unsigned fd_count = data[0] & 3;
    if (data[0] & 4)
        try_reply(data + 1, size - 1, fd_count);
    else
        try_request(data + 1, size - 1, fd_count);
    return 0;
}
