/* A spaced that has been taken over, at the channel of a real broker: whatever it says, nothing outside its
 * lease is touched, every request has one answer, and the broker goes on. Beside it live another server with
 * a sandbox, and files and a process of the host; they are looked at after each attack. Needs root, QEMU and
 * a kernel in /boot. */
#include "real.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#include "broker/protocol.h"
#include "broker/wire.h"

#define ANSWER_MS 60000
#define OUTSTANDING 3000
#define SEQUENCE 1500

static struct real target;
static struct real bystander;
static char *outside; /* a directory of the host's */
static pid_t decoy;
static pid_t bystander_vmm;
static char foreign_id[ID_SIZE]; /* the bystander's sandbox */
static int channel = -1;
static uint32_t next_id = 1;

/* --- what must not change --- */

struct picture {
    char *text;
    size_t used, size;
};

static void picture_add(struct picture *p, const char *line)
{
    size_t n = strlen(line);
    if (p->used + n + 1 > p->size) {
        p->size = (p->used + n + 1) * 2;
        p->text = realloc(p->text, p->size);
        assert_non_null(p->text);
    }
    memcpy(p->text + p->used, line, n + 1);
    p->used += n;
}

/* What the host changes by itself: the pool's image, whenever its file system is written back. */
static bool holds_still(const struct stat *st, const char *path)
{
    return S_ISREG(st->st_mode) && !strstr(path, "/pool.img");
}

/* Names, kinds, modes, owners and sizes of all below a directory; of files also the time of the last change.
 */
static void picture_tree(struct picture *p, const char *path)
{
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    bool still = holds_still(&st, path);
    AUTO_FREE char *line = str_printf(
        "%s %o %u %u %lld %lld\n", path, st.st_mode, st.st_uid, st.st_gid, still ? (long long)st.st_size : 0,
        still ? (long long)st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec : 0);
    picture_add(p, line);
    if (!S_ISDIR(st.st_mode))
        return;
    struct dirent **names = NULL;
    int n = scandir(path, &names, NULL, alphasort);
    assert_true(n >= 0);
    for (int i = 0; i < n; i++) {
        AUTO_FREE char *below = str_printf("%s/%s", path, names[i]->d_name);
        if (strcmp(names[i]->d_name, ".") != 0 && strcmp(names[i]->d_name, "..") != 0)
            picture_tree(p, below);
        free(names[i]);
    }
    free(names);
}

/* The bystander's directory is looked at through its files; its log and its broker's do not change by
 * themselves. */
static char *take_picture(void)
{
    struct picture p = {0};
    picture_tree(&p, outside);
    picture_tree(&p, bystander.dir);
    return p.text;
}

static char *before;

static unsigned leaked_owners(const char *path)
{
    struct stat st;
    if (lstat(path, &st) < 0)
        return 0;
    uid_t first = target.lease.uid_first;
    unsigned n = st.st_uid != 0 && (st.st_uid < first || st.st_uid - first >= LEASE_BLOCK);
    AUTO_CLOSEDIR DIR *d = S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        AUTO_FREE char *below = str_printf("%s/%s", path, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            n += leaked_owners(below);
    }
    return n;
}

/* The first line in which two pictures differ: all of them is more than a message can hold. */
static void assert_same_picture(const char *was, const char *is)
{
    size_t line = 0;
    size_t n = 0;
    for (; was[n] != '\0' && was[n] == is[n]; n++)
        if (was[n] == '\n')
            line = n + 1;
    if (was[n] != is[n])
        fail_msg("changed outside: %.300s\n--- now: %.300s", was + line, is + line);
}

static void assert_untouched(void)
{
    AUTO_FREE char *after = take_picture();
    assert_same_picture(before, after);
    assert_int_equal(kill(decoy, 0), 0);
    assert_false(real_has_ended(decoy));
    assert_false(real_has_ended(bystander_vmm));
    AUTO_FREE char *pool = str_printf("%s/pool", target.dir);
    assert_int_equal(leaked_owners(pool), 0);
}

/* --- the channel --- */

