#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "session/fake.h"

struct guest *fake_guest_create(void)
{
    return calloc(1, sizeof(struct guest));
}

void fake_guest_free(struct guest *g)
{
    while (g && g->processes) {
        struct guest_process *p = g->processes;
        g->processes = p->next;
        free(p);
    }
    if (g && g->file) {
        free(g->file->data);
        free(g->file);
    }
    free(g);
}

struct guest_process *fake_process(struct guest *g, const char *id)
{
    for (struct guest_process *p = g->processes; p; p = p->next)
        if (!id || strcmp(p->id, id) == 0)
            return p;
    return NULL;
}

void fake_started(struct guest_process *p, uint32_t pid)
{
    p->events.started(p->arg, pid);
}

void fake_output(struct guest_process *p, enum guest_stream stream, uint64_t offset, const void *data,
                 size_t n)
{
    p->events.output(p->arg, stream, offset, data, n);
}

void fake_result(struct guest_process *p, enum guest_reason reason, int code, int signal, const char *message)
{
    struct guest_result r = {
        .reason = reason, .exit_code = code, .signal = signal, .cpu_ms = 7, .max_rss_bytes = 4096};
    (void)snprintf(r.message, sizeof(r.message), "%s", message);
    p->exited = true;
    p->events.exited(p->arg, &r);
}

void fake_exit(struct guest_process *p, int code)
{
    fake_result(p, GUEST_REASON_EXIT, code, 0, "");
}

void fake_signal_answer(struct guest_process *p, const struct error *err)
{
    guest_done done = p->signal_done;
    p->signal_done = NULL;
    done(p->signal_arg, err);
}

/* --- guest.h --- */

bool guest_is_ready(const struct guest *g)
{
    return g != NULL;
}

static struct guest_process *add(struct guest *g, const char *id, const struct guest_process_events *events,
                                 void *arg)
{
    struct guest_process *p = calloc(1, sizeof(*p));
    if (!p)
        abort();
    (void)str_copy(p->id, sizeof(p->id), id);
    p->events = *events;
    p->arg = arg;
    p->input_max = g->input_max ? g->input_max : sizeof(p->input);
    p->next = g->processes;
    g->processes = p;
    return p;
}

static void join(char *to, size_t size, const char *const *list, char by)
{
    size_t n = 0;
    for (; list && *list; list++)
        n += (size_t)snprintf(to + n, size - n, "%s%c", *list, by);
    if (n > 0)
        to[n - 1] = '\0';
}

int guest_process_start(struct guest *g, const struct guest_exec *exec,
                        const struct guest_process_events *events, void *arg, struct guest_process **ret,
                        struct error *err)
{
    if (g->refuse_start)
        return error_set(err, ERROR_TOO_LARGE, "the command is too large");
    struct guest_process *p = add(g, exec->process_id, events, arg);
    if (exec->shell)
        (void)snprintf(p->argv, sizeof(p->argv), "shell:%s", exec->shell);
    else
        join(p->argv, sizeof(p->argv), exec->argv, ' ');
    join(p->env, sizeof(p->env), exec->env, ';');
    (void)snprintf(p->cwd, sizeof(p->cwd), "%s", exec->cwd ? exec->cwd : "(none)");
    (void)snprintf(p->user, sizeof(p->user), "%s", exec->user ? exec->user : "(none)");
    (void)snprintf(p->term, sizeof(p->term), "%s", exec->term ? exec->term : "(none)");
    p->pty = exec->pty;
    p->rows = exec->rows;
    p->cols = exec->cols;
    p->stdin_open = exec->stdin_open;
    p->timeout_ms = exec->timeout_ms;
    p->grace_ms = exec->grace_ms;
    g->started++;
    *ret = p;
    return 0;
}

int guest_process_adopt(struct guest *g, const char *process_id, uint64_t stdout_offset,
                        uint64_t stderr_offset, const struct guest_process_events *events, void *arg,
                        struct guest_process **ret, struct error *err)
{
    (void)err;
    struct guest_process *p = add(g, process_id, events, arg);
    p->adopted = true;
    p->adopted_at[0] = stdout_offset;
    p->adopted_at[1] = stderr_offset;
    *ret = p;
    return 0;
}

void guest_process_taken(struct guest_process *p, enum guest_stream stream, uint64_t offset, uint64_t room)
{
    p->taken[stream - 1] = offset;
    p->room[stream - 1] = room;
    p->taken_calls++;
}

