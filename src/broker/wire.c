#include "broker/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"

#define STR_MAX 0xffff

bool wire_list_add(struct wire_list *l, const char *s)
{
    size_t n = strlen(s) + 1;
    if (l->count >= WIRE_LIST_MAX || n > WIRE_LIST_BYTES - l->used)
        return false;
    memcpy(l->data + l->used, s, n);
    l->used += (uint32_t)n;
    l->count++;
    return true;
}

const char *wire_list_next(const struct wire_list *l, const char *prev)
{
    const char *next = prev ? prev + strlen(prev) + 1 : l->data;
    return next < l->data + l->used ? next : NULL;
}

void wire_bounds(const struct wire_field *fields, size_t *ret_min, size_t *ret_max)
{
    size_t min = WIRE_HEADER_SIZE;
    size_t max = WIRE_HEADER_SIZE;
    for (const struct wire_field *f = fields; f->name; f++) {
        size_t fixed = f->kind == WIRE_U32 ? 5 : f->kind == WIRE_U64 ? 9 : 3;
        min += fixed;
        max += fixed;
        if (f->kind == WIRE_STR)
            max += f->size - 1;
        if (f->kind == WIRE_LIST)
            max += WIRE_LIST_BYTES + WIRE_LIST_MAX;
    }
    *ret_min = min;
    *ret_max = max;
}

/* --- writing --- */

struct writer {
    unsigned char *p;
    unsigned char *end;
    bool full;
};

static unsigned char *writer_take(struct writer *w, size_t n)
{
    if (w->full || (size_t)(w->end - w->p) < n) {
        w->full = true;
        return NULL;
    }
    unsigned char *at = w->p;
    w->p += n;
    return at;
}

static void write_number(struct writer *w, uint64_t v, unsigned bytes)
{
    unsigned char *at = writer_take(w, bytes);
    for (unsigned i = 0; at && i < bytes; i++)
        at[i] = (unsigned char)(v >> (8 * (bytes - 1 - i)));
}

static void write_string(struct writer *w, const char *s)
{
    size_t n = strnlen(s, STR_MAX);
    write_number(w, n, 2);
    unsigned char *at = writer_take(w, n);
    if (at)
        memcpy(at, s, n);
}

static void write_field(struct writer *w, const struct wire_field *f, const char *member)
{
    write_number(w, f->kind, 1);
    switch (f->kind) {
    case WIRE_U32: {
        uint32_t v;
        memcpy(&v, member, sizeof(v));
        write_number(w, v, 4);
        break;
    }
    case WIRE_U64: {
        uint64_t v;
        memcpy(&v, member, sizeof(v));
        write_number(w, v, 8);
        break;
    }
    case WIRE_STR:
        write_string(w, member);
        break;
    case WIRE_LIST: {
        const struct wire_list *l = (const void *)member;
        write_number(w, l->count, 2);
        for (const char *s = NULL; (s = wire_list_next(l, s));)
            write_string(w, s);
        break;
    }
    }
}

size_t wire_encode(const struct wire_header *h, const struct wire_field *fields, const void *from,
                   unsigned char *to, size_t size)
{
    struct writer w = {.p = to, .end = to + size};
    write_number(&w, WIRE_VERSION, 2);
    write_number(&w, h->type, 2);
    write_number(&w, h->id, 4);
    for (const struct wire_field *f = fields; f->name; f++)
        write_field(&w, f, (const char *)from + f->offset);
    return w.full ? 0 : (size_t)(w.p - to);
}

/* --- reading --- */

struct reader {
    const unsigned char *p;
    const unsigned char *end;
};

static bool read_number(struct reader *r, unsigned bytes, uint64_t *ret)
{
    if ((size_t)(r->end - r->p) < bytes)
        return false;
    uint64_t v = 0;
    for (unsigned i = 0; i < bytes; i++)
        v = v << 8 | r->p[i];
    r->p += bytes;
    *ret = v;
    return true;
}

/* One string into to, NUL-terminated; its length is bounded by the member before a byte is copied. */
static int read_string(struct reader *r, const struct wire_field *f, char *to, size_t size, struct error *err)
{
    uint64_t n;
    if (!read_number(r, 2, &n) || (size_t)(r->end - r->p) < n)
        return error_set(err, ERROR_PROTOCOL, "%s is cut short", f->name);
    if (n >= size)
        return error_field(err, ERROR_INVALID, f->name, "%s is too long", f->name);
    if (memchr(r->p, '\0', n))
        return error_field(err, ERROR_INVALID, f->name, "%s holds a NUL byte", f->name);
    memcpy(to, r->p, n);
    to[n] = '\0';
    r->p += n;
    if (f->check && !f->check(to))
        return error_field(err, ERROR_INVALID, f->name, "%s is not well-formed", f->name);
    return 0;
}

