#include "data/ws_client.h"

#include "base/bytes.h"

struct attach_keys new_session(struct rig *g, const char *body)
{
    struct attach_keys k = {.session = ""};
    struct answer a = post(g, sb_path(g, "/sessions"), body);
    if (a.status != 201)
        fail_msg("%s: %u %s", body, a.status, (char *)a.body);
    json_t *session = json_object_get(a.json, "session");
    json_t *attach = json_object_get(a.json, "attach");
    (void)str_copy(k.session, sizeof(k.session), json_string_value(json_object_get(session, "id")));
    (void)str_copy(k.process, sizeof(k.process), json_string_value(json_object_get(session, "process_id")));
    (void)str_copy(k.token, sizeof(k.token), json_string_value(json_object_get(attach, "token")));
    (void)str_copy(k.url, sizeof(k.url), json_string_value(json_object_get(attach, "url")));
    assert_string_equal(json_string_value(json_object_get(session, "sandbox_id")), g->w->sb->id);
    assert_true(json_is_string(json_object_get(attach, "expires_at")));
    answer_free(&a);
    return k;
}

struct ws ws_open(struct rig *g, const struct attach_keys *k, const char *query)
{
    struct ws ws = {.c = client_open(g)};
    char head[1024];
    int n = snprintf(head, sizeof(head),
                     "GET /v1/attach/%s?token=%s%s HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: "
                     "Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                     "Sec-WebSocket-Protocol: space.attach.v1\r\n\r\n",
                     k->session, k->token, query);
    client_write(g, ws.c, head, (size_t)n);
    char *end = NULL;
    int64_t until = clock_mono_ns() + 5 * CLOCK_NS_PER_S;
    while (!end && !ws.c->eof && clock_mono_ns() < until) {
        client_poll(g, ws.c);
        end = buf_len(&ws.c->in) ? memmem(buf_head(&ws.c->in), buf_len(&ws.c->in), "\r\n\r\n", 4) : NULL;
    }
    if (!end)
        return ws;
    if (strncmp((char *)buf_head(&ws.c->in), "HTTP/1.1 ", 9) == 0)
        ws.status = (unsigned)strtoul((char *)buf_head(&ws.c->in) + 9, NULL, 10);
    static const char name[] = "\r\nX-Space-Stdin-End: ";
    const char *head_at = (const char *)buf_head(&ws.c->in);
    const char *at = head_at ? memmem(head_at, (size_t)(end - head_at), name, strlen(name)) : NULL;
    ws.told_stdin = at != NULL;
    ws.stdin_end = at ? (unsigned)strtoul(at + strlen(name), NULL, 10) : 0;
    buf_consume(&ws.c->in, (size_t)(end + 4 - (char *)buf_head(&ws.c->in)));
    return ws;
}

void ws_send(struct rig *g, struct ws *ws, unsigned opcode, const void *data, size_t n)
{
    unsigned char head[14] = {(unsigned char)(0x80 | opcode)};
    size_t head_n = 2;
    if (n < 126) {
        head[1] = (unsigned char)(0x80 | n);
    } else if (n < 65536) {
        head[1] = 0x80 | 126;
        bytes_put_u16(head + 2, (uint16_t)n);
        head_n = 4;
    } else {
        head[1] = 0x80 | 127;
        bytes_put_u64(head + 2, n);
        head_n = 10;
    }
    head_n += 4; /* a mask of zeros leaves the bytes as they are */
    client_write(g, ws->c, head, head_n);
    client_write(g, ws->c, data, n);
}

void ws_text(struct rig *g, struct ws *ws, const char *text)
{
    ws_send(g, ws, WS_TEXT, text, strlen(text));
}

static bool whole_frame(struct ws *ws)
{
    struct buf *in = &ws->c->in;
    const unsigned char *p = buf_head(in);
    size_t have = buf_len(in);
    size_t head = 2;
    if (have < 2)
        return false;
    uint64_t n = p[1] & 127;
    if (n == 126)
        head = 4;
    else if (n == 127)
        head = 10;
    if (have < head)
        return false;
    if (head == 4)
        n = bytes_get_u16(p + 2);
    else if (head == 10)
        n = bytes_get_u64(p + 2);
    if (have < head + n)
        return false;
    ws->opcode = p[0] & 15;
    ws->data = buf_head(in) + head;
    ws->n = n;
    ws->frame = head + n;
    return true;
}

bool ws_next(struct rig *g, struct ws *ws)
{
    int64_t until = clock_mono_ns() + 5 * CLOCK_NS_PER_S;
    do {
        buf_consume(&ws->c->in, ws->frame);
        ws->frame = 0;
        while (!whole_frame(ws)) {
            if (ws->c->eof)
                return false;
            if (clock_mono_ns() > until)
                fail_msg("no frame came");
            client_poll(g, ws->c);
        }
    } while (ws->opcode == 9);
    return true;
}

json_t *ws_event(struct rig *g, struct ws *ws, const char *type)
{
    assert_true(ws_next(g, ws));
    if (ws->opcode != WS_TEXT)
        fail_msg("frame of type %u where %s was due", ws->opcode, type);
    json_t *event = json_loadb((char *)ws->data, ws->n, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(event, "type")), type);
    return event;
}

void ws_output(struct rig *g, struct ws *ws, unsigned channel, uint64_t offset, const char *text)
{
    while (*text) {
        assert_true(ws_next(g, ws));
        assert_int_equal(ws->opcode, WS_BINARY);
        assert_true(ws->n > 9 && ws->n - 9 <= strlen(text));
        assert_int_equal(ws->data[0], channel);
        assert_int_equal(bytes_get_u64(ws->data + 1), offset);
        assert_memory_equal(ws->data + 9, text, ws->n - 9);
        text += ws->n - 9;
        offset += ws->n - 9;
    }
}

void ws_closes(struct rig *g, struct ws *ws, unsigned code)
{
    assert_true(ws_next(g, ws));
    if (ws->opcode != WS_CLOSE || ws->n < 2)
        fail_msg("frame %u of %zu bytes where a close was due", ws->opcode, ws->n);
    if (bytes_get_u16(ws->data) != code)
        fail_msg("closed with %u (%.*s), not %u", bytes_get_u16(ws->data), (int)ws->n - 2,
                 (char *)ws->data + 2, code);
}

void ws_finish(struct ws *ws)
{
    client_close(ws->c);
}
