/* QEMU's command line from typed values: used by space-privd, which starts the VMM. No I/O.
 *
 * A saved VM is restored with the command line it was started with, but for the memory's sharing and
 * -incoming, so everything here follows from the spec alone. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define QEMU_ARGV_MAX 96
#define QEMU_ARGV_BYTES 8192

struct qemu_argv_spec {
    const char *binary;     /* path inside the jail */
    const char *sandbox_id; /* appears in the command line */
    bool kvm;               /* else TCG, multi-threaded */
    uint32_t vcpus;
    uint32_t memory_mib;
    const char *mem_path;  /* memory file inside the jail; NULL: anonymous memory */
    bool mem_shared;       /* golden boot: writes go to the file; else a private mapping */
    const char *disk_path; /* raw image inside the jail */
    const char *kernel_path;
    const char *initrd_path;
    int qmp_fd; /* listening sockets inherited by the VMM */
    int agent_fd;
    bool incoming;    /* wait for device state (restore) */
    uint32_t tsc_khz; /* TCG: rate of the host's TSC, told to the guest's kernel; 0: measure it */
};

struct qemu_argv {
    char *argv[QEMU_ARGV_MAX]; /* NULL-terminated, pointing into bytes */
    char bytes[QEMU_ARGV_BYTES];
};

/* Fills *ret. ERROR_INVALID for a value QEMU's option syntax cannot carry (a comma in a path). */
int qemu_argv_build(const struct qemu_argv_spec *spec, struct qemu_argv *ret, struct error *err);

/* Rate of this host's time-stamp counter in kHz; measured by the first call (20 ms of busy waiting), then
 * remembered. 0 on a machine without one. */
uint32_t qemu_argv_tsc_khz(void);
