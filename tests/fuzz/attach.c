/* What clients of the data plane may send: messages of an attached channel, bodies of commands, headers and
 * parameters of files. The first byte chooses; the rest is the input. */
#include <assert.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/attach_msg.h"
#include "data/text.h"
#include "session/base64.h"
#include "session/spec.h"
#include "json/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void message(bool text, const uint8_t *data, size_t n)
{
    struct attach_msg m;
    struct error err = ERROR_INIT;
    if (attach_msg_parse(text, data, n, &m, &err) < 0)
        assert(*err.message && err.code < 0);
    else if (m.kind == ATTACH_STDIN)
        assert(m.n == 0 || (m.data > data && m.data + m.n <= data + n));
    else if (m.kind == ATTACH_RESIZE)
        assert(m.rows >= 1 && m.cols >= 1 && m.rows <= 10000 && m.cols <= 10000);
}

static void command(bool exec, const uint8_t *data, size_t n)
{
    json_t *body = NULL;
    struct spec_request q;
    struct spec_exec x;
    struct error err = ERROR_INIT;
    if (json_parse((const char *)data, n, &body, &err) < 0)
        return;
    if (spec_read(body, exec, NULL, NULL, 1ull << 30, &q, &err) == 0) {
        assert(spec_exec_init(q.spec, "pr_", &x, &err) == 0);
        assert(!x.exec.argv != !x.exec.shell);
        assert(!exec || !x.exec.pty);
        spec_exec_finish(&x);
        json_decref(spec_argv(q.spec));
        spec_request_finish(&q);
    } else {
        assert(*err.message);
    }
    json_decref(body);
}

static void texts(const char *s)
{
    uint64_t offset = 0;
    uint64_t length = 0;
    uint32_t mode = 0;
    if (range_parse(s, 1000, &offset, &length) == RANGE_PART)
        assert(length > 0 && offset + length <= 1000);
    if (mode_parse(s, &mode))
        assert(mode <= 07777);
    (void)etag_listed(s, "\"1-2-3\"");
    if (attach_writer_valid(s))
        assert(strlen(s) >= 1 && strlen(s) <= 64 && !strpbrk(s, "&=\"\\ /."));
}

static void base64(const char *s, size_t n)
{
    size_t got = 0;
    char *out = malloc(n + 1);
    char *again = malloc(n + 1);
    if (out && again && base64_decode(s, n, out, &got)) {
        assert(base64_length(got) == n);
        base64_encode(out, got, again);
        assert(memcmp(s, again, n) == 0); /* one text for one value */
    }
    free(out);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0)
        return 0;
    char *text = strndup((const char *)data + 1, n - 1);
    if (!text)
        return 0;
    switch (data[0] % 6) {
    case 0:
        message(true, data + 1, n - 1);
        break;
    case 1:
        message(false, data + 1, n - 1);
        break;
    case 2:
        command(false, data + 1, n - 1);
        break;
    case 3:
        command(true, data + 1, n - 1);
        break;
    case 4:
        texts(text);
        break;
    default:
        base64((const char *)data + 1, n - 1);
        break;
    }
    free(text);
    return 0;
}
