/* Bodies of create and PATCH: every field checked, nothing applied. */
#include <inttypes.h>
#include <string.h>

#include "base/cleanup.h"
#include "sandbox/private.h"
#include "json/json.h"

#define NAME_MAX_BYTES 63
#define METADATA_MAX 64
#define METADATA_KEY_MAX 128
#define METADATA_VALUE_MAX 1024
#define ENV_MAX 256
#define ENV_BYTES_MAX 65536
#define USER_MAX 64
#define CWD_MAX 4095
#define TEMPLATE_MAX 159
#define IDLE_MAX_S (30LL * 24 * 3600)
#define LIFETIME_MAX_S (366LL * 24 * 3600)
#define VCPUS_MAX 8
#define MEMORY_MIN_MIB \
    128 /* a guest of 64 MiB panics while it boots, one of 80 MiB has nothing left for a command */
#define MEMORY_MAX_MIB 65536
#define DISK_MAX_MIB (1024 * 1024)
#define RATE_MAX_MIB_PER_S 65536
#define IOPS_MIN 10 /* with less a guest is not up before who waits for it gives up */
#define IOPS_MAX 1000000

static bool name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

int name_check(const char *name, struct error *err)
{
    for (const char *p = name; *p; p++)
        if (!name_byte(*p))
            return error_field(err, ERROR_INVALID, "name",
                               "name may hold letters, digits, '.', '_' and '-', 1 to %d of them",
                               NAME_MAX_BYTES);
    return 0;
}

static int check_metadata(const json_t *map, struct error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)map, key, value)
    {
        if (*key == '\0' || strlen(key) > METADATA_KEY_MAX)
            return error_field(err, ERROR_INVALID, "metadata", "a key of metadata has 1 to %d bytes",
                               METADATA_KEY_MAX);
        if (json_string_length(value) > METADATA_VALUE_MAX)
            return error_field(err, ERROR_INVALID, "metadata", "metadata.%.64s is longer than %d bytes", key,
                               METADATA_VALUE_MAX);
    }
    return 0;
}

/* As of a command itself; whether the guest has them is told by each command. */
static int check_defaults(const char *user, const char *cwd, struct error *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-$";
    if (user && user[strspn(user, allowed)] != '\0')
        return error_field(err, ERROR_INVALID, "user",
                           "user is a name or a number of the sandbox's own users");
    if (cwd && cwd[0] != '/')
        return error_field(err, ERROR_INVALID, "cwd", "cwd must be an absolute path");
    return 0;
}

static bool env_name(const char *s)
{
    if (*s >= '0' && *s <= '9')
        return false;
    for (const char *p = s; *p; p++)
        if (!name_byte(*p) || *p == '.' || *p == '-')
            return false;
    return *s != '\0';
}

static int check_env(const json_t *map, struct error *err)
{
    const char *key;
    json_t *value;
    size_t bytes = 0;
    json_object_foreach((json_t *)map, key, value)
    {
        if (!env_name(key))
            return error_field(err, ERROR_INVALID, "env",
                               "\"%.64s\" is no name of a variable: letters, digits and '_', no digit first",
                               key);
        if (strlen(json_string_value(value)) != json_string_length(value))
            return error_field(err, ERROR_INVALID, "env", "env.%.64s holds a NUL byte", key);
        bytes += strlen(key) + json_string_length(value) + 2;
    }
    if (bytes > ENV_BYTES_MAX)
        return error_field(err, ERROR_INVALID, "env", "env has %zu bytes; allowed are %d", bytes,
                           ENV_BYTES_MAX);
    return 0;
}

/* --- network and lifecycle --- */

static int check_mode(const char *mode, const json_t *allow, const json_t *deny, struct error *err)
{
    if (strcmp(mode, "egress") == 0 || strcmp(mode, "open") == 0)
        return error_field(err, ERROR_UNSUPPORTED, "network.mode",
                           "this server gives sandboxes no network: network.mode can only be \"none\"");
    if (strcmp(mode, "none") != 0)
        return error_field(err, ERROR_INVALID, "network.mode",
                           "network.mode is \"none\", \"egress\" or \"open\"");
    if (allow || deny)
        return error_field(err, ERROR_UNSUPPORTED, "network.mode",
                           "this server gives sandboxes no network: network.mode is \"none\", so that "
                           "network.%s has nothing to act on",
                           allow ? "allow" : "deny");
    return 0;
}

