#include "fake_broker.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#include "base/fs.h"
#include "base/str.h"

enum kind { ANSWER_DONE, ANSWER_HAS, ANSWER_VMM };

struct request {
    struct request *prev, *next;
    struct broker *b;
    enum kind kind;
    char what[24];
    bool held;
    bool fail;
    bool flag;
    broker_done done;
    void (*has)(void *, const struct error *, bool);
    broker_vmm_done vmm;
    void *arg;
    struct loop_deferred deferred;
};

struct name {
    struct name *prev, *next;
    char text[BROKER_KEY_SIZE];
};

struct broker {
    struct loop *l;
    char pool_path[200];
    struct request *requests;
    struct name *sandboxes, *sealed, *calls;
    char fail_what[24];
    unsigned fail_count;
    char hold_what[24];
    struct broker_vmm last;
    char last_id[ID_SIZE], last_snapshot[ID_SIZE], last_key[BROKER_KEY_SIZE],
        last_platform[BROKER_DIGEST_SIZE];
    struct broker_vmm_info info;
    char run_dir[180]; /* "": none goes with the answer */
    void (*kill_fn)(void *);
    void *kill_arg;
};

static struct name *find(struct name *list, const char *text)
{
    struct name *n;
    DL_FOREACH(list, n)
    {
        if (strcmp(n->text, text) == 0)
            return n;
    }
    return NULL;
}

static void add(struct name **list, const char *text)
{
    struct name *n = calloc(1, sizeof(*n));
    if (!n)
        abort();
    (void)str_copy(n->text, sizeof(n->text), text);
    DL_APPEND(*list, n);
}

static void drop(struct name **list, const char *text)
{
    struct name *n = find(*list, text);
    if (n) {
        DL_DELETE(*list, n);
        free(n);
    }
}

static void drop_all(struct name **list)
{
    while (*list)
        drop(list, (*list)->text);
}

static unsigned count(const struct name *list)
{
    unsigned n = 0;
    for (; list; list = list->next)
        n++;
    return n;
}

