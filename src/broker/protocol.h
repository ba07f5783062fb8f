/* What is said over the broker channel: one table of requests with their fields, descriptors and
 * replies. spaced writes requests and reads replies with it, space-privd the other way round. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/id.h"
#include "broker/broker.h"
#include "broker/names.h"
#include "broker/wire.h"

enum request_type {
    REQUEST_INFO = 1,
    REQUEST_SANDBOX_PREPARE,
    REQUEST_SANDBOX_REMOVE,
    REQUEST_SANDBOX_LIST,
    REQUEST_GOLDEN_BEGIN,
    REQUEST_GOLDEN_SEAL,
    REQUEST_GOLDEN_REMOVE,
    REQUEST_GOLDEN_HAS,
    REQUEST_VMM_START,
    REQUEST_VMM_ADOPT,
    REQUEST_VMM_KILL,
    REQUEST_TEMPLATE_BUILD,
    REQUEST_BUILD_CANCEL,
    REQUEST_TEMPLATE_REMOVE,
    REQUEST_SANDBOX_PARK,
    REQUEST_SANDBOX_REVERT,
    REQUEST_SNAPSHOT_BEGIN,
    REQUEST_SNAPSHOT_CAPTURE,
    REQUEST_SNAPSHOT_SEAL,
    REQUEST_SNAPSHOT_COPY,
    REQUEST_SNAPSHOT_REMOVE,
    REQUEST_SNAPSHOT_LIST,
    REQUEST_SNAPSHOT_PACK,
    REQUEST_GOLDEN_CAPTURE,
    REQUEST_SNAPSHOT_CHECK,
    REQUEST_TYPE_COUNT,
};

#define REPLY_BIT 0x8000 /* set in the type of a reply */

#define REQUEST_VCPUS_MAX 64
#define REQUEST_MEMORY_MIB_MIN 32
#define REQUEST_MEMORY_MIB_MAX (1U << 20)
#define REQUEST_DISK_MIB_MAX (16U << 20)
#define REQUEST_PACKAGES_MAX 256

/* The fields of all requests; a request fills those its table names. */
struct request {
    uint16_t type;
    uint32_t id;
    char sandbox_id[ID_SIZE];
    char after[ID_SIZE]; /* LIST: ids after this one, "" from the start */
    char key[BROKER_KEY_SIZE];
    char digest[BROKER_DIGEST_SIZE];
    char platform[BROKER_DIGEST_SIZE];
    char build_id[ID_SIZE];
    char snapshot_id[ID_SIZE];
    char source_id[ID_SIZE]; /* COPY: the snapshot to copy */
    char suite[32];
    uint32_t from; /* enum broker_disk_from */
    uint32_t boot; /* enum broker_boot */
    uint32_t kind; /* enum broker_build; BEGIN, CHECK: enum broker_snapshot_kind; VMM_START: enum
                      broker_vmm_kind */
    uint32_t go_on;
    uint32_t kvm, vcpus, memory_mib, disk_mib, seed_user;
    struct wire_list packages;
    int fds[WIRE_FDS_MAX];
    unsigned fd_count;
};

/* The fields of all replies. */
struct reply {
    uint16_t type;
    uint32_t id;
    uint32_t failed; /* 0, or the negated enum error_code */
    char message[ERROR_MESSAGE_MAX];
    char field[ERROR_FIELD_MAX];
    /* INFO */
    char pool_path[256];
    char pool_kind[16];
    char cgroup_mode[8];
    char cgroup_limits[BROKER_LIMITS_SIZE];
    uint32_t reflink, uid_first, uid_count, kvm_device;
    uint64_t pool_free_bytes, pool_total_bytes;
    /* LIST: of sandboxes or snapshots */
    struct wire_list ids;
    uint32_t more;
    /* GOLDEN_HAS */
    uint32_t sealed;
    /* VMM_START, VMM_ADOPT: with the pidfd and the VMM's directory */
    uint32_t pid, kind;
    uint64_t start_time;
    char qmp_socket[200];
    char agent_socket[200];
    char log[200];
    /* TEMPLATE_BUILD */
    char digest[BROKER_DIGEST_SIZE];
    uint64_t content_bytes;
    uint64_t bytes; /* SNAPSHOT_CAPTURE: changed memory; SNAPSHOT_SEAL: written; SNAPSHOT_PACK: on disk */
    int fds[WIRE_FDS_MAX];
    unsigned fd_count;
};

struct request_info {
    const char *name;
    const struct wire_field *fields;
    const struct wire_field *reply_fields; /* of a success */
    unsigned fds_min, fds_max;             /* descriptors that come with the request */
    unsigned reply_fds;                    /* descriptors that come with a success */
};

/* The table's row for a type, or NULL. */
const struct request_info *request_info(unsigned type);

/* Writes a request. 0 when a field does not fit. */
size_t request_encode(const struct request *r, unsigned char *to, size_t size);

/* Reads and checks a request with fd_count descriptors, which stay the caller's. On failure ret->type
 * and ret->id are set as far as they could be read (0 else), so that an error can be answered. */
int request_decode(const unsigned char *p, size_t n, unsigned fd_count, struct request *ret,
                   struct error *err);

size_t reply_encode(const struct reply *r, unsigned char *to, size_t size);
int reply_decode(const unsigned char *p, size_t n, unsigned fd_count, struct reply *ret, struct error *err);

/* Marks a reply as failed with this error. */
void reply_fail(struct reply *r, const struct error *err);
