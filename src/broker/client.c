/* spaced's end of the broker channel: requests are encoded at once, sent as the socket takes them and
 * matched with their replies by id. Both the queue and the number of open requests are bounded. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uthash.h>
#include <utlist.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "broker/broker.h"
#include "broker/protocol.h"

#define CALLS_MAX 16384

enum answer { ANSWER_DONE, ANSWER_INFO, ANSWER_LIST, ANSWER_HAS, ANSWER_VMM, ANSWER_BUILD, ANSWER_BYTES };

union answer_fn {
    broker_done done;
    void (*info)(void *arg, const struct error *err, const struct broker_info *info);
    void (*list)(void *arg, const struct error *err, const char (*ids)[ID_SIZE], size_t n);
    void (*has)(void *arg, const struct error *err, bool sealed);
    broker_vmm_done vmm;
    void (*build)(void *arg, const struct error *err, const char *digest, uint64_t content_bytes);
    void (*bytes)(void *arg, const struct error *err, uint64_t bytes);
};

struct call {
    uint32_t id;
    enum answer answer;
    union answer_fn fn;
    void *arg;
    uint16_t type;        /* of the request */
    char (*ids)[ID_SIZE]; /* LIST: pages so far */
    size_t ids_len;
    struct error failed; /* set when the call is answered without the broker */
    struct loop_deferred deferred;
    struct broker *broker;
    UT_hash_handle hh;
    struct call *prev, *next; /* in `failing` */
};

/* An encoded request that the socket did not take yet. */
struct packet {
    struct packet *prev, *next;
    int fds[WIRE_FDS_MAX];
    unsigned fd_count;
    size_t n;
    unsigned char data[];
};

struct broker {
    struct loop *loop;
    struct loop_fd watch;
    int fd;
    uint32_t last_id;
    void (*gone)(void *arg);
    void *gone_arg;
    bool ended;
    struct call *calls;   /* sent or queued, by id */
    struct call *failing; /* answered by a deferred call */
    unsigned call_count;
    struct packet *queue;
};

static void on_channel(struct loop_fd *w, uint32_t events);

int broker_create(struct loop *l, int channel_fd, void (*gone)(void *arg), void *arg, struct broker **ret,
                  struct error *err)
{
    struct broker *b = calloc(1, sizeof(*b));
    if (!b)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    b->loop = l;
    b->gone = gone;
    b->gone_arg = arg;
    int rc = loop_fd_start(l, &b->watch, channel_fd, EPOLLIN, on_channel, b, err);
    if (rc < 0) {
        free(b);
        return rc;
    }
    b->fd = channel_fd;
    *ret = b;
    return 0;
}

static void packet_free(struct packet *k)
{
    for (unsigned i = 0; i < k->fd_count; i++)
        (void)close(k->fds[i]);
    free(k);
}

static void call_free(struct call *c)
{
    free(c->ids);
    free(c);
}

void broker_destroy(struct broker *b)
{
    if (!b)
        return;
    loop_fd_stop(&b->watch);
    (void)close(b->fd);
    struct packet *k;
    struct packet *k_next;
    DL_FOREACH_SAFE(b->queue, k, k_next)
    packet_free(k);
    struct call *c;
    struct call *c_next;
    HASH_ITER(hh, b->calls, c, c_next)
    {
        HASH_DEL(b->calls, c);
        call_free(c);
    }
    DL_FOREACH_SAFE(b->failing, c, c_next)
    {
        loop_defer_cancel(b->loop, &c->deferred);
        call_free(c);
    }
    free(b);
}

/* --- answers --- */

static void answer_vmm(const struct call *c, const struct error *err, struct reply *r)
{
    struct broker_vmm_info info = {.pidfd = -1, .run_fd = -1};
    if (!err) {
        info.pid = (pid_t)r->pid;
        info.start_time = r->start_time;
        info.kind = r->kind;
        info.pidfd = r->fds[0];
        info.run_fd = r->fds[1];
        r->fd_count = 0;
        (void)str_copy(info.qmp_socket, sizeof(info.qmp_socket), r->qmp_socket);
        (void)str_copy(info.agent_socket, sizeof(info.agent_socket), r->agent_socket);
        (void)str_copy(info.log, sizeof(info.log), r->log);
    }
    c->fn.vmm(c->arg, err, err ? NULL : &info);
}

