/* Memory of a process as a snapshot takes it: this process stands for the VMM. Root only: what a mapping maps
 * is asked of the kernel through map_files. */
#include "unit.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "broker/memory.h"

enum { PAGES = 64 };
#define BYTES ((size_t)PAGES * MEMORY_PAGE)

struct fixture {
    int file;
    int pidfd;
    unsigned char *at;
};

static struct memory_vmm target(const struct fixture *f, int base_fd)
{
    return (struct memory_vmm){
        .pid = getpid(), .pidfd = f->pidfd, .base_fd = base_fd, .under_fd = -1, .bytes = BYTES};
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    char path[] = "/tmp/space-memory-XXXXXX";
    f->file = mkstemp(path);
    assert_true(f->file >= 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ftruncate(f->file, (off_t)BYTES), 0);
    assert_int_equal(pwrite(f->file, "base", 4, 5 * MEMORY_PAGE), 4);
    f->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    assert_true(f->pidfd >= 0);
    f->at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, f->file, 0);
    assert_true(f->at != MAP_FAILED);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    (void)munmap(f->at, BYTES);
    (void)close(f->file);
    (void)close(f->pidfd);
    free(f);
    return 0;
}

static unsigned char *page(const struct fixture *f, unsigned n)
{
    return f->at + (size_t)n * MEMORY_PAGE;
}

/* Scans both ways and expects these pages. */
static void expect(struct memory_vmm v, const uint32_t *numbers, size_t count, struct memory_map *ret)
{
    for (int plain = 1; plain >= 0; plain--) {
        struct error err = ERROR_INIT;
        struct memory_map m = {0};
        uint32_t got[PAGES];
        v.plain = plain;
        assert_ok(memory_scan(&v, &m, &err), &err);
        assert_int_equal(m.pages, count);
        memory_numbers(&m, 0, count, got);
        for (size_t i = 0; i < count; i++)
            assert_int_equal(got[i], numbers[i]);
        if (plain)
            memory_map_finish(&m);
        else
            *ret = m;
    }
}

static int scan(const struct memory_vmm *v)
{
    struct error err = ERROR_INIT;
    struct memory_map m = {0};
    int rc = memory_scan(v, &m, &err);
    memory_map_finish(&m);
    return rc;
}

static void test_changed_pages(void **state)
{
    struct fixture *f = *state;
    struct memory_map m = {0};
    struct error err = ERROR_INIT;
    unsigned char content[4 * MEMORY_PAGE];
    volatile unsigned char read_only = *page(f, 5); /* reading makes no page its own */
    assert_int_equal(read_only, 'b');
    expect(target(f, f->file), NULL, 0, &m);
    memory_map_finish(&m);
    const uint32_t numbers[] = {0, 7, 8, PAGES - 1};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        memset(page(f, numbers[i]), (int)i + 1, MEMORY_PAGE);
    struct memory_vmm v = target(f, f->file);
    expect(v, numbers, ARRAY_LEN(numbers), &m);
    assert_int_equal(m.count, 3); /* runs */
    assert_ok(memory_read(&v, &m, 0, 4, content, &err), &err);
    for (size_t i = 0; i < 4; i++)
        assert_memory_equal(content + i * MEMORY_PAGE, page(f, numbers[i]), MEMORY_PAGE);
    assert_ok(memory_read(&v, &m, 2, 2, content, &err), &err); /* from the middle of a run */
    assert_memory_equal(content, page(f, 8), MEMORY_PAGE);
    assert_memory_equal(content + MEMORY_PAGE, page(f, PAGES - 1), MEMORY_PAGE);
    assert_int_equal(memory_read(&v, &m, 3, 2, content, &err), ERROR_INTERNAL); /* more than there are */
    memory_map_finish(&m);
}

/* The kernel may hold one mapping as several. */
static void test_split_mapping(void **state)
{
    struct fixture *f = *state;
    struct memory_map m = {0};
    assert_int_equal(madvise(page(f, 10), 3 * MEMORY_PAGE, MADV_DONTFORK), 0);
    const uint32_t numbers[] = {9, 10, 11, 12, 13};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        *page(f, numbers[i]) = 'x';
    expect(target(f, f->file), numbers, ARRAY_LEN(numbers), &m);
    memory_map_finish(&m);
}

