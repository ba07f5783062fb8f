#include "fakes.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* The default hash falls through its cases, which compilers report. */
#define HASH_FUNCTION(key, len, hash) HASH_FNV(key, len, hash)
#include <uthash.h>
#include <utlist.h>

#include "base/fs.h"
#include "base/str.h"

#define LATE_MS 60

struct machine {
    struct fake_machine m;
    UT_hash_handle hh;
    struct vm *vm;       /* attached object */
    struct guest *guest; /* attached object */
};

struct snapshot_files {
    struct fake_snapshot s;
    UT_hash_handle hh;
};

struct vm {
    struct vm_spec spec;
    struct machine *machine; /* NULL: inert */
    char id[ID_SIZE];
    char socket[64];
    struct vm_events events;
    void *arg;
    bool reset, again;
};

struct guest {
    struct machine *machine;
    char id[ID_SIZE];
    struct guest_events events;
    void *arg;
    bool ready;
    bool vsock; /* nobody is connected while it is held */
};

/* One answer on its way. */
struct answer {
    struct answer *prev, *next;
    struct loop_timer timer;
    const void *owner; /* vm, guest, golden lease owner: destroyed with it */
    enum fake_call call;
    char id[ID_SIZE];
    void (*done)(void *arg, const struct error *err);
    void (*booted)(void *arg, const struct error *err, struct vm *vm);
    void (*listed)(void *arg, const struct error *err, const char (*ids)[ID_SIZE], size_t n);
    void (*counted)(void *arg, const struct error *err, uint64_t bytes);
    char other[ID_SIZE]; /* a snapshot */
    bool flag;
    const struct vm *vm;
    void *arg;
    struct vm_events events;
    void *events_arg;
    struct guest_identity identity;
    struct error err;
};

static struct {
    struct loop *loop;
    struct machine *machines;
    struct answer *answers;
    enum fake_mode mode[FAKE_CALLS];
    int code[FAKE_CALLS];
    unsigned times[FAKE_CALLS]; /* 0: always */
    unsigned count[FAKE_CALLS];
    unsigned objects;
    struct snapshot_files *snapshots;
    unsigned progress; /* counts what guests do */
    char version[32];
    bool vsock;
} fake;

static char pool[128];

/* --- the world --- */

static struct machine *find(const char *id)
{
    struct machine *m = NULL;
    HASH_FIND_STR(fake.machines, id, m);
    return m;
}

static struct machine *add(const char *id)
{
    struct machine *m = find(id);
    if (m)
        return m;
    m = calloc(1, sizeof(*m));
    (void)str_copy(m->m.id, sizeof(m->m.id), id);
    HASH_ADD_STR(fake.machines, m.id, m);
    return m;
}

static void drop(struct machine *m)
{
    if (m->vm)
        m->vm->machine = NULL;
    if (m->guest)
        m->guest->machine = NULL;
    HASH_DEL(fake.machines, m);
    free(m);
}

/* --- snapshots --- */

static struct snapshot_files *find_snapshot(const char *id)
{
    struct snapshot_files *f = NULL;
    HASH_FIND_STR(fake.snapshots, id, f);
    return f;
}

static void state_path(const char *id, const char *name, char *to, size_t size)
{
    (void)snprintf(to, size, "%s/snapshots/%s%s", pool, id, name);
}

static void drop_snapshot(const char *id)
{
    struct snapshot_files *f = find_snapshot(id);
    char path[256];
    if (!f)
        return;
    state_path(id, "/state", path, sizeof(path));
    (void)unlink(path);
    state_path(id, "", path, sizeof(path));
    (void)rmdir(path);
    HASH_DEL(fake.snapshots, f);
    free(f);
}

static struct snapshot_files *add_snapshot(const char *id)
{
    char path[256];
    drop_snapshot(id);
    struct snapshot_files *f = calloc(1, sizeof(*f));
    (void)str_copy(f->s.id, sizeof(f->s.id), id);
    HASH_ADD_STR(fake.snapshots, s.id, f);
    state_path(id, "", path, sizeof(path));
    (void)fs_mkdir_p(path, 0700, NULL);
    state_path(id, "/state", path, sizeof(path));
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert(fd >= 0);
    (void)close(fd);
    return f;
}

