/* The guest's console: a ring in the VMM's memory, drained over QMP in chunks that fit one of its lines. */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "vm/qemu.h"

#define CHUNK 8192 /* its base64 must fit a QMP line */
#define ROUNDS 8   /* the ring holds 64 KiB */
#define TIMEOUT_MS 5000

struct qemu_console {
    struct vm_look look;
    unsigned rounds;
    size_t len;
    char text[CHUNK * ROUNDS + 1]; /* all zero behind len */
};

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
        vm_look_answer(&c->look, err, NULL);
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
        vm_look_answer(&c->look, NULL, c->text);
    else
        request(c);
}

static void request(struct qemu_console *c)
{
    const struct qemu *q = c->look.vm->priv;
    qmp_call(q->qmp, "ringbuf-read",
             json_pack("{s:s, s:i, s:s}", "device", "console", "size", CHUNK, "format", "base64"), -1,
             TIMEOUT_MS, on_chunk, c);
}

void qemu_console(struct vm *vm, vm_console_done done, void *arg)
{
    const struct qemu *q = vm->priv;
    struct qemu_console *c = vm_look_new(vm, sizeof(*c), done, arg);
    if (q && q->qmp)
        request(c);
    else
        vm_look_refuse(&c->look);
}
