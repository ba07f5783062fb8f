/* What this machine offers to sandboxes: one line a check, and which engine `auto` chooses. Used by `space
 * doctor` on the spot and by the daemon for GET /v1/doctor. Reads only; nothing is installed, loaded or
 * changed. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

enum doctor_status {
    DOCTOR_OK,
    DOCTOR_DEGRADED, /* works; `advice` says what is lost */
    DOCTOR_MISSING,  /* no sandbox can run; `advice` is what fixes it */
};

#define DOCTOR_TEXT 320
#define DOCTOR_CHECKS_MAX 32

struct doctor_check {
    char name[32];
    enum doctor_status status;
    char detail[DOCTOR_TEXT];
    char advice[DOCTOR_TEXT]; /* "" when ok */
};

struct doctor_report {
    struct doctor_check checks[DOCTOR_CHECKS_MAX];
    size_t count;
    char engine[16];       /* what `auto` chooses: "firecracker" or "qemu"; "" when there is none */
    char acceleration[16]; /* "kvm" or "tcg" */
    char reason[DOCTOR_TEXT];
};

struct doctor_config {
    const char *root;        /* before /proc, /sys, /dev and /boot; NULL: "" */
    const char *path;        /* where programs are looked for; NULL: $PATH and the sbin directories */
    const char *firecracker; /* its program; NULL or "": looked for like the others */
    const char *state_dir;   /* NULL: /var/lib/space */
    uint16_t port;           /* the server's; 0: not checked (the daemon itself has it) */
    const char *kernel;      /* as in image_config; NULL: the distribution's */
    const char *modules;
    bool is_root; /* effective uid 0 */
    /* kvm_probe of vm/kvm_probe.h; NULL: not checked. */
    bool (*kvm_probe)(unsigned timeout_ms, char *why, size_t why_size);
    /* What an earlier probe found, for a caller that may not open /dev/kvm any more; NULL: probe now. */
    const char *kvm_why;
    bool kvm_works; /* with kvm_why */
    /* Whether there is a usable kernel: fills detail, or the error. NULL: not checked. */
    int (*find_kernel)(const struct doctor_config *config, char *detail, size_t size, struct error *err);
};

/* Never fails: what cannot be found out is a line saying so. May take some seconds (the KVM probe, versions
 * of programs), so the daemon calls it from a worker. */
void doctor_run(const struct doctor_config *config, struct doctor_report *ret);

/* Whether a sandbox can run: nothing is missing. */
bool doctor_can_run(const struct doctor_report *r);

const char *doctor_status_name(enum doctor_status s); /* "ok", "degraded", "missing" */

/* {"can_run", "engine", "acceleration", "reason", "checks": [{"name","status","detail","advice"}]}; new
 * reference. */
json_t *doctor_json(const struct doctor_report *r);

/* The report as text, from its JSON (also a server's). */
void doctor_print(FILE *to, const json_t *report);
