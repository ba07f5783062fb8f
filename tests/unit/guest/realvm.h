/* One real machine: QEMU under emulation, the platform's kernel and initramfs, a root disk with busybox in
 * it. No broker: memory, disk and device state are files of the test, so one image can be started any number
 * of times. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* What every machine of a test is made from. */
struct realvm_kit {
    char *dir; /* owned; all files are in it */
    char kernel[300], initrd[300];
};

struct realvm {
    const struct realvm_kit *kit;
    char dir[200];
    char agent_path[256], qmp_path[256], mem[256], disk[256];
    int qmp; /* owned; connected */
    pid_t pid;
};

/* False: this host cannot (no kernel to be had, not root). */
bool realvm_kit_make(struct realvm_kit *k);
void realvm_kit_remove(struct realvm_kit *k);

/* Boots one whose memory is a file. */
void realvm_boot(const struct realvm_kit *k, struct realvm *vm, const char *name);

/* Starts one from the memory, disk and device state of a stopped one that was saved; stopped. */
void realvm_restore(const struct realvm_kit *k, struct realvm *vm, const char *name,
                    const struct realvm *image);

/* A QMP command without arguments, or with them as the inside of a JSON object. */
void realvm_qmp(struct realvm *vm, const char *command, const char *arguments);

void realvm_stop(struct realvm *vm);
void realvm_cont(struct realvm *vm);

/* Of a stopped one: device state goes beside its memory. The machine ends; its files stay. */
void realvm_save(struct realvm *vm);

/* What the guest has printed. */
void realvm_console(struct realvm *vm);

void realvm_end(struct realvm *vm);
