#include "unit.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "fake_broker.h"
#include "fc_server.h"
#include "proto/proto.h"
#include "vm/firecracker.h"
#include "vm/firecracker_version.h"

struct fixture {
    struct loop *loop;
    char *dir;
    struct broker *broker;
    struct vm_engine *engine;
    struct vm *vm;
    struct fc_server server;
    int process[2]; /* stands for the VMM's pidfd: readable once the other end is closed */
    int state_fd;
    unsigned dones, exits;
    int code;
    char text[ERROR_MESSAGE_MAX];
    char why[300];
    const char *order; /* what of the two the VMM ends at */
};

static void on_exited(void *arg, const char *why)
{
    struct fixture *f = arg;
    f->exits++;
    (void)snprintf(f->why, sizeof(f->why), "%s", why);
}

static const struct vm_events events = {.exited = on_exited};

static void on_done(void *arg, const struct error *err)
{
    struct fixture *f = arg;
    f->dones++;
    f->code = err ? err->code : 0;
    (void)snprintf(f->text, sizeof(f->text), "%s", err ? err->message : "");
}

static void on_console(void *arg, const struct error *err, const char *text)
{
    struct fixture *f = arg;
    f->dones++;
    f->code = err ? err->code : 0;
    (void)snprintf(f->text, sizeof(f->text), "%s", err ? err->message : text);
}

static void put_file(const struct fixture *f, const char *name, const void *data, size_t n)
{
    char path[200];
    (void)snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), n);
    (void)close(fd);
}

static void remove_file(const struct fixture *f, const char *name)
{
    char path[200];
    (void)snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    (void)unlink(path);
}

/* A program that says what Firecracker says. */
static void put_program(const struct fixture *f, const char *version)
{
    char text[200];
    char path[200];
    int n =
        snprintf(text, sizeof(text), "#!/bin/sh\necho 'Firecracker v%s'\necho\necho 'exiting'\n", version);
    put_file(f, "firecracker", text, (size_t)n);
    (void)snprintf(path, sizeof(path), "%s/firecracker", f->dir);
    assert_int_equal(chmod(path, 0755), 0);
}

static int make_engine(struct fixture *f, const char *version, struct error *err)
{
    char path[200];
    put_program(f, version);
    (void)snprintf(path, sizeof(path), "%s/firecracker", f->dir);
    const struct vm_engine_config config = {
        .choice = VM_ENGINE_FIRECRACKER, .kvm_works = true, .kvm_why = "a guest ran", .firecracker = path};
    return vm_engine_create(f->loop, f->broker, &config, &f->engine, err);
}

static int setup(void **state)
{
    struct error err = ERROR_INIT;
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->dir = unit_mkdir();
    f->state_fd = open(f->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    assert_true(f->state_fd >= 0);
    assert_int_equal(pipe2(f->process, O_CLOEXEC), 0);
    assert_int_equal(loop_create(&f->loop, NULL), 0);
    f->broker = fake_broker_create(f->loop, f->dir);
    assert_ok(make_engine(f, "1.16.1", &err), &err);
    fc_server_start(&f->server, f->loop, f->dir);
    f->server.arg = f;
    *state = f;
    return 0;
}

static void end_process(struct fixture *f)
{
    if (f->process[1] >= 0)
        (void)close(f->process[1]);
    f->process[1] = -1;
}

static int teardown(void **state)
{
    static const char *const files[] = {"firecracker", "api.sock",   "state",
                                        "vmm.log",     "other.sock", "metrics"};
    struct fixture *f = *state;
    vm_destroy(f->vm);
    vm_engine_destroy(f->engine);
    fc_server_stop(&f->server);
    fake_broker_destroy(f->broker);
    end_process(f);
    (void)close(f->process[0]);
    (void)close(f->state_fd);
    loop_destroy(f->loop);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        remove_file(f, files[i]);
    assert_int_equal(rmdir(f->dir), 0);
    free(f->dir);
    free(f);
    return 0;
}

static void wait_for(struct fixture *f, const unsigned *counter, unsigned value)
{
    for (int i = 0; i < 800 && *counter < value; i++)
        loop_turn(f->loop, 5);
    assert_int_equal(*counter, value);
}

/* One call's answer: 0 or its error code. Checks that it does not come from inside the call. */
#define CALL(f, call)                            \
    ({                                           \
        unsigned before_ = (f)->dones;           \
        call;                                    \
        assert_int_equal((f)->dones, before_);   \
        wait_for((f), &(f)->dones, before_ + 1); \
        (f)->code;                               \
    })

static void on_kill(void *arg)
{
    end_process(arg);
}

static void use(struct fixture *f, enum vm_boot boot)
{
    struct vm_spec spec = {.boot = boot, .shape = {.vcpus = 2, .memory_mib = 256, .disk_mib = 512}};
    id_new("sb", spec.sandbox_id);
    id_new("sn", spec.snapshot_id);
    (void)snprintf(spec.golden_key, sizeof(spec.golden_key), "key");
    memset(spec.platform, 'a', sizeof(spec.platform) - 1);
    fake_broker_firecracker(f->broker, f->dir, f->process[0], on_kill, f);
    assert_int_equal(vm_create(f->engine, &spec, &events, f, &f->vm, NULL), 0);
}

/* Bit by bit, as the checksum is defined. */
static uint64_t crc64(const unsigned char *p, size_t n)
{
    uint64_t crc = 0;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x95ac9329ac4bc9b5ULL : crc >> 1;
    }
    return crc;
}

