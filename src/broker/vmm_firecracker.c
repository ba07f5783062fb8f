/* What a Firecracker is started with, and what it finds in its root. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/proc.h"
#include "base/str.h"
#include "broker/vmm.h"

void firecracker_argv_build(const char *sandbox_id, struct firecracker_argv *ret)
{
    /* Its own id has no underscores, so the sandbox's stands in front, for who looks for it among processes.
     * Only errors are logged: its warnings are about what the guest does, line by line. */
    char *const words[] = {ret->name,
                           "--id",
                           ret->id,
                           "--api-sock",
                           "/run/" FIRECRACKER_API,
                           "--level",
                           "Error",
                           "--metrics-path",
                           "/run/" FIRECRACKER_METRICS};
    _Static_assert(ARRAY_LEN(words) < FIRECRACKER_ARGV_MAX, "and a NULL");
    (void)str_copy(ret->name, sizeof(ret->name), sandbox_id);
    (void)str_copy(ret->id, sizeof(ret->id), sandbox_id);
    for (char *p = ret->id; *p; p++)
        if (*p == '_')
            *p = '-';
    memset(ret->argv, 0, sizeof(ret->argv));
    memcpy(ret->argv, words, sizeof(words));
}

char *const *firecracker_env(void)
{
    /* One heap: the C library maps further ones with the same properties as the guest's memory, and the
     * kernel would join the two, so that nobody could tell where the memory begins and ends. */
    static char *env[] = {"PATH=/usr/bin:/bin", "GLIBC_TUNABLES=glibc.malloc.arena_max=1", NULL};
    return env;
}

unsigned firecracker_items(const struct firecracker_root *r, struct jail_item *items)
{
    const struct jail_item list[] = {
        {.entry = JAIL_BIND,
         .to = &FIRECRACKER_PROGRAM[1],
         .from = r->program}, /* plain files are not executable */
        {.entry = JAIL_TMPFS, .to = "run", .size = "8m", .inodes = 64, .uid = r->uid, .gid = r->gid},
        /* A pipe holds 64 KiB, and what comes when it is full is not written: a file would grow. */
        {.entry = JAIL_FIFO, .to = "run/" FIRECRACKER_METRICS, .uid = r->uid, .gid = r->gid},
        {.entry = JAIL_BIND, .to = "state", .from = r->state, .plain_file = true},
    };
    unsigned n = r->state[0] != '\0' ? ARRAY_LEN(list) : ARRAY_LEN(list) - 1;
    memcpy(items, list, n * sizeof(list[0]));
    return n;
}

int vmm_open_jail_run(pid_t pid, int pidfd, int *ret_fd, struct error *err)
{
    char path[40];
    (void)snprintf(path, sizeof(path), "/proc/%d/root/run", (int)pid);
    AUTO_CLOSE int fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int saved = errno;
    /* A pid is used again only after the process that has it by its pidfd has ended. */
    if (proc_has_ended(pidfd, 0))
        return error_set(err, ERROR_NOT_FOUND, "the VMM (pid %d) has ended", (int)pid);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, saved, "directory of the VMM");
    *ret_fd = TAKE_FD(fd);
    return 0;
}
