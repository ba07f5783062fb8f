/* What bodies are accepted and how the others are refused: code, field, words. */
#include "world.h"

#include "sandbox/private.h"
#include "json/json.h"

struct bad {
    const char *body;
    int code;
    const char *field;
    const char *words;
};

static const struct bad bad_creates[] = {
    {"[]", ERROR_INVALID, "", "object"},
    {"{}", ERROR_INVALID, "template", "required"},
    {"{'template':7}", ERROR_INVALID, "template", "string"},
    {"{'template':''}", ERROR_INVALID, "template", ""},
    {"{'template':'seed','colour':1}", ERROR_UNKNOWN_FIELD, "colour", ""},
    {"{'template':'none'}", ERROR_NOT_FOUND, "template", "none"},
    {"{'snapshot':'sn_1'}", ERROR_NOT_FOUND, "snapshot", "sn_1"},
    {"{'snapshot':''}", ERROR_INVALID, "snapshot", ""},
    {"{'template':'seed','snapshot':'sn_1'}", ERROR_INVALID, "snapshot", "not from both"},
    {"{'snapshot':'sn_1','resources':{'vcpus':1}}", ERROR_INVALID, "resources", "of the snapshot"},
    {"{'template':'seed','name':''}", ERROR_INVALID, "name", ""},
    {"{'template':'seed','name':'a b'}", ERROR_INVALID, "name", "letters"},
    {"{'template':'seed','name':'a/b'}", ERROR_INVALID, "name", ""},
    {"{'template':'seed','name':'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'}",
     ERROR_INVALID, "name", "63"},
    {"{'template':'seed','metadata':{'a':1}}", ERROR_INVALID, "metadata", "string"},
    {"{'template':'seed','metadata':{'':'x'}}", ERROR_INVALID, "metadata", ""},
    {"{'template':'seed','metadata':[]}", ERROR_INVALID, "metadata", ""},
    {"{'template':'seed','env':{'1A':'x'}}", ERROR_INVALID, "env", "1A"},
    {"{'template':'seed','env':{'A-B':'x'}}", ERROR_INVALID, "env", "A-B"},
    {"{'template':'seed','env':{'A=B':'x'}}", ERROR_INVALID, "env", ""},
    {"{'template':'seed','env':{'A':null}}", ERROR_INVALID, "env", "string"},
    {"{'template':'seed','resources':{'vcpus':0}}", ERROR_INVALID, "resources.vcpus", "1 to 4"},
    {"{'template':'seed','resources':{'vcpus':5}}", ERROR_INVALID, "resources.vcpus", "5"},
    {"{'template':'seed','resources':{'vcpus':1.5}}", ERROR_INVALID, "resources.vcpus", "integer"},
    {"{'template':'seed','resources':{'memory_mib':63}}", ERROR_INVALID, "resources.memory_mib", "63"},
    {"{'template':'seed','resources':{'memory_mib':4097}}", ERROR_INVALID, "resources.memory_mib", "4096"},
    {"{'template':'seed','resources':{'disk_mib':1023}}", ERROR_INVALID, "resources.disk_mib", "1024"},
    {"{'template':'seed','resources':{'disk_mib':8193}}", ERROR_INVALID, "resources.disk_mib", "8192"},
    {"{'template':'seed','resources':{'disk_mib_per_s':-1}}", ERROR_INVALID, "resources.disk_mib_per_s",
     "-1"},
    {"{'template':'seed','resources':{'disk_mib_per_s':65537}}", ERROR_INVALID, "resources.disk_mib_per_s",
     "65536"},
    {"{'template':'seed','resources':{'disk_iops':9}}", ERROR_INVALID, "resources.disk_iops", "10 to"},
    {"{'template':'seed','resources':{'disk_iops':1000001}}", ERROR_INVALID, "resources.disk_iops",
     "1000000"},
    {"{'template':'seed','resources':{'disk_iops':'many'}}", ERROR_INVALID, "resources.disk_iops", "integer"},
    {"{'template':'seed','resources':{'gpus':1}}", ERROR_UNKNOWN_FIELD, "resources.gpus", ""},
    {"{'template':'seed','network':{'mode':'egress'}}", ERROR_UNSUPPORTED, "network.mode", "no network"},
    {"{'template':'seed','network':{'mode':'open'}}", ERROR_UNSUPPORTED, "network.mode", "no network"},
    {"{'template':'seed','network':{'mode':'bridge'}}", ERROR_INVALID, "network.mode", "egress"},
    {"{'template':'seed','network':{'allow':['a.b']}}", ERROR_UNSUPPORTED, "network.mode", "allow"},
    {"{'template':'seed','network':{'mode':'none','deny':[]}}", ERROR_UNSUPPORTED, "network.mode", "deny"},
    {"{'template':'seed','network':{'mtu':1}}", ERROR_UNKNOWN_FIELD, "network.mtu", ""},
    {"{'template':'seed','lifecycle':{'idle_timeout_s':-1}}", ERROR_INVALID, "lifecycle.idle_timeout_s",
     "-1"},
    {"{'template':'seed','lifecycle':{'idle_timeout_s':99999999999}}", ERROR_INVALID,
     "lifecycle.idle_timeout_s", ""},
    {"{'template':'seed','lifecycle':{'on_idle':'sleep'}}", ERROR_INVALID, "lifecycle.on_idle", "pause"},
    {"{'template':'seed','lifecycle':{'on_idle':7}}", ERROR_INVALID, "lifecycle.on_idle", "string"},
    {"{'template':'seed','lifecycle':{'on_idle':{}}}", ERROR_INVALID, "lifecycle.on_idle", "string"},
    {"{'template':'seed','lifecycle':{'on_idle':[]}}", ERROR_INVALID, "lifecycle.on_idle", "none"},
    {"{'template':'seed','lifecycle':{'on_idle':['pause']}}", ERROR_INVALID, "lifecycle.on_idle", "object"},
    {"{'template':'seed','lifecycle':{'on_idle':[{'after_s':1}]}}", ERROR_INVALID, "lifecycle.on_idle.do",
     "required"},
    {"{'template':'seed','lifecycle':{'on_idle':[{'do':'pause'}]}}", ERROR_INVALID,
     "lifecycle.on_idle.after_s", "required"},
    {"{'template':'seed','lifecycle':{'on_idle':[{'after_s':0,'do':'pause'}]}}", ERROR_INVALID,
     "lifecycle.on_idle.after_s", "0"},
    {"{'template':'seed','lifecycle':{'on_idle':[{'after_s':9,'do':'none'}]}}", ERROR_INVALID,
     "lifecycle.on_idle.do", "suspend"},
    {"{'template':'seed','lifecycle':{'on_idle':[{'after_s':9,'do':'stop'}]}}", ERROR_INVALID,
     "lifecycle.on_idle.do", "delete"},
    {"{'template':'seed','lifecycle':{'on_idle':[{'after_s':9,'do':'pause','x':1}]}}", ERROR_UNKNOWN_FIELD,
     "lifecycle.on_idle.x", ""},
    {"{'template':'seed','lifecycle':{'on_idle':[{'after_s':9,'do':'pause'},{'after_s':9,'do':'delete'}]}}",
     ERROR_INVALID, "lifecycle.on_idle", "step 2"},
    {"{'template':'seed','lifecycle':{'on_idle':[{'after_s':9,'do':'delete'},{'after_s':10,'do':'pause'}]}}",
     ERROR_INVALID, "lifecycle.on_idle", "step 2"},
    {"{'template':'seed','lifecycle':{'on_idle':[{'after_s':9,'do':'pause'},{'after_s':10,'do':'pause'}]}}",
     ERROR_INVALID, "lifecycle.on_idle", "step 2"},
    {"{'template':'seed','lifecycle':{'on_idle':[{'after_s':1,'do':'pause'},{'after_s':2,'do':'suspend'},"
     "{'after_s':3,'do':'delete'},{'after_s':4,'do':'delete'}]}}",
     ERROR_INVALID, "lifecycle.on_idle", "3"},
    {"{'template':'seed','lifecycle':{'idle_timeout_s':8,'on_idle':[{'after_s':9,'do':'pause'}]}}",
     ERROR_INVALID, "lifecycle.idle_timeout_s", "9 s"},
    {"{'template':'seed','lifecycle':{'on_expiry':'pause'}}", ERROR_INVALID, "lifecycle.on_expiry", ""},
    {"{'template':'seed','lifecycle':{'auto_wake':1}}", ERROR_INVALID, "lifecycle.auto_wake", "true"},
    {"{'template':'seed','lifecycle':{'ttl':1}}", ERROR_UNKNOWN_FIELD, "lifecycle.ttl", ""},
};