struct fake_snapshot *fake_snapshot(const char *id)
{
    struct snapshot_files *f = find_snapshot(id);
    return f ? &f->s : NULL;
}

struct fake_snapshot *fake_snapshot_add(const char *id)
{
    struct snapshot_files *f = add_snapshot(id);
    f->s.full = f->s.captured = f->s.sealed = true;
    return &f->s;
}

unsigned fake_snapshots(void)
{
    return HASH_COUNT(fake.snapshots);
}

const char *fake_snapshots_text(void)
{
    static char text[1024];
    size_t used = 0;
    text[0] = '\0';
    for (const struct snapshot_files *f = fake.snapshots; f && used < sizeof(text) - 128; f = f->hh.next)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s of %s%s%s%s; ", f->s.id,
                                 f->s.sandbox_id, f->s.full ? " full" : " disk",
                                 f->s.captured ? " captured" : "", f->s.sealed ? " sealed" : "");
    return text;
}

void fake_pool(const char *path)
{
    assert(str_copy(pool, sizeof(pool), path));
}

void fake_version(const char *version)
{
    (void)str_copy(fake.version, sizeof(fake.version), version);
}

void fake_vsock(bool vsock)
{
    fake.vsock = vsock;
}

void fake_reset(struct loop *l)
{
    struct machine *m;
    struct machine *next;
    struct answer *a;
    struct answer *after;
    HASH_ITER(hh, fake.machines, m, next)
    drop(m);
    DL_FOREACH_SAFE(fake.answers, a, after)
    {
        loop_timer_stop(&a->timer);
        free(a);
    }
    struct snapshot_files *f;
    struct snapshot_files *f_next;
    HASH_ITER(hh, fake.snapshots, f, f_next)
    drop_snapshot(f->s.id);
    memset(&fake, 0, sizeof(fake));
    fake_version("1");
    fake_vsock(false);
    fake.loop = l;
}

void fake_mode(enum fake_call call, enum fake_mode mode, int code)
{
    fake.mode[call] = mode;
    fake.code[call] = code;
    fake.times[call] = 0;
}

void fake_times(enum fake_call call, unsigned times)
{
    fake.times[call] = times;
}

unsigned fake_count(enum fake_call call)
{
    return fake.count[call];
}

struct fake_machine *fake_find(const char *id)
{
    struct machine *m = find(id);
    return m ? &m->m : NULL;
}

struct fake_machine *fake_add(const char *id)
{
    return &add(id)->m;
}

unsigned fake_machines(void)
{
    return HASH_COUNT(fake.machines);
}

unsigned fake_objects(void)
{
    return fake.objects;
}

unsigned fake_asked(void)
{
    struct answer *a;
    unsigned n;
    DL_COUNT(fake.answers, a, n);
    return n;
}

/* --- answers --- */

static enum fake_mode next_mode(enum fake_call call, int *code)
{
    enum fake_mode mode = fake.mode[call];
    fake.count[call]++;
    *code = fake.code[call];
    if (fake.times[call] > 0 && --fake.times[call] == 0)
        fake.mode[call] = FAKE_OK;
    return mode;
}

static void cancel(const void *owner)
{
    struct answer *a;
    struct answer *next;
    DL_FOREACH_SAFE(fake.answers, a, next)
    {
        if (a->owner != owner)
            continue;
        DL_DELETE(fake.answers, a);
        loop_timer_stop(&a->timer);
        free(a);
    }
}

static void deliver(struct loop_timer *t);

/* NULL: hangs, or the VM ended. */
static struct answer *ask(const void *owner, enum fake_call call, const char *id)
{
    int code = 0;
    enum fake_mode mode = next_mode(call, &code);
    if (mode == FAKE_EXIT) {
        fake_exit(id, "died of it");
        return NULL;
    }
    if (mode == FAKE_HANG)
        return NULL;
    struct answer *a = calloc(1, sizeof(*a));
    a->owner = owner;
    a->call = call;
    (void)str_copy(a->id, sizeof(a->id), id);
    if (mode == FAKE_FAIL)
        (void)error_set(&a->err, code, "scripted failure");
    DL_APPEND(fake.answers, a);
    loop_timer_init(fake.loop, &a->timer, deliver, a);
    loop_timer_start(&a->timer, mode == FAKE_LATE ? LATE_MS : 0);
    return a;
}

