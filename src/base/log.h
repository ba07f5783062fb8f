/* Structured logs to standard error: one line an event, as text or JSON.
 *
 * An event is a short constant message and fields, given as one printf format of `key=value` words; the
 * ids of the sandbox, operation and session it is about come first:
 *
 *     LOG(LOG_INFO, "sandbox running", "sandbox=%s took_ms=%lld", id, ms);
 *
 * A value that may hold blanks is given with LOG_Q: `"reason=" LOG_Q`. Quotes and control bytes in any
 * value are escaped. Libraries log at debug only; the edge logs an error once. */
#pragma once

#include <stdbool.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

#define LOG_Q "\x01%s\x02"

/* Program name in every line, lowest level written, and the format. Callable at any time. */
void log_setup(const char *program, enum log_level lowest, bool json);

/* Level from its name ("debug", "info", "warn", "error"); false when unknown. */
bool log_level_parse(const char *name, enum log_level *ret);

bool log_enabled(enum log_level level);

/* Whether lines are JSON: what a program started by this one is told. */
bool log_is_json(void);

/* Writes one event; fields may be "". Lines over 4 KiB are cut. Never fails. */
void log_event(enum log_level level, const char *message, const char *fields, ...)
    __attribute__((format(printf, 3, 4)));

#define LOG(level, message, ...)                    \
    do {                                            \
        if (log_enabled(level))                     \
            log_event(level, message, __VA_ARGS__); \
    } while (0)