static void test_refused(void **state)
{
    struct world *w = *state;
    for (size_t i = 0; i < sizeof(bad_creates) / sizeof(bad_creates[0]); i++) {
        const struct bad *b = &bad_creates[i];
        struct error err = ERROR_INIT;
        struct sandbox *sb = NULL;
        int rc = world_try(w, b->body, &sb, &err);
        if (rc != b->code || strcmp(err.field, b->field) != 0 || !strstr(err.message, b->words))
            fail_msg("%s: %d, field \"%s\", \"%s\"", b->body, rc, err.field, err.message);
        assert_null(sb);
    }
    assert_null(sandboxes_next(w->all, NULL));
    assert_null(operations_next(w->all, NULL));
    assert_int_equal(fake_count(FAKE_RESERVE), 0);
}

/* A map of n entries with keys and values of these lengths. */
static json_t *map_of(const char *field, unsigned n, unsigned key, unsigned value)
{
    json_t *map = json_object();
    char k[300];
    static char v[70000];
    memset(v, 'v', value);
    v[value] = '\0';
    for (unsigned i = 0; i < n; i++) {
        memset(k, 'k', key);
        int len = snprintf(k, sizeof(k), "k%u", i);
        k[len] = 'x';
        k[key] = '\0';
        (void)json_object_set_new(map, k, json_string(v));
    }
    return json_pack("{s:s, s:o}", "template", "seed", field, map);
}

