#include "fixture.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "proto/proto.h"
#include "vm/firecracker.h"
#include "vm/firecracker_version.h"

/* The VMM is there before the VM is: a test says beforehand what it will do. */
static int setup(void **state)
{
    struct error err = ERROR_INIT;
    (void)fixture_setup(state);
    struct fixture *f = *state;
    assert_ok(fixture_firecracker(f, "1.16.1", &err), &err);
    fixture_play_firecracker(f);
    return 0;
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
        fixture_put(s->arg, "state", data, make_state(data));
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
    assert_int_equal(info->memory_max_mib, VM_MEMORY_MIB_MAX);
    vm_engine_compat(f->engine, &c);
    assert_int_equal(strlen(c.layout), 8);
    struct vm_compat qemu = c;
    (void)snprintf(qemu.engine, sizeof(qemu.engine), "qemu");
    assert_int_equal(vm_compat_check(&qemu, &c, &err), ERROR_INCOMPATIBLE);
    assert_non_null(strstr(err.message, "qemu"));
    vm_engine_destroy(f->engine);
    f->engine = NULL;
    assert_int_equal(fixture_firecracker(f, "1.11.2", &err), ERROR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "1.11.2"));
    assert_non_null(strstr(err.message, "1.12"));
}

static void test_cold_boot(void **state)
{
    struct fixture *f = *state;
    fixture_use_firecracker(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    static const char *const order[] = {"GET /version",     "PUT /machine-config", "PUT /boot-source",
                                        "PUT /drives/root", "PUT /vsock",          "PUT /entropy",
                                        "PUT /actions"};
    assert_int_equal(f->fc.count, 7);
    for (unsigned i = 0; i < 7; i++)
        assert_string_equal(f->fc.requests[i], order[i]);
    const struct broker_vmm *asked = fake_broker_last_vmm(f->broker);
    assert_int_equal(asked->kind, BROKER_VMM_FIRECRACKER);
    assert_true(asked->kvm);
    assert_string_equal(fc_server_body(&f->fc, "PUT /machine-config"),
                        "{\"vcpu_count\":2,\"mem_size_mib\":256}");
    char port[40];
    (void)snprintf(port, sizeof(port), "space.vsock=%d\"", PROTO_VSOCK_PORT);
    assert_non_null(strstr(fc_server_body(&f->fc, "PUT /boot-source"), port));
    assert_true(vm_is_running(f->vm));
    assert_int_equal(vm_agent_port(f->vm), PROTO_VSOCK_PORT);
    assert_int_equal(strncmp(vm_agent_socket(f->vm), "/proc/self/fd/", 14), 0);
}

static void test_refused_step_ends_the_vmm(void **state)
{
    struct fixture *f = *state;
    fixture_use_firecracker(f, VM_BOOT_COLD);
    f->fc.refuse = "PUT /drives/root";
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), ERROR_UNAVAILABLE);
    assert_non_null(strstr(f->text, "no such luck"));
    assert_int_equal(fc_server_got(&f->fc, "PUT /actions"), 0);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 1);
}

static void test_replaced_program(void **state)
{
    struct fixture *f = *state;
    fixture_use_firecracker(f, VM_BOOT_COLD);
    f->fc.version = "1.17.0";
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), ERROR_CONFLICT);
    assert_non_null(strstr(f->text, "restart spaced"));
}

static const struct vm_limits slow = {.disk_mib_per_s = 3, .disk_iops = 70};

