/* What a client says on an attached channel (space.attach.v1). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define ATTACH_CHANNEL_STDIN 0x00
#define ATTACH_TEXT_MAX 4096             /* bytes of a text message */
#define ATTACH_MESSAGE_MAX (1024 * 1024) /* bytes of any message */

enum attach_kind { ATTACH_STDIN, ATTACH_RESIZE, ATTACH_SIGNAL, ATTACH_STDIN_CLOSE };

struct attach_msg {
    enum attach_kind kind;
    const unsigned char *data; /* STDIN: within the message */
    size_t n;
    uint16_t rows, cols; /* RESIZE */
    char signal[32];     /* SIGNAL */
};

/* A name under which a client writes to stdin: 1 to PROCESS_WRITER_MAX letters, digits, '-' or '_'. */
bool attach_writer_valid(const char *name);

/* Reads one message; an error is the client's and ends the connection with 1008. */
int attach_msg_parse(bool text, const void *data, size_t n, struct attach_msg *ret, struct error *err);