static int read_network(const json_t *obj, struct exposure *e, struct error *err)
{
    if (!obj)
        return 0;
    const char *mode = "none";
    const char *all = NULL;
    const json_t *allow = NULL;
    const json_t *deny = NULL;
    const json_t *ports = NULL;
    const json_t *given = json_object_get(obj, "public_ports");
    const struct json_field word = {"public_ports", JSON_KIND_STRING, .to = &all};
    const struct json_field list = {"public_ports", JSON_KIND_ARRAY, .max = PUBLIC_PORTS_MAX, .to = &ports};
    const struct json_field fields[] = {
        json_is_string(given) ? word : list,
        {"mode", JSON_KIND_STRING, .to = &mode},
        {"allow", JSON_KIND_STRING_LIST, .to = &allow},
        {"deny", JSON_KIND_STRING_LIST, .to = &deny},
    };
    int rc = json_read(obj, "network", fields, ARRAY_LEN(fields), err);
    if (rc == 0)
        rc = check_mode(mode, allow, deny, err);
    return rc == 0 && given ? exposure_read(all, ports, e, err) : rc;
}

static int read_on_idle(const char *text, struct lifecycle *l, struct error *err)
{
    if (!on_idle_parse(text, &l->on_idle))
        return error_field(err, ERROR_INVALID, "lifecycle.on_idle",
                           "lifecycle.on_idle is \"pause\", \"suspend\", \"delete\", \"none\" or a list of "
                           "{after_s, do}");
    l->rungs = 0;
    return 0;
}

static int read_on_expiry(const char *text, struct lifecycle *l, struct error *err)
{
    l->expiry_suspends = strcmp(text, "suspend") == 0;
    if (!l->expiry_suspends && strcmp(text, "delete") != 0)
        return error_field(err, ERROR_INVALID, "lifecycle.on_expiry",
                           "lifecycle.on_expiry is \"delete\" or \"suspend\"");
    return 0;
}

static int read_rung(const json_t *obj, struct idle_rung *ret, struct error *err)
{
    const char *action = NULL;
    const struct json_field fields[] = {
        {"after_s", JSON_KIND_INTEGER, .required = true, .min = 1, .max = IDLE_MAX_S, .to = &ret->after_s},
        {"do", JSON_KIND_STRING, .required = true, .to = &action},
    };
    int rc = json_read(obj, "lifecycle.on_idle", fields, ARRAY_LEN(fields), err);
    if (rc == 0 && (!on_idle_parse(action, &ret->action) || ret->action == ON_IDLE_NONE))
        rc = error_field(err, ERROR_INVALID, "lifecycle.on_idle.do",
                         "lifecycle.on_idle.do is \"pause\", \"suspend\" or \"delete\"");
    return rc;
}

/* Each rung comes later and goes further than the one before. */
static int read_ladder(const json_t *list, struct lifecycle *l, struct error *err)
{
    size_t i;
    const json_t *obj;
    struct idle_rung before = {0, ON_IDLE_NONE};
    if (json_array_size(list) == 0)
        return error_field(err, ERROR_INVALID, "lifecycle.on_idle",
                           "lifecycle.on_idle has no step; \"none\" is the word for that");
    json_array_foreach(list, i, obj)
    {
        struct idle_rung *rung = &l->ladder[i];
        int rc = read_rung(obj, rung, err);
        if (rc < 0)
            return rc;
        if (rung->after_s <= before.after_s || rung->action <= before.action)
            return error_field(err, ERROR_INVALID, "lifecycle.on_idle",
                               "step %zu of lifecycle.on_idle must come later and go further than the one "
                               "before: pause, suspend, delete",
                               i + 1);
        before = *rung;
    }
    l->rungs = (unsigned)json_array_size(list);
    l->idle_timeout_s = l->ladder[0].after_s;
    l->on_idle = l->ladder[0].action;
    return 0;
}

static enum on_idle default_on_idle(const struct sandboxes_config *config)
{
    enum on_idle v;
    return config->default_on_idle && on_idle_parse(config->default_on_idle, &v) ? v : ON_IDLE_PAUSE;
}

void lifecycle_defaults(const struct sandboxes_config *config, struct lifecycle *ret)
{
    *ret = (struct lifecycle){.idle_timeout_s = config->default_idle_timeout_s,
                              .max_lifetime_s = config->default_max_lifetime_s,
                              .auto_wake = config->default_auto_wake};
    ret->on_idle = ret->idle_timeout_s > 0 ? default_on_idle(config) : ON_IDLE_NONE;
}

