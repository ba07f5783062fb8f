#include "api/metrics.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The default hash falls through switch labels, which clang refuses. */
#define HASH_FUNCTION(key, len, hash) HASH_FNV(key, len, hash)
#include <uthash.h>

#include "api/events.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/str.h"

#define TEXT_MAX (8 * 1024 * 1024)
#define SERIES_MAX 4096 /* over all families: labels come from tables, this only guards against a mistake */

static const double bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                0.5,    1,     2.5,    5,     10,   30,    60,   300, 1200};

struct histogram {
    uint64_t counts[ARRAY_LEN(bounds) + 1];
    uint64_t total;
    double sum;
};

/* One series of a family with labels: {route, status} or {kind, status}. */
struct series {
    char key[160]; /* the labels as text */
    struct histogram h;
    UT_hash_handle hh;
};

/* Answers are counted for every request, so they are found by address, not by text. */
struct answers {
    const struct http_route *route;
    unsigned status;
};

struct answer_series {
    struct answers key;
    struct histogram h;
    UT_hash_handle hh;
};

struct metrics {
    struct answer_series *answers;
    struct series *operations;
    struct histogram commits;
    unsigned series;
};

int metrics_create(struct metrics **ret, struct error *err)
{
    *ret = calloc(1, sizeof(**ret));
    return *ret ? 0 : error_set(err, ERROR_NO_MEMORY, "out of memory");
}

void metrics_destroy(struct metrics *m)
{
    if (!m)
        return;
    struct answer_series *a, *next_a;
    HASH_ITER(hh, m->answers, a, next_a)
    {
        HASH_DEL(m->answers, a);
        free(a);
    }
    struct series *s, *next_s;
    HASH_ITER(hh, m->operations, s, next_s)
    {
        HASH_DEL(m->operations, s);
        free(s);
    }
    free(m);
}

/* --- counting --- */

static void observe(struct histogram *h, double seconds)
{
    size_t i = 0;
    while (i < ARRAY_LEN(bounds) && seconds > bounds[i])
        i++;
    h->counts[i]++;
    h->total++;
    h->sum += seconds;
}

void metrics_answer(struct metrics *m, const struct http_route *route, unsigned status, double seconds)
{
    struct answers key;
    memset(&key, 0, sizeof(key)); /* padding is part of what is hashed */
    key.route = route;
    key.status = status;
    struct answer_series *s;
    HASH_FIND(hh, m->answers, &key, sizeof(key), s);
    if (!s) {
        s = m->series < SERIES_MAX ? calloc(1, sizeof(*s)) : NULL;
        if (!s)
            return;
        memcpy(&s->key, &key, sizeof(key));
        HASH_ADD(hh, m->answers, key, sizeof(key), s);
        m->series++;
    }
    observe(&s->h, seconds);
}

void metrics_operation(struct metrics *m, const struct operation *op)
{
    char key[sizeof((struct series *)0)->key];
    (void)snprintf(key, sizeof(key), "kind=\"%.40s\",status=\"%.20s\"", operation_kind(op),
                   operation_status(op));
    struct series *s;
    HASH_FIND_STR(m->operations, key, s);
    if (!s) {
        s = m->series < SERIES_MAX ? calloc(1, sizeof(*s)) : NULL;
        if (!s)
            return;
        (void)str_copy(s->key, sizeof(s->key), key);
        HASH_ADD_STR(m->operations, key, s);
        m->series++;
    }
    observe(&s->h, operation_seconds(op));
}

void metrics_commit(struct metrics *m, double seconds)
{
    observe(&m->commits, seconds);
}

/* --- writing --- */

