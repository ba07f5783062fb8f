/* The body of a build request. */
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "broker/names.h"
#include "template/private.h"
#include "json/json.h"

#define PACKAGES_MAX 256
#define DISK_MIN_MIB 16
#define DISK_MAX_MIB 1048576
#define DISK_DEFAULT_MIB 2048
#define DISK_EXTRA_MIB 512
#define MIB 1048576

static int check_packages(const json_t *list, struct error *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (!protocol_package(name))
            return error_field(err, ERROR_INVALID, "packages", "\"%.64s\" is no name of a Debian package",
                               name);
    }
    return 0;
}

static int check_suite(const char *suite, struct error *err)
{
    if (protocol_suite(suite))
        return 0;
    return error_field(err, ERROR_INVALID, "suite", "suite is the name of a Debian release");
}

/* An image is sparse: room costs nothing until it is used, so there is plenty. What an archive holds is not
 * known before it is unpacked; four times its size leaves room for any usual compression. */
static uint32_t default_disk(const struct templates *t, uint64_t archive_bytes)
{
    uint64_t disk = t->config.default_shape.disk_mib ? t->config.default_shape.disk_mib : DISK_DEFAULT_MIB;
    uint64_t need = archive_bytes ? archive_bytes / MIB * 4 + DISK_EXTRA_MIB : 0;
    need = (need + 63) / 64 * 64;
    if (need > disk)
        disk = need;
    return disk > DISK_MAX_MIB ? DISK_MAX_MIB : (uint32_t)disk;
}

static int read_debian(const json_t *body, struct build *b, const char **tag, int64_t *disk,
                       struct error *err)
{
    const char *kind;
    const char *suite = "";
    const json_t *packages = NULL;
    const struct json_field fields[] = {
        {"kind", JSON_KIND_STRING, .to = &kind},
        {"suite", JSON_KIND_STRING, .min = 1, .max = sizeof(b->suite) - 1, .to = &suite},
        {"packages", JSON_KIND_STRING_LIST, .max = PACKAGES_MAX, .to = &packages},
        {"seed_user", JSON_KIND_BOOL, .to = &b->seed_user},
        {"disk_mib", JSON_KIND_INTEGER, .min = DISK_MIN_MIB, .max = DISK_MAX_MIB, .to = disk},
        {"tag", JSON_KIND_STRING, .max = NAME_MAX_BYTES, .to = tag},
    };
    int rc = json_read(body, "", fields, ARRAY_LEN(fields), err);
    if (rc == 0)
        rc = check_suite(suite, err);
    if (rc == 0 && packages)
        rc = check_packages(packages, err);
    if (rc < 0)
        return rc;
    (void)str_copy(b->suite, sizeof(b->suite), suite);
    b->packages = packages ? json_deep_copy(packages) : NULL;
    return 0;
}

static int read_tar(const json_t *body, struct build *b, const char **tag, int64_t *disk, const char **upload,
                    struct error *err)
{
    const char *kind;
    const struct json_field fields[] = {
        {"kind", JSON_KIND_STRING, .to = &kind},
        {"upload", JSON_KIND_STRING, .required = true, .to = upload},
        {"seed_user", JSON_KIND_BOOL, .to = &b->seed_user},
        {"disk_mib", JSON_KIND_INTEGER, .min = DISK_MIN_MIB, .max = DISK_MAX_MIB, .to = disk},
        {"tag", JSON_KIND_STRING, .max = NAME_MAX_BYTES, .to = tag},
    };
    return json_read(body, "", fields, ARRAY_LEN(fields), err);
}

/* The kind decides which other fields there may be, so it is looked at first. */
static int read_kind(const json_t *body, struct build *b, struct error *err)
{
    if (!json_is_object(body))
        return error_set(err, ERROR_INVALID, "the body must be an object");
    const char *kind = json_string_value(json_object_get(body, "kind"));
    b->directory = kind && strcmp(kind, "dir") == 0;
    if (kind && strcmp(kind, "debian") == 0)
        b->kind = BROKER_BUILD_DEBIAN;
    else if (b->directory || (kind && strcmp(kind, "tar") == 0))
        b->kind = BROKER_BUILD_TAR;
    else
        return error_field(err, ERROR_INVALID, "kind", "kind is \"debian\", \"tar\" or \"dir\"");
    return 0;
}

int build_spec_read(struct templates *t, const json_t *body, struct build *b, char upload[ID_SIZE],
                    struct error *err)
{
    const char *tag = TAG_DEFAULT;
    const char *from = NULL;
    int64_t disk = 0;
    uint64_t bytes = 0;
    int rc = read_kind(body, b, err);
    if (rc == 0 && b->kind == BROKER_BUILD_DEBIAN)
        rc = read_debian(body, b, &tag, &disk, err);
    else if (rc == 0)
        rc = read_tar(body, b, &tag, &disk, &from, err);
    if (rc == 0)
        rc = template_check_tag(tag, "tag", err);
    if (rc < 0)
        return rc;
    (void)str_copy(b->tag, sizeof(b->tag), tag);
    if (b->kind == BROKER_BUILD_TAR) {
        rc = upload_open(t, from, &b->source_fd, &bytes, err);
        if (rc < 0)
            return rc;
        (void)str_copy(upload, ID_SIZE, from);
    }
    b->disk_mib = disk > 0 ? (uint32_t)disk : default_disk(t, bytes);
    return 0;
}
