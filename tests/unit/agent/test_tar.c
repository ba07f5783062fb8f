/* The tar format by itself: what it reads, what it refuses, and that it reads what it writes. */
#include "unit.h"

#include <sys/mman.h>

#include "agent/tar.h"
#include "agent/tar_impl.h"
#include "base/cleanup.h"
#include "tarball.h"

static struct tarball t;
static struct tar_reader *r;
static int fd = -1;

static int setup(void **state)
{
    (void)state;
    tarball_init(&t);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tarball_finish(&t);
    tar_reader_destroy(r);
    r = NULL;
    if (fd >= 0)
        (void)close(fd);
    fd = -1;
    return 0;
}

static void open_it(void)
{
    tar_reader_destroy(r);
    if (fd >= 0)
        (void)close(fd);
    fd = memfd_create("tar", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, buf_head(&t.b), buf_len(&t.b)), buf_len(&t.b));
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    r = tar_reader_create(fd);
    assert_non_null(r);
}

static void next_is(struct tar_entry *e, enum tar_type type, const char *name)
{
    enum tar_result got = tar_next(r, e);
    if (got != TAR_ENTRY)
        fail_msg("%d: %s", got, tar_why(r));
    assert_int_equal(e->type, type);
    assert_string_equal(e->name, name);
}

/* What is in t is refused, with a text in which `why` stands. */
static void is_bad(const char *why)
{
    struct tar_entry e;
    enum tar_result got;
    open_it();
    while ((got = tar_next(r, &e)) == TAR_ENTRY)
        ;
    assert_int_equal(got, TAR_BAD);
    if (!strstr(tar_why(r), why))
        fail_msg("'%s' instead of '%s'", tar_why(r), why);
    buf_consume(&t.b, buf_len(&t.b));
}

static void data_is(const char *text)
{
    const unsigned char *p;
    size_t n = 0;
    ssize_t some;
    while ((some = tar_data(r, 3, &p)) > 0) {
        assert_memory_equal(p, text + n, some);
        n += (size_t)some;
    }
    assert_int_equal(some, 0);
    assert_int_equal(n, strlen(text));
}

static void plain_entries(void **state)
{
    struct tar_entry e;
    (void)state;
    tarball_put(&t, '0', "a", NULL, "hello");
    tarball_put(&t, '\0', "old/", NULL, NULL);
    tarball_put(&t, '0', "skipped", NULL, "some bytes that nobody reads");
    tarball_put(&t, '1', "hard", "a", NULL);
    tarball_put(&t, '2', "soft", "../../etc", NULL);
    tarball_put(&t, 'V', "a label", NULL, NULL);
    tarball_put(&t, '5', "dir/", NULL, NULL);
    tarball_put(&t, '6', "fifo", NULL, NULL);
    tarball_put(&t, '7', "contiguous", NULL, "x");
    tarball_end(&t);
    open_it();
    next_is(&e, TAR_FILE, "a");
    assert_int_equal(e.mode, 0644);
    assert_int_equal(e.size, 5);
    assert_int_equal(e.mtime_s, 1);
    data_is("hello");
    next_is(&e, TAR_DIRECTORY, "old/");
    next_is(&e, TAR_FILE, "skipped");
    next_is(&e, TAR_HARD_LINK, "hard");
    assert_string_equal(e.link, "a");
    assert_int_equal(e.size, 0);
    next_is(&e, TAR_SYMLINK, "soft");
    assert_string_equal(e.link, "../../etc");
    next_is(&e, TAR_DIRECTORY, "dir/");
    next_is(&e, TAR_FIFO, "fifo");
    next_is(&e, TAR_FILE, "contiguous");
    assert_int_equal(tar_next(r, &e), TAR_END);
}

