/* What every unit test includes: cmocka in its required order, and small shared helpers. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

/* Fails the test with the error's text unless the call succeeded. */
#define assert_ok(call, err)                                                            \
    do {                                                                                \
        int rc_ = (call);                                                               \
        if (rc_ != 0)                                                                   \
            fail_msg("%s: %d %s (field %s)", #call, rc_, (err)->message, (err)->field); \
    } while (0)

/* A fresh directory below TMPDIR (or /tmp); the caller removes it with unit_rmdir. */
static inline char *unit_mkdir(void)
{
    const char *base = getenv("TMPDIR");
    char *path = NULL;
    if (asprintf(&path, "%s/space-unit-XXXXXX", base ? base : "/tmp") < 0 || !mkdtemp(path))
        abort();
    return path;
}
