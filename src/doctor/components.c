#include "doctor/components.h"

#include <archive.h>
#include <archive_entry.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "doctor/doctor_impl.h"

#define CHANGELOG_MAX (1 << 20) /* of it the first entry is wanted; a kernel's is long */
#define LIBRARIES_MAX 16
#define SECONDS_PER_DAY 86400

struct component {
    const char *name, *kind;
    char version[128];
    char package[160]; /* "" when it is of none */
    char released[16]; /* "" when unknown */
    const char *from;
};

static int add(json_t *list, const struct component *c)
{
    return json_array_append_new(
        list, json_pack("{s:s, s:s, s:s, s:s?, s:s?, s:s}", "name", c->name, "kind", c->kind, "version",
                        c->version, "package", c->package[0] ? c->package : NULL, "released",
                        c->released[0] ? c->released : NULL, "released_from", c->from));
}

/* --- dates --- */

static void date_of_file(const char *path, struct component *c)
{
    struct stat st;
    struct tm tm;
    if (stat(path, &st) == 0 && gmtime_r(&st.st_mtime, &tm) &&
        strftime(c->released, sizeof(c->released), "%Y-%m-%d", &tm) > 0)
        c->from = "file";
}

/* The beginning of a compressed file: heap, or NULL. */
static char *read_gzip(const char *path)
{
    struct archive *a = archive_read_new();
    struct archive_entry *entry;
    AUTO_FREE char *text = malloc(CHANGELOG_MAX + 1);
    size_t used = 0;
    bool fine = a && text && archive_read_support_filter_gzip(a) == ARCHIVE_OK &&
                archive_read_support_format_raw(a) == ARCHIVE_OK &&
                archive_read_open_filename(a, path, 65536) == ARCHIVE_OK &&
                archive_read_next_header(a, &entry) == ARCHIVE_OK;
    while (fine && used < CHANGELOG_MAX) {
        la_ssize_t n = archive_read_data(a, text + used, CHANGELOG_MAX - used);
        fine = n >= 0;
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    (void)archive_read_free(a);
    if (!fine)
        return NULL;
    text[used] = '\0';
    return TAKE(text);
}

/* The first entry of a Debian changelog: "SOURCE (VERSION) ...", later " -- WHO  Tue, 16 Dec 2025 09:10:19
 * +0300". */
static bool parse_changelog(const char *text, struct component *c)
{
    struct tm tm = {0};
    size_t name = strcspn(text, " \n");
    const char *version = text + name;
    size_t n = strncmp(version, " (", 2) == 0 ? strcspn(version + 2, ")\n") : 0;
    const char *signature = strstr(text, "\n -- ");
    const char *end = signature ? strchr(signature + 1, '\n') : NULL;
    const char *date = signature ? strstr(signature, ">  ") : NULL;
    if (name == 0 || n == 0 || version[2 + n] != ')' || !date || (end && date > end) ||
        !strptime(date + 3, "%a, %d %b %Y", &tm))
        return false;
    (void)snprintf(c->package, sizeof(c->package), "%.*s %.*s", (int)name, text, (int)n, version + 2);
    return strftime(c->released, sizeof(c->released), "%Y-%m-%d", &tm) > 0;
}

/* A package's changelog; that of a rebuild is beside it and newer. */
static bool date_of_package(const char *root, const char *package, struct component *c)
{
    static const char *const names[] = {"changelog.Debian.amd64.gz", "changelog.Debian.gz", "changelog.gz"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        AUTO_FREE char *path = str_printf("%s/usr/share/doc/%s/%s", root, package, names[i]);
        AUTO_FREE char *text = path ? read_gzip(path) : NULL;
        if (text && parse_changelog(text, c)) {
            c->from = "changelog";
            return true;
        }
    }
    return false;
}

/* --- the parts --- */

/* First days of Firecracker's series, from its release policy. */
static const struct {
    unsigned minor;
    const char *day;
} firecracker_series[] = {
    {8, "2024-07-10"},  {9, "2024-09-02"},  {10, "2024-11-07"}, {11, "2025-03-18"}, {12, "2025-05-07"},
    {13, "2025-08-28"}, {14, "2025-12-17"}, {15, "2026-03-09"}, {16, "2026-06-03"},
};

static bool date_of_firecracker(const char *version, struct component *c)
{
    char *end;
    if (!str_starts(version, "1."))
        return false;
    unsigned long minor = strtoul(version + 2, &end, 10);
    for (size_t i = 0; *end == '.' && i < ARRAY_LEN(firecracker_series); i++) {
        if (firecracker_series[i].minor != minor)
            continue;
        (void)str_copy(c->released, sizeof(c->released), firecracker_series[i].day);
        c->from = "series";
        return true;
    }
    return false;
}

/* The first word of a line that begins with a digit, after a 'v' perhaps: the number of a version. */
static void number_of(const char *line, char *to, size_t size)
{
    for (const char *p = line; *p; p += strcspn(p, " "), p += strspn(p, " ")) {
        const char *word = *p == 'v' ? p + 1 : p;
        if (isdigit((unsigned char)*word)) {
            (void)snprintf(to, size, "%.*s", (int)strcspn(word, " ("), word);
            return;
        }
    }
    (void)str_copy(to, size, line);
}

static void version_of_program(const char *path, struct component *c)
{
    char line[200];
    if (doctor_program_version(path, line, sizeof(line)))
        number_of(line, c->version, sizeof(c->version));
    else
        (void)str_copy(c->version, sizeof(c->version), "unknown");
}

static bool find_program(const struct components_config *config, const char *name, char *to, size_t size)
{
    struct doctor_config look = {.root = config->root, .path = config->path};
    struct doctor d = {.config = &look};
    return doctor_find_program(&d, name, to, size);
}

static void add_qemu(const struct components_config *config, json_t *list)
{
    struct component c = {.name = "qemu", .kind = "vmm", .from = "unknown"};
    char path[512];
    if (!find_program(config, "qemu-system-x86_64", path, sizeof(path)))
        return;
    version_of_program(path, &c);
    /* Only what lies where the distribution installs is of its package. */
    bool packaged = (str_starts(path, "/usr/bin/") || config->root) &&
                    date_of_package(config->root ? config->root : "", "qemu-system-x86", &c);
    if (!packaged)
        date_of_file(path, &c);
    (void)add(list, &c);
}

static void add_firecracker(const struct components_config *config, json_t *list)
{
    struct component c = {.name = "firecracker", .kind = "vmm", .from = "unknown"};
    char path[512];
    bool named = config->firecracker && config->firecracker[0];
    if (named ? !str_copy(path, sizeof(path), config->firecracker)
              : !find_program(config, "firecracker", path, sizeof(path)))
        return;
    version_of_program(path, &c);
    if (!date_of_firecracker(c.version, &c))
        date_of_file(path, &c);
    (void)add(list, &c);
}

static void add_kernel(const struct components_config *config, json_t *list)
{
    struct component c = {.name = "linux", .kind = "kernel", .from = "unknown"};
    const char *root = config->root ? config->root : "";
    char package[128];
    (void)str_copy(c.version, sizeof(c.version), config->kernel_release);
    (void)snprintf(package, sizeof(package), "linux-image-%s", config->kernel_release);
    if (!date_of_package(root, package, &c)) {
        AUTO_FREE char *path = str_printf("%s/boot/vmlinuz-%s", root, config->kernel_release);
        if (path)
            date_of_file(path, &c);
    }
    (void)add(list, &c);
}

static void add_initramfs(const struct components_config *config, json_t *list)
{
    struct component c = {.name = "initramfs", .kind = "initramfs", .from = "unknown"};
    (void)snprintf(c.version, sizeof(c.version), "%.12s", config->image_digest);
    if (config->initrd)
        date_of_file(config->initrd, &c);
    (void)add(list, &c);
}

static void add_own(const char *name, const char *kind, json_t *list)
{
    struct component c = {.name = name, .kind = kind, .from = "release"};
    (void)str_copy(c.version, sizeof(c.version), SPACE_VERSION);
    (void)str_copy(c.released, sizeof(c.released), SPACE_RELEASED);
    (void)add(list, &c);
}

/* --- libraries --- */

/* Those the programs are linked with themselves. package: where its name is not made of the library's. */
static const struct {
    const char *stem, *package;
} known_libraries[] = {
    {"libc", "libc6"},
    {"libmicrohttpd", NULL},
    {"libwslay", NULL},
    {"libjansson", NULL},
    {"libsqlite3", NULL},
    {"libcrypto", "libssl3"},
    {"libcap-ng", NULL},
    {"libarchive", NULL},
    {"libzstd", NULL},
    {"libcurl", "libcurl4"},
    {"libcurl-gnutls", "libcurl3-gnutls"},
    {"libseccomp", NULL},
    {"libmnl", NULL},
};

/* The index of "libzstd.so.1" and the number after ".so."; false for others. */
static bool know_library(const char *path, size_t *ret, const char **ret_number)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    const char *so = strstr(base, ".so.");
    for (size_t i = 0; so && i < ARRAY_LEN(known_libraries); i++) {
        const char *stem = known_libraries[i].stem;
        if (strlen(stem) == (size_t)(so - base) && str_starts(base, stem)) {
            *ret = i;
            *ret_number = so + strlen(".so.");
            return true;
        }
    }
    return false;
}