static int create_map(struct world *w, const char *field, unsigned n, unsigned key, unsigned value)
{
    struct error err = ERROR_INIT;
    struct sandbox *sb = NULL;
    struct operation *op = NULL;
    json_t *body = map_of(field, n, key, value);
    int rc = sandboxes_new(w->all, body, "p", &sb, &op, &err);
    json_decref(body);
    if (rc < 0)
        assert_string_equal(err.field, field);
    return rc;
}

static void test_sizes_of_maps(void **state)
{
    struct world *w = *state;
    assert_int_equal(create_map(w, "metadata", 64, 128, 1024), 0);
    assert_int_equal(create_map(w, "metadata", 65, 8, 8), ERROR_INVALID);
    assert_int_equal(create_map(w, "metadata", 1, 129, 8), ERROR_INVALID);
    assert_int_equal(create_map(w, "metadata", 1, 8, 1025), ERROR_INVALID);
    assert_int_equal(create_map(w, "env", 256, 8, 8), 0);
    assert_int_equal(create_map(w, "env", 257, 8, 8), ERROR_INVALID);
    assert_int_equal(create_map(w, "env", 1, 8, 60000), 0);
    assert_int_equal(create_map(w, "env", 2, 8, 40000), ERROR_INVALID);
}

static void test_defaults(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    assert_string_equal(world_field(w, id, "lifecycle"),
                        "{\"idle_timeout_s\":0,\"on_idle\":\"none\",\"max_lifetime_s\":0,"
                        "\"on_expiry\":\"delete\",\"auto_wake\":false}");
    assert_string_equal(world_field(w, id, "name"), "null");
    assert_string_equal(world_field(w, id, "metadata"), "{}");
    assert_string_equal(world_field(w, id, "expires_at"), "null");
    assert_string_equal(world_field(w, id, "resources.disk_mib"), "1024"); /* the template's */
}

