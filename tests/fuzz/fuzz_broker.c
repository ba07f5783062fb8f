/* The broker channel's parser, both ways. The first byte chooses: a request with that many descriptors as
 * space-privd reads it, or a reply as spaced does. What is accepted must encode to the same bytes. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "broker/protocol.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every field is within what its row of the table allows, whatever the parser thought, and no text leads out
 * of a directory. */
static void check_fields(const struct wire_field *f, const char *message, bool names)
{
    for (; f->name; f++) {
        const char *member = message + f->offset;
        uint32_t number;
        const struct wire_list *list = (const void *)member;
        switch (f->kind) {
        case WIRE_U32:
            memcpy(&number, member, sizeof(number));
            if (number < f->min || number > f->max)
                abort();
            break;
        case WIRE_U64:
            break;
        case WIRE_STR:
            if (!memchr(member, '\0', f->size) || (f->check && !f->check(member)))
                abort();
            if (names && (strchr(member, '/') || strcmp(member, "..") == 0 || strcmp(member, ".") == 0))
                abort();
            break;
        case WIRE_LIST:
            if (list->count > f->max || list->used > sizeof(list->data))
                abort();
            for (const char *s = NULL; (s = wire_list_next(list, s));)
                if ((f->check && !f->check(s)) || (names && (strchr(s, '/') || s[0] == '-')))
                    abort();
            break;
        }
    }
}

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
        const struct request_info *info = request_info(q->type);
        if (fd_count < info->fds_min || fd_count > info->fds_max)
            abort();
        check_fields(info->fields, (const char *)q, true);
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
        if (!r->failed)
            check_fields(request_info(r->type)->reply_fields, (const char *)r, false);
    } else if (err.code == 0) {
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
