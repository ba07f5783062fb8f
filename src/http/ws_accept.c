/* The handshake of RFC 6455, section 4. */
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "http/internal.h"
#include "http/response.h"
#include "http/ws_internal.h"

#define KEY_CHARS 24 /* base64 of 16 bytes */
#define ACCEPT_SIZE 32

bool http_ws_wanted(const struct http_request *r, const char *protocol)
{
    return http_list_has(http_header(r, "Upgrade"), "websocket", true) &&
           http_list_has(http_header(r, "Connection"), "upgrade", true) &&
           http_list_has(http_header(r, "Sec-WebSocket-Protocol"), protocol, false);
}

static bool key_valid(const char *key)
{
    unsigned char raw[32];
    return key && strlen(key) == KEY_CHARS &&
           EVP_DecodeBlock(raw, (const unsigned char *)key, KEY_CHARS) == 18 && key[23] == '=' &&
           key[22] == '=' && key[21] != '=';
}

static int check_handshake(struct http_request *r, const char *protocol, struct error *err)
{
    const char *version = http_header(r, "Sec-WebSocket-Version");
    if (!http_ws_wanted(r, protocol))
        return error_set(err, ERROR_INVALID, "a WebSocket with subprotocol %s is needed here", protocol);
    if (!version || strcmp(version, "13") != 0) {
        http_add_header(r, "Sec-WebSocket-Version", "13");
        return error_set(err, ERROR_INVALID, "Sec-WebSocket-Version must be 13");
    }
    if (!key_valid(http_header(r, "Sec-WebSocket-Key")))
        return error_set(err, ERROR_INVALID, "Sec-WebSocket-Key is not 16 bytes in base64");
    return 0;
}

static void accept_value(const char *key, char to[ACCEPT_SIZE])
{
    static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    unsigned char text[KEY_CHARS + sizeof(guid)], digest[SHA_DIGEST_LENGTH];
    memcpy(text, key, KEY_CHARS);
    memcpy(text + KEY_CHARS, guid, sizeof(guid) - 1);
    SHA1(text, KEY_CHARS + sizeof(guid) - 1, digest);
    (void)EVP_EncodeBlock((unsigned char *)to, digest, sizeof(digest));
}

static void on_upgrade(void *cls, struct MHD_Connection *mhd, void *request, const char *extra,
                       size_t extra_n, MHD_socket fd, struct MHD_UpgradeResponseHandle *upgrade)
{
    (void)mhd, (void)request;
    struct http_request *r = cls;
    struct http_server *s = r->server;
    struct ws_accept accept = *r->ws;
    r->state = REQUEST_UPGRADED;
    /* The library's connection, with the memory that it read heads into, ends here: a WebSocket may be idle
     * for days, and there may be thousands. */
    int own = s->stopping ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    struct http_ws *ws = own < 0 ? NULL : ws_create(s, own, &accept, extra, extra_n);
    r->in_call = true;
    if (ws)
        accept.opened(ws, accept.arg);
    request_over(r, !ws);
    r->in_call = false;
    if (!ws)
        (void)shutdown(fd, SHUT_RDWR);
    if (!ws && own >= 0)
        (void)close(own);
    (void)MHD_upgrade_action(upgrade, MHD_UPGRADE_ACTION_CLOSE);
    server_run_soon(s);
}

void http_ws_accept(struct http_request *r, const char *protocol, size_t message_max,
                    const struct http_ws_events *events, void *arg,
                    void (*opened)(struct http_ws *ws, void *arg))
{
    struct error err = ERROR_INIT;
    if (r->answered)
        return;
    if (!r->mhd)
        (void)error_set(&err, ERROR_GONE, "the client is gone");
    else if (r->server->ws_count >= r->server->config.websockets_max)
        (void)server_no_place(&err, r->server->config.websockets_max, "WebSockets");
    if (err.code < 0 || check_handshake(r, protocol, &err) < 0) {
        http_reply_error(r, &err);
        return;
    }
    char value[ACCEPT_SIZE];
    accept_value(http_header(r, "Sec-WebSocket-Key"), value);
    r->ws = malloc(sizeof(*r->ws));
    r->response = r->ws ? MHD_create_response_for_upgrade(on_upgrade, r) : NULL;
    r->status = 101;
    if (r->response) {
        *r->ws = (struct ws_accept){message_max, events, arg, opened};
        (void)MHD_add_response_header(r->response, "Upgrade", "websocket");
        (void)MHD_add_response_header(r->response, "Sec-WebSocket-Accept", value);
        (void)MHD_add_response_header(r->response, "Sec-WebSocket-Protocol", protocol);
        reply_apply_headers(r, r->response);
    }
    request_answered(r);
}

void ws_accept_free(struct http_request *r)
{
    free(TAKE(r->ws));
}