static void ask_done(const void *owner, enum fake_call call, const char *id,
                     void (*done)(void *arg, const struct error *err), void *arg)
{
    struct answer *a = ask(owner, call, id);
    if (!a)
        return;
    a->done = done;
    a->arg = arg;
}

static void guest_look(struct machine *m)
{
    struct guest *g = m->guest;
    if (!g || g->ready || !m->m.alive || !m->m.running || (g->vsock && m->m.held))
        return;
    struct answer *a = ask(g, FAKE_READY, m->m.id);
    (void)a;
}

static struct vm *vm_attach(const char *id, const struct vm_events *events, void *arg)
{
    struct vm *vm = calloc(1, sizeof(*vm));
    vm->events = *events;
    vm->arg = arg;
    (void)str_copy(vm->id, sizeof(vm->id), id);
    (void)snprintf(vm->socket, sizeof(vm->socket), "/fake/%s", id);
    fake.objects++;
    return vm;
}

static void attach(struct vm *vm)
{
    struct machine *m = add(vm->id);
    vm->machine = m;
    m->vm = vm;
}

static void deliver_list(const struct answer *a)
{
    char ids[64][ID_SIZE];
    size_t n = 0;
    struct machine *m;
    for (m = fake.machines; m && n < 64; m = m->hh.next)
        (void)str_copy(ids[n++], ID_SIZE, m->m.id);
    a->listed(a->arg, a->err.code ? &a->err : NULL, (const char(*)[ID_SIZE])ids, n);
}

static void deliver_snapshots(const struct answer *a)
{
    char ids[512][ID_SIZE];
    size_t n = 0;
    const struct snapshot_files *f;
    for (f = fake.snapshots; f && n < 512; f = f->hh.next)
        if (f->s.sealed)
            (void)str_copy(ids[n++], ID_SIZE, f->s.id);
    a->listed(a->arg, a->err.code ? &a->err : NULL, (const char(*)[ID_SIZE])ids, n);
}

static void deliver_boot(const struct answer *a)
{
    if (a->err.code) {
        a->booted(a->arg, &a->err, NULL);
        return;
    }
    struct vm *vm = vm_attach(a->id, &a->events, a->events_arg);
    attach(vm);
    vm->machine->m.alive = true;
    vm->machine->m.running = false;
    a->booted(a->arg, NULL, vm);
}

static void deliver_ready(const struct answer *a)
{
    struct machine *m = find(a->id);
    if (!m || !m->guest)
        return;
    if (a->err.code) {
        m->guest->events.lost(m->guest, &a->err, true, m->guest->arg);
        return;
    }
    m->guest->ready = true;
    m->guest->events.ready(m->guest, m->guest->arg);
}

/* The guest does something: its memory and its disk go on together, or it is on a disk of another time. */
static void go_on(struct machine *m)
{
    assert(m->m.memory == m->m.disk);
    m->m.memory = m->m.disk = ++fake.progress;
    m->m.synced = false;
    m->m.running = true;
}

static void launch(struct answer *a, struct machine *m)
{
    const struct vm_spec *spec = &a->vm->spec;
    const struct snapshot_files *f = find_snapshot(spec->snapshot_id);
    bool from = spec->boot == VM_BOOT_SNAPSHOT;
    if (m->m.alive) {
        (void)error_set(&a->err, ERROR_CONFLICT, "a VMM runs already");
    } else if (from && (!f || !f->s.sealed || !f->s.full)) {
        (void)error_set(&a->err, ERROR_NOT_FOUND, "no snapshot %s", spec->snapshot_id);
    } else {
        assert(!from || !f->s.torn);
        m->m.alive = true;
        m->m.parked = false;
        m->m.started = from;
        m->m.frozen = false;
        if (!from) {
            m->m.memory = m->m.disk;
            go_on(m);
        }
    }
}

