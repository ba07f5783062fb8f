/* The manifest of a snapshot. */
#include <string.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "broker/names.h"
#include "broker/snapshot.h"
#include "json/json.h"

#define MANIFEST_VERSION 1
#define MANIFEST_BYTES_MAX 8192

int manifest_write(int dir_fd, const struct manifest *m, struct error *err)
{
    AUTO_JSON json_t *j = json_pack(
        "{s:i,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:s,s:s,s:s}", "version", MANIFEST_VERSION, "id", m->id,
        "sandbox", m->sandbox_id, "kind", m->full ? "full" : "disk", "disk_bytes", (json_int_t)m->disk_bytes,
        "bytes", (json_int_t)m->bytes, "memory_bytes", (json_int_t)m->memory_bytes, "state_bytes",
        (json_int_t)m->state_bytes, "pages_written", (json_int_t)m->written, "pages_zeroed",
        (json_int_t)m->zeroed, "state_sha256", m->state_digest, "index_sha256", m->index_digest,
        "pages_sha256", m->pages_digest, "above_sha256", m->above_digest);
    AUTO_FREE char *text = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
    if (!text)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    return fs_write_atomic(dir_fd, "manifest", text, strlen(text), 0444, err);
}

static bool to_u64(json_int_t n, uint64_t max, uint64_t *ret)
{
    *ret = (uint64_t)n;
    return n >= 0 && (uint64_t)n <= max;
}

static bool to_digest(const char *s, bool full, char to[BROKER_DIGEST_SIZE])
{
    return (full ? protocol_digest(s) : *s == '\0') && str_copy(to, BROKER_DIGEST_SIZE, s);
}

static bool from_json(json_t *j, struct manifest *m)
{
    json_int_t version;
    json_int_t n[6];
    const char *s[7];
    s[6] = ""; /* older ones have none */
    if (json_unpack(j, "{s:I,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:s,s:s,s?s}", "version", &version, "id",
                    &s[0], "sandbox", &s[1], "kind", &s[2], "disk_bytes", &n[0], "bytes", &n[1],
                    "memory_bytes", &n[2], "state_bytes", &n[3], "pages_written", &n[4], "pages_zeroed",
                    &n[5], "state_sha256", &s[3], "index_sha256", &s[4], "pages_sha256", &s[5],
                    "above_sha256", &s[6]) < 0)
        return false;
    m->full = strcmp(s[2], "full") == 0;
    uint64_t pages_max;
    return version == MANIFEST_VERSION && (m->full || strcmp(s[2], "disk") == 0) &&
           protocol_snapshot_id(s[0]) && str_copy(m->id, sizeof(m->id), s[0]) && protocol_sandbox_id(s[1]) &&
           str_copy(m->sandbox_id, sizeof(m->sandbox_id), s[1]) && to_u64(n[0], INT64_MAX, &m->disk_bytes) &&
           to_u64(n[1], INT64_MAX, &m->bytes) && to_u64(n[2], 1ULL << 40, &m->memory_bytes) &&
           m->memory_bytes % MEMORY_PAGE == 0 && to_u64(n[3], SNAPSHOT_STATE_MAX, &m->state_bytes) &&
           to_u64(n[4], (pages_max = m->memory_bytes / MEMORY_PAGE), &m->written) &&
           to_u64(n[5], pages_max, &m->zeroed) && to_digest(s[3], m->full, m->state_digest) &&
           to_digest(s[4], m->full, m->index_digest) && to_digest(s[5], m->full, m->pages_digest) &&
           to_digest(s[6], *s[6] != '\0', m->above_digest);
}

int manifest_read(int dir_fd, const char *id, struct manifest *ret, struct error *err)
{
    AUTO_FREE char *text = NULL;
    size_t n;
    int rc = fs_read_file(dir_fd, "manifest", MANIFEST_BYTES_MAX, &text, &n, err);
    if (rc == ERROR_NOT_FOUND)
        return error_set(err, ERROR_NOT_FOUND, "there is no snapshot %s", id);
    if (rc < 0)
        return rc;
    AUTO_JSON json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    struct manifest m = {0};
    if (!j || !from_json(j, &m) || strcmp(m.id, id) != 0)
        return error_set(err, ERROR_DAMAGED, "the manifest of snapshot %s is damaged", id);
    *ret = m;
    return 0;
}
