#include "spaced/config.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "data/data.h"

#define DEFAULT_FILE "/etc/space/spaced.conf"
#define FILE_MAX_BYTES 65536

enum kind { TEXT, NUMBER, CHOICE, PATH };

struct key {
    const char *name;
    enum kind kind;
    size_t offset;
    const char *fallback; /* the default, as text */
    uint64_t min, max;    /* NUMBER */
    const char *choices;  /* CHOICE: words separated by blanks */
    const char *help;
};

#define AT(field) offsetof(struct config, field)

static const struct key keys[] = {
    {"listen", TEXT, AT(listen), "127.0.0.1:7780", 0, 0, NULL,
     "address and port of the API (port 0: any free one)"},
    {"state_dir", PATH, AT(state_dir), "/var/lib/space", 0, 0, NULL,
     "absolute path of the directory that holds everything"},
    {"engine", CHOICE, AT(engine), "auto", 0, 0, "auto qemu firecracker", "virtual machine monitor"},
    {"firecracker", TEXT, AT(firecracker), "", 0, 0, NULL,
     "program of the engine firecracker; empty: the one in PATH or /usr/local/bin, /usr/bin"},
    {"kernel", TEXT, AT(kernel), "", 0, 0, NULL,
     "guest kernel (bzImage); empty: the newest installed one that has modules"},
    {"modules", TEXT, AT(modules), "", 0, 0, NULL,
     "the kernel's module directory; empty: /lib/modules/<its release>"},
    {"public_url", TEXT, AT(public_url), "", 0, 0, NULL,
     "start of the URLs in answers; empty: http:// and the listen address"},
    {"log_level", CHOICE, AT(log_level), "info", 0, 0, "debug info warn error",
     "lowest level that is logged"},
    {"log_format", CHOICE, AT(log_format), "text", 0, 0, "text json", "form of the log on standard error"},
    {"default_vcpus", NUMBER, AT(default_vcpus), "1", 1, 8, NULL, "vCPUs of a sandbox that does not say"},
    {"default_memory_mib", NUMBER, AT(default_memory_mib), "256", 128, 65536, NULL,
     "memory of a sandbox that does not say"},
    {"default_disk_mib", NUMBER, AT(default_disk_mib), "2048", 16, 1048576, NULL,
     "disk of a sandbox that does not say (at least its template's)"},
    {"default_disk_mib_per_s", NUMBER, AT(default_disk_mib_per_s), "0", 0, 65536, NULL,
     "MiB a second that the disk of a sandbox that does not say reads and writes; 0: the most there is"},
    {"default_disk_iops", NUMBER, AT(default_disk_iops), "0", 0, 1000000, NULL,
     "reads and writes a second of the disk of a sandbox that does not say, 10 or more; 0: the most there "
     "is"},
    {"max_vcpus", NUMBER, AT(max_vcpus), "4", 1, 8, NULL, "most vCPUs a sandbox may ask for"},
    {"max_memory_mib", NUMBER, AT(max_memory_mib), "8192", 128, 65536, NULL,
     "most memory a sandbox may ask for"},
    {"max_disk_mib", NUMBER, AT(max_disk_mib), "65536", 16, 1048576, NULL,
     "largest disk a sandbox may ask for"},
    {"max_disk_mib_per_s", NUMBER, AT(max_disk_mib_per_s), "0", 0, 65536, NULL,
     "most MiB a second of a disk that a sandbox may ask for, and no sandbox is without; 0: no limit"},
    {"max_disk_iops", NUMBER, AT(max_disk_iops), "0", 0, 1000000, NULL,
     "most reads and writes a second that a sandbox may ask for, and no sandbox is without, 10 or more; 0: "
     "no limit"},
    {"max_sandboxes", NUMBER, AT(max_sandboxes), "256", 1, 16384, NULL, "sandboxes alive at once"},
    {"memory_limit_mib", NUMBER, AT(memory_limit_mib), "0", 0, 16777216, NULL,
     "memory of all running sandboxes together; 0: 80 % of the host's"},
    {"memory_reserve_mib", NUMBER, AT(memory_reserve_mib), "256", 0, 16777216, NULL,
     "memory of the host that is never given to sandboxes"},
    {"memory_pressure", CHOICE, AT(memory_pressure), "refuse", 0, 0, "refuse suspend",
     "what happens when memory is short: refuse requests, or suspend the longest idle sandboxes"},
    {"min_free_disk_mib", NUMBER, AT(min_free_disk_mib), "128", 0, 67108864, NULL,
     "free space of the disk pool below which nothing new is made"},
    {"default_idle_timeout_s", NUMBER, AT(default_idle_timeout_s), "0", 0, 2592000, NULL,
     "idle timeout of a sandbox that does not say; 0: none"},
    {"default_on_idle", CHOICE, AT(default_on_idle), "pause", 0, 0, "pause suspend delete none",
     "what an idle timeout does when the request does not say"},
    {"default_max_lifetime_s", NUMBER, AT(default_max_lifetime_s), "0", 0, 31622400, NULL,
     "maximum lifetime of a sandbox that does not say; 0: none"},
    {"default_auto_wake", CHOICE, AT(default_auto_wake), "no", 0, 0, "no yes",
     "whether use wakes a sandbox that does not say"},
    {"wake_timeout_s", NUMBER, AT(wake_timeout_s), "30", 1, 600, NULL,
     "how long a request waits for its sandbox to be woken"},
    {"expired_retention_s", NUMBER, AT(expired_retention_s), "2592000", 1, 31536000, NULL,
     "how long a sandbox that was suspended at the end of its lifetime is kept"},
    {"snapshot_pack_after_s", NUMBER, AT(snapshot_pack_after_s), "86400", 0, 31536000, NULL,
     "how long a snapshot was not needed when its memory is compressed; 0: never"},
    {"warm_per_golden", NUMBER, AT(warm_per_golden), "2", 0, 64, NULL,
     "VMMs kept ready for each template and shape in use"},
    {"warm_total", NUMBER, AT(warm_total), "8", 0, 512, NULL, "VMMs kept ready over all"},
    {"retention_s", NUMBER, AT(retention_s), "86400", 0, 31536000, NULL,
     "how long deleted sandboxes' results and finished operations are kept"},
    {"pool_size_mib", NUMBER, AT(pool_size_mib), "0", 0, 67108864, NULL,
     "size of a loop-backed disk pool; 0: 75 % of the free space"},
    {"journal_mib", NUMBER, AT(journal_mib), "64", 1, 1024, NULL, "output kept of each stream of a process"},
    {"journal_sandbox_mib", NUMBER, AT(journal_sandbox_mib), "1024", 1, 16777216, NULL,
     "output kept of all processes of a sandbox together"},
    {"token_ttl_s", NUMBER, AT(token_ttl_s), "3600", 10, 2592000, NULL, "life of a session token"},
    {"domain", TEXT, AT(domain), "localhost", 0, 0, NULL,
     "hosts PORT-SANDBOX.DOMAIN are ports of sandboxes; empty: only paths are"},
    {"max_tunnels", NUMBER, AT(max_tunnels), "1024", 1, 65536, NULL,
     "upgraded connections to ports of sandboxes at once"},
    {"reader_queue_mib", NUMBER, AT(reader_queue_mib), "256", 1, 65536, NULL,
     "output queued for all attached clients together that read slowly"},
    {"port_timeout_s", NUMBER, AT(port_timeout_s), "60", 1, 86400, NULL,
     "how long a port of a sandbox may take to begin an answer"},
};

