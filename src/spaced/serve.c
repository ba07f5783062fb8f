#include "spaced/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/api.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"
#include "broker/broker.h"
#include "broker/filter.h"
#include "data/data.h"
#include "golden/golden.h"
#include "http/idempotency.h"
#include "spaced/host_report.h"
#include "spaced/limits.h"

/* Memory that was freed and that the C library keeps: looked at now and then, given back beyond a bound. */
#define TRIM_MS 10000
#define TRIM_BYTES (16 << 20)

struct daemon {
    struct handoff *h;
    struct loop *loop;
    struct loop_signal signals;
    struct loop_timer trim;
    struct broker *broker;
    struct store *store;
    struct vm_engine *engine;
    struct golden *golden;
    struct templates *templates;
    struct sandboxes *sandboxes;
    struct sessions *sessions;
    struct keys *keys;
    struct idempotency *idempotency;
    struct http_server *http;
    struct api *api;
    struct data *data;
    struct host_report *host_report;
    const char *pool_path; /* while the parts are opened */
    char url[CONFIG_TEXT_MAX + 16];
    int64_t started_ns;
    int rc;
    struct error err;
};

/* Ends the loop with an error. */
static void fail(struct daemon *d, const struct error *err)
{
    d->rc = err->code;
    d->err = *err;
    loop_stop(d->loop);
}

static void on_signal(struct loop_signal *s, int signo)
{
    struct daemon *d = s->arg;
    LOG(LOG_INFO, "stopping; sandboxes keep running", "signal=%d", signo);
    loop_stop(d->loop);
}

/* What slow readers queued is freed in small blocks between others, and stays resident for ever else. */
static void on_trim(struct loop_timer *t)
{
    struct mallinfo2 info = mallinfo2();
    if (info.fordblks > TRIM_BYTES)
        (void)malloc_trim(0);
    loop_timer_start(t, TRIM_MS);
}

static void on_broker_gone(void *arg)
{
    struct daemon *d = arg;
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_INTERNAL,
                    "space-privd has ended; sandboxes keep running, start spaced again");
    fail(d, &err);
}

static char *path_in(struct daemon *d, const char *name)
{
    return str_printf("%s/spaced/%s", d->h->config.state_dir, name);
}

/* --- the modules, in order of dependency --- */

static int open_store(struct daemon *d, struct error *err)
{
    AUTO_FREE char *path = path_in(d, "space.db");
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    return store_open(d->loop, path, &d->store, err);
}

static int open_engine(struct daemon *d, struct error *err)
{
    const struct vm_engine_config config = {.choice = config_engine(&d->h->config),
                                            .kvm_works = d->h->kvm_works,
                                            .kvm_why = d->h->kvm_why,
                                            .firecracker = d->h->config.firecracker};
    int rc = vm_engine_create(d->loop, d->broker, &config, &d->engine, err);
    if (rc < 0)
        return rc;
    const struct vm_engine_info *info = vm_engine_info(d->engine);
    LOG(LOG_INFO, "engine", "name=%s acceleration=%s version=%s reason=" LOG_Q, info->name,
        info->acceleration, info->version, info->reason);
    return 0;
}

/* What a sandbox may ask for: the configuration's limit, or the engine's. */
static uint32_t memory_each(const struct daemon *d)
{
    uint32_t most = vm_engine_info(d->engine)->memory_max_mib;
    uint32_t configured = (uint32_t)d->h->config.max_memory_mib;
    return configured < most ? configured : most;
}

static int open_golden(struct daemon *d, const char *pool_path, struct error *err)
{
    const struct config *c = &d->h->config;
    struct golden_config config = {.warm_per_golden = (unsigned)c->warm_per_golden,
                                   .warm_total = (unsigned)c->warm_total,
                                   .pool_path = pool_path};
    (void)str_copy(config.platform, sizeof(config.platform), d->h->image.digest);
    return golden_create(d->loop, d->broker, d->engine, &config, &d->golden, err);
}

