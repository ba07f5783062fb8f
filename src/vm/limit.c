/* How each VMM is told the limits of its disk. What stands between the two and a VM's run is in vm.c. */
#include "vm/firecracker.h"
#include "vm/qemu.h"

#define LIMIT_TIMEOUT_MS 20000
#define MIB (1024 * 1024LL)

static void told(struct vm *vm, const struct error *err)
{
    vm_done done = vm->limit_done;
    vm->limit_done = NULL;
    if (done)
        done(vm, err);
}

/* --- QEMU --- */

static void on_qemu_told(void *arg, const struct error *err, const json_t *ret)
{
    (void)ret;
    if (!err || err->code != ERROR_GONE) /* else the end of the process answers */
        told(arg, err);
}

void qemu_limit(struct vm *vm, vm_done done)
{
    struct qemu *q = vm->priv;
    const struct vm_limits *l = &vm->spec.limits;
    struct error err = ERROR_INIT;
    vm->limit_done = done;
    if (!q->qmp || q->channel_lost) {
        (void)error_set(&err, ERROR_GONE, "the VMM's control channel is closed");
        told(vm, &err);
        return;
    }
    /* At the device, not in the graph of its blocks: the VM's composition stays what it is. */
    qmp_call(q->qmp, "block_set_io_throttle",
             json_pack("{s:s, s:I, s:i, s:i, s:I, s:i, s:i}", "id", "root", "bps",
                       (json_int_t)(l->disk_mib_per_s * MIB), "bps_rd", 0, "bps_wr", 0, "iops",
                       (json_int_t)l->disk_iops, "iops_rd", 0, "iops_wr", 0),
             -1, LIMIT_TIMEOUT_MS, on_qemu_told, vm);
}

/* --- Firecracker --- */

/* A bucket that is full after a second; one without a size takes an earlier one away. */
static json_t *bucket(int64_t a_second)
{
    return json_pack("{s:I, s:i}", "size", (json_int_t)a_second, "refill_time", a_second > 0 ? 1000 : 0);
}

json_t *fc_body_limit(const struct vm *vm)
{
    const struct vm_limits *l = &vm->spec.limits;
    return json_pack("{s:s, s:{s:o, s:o}}", "drive_id", "root", "rate_limiter", "bandwidth",
                     bucket(l->disk_mib_per_s * MIB), "ops", bucket(l->disk_iops));
}

static void on_firecracker_told(void *arg, const struct error *err, const json_t *body)
{
    struct vm *vm = arg;
    (void)body;
    if (err && err->code == ERROR_GONE) /* one that has only hung up is ended; its end answers */
        loop_timer_start(&((struct fc *)vm->priv)->vmm.timer, FC_GONE_MS);
    else
        told(vm, err);
}

void fc_limit(struct vm *vm, vm_done done)
{
    struct fc *q = vm->priv;
    struct error err = ERROR_INIT;
    vm->limit_done = done;
    if (!q->api) {
        (void)error_set(&err, ERROR_GONE, "the VMM's control interface is closed");
        told(vm, &err);
        return;
    }
    fc_api_call(q->api, "PATCH", "/drives/root", fc_body_limit(vm), LIMIT_TIMEOUT_MS, on_firecracker_told,
                vm);
}