size_t guest_process_stdin(struct guest_process *p, const void *data, size_t n)
{
    size_t room = p->input_max - p->input_n;
    if (n > room)
        n = room;
    memcpy(p->input + p->input_n, data, n);
    p->input_n += n;
    return n;
}

bool guest_process_stdin_ask(struct guest_process *p, uint64_t *ret_mark)
{
    *ret_mark = p->input_base + p->input_n + (p->input_closed ? 1 : 0);
    p->asked++;
    return p->far && !p->exited;
}

void guest_process_stdin_account(const struct guest_process *p, struct guest_stdin *ret)
{
    ret->end = p->input_base + p->input_n;
    ret->sent = ret->end - p->unsent;
    ret->taken = p->far ? p->input_base + p->arrived : ret->sent;
}

size_t guest_process_untaken(const struct guest_process *p, const void **ret)
{
    size_t n = p->far ? p->input_n - p->arrived : p->unsent;
    *ret = p->input + (p->input_n - n);
    return n;
}

void guest_process_ends_within(struct guest_process *p, uint64_t ms)
{
    p->ends_within = ms;
}

size_t guest_process_unsent(const struct guest_process *p, const void **ret, bool *ret_close)
{
    *ret = p->input + (p->input_n - p->unsent);
    *ret_close = false;
    return p->unsent;
}

void guest_process_stdin_close(struct guest_process *p)
{
    p->input_closed = true;
    p->input_closes++;
}

void guest_process_signal(struct guest_process *p, int signal, bool tree, guest_done done, void *arg)
{
    if (p->signals++ == 0)
        p->first_signal = signal;
    p->signal = signal;
    p->signal_tree = tree;
    p->signal_done = done;
    p->signal_arg = arg;
}

void guest_process_terminate(struct guest_process *p, int signal, uint32_t grace_ms, guest_done done,
                             void *arg)
{
    guest_process_signal(p, signal, true, done, arg);
    p->grace_ms = grace_ms;
}

void guest_process_resize(struct guest_process *p, uint16_t rows, uint16_t cols)
{
    p->rows = rows;
    p->cols = cols;
}

void guest_process_release(struct guest_process *p)
{
    p->released = true; /* kept for the test to look at */
}

/* --- files --- */

static void ask(struct guest *g, const char *what, const char *user, const char *path)
{
    g->question = (struct fake_question){.flag = false};
    (void)snprintf(g->question.what, sizeof(g->question.what), "%s", what);
    (void)snprintf(g->question.path, sizeof(g->question.path), "%s", path);
    (void)snprintf(g->question.user, sizeof(g->question.user), "%s", user ? user : "(none)");
}

void guest_file_stat(struct guest *g, const char *user, const char *path, guest_stat_done done, void *arg)
{
    ask(g, "stat", user, path);
    g->question.stat = done;
    g->question.arg = arg;
}

void guest_file_cancel(struct guest *g, const void *arg)
{
    g->question.cancelled = g->question.arg == arg;
}

void guest_file_remove(struct guest *g, const char *user, const char *path, bool recursive, guest_done done,
                       void *arg)
{
    ask(g, "remove", user, path);
    g->question.flag = recursive;
    g->question.done = done;
    g->question.arg = arg;
}

void guest_file_mkdir(struct guest *g, const char *user, const char *path, bool parents, guest_done done,
                      void *arg)
{
    ask(g, "mkdir", user, path);
    g->question.flag = parents;
    g->question.done = done;
    g->question.arg = arg;
}

static void set(char *to, size_t size, const char *text)
{
    (void)snprintf(to, size, "%s", text ? text : "(none)");
}

static void ask_more(struct guest *g, const char *other, unsigned flags, guest_done done, void *arg)
{
    set(g->question.other, sizeof(g->question.other), other);
    g->question.flags = flags;
    g->question.done = done;
    g->question.arg = arg;
}

void guest_file_move(struct guest *g, const char *user, const char *from, const char *to, unsigned flags,
                     guest_done done, void *arg)
{
    ask(g, "move", user, from);
    ask_more(g, to, flags, done, arg);
}

void guest_file_copy(struct guest *g, const char *user, const char *from, const char *to, bool recursive,
                     unsigned flags, guest_done done, void *arg)
{
    ask(g, "copy", user, from);
    ask_more(g, to, flags, done, arg);
    g->question.flag = recursive;
}

