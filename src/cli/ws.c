#include "cli/ws.h"

#include <openssl/evp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <wslay/wslay.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/str.h"
#include "cli/upgrade.h"

#define INPUT_SIZE 65536
#define TEXT_MAX (1024 * 1024)
#define REFUSAL_MAX 65536
#define HANDSHAKE_MS 10000
#define ACCEPT_GUID "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

struct ws {
    CURL *curl;
    int fd;
    wslay_event_context_ptr frames;
    const struct ws_events *events;
    void *arg;
    unsigned char input[INPUT_SIZE];
    size_t input_at, input_end;
    struct buf text; /* the text message being received */
    uint8_t opcode;  /* of the data message being received */
    bool first;      /* its next piece is the first */
    bool held;
    bool retry; /* was held: the TLS layer may have bytes that the socket no longer shows */
    bool over;  /* nothing more can be read */
    unsigned close_code;
    char close_reason[124];
};

/* --- bytes --- */

/* Fills the empty input buffer. 1: bytes, 0: would block, -1: over. */
static int fill(struct ws *w)
{
    size_t n = 0;
    CURLcode code = curl_easy_recv(w->curl, w->input, sizeof(w->input), &n);
    if (code == CURLE_AGAIN)
        return 0;
    if (code != CURLE_OK || n == 0)
        return -1;
    w->input_at = 0;
    w->input_end = n;
    return 1;
}

static ssize_t on_recv(wslay_event_context_ptr frames, uint8_t *to, size_t n, int flags, void *arg)
{
    (void)flags;
    struct ws *w = arg;
    int rc = w->held ? 0 : 1;
    if (rc == 1 && w->input_at == w->input_end)
        rc = w->over ? -1 : fill(w);
    if (rc < 1) {
        w->over |= rc < 0;
        wslay_event_set_error(frames, rc == 0 ? WSLAY_ERR_WOULDBLOCK : WSLAY_ERR_CALLBACK_FAILURE);
        return -1;
    }
    size_t take = w->input_end - w->input_at < n ? w->input_end - w->input_at : n;
    memcpy(to, w->input + w->input_at, take);
    w->input_at += take;
    return (ssize_t)take;
}

static ssize_t on_send(wslay_event_context_ptr frames, const uint8_t *data, size_t n, int flags, void *arg)
{
    (void)flags;
    struct ws *w = arg;
    size_t sent = 0;
    CURLcode code = curl_easy_send(w->curl, data, n, &sent);
    if (code == CURLE_OK)
        return (ssize_t)sent;
    wslay_event_set_error(frames, code == CURLE_AGAIN ? WSLAY_ERR_WOULDBLOCK : WSLAY_ERR_CALLBACK_FAILURE);
    return -1;
}

static int on_mask(wslay_event_context_ptr frames, uint8_t *to, size_t n, void *arg)
{
    (void)frames;
    (void)arg;
    id_random(to, n);
    return 0;
}

/* --- messages --- */

static void on_frame_start(wslay_event_context_ptr frames,
                           const struct wslay_event_on_frame_recv_start_arg *frame, void *arg)
{
    (void)frames;
    struct ws *w = arg;
    if (wslay_is_ctrl_frame(frame->opcode)) {
        w->opcode |= 0x80; /* the pieces that follow are not data */
        return;
    }
    w->opcode &= 0x7f;
    if (frame->opcode != WSLAY_CONTINUATION_FRAME) {
        w->opcode = frame->opcode;
        w->first = true;
    }
}

static void on_chunk(wslay_event_context_ptr frames, const struct wslay_event_on_frame_recv_chunk_arg *chunk,
                     void *arg)
{
    struct ws *w = arg;
    if (w->opcode == WSLAY_BINARY_FRAME) {
        w->events->binary(w->arg, w->first, chunk->data, chunk->data_length);
        w->first = false;
    } else if (w->opcode == WSLAY_TEXT_FRAME && !buf_append(&w->text, chunk->data, chunk->data_length)) {
        wslay_event_set_error(frames, WSLAY_ERR_CALLBACK_FAILURE);
        w->over = true;
    }
}

