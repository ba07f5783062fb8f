/* Requests about VMMs: start, adopt, kill. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/str.h"
#include "broker/jail.h"
#include "broker/privd.h"
#include "broker/under.h"
#include "broker/vmm.h"
#include "vm/qemu_argv.h"

#define MIB (1024ULL * 1024)
#define KILL_MS 10000
#define ITEMS_MAX 24
/* Over the guest's memory: QEMU itself, kernel and initramfs in its heap, and with TCG the buffer of
 * translated code. */
#define OVERHEAD_KVM_MIB 128
#define OVERHEAD_TCG_MIB 192
#define THREADS_MAX 128
#define NAMESPACES (CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWPID)

int op_need_sandbox(struct job *j)
{
    if (!j->sandbox)
        return error_set(&j->err, ERROR_NOT_FOUND, "sandbox %s is not prepared", j->req.sandbox_id);
    return 0;
}

/* --- a VMM's identity --- */

/* Real uid of a process from /proc/PID/status; -1 when it is gone. */
static int64_t process_uid(pid_t pid)
{
    char path[40];
    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    AUTO_FREE char *text = NULL;
    size_t n;
    if (fs_read_file(AT_FDCWD, path, 8192, &text, &n, NULL) < 0)
        return -1;
    const char *line = strstr(text, "\nUid:");
    return line ? strtoll(line + 5, NULL, 10) : -1;
}

bool vmm_alive(const struct record *r, int *ret_pidfd)
{
    if (r->vmm_pid <= 0)
        return false;
    AUTO_CLOSE int fd = proc_open(r->vmm_pid, r->vmm_start);
    if (fd < 0 || proc_has_ended(fd, 0) || process_uid(r->vmm_pid) != (int64_t)r->uid)
        return false;
    *ret_pidfd = TAKE_FD(fd);
    return true;
}

int vmm_stop(struct privd *p, struct sandbox *s, struct error *err)
{
    /* Whatever uid it has: before its gate opens it may still be root, and the record is of this boot. */
    AUTO_CLOSE int pidfd = s->rec.vmm_pid > 0 ? proc_open(s->rec.vmm_pid, s->rec.vmm_start) : -1;
    if (pidfd >= 0) {
        (void)proc_signal(pidfd, SIGKILL);
        if (!proc_has_ended(pidfd, KILL_MS))
            return error_set(err, ERROR_TIMEOUT, "the VMM (pid %d) does not end", (int)s->rec.vmm_pid);
        (void)waitpid(s->rec.vmm_pid, NULL, WNOHANG); /* ours, or an earlier broker's: then init's */
    }
    fault_point("privd.vmm-stop.killed");
    int rc = cgroup_remove(&s->rec, err);
    fault_point("privd.vmm-stop.cgroups");
    if (rc < 0)
        return rc;
    if (s->rec.vmm_pid == 0 && s->rec.cgroup_count == 0)
        return 0;
    s->rec.vmm_pid = 0;
    s->rec.vmm_start = 0;
    s->rec.cgroup_count = 0;
    /* On a full disk the record stays as it was. It names a process that is gone, which everybody who reads
     * it finds out; and a removal must go on, since it is what makes room. */
    struct error why = ERROR_INIT;
    if (record_write(p->records_fd, &s->rec, &why) < 0)
        LOG(LOG_WARN, "a record could not be replaced", "sandbox=%s reason=" LOG_Q, s->rec.id, why.message);
    return 0;
}

/* --- sockets and the FIFO --- */

