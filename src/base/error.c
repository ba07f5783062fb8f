#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

#define CONTEXT_MAX 401 /* of error_wrap, with the NUL: the cause keeps room */

static const struct {
    int code;
    unsigned status;
    const char *slug;
    const char *title;
} errors[] = {
    {ERROR_INTERNAL, 500, "internal", "Internal error"},
    {ERROR_INVALID, 400, "invalid_request", "Invalid request"},
    {ERROR_UNKNOWN_FIELD, 400, "unknown_field", "Unknown field"},
    {ERROR_MALFORMED, 400, "malformed_json", "Malformed JSON"},
    {ERROR_UNSUPPORTED, 400, "unsupported", "Not supported by this server"},
    {ERROR_UNAUTHORIZED, 401, "unauthorized", "Unauthorized"},
    {ERROR_TOKEN_EXPIRED, 401, "token_expired", "Token expired"},
    {ERROR_FORBIDDEN, 403, "forbidden", "Forbidden"},
    {ERROR_PERMISSION, 403, "permission_denied", "Permission denied in the sandbox"},
    {ERROR_NOT_FOUND, 404, "not_found", "Not found"},
    {ERROR_NO_SUCH_FILE, 404, "no_such_file", "No such file"},
    {ERROR_METHOD, 405, "method_not_allowed", "Method not allowed"},
    {ERROR_CONFLICT, 409, "conflict", "Conflict"},
    {ERROR_EXISTS, 409, "exists", "Already exists"},
    {ERROR_NOT_EMPTY, 409, "not_empty", "Directory not empty"},
    {ERROR_IS_DIRECTORY, 409, "is_directory", "Is a directory"},
    {ERROR_NOT_DIRECTORY, 409, "not_directory", "Not a directory"},
    {ERROR_GONE, 410, "sandbox_gone", "Sandbox gone"},
    {ERROR_TOO_LARGE, 413, "too_large", "Too large"},
    {ERROR_MEDIA_TYPE, 415, "unsupported_media_type", "Unsupported media type"},
    {ERROR_RANGE, 416, "range_not_satisfiable", "Range not satisfiable"},
    {ERROR_IDEMPOTENCY, 422, "idempotency_mismatch", "Idempotency key used with another request"},
    {ERROR_CAPACITY, 429, "capacity", "No capacity"},
    {ERROR_UNAVAILABLE, 503, "unavailable", "Unavailable"},
    {ERROR_TIMEOUT, 504, "timeout", "Timed out"},
    {ERROR_NO_SPACE, 507, "no_space", "No space left"},
    {ERROR_NO_MEMORY, 500, "internal", "Out of memory"},
    {ERROR_PROTOCOL, 502, "guest_protocol", "The guest broke its protocol"},
    {ERROR_START_FAILED, 422, "start_failed", "The command could not be started"},
    {ERROR_HEADER_TOO_LARGE, 431, "header_too_large", "Request header too large"},
    {ERROR_INCOMPATIBLE, 409, "incompatible_snapshot", "The snapshot does not fit this machine"},
    {ERROR_REFUSED, 502, "port_closed", "Port closed"},
    {ERROR_RESET, 502, "connection_reset", "The connection was broken off in the sandbox"},
    {ERROR_DAMAGED, 409, "damaged_snapshot", "The snapshot is damaged"},
    {ERROR_BUILD_FAILED, 422, "build_failed", "The template could not be built"},
};

static size_t find(int code)
{
    for (size_t i = 0; i < ARRAY_LEN(errors); i++)
        if (errors[i].code == code)
            return i;
    return 0;
}

unsigned error_status(int code)
{
    return errors[find(code)].status;
}

const char *error_slug(int code)
{
    return errors[find(code)].slug;
}

const char *error_title(int code)
{
    return errors[find(code)].title;
}

bool error_table(size_t index, int *ret_code, unsigned *ret_status, const char **ret_slug,
                 const char **ret_title)
{
    if (index >= ARRAY_LEN(errors))
        return false;
    *ret_code = errors[index].code;
    *ret_status = errors[index].status;
    *ret_slug = errors[index].slug;
    *ret_title = errors[index].title;
    return true;
}

/* What snprintf(3) wrote, n being its result, as text that JSON can hold: messages quote guests, archives and
 * clients. */
static void tidy(char *text, size_t size, int n)
{
    str_make_text(text, n < 0 || (size_t)n >= size);
}

static void fill(struct error *err, int code, const char *field, const char *fmt, va_list ap)
{
    if (!err)
        return;
    err->code = code;
    err->operation_id[0] = '\0';
    err->retry_s = 0;
    int n = snprintf(err->field, sizeof(err->field), "%s", field);
    tidy(err->field, sizeof(err->field), n);
    n = vsnprintf(err->message, sizeof(err->message), fmt, ap);
    tidy(err->message, sizeof(err->message), n);
}

int error_set(struct error *err, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, "", fmt, ap);
    va_end(ap);
    return code;
}

int error_field(struct error *err, int code, const char *field, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, field, fmt, ap);
    va_end(ap);
    return code;
}

int error_errno(struct error *err, int code, int errnum, const char *fmt, ...)
{
    if (errnum == ENOSPC || errnum == EDQUOT)
        code = ERROR_NO_SPACE;
    else if (errnum == ENOMEM)
        code = ERROR_NO_MEMORY;
    if (!err)
        return code;
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, "", fmt, ap);
    va_end(ap);
    size_t used = strlen(err->message);
    (void)snprintf(err->message + used, sizeof(err->message) - used, ": %s", strerror(errnum));
    return code;
}

void error_retry(struct error *err, unsigned retry_s)
{
    if (err)
        err->retry_s = retry_s;
}

int error_wrap(struct error *err, const char *fmt, ...)
{
    if (!err)
        return ERROR_INTERNAL;
    char context[CONTEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(context, sizeof(context), fmt, ap);
    va_end(ap);
    tidy(context, sizeof(context), n);
    char rest[ERROR_MESSAGE_MAX];
    memcpy(rest, err->message, sizeof(rest));
    n = snprintf(err->message, sizeof(err->message), "%s: %s", context, rest);
    tidy(err->message, sizeof(err->message), n);
    return err->code;
}