/* Nothing but what a broker does may happen to a snapshot. */
static void capture(struct answer *a)
{
    struct snapshot_files *f = find_snapshot(a->other);
    if (!f) {
        (void)error_set(&a->err, ERROR_NOT_FOUND, "no snapshot %s is being made", a->other);
        return;
    }
    struct machine *m = find(f->s.sandbox_id);
    if (!m || (f->s.full && !m->m.alive)) {
        (void)error_set(&a->err, ERROR_NOT_FOUND, "no VMM");
        return;
    }
    f->s.torn = m->m.running || (f->s.full && (!m->m.frozen || m->m.memory != m->m.disk));
    f->s.memory = m->m.memory;
    f->s.disk = m->m.disk;
    f->s.synced = m->m.synced;
    f->s.captured = true;
}

static void snapshot_effect(struct answer *a)
{
    struct snapshot_files *f = find_snapshot(a->other);
    struct machine *m = find(a->id);
    switch (a->call) {
    case FAKE_BEGIN:
        if (!m || (a->flag && !m->m.alive)) {
            (void)error_set(&a->err, ERROR_NOT_FOUND, "no VMM of %s runs", a->id);
            break;
        }
        f = add_snapshot(a->other);
        f->s.full = a->flag;
        (void)str_copy(f->s.sandbox_id, ID_SIZE, a->id);
        break;
    case FAKE_CAPTURE:
        capture(a);
        break;
    case FAKE_SEAL:
        if (!f || !f->s.captured)
            (void)error_set(&a->err, ERROR_NOT_FOUND, "no snapshot %s was captured", a->other);
        else
            f->s.sealed = true;
        break;
    case FAKE_COPY:
        f = find_snapshot(a->id);
        if (!f || !f->s.sealed) {
            (void)error_set(&a->err, ERROR_NOT_FOUND, "no snapshot %s", a->id);
            break;
        }
        struct fake_snapshot copy = f->s;
        f = add_snapshot(a->other);
        (void)str_copy(copy.id, ID_SIZE, a->other);
        f->s = copy;
        break;
    case FAKE_CHECK:
        if (!f || !f->s.sealed)
            (void)error_set(&a->err, ERROR_NOT_FOUND, "no snapshot %s", a->other);
        break;
    case FAKE_DROP:
        drop_snapshot(a->other);
        break;
    case FAKE_PREPARE:
    case FAKE_REVERT:
        if (!f || !f->s.sealed) {
            (void)error_set(&a->err, ERROR_NOT_FOUND, "no snapshot %s", a->other);
            break;
        }
        m = add(a->id);
        assert(!m->m.alive);
        assert(!f->s.torn);
        m->m.disk = f->s.disk;
        break;
    default:
        break;
    }
}

static void load(struct answer *a, struct machine *m)
{
    const struct snapshot_files *f = find_snapshot(a->vm->spec.snapshot_id);
    assert(m->m.started);
    if (!f) {
        (void)error_set(&a->err, ERROR_NOT_FOUND, "no snapshot %s", a->vm->spec.snapshot_id);
        return;
    }
    m->m.started = false;
    m->m.memory = f->s.memory;
    m->m.frozen = true;
}

/* What a successful answer does to the world. */
static void take_effect(struct answer *a)
{
    struct machine *m = find(a->id);
    if (a->err.code)
        return;
    snapshot_effect(a);
    if (!m)
        return;
    switch (a->call) {
    case FAKE_LAUNCH:
        launch(a, m);
        break;
    case FAKE_LOAD:
        load(a, m);
        break;
    case FAKE_QUIESCE:
        m->m.frozen = true;
        break;
    case FAKE_SYNC:
        m->m.synced = true;
        break;
    case FAKE_PARK:
        if (m->m.alive)
            fake_exit(a->id, "parked");
        m->m.parked = true;
        break;
    case FAKE_RESUME:
        assert(!m->m.started);
        if (!m->m.running) {
            go_on(m);
            guest_look(m);
        }
        break;
    case FAKE_PAUSE:
        m->m.running = false;
        break;
    case FAKE_IDENTIFY:
        m->m.identified++;
        m->m.frozen = false;
        m->m.identity = a->identity;
        break;
    case FAKE_KILL:
        if (m->m.alive)
            fake_exit(a->id, "killed");
        break;
    case FAKE_REMOVE:
        if (m->m.alive)
            fake_exit(a->id, "removed");
        drop(m);
        break;
    default:
        break;
    }
}