static size_t make_state(unsigned char to[264])
{
    for (unsigned i = 0; i < 256; i++)
        to[i] = (unsigned char)(i * 7);
    uint64_t crc = crc64(to, 256);
    memcpy(to + 256, &crc, sizeof(crc));
    return 264;
}

/* The VMM as it is asked for its state: the file is there when it answers. */
static void write_state(struct fc_server *s, const char *request)
{
    unsigned char data[264];
    if (strcmp(request, "PUT /snapshot/create") == 0)
        put_file(s->arg, "state", data, make_state(data));
}

/* --- its parts --- */

static void test_versions(void **state)
{
    static const char *const good[] = {"1.12.0", "1.12", "1.16.1", "2.0.0"},
                             *const old[] = {"1.11.9", "0.25.2"},
                             *const bad[] = {"1.13.1", "1.12.0", "1.14.0"},
                             *const fixed[] = {"1.13.2", "1.14.1", "1.16.1"};
    (void)state;
    for (unsigned i = 0; i < 4; i++)
        assert_true(firecracker_is_usable(good[i]));
    for (unsigned i = 0; i < 2; i++)
        assert_false(firecracker_is_usable(old[i]));
    for (unsigned i = 0; i < 3; i++) {
        assert_true(firecracker_has_bad_jailer(bad[i]));
        assert_false(firecracker_has_bad_jailer(fixed[i]));
    }
}

static void test_answers(void **state)
{
    static const char whole[] = "HTTP/1.1 400 \r\nServer: x\r\ncontent-length: 3\r\n\r\nabcd";
    static const char *const none[] = {
        "HTTP/1.0 200 OK\r\n\r\n",
        "hello",
        "HTTP/1.1 2x0 OK\r\n\r\n",
        "HTTP/1.1 \r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999999\r\n\r\n",
    };
    struct fc_answer a = {0};
    (void)state;
    size_t n = sizeof(whole) - 1;
    for (size_t i = 0; i < n - 1; i++)
        assert_int_equal(fc_answer_parse(whole, i, &a), 0);
    assert_int_equal(fc_answer_parse(whole, n - 1, &a), n - 1);
    assert_int_equal(fc_answer_parse(whole, n, &a), n - 1);
    assert_int_equal(a.status, 400);
    assert_int_equal(a.body_len, 3);
    assert_memory_equal(a.body, "abc", 3);
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        assert_int_equal(fc_answer_parse(none[i], strlen(none[i]), &a), -1);
    static char endless[70000];
    memset(endless, 'x', sizeof(endless));
    memcpy(endless, "HTTP/1.1 200 ", 13);
    assert_int_equal(fc_answer_parse(endless, sizeof(endless), &a), -1);
}

