/* What a WebSocket's peer sends: the bytes are read in pieces of the size the first byte says, while the
 * owner echoes, pauses and closes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/str.h"
#include "http/ws_internal.h"

#define MESSAGE_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned closed_count;

static void must(bool ok)
{
    if (!ok)
        abort();
}

/* The library that had the connection before, and its place in the loop. */
enum MHD_Result MHD_upgrade_action(struct MHD_UpgradeResponseHandle *upgrade, enum MHD_UpgradeAction action,
                                   ...)
{
    (void)upgrade;
    must(action == MHD_UPGRADE_ACTION_CLOSE);
    return MHD_YES;
}

void server_run_soon(struct http_server *s)
{
    (void)s;
}

static void on_message(struct http_ws *ws, bool text, const void *data, size_t n)
{
    must(n <= MESSAGE_MAX);
    must(!text || str_is_utf8(data, n));
    if (n > 0 && *(const char *)data == 'c')
        http_ws_close(ws, 4000, "asked to");
    else if (n > 0 && *(const char *)data == 'p')
        http_ws_pause(ws, true);
    (void)http_ws_send(ws, text, "", 0, data, n);
}

static void on_closed(struct http_ws *ws, unsigned code)
{
    (void)ws;
    must(code >= 1000 && code < 5000);
    closed_count++;
}

static const struct http_ws_events events = {.message = on_message, .closed = on_closed};

static void drain(int fd)
{
    char bytes[4096];
    while (recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
        ;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    size_t step = data[0] ? data[0] : size;
    int fds[2];
    struct http_server s = {.times = {.ping = 30000, .silent = 90000, .close_wait = 5000}};
    struct ws_accept accept = {.message_max = MESSAGE_MAX, .events = &events};
    s.config.queue_max = 16 * 1024 * 1024;
    must(loop_create(&s.loop, NULL) == 0);
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    closed_count = 0;
    struct http_ws *ws = ws_create(&s, fds[0], &accept, data + 1, size > 20 ? data[1] % 8 : 0);
    must(ws != NULL);
    for (size_t at = 1; at < size && closed_count == 0; at += step) {
        size_t n = size - at < step ? size - at : step;
        (void)send(fds[1], data + at, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        loop_turn(s.loop, 0);
        loop_turn(s.loop, 0);
        drain(fds[1]);
        if (closed_count == 0)
            http_ws_pause(ws, false);
    }
    ws_destroy_all(&s);
    must(closed_count == 1 && !s.websockets);
    loop_destroy(s.loop);
    (void)close(fds[1]);
    free(s.ws_input);
    return 0;
}
