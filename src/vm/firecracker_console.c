/* The guest's console: Firecracker's standard output, of which the broker keeps the last 16 KiB in a file. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "vm/firecracker.h"

#define LOG_MAX 65536
#define ANCHOR 64 /* so many bytes tell where the last look ended */

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
    struct vm_look *l = arg;
    struct fc *q = l->vm->priv;
    AUTO_FREE char *text = NULL;
    AUTO_FREE char *plain = NULL;
    size_t n = 0;
    if (fs_read_file(AT_FDCWD, q->vmm.log, LOG_MAX, &text, &n, NULL) == 0) {
        plain = strdup(fc_console_new(q->seen, q->seen_n, text, n));
        free(q->seen);
        q->seen = TAKE(text);
        q->seen_n = n;
    }
    if (plain)
        make_plain(plain);
    vm_look_answer(l, NULL, plain ? plain : "");
}

void fc_console(struct vm *vm, vm_console_done done, void *arg)
{
    const struct fc *q = vm->priv;
    struct vm_look *l = vm_look_new(vm, sizeof(*l), done, arg);
    if (q && q->vmm.log[0])
        loop_defer(vm->engine->loop, &l->deferred, on_look, l);
    else
        vm_look_refuse(l);
}