static void open_channel(void)
{
    struct error err = ERROR_INIT;
    assert_ok(server_start(target.dir, 0, "", &target.lease, &channel, &err), &err);
}

static void close_channel(void)
{
    (void)close(TAKE_FD(channel));
}

static void await(short events)
{
    struct pollfd f = {.fd = channel, .events = events};
    if (poll(&f, 1, ANSWER_MS) != 1)
        fail_msg("the broker does not answer");
}

static void send_frame(const unsigned char *data, size_t n, const int *fds, unsigned fd_count)
{
    await(POLLOUT);
    if (wire_send(channel, data, n, fds, fd_count) < 0)
        fail_msg("the broker has ended: %s", strerror(errno));
}

/* The next answer; its descriptors are closed. */
static void receive(struct reply *r)
{
    static unsigned char data[WIRE_MESSAGE_MAX];
    struct error err = ERROR_INIT;
    int fds[WIRE_FDS_MAX];
    unsigned count = 0;
    await(POLLIN);
    ssize_t n = wire_recv(channel, data, sizeof(data), fds, &count);
    if (n <= 0)
        fail_msg("the broker has ended");
    for (unsigned i = 0; i < count; i++)
        (void)close(fds[i]);
    memset(r, 0, sizeof(*r));
    assert_ok(reply_decode(data, (size_t)n, count, r, &err), &err);
}

/* Sends a frame as it is and takes its answer. Returns the error code, 0 for success. */
static int ask_raw(const unsigned char *data, size_t n, const int *fds, unsigned fd_count)
{
    static struct reply r;
    struct wire_header h = {0};
    send_frame(data, n, fds, fd_count);
    receive(&r);
    (void)wire_decode_header(data, n, &h, NULL);
    assert_int_equal(r.id, h.id);
    return -(int)r.failed;
}

static int ask_with(struct request *q, const int *fds, unsigned fd_count)
{
    static unsigned char data[WIRE_MESSAGE_MAX];
    q->id = next_id++;
    size_t n = request_encode(q, data, sizeof(data));
    assert_true(n > 0);
    return ask_raw(data, n, fds, fd_count);
}

static void assert_serves(void)
{
    struct request *q = calloc(1, sizeof(*q));
    assert_non_null(q);
    q->type = REQUEST_INFO;
    assert_int_equal(ask_with(q, NULL, 0), 0);
    free(q);
}

/* A request of a type with fields that are well-formed, about things that are not there. */
static void fill(struct request *q, unsigned type)
{
    memset(q, 0, sizeof(*q));
    q->type = (uint16_t)type;
    id_new("sb", q->sandbox_id);
    id_new("tp", q->build_id);
    id_new("sn", q->snapshot_id);
    id_new("sn", q->source_id);
    (void)str_copy(q->digest, sizeof(q->digest), REAL_DIGEST);
    (void)str_copy(q->platform, sizeof(q->platform), REAL_DIGEST);
    (void)str_copy(q->key, sizeof(q->key), "no.such.key");
    q->vcpus = 1;
    q->memory_mib = 128;
    q->disk_mib = 64;
    if (type == REQUEST_SANDBOX_PREPARE) {
        q->from = BROKER_FROM_TEMPLATE;
        q->key[0] = q->snapshot_id[0] = '\0';
    }
    if (type == REQUEST_VMM_START) {
        q->boot = BROKER_BOOT_COLD;
        q->key[0] = q->snapshot_id[0] = '\0';
    }
    if (type == REQUEST_TEMPLATE_BUILD)
        q->kind = BROKER_BUILD_TAR;
}

static unsigned fds_wanted(unsigned type)
{
    return type == REQUEST_TEMPLATE_BUILD ? 2 : request_info(type)->fds_min;
}

/* --- fixtures --- */