static void on_frame_end(wslay_event_context_ptr frames, void *arg)
{
    (void)frames;
    struct ws *w = arg;
    w->opcode &= 0x7f; /* a control frame may stand between the frames of a message */
}

static void on_message(wslay_event_context_ptr frames, const struct wslay_event_on_msg_recv_arg *m, void *arg)
{
    (void)frames;
    struct ws *w = arg;
    if (m->opcode == WSLAY_CONNECTION_CLOSE) {
        w->close_code = m->status_code ? m->status_code : WSLAY_CODE_NO_STATUS_RCVD;
        size_t n = m->msg_length > 2 ? m->msg_length - 2 : 0; /* after the status come the words */
        if (n < sizeof(w->close_reason))
            memcpy(w->close_reason, m->msg + 2, n);
    } else if (m->opcode == WSLAY_PONG && m->msg_length == 8) {
        w->events->pong(w->arg, bytes_get_u64(m->msg));
    } else if (m->opcode == WSLAY_TEXT_FRAME && !w->over) {
        size_t n = buf_len(&w->text);
        if (buf_append(&w->text, "", 1))
            w->events->text(w->arg, (const char *)buf_head(&w->text), n);
        buf_consume(&w->text, buf_len(&w->text));
    }
}

static const struct wslay_event_callbacks callbacks = {
    .recv_callback = on_recv,
    .send_callback = on_send,
    .genmask_callback = on_mask,
    .on_frame_recv_start_callback = on_frame_start,
    .on_frame_recv_chunk_callback = on_chunk,
    .on_frame_recv_end_callback = on_frame_end,
    .on_msg_recv_callback = on_message,
};

/* --- the handshake --- */

static bool wait_for(const struct ws *w, short events, int64_t deadline)
{
    int64_t left = (deadline - clock_mono_ns()) / CLOCK_NS_PER_MS;
    struct pollfd p = {.fd = w->fd, .events = events};
    return left > 0 && poll(&p, 1, (int)left) > 0;
}

static bool send_all(struct ws *w, const char *data, size_t n, int64_t deadline)
{
    while (n > 0) {
        size_t sent = 0;
        CURLcode code = curl_easy_send(w->curl, data, n, &sent);
        if (code == CURLE_AGAIN && wait_for(w, POLLOUT, deadline))
            continue;
        if (code != CURLE_OK)
            return false;
        data += sent;
        n -= sent;
    }
    return true;
}

/* Appends what arrives next to b; false at the end, on failure or past the deadline. */
static bool recv_more(struct ws *w, struct buf *b, int64_t deadline)
{
    for (;;) {
        int rc = fill(w);
        if (rc < 0 || (rc == 0 && !wait_for(w, POLLIN, deadline)))
            return false;
        if (rc == 0)
            continue;
        w->input_at = w->input_end;
        return buf_append(b, w->input, w->input_end);
    }
}

/* What the server must answer to this key (RFC 6455, 4.2.2). */
static void accept_for(const char *key, char to[32])
{
    char text[80];
    unsigned char digest[EVP_MAX_MD_SIZE];
    (void)snprintf(text, sizeof(text), "%s%s", key, ACCEPT_GUID);
    (void)EVP_Digest(text, strlen(text), digest, NULL, EVP_sha1(), NULL);
    (void)EVP_EncodeBlock((unsigned char *)to, digest, 20);
}

static int check_upgrade(const char *head, const char *key, const char *protocol, struct error *err)
{
    char expected[32];
    char value[128];
    accept_for(key, expected);
    if (!upgrade_header(head, "Sec-WebSocket-Accept", value, sizeof(value)) || strcmp(value, expected) != 0)
        return error_set(err, ERROR_INTERNAL, "the server's WebSocket answer does not match the request");
    if (!upgrade_header(head, "Sec-WebSocket-Protocol", value, sizeof(value)) || strcmp(value, protocol) != 0)
        return error_set(err, ERROR_UNSUPPORTED, "the server does not speak %s", protocol);
    return 0;
}