static int open_templates(struct daemon *d, struct error *err)
{
    const struct config *c = &d->h->config;
    AUTO_FREE char *uploads = path_in(d, "uploads");
    if (!uploads)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    struct templates_config config = {
        .loop = d->loop,
        .store = d->store,
        .broker = d->broker,
        .golden = d->golden,
        .default_shape = {(uint32_t)c->default_vcpus, (uint32_t)c->default_memory_mib,
                          (uint32_t)c->default_disk_mib},
        .upload_dir = uploads,
    };
    int rc = fs_mkdir_p(uploads, 0700, err);
    return rc < 0 ? rc : templates_create(&config, &d->templates, err);
}

/* 80 % of the host's memory, in MiB. */
static uint64_t memory_default(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size / 1048576 * 8 / 10 : 0;
}

/* Memory that the host can give now, in MiB; without an answer, none is refused for it. */
static uint64_t memory_available(void)
{
    AUTO_FREE char *text = NULL;
    size_t len;
    if (fs_read_file(AT_FDCWD, "/proc/meminfo", 65536, &text, &len, NULL) < 0)
        return UINT64_MAX;
    const char *line = strstr(text, "MemAvailable:");
    return line ? strtoull(line + strlen("MemAvailable:"), NULL, 10) / 1024 : UINT64_MAX;
}

static void set_policy(struct sandboxes_config *config, const struct config *c)
{
    config->default_idle_timeout_s = (int64_t)c->default_idle_timeout_s;
    config->default_on_idle = c->default_on_idle;
    config->default_max_lifetime_s = (int64_t)c->default_max_lifetime_s;
    config->default_auto_wake = strcmp(c->default_auto_wake, "yes") == 0;
    config->expired_retention_s = (unsigned)c->expired_retention_s;
    config->pack_after_s = (unsigned)c->snapshot_pack_after_s;
    config->host_memory = memory_available;
    config->memory_reserve_mib = c->memory_reserve_mib;
    config->pool_info = broker_info;
    config->min_free_disk_mib = c->min_free_disk_mib;
    config->suspend_under_pressure = strcmp(c->memory_pressure, "suspend") == 0;
}

static int open_sandboxes(struct daemon *d, struct error *err)
{
    const struct config *c = &d->h->config;
    struct sandboxes_config config = {
        .loop = d->loop,
        .store = d->store,
        .broker = d->broker,
        .engine = d->engine,
        .golden = d->golden,
        .resolve = templates_resolve,
        .resolve_arg = d->templates,
        .pool_path = d->pool_path,
        .max_sandboxes = (unsigned)c->max_sandboxes,
        .max_memory_mib = c->memory_limit_mib ? c->memory_limit_mib : memory_default(),
        .default_vcpus = (uint32_t)c->default_vcpus,
        .default_memory_mib = (uint32_t)c->default_memory_mib,
        .default_disk_mib = (uint32_t)c->default_disk_mib,
        .max_vcpus = (uint32_t)c->max_vcpus,
        .max_memory_mib_each = memory_each(d),
        .max_disk_mib = (uint32_t)c->max_disk_mib,
        .default_limits = {(uint32_t)c->default_disk_mib_per_s, (uint32_t)c->default_disk_iops},
        .max_limits = {(uint32_t)c->max_disk_mib_per_s, (uint32_t)c->max_disk_iops},
        .retention_s = (unsigned)c->retention_s,
    };
    set_policy(&config, c);
    (void)str_copy(config.platform, sizeof(config.platform), d->h->image.digest);
    return sandboxes_create(&config, &d->sandboxes, err);
}

static int open_sessions(struct daemon *d, struct error *err)
{
    const struct config *c = &d->h->config;
    AUTO_FREE char *journals = path_in(d, "journals");
    if (!journals)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    struct sessions_config config = {
        .loop = d->loop,
        .store = d->store,
        .sandboxes = d->sandboxes,
        .journal_dir = journals,
        .journal_default_bytes = c->journal_mib << 20,
        .journal_sandbox_bytes = c->journal_sandbox_mib << 20,
        .token_ttl_s = (unsigned)c->token_ttl_s,
    };
    int rc = fs_mkdir_p(journals, 0700, err);
    return rc < 0 ? rc : sessions_create(&config, &d->sessions, err);
}

