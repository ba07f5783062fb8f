/* The platform image: kernel and initramfs every sandbox boots, built from the distribution's kernel package
 * and space-agent. Belongs to the platform, not to any template. */
#pragma once

#include <stdint.h>

#include "base/error.h"

#define IMAGE_DIGEST_SIZE 65

struct image_config {
    const char *kernel;    /* bzImage; NULL: newest /boot/vmlinuz-* that has modules in /lib/modules (cloud
                              kernels preferred) */
    const char *modules;   /* directory; NULL: /lib/modules/<release of the kernel> */
    const char *agent;     /* space-agent binary */
    const char *state_dir; /* result: state_dir/platform/<digest>/{vmlinuz,initrd,manifest.json} */
};

struct image_info {
    char digest[IMAGE_DIGEST_SIZE]; /* SHA-256 over kernel, modules and agent */
    char kernel_release[96];        /* "6.1.0-57-cloud-amd64" */
    char kernel_path[512];          /* what it was made from */
};

/* Builds the image unless one with the same digest is there; older ones stay (running sandboxes use
 * them). Reads the kernel (root only on some distributions), so it runs before privileges are dropped.
 * ERROR_NOT_FOUND names the missing package when there is no usable kernel. */
int image_build(const struct image_config *config, struct image_info *ret, struct error *err);

/* Finds the kernel and modules image_build would use, without building. For doctor. */
int image_find(const struct image_config *config, struct image_info *ret, struct error *err);
