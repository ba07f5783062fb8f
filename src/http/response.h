/* Answers of an HTTP/1 server that nobody trusts, read as they come. Strict where two readers could differ
 * about where an answer ends: two lengths, a length beside chunks, an unknown encoding, a malformed chunk are
 * errors, and so is whatever is no header field. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

#define RESPONSE_HEAD_MAX (16 * 1024) /* bytes of one head */
#define RESPONSE_FIELDS_MAX 100
#define RESPONSE_INTERIM_MAX 16          /* heads of 1xx before the answer's own; they are dropped */
#define RESPONSE_CHUNK_LINE_MAX 256      /* a chunk's size with its extensions, which are dropped */
#define RESPONSE_TRAILER_MAX (16 * 1024) /* bytes of fields after the last chunk; they are dropped */

struct response_field {
    const char *name;  /* a token */
    const char *value; /* no control bytes but tabs, no blanks around it; may be "" */
};

enum response_state {
    RESPONSE_IN_HEAD,
    RESPONSE_IN_BODY,       /* of a known length */
    RESPONSE_IN_REST,       /* to the end of the connection */
    RESPONSE_IN_CHUNK_LINE, /* the size of a chunk */
    RESPONSE_IN_CHUNK,
    RESPONSE_AFTER_CHUNK, /* CRLF */
    RESPONSE_IN_TRAILER,
    RESPONSE_SWITCHED, /* after 101: the bytes are of another protocol */
    RESPONSE_COMPLETE,
    RESPONSE_BROKEN
};

enum response_event {
    RESPONSE_MORE,  /* everything was used; more is needed */
    RESPONSE_HEAD,  /* the head is complete: status, fields, framing can be read */
    RESPONSE_DATA,  /* bytes of the body */
    RESPONSE_END,   /* the answer is complete */
    RESPONSE_SWITCH /* after the head of 101: what follows is for whoever asked for it */
};

struct response {
    /* What was asked. */
    bool to_head, upgrade;
    /* From RESPONSE_HEAD on. */
    unsigned status;
    bool keep_alive; /* the connection may be used again after RESPONSE_END */
    bool chunked;    /* announced, also where there is no body */
    uint64_t length; /* announced (Content-Length), UINT64_MAX: not */
    bool has_body;   /* one may follow, perhaps an empty one */
    struct response_field field[RESPONSE_FIELDS_MAX];
    unsigned fields;
    /* Inside. */
    enum response_state state;

    struct buf head;
    size_t scanned; /* of head: holds no end */
    unsigned interim;
    bool started;  /* a byte of the answer has come */
    uint64_t left; /* of the body or the chunk */
    size_t line;   /* bytes of the chunk's line, of the trailer */
    bool digits, extension, cr, line_empty;
};

/* to_head: the request's method was HEAD. upgrade: it asked for another protocol, so 101 is an answer. */
void response_init(struct response *r, bool to_head, bool upgrade);
void response_finish(struct response *r);

/* Reads of n bytes at data; *ret_used were used. One thing happened: *ret, and for RESPONSE_DATA *ret_data
 * and *ret_n, within data. Call it again with the rest until RESPONSE_MORE, RESPONSE_END or RESPONSE_SWITCH.
 * ERROR_PROTOCOL: this is no answer, and nothing more can be made of the connection. */
int response_read(struct response *r, const void *data, size_t n, size_t *ret_used, enum response_event *ret,
                  const void **ret_data, size_t *ret_n, struct error *err);

/* The connection has ended: 0 when that is the end of the answer, else ERROR_RESET. */
int response_eof(struct response *r, struct error *err);

/* Value of the first field of that name, or NULL. */
const char *response_header(const struct response *r, const char *name);

/* Whether a field's value, a list with commas, holds the token. list may be NULL. */
bool http_list_has(const char *list, const char *token, bool fold_case);

/* Whether s is a token as names of methods and fields are, 1 to max bytes. */
bool http_is_token(const char *s, size_t max);