/* Debian's names: libzstd.so.1 is of libzstd1, libsqlite3.so.0 of libsqlite3-0; some end in t64 since 2024.
 */
static bool date_of_library(const char *root, size_t which, const char *number, struct component *c)
{
    static const char *const endings[] = {"", "t64"};
    const char *stem = known_libraries[which].stem;
    const char *package = known_libraries[which].package;
    for (size_t i = 0; i < ARRAY_LEN(endings); i++) {
        AUTO_FREE char *name =
            package ? str_printf("%s%s", package, endings[i])
                    : str_printf("%s%s%s%s", stem, isdigit((unsigned char)stem[strlen(stem) - 1]) ? "-" : "",
                                 number, endings[i]);
        if (name && date_of_package(root, name, c))
            return true;
    }
    return false;
}

static void add_library(const struct components_config *config, const char *path, json_t *list)
{
    size_t which;
    const char *number;
    char real[PATH_MAX];
    if (!know_library(path, &which, &number))
        return;
    struct component c = {.name = known_libraries[which].stem, .kind = "library", .from = "unknown"};
    const char *root = config->root ? config->root : "";
    bool packaged = !str_starts(path, "/usr/local/") && date_of_library(root, which, number, &c);
    if (!realpath(path, real))
        (void)str_copy(real, sizeof(real), path);
    if (packaged) { /* the version is the package's */
        (void)str_copy(c.version, sizeof(c.version), strchr(c.package, ' ') + 1);
    } else {
        const char *so = strstr(real, ".so.");
        (void)str_copy(c.version, sizeof(c.version), so ? so + strlen(".so.") : number);
        date_of_file(real, &c);
    }
    (void)add(list, &c);
}