static void test_state_is_whole(void **state)
{
    unsigned char data[264];
    unsigned char known[24];
    const uint64_t sum = 0x29d5357216326566ULL; /* of sixteen times 123 */
    (void)state;
    memset(known, 123, 16);
    memcpy(known + 16, &sum, sizeof(sum));
    assert_true(fc_state_is_whole(known, sizeof(known)));
    size_t n = make_state(data);
    assert_true(fc_state_is_whole(data, n));
    assert_false(fc_state_is_whole(data, n - 1));
    data[100] ^= 1;
    assert_false(fc_state_is_whole(data, n));
    assert_false(fc_state_is_whole(data, 0));
}

static void test_new_console_text(void **state)
{
    char old[200];
    char text[400];
    (void)state;
    assert_string_equal(fc_console_new(NULL, 0, "abc", 3), "abc");
    assert_string_equal(fc_console_new("ab", 2, "abc", 3), "c");
    assert_string_equal(fc_console_new("abc", 3, "abc", 3), "");
    for (int i = 0; i < 199; i++)
        old[i] = (char)('a' + i % 23 + (i / 23) % 3);
    old[199] = '\0';
    (void)snprintf(text, sizeof(text), "%s and more", old + 100); /* its beginning is gone */
    assert_string_equal(fc_console_new(old, 199, text, strlen(text)), " and more");
    assert_string_equal(fc_console_new(old, 199, "another", 7), "another");
}

/* --- the engine --- */

static void test_engine_tells_about_itself(void **state)
{
    struct fixture *f = *state;
    struct error err = ERROR_INIT;
    struct vm_compat c;
    const struct vm_engine_info *info = vm_engine_info(f->engine);
    assert_string_equal(info->name, "firecracker");
    assert_string_equal(info->acceleration, "kvm");
    assert_string_equal(info->version, "1.16.1");
    assert_int_equal(info->memory_max_mib, 3072);
    vm_engine_compat(f->engine, &c);
    assert_int_equal(strlen(c.layout), 8);
    struct vm_compat qemu = c;
    (void)snprintf(qemu.engine, sizeof(qemu.engine), "qemu");
    assert_int_equal(vm_compat_check(&qemu, &c, &err), ERROR_INCOMPATIBLE);
    assert_non_null(strstr(err.message, "qemu"));
    vm_engine_destroy(f->engine);
    f->engine = NULL;
    assert_int_equal(make_engine(f, "1.11.2", &err), ERROR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "1.11.2"));
    assert_non_null(strstr(err.message, "1.12"));
}

static void test_cold_boot(void **state)
{
    struct fixture *f = *state;
    use(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, on_done, f)), 0);
    static const char *const order[] = {"GET /version",     "PUT /machine-config", "PUT /boot-source",
                                        "PUT /drives/root", "PUT /vsock",          "PUT /entropy",
                                        "PUT /actions"};
    assert_int_equal(f->server.count, 7);
    for (unsigned i = 0; i < 7; i++)
        assert_string_equal(f->server.requests[i], order[i]);
    const struct broker_vmm *asked = fake_broker_last_vmm(f->broker);
    assert_int_equal(asked->kind, BROKER_VMM_FIRECRACKER);
    assert_true(asked->kvm);
    assert_string_equal(fc_server_body(&f->server, "PUT /machine-config"),
                        "{\"vcpu_count\":2,\"mem_size_mib\":256}");
    char port[40];
    (void)snprintf(port, sizeof(port), "space.vsock=%d\"", PROTO_VSOCK_PORT);
    assert_non_null(strstr(fc_server_body(&f->server, "PUT /boot-source"), port));
    assert_true(vm_is_running(f->vm));
    assert_int_equal(vm_agent_port(f->vm), PROTO_VSOCK_PORT);
    assert_int_equal(strncmp(vm_agent_socket(f->vm), "/proc/self/fd/", 14), 0);
}

static void test_refused_step_ends_the_vmm(void **state)
{
    struct fixture *f = *state;
    use(f, VM_BOOT_COLD);
    f->server.refuse = "PUT /drives/root";
    assert_int_equal(CALL(f, vm_launch(f->vm, on_done, f)), ERROR_UNAVAILABLE);
    assert_non_null(strstr(f->text, "no such luck"));
    assert_int_equal(fc_server_got(&f->server, "PUT /actions"), 0);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 1);
}