static void on_answer(void *arg)
{
    struct request r = *(struct request *)arg;
    struct error err = ERROR_INIT;
    DL_DELETE(r.b->requests, (struct request *)arg);
    free(arg);
    if (r.fail)
        (void)error_set(&err, ERROR_INTERNAL, "the fake broker fails %s", r.what);
    struct broker_vmm_info info = r.b->info;
    if (r.kind == ANSWER_DONE) {
        r.done(r.arg, r.fail ? &err : NULL);
    } else if (r.kind == ANSWER_HAS) {
        r.has(r.arg, r.fail ? &err : NULL, r.flag);
    } else {
        if (!r.fail)
            info.pidfd = info.pidfd >= 0 ? fcntl(info.pidfd, F_DUPFD_CLOEXEC, 3) : -1;
        if (!r.fail && r.b->run_dir[0])
            info.run_fd = open(r.b->run_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        r.vmm(r.arg, r.fail ? &err : NULL, r.fail ? NULL : &info);
    }
}

static struct request *request(struct broker *b, const char *what, enum kind kind, void *arg)
{
    add(&b->calls, what);
    struct request *r = calloc(1, sizeof(*r));
    if (!r)
        abort();
    r->b = b;
    r->kind = kind;
    r->arg = arg;
    (void)str_copy(r->what, sizeof(r->what), what);
    if (b->fail_count > 0 && strcmp(b->fail_what, what) == 0) {
        b->fail_count--;
        r->fail = true;
    }
    DL_APPEND(b->requests, r);
    if (strcmp(b->hold_what, what) == 0)
        r->held = true;
    else
        loop_defer(b->l, &r->deferred, on_answer, r);
    return r;
}

static struct request *plain(struct broker *b, const char *what, broker_done done, void *arg)
{
    struct request *r = request(b, what, ANSWER_DONE, arg);
    r->done = done;
    return r;
}

struct broker *fake_broker_create(struct loop *l, const char *pool_path)
{
    struct broker *b = calloc(1, sizeof(*b));
    if (!b)
        abort();
    b->l = l;
    b->info.pidfd = -1;
    b->info.run_fd = -1;
    (void)str_copy(b->pool_path, sizeof(b->pool_path), pool_path);
    return b;
}

void fake_broker_destroy(struct broker *b)
{
    while (b->requests) {
        struct request *r = b->requests;
        loop_defer_cancel(b->l, &r->deferred);
        DL_DELETE(b->requests, r);
        free(r);
    }
    drop_all(&b->sandboxes);
    drop_all(&b->sealed);
    drop_all(&b->calls);
    free(b);
}

void fake_broker_fail(struct broker *b, const char *what, unsigned n)
{
    (void)str_copy(b->fail_what, sizeof(b->fail_what), what);
    b->fail_count = n;
}

void fake_broker_hold(struct broker *b, const char *what)
{
    (void)str_copy(b->hold_what, sizeof(b->hold_what), what);
}

void fake_broker_release(struct broker *b)
{
    struct request *r;
    b->hold_what[0] = '\0';
    DL_FOREACH(b->requests, r)
    {
        if (r->held)
            loop_defer(b->l, &r->deferred, on_answer, r);
        r->held = false;
    }
}

unsigned fake_broker_count(const struct broker *b, const char *what)
{
    unsigned n = 0;
    const struct name *c;
    DL_FOREACH(b->calls, c)
    {
        n += strcmp(c->text, what) == 0;
    }
    return n;
}

unsigned fake_broker_sandboxes(const struct broker *b)
{
    return count(b->sandboxes);
}

unsigned fake_broker_sealed(const struct broker *b)
{
    return count(b->sealed);
}

bool fake_broker_has_sandbox(const struct broker *b, const char *id)
{
    return find(b->sandboxes, id) != NULL;
}

void fake_broker_vmm(struct broker *b, const char *qmp_socket, const char *agent_socket, int pidfd,
                     void (*kill_fn)(void *), void *arg)
{
    (void)str_copy(b->info.qmp_socket, sizeof(b->info.qmp_socket), qmp_socket);
    (void)str_copy(b->info.agent_socket, sizeof(b->info.agent_socket), agent_socket);
    const char *slash = strrchr(qmp_socket, '/');
    (void)snprintf(b->run_dir, sizeof(b->run_dir), "%.*s", slash ? (int)(slash - qmp_socket) : 0, qmp_socket);
    (void)snprintf(b->info.log, sizeof(b->info.log), "%s/vmm.log", b->run_dir);
    b->info.kind = BROKER_VMM_QEMU;
    b->info.pid = 4711;
    b->info.pidfd = pidfd;
    b->kill_fn = kill_fn;
    b->kill_arg = arg;
}

void fake_broker_firecracker(struct broker *b, const char *dir, int pidfd, void (*kill_fn)(void *), void *arg)
{
    (void)str_copy(b->run_dir, sizeof(b->run_dir), dir);
    (void)snprintf(b->info.log, sizeof(b->info.log), "%s/vmm.log", dir);
    b->info.kind = BROKER_VMM_FIRECRACKER;
    b->info.pid = 4711;
    b->info.pidfd = pidfd;
    b->kill_fn = kill_fn;
    b->kill_arg = arg;
}

const struct broker_vmm *fake_broker_last_vmm(const struct broker *b)
{
    return &b->last;
}

/* --- what the code under test calls --- */

void broker_sandbox_prepare(struct broker *b, const char *id, enum broker_disk_from from, const char *key,
                            uint32_t disk_mib, broker_done done, void *arg)
{
    struct request *r = plain(b, "prepare", done, arg);
    (void)disk_mib;
    if (from == BROKER_FROM_GOLDEN && !find(b->sealed, key))
        r->fail = true;
    if (!r->fail && !find(b->sandboxes, id))
        add(&b->sandboxes, id);
}

void broker_sandbox_remove(struct broker *b, const char *id, broker_done done, void *arg)
{
    struct request *r = plain(b, "remove", done, arg);
    if (!r->fail)
        drop(&b->sandboxes, id);
}

void broker_golden_begin(struct broker *b, const char *key, const char *id, uint32_t memory_mib,
                         broker_done done, void *arg)
{
    struct request *r = plain(b, "golden_begin", done, arg);
    char path[512];
    (void)memory_mib;
    if (!find(b->sandboxes, id))
        r->fail = true;
    (void)snprintf(path, sizeof(path), "%s/golden/%s", b->pool_path, key);
    if (fs_mkdir_p(path, 0755, NULL) < 0)
        r->fail = true;
    (void)snprintf(path, sizeof(path), "%s/golden/%s/state", b->pool_path, key);
    int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        (void)close(fd);
}

void broker_golden_capture(struct broker *b, const char *key, const char *id, broker_done done, void *arg)
{
    (void)key;
    (void)id;
    (void)plain(b, "golden_capture", done, arg);
}

void broker_golden_seal(struct broker *b, const char *key, const char *id, broker_done done, void *arg)
{
    struct request *r = plain(b, "golden_seal", done, arg);
    (void)id;
    if (!r->fail && !find(b->sealed, key))
        add(&b->sealed, key);
}

void broker_golden_remove(struct broker *b, const char *key, broker_done done, void *arg)
{
    struct request *r = plain(b, "golden_remove", done, arg);
    if (!r->fail) {
        char path[512];
        (void)snprintf(path, sizeof(path), "%s/golden", b->pool_path);
        int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir >= 0) {
            (void)fs_remove_tree(dir, key, NULL);
            (void)close(dir);
        }
        drop(&b->sealed, key);
    }
}

void broker_golden_has(struct broker *b, const char *key, void (*done)(void *, const struct error *, bool),
                       void *arg)
{
    struct request *r = request(b, "golden_has", ANSWER_HAS, arg);
    r->has = done;
    r->flag = find(b->sealed, key) != NULL;
}

void broker_vmm_start(struct broker *b, const struct broker_vmm *vmm, broker_vmm_done done, void *arg)
{
    request(b, "vmm_start", ANSWER_VMM, arg)->vmm = done;
    b->last = *vmm;
    (void)str_copy(b->last_id, sizeof(b->last_id), vmm->sandbox_id);
    (void)str_copy(b->last_key, sizeof(b->last_key), vmm->golden_key ? vmm->golden_key : "");
    (void)str_copy(b->last_platform, sizeof(b->last_platform), vmm->platform);
    (void)str_copy(b->last_snapshot, sizeof(b->last_snapshot), vmm->snapshot_id ? vmm->snapshot_id : "");
    b->last.sandbox_id = b->last_id;
    b->last.snapshot_id = vmm->snapshot_id ? b->last_snapshot : NULL;
    b->last.golden_key = vmm->golden_key ? b->last_key : NULL;
    b->last.platform = b->last_platform;
}

void broker_vmm_adopt(struct broker *b, const char *id, broker_vmm_done done, void *arg)
{
    (void)id;
    request(b, "vmm_adopt", ANSWER_VMM, arg)->vmm = done;
}

void broker_vmm_kill(struct broker *b, const char *id, broker_done done, void *arg)
{
    (void)id;
    (void)plain(b, "vmm_kill", done, arg);
    if (b->kill_fn)
        b->kill_fn(b->kill_arg);
}
