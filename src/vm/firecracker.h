/* Inside of the Firecracker engine: what its files share. */
#pragma once

#include "base/buf.h"
#include "vm/firecracker_api.h"
#include "vm/started.h"

#define FC_STATE_MAX (10U << 20) /* Firecracker itself reads no more */

#define FC_API_SOCKET "api.sock"
#define FC_METRICS_MAX 65536 /* what a pipe holds; a line has 10 KiB */

struct fc_step;

/* The pipe with what the VMM has counted. */
struct fc_metrics {
    bool opened;        /* it was tried; else nothing of the following is set */
    int fd;             /* -1: there is none */
    struct buf in;      /* the beginning of a line */
    struct fc_api *api; /* NULL but while it is asked */
};

#define FC_GONE_MS 1000 /* a process that ends closes its sockets first */

/* Engine-private part of a struct vm. */
struct fc {
    struct vm_started vmm;      /* first */
    struct fc_api *api;         /* NULL before the start and after the end */
    char version[32];           /* this one's: it may be older than the program that is there now */
    const struct fc_step *step; /* of the operation in flight */

    /* The guest will be told that its connections are gone when it runs again. Without that nobody reaches it
     * any more after a pause. */
    bool reset_sent;

    char *seen; /* owned: what the last look at the console found */
    size_t seen_n;

    struct fc_metrics metrics;
};

/* The table of operations, and the engine's private part of a VM (made by the first launch or adopt). */
extern const struct vm_engine_ops vm_firecracker_ops;

/* firecracker_state.c: copies the device state that the VMM has written, a file "state" of its directory, to
 * state_fd (-1: only looks at it). ERROR_PROTOCOL when it is not whole. */
int fc_state_take(int run_fd, int state_fd, struct error *err);

/* Whether this is whole device state: its own checksum is at its end. */
bool fc_state_is_whole(const unsigned char *p, size_t n);

/* firecracker_counts.c. A line of it; false: it is none, or counts what cannot be. */
bool fc_metrics_parse(const char *text, size_t n, struct vm_counters *ret);

/* firecracker_metrics.c: asks what the VMM has counted (engine operation); vm_counted follows. */
void fc_count(struct vm *vm);
void fc_metrics_finish(struct vm *vm, struct fc_metrics *m); /* the VM goes: the last of it */

/* firecracker_console.c: reads the guest's console (engine operation). */
void fc_console(struct vm *vm, vm_console_done done, void *arg);

/* What of a log is new since `seen` was the end of it. */
const char *fc_console_new(const char *seen, size_t seen_n, const char *text, size_t n);

/* firecracker_body.c: bodies of requests; NULL without memory. */
json_t *fc_body_machine(const struct vm *vm);
json_t *fc_body_kernel(const struct vm *vm);
json_t *fc_body_disk(const struct vm *vm);
json_t *fc_body_vsock(const struct vm *vm);
json_t *fc_body_entropy(const struct vm *vm);
json_t *fc_body_start(const struct vm *vm);
json_t *fc_body_pause(const struct vm *vm);
json_t *fc_body_resume(const struct vm *vm);
json_t *fc_body_load(const struct vm *vm);
json_t *fc_body_limit(const struct vm *vm);
json_t *fc_body_state(const struct vm *vm);