/* What a body's resources give on a server with these defaults and maxima; the code, or 0. */
static int limits_of(struct world *w, const char *resources, struct vm_limits *ret, struct error *err)
{
    char text[160];
    struct create_spec spec;
    (void)snprintf(text, sizeof(text), "{\"template\":\"seed\",\"resources\":%s}", resources);
    AUTO_JSON json_t *body = json_loads(text, 0, NULL);
    assert_non_null(body);
    *err = (struct error)ERROR_INIT;
    int rc = create_spec_read(&w->config, body, &spec, err);
    if (rc == 0)
        *ret = spec.limits;
    return rc;
}

static void test_limits_of_the_disk(void **state)
{
    struct world *w = *state;
    struct error err;
    struct vm_limits l;
    assert_ok(limits_of(w, "{}", &l, &err), &err);
    assert_int_equal(l.disk_mib_per_s + l.disk_iops, 0);
    w->config.default_limits = (struct vm_limits){.disk_mib_per_s = 40, .disk_iops = 500};
    assert_ok(limits_of(w, "null", &l, &err), &err);
    assert_int_equal(l.disk_mib_per_s, 40);
    assert_int_equal(l.disk_iops, 500);
    assert_ok(limits_of(w, "{\"disk_mib_per_s\":0,\"disk_iops\":10}", &l, &err), &err);
    assert_int_equal(l.disk_mib_per_s, 0);
    assert_int_equal(l.disk_iops, 10);
    assert_ok(limits_of(w, "{\"disk_mib_per_s\":null}", &l, &err), &err);
    assert_int_equal(l.disk_mib_per_s, 40);
    /* Where there is a maximum nobody is without a limit. */
    w->config.max_limits = (struct vm_limits){.disk_mib_per_s = 50, .disk_iops = 600};
    assert_ok(limits_of(w, "{\"disk_mib_per_s\":50}", &l, &err), &err);
    assert_int_equal(l.disk_mib_per_s, 50);
    assert_int_equal(l.disk_iops, 500);
    assert_int_equal(limits_of(w, "{\"disk_mib_per_s\":51}", &l, &err), ERROR_INVALID);
    assert_non_null(strstr(err.message, "1 to 50"));
    assert_int_equal(limits_of(w, "{\"disk_mib_per_s\":0}", &l, &err), ERROR_INVALID);
    assert_string_equal(err.field, "resources.disk_mib_per_s");
    assert_int_equal(limits_of(w, "{\"disk_iops\":0}", &l, &err), ERROR_INVALID);
    w->config.default_limits = (struct vm_limits){0};
    assert_ok(limits_of(w, "{}", &l, &err), &err);
    assert_int_equal(l.disk_mib_per_s, 50);
    assert_int_equal(l.disk_iops, 600);
}

static void test_everything_given(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    struct sandbox *sb = world_new(
        w, "{'template':'seed@sha256:x','name':'My-Box_1.0','metadata':{},'env':{'_A1':''},"
           "'resources':{'vcpus':4,'memory_mib':128,'disk_mib':8192,'disk_mib_per_s':65536,'disk_iops':10},"
           "'network':{'mode':'none'},"
           "'lifecycle':{'idle_timeout_s':60,'on_idle':'delete','max_lifetime_s':3600,"
           "'on_expiry':'delete','auto_wake':true}}");
    (void)str_copy(id, sizeof(id), sandbox_id(sb));
    assert_true(sandbox_auto_wake(sb));
    assert_string_equal(sandbox_name(sb), "My-Box_1.0");
    assert_string_equal(sandbox_template_ref(sb), "seed@sha256:x");
    assert_string_equal(sandbox_digest(sb), DIGEST);
    assert_string_equal(sandbox_project(sb), "default");
    assert_string_equal(world_field(w, id, "resources"),
                        "{\"vcpus\":4,\"memory_mib\":128,\"disk_mib\":8192,\"disk_mib_per_s\":65536,"
                        "\"disk_iops\":10}");
    assert_string_equal(world_field(w, id, "lifecycle"),
                        "{\"idle_timeout_s\":60,\"on_idle\":\"delete\",\"max_lifetime_s\":3600,"
                        "\"on_expiry\":\"delete\",\"auto_wake\":true}");
    assert_string_equal(world_field(w, id, "expires_at"), "2023-11-14T23:13:20.000Z");
}

