#include "broker/protocol.h"

#include <string.h>

#include "base/str.h"

static bool after_ok(const char *s)
{
    return *s == '\0' || protocol_sandbox_id(s);
}

static bool snapshot_or_none(const char *s)
{
    return *s == '\0' || protocol_snapshot_id(s);
}

static bool key_or_none(const char *s)
{
    return *s == '\0' || protocol_key(s);
}

static bool digest_or_none(const char *s)
{
    return *s == '\0' || protocol_digest(s);
}

#define Q(member) .name = #member, .offset = offsetof(struct request, member)
#define QSTR(member) Q(member), .kind = WIRE_STR, .size = sizeof(((struct request *)0)->member)
#define QNUM(member, lo, hi)                                  \
    {                                                         \
        Q(member), .kind = WIRE_U32, .min = (lo), .max = (hi) \
    }
#define END          \
    {                \
        .name = NULL \
    }

#define SANDBOX                                        \
    {                                                  \
        QSTR(sandbox_id), .check = protocol_sandbox_id \
    }
#define KEY                              \
    {                                    \
        QSTR(key), .check = protocol_key \
    }
#define SNAPSHOT                                         \
    {                                                    \
        QSTR(snapshot_id), .check = protocol_snapshot_id \
    }
#define MEMORY QNUM(memory_mib, REQUEST_MEMORY_MIB_MIN, REQUEST_MEMORY_MIB_MAX)
#define DISK QNUM(disk_mib, 1, REQUEST_DISK_MIB_MAX)

static const struct wire_field no_fields[] = {END};
static const struct wire_field sandbox_fields[] = {SANDBOX, END};
static const struct wire_field key_fields[] = {KEY, END};
static const struct wire_field prepare_fields[] = {
    SANDBOX,
    QNUM(from, BROKER_FROM_TEMPLATE, BROKER_FROM_SNAPSHOT),
    {QSTR(digest), .check = digest_or_none},
    {QSTR(key), .check = key_or_none},
    {QSTR(snapshot_id), .check = snapshot_or_none},
    DISK,
    END,
};
static const struct wire_field list_fields[] = {{QSTR(after), .check = after_ok}, END};
static const struct wire_field begin_fields[] = {KEY, SANDBOX, MEMORY, END};
static const struct wire_field seal_fields[] = {KEY, SANDBOX, END};
static const struct wire_field start_fields[] = {
    SANDBOX,
    QNUM(kind, BROKER_VMM_QEMU, BROKER_VMM_FIRECRACKER),
    QNUM(boot, BROKER_BOOT_GOLDEN, BROKER_BOOT_SNAPSHOT),
    {QSTR(key), .check = key_or_none},
    {QSTR(snapshot_id), .check = snapshot_or_none},
    {QSTR(platform), .check = protocol_digest},
    QNUM(kvm, 0, 1),
    QNUM(vcpus, 1, REQUEST_VCPUS_MAX),
    MEMORY,
    END,
};
static const struct wire_field build_fields[] = {
    {QSTR(build_id), .check = protocol_build_id},
    QNUM(kind, BROKER_BUILD_DEBIAN, BROKER_BUILD_TAR),
    {QSTR(suite), .check = protocol_suite},
    {Q(packages), .kind = WIRE_LIST, .max = REQUEST_PACKAGES_MAX, .check = protocol_package},
    QNUM(seed_user, 0, 1),
    DISK,
    END,
};
static const struct wire_field cancel_fields[] = {{QSTR(build_id), .check = protocol_build_id}, END};
static const struct wire_field revert_fields[] = {SANDBOX, SNAPSHOT, END};
static const struct wire_field snapshot_begin_fields[] = {
    SNAPSHOT, SANDBOX, QNUM(kind, BROKER_SNAPSHOT_FULL, BROKER_SNAPSHOT_DISK), END};
