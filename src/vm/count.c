/* What VMMs count, summed up over all of an engine's. A VM is looked at more and more seldom, so that one
 * that lives for seconds is not missed and one that lives for days costs nothing. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "vm/engine.h"

#define FIRST_MS 1000
#define LAST_MS 16000 /* doubled up to this */

/* What all counters of a VM together may grow by: more than any disk and channel does, and so little that a
 * thousand VMMs that lie need days to bring a sum to its end. */
#define COUNT_A_MS (1ULL << 24)
#define COUNT_MAX (1ULL << 40) /* at once, after a while without */

static bool believable(struct vm *vm, const struct vm_counters *more)
{
    const uint64_t all[] = {more->disk_read_bytes, more->disk_written_bytes, more->disk_reads,
                            more->disk_writes,     more->disk_held_back,     more->exits,
                            more->socket_in_bytes, more->socket_out_bytes,   more->lost};
    uint64_t passed = (uint64_t)((clock_mono_ns() - vm->counted_ns) / CLOCK_NS_PER_MS);
    uint64_t spare = COUNT_MAX - vm->count_room;
    vm->count_room += passed < spare / COUNT_A_MS ? passed * COUNT_A_MS : spare;
    vm->counted_ns += (int64_t)passed * CLOCK_NS_PER_MS;
    uint64_t sum = 0;
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i] > COUNT_MAX || (sum += all[i]) > vm->count_room)
            return false;
    vm->count_room -= sum;
    return true;
}

static void add(uint64_t *to, uint64_t more)
{
    if (__builtin_add_overflow(*to, more, to))
        *to = UINT64_MAX;
}

void vm_counted(struct vm *vm, const struct vm_counters *more)
{
    struct vm_counters *sum = &vm->engine->counted;
    if (!believable(vm, more)) {
        add(&sum->lost, 1);
        return;
    }
    add(&sum->disk_read_bytes, more->disk_read_bytes);
    add(&sum->disk_written_bytes, more->disk_written_bytes);
    add(&sum->disk_reads, more->disk_reads);
    add(&sum->disk_writes, more->disk_writes);
    add(&sum->disk_held_back, more->disk_held_back);
    add(&sum->exits, more->exits);
    add(&sum->socket_in_bytes, more->socket_in_bytes);
    add(&sum->socket_out_bytes, more->socket_out_bytes);
    add(&sum->lost, more->lost);
}

void vm_engine_counters(const struct vm_engine *e, struct vm_counters *ret)
{
    *ret = e->counted;
}

static void on_due(struct loop_timer *t)
{
    struct vm *vm = t->arg;
    vm->engine->ops->count(vm);
    vm->count_ms = vm->count_ms * 2 < LAST_MS ? vm->count_ms * 2 : LAST_MS;
    loop_timer_start(t, vm->count_ms);
}

void vm_count_init(struct vm *vm)
{
    vm->count_ms = FIRST_MS;
    vm->count_room = COUNT_MAX;
    vm->counted_ns = clock_mono_ns();
    loop_timer_init(vm->engine->loop, &vm->count_timer, on_due, vm);
}

void vm_count_moved(struct vm *vm, enum vm_state from)
{
    if (vm->state == VM_RUNNING)
        loop_timer_start(&vm->count_timer, vm->count_ms);
    else if (from == VM_RUNNING)
        loop_timer_stop(&vm->count_timer);
}