static bool is_null(const json_t *obj, const char *key)
{
    return json_is_null(json_object_get(obj, key));
}

static void take_defaults(const json_t *obj, const struct lifecycle *defaults, struct lifecycle *now)
{
    if (is_null(obj, "idle_timeout_s")) {
        now->idle_timeout_s = defaults->idle_timeout_s;
        if (now->rungs > 0) /* it was the ladder's */
            now->on_idle = defaults->on_idle;
        now->rungs = 0;
    }
    if (is_null(obj, "on_idle")) {
        now->on_idle = defaults->on_idle;
        now->rungs = 0;
    }
    if (is_null(obj, "max_lifetime_s"))
        now->max_lifetime_s = defaults->max_lifetime_s;
    if (is_null(obj, "on_expiry"))
        now->expiry_suspends = defaults->expiry_suspends;
    if (is_null(obj, "auto_wake"))
        now->auto_wake = defaults->auto_wake;
}

/* A timeout beside a ladder, of this request or of before. */
static int check_timeout(const json_t *obj, int64_t timeout_s, struct lifecycle *now, struct error *err)
{
    bool given = json_is_integer(json_object_get(obj, "idle_timeout_s"));
    if (!given || now->rungs == 0)
        return 0;
    if (timeout_s == 0 && !json_object_get(obj, "on_idle")) {
        now->rungs = 0; /* none takes the ladder away */
        now->on_idle = ON_IDLE_NONE;
        return 0;
    }
    if (timeout_s != now->ladder[0].after_s)
        return error_field(err, ERROR_INVALID, "lifecycle.idle_timeout_s",
                           "lifecycle.idle_timeout_s is %" PRId64 " and the first step of lifecycle.on_idle "
                           "comes after %" PRId64 " s: leave one out",
                           timeout_s, now->ladder[0].after_s);
    return 0;
}

static int read_words(const char *on_idle, const json_t *ladder, const char *on_expiry, struct lifecycle *now,
                      struct error *err)
{
    int rc = on_expiry ? read_on_expiry(on_expiry, now, err) : 0;
    if (rc == 0 && on_idle)
        rc = read_on_idle(on_idle, now, err);
    return rc == 0 && ladder ? read_ladder(ladder, now, err) : rc;
}

int lifecycle_read(const struct sandboxes_config *config, const json_t *obj, struct lifecycle *l,
                   struct error *err)
{
    if (!obj)
        return 0;
    const char *on_idle = NULL;
    const char *on_expiry = NULL;
    const json_t *ladder = NULL;
    struct lifecycle defaults;
    struct lifecycle now = *l;
    lifecycle_defaults(config, &defaults);
    take_defaults(obj, &defaults, &now);
    const struct json_field word = {"on_idle", JSON_KIND_STRING, .to = &on_idle};
    const struct json_field list = {"on_idle", JSON_KIND_ARRAY, .max = IDLE_RUNGS_MAX, .to = &ladder};
    const struct json_field fields[] = {
        {"idle_timeout_s", JSON_KIND_INTEGER, .max = IDLE_MAX_S, .to = &now.idle_timeout_s},
        json_is_array(json_object_get(obj, "on_idle")) ? list : word,
        {"max_lifetime_s", JSON_KIND_INTEGER, .max = LIFETIME_MAX_S, .to = &now.max_lifetime_s},
        {"on_expiry", JSON_KIND_STRING, .to = &on_expiry},
        {"auto_wake", JSON_KIND_BOOL, .to = &now.auto_wake},
    };
    int rc = json_read(obj, "lifecycle", fields, ARRAY_LEN(fields), err);
    int64_t timeout_s = now.idle_timeout_s;
    if (rc == 0)
        rc = read_words(on_idle, ladder, on_expiry, &now, err);
    if (rc == 0)
        rc = check_timeout(obj, timeout_s, &now, err);
    if (rc < 0)
        return rc;
    /* A first timeout with nothing said about it does what the server's default says. */
    bool open = l->idle_timeout_s == 0 || is_null(obj, "on_idle");
    if (open && !on_idle && now.on_idle == ON_IDLE_NONE && now.idle_timeout_s > 0)
        now.on_idle = default_on_idle(config);
    *l = now;
    return 0;
}

/* A limit of the disk, and what of it makes sense. */
struct limit {
    const char *field;
    int64_t least, most;
};