static void answer_info(const struct call *c, const struct error *err, const struct reply *r)
{
    struct broker_info info = {0};
    if (!err) {
        (void)str_copy(info.pool_path, sizeof(info.pool_path), r->pool_path);
        (void)str_copy(info.pool_kind, sizeof(info.pool_kind), r->pool_kind);
        (void)str_copy(info.cgroup_mode, sizeof(info.cgroup_mode), r->cgroup_mode);
        (void)str_copy(info.cgroup_limits, sizeof(info.cgroup_limits), r->cgroup_limits);
        info.reflink = r->reflink;
        info.pool_free_bytes = r->pool_free_bytes;
        info.pool_total_bytes = r->pool_total_bytes;
        info.uid_first = r->uid_first;
        info.uid_count = r->uid_count;
        info.kvm_device = r->kvm_device;
    }
    c->fn.info(c->arg, err, err ? NULL : &info);
}

/* Gives the caller its answer; the call is already out of every list. */
static void answer(const struct call *c, const struct error *err, struct reply *r)
{
    switch (c->answer) {
    case ANSWER_DONE:
        if (c->fn.done)
            c->fn.done(c->arg, err);
        break;
    case ANSWER_INFO:
        answer_info(c, err, r);
        break;
    case ANSWER_LIST:
        c->fn.list(c->arg, err, err ? NULL : (const char(*)[ID_SIZE])c->ids, err ? 0 : c->ids_len);
        break;
    case ANSWER_HAS:
        c->fn.has(c->arg, err, err ? false : r->sealed);
        break;
    case ANSWER_VMM:
        answer_vmm(c, err, r);
        break;
    case ANSWER_BUILD:
        c->fn.build(c->arg, err, err ? NULL : r->digest, err ? 0 : r->content_bytes);
        break;
    case ANSWER_BYTES:
        c->fn.bytes(c->arg, err, err ? 0 : r->bytes);
        break;
    }
}

static void answer_failing(void *arg)
{
    struct call *c = arg;
    struct broker *b = c->broker;
    DL_DELETE(b->failing, c);
    b->call_count--;
    answer(c, &c->failed, NULL);
    call_free(c);
}

static void fail_later(struct call *c, const struct error *err)
{
    c->failed = *err;
    DL_APPEND(c->broker->failing, c);
    loop_defer(c->broker->loop, &c->deferred, answer_failing, c);
}

/* --- sending --- */

