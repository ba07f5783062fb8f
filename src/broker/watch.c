/* A VMM's end and its last words. Its standard error is a FIFO that it holds open for reading and
 * writing itself, so it never blocks or breaks when the broker restarts; what nobody reads is bounded by the
 * pipe. The broker keeps the last 16 KiB and writes them to run/vmm.log. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "broker/privd.h"
#include "broker/vmm.h"

#define KEEP_BYTES 16384
#define READ_PAUSE_MS 100 /* bounds what a VMM that floods can make the broker do */

struct vmm_watch {
    struct privd *p;
    struct sandbox *sandbox;
    struct loop_fd end;
    struct loop_fd words;
    struct loop_timer pause;
    int pidfd;
    int fifo_fd; /* -1: none */
    pid_t pid;
    size_t len;
    char kept[KEEP_BYTES];
};

/* Keeps the last KEEP_BYTES. */
static void keep(struct vmm_watch *w, const char *data, size_t n)
{
    if (n > KEEP_BYTES) {
        data += n - KEEP_BYTES;
        n = KEEP_BYTES;
    }
    size_t drop = w->len + n > KEEP_BYTES ? w->len + n - KEEP_BYTES : 0;
    memmove(w->kept, w->kept + drop, w->len - drop);
    w->len -= drop;
    memcpy(w->kept + w->len, data, n);
    w->len += n;
}

/* Reads at most one pipe's worth. Returns whether anything came. */
static bool read_words(struct vmm_watch *w)
{
    char data[4096];
    bool any = false;
    for (size_t i = 0; w->fifo_fd >= 0 && i < 65536 / sizeof(data); i++) {
        ssize_t n = read(w->fifo_fd, data, sizeof(data));
        if (n <= 0)
            break;
        keep(w, data, (size_t)n);
        any = true;
    }
    return any;
}

static void write_log(const struct vmm_watch *w)
{
    AUTO_CLOSE int run = vmm_open_run(w->p, w->sandbox->rec.id);
    struct error err = ERROR_INIT;
    if (run < 0)
        return; /* the sandbox is being removed */
    if (record_replace(run, "vmm.log", w->kept, w->len, 0640, &err) < 0) {
        LOG(LOG_DEBUG, "vmm.log not written", "sandbox=%s reason=" LOG_Q, w->sandbox->rec.id, err.message);
        return;
    }
    if (fchownat(run, "vmm.log", 0, (gid_t)w->p->lease.uid_first, AT_SYMLINK_NOFOLLOW) < 0)
        LOG(LOG_DEBUG, "vmm.log stays unreadable for the daemon", "sandbox=%s", w->sandbox->rec.id);
}

static void on_words(struct loop_fd *f, uint32_t events)
{
    struct vmm_watch *w = f->arg;
    (void)events;
    loop_fd_stop(&w->words);
    if (read_words(w))
        write_log(w);
    loop_timer_start(&w->pause, READ_PAUSE_MS);
}

static void on_pause(struct loop_timer *t)
{
    struct vmm_watch *w = t->arg;
    if (loop_fd_start(w->p->loop, &w->words, w->fifo_fd, EPOLLIN, on_words, w, NULL) < 0)
        loop_timer_start(t, READ_PAUSE_MS);
}

static void on_end(struct loop_fd *f, uint32_t events)
{
    struct vmm_watch *w = f->arg;
    (void)events;
    LOG(LOG_INFO, "vmm ended", "sandbox=%s pid=%d", w->sandbox->rec.id, (int)w->pid);
    vmm_watch_finish(w->sandbox);
}

int vmm_watch_start(struct privd *p, struct sandbox *s, int pidfd, int fifo_fd, struct error *err)
{
    vmm_watch_finish(s);
    struct vmm_watch *w = calloc(1, sizeof(*w));
    int rc = w ? loop_fd_start(p->loop, &w->end, pidfd, EPOLLIN, on_end, w, err)
               : error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (rc < 0) {
        (void)close(pidfd);
        if (fifo_fd >= 0)
            (void)close(fifo_fd);
        free(w);
        return rc;
    }
    w->p = p;
    w->sandbox = s;
    w->pidfd = pidfd;
    w->pid = s->rec.vmm_pid;
    w->fifo_fd = fifo_fd;
    s->watch = w;
    loop_timer_init(p->loop, &w->pause, on_pause, w);
    if (fifo_fd >= 0)
        on_pause(&w->pause);
    return 0;
}

void vmm_watch_finish(struct sandbox *s)
{
    struct vmm_watch *w = s->watch;
    if (!w)
        return;
    s->watch = NULL;
    if (read_words(w))
        write_log(w);
    loop_fd_stop(&w->end);
    loop_fd_stop(&w->words);
    loop_timer_stop(&w->pause);
    /* Ours to reap when this broker started it; ECHILD when an earlier one did. */
    (void)waitpid(w->pid, NULL, WNOHANG);
    (void)close(w->pidfd);
    if (w->fifo_fd >= 0)
        (void)close(w->fifo_fd);
    free(w);
}