static const struct limit rate_limit = {"resources.disk_mib_per_s", 1, RATE_MAX_MIB_PER_S};
static const struct limit iops_limit = {"resources.disk_iops", IOPS_MIN, IOPS_MAX};

/* given: -1 absent; 0 asks for none, which a server with a maximum does not grant. */
static int read_limit(const struct limit *l, int64_t given, uint32_t fallback, uint32_t max, uint32_t *ret,
                      struct error *err)
{
    int64_t most = max > 0 && max < l->most ? max : l->most;
    if (given < 0)
        given = fallback > 0 ? fallback : max;
    if (given > most || (given < l->least && (given > 0 || max > 0)))
        return error_field(err, ERROR_INVALID, l->field,
                           "%s is %" PRId64 "; %s%" PRId64 " to %" PRId64 " are possible", l->field, given,
                           max > 0 ? "" : "0 (no limit) and ", l->least, most);
    *ret = (uint32_t)given;
    return 0;
}

static int read_limits(const struct sandboxes_config *config, int64_t mib_per_s, int64_t iops,
                       struct vm_limits *ret, struct error *err)
{
    const struct vm_limits *fallback = &config->default_limits;
    const struct vm_limits *max = &config->max_limits;
    int rc = read_limit(&rate_limit, mib_per_s, fallback->disk_mib_per_s, max->disk_mib_per_s,
                        &ret->disk_mib_per_s, err);
    return rc < 0 ? rc
                  : read_limit(&iops_limit, iops, fallback->disk_iops, max->disk_iops, &ret->disk_iops, err);
}

static uint32_t capped(uint32_t limit, uint32_t most)
{
    return most > 0 && (limit == 0 || limit > most) ? most : limit;
}

void limits_cap(const struct sandboxes_config *config, struct vm_limits *l)
{
    l->disk_mib_per_s = capped(l->disk_mib_per_s, config->max_limits.disk_mib_per_s);
    l->disk_iops = capped(l->disk_iops, config->max_limits.disk_iops);
}

static int read_resources(const struct sandboxes_config *config, const json_t *obj, struct create_spec *spec,
                          struct error *err)
{
    int64_t mib_per_s = -1;
    int64_t iops = -1;
    int64_t vcpus = config->max_vcpus ? config->max_vcpus : VCPUS_MAX;
    int64_t memory = config->max_memory_mib_each ? config->max_memory_mib_each : MEMORY_MAX_MIB;
    int64_t disk = config->max_disk_mib ? config->max_disk_mib : DISK_MAX_MIB;
    const struct json_field fields[] = {
        {"vcpus", JSON_KIND_INTEGER, .min = 1, .max = vcpus, .to = &spec->vcpus},
        {"memory_mib", JSON_KIND_INTEGER, .min = MEMORY_MIN_MIB, .max = memory, .to = &spec->memory_mib},
        {"disk_mib", JSON_KIND_INTEGER, .min = 1, .max = disk, .to = &spec->disk_mib},
        {"disk_mib_per_s", JSON_KIND_INTEGER, .max = RATE_MAX_MIB_PER_S, .to = &mib_per_s},
        {"disk_iops", JSON_KIND_INTEGER, .max = IOPS_MAX, .to = &iops},
    };
    int rc = obj ? json_read(obj, "resources", fields, ARRAY_LEN(fields), err) : 0;
    return rc < 0 ? rc : read_limits(config, mib_per_s, iops, &spec->limits, err);
}

/* --- bodies --- */

struct create_parts {
    const json_t *resources, *network, *lifecycle;
};

static int read_create(const json_t *body, struct create_spec *spec, struct create_parts *parts,
                       struct error *err)
{
    const struct json_field fields[] = {
        {"template", JSON_KIND_STRING, .min = 1, .max = TEMPLATE_MAX, .to = &spec->template},
        {"snapshot", JSON_KIND_STRING, .min = 1, .max = ID_SIZE, .to = &spec->snapshot},
        {"name", JSON_KIND_STRING, .min = 1, .max = NAME_MAX_BYTES, .to = &spec->name},
        {"metadata", JSON_KIND_STRING_MAP, .max = METADATA_MAX, .to = &spec->metadata},
        {"env", JSON_KIND_STRING_MAP, .max = ENV_MAX, .to = &spec->env},
        {"user", JSON_KIND_STRING, .min = 1, .max = USER_MAX, .to = &spec->user},
        {"cwd", JSON_KIND_STRING, .min = 1, .max = CWD_MAX, .to = &spec->cwd},
        {"resources", JSON_KIND_OBJECT, .to = &parts->resources},
        {"network", JSON_KIND_OBJECT, .to = &parts->network},
        {"lifecycle", JSON_KIND_OBJECT, .to = &parts->lifecycle},
    };
    return json_read(body, "", fields, ARRAY_LEN(fields), err);
}