static char *text_at(struct config *c, const struct key *k)
{
    return (char *)c + k->offset;
}

static uint64_t *number_at(struct config *c, const struct key *k)
{
    return (uint64_t *)((char *)c + k->offset);
}

static const struct key *find_key(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

static bool is_choice(const char *choices, const char *value)
{
    size_t n = strlen(value);
    for (const char *p = choices; n > 0 && (p = strstr(p, value)); p += n)
        if ((p == choices || p[-1] == ' ') && (p[n] == '\0' || p[n] == ' '))
            return true;
    return false;
}

static int set_text(struct config *c, const struct key *k, const char *value, struct error *err)
{
    if (k->kind == CHOICE && !is_choice(k->choices, value))
        return error_field(err, ERROR_INVALID, k->name, "%s is \"%s\"; it must be one of: %s", k->name, value,
                           k->choices);
    if (k->kind == PATH && (value[0] != '/' || strchr(value, ',')))
        return error_field(err, ERROR_INVALID, k->name,
                           "%s is \"%s\"; it must be an absolute path without commas", k->name, value);
    if (!str_copy(text_at(c, k), CONFIG_TEXT_MAX, value))
        return error_field(err, ERROR_INVALID, k->name, "%s is longer than %d bytes", k->name,
                           CONFIG_TEXT_MAX - 1);
    return 0;
}

int config_set(struct config *c, const char *key, const char *value, struct error *err)
{
    const struct key *k = find_key(key);
    if (!k)
        return error_field(err, ERROR_UNKNOWN_FIELD, key, "unknown configuration key \"%s\"", key);
    if (k->kind != NUMBER)
        return set_text(c, k, value, err);
    if (!str_to_u64(value, k->min, k->max, number_at(c, k)))
        return error_field(err, ERROR_INVALID, k->name,
                           "%s is \"%s\"; it must be a whole number from %llu to %llu", k->name, value,
                           (unsigned long long)k->min, (unsigned long long)k->max);
    return 0;
}

void config_defaults(struct config *c)
{
    *c = (struct config){.dev = false};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        (void)config_set(c, keys[i].name, keys[i].fallback, NULL);
}

/* Cuts blanks off both ends, in place. */
static char *trim(char *s)
{
    s += strspn(s, " \t\r");
    size_t n = strlen(s);
    while (n > 0 && strchr(" \t\r", s[n - 1]))
        n--;
    s[n] = '\0';
    return s;
}

static int config_line(struct config *c, char *line, struct error *err)
{
    line = trim(line);
    if (*line == '\0' || *line == '#')
        return 0;
    char *eq = strchr(line, '=');
    if (!eq)
        return error_set(err, ERROR_INVALID, "\"%.60s\" is not of the form key = value", line);
    *eq = '\0';
    return config_set(c, trim(line), trim(eq + 1), err);
}

int config_file(struct config *c, const char *path, struct error *err)
{
    AUTO_FREE char *text = NULL;
    size_t len;
    int rc = fs_read_file(AT_FDCWD, path, FILE_MAX_BYTES, &text, &len, err);
    if (rc < 0)
        return rc;
    if (strlen(text) != len)
        return error_set(err, ERROR_INVALID, "%s holds a NUL byte", path);
    int number = 1;
    for (char *line = text; line; number++) {
        char *next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        if (config_line(c, line, err) < 0)
            return error_wrap(err, "%s, line %d", path, number);
        line = next;
    }
    return 0;
}

/* --- command line --- */

/* "--state-dir" is the key "state_dir". */
static const struct key *option_key(const char *arg, size_t len)
{
    char name[64];
    if (len >= sizeof(name))
        return NULL;
    for (size_t i = 0; i < len; i++)
        name[i] = arg[i] == '-' ? '_' : arg[i];
    name[len] = '\0';
    return find_key(name);
}

/* Options without a value. Returns whether arg was one. */
static bool flag(struct config *c, const char *arg, enum config_action *action)
{
    static const struct {
        const char *name;
        enum config_action action;
    } flags[] = {{"--purge", CONFIG_PURGE},
                 {"--help", CONFIG_HELP},
                 {"-h", CONFIG_HELP},
                 {"--version", CONFIG_VERSION},
                 {"--print-config-reference", CONFIG_REFERENCE}};
    if (strcmp(arg, "--dev") == 0) {
        c->dev = true;
        return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        if (strcmp(arg, flags[i].name) == 0) {
            *action = flags[i].action;
            return true;
        }
    }
    return false;
}

/* The value of argv[*i], given after '=' or as the next word. NULL when there is none. */
static const char *option_value(int argc, char *const *argv, int *i)
{
    const char *eq = strchr(argv[*i], '=');
    if (eq)
        return eq + 1;
    return *i + 1 < argc ? argv[++*i] : NULL;
}

static int option(struct config *c, int argc, char *const *argv, int *i, struct error *err)
{
    const char *arg = argv[*i];
    if (strncmp(arg, "--", 2) != 0)
        return error_set(err, ERROR_INVALID, "\"%s\" is not an option; see spaced --help", arg);
    bool is_config = strcmp(arg, "--config") == 0 || str_starts(arg, "--config=");
    const struct key *k = option_key(arg + 2, strcspn(arg + 2, "="));
    if (!k && !is_config)
        return error_set(err, ERROR_INVALID, "unknown option %s; see spaced --help", arg);
    const char *value = option_value(argc, argv, i);
    if (!value)
        return error_set(err, ERROR_INVALID, "%s needs a value", arg);
    return is_config ? 0 : config_set(c, k->name, value, err); /* the file was read first */
}

/* Reads the file before the options, wherever --config stands. */
static int read_config_file(struct config *c, int argc, char *const *argv, struct error *err)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            return config_file(c, argv[i + 1], err);
        if (str_starts(argv[i], "--config="))
            return config_file(c, argv[i] + strlen("--config="), err);
    }
    int rc = config_file(c, DEFAULT_FILE, err);
    return rc == ERROR_NOT_FOUND ? 0 : rc;
}

