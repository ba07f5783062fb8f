/* Looks at a guest's console that are under way, whatever the engine. */
#include <stdlib.h>
#include <utlist.h>

#include "vm/engine.h"

void *vm_look_new(struct vm *vm, size_t size, vm_console_done done, void *arg)
{
    struct vm_look *l = calloc(1, size);
    if (!l)
        abort(); /* a promise to answer cannot be kept without memory to remember it */
    l->vm = vm;
    l->done = done;
    l->arg = arg;
    DL_APPEND(vm->looks, l);
    return l;
}

static void unlist(struct vm_look *l)
{
    DL_DELETE(l->vm->looks, l);
    loop_defer_cancel(l->vm->engine->loop, &l->deferred);
}

void vm_look_answer(struct vm_look *l, const struct error *err, const char *text)
{
    unlist(l);
    l->done(l->arg, err, err ? NULL : text);
    free(l); /* now: the text may be part of it */
}

static void on_refused(void *arg)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_GONE, "the VMM is not running");
    vm_look_answer(arg, &err, NULL);
}

void vm_look_refuse(struct vm_look *l)
{
    loop_defer(l->vm->engine->loop, &l->deferred, on_refused, l);
}

void vm_looks_drop(struct vm *vm)
{
    struct vm_look *l;
    struct vm_look *tmp;
    DL_FOREACH_SAFE(vm->looks, l, tmp)
    {
        unlist(l);
        free(l);
    }
}

char vm_plain(unsigned char byte)
{
    return byte == '\n' || byte == '\t' || (byte >= 0x20 && byte < 0x7f) ? (char)byte : '?';
}
