#include "data/client.h"
#include "data/fake_ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <strings.h>
#include <sys/socket.h>

static int authenticate(void *arg, const char *key, struct http_principal *ret, struct error *err)
{
    (void)arg;
    *ret = (struct http_principal){.role = ROLE_USER};
    (void)str_copy(ret->key_id, sizeof(ret->key_id), key);
    (void)str_copy(ret->project, sizeof(ret->project),
                   str_eq(key, "user") || str_eq(key, "viewer") ? "default" : "other");
    if (str_eq(key, "viewer"))
        ret->role = ROLE_VIEWER;
    else if (str_eq(key, "admin"))
        ret->role = ROLE_ADMIN;
    else if (!str_eq(key, "user") && !str_eq(key, "other"))
        return error_set(err, ERROR_UNAUTHORIZED, "no such key");
    return 0;
}

struct data_config rig_config;

int rig_setup(void **state)
{
    struct rig *g = calloc(1, sizeof(*g));
    assert_int_equal(world_setup(state), 0);
    g->w = *state;
    *state = g;
    struct world *w = g->w;
    struct http_config http = {.listen = "127.0.0.1:0", .listen_fd = -1, .authenticate = authenticate};
    assert_ok(http_create(w->loop, &http, &g->http, &w->err), &w->err);
    struct data_config config = rig_config;
    config.loop = w->loop;
    config.http = g->http;
    config.sandboxes = w->sandboxes;
    config.sessions = w->sessions;
    config.public_url = "http://space.test:7780";
    config.domain = "space.test";
    assert_ok(data_create(&config, &g->data, &w->err), &w->err);
    assert_ok(http_start(g->http, &w->err), &w->err);
    g->port = http_port(g->http);
    return 0;
}

int rig_teardown(void **state)
{
    struct rig *g = *state;
    data_destroy(g->data);
    http_destroy(g->http);
    fake_ports_reset();
    *state = g->w;
    free(g);
    return world_teardown(state);
}

/* --- connections --- */

struct client *client_open(struct rig *g)
{
    struct client *c = calloc(1, sizeof(*c));
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)g->port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    buf_init(&c->in, SIZE_MAX / 2);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(c->fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(fcntl(c->fd, F_SETFL, O_NONBLOCK), 0);
    return c;
}

void client_close(struct client *c)
{
    (void)close(c->fd);
    buf_finish(&c->in);
    free(c);
}

void client_poll(struct rig *g, struct client *c)
{
    loop_turn(g->w->loop, 5);
    ssize_t n = buf_read(&c->in, c->fd, 256 * 1024);
    if (n == 0 || (n < 0 && errno != EAGAIN))
        c->eof = true;
}

void client_write(struct rig *g, struct client *c, const void *data, size_t n)
{
    const char *p = data;
    int64_t until = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    while (n > 0 && clock_mono_ns() < until) {
        ssize_t did = send(c->fd, p, n, MSG_NOSIGNAL);
        if (did < 0 && errno != EAGAIN)
            return; /* refused: the answer says why */
        if (did > 0) {
            p += did;
            n -= (size_t)did;
        }
        loop_turn(g->w->loop, did > 0 ? 0 : 5);
    }
}

struct client *request(struct rig *g, const char *key, const char *method, const char *path,
                       const char *headers, const void *body, size_t n)
{
    struct client *c = client_open(g);
    char *head = NULL;
    assert_true(
        asprintf(&head,
                 "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s%s%s%sContent-Length: %zu\r\n\r\n",
                 method, path, key ? "Authorization: Bearer " : "", key ? key : "", key ? "\r\n" : "",
                 headers, n) > 0);
    client_write(g, c, head, strlen(head));
    free(head);
    client_write(g, c, body, n);
    return c;
}

struct client *request_json(struct rig *g, const char *method, const char *path, const char *body)
{
    return request(g, "user", method, path, "Content-Type: application/json\r\n", body, strlen(body));
}

/* --- answers --- */

const char *header_of(const struct answer *a, const char *name)
{
    static char value[512];
    size_t n = strlen(name);
    for (const char *line = a->head; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncasecmp(line, name, n) != 0 || line[n] != ':')
            continue;
        size_t len = strcspn(line + n + 2, "\r\n");
        (void)snprintf(value, sizeof(value), "%.*s", (int)len, line + n + 2);
        return value;
    }
    return "";
}

static void dechunk(struct answer *a, const unsigned char *p, size_t n)
{
    const unsigned char *end = p + n;
    a->cut = true;
    while (p < end) {
        char *after = NULL;
        size_t len = strtoul((const char *)p, &after, 16);
        p = (const unsigned char *)after + 2;
        if (len == 0) {
            a->cut = false;
            return;
        }
        size_t have = p < end ? (size_t)(end - p) : 0;
        if (have < len)
            len = have;
        memcpy(a->body + a->n, p, len);
        a->n += len;
        p += len + 2;
    }
}

static void parse(struct answer *a, struct buf *in)
{
    assert_true(buf_append(in, "", 1)); /* NUL after it */
    char *text = (char *)buf_head(in);
    size_t n = buf_len(in) - 1;
    char *end = memmem(text, n, "\r\n\r\n", 4);
    if (!end) {
        a->cut = true;
        return;
    }
    (void)snprintf(a->head, sizeof(a->head), "%.*s", (int)(end - text), text);
    if (strncmp(a->head, "HTTP/1.1 ", 9) == 0)
        a->status = (unsigned)strtoul(a->head + 9, NULL, 10);
    n -= (size_t)(end + 4 - text);
    a->body = calloc(1, n + 1);
    if (strcasecmp(header_of(a, "Transfer-Encoding"), "chunked") == 0) {
        dechunk(a, (unsigned char *)end + 4, n);
    } else {
        memcpy(a->body, end + 4, n);
        a->n = n;
        const char *length = header_of(a, "Content-Length");
        a->cut = *length && strtoul(length, NULL, 10) > n;
    }
    a->json = json_loadb((char *)a->body, a->n, JSON_ALLOW_NUL, NULL);
}

struct answer answer_of(struct rig *g, struct client *c)
{
    struct answer a = {.status = 0};
    int64_t until = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    while (!c->eof && clock_mono_ns() < until)
        client_poll(g, c);
    if (!c->eof)
        fail_msg("no end of the answer after: %.*s", (int)buf_len(&c->in), (char *)buf_head(&c->in));
    parse(&a, &c->in);
    client_close(c);
    return a;
}

struct answer get(struct rig *g, const char *path)
{
    return answer_of(g, request(g, "user", "GET", path, "", NULL, 0));
}

struct answer post(struct rig *g, const char *path, const char *body)
{
    return answer_of(g, request_json(g, "POST", path, body));
}

void answer_free(struct answer *a)
{
    free(a->body);
    json_decref(a->json);
    *a = (struct answer){.status = 0};
}

const char *slug_of(const struct answer *a)
{
    const char *type = json_string_value(json_object_get(a->json, "type"));
    return type && str_starts(type, "urn:space:error:") ? type + 16 : "";
}

const char *sb_path(struct rig *g, const char *tail)
{
    static char path[2][512];
    static unsigned at;
    at ^= 1;
    (void)snprintf(path[at], sizeof(path[at]), "/v1/sandboxes/%s%s", g->w->sb->id, tail);
    return path[at];
}