static const struct wire_field capture_fields[] = {SNAPSHOT, QNUM(go_on, 0, 1), END};
static const struct wire_field snapshot_fields[] = {SNAPSHOT, END};
static const struct wire_field check_fields[] = {
    SNAPSHOT, QNUM(kind, BROKER_SNAPSHOT_FULL, BROKER_SNAPSHOT_DISK), MEMORY, END};
static const struct wire_field copy_fields[] = {
    SNAPSHOT, {QSTR(source_id), .check = protocol_snapshot_id}, END};
static const struct wire_field snapshot_list_fields[] = {{QSTR(after), .check = snapshot_or_none}, END};
static const struct wire_field digest_fields[] = {{QSTR(digest), .check = protocol_digest}, END};

#define R(member) .name = #member, .offset = offsetof(struct reply, member)
#define RSTR(member)                                                             \
    {                                                                            \
        R(member), .kind = WIRE_STR, .size = sizeof(((struct reply *)0)->member) \
    }
#define RU32(member)                                   \
    {                                                  \
        R(member), .kind = WIRE_U32, .max = UINT32_MAX \
    }
#define RU64(member)                                   \
    {                                                  \
        R(member), .kind = WIRE_U64, .max = UINT64_MAX \
    }
#define OK                                    \
    {                                         \
        R(failed), .kind = WIRE_U32, .max = 0 \
    }

static const struct wire_field ok_reply[] = {OK, END};
static const struct wire_field failed_reply[] = {
    {R(failed), .kind = WIRE_U32, .min = 1, .max = 1000}, RSTR(message), RSTR(field), END};
static const struct wire_field info_reply[] = {
    OK,
    RSTR(pool_path),
    RSTR(pool_kind),
    RSTR(cgroup_mode),
    RSTR(cgroup_limits),
    RU32(reflink),
    RU32(uid_first),
    RU32(uid_count),
    RU32(kvm_device),
    RU64(pool_free_bytes),
    RU64(pool_total_bytes),
    END,
};
static const struct wire_field list_reply[] = {
    OK, {R(ids), .kind = WIRE_LIST, .max = WIRE_LIST_MAX, .check = protocol_sandbox_id}, RU32(more), END};
static const struct wire_field snapshot_list_reply[] = {
    OK, {R(ids), .kind = WIRE_LIST, .max = WIRE_LIST_MAX, .check = protocol_snapshot_id}, RU32(more), END};
static const struct wire_field bytes_reply[] = {OK, RU64(bytes), END};
static const struct wire_field has_reply[] = {OK, RU32(sealed), END};
static const struct wire_field vmm_reply[] = {OK,
                                              RU32(pid),
                                              {R(kind), .kind = WIRE_U32, .max = BROKER_VMM_FIRECRACKER},
                                              RU64(start_time),
                                              RSTR(qmp_socket),
                                              RSTR(agent_socket),
                                              RSTR(log),
                                              END};
static const struct wire_field build_reply[] = {
    OK,
    {R(digest), .kind = WIRE_STR, .size = BROKER_DIGEST_SIZE, .check = protocol_digest},
    RU64(content_bytes),
    END};

