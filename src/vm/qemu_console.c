/* The guest's console: a ring in the VMM's memory, drained over QMP in chunks that fit one of its lines. */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/cleanup.h"
#include "vm/qemu.h"

#define CHUNK 8192 /* its base64 must fit a QMP line */
#define ROUNDS 8   /* the ring holds 64 KiB */
#define TIMEOUT_MS 5000

struct qemu_console {
    struct qemu_console *prev, *next;
    struct vm *vm;
    vm_console_done done;
    void *arg;
    struct loop_deferred deferred;
    bool owned; /* listed in its VM's private part */
    unsigned rounds;
    size_t len;
    char text[CHUNK * ROUNDS + 1];
};

static void console_free(struct qemu_console *c)
{
    struct qemu *q = c->vm->priv;
    if (c->owned)
        DL_DELETE(q->consoles, c);
    loop_defer_cancel(c->vm->engine->loop, &c->deferred);
    free(c);
}

static void finish(struct qemu_console *c, const struct error *err)
{
    /* The text outlives the request by the length of the callback. */
    AUTO_FREE char *text = err ? NULL : strndup(c->text, c->len);
    vm_console_done done = c->done;
    void *arg = c->arg;
    console_free(c);
    done(arg, err, err ? NULL : text ? text : "");
}

static void request(struct qemu_console *c);

/* Appends what a guest printed: anything but plain text becomes '?'. */
static void append(struct qemu_console *c, const unsigned char *data, size_t n)
{
    for (size_t i = 0; i < n && c->len < sizeof(c->text) - 1; i++)
        if (data[i] != '\r')
            c->text[c->len++] = vm_plain(data[i]);
}

static void on_chunk(void *arg, const struct error *err, const json_t *ret)
{
    struct qemu_console *c = arg;
    if (err) {
        finish(c, err);
        return;
    }
    const char *b64 = json_string_value(ret);
    size_t n = b64 ? strlen(b64) : 0;
    unsigned char data[CHUNK + 4];
    int got =
        n > 0 && n <= (CHUNK + 2) / 3 * 4 ? EVP_DecodeBlock(data, (const unsigned char *)b64, (int)n) : 0;
    for (size_t i = n; got > 0 && i > 0 && b64[i - 1] == '='; i--)
        got--; /* the decoder counts padding as data */
    if (got > 0)
        append(c, data, (size_t)got);
    if (got < CHUNK || ++c->rounds == ROUNDS)
        finish(c, NULL);
    else
        request(c);
}

static void request(struct qemu_console *c)
{
    struct qemu *q = c->vm->priv;
    qmp_call(q->qmp, "ringbuf-read",
             json_pack("{s:s, s:i, s:s}", "device", "console", "size", CHUNK, "format", "base64"), -1,
             TIMEOUT_MS, on_chunk, c);
}

static void on_no_channel(void *arg)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_GONE, "the VMM is not running");
    finish(arg, &err);
}

void qemu_console(struct vm *vm, vm_console_done done, void *arg)
{
    struct qemu *q = vm->priv;
    struct qemu_console *c = calloc(1, sizeof(*c));
    if (!c)
        abort(); /* a promise to answer cannot be kept without memory to remember it */
    c->vm = vm;
    c->done = done;
    c->arg = arg;
    if (q) {
        c->owned = true;
        DL_APPEND(q->consoles, c);
    }
    if (q && q->qmp)
        request(c);
    else
        loop_defer(vm->engine->loop, &c->deferred, on_no_channel, c);
}

bool qemu_console_fail(struct vm *vm, const char *why)
{
    struct qemu *q = vm->priv;
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_GONE, "the VMM has ended: %s", why);
    bool destroyed = false;
    while (q->consoles) {
        vm->destroyed = &destroyed;
        finish(q->consoles, &err);
        if (destroyed)
            return false;
        vm->destroyed = NULL;
    }
    return true;
}

void qemu_console_drop(struct vm *vm)
{
    struct qemu *q = vm->priv;
    struct qemu_console *c;
    struct qemu_console *tmp;
    DL_FOREACH_SAFE(q->consoles, c, tmp)
    {
        console_free(c);
    }
}
