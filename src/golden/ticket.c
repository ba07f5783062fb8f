#include <stdlib.h>

#include "base/log.h"
#include "base/str.h"
#include "golden/parts.h"

struct golden_ticket {
    struct broker *broker;
    struct golden_ticket **slot; /* NULL: the owner is gone */
    golden_ticket_fn fn;
    void *owner;
    char sandbox_id[ID_SIZE];
};

struct golden_ticket *golden_ticket_new(struct broker *b, struct golden_ticket **slot, golden_ticket_fn fn,
                                        void *owner, const char *sandbox_id)
{
    struct golden_ticket *t = calloc(1, sizeof(*t));
    if (!t)
        abort(); /* an answer cannot be delivered without memory to remember where */
    t->broker = b;
    t->slot = slot;
    t->fn = fn;
    t->owner = owner;
    if (sandbox_id)
        (void)str_copy(t->sandbox_id, sizeof(t->sandbox_id), sandbox_id);
    *slot = t;
    return t;
}

static void removed(void *arg, const struct error *err)
{
    (void)arg;
    if (err)
        LOG(LOG_WARN, "cannot remove a sandbox of the warm pool", "error=" LOG_Q, err->message);
}

void golden_remove_sandbox(struct broker *b, const char *sandbox_id)
{
    broker_sandbox_remove(b, sandbox_id, removed, NULL);
}

void golden_ticket_has(void *arg, const struct error *err, bool flag)
{
    struct golden_ticket t = *(struct golden_ticket *)arg;
    free(arg);
    if (t.slot) {
        *t.slot = NULL;
        t.fn(t.owner, err, flag);
    } else if (t.sandbox_id[0]) {
        golden_remove_sandbox(t.broker, t.sandbox_id);
    }
}

void golden_ticket_done(void *arg, const struct error *err)
{
    golden_ticket_has(arg, err, false);
}

void golden_ticket_drop(struct golden_ticket **slot)
{
    if (*slot) {
        (*slot)->slot = NULL;
        *slot = NULL;
    }
}