static int open_keys(struct daemon *d, struct error *err)
{
    int rc = keys_create(d->store, &d->keys, err);
    if (rc == 0 && d->h->dev_key[0])
        rc = keys_add_static(d->keys, d->h->dev_key, ROLE_ADMIN, err);
    return rc;
}

static void answered(void *arg, const struct http_request *r, unsigned status, double seconds)
{
    struct daemon *d = arg;
    if (d->api)
        api_observe_answer(d->api, r, status, seconds);
    LOG(LOG_DEBUG, "request", "method=%s path=" LOG_Q " status=%u ms=%.1f", http_method(r), http_path(r),
        status, seconds * 1000);
}

static int authenticate(void *arg, const char *key, struct http_principal *ret, struct error *err)
{
    struct daemon *d = arg;
    return keys_authenticate(d->keys, key, ret, err);
}

static int open_http(struct daemon *d, struct error *err)
{
    int rc = idempotency_create(d->loop, d->store, &d->idempotency, err);
    if (rc < 0)
        return rc;
    struct limits limits;
    limits_take(&limits);
    LOG(limits_are_full(&limits) ? LOG_INFO : LOG_WARN, "places for clients",
        "descriptors=%llu connections=%u websockets=%u", (unsigned long long)limits.descriptors,
        limits.connections, limits.websockets);
    struct http_config config = {
        .listen = d->h->config.listen,
        .listen_fd = d->h->listen_fd,
        .connections_max = limits.connections,
        .websockets_max = limits.websockets,
        .queue_max = (size_t)d->h->config.reader_queue_mib << 20,
        .authenticate = authenticate,
        .idempotency = d->idempotency,
        .answered = answered,
        .arg = d,
    };
    return http_create(d->loop, &config, &d->http, err);
}

static void port_metrics(void *arg, struct buf *to)
{
    const struct daemon *d = arg;
    if (d->data)
        data_metrics(d->data, to);
}

static int open_api(struct daemon *d, struct error *err)
{
    int rc = host_report_create(d->loop, d->h, &d->host_report, err);
    if (rc < 0)
        return rc;
    struct api_config config = {
        .loop = d->loop,
        .http = d->http,
        .store = d->store,
        .broker = d->broker,
        .sandboxes = d->sandboxes,
        .sessions = d->sessions,
        .templates = d->templates,
        .golden = d->golden,
        .engine = d->engine,
        .keys = d->keys,
        .doctor = host_report_json,
        .components = host_report_components,
        .doctor_arg = d->host_report,
        .metrics = port_metrics,
        .metrics_arg = d,
        .kernel_release = d->h->image.kernel_release,
    };
    return api_create(&config, &d->api, err);
}

/* "http://127.0.0.1:7780": the configured public URL, or the listen address with the port really bound. */
static void set_url(struct daemon *d)
{
    const struct config *c = &d->h->config;
    int host = (int)(strrchr(c->listen, ':') - c->listen);
    (void)snprintf(d->url, sizeof(d->url), "http://%.*s:%u", host, c->listen, http_port(d->http));
}

static int open_data(struct daemon *d, struct error *err)
{
    const char *public_url = d->h->config.public_url;
    set_url(d);
    struct data_config config = {
        .loop = d->loop,
        .http = d->http,
        .sandboxes = d->sandboxes,
        .sessions = d->sessions,
        .public_url = *public_url ? public_url : d->url,
        .wake_ms = (unsigned)d->h->config.wake_timeout_s * 1000,
        .domain = d->h->config.domain,
        .tunnels_max = (unsigned)d->h->config.max_tunnels,
        .port_answer_s = (unsigned)d->h->config.port_timeout_s,
    };
    return data_create(&config, &d->data, err);
}