static void start_bystander(void)
{
    struct answer a;
    real_start(&bystander);
    CALL(&bystander, &a, 60, broker_info, on_info, &a); /* the pool is there */
    assert_answer(&a);
    real_template(&bystander, 32);
    assert_true(real_platform(&bystander));
    id_new("sb", foreign_id);
    CALL(&bystander, &a, 60, broker_sandbox_prepare, foreign_id, BROKER_FROM_TEMPLATE, REAL_DIGEST, 64,
         on_done, &a);
    assert_answer(&a);
    const struct broker_vmm v = {.sandbox_id = foreign_id,
                                 .boot = BROKER_BOOT_COLD,
                                 .platform = REAL_DIGEST,
                                 .vcpus = 1,
                                 .memory_mib = 128};
    CALL(&bystander, &a, 60, broker_vmm_start, &v, on_vmm, &a);
    assert_answer(&a);
    bystander_vmm = a.vmm.pid;
    (void)close(a.vmm.pidfd);
    /* It runs no kernel on: the picture holds still. */
    AUTO_FREE char *path = str_printf("%s/pool/sandboxes/%s/run/qmp.sock", bystander.dir, foreign_id);
    AUTO_CLOSE int fd = unix_connect(path);
    qmp(fd, "", -1, "QMP");
    qmp(fd, "{\"execute\":\"qmp_capabilities\"}", -1, "return");
    qmp(fd, "{\"execute\":\"stop\"}", -1, "STOP");
}

static int setup(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    start_bystander();
    outside = unit_mkdir();
    const char *const names[] = {"secret", "sb_secret", "mem", "disk.raw", "sealed", "manifest"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        AUTO_FREE char *path = str_printf("%s/%s", outside, names[i]);
        assert_ok(fs_write_atomic(AT_FDCWD, path, "the host's", 10, 0640, &err), &err);
    }
    decoy = fork();
    if (decoy == 0) {
        (void)close_range(3, ~0U, 0); /* the channels are among them */
        for (;;)
            (void)pause();
    }
    real_start(&target);
    struct answer a;
    CALL(&target, &a, 60, broker_info, on_info, &a);
    assert_answer(&a);
    real_template(&target, 32);
    assert_true(real_platform(&target));
    real_close(&target);
    open_channel();
    assert_serves();
    before = take_picture();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    close_channel();
    real_open(&target);
    real_stop(&target);
    real_stop(&bystander);
    (void)kill(decoy, SIGKILL);
    (void)proc_wait(decoy);
    assert_ok(fs_remove_tree(AT_FDCWD, outside, &err), &err);
    free(outside);
    free(before);
    return 0;
}

/* --- attacks --- */

static void names_into(struct request *q, const struct wire_field *f, char *const *values, size_t count,
                       const int *fds, unsigned fd_count)
{
    char *member = (char *)q + f->offset;
    char kept[sizeof(q->key)];
    memcpy(kept, member, f->size);
    for (size_t i = 0; i < count; i++) {
        if (strlen(values[i]) >= f->size || f->check(values[i]))
            continue; /* too long to be said; or a name with points, which leads nowhere */
        memset(member, 0, f->size);
        memcpy(member, values[i], strlen(values[i]));
        int rc = ask_with(q, fds, fd_count);
        if (rc != ERROR_INVALID && rc != ERROR_PROTOCOL)
            fail_msg("%s: %s = \"%s\" gave %d", request_info(q->type)->name, f->name, values[i], rc);
    }
    memcpy(member, kept, f->size);
}

