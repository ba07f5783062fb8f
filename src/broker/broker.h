/* The daemon's end of the broker channel: typed requests to space-privd, answered asynchronously.
 *
 * space-privd is root and holds what needs root: the storage pool, uid leases, namespaces, cgroups, and
 * the start of jailed VMMs and template builds. It takes identifiers, never paths, pids, uids or argument
 * lists, composes every path itself, and keeps its own records (state-dir/privd/), so a compromised
 * daemon can only ask for what it was leased. Protocol and threat model: docs/design/privilege.md.
 *
 * On disk (the pool is state-dir/pool: a directory when it has reflinks, else a loop-mounted btrfs image
 * state-dir/pool.img):
 *   templates/<hex64>/rootfs.raw            root 0444, sparse ext4 image, immutable
 *   golden/<key>/{mem,disk.raw,state}       root 0444 once sealed
 *   snapshots/<id>/{mem,disk.raw,state,pages,manifest}  root 0444 once sealed; the manifest comes last
 *   sandboxes/<id>/disk.raw                 owned by the sandbox's uid, 0600; root's while parked
 *   sandboxes/<id>/mem                      hard link to the memory its VMM maps privately: the base of the
 *                                           next snapshot, whatever happens to the golden or snapshot
 *   sandboxes/<id>/run/{agent.sock,qmp.sock} sockets bound by the broker; directory root:spaced 0750
 *   sandboxes/<id>/run/vmm.log              the last words of the VMM itself (its standard error)
 * Each callback runs once on the loop's thread; after broker_destroy none does. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/id.h"
#include "loop/loop.h"

struct broker;

#define BROKER_DIGEST_SIZE 65 /* 64 lower-case hexadecimal digits and NUL */
#define BROKER_LIMITS_SIZE 400
#define BROKER_KEY_SIZE 160 /* golden key, NUL included: [a-z0-9][a-z0-9._-]* */

struct broker_info {
    char pool_path[256]; /* absolute path of the pool */
    char pool_kind[16];  /* "btrfs", "xfs", "loop-btrfs", "copy" */
    bool reflink;
    uint64_t pool_free_bytes;
    uint64_t pool_total_bytes;
    char cgroup_mode[8];                    /* "v2", "v1", "none" */
    char cgroup_limits[BROKER_LIMITS_SIZE]; /* what it bounds, and what not and why */
    uid_t uid_first;                        /* first uid of this server's lease */
    unsigned uid_count;
    bool kvm_device; /* /dev/kvm can be opened by the broker */
};

/* channel_fd: a connected SOCK_SEQPACKET socket to space-privd; owned from success on. `gone` is called
 * once when space-privd has ended: the daemon cannot go on and exits. */
int broker_create(struct loop *l, int channel_fd, void (*gone)(void *arg), void *arg, struct broker **ret,
                  struct error *err);
void broker_destroy(struct broker *b); /* NULL is accepted */

typedef void (*broker_done)(void *arg, const struct error *err);

/* Facts about the host; also refreshes the free space. *info is valid during the call. */
void broker_info(struct broker *b,
                 void (*done)(void *arg, const struct error *err, const struct broker_info *info), void *arg);

/* --- disks --- */
enum broker_disk_from { BROKER_FROM_TEMPLATE, BROKER_FROM_GOLDEN, BROKER_FROM_SNAPSHOT };

/* Makes sandboxes/<id> with its uid lease, run directory and disk: a reflink clone (or sparse copy) of
 * a template's rootfs.raw, a sealed golden's or a sealed snapshot's disk.raw, grown to at least disk_mib.
 * Repeating it for an existing sandbox succeeds and changes nothing. */
void broker_sandbox_prepare(struct broker *b, const char *sandbox_id, enum broker_disk_from from,
                            const char *digest_or_key, uint32_t disk_mib, broker_done done, void *arg);

/* Lets go of what only a running sandbox needs: kills the VMM if it lives, waits for its end, removes cgroup,
 * run directory and the link to its memory, gives its uid back (the disk is root's meanwhile). The next
 * broker_vmm_start leases a uid again. Repeating it, and one that is parked, is success. */
void broker_sandbox_park(struct broker *b, const char *sandbox_id, broker_done done, void *arg);

/* Replaces the sandbox's disk by a clone of a sealed snapshot's, as one step. No VMM may live
 * (ERROR_CONFLICT). Repeating it is success. */
void broker_sandbox_revert(struct broker *b, const char *sandbox_id, const char *snapshot_id,
                           broker_done done, void *arg);

/* Kills the VMM if it lives, waits for its end, and removes everything the sandbox ever took on the host:
 * disk, directory, sockets, cgroup, uid lease. Absent is success. */
