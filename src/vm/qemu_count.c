/* What QEMU counts of the disk: sums since its start. */
#include <string.h>

#include "vm/qemu.h"

#define COUNT_TIMEOUT_MS 5000
#define VALUE_MAX (1LL << 60)

static bool take(const json_t *stats, const char *name, uint64_t *to)
{
    const json_t *v = json_object_get(stats, name);
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 0 || n > VALUE_MAX)
        return false;
    *to = (uint64_t)n;
    return true;
}

bool qemu_counters(const json_t *ret, struct vm_counters *to)
{
    size_t i;
    const json_t *device;
    json_array_foreach(ret, i, device)
    {
        const json_t *stats = json_object_get(device, "stats");
        struct vm_counters c = {0};
        const char *node = json_string_value(json_object_get(device, "node-name"));
        if (!node || strcmp(node, "disk") != 0)
            continue;
        if (!take(stats, "rd_bytes", &c.disk_read_bytes) || !take(stats, "wr_bytes", &c.disk_written_bytes) ||
            !take(stats, "rd_operations", &c.disk_reads) || !take(stats, "wr_operations", &c.disk_writes))
            return false;
        *to = c;
        return true;
    }
    return false;
}

/* A sum that has become smaller is no sum: what is new then is not known. */
static uint64_t since(uint64_t now, uint64_t before)
{
    return now > before ? now - before : 0;
}

static void on_counted(void *arg, const struct error *err, const json_t *ret)
{
    struct vm *vm = arg;
    struct qemu *q = vm->priv;
    struct vm_counters now;
    q->counting = false;
    if (err || !qemu_counters(ret, &now))
        return;
    const struct vm_counters *before = &q->counted;
    struct vm_counters more = {
        .disk_read_bytes = since(now.disk_read_bytes, before->disk_read_bytes),
        .disk_written_bytes = since(now.disk_written_bytes, before->disk_written_bytes),
        .disk_reads = since(now.disk_reads, before->disk_reads),
        .disk_writes = since(now.disk_writes, before->disk_writes),
    };
    /* Of one that was taken over, what came before was an earlier server's to count. */
    if (q->based || !vm->adopted)
        vm_counted(vm, &more);
    q->based = true;
    q->counted = now;
}

void qemu_count(struct vm *vm)
{
    struct qemu *q = vm->priv;
    if (q->counting || !q->qmp || q->channel_lost)
        return;
    q->counting = true;
    qmp_call(q->qmp, "query-blockstats", NULL, -1, COUNT_TIMEOUT_MS, on_counted, vm);
}
