#include "spaced/root.h"

#include <arpa/inet.h>
#include <cap-ng.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <grp.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/id.h"
#include "base/program.h"
#include "base/str.h"
#include "broker/lease.h"
#include "broker/server.h"
#include "image/image.h"
#include "spaced/handoff.h"
#include "vm/kvm_probe.h"
#include "vm/vm.h"

/* Milliseconds on a quiet host; a loaded one must not count as one without KVM. */
#define KVM_PROBE_MS 10000
#define LISTEN_BACKLOG 512
/* A server that was killed in one part may need this long to notice in another, which has its lock and its
 * port until then. */
#define ENDING_MS 2000
#define STEP_MS 10
#define STATE_DIR_MAX 52 /* and "/pool/sandboxes/<id>/run/agent.sock" fits sun_path */

static int need_root(struct error *err)
{
    if (geteuid() != 0)
        return error_set(
            err, ERROR_PERMISSION,
            "spaced starts as root: it sets up storage and namespaces, then drops to an unprivileged uid. "
            "Start it with sudo");
    return 0;
}

/* --- the state directory --- */

static bool take_lock(int fd)
{
    for (int ms = ENDING_MS; flock(fd, LOCK_EX | LOCK_NB) < 0; ms -= STEP_MS) {
        if (errno != EWOULDBLOCK || ms <= 0)
            return false;
        (void)poll(NULL, 0, STEP_MS);
    }
    return true;
}

/* The lock lives as long as a process holds the descriptor: one daemon per state directory. */
static int lock_state_dir(const char *dir, int *ret_fd, struct error *err)
{
    if (fs_mkdir_p(dir, 0711, err) < 0)
        return error_wrap(err, "state directory");
    char real[PATH_MAX];
    if (!realpath(dir, real))
        return error_errno(err, ERROR_INTERNAL, errno, "state directory %s", dir);
    if (strlen(real) > STATE_DIR_MAX)
        return error_field(
            err, ERROR_INVALID, "state_dir",
            "state_dir is %zu bytes long; the limit is %d, since sockets below it have names of at "
            "most 107 bytes",
            strlen(real), STATE_DIR_MAX);
    AUTO_FREE char *path = str_printf("%s/lock", dir);
    AUTO_CLOSE int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "state directory %s is not writable: lock", dir);
    bool locked = take_lock(fd);
    if (!locked && errno != EWOULDBLOCK)
        return error_errno(err, ERROR_INTERNAL, errno, "%s/lock", dir);
    if (!locked)
        return error_set(err, ERROR_CONFLICT,
                         "another spaced is running on %s; stop it or choose another --state-dir", dir);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* Gives a tree to another owner, following no link; the top last, so that an interrupted walk starts again.
 */
static int chown_tree(char *path, uid_t uid, struct error *err)
{
    char *const paths[] = {path, NULL};
    FTS *walk = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    int rc = walk ? 0 : error_errno(err, ERROR_INTERNAL, errno, "walk %s", path);
    for (FTSENT *e; rc == 0 && (e = fts_read(walk));)
        if (e->fts_info != FTS_D && lchown(e->fts_accpath, uid, uid) < 0)
            rc = error_errno(err, ERROR_INTERNAL, errno, "change the owner of %s", e->fts_path);
    if (walk)
        (void)fts_close(walk);
    return rc;
}

/* DIR/spaced: what the unprivileged daemon writes. After a reboot the lease may be another block of uids. */
static int make_daemon_dir(const char *state_dir, uid_t uid, struct error *err)
{
    AUTO_FREE char *path = str_printf("%s/spaced", state_dir);
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = fs_mkdir_p(path, 0700, err);
    if (rc < 0)
        return rc;
    struct stat st;
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || fchmod(fd, 0700) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "%s", path);
    return st.st_uid == uid ? 0 : chown_tree(path, uid, err);
}

