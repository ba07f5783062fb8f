/* What Firecracker counts: an object a line, of what is new since the line before, through a pipe in its
 * directory. It writes one each minute and when it is asked. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "vm/firecracker.h"

#define METRICS "metrics"     /* FIRECRACKER_METRICS of src/broker/vmm.h */
#define VALUE_MAX (1LL << 50) /* more than a VM can do between two looks */
#define FLUSH_TIMEOUT_MS 5000

/* --- a line --- */

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

/* --- the pipe --- */

/* The VMM may have put anything in its place: only a pipe is read, and opening does not wait. */
static void open_pipe(struct fc_metrics *m, int run_fd)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(run_fd, METRICS, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    m->opened = true;
    m->fd = -1;
    buf_init(&m->in, FC_METRICS_MAX);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode))
        m->fd = TAKE_FD(fd);
}

static void take_lines(struct vm *vm, struct fc_metrics *m)
{
    const char *p;
    while (buf_len(&m->in) && (p = memchr(buf_head(&m->in), '\n', buf_len(&m->in)))) {
        const char *line = (const char *)buf_head(&m->in);
        struct vm_counters more = {.lost = 1}; /* half a line: the pipe was full */
        (void)fc_metrics_parse(line, (size_t)(p - line), &more);
        vm_counted(vm, &more);
        buf_consume(&m->in, (size_t)(p - line) + 1);
    }
}

static void take_all(struct vm *vm, struct fc_metrics *m)
{
    if (!m->opened || m->fd < 0)
        return;
    /* No more than the pipe can hold: a VMM that writes without an end is not read without an end. */
    for (size_t left = FC_METRICS_MAX; left > 0;) {
        ssize_t n = buf_read(&m->in, m->fd, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        left -= (size_t)n;
        take_lines(vm, m);
        if (buf_room(&m->in) == 0) /* no line is as long */
            buf_consume(&m->in, buf_len(&m->in));
    }
    if (buf_len(&m->in) == 0)
        buf_finish(&m->in);
}

/* --- asking --- */

static void on_flushed(void *arg, const struct error *err, const json_t *body)
{
    struct vm *vm = arg;
    struct fc_metrics *m = &((struct fc *)vm->priv)->metrics;
    (void)body;
    if (err)
        LOG(LOG_DEBUG, "a VMM did not tell what it has counted", "sandbox=%s error=" LOG_Q,
            vm->spec.sandbox_id, err->message);
    fc_api_destroy(TAKE(m->api));
    take_all(vm, m);
}

void fc_count(struct vm *vm)
{
    struct fc *q = vm->priv;
    struct fc_metrics *m = &q->metrics;
    if (m->api || q->vmm.run_fd < 0)
        return;
    if (!m->opened)
        open_pipe(m, q->vmm.run_fd);
    /* On a connection of its own: the other one may be in the middle of something. */
    if (m->fd < 0 || fc_api_create(vm->engine->loop, q->vmm.run_fd, FC_API_SOCKET, &m->api, NULL) < 0)
        return;
    fc_api_call(m->api, "PUT", "/actions", json_pack("{s:s}", "action_type", "FlushMetrics"),
                FLUSH_TIMEOUT_MS, on_flushed, vm);
}

void fc_metrics_finish(struct vm *vm, struct fc_metrics *m)
{
    if (!m->opened)
        return;
    fc_api_destroy(TAKE(m->api));
    take_all(vm, m); /* what it wrote at its end */
    if (m->fd >= 0)
        (void)close(TAKE_FD(m->fd));
    buf_finish(&m->in);
}
