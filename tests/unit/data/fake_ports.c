#include "data/fake_ports.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"

#define CREDIT (256 * 1024)

struct fake_ports fake_ports;

void fake_ports_reset(void)
{
    while (fake_ports.conns) {
        struct guest_conn *c = fake_ports.conns;
        fake_ports.conns = c->next;
        buf_finish(&c->sent);
        free(c);
    }
    fake_ports = (struct fake_ports){.dials = 0};
}

unsigned fake_conns_open(void)
{
    unsigned n = 0;
    for (struct guest_conn *c = fake_ports.conns; c; c = c->next)
        n += !c->closed;
    return n;
}

struct guest_conn *fake_conn(void)
{
    struct guest_conn *c = fake_ports.conns;
    while (c && c->closed)
        c = c->next;
    return c;
}

void fake_conn_opened(struct guest_conn *c)
{
    if (!c->closed && c->events.opened)
        c->events.opened(c->arg);
}

size_t fake_conn_data(struct guest_conn *c, const void *data, size_t n, size_t piece)
{
    size_t done = 0;
    while (done < n && !c->closed) {
        size_t room = CREDIT - (c->given - c->taken);
        size_t part = n - done < room ? n - done : room;
        if (piece > 0 && part > piece)
            part = piece;
        if (part == 0)
            break;
        c->given += part;
        c->events.data(c->arg, (const char *)data + done, part);
        done += part;
    }
    return done;
}

void fake_conn_text(struct guest_conn *c, const char *text)
{
    (void)fake_conn_data(c, text, strlen(text), 0);
}

void fake_conn_end(struct guest_conn *c)
{
    if (!c->closed)
        c->events.end(c->arg);
}

void fake_conn_closed(struct guest_conn *c, int code)
{
    struct error err = ERROR_INIT;
    if (code)
        (void)error_set(&err, code, "as the test says");
    if (c->closed || c->over)
        return;
    c->over = true;
    c->events.closed(c->arg, code ? &err : NULL);
}

void fake_conn_room(struct guest_conn *c, size_t more)
{
    c->push_max += more;
    if (c->push_short && !c->closed) {
        c->push_short = false;
        c->events.room(c->arg);
    }
}

bool fake_conn_got(const struct guest_conn *c, const char *text)
{
    size_t n = strlen(text);
    return buf_len(&c->sent) >= n && memcmp(buf_head(&c->sent), text, n) == 0;
}

/* --- guest.h --- */

int guest_dial(struct guest *g, uint16_t port, const struct guest_conn_events *events, void *arg,
               struct guest_conn **ret, struct error *err)
{
    if (fake_ports.refuse)
        return error_set(err, fake_ports.refuse, "as the test says");
    struct guest_conn *c = calloc(1, sizeof(*c));
    if (!c)
        abort();
    *c = (struct guest_conn){.g = g, .port = port, .events = *events, .arg = arg, .next = fake_ports.conns};
    c->push_max = fake_ports.push_max ? fake_ports.push_max : SIZE_MAX / 2;
    buf_init(&c->sent, SIZE_MAX / 2);
    fake_ports.conns = c;
    fake_ports.dials++;
    *ret = c;
    return 0;
}

size_t guest_conn_push(struct guest_conn *c, const void *data, size_t n)
{
    size_t room = c->push_max - buf_len(&c->sent);
    if (c->over)
        return n;
    if (n > room) {
        n = room;
        c->push_short = true;
    }
    if (n > 0 && !buf_append(&c->sent, data, n))
        abort();
    return n;
}

void guest_conn_end(struct guest_conn *c)
{
    c->ended = true;
}

void guest_conn_taken(struct guest_conn *c, size_t n)
{
    if (n > c->given - c->taken)
        abort(); /* more than was given */
    c->taken += n;
}

void guest_conn_close(struct guest_conn *c)
{
    if (c->closed)
        abort();      /* twice */
    c->closed = true; /* kept for the test to look at */
}

/* --- sandbox.h --- */

bool sandbox_port_public(const struct sandbox *sb, uint16_t port)
{
    (void)sb;
    return fake_ports.all_public || (fake_ports.public_port && fake_ports.public_port == port);
}

bool sandbox_traffic_token_is(const struct sandbox *sb, const char *token)
{
    (void)sb;
    return *fake_ports.token && str_eq(fake_ports.token, token);
}
