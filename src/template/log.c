/* What builds say: read from a pipe as it comes, so that the last part is kept and no disk is filled. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "template/private.h"

#define READ_SIZE 8192
#define LAST_READS 256     /* more than the largest pipe holds: whoever still writes is not waited for */
#define QUOTED_LINE_MAX 90 /* bytes of a line that an error quotes: of longer ones the end tells least */

/* false: nothing more for now. */
static bool read_some(struct build *b)
{
    if (buf_room(&b->log) < READ_SIZE)
        buf_consume(&b->log, READ_SIZE - buf_room(&b->log));
    return buf_read(&b->log, b->log_read, READ_SIZE) > 0;
}

static void on_readable(struct loop_fd *w, uint32_t events)
{
    struct build *b = w->arg;
    /* Hung up and empty: nothing will come any more. */
    if (!read_some(b) && (events & EPOLLHUP))
        loop_fd_stop(w);
}

int build_log_open(struct build *b, struct error *err)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "pipe");
    b->log_read = fds[0];
    b->log_write = fds[1]; /* blocking: the builder waits when it says more than is read */
    (void)fcntl(b->log_read, F_SETFL, O_NONBLOCK);
    return loop_fd_start(b->t->config.loop, &b->log_watch, b->log_read, EPOLLIN, on_readable, b, err);
}

static void keep_failed(struct templates *t, const char *id)
{
    char *slot = t->failed_logs[t->failed_count++ % FAILED_LOGS_MAX];
    char name[ID_SIZE + 8];
    if (*slot) {
        (void)snprintf(name, sizeof(name), "%s.log", slot);
        (void)unlinkat(t->upload_fd, name, 0);
    }
    (void)str_copy(slot, ID_SIZE, id);
}

void build_log_close(struct build *b, bool failed)
{
    struct templates *t = b->t;
    char name[ID_SIZE + 8];
    const struct release *r = failed ? NULL : release_find(t, b->name, b->digest);
    /* Built again, the log is that of the release it turned out to be. */
    (void)snprintf(name, sizeof(name), "%s.log", r ? r->id : b->id);
    for (int i = 0; i < LAST_READS && b->log_read >= 0 && read_some(b); i++)
        ;
    if (buf_len(&b->log) == 0)
        return;
    /* A log that cannot be written is not worth failing a build for. */
    (void)fs_write_atomic(t->upload_fd, name, buf_head(&b->log), buf_len(&b->log), 0600, NULL);
    if (failed)
        keep_failed(t, b->id);
}

/* The builder's own last words are the error that the lines are added to. */
static bool worth_quoting(const char *line, size_t n, bool errors_only)
{
    static const char *const own = "build failed: ";
    if (n == 0 || (n >= strlen(own) && memcmp(line, own, strlen(own)) == 0))
        return false;
    return !errors_only || (n > 2 && memcmp(line, "E: ", 3) == 0);
}

/* Lines from the last on, each put before the later ones, as many as fit. */
static void quote(const char *text, size_t n, bool errors_only, char *to, size_t size)
{
    size_t at = size - 1; /* what is quoted stands at the end of `to` until all is there */
    to[at] = '\0';
    while (n > 0) {
        size_t start = n;
        while (start > 0 && text[start - 1] != '\n')
            start--;
        size_t len = n - start;
        bool last = at == size - 1;
        size_t take = len < QUOTED_LINE_MAX ? len : QUOTED_LINE_MAX;
        if (worth_quoting(text + start, len, errors_only)) {
            if (take + (last ? 0 : 2) > at)
                break;
            if (!last)
                memcpy(to + (at -= 2), "; ", 2);
            memcpy(to + (at -= take), text + start, take);
        }
        n = start > 0 ? start - 1 : 0;
    }
    for (char *p = to + at; p < to + size - 1; p++)
        if ((unsigned char)*p < ' ')
            *p = *p == '\t' ? ' ' : '?';
    memmove(to, to + at, size - at);
    str_make_text(to, false);
}

void build_log_quote(const struct build *b, char *to, size_t size)
{
    const char *text = (const char *)buf_head(&b->log);
    *to = '\0';
    if (buf_len(&b->log) == 0)
        return;
    quote(text, buf_len(&b->log), true, to, size);
    if (*to == '\0')
        quote(text, buf_len(&b->log), false, to, size);
}

static bool of_a_release(struct templates *t, const char *name)
{
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), name); /* cut before ".log" */
    return id_valid(id, "tp") && strcmp(name + strlen(id), ".log") == 0 && release_by_id(t, id);
}

void build_log_sweep(struct templates *t)
{
    AUTO_CLOSEDIR DIR *d = fs_open_dir(t->upload_fd, ".");
    const struct dirent *e;
    while (d && (e = readdir(d)))
        if (e->d_name[0] != '.' && !of_a_release(t, e->d_name))
            (void)unlinkat(t->upload_fd, e->d_name, 0);
}

char *templates_build_log(struct templates *t, const char *release_id, struct error *err)
{
    const struct build *b;
    char name[ID_SIZE + 8];
    char *text = NULL;
    size_t len = 0;
    if (!id_valid(release_id, "tp")) {
        (void)error_set(err, ERROR_NOT_FOUND, "there is no build %.23s", release_id);
        return NULL;
    }
    DL_FOREACH(t->builds, b)
    {
        if (strcmp(b->id, release_id) != 0)
            continue;
        text = buf_len(&b->log) ? strndup((const char *)buf_head(&b->log), buf_len(&b->log)) : strdup("");
        if (!text)
            (void)error_set(err, ERROR_NO_MEMORY, "out of memory");
        return text;
    }
    (void)snprintf(name, sizeof(name), "%s.log", release_id);
    if (fs_read_file(t->upload_fd, name, LOG_MAX, &text, &len, err) < 0)
        return NULL;
    return text;
}