static void update_events(struct broker *b)
{
    if (!b->ended)
        loop_fd_events(&b->watch, b->queue ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* Sends what waits, in order, until the socket is full. An error other than that shows as the end of
 * the channel on the next read. */
static void flush(struct broker *b)
{
    while (b->queue) {
        struct packet *k = b->queue;
        if (wire_send(b->fd, k->data, k->n, k->fds, k->fd_count) < 0 && errno == EAGAIN)
            break;
        DL_DELETE(b->queue, k);
        packet_free(k);
    }
    update_events(b);
}

static struct packet *packet_new(const struct request *r, struct error *err)
{
    AUTO_FREE unsigned char *data = malloc(WIRE_MESSAGE_MAX);
    size_t n = data ? request_encode(r, data, WIRE_MESSAGE_MAX) : 0;
    struct packet *k = n > 0 ? malloc(sizeof(*k) + n) : NULL;
    if (!k) {
        (void)error_set(err, ERROR_NO_MEMORY, "no room for a request to the broker");
        return NULL;
    }
    memset(k, 0, sizeof(*k));
    k->n = n;
    memcpy(k->data, data, n);
    for (unsigned i = 0; i < r->fd_count; i++) {
        /* The caller's descriptors stay the caller's, even while the request waits. */
        k->fds[i] = fcntl(r->fds[i], F_DUPFD_CLOEXEC, 3);
        if (k->fds[i] < 0) {
            (void)error_errno(err, ERROR_INVALID, errno, "descriptor for the broker");
            packet_free(k);
            return NULL;
        }
        k->fd_count++;
    }
    return k;
}

/* Encodes, checks as the broker will, and queues. */
static int submit(struct broker *b, struct call *c, struct request *r, struct error *err)
{
    if (b->ended)
        return error_set(err, ERROR_UNAVAILABLE, "the broker has ended");
    if (b->call_count > CALLS_MAX)
        return error_set(err, ERROR_CAPACITY, "%d requests to the broker are open already", CALLS_MAX);
    do
        r->id = ++b->last_id;
    while (r->id == 0);
    struct packet *k = packet_new(r, err);
    if (!k)
        return err->code;
    AUTO_FREE struct request *check = calloc(1, sizeof(*check));
    int rc = check ? request_decode(k->data, k->n, k->fd_count, check, err)
                   : error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (rc < 0) {
        packet_free(k);
        return rc;
    }
    c->id = r->id;
    HASH_ADD(hh, b->calls, id, sizeof(c->id), c);
    DL_APPEND(b->queue, k);
    flush(b);
    return 0;
}

static void send_request(struct broker *b, struct request *r, enum answer answer, union answer_fn fn,
                         void *arg)
{
    struct call *c = calloc(1, sizeof(*c));
    if (!c)
        abort(); /* without memory for a callback its one call cannot be promised */
    c->answer = answer;
    c->type = r->type;
    c->fn = fn;
    c->arg = arg;
    c->broker = b;
    b->call_count++;
    struct error err = ERROR_INIT;
    if (submit(b, c, r, &err) < 0)
        fail_later(c, &err);
}

/* A request with its text fields; one that does not fit becomes text the check refuses. */
static void put(char *to, size_t size, const char *from)
{
    if (!str_copy(to, size, from ? from : ""))
        (void)str_copy(to, size, "!");
}

#define PUT(member, value) put(r->member, sizeof(r->member), (value))

/* struct request is too big for the stack of a callback chain; running out of memory for one is as
 * final as for the call itself. */
static struct request *request_new(unsigned type)
{
    struct request *r = calloc(1, sizeof(*r));
    if (!r)
        abort();
    r->type = (uint16_t)type;
    return r;
}

/* --- receiving --- */

static void fail_all(struct broker *b)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_UNAVAILABLE, "the broker has ended");
    struct call *c;
    struct call *next;
    HASH_ITER(hh, b->calls, c, next)
    {
        HASH_DEL(b->calls, c);
        fail_later(c, &err);
    }
}

static void end_channel(struct broker *b)
{
    b->ended = true;
    loop_fd_stop(&b->watch);
    fail_all(b);
    b->gone(b->gone_arg); /* may destroy b */
}

/* Keeps a page of ids and asks for the next one. Returns whether the call goes on. */
static bool list_page(struct broker *b, struct call *c, const struct reply *r, struct error *err)
{
    char(*ids)[ID_SIZE] = reallocarray(c->ids, c->ids_len + r->ids.count + 1, sizeof(*ids));
    if (!ids) {
        (void)error_set(err, ERROR_NO_MEMORY, "out of memory");
        return false;
    }
    c->ids = ids;
    for (const char *s = NULL; (s = wire_list_next(&r->ids, s));)
        (void)str_copy(ids[c->ids_len++], sizeof(ids[0]), s);
    if (!r->more || r->ids.count == 0)
        return false;
    AUTO_FREE struct request *q = request_new(c->type);
    (void)str_copy(q->after, sizeof(q->after), ids[c->ids_len - 1]);
    return submit(b, c, q, err) == 0;
}