void broker_sandbox_remove(struct broker *b, const char *sandbox_id, broker_done done, void *arg);

/* Ids the broker has anything for (sandboxes being prepared, running or stopped). */
void broker_sandbox_list(struct broker *b,
                         void (*done)(void *arg, const struct error *err, const char (*ids)[ID_SIZE],
                                      size_t n),
                         void *arg);

/* --- golden snapshots --- */
/* Makes golden/<key> for a VM that will be booted under sandbox_id: an empty `mem` of memory_mib owned
 * by the sandbox's uid, and `state` owned by spaced. The sandbox must be prepared. A leftover of an
 * unsealed golden of that key is replaced. */
void broker_golden_begin(struct broker *b, const char *key, const char *sandbox_id, uint32_t memory_mib,
                         broker_done done, void *arg);

/* FIRECRACKER: the vCPUs of the VM that was booted for golden/<key> are stopped, and it will not run again:
 * copies its memory into `mem`. (QEMU's is that file.) */
void broker_golden_capture(struct broker *b, const char *key, const char *sandbox_id, broker_done done,
                           void *arg);

/* The VM has been saved and has ended: moves the sandbox's disk in, syncs, gives everything to root
 * (0444) and marks it sealed. */
void broker_golden_seal(struct broker *b, const char *key, const char *sandbox_id, broker_done done,
                        void *arg);
void broker_golden_remove(struct broker *b, const char *key, broker_done done, void *arg);

/* Whether golden/<key> is sealed. */
void broker_golden_has(struct broker *b, const char *key,
                       void (*done)(void *arg, const struct error *err, bool sealed), void *arg);

/* --- snapshots ---
 * begin -> (vCPUs stopped, device state written to `state`) -> capture -> (vCPUs may run again) -> seal.
 * A snapshot without its manifest does not exist: a broker that starts removes it. Memory is a reflink clone
 * of the memory file the VMM maps, with the changed pages written over it, so every snapshot is whole and
 * none depends on another; extents are shared below. One sandbox has one snapshot in the making. A begin,
 * capture or seal that fails on the way leaves nothing of it; one that is refused (ERROR_CONFLICT,
 * ERROR_NOT_FOUND before any work) leaves it as it was. */
enum broker_snapshot_kind { BROKER_SNAPSHOT_FULL, BROKER_SNAPSHOT_DISK };

/* Makes the directory, for FULL a `state` file owned by spaced (to be written through the VMM) and a clone of
 * the memory's base, and writes the disk's dirty pages back, so that capture is short. The VM may run. FULL
 * needs a living VMM (ERROR_NOT_FOUND). What another begin left of this id is replaced; a sealed one is
 * ERROR_EXISTS. */
void broker_snapshot_begin(struct broker *b, const char *snapshot_id, const char *sandbox_id,
                           enum broker_snapshot_kind kind, broker_done done, void *arg);

/* The vCPUs are stopped, or there is no VMM: clones the disk and, for FULL, takes the pages that the guest
 * changed. go_on: the VM is to run again soon, so pages are copied to the broker's memory first (as many as
 * its bound allows) and written after the answer. From the answer on the VM may run, or end. */
void broker_snapshot_capture(struct broker *b, const char *snapshot_id, bool go_on,
                             void (*done)(void *arg, const struct error *err, uint64_t dirty_bytes),
                             void *arg);

/* Writes what capture kept, checks and digests, makes everything durable and root's, and writes the manifest.
 * *bytes: written for this snapshot (pages, state, index), without what it shares. Repeating a sealed one is
 * success. */
void broker_snapshot_seal(struct broker *b, const char *snapshot_id,
                          void (*done)(void *arg, const struct error *err, uint64_t bytes), void *arg);

/* Whether a sandbox could go on from a sealed snapshot: manifest, device state and memory are what was
 * written, kind and size of the memory what is said here (memory_mib: of the VM that would map it), the disk
 * is there in its length. Nothing is changed but that a packed one is unpacked. ERROR_DAMAGED when it could
 * not, ERROR_NOT_FOUND when there is none, ERROR_CONFLICT while it is in the making. */
void broker_snapshot_check(struct broker *b, const char *snapshot_id, enum broker_snapshot_kind kind,
                           uint32_t memory_mib, broker_done done, void *arg);

/* A new sealed snapshot with the content of another, whose files it shares. ERROR_EXISTS when to_id is
 * sealed. */
void broker_snapshot_copy(struct broker *b, const char *from_id, const char *to_id, broker_done done,
                          void *arg);

/* Compresses a sealed snapshot's own pages, for one that is kept long. *bytes: what it takes on disk by
 * itself from then on. Whatever needs its memory later unpacks it by itself first. ERROR_CONFLICT while a VM
 * or a copy has its memory: nothing would be gained. Repeating it, and one of the disk alone, is success. */