static void test_replaced_program(void **state)
{
    struct fixture *f = *state;
    use(f, VM_BOOT_COLD);
    f->server.version = "1.17.0";
    assert_int_equal(CALL(f, vm_launch(f->vm, on_done, f)), ERROR_CONFLICT);
    assert_non_null(strstr(f->text, "restart spaced"));
}

static void test_too_much_memory(void **state)
{
    struct fixture *f = *state;
    struct vm_spec spec = {.boot = VM_BOOT_COLD, .shape = {.vcpus = 1, .memory_mib = 4096, .disk_mib = 64}};
    id_new("sb", spec.sandbox_id);
    assert_int_equal(vm_create(f->engine, &spec, &events, f, &f->vm, NULL), 0);
    assert_int_equal(CALL(f, vm_launch(f->vm, on_done, f)), ERROR_UNSUPPORTED);
    assert_int_equal(fake_broker_count(f->broker, "vmm_start"), 0);
}

static const struct vm_limits slow = {.disk_mib_per_s = 3, .disk_iops = 70};

static void test_limits(void **state)
{
    struct fixture *f = *state;
    use(f, VM_BOOT_RESTORE);
    f->server.on_request = write_state;
    vm_limit(f->vm, &slow);
    assert_int_equal(CALL(f, vm_launch(f->vm, on_done, f)), 0);
    assert_int_equal(CALL(f, vm_load(f->vm, f->state_fd, on_done, f)), 0);
    assert_int_equal(fc_server_got(&f->server, "PATCH /drives/root"), 0);
    f->server.refuse = "PATCH /drives/root";
    assert_int_equal(CALL(f, vm_resume(f->vm, on_done, f)), ERROR_UNAVAILABLE);
    assert_int_equal(fc_server_got(&f->server, "PATCH /vm"), 0);
    f->server.refuse = NULL;
    assert_int_equal(CALL(f, vm_resume(f->vm, on_done, f)), 0);
    assert_string_equal(fc_server_body(&f->server, "PATCH /drives/root"),
                        "{\"drive_id\":\"root\",\"rate_limiter\":{\"bandwidth\":{\"size\":3145728,"
                        "\"refill_time\":1000},\"ops\":{\"size\":70,\"refill_time\":1000}}}");
    assert_int_equal(fc_server_got(&f->server, "PATCH /vm"), 1);
}

static void test_one_limit_only(void **state)
{
    struct fixture *f = *state;
    const struct vm_limits only = {.disk_iops = 10};
    use(f, VM_BOOT_COLD);
    vm_limit(f->vm, &only);
    assert_int_equal(CALL(f, vm_launch(f->vm, on_done, f)), 0);
    assert_string_equal(
        fc_server_body(&f->server, "PATCH /drives/root"),
        "{\"drive_id\":\"root\",\"rate_limiter\":{\"bandwidth\":{\"size\":0,\"refill_time\":0},"
        "\"ops\":{\"size\":10,\"refill_time\":1000}}}");
}

static void test_hanging_up_while_it_is_limited_ends_the_vmm(void **state)
{
    struct fixture *f = *state;
    use(f, VM_BOOT_COLD);
    vm_limit(f->vm, &slow);
    f->server.hangs_up = "PATCH /drives/root";
    assert_int_equal(CALL(f, vm_launch(f->vm, on_done, f)), ERROR_GONE);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 1);
    assert_int_equal(f->exits, 1);
}

static void start_restored(struct fixture *f)
{
    use(f, VM_BOOT_RESTORE);
    f->server.on_request = write_state;
    assert_int_equal(CALL(f, vm_launch(f->vm, on_done, f)), 0);
    assert_int_equal(CALL(f, vm_load(f->vm, f->state_fd, on_done, f)), 0);
    assert_non_null(strstr(fc_server_body(&f->server, "PUT /snapshot/load"), "\"resume_vm\":false"));
    assert_int_equal(CALL(f, vm_resume(f->vm, on_done, f)), 0);
}

