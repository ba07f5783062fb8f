/* What a server consists of, and how old each part is: for `space version --all`. Dates are found without a
 * network: in the changelogs of the distribution's packages, in a table of Firecracker's releases, at last
 * in the files themselves, and each says where it is from. */
#pragma once

#include <jansson.h>
#include <time.h>

struct components_config {
    const char *root;           /* before /usr and /boot; NULL: "" */
    const char *path;           /* where VMMs are looked for; NULL: $PATH and the sbin directories */
    const char *firecracker;    /* its program; NULL or "": looked for like the others */
    const char *kernel_release; /* of the platform image */
    const char *image_digest;
    const char *initrd;           /* file of the platform image, below no root */
    const char *const *libraries; /* paths, NULL at the end; NULL: those of this process */
};

/* [{"name", "kind": "server|agent|vmm|kernel|initramfs|library", "version", "package": text or null,
 * "released": "2025-12-16" or null, "released_from": "release|changelog|series|file|unknown"}]; new
 * reference, NULL without memory. Asks the VMMs for their versions, so it may take seconds: for a worker. */
json_t *components_find(const struct components_config *config);

/* The same with "age_days" (null without a date) at this time; new reference. */
json_t *components_aged(const json_t *components, time_t now);