void guest_file_chmod(struct guest *g, const char *user, const char *path, uint32_t mode, const char *owner,
                      bool recursive, guest_done done, void *arg)
{
    ask(g, "chmod", user, path);
    ask_more(g, NULL, 0, done, arg);
    set(g->question.owner, sizeof(g->question.owner), owner);
    g->question.mode = mode;
    g->question.flag = recursive;
}

void guest_file_symlink(struct guest *g, const char *user, const char *path, const char *text, unsigned flags,
                        guest_done done, void *arg)
{
    ask(g, "symlink", user, path);
    ask_more(g, text, flags, done, arg);
}

static struct guest_file *file_new(struct guest *g, const char *what, const char *user, const char *path)
{
    if (g->file)
        free(g->file->data);
    free(g->file);
    g->file = calloc(1, sizeof(*g->file));
    if (!g->file)
        abort();
    set(g->file->what, sizeof(g->file->what), what);
    (void)snprintf(g->file->path, sizeof(g->file->path), "%s", path);
    (void)snprintf(g->file->user, sizeof(g->file->user), "%s", user ? user : "(none)");
    g->file->push_max = g->push_max ? g->push_max : SIZE_MAX;
    return g->file;
}

int guest_file_read(struct guest *g, const char *user, const char *path, uint64_t offset, uint64_t length,
                    const struct guest_read_events *events, void *arg, struct guest_file **ret,
                    struct error *err)
{
    (void)err;
    struct guest_file *f = file_new(g, "read", user, path);
    f->offset = offset;
    f->length = length;
    f->read = *events;
    f->arg = arg;
    *ret = f;
    return 0;
}

void guest_file_taken(struct guest_file *f, size_t n)
{
    f->taken += n;
}

static void write_new(struct guest *g, const char *what, const struct guest_write *w,
                      const struct guest_write_events *events, void *arg, struct guest_file **ret)
{
    struct guest_file *f = file_new(g, what, w->user, w->path);
    f->writing = true;
    f->mode = w->mode;
    f->parents = w->parents;
    set(f->owner, sizeof(f->owner), w->owner);
    f->write = *events;
    f->arg = arg;
    *ret = f;
}

int guest_file_write(struct guest *g, const struct guest_write *w, const struct guest_write_events *events,
                     void *arg, struct guest_file **ret, struct error *err)
{
    (void)err;
    write_new(g, "write", w, events, arg, ret);
    return 0;
}

int guest_archive_write(struct guest *g, const struct guest_write *w, const struct guest_write_events *events,
                        void *arg, struct guest_file **ret, struct error *err)
{
    (void)err;
    write_new(g, "unpack", w, events, arg, ret);
    return 0;
}

int guest_archive_read(struct guest *g, const char *user, const char *path,
                       const struct guest_read_events *events, void *arg, struct guest_file **ret,
                       struct error *err)
{
    (void)err;
    struct guest_file *f = file_new(g, "pack", user, path);
    f->read = *events;
    f->arg = arg;
    *ret = f;
    return 0;
}

int guest_file_list(struct guest *g, const char *user, const char *path, uint32_t depth, const char *after,
                    uint32_t limit, const struct guest_list_events *events, void *arg,
                    struct guest_file **ret, struct error *err)
{
    (void)err;
    struct guest_file *f = file_new(g, "list", user, path);
    f->depth = depth;
    f->limit = limit;
    set(f->after, sizeof(f->after), after);
    f->list = *events;
    f->arg = arg;
    *ret = f;
    return 0;
}

int guest_file_watch(struct guest *g, const char *user, const char *path, bool recursive,
                     const struct guest_watch_events *events, void *arg, struct guest_file **ret,
                     struct error *err)
{
    (void)err;
    struct guest_file *f = file_new(g, "watch", user, path);
    f->recursive = recursive;
    f->watch = *events;
    f->arg = arg;
    *ret = f;
    return 0;
}

size_t guest_file_push(struct guest_file *f, const void *data, size_t n)
{
    if (n > f->push_max - f->n)
        n = f->push_max - f->n;
    if (n == 0)
        return 0;
    f->data = realloc(f->data, f->n + n);
    if (!f->data)
        abort();
    memcpy(f->data + f->n, data, n);
    f->n += n;
    return n;
}

void guest_file_commit(struct guest_file *f)
{
    f->committed = true;
}

void guest_file_close(struct guest_file *f)
{
    f->closed = true;
}