static void on_reply(struct broker *b, struct reply *r)
{
    struct call *c;
    HASH_FIND(hh, b->calls, &r->id, sizeof(r->id), c);
    if (!c)
        return;
    HASH_DEL(b->calls, c);
    struct error err = ERROR_INIT;
    if (r->failed) {
        (void)error_field(&err, -(int)r->failed, r->field, "%s", r->message);
    } else if (c->answer == ANSWER_LIST && list_page(b, c, r, &err)) {
        return;
    }
    b->call_count--;
    answer(c, err.code ? &err : NULL, r);
    call_free(c);
}

/* Reads one message. False when there is none, or the channel ended. */
static bool receive(struct broker *b, unsigned char *data, struct reply *r)
{
    ssize_t n = wire_recv(b->fd, data, WIRE_MESSAGE_MAX, r->fds, &r->fd_count);
    if (n < 0 && errno == EAGAIN)
        return false;
    struct error err = ERROR_INIT;
    if (n <= 0) {
        end_channel(b);
        return false;
    }
    unsigned fd_count = r->fd_count;
    int fds[WIRE_FDS_MAX];
    memcpy(fds, r->fds, sizeof(fds));
    bool ok = reply_decode(data, (size_t)n, fd_count, r, &err) == 0;
    if (ok)
        on_reply(b, r);
    /* A receiver that took the descriptors has zeroed the count. */
    if (!ok || r->fd_count > 0)
        for (unsigned i = 0; i < fd_count; i++)
            (void)close(fds[i]);
    return ok;
}

static void on_channel(struct loop_fd *w, uint32_t events)
{
    struct broker *b = w->arg;
    if (events & EPOLLOUT)
        flush(b);
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        return;
    AUTO_FREE unsigned char *data = malloc(WIRE_MESSAGE_MAX);
    AUTO_FREE struct reply *r = calloc(1, sizeof(*r));
    /* One message a turn: a callback may destroy the broker. The watch is level-triggered. */
    if (data && r)
        (void)receive(b, data, r);
}

/* --- the calls --- */

void broker_info(struct broker *b,
                 void (*done)(void *arg, const struct error *err, const struct broker_info *info), void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_INFO);
    send_request(b, r, ANSWER_INFO, (union answer_fn){.info = done}, arg);
}

void broker_sandbox_prepare(struct broker *b, const char *sandbox_id, enum broker_disk_from from,
                            const char *digest_or_key, uint32_t disk_mib, broker_done done, void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_SANDBOX_PREPARE);
    PUT(sandbox_id, sandbox_id);
    r->from = from;
    if (from == BROKER_FROM_TEMPLATE)
        PUT(digest, digest_or_key);
    else if (from == BROKER_FROM_GOLDEN)
        PUT(key, digest_or_key);
    else
        PUT(snapshot_id, digest_or_key);
    r->disk_mib = disk_mib;
    send_request(b, r, ANSWER_DONE, (union answer_fn){.done = done}, arg);
}

/* A request that carries a sandbox's id only. */
static void sandbox_request(struct broker *b, enum request_type type, const char *sandbox_id,
                            enum answer answer, union answer_fn fn, void *arg)
{
    AUTO_FREE struct request *r = request_new(type);
    PUT(sandbox_id, sandbox_id);
    send_request(b, r, answer, fn, arg);
}

void broker_sandbox_remove(struct broker *b, const char *sandbox_id, broker_done done, void *arg)
{
    sandbox_request(b, REQUEST_SANDBOX_REMOVE, sandbox_id, ANSWER_DONE, (union answer_fn){.done = done}, arg);
}

void broker_sandbox_park(struct broker *b, const char *sandbox_id, broker_done done, void *arg)
{
    sandbox_request(b, REQUEST_SANDBOX_PARK, sandbox_id, ANSWER_DONE, (union answer_fn){.done = done}, arg);
}

void broker_sandbox_revert(struct broker *b, const char *sandbox_id, const char *snapshot_id,
                           broker_done done, void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_SANDBOX_REVERT);
    PUT(sandbox_id, sandbox_id);
    PUT(snapshot_id, snapshot_id);
    send_request(b, r, ANSWER_DONE, (union answer_fn){.done = done}, arg);
}

