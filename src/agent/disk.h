/* The guest's root disk. */
#pragma once

/* Mounts the ext4 file system of `device` at `path` and grows it to the size of the device. 0, or -1 with
 * errno. A file system that does not grow is no failure. */
int disk_mount(const char *device, const char *path);
