#include "unit.h"

#include <archive.h>
#include <archive_entry.h>
#include <elf.h>
#include <sys/stat.h>

#include "image/image_parts.h"

/* --- modules --- */

static const char dep[] =
    "kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio_ring.ko\n"
    "kernel/drivers/virtio/virtio_ring.ko:\n"
    "kernel/drivers/virtio/virtio_mmio.ko.xz: kernel/drivers/virtio/virtio.ko "
    "kernel/drivers/virtio/virtio_ring.ko\n"
    "kernel/drivers/char/virtio_console.ko: kernel/drivers/virtio/virtio.ko "
    "kernel/drivers/virtio/virtio_ring.ko\n"
    "kernel/drivers/char/hw_random/virtio-rng.ko.zst: kernel/drivers/virtio/virtio.ko "
    "kernel/drivers/virtio/virtio_ring.ko\n"
    "kernel/drivers/block/virtio_blk.ko: kernel/drivers/virtio/virtio.ko "
    "kernel/drivers/virtio/virtio_ring.ko\n"
    "kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko kernel/fs/mbcache.ko kernel/fs/jbd2/jbd2.ko\n"
    "kernel/net/other.ko: kernel/net/virtio_blk_like.ko\n";

static size_t index_of(const struct image_modules *m, const char *name)
{
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->items[i].name, name) == 0)
            return i;
    fail_msg("%s is not in the list", name);
    return 0;
}

static void test_modules_in_load_order(void **state)
{
    (void)state;
    struct image_modules m;
    struct error err = ERROR_INIT;
    assert_ok(image_modules_resolve(dep, "", &m, &err), &err);
    assert_int_equal(index_of(&m, "virtio_ring.ko"), 0);
    assert_true(index_of(&m, "virtio.ko") > index_of(&m, "virtio_ring.ko"));
    assert_true(index_of(&m, "virtio_mmio.ko") > index_of(&m, "virtio.ko"));
    assert_true(index_of(&m, "virtio_blk.ko") > index_of(&m, "virtio_mmio.ko"));
    assert_true(index_of(&m, "ext4.ko") > index_of(&m, "jbd2.ko"));
    assert_true(index_of(&m, "ext4.ko") > index_of(&m, "crc16.ko"));
    assert_string_equal(m.items[index_of(&m, "virtio_rng.ko")].path,
                        "kernel/drivers/char/hw_random/virtio-rng.ko.zst");
    for (size_t i = 0; i < m.count; i++) /* each once, and none that nobody asked for */
        assert_int_equal(index_of(&m, m.items[i].name), i);
    assert_int_equal(m.count, 10);
}

static void test_builtin_modules_are_left_out(void **state)
{
    (void)state;
    struct image_modules m;
    static const char builtin[] =
        "kernel/fs/ext4/ext4.ko\nkernel/drivers/virtio/virtio.ko\n"
        "kernel/drivers/virtio/virtio_ring.ko\nkernel/drivers/virtio/virtio_mmio.ko\n"
        "kernel/drivers/block/virtio_blk.ko\nkernel/drivers/char/virtio_console.ko";
    assert_int_equal(image_modules_resolve("", builtin, &m, NULL), 0);
    assert_int_equal(m.count, 0);
}

static void test_a_missing_module_is_named(void **state)
{
    (void)state;
    struct image_modules m = {.count = 77};
    struct error err = ERROR_INIT;
    assert_int_equal(image_modules_resolve(dep, "", &m, &err), 0);
    assert_int_equal(image_modules_resolve("kernel/a.ko: kernel/b.ko\n", "", &m, &err), ERROR_NOT_FOUND);
    assert_non_null(strstr(err.message, "virtio_ring"));
    assert_non_null(strstr(err.message, "apt-get install"));
}