int config_command_line(struct config *c, int argc, char *const *argv, enum config_action *ret,
                        struct error *err)
{
    enum config_action action = CONFIG_SERVE;
    config_defaults(c);
    int rc = read_config_file(c, argc, argv, err);
    for (int i = 1; rc == 0 && i < argc; i++)
        if (!flag(c, argv[i], &action))
            rc = option(c, argc, argv, &i, err);
    if (rc == 0)
        *ret = action;
    return rc;
}

static bool is_loopback(const char *listen)
{
    /* "127.evil.example" starts like an address but is a name. */
    bool address = listen[strspn(listen, "0123456789.")] == ':';
    return (address && str_starts(listen, "127.")) || str_starts(listen, "[::1]:") ||
           str_starts(listen, "localhost:");
}

int config_check(const struct config *c, struct error *err)
{
    if (!strrchr(c->listen, ':'))
        return error_field(err, ERROR_INVALID, "listen", "listen is \"%s\"; it must be ADDRESS:PORT",
                           c->listen);
    if (c->dev && !is_loopback(c->listen))
        return error_field(
            err, ERROR_INVALID, "listen",
            "--dev binds loopback only, and listen is %s; without --dev make keys with `space key create`",
            c->listen);
    if (*c->domain && !str_is_domain(c->domain, DATA_DOMAIN_MAX))
        return error_field(
            err, ERROR_INVALID, "domain",
            "domain is \"%.100s\"; it must be a name like sandboxes.example.com, in lower case", c->domain);
    if (c->default_vcpus > c->max_vcpus || c->default_memory_mib > c->max_memory_mib ||
        c->default_disk_mib > c->max_disk_mib ||
        (c->max_disk_mib_per_s > 0 && c->default_disk_mib_per_s > c->max_disk_mib_per_s) ||
        (c->max_disk_iops > 0 && c->default_disk_iops > c->max_disk_iops))
        return error_field(err, ERROR_INVALID, "default_*", "a default_ value is larger than its max_ value");
    if ((c->default_disk_iops > 0 && c->default_disk_iops < 10) ||
        (c->max_disk_iops > 0 && c->max_disk_iops < 10))
        return error_field(err, ERROR_INVALID, "*_disk_iops",
                           "a disk's reads and writes a second are 0 (no limit) or 10 and more");
    return 0;
}