static int check_create(const struct create_spec *spec, const struct create_parts *parts, struct error *err)
{
    if (spec->template && spec->snapshot)
        return error_field(err, ERROR_INVALID, "snapshot",
                           "a sandbox is made from a template or from a snapshot, not from both");
    if (spec->snapshot && parts->resources)
        return error_field(err, ERROR_INVALID, "resources",
                           "a sandbox made from a snapshot has the resources of the snapshot");
    if (!spec->template && !spec->snapshot)
        return error_field(err, ERROR_INVALID, "template", "template or snapshot is required");
    int rc = name_check(spec->name, err);
    if (rc == 0 && spec->metadata)
        rc = check_metadata(spec->metadata, err);
    if (rc == 0)
        rc = check_defaults(spec->user, spec->cwd, err);
    return rc == 0 && spec->env ? check_env(spec->env, err) : rc;
}

int create_spec_read(const struct sandboxes_config *config, const json_t *body, struct create_spec *ret,
                     struct error *err)
{
    struct create_spec spec = {.name = ""};
    struct create_parts parts = {0};
    lifecycle_defaults(config, &spec.lifecycle);
    int rc = read_create(body, &spec, &parts, err);
    if (rc == 0)
        rc = check_create(&spec, &parts, err);
    if (rc == 0)
        rc = read_resources(config, parts.resources, &spec, err);
    if (rc == 0)
        rc = read_network(parts.network, &spec.exposure, err);
    if (rc == 0)
        rc = lifecycle_read(config, parts.lifecycle, &spec.lifecycle, err);
    if (rc == 0)
        *ret = spec;
    return rc;
}

int create_spec_shape(const struct sandboxes_config *config, const struct create_spec *spec,
                      uint32_t template_disk_mib, struct vm_shape *ret, struct error *err)
{
    if (spec->disk_mib > 0 && spec->disk_mib < (int64_t)template_disk_mib)
        return error_field(err, ERROR_INVALID, "resources.disk_mib",
                           "resources.disk_mib is %" PRId64 "; the template needs at least %u",
                           spec->disk_mib, template_disk_mib);
    uint32_t disk = spec->disk_mib > 0 ? (uint32_t)spec->disk_mib : config->default_disk_mib;
    ret->vcpus = spec->vcpus > 0 ? (uint32_t)spec->vcpus : config->default_vcpus;
    ret->memory_mib = spec->memory_mib > 0 ? (uint32_t)spec->memory_mib : config->default_memory_mib;
    ret->disk_mib = disk > template_disk_mib ? disk : template_disk_mib;
    return 0;
}

int patch_spec_read(const struct sandboxes_config *config, const json_t *body,
                    const struct lifecycle *lifecycle_now, const struct exposure *exposure_now,
                    struct patch_spec *ret, struct error *err)
{
    struct patch_spec spec = {.name = "", .lifecycle = *lifecycle_now, .exposure = *exposure_now};
    const json_t *lifecycle = NULL;
    const json_t *network = NULL;
    const struct json_field fields[] = {
        {"name", JSON_KIND_STRING, .min = 1, .max = NAME_MAX_BYTES, .to = &spec.name},
        {"metadata", JSON_KIND_STRING_MAP, .max = METADATA_MAX, .to = &spec.metadata},
        {"lifecycle", JSON_KIND_OBJECT, .to = &lifecycle},
        {"network", JSON_KIND_OBJECT, .to = &network},
    };
    int rc = json_read(body, "", fields, ARRAY_LEN(fields), err);
    if (rc == 0)
        rc = name_check(spec.name, err);
    if (rc == 0 && spec.metadata)
        rc = check_metadata(spec.metadata, err);
    if (rc == 0)
        rc = read_network(network, &spec.exposure, err);
    if (rc == 0)
        rc = lifecycle_read(config, lifecycle, &spec.lifecycle, err);
    if (rc < 0)
        return rc;
    spec.has_name = json_object_get(body, "name") != NULL; /* null takes the name away */
    *ret = spec;
    return 0;
}