static void test_odd_module_tables(void **state)
{
    static const char *const odd[] = {
        "",
        "\n\n\n",
        ":",
        "a:",
        "no colon\n",
        "x.ko",
        "kernel/virtio_ring.ko:   \n",
        "/.ko: /.ko\n",
        "kernel/virtio_ring.ko: nothing.like.a.module\n",
    };
    (void)state;
    struct image_modules m;
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        struct error err = ERROR_INIT;
        assert_true(image_modules_resolve(odd[i], "", &m, &err) < 0);
        assert_true(err.message[0] != '\0');
    }
    struct buf many;
    buf_init(&many, 100000);
    assert_true(buf_printf(&many, "kernel/virtio_ring.ko:"));
    for (int i = 0; i < 100; i++)
        assert_true(buf_printf(&many, " kernel/m%d.ko", i));
    assert_true(buf_append(&many, "\n", 2)); /* with the NUL */
    assert_int_equal(image_modules_resolve((const char *)buf_head(&many), "", &m, NULL), ERROR_TOO_LARGE);
    buf_finish(&many);
}

/* --- compression --- */

static void test_pack_and_unpack(void **state)
{
    (void)state;
    char text[5000];
    struct image_blob packed = {0};
    struct image_blob again = {0};
    struct image_blob plain = {0};
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * i / 7);
    assert_int_equal(image_pack(text, sizeof(text), &packed, NULL), 0);
    assert_int_equal(image_pack(text, sizeof(text), &again, NULL), 0);
    assert_int_equal(packed.len, again.len);
    assert_memory_equal(packed.data, again.data, packed.len);
    assert_memory_equal(packed.data, "\x1f\x8b", 2);
    assert_int_equal(image_unpack(packed.data, packed.len, 1 << 20, &plain, NULL), 0);
    assert_int_equal(plain.len, sizeof(text));
    assert_memory_equal(plain.data, text, sizeof(text));
    free(plain.data);
    assert_int_equal(image_unpack(packed.data, packed.len, 100, &plain, NULL), ERROR_INVALID); /* too long */
    assert_int_equal(image_unpack(text, sizeof(text), 1 << 20, &plain, NULL),
                     0); /* not compressed: as it is */
    assert_int_equal(plain.len, sizeof(text));
    free(plain.data);
    free(packed.data);
    free(again.data);
}

static void test_every_compressor_distributions_use(void **state)
{
    static int (*const filters[])(struct archive *) = {
        archive_write_add_filter_gzip,
        archive_write_add_filter_xz,
        archive_write_add_filter_zstd,
        archive_write_add_filter_lz4,
    };
    (void)state;
    for (size_t i = 0; i < sizeof(filters) / sizeof(filters[0]); i++) {
        static char to[65536];
        size_t used = 0;
        struct archive *a = archive_write_new();
        struct archive_entry *e = archive_entry_new();
        if (filters[i](a) != ARCHIVE_OK)
            fail_msg("libarchive lacks filter %zu", i);
        assert_int_equal(archive_write_set_format_raw(a), ARCHIVE_OK);
        assert_int_equal(archive_write_open_memory(a, to, sizeof(to) - 8, &used), ARCHIVE_OK);
        archive_entry_set_filetype(e, AE_IFREG);
        assert_int_equal(archive_write_header(a, e), ARCHIVE_OK);
        assert_int_equal(archive_write_data(a, "module bytes", 12), 12);
        assert_int_equal(archive_write_close(a), ARCHIVE_OK);
        archive_entry_free(e);
        (void)archive_write_free(a);
        struct image_blob plain = {0};
        struct error err = ERROR_INIT;
        assert_ok(image_unpack(to, used, 1000, &plain, &err), &err);
        assert_int_equal(plain.len, 12);
        assert_memory_equal(plain.data, "module bytes", 12);
        free(plain.data);
    }
}

