/* mmdebstrap's command line from the host's own APT configuration: sources, keyrings (their paths are in the
 * sources), proxies and checks. Runs in the jail of the packages step, which sees /etc read-only. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/proc.h"
#include "base/str.h"
#include "broker/builder.h"

#define SOURCES_MAX 16
#define FILE_MAX (256 * 1024)

static void add(struct debian *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Appends an argument; one that does not fit shows as too many arguments in the end. */
static void add(struct debian *d, const char *fmt, ...)
{
    size_t room = sizeof(d->text) - d->used;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(d->text + d->used, room, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= room || d->argc + 1 >= ARRAY_LEN(d->argv)) {
        d->argc = ARRAY_LEN(d->argv);
        return;
    }
    d->argv[d->argc++] = d->text + d->used;
    d->used += (size_t)n + 1;
}

static bool is_full(const struct debian *d)
{
    return d->argc >= ARRAY_LEN(d->argv);
}

/* VERSION_CODENAME of the host. */
static bool host_suite(char to[32])
{
    AUTO_FREE char *text = NULL;
    size_t n;
    if (fs_read_file(AT_FDCWD, "/etc/os-release", 65536, &text, &n, NULL) < 0)
        return false;
    const char *key = "VERSION_CODENAME=";
    const char *line = str_starts(text, key) ? text : strstr(text, "\nVERSION_CODENAME=");
    if (!line)
        return false;
    line = strchr(line, '=') + 1;
    line += *line == '"';
    size_t len = strcspn(line, "\"\n");
    if (len == 0 || len >= 32)
        return false;
    memcpy(to, line, len);
    to[len] = '\0';
    return true;
}

/* Whether a word of the text from p to its line's end starts with the suite's name. */
static bool line_has_suite(const char *p, const char *suite)
{
    size_t n = strlen(suite);
    const char *end = p + strcspn(p, "\n");
    for (; p < end; p += strcspn(p, " \t\n"), p += strspn(p, " \t")) {
        size_t len = strcspn(p, " \t\n");
        if (len >= n && strncmp(p, suite, n) == 0 && (len == n || p[n] == '-' || p[n] == '/'))
            return true;
        if (len == 0)
            break;
    }
    return false;
}

/* Whether a file of APT sources (one-line or deb822) serves a suite. */
static bool serves(const char *text, const char *suite)
{
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if ((str_starts(line, "deb ") || str_starts(line, "deb\t") || str_starts(line, "Suites:")) &&
            line_has_suite(line, suite))
            return true;
    }
    return false;
}

/* The first archive address of a file of sources. */
static bool first_uri(const char *text, char *to, size_t size)
{
    const char *p = text;
    while ((p = strstr(p, "http"))) {
        size_t n = strcspn(p, " \t\n");
        bool address = str_starts(p, "http://") || str_starts(p, "https://");
        /* Not one in a comment. */
        const char *line = p;
        while (line > text && line[-1] != '\n')
            line--;
        if (address && *line != '#' && n < size) {
            memcpy(to, p, n);
            to[n] = '\0';
            return true;
        }
        p += n;
    }
    return false;
}

/* Every file of the host's sources that serves the suite; else an address of the host's archive. */
static void add_sources(struct debian *d, const char *own_suite)
{
    static const char *const patterns[] = {"/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list",
                                           "/etc/apt/sources.list.d/*.sources"};
    char uri[512] = "";
    unsigned files = 0;
    glob_t g = {0};
    for (size_t i = 0; i < ARRAY_LEN(patterns); i++)
        (void)glob(patterns[i], i ? GLOB_APPEND : 0, NULL, &g);
    for (size_t i = 0; i < g.gl_pathc && files < SOURCES_MAX; i++) {
        AUTO_FREE char *text = NULL;
        size_t n;
        if (fs_read_file(AT_FDCWD, g.gl_pathv[i], FILE_MAX, &text, &n, NULL) < 0)
            continue;
        if (serves(text, d->suite)) {
            add(d, "%s", g.gl_pathv[i]);
            files++;
        } else if (uri[0] == '\0' && serves(text, own_suite)) {
            (void)first_uri(text, uri, sizeof(uri));
        }
    }
    globfree(&g);
    if (files == 0 && uri[0] != '\0')
        add(d, "deb %s %s main", uri, d->suite);
    builder_log("suite %s from %s", d->suite,
                files    ? "the host's sources"
                : uri[0] ? uri
                         : "the default archive");
}