static bool same_queue(const struct answer *a, const struct answer *b)
{
    return !a->owner && !b->owner &&
           ((*a->id && strcmp(a->id, b->id) == 0) || (*a->other && strcmp(a->other, b->other) == 0));
}

/* A broker does what it is asked about one sandbox or one snapshot in the order of asking. */
static void deliver_earlier(const struct answer *a)
{
    struct answer *b;
    DL_FOREACH(fake.answers, b)
    {
        if (b == a)
            return;
        if (same_queue(a, b)) {
            loop_timer_stop(&b->timer);
            deliver(&b->timer);
            deliver_earlier(a); /* the list is another now */
            return;
        }
    }
}

static void deliver(struct loop_timer *t)
{
    struct answer *a = t->arg;
    deliver_earlier(a);
    DL_DELETE(fake.answers, a);
    take_effect(a);
    if (a->call == FAKE_LIST)
        deliver_list(a);
    else if (a->call == FAKE_SNAPSHOTS)
        deliver_snapshots(a);
    else if (a->counted)
        a->counted(a->arg, a->err.code ? &a->err : NULL, 4096);
    else if (a->call == FAKE_BOOT)
        deliver_boot(a);
    else if (a->call == FAKE_READY)
        deliver_ready(a);
    else if (a->done)
        a->done(a->arg, a->err.code ? &a->err : NULL);
    if (a->call == FAKE_SHUTDOWN && !a->err.code)
        fake_exit(a->id, "powered off");
    free(a);
}

void fake_broker_end(bool effect)
{
    struct answer *a;
    struct answer *next;
    struct snapshot_files *f;
    struct snapshot_files *f_next;
    DL_FOREACH_SAFE(fake.answers, a, next)
    {
        if (a->owner)
            continue;
        if (effect)
            take_effect(a);
        DL_DELETE(fake.answers, a);
        loop_timer_stop(&a->timer);
        free(a);
    }
    HASH_ITER(hh, fake.snapshots, f, f_next)
    if (!f->s.sealed)
        drop_snapshot(f->s.id);
}

void fake_exit(const char *id, const char *why)
{
    struct machine *m = find(id);
    if (!m || !m->m.alive)
        return;
    m->m.alive = m->m.running = false;
    struct vm *vm = m->vm;
    if (!vm)
        return;
    m->vm = NULL;
    vm->machine = NULL;
    vm->reset = strcmp(why, "guest-reset") == 0;
    cancel(vm);
    vm->events.exited(vm->arg, why);
}

void fake_lose(const char *id, int code, bool final)
{
    struct machine *m = find(id);
    struct error err = ERROR_INIT;
    (void)error_set(&err, code, "link lost");
    assert(m && m->guest);
    m->guest->ready = false;
    m->guest->events.lost(m->guest, &err, final, m->guest->arg);
}

void fake_relink(const char *id)
{
    struct machine *m = find(id);
    if (m)
        guest_look(m);
}

/* --- broker.h --- */

void broker_sandbox_remove(struct broker *b, const char *id, broker_done done, void *arg)
{
    (void)b;
    ask_done(NULL, FAKE_REMOVE, id, done, arg);
}

void broker_vmm_kill(struct broker *b, const char *id, broker_done done, void *arg)
{
    (void)b;
    ask_done(NULL, FAKE_KILL, id, done, arg);
}

void broker_sandbox_list(struct broker *b,
                         void (*done)(void *arg, const struct error *err, const char (*ids)[ID_SIZE],
                                      size_t n),
                         void *arg)
{
    (void)b;
    struct answer *a = ask(NULL, FAKE_LIST, "");
    if (!a)
        return;
    a->listed = done;
    a->arg = arg;
}

void broker_sandbox_park(struct broker *b, const char *id, broker_done done, void *arg)
{
    (void)b;
    ask_done(NULL, FAKE_PARK, id, done, arg);
}

