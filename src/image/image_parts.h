/* Inside of src/image: the parts the platform image is built from. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "image/image.h"

#define IMAGE_KERNEL_MAX (512UL * 1024 * 1024)
#define IMAGE_MODULE_MAX (64UL * 1024 * 1024)
#define IMAGE_MODULES_MAX 64

/* A piece of memory. */
struct image_blob {
    char *data; /* owned */
    size_t len;
};

/* One kernel module to load. */
struct image_module {
    char name[64];  /* "virtio_blk.ko" */
    char path[256]; /* below the modules directory, as packed by the distribution */
};

/* Modules in load order. */
struct image_modules {
    struct image_module items[IMAGE_MODULES_MAX];
    size_t count;
};

/* --- kernel.c --- */

/* Fills release and path of the kernel to use and the directory of its modules (path_size bytes). */
int image_kernel_find(const struct image_config *config, struct image_info *info, char *modules_dir,
                      size_t size, struct error *err);

/* The release in the header of a bzImage ("6.1.0-57-cloud-amd64"); false when there is none. */
bool image_kernel_release(const char *data, size_t len, char *to, size_t size);

/* The ELF kernel inside a bzImage when it has a PVH entry, which QEMU boots without the guest having to
 * unpack it. False: there is none, use the file as it is. */
bool image_kernel_unpack(const char *data, size_t len, struct image_blob *ret);

/* --- modules.c --- */

/* Resolves what a guest needs from the texts of modules.dep and modules.builtin. ERROR_NOT_FOUND names a
 * module that is neither. */
int image_modules_resolve(const char *dep, const char *builtin, struct image_modules *ret, struct error *err);

/* --- archive.c --- */

/* Unpacks one compressed file (gzip, xz, zstd, lz4; or as it is when not compressed) of at most max bytes.
 * Bytes after the compressed stream are ignored. */
int image_unpack(const char *data, size_t len, size_t max, struct image_blob *ret, struct error *err);

/* gzip without a time stamp: the same data gives the same bytes. */
int image_pack(const char *data, size_t len, struct image_blob *ret, struct error *err);

/* --- cpio.c: entries of a newc archive; false when the buffer is full --- */
bool image_cpio_dir(struct buf *to, const char *path);
bool image_cpio_file(struct buf *to, const char *path, unsigned mode, const void *data, size_t len);
bool image_cpio_console(struct buf *to); /* dev/console */
bool image_cpio_end(struct buf *to);
