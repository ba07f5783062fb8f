/* What VMMs count, summed up over all of an engine's. A VM is looked at more and more seldom, so that one
 * that lives for seconds is not missed and one that lives for days costs nothing. */
#include "vm/engine.h"

#define FIRST_MS 1000
#define LAST_MS 16000 /* doubled up to this */

static void add(uint64_t *to, uint64_t more)
{
    if (__builtin_add_overflow(*to, more, to))
        *to = UINT64_MAX;
}

void vm_counted(struct vm *vm, const struct vm_counters *more)
{
    struct vm_counters *sum = &vm->engine->counted;
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
    loop_timer_init(vm->engine->loop, &vm->count_timer, on_due, vm);
}

void vm_count_moved(struct vm *vm, enum vm_state from)
{
    if (vm->state == VM_RUNNING)
        loop_timer_start(&vm->count_timer, vm->count_ms);
    else if (from == VM_RUNNING)
        loop_timer_stop(&vm->count_timer);
}
