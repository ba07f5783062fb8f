/* The guest's console: Firecracker's standard output, of which the broker keeps the last 16 KiB in a file. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "vm/firecracker.h"

#define LOG_MAX 65536
#define ANCHOR 64 /* so many bytes tell where the last look ended */

static void console_free(struct fc_console *c)
{
    struct fc *q = c->vm->priv;
    if (c->listed)
        DL_DELETE(q->consoles, c);
    loop_defer_cancel(c->vm->engine->loop, &c->deferred);
    free(c);
}

const char *fc_console_new(const char *seen, size_t seen_n, const char *text, size_t n)
{
    if (seen_n == 0)
        return text;
    if (n >= seen_n && memcmp(text, seen, seen_n) == 0)
        return text + seen_n;
    /* Its beginning is not kept any more. */
    size_t anchor = seen_n < ANCHOR ? seen_n : ANCHOR;
    const char *mark = seen + seen_n - anchor;
    const char *found = NULL;
    for (const char *at = text; (at = memmem(at, n - (size_t)(at - text), mark, anchor)); at++)
        found = at;
    return found ? found + anchor : text;
}

/* Anything but plain text becomes '?'. */
static void make_plain(char *text)
{
    char *to = text;
    for (const char *p = text; *p; p++)
        if (*p != '\r')
            *to++ = vm_plain((unsigned char)*p);
    *to = '\0';
}

static void on_look(void *arg)
{
    struct fc_console *c = arg;
    struct fc *q = c->vm->priv;
    vm_console_done done = c->done;
    void *done_arg = c->arg;
    struct error err = ERROR_INIT;
    AUTO_FREE char *text = NULL;
    AUTO_FREE char *plain = NULL;
    size_t n = 0;
    if (!q || !q->log[0])
        (void)error_set(&err, ERROR_GONE, "the VMM is not running");
    else if (fs_read_file(AT_FDCWD, q->log, LOG_MAX, &text, &n, NULL) == 0) {
        plain = strdup(fc_console_new(q->seen, q->seen_n, text, n));
        free(q->seen);
        q->seen = TAKE(text);
        q->seen_n = n;
    }
    if (plain)
        make_plain(plain);
    console_free(c);
    done(done_arg, err.code ? &err : NULL, err.code ? NULL : plain ? plain : "");
}

void fc_console(struct vm *vm, vm_console_done done, void *arg)
{
    struct fc *q = vm->priv;
    struct fc_console *c = calloc(1, sizeof(*c));
    if (!c)
        abort(); /* a promise to answer cannot be kept without memory to remember it */
    c->vm = vm;
    c->done = done;
    c->arg = arg;
    c->listed = q != NULL;
    if (q)
        DL_APPEND(q->consoles, c);
    loop_defer(vm->engine->loop, &c->deferred, on_look, c);
}

void fc_console_drop(struct vm *vm)
{
    struct fc *q = vm->priv;
    struct fc_console *c;
    struct fc_console *tmp;
    DL_FOREACH_SAFE(q->consoles, c, tmp)
    {
        console_free(c);
    }
}