/* A part of the memory is mapped from another file, at its place there. */
static void test_part_from_under(void **state)
{
    struct fixture *f = *state;
    struct memory_map m = {0};
    struct memory_vmm v = target(f, f->file);
    AUTO_CLOSE int under = memfd_create("under", MFD_CLOEXEC);
    assert_int_equal(ftruncate(under, (off_t)BYTES), 0);
    assert_true(mmap(page(f, 20), 10 * MEMORY_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, under,
                     20 * MEMORY_PAGE) != MAP_FAILED);
    const uint32_t numbers[] = {19, 20, 29, 30};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        *page(f, numbers[i]) = 'x';
    assert_int_equal(scan(&v), ERROR_CONFLICT); /* a file that nobody has named */
    v.under_fd = under;
    expect(v, numbers, ARRAY_LEN(numbers), &m);
    memory_map_finish(&m);
    /* From the wrong place: another page would stand for it. */
    assert_true(mmap(page(f, 20), MEMORY_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, under,
                     21 * MEMORY_PAGE) != MAP_FAILED);
    assert_int_equal(scan(&v), ERROR_CONFLICT);
}

/* An address space that is not what a VMM's looks like. */
static void test_odd_mappings(void **state)
{
    struct fixture *f = *state;
    struct memory_vmm v = target(f, f->file);
    assert_int_equal(mprotect(page(f, 3), MEMORY_PAGE, PROT_READ), 0);
    assert_int_equal(scan(&v), ERROR_CONFLICT); /* a part is missing */
    assert_int_equal(mprotect(page(f, 3), MEMORY_PAGE, PROT_READ | PROT_WRITE), 0);
    assert_int_equal(scan(&v), 0);
    unsigned char *twice = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, f->file, 0);
    assert_int_equal(scan(&v), ERROR_CONFLICT);
    assert_int_equal(munmap(twice, BYTES), 0);
    unsigned char *one = mmap(NULL, MEMORY_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, f->file, 0);
    assert_int_equal(scan(&v), ERROR_CONFLICT);
    assert_int_equal(munmap(one, MEMORY_PAGE), 0);
    unsigned char *beyond = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, f->file, (off_t)BYTES / 2);
    assert_int_equal(scan(&v), ERROR_CONFLICT);
    assert_int_equal(munmap(beyond, BYTES), 0);
    unsigned char *shared = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, f->file, 0);
    assert_int_equal(scan(&v), 0); /* not what is looked for */
    assert_int_equal(munmap(shared, BYTES), 0);
    v.bytes *= 2;
    assert_int_equal(scan(&v), ERROR_CONFLICT);
    v.bytes /= 4;
    assert_int_equal(scan(&v), ERROR_CONFLICT);
}

/* Between the scan and the read the VMM takes a page away, or makes it unreadable. */
static void test_pages_that_go(void **state)
{
    struct fixture *f = *state;
    struct memory_vmm v = target(f, f->file);
    struct memory_map m = {0};
    struct error err = ERROR_INIT;
    unsigned char content[3 * MEMORY_PAGE];
    for (unsigned i = 20; i < 23; i++)
        *page(f, i) = 'x';
    assert_ok(memory_scan(&v, &m, &err), &err);
    assert_int_equal(mprotect(page(f, 21), MEMORY_PAGE, PROT_NONE), 0);
    assert_int_equal(memory_read(&v, &m, 0, 3, content, &err), ERROR_INTERNAL);
    assert_int_equal(munmap(page(f, 21), MEMORY_PAGE), 0);
    assert_int_equal(memory_read(&v, &m, 0, 3, content, &err), ERROR_INTERNAL);
    memory_map_finish(&m);
}

