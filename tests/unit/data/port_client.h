/* Clients of ports, for tests that play the program behind the port. */
#pragma once

#include <errno.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "data/client.h"
#include "data/fake_ports.h"

/* Sends text; "@" in it is the path of port 8080 in the sandbox, "#" the sandbox's id. */
static inline struct client *say(struct rig *g, const char *text)
{
    struct buf out;
    buf_init(&out, 1 << 20);
    for (const char *c = text; *c; c++) {
        if (*c == '@')
            assert_true(buf_printf(&out, "%s", sb_path(g, "/ports/8080")));
        else if (*c == '#')
            assert_true(buf_printf(&out, "%s", g->w->sb->id));
        else
            assert_true(buf_append(&out, c, 1));
    }
    struct client *c = client_open(g);
    client_write(g, c, buf_head(&out), buf_len(&out));
    buf_finish(&out);
    return c;
}

#define KEY "Host: h\r\nAuthorization: Bearer user\r\n"

static inline bool has(const struct client *c, const char *text)
{
    return buf_len(&c->in) > 0 && memmem(buf_head(&c->in), buf_len(&c->in), text, strlen(text)) != NULL;
}

/* Turns the loop until the client has got this, which is then dropped with what came before it. */
static inline void until_got(struct rig *g, struct client *c, const char *text)
{
    int64_t until = clock_mono_ns() + 5 * CLOCK_NS_PER_S;
    while (!has(c, text)) {
        if (c->eof || clock_mono_ns() > until)
            fail_msg("no \"%s\" in: %.*s", text, (int)buf_len(&c->in), (char *)buf_head(&c->in));
        client_poll(g, c);
    }
    unsigned char *at = memmem(buf_head(&c->in), buf_len(&c->in), text, strlen(text));
    buf_consume(&c->in, (size_t)(at - buf_head(&c->in)) + strlen(text));
}

static inline void until_eof(struct rig *g, struct client *c)
{
    int64_t until = clock_mono_ns() + 5 * CLOCK_NS_PER_S;
    while (!c->eof && clock_mono_ns() < until)
        client_poll(g, c);
    assert_true(c->eof);
}

/* The connection of a request that was just made, once its head has come. */
static inline struct guest_conn *conn_of(struct rig *g)
{
    rig_until(g, fake_conn() && buf_len(&fake_conn()->sent) > 0 &&
                     memmem(buf_head(&fake_conn()->sent), buf_len(&fake_conn()->sent), "\r\n\r\n", 4));
    fake_conn_opened(fake_conn());
    return fake_conn();
}

static inline const char *sent_by(const struct guest_conn *c)
{
    static char text[65536];
    (void)snprintf(text, sizeof(text), "%.*s", (int)buf_len(&c->sent), (char *)buf_head(&c->sent));
    return text;
}

static inline struct answer whole(struct rig *g, struct client *c)
{
    return answer_of(g, c);
}

#define OK "HTTP/1.1 200 OK\r\n"

/* With little patience and room. */
static inline int rig_setup_quick(void **state)
{
    rig_config.port_answer_s = 1;
    rig_config.tunnels_max = 2;
    int rc = rig_setup(state);
    rig_config = (struct data_config){.loop = NULL};
    return rc;
}
