/* Who the guest is now, and what time it is there.
 *
 * A message to a guest that has just been restored may be under way for long, so a time in it would be late
 * by as much. The guest is first asked for its monotonic clock, which does not jump: the time is then given
 * for a reading of that clock, and the way of the message itself does not matter. */
#include <string.h>

#include "base/clock.h"
#include "guest/internal.h"

#define VERSION_WITH_CLOCK 2
#define GOOD_NS (50 * CLOCK_NS_PER_MS) /* there and back: half of it is the most the clock can be off */
#define TRIES_MAX 4

static void put_identity(struct buf *b, const struct guest_identity *id)
{
    (void)proto_put_string(b, PROTO_F_SANDBOX, id->sandbox_id);
    (void)proto_put_string(b, PROTO_F_HOSTNAME, id->hostname);
    (void)proto_put_bytes(b, PROTO_F_MACHINE, id->machine_id, sizeof(id->machine_id));
    (void)proto_put_u64(b, PROTO_F_GENERATION, id->generation);
    (void)proto_put_bytes(b, PROTO_F_SEED, id->seed, sizeof(id->seed));
}

/* mono: of the guest when it was `wall` here; 0: as it is now, whenever that arrives. */
static void send_identity(struct guest *g, struct call *c, const struct guest_identity *id, int64_t wall,
                          uint64_t mono)
{
    struct buf body;
    buf_init(&body, 4096);
    put_identity(&body, id);
    (void)proto_put_u64(&body, PROTO_F_WALL, (uint64_t)wall);
    if (mono)
        (void)proto_put_u64(&body, PROTO_F_MONO, mono);
    guest_call_send(g, c, PROTO_IDENTIFY, 0, &body);
    if (body.data)
        explicit_bzero(body.data, body.cap);
    buf_finish(&body);
}

static bool ask(struct guest *g)
{
    struct clock_probe *p = &g->probe;
    struct buf body;
    buf_init(&body, 64);
    id_random(&p->token, sizeof(p->token));
    (void)proto_put_u64(&body, PROTO_F_TOKEN, p->token);
    p->tries++;
    p->sent = clock_mono_ns();
    bool sent = guest_send(g, PROTO_PING, 0, &body);
    buf_finish(&body);
    return sent;
}

static void clear(struct clock_probe *p)
{
    explicit_bzero(p, sizeof(*p)); /* it held the seed */
}

static void send_probed(struct guest *g)
{
    struct clock_probe *p = &g->probe;
    send_identity(g, p->call, &p->id, p->mono ? p->wall : clock_wall_ns(), p->mono);
    clear(p);
}

void guest_identify(struct guest *g, const struct guest_identity *id, guest_done done, void *arg)
{
    struct call *c = guest_call_new(g, done, NULL, arg);
    if (!c)
        return; /* no memory even for the refusal: the process is about to end */
    if (g->link != LINK_READY || g->version < VERSION_WITH_CLOCK || g->probe.call) {
        send_identity(g, c, id, clock_wall_ns(), 0);
        return;
    }
    g->probe = (struct clock_probe){.call = c, .id = *id, .best = INT64_MAX};
    if (!ask(g))
        send_probed(g);
}

bool guest_identify_pong(struct guest *g, const struct proto_fields *f)
{
    struct clock_probe *p = &g->probe;
    if (!p->call || proto_get_u64(f, PROTO_F_TOKEN, 0) != p->token)
        return false;
    int64_t way = clock_mono_ns() - p->sent;
    uint64_t mono = proto_get_u64(f, PROTO_F_MONO, 0);
    if (mono && way < p->best) {
        p->best = way;
        p->mono = mono;
        p->wall = clock_wall_ns() - way / 2;
    }
    if (p->best <= GOOD_NS || !mono || p->tries >= TRIES_MAX || !ask(g))
        send_probed(g);
    return true;
}

void guest_identify_link_gone(struct guest *g)
{
    clear(&g->probe);
}