enum vm_engine_choice config_engine(const struct config *c)
{
    if (strcmp(c->engine, "qemu") == 0)
        return VM_ENGINE_QEMU;
    return strcmp(c->engine, "firecracker") == 0 ? VM_ENGINE_FIRECRACKER : VM_ENGINE_AUTO;
}

/* --- help and reference, from the table --- */

static void describe(const struct key *k, char *to, size_t size)
{
    if (k->kind == NUMBER)
        (void)snprintf(to, size, "%llu to %llu", (unsigned long long)k->min, (unsigned long long)k->max);
    else if (k->kind == CHOICE)
        (void)snprintf(to, size, "%s", k->choices);
    else
        (void)snprintf(to, size, "%s", k->kind == PATH ? "absolute path" : "text");
}

void config_print_help(void)
{
    printf(
        "Usage: spaced [--dev] [--config FILE] [--KEY VALUE]...\n"
        "       spaced --state-dir DIR --purge\n\n"
        "The SPACE daemon. Started as root it splits into the unprivileged daemon and the broker.\n\n"
        "  --dev                      development key in STATE_DIR/dev.key, loopback only: not for "
        "production\n"
        "  --config FILE              read keys from FILE (default %s when it exists)\n"
        "  --purge                    delete every sandbox of the state directory and release what it took\n"
        "  --print-config-reference   the table of keys in Markdown\n"
        "  --version, --help\n\nKeys, as options or as `key = value` lines of the file:\n",
        DEFAULT_FILE);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        char option_name[64];
        (void)snprintf(option_name, sizeof(option_name), "--%s", keys[i].name);
        for (char *p = option_name; *p; p++)
            if (*p == '_')
                *p = '-';
        printf("  %-26s %s [%s]\n", option_name, keys[i].help, keys[i].fallback);
    }
}

