/* Request targets: strict percent-decoding of path segments and query parameters. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define URI_MAX 8192        /* bytes of a request target */
#define URI_SEGMENTS_MAX 16 /* segments kept one by one; what follows is reachable through uri_rest only */
#define URI_QUERY_MAX 32    /* query parameters */

struct uri_pair {
    const char *name;
    const char *value;
};

struct uri {
    char *text; /* owned: all strings below */
    const char *path;
    const char *raw_query; /* as received, "" when there is none */
    unsigned segments;     /* of the whole path, may be more than URI_SEGMENTS_MAX */
    const char *segment[URI_SEGMENTS_MAX];
    const char *rest[URI_SEGMENTS_MAX]; /* decoded path from that segment on */
    unsigned queries;
    struct uri_pair query[URI_QUERY_MAX];
};

/* Parses "/path?query" (also in absolute form). ERROR_INVALID: a bad escape, an escaped NUL, text that is not
 * UTF-8, a parameter given twice, too many of them; ERROR_HEADER_TOO_LARGE: longer than URI_MAX. In the query
 * '+' is a blank. */
int uri_parse(const char *raw, struct uri *ret, struct error *err);
void uri_finish(struct uri *u); /* zeroed ones are accepted */

/* Value of a query parameter, or NULL. */
const char *uri_query(const struct uri *u, const char *name);
