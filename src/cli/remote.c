#include "cli/remote.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

int place_parse(const char *text, struct place *ret, struct error *err)
{
    const char *colon = strchr(text, ':');
    const char *slash = strchr(text, '/');
    *ret = (struct place){NULL, text};
    if (!colon || (slash && slash < colon) || colon == text)
        return 0;
    if (colon[1] != '/')
        return error_set(err, ERROR_INVALID, "a path in a sandbox is absolute: %.*s:/path",
                         (int)(colon - text), text);
    ret->sandbox = strndup(text, (size_t)(colon - text));
    ret->path = colon + 1;
    return ret->sandbox ? 0 : error_set(err, ERROR_NO_MEMORY, "out of memory");
}

int place_resolve(struct cli *c, struct place *p, struct error *err)
{
    char *id = NULL;
    int rc = p->sandbox ? cli_sandbox(c, p->sandbox, &id, err) : 0;
    if (id) {
        free(p->sandbox);
        p->sandbox = id;
    }
    return rc;
}

void place_finish(struct place *p)
{
    free(TAKE(p->sandbox));
}

/* Heap, NULL when memory is short. */
static char *base64(const char *text)
{
    size_t n = strlen(text);
    char *to = malloc((n + 2) / 3 * 4 + 1);
    if (to)
        (void)EVP_EncodeBlock((unsigned char *)to, (const unsigned char *)text, (int)n);
    return to;
}

char *remote_target(const struct cli *c, const char *sandbox_id, const char *action, const char *path)
{
    const char *user = cli_text(c->args, "user", NULL);
    bool text = str_is_utf8(path, strlen(path));
    AUTO_FREE char *coded = text ? NULL : base64(path);
    AUTO_FREE char *base = client_path("/v1/sandboxes/%s/files", sandbox_id);
    AUTO_FREE char *name = text    ? client_path("?path=%s", path)
                           : coded ? client_path("?path_b64=%s", coded)
                                   : NULL;
    AUTO_FREE char *acting = user ? client_path("&user=%s", user) : strdup("");
    return base && name && acting ? str_printf("%s%s%s%s", base, action, name, acting) : NULL;
}

void remote_set_path(json_t *body, const char *member, const char *path)
{
    char name[32];
    if (str_is_utf8(path, strlen(path))) {
        (void)json_object_set_new(body, member, json_string(path));
        return;
    }
    AUTO_FREE char *coded = base64(path);
    (void)snprintf(name, sizeof(name), "%s_b64", member);
    if (coded)
        (void)json_object_set_new(body, name, json_string(coded));
}

json_t *remote_body(const struct cli *c, const char *member, const char *path)
{
    json_t *body = json_object();
    const char *user = cli_text(c->args, "user", NULL);
    remote_set_path(body, member, path);
    if (user)
        (void)json_object_set_new(body, "user", json_string(user));
    return body;
}

int remote_post(struct cli *c, const char *sandbox_id, const char *action, json_t *body, json_t **ret,
                struct error *err)
{
    AUTO_FREE char *base = client_path("/v1/sandboxes/%s/files/", sandbox_id);
    return cli_call(c, "POST", base ? str_printf("%s%s", base, action) : NULL, body, ret, err);
}

static int ask(struct cli *c, const char *sandbox_id, const char *path, json_t **ret, struct error *err)
{
    return cli_call(c, "GET", remote_target(c, sandbox_id, "/stat", path), NULL, ret, err);
}

/* A path that ends in "/." is what a link points to, if that is a directory. */
static int follow(struct cli *c, const char *sandbox_id, const char *path, json_t **ret, struct error *err)
{
    AUTO_FREE char *inside = path_join(path, ".");
    return inside ? ask(c, sandbox_id, inside, ret, err) : error_set(err, ERROR_NO_MEMORY, "out of memory");
}

static void read_stat(const json_t *answer, struct remote_stat *ret)
{
    const char *type = json_string_value(json_object_get(answer, "type"));
    const char *mode = json_string_value(json_object_get(answer, "mode"));
    *ret = (struct remote_stat){.type = str_eq(type, "file")        ? REMOTE_FILE
                                        : str_eq(type, "directory") ? REMOTE_DIRECTORY
                                                                    : REMOTE_OTHER,
                                .mode = mode ? (unsigned)strtoul(mode, NULL, 8) & 07777 : 0,
                                .uid = (unsigned)json_integer_value(json_object_get(answer, "uid")),
                                .gid = (unsigned)json_integer_value(json_object_get(answer, "gid"))};
}

int remote_stat(struct cli *c, const char *sandbox_id, const char *path, struct remote_stat *ret,
                struct error *err)
{
    json_t *answer = NULL;
    int rc = ask(c, sandbox_id, path, &answer, err);
    bool link = rc == 0 && str_eq(json_string_value(json_object_get(answer, "type")), "symlink");
    if (link) {
        json_decref(TAKE(answer));
        rc = follow(c, sandbox_id, path, &answer, err);
    }
    if (rc == 0)
        read_stat(answer, ret);
    else if (rc == ERROR_NO_SUCH_FILE || rc == ERROR_NOT_DIRECTORY)
        *ret = (struct remote_stat){.type = link && rc == ERROR_NOT_DIRECTORY ? REMOTE_FILE : REMOTE_NONE};
    json_decref(answer);
    return rc == ERROR_NO_SUCH_FILE || rc == ERROR_NOT_DIRECTORY ? 0 : rc;
}

char *path_name(const char *path)
{
    size_t n = strlen(path);
    while (n > 0 && path[n - 1] == '/')
        n--;
    size_t start = n;
    while (start > 0 && path[start - 1] != '/')
        start--;
    if (n - start == 0 ||
        (path[start] == '.' && (n - start == 1 || (n - start == 2 && path[start + 1] == '.'))))
        return NULL;
    return strndup(path + start, n - start);
}

char *path_join(const char *dir, const char *name)
{
    if (!dir || !name)
        return NULL;
    size_t n = strlen(dir);
    return str_printf("%s%s%s", dir, n > 0 && dir[n - 1] == '/' ? "" : "/", name);
}
