#include "shared.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/api.h"
#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "fakes.h"
#include "http/idempotency.h"

struct fixture f;
char dir[64];
struct store *store;
static struct keys *keys;
static struct idempotency *idempotency;
static struct sandboxes *sandboxes;
struct templates *templates;
static struct api *api;

static json_t *doctor(void *arg)
{
    (void)arg;
    return json_pack("{s:b}", "can_run", 1);
}

static json_t *components(void *arg)
{
    (void)arg;
    return json_pack("[{s:s}]", "name", "spaced");
}

static void answered(void *arg, const struct http_request *r, unsigned status, double seconds)
{
    (void)arg;
    if (api)
        api_observe_answer(api, r, status, seconds);
}

static void no_handler(struct http_request *r, void *arg)
{
    (void)arg;
    http_reply_empty(r, 204);
}

/* As another module's table has one. */
static const struct http_route problems_route = {.method = "GET",
                                                 .pattern = "/v1/test/problems",
                                                 .handler = no_handler,
                                                 .summary = "Tell two problems",
                                                 .success = 204,
                                                 .problems = "409 It is asleep|504 It is late"};

void open_all(void)
{
    struct error err = ERROR_INIT;
    char path[80];
    (void)snprintf(path, sizeof(path), "%s/db", dir);
    f.loop = NULL;
    assert_int_equal(loop_create(&f.loop, &err), 0);
    assert_int_equal(store_open(f.loop, path, &store, &err), 0);
    assert_int_equal(keys_create(store, &keys, &err), 0);
    assert_int_equal(keys_add_static(keys, ROOT, ROLE_ADMIN, &err), 0);
    assert_int_equal(idempotency_create(f.loop, store, &idempotency, &err), 0);
    struct http_config config = {.listen_fd = -1,
                                 .authenticate = keys_authenticate,
                                 .arg = keys,
                                 .idempotency = idempotency,
                                 .answered = answered};
    fixture_setup(&f, &config);
    sandboxes = fake_sandboxes(f.loop, store);
    templates = fake_templates();
    struct api_config all = {.loop = f.loop,
                             .http = f.server,
                             .store = store,
                             .sandboxes = sandboxes,
                             .templates = templates,
                             .keys = keys,
                             .doctor = doctor,
                             .components = components,
                             .kernel_release = "6.1"};
    http_routes(f.server, &problems_route, 1);
    assert_int_equal(api_create(&all, &api, &err), 0);
    api_set_ready(api);
    fixture_start(&f);
}

void close_all(void)
{
    fixture_stop(&f);
    api_destroy(TAKE(api));
    http_destroy(TAKE(f.server));
    idempotency_destroy(TAKE(idempotency));
    keys_destroy(TAKE(keys));
    assert_int_equal(fake_uploads_open(templates), 0);
    fake_sandboxes_free(TAKE(sandboxes));
    fake_templates_free(TAKE(templates));
    store_close(TAKE(store));
    fixture_teardown(&f);
}

int setup(void **state)
{
    (void)state;
    (void)str_copy(dir, sizeof(dir), "/tmp/api-test-XXXXXX");
    assert_non_null(mkdtemp(dir));
    open_all();
    return 0;
}

int teardown(void **state)
{
    (void)state;
    close_all();
    (void)fs_remove_tree(AT_FDCWD, dir, NULL);
    return 0;
}

/* Answer's body as JSON; the status must be the one given. */
json_t *call(const char *method, const char *target, const char *key, const char *headers, const char *body,
             int status)
{
    struct answer a;
    request(&f, &a, method, target, key, headers, body);
    if (a.status != status)
        print_error("%s %s: %d %s\n", method, target, a.status, a.body);
    assert_int_equal(a.status, status);
    json_t *j = a.body_n ? json_loads(a.body, JSON_DECODE_ANY, NULL) : NULL;
    answer_finish(&a);
    return j;
}

const char *text_at(const json_t *j, const char *a, const char *b)
{
    const json_t *inner = json_object_get(j, a);
    return json_string_value(b ? json_object_get(inner, b) : inner);
}

void create(const char *key, const char *body, char id[ID_SIZE])
{
    json_t *j = call("POST", "/v1/sandboxes", key, NULL, body, 202);
    assert_true(str_copy(id, ID_SIZE, text_at(j, "sandbox", "id")));
    json_decref(j);
}

void make_key(const char *role, const char *project, char text[64])
{
    char body[128];
    (void)snprintf(body, sizeof(body), "{\"role\":\"%s\",\"project\":\"%s\"}", role, project);
    json_t *j = call("POST", "/v1/keys", ROOT, NULL, body, 201);
    assert_true(str_copy(text, 64, text_at(j, "key", NULL)));
    assert_int_equal(strlen(text), 43);
    json_decref(j);
}

void wait_running(const char *id)
{
    char target[64];
    (void)snprintf(target, sizeof(target), "/v1/sandboxes/%s", id);
    for (int i = 0; i < 200; i++) {
        json_t *j = call("GET", target, ROOT, NULL, NULL, 200);
        bool running = str_eq(text_at(j, "state", NULL), "running");
        json_decref(j);
        if (running)
            return;
        (void)usleep(5000);
    }
    fail();
}

json_t *post_to(const char *id, const char *what, const char *key, const char *body, int status)
{
    char target[128];
    (void)snprintf(target, sizeof(target), "/v1/sandboxes/%s/%s", id, what);
    return call("POST", target, key, NULL, body, status);
}

void wait_operation(const json_t *answer)
{
    char target[96];
    (void)snprintf(target, sizeof(target), "/v1/operations/%s?wait_s=10", text_at(answer, "operation", "id"));
    json_t *j = call("GET", target, ROOT, NULL, NULL, 200);
    assert_string_equal(text_at(j, "status", NULL), "succeeded");
    json_decref(j);
}

/* A snapshot that is ready. */
void take(const char *id, const char *key, char ret[ID_SIZE])
{
    json_t *j = post_to(id, "snapshots", key, NULL, 202);
    assert_true(str_copy(ret, ID_SIZE, text_at(j, "snapshot", "id")));
    wait_operation(j);
    json_decref(j);
}