static void test_a_timeout_alone_pauses(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id),
                   sandbox_id(world_new(w, "{'template':'seed','lifecycle':{'idle_timeout_s':60}}")));
    assert_string_equal(world_field(w, id, "lifecycle.on_idle"), "pause");
    (void)str_copy(id, sizeof(id),
                   sandbox_id(world_new(w, "{'template':'seed','name':null,'lifecycle':"
                                           "{'idle_timeout_s':0,'on_idle':null}}")));
    assert_string_equal(world_field(w, id, "lifecycle.on_idle"), "none");
    assert_string_equal(world_field(w, id, "lifecycle.idle_timeout_s"), "0");
}

static int patch(struct world *w, const char *id, const char *text, struct error *err)
{
    char copy[512];
    (void)str_copy(copy, sizeof(copy), text);
    for (char *p = copy; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    json_t *body = json_loads(copy, 0, NULL);
    w->in_request = true;
    int rc = sandboxes_patch(w->all, sandboxes_find(w->all, id), body, err);
    w->in_request = false;
    json_decref(body);
    return rc;
}

static void test_patch(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    const char *id = world_running(w);
    assert_ok(patch(w, id, "{'name':'x','metadata':{'k':'v'},'lifecycle':{'max_lifetime_s':60}}", &err),
              &err);
    assert_string_equal(world_field(w, id, "name"), "x");
    assert_string_equal(world_field(w, id, "metadata.k"), "v");
    assert_string_equal(world_field(w, id, "lifecycle.max_lifetime_s"), "60");
    assert_string_equal(world_field(w, id, "expires_at"), "2023-11-14T22:14:20.000Z");
    world_until(w, strstr(w->log, "running>running"));
    assert_ok(patch(w, id, "{'lifecycle':{'auto_wake':true}}", &err), &err);
    assert_string_equal(world_field(w, id, "name"), "x");
    assert_string_equal(world_field(w, id, "lifecycle.max_lifetime_s"), "60");
    assert_string_equal(world_field(w, id, "lifecycle.auto_wake"), "true");
    assert_ok(patch(w, id,
                    "{'name':null,'metadata':{},'lifecycle':{'max_lifetime_s':null},"
                    "'network':{'mode':'none'}}",
                    &err),
              &err);
    assert_string_equal(world_field(w, id, "name"), "null");
    assert_string_equal(world_field(w, id, "metadata"), "{}");
    assert_string_equal(world_field(w, id, "expires_at"), "null");
    world_restart(w);
    world_until(w, w->started);
    assert_string_equal(world_field(w, id, "lifecycle.auto_wake"), "true");
}

static void test_patch_is_all_or_nothing(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    const char *id = world_running(w);
    assert_int_equal(patch(w, id, "{'name':'y','lifecycle':{'on_idle':'sleep'}}", &err), ERROR_INVALID);
    assert_string_equal(err.field, "lifecycle.on_idle");
    assert_int_equal(patch(w, id, "{'name':'y','env':{}}", &err), ERROR_UNKNOWN_FIELD);
    assert_string_equal(err.field, "env");
    assert_int_equal(patch(w, id, "{'name':'y','network':{'mode':'open'}}", &err), ERROR_UNSUPPORTED);
    assert_int_equal(patch(w, id, "{'name':'y','metadata':{'a':1}}", &err), ERROR_INVALID);
    assert_string_equal(world_field(w, id, "name"), "null");
    assert_false(world_verb(w, id, SANDBOX_DELETE, NULL));
    assert_int_equal(patch(w, id, "{'name':'y'}", &err), ERROR_CONFLICT);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    assert_int_equal(patch(w, id, "{'name':'y'}", &err), ERROR_GONE);
}

#define LADDER "[{'after_s':60,'do':'pause'},{'after_s':600,'do':'suspend'},{'after_s':6000,'do':'delete'}]"
#define LADDER_SHOWN                                                                                    \
    "[{\"after_s\":60,\"do\":\"pause\"},{\"after_s\":600,\"do\":\"suspend\"},{\"after_s\":6000,\"do\":" \
    "\"delete\"}]"

/* Answers show what was given, and what is shown can be given again. */
static void test_ladder(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id),
                   sandbox_id(world_new(w, "{'template':'seed','lifecycle':{'on_idle':" LADDER "}}")));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    assert_string_equal(world_field(w, id, "lifecycle.on_idle"), LADDER_SHOWN);
    assert_string_equal(world_field(w, id, "lifecycle.idle_timeout_s"), "60");
    assert_ok(patch(w, id, "{'lifecycle':{'idle_timeout_s':60,'on_idle':" LADDER "}}", &err), &err);
    assert_ok(patch(w, id, "{'lifecycle':{'auto_wake':true}}", &err), &err);
    assert_string_equal(world_field(w, id, "lifecycle.on_idle"), LADDER_SHOWN);
    world_restart(w);
    world_until(w, w->started);
    assert_string_equal(world_field(w, id, "lifecycle.on_idle"), LADDER_SHOWN);
    assert_string_equal(world_field(w, id, "lifecycle.idle_timeout_s"), "60");
    assert_string_equal(world_field(w, id, "lifecycle.auto_wake"), "true");
}

