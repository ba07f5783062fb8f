/* The bare limit of a GET: libmicrohttpd alone, building the same JSON for every request.
 *
 *     bare_http PORT FILE
 *
 * Reads a JSON document from FILE once; every request builds a fresh tree of it, prints that tree and sends
 * it, on one thread, as the daemon does. Ends with SIGTERM. */
#include <errno.h>
#include <jansson.h>
#include <microhttpd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

static json_t *document;

static enum MHD_Result answer(void *arg, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *data, size_t *data_n, void **state)
{
    (void)arg;
    (void)url;
    (void)method;
    (void)version;
    (void)data;
    static int seen;
    if (!*state) {
        *state = &seen;
        return MHD_YES;
    }
    *data_n = 0;
    if (!MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization"))
        return MHD_NO;
    json_t *tree = json_deep_copy(document);
    char *text = json_dumps(tree, JSON_COMPACT);
    json_decref(tree);
    if (!text)
        return MHD_NO;
    struct MHD_Response *r = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    (void)MHD_add_response_header(r, "Content-Type", "application/json");
    enum MHD_Result rc = MHD_queue_response(c, MHD_HTTP_OK, r);
    MHD_destroy_response(r);
    return rc;
}

static int serve(struct MHD_Daemon *d)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(d, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info)
        return 1;
    int loop = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN};
    if (loop < 0 || epoll_ctl(loop, EPOLL_CTL_ADD, info->epoll_fd, &ev) < 0)
        return 1;
    (void)printf("ready\n");
    (void)fflush(stdout);
    for (;;) {
        MHD_UNSIGNED_LONG_LONG ms = 0;
        int timeout = MHD_get_timeout(d, &ms) == MHD_YES ? (int)(ms > 1000 ? 1000 : ms) : -1;
        if (epoll_wait(loop, &ev, 1, timeout) < 0 && errno != EINTR)
            return 1;
        (void)MHD_run(d);
    }
}

int main(int argc, char **argv)
{
    char *end = NULL;
    unsigned long port = argc == 3 ? strtoul(argv[1], &end, 10) : 0;
    if (port == 0 || port > UINT16_MAX || *end) {
        (void)fprintf(stderr, "usage: bare_http PORT FILE\n");
        return 2;
    }
    json_error_t error;
    document = json_load_file(argv[2], 0, &error);
    if (!document) {
        (void)fprintf(stderr, "bare_http: %s: %s\n", argv[2], error.text);
        return 1;
    }
    struct MHD_Daemon *d = MHD_start_daemon(MHD_USE_EPOLL, (uint16_t)port, NULL, NULL, answer, NULL,
                                            MHD_OPTION_CONNECTION_LIMIT, 256U, MHD_OPTION_END);
    if (!d) {
        (void)fprintf(stderr, "bare_http: port %lu cannot be bound\n", port);
        return 1;
    }
    return serve(d);
}
