/* Strict reading of JSON objects (jansson) from clients: each field by a table, unknown ones refused, every
 * refusal names the field. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"

static inline void json_cleanup(json_t **j)
{
    json_decref(*j);
}
#define AUTO_JSON CLEANUP(json_cleanup) /* see base/cleanup.h */

#define JSON_BODY_MAX (1024 * 1024) /* bytes of a JSON request body, unless a route says otherwise */

/* Parses text of n bytes into *ret (owned by the caller). Duplicate keys, NUL in strings, depth over 32 and
 * trailing text are ERROR_MALFORMED with line and column. */
int json_parse(const char *text, size_t n, json_t **ret, struct error *err);

enum json_kind {
    JSON_KIND_STRING,
    JSON_KIND_INTEGER,
    JSON_KIND_BOOL,
    JSON_KIND_OBJECT,
    JSON_KIND_ARRAY,
    JSON_KIND_STRING_MAP,
    JSON_KIND_STRING_LIST
};

struct json_field {
    const char *name;
    enum json_kind kind;
    bool required;
    int64_t min, max; /* integer: value (both 0: any); string: bytes (max 0: 1024); array, map, list:
                         entries (max 0: 256). A string in a map or list has at most 64 KiB, a name in
                         a map 1 to 256 bytes. */
    /* Where the value goes, by kind: const char ** (borrowed from the object), int64_t *, bool *, const
     * json_t **. Left alone when the field is absent or null. */
    void *to;
};

/* Reads all fields of obj; path is "" or the dotted path of obj in the body, for messages. ERROR_INVALID when
 * obj is not an object. */
int json_read(const json_t *obj, const char *path, const struct json_field *fields, size_t n,
              struct error *err);

/* The value itself; ends the process when it was not made. For answers and records: what cannot be written is
 * a promise that cannot be kept, and no caller could do better than end. Every string in one is UTF-8, see
 * json_parse and error_set: so short memory is the only reason. */
json_t *json_made(json_t *j);

/* "2026-..." string from wall milliseconds; JSON null for 0. New reference. */
json_t *json_time(int64_t wall_ms);
