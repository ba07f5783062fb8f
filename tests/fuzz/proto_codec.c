/* Fuzz target: synchronisation records, frames and fields, from either side. The first byte chooses what. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"

#define TAG 0x01010101u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_sync(const uint8_t *p, size_t n, bool ack)
{
    struct proto_sync s;
    bool found = true;
    size_t at = 0;
    while (at < n) {
        size_t used = proto_sync_find(p + at, n - at, ack, &s, &found);
        if (used > n - at)
            abort();
        if (used == 0)
            break;
        at += used;
    }
}

static void fuzz_fields(const struct proto_frame *f, const uint8_t *p, size_t n)
{
    struct proto_fields fields;
    const char *why;
    size_t cursor = 0, count;
    if (proto_fields_check(proto_message(f->type), p, n, &fields, &why) < 0)
        return;
    for (uint16_t tag = 1; tag < PROTO_F_END; tag++) {
        const struct proto_message *m = proto_message(f->type);
        for (size_t i = 0; i < m->field_count; i++) {
            if (m->fields[i].tag != tag)
                continue;
            if (m->fields[i].type == PROTO_U32)
                (void)proto_get_u32(&fields, tag, 0);
            else if (m->fields[i].type == PROTO_U64)
                (void)proto_get_u64(&fields, tag, 0);
            else if (m->fields[i].type == PROTO_BYTES)
                (void)proto_get_bytes(&fields, tag, &count);
            else
                for (const char *s; (s = proto_next_string(&fields, tag, &cursor));)
                    if (strlen(s) > PROTO_EXEC_MAX)
                        abort();
        }
    }
}

static void fuzz_frames(const uint8_t *p, size_t n, enum proto_from from, enum proto_state state)
{
    struct proto_assembly a;
    struct proto_frame f;
    struct proto_data d;
    struct proto_window w;
    const char *why;
    const unsigned char *body;
    size_t body_n;
    proto_assembly_init(&a);
    while (proto_frame_parse(p, n, TAG, from, state, &f, &why) == PROTO_WHOLE) {
        if (f.type == PROTO_DATA)
            (void)proto_data_get(&f, &d);
        else if (f.type == PROTO_WINDOW)
            (void)proto_window_get(&f, &w);
        else if (proto_assemble(&a, &f, &body, &body_n, &why) == PROTO_WHOLE)
            fuzz_fields(&f, body, body_n);
        p += f.length + PROTO_OVERHEAD;
        n -= f.length + PROTO_OVERHEAD;
    }
    proto_assembly_finish(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    uint8_t choice = data[0] % 4;
    data++;
    size--;
    if (choice < 2)
        fuzz_sync(data, size, choice == 1);
    else
        fuzz_frames(data, size, choice == 2 ? PROTO_FROM_HOST : PROTO_FROM_GUEST,
                    choice == 2 ? PROTO_UP : PROTO_AFTER_SYNC | PROTO_UP);
    return 0;
}
