#include "agent/kernfs.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include "base/cleanup.h"

/* Not in every release of the kernel's headers. */
#define CONFIGFS 0x62656570
#define MQUEUE 0x19800202
#define FUSE_CONTROL 0x65735543

bool kernfs_is(int fd)
{
    static const unsigned kinds[] = {
        PROC_SUPER_MAGIC,    SYSFS_MAGIC,        CGROUP_SUPER_MAGIC,
        CGROUP2_SUPER_MAGIC, DEVPTS_SUPER_MAGIC, DEBUGFS_MAGIC,
        TRACEFS_MAGIC,       SECURITYFS_MAGIC,   BPF_FS_MAGIC,
        PSTOREFS_MAGIC,      EFIVARFS_MAGIC,     SELINUX_MAGIC,
        BINFMTFS_MAGIC,      CONFIGFS,           MQUEUE,
        FUSE_CONTROL,
    };
    struct statfs st;
    if (fstatfs(fd, &st) < 0)
        return false;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if ((unsigned)st.f_type == kinds[i])
            return true;
    return false;
}