static void ask_snapshot(enum fake_call call, const char *id, const char *snapshot, bool flag,
                         broker_done done, void *arg)
{
    struct answer *a = ask(NULL, call, id);
    if (!a)
        return;
    a->done = done;
    a->arg = arg;
    a->flag = flag;
    (void)str_copy(a->other, sizeof(a->other), snapshot);
}

void broker_sandbox_prepare(struct broker *b, const char *id, enum broker_disk_from from,
                            const char *snapshot, uint32_t disk_mib, broker_done done, void *arg)
{
    (void)b;
    (void)disk_mib;
    assert(from == BROKER_FROM_SNAPSHOT);
    ask_snapshot(FAKE_PREPARE, id, snapshot, false, done, arg);
}

void broker_sandbox_revert(struct broker *b, const char *id, const char *snapshot, broker_done done,
                           void *arg)
{
    (void)b;
    ask_snapshot(FAKE_REVERT, id, snapshot, false, done, arg);
}

void broker_snapshot_begin(struct broker *b, const char *snapshot, const char *id,
                           enum broker_snapshot_kind kind, broker_done done, void *arg)
{
    (void)b;
    ask_snapshot(FAKE_BEGIN, id, snapshot, kind == BROKER_SNAPSHOT_FULL, done, arg);
}

static void ask_counted(enum fake_call call, const char *snapshot,
                        void (*done)(void *arg, const struct error *err, uint64_t bytes), void *arg)
{
    struct answer *a = ask(NULL, call, "");
    if (!a)
        return;
    a->counted = done;
    a->arg = arg;
    (void)str_copy(a->other, sizeof(a->other), snapshot);
}

void broker_snapshot_capture(struct broker *b, const char *snapshot, bool go_on,
                             void (*done)(void *arg, const struct error *err, uint64_t dirty_bytes),
                             void *arg)
{
    (void)b;
    (void)go_on;
    ask_counted(FAKE_CAPTURE, snapshot, done, arg);
}

void broker_snapshot_seal(struct broker *b, const char *snapshot,
                          void (*done)(void *arg, const struct error *err, uint64_t bytes), void *arg)
{
    (void)b;
    ask_counted(FAKE_SEAL, snapshot, done, arg);
}

void broker_snapshot_pack(struct broker *b, const char *snapshot,
                          void (*done)(void *arg, const struct error *err, uint64_t bytes), void *arg)
{
    (void)b;
    ask_counted(FAKE_PACK, snapshot, done, arg);
}

void broker_snapshot_copy(struct broker *b, const char *from, const char *to, broker_done done, void *arg)
{
    (void)b;
    ask_snapshot(FAKE_COPY, from, to, false, done, arg);
}

void broker_snapshot_check(struct broker *b, const char *snapshot, enum broker_snapshot_kind kind,
                           uint32_t memory_mib, broker_done done, void *arg)
{
    const struct snapshot_files *f = find_snapshot(snapshot);
    (void)b;
    assert(memory_mib > 0 && (!f || f->s.full == (kind == BROKER_SNAPSHOT_FULL)));
    ask_snapshot(FAKE_CHECK, "", snapshot, false, done, arg);
}

void broker_snapshot_remove(struct broker *b, const char *snapshot, broker_done done, void *arg)
{
    (void)b;
    ask_snapshot(FAKE_DROP, "", snapshot, false, done, arg);
}

void broker_snapshot_list(struct broker *b,
                          void (*done)(void *arg, const struct error *err, const char (*ids)[ID_SIZE],
                                       size_t n),
                          void *arg)
{
    (void)b;
    struct answer *a = ask(NULL, FAKE_SNAPSHOTS, "");
    if (!a)
        return;
    a->listed = done;
    a->arg = arg;
}

/* --- golden.h --- */

int golden_reserve(struct golden *g, const char *digest, const struct vm_shape *shape,
                   struct golden_lease *ret, struct error *err)
{
    (void)g;
    (void)digest;
    (void)shape;
    int code = 0;
    if (next_mode(FAKE_RESERVE, &code) == FAKE_FAIL)
        return error_set(err, code, "scripted failure");
    memset(ret, 0, sizeof(*ret));
    id_new("sb", ret->sandbox_id);
    return 0;
}