static void test_ladder_and_timeout(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id),
                   sandbox_id(world_new(w, "{'template':'seed','lifecycle':{'on_idle':" LADDER "}}")));
    /* A timeout alone says nothing of the other steps. */
    assert_int_equal(patch(w, id, "{'lifecycle':{'idle_timeout_s':90}}", &err), ERROR_INVALID);
    assert_string_equal(err.field, "lifecycle.idle_timeout_s");
    assert_string_equal(world_field(w, id, "lifecycle.on_idle"), LADDER_SHOWN);
    assert_ok(patch(w, id, "{'lifecycle':{'on_idle':'suspend'}}", &err), &err);
    assert_string_equal(world_field(w, id, "lifecycle.on_idle"), "suspend");
    assert_string_equal(world_field(w, id, "lifecycle.idle_timeout_s"), "60");
    assert_ok(patch(w, id, "{'lifecycle':{'on_idle':" LADDER "}}", &err), &err);
    assert_ok(patch(w, id, "{'lifecycle':{'idle_timeout_s':0}}", &err), &err); /* none */
    assert_string_equal(world_field(w, id, "lifecycle.on_idle"), "none");
    assert_ok(patch(w, id, "{'lifecycle':{'on_idle':" LADDER "}}", &err), &err);
    assert_ok(patch(w, id, "{'lifecycle':{'idle_timeout_s':null}}", &err), &err);
    assert_string_equal(world_field(w, id, "lifecycle.on_idle"), "none");
    assert_string_equal(world_field(w, id, "lifecycle.idle_timeout_s"), "0");
}