/* An answer other than 101: its body, as far as announced, holds the problem. */
static int refusal(struct ws *w, struct buf *b, size_t head_size, unsigned status, int64_t deadline,
                   struct error *err)
{
    char value[32];
    uint64_t length = REFUSAL_MAX;
    AUTO_FREE char *head = strndup((const char *)buf_head(b), head_size);
    if (head && upgrade_header(head, "Content-Length", value, sizeof(value)))
        (void)str_to_u64(value, 0, REFUSAL_MAX, &length);
    while (buf_len(b) - head_size < length && recv_more(w, b, deadline))
        ;
    return client_problem(status, (const char *)buf_head(b) + head_size, buf_len(b) - head_size, err);
}

/* Reads the answer's head into b; *ret_size counts it with the empty line. */
static int read_head(struct ws *w, struct buf *b, int64_t deadline, size_t *ret_size, unsigned *ret_status,
                     struct error *err)
{
    size_t n = 0;
    while (n == 0) {
        if (!recv_more(w, b, deadline) || buf_len(b) > UPGRADE_HEAD_MAX + INPUT_SIZE)
            return error_set(err, ERROR_UNAVAILABLE, "the server closed the connection in the handshake");
        n = upgrade_head_size(buf_head(b), buf_len(b));
    }
    *ret_size = n;
    if (upgrade_status((const char *)buf_head(b), n, ret_status))
        return 0;
    return error_set(err, ERROR_INTERNAL, "the server's answer is not HTTP");
}

/* The request that asks for the upgrade; heap string, NULL when memory is short. */
static char *request_for(struct client *c, const struct ws_config *config, const char *key)
{
    AUTO_FREE char *headers =
        str_printf("Upgrade: websocket\r\nSec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n"
                   "Sec-WebSocket-Protocol: %s\r\n%s%s%s",
                   key, config->protocol, config->token ? "Authorization: Bearer " : "",
                   config->token ? config->token : "", config->token ? "\r\n" : "");
    return headers ? upgrade_request(c, config->path, headers) : NULL;
}

static int handshake(struct ws *w, struct client *c, const struct ws_config *config, bool *ret_refused,
                     struct error *err)
{
    int64_t deadline = clock_mono_ns() + HANDSHAKE_MS * CLOCK_NS_PER_MS;
    unsigned char random[16];
    char key[32];
    id_random(random, sizeof(random));
    (void)EVP_EncodeBlock((unsigned char *)key, random, sizeof(random));
    AUTO_FREE char *request = request_for(c, config, key);
    if (!request)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (!send_all(w, request, strlen(request), deadline))
        return error_set(err, ERROR_UNAVAILABLE, "the connection broke in the handshake");
    struct buf b CLEANUP(buf_finish);
    buf_init(&b, UPGRADE_HEAD_MAX + INPUT_SIZE + REFUSAL_MAX + INPUT_SIZE);
    size_t head_size = 0;
    unsigned status = 0;
    int rc = read_head(w, &b, deadline, &head_size, &status, err);
    if (rc < 0)
        return rc;
    if (status != 101) {
        *ret_refused = true;
        return refusal(w, &b, head_size, status, deadline, err);
    }
    AUTO_FREE char *head = strndup((const char *)buf_head(&b), head_size);
    if (!head)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    rc = check_upgrade(head, key, config->protocol, err);
    /* Bytes after the head are the first frames; they fit, because they came in one piece. */
    size_t left = buf_len(&b) - head_size;
    memmove(w->input, buf_head(&b) + head_size, left);
    w->input_at = 0;
    w->input_end = left;
    return rc;
}