void golden_start(struct golden *g, const struct golden_lease *lease, const char *digest,
                  const struct vm_shape *shape, const struct vm_events *events, void *events_arg,
                  void (*phase)(void *arg, const char *phase),
                  void (*done)(void *arg, const struct error *err, struct vm *vm), void *arg)
{
    (void)g;
    (void)digest;
    (void)shape;
    (void)add(lease->sandbox_id);
    phase(arg, "spawning");
    struct answer *a = ask(lease, FAKE_BOOT, lease->sandbox_id);
    if (!a)
        return;
    a->booted = done;
    a->arg = arg;
    a->events = *events;
    a->events_arg = events_arg;
}

void golden_release(struct golden *g, const struct golden_lease *lease)
{
    (void)g;
    cancel(lease);
    struct machine *m = find(lease->sandbox_id);
    if (m)
        drop(m);
}

bool golden_owns(const struct golden *g, const char *id)
{
    (void)g;
    struct machine *m = find(id);
    return m && m->m.owned;
}

/* --- vm.h --- */

const struct vm_engine_info *vm_engine_info(const struct vm_engine *e)
{
    static const struct vm_engine_info info = {"fake", "none", "1", "for tests"};
    (void)e;
    return &info;
}

void vm_engine_compat(const struct vm_engine *e, struct vm_compat *ret)
{
    (void)e;
    memset(ret, 0, sizeof(*ret));
    (void)str_copy(ret->engine, sizeof(ret->engine), "fake");
    (void)str_copy(ret->version, sizeof(ret->version), fake.version);
}

int vm_compat_check(const struct vm_compat *made, const struct vm_compat *here, struct error *err)
{
    if (strcmp(made->version, here->version) == 0)
        return 0;
    return error_set(err, ERROR_INCOMPATIBLE, "made with version %s; here runs %s", made->version,
                     here->version);
}

int vm_create(struct vm_engine *e, const struct vm_spec *spec, const struct vm_events *events, void *arg,
              struct vm **ret, struct error *err)
{
    int code = 0;
    (void)e;
    if (next_mode(FAKE_CREATE_VM, &code) == FAKE_FAIL)
        return error_set(err, code, "scripted failure");
    *ret = vm_attach(spec->sandbox_id, events, arg);
    (*ret)->spec = *spec;
    return 0;
}

void vm_destroy(struct vm *vm)
{
    if (!vm)
        return;
    cancel(vm);
    if (vm->machine)
        vm->machine->vm = NULL;
    free(vm);
    fake.objects--;
}

static void ask_vm(struct vm *vm, enum fake_call call, vm_done done, void *arg)
{
    struct answer *a = ask(vm, call, vm->id);
    if (!a)
        return;
    a->done = done;
    a->arg = arg;
    a->vm = vm;
}

void vm_limit(struct vm *vm, const struct vm_limits *limits)
{
    vm->spec.limits = *limits;
}

void vm_launch(struct vm *vm, vm_done done, void *arg)
{
    attach(vm);
    vm->machine->m.limits = vm->spec.limits;
    ask_vm(vm, FAKE_LAUNCH, done, arg);
}

void vm_load(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    assert(fcntl(state_fd, F_GETFL) >= 0);
    ask_vm(vm, FAKE_LOAD, done, arg);
}

void vm_save_devices(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    assert((fcntl(state_fd, F_GETFL) & O_ACCMODE) == O_WRONLY);
    assert(!vm_is_running(vm));
    ask_vm(vm, FAKE_SAVE, done, arg);
}

void vm_adopt(struct vm *vm, vm_done done, void *arg)
{
    struct machine *m = find(vm->id);
    struct answer *a = ask(vm, FAKE_ADOPT, vm->id);
    if (!a)
        return;
    a->done = done;
    a->arg = arg;
    if (!m || !m->m.alive)
        (void)error_set(&a->err, ERROR_NOT_FOUND, "no VMM of %s runs", vm->id);
    else if (!a->err.code) {
        attach(vm);
        vm->machine->m.limits = vm->spec.limits;
    }
}

void vm_resume(struct vm *vm, vm_done done, void *arg)
{
    const struct machine *m = vm->machine;
    /* Who is connected by now has spoken to nobody. */
    assert(!m || !m->guest || !m->guest->vsock || m->m.running || m->m.held);
    if (vm->machine)
        vm->machine->m.limits = vm->spec.limits;
    ask_done(vm, FAKE_RESUME, vm->id, done, arg);
}