void broker_sandbox_list(struct broker *b,
                         void (*done)(void *arg, const struct error *err, const char (*ids)[ID_SIZE],
                                      size_t n),
                         void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_SANDBOX_LIST);
    send_request(b, r, ANSWER_LIST, (union answer_fn){.list = done}, arg);
}

void broker_golden_begin(struct broker *b, const char *key, const char *sandbox_id, uint32_t memory_mib,
                         broker_done done, void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_GOLDEN_BEGIN);
    PUT(key, key);
    PUT(sandbox_id, sandbox_id);
    r->memory_mib = memory_mib;
    send_request(b, r, ANSWER_DONE, (union answer_fn){.done = done}, arg);
}

void broker_golden_capture(struct broker *b, const char *key, const char *sandbox_id, broker_done done,
                           void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_GOLDEN_CAPTURE);
    PUT(key, key);
    PUT(sandbox_id, sandbox_id);
    send_request(b, r, ANSWER_DONE, (union answer_fn){.done = done}, arg);
}

void broker_golden_seal(struct broker *b, const char *key, const char *sandbox_id, broker_done done,
                        void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_GOLDEN_SEAL);
    PUT(key, key);
    PUT(sandbox_id, sandbox_id);
    send_request(b, r, ANSWER_DONE, (union answer_fn){.done = done}, arg);
}

void broker_golden_remove(struct broker *b, const char *key, broker_done done, void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_GOLDEN_REMOVE);
    PUT(key, key);
    send_request(b, r, ANSWER_DONE, (union answer_fn){.done = done}, arg);
}

void broker_golden_has(struct broker *b, const char *key,
                       void (*done)(void *arg, const struct error *err, bool sealed), void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_GOLDEN_HAS);
    PUT(key, key);
    send_request(b, r, ANSWER_HAS, (union answer_fn){.has = done}, arg);
}

void broker_snapshot_begin(struct broker *b, const char *snapshot_id, const char *sandbox_id,
                           enum broker_snapshot_kind kind, broker_done done, void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_SNAPSHOT_BEGIN);
    PUT(snapshot_id, snapshot_id);
    PUT(sandbox_id, sandbox_id);
    r->kind = kind;
    send_request(b, r, ANSWER_DONE, (union answer_fn){.done = done}, arg);
}

void broker_snapshot_capture(struct broker *b, const char *snapshot_id, bool go_on,
                             void (*done)(void *arg, const struct error *err, uint64_t dirty_bytes),
                             void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_SNAPSHOT_CAPTURE);
    PUT(snapshot_id, snapshot_id);
    r->go_on = go_on;
    send_request(b, r, ANSWER_BYTES, (union answer_fn){.bytes = done}, arg);
}

void broker_snapshot_seal(struct broker *b, const char *snapshot_id,
                          void (*done)(void *arg, const struct error *err, uint64_t bytes), void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_SNAPSHOT_SEAL);
    PUT(snapshot_id, snapshot_id);
    send_request(b, r, ANSWER_BYTES, (union answer_fn){.bytes = done}, arg);
}

void broker_snapshot_pack(struct broker *b, const char *snapshot_id,
                          void (*done)(void *arg, const struct error *err, uint64_t bytes), void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_SNAPSHOT_PACK);
    PUT(snapshot_id, snapshot_id);
    send_request(b, r, ANSWER_BYTES, (union answer_fn){.bytes = done}, arg);
}

void broker_snapshot_check(struct broker *b, const char *snapshot_id, enum broker_snapshot_kind kind,
                           uint32_t memory_mib, broker_done done, void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_SNAPSHOT_CHECK);
    PUT(snapshot_id, snapshot_id);
    r->kind = kind;
    r->memory_mib = memory_mib;
    send_request(b, r, ANSWER_DONE, (union answer_fn){.done = done}, arg);
}