struct loaded {
    char *paths[LIBRARIES_MAX + 1];
    size_t n;
};

static int note_library(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct loaded *l = arg;
    size_t which;
    const char *number;
    (void)size;
    if (l->n < LIBRARIES_MAX && know_library(info->dlpi_name, &which, &number) &&
        (l->paths[l->n] = strdup(info->dlpi_name)))
        l->n++;
    return 0;
}

static void add_libraries(const struct components_config *config, json_t *list)
{
    struct loaded own = {0};
    const char *const *paths = config->libraries;
    if (!paths) { /* the names are copied first: the loader is locked meanwhile */
        (void)dl_iterate_phdr(note_library, &own);
        paths = (const char *const *)own.paths;
    }
    for (size_t i = 0; paths[i]; i++)
        add_library(config, paths[i], list);
    for (size_t i = 0; i < own.n; i++)
        free(own.paths[i]);
}

json_t *components_find(const struct components_config *config)
{
    json_t *list = json_array();
    if (!list)
        return NULL;
    add_own("spaced", "server", list);
    add_own("space-agent", "agent", list);
    add_kernel(config, list);
    add_initramfs(config, list);
    add_qemu(config, list);
    add_firecracker(config, list);
    add_libraries(config, list);
    return list;
}

json_t *components_aged(const json_t *components, time_t now)
{
    json_t *list = json_deep_copy(components);
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one)
    {
        const char *released = json_string_value(json_object_get(one, "released"));
        struct tm tm = {0};
        bool dated = released && strptime(released, "%Y-%m-%d", &tm);
        json_int_t days = dated ? (json_int_t)((now - timegm(&tm)) / SECONDS_PER_DAY) : 0;
        (void)json_object_set_new(one, "age_days", dated ? json_integer(days < 0 ? 0 : days) : json_null());
    }
    return list;
}
