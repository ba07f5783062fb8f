/* The least an attached client can do: takes over a WebSocket (space.attach.v1) after its handshake and
 * checks that bench/flood's output comes whole, in order and unchanged. Python would be slower than what it
 * measures.
 *
 *   attach_reader FD BYTES <bytes already received
 *
 * Exit code 0 when exactly BYTES came and the server closed with 1000; else a line says what was wrong. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCK 65536        /* of bench/flood */
#define MESSAGE_MAX 262400 /* what the server puts into one message, and a little */
#define PRELUDE 9          /* channel and offset */
enum { TEXT = 1, BINARY = 2, CLOSE = 8, PING = 9, PONG = 10 };

struct reader {
    int fd;
    uint64_t got, want;
    bool closed;
    size_t begin, end; /* of what is in bytes */
    unsigned char bytes[4 * MESSAGE_MAX];
};

static unsigned char expected[BLOCK];

static void fail(const char *what)
{
    printf("%s\n", what);
    exit(1);
}

static uint64_t big_endian(const unsigned char *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

static void check(struct reader *r, const unsigned char *p, size_t n)
{
    while (n > 0) {
        uint64_t number = r->got / BLOCK;
        size_t at = r->got % BLOCK;
        size_t part = n < BLOCK - at ? n : BLOCK - at;
        memcpy(expected, &number, sizeof(number));
        if (memcmp(expected + at, p, part) != 0)
            fail("other bytes than the command wrote");
        r->got += part;
        p += part;
        n -= part;
    }
}

static void message(struct reader *r, unsigned kind, const unsigned char *p, size_t n)
{
    switch (kind) {
    case BINARY:
        if (n < PRELUDE || p[0] != 1 || big_endian(p + 1, 8) != r->got)
            fail("output that does not continue what came before");
        check(r, p + PRELUDE, n - PRELUDE);
        break;
    case TEXT:
        if (memmem(p, n, "\"gap\"", 5))
            fail("output was dropped");
        break;
    case CLOSE:
        if (n < 2 || big_endian(p, 2) != 1000)
            fail("closed without a result");
        r->closed = true;
        break;
    case PING:
    case PONG:
        break;
    default:
        fail("a frame of another kind");
    }
}

/* Handles one whole frame; false when more bytes are needed. */
static bool frame(struct reader *r)
{
    const unsigned char *p = r->bytes + r->begin;
    size_t have = r->end - r->begin, head = 2;
    if (have < head)
        return false;
    uint64_t n = p[1];
    if (!(p[0] & 0x80) || n > 127)
        fail("a fragment, or a masked frame");
    if (n >= 126)
        head = n == 126 ? 4 : 10;
    if (have < head)
        return false;
    if (n >= 126)
        n = big_endian(p + 2, head - 2);
    if (n > MESSAGE_MAX)
        fail("a message beyond its limit");
    if (have < head + n)
        return false;
    message(r, p[0] & 15, p + head, (size_t)n);
    r->begin += head + (size_t)n;
    return true;
}

static void frames(struct reader *r)
{
    while (!r->closed && frame(r))
        ;
    if (r->end > sizeof(r->bytes) - MESSAGE_MAX - 16 || r->begin == r->end) {
        memmove(r->bytes, r->bytes + r->begin, r->end - r->begin);
        r->end -= r->begin;
        r->begin = 0;
    }
}

int main(int argc, char **argv)
{
    static struct reader r;
    ssize_t n;
    if (argc != 3)
        fail("usage: attach_reader FD BYTES");
    r.fd = (int)strtol(argv[1], NULL, 10);
    r.want = strtoull(argv[2], NULL, 10);
    for (size_t i = 0; i < BLOCK; i++)
        expected[i] = (unsigned char)(i * 131 >> 3);
    while ((n = read(STDIN_FILENO, r.bytes + r.end, sizeof(r.bytes) - r.end)) > 0) {
        r.end += (size_t)n;
        frames(&r);
    }
    while (!r.closed) {
        n = recv(r.fd, r.bytes + r.end, sizeof(r.bytes) - r.end, 0);
        if (n <= 0)
            fail("the connection ended");
        r.end += (size_t)n;
        frames(&r);
    }
    if (r.got != r.want)
        fail("fewer bytes than the command wrote");
    return 0;
}
