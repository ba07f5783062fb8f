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
#define TEMPLATE_MAX 159
#define IDLE_MAX_S (30LL * 24 * 3600)
#define LIFETIME_MAX_S (366LL * 24 * 3600)
#define VCPUS_MAX 8
#define MEMORY_MIN_MIB \
    128 /* a guest of 64 MiB panics while it boots, one of 80 MiB has nothing left for a command */
#define MEMORY_MAX_MIB 65536
#define DISK_MAX_MIB (1024 * 1024)

static bool name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

static int check_name(const char *name, struct error *err)
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

static int read_network(const json_t *obj, struct error *err)
{
    if (!obj)
        return 0;
    const char *mode = "none";
    const json_t *allow = NULL;
    const json_t *deny = NULL;
    const struct json_field fields[] = {
        {"mode", JSON_KIND_STRING, .to = &mode},
        {"allow", JSON_KIND_STRING_LIST, .to = &allow},
        {"deny", JSON_KIND_STRING_LIST, .to = &deny},
    };
    int rc = json_read(obj, "network", fields, ARRAY_LEN(fields), err);
    if (rc < 0)
        return rc;
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

static int read_on_idle(const char *text, enum on_idle *ret, struct error *err)
{
    if (strcmp(text, "suspend") == 0)
        return error_field(err, ERROR_UNSUPPORTED, "lifecycle.on_idle",
                           "this server cannot suspend: lifecycle.on_idle can be \"pause\", \"delete\" or "
                           "\"none\"");
    if (!on_idle_parse(text, ret))
        return error_field(err, ERROR_INVALID, "lifecycle.on_idle",
                           "lifecycle.on_idle is \"pause\", \"suspend\", \"delete\" or \"none\"");
    return 0;
}

static int read_on_expiry(const char *text, struct error *err)
{
    if (strcmp(text, "suspend") == 0)
        return error_field(err, ERROR_UNSUPPORTED, "lifecycle.on_expiry",
                           "this server cannot suspend: lifecycle.on_expiry can only be \"delete\"");
    if (strcmp(text, "delete") != 0)
        return error_field(err, ERROR_INVALID, "lifecycle.on_expiry",
                           "lifecycle.on_expiry is \"delete\" or \"suspend\"");
    return 0;
}

static bool is_null(const json_t *obj, const char *key)
{
    return json_is_null(json_object_get(obj, key));
}

/* Given fields over what *l holds; null takes a field back to its default. */
static int read_lifecycle(const json_t *obj, struct lifecycle *l, struct error *err)
{
    if (!obj)
        return 0;
    const char *on_idle = NULL;
    const char *on_expiry = NULL;
    struct lifecycle now = *l;
    const struct json_field fields[] = {
        {"idle_timeout_s", JSON_KIND_INTEGER, .max = IDLE_MAX_S, .to = &now.idle_timeout_s},
        {"on_idle", JSON_KIND_STRING, .to = &on_idle},
        {"max_lifetime_s", JSON_KIND_INTEGER, .max = LIFETIME_MAX_S, .to = &now.max_lifetime_s},
        {"on_expiry", JSON_KIND_STRING, .to = &on_expiry},
        {"auto_wake", JSON_KIND_BOOL, .to = &now.auto_wake},
    };
    if (is_null(obj, "idle_timeout_s"))
        now.idle_timeout_s = 0;
    if (is_null(obj, "max_lifetime_s"))
        now.max_lifetime_s = 0;
    if (is_null(obj, "auto_wake"))
        now.auto_wake = false;
    int rc = json_read(obj, "lifecycle", fields, ARRAY_LEN(fields), err);
    if (rc == 0 && on_expiry)
        rc = read_on_expiry(on_expiry, err);
    if (rc == 0 && on_idle)
        rc = read_on_idle(on_idle, &now.on_idle, err);
    if (rc < 0)
        return rc;
    if (is_null(obj, "on_idle"))
        now.on_idle = ON_IDLE_NONE;
    /* A first timeout with nothing said about it means what most people want of one. */
    if (!on_idle && now.on_idle == ON_IDLE_NONE && now.idle_timeout_s > 0 && l->idle_timeout_s == 0)
        now.on_idle = ON_IDLE_PAUSE;
    *l = now;
    return 0;
}

static int read_resources(const struct sandboxes_config *config, const json_t *obj, struct create_spec *spec,
                          struct error *err)
{
    if (!obj)
        return 0;
    int64_t vcpus = config->max_vcpus ? config->max_vcpus : VCPUS_MAX;
    int64_t memory = config->max_memory_mib_each ? config->max_memory_mib_each : MEMORY_MAX_MIB;
    int64_t disk = config->max_disk_mib ? config->max_disk_mib : DISK_MAX_MIB;
    const struct json_field fields[] = {
        {"vcpus", JSON_KIND_INTEGER, .min = 1, .max = vcpus, .to = &spec->vcpus},
        {"memory_mib", JSON_KIND_INTEGER, .min = MEMORY_MIN_MIB, .max = memory, .to = &spec->memory_mib},
        {"disk_mib", JSON_KIND_INTEGER, .min = 1, .max = disk, .to = &spec->disk_mib},
    };
    return json_read(obj, "resources", fields, ARRAY_LEN(fields), err);
}

/* --- bodies --- */

struct create_parts {
    const json_t *resources, *network, *lifecycle;
    const char *snapshot;
};

static int read_create(const json_t *body, struct create_spec *spec, struct create_parts *parts,
                       struct error *err)
{
    const struct json_field fields[] = {
        {"template", JSON_KIND_STRING, .min = 1, .max = TEMPLATE_MAX, .to = &spec->template},
        {"snapshot", JSON_KIND_STRING, .to = &parts->snapshot},
        {"name", JSON_KIND_STRING, .min = 1, .max = NAME_MAX_BYTES, .to = &spec->name},
        {"metadata", JSON_KIND_STRING_MAP, .max = METADATA_MAX, .to = &spec->metadata},
        {"env", JSON_KIND_STRING_MAP, .max = ENV_MAX, .to = &spec->env},
        {"resources", JSON_KIND_OBJECT, .to = &parts->resources},
        {"network", JSON_KIND_OBJECT, .to = &parts->network},
        {"lifecycle", JSON_KIND_OBJECT, .to = &parts->lifecycle},
    };
    return json_read(body, "", fields, ARRAY_LEN(fields), err);
}

static int check_create(const struct create_spec *spec, const struct create_parts *parts, struct error *err)
{
    if (parts->snapshot)
        return error_field(err, ERROR_UNSUPPORTED, "snapshot",
                           "this server keeps no snapshots: create from a template");
    if (!spec->template)
        return error_field(err, ERROR_INVALID, "template", "template is required");
    int rc = check_name(spec->name, err);
    if (rc == 0 && spec->metadata)
        rc = check_metadata(spec->metadata, err);
    return rc == 0 && spec->env ? check_env(spec->env, err) : rc;
}

int create_spec_read(const struct sandboxes_config *config, const json_t *body, struct create_spec *ret,
                     struct error *err)
{
    struct create_spec spec = {.name = ""};
    struct create_parts parts = {0};
    int rc = read_create(body, &spec, &parts, err);
    if (rc == 0)
        rc = check_create(&spec, &parts, err);
    if (rc == 0)
        rc = read_resources(config, parts.resources, &spec, err);
    if (rc == 0)
        rc = read_network(parts.network, err);
    if (rc == 0)
        rc = read_lifecycle(parts.lifecycle, &spec.lifecycle, err);
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

int patch_spec_read(const json_t *body, const struct lifecycle *before, struct patch_spec *ret,
                    struct error *err)
{
    struct patch_spec spec = {.name = "", .lifecycle = *before};
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
        rc = check_name(spec.name, err);
    if (rc == 0 && spec.metadata)
        rc = check_metadata(spec.metadata, err);
    if (rc == 0)
        rc = read_network(network, err);
    if (rc == 0)
        rc = read_lifecycle(lifecycle, &spec.lifecycle, err);
    if (rc < 0)
        return rc;
    spec.has_name = json_object_get(body, "name") != NULL; /* null takes the name away */
    *ret = spec;
    return 0;
}
