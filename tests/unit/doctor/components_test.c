/* The parts of a server and their dates, on a machine made of files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <archive.h>
#include <archive_entry.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "doctor/components.h"

static char root[64];
static char programs[128];

static char *at(const char *path)
{
    static char full[300];
    (void)snprintf(full, sizeof(full), "%s%s", root, path);
    char *slash = strrchr(full, '/');
    *slash = '\0';
    assert_int_equal(fs_mkdir_p(full, 0755, NULL), 0);
    *slash = '/';
    return full;
}

/* A file of the first day of 2023, in UTC. */
static void put(const char *path, const char *text, mode_t mode)
{
    const char *full = at(path);
    struct timespec times[2] = {{.tv_sec = 1672531200}, {.tv_sec = 1672531200}};
    AUTO_CLOSE int fd = open(full, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(futimens(fd, times), 0);
}

static void put_gzip(const char *path, const char *text)
{
    struct archive *a = archive_write_new();
    struct archive_entry *entry = archive_entry_new();
    assert_int_equal(archive_write_add_filter_gzip(a), ARCHIVE_OK);
    assert_int_equal(archive_write_set_format_raw(a), ARCHIVE_OK);
    assert_int_equal(archive_write_open_filename(a, at(path)), ARCHIVE_OK);
    archive_entry_set_filetype(entry, AE_IFREG);
    assert_int_equal(archive_write_header(a, entry), ARCHIVE_OK);
    assert_int_equal(archive_write_data(a, text, strlen(text)), (la_ssize_t)strlen(text));
    assert_int_equal(archive_write_free(a), ARCHIVE_OK);
    archive_entry_free(entry);
}

static void put_program(const char *name, const char *version)
{
    char path[64];
    char text[256];
    (void)snprintf(path, sizeof(path), "/bin/%s", name);
    (void)snprintf(text, sizeof(text), "#!/bin/sh\necho '%s'\n", version);
    put(path, text, 0755);
}

static void put_changelog(const char *package, const char *version, const char *date)
{
    char path[128];
    char text[512];
    (void)snprintf(path, sizeof(path), "/usr/share/doc/%s/changelog.Debian.gz", package);
    (void)snprintf(
        text, sizeof(text),
        "%s (%s) stable; urgency=medium\n\n  * A change -- of (some) kind.\n\n -- A Person <a@b>  %s\n\n"
        "%s (0.1) stable; urgency=low\n\n -- A Person <a@b>  Mon, 01 Jan 2001 00:00:00 +0000\n",
        package, version, date, package);
    put_gzip(path, text);
}

static json_t *find(const char *const *libraries)
{
    static const char *const none[] = {NULL};
    AUTO_FREE char *initrd = str_printf("%s/initrd", root);
    struct components_config config = {.root = root,
                                       .path = programs,
                                       .kernel_release = "6.1.0-57-cloud-amd64",
                                       .image_digest = "0123456789abcdef0123456789abcdef",
                                       .initrd = initrd,
                                       .libraries = libraries ? libraries : none};
    json_t *list = components_find(&config);
    assert_non_null(list);
    return list;
}

static const json_t *part(const json_t *list, const char *name)
{
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one) if (strcmp(json_string_value(json_object_get(one, "name")), name) ==
                                         0) return one;
    return NULL;
}

/* want NULL: null. */
static void is(const json_t *list, const char *name, const char *field, const char *want)
{
    const json_t *value = json_object_get(part(list, name), field);
    assert_non_null(value);
    if (want)
        assert_string_equal(json_string_value(value), want);
    else
        assert_true(json_is_null(value));
}