int vmm_open_run(const struct privd *p, const char *sandbox_id)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "sandboxes/%s/run", sandbox_id);
    return openat(p->pool_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

void vmm_socket_path(const struct privd *p, const char *sandbox_id, const char *name, char *to, size_t size)
{
    (void)snprintf(to, size, "%.128s/pool/sandboxes/%s/run/%s", p->state_dir, sandbox_id, name);
}

int vmm_listen(const struct privd *p, int run_fd, const char *name, int *ret_fd, struct error *err)
{
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "socket");
    (void)unlinkat(run_fd, name, 0);
    /* Through the directory's descriptor, so that the length of the state directory's path does not matter.
     */
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "/proc/self/fd/%d/%s", run_fd, name);
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "bind %s", name);
    if (fchownat(run_fd, name, 0, (gid_t)p->lease.uid_first, AT_SYMLINK_NOFOLLOW) < 0 ||
        fchmodat(run_fd, name, 0660, 0) < 0 || listen(fd, 8) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "listen on %s", name);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int vmm_fifo(const struct privd *p, const char *sandbox_id, int *ret_read, int *ret_write, struct error *err)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "sandboxes/%s/stderr", sandbox_id);
    if (mkfifoat(p->pool_fd, path, 0600) < 0 && errno != EEXIST)
        return error_errno(err, ERROR_INTERNAL, errno, "make the FIFO of the VMM");
    AUTO_CLOSE int reader = openat(p->pool_fd, path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    AUTO_CLOSE int writer =
        ret_write ? openat(p->pool_fd, path, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (reader < 0 || (ret_write && writer < 0))
        return error_errno(err, ERROR_INTERNAL, errno, "open the FIFO of the VMM");
    *ret_read = TAKE_FD(reader);
    if (ret_write)
        *ret_write = TAKE_FD(writer);
    return 0;
}

/* --- start --- */

struct start {
    struct job *j;
    char disk[256], mem[400], state[400], kernel[336], initrd[336], preload[256], root_at[256],
        prefix[PATH_MAX];
    struct jail_system system;
    struct jail_item items[ITEMS_MAX];
    struct qemu_argv argv;
    struct firecracker_argv fc_argv;
    struct vmm_spec spec;
    struct under_map map;
    char under[400], same[sizeof("SPACE_MEM_SAME=") + UNDER_TEXT_MAX];
    char *env[6];
    int null_fd, qmp_fd, agent_fd, stderr_fd, fifo_fd;
};

static void start_finish(struct start *s)
{
    const int fds[] = {s->null_fd, s->qmp_fd, s->agent_fd, s->stderr_fd, s->fifo_fd};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
}

static int check_disk(struct start *s, uint64_t *file_size)
{
    struct job *j = s->j;
    (void)snprintf(s->disk, sizeof(s->disk), "%s/pool/sandboxes/%s/disk.raw", j->p->state_dir,
                   j->req.sandbox_id);
    struct stat st;
    if (lstat(s->disk, &st) < 0)
        return error_errno(&j->err, ERROR_NOT_FOUND, errno, "disk of %s", j->req.sandbox_id);
    *file_size = (uint64_t)st.st_size;
    return 0;
}

static void add_item(struct start *s, unsigned *n, struct jail_item item)
{
    if (*n < ITEMS_MAX - 1)
        s->items[(*n)++] = item;
}

/* It maps memory that others share, waits for device state, and runs on from there. */
static bool maps_privately(const struct request *q)
{
    return q->boot == BROKER_BOOT_RESTORE || q->boot == BROKER_BOOT_SNAPSHOT;
}

static void add_qemu_items(struct start *s, unsigned *count)
{
    const struct privd *p = s->j->p;
    unsigned n = *count;
    if (!str_starts(p->qemu, "/usr/")) {
        /* A QEMU of its own prefix, PREFIX/bin/qemu...: the whole prefix, at its place. */
        (void)str_copy(s->prefix, sizeof(s->prefix), p->qemu);
        for (int up = 0; up < 2 && strrchr(s->prefix, '/') != s->prefix; up++)
            *strrchr(s->prefix, '/') = '\0';
        add_item(s, &n, (struct jail_item){.entry = JAIL_BIND, .to = s->prefix + 1, .from = s->prefix});
    }
    add_item(s, &n, (struct jail_item){.entry = JAIL_BIND, .to = "memopen.so", .from = s->preload});
    if (s->map.count > 0)
        add_item(s, &n,
                 (struct jail_item){.entry = JAIL_BIND, .to = "under", .from = s->under, .plain_file = true});
    *count = n;
}

static void add_firecracker_items(struct start *s, unsigned *count)
{
    const struct firecracker_root root = {.program = s->j->p->firecracker,
                                          .state = s->state,
                                          .uid = s->j->sandbox->rec.uid,
                                          .gid = (gid_t)s->j->p->lease.uid_first};
    struct jail_item items[FIRECRACKER_ITEMS];
    unsigned n = firecracker_items(&root, items);
    for (unsigned i = 0; i < n; i++)
        add_item(s, count, items[i]);
}

/* What a VMM finds in its root: its program and libraries, the platform's kernel, its own disk, the golden's
 * memory, and three or four devices. No /proc, no /sys. */
static void plan_root(struct start *s)
{
    const struct request *q = &s->j->req;
    uid_t uid = s->j->sandbox->rec.uid;
    unsigned n = jail_system_items(&s->system, s->items);
    if (q->kind == BROKER_VMM_FIRECRACKER)
        add_firecracker_items(s, &n);
    else
        add_qemu_items(s, &n);
    add_item(s, &n,
             (struct jail_item){
                 .entry = JAIL_BIND, .to = "etc/ld.so.cache", .from = "/etc/ld.so.cache", .optional = true});
    add_item(s, &n,
             (struct jail_item){.entry = JAIL_BIND, .to = "vmlinuz", .from = s->kernel, .plain_file = true});
    add_item(s, &n,
             (struct jail_item){.entry = JAIL_BIND, .to = "initrd", .from = s->initrd, .plain_file = true});
    add_item(
        s, &n,
        (struct jail_item){.entry = JAIL_BIND_RW, .to = "disk.raw", .from = s->disk, .plain_file = true});
    if (s->mem[0] != '\0')
        add_item(s, &n,
                 (struct jail_item){.entry = q->boot == BROKER_BOOT_GOLDEN ? JAIL_BIND_RW : JAIL_BIND,
                                    .to = "mem",
                                    .from = s->mem,
                                    .plain_file = true});
    add_item(s, &n,
             (struct jail_item){.entry = JAIL_DEVICE, .to = "dev/null", .major = 1, .minor = 3, .uid = uid});
    add_item(
        s, &n,
        (struct jail_item){.entry = JAIL_DEVICE, .to = "dev/urandom", .major = 1, .minor = 9, .uid = uid});
    if (q->kvm)
        add_item(
            s, &n,
            (struct jail_item){.entry = JAIL_DEVICE, .to = "dev/kvm", .major = 10, .minor = 232, .uid = uid});
}

static int plan_argv(struct start *s)
{
    const struct request *q = &s->j->req;
    struct qemu_argv_spec spec = {
        .binary = s->j->p->qemu,
        .sandbox_id = q->sandbox_id,
        .kvm = q->kvm,
        .vcpus = q->vcpus,
        .memory_mib = q->memory_mib,
        .mem_path = q->boot == BROKER_BOOT_COLD ? NULL : "/mem",
        .mem_shared = q->boot == BROKER_BOOT_GOLDEN,
        .disk_path = "/disk.raw",
        .kernel_path = "/vmlinuz",
        .initrd_path = "/initrd",
        .qmp_fd = 3,
        .agent_fd = 4,
        .incoming = maps_privately(q),
        .tsc_khz = s->j->p->tsc_khz,
    };
    return qemu_argv_build(&spec, &s->argv, &s->j->err);
}

static int need_program(struct job *j)
{
    if (j->req.kind == BROKER_VMM_QEMU && j->p->qemu[0] == '\0')
        return error_set(&j->err, ERROR_UNAVAILABLE,
                         "no qemu-system-x86_64 on this host; install qemu-system-x86");
    if (j->req.kind == BROKER_VMM_FIRECRACKER && j->p->firecracker[0] == '\0')
        return error_set(&j->err, ERROR_UNAVAILABLE, "no firecracker on this host");
    return 0;
}

/* What is executed, and with what. */
static int plan_program(struct start *s)
{
    const struct request *q = &s->j->req;
    if (q->kind == BROKER_VMM_FIRECRACKER) {
        firecracker_argv_build(q->sandbox_id, &s->fc_argv);
        s->spec.program = FIRECRACKER_PROGRAM;
        s->spec.argv = s->fc_argv.argv;
        s->spec.env = firecracker_env();
        s->spec.fd_count = 3;
        s->spec.umask = 007; /* its sockets are for spaced, too: see JAIL_TMPFS */
        return 0;
    }
    s->spec.program = s->j->p->qemu;
    s->spec.argv = s->argv.argv;
    s->spec.env = s->env;
    s->spec.fd_count = ARRAY_LEN(s->spec.fds);
    s->spec.umask = 022;
    return plan_argv(s);
}

static int open_descriptors(struct start *s)
{
    struct job *j = s->j;
    AUTO_CLOSE int run = vmm_open_run(j->p, j->req.sandbox_id);
    bool qemu = j->req.kind == BROKER_VMM_QEMU; /* the other one makes its sockets itself */
    s->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (run < 0 || s->null_fd < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "run directory of %s", j->req.sandbox_id);
    int rc = qemu ? vmm_listen(j->p, run, "qmp.sock", &s->qmp_fd, &j->err) : 0;
    if (rc == 0 && qemu)
        rc = vmm_listen(j->p, run, "agent.sock", &s->agent_fd, &j->err);
    if (rc == 0)
        rc = vmm_fifo(j->p, j->req.sandbox_id, &s->fifo_fd, &s->stderr_fd, &j->err);
    return rc;
}

/* A sandbox that was parked has its uid from now on, and its directories. */
static int take_up(struct job *j)
{
    struct privd *p = j->p;
    int rc = record_write(p->records_fd, &j->sandbox->rec, &j->err);
    fault_point("privd.vmm-start.leased");
    if (rc == 0)
        rc = sandbox_make_directories(p, j->req.sandbox_id, &j->err);
    fault_point("privd.vmm-start.directories");
    if (rc == 0)
        rc = sandbox_own_disk(p, &j->sandbox->rec, &j->err);
    fault_point("privd.vmm-start.owned");
    return rc;
}

static enum filter_kind filter_of(const struct request *q)
{
    if (q->kind == BROKER_VMM_FIRECRACKER)
        return FILTER_FIRECRACKER;
    return q->kvm ? FILTER_QEMU_KVM : FILTER_QEMU;
}

/* Where the guest's memory is a file's, mapped privately, it never has huge pages; one for a few pages of
 * Firecracker's own heap is then all that they are. A cold boot's memory is anonymous, and faster with them.
 * QEMU's translated code is, too. */
static bool needs_no_huge_pages(const struct request *q)
{
    return q->kind == BROKER_VMM_FIRECRACKER &&
           (q->boot == BROKER_BOOT_RESTORE || q->boot == BROKER_BOOT_SNAPSHOT);
}

/* A golden boot writes its memory through the file, which its uid owns then: no preload. */
static void plan_env(struct start *s)
{
    const struct job *j = s->j;
    unsigned n = 0;
    s->env[n++] = "PATH=/usr/bin:/bin";
    if (maps_privately(&j->req)) {
        s->env[n++] = "LD_PRELOAD=/memopen.so";
        s->env[n++] = "SPACE_MEM_PATH=/mem";
    }
    if (s->map.count > 0) {
        (void)snprintf(s->under, sizeof(s->under), "%s/pool/sandboxes/%s/under", j->p->state_dir,
                       j->req.sandbox_id);
        size_t used = (size_t)snprintf(s->same, sizeof(s->same), "SPACE_MEM_SAME=");
        under_text(&s->map, s->same + used, sizeof(s->same) - used);
        s->env[n++] = "SPACE_MEM_UNDER=/under";
        s->env[n++] = s->same;
    }
}

static int plan(struct start *s)
{
    struct job *j = s->j;
    struct privd *p = j->p;
    int rc = need_program(j);
    if (rc < 0)
        return rc;
    (void)snprintf(s->kernel, sizeof(s->kernel), "%s/platform/%s/vmlinuz", p->state_dir, j->req.platform);
    (void)snprintf(s->initrd, sizeof(s->initrd), "%s/platform/%s/initrd", p->state_dir, j->req.platform);
    (void)snprintf(s->preload, sizeof(s->preload), "%s/libspace-memopen.so", p->exe_dir);
    (void)snprintf(s->root_at, sizeof(s->root_at), "%s/privd/jail", p->state_dir);
    if (j->req.boot == BROKER_BOOT_RESTORE)
        (void)snprintf(s->state, sizeof(s->state), "%s/pool/golden/%s/state", p->state_dir, j->req.key);
    else if (j->req.boot == BROKER_BOOT_SNAPSHOT)
        (void)snprintf(s->state, sizeof(s->state), "%s/pool/snapshots/%s/state", p->state_dir,
                       j->req.snapshot_id);
    uint64_t file_size = 0;
    rc = take_up(j);
    if (rc == 0)
        rc = check_disk(s, &file_size);
    if (rc == 0)
        rc = vmm_memory(j, s->mem, sizeof(s->mem), &s->map, &file_size);
    fault_point("privd.vmm-start.memory");
    if (rc == 0)
        rc = open_descriptors(s);
    if (rc < 0)
        return rc;
    plan_env(s);
    plan_root(s);
    s->spec = (struct vmm_spec){
        .uid = j->sandbox->rec.uid,
        .items = s->items,
        .root_at = s->root_at,
        .fds = {s->null_fd, s->stderr_fd, s->stderr_fd, s->qmp_fd, s->agent_fd},
        .file_size = file_size + MIB,
        .threads = THREADS_MAX + j->req.vcpus,
        .small_pages = needs_no_huge_pages(&j->req),
        .filter = &p->filters[filter_of(&j->req)],
    };
    return plan_program(s);
}

/* The record names the cgroups before they are made and the process before it executes. */
static int launch(struct start *s, struct jail_child *child)
{
    struct job *j = s->j;
    struct privd *p = j->p;
    struct record *r = &j->sandbox->rec;
    const struct cgroup_limits limits = {
        .memory_bytes = (j->req.memory_mib + (j->req.kvm ? OVERHEAD_KVM_MIB : OVERHEAD_TCG_MIB)) * MIB,
        .pids = THREADS_MAX + j->req.vcpus,
        .vcpus = j->req.vcpus,
    };
    cgroup_plan(&p->cgroups, r);
    r->memory_mib = j->req.memory_mib;
    r->vmm_kind = j->req.kind;
    int rc = record_write(p->records_fd, r, &j->err);
    fault_point("privd.vmm-start.recorded");
    if (rc == 0)
        rc = cgroup_make(&p->cgroups, r, &limits, &j->err);
    fault_point("privd.vmm-start.cgroups");
    AUTO_CLOSE int group = -1;
    if (rc == 0)
        rc = cgroup_open(&p->cgroups, r, &group, &j->err);
    s->spec.cgroups = group < 0 ? r : NULL;
    if (rc == 0)
        rc = jail_clone_into(group, NAMESPACES, s->spec.fds, s->spec.fd_count, vmm_child, &s->spec, child,
                             &j->err);
    if (rc < 0)
        return rc;
    fault_point("privd.vmm-start.cloned");
    r->vmm_pid = child->pid;
    r->vmm_start = proc_start_time(child->pid);
    /* Without it nobody could find this VMM again. */
    rc = r->vmm_start ? record_write(p->records_fd, r, &j->err)
                      : error_set(&j->err, ERROR_INTERNAL, "the VMM's start time cannot be read");
    fault_point("privd.vmm-start.named");
    if (rc < 0)
        jail_abort(child);
    rc = rc < 0 ? rc : jail_release(child, &j->err);
    fault_point("privd.vmm-start.released");
    return rc;
}

/* The answer, and the directory that goes with it. */
static int fill_reply(struct job *j)
{
    struct reply *rep = &j->rep;
    const struct record *r = &j->sandbox->rec;
    rep->pid = (uint32_t)r->vmm_pid;
    rep->kind = r->vmm_kind;
    rep->start_time = r->vmm_start;
    vmm_socket_path(j->p, r->id, "vmm.log", rep->log, sizeof(rep->log));
    if (r->vmm_kind == BROKER_VMM_FIRECRACKER)
        return vmm_open_jail_run(r->vmm_pid, j->pidfd, &j->run_fd, &j->err);
    vmm_socket_path(j->p, r->id, "qmp.sock", rep->qmp_socket, sizeof(rep->qmp_socket));
    vmm_socket_path(j->p, r->id, "agent.sock", rep->agent_socket, sizeof(rep->agent_socket));
    j->run_fd = vmm_open_run(j->p, r->id);
    return j->run_fd < 0 ? error_errno(&j->err, ERROR_INTERNAL, errno, "run directory of %s", r->id) : 0;
}

int op_need_leased(struct job *j)
{
    int rc = op_need_sandbox(j);
    return rc < 0 ? rc : privd_sandbox_lease(j->p, j->sandbox, &j->err);
}

int op_vmm_start_begin(struct job *j)
{
    int rc = op_need_leased(j);
    if (rc == 0 && j->req.boot == BROKER_BOOT_SNAPSHOT)
        read_ahead(j->p, j->req.snapshot_id, j->req.kind != BROKER_VMM_QEMU);
    return rc;
}

/* Beside the start of a VMM, which loads nothing before it is told to. */
struct check {
    const struct job *j;
    pthread_t thread;
    bool started;
    struct error err;
};

static void *run_check(void *arg)
{
    struct check *c = arg;
    (void)vmm_check_snapshot(c->j->p, c->j->req.snapshot_id, &c->err);
    return NULL;
}

/* Without a thread to spare it is made at once. */
static void start_check(struct check *c)
{
    if (c->j->req.boot != BROKER_BOOT_SNAPSHOT)
        return;
    c->started = pthread_create(&c->thread, NULL, run_check, c) == 0;
    if (!c->started)
        (void)run_check(c);
}

static int finish_check(struct check *c, struct error *err)
{
    if (c->started)
        (void)pthread_join(c->thread, NULL);
    fault_point("privd.vmm-start.checked");
    if (c->err.code < 0 && err->code == 0)
        *err = c->err;
    return c->err.code;
}

static int launch_checked(struct start *s, struct jail_child *child)
{
    struct check check = {.j = s->j};
    start_check(&check);
    int rc = launch(s, child);
    int checked = finish_check(&check, &s->j->err);
    return rc < 0 ? rc : checked;
}

int op_vmm_start_run(struct job *j)
{
    AUTO_CLOSE int running = -1;
    if (vmm_alive(&j->sandbox->rec, &running))
        return error_set(&j->err, ERROR_CONFLICT, "sandbox %s has a VMM", j->req.sandbox_id);
    int rc = vmm_stop(j->p, j->sandbox, &j->err); /* clears what a VMM that ended has left */
    if (rc < 0)
        return rc;
    struct start *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(&j->err, ERROR_NO_MEMORY, "out of memory");
    s->j = j;
    s->null_fd = s->qmp_fd = s->agent_fd = s->stderr_fd = s->fifo_fd = -1;
    struct jail_child child = JAIL_CHILD_INIT;
    rc = plan(s);
    if (rc == 0)
        rc = launch_checked(s, &child);
    j->pidfd = child.pidfd; /* the job's, whatever came of it */
    if (rc == 0) {
        j->fifo_fd = TAKE_FD(s->fifo_fd);
        rc = fill_reply(j);
    }
    if (rc < 0)
        (void)vmm_stop(j->p, j->sandbox, NULL);
    start_finish(s);
    free(s);
    return rc < 0 ? error_wrap(&j->err, "start the VMM") : 0;
}

static void give_descriptors(struct job *j)
{
    j->rep.fds[j->rep.fd_count++] = TAKE_FD(j->pidfd);
    j->rep.fds[j->rep.fd_count++] = TAKE_FD(j->run_fd);
}

/* The reply takes one pidfd, the watch another. */
static int watch_and_reply(struct job *j)
{
    int copy = fcntl(j->pidfd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "pidfd");
    int fifo = TAKE_FD(j->fifo_fd);
    int rc = vmm_watch_start(j->p, j->sandbox, copy, fifo, &j->err);
    if (rc < 0)
        return rc;
    give_descriptors(j);
    return 0;
}

void op_vmm_start_end(struct job *j)
{
    if (j->err.code < 0)
        return;
    if (watch_and_reply(j) == 0)
        LOG(LOG_INFO, "vmm started", "sandbox=%s pid=%d uid=%u", j->req.sandbox_id,
            (int)j->sandbox->rec.vmm_pid, j->sandbox->rec.uid);
}

int op_vmm_adopt_run(struct job *j)
{
    if (!vmm_alive(&j->sandbox->rec, &j->pidfd))
        return error_set(&j->err, ERROR_NOT_FOUND, "the VMM of %s has ended", j->req.sandbox_id);
    int rc = vmm_fifo(j->p, j->req.sandbox_id, &j->fifo_fd, NULL, &j->err);
    return rc < 0 ? rc : fill_reply(j);
}

void op_vmm_adopt_end(struct job *j)
{
    if (j->err.code == ERROR_NOT_FOUND && j->sandbox)
        vmm_watch_finish(j->sandbox); /* its last words are in vmm.log before this is answered */
    if (j->err.code < 0)
        return;
    if (j->sandbox->watch) {
        give_descriptors(j);
        return;
    }
    (void)watch_and_reply(j);
}

int op_vmm_kill_run(struct job *j)
{
    return j->sandbox ? vmm_stop(j->p, j->sandbox, &j->err) : 0;
}

void op_vmm_kill_end(struct job *j)
{
    if (j->err.code == 0 && j->sandbox)
        vmm_watch_finish(j->sandbox);
}
