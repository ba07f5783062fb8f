/* witness: a program of the tests that runs inside sandboxes and can tell afterwards whether what a sandbox
 * went through is true. Static, so that it runs in any template.
 *
 *   tls          prints the random bytes of a TLS ClientHello, made by a fresh library, in hexadecimal
 *   clocks       prints the wall, monotonic and boot clocks in nanoseconds
 *   tick         prints a line every millisecond, for ever
 *   port NUMBER  tries to listen on a vsock port: prints "held" when another does, else "taken" or an error
 *   dirty MIB    writes MIB of memory that does not compress, prints "dirty", keeps it until stdin ends
 *   memory MIB   keeps MIB of memory and changes a page at a time, for ever; for every line on stdin it
 *                prints "ok ROUNDS" when every page holds what it should, else "BAD PAGE" */
#include <errno.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))
#define MIB_MAX 4096
#define REST_MS 20         /* between sixteen pages: many of these share a machine */
#define HELLO_RANDOM_AT 11 /* record header 5, handshake header 4, version 2 */
#define HELLO_RANDOM 32

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ x >> 33;
}

static int tls(void)
{
    unsigned char hello[4096];
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = ctx ? SSL_new(ctx) : NULL;
    BIO *in = BIO_new(BIO_s_mem());
    BIO *out = BIO_new(BIO_s_mem());
    if (!ssl || !in || !out)
        return EXIT_FAILURE;
    SSL_set_bio(ssl, in, out);
    (void)SSL_connect(ssl); /* wants an answer, which never comes: the hello is written */
    int n = BIO_read(out, hello, sizeof(hello));
    if (n < HELLO_RANDOM_AT + HELLO_RANDOM)
        return EXIT_FAILURE;
    for (int i = 0; i < HELLO_RANDOM; i++)
        (void)printf("%02x", hello[HELLO_RANDOM_AT + i]);
    (void)printf("\n");
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    return EXIT_SUCCESS;
}

/* --- memory --- */

struct memory {
    uint64_t *words;
    uint64_t *rounds; /* of each page: what it holds follows from this and its number */
    size_t pages;
};

static void fill(const struct memory *m, size_t page)
{
    for (size_t i = 0; i < WORDS; i++)
        m->words[page * WORDS + i] = mix(page << 40 ^ m->rounds[page] << 10 ^ i);
}

static bool holds(const struct memory *m, size_t page)
{
    for (size_t i = 0; i < WORDS; i++)
        if (m->words[page * WORDS + i] != mix(page << 40 ^ m->rounds[page] << 10 ^ i))
            return false;
    return true;
}

static void report(const struct memory *m, uint64_t round)
{
    for (size_t page = 0; page < m->pages; page++)
        if (!holds(m, page)) {
            (void)printf("BAD %zu\n", page);
            return;
        }
    (void)printf("ok %llu\n", (unsigned long long)round);
}

/* How much of standard input is there now: -1 at its end. */
static ssize_t asked(int timeout_ms)
{
    char line[64];
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&p, 1, timeout_ms) <= 0)
        return 0;
    ssize_t n = read(STDIN_FILENO, line, sizeof(line));
    return n > 0 ? n : -1;
}

static bool take(struct memory *m, size_t mib)
{
    m->pages = (mib << 20) / PAGE;
    m->words = mmap(NULL, m->pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m->rounds = calloc(m->pages, sizeof(*m->rounds));
    return m->words != MAP_FAILED && m->rounds;
}

static int memory(size_t mib)
{
    struct memory m;
    if (!take(&m, mib))
        return EXIT_FAILURE;
    for (size_t page = 0; page < m.pages; page++)
        fill(&m, page);
    (void)printf("ready\n");
    (void)fflush(stdout);
    for (uint64_t round = 1;; round++) {
        size_t page = mix(round) % m.pages;
        m.rounds[page] = round;
        fill(&m, page);
        ssize_t n = round % 16 == 0 ? asked(REST_MS) : 0;
        if (n < 0)
            return EXIT_SUCCESS;
        if (n > 0) {
            report(&m, round);
            (void)fflush(stdout);
        }
    }
}

static int dirty(size_t mib)
{
    struct memory m;
    if (!take(&m, mib))
        return EXIT_FAILURE;
    for (size_t page = 0; page < m.pages; page++)
        fill(&m, page);
    (void)printf("dirty\n");
    (void)fflush(stdout);
    while (asked(-1) >= 0)
        ;
    return EXIT_SUCCESS;
}

static int tick(void)
{
    const struct timespec rest = {0, 1000000};
    while (write(STDOUT_FILENO, "tick\n", 5) == 5)
        (void)nanosleep(&rest, NULL);
    return EXIT_FAILURE;
}

static int clocks(void)
{
    static const clockid_t ids[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME};
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        struct timespec t;
        if (clock_gettime(ids[i], &t) < 0)
            return EXIT_FAILURE;
        (void)printf("%lld%c", (long long)t.tv_sec * 1000000000 + t.tv_nsec, i == 2 ? '\n' : ' ');
    }
    return EXIT_SUCCESS;
}

static int port(unsigned number)
{
    struct sockaddr_vm at = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = number};
    int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool taken = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, 1) == 0;
    (void)printf("%s\n", taken ? "taken" : errno == EADDRINUSE ? "held" : strerror(errno));
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    size_t mib = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    bool sized = mib > 0 && mib <= MIB_MAX;
    if (argc == 2 && strcmp(argv[1], "tls") == 0)
        return tls();
    if (argc == 2 && strcmp(argv[1], "clocks") == 0)
        return clocks();
    if (argc == 2 && strcmp(argv[1], "tick") == 0)
        return tick();
    if (argc == 3 && sized && strcmp(argv[1], "port") == 0)
        return port((unsigned)mib);
    if (argc == 3 && sized && strcmp(argv[1], "memory") == 0)
        return memory(mib);
    if (argc == 3 && sized && strcmp(argv[1], "dirty") == 0)
        return dirty(mib);
    (void)fprintf(stderr, "usage: witness tls | clocks | tick | port NUMBER | memory MIB | dirty MIB\n");
    return 2;
}