static void test_limits(void **state)
{
    struct fixture *f = *state;
    fixture_use_firecracker(f, VM_BOOT_RESTORE);
    f->fc.on_request = write_state;
    vm_limit(f->vm, &slow);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_load(f->vm, f->state_fd, fixture_done, f)), 0);
    assert_int_equal(fc_server_got(&f->fc, "PATCH /drives/root"), 0);
    f->fc.refuse = "PATCH /drives/root";
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), ERROR_UNAVAILABLE);
    assert_int_equal(fc_server_got(&f->fc, "PATCH /vm"), 0);
    f->fc.refuse = NULL;
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    assert_string_equal(fc_server_body(&f->fc, "PATCH /drives/root"),
                        "{\"drive_id\":\"root\",\"rate_limiter\":{\"bandwidth\":{\"size\":3145728,"
                        "\"refill_time\":1000},\"ops\":{\"size\":70,\"refill_time\":1000}}}");
    assert_int_equal(fc_server_got(&f->fc, "PATCH /vm"), 1);
    /* What was loaded has given up its connections, and to be limited changes nothing about that. */
    assert_int_equal(fc_server_got(&f->fc, "PUT /snapshot/create"), 0);
}

static void test_what_cannot_be_limited_is_ended_once(void **state)
{
    struct fixture *f = *state;
    fixture_use_firecracker(f, VM_BOOT_COLD);
    vm_limit(f->vm, &slow);
    f->fc.refuse = "PATCH /drives/root";
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), ERROR_UNAVAILABLE);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 1);
}

static void test_one_limit_only(void **state)
{
    struct fixture *f = *state;
    const struct vm_limits only = {.disk_iops = 10};
    fixture_use_firecracker(f, VM_BOOT_COLD);
    vm_limit(f->vm, &only);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_string_equal(
        fc_server_body(&f->fc, "PATCH /drives/root"),
        "{\"drive_id\":\"root\",\"rate_limiter\":{\"bandwidth\":{\"size\":0,\"refill_time\":0},"
        "\"ops\":{\"size\":10,\"refill_time\":1000}}}");
}

static void test_hanging_up_while_it_is_limited_ends_the_vmm(void **state)
{
    struct fixture *f = *state;
    fixture_use_firecracker(f, VM_BOOT_COLD);
    vm_limit(f->vm, &slow);
    f->fc.hangs_up = "PATCH /drives/root";
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), ERROR_GONE);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 1);
    assert_int_equal(f->exits, 1);
}

static void start_restored(struct fixture *f)
{
    fixture_use_firecracker(f, VM_BOOT_RESTORE);
    f->fc.on_request = write_state;
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_load(f->vm, f->state_fd, fixture_done, f)), 0);
    assert_non_null(strstr(fc_server_body(&f->fc, "PUT /snapshot/load"), "\"resume_vm\":false"));
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
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
    unsigned asked = fc_server_got(&f->fc, "PUT /actions");
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    for (int i = 0; i < 400 && fc_server_got(&f->fc, "PUT /actions") == asked; i++)
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
    assert_string_equal(fc_server_body(&f->fc, "PUT /actions"), "{\"action_type\":\"FlushMetrics\"}");
    assert_int_equal(c.disk_reads, 7);
    assert_int_equal(c.lost, 0);
    /* The rest of the line, one that is none, and one at the VMM's end. */
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
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
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
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
    fixture_put(f, "metrics", line, sizeof(line) - 1);
    start_restored(f);
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    for (int i = 0; i < 10; i++)
        loop_turn(f->loop, 5);
    assert_int_equal(fc_server_got(&f->fc, "PUT /actions"), 0);
    vm_engine_counters(f->engine, &c);
    assert_int_equal(c.disk_reads, 0);
}

static void test_a_pause_is_followed_by_a_reset(void **state)
{
    struct fixture *f = *state;
    start_restored(f);
    /* What was loaded has the reset in it. */
    assert_int_equal(fc_server_got(&f->fc, "PUT /snapshot/create"), 0);
    assert_int_equal(fc_server_got(&f->fc, "PATCH /vm"), 1);
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0); /* runs already */
    assert_int_equal(fc_server_got(&f->fc, "PATCH /vm"), 1);
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    assert_int_equal(fc_server_got(&f->fc, "PATCH /vm"), 2);
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    assert_int_equal(fc_server_got(&f->fc, "PUT /snapshot/create"), 1);
    assert_string_equal(f->fc.requests[f->fc.count - 1], "PATCH /vm");
    assert_string_equal(fc_server_body(&f->fc, "PATCH /vm"), "{\"state\":\"Resumed\"}");
}