/* DIR/dev.key: made once, kept, readable by root alone. */
static int development_key(const char *state_dir, char to[64], struct error *err)
{
    AUTO_CLOSE int dir = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    AUTO_FREE char *text = NULL;
    size_t len;
    if (dir < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "open %s", state_dir);
    int rc = fs_read_file(dir, "dev.key", 60, &text, &len, err);
    if (rc == 0) {
        text[strcspn(text, "\n")] = '\0';
        (void)str_copy(to, 64, text);
        return strlen(to) >= 32
                   ? 0
                   : error_set(err, ERROR_INVALID, "%s/dev.key is too short; remove it", state_dir);
    }
    if (rc != ERROR_NOT_FOUND)
        return rc;
    unsigned char random[20];
    char hex[2 * sizeof(random) + 1];
    id_random(random, sizeof(random));
    str_hex(random, sizeof(random), hex);
    int n = snprintf(to, 64, "sk_%s", hex);
    return fs_write_atomic(dir, "dev.key", to, (size_t)n, 0600, err);
}

/* --- the listening socket, bound before anything slow so that a taken port is said at once --- */

static int resolve(const char *listen_on, struct addrinfo **ret, struct error *err)
{
    char host[CONFIG_TEXT_MAX];
    (void)str_copy(host, sizeof(host), listen_on);
    char *colon = strrchr(host, ':');
    *colon = '\0';
    char *name = host;
    if (name[0] == '[' && name[strlen(name) - 1] == ']') {
        name[strlen(name) - 1] = '\0';
        name++;
    }
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    int rc = getaddrinfo(*name ? name : NULL, colon + 1, &hints, ret);
    if (rc != 0)
        return error_field(err, ERROR_INVALID, "listen", "listen address %s: %s", listen_on,
                           gai_strerror(rc));
    return 0;
}

static bool take_address(int fd, const struct addrinfo *a)
{
    for (int ms = ENDING_MS; bind(fd, a->ai_addr, a->ai_addrlen) < 0; ms -= STEP_MS) {
        if (errno != EADDRINUSE || ms <= 0)
            return false;
        (void)poll(NULL, 0, STEP_MS);
    }
    return true;
}

static int bind_socket(const char *listen_on, int *ret_fd, struct error *err)
{
    struct addrinfo *address = NULL;
    int rc = resolve(listen_on, &address, err);
    if (rc < 0)
        return rc;
    int one = 1;
    AUTO_CLOSE int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool bound = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
                 take_address(fd, address) && listen(fd, LISTEN_BACKLOG) == 0;
    int saved = errno;
    freeaddrinfo(address);
    if (!bound && saved == EADDRINUSE)
        return error_field(err, ERROR_CONFLICT, "listen",
                           "%s is in use by another program; choose another with --listen ADDRESS:PORT",
                           listen_on);
    if (!bound)
        return error_errno(err, ERROR_INTERNAL, saved, "listen on %s", listen_on);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* --- facts that need root to find out --- */

static void probe_kvm(struct handoff *h)
{
    h->kvm_works = kvm_probe(KVM_PROBE_MS, h->kvm_why, sizeof(h->kvm_why));
    LOG(LOG_INFO, "kvm", "works=%s why=" LOG_Q, h->kvm_works ? "yes" : "no", h->kvm_why);
}

static int build_image(struct handoff *h, struct error *err)
{
    const struct config *c = &h->config;
    AUTO_FREE char *agent = NULL;
    int rc = program_find("space-agent", "agent", &agent, err);
    if (rc < 0)
        return rc;
    struct image_config config = {.kernel = *c->kernel ? c->kernel : NULL,
                                  .modules = *c->modules ? c->modules : NULL,
                                  .agent = agent,
                                  .state_dir = c->state_dir};
    rc = image_build(&config, &h->image, err);
    if (rc == 0)
        LOG(LOG_INFO, "platform image", "kernel=%s digest=%.12s", h->image.kernel_release, h->image.digest);
    return rc;
}

/* --- down to the second stage --- */

/* In this order: groups and gid need the capabilities that setuid takes away; no_new_privs last, since
 * nothing after it can be gained back by executing a file. */
static int drop_privileges(uid_t uid, struct error *err)
{
    struct rlimit core = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &core); /* keys and tokens stay out of core files */
    capng_clear(CAPNG_SELECT_BOTH);
    if (capng_apply(CAPNG_SELECT_BOUNDS) < 0)
        LOG(LOG_DEBUG, "the capability bounding set could not be cleared", "errno=%d", errno);
    if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "drop to uid %u", uid);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "no_new_privs");
    return setuid(0) == 0 ? error_set(err, ERROR_INTERNAL, "privileges came back after the drop") : 0;
}