static void on_started(void *arg, const struct error *err)
{
    struct daemon *d = arg;
    if (err) {
        fail(d, err);
        return;
    }
    api_set_ready(d->api);
    LOG(LOG_INFO, "ready", "url=%s took_ms=%lld", d->url,
        (long long)((clock_mono_ns() - d->started_ns) / CLOCK_NS_PER_MS));
    (void)printf("spaced: ready on %s\n", d->url);
    (void)fflush(stdout);
}

static int open_all(struct daemon *d, const char *pool_path, struct error *err)
{
    static int (*const steps[])(struct daemon *, struct error *) = {
        open_templates, open_sandboxes, open_sessions, open_keys, open_http, open_api, open_data};
    d->pool_path = pool_path;
    int rc = open_store(d, err);
    if (rc == 0)
        rc = open_engine(d, err);
    if (rc == 0)
        rc = open_golden(d, pool_path, err);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(steps); i++)
        rc = steps[i](d, err);
    if (rc == 0)
        rc = templates_start(d->templates, d->sandboxes, err);
    if (rc == 0)
        rc = sessions_start(d->sessions, err);
    if (rc == 0)
        rc = http_start(d->http, err);
    return rc;
}

static void on_info(void *arg, const struct error *err, const struct broker_info *info)
{
    struct daemon *d = arg;
    if (err) {
        fail(d, err);
        return;
    }
    LOG(LOG_INFO, "pool", "kind=%s path=" LOG_Q " free_mib=%llu cgroups=%s limits=" LOG_Q, info->pool_kind,
        info->pool_path, (unsigned long long)(info->pool_free_bytes >> 20), info->cgroup_mode,
        info->cgroup_limits);
    if (!info->reflink)
        LOG(LOG_WARN, "the pool has no reflinks: every create copies a whole disk", "kind=%s",
            info->pool_kind);
    struct error failed = ERROR_INIT;
    if (open_all(d, info->pool_path, &failed) < 0)
        fail(d, &failed);
    else
        sandboxes_start(d->sandboxes, on_started, d);
}

/* In reverse of the order of creation; every destroyer accepts NULL. */
static void close_all(struct daemon *d)
{
    data_destroy(d->data);
    api_destroy(d->api);
    host_report_destroy(d->host_report);
    http_destroy(d->http);
    idempotency_destroy(d->idempotency);
    keys_destroy(d->keys);
    sessions_destroy(d->sessions);
    sandboxes_destroy(d->sandboxes);
    templates_destroy(d->templates);
    golden_destroy(d->golden);
    vm_engine_destroy(d->engine);
    store_close(d->store);
    broker_destroy(d->broker);
    loop_timer_stop(&d->trim);
    loop_signal_stop(&d->signals);
    loop_destroy(d->loop);
}

/* Before there are threads, which then have it too. Sanitizers trace, which would end this process. */
static int confine(struct error *err)
{
    if (FILTER_SANITIZED)
        return 0;
    AUTO_FREE struct filter *f = calloc(1, sizeof(*f));
    if (!f)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = filter_make(FILTER_DAEMON, f, err);
    if (rc == 0 && filter_install(f, true) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "install the system call filter");
    return rc;
}

int serve(struct handoff *h, struct error *err)
{
    static const int signals[] = {SIGTERM, SIGINT, 0};
    struct daemon d = {.h = h, .started_ns = clock_mono_ns()};
    int rc = confine(err);
    if (rc == 0)
        rc = loop_create(&d.loop, err);
    if (rc < 0)
        return rc;
    (void)signal(SIGPIPE, SIG_IGN);
    loop_timer_init(d.loop, &d.trim, on_trim, &d);
    loop_timer_start(&d.trim, TRIM_MS);
    rc = loop_signal_start(d.loop, &d.signals, signals, on_signal, &d, err);
    if (rc == 0)
        rc = broker_create(d.loop, h->channel_fd, on_broker_gone, &d, &d.broker, err);
    if (rc == 0) {
        broker_info(d.broker, on_info, &d);
        loop_run(d.loop);
        rc = d.rc;
        if (rc < 0 && err)
            *err = d.err;
    }
    close_all(&d);
    return rc;
}