static void test_lines_of_counters(void **state)
{
    static const char line[] =
        "{\"utc_timestamp_ms\": 1, \"api_server\": {\"process_startup_time_us\": 4}, \"block\": "
        "{\"read_bytes\": 1, "
        "\"write_bytes\": 2, \"read_count\": 3, \"write_count\": 4, \"rate_limiter_throttled_events\": 5, "
        "\"read_agg\": {\"min_us\": 7}}, \"vcpu\": {\"exit_io_in\": 10, \"exit_io_out\": 20, "
        "\"exit_mmio_read\": 30, \"exit_mmio_write\": 40}, \"vsock\": {\"rx_bytes_count\": 8, "
        "\"tx_bytes_count\": 9}, \"logger\": {\"missed_metrics_count\": 1}}";
    static const char *const bad[] = {"",
                                      "{",
                                      "[]",
                                      "7",
                                      "\"x\"",
                                      "{\"block\":{\"read_bytes\":-1}}",
                                      "{\"block\":{\"read_bytes\":1e3}}",
                                      "{\"vcpu\":{\"exit_io_in\":1125899906842625}}",
                                      "{\"vsock\":{\"rx_bytes_count\":null}}",
                                      "{\"block\":{\"read_bytes\":1},\"block\":{\"read_bytes\":1}}",
                                      "{} {}"};
    struct vm_counters c;
    (void)state;
    assert_true(fc_metrics_parse(line, sizeof(line) - 1, &c));
    const struct vm_counters all = {.disk_read_bytes = 1,
                                    .disk_written_bytes = 2,
                                    .disk_reads = 3,
                                    .disk_writes = 4,
                                    .disk_held_back = 5,
                                    .exits = 100,
                                    .socket_in_bytes = 8,
                                    .socket_out_bytes = 9,
                                    .lost = 1};
    assert_memory_equal(&c, &all, sizeof(c));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (fc_metrics_parse(bad[i], strlen(bad[i]), &c))
            fail_msg("taken for counters: %s", bad[i]);
    assert_true(fc_metrics_parse("{\"block\":{}}", 12, &c)); /* of another version */
    assert_int_equal(c.disk_reads, 0);
}