/* Every text of every request, with what could leave a directory. */
static void test_names(void **state)
{
    (void)state;
    AUTO_FREE char *up = str_printf("../../..%.100s/secret", outside);
    AUTO_FREE char *absolute = str_printf("%.120s/secret", outside);
    AUTO_FREE char *below = str_printf("%s/../x", foreign_id);
    char *const bad[] = {"..",
                         ".",
                         "/",
                         "../..",
                         "a/b",
                         "sb_/../../etc/passwd",
                         "sn_..",
                         "sb_",
                         "-",
                         "%2e%2e",
                         "\xff\xfe",
                         "a\nb",
                         "sb_AAAAAAAAAAAAAAAAAAAA",
                         "tp_aaaaaaaaaaaaaaaaaaa/",
                         "sb_aaaaaaaaaaaaaaaaaaa.",
                         "~root",
                         "$(id)",
                         "a,b=c",
                         "--help",
                         "0123456789abcdef",
                         up,
                         absolute,
                         below};
    AUTO_CLOSE int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    const int fds[] = {null_fd, null_fd};
    AUTO_FREE struct request *q = calloc(1, sizeof(*q));
    for (unsigned type = 1; type < REQUEST_TYPE_COUNT; type++) {
        fill(q, type);
        for (const struct wire_field *f = request_info(type)->fields; f->name; f++)
            if (f->kind == WIRE_STR)
                names_into(q, f, bad, ARRAY_LEN(bad), fds, fds_wanted(type));
    }
    fill(q, REQUEST_TEMPLATE_BUILD);
    q->kind = BROKER_BUILD_DEBIAN;
    const char *const packages[] = {"--include=x", "a b", "/etc/passwd", "../x", "-o", "a;b", "A", "a=1"};
    for (size_t i = 0; i < ARRAY_LEN(packages); i++) {
        memset(&q->packages, 0, sizeof(q->packages));
        assert_true(wire_list_add(&q->packages, packages[i]));
        assert_int_equal(ask_with(q, fds, 1), ERROR_INVALID);
    }
    assert_untouched();
}

/* A text that ends before its length does, in every text of every request. */
static void test_zero_bytes(void **state)
{
    (void)state;
    static unsigned char data[WIRE_MESSAGE_MAX];
    AUTO_FREE struct request *q = calloc(1, sizeof(*q));
    AUTO_CLOSE int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    const int fds[] = {null_fd, null_fd};
    for (unsigned type = 1; type < REQUEST_TYPE_COUNT; type++)
        for (const struct wire_field *f = request_info(type)->fields; f->name; f++) {
            fill(q, type);
            const char *text = (const char *)q + f->offset;
            if (f->kind != WIRE_STR || strlen(text) < 4)
                continue;
            q->id = next_id++;
            size_t n = request_encode(q, data, sizeof(data));
            unsigned char *at = memmem(data, n, text, strlen(text));
            assert_non_null(at);
            at[strlen(text) - 1] = '\0';
            assert_int_not_equal(ask_raw(data, n, fds, fds_wanted(type)), 0);
        }
    assert_untouched();
}

/* Every number, just beyond its bounds and far. */
static void test_numbers(void **state)
{
    (void)state;
    AUTO_FREE struct request *q = calloc(1, sizeof(*q));
    AUTO_CLOSE int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    const int fds[] = {null_fd, null_fd};
    for (unsigned type = 1; type < REQUEST_TYPE_COUNT; type++)
        for (const struct wire_field *f = request_info(type)->fields; f->name; f++) {
            const uint32_t bad[] = {(uint32_t)f->max + 1, (uint32_t)f->min - 1, UINT32_MAX, 1U << 31};
            for (size_t i = 0; f->kind == WIRE_U32 && i < ARRAY_LEN(bad); i++) {
                if (bad[i] >= f->min && bad[i] <= f->max)
                    continue;
                fill(q, type);
                memcpy((char *)q + f->offset, &bad[i], sizeof(bad[i]));
                int rc = ask_with(q, fds, fds_wanted(type));
                if (rc != ERROR_INVALID)
                    fail_msg("%s: %s = %u gave %d", request_info(type)->name, f->name, bad[i], rc);
            }
        }
    assert_untouched();
}

/* What belongs to another server, or to nobody: known by its name, but not leased here. */
static void test_foreign_ids(void **state)
{
    (void)state;
    AUTO_FREE struct request *q = calloc(1, sizeof(*q));
    const unsigned types[] = {REQUEST_VMM_START,    REQUEST_VMM_ADOPT,      REQUEST_GOLDEN_BEGIN,
                              REQUEST_GOLDEN_SEAL,  REQUEST_SANDBOX_REVERT, REQUEST_SNAPSHOT_BEGIN,
                              REQUEST_SANDBOX_PARK, REQUEST_VMM_KILL,       REQUEST_SANDBOX_REMOVE};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        fill(q, types[i]);
        (void)str_copy(q->sandbox_id, sizeof(q->sandbox_id), foreign_id);
        int rc = ask_with(q, NULL, 0);
        /* To end, or remove, what is not there is done. */
        bool nothing = types[i] == REQUEST_VMM_KILL || types[i] == REQUEST_SANDBOX_REMOVE ||
                       types[i] == REQUEST_SANDBOX_PARK;
        if (nothing ? rc != 0 && rc != ERROR_NOT_FOUND : rc == 0)
            fail_msg("%s of a foreign sandbox gave %d", request_info(types[i])->name, rc);
    }
    assert_untouched();
}

