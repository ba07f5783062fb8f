#include "unit.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>

#include "base/fs.h"
#include "image/image.h"

/* Builds with a kernel, modules and agent made up for the test. */
struct fixture {
    char *dir;
    char kernel[200], modules[200], agent[200], state[200];
    struct image_config config;
};

static void put(const char *path, const void *data, size_t n)
{
    assert_int_equal(fs_write_atomic(AT_FDCWD, path, data, n, 0644, NULL), 0);
}

static int setup(void **state)
{
    static const char *const names[] = {"virtio_ring",    "virtio",     "virtio_mmio",
                                        "virtio_console", "virtio_blk", "ext4"};
    struct fixture *f = calloc(1, sizeof(*f));
    char kernel[0x1000] = {0};
    char dep[1024] = "";
    char path[300];
    assert_non_null(f);
    f->dir = unit_mkdir();
    (void)snprintf(f->kernel, sizeof(f->kernel), "%s/vmlinuz-test", f->dir);
    (void)snprintf(f->modules, sizeof(f->modules), "%s/modules", f->dir);
    (void)snprintf(f->agent, sizeof(f->agent), "%s/agent", f->dir);
    (void)snprintf(f->state, sizeof(f->state), "%s/state", f->dir);
    f->config = (struct image_config){
        .kernel = f->kernel, .modules = f->modules, .agent = f->agent, .state_dir = f->state};
    memcpy(kernel + 0x202, "HdrS\x0f\x02", 6);
    kernel[0x20f] = 0x01;
    memcpy(kernel + 0x300, "9.9.9-test (someone)", 20);
    put(f->kernel, kernel, sizeof(kernel));
    put(f->agent, "agent binary", 12);
    assert_int_equal(mkdir(f->modules, 0755), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t n = strlen(dep);
        (void)snprintf(dep + n, sizeof(dep) - n, "%s.ko:\n", names[i]);
        (void)snprintf(path, sizeof(path), "%s/%s.ko", f->modules, names[i]);
        put(path, names[i], strlen(names[i]));
    }
    (void)snprintf(path, sizeof(path), "%s/modules.dep", f->modules);
    put(path, dep, strlen(dep));
    (void)snprintf(path, sizeof(path), "%s/modules.builtin", f->modules);
    put(path, "", 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(fs_remove_tree(AT_FDCWD, f->dir, NULL), 0);
    free(f->dir);
    free(f);
    return 0;
}

static void read_file(const struct fixture *f, const struct image_info *info, const char *name, char **ret,
                      size_t *len)
{
    char path[400];
    struct stat st;
    struct error err = ERROR_INIT;
    (void)snprintf(path, sizeof(path), "%s/platform/%s/%s", f->state, info->digest, name);
    assert_ok(fs_read_file(AT_FDCWD, path, 1 << 20, ret, len, &err), &err);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0644); /* VMMs of other users read them */
}

static void test_builds_once(void **state)
{
    struct fixture *f = *state;
    struct image_info a = {0};
    struct image_info b = {0};
    struct error err = ERROR_INIT;
    char *text;
    size_t len;
    assert_ok(image_build(&f->config, &a, &err), &err);
    assert_int_equal(strlen(a.digest), 64);
    assert_string_equal(a.kernel_release, "9.9.9-test");
    assert_string_equal(a.kernel_path, f->kernel);
    read_file(f, &a, "vmlinuz", &text, &len);
    assert_int_equal(len, 0x1000); /* nothing to unpack in this one */
    free(text);
    read_file(f, &a, "initrd", &text, &len);
    assert_memory_equal(text, "\x1f\x8b", 2);
    free(text);
    read_file(f, &a, "manifest.json", &text, &len);
    json_t *m = json_loads(text, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(m, "version")), 1);
    assert_string_equal(json_string_value(json_object_get(m, "kernel_format")), "bzimage");
    assert_int_equal(json_array_size(json_object_get(m, "modules")), 6);
    json_decref(m);
    free(text);
    /* Again: the same digest, and the files stay as they are. */
    char path[400];
    struct stat before;
    struct stat after;
    (void)snprintf(path, sizeof(path), "%s/platform/%s/initrd", f->state, a.digest);
    assert_int_equal(stat(path, &before), 0);
    assert_ok(image_build(&f->config, &b, &err), &err);
    assert_string_equal(a.digest, b.digest);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
}

static void test_every_part_counts(void **state)
{
    struct fixture *f = *state;
    struct image_info first = {0};
    struct image_info info = {0};
    char path[300];
    assert_int_equal(image_build(&f->config, &first, NULL), 0);
    put(f->agent, "agent binarz", 12);
    assert_int_equal(image_build(&f->config, &info, NULL), 0);
    assert_string_not_equal(first.digest, info.digest);
    put(f->agent, "agent binary", 12);
    (void)snprintf(path, sizeof(path), "%s/ext4.ko", f->modules);
    put(path, "ext5", 4);
    assert_int_equal(image_build(&f->config, &info, NULL), 0);
    assert_string_not_equal(first.digest, info.digest);
    put(path, "ext4", 4);
    assert_int_equal(image_build(&f->config, &info, NULL), 0);
    assert_string_equal(first.digest, info.digest); /* older images stayed */
}

static void test_what_is_missing_is_named(void **state)
{
    struct fixture *f = *state;
    struct image_info info = {0};
    struct error err = ERROR_INIT;
    char path[300];
    f->config.agent = "/nonexistent/agent";
    assert_int_equal(image_build(&f->config, &info, &err), ERROR_NOT_FOUND);
    assert_non_null(strstr(err.message, "/nonexistent/agent"));
    f->config.agent = f->agent;
    f->config.kernel = "/nonexistent/vmlinuz";
    assert_int_equal(image_build(&f->config, &info, &err), ERROR_NOT_FOUND);
    f->config.kernel = f->agent;
    assert_int_equal(image_build(&f->config, &info, &err), ERROR_INVALID);
    f->config.kernel = f->kernel;
    (void)snprintf(path, sizeof(path), "%s/virtio_blk.ko", f->modules);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(image_build(&f->config, &info, &err), ERROR_NOT_FOUND);
    assert_non_null(strstr(err.message, "virtio_blk"));
    f->config.modules = "/nonexistent";
    assert_int_equal(image_find(&f->config, &info, &err), ERROR_NOT_FOUND);
    assert_string_equal(info.digest, "");
}

static void test_a_failed_build_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct image_info info = {0};
    struct error err = ERROR_INIT;
    put(f->state, "a file in the way", 17);
    assert_true(image_build(&f->config, &info, &err) < 0);
    assert_string_equal(info.digest, "");
    assert_true(err.message[0] != '\0');
}

static void test_finds_this_hosts_kernel(void **state)
{
    (void)state;
    struct image_config config = {0};
    struct image_info info = {0};
    struct error err = ERROR_INIT;
    int rc = image_find(&config, &info, &err);
    if (rc == ERROR_NOT_FOUND) {
        assert_non_null(strstr(err.message, "apt-get install"));
        skip();
    }
    assert_ok(rc, &err);
    assert_non_null(strstr(info.kernel_path, info.kernel_release));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_builds_once),
        TEST(test_every_part_counts),
        TEST(test_what_is_missing_is_named),
        TEST(test_a_failed_build_leaves_nothing),
        cmocka_unit_test(test_finds_this_hosts_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
