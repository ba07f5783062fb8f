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

#define METRICS "metrics" /* FIRECRACKER_METRICS of src/broker/vmm.h */
#define FLUSH_TIMEOUT_MS 5000

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