/* Steps in an order that no flow has. */
static void test_order(void **state)
{
    (void)state;
    AUTO_FREE struct request *q = calloc(1, sizeof(*q));
    char id[ID_SIZE];
    char snapshot[ID_SIZE];
    id_new("sb", id);
    id_new("sn", snapshot);
    const struct {
        unsigned type;
        bool succeeds;
    } steps[] = {
        {REQUEST_VMM_START, false},      {REQUEST_GOLDEN_SEAL, false},      {REQUEST_SNAPSHOT_CAPTURE, false},
        {REQUEST_SNAPSHOT_SEAL, false},  {REQUEST_SANDBOX_PREPARE, true},   {REQUEST_SANDBOX_PREPARE, true},
        {REQUEST_GOLDEN_SEAL, false},    {REQUEST_SNAPSHOT_CAPTURE, false}, {REQUEST_SNAPSHOT_SEAL, false},
        {REQUEST_SANDBOX_REVERT, false}, {REQUEST_SNAPSHOT_BEGIN, false},   {REQUEST_VMM_START, true},
        {REQUEST_VMM_START, false},      {REQUEST_SNAPSHOT_SEAL, false},    {REQUEST_SNAPSHOT_PACK, false},
        {REQUEST_SNAPSHOT_CHECK, false}, {REQUEST_SNAPSHOT_BEGIN, true},    {REQUEST_SNAPSHOT_CHECK, false},
        {REQUEST_SNAPSHOT_SEAL, false},  {REQUEST_VMM_KILL, true},          {REQUEST_SANDBOX_REMOVE, true},
        {REQUEST_SANDBOX_REMOVE, true},  {REQUEST_SNAPSHOT_CAPTURE, false}, {REQUEST_SNAPSHOT_REMOVE, true},
    };
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        fill(q, steps[i].type);
        (void)str_copy(q->sandbox_id, sizeof(q->sandbox_id), id);
        if (steps[i].type != REQUEST_SANDBOX_PREPARE && steps[i].type != REQUEST_VMM_START)
            (void)str_copy(q->snapshot_id, sizeof(q->snapshot_id), snapshot);
        q->kind = BROKER_SNAPSHOT_FULL;
        int rc = ask_with(q, NULL, 0);
        if ((rc == 0) != steps[i].succeeds)
            fail_msg("step %zu, %s, gave %d", i, request_info(steps[i].type)->name, rc);
    }
    assert_untouched();
}

/* --- descriptors --- */

static unsigned broker_fds(void)
{
    AUTO_FREE char *path = str_printf("/proc/%d/fd", (int)real_broker_pid(&target));
    AUTO_CLOSEDIR DIR *d = opendir(path);
    assert_non_null(d);
    unsigned n = 0;
    while (readdir(d))
        n++;
    return n;
}

static void test_descriptors_nobody_asked_for(void **state)
{
    (void)state;
    AUTO_FREE struct request *q = calloc(1, sizeof(*q));
    assert_serves();
    unsigned had = broker_fds();
    const int own[] = {channel, channel};
    for (int round = 0; round < 100; round++)
        for (unsigned type = 1; type < REQUEST_TYPE_COUNT; type++) {
            fill(q, type);
            unsigned count = type == REQUEST_TEMPLATE_BUILD ? 0 : 1 + (unsigned)round % 2;
            int rc = ask_with(q, own, count);
            if (rc != ERROR_PROTOCOL)
                fail_msg("%s with %u descriptors gave %d", request_info(type)->name, count, rc);
        }
    assert_int_equal(broker_fds(), had);
    assert_untouched();
}