static void make_pipe(struct fixture *f, int *ret_writer)
{
    char path[200];
    (void)snprintf(path, sizeof(path), "%s/metrics", f->dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    *ret_writer = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    assert_true(*ret_writer >= 0);
}

/* Pauses a VM that runs, which has it counted, and waits until it was. */
static void counted(struct fixture *f, struct vm_counters *ret)
{
    unsigned asked = fc_server_got(&f->server, "PUT /actions");
    assert_int_equal(CALL(f, vm_pause(f->vm, on_done, f)), 0);
    for (int i = 0; i < 400 && fc_server_got(&f->server, "PUT /actions") == asked; i++)
        loop_turn(f->loop, 5);
    for (int i = 0; i < 10; i++)
        loop_turn(f->loop, 5);
    vm_engine_counters(f->engine, ret);
}

static void say(int writer, const char *text)
{
    assert_int_equal(write(writer, text, strlen(text)), (ssize_t)strlen(text));
}

static void test_counters_through_the_pipe(void **state)
{
    struct fixture *f = *state;
    struct vm_counters c;
    int writer;
    make_pipe(f, &writer);
    start_restored(f);
    say(writer, "{\"block\":{\"read_count\":3}}\n{\"block\":{\"read_count\":4}}\n{\"block\":{\"re");
    counted(f, &c);
    assert_string_equal(fc_server_body(&f->server, "PUT /actions"), "{\"action_type\":\"FlushMetrics\"}");
    assert_int_equal(c.disk_reads, 7);
    assert_int_equal(c.lost, 0);
    /* The rest of the line, one that is none, and one at the VMM's end. */
    assert_int_equal(CALL(f, vm_resume(f->vm, on_done, f)), 0);
    say(writer, "ad_count\":10}}\nnonsense\n");
    counted(f, &c);
    assert_int_equal(c.disk_reads, 17);
    assert_int_equal(c.lost, 1);
    say(writer, "{\"block\":{\"read_count\":100}}\n");
    vm_destroy(f->vm);
    f->vm = NULL;
    vm_engine_counters(f->engine, &c);
    assert_int_equal(c.disk_reads, 117);
    (void)close(writer);
}

/* A VMM may write what it likes: it is read in bounds, and the daemon goes on. */
static void test_a_flood_in_the_pipe(void **state)
{
    static char block[4096];
    struct fixture *f = *state;
    struct vm_counters c;
    int writer;
    make_pipe(f, &writer);
    start_restored(f);
    memset(block, 'x', sizeof(block));
    while (write(writer, block, sizeof(block)) > 0)
        ;
    counted(f, &c);
    assert_int_equal(c.disk_reads, 0);
    assert_int_equal(CALL(f, vm_resume(f->vm, on_done, f)), 0);
    say(writer, "\n{\"block\":{\"read_count\":5}}\n");
    counted(f, &c);
    assert_int_equal(c.disk_reads, 5);
    (void)close(writer);
}

static void test_what_is_no_pipe_is_not_read(void **state)
{
    struct fixture *f = *state;
    struct vm_counters c;
    static const char line[] = "{\"block\":{\"read_count\":5}}\n";
    put_file(f, "metrics", line, sizeof(line) - 1);
    start_restored(f);
    assert_int_equal(CALL(f, vm_pause(f->vm, on_done, f)), 0);
    for (int i = 0; i < 10; i++)
        loop_turn(f->loop, 5);
    assert_int_equal(fc_server_got(&f->server, "PUT /actions"), 0);
    vm_engine_counters(f->engine, &c);
    assert_int_equal(c.disk_reads, 0);
}

static void test_a_pause_is_followed_by_a_reset(void **state)
{
    struct fixture *f = *state;
    start_restored(f);
    /* What was loaded has the reset in it. */
    assert_int_equal(fc_server_got(&f->server, "PUT /snapshot/create"), 0);
    assert_int_equal(fc_server_got(&f->server, "PATCH /vm"), 1);
    assert_int_equal(CALL(f, vm_resume(f->vm, on_done, f)), 0); /* runs already */
    assert_int_equal(fc_server_got(&f->server, "PATCH /vm"), 1);
    assert_int_equal(CALL(f, vm_pause(f->vm, on_done, f)), 0);
    assert_int_equal(CALL(f, vm_pause(f->vm, on_done, f)), 0);
    assert_int_equal(fc_server_got(&f->server, "PATCH /vm"), 2);
    assert_int_equal(CALL(f, vm_resume(f->vm, on_done, f)), 0);
    assert_int_equal(fc_server_got(&f->server, "PUT /snapshot/create"), 1);
    assert_string_equal(f->server.requests[f->server.count - 1], "PATCH /vm");
    assert_string_equal(fc_server_body(&f->server, "PATCH /vm"), "{\"state\":\"Resumed\"}");
}

static void test_device_state_without_memory(void **state)
{
    struct fixture *f = *state;
    unsigned char want[264];
    unsigned char got[300];
    start_restored(f);
    assert_int_equal(CALL(f, vm_pause(f->vm, on_done, f)), 0);
    assert_int_equal(CALL(f, vm_save_devices(f->vm, f->state_fd, on_done, f)), 0);
    assert_int_equal(pread(f->state_fd, got, sizeof(got), 0), make_state(want));
    assert_memory_equal(got, want, sizeof(want));
    assert_int_equal(CALL(f, vm_resume(f->vm, on_done, f)), 0);
    assert_int_equal(fc_server_got(&f->server, "PUT /snapshot/create"), 1); /* and that was the reset */
}

/* Leaves in the VMM's directory what it would take to mislead who reads it. */
static void write_link(struct fc_server *s, const char *request)
{
    const struct fixture *f = s->arg;
    char path[200];
    if (strcmp(request, "PUT /snapshot/create") != 0)
        return;
    remove_file(f, "state");
    (void)snprintf(path, sizeof(path), "%s/state", f->dir);
    assert_int_equal(symlink("/etc/passwd", path), 0);
}

static void write_fifo(struct fc_server *s, const char *request)
{
    const struct fixture *f = s->arg;
    char path[200];
    if (strcmp(request, "PUT /snapshot/create") != 0)
        return;
    remove_file(f, "state");
    (void)snprintf(path, sizeof(path), "%s/state", f->dir);
    assert_int_equal(mkfifo(path, 0600), 0);
}

static void write_torn(struct fc_server *s, const char *request)
{
    if (strcmp(request, "PUT /snapshot/create") == 0)
        put_file(s->arg, "state", "a hundred bytes that are no state, or the first part of one, torn", 60);
}

static void test_what_is_no_device_state(void **state)
{
    static void (*const lies[])(struct fc_server *, const char *) = {write_torn, write_link, write_fifo};
    struct fixture *f = *state;
    struct stat st;
    start_restored(f);
    assert_int_equal(CALL(f, vm_pause(f->vm, on_done, f)), 0);
    for (size_t i = 0; i < 3; i++) {
        f->server.on_request = lies[i];
        assert_true(CALL(f, vm_save_devices(f->vm, f->state_fd, on_done, f)) < 0);
    }
    assert_int_equal(fstat(f->state_fd, &st), 0);
    assert_int_equal(st.st_size, 0);
    remove_file(f, "state");
    f->server.on_request = write_state;
    f->server.takes_memory = true;
    assert_int_equal(CALL(f, vm_save_devices(f->vm, f->state_fd, on_done, f)), ERROR_PROTOCOL);
    f->server.takes_memory = false;
    f->server.refuse = "PUT /snapshot/create";
    assert_int_equal(CALL(f, vm_save_devices(f->vm, f->state_fd, on_done, f)), ERROR_UNAVAILABLE);
    f->server.refuse = NULL;
    assert_int_equal(CALL(f, vm_save_devices(f->vm, f->state_fd, on_done, f)), 0);
}

static void test_golden(void **state)
{
    struct fixture *f = *state;
    use(f, VM_BOOT_GOLDEN);
    f->server.on_request = write_state;
    assert_int_equal(CALL(f, vm_launch(f->vm, on_done, f)), 0);
    assert_int_equal(CALL(f, vm_save(f->vm, f->state_fd, on_done, f)), 0);
    assert_int_equal(fake_broker_count(f->broker, "golden_capture"), 1);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 1);
    wait_for(f, &f->exits, 1);
    struct stat st;
    assert_int_equal(fstat(f->state_fd, &st), 0);
    assert_int_equal(st.st_size, 264);
}

