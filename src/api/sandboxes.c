/* Sandboxes: create, list, read, change, and the verbs of their life that take no body. */
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#include "api/internal.h"
#include "base/cleanup.h"
#include "base/str.h"

static void sandboxes_post(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    struct sandbox *sb = NULL;
    struct operation *op = NULL;
    const json_t *body = api_body(r, &err);
    if (!body || sandboxes_new(a->config.sandboxes, body, http_principal(r)->project, &sb, &op, &err) < 0)
        http_reply_error(r, &err);
    else
        api_reply_both(a, r, 202, sb, op);
}

/* --- list --- */

struct filter {
    const struct http_request *r;
    const struct sandbox *sb;
    const char *template;
    enum sandbox_state state;
    bool by_state;
};

static int filter_read(const struct http_request *r, struct filter *ret, struct error *err)
{
    const char *state = http_query(r, "state");
    *ret = (struct filter){.r = r, .template = http_query(r, "template"), .by_state = state != NULL};
    if (state && !sandbox_state_parse(state, &ret->state))
        return error_field(err, ERROR_INVALID, "state", "%.32s is not a state of a sandbox", state);
    return 0;
}

/* A filter names a reference, the template of a reference, or a digest. */
static bool template_matches(const struct sandbox *sb, const char *want)
{
    const char *ref = sandbox_template_ref(sb);
    size_t n = strlen(want);
    if (str_starts(want, "sha256:"))
        return str_eq(sandbox_digest(sb), want + strlen("sha256:"));
    return strncmp(ref, want, n) == 0 && (ref[n] == '\0' || ref[n] == ':' || ref[n] == '@');
}

static int metadata_differs(void *arg, const char *name, const char *value)
{
    const struct filter *f = arg;
    if (!str_starts(name, "metadata."))
        return 0;
    const json_t *have = json_object_get(sandbox_metadata(f->sb), name + strlen("metadata."));
    return !str_eq(json_string_value(have), value);
}

static bool filter_takes(struct filter *f, const struct sandbox *sb)
{
    f->sb = sb;
    if (!api_may_see(f->r, sb))
        return false;
    /* Deleted ones are kept for a while; a list shows them only when it is asked to. */
    if (f->by_state ? sandbox_state(sb) != f->state : sandbox_state(sb) == SANDBOX_DELETED)
        return false;
    if (f->template && !template_matches(sb, f->template))
        return false;
    return http_query_each(f->r, metadata_differs, f) == 0;
}

static int list_start(struct api *a, const struct page *page, struct sandbox **ret, struct error *err)
{
    struct sandbox *after = NULL;
    if (page->cursor) {
        after = sandboxes_find(a->config.sandboxes, page->cursor);
        if (!after)
            return error_field(err, ERROR_INVALID, "cursor", "the cursor is unknown or too old");
    }
    *ret = sandboxes_next(a->config.sandboxes, after);
    return 0;
}

static void sandboxes_list(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    struct page page;
    struct filter filter;
    struct sandbox *sb = NULL;
    int rc = page_read(r, &page, &err);
    if (rc == 0)
        rc = filter_read(r, &filter, &err);
    if (rc == 0)
        rc = list_start(a, &page, &sb, &err);
    if (rc < 0) {
        http_reply_error(r, &err);
        return;
    }
    json_t *items = json_array();
    const char *last = NULL, *next = NULL;
    for (; sb && !next; sb = sandboxes_next(a->config.sandboxes, sb)) {
        if (!filter_takes(&filter, sb))
            continue;
        if (json_array_size(items) == page.limit) {
            next = last;
        } else {
            json_array_append_new(items, sandbox_json(sb));
            last = sandbox_id(sb);
        }
    }
    http_reply_json(r, 200, page_json(items, next));
}

/* --- one --- */

static void sandbox_get(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    const struct sandbox *sb = api_sandbox_of(arg, r, &err);
    if (!sb) {
        http_reply_error(r, &err);
        return;
    }
    size_t n;
    const char *text = sandbox_json_text(sb, &n);
    http_reply_text(r, 200, "application/json", text, n);
}

/* Apart from the sandbox: that answer is given often and kept as text. */
static void history_get(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    const struct sandbox *sb = api_sandbox_of(arg, r, &err);
    if (sb)
        http_reply_json(r, 200, page_json(sandbox_history_json(sb), NULL));
    else
        http_reply_error(r, &err);
}

static void sandbox_patch(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    const json_t *body = api_body(r, &err);
    struct sandbox *sb = body ? api_sandbox_of(a, r, &err) : NULL;
    if (!sb || sandboxes_patch(a->config.sandboxes, sb, body, &err) < 0)
        http_reply_error(r, &err);
    else
        api_reply_change(a, r, 200, sandbox_json(sb), NULL);
}