/* How the host reaches its archive, from `apt-config dump`: flat lines `Acquire::http::Proxy "...";`. They
 * serve the build and do not stay in the template. */
static void read_options(struct debian *d)
{
    AUTO_CLOSE int fd = memfd_create("apt-config", MFD_CLOEXEC);
    char *const argv[] = {"apt-config", "dump", NULL};
    struct proc_spawn s = {.argv = argv, .stdin_fd = -1, .stdout_fd = fd, .stderr_fd = -1};
    pid_t pid;
    AUTO_CLOSE int pidfd = -1;
    if (fd < 0 || proc_spawn(&s, &pid, &pidfd, NULL) < 0 || proc_wait(pid) != 0)
        return;
    static const char *const wanted[] = {"Acquire::http::", "Acquire::https::", "Acquire::Check-",
                                         "Acquire::Retries", "Acquire::ForceIPv"};
    AUTO_FREE char *path = str_printf("/proc/self/fd/%d", fd);
    AUTO_FREE char *text = NULL;
    size_t n;
    if (!path || fs_read_file(AT_FDCWD, path, FILE_MAX, &text, &n, NULL) < 0)
        return;
    size_t used = 0;
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        size_t len = strcspn(line, "\n");
        bool take = false;
        for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
            take |= str_starts(line, wanted[i]);
        if (!take || used + len + 1 >= sizeof(d->options))
            continue;
        memcpy(d->options + used, line, len);
        d->options[used + len] = '\n';
        used += len + 1;
    }
    d->options[used] = '\0';
}

static void add_options(struct debian *d)
{
    read_options(d);
    add(d, "--aptopt=Acquire::Languages \"none\"");
    for (char *line = d->options; *line; line += strlen(line) + 1) {
        line[strcspn(line, "\n")] = '\0';
        add(d, "--aptopt=%s", line);
    }
    /* Neither the host's proxy nor its name server stays in the template. */
    add(d, "--customize-hook=rm -f \"$1\"/etc/apt/apt.conf.d/99mmdebstrap \"$1\"/etc/resolv.conf");
}

static void add_packages(struct debian *d, const struct builder *b)
{
    if (b->package_count == 0)
        return;
    char list[WIRE_LIST_BYTES + 16];
    size_t used = 0;
    for (unsigned i = 0; i < b->package_count; i++) {
        int n = snprintf(list + used, sizeof(list) - used, "%s%s", i ? "," : "", b->packages[i]);
        if (n < 0 || (size_t)n >= sizeof(list) - used)
            break;
        used += (size_t)n;
    }
    add(d, "--include=%s", list);
}

int debian_plan(const struct builder *b, struct debian *ret, struct error *err)
{
    char own[32] = "";
    bool known = host_suite(own);
    if (*b->suite == '\0' && !known)
        return error_field(err, ERROR_INVALID, "suite",
                           "this host names no release of its own; name a suite");
    (void)str_copy(ret->suite, sizeof(ret->suite), *b->suite ? b->suite : own);
    add(ret, "mmdebstrap");
    add(ret, "--mode=root");
    add(ret, "--format=tar");
    add(ret, "--variant=minbase");
    add_options(ret);
    add_packages(ret, b);
    add(ret, "%s", ret->suite);
    add(ret, "-"); /* the archive goes to standard output */
    add_sources(ret, own);
    if (is_full(ret))
        return error_set(err, ERROR_INVALID, "the host's APT configuration is too large for a command line");
    ret->argv[ret->argc] = NULL;
    return 0;
}