void vm_pause(struct vm *vm, vm_done done, void *arg)
{
    ask_done(vm, FAKE_PAUSE, vm->id, done, arg);
}

void vm_kill(struct vm *vm)
{
    int code = 0;
    if (next_mode(FAKE_VM_KILL, &code) == FAKE_OK)
        fake_exit(vm->id, "killed");
}

pid_t vm_pid(const struct vm *vm)
{
    return vm->machine ? 42 : 0;
}

bool vm_launch_again(struct vm *vm, vm_done done, void *arg)
{
    if (!vm->reset || vm->again || vm->spec.boot != VM_BOOT_COLD)
        return false;
    vm->reset = false;
    vm->again = true;
    vm_launch(vm, done, arg);
    return true;
}

bool vm_is_running(const struct vm *vm)
{
    return vm->machine && vm->machine->m.running;
}

uint32_t vm_agent_port(const struct vm *vm)
{
    (void)vm;
    return fake.vsock ? 1024 : 0;
}

const char *vm_agent_socket(const struct vm *vm)
{
    return vm->socket;
}

/* --- guest.h --- */

int guest_create(struct loop *l, const struct guest_config *config, const struct guest_events *events,
                 void *arg, struct guest **ret, struct error *err)
{
    int code = 0;
    (void)l;
    assert(str_starts(config->socket_path, "/fake/"));
    if (next_mode(FAKE_LINK, &code) == FAKE_FAIL)
        return error_set(err, code, "scripted failure");
    struct guest *g = calloc(1, sizeof(*g));
    g->events = *events;
    g->arg = arg;
    (void)str_copy(g->id, sizeof(g->id), config->sandbox_id);
    g->machine = find(config->sandbox_id);
    g->vsock = config->vsock_port != 0;
    fake.objects++;
    *ret = g;
    if (g->machine) {
        g->machine->guest = g;
        g->machine->m.held = false;
        guest_look(g->machine);
    }
    return 0;
}

void guest_destroy(struct guest *g)
{
    if (!g)
        return;
    cancel(g);
    if (g->machine)
        g->machine->guest = NULL;
    free(g);
    fake.objects--;
}

bool guest_is_ready(const struct guest *g)
{
    return g->ready;
}

bool guest_is_frozen(const struct guest *g)
{
    return g->ready && g->machine && g->machine->m.frozen;
}

void guest_hold(struct guest *g, bool held)
{
    if (!g->machine)
        return;
    g->machine->m.held = held;
    if (!g->vsock)
        return;
    g->ready = g->ready && !held;
    guest_look(g->machine);
}

void guest_identify(struct guest *g, const struct guest_identity *id, guest_done done, void *arg)
{
    assert(g->ready);
    struct answer *a = ask(g, FAKE_IDENTIFY, g->id);
    if (!a)
        return;
    a->done = done;
    a->arg = arg;
    a->identity = *id;
}

static void ask_guest(struct guest *g, enum fake_call call, guest_done done, void *arg)
{
    struct answer *a = ask(g, call, g->id);
    if (!a)
        return;
    a->done = done;
    a->arg = arg;
    if (!g->ready && !a->err.code)
        (void)error_set(&a->err, ERROR_UNAVAILABLE, "the link is down");
}

void guest_quiesce(struct guest *g, unsigned limit_ms, guest_done done, void *arg)
{
    (void)limit_ms;
    ask_guest(g, FAKE_QUIESCE, done, arg);
}

void guest_sync(struct guest *g, guest_done done, void *arg)
{
    ask_guest(g, FAKE_SYNC, done, arg);
}

void guest_shutdown(struct guest *g, unsigned grace_ms, guest_done done, void *arg)
{
    const struct machine *m = g->machine;
    (void)grace_ms;
    /* What is not on the disk yet gets there in time. */
    assert(!m || (m->m.limits.disk_mib_per_s == 0 && m->m.limits.disk_iops == 0));
    ask_done(g, FAKE_SHUTDOWN, g->id, done, arg);
}
