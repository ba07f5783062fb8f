/* What Firecracker is told. Paths are those of its jail, the same for every VM: device state made in one jail
 * loads in another. */
#include "proto/proto.h"
#include "vm/firecracker.h"

#define GUEST_CID 3 /* each VMM has host and guest to itself */

json_t *fc_body_machine(const struct vm *vm)
{
    return json_pack("{s:i, s:i}", "vcpu_count", (int)vm->spec.shape.vcpus, "mem_size_mib",
                     (int)vm->spec.shape.memory_mib);
}

json_t *fc_body_kernel(const struct vm *vm)
{
    (void)vm;
    /* reboot=k: by the keyboard's controller, the one way for a guest to end its VMM. The next three spare
     * the kernel looking for keyboards. panic=1: a second for the daemon to fetch the console's last words.
     */
    char args[256];
    (void)snprintf(
        args, sizeof(args),
        "console=ttyS0 quiet loglevel=4 panic=1 reboot=k i8042.noaux i8042.nomux i8042.dumbkbd pci=off "
        "cryptomgr.notests random.trust_cpu=on space.vsock=%u",
        PROTO_VSOCK_PORT);
    return json_pack("{s:s, s:s, s:s}", "kernel_image_path", "/vmlinuz", "initrd_path", "/initrd",
                     "boot_args", args);
}

json_t *fc_body_disk(const struct vm *vm)
{
    (void)vm;
    /* Writeback: a guest's flush is one. */
    return json_pack("{s:s, s:b, s:b, s:s, s:s}", "drive_id", "root", "is_root_device", 0, "is_read_only", 0,
                     "cache_type", "Writeback", "path_on_host", "/disk.raw");
}

json_t *fc_body_vsock(const struct vm *vm)
{
    (void)vm;
    return json_pack("{s:i, s:s}", "guest_cid", GUEST_CID, "uds_path", "/run/agent.sock");
}

json_t *fc_body_entropy(const struct vm *vm)
{
    (void)vm;
    return json_object();
}

json_t *fc_body_start(const struct vm *vm)
{
    (void)vm;
    return json_pack("{s:s}", "action_type", "InstanceStart");
}

json_t *fc_body_pause(const struct vm *vm)
{
    (void)vm;
    return json_pack("{s:s}", "state", "Paused");
}

json_t *fc_body_resume(const struct vm *vm)
{
    (void)vm;
    return json_pack("{s:s}", "state", "Resumed");
}

json_t *fc_body_load(const struct vm *vm)
{
    (void)vm;
    return json_pack("{s:s, s:{s:s, s:s}, s:b}", "snapshot_path", "/state", "mem_backend", "backend_type",
                     "File", "backend_path", "/mem", "resume_vm", 0);
}

/* A bucket that is full after a second; one without a size takes an earlier one away. */
static json_t *bucket(int64_t a_second)
{
    return json_pack("{s:I, s:i}", "size", (json_int_t)a_second, "refill_time", a_second > 0 ? 1000 : 0);
}

json_t *fc_body_limit(const struct vm *vm)
{
    const struct vm_limits *l = &vm->spec.limits;
    return json_pack("{s:s, s:{s:o, s:o}}", "drive_id", "root", "rate_limiter", "bandwidth",
                     bucket(l->disk_mib_per_s * VM_MIB), "ops", bucket(l->disk_iops));
}

json_t *fc_body_state(const struct vm *vm)
{
    (void)vm;
    /* Its root is read-only: the file for the memory cannot be made, and what remains is the device state. */
    return json_pack("{s:s, s:s, s:s}", "snapshot_type", "Full", "snapshot_path", "/run/state",
                     "mem_file_path", "/memory-is-taken-from-outside");
}