static void test_damaged_input(void **state)
{
    (void)state;
    struct image_blob packed = {0};
    struct image_blob plain = {0};
    char text[3000];
    memset(text, 'x', sizeof(text));
    assert_int_equal(image_pack(text, sizeof(text), &packed, NULL), 0);
    for (size_t n = 0; n < packed.len; n++) /* cut short anywhere: refused or short, never more */
        if (image_unpack(packed.data, n, 1 << 20, &plain, NULL) == 0) {
            assert_true(plain.len <= sizeof(text));
            free(plain.data);
        }
    free(packed.data);
}

/* --- the archive --- */

static void test_cpio_is_read_back(void **state)
{
    static const struct {
        const char *path;
        unsigned type, mode;
        int64_t size;
    } expected[] = {
        {"init", AE_IFREG, 0755, 5},         {"proc", AE_IFDIR, 0755, 0},  {"dev/console", AE_IFCHR, 0600, 0},
        {"modules/a.ko", AE_IFREG, 0644, 3}, {"empty", AE_IFREG, 0644, 0},
    };
    (void)state;
    struct buf b;
    buf_init(&b, 100000);
    assert_true(image_cpio_file(&b, "init", 0755, "hello", 5));
    assert_true(image_cpio_dir(&b, "proc"));
    assert_true(image_cpio_console(&b));
    assert_true(image_cpio_file(&b, "modules/a.ko", 0644, "abc", 3));
    assert_true(image_cpio_file(&b, "empty", 0644, "", 0));
    assert_true(image_cpio_end(&b));
    assert_int_equal(buf_len(&b) % 4, 0);
    struct archive *a = archive_read_new();
    struct archive_entry *e;
    assert_int_equal(archive_read_support_format_cpio(a), ARCHIVE_OK);
    assert_int_equal(archive_read_open_memory(a, buf_head(&b), buf_len(&b)), ARCHIVE_OK);
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        assert_int_equal(archive_read_next_header(a, &e), ARCHIVE_OK);
        assert_string_equal(archive_entry_pathname(e), expected[i].path);
        assert_int_equal(archive_entry_filetype(e), expected[i].type);
        assert_int_equal(archive_entry_perm(e), expected[i].mode);
        assert_int_equal(archive_entry_size(e), expected[i].size);
        assert_int_equal(archive_entry_uid(e), 0);
        assert_int_equal(archive_entry_mtime(e), 0);
        if (expected[i].type == AE_IFCHR) {
            assert_int_equal(archive_entry_rdevmajor(e), 5);
            assert_int_equal(archive_entry_rdevminor(e), 1);
        }
        char data[8] = "";
        if (i == 0) {
            assert_int_equal(archive_read_data(a, data, sizeof(data)), 5);
            assert_memory_equal(data, "hello", 5);
        }
    }
    assert_int_equal(archive_read_next_header(a, &e), ARCHIVE_EOF);
    (void)archive_read_free(a);
    buf_finish(&b);
    buf_init(&b, 200);
    assert_true(image_cpio_dir(&b, "proc"));
    assert_false(image_cpio_file(&b, "init", 0755, "hello", 5)); /* no room */
    buf_finish(&b);
}

/* --- kernels --- */

static void test_a_kernel_header(void **state)
{
    (void)state;
    char k[0x1000] = {0};
    char release[96] = "";
    memcpy(k + 0x202, "HdrS", 4);
    k[0x206] = 0x0f;
    k[0x207] = 0x02;
    k[0x20e] = 0x10; /* the text is at 0x110 + 0x200 */
    k[0x20f] = 0x01;
    memcpy(k + 0x310, "6.1.0-57-cloud-amd64 (builder@host) #1", 38);
    assert_true(image_kernel_release(k, sizeof(k), release, sizeof(release)));
    assert_string_equal(release, "6.1.0-57-cloud-amd64");
    assert_false(image_kernel_release(k, sizeof(k), release, 8));
    k[0x20f] = 0x7f; /* beyond the end */
    assert_false(image_kernel_release(k, sizeof(k), release, sizeof(release)));
    memcpy(k + 0x202, "SrdH", 4);
    assert_false(image_kernel_release(k, sizeof(k), release, sizeof(release)));
    assert_false(image_kernel_release(k, 10, release, sizeof(release)));
}

