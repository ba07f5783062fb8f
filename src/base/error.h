/* The one error convention.
 *
 * A function that can fail returns 0 or a negative `enum error_code` and takes a `struct error *`
 * last. On success it leaves the error and its outputs (`ret_*`) alone. `error_set` returns the code,
 * so a failure is one statement: `return error_set(err, ERROR_INVALID, "memory_mib is %d; ...", n)`.
 * `err` may be NULL where the caller does not care for the text.
 *
 * Codes map to HTTP status and problem slug in one table (error_status, error_slug); libraries do not
 * log above debug, the edge (an HTTP answer, the CLI, a process's main) prints once. */
#pragma once

#include <stddef.h>

enum error_code {
    ERROR_NONE = 0,
    ERROR_INTERNAL = -1,          /* 500 internal: a bug or an unexpected failure of the host */
    ERROR_INVALID = -2,           /* 400 invalid_request: `field` names what */
    ERROR_UNKNOWN_FIELD = -3,     /* 400 unknown_field */
    ERROR_MALFORMED = -4,         /* 400 malformed_json */
    ERROR_UNSUPPORTED = -5,       /* 400 unsupported: valid elsewhere, not offered by this server or engine */
    ERROR_UNAUTHORIZED = -6,      /* 401 unauthorized */
    ERROR_TOKEN_EXPIRED = -7,     /* 401 token_expired */
    ERROR_FORBIDDEN = -8,         /* 403 forbidden: the role does not allow it */
    ERROR_PERMISSION = -9,        /* 403 permission_denied: the guest's kernel refused */
    ERROR_NOT_FOUND = -10,        /* 404 not_found */
    ERROR_NO_SUCH_FILE = -11,     /* 404 no_such_file */
    ERROR_METHOD = -12,           /* 405 method_not_allowed */
    ERROR_CONFLICT = -13,         /* 409 conflict: another operation or the state is in the way */
    ERROR_EXISTS = -14,           /* 409 exists */
    ERROR_NOT_EMPTY = -15,        /* 409 not_empty */
    ERROR_IS_DIRECTORY = -16,     /* 409 is_directory */
    ERROR_NOT_DIRECTORY = -17,    /* 409 not_directory */
    ERROR_GONE = -18,             /* 410 sandbox_gone: deleted or failed while in use */
    ERROR_TOO_LARGE = -19,        /* 413 too_large */
    ERROR_MEDIA_TYPE = -20,       /* 415 unsupported_media_type */
    ERROR_RANGE = -21,            /* 416 range_not_satisfiable */
    ERROR_IDEMPOTENCY = -22,      /* 422 idempotency_mismatch */
    ERROR_CAPACITY = -23,         /* 429 capacity: a count or memory limit; Retry-After is sent */
    ERROR_UNAVAILABLE = -24,      /* 503 unavailable: the guest or a dependency cannot answer now */
    ERROR_TIMEOUT = -25,          /* 504 timeout */
    ERROR_NO_SPACE = -26,         /* 507 no_space */
    ERROR_NO_MEMORY = -27,        /* 500 internal: allocation failed */
    ERROR_PROTOCOL = -28,         /* 502 guest_protocol: the guest broke its protocol */
    ERROR_START_FAILED = -29,     /* 422 start_failed: a command could not be started */
    ERROR_HEADER_TOO_LARGE = -30, /* 431 header_too_large */
    ERROR_INCOMPATIBLE = -31,     /* 409 incompatible_snapshot: made by another VMM, processor or machine */
    ERROR_REFUSED = -32,          /* 502 port_closed: nothing in the guest listens at the port */
    ERROR_RESET = -33,            /* 502 connection_reset: the guest broke the connection off */
    ERROR_DAMAGED = -34,          /* 409 damaged_snapshot: what was kept is not what was written */
    ERROR_BUILD_FAILED = -35      /* 422 build_failed: a program that makes a template gave up */
};

#define ERROR_MESSAGE_MAX 512 /* bytes, with the NUL; longer text is cut */
#define ERROR_FIELD_MAX 96

struct error {
    int code;                    /* enum error_code */
    char field[ERROR_FIELD_MAX]; /* request field at fault, "" when none */
    char operation_id[40];       /* operation in the way (ERROR_CONFLICT), "" when none */
    unsigned retry_s;            /* when to try again (Retry-After); 0: as the code has it */
    char message[ERROR_MESSAGE_MAX];
};

#define ERROR_INIT \
    {              \
        .code = 0  \
    }

/* Fills *err (when not NULL) and returns code. Never fails. Whatever the arguments hold, message and field
 * are UTF-8 without control bytes (but newline and tab), cut between characters. */
int error_set(struct error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The same for a request field: `field` is a dotted path such as "resources.memory_mib". */
int error_field(struct error *err, int code, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Like error_set with ": <strerror(errnum)>" appended. ENOSPC and EDQUOT become ERROR_NO_SPACE,
 * ENOMEM becomes ERROR_NO_MEMORY, everything else the given code. */
int error_errno(struct error *err, int code, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Puts "context: " before the message of an error on its way up. Returns err->code (or
 * ERROR_INTERNAL when err is NULL). */
int error_wrap(struct error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Says when to try again. err may be NULL. */
void error_retry(struct error *err, unsigned retry_s);

/* HTTP status of a code; 500 for one that is not in the table. */
unsigned error_status(int code);

/* Stable slug of a code ("not_found"), the tail of its problem type; "internal" when unknown. */
const char *error_slug(int code);

/* Walks the table: index 0.. until it returns false. For the generated reference and the tests. */
_Bool error_table(size_t index, int *ret_code, unsigned *ret_status, const char **ret_slug,
                  const char **ret_title);

/* Short human title of a code ("Not found"). */
const char *error_title(int code);
