#include "json/json.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define DEPTH_MAX 32
#define STRING_DEFAULT_MAX 1024
#define ENTRIES_DEFAULT_MAX 256
#define ELEMENT_MAX (64 * 1024) /* bytes of one string in a map or list */
#define MAP_KEY_MAX 256

/* Whether brackets nest deeper than DEPTH_MAX. Looked at before parsing: the parser descends by recursion,
 * and its own limit is far above what any request needs. Text that is no JSON at all may pass; the parser
 * says so. */
static bool too_deep(const char *text, size_t n)
{
    unsigned depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > DEPTH_MAX)
                return true;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
    }
    return false;
}

int json_parse(const char *text, size_t n, json_t **ret, struct error *err)
{
    if (too_deep(text, n))
        return error_set(err, ERROR_MALFORMED, "JSON nests deeper than %d levels", DEPTH_MAX);
    json_error_t at;
    json_t *value = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &at);
    if (!value)
        return error_set(err, ERROR_MALFORMED, "line %d, column %d: %.200s", at.line, at.column, at.text);
    *ret = value;
    return 0;
}

/* "resources.memory_mib" from "resources" and "memory_mib". */
static const char *field_path(const char *path, const char *name, char *to, size_t size)
{
    (void)snprintf(to, size, "%s%s%s", path, *path ? "." : "", name);
    return to;
}

static const char *kind_name(enum json_kind kind)
{
    static const char *const names[] = {
        [JSON_KIND_STRING] = "a string",
        [JSON_KIND_INTEGER] = "an integer",
        [JSON_KIND_BOOL] = "true or false",
        [JSON_KIND_OBJECT] = "an object",
        [JSON_KIND_ARRAY] = "an array",
        [JSON_KIND_STRING_MAP] = "an object of strings",
        [JSON_KIND_STRING_LIST] = "an array of strings",
    };
    return names[kind];
}

static int wrong_kind(enum json_kind kind, const char *path, struct error *err)
{
    return error_field(err, ERROR_INVALID, path, "%s must be %s", path, kind_name(kind));
}

static int check_count(const struct json_field *f, size_t n, const char *path, const char *what,
                       struct error *err)
{
    int64_t max = f->max > 0 ? f->max : ENTRIES_DEFAULT_MAX;
    if ((int64_t)n < f->min || (int64_t)n > max)
        return error_field(err, ERROR_INVALID, path, "%s has %zu %s; allowed are %lld to %lld", path, n, what,
                           (long long)f->min, (long long)max);
    return 0;
}

static int read_string(const struct json_field *f, const json_t *v, const char *path, struct error *err)
{
    int64_t n = (int64_t)json_string_length(v);
    int64_t max = f->max > 0 ? f->max : STRING_DEFAULT_MAX;
    if (n < f->min || n > max)
        return error_field(err, ERROR_INVALID, path, "%s is %lld bytes long; allowed are %lld to %lld", path,
                           (long long)n, (long long)f->min, (long long)max);
    *(const char **)f->to = json_string_value(v);
    return 0;
}

static int read_integer(const struct json_field *f, const json_t *v, const char *path, struct error *err)
{
    int64_t n = json_integer_value(v);
    bool bounded = f->min != 0 || f->max != 0;
    if (bounded && (n < f->min || n > f->max))
        return error_field(err, ERROR_INVALID, path, "%s is %lld; allowed are %lld to %lld", path,
                           (long long)n, (long long)f->min, (long long)f->max);
    *(int64_t *)f->to = n;
    return 0;
}

static int read_map(const struct json_field *f, const json_t *v, const char *path, struct error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value)
    {
        size_t n = strlen(key);
        if (n == 0 || n > MAP_KEY_MAX)
            return error_field(err, ERROR_INVALID, path, "%s has a name of %zu bytes; allowed are 1 to %d",
                               path, n, MAP_KEY_MAX);
        if (!json_is_string(value))
            return error_field(err, ERROR_INVALID, path, "%s.%.64s must be a string", path, key);
        if (json_string_length(value) > ELEMENT_MAX)
            return error_field(err, ERROR_INVALID, path, "%s.%.64s is longer than %d bytes", path, key,
                               ELEMENT_MAX);
    }
    int rc = check_count(f, json_object_size(v), path, "entries", err);
    if (rc == 0)
        *(const json_t **)f->to = v;
    return rc;
}