static const struct request_info table[REQUEST_TYPE_COUNT] = {
    [REQUEST_INFO] = {"info", no_fields, info_reply, 0, 0, 0},
    [REQUEST_SANDBOX_PREPARE] = {"sandbox-prepare", prepare_fields, ok_reply, 0, 0, 0},
    [REQUEST_SANDBOX_REMOVE] = {"sandbox-remove", sandbox_fields, ok_reply, 0, 0, 0},
    [REQUEST_SANDBOX_LIST] = {"sandbox-list", list_fields, list_reply, 0, 0, 0},
    [REQUEST_GOLDEN_BEGIN] = {"golden-begin", begin_fields, ok_reply, 0, 0, 0},
    [REQUEST_GOLDEN_SEAL] = {"golden-seal", seal_fields, ok_reply, 0, 0, 0},
    [REQUEST_GOLDEN_REMOVE] = {"golden-remove", key_fields, ok_reply, 0, 0, 0},
    [REQUEST_GOLDEN_HAS] = {"golden-has", key_fields, has_reply, 0, 0, 0},
    [REQUEST_VMM_START] = {"vmm-start", start_fields, vmm_reply, 0, 0, 2},
    [REQUEST_VMM_ADOPT] = {"vmm-adopt", sandbox_fields, vmm_reply, 0, 0, 2},
    [REQUEST_VMM_KILL] = {"vmm-kill", sandbox_fields, ok_reply, 0, 0, 0},
    [REQUEST_TEMPLATE_BUILD] = {"template-build", build_fields, build_reply, 1, 2, 0},
    [REQUEST_BUILD_CANCEL] = {"build-cancel", cancel_fields, ok_reply, 0, 0, 0},
    [REQUEST_TEMPLATE_REMOVE] = {"template-remove", digest_fields, ok_reply, 0, 0, 0},
    [REQUEST_SANDBOX_PARK] = {"sandbox-park", sandbox_fields, ok_reply, 0, 0, 0},
    [REQUEST_SANDBOX_REVERT] = {"sandbox-revert", revert_fields, ok_reply, 0, 0, 0},
    [REQUEST_SNAPSHOT_BEGIN] = {"snapshot-begin", snapshot_begin_fields, ok_reply, 0, 0, 0},
    [REQUEST_SNAPSHOT_CAPTURE] = {"snapshot-capture", capture_fields, bytes_reply, 0, 0, 0},
    [REQUEST_SNAPSHOT_SEAL] = {"snapshot-seal", snapshot_fields, bytes_reply, 0, 0, 0},
    [REQUEST_SNAPSHOT_COPY] = {"snapshot-copy", copy_fields, ok_reply, 0, 0, 0},
    [REQUEST_SNAPSHOT_REMOVE] = {"snapshot-remove", snapshot_fields, ok_reply, 0, 0, 0},
    [REQUEST_SNAPSHOT_LIST] = {"snapshot-list", snapshot_list_fields, snapshot_list_reply, 0, 0, 0},
    [REQUEST_SNAPSHOT_PACK] = {"snapshot-pack", snapshot_fields, bytes_reply, 0, 0, 0},
    [REQUEST_GOLDEN_CAPTURE] = {"golden-capture", seal_fields, ok_reply, 0, 0, 0},
    [REQUEST_SNAPSHOT_CHECK] = {"snapshot-check", check_fields, ok_reply, 0, 0, 0},
};

const struct request_info *request_info(unsigned type)
{
    return type > 0 && type < REQUEST_TYPE_COUNT ? &table[type] : NULL;
}

size_t request_encode(const struct request *r, unsigned char *to, size_t size)
{
    const struct request_info *info = request_info(r->type);
    struct wire_header h = {.type = r->type, .id = r->id};
    return info ? wire_encode(&h, info->fields, r, to, size) : 0;
}