static void test_defaults_of_the_server(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    char id[ID_SIZE];
    world_stop(w);
    w->config.default_idle_timeout_s = 300;
    w->config.default_on_idle = "suspend";
    w->config.default_max_lifetime_s = 3600;
    w->config.default_auto_wake = true;
    world_start(w);
    world_until(w, w->started);
    (void)str_copy(id, sizeof(id), sandbox_id(world_new(w, NULL)));
    assert_string_equal(world_field(w, id, "lifecycle"),
                        "{\"idle_timeout_s\":300,\"on_idle\":\"suspend\",\"max_lifetime_s\":3600,"
                        "\"on_expiry\":\"delete\",\"auto_wake\":true}");
    assert_string_equal(world_field(w, id, "expires_at"), "2023-11-14T23:13:20.000Z");
    /* 0 is none, said by the client; null takes the server's back. */
    assert_ok(
        patch(w, id,
              "{'lifecycle':{'idle_timeout_s':0,'max_lifetime_s':0,'auto_wake':false,'on_idle':'none'}}",
              &err),
        &err);
    assert_string_equal(world_field(w, id, "lifecycle"),
                        "{\"idle_timeout_s\":0,\"on_idle\":\"none\",\"max_lifetime_s\":0,"
                        "\"on_expiry\":\"delete\",\"auto_wake\":false}");
    assert_string_equal(world_field(w, id, "expires_at"), "null");
    assert_ok(patch(w, id,
                    "{'lifecycle':{'idle_timeout_s':null,'max_lifetime_s':null,'auto_wake':null,"
                    "'on_idle':null,'on_expiry':null}}",
                    &err),
              &err);
    assert_string_equal(world_field(w, id, "lifecycle.on_idle"), "suspend");
    assert_string_equal(world_field(w, id, "lifecycle.idle_timeout_s"), "300");
    assert_string_equal(world_field(w, id, "lifecycle.auto_wake"), "true");
    (void)str_copy(id, sizeof(id),
                   sandbox_id(world_new(w, "{'template':'seed','lifecycle':{'idle_timeout_s':10,"
                                           "'on_expiry':'suspend'}}")));
    assert_string_equal(world_field(w, id, "lifecycle"),
                        "{\"idle_timeout_s\":10,\"on_idle\":\"suspend\",\"max_lifetime_s\":3600,"
                        "\"on_expiry\":\"suspend\",\"auto_wake\":true}");
}

static void test_capacity(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    struct sandbox *sb = NULL;
    for (int i = 0; i < 20; i++)
        (void)world_new(w, NULL);
    assert_int_equal(world_try(w, NULL, &sb, &err), ERROR_CAPACITY);
    assert_string_equal(err.message, "20 sandboxes exist and the server allows 20");
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), sandbox_id(sandboxes_next(w->all, NULL)));
    assert_false(world_verb(w, id, SANDBOX_DELETE, NULL));
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    assert_ok(world_try(w, NULL, &sb, &err), &err);
}

static void test_memory(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    struct sandbox *sb = NULL;
    world_stop(w);
    w->config.max_memory_mib = 600;
    world_start(w);
    world_until(w, w->started);
    const char *first = world_running(w);
    const char *second = world_running(w);
    assert_int_equal(world_try(w, NULL, &sb, &err), ERROR_CAPACITY);
    assert_non_null(strstr(err.message, "512 MiB"));
    assert_non_null(strstr(err.message, "600 MiB"));
    assert_non_null(strstr(err.message, "256 MiB more"));
    assert_false(world_verb(w, first, SANDBOX_STOP, NULL)); /* a stopped one holds none */
    world_until(w, world_state(w, first) == SANDBOX_STOPPED);
    (void)world_running(w);
    assert_int_equal(world_refused(w, first, SANDBOX_START, &err), ERROR_CAPACITY);
    assert_false(world_verb(w, second, SANDBOX_DELETE, NULL));
    world_until(w, world_state(w, second) == SANDBOX_DELETED);
    assert_false(world_verb(w, first, SANDBOX_START, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_refused, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_sizes_of_maps, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_defaults, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_limits_of_the_disk, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_everything_given, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_a_timeout_alone_pauses, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_patch, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_patch_is_all_or_nothing, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_ladder, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_ladder_and_timeout, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_defaults_of_the_server, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_capacity, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_memory, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