void broker_snapshot_copy(struct broker *b, const char *from_id, const char *to_id, broker_done done,
                          void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_SNAPSHOT_COPY);
    PUT(snapshot_id, to_id);
    PUT(source_id, from_id);
    send_request(b, r, ANSWER_DONE, (union answer_fn){.done = done}, arg);
}

void broker_snapshot_remove(struct broker *b, const char *snapshot_id, broker_done done, void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_SNAPSHOT_REMOVE);
    PUT(snapshot_id, snapshot_id);
    send_request(b, r, ANSWER_DONE, (union answer_fn){.done = done}, arg);
}

void broker_snapshot_list(struct broker *b,
                          void (*done)(void *arg, const struct error *err, const char (*ids)[ID_SIZE],
                                       size_t n),
                          void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_SNAPSHOT_LIST);
    send_request(b, r, ANSWER_LIST, (union answer_fn){.list = done}, arg);
}

void broker_vmm_start(struct broker *b, const struct broker_vmm *vmm, broker_vmm_done done, void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_VMM_START);
    PUT(sandbox_id, vmm->sandbox_id);
    r->kind = vmm->kind;
    r->boot = vmm->boot;
    if (vmm->boot == BROKER_BOOT_GOLDEN || vmm->boot == BROKER_BOOT_RESTORE)
        PUT(key, vmm->golden_key);
    if (vmm->boot == BROKER_BOOT_SNAPSHOT)
        PUT(snapshot_id, vmm->snapshot_id);
    PUT(platform, vmm->platform);
    r->kvm = vmm->kvm;
    r->vcpus = vmm->vcpus;
    r->memory_mib = vmm->memory_mib;
    send_request(b, r, ANSWER_VMM, (union answer_fn){.vmm = done}, arg);
}

void broker_vmm_adopt(struct broker *b, const char *sandbox_id, broker_vmm_done done, void *arg)
{
    sandbox_request(b, REQUEST_VMM_ADOPT, sandbox_id, ANSWER_VMM, (union answer_fn){.vmm = done}, arg);
}

void broker_vmm_kill(struct broker *b, const char *sandbox_id, broker_done done, void *arg)
{
    sandbox_request(b, REQUEST_VMM_KILL, sandbox_id, ANSWER_DONE, (union answer_fn){.done = done}, arg);
}

void broker_template_build(struct broker *b, const struct broker_build_spec *spec,
                           void (*done)(void *arg, const struct error *err, const char *digest,
                                        uint64_t content_bytes),
                           void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_TEMPLATE_BUILD);
    PUT(build_id, spec->build_id);
    r->kind = spec->kind;
    PUT(suite, spec->suite);
    for (const char *const *p = spec->packages; p && *p; p++)
        if (!wire_list_add(&r->packages, *p)) {
            /* More than fits is more than is allowed: an entry the check refuses. */
            r->packages.count = 0;
            r->packages.used = 0;
            (void)wire_list_add(&r->packages, "!");
            break;
        }
    r->seed_user = spec->seed_user;
    r->disk_mib = spec->disk_mib;
    r->fds[r->fd_count++] = spec->log_fd;
    if (spec->kind == BROKER_BUILD_TAR)
        r->fds[r->fd_count++] = spec->source_fd;
    send_request(b, r, ANSWER_BUILD, (union answer_fn){.build = done}, arg);
}

void broker_template_build_cancel(struct broker *b, const char *build_id)
{
    AUTO_FREE struct request *r = request_new(REQUEST_BUILD_CANCEL);
    PUT(build_id, build_id);
    send_request(b, r, ANSWER_DONE, (union answer_fn){.done = NULL}, NULL);
}

void broker_template_remove(struct broker *b, const char *digest, broker_done done, void *arg)
{
    AUTO_FREE struct request *r = request_new(REQUEST_TEMPLATE_REMOVE);
    PUT(digest, digest);
    send_request(b, r, ANSWER_DONE, (union answer_fn){.done = done}, arg);
}