static int sealed_memory(void)
{
    int fd = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) == 0);
    return fd;
}

/* Where a log and an archive are expected, everything else that a descriptor can be. The build fails; what it
 * was given is not written, and nothing of it stays. */
static void test_descriptors_of_the_wrong_kind(void **state)
{
    (void)state;
    AUTO_FREE struct request *q = calloc(1, sizeof(*q));
    AUTO_FREE char *secret = str_printf("%s/secret", outside);
    int pair[2];
    int pipe_fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    (void)close(pair[1]);
    (void)close(pipe_fds[0]); /* a log whose reader has gone */
    const int kinds[] = {pair[0],
                         pipe_fds[1],
                         channel,
                         sealed_memory(),
                         open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                         open(secret, O_PATH | O_CLOEXEC),
                         open(secret, O_RDONLY | O_CLOEXEC),
                         open("/proc/self/mem", O_RDONLY | O_CLOEXEC),
                         (int)syscall(SYS_pidfd_open, getpid(), 0)};
    AUTO_CLOSE int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_serves();
    unsigned had = broker_fds();
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        for (int as_log = 0; as_log < 2; as_log++) {
            if (kinds[i] == channel && !as_log)
                continue; /* an archive that is read as messages: its own end would eat the answer */
            fill(q, REQUEST_TEMPLATE_BUILD);
            const int fds[] = {as_log ? kinds[i] : null_fd, as_log ? null_fd : kinds[i]};
            int rc = ask_with(q, fds, 2);
            if (rc == 0)
                fail_msg("descriptor %zu as %s made a template", i, as_log ? "log" : "archive");
        }
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (kinds[i] != channel)
            (void)close(kinds[i]);
    assert_serves();
    assert_int_equal(broker_fds(), had);
    assert_int_equal(real_entries(&target, "pool/building"), 0);
    assert_untouched();
}

/* --- floods --- */

/* Requests without an end, and answers that nobody takes: the broker stops to read, does not grow, and
 * answers each once when it is let. */
static void test_flood(void **state)
{
    (void)state;
    static unsigned char data[WIRE_MESSAGE_MAX];
    static bool answered[OUTSTANDING];
    AUTO_FREE struct request *q = calloc(1, sizeof(*q));
    AUTO_FREE struct reply *r = calloc(1, sizeof(*r));
    uint32_t first = next_id;
    unsigned sent = 0;
    unsigned got = 0;
    memset(answered, 0, sizeof(answered));
    while (got < OUTSTANDING) {
        struct pollfd f = {.fd = channel, .events = (short)(POLLOUT | (sent == OUTSTANDING ? POLLIN : 0))};
        if (sent < OUTSTANDING && poll(&f, 1, 1000) == 1 && (f.revents & POLLOUT)) {
            fill(q, sent % 3 == 0 ? REQUEST_INFO : sent % 3 == 1 ? REQUEST_GOLDEN_HAS : REQUEST_SANDBOX_LIST);
            q->after[0] = '\0';
            q->id = next_id++;
            size_t n = request_encode(q, data, sizeof(data));
            assert_int_equal(wire_send(channel, data, n, NULL, 0), 0);
            sent++;
            continue;
        }
        receive(r);
        assert_true(r->id >= first && r->id - first < OUTSTANDING && !answered[r->id - first]);
        answered[r->id - first] = true;
        got++;
    }
    AUTO_FREE char *path = str_printf("/proc/%d/status", (int)real_broker_pid(&target));
    AUTO_FREE char *text = NULL;
    size_t n;
    struct error err = ERROR_INIT;
    assert_ok(fs_read_file(AT_FDCWD, path, 65536, &text, &n, &err), &err);
    long kib = strtol(strstr(text, "VmHWM:") + 6, NULL, 10);
    print_message("the broker had %ld KiB at most\n", kib);
#if !defined(__SANITIZE_ADDRESS__)
    assert_true(kib < 300 * 1024);
#endif
    assert_untouched();
}