static int second_stage(const struct handoff *h, uid_t uid, const char *self, struct error *err)
{
    int fd = -1;
    /* Opened before the drop: the executable may lie where the new uid cannot look. */
    AUTO_CLOSE int exe = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (exe < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "open the running program");
    int rc = handoff_write(h, &fd, err);
    if (rc == 0)
        rc = drop_privileges(uid, err);
    if (rc < 0)
        return rc;
    char number[16];
    (void)snprintf(number, sizeof(number), "%d", fd);
    /* The state directory is on the command line for people who look at the list of processes. */
    char *argv[] = {(char *)self, "--second-stage", number, (char *)h->config.state_dir, NULL};
    (void)fexecve(exe, argv, environ);
    return error_errno(err, ERROR_INTERNAL, errno, "execute the second stage");
}

/* What is configured, or found as root finds programs, is what broker and daemon use. */
static void find_firecracker(struct config *c)
{
    char path[sizeof(c->firecracker)] = "";
    if (config_engine(c) != VM_ENGINE_QEMU)
        vm_firecracker_find(c->firecracker, path, sizeof(path));
    (void)str_copy(c->firecracker, sizeof(c->firecracker), path);
}

/* An engine that cannot be had is refused here, before anything is taken of the host. */
static int find_engine(struct handoff *h, struct error *err)
{
    probe_kvm(h);
    find_firecracker(&h->config);
    if (config_engine(&h->config) != VM_ENGINE_FIRECRACKER)
        return 0;
    return vm_firecracker_possible(h->kvm_works, h->kvm_why, h->config.firecracker, err);
}

int root_stage(const struct config *c, const char *self, struct error *err)
{
    struct handoff h = {.config = *c, .channel_fd = -1, .listen_fd = -1, .lock_fd = -1};
    struct privd_lease lease;
    int rc = need_root(err);
    if (rc == 0)
        rc = bind_socket(c->listen, &h.listen_fd, err);
    if (rc == 0)
        rc = lock_state_dir(c->state_dir, &h.lock_fd, err);
    if (rc == 0)
        rc = find_engine(&h, err);
    if (rc == 0)
        rc = privd_lease_acquire(c->state_dir, &lease, err);
    if (rc == 0)
        rc = make_daemon_dir(c->state_dir, lease.uid_first, err);
    if (rc == 0 && c->dev)
        rc = development_key(c->state_dir, h.dev_key, err);
    if (rc == 0)
        rc = build_image(&h, err);
    if (rc < 0)
        return rc;
    rc = server_start(c->state_dir, (uint32_t)c->pool_size_mib, h.config.firecracker, &lease, &h.channel_fd,
                      err);
    return rc < 0 ? rc : second_stage(&h, lease.uid_first, self, err);
}

/* The daemon's own files: without the disks they describe nothing. The key and the lock stay. */
static int remove_daemon_files(const char *state_dir, struct error *err)
{
    static const char *const names[] = {"spaced", "platform"};
    AUTO_CLOSE int dir = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "open %s", state_dir);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        int rc = fs_remove_tree(dir, names[i], err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int root_purge(const struct config *c, struct error *err)
{
    AUTO_CLOSE int lock = -1;
    int rc = need_root(err);
    if (rc < 0)
        return rc;
    if (access(c->state_dir, F_OK) < 0)
        return errno == ENOENT ? 0 : error_errno(err, ERROR_INTERNAL, errno, "%s", c->state_dir);
    rc = lock_state_dir(c->state_dir, &lock, err);
    if (rc == 0)
        rc = server_purge(c->state_dir, err);
    return rc < 0 ? rc : remove_daemon_files(c->state_dir, err);
}