static void test_device_state_without_memory(void **state)
{
    struct fixture *f = *state;
    unsigned char want[264];
    unsigned char got[300];
    start_restored(f);
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_save_devices(f->vm, f->state_fd, fixture_done, f)), 0);
    assert_int_equal(pread(f->state_fd, got, sizeof(got), 0), make_state(want));
    assert_memory_equal(got, want, sizeof(want));
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    assert_int_equal(fc_server_got(&f->fc, "PUT /snapshot/create"), 1); /* and that was the reset */
}

/* Leaves in the VMM's directory what it would take to mislead who reads it. */
static void write_link(struct fc_server *s, const char *request)
{
    const struct fixture *f = s->arg;
    char path[200];
    if (strcmp(request, "PUT /snapshot/create") != 0)
        return;
    fixture_remove(f, "state");
    (void)snprintf(path, sizeof(path), "%s/state", f->dir);
    assert_int_equal(symlink("/etc/passwd", path), 0);
}

static void write_fifo(struct fc_server *s, const char *request)
{
    const struct fixture *f = s->arg;
    char path[200];
    if (strcmp(request, "PUT /snapshot/create") != 0)
        return;
    fixture_remove(f, "state");
    (void)snprintf(path, sizeof(path), "%s/state", f->dir);
    assert_int_equal(mkfifo(path, 0600), 0);
}

static void write_torn(struct fc_server *s, const char *request)
{
    if (strcmp(request, "PUT /snapshot/create") == 0)
        fixture_put(s->arg, "state", "a hundred bytes that are no state, or the first part of one, torn", 60);
}

static void test_what_is_no_device_state(void **state)
{
    static void (*const lies[])(struct fc_server *, const char *) = {write_torn, write_link, write_fifo};
    struct fixture *f = *state;
    struct stat st;
    start_restored(f);
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    for (size_t i = 0; i < 3; i++) {
        f->fc.on_request = lies[i];
        assert_true(CALL(f, vm_save_devices(f->vm, f->state_fd, fixture_done, f)) < 0);
    }
    assert_int_equal(fstat(f->state_fd, &st), 0);
    assert_int_equal(st.st_size, 0);
    fixture_remove(f, "state");
    f->fc.on_request = write_state;
    f->fc.takes_memory = true;
    assert_int_equal(CALL(f, vm_save_devices(f->vm, f->state_fd, fixture_done, f)), ERROR_PROTOCOL);
    f->fc.takes_memory = false;
    f->fc.refuse = "PUT /snapshot/create";
    assert_int_equal(CALL(f, vm_save_devices(f->vm, f->state_fd, fixture_done, f)), ERROR_UNAVAILABLE);
    f->fc.refuse = NULL;
    assert_int_equal(CALL(f, vm_save_devices(f->vm, f->state_fd, fixture_done, f)), 0);
}

static void test_golden(void **state)
{
    struct fixture *f = *state;
    fixture_use_firecracker(f, VM_BOOT_GOLDEN);
    f->fc.on_request = write_state;
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_save(f->vm, f->state_fd, fixture_done, f)), 0);
    assert_int_equal(fake_broker_count(f->broker, "golden_capture"), 1);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 1);
    fixture_wait(f, &f->exits, 1);
    struct stat st;
    assert_int_equal(fstat(f->state_fd, &st), 0);
    assert_int_equal(st.st_size, 264);
}