/* The same id for many: each is answered, and no state of the one is the other's. */
static void test_replayed_ids(void **state)
{
    (void)state;
    static unsigned char data[WIRE_MESSAGE_MAX];
    AUTO_FREE struct request *q = calloc(1, sizeof(*q));
    AUTO_FREE struct reply *r = calloc(1, sizeof(*r));
    fill(q, REQUEST_SANDBOX_PREPARE);
    q->id = 77;
    size_t n = request_encode(q, data, sizeof(data));
    for (int i = 0; i < 50; i++)
        send_frame(data, n, NULL, 0);
    for (int i = 0; i < 50; i++) {
        receive(r);
        assert_int_equal(r->id, 77);
        assert_int_equal(r->failed, 0);
    }
    q->type = REQUEST_SANDBOX_REMOVE;
    assert_int_equal(ask_with(q, NULL, 0), 0);
    assert_untouched();
}

/* --- sequences --- */

struct pools {
    char sandboxes[3][ID_SIZE], snapshots[3][ID_SIZE];
};

/* A well-formed request about one of a few things, so that it meets what others have left. */
static void draw(struct request *q, const struct pools *p, unsigned *seed)
{
    static const char *const keys[] = {"first.key", "second.key"};
    unsigned type = 1 + (unsigned)rand_r(seed) % (REQUEST_TYPE_COUNT - 1);
    if (type == REQUEST_TEMPLATE_BUILD || type == REQUEST_TEMPLATE_REMOVE)
        type = REQUEST_VMM_START;
    fill(q, type);
    (void)str_copy(q->sandbox_id, ID_SIZE, p->sandboxes[rand_r(seed) % 3]);
    (void)str_copy(q->source_id, ID_SIZE, p->snapshots[rand_r(seed) % 3]);
    if (q->snapshot_id[0] != '\0')
        (void)str_copy(q->snapshot_id, ID_SIZE, p->snapshots[rand_r(seed) % 3]);
    if (q->key[0] != '\0')
        (void)str_copy(q->key, sizeof(q->key), keys[rand_r(seed) % 2]);
    q->kind = type == REQUEST_VMM_START ? 0 : (uint32_t)rand_r(seed) % 2;
    q->go_on = (uint32_t)rand_r(seed) % 2;
    q->memory_mib = rand_r(seed) % 8 ? 64 : 96;
    if (type == REQUEST_SANDBOX_PREPARE || type == REQUEST_VMM_START) {
        unsigned kind = (unsigned)rand_r(seed) % 4;
        q->digest[0] = q->key[0] = q->snapshot_id[0] = '\0';
        q->from = kind % 3;
        q->boot = kind;
        bool golden = type == REQUEST_VMM_START ? kind == BROKER_BOOT_GOLDEN || kind == BROKER_BOOT_RESTORE
                                                : q->from == BROKER_FROM_GOLDEN;
        bool snapshot =
            type == REQUEST_VMM_START ? kind == BROKER_BOOT_SNAPSHOT : q->from == BROKER_FROM_SNAPSHOT;
        if (golden)
            (void)str_copy(q->key, sizeof(q->key), keys[rand_r(seed) % 2]);
        else if (snapshot)
            (void)str_copy(q->snapshot_id, ID_SIZE, p->snapshots[rand_r(seed) % 3]);
        if (type == REQUEST_SANDBOX_PREPARE && q->from == BROKER_FROM_TEMPLATE)
            (void)str_copy(q->digest, sizeof(q->digest), REAL_DIGEST);
    }
}

/* Several at a time in any order: each is answered once with its own id, nothing outside is touched, and
 * afterwards everything can be removed. */