static void run_verb(struct api *a, struct http_request *r, enum sandbox_verb verb)
{
    struct error err = ERROR_INIT;
    struct sandbox *sb = api_sandbox_of(a, r, &err);
    struct operation *op = NULL;
    bool already = false;
    if (!sb || api_no_fields(r, &err) < 0 ||
        sandboxes_verb(a->config.sandboxes, sb, verb, &op, &already, &err) < 0)
        http_reply_error(r, &err);
    else
        api_reply_both(a, r, already ? 200 : 202, sb, op);
}

static void sandbox_delete(struct http_request *r, void *arg)
{
    run_verb(arg, r, SANDBOX_DELETE);
}

static void sandbox_pause(struct http_request *r, void *arg)
{
    run_verb(arg, r, SANDBOX_PAUSE);
}

static void sandbox_resume(struct http_request *r, void *arg)
{
    run_verb(arg, r, SANDBOX_RESUME);
}

static void sandbox_stop(struct http_request *r, void *arg)
{
    run_verb(arg, r, SANDBOX_STOP);
}

static void sandbox_start(struct http_request *r, void *arg)
{
    run_verb(arg, r, SANDBOX_START);
}

static void sandbox_suspend(struct http_request *r, void *arg)
{
    run_verb(arg, r, SANDBOX_SUSPEND);
}

static void sandbox_restore(struct http_request *r, void *arg)
{
    run_verb(arg, r, SANDBOX_RESTORE);
}

static void sandbox_wake(struct http_request *r, void *arg)
{
    run_verb(arg, r, SANDBOX_WAKE);
}

/* --- the traffic token: the way to a sandbox's ports without a key --- */

static void traffic_token_post(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    char token[SANDBOX_TOKEN_SIZE];
    struct sandbox *sb = api_sandbox_of(a, r, &err);
    if (!sb || api_no_fields(r, &err) < 0 ||
        sandbox_traffic_token_new(a->config.sandboxes, sb, token, &err) < 0) {
        http_reply_error(r, &err);
        return;
    }
    json_t *body = json_pack("{s:s}", "token", token);
    OPENSSL_cleanse(token, sizeof(token));
    http_add_header(r, "Cache-Control", "no-store");
    api_reply_change(a, r, 201, body, NULL);
}

static void traffic_token_delete(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    struct sandbox *sb = api_sandbox_of(a, r, &err);
    if (!sb || sandbox_traffic_token_remove(a->config.sandboxes, sb, &err) < 0)
        http_reply_error(r, &err);
    else
        http_reply_after_commit(r, a->config.store, 204, NULL);
}

#define SB "/v1/sandboxes/{id}"
#define VERB(name, summary)                                                                          \
    {                                                                                                \
        "POST", SB "/" #name, sandbox_##name, NULL, ROLE_USER, BODY_JSON, 4096, summary, NULL, NULL, \
            "SandboxOperation", 202                                                                  \
    }

struct route_list api_sandbox_routes(void)
{
    static const struct http_route routes[] = {
        {"POST", "/v1/sandboxes", sandboxes_post, NULL, ROLE_USER, BODY_JSON, 0, "Create a sandbox", NULL,
         "SandboxCreate", "SandboxOperation", 202},
        {"GET", "/v1/sandboxes", sandboxes_list, NULL, ROLE_VIEWER, BODY_NONE, 0, "List sandboxes",
         "limit,cursor,state,template,metadata.", NULL, "SandboxList", 200},
        {"GET", SB, sandbox_get, NULL, ROLE_VIEWER, BODY_NONE, 0, "Read a sandbox", NULL, NULL, "Sandbox",
         200},
        {"PATCH", SB, sandbox_patch, NULL, ROLE_USER, BODY_JSON, 0,
         "Change a sandbox's name, metadata, lifecycle or public ports", NULL, "SandboxPatch", "Sandbox",
         200},
        {"DELETE", SB, sandbox_delete, NULL, ROLE_USER, BODY_JSON, 4096, "Delete a sandbox", NULL, NULL,
         "SandboxOperation", 202},
        VERB(pause, "Stop the virtual CPUs; memory stays resident"),
        VERB(resume, "Let a paused sandbox run again"),
        VERB(stop, "Shut the sandbox down; its disk stays"),
        VERB(start, "Boot a stopped sandbox from its disk"),
        VERB(suspend, "Keep memory, processes and disk on disk; everything else on the host is given back"),
        VERB(restore, "Let a suspended sandbox go on"),
        VERB(wake, "Resume, restore or start, whichever is valid now"),
        {"POST", SB "/traffic-token", traffic_token_post, NULL, ROLE_USER, BODY_JSON, 4096,
         "Make the token that opens the sandbox's ports, in place of any before", NULL, NULL, "TrafficToken",
         201},
        {"DELETE", SB "/traffic-token", traffic_token_delete, NULL, ROLE_USER, BODY_NONE, 0,
         "Remove the token that opens the sandbox's ports", NULL, NULL, NULL, 204},
        {"GET", SB "/history", history_get, NULL, ROLE_VIEWER, BODY_NONE, 0,
         "The last changes of a sandbox's state, oldest first", NULL, NULL, "TransitionList", 200},
    };
    return (struct route_list){routes, ARRAY_LEN(routes)};
}