static int read_list(const struct json_field *f, const json_t *v, const char *path, struct error *err)
{
    size_t i;
    json_t *value;
    json_array_foreach(v, i, value)
    {
        if (!json_is_string(value))
            return error_field(err, ERROR_INVALID, path, "%s[%zu] must be a string", path, i);
        if (json_string_length(value) > ELEMENT_MAX)
            return error_field(err, ERROR_INVALID, path, "%s[%zu] is longer than %d bytes", path, i,
                               ELEMENT_MAX);
    }
    int rc = check_count(f, json_array_size(v), path, "entries", err);
    if (rc == 0)
        *(const json_t **)f->to = v;
    return rc;
}

static int read_array(const struct json_field *f, const json_t *v, const char *path, struct error *err)
{
    int rc = check_count(f, json_array_size(v), path, "entries", err);
    if (rc == 0)
        *(const json_t **)f->to = v;
    return rc;
}

static bool kind_matches(enum json_kind kind, const json_t *v)
{
    switch (kind) {
    case JSON_KIND_STRING:
        return json_is_string(v);
    case JSON_KIND_INTEGER:
        return json_is_integer(v);
    case JSON_KIND_BOOL:
        return json_is_boolean(v);
    case JSON_KIND_OBJECT:
    case JSON_KIND_STRING_MAP:
        return json_is_object(v);
    case JSON_KIND_ARRAY:
    case JSON_KIND_STRING_LIST:
        return json_is_array(v);
    }
    return false;
}

static int read_value(const struct json_field *f, const json_t *v, const char *path, struct error *err)
{
    if (!kind_matches(f->kind, v))
        return wrong_kind(f->kind, path, err);
    switch (f->kind) {
    case JSON_KIND_STRING:
        return read_string(f, v, path, err);
    case JSON_KIND_INTEGER:
        return read_integer(f, v, path, err);
    case JSON_KIND_BOOL:
        *(bool *)f->to = json_is_true(v);
        return 0;
    case JSON_KIND_OBJECT:
        *(const json_t **)f->to = v;
        return 0;
    case JSON_KIND_ARRAY:
        return read_array(f, v, path, err);
    case JSON_KIND_STRING_MAP:
        return read_map(f, v, path, err);
    case JSON_KIND_STRING_LIST:
        return read_list(f, v, path, err);
    }
    return 0;
}

static bool known(const char *name, const struct json_field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(fields[i].name, name) == 0)
            return true;
    return false;
}

static int refuse_unknown(const json_t *obj, const char *path, const struct json_field *fields, size_t n,
                          struct error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)obj, name, value)
    {
        (void)value;
        if (known(name, fields, n))
            continue;
        char at[ERROR_FIELD_MAX];
        field_path(path, name, at, sizeof(at));
        return error_field(err, ERROR_UNKNOWN_FIELD, at, "%s is not a field of this request", at);
    }
    return 0;
}

int json_read(const json_t *obj, const char *path, const struct json_field *fields, size_t n,
              struct error *err)
{
    if (!json_is_object(obj))
        return error_field(err, ERROR_INVALID, path, "%s must be an object", *path ? path : "the body");
    int rc = refuse_unknown(obj, path, fields, n, err);
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct json_field *f = &fields[i];
        char at[ERROR_FIELD_MAX];
        field_path(path, f->name, at, sizeof(at));
        const json_t *v = json_object_get(obj, f->name);
        if (v && !json_is_null(v))
            rc = read_value(f, v, at, err);
        else if (f->required)
            rc = error_field(err, ERROR_INVALID, at, "%s is required", at);
    }
    return rc;
}

json_t *json_made(json_t *j)
{
    if (!j)
        abort();
    return j;
}

json_t *json_time(int64_t wall_ms)
{
    if (wall_ms == 0)
        return json_null();
    char text[CLOCK_RFC3339_SIZE];
    clock_rfc3339(wall_ms, text);
    return json_string(text);
}