static void test_golden_without_memory(void **state)
{
    struct fixture *f = *state;
    use(f, VM_BOOT_GOLDEN);
    f->server.on_request = write_state;
    assert_int_equal(CALL(f, vm_launch(f->vm, on_done, f)), 0);
    fake_broker_fail(f->broker, "golden_capture", 1);
    assert_int_equal(CALL(f, vm_save(f->vm, f->state_fd, on_done, f)), ERROR_INTERNAL);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 0);
}

static void adopt(struct fixture *f, const char *as)
{
    use(f, VM_BOOT_COLD);
    f->server.state = as;
    assert_int_equal(CALL(f, vm_adopt(f->vm, on_done, f)), 0);
}

static void test_adopt_running(void **state)
{
    struct fixture *f = *state;
    adopt(f, "Running");
    assert_true(vm_is_running(f->vm));
}

static void test_adopt_paused(void **state)
{
    struct fixture *f = *state;
    adopt(f, "Paused");
    assert_false(vm_is_running(f->vm));
    f->server.on_request = write_state;
    assert_int_equal(CALL(f, vm_resume(f->vm, on_done, f)), 0);
    /* Who paused it is not known, so the guest is told. */
    assert_int_equal(fc_server_got(&f->server, "PUT /snapshot/create"), 1);
}

static void test_adopted_of_another_version(void **state)
{
    struct fixture *f = *state;
    f->server.version = "1.15.0";
    adopt(f, "Paused");
    f->server.on_request = write_state;
    assert_int_equal(CALL(f, vm_save_devices(f->vm, f->state_fd, on_done, f)), ERROR_INCOMPATIBLE);
    assert_int_equal(CALL(f, vm_resume(f->vm, on_done, f)), 0);
}

static void test_adopt_what_qemu_runs(void **state)
{
    struct fixture *f = *state;
    char path[200];
    use(f, VM_BOOT_COLD);
    (void)snprintf(path, sizeof(path), "%s/api.sock", f->dir);
    struct broker *b = fake_broker_create(f->loop, f->dir); /* one that knows of no Firecracker */
    fake_broker_destroy(f->broker);
    f->broker = b;
    f->engine->broker = b;
    fake_broker_vmm(b, path, path, f->process[0], on_kill, f);
    assert_int_equal(CALL(f, vm_adopt(f->vm, on_done, f)), ERROR_INCOMPATIBLE);
    assert_non_null(strstr(f->text, "qemu"));
}