static void test_golden_without_memory(void **state)
{
    struct fixture *f = *state;
    fixture_use_firecracker(f, VM_BOOT_GOLDEN);
    f->fc.on_request = write_state;
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    fake_broker_fail(f->broker, "golden_capture", 1);
    assert_int_equal(CALL(f, vm_save(f->vm, f->state_fd, fixture_done, f)), ERROR_INTERNAL);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 0);
}

static void adopt(struct fixture *f, const char *as)
{
    fixture_use_firecracker(f, VM_BOOT_COLD);
    f->fc.state = as;
    assert_int_equal(CALL(f, vm_adopt(f->vm, fixture_done, f)), 0);
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
    f->fc.on_request = write_state;
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    /* Who paused it is not known, so the guest is told. */
    assert_int_equal(fc_server_got(&f->fc, "PUT /snapshot/create"), 1);
}

static void test_adopted_of_another_version(void **state)
{
    struct fixture *f = *state;
    f->fc.version = "1.15.0";
    adopt(f, "Paused");
    f->fc.on_request = write_state;
    assert_int_equal(CALL(f, vm_save_devices(f->vm, f->state_fd, fixture_done, f)), ERROR_INCOMPATIBLE);
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
}

static void test_nonsense_from_the_vmm(void **state)
{
    struct fixture *f = *state;
    fixture_use_firecracker(f, VM_BOOT_COLD);
    f->fc.raw = "SSH-2.0-OpenSSH_9.2\r\n";
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), ERROR_PROTOCOL);
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
    fixture_use_firecracker(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), ERROR_UNAVAILABLE);
    assert_int_equal(f->fc.count, 0);
}

static void die(struct fc_server *s, const char *request)
{
    if (strcmp(request, s->ignore) == 0)
        fixture_die(s->arg);
}

static void test_death_in_a_step(void **state)
{
    struct fixture *f = *state;
    static const char last[] = "Linux\npanic\n2026 [x:main] Firecracker exiting with error. exit_code=148\n";
    fixture_use_firecracker(f, VM_BOOT_COLD);
    fixture_put(f, "vmm.log", last, sizeof(last) - 1);
    f->fc.on_request = die;
    f->fc.ignore = "PUT /actions";
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), ERROR_GONE);
    fixture_wait(f, &f->exits, 1);
    assert_non_null(strstr(f->why, "exit_code=148"));
}

/* It lives on and talks to nobody: whoever waits for it must not wait for ever. */
static void test_hanging_up_ends_the_vmm(void **state)
{
    struct fixture *f = *state;
    adopt(f, "Running");
    f->fc.hangs_up = "PATCH /vm";
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), ERROR_GONE);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 1);
    fixture_wait(f, &f->exits, 1);
    assert_non_null(strstr(f->why, "control interface"));
}

static void test_console(void **state)
{
    struct fixture *f = *state;
    adopt(f, "Running");
    assert_int_equal(CALL(f, vm_console(f->vm, fixture_console, f)), 0);
    assert_string_equal(f->text, "");
    fixture_put(f, "vmm.log", "Linux\r\n\x1b[0m", 11);
    assert_int_equal(CALL(f, vm_console(f->vm, fixture_console, f)), 0);
    assert_string_equal(f->text, "Linux\n?[0m");
    fixture_put(f, "vmm.log", "Linux\r\n\x1b[0mmore", 15);
    assert_int_equal(CALL(f, vm_console(f->vm, fixture_console, f)), 0);
    assert_string_equal(f->text, "more");
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, setup, fixture_teardown)

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
        WITH(test_lines_of_counters),
        WITH(test_counters_through_the_pipe),
        WITH(test_a_flood_in_the_pipe),
        WITH(test_what_is_no_pipe_is_not_read),
        WITH(test_limits),
        WITH(test_what_cannot_be_limited_is_ended_once),
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
        WITH(test_nonsense_from_the_vmm),
        WITH(test_socket_that_is_a_link),
        WITH(test_death_in_a_step),
        WITH(test_hanging_up_ends_the_vmm),
        WITH(test_console),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