static void names_of_all_kinds(void **state)
{
    struct tar_entry e;
    char long_name[400], h[512];
    (void)state;
    memset(long_name, 'n', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    tarball_put(&t, 'L', "././@LongLink", NULL, long_name);
    tarball_put(&t, '0', "cut", NULL, "1");
    tarball_put(&t, 'K', "././@LongLink", NULL, long_name);
    tarball_put(&t, '2', "link", "cut", NULL);
    tarball_pax(&t, 'x', "path", "from pax\xff\xfe");
    tarball_put(&t, '0', "cut", NULL, NULL);
    tarball_pax(&t, 'x', "linkpath", long_name);
    tarball_put(&t, '2', "link", "cut", NULL);
    tarball_header((unsigned char *)h, '0', "base", "", 0);
    memcpy(h + 345, "some/prefix", 11);
    tarball_checksum((unsigned char *)h);
    tarball_raw(&t, h, 512);
    memcpy(h + 257, "ustar  ", 8); /* GNU's: no prefix */
    tarball_checksum((unsigned char *)h);
    tarball_raw(&t, h, 512);
    tarball_end(&t);
    open_it();
    next_is(&e, TAR_FILE, long_name);
    data_is("1");
    next_is(&e, TAR_SYMLINK, "link");
    assert_string_equal(e.link, long_name);
    next_is(&e, TAR_FILE, "from pax\xff\xfe");
    next_is(&e, TAR_SYMLINK, "link");
    assert_string_equal(e.link, long_name);
    next_is(&e, TAR_FILE, "some/prefix/base");
    next_is(&e, TAR_FILE, "base");
    assert_int_equal(tar_next(r, &e), TAR_END);
}

static void values_of_extended_headers(void **state)
{
    struct tar_entry e;
    struct buf pax;
    (void)state;
    buf_init(&pax, 4096);
    tarball_record(&pax, "uid", "3000000", 7);
    tarball_record(&pax, "gid", "4000000", 7);
    tarball_record(&pax, "mtime", "-1.5", 4);
    tarball_record(&pax, "uname", "somebody", 8);
    tarball_record(&pax, "gname", "", 0);
    tarball_record(&pax, "size", "3", 1);
    tarball_record(&pax, "comment", "says nothing", 12);
    tarball_record(&pax, "SCHILY.xattr.user.a%3Db%25", "v\0=\n", 4);
    tarball_record(&pax, "SCHILY.xattr.user.empty", "", 0);
    tarball_pax(&t, 'g', "mtime", "77.25");
    tarball_pax_raw(&t, 'x', buf_head(&pax), buf_len(&pax));
    tarball_put(&t, '0', "a", NULL, "abc");
    tarball_put(&t, '0', "b", NULL, NULL);
    tarball_end(&t);
    buf_finish(&pax);
    open_it();
    next_is(&e, TAR_FILE, "a");
    assert_int_equal(e.uid, 3000000);
    assert_int_equal(e.gid, 4000000);
    assert_int_equal(e.mtime_s, -2);
    assert_int_equal(e.mtime_ns, 500000000);
    assert_string_equal(e.user, "somebody");
    assert_string_equal(e.group, "");
    char key[TAR_XATTR_NAME_MAX];
    const unsigned char *value;
    size_t cursor = 0, n;
    assert_true(tar_xattr(&e, &cursor, key, &value, &n));
    assert_string_equal(key, "user.a=b%");
    assert_int_equal(n, 4);
    assert_memory_equal(value, "v\0=\n", 4);
    assert_true(tar_xattr(&e, &cursor, key, &value, &n));
    assert_string_equal(key, "user.empty");
    assert_int_equal(n, 0);
    assert_false(tar_xattr(&e, &cursor, key, &value, &n));
    next_is(&e, TAR_FILE, "b"); /* only the global header is still in force */
    assert_int_equal(e.mtime_s, 77);
    assert_int_equal(e.mtime_ns, 250000000);
    assert_int_equal(e.uid, 0);
    assert_int_equal(tar_next(r, &e), TAR_END);
}

static void hard_links_with_data(void **state)
{
    struct tar_entry e;
    unsigned char h[512];
    (void)state;
    tarball_header(h, '1', "without", "a", 1234); /* as old programs had it: no data follows */
    tarball_raw(&t, h, 512);
    tarball_pax(&t, 'x', "size", "4");
    tarball_put(&t, '1', "with", "a", "data");
    tarball_put(&t, '0', "after", NULL, NULL);
    tarball_end(&t);
    open_it();
    next_is(&e, TAR_HARD_LINK, "without");
    next_is(&e, TAR_HARD_LINK, "with");
    next_is(&e, TAR_FILE, "after");
    assert_int_equal(tar_next(r, &e), TAR_END);
}

static void sparse_is(const struct tar_entry *e, const char *text)
{
    assert_true(e->sparse);
    assert_int_equal(e->size, 2000);
    assert_int_equal(e->segment_count, 2);
    assert_int_equal(e->segments[0].offset, 10);
    assert_int_equal(e->segments[0].size, 3);
    assert_int_equal(e->segments[1].offset, 1000);
    assert_int_equal(e->segments[1].size, 4);
    data_is(text);
}

static void put_old_sparse(void)
{
    unsigned char h[512];
    tarball_header(h, 'S', "old", "", 7);
    memcpy(h + 257, "ustar  ", 8);
    memcpy(h + 386,
           "00000000012\0"
           "00000000003\0",
           24);
    memcpy(h + 483, "00000003720", 12);
    h[482] = 1;
    tarball_checksum(h);
    tarball_raw(&t, h, 512);
    memset(h, 0, 512);
    memcpy(h,
           "00000001750\0"
           "00000000004\0",
           24);
    tarball_raw(&t, h, 512);
    tarball_data(&t, "abcdefg", 7);
}

static void sparse_files_of_all_kinds(void **state)
{
    struct tar_entry e;
    struct buf pax;
    char map[512 + 7] = "2\n10\n3\n1000\n4\n";
    (void)state;
    buf_init(&pax, 4096);
    tarball_record(&pax, "GNU.sparse.size", "2000", 4);
    tarball_record(&pax, "GNU.sparse.offset", "10", 2);
    tarball_record(&pax, "GNU.sparse.numbytes", "3", 1);
    tarball_record(&pax, "GNU.sparse.offset", "1000", 4);
    tarball_record(&pax, "GNU.sparse.numbytes", "4", 1);
    tarball_pax_raw(&t, 'x', buf_head(&pax), buf_len(&pax));
    tarball_put(&t, '0', "kind 0.0", NULL, "abcdefg");
    buf_consume(&pax, buf_len(&pax));
    tarball_record(&pax, "GNU.sparse.size", "2000", 4);
    tarball_record(&pax, "GNU.sparse.name", "kind 0.1", 8);
    tarball_record(&pax, "GNU.sparse.map", "10,3,1000,4", 11);
    tarball_pax_raw(&t, 'x', buf_head(&pax), buf_len(&pax));
    tarball_put(&t, '0', "other", NULL, "abcdefg");
    buf_consume(&pax, buf_len(&pax));
    tarball_record(&pax, "GNU.sparse.major", "1", 1);
    tarball_record(&pax, "GNU.sparse.minor", "0", 1);
    tarball_record(&pax, "GNU.sparse.realsize", "2000", 4);
    tarball_record(&pax, "GNU.sparse.name", "kind 1.0", 8);
    tarball_pax_raw(&t, 'x', buf_head(&pax), buf_len(&pax));
    unsigned char h[512];
    tarball_header(h, '0', "other", "", sizeof(map));
    tarball_raw(&t, h, 512);
    memcpy(map + 512, "abcdefg", 7);
    tarball_data(&t, map, sizeof(map));
    put_old_sparse();
    tarball_end(&t);
    buf_finish(&pax);
    open_it();
    next_is(&e, TAR_FILE, "kind 0.0");
    sparse_is(&e, "abcdefg");
    next_is(&e, TAR_FILE, "kind 0.1");
    sparse_is(&e, "abcdefg");
    next_is(&e, TAR_FILE, "kind 1.0");
    sparse_is(&e, "abcdefg");
    next_is(&e, TAR_FILE, "old");
    sparse_is(&e, "abcdefg");
    assert_int_equal(tar_next(r, &e), TAR_END);
}

static void put_map(const char *map)
{
    struct buf pax;
    buf_init(&pax, 4096);
    tarball_record(&pax, "GNU.sparse.size", "2000", 4);
    tarball_record(&pax, "GNU.sparse.map", map, strlen(map));
    tarball_pax_raw(&t, 'x', buf_head(&pax), buf_len(&pax));
    tarball_put(&t, '0', "sparse", NULL, "abcdefg");
    tarball_end(&t);
    buf_finish(&pax);
}

static void maps_that_lie(void **state)
{
    static const char *const maps[] = {
        "10,3,1000,5",                 /* more than there is */
        "10,3",                        /* less */
        "1000,4,10,3",                 /* backwards */
        "10,3,12,4",                   /* one over the other */
        "10,3,1999,4",                 /* behind the end */
        "10,7,18446744073709551615,0", /* nowhere */
        "0,18446744073709551615,5,8",  /* around the end of numbers */
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(maps); i++) {
        put_map(maps[i]);
        is_bad("sparse");
    }
    put_map("10,x");
    is_bad("number");
    tarball_pax(&t, 'x', "GNU.sparse.numbytes", "5");
    tarball_put(&t, '0', "a", NULL, NULL);
    is_bad("number");
    tarball_pax(&t, 'x', "GNU.sparse.offset", "5");
    tarball_put(&t, '0', "a", NULL, NULL);
    is_bad("sparse");
    tarball_pax(&t, 'x', "GNU.sparse.major", "2");
    tarball_put(&t, '0', "a", NULL, NULL);
    is_bad("unknown kind");
    tarball_pax(&t, 'x', "GNU.sparse.major", "1");
    tarball_put(&t, '0', "a", NULL, "99999999999\n1\n1\n");
    is_bad("damaged");
}

static void bad_record(const char *text, size_t n, const char *why)
{
    tarball_pax_raw(&t, 'x', text, n);
    tarball_put(&t, '0', "a", NULL, NULL);
    tarball_end(&t);
    is_bad(why);
}

static void records_that_lie(void **state)
{
    (void)state;
    bad_record("11 path=xy", 10, "records");
    bad_record("99 path=xy\n", 11, "records");
    bad_record("9 path=xy\n", 10, "records");
    bad_record("-1 path=x\n", 10, "records");
    bad_record("18446744073709551616 path=x\n", 28, "records");
    bad_record("3 x\n", 4, "records");
    bad_record("5 =x\n", 5, "records");
    bad_record("0", 1, "records");
    bad_record("11 path=\0x\n", 11, "NUL");
    bad_record("10 size=x\n", 10, "number");
    bad_record("11 size=-1\n", 11, "number");
    bad_record("15 mtime=1.2.3\n", 15, "number");
    bad_record("11 mtime=-\n", 11, "number");
    bad_record("18 uid=4294967295\n", 18, "owner");
    bad_record("29 size=18446744073709551615\n", 29, "too large");
    tarball_pax(&t, 'g', "path", "everything");
    tarball_put(&t, '0', "a", NULL, NULL);
    is_bad("global");
}

static void headers_that_lie(void **state)
{
    unsigned char h[512];
    static const char zero[512];
    (void)state;
    tarball_header(h, '0', "a", "", 0);
    h[0] = 'b';
    tarball_raw(&t, h, 512);
    is_bad("not a tar archive");
    tarball_header(h, '0', "a", "", 0);
    memcpy(h + 124, "00000000009", 12);
    tarball_checksum(h);
    tarball_raw(&t, h, 512);
    is_bad("number");
    memset(h + 124, 0xff, 12); /* -1 */
    tarball_checksum(h);
    tarball_raw(&t, h, 512);
    is_bad("number");
    tarball_header(h, 'M', "a", "", 0);
    tarball_raw(&t, h, 512);
    is_bad("unknown type");
    tarball_header(h, '0', "", "", 0);
    tarball_raw(&t, h, 512);
    is_bad("without a name");
    tarball_put(&t, '0', "dir/", NULL, "data");
    is_bad("directory with data");
    tarball_pax(&t, 'x', "path", "nobody");
    tarball_end(&t);
    is_bad("without an entry");
    tarball_put(&t, '0', "a", NULL, "data");
    is_bad("end mark");
    is_bad("end mark"); /* nothing at all */
    tarball_raw(&t, zero, 300);
    is_bad("in the middle");
    tarball_header(h, 'x', "a", "", 0777777777);
    tarball_raw(&t, h, 512);
    is_bad("too large");
    tarball_header(h, 'L', "a", "", 65537);
    tarball_raw(&t, h, 512);
    is_bad("too long");
}

/* --- writing --- */

static void write_and_read(const struct tar_entry *from, struct buf *pax, struct tar_entry *ret)
{
    struct buf none;
    buf_init(&none, TAR_PAX_MAX);
    assert_true(tar_put(&t.b, from, pax ? pax : &none));
    buf_finish(&none);
    assert_int_equal(buf_len(&t.b) % TAR_BLOCK, 0);
    open_it();
    if (tar_next(r, ret) != TAR_ENTRY)
        fail_msg("%s", tar_why(r));
    buf_consume(&t.b, buf_len(&t.b));
    assert_int_equal(ret->type, from->type);
    assert_string_equal(ret->name, from->name);
    assert_string_equal(ret->link, from->link);
    assert_string_equal(ret->user, from->user);
    assert_string_equal(ret->group, from->group);
    assert_int_equal(ret->mode, from->mode);
    assert_int_equal(ret->uid, from->uid);
    assert_int_equal(ret->gid, from->gid);
    assert_int_equal(ret->mtime_s, from->mtime_s);
    assert_int_equal(ret->mtime_ns, from->mtime_ns);
    assert_true(ret->size == from->size);
    assert_int_equal(ret->major, from->major);
    assert_int_equal(ret->minor, from->minor);
}

static const struct tar_entry plain = {.type = TAR_FILE,
                                       .name = "a",
                                       .link = "",
                                       .user = "root",
                                       .group = "wheel",
                                       .mode = 0640,
                                       .mtime_s = 1700000000};

static void what_is_written_is_read(void **state)
{
    struct tar_entry e = plain, got;
    static const int64_t times[] = {0, -1, 1LL << 33, -(1LL << 40), INT64_MAX / 4};
    (void)state;
    write_and_read(&e, NULL, &got);
    for (size_t i = 0; i < ARRAY_LEN(times); i++) {
        e.mtime_s = times[i];
        e.mtime_ns = 0;
        write_and_read(&e, NULL, &got);
        e.mtime_ns = 5;
        write_and_read(&e, NULL, &got);
        e.mtime_ns = 500000000;
        write_and_read(&e, NULL, &got);
    }
    e = plain;
    e.mode = 07777;
    e.uid = 0xfffffffe;
    e.gid = 070000000;
    e.user = "a name that is longer than what a header has room for";
    e.group = "exactly-thirty-two-bytes-of-name";
    e.size = 9ULL << 30;
    write_and_read(&e, NULL, &got);
    e.size = INT64_MAX / 2;
    write_and_read(&e, NULL, &got);
    e = plain;
    e.type = TAR_CHAR;
    e.major = 0xfff;
    e.minor = 0xfffff;
    write_and_read(&e, NULL, &got);
    e.type = TAR_SYMLINK;
    e.major = e.minor = 0;
    e.link = "to\n\xff somewhere";
    write_and_read(&e, NULL, &got);
}

static void names_of_all_lengths_are_written(void **state)
{
    struct tar_entry e = plain, got;
    char name[700], link[700];
    (void)state;
    for (size_t n = 1; n < 600; n++) {
        for (size_t i = 0; i < n; i++) {
            name[i] = (n % 3 == 0 && i % 37 == 36) || (n % 3 == 1 && i % 101 == 100)
                          ? '/'
                          : (char)(1 + (i * 7 + n) % 46);
            link[i] = (char)(255 - i % 99);
        }
        name[n] = link[n] = '\0';
        if (name[n - 1] == '/')
            name[n - 1] = 'x';
        e.type = TAR_SYMLINK;
        e.name = name;
        e.link = link;
        write_and_read(&e, NULL, &got);
    }
}

static void sparse_files_are_written(void **state)
{
    struct tar_segment segments[100];
    struct tar_entry e = plain, got;
    struct buf none;
    (void)state;
    buf_init(&none, 4096);
    for (unsigned i = 0; i < 100; i++)
        segments[i] = (struct tar_segment){i * 100000ULL, i == 99 ? 0 : 7};
    e.sparse = true;
    e.size = 99 * 100000ULL;
    e.segments = segments;
    e.segment_count = 100;
    assert_true(tar_put(&t.b, &e, &none));
    for (unsigned i = 0; i < 99; i++)
        tarball_raw(&t, "1234567", 7);
    tarball_data(&t, NULL, 0);
    while (buf_len(&t.b) % TAR_BLOCK)
        tarball_raw(&t, "", 1);
    tarball_end(&t);
    open_it();
    next_is(&got, TAR_FILE, "a");
    assert_true(got.sparse);
    assert_int_equal(got.size, e.size);
    assert_int_equal(got.segment_count, 100);
    assert_memory_equal(got.segments, segments, sizeof(segments));
    assert_int_equal(tar_next(r, &got), TAR_END);
    buf_finish(&none);
}

static void numbers(void **state)
{
    int64_t v;
    (void)state;
    assert_true(tar_number((const unsigned char *)"  17 \0\0\0", 8, &v) && v == 15);
    assert_true(tar_number((const unsigned char *)"\0\0\0\0\0\0\0\0", 8, &v) && v == 0);
    assert_true(tar_number((const unsigned char *)"77777777", 8, &v) && v == 077777777);
    assert_true(tar_number((const unsigned char *)"\x80\0\0\0\0\0\1\2", 8, &v) && v == 258);
    assert_true(tar_number((const unsigned char *)"\xff\xff\xff\xff\xff\xff\xff\xfe", 8, &v) && v == -2);
    assert_false(tar_number((const unsigned char *)"18", 2, &v));
    assert_false(tar_number((const unsigned char *)"x", 1, &v));
    assert_false(tar_number((const unsigned char *)"\x80\x01\0\0\0\0\0\0\0\0\0\0", 12, &v));
    assert_false(tar_number((const unsigned char *)"\xff\x01\0\0\0\0\0\0\0\0\0\0", 12, &v));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(plain_entries, setup, teardown),
        cmocka_unit_test_setup_teardown(names_of_all_kinds, setup, teardown),
        cmocka_unit_test_setup_teardown(values_of_extended_headers, setup, teardown),
        cmocka_unit_test_setup_teardown(hard_links_with_data, setup, teardown),
        cmocka_unit_test_setup_teardown(sparse_files_of_all_kinds, setup, teardown),
        cmocka_unit_test_setup_teardown(maps_that_lie, setup, teardown),
        cmocka_unit_test_setup_teardown(records_that_lie, setup, teardown),
        cmocka_unit_test_setup_teardown(headers_that_lie, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_written_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(names_of_all_lengths_are_written, setup, teardown),
        cmocka_unit_test_setup_teardown(sparse_files_are_written, setup, teardown),
        cmocka_unit_test(numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
