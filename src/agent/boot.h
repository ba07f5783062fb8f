/* From an initramfs to a guest that can run anything: kernel modules, the root disk, the usual mounts. */
#pragma once

/* Brings the guest up as PID 1 and leaves this process inside the root file system. Returns the open port, or
 * -1 after one line on the console that says what is wrong. *ret_cgroup: the top of the guest's control
 * groups or -1. */
int boot_guest(int *ret_cgroup);

/* Kills everything, unmounts and ends the VM. Does not return when this is PID 1. */
void boot_power_off(void);
