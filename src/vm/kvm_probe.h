/* Whether /dev/kvm really runs a guest. That the device opens proves little: some hosts create VMs that
 * never get through a boot. The probe runs a small guest with raw ioctls through what a kernel needs
 * early on (real mode, then 64-bit long mode with its own page tables, descriptor tables, an
 * exception taken and returned from, control registers and MSRs written), and gives it a time limit. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Runs the probe in a child process (so a hanging ioctl cannot hang the caller), at most timeout_ms.
 * Returns whether KVM works; why (why_size bytes) gets one line for people either way. */
bool kvm_probe(unsigned timeout_ms, char *why, size_t why_size);