static void family(struct buf *b, const char *name, const char *type, const char *help)
{
    (void)buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(struct buf *b, const char *name, const char *help, double value)
{
    family(b, name, "gauge", help);
    (void)buf_printf(b, "%s %.15g\n", name, value);
}

static void write_histogram(struct buf *b, const char *name, const char *labels, const struct histogram *h)
{
    const char *comma = *labels ? "," : "";
    uint64_t below = 0;
    for (size_t i = 0; i < ARRAY_LEN(bounds); i++) {
        below += h->counts[i];
        (void)buf_printf(b, "%s_bucket{%s%sle=\"%g\"} %llu\n", name, labels, comma, bounds[i],
                         (unsigned long long)below);
    }
    (void)buf_printf(b, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, labels, comma,
                     (unsigned long long)h->total);
    const char *open = *labels ? "{" : "", *close = *labels ? "}" : "";
    (void)buf_printf(b, "%s_sum%s%s%s %.9g\n", name, open, labels, close, h->sum);
    (void)buf_printf(b, "%s_count%s%s%s %llu\n", name, open, labels, close, (unsigned long long)h->total);
}

static void write_sandboxes(struct buf *b, struct sandboxes *all)
{
    unsigned counts[SANDBOX_STATES] = {0};
    for (struct sandbox *sb = sandboxes_next(all, NULL); sb; sb = sandboxes_next(all, sb))
        counts[sandbox_state(sb)]++;
    family(b, "space_sandboxes", "gauge", "Sandboxes by state, deleted ones while they are kept.");
    for (int state = 0; state < SANDBOX_STATES; state++)
        (void)buf_printf(b, "space_sandboxes{state=\"%s\"} %u\n",
                         sandbox_state_name((enum sandbox_state)state), counts[state]);
}

#define SNAPSHOT_STATES 3

/* By state; what is not ready has no size yet. */
static void write_snapshots(struct buf *b, struct sandboxes *all)
{
    static const char *const states[SNAPSHOT_STATES] = {"creating", "ready", "failed"};
    unsigned counts[SNAPSHOT_STATES] = {0};
    json_int_t bytes = 0;
    for (struct snapshot *sn = snapshots_next(all, NULL); sn; sn = snapshots_next(all, sn)) {
        json_t *snapshot = snapshot_json(sn);
        const char *state = json_string_value(json_object_get(snapshot, "state"));
        for (size_t i = 0; i < SNAPSHOT_STATES; i++)
            counts[i] += str_eq(state, states[i]);
        bytes += json_integer_value(json_object_get(snapshot, "bytes"));
        json_decref(snapshot);
    }
    family(b, "space_snapshots", "gauge", "Snapshots that clients have asked for, by state.");
    for (size_t i = 0; i < SNAPSHOT_STATES; i++)
        (void)buf_printf(b, "space_snapshots{state=\"%s\"} %u\n", states[i], counts[i]);
    gauge(b, "space_snapshot_bytes", "What they take on disk beyond what they share.", (double)bytes);
}

static void write_operations(struct buf *b, const struct metrics *m, struct sandboxes *all)
{
    unsigned open = 0;
    for (struct operation *op = operations_next(all, NULL); op; op = operations_next(all, op))
        open += !operation_finished(op);
    gauge(b, "space_operations_open", "Operations that have not finished.", open);
    family(b, "space_operation_seconds", "histogram", "Finished operations, from request to end.");
    struct series *s, *next;
    HASH_ITER(hh, m->operations, s, next)
    {
        write_histogram(b, "space_operation_seconds", s->key, &s->h);
    }
}

static void write_answers(struct buf *b, const struct metrics *m)
{
    family(b, "space_http_request_seconds", "histogram", "Answered requests by route and status.");
    struct answer_series *s, *next;
    HASH_ITER(hh, m->answers, s, next)
    {
        char labels[256];
        const struct http_route *route = s->key.route;
        (void)snprintf(labels, sizeof(labels), "method=\"%s\",route=\"%.150s\",status=\"%u\"",
                       route ? route->method : "", route ? route->pattern : "", s->key.status);
        write_histogram(b, "space_http_request_seconds", labels, &s->h);
    }
}

static double resident_bytes(void)
{
    char text[128];
    AUTO_CLOSE int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    const char *second = strchr(text, ' '); /* the first number is the size of the address space */
    unsigned long pages = second ? strtoul(second, NULL, 10) : 0;
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void counter(struct buf *b, const char *name, const char *help, uint64_t value)
{
    family(b, name, "counter", help);
    (void)buf_printf(b, "%s %llu\n", name, (unsigned long long)value);
}

/* What only one engine counts is not there with the other: a 0 would say that nothing happened. */
static void write_vms(struct buf *b, const struct vm_engine *e)
{
    struct vm_counters c;
    vm_engine_counters(e, &c);
    counter(b, "space_vm_disk_read_bytes_total", "Read by guests from their disks.", c.disk_read_bytes);
    counter(b, "space_vm_disk_written_bytes_total", "Written by guests to their disks.",
            c.disk_written_bytes);
    counter(b, "space_vm_disk_reads_total", "Reads by guests from their disks.", c.disk_reads);
    counter(b, "space_vm_disk_writes_total", "Writes by guests to their disks.", c.disk_writes);
    if (strcmp(vm_engine_info(e)->name, "firecracker") != 0)
        return;
    counter(b, "space_vm_disk_held_back_total", "Times that a disk had to wait for its limits.",
            c.disk_held_back);
    counter(b, "space_vm_exits_total", "Exits of vCPUs to the VMM, for the registers of devices.", c.exits);
    counter(b, "space_vm_socket_in_bytes_total", "Bytes to guests through their agents' channels.",
            c.socket_in_bytes);
    counter(b, "space_vm_socket_out_bytes_total", "Bytes from guests through their agents' channels.",
            c.socket_out_bytes);
    counter(b, "space_vm_counts_lost_total", "Times that a VMM's counters could not be read.", c.lost);
}

char *metrics_text(struct api *a)
{
    const struct api_config *c = &a->config;
    struct buf b;
    buf_init(&b, TEXT_MAX);
    write_sandboxes(&b, c->sandboxes);
    write_snapshots(&b, c->sandboxes);
    write_operations(&b, a->metrics, c->sandboxes);
    unsigned ready, wanted, live, readers;
    golden_depth(c->golden, &ready, &wanted);
    sessions_count(c->sessions, &live, &readers);
    gauge(&b, "space_warm_ready", "Pre-spawned virtual machines ready to be taken.", ready);
    gauge(&b, "space_warm_wanted", "Pre-spawned virtual machines aimed at.", wanted);
    gauge(&b, "space_processes_live", "Processes that run in sandboxes.", live);
    gauge(&b, "space_readers", "Readers attached to the output of processes.", readers);
    gauge(&b, "space_event_followers", "Clients that follow the events.", events_followers(a->events));
    gauge(&b, "space_store_healthy", "1 while the last write to the store succeeded.",
          store_healthy(c->store));
    write_vms(&b, c->engine);
    family(&b, "space_store_commit_seconds", "histogram", "Transactions of the store.");
    write_histogram(&b, "space_store_commit_seconds", "", &a->metrics->commits);
    write_answers(&b, a->metrics);
    if (c->metrics)
        c->metrics(c->metrics_arg, &b);
    gauge(&b, "process_resident_memory_bytes", "Resident memory of this process.", resident_bytes());
    char *text = buf_append(&b, "", 1) ? strdup((const char *)buf_head(&b)) : NULL;
    buf_finish(&b);
    return text;
}
