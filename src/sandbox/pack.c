/* Snapshots that nobody has needed for a while are packed, one at a time (docs/design/controller.md). */
#include "base/fault.h"
#include "base/log.h"
#include "base/str.h"
#include "sandbox/private.h"

#define RETRY_MS (3600 * 1000)

void snapshot_used(struct sandboxes *s, struct snapshot *sn)
{
    sn->used_ms = now_ms(s);
    if (sn->packed_bytes == 0 || sn->gone)
        return;
    sn->packed_bytes = 0; /* the broker makes it whole before it is used */
    snapshot_save(s, sn);
}

static void packed(void *arg, const struct error *err, uint64_t bytes)
{
    struct errand *e = arg;
    struct sandboxes *s = e->s;
    errand_end(e);
    if (!s)
        return;
    struct snapshot *sn = s->packing;
    s->packing = NULL;
    fault_point("snapshot-pack.packed");
    bool used = sn->used_ms >= sn->pack_ms; /* meanwhile, and for that made whole again */
    if (!err && !sn->gone && !used) {
        sn->packed_bytes = bytes;
        snapshot_save(s, sn);
        LOG(LOG_DEBUG, "snapshot packed", "snapshot=%s bytes=%llu", sn->id, (unsigned long long)bytes);
    }
    /* Somebody still has its memory, or there is no room for a moment: later. */
    sn->pack_ms = now_ms(s) + RETRY_MS;
    if (err && err->code != ERROR_CONFLICT)
        LOG(LOG_WARN, "a snapshot could not be packed; it is tried again",
            "snapshot=%s error=%s detail=" LOG_Q, sn->id, error_slug(err->code), err->message);
    snapshot_release(sn);
}

static bool is_due(const struct sandboxes *s, const struct snapshot *sn, int64_t now)
{
    int64_t since = sn->used_ms > sn->created_ms ? sn->used_ms : sn->created_ms;
    return sn->state == SNAPSHOT_READY && sn->kind == BROKER_SNAPSHOT_FULL && sn->purpose != SNAPSHOT_FORK &&
           !sn->gone && sn->uses == 0 && sn->packed_bytes == 0 && now >= sn->pack_ms &&
           now - since >= (int64_t)s->config.pack_after_s * 1000;
}

/* A VM that runs on from it has its memory, which packing would not give back. */
static bool is_run(struct sandboxes *s, const struct snapshot *sn)
{
    const struct sandbox *sb = sandboxes_find(s, sn->sandbox_id);
    return sb && strcmp(sb->image, sn->id) == 0 && sb->state != SANDBOX_SUSPENDED;
}

void pack_tick(struct sandboxes *s)
{
    struct snapshot *sn;
    int64_t now = now_ms(s);
    if (s->packing || s->config.pack_after_s == 0)
        return;
    DL_FOREACH(s->snapshots, sn)
    if (is_due(s, sn, now) && !is_run(s, sn))
        break;
    if (!sn)
        return;
    snapshot_hold(sn);
    s->packing = sn;
    sn->pack_ms = now;
    broker_snapshot_pack(s->config.broker, sn->id, packed, errand_new(s, NULL, NULL));
}