static int open_connection(struct ws *w, struct client *c, struct error *err)
{
    char why[CURL_ERROR_SIZE] = "";
    w->curl = client_handle(c);
    if (!w->curl)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    (void)curl_easy_setopt(w->curl, CURLOPT_CONNECT_ONLY, 1L);
    (void)curl_easy_setopt(w->curl, CURLOPT_SSL_ENABLE_ALPN, 0L); /* HTTP/2 has no such upgrade */
    (void)curl_easy_setopt(w->curl, CURLOPT_ERRORBUFFER, why);
    CURLcode code = curl_easy_perform(w->curl);
    (void)curl_easy_setopt(w->curl, CURLOPT_ERRORBUFFER, NULL);
    curl_socket_t fd = CURL_SOCKET_BAD;
    if (code == CURLE_OK)
        code = curl_easy_getinfo(w->curl, CURLINFO_ACTIVESOCKET, &fd);
    if (code != CURLE_OK || fd == CURL_SOCKET_BAD)
        return error_set(err, ERROR_UNAVAILABLE, "cannot reach the server at %s: %s", client_url(c),
                         *why ? why : curl_easy_strerror(code));
    w->fd = fd;
    return 0;
}

int ws_connect(struct client *c, const struct ws_config *config, const struct ws_events *events, void *arg,
               struct ws **ret, bool *ret_refused, struct error *err)
{
    struct ws *w = calloc(1, sizeof(*w));
    *ret_refused = false;
    if (!w)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    w->fd = -1;
    w->events = events;
    w->arg = arg;
    w->close_code = WSLAY_CODE_ABNORMAL_CLOSURE;
    buf_init(&w->text, TEXT_MAX);
    int rc = open_connection(w, c, err);
    if (rc == 0)
        rc = handshake(w, c, config, ret_refused, err);
    if (rc == 0 && wslay_event_context_client_init(&w->frames, &callbacks, w) != 0)
        rc = error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (rc < 0) {
        ws_destroy(w);
        return rc;
    }
    wslay_event_config_set_no_buffering(w->frames, 1);
    *ret = w;
    return 0;
}

void ws_destroy(struct ws *w)
{
    if (!w)
        return;
    if (w->frames)
        wslay_event_context_free(w->frames);
    curl_easy_cleanup(w->curl);
    buf_finish(&w->text);
    free(w);
}

int ws_fd(const struct ws *w)
{
    return w->fd;
}

bool ws_read(struct ws *w)
{
    w->retry = false;
    if (wslay_event_recv(w->frames) != 0 || w->over)
        return false;
    /* After a frame that breaks the protocol reading is switched off, and a close frame queued. */
    return wslay_event_get_read_enabled(w->frames) && !wslay_event_get_close_received(w->frames);
}

void ws_hold(struct ws *w, bool hold)
{
    w->retry |= w->held && !hold;
    w->held = hold;
}

bool ws_read_pending(const struct ws *w)
{
    return w->retry || w->input_at < w->input_end;
}

bool ws_send(struct ws *w, bool text, const void *data, size_t n)
{
    struct wslay_event_msg m = {text ? WSLAY_TEXT_FRAME : WSLAY_BINARY_FRAME, data, n};
    return wslay_event_queue_msg(w->frames, &m) == 0;
}

bool ws_ping(struct ws *w, uint64_t number)
{
    unsigned char body[8];
    bytes_put_u64(body, number);
    struct wslay_event_msg m = {WSLAY_PING, body, sizeof(body)};
    return wslay_event_queue_msg(w->frames, &m) == 0;
}

void ws_close(struct ws *w)
{
    (void)wslay_event_queue_close(w->frames, WSLAY_CODE_NORMAL_CLOSURE, NULL, 0);
}

bool ws_write(struct ws *w)
{
    return wslay_event_send(w->frames) == 0;
}

bool ws_wants_write(const struct ws *w)
{
    return wslay_event_want_write(w->frames) != 0;
}

unsigned ws_close_code(const struct ws *w)
{
    return w->close_code;
}

const char *ws_close_reason(const struct ws *w)
{
    return w->close_reason;
}
