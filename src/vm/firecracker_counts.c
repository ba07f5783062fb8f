/* A line of what Firecracker has counted. Nothing but the parser is here: it is fuzzed alone. */
#include <stddef.h>

#include "base/cleanup.h"
#include "vm/firecracker.h"

#define VALUE_MAX (1LL << 50) /* more than a VM can do between two looks */

struct wanted {
    const char *part, *name;
    size_t at; /* in struct vm_counters: several names may be one counter */
};

#define AT(member) offsetof(struct vm_counters, member)
static const struct wanted wanted[] = {
    {"block", "read_bytes", AT(disk_read_bytes)},
    {"block", "write_bytes", AT(disk_written_bytes)},
    {"block", "read_count", AT(disk_reads)},
    {"block", "write_count", AT(disk_writes)},
    {"block", "rate_limiter_throttled_events", AT(disk_held_back)},
    {"vcpu", "exit_io_in", AT(exits)},
    {"vcpu", "exit_io_out", AT(exits)},
    {"vcpu", "exit_mmio_read", AT(exits)},
    {"vcpu", "exit_mmio_write", AT(exits)},
    {"vsock", "rx_bytes_count", AT(socket_in_bytes)},
    {"vsock", "tx_bytes_count", AT(socket_out_bytes)},
    {"logger", "missed_metrics_count", AT(lost)},
};

/* Names come and go with versions: one that is missing counts nothing, one that is no count spoils the line.
 */
static bool take_value(const json_t *line, const struct wanted *w, struct vm_counters *to)
{
    const json_t *v = json_object_get(json_object_get(line, w->part), w->name);
    if (!v)
        return true;
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 0 || n > VALUE_MAX)
        return false;
    uint64_t *counter = (uint64_t *)((char *)to + w->at);
    *counter += (uint64_t)n; /* four at most */
    return true;
}

bool fc_metrics_parse(const char *text, size_t n, struct vm_counters *ret)
{
    struct vm_counters c = {0};
    json_t *line = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    bool fine = json_is_object(line);
    for (size_t i = 0; fine && i < ARRAY_LEN(wanted); i++)
        fine = take_value(line, &wanted[i], &c);
    json_decref(line);
    if (fine)
        *ret = c;
    return fine;
}