static int setup(void **state)
{
    (void)state;
    (void)str_copy(root, sizeof(root), "/tmp/space-components-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    (void)snprintf(programs, sizeof(programs), "%s/bin", root);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return fs_remove_tree(AT_FDCWD, root, NULL);
}

static void test_changelogs_tell_version_and_day(void **state)
{
    (void)state;
    static const char *const libraries[] = {"/lib/x/libsqlite3.so.0", "/lib/x/libzstd.so.1",
                                            "/lib/x/libc.so.6",       "/lib/x/libcrypto.so.3",
                                            "/lib/x/libz.so.1",       NULL};
    put_program("qemu-system-x86_64", "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)");
    put_changelog("qemu-system-x86", "1:7.2+dfsg-7+deb12u18", "Tue, 16 Dec 2025 09:10:19 +0300");
    put_changelog("linux-image-6.1.0-57-cloud-amd64", "6.1.192+3", "Thu, 26 Nov 2026 18:12:56 +0100");
    put_changelog("libsqlite3-0", "3.40.1-2", "Wed, 05 Apr 2023 10:00:00 +0000");
    put_changelog("libzstd1t64", "1.5.4", "Sun, 12 Feb 2023 10:00:00 +0000");
    put_changelog("libc6", "2.36-9", "Fri, 02 May 2025 10:00:00 +0000");
    put_changelog("libssl3", "3.0.17-1", "Sat, 02 Aug 2025 10:00:00 +0000");
    json_t *list = find(libraries);
    is(list, "spaced", "version", SPACE_VERSION);
    is(list, "spaced", "released", SPACE_RELEASED);
    is(list, "space-agent", "released_from", "release");
    is(list, "qemu", "version", "7.2.22");
    is(list, "qemu", "released", "2025-12-16");
    is(list, "qemu", "released_from", "changelog");
    is(list, "qemu", "package", "qemu-system-x86 1:7.2+dfsg-7+deb12u18");
    is(list, "linux", "released", "2026-11-26");
    is(list, "libsqlite3", "version", "3.40.1-2");
    is(list, "libzstd", "released", "2023-02-12");
    is(list, "libc", "released", "2025-05-02");
    is(list, "libcrypto", "version", "3.0.17-1");
    assert_null(part(list, "libz"));
    assert_null(part(list, "firecracker"));
    json_decref(list);
}

static void test_a_rebuild_is_newer(void **state)
{
    (void)state;
    put_program("qemu-system-x86_64", "QEMU emulator version 7.2.22");
    put_changelog("qemu-system-x86", "1:7.2", "Tue, 16 Dec 2025 09:10:19 +0300");
    put_gzip("/usr/share/doc/qemu-system-x86/changelog.Debian.amd64.gz",
             "qemu (1:7.2+b3) stable; binary-only=yes\n\n  * Rebuild\n\n -- all / amd64 Build Daemon <b@c>  "
             "Mon, 25 May "
             "2026 20:44:29 +0000\n");
    json_t *list = find(NULL);
    is(list, "qemu", "released", "2026-05-25");
    json_decref(list);
}

static void test_files_tell_when_nothing_else_does(void **state)
{
    (void)state;
    char library[128];
    (void)snprintf(library, sizeof(library), "%s/lib/libjansson.so.4", root);
    const char *const libraries[] = {library, "/nowhere/libzstd.so.1", NULL};
    put_program("qemu-system-x86_64", "QEMU emulator version 7.2.22");
    put("/boot/vmlinuz-6.1.0-57-cloud-amd64", "kernel", 0600);
    put("/initrd", "initrd", 0644);
    put("/lib/libjansson.so.4.14.0", "library", 0644);
    assert_int_equal(symlink("libjansson.so.4.14.0", library), 0);
    /* No changelogs: not compressed, and not of Debian's shape. */
    put("/usr/share/doc/qemu-system-x86/changelog.Debian.gz", "qemu (1) x", 0644);
    put_gzip("/usr/share/doc/qemu-system-x86/changelog.gz", "2026-01-01  Somebody\n\n * qemu (2) -- maybe\n");
    json_t *list = find(libraries);
    static const char *const names[] = {"qemu", "linux", "initramfs", "libjansson"};
    for (size_t i = 0; i < 4; i++) {
        is(list, names[i], "released", "2023-01-01");
        is(list, names[i], "released_from", "file");
        is(list, names[i], "package", NULL);
    }
    is(list, "initramfs", "version", "0123456789ab");
    is(list, "libjansson", "version", "4.14.0");
    is(list, "libzstd", "released", NULL);
    is(list, "libzstd", "released_from", "unknown");
    json_decref(list);
}

static void firecracker(const char *line, const char *version, const char *day, const char *from)
{
    put_program("firecracker", line);
    json_t *list = find(NULL);
    is(list, "firecracker", "version", version);
    is(list, "firecracker", "released", day);
    is(list, "firecracker", "released_from", from);
    json_decref(list);
}

static void test_firecrackers_series(void **state)
{
    (void)state;
    firecracker("Firecracker v1.12.0", "1.12.0", "2025-05-07", "series");
    firecracker("Firecracker v1.16.1", "1.16.1", "2026-06-03", "series");
    /* Not known here: only the file's day. */
    firecracker("Firecracker v1.99.0", "1.99.0", "2023-01-01", "file");
    firecracker("Firecracker v2.12.0", "2.12.0", "2023-01-01", "file");
}

static void test_firecracker_elsewhere(void **state)
{
    (void)state;
    char program[160];
    put_program("of-my-own", "Firecracker v1.15.1");
    (void)snprintf(program, sizeof(program), "%s/of-my-own", programs);
    struct components_config config = {
        .root = root, .path = programs, .firecracker = program, .kernel_release = "x", .image_digest = "y"};
    json_t *list = components_find(&config);
    is(list, "firecracker", "version", "1.15.1");
    json_decref(list);
}

static void test_ages(void **state)
{
    (void)state;
    json_t *list = json_pack("[{s:s, s:s}, {s:s, s:n}, {s:s, s:s}]", "name", "a", "released", "2026-01-01",
                             "name", "b", "released", "name", "c", "released", "2030-01-01");
    json_t *aged = components_aged(list, 1767225600 + 10 * 86400 + 5); /* the 11th of January 2026 */
    assert_int_equal(json_integer_value(json_object_get(part(aged, "a"), "age_days")), 10);
    is(aged, "b", "age_days", NULL);
    assert_int_equal(json_integer_value(json_object_get(part(aged, "c"), "age_days")), 0);
    assert_null(json_object_get(part(list, "a"), "age_days"));
    json_decref(list);
    json_decref(aged);
}

static void test_own_libraries(void **state)
{
    (void)state;
    struct components_config config = {
        .root = root, .path = programs, .kernel_release = "x", .image_digest = "y"};
    json_t *list = components_find(&config);
    assert_non_null(part(list, "libjansson"));
    assert_non_null(part(list, "libc"));
    json_decref(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_changelogs_tell_version_and_day, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_rebuild_is_newer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_files_tell_when_nothing_else_does, setup, teardown),
        cmocka_unit_test_setup_teardown(test_firecrackers_series, setup, teardown),
        cmocka_unit_test_setup_teardown(test_firecracker_elsewhere, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_own_libraries, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
