/* Between clone and exec of a VMM. Allocates nothing, takes no lock (see jail.h). */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "broker/vmm.h"

#define VMM_NOFILE 512

/* Under memory pressure the kernel ends a sandbox before the daemon that serves them all. Raising the
 * value needs no privilege. */
static int prefer_for_oom(void)
{
    AUTO_CLOSE int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, "500", 3) == 3 ? 0 : -1;
}

/* In this order: its cgroups, which all it does counts against; what needs /proc and root (OOM score,
 * mounts), then limits, then the uid and capabilities, then the wait for the gate, and the filter last, when
 * nothing is left to do but execute. */
int vmm_child(void *arg, int gate_fd, struct jail_fail *fail)
{
    const struct vmm_spec *s = arg;
    jail_reset_signals();
    (void)setsid();
    (void)umask(022); /* for the root's directories */
    if (s->cgroups && cgroup_enter(s->cgroups) < 0)
        return jail_failed(fail, "enter the", "cgroups");
    if (prefer_for_oom() < 0)
        return jail_failed(fail, "write", "oom_score_adj");
    if (jail_enter_root(s->root_at, s->items, fail) < 0)
        return -1;
    static const char host[] = "sandbox";
    if (sethostname(host, sizeof(host) - 1) < 0)
        return jail_failed(fail, "set the host", "name");
    if (jail_limits(s->file_size, VMM_NOFILE, s->threads, fail) < 0 || jail_drop(s->uid, fail) < 0 ||
        jail_no_extras(fail) < 0)
        return -1;
    /* Kept across the execution; the filter does not let it be taken back. */
    if (s->small_pages && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) < 0)
        return jail_failed(fail, "do without", "huge pages");
    if (jail_wait_gate(gate_fd, fail) < 0)
        return -1;
    (void)umask(s->umask);
    /* Last: from here on the child can do what the VMM can, and what it needs to become one. */
    if (s->filter && filter_install(s->filter, false) < 0)
        return jail_failed(fail, "install the", "system call filter");
    (void)execve(s->program, s->argv, s->env);
    return jail_failed(fail, "execute", s->program);
}