static void test_sequences(void **state)
{
    (void)state;
    static unsigned char data[WIRE_MESSAGE_MAX];
    AUTO_FREE struct request *q = calloc(1, sizeof(*q));
    AUTO_FREE struct reply *r = calloc(1, sizeof(*r));
    const char *text = getenv("SPACE_SEED");
    unsigned seed = text ? (unsigned)strtoul(text, NULL, 10) : 20261130U;
    struct pools p;
    for (int i = 0; i < 3; i++) {
        id_new("sb", p.sandboxes[i]);
        id_new("sn", p.snapshots[i]);
    }
    unsigned ok[REQUEST_TYPE_COUNT] = {0};
    const char *length = getenv("SPACE_SEQUENCE");
    for (long i = 0, end = length ? strtol(length, NULL, 10) : SEQUENCE; i < end;) {
        unsigned burst = 1 + (unsigned)rand_r(&seed) % 6;
        for (unsigned k = 0; k < burst; k++) {
            draw(q, &p, &seed);
            q->id = next_id++;
            size_t n = request_encode(q, data, sizeof(data));
            assert_true(n > 0);
            send_frame(data, n, NULL, 0);
        }
        for (unsigned k = 0; k < burst; k++, i++) {
            receive(r);
            assert_true(next_id - r->id <= burst);
            ok[r->type % REQUEST_TYPE_COUNT] += r->failed == 0;
        }
    }
    /* It was no series of refusals. */
    for (unsigned type = 1; type < REQUEST_TYPE_COUNT; type++)
        print_message("%-16s %u\n", request_info(type)->name, ok[type]);
    assert_true(ok[REQUEST_SANDBOX_PREPARE] > 10 && ok[REQUEST_VMM_START] > 5 &&
                ok[REQUEST_SNAPSHOT_BEGIN] > 0 && ok[REQUEST_SNAPSHOT_SEAL] > 0 &&
                ok[REQUEST_GOLDEN_BEGIN] > 0);
    assert_untouched();
    for (int i = 0; i < 3; i++) {
        fill(q, REQUEST_SNAPSHOT_REMOVE);
        (void)str_copy(q->snapshot_id, ID_SIZE, p.snapshots[i]);
        assert_int_equal(ask_with(q, NULL, 0), 0);
        fill(q, REQUEST_SANDBOX_REMOVE);
        (void)str_copy(q->sandbox_id, ID_SIZE, p.sandboxes[i]);
        assert_int_equal(ask_with(q, NULL, 0), 0);
        fill(q, REQUEST_GOLDEN_REMOVE);
        (void)str_copy(q->key, sizeof(q->key), i ? "first.key" : "second.key");
        assert_int_equal(ask_with(q, NULL, 0), 0);
    }
    real_assert_clean(&target);
}

/* The channel closes while requests of every kind are under way; the next broker finds a state it can remove.
 */
static void test_closing_in_the_middle(void **state)
{
    (void)state;
    static unsigned char data[WIRE_MESSAGE_MAX];
    AUTO_FREE struct request *q = calloc(1, sizeof(*q));
    unsigned seed = 99;
    struct pools p;
    for (int i = 0; i < 3; i++) {
        id_new("sb", p.sandboxes[i]);
        id_new("sn", p.snapshots[i]);
    }
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 40; i++) {
            draw(q, &p, &seed);
            q->id = next_id++;
            size_t n = request_encode(q, data, sizeof(data));
            send_frame(data, n, NULL, 0);
        }
        close_channel();
        open_channel();
        assert_serves();
    }
    for (int i = 0; i < 3; i++) {
        fill(q, REQUEST_SANDBOX_REMOVE);
        (void)str_copy(q->sandbox_id, ID_SIZE, p.sandboxes[i]);
        assert_int_equal(ask_with(q, NULL, 0), 0);
        fill(q, REQUEST_SNAPSHOT_REMOVE);
        (void)str_copy(q->snapshot_id, ID_SIZE, p.snapshots[i]);
        assert_int_equal(ask_with(q, NULL, 0), 0);
    }
    real_assert_clean(&target);
    assert_untouched();
}

int main(void)
{
    if (geteuid() != 0)
        return REAL_SKIP;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_zero_bytes),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_foreign_ids),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_descriptors_nobody_asked_for),
        cmocka_unit_test(test_descriptors_of_the_wrong_kind),
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_replayed_ids),
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_closing_in_the_middle),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
