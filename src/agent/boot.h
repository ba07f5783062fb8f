/* From an initramfs to a guest that can run anything: kernel modules, the root disk, the usual mounts. */
#pragma once

/* How the host reaches the agent, and the top of the guest's control groups; -1: there is none. */
struct boot {
    int port_fd;   /* the open port, */
    int listen_fd; /* or a socket that the host connects to */
    int cgroup_fd;
};

/* Brings the guest up as PID 1 and leaves this process inside the root file system. 0, or -1 after one line
 * on the console that says what is wrong. */
int boot_guest(struct boot *ret);

/* Kills everything, unmounts and ends the VM. Does not return when this is PID 1. */
void boot_power_off(void);