/* Anonymous memory between others that touch it. */
static void test_anonymous(void **state)
{
    struct fixture *f = *state;
    struct memory_vmm v = target(f, -1);
    struct memory_map m = {0};
    struct error err = ERROR_INIT;
    enum { SIZE = 37 * 1024 * 1024, NEXT = 1 << 20 };
    v.bytes = SIZE;
    assert_int_equal(scan(&v), ERROR_CONFLICT); /* none */
    unsigned char *all =
        mmap(NULL, SIZE + 2 * NEXT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(all != MAP_FAILED);
    unsigned char *memory = all + NEXT;
    assert_int_equal(madvise(memory, SIZE, MADV_DONTFORK), 0);
    assert_int_equal(madvise(memory, SIZE, MADV_NOHUGEPAGE), 0);
    memory[0] = memory[SIZE - 1] = 1;
    volatile unsigned char zero = memory[100 * MEMORY_PAGE]; /* the kernel's own zero page */
    assert_int_equal(zero, 0);
    for (int plain = 0; plain < 2; plain++) {
        v.plain = plain;
        assert_ok(memory_scan(&v, &m, &err), &err);
        assert_int_equal(m.runs[0].address, (uintptr_t)memory);
        assert_int_equal(m.runs[m.count - 1].page, SIZE / MEMORY_PAGE - 1);
        assert_true(m.pages == 2 || (plain && m.pages == 3));
        memory_map_finish(&m);
    }
    unsigned char *other = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(madvise(other, SIZE, MADV_NOHUGEPAGE), 0);
    assert_int_equal(scan(&v), ERROR_CONFLICT); /* which of the two? */
    assert_int_equal(munmap(other, SIZE), 0);
    assert_int_equal(munmap(all, SIZE + 2 * NEXT), 0);
}

/* --- memory in two pieces --- */

#define MIB (1ULL << 20)
#define REST (64 * MIB)
#define HOLE (16 * MIB)

/* Where in one stretch of addresses the two pieces lie. */
struct layout {
    uint64_t first, low, high;
};

static unsigned char *map_piece(unsigned char *at, uint64_t n)
{
    unsigned char *p =
        mmap(at, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    assert_true(p == at);
    assert_int_equal(madvise(p, n, MADV_NOHUGEPAGE), 0); /* its own, whatever lies beside it */
    return p;
}

/* What a guest finds at its address 0xe0000. */
static void put_rsdp(unsigned char *start, bool right)
{
    unsigned char *at = start + 0xe0000;
    unsigned sum = 0;
    memcpy(at, "RSD PTR \0SPACE \2\1\2\3\4", 20);
    for (unsigned i = 0; i < 20; i++)
        sum += at[i];
    at[8] = (unsigned char)(256 - sum % 256 + !right);
}

static unsigned char *reserve(uint64_t n)
{
    unsigned char *all = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(all != MAP_FAILED);
    return all;
}

static void expect_run(const struct memory_map *m, uint32_t page_number, const unsigned char *at)
{
    size_t i = 0;
    while (i < m->count && m->runs[i].page != page_number)
        i++;
    assert_true(i < m->count);
    assert_int_equal(m->runs[i].address, (uintptr_t)at);
}

static void test_two_pieces(void **state)
{
    static const struct layout layouts[] = {
        {3072 * MIB, REST, 0}, /* the second right below the first: one mapping, as the kernel has it mostly
                                */
        {3072 * MIB, REST + HOLE, 0}, {3072 * MIB, 0, 3072 * MIB},        {3072 * MIB, 0, 3072 * MIB + HOLE},
        {3328 * MIB, REST, 0},        {3328 * MIB, 0, 3328 * MIB + HOLE},
    };
    struct fixture *f = *state;
    struct error err = ERROR_INIT;
    for (size_t i = 0; i < ARRAY_LEN(layouts); i++) {
        const struct layout *l = &layouts[i];
        struct memory_vmm v = target(f, -1);
        struct memory_map m = {0};
        v.bytes = l->first + REST;
        v.holed = true;
        unsigned char *all = reserve(v.bytes + HOLE);
        unsigned char *low = map_piece(all + l->low, l->first);
        unsigned char *high = map_piece(all + l->high, REST);
        put_rsdp(low, true);
        low[5 * MEMORY_PAGE] = high[7 * MEMORY_PAGE] = 1;
        for (int plain = 0; plain < 2; plain++) {
            v.plain = plain;
            assert_ok(memory_scan(&v, &m, &err), &err);
            expect_run(&m, 5, low + 5 * MEMORY_PAGE);
            expect_run(&m, 0xe0, low + 0xe0000);
            expect_run(&m, (uint32_t)(l->first / MEMORY_PAGE) + 7, high + 7 * MEMORY_PAGE);
            assert_true(m.pages >= 3 &&
                        m.pages <= 5); /* looking elsewhere may leave the kernel's zero page */
            memory_map_finish(&m);
        }
        assert_int_equal(munmap(all, v.bytes + HOLE), 0);
    }
}

/* As large as each other, they are told apart all the same; and where nothing or both begin the memory, or it
 * is divided elsewhere, it is refused. */
static void test_pieces_nobody_can_tell(void **state)
{
    struct fixture *f = *state;
    struct memory_vmm v = target(f, -1);
    struct memory_map m = {0};
    struct error err = ERROR_INIT;
    v.bytes = 6144 * MIB;
    v.holed = true;
    unsigned char *all = reserve(v.bytes);
    unsigned char *one = map_piece(all, 3072 * MIB);
    unsigned char *two = map_piece(all + 3072 * MIB, 3072 * MIB);
    assert_int_equal(scan(&v), ERROR_CONFLICT); /* none */
    put_rsdp(two, false);
    assert_int_equal(scan(&v), ERROR_CONFLICT); /* a checksum that is wrong is none */
    put_rsdp(two, true);
    assert_ok(memory_scan(&v, &m, &err), &err);
    expect_run(&m, 0xe0, two + 0xe0000);
    memory_map_finish(&m);
    put_rsdp(one, true);
    assert_int_equal(scan(&v), ERROR_CONFLICT); /* both */
    assert_int_equal(munmap(one, 3072 * MIB), 0);
    assert_int_equal(scan(&v), ERROR_CONFLICT); /* half of it */
    v.holed = false;
    assert_int_equal(scan(&v), ERROR_CONFLICT);
    assert_int_equal(munmap(all, v.bytes), 0);
}

/* Whatever is found of a process that has ended is nobody's. */
static void test_process_that_ended(void **state)
{
    struct fixture *f = *state;
    struct memory_map m = {0};
    struct error err = ERROR_INIT;
    unsigned char content[MEMORY_PAGE];
    *page(f, 1) = 'x';
    pid_t pid = fork();
    if (pid == 0) {
        (void)pause();
        _exit(0);
    }
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct memory_vmm v = {.pid = pid, .pidfd = pidfd, .base_fd = f->file, .under_fd = -1, .bytes = BYTES};
    assert_ok(memory_scan(&v, &m, &err), &err);
    assert_int_equal(m.pages, 1);
    assert_ok(memory_read(&v, &m, 0, 1, content, &err), &err);
    assert_int_equal(kill(pid, SIGKILL), 0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(memory_read(&v, &m, 0, 1, content, &err), ERROR_NOT_FOUND);
    memory_map_finish(&m);
    assert_int_equal(memory_scan(&v, &m, &err), ERROR_NOT_FOUND);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(memory_scan(&v, &m, &err), ERROR_NOT_FOUND);
    (void)close(pidfd);
}

/* A page whose content another one provides when it likes, as a hostile VMM could: its descriptor. */
static int stall(unsigned char *at)
{
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register range = {.range = {(uintptr_t)at, MEMORY_PAGE},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -1;
    assert_int_equal(ioctl(fd, UFFDIO_API, &api), 0);
    assert_int_equal(ioctl(fd, UFFDIO_REGISTER, &range), 0);
    return fd;
}

struct reading {
    struct memory_vmm v;
    struct memory_map m;
    int rc;
};

static void *read_one(void *arg)
{
    struct reading *r = arg;
    unsigned char content[MEMORY_PAGE];
    r->rc = memory_read(&r->v, &r->m, 0, 1, content, NULL);
    return NULL;
}

/* Only while a read waits does its time go by. */
static void test_time_of_reading(void **state)
{
    struct fixture *f = *state;
    struct memory_clock c;
    struct reading r = {.v = target(f, f->file)};
    memory_clock_init(&c, 160 << 20);
    assert_int_equal(c.left_ns, 70 * CLOCK_NS_PER_S);
    r.v.clock = &c;
    const int64_t hour = 3600 * CLOCK_NS_PER_S;
    *page(f, 1) = 'x';
    assert_int_equal(memory_scan(&r.v, &r.m, NULL), 0);
    assert_false(memory_clock_overdue(&c, clock_mono_ns() + hour)); /* none is under way */
    int64_t left = c.left_ns;
    assert_true(left > 0 && left < 70 * CLOCK_NS_PER_S);
    unsigned char *at = mmap(NULL, MEMORY_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    AUTO_CLOSE int uffd = stall(at);
    if (uffd < 0) {
        print_message("no userfaultfd here: a read that waits is not tried\n");
        memory_map_finish(&r.m);
        return;
    }
    r.m.runs[0].address = (uintptr_t)at;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_one, &r), 0);
    struct pollfd waits = {.fd = uffd, .events = POLLIN};
    assert_int_equal(poll(&waits, 1, 10000), 1);
    int64_t now = clock_mono_ns();
    assert_false(memory_clock_overdue(&c, now));
    assert_true(memory_clock_overdue(&c, now + left));
    struct uffdio_zeropage zero = {.range = {(uintptr_t)at, MEMORY_PAGE}};
    assert_int_equal(ioctl(uffd, UFFDIO_ZEROPAGE, &zero), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(r.rc, 0);
    assert_false(memory_clock_overdue(&c, clock_mono_ns() + hour));
    assert_true(c.left_ns < left);
    c.left_ns = 0; /* used up: the next one is overdue at once */
    assert_int_equal(memory_read(&r.v, &r.m, 0, 1, (unsigned char[MEMORY_PAGE]){0}, NULL), 0);
    assert_int_equal(c.left_ns, 0);
    memory_map_finish(&r.m);
    assert_int_equal(munmap(at, MEMORY_PAGE), 0);
}

int main(void)
{
    if (geteuid() != 0) {
        print_message("skipped: needs root to ask what a mapping maps\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_changed_pages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_split_mapping, setup, teardown),
        cmocka_unit_test_setup_teardown(test_part_from_under, setup, teardown),
        cmocka_unit_test_setup_teardown(test_odd_mappings, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pages_that_go, setup, teardown),
        cmocka_unit_test_setup_teardown(test_anonymous, setup, teardown),
        cmocka_unit_test_setup_teardown(test_two_pieces, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pieces_nobody_can_tell, setup, teardown),
        cmocka_unit_test_setup_teardown(test_process_that_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(test_time_of_reading, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