/* A bzImage around a payload. */
static size_t make_bzimage(char *to, size_t size, const char *payload, size_t len)
{
    memset(to, 0, size);
    to[0x1f1] = 1;
    memcpy(to + 0x202, "HdrS", 4);
    to[0x206] = 0x0f;
    to[0x207] = 0x02;
    uint32_t n = (uint32_t)len;
    memcpy(to + 0x24c, &n, sizeof(n));
    memcpy(to + 1024, payload, len);
    return 1024 + len;
}

/* An ELF kernel of one note segment. */
static size_t make_elf(char *to, unsigned note_type)
{
    Elf64_Ehdr e = {
        .e_machine = EM_X86_64, .e_phoff = sizeof(e), .e_phentsize = sizeof(Elf64_Phdr), .e_phnum = 1};
    memcpy(e.e_ident, ELFMAG, SELFMAG);
    e.e_ident[EI_CLASS] = ELFCLASS64;
    Elf64_Phdr p = {
        .p_type = PT_NOTE, .p_offset = sizeof(e) + sizeof(p), .p_filesz = 12 + 4 + 8 + 12 + 4 + 4};
    Elf64_Nhdr first = {.n_namesz = 4, .n_descsz = 8, .n_type = 1};
    Elf64_Nhdr second = {.n_namesz = 4, .n_descsz = 4, .n_type = note_type};
    size_t n = 0;
    memcpy(to, &e, sizeof(e));
    n = sizeof(e);
    memcpy(to + n, &p, sizeof(p));
    n += sizeof(p);
    memcpy(to + n, &first, sizeof(first));
    memcpy(to + n + 12, "Xen\0........", 12);
    n += 24;
    memcpy(to + n, &second, sizeof(second));
    memcpy(to + n + 12, "Xen\0....", 8);
    return n + 20;
}

static void test_the_elf_inside_a_kernel(void **state)
{
    (void)state;
    static char elf[512];
    static char kernel[8192];
    struct image_blob packed = {0};
    struct image_blob found = {0};
    size_t n = make_elf(elf, 18);
    assert_int_equal(image_pack(elf, n, &packed, NULL), 0);
    size_t len = make_bzimage(kernel, sizeof(kernel), packed.data, packed.len);
    assert_true(image_kernel_unpack(kernel, len, &found));
    assert_int_equal(found.len, n);
    assert_memory_equal(found.data, elf, n);
    free(found.data);
    assert_false(image_kernel_unpack(kernel, len - 1, &found)); /* the payload is cut off */
    free(packed.data);
    for (size_t cut = 0; cut < n; cut++) { /* an ELF cut off anywhere is no kernel */
        assert_int_equal(image_pack(elf, cut ? cut : 1, &packed, NULL), 0);
        len = make_bzimage(kernel, sizeof(kernel), packed.data, packed.len);
        assert_false(image_kernel_unpack(kernel, len, &found));
        free(packed.data);
    }
    n = make_elf(elf, 17); /* no PVH entry */
    assert_int_equal(image_pack(elf, n, &packed, NULL), 0);
    len = make_bzimage(kernel, sizeof(kernel), packed.data, packed.len);
    assert_false(image_kernel_unpack(kernel, len, &found));
    free(packed.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modules_in_load_order),
        cmocka_unit_test(test_builtin_modules_are_left_out),
        cmocka_unit_test(test_a_missing_module_is_named),
        cmocka_unit_test(test_odd_module_tables),
        cmocka_unit_test(test_pack_and_unpack),
        cmocka_unit_test(test_every_compressor_distributions_use),
        cmocka_unit_test(test_damaged_input),
        cmocka_unit_test(test_cpio_is_read_back),
        cmocka_unit_test(test_a_kernel_header),
        cmocka_unit_test(test_the_elf_inside_a_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