static void test_nonsense_from_the_vmm(void **state)
{
    struct fixture *f = *state;
    use(f, VM_BOOT_COLD);
    f->server.raw = "SSH-2.0-OpenSSH_9.2\r\n";
    assert_int_equal(CALL(f, vm_launch(f->vm, on_done, f)), ERROR_PROTOCOL);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 1);
}

static void test_socket_that_is_a_link(void **state)
{
    struct fixture *f = *state;
    char from[200];
    char to[200];
    (void)snprintf(from, sizeof(from), "%s/api.sock", f->dir);
    (void)snprintf(to, sizeof(to), "%s/other.sock", f->dir);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(symlink(to, from), 0);
    use(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, on_done, f)), ERROR_UNAVAILABLE);
    assert_int_equal(f->server.count, 0);
}

static void die(struct fc_server *s, const char *request)
{
    struct fixture *f = s->arg;
    if (strcmp(request, f->order) == 0)
        end_process(f);
}

static void test_death_in_a_step(void **state)
{
    struct fixture *f = *state;
    static const char last[] = "Linux\npanic\n2026 [x:main] Firecracker exiting with error. exit_code=148\n";
    use(f, VM_BOOT_COLD);
    put_file(f, "vmm.log", last, sizeof(last) - 1);
    f->server.on_request = die;
    f->server.ignore = f->order = "PUT /actions";
    assert_int_equal(CALL(f, vm_launch(f->vm, on_done, f)), ERROR_GONE);
    wait_for(f, &f->exits, 1);
    assert_non_null(strstr(f->why, "exit_code=148"));
}

/* It lives on and talks to nobody: whoever waits for it must not wait for ever. */
static void test_hanging_up_ends_the_vmm(void **state)
{
    struct fixture *f = *state;
    adopt(f, "Running");
    f->server.hangs_up = "PATCH /vm";
    assert_int_equal(CALL(f, vm_pause(f->vm, on_done, f)), ERROR_GONE);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 1);
    wait_for(f, &f->exits, 1);
    assert_non_null(strstr(f->why, "control interface"));
}

static void test_console(void **state)
{
    struct fixture *f = *state;
    adopt(f, "Running");
    assert_int_equal(CALL(f, vm_console(f->vm, on_console, f)), 0);
    assert_string_equal(f->text, "");
    put_file(f, "vmm.log", "Linux\r\n\x1b[0m", 11);
    assert_int_equal(CALL(f, vm_console(f->vm, on_console, f)), 0);
    assert_string_equal(f->text, "Linux\n?[0m");
    put_file(f, "vmm.log", "Linux\r\n\x1b[0mmore", 15);
    assert_int_equal(CALL(f, vm_console(f->vm, on_console, f)), 0);
    assert_string_equal(f->text, "more");
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_state_is_whole),
        cmocka_unit_test(test_new_console_text),
        WITH(test_engine_tells_about_itself),
        WITH(test_cold_boot),
        WITH(test_refused_step_ends_the_vmm),
        WITH(test_replaced_program),
        WITH(test_too_much_memory),
        WITH(test_lines_of_counters),
        WITH(test_counters_through_the_pipe),
        WITH(test_a_flood_in_the_pipe),
        WITH(test_what_is_no_pipe_is_not_read),
        WITH(test_limits),
        WITH(test_one_limit_only),
        WITH(test_hanging_up_while_it_is_limited_ends_the_vmm),
        WITH(test_a_pause_is_followed_by_a_reset),
        WITH(test_device_state_without_memory),
        WITH(test_what_is_no_device_state),
        WITH(test_golden),
        WITH(test_golden_without_memory),
        WITH(test_adopt_running),
        WITH(test_adopt_paused),
        WITH(test_adopted_of_another_version),
        WITH(test_adopt_what_qemu_runs),
        WITH(test_nonsense_from_the_vmm),
        WITH(test_socket_that_is_a_link),
        WITH(test_death_in_a_step),
        WITH(test_hanging_up_ends_the_vmm),
        WITH(test_console),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