/* Rules between the fields of one request, which the table cannot say. */
static int check_request(const struct request *r, struct error *err)
{
    if (r->type == REQUEST_SANDBOX_PREPARE &&
        ((r->digest[0] != '\0') != (r->from == BROKER_FROM_TEMPLATE) ||
         (r->key[0] != '\0') != (r->from == BROKER_FROM_GOLDEN) ||
         (r->snapshot_id[0] != '\0') != (r->from == BROKER_FROM_SNAPSHOT)))
        return error_set(err, ERROR_INVALID,
                         "a disk comes from a template's digest, a golden's key or a snapshot");
    if (r->type == REQUEST_VMM_START) {
        if (r->kind == BROKER_VMM_FIRECRACKER && !r->kvm)
            return error_field(err, ERROR_INVALID, "kvm", "Firecracker runs with KVM alone");
        bool golden = r->boot == BROKER_BOOT_GOLDEN || r->boot == BROKER_BOOT_RESTORE;
        if ((r->key[0] != '\0') != golden)
            return error_field(err, ERROR_INVALID, "key", "a golden key does not go with this kind of boot");
        if ((r->snapshot_id[0] != '\0') != (r->boot == BROKER_BOOT_SNAPSHOT))
            return error_field(err, ERROR_INVALID, "snapshot_id",
                               "a snapshot does not go with this kind of boot");
    }
    if (r->type == REQUEST_TEMPLATE_BUILD) {
        bool tar = r->kind == BROKER_BUILD_TAR;
        if (r->fd_count != (tar ? 2 : 1))
            return error_set(err, ERROR_INVALID,
                             "a build comes with a log and, from an archive, the archive");
        if (tar && (r->suite[0] != '\0' || r->packages.count > 0))
            return error_set(err, ERROR_INVALID, "an archive has no suite or packages");
    }
    return 0;
}

int request_decode(const unsigned char *p, size_t n, unsigned fd_count, struct request *ret,
                   struct error *err)
{
    struct wire_header h = {0};
    ret->type = 0;
    ret->id = 0;
    int rc = wire_decode_header(p, n, &h, err);
    if (rc < 0)
        return rc;
    ret->type = h.type;
    ret->id = h.id;
    ret->fd_count = fd_count;
    const struct request_info *info = request_info(h.type);
    if (!info)
        return error_set(err, ERROR_PROTOCOL, "no request has type %u", h.type);
    if (fd_count < info->fds_min || fd_count > info->fds_max)
        return error_set(err, ERROR_PROTOCOL, "%s with %u descriptors", info->name, fd_count);
    rc = wire_decode(info->fields, p, n, ret, err);
    return rc < 0 ? error_wrap(err, "%s", info->name) : check_request(ret, err);
}

size_t reply_encode(const struct reply *r, unsigned char *to, size_t size)
{
    const struct request_info *info = request_info(r->type);
    struct wire_header h = {.type = (uint16_t)(r->type | REPLY_BIT), .id = r->id};
    if (!info && !r->failed)
        return 0;
    return wire_encode(&h, r->failed ? failed_reply : info->reply_fields, r, to, size);
}

int reply_decode(const unsigned char *p, size_t n, unsigned fd_count, struct reply *ret, struct error *err)
{
    struct wire_header h;
    int rc = wire_decode_header(p, n, &h, err);
    if (rc < 0)
        return rc;
    if (!(h.type & REPLY_BIT))
        return error_set(err, ERROR_PROTOCOL, "a reply of type %u", h.type);
    ret->type = h.type & (uint16_t)~REPLY_BIT;
    ret->id = h.id;
    ret->fd_count = fd_count;
    const struct request_info *info = request_info(ret->type);
    /* `failed` comes first in both shapes: kind byte, then the number. */
    if (n >= WIRE_HEADER_SIZE + 5 && memcmp(p + WIRE_HEADER_SIZE + 1, "\0\0\0\0", 4) != 0)
        rc = fd_count > 0 ? error_set(err, ERROR_PROTOCOL, "a failure with descriptors")
                          : wire_decode(failed_reply, p, n, ret, err);
    else if (!info || fd_count != info->reply_fds)
        rc = error_set(err, ERROR_PROTOCOL, "an unexpected reply of type %u", ret->type);
    else
        rc = wire_decode(info->reply_fields, p, n, ret, err);
    return rc < 0 ? error_wrap(err, "reply of the broker") : 0;
}

void reply_fail(struct reply *r, const struct error *err)
{
    int code = err->code < 0 ? err->code : ERROR_INTERNAL;
    r->failed = (uint32_t)-code;
    (void)str_copy(r->message, sizeof(r->message), err->message);
    (void)str_copy(r->field, sizeof(r->field), err->field);
}