static int read_list(struct reader *r, const struct wire_field *f, struct wire_list *to, struct error *err)
{
    uint64_t count;
    if (!read_number(r, 2, &count))
        return error_set(err, ERROR_PROTOCOL, "%s is cut short", f->name);
    if (count > WIRE_LIST_MAX || count > f->max)
        return error_field(err, ERROR_INVALID, f->name, "%s has too many entries", f->name);
    to->count = 0;
    to->used = 0;
    for (uint64_t i = 0; i < count; i++) {
        char *at = to->data + to->used;
        int rc = read_string(r, f, at, WIRE_LIST_BYTES - to->used, err);
        if (rc < 0)
            return rc;
        to->used += (uint32_t)strlen(at) + 1;
        to->count++;
    }
    return 0;
}

static int read_integer(struct reader *r, const struct wire_field *f, char *member, struct error *err)
{
    unsigned bytes = f->kind == WIRE_U32 ? 4 : 8;
    uint64_t v;
    if (!read_number(r, bytes, &v))
        return error_set(err, ERROR_PROTOCOL, "%s is cut short", f->name);
    if (v < f->min || v > f->max)
        return error_field(err, ERROR_INVALID, f->name, "%s is %llu; %llu to %llu are possible", f->name,
                           (unsigned long long)v, (unsigned long long)f->min, (unsigned long long)f->max);
    uint32_t narrow = (uint32_t)v;
    if (bytes == 4)
        memcpy(member, &narrow, sizeof(narrow));
    else
        memcpy(member, &v, sizeof(v));
    return 0;
}

static int read_field(struct reader *r, const struct wire_field *f, char *member, struct error *err)
{
    uint64_t kind;
    if (!read_number(r, 1, &kind) || kind != f->kind)
        return error_set(err, ERROR_PROTOCOL, "%s is missing or of another kind", f->name);
    if (f->kind == WIRE_STR)
        return read_string(r, f, member, f->size, err);
    if (f->kind == WIRE_LIST)
        return read_list(r, f, (void *)member, err);
    return read_integer(r, f, member, err);
}

int wire_decode_header(const unsigned char *p, size_t n, struct wire_header *ret, struct error *err)
{
    if (n < WIRE_HEADER_SIZE)
        return error_set(err, ERROR_PROTOCOL, "a message of %zu bytes", n);
    if (bytes_get_u16(p) != WIRE_VERSION)
        return error_set(err, ERROR_PROTOCOL, "version %u of the broker channel; this is %d",
                         bytes_get_u16(p), WIRE_VERSION);
    ret->type = bytes_get_u16(p + 2);
    ret->id = bytes_get_u32(p + 4);
    return 0;
}

int wire_decode(const struct wire_field *fields, const unsigned char *p, size_t n, void *to,
                struct error *err)
{
    size_t min;
    size_t max;
    wire_bounds(fields, &min, &max);
    if (n < min || n > max)
        return error_set(err, ERROR_PROTOCOL, "%zu bytes; %zu to %zu are possible", n, min, max);
    struct reader r = {.p = p + WIRE_HEADER_SIZE, .end = p + n};
    for (const struct wire_field *f = fields; f->name; f++) {
        int rc = read_field(&r, f, (char *)to + f->offset, err);
        if (rc < 0)
            return rc;
    }
    if (r.p != r.end)
        return error_set(err, ERROR_PROTOCOL, "%zu bytes after the last field", (size_t)(r.end - r.p));
    return 0;
}

/* --- the socket --- */

int wire_send(int fd, const void *data, size_t n, const int *fds, unsigned fd_count)
{
    struct iovec iov = {.iov_base = (void *)data, .iov_len = n};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * WIRE_FDS_MAX)];
    } control;
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd_count > 0) {
        memset(&control, 0, sizeof(control));
        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
    }
    ssize_t sent;
    do
        sent = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -1 : 0;
}

/* Takes the descriptors out of the control data; those beyond what a message may carry are closed. */
static bool take_fds(struct msghdr *m, int *fds, unsigned *ret_count)
{
    unsigned count = 0;
    bool extra = false;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (count < WIRE_FDS_MAX) {
                fds[count++] = fd;
            } else {
                (void)close(fd);
                extra = true;
            }
        }
    }
    *ret_count = count;
    return !extra;
}

ssize_t wire_recv(int fd, void *to, size_t size, int fds[WIRE_FDS_MAX], unsigned *ret_fd_count)
{
    struct iovec iov = {.iov_base = to, .iov_len = size};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * (WIRE_FDS_MAX + 2))];
    } control;
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    *ret_fd_count = 0;
    ssize_t n;
    do
        n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -1;
    bool whole = take_fds(&m, fds, ret_fd_count);
    if (whole && !(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return n;
    for (unsigned i = 0; i < *ret_fd_count; i++)
        (void)close(fds[i]);
    *ret_fd_count = 0;
    errno = EMSGSIZE;
    return -1;
}
