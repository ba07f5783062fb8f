#include "agent/disk.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/statfs.h>

#include "base/cleanup.h"

#define EXT4_RESIZE _IOW('f', 16, uint64_t) /* EXT4_IOC_RESIZE_FS: new size in blocks */
#define SUPERBLOCK_AT 1024
#define SUPERBLOCK_SIZE 1024
#define AT_BLOCKS_LOW 0x4
#define AT_LOG_BLOCK 0x18
#define AT_MAGIC 0x38
#define AT_INCOMPAT 0x60
#define AT_BLOCKS_HIGH 0x150
#define MAGIC 0xEF53
#define INCOMPAT_64BIT 0x80

static uint32_t le32(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* How many blocks the device has room for, and how many the file system has; 0 or -1. */
static int measure(const char *device, uint64_t *ret_room, uint64_t *ret_has)
{
    unsigned char super[SUPERBLOCK_SIZE];
    uint64_t bytes;
    AUTO_CLOSE int fd = open(device, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || pread(fd, super, sizeof(super), SUPERBLOCK_AT) != sizeof(super))
        return -1;
    if ((super[AT_MAGIC] | super[AT_MAGIC + 1] << 8) != MAGIC || le32(super + AT_LOG_BLOCK) > 6)
        return -1;
    if (ioctl(fd, BLKGETSIZE64, &bytes) < 0)
        return -1;
    *ret_has = le32(super + AT_BLOCKS_LOW);
    if (le32(super + AT_INCOMPAT) & INCOMPAT_64BIT)
        *ret_has |= (uint64_t)le32(super + AT_BLOCKS_HIGH) << 32;
    *ret_room = bytes >> (10 + le32(super + AT_LOG_BLOCK));
    return 0;
}

static void grow(const char *device, const char *path)
{
    uint64_t room, has;
    if (measure(device, &room, &has) < 0 || room <= has)
        return;
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, EXT4_RESIZE, &room) < 0)
        (void)fprintf(stderr, "space-agent: the root file system stays at %llu of %llu blocks: %m\n",
                      (unsigned long long)has, (unsigned long long)room);
}

int disk_mount(const char *device, const char *path)
{
    if (mount(device, path, "ext4", MS_NOATIME, NULL) < 0)
        return -1;
    grow(device, path);
    return 0;
}