void config_print_reference(void)
{
    printf("# Configuration keys of spaced\n\n"
           "<!-- Generated by `spaced --print-config-reference`. -->\n\n"
           "As `key = value` lines of the configuration file, or as options (`--state-dir DIR`).\n\n"
           "| key | accepts | default | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        char accepts[160];
        describe(&keys[i], accepts, sizeof(accepts));
        printf("| `%s` | %s | %s%s%s | %s |\n", keys[i].name, accepts, *keys[i].fallback ? "`" : "",
               *keys[i].fallback ? keys[i].fallback : "(empty)", *keys[i].fallback ? "`" : "", keys[i].help);
    }
}

/* --- to the second stage and back --- */

json_t *config_to_json(const struct config *c)
{
    json_t *o = json_object();
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const char *at = (const char *)c + keys[i].offset;
        json_t *v = keys[i].kind == NUMBER ? json_integer((json_int_t) * (const uint64_t *)(const void *)at)
                                           : json_string(at);
        (void)json_object_set_new(o, keys[i].name, v);
    }
    (void)json_object_set_new(o, "dev", json_boolean(c->dev));
    return o;
}

int config_from_json(struct config *c, const json_t *json, struct error *err)
{
    config_defaults(c);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const json_t *v = json_object_get(json, keys[i].name);
        if (keys[i].kind == NUMBER && json_is_integer(v))
            *number_at(c, &keys[i]) = (uint64_t)json_integer_value(v);
        else if (keys[i].kind != NUMBER && json_is_string(v))
            (void)str_copy(text_at(c, &keys[i]), CONFIG_TEXT_MAX, json_string_value(v));
        else
            return error_set(err, ERROR_INTERNAL, "second stage: no value for %s", keys[i].name);
    }
    c->dev = json_is_true(json_object_get(json, "dev"));
    return 0;
}