void broker_snapshot_pack(struct broker *b, const char *snapshot_id,
                          void (*done)(void *arg, const struct error *err, uint64_t bytes), void *arg);

/* Absent is success. One in the making is abandoned. VMs that map its memory keep it. */
void broker_snapshot_remove(struct broker *b, const char *snapshot_id, broker_done done, void *arg);

/* Ids of sealed snapshots. */
void broker_snapshot_list(struct broker *b,
                          void (*done)(void *arg, const struct error *err, const char (*ids)[ID_SIZE],
                                       size_t n),
                          void *arg);

/* --- VMMs --- */
enum broker_boot {
    BROKER_BOOT_GOLDEN,   /* cold boot, to be saved; QEMU: with golden/<key>/mem as shared memory */
    BROKER_BOOT_COLD,     /* cold boot from the sandbox's own disk, private anonymous memory */
    BROKER_BOOT_RESTORE,  /* golden/<key>/mem mapped privately; waits for the device state */
    BROKER_BOOT_SNAPSHOT, /* the same with snapshots/<id>/mem; its state and pages are checked against
                             the manifest's digests (ERROR_DAMAGED) */
};

/* Which VMM: each has a command line of its own, and its own ways to be spoken to. */
enum broker_vmm_kind { BROKER_VMM_QEMU, BROKER_VMM_FIRECRACKER };

struct broker_vmm {
    const char *sandbox_id; /* prepared */
    enum broker_vmm_kind kind;
    enum broker_boot boot;
    const char *golden_key;  /* GOLDEN, RESTORE */
    const char *snapshot_id; /* SNAPSHOT */
    const char *platform;    /* hex64 digest of state-dir/platform/<digest>/{vmlinuz,initrd} */
    bool kvm;                /* accelerate with KVM, else TCG */
    uint32_t vcpus;
    uint32_t memory_mib;
};

struct broker_vmm_info {
    pid_t pid;
    uint64_t start_time; /* see base/proc.h */
    enum broker_vmm_kind kind;
    int pidfd; /* owned by the callback's receiver */
    /* Owned likewise. QEMU: the directory of its sockets. FIRECRACKER: the one directory in its jail that the
     * VMM can write, where it makes api.sock, agent.sock and what it saves: nothing in there can be trusted.
     */
    int run_fd;
    char qmp_socket[200];   /* QEMU */
    char agent_socket[200]; /* QEMU */
    char log[200];          /* the end of what the VMM has printed; FIRECRACKER: its guest's console, too */
};

typedef void (*broker_vmm_done)(void *arg, const struct error *err, const struct broker_vmm_info *info);

/* Starts the VMM of a sandbox in its jail: own uid, chroot, mount/network/IPC/UTS/PID namespaces, cgroup,
 * rlimits, no capabilities, no_new_privs, seccomp. One VMM per sandbox at a time (ERROR_CONFLICT). */
void broker_vmm_start(struct broker *b, const struct broker_vmm *vmm, broker_vmm_done done, void *arg);

/* Finds the running VMM of a sandbox, started by this or an earlier broker; ERROR_NOT_FOUND when it has
 * ended. */
void broker_vmm_adopt(struct broker *b, const char *sandbox_id, broker_vmm_done done, void *arg);

/* SIGKILL, and waits for the end. Not running is success. */
void broker_vmm_kill(struct broker *b, const char *sandbox_id, broker_done done, void *arg);

/* --- template builds --- */
enum broker_build { BROKER_BUILD_DEBIAN, BROKER_BUILD_TAR };

struct broker_build_spec {
    const char *build_id; /* "tp_..." */
    enum broker_build kind;
    int source_fd;     /* TAR: the archive (any compression libarchive reads), read from its start; else -1 */
    const char *suite; /* DEBIAN: "" = the host's own suite */
    const char *const *packages; /* DEBIAN: NULL-terminated, each a Debian package name */
    bool seed_user;              /* make the user `user` (uid 1000) with passwordless sudo */
    uint32_t disk_mib;           /* size of the image's file system */
    int log_fd;                  /* the build's progress and errors are written here as text */
};

/* Builds a root file system in a jail of its own (space-builder) and installs it as
 * templates/<digest>/rootfs.raw. The digest is the SHA-256 of the canonical content listing, so the same
 * tree gives the same digest. May take minutes. */
void broker_template_build(struct broker *b, const struct broker_build_spec *spec,
                           void (*done)(void *arg, const struct error *err, const char *digest,
                                        uint64_t content_bytes),
                           void *arg);
void broker_template_build_cancel(struct broker *b, const char *build_id);
void broker_template_remove(struct broker *b, const char *digest, broker_done done, void *arg);
