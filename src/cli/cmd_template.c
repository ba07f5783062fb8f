/* Templates: ls, get, build, tag, rm, log. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/str.h"
#include "cli/cli.h"
#include "cli/tar.h"

#define LOG_TAIL 4096 /* bytes of a failed build's log that are shown */
#define LOG_MAX 1048576

/* In a table the tags of a template are words, not objects. */
static void flatten_tags(json_t *items)
{
    size_t i;
    json_t *item;
    json_array_foreach(items, i, item)
    {
        char words[200] = "";
        size_t t;
        json_t *tag;
        json_array_foreach(json_object_get(item, "tags"), t, tag)
        {
            const char *name = json_string_value(json_object_get(tag, "tag"));
            size_t n = strlen(words);
            (void)snprintf(words + n, sizeof(words) - n, "%s%s", n ? " " : "", name ? name : "?");
        }
        (void)json_object_set_new(item, "tags", json_string(words));
    }
}

int cmd_template_ls(struct cli *c)
{
    static const struct cli_column columns[] = {{"NAME", "name"}, {"TAGS", "tags"}, {NULL, NULL}};
    struct error err = ERROR_INIT;
    json_t *items = NULL;
    struct client *client = cli_client(c, &err);
    if (!client || client_list(client, "/v1/templates", "", &items, &err) < 0)
        return cli_fail(c, &err);
    if (!c->json)
        flatten_tags(items);
    cli_print_list(c, items, columns);
    json_decref(items);
    return EXIT_OK;
}

static void print_template(struct cli *c, const json_t *template)
{
    static const struct cli_column tags[] = {{"TAG", "tag"}, {"DIGEST", "digest"}, {NULL}};
    static const struct cli_column releases[] = {{"RELEASE", "id"},
                                                 {"SOURCE", "source.kind"},
                                                 {"DISK MIB", "disk_mib"},
                                                 {"BYTES", "content_bytes"},
                                                 {"CREATED", "created_at"},
                                                 {"DIGEST", "digest"},
                                                 {NULL}};
    cli_print_list(c, json_object_get(template, "tags"), tags);
    (void)fputc('\n', c->out);
    cli_print_list(c, json_object_get(template, "releases"), releases);
}

int cmd_template_get(struct cli *c)
{
    struct error err = ERROR_INIT;
    json_t *template = NULL;
    if (cli_call(c, "GET", client_path("/v1/templates/%s", c->args->positional[0]), NULL, &template, &err) <
        0)
        return cli_fail(c, &err);
    if (c->json)
        cli_print_object(c, template);
    else
        print_template(c, template);
    json_decref(template);
    return EXIT_OK;
}

/* "name:tag" split; tag "" when there is none. */
static int split_reference(const char *text, char *name, size_t name_size, char *tag, size_t tag_size,
                           struct error *err)
{
    size_t n = strcspn(text, ":");
    char copy[256];
    if (!str_copy(copy, sizeof(copy), text) || n == 0)
        return error_set(err, ERROR_INVALID, "'%s' is not NAME[:TAG]", text);
    copy[n] = '\0';
    if (!str_copy(name, name_size, copy) || !str_copy(tag, tag_size, text[n] == ':' ? text + n + 1 : ""))
        return error_set(err, ERROR_INVALID, "'%s' is too long", text);
    return 0;
}

/* --- upload --- */

struct upload {
    int fd;                 /* --tar */
    struct tar_stream *tar; /* --dir */
    uint64_t sent;
    int64_t shown_at;
    bool show;
    char answer[512];
    size_t answer_size;
    struct error err;
};

static void show_sent(struct upload *u, bool last)
{
    int64_t now = clock_mono_ns();
    if (!u->show || (!last && now - u->shown_at < CLOCK_NS_PER_S))
        return;
    u->shown_at = now;
    (void)fprintf(stderr, "\rspace: uploading: %llu MiB%s", (unsigned long long)(u->sent >> 20),
                  last ? "\n" : "");
}

static ssize_t on_read(void *arg, void *to, size_t n)
{
    struct upload *u = arg;
    ssize_t got;
    if (u->tar) {
        got = tar_stream_read(u->tar, to, n, &u->err);
    } else {
        do
            got = read(u->fd, to, n);
        while (got < 0 && errno == EINTR);
        if (got < 0)
            (void)error_errno(&u->err, ERROR_INTERNAL, errno, "read the archive");
    }
    if (got > 0)
        u->sent += (uint64_t)got;
    show_sent(u, got == 0);
    return got;
}

static bool on_answer(void *arg, const void *data, size_t n)
{
    struct upload *u = arg;
    if (n >= sizeof(u->answer) - u->answer_size)
        return false;
    memcpy(u->answer + u->answer_size, data, n);
    u->answer_size += n;
    u->answer[u->answer_size] = '\0';
    return true;
}

/* Sends the archive; *ret_id (heap) names it for the build. */
static int send_archive(struct cli *c, struct upload *u, int64_t length, char **ret_id, struct error *err)
{
    struct client_transfer t = {.method = "PUT",
                                .path = "/v1/template-uploads",
                                .accept = "application/json, application/problem+json",
                                .read = on_read,
                                .length = length,
                                .content_type = "application/x-tar",
                                .write = on_answer,
                                .arg = u};
    u->show = isatty(STDERR_FILENO) != 0;
    struct client *client = cli_client(c, err);
    int rc = client ? client_stream(client, &t, err) : err->code;
    if (rc < 0 && u->err.code)
        *err = u->err;
    if (rc < 0)
        return rc;
    json_t *answer = json_loads(u->answer, 0, NULL);
    const char *id = json_string_value(json_object_get(answer, "upload"));
    *ret_id = id ? strdup(id) : NULL;
    json_decref(answer);
    return *ret_id ? 0 : error_set(err, ERROR_INTERNAL, "the server's answer names no upload");
}

static int upload_file(struct cli *c, const char *path, char **ret_id, struct error *err)
{
    struct stat st;
    AUTO_CLOSE int fd = strcmp(path, "-") == 0 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                                               : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return error_errno(err, ERROR_NO_SUCH_FILE, errno, "%s", path);
    if (S_ISDIR(st.st_mode))
        return error_set(err, ERROR_INVALID, "%s is a directory: use --dir", path);
    struct upload u = {.fd = fd};
    return send_archive(c, &u, S_ISREG(st.st_mode) && strcmp(path, "-") != 0 ? st.st_size : -1, ret_id, err);
}

static int upload_directory(struct cli *c, const char *path, char **ret_id, struct error *err)
{
    struct upload u = {.fd = -1};
    int rc = tar_stream_create(path, cli_flag(c->args, "keep-owners") ? TAR_KEEP_OWNERS : 0, &u.tar, err);
    if (rc == 0)
        rc = send_archive(c, &u, -1, ret_id, err);
    tar_stream_destroy(u.tar);
    return rc;
}

/* --- the log --- */

struct tail {
    struct buf last;
    size_t keep;
};

static bool on_log(void *arg, const void *data, size_t n)
{
    struct tail *t = arg;
    if (n > t->keep) {
        data = (const char *)data + (n - t->keep);
        n = t->keep;
    }
    if (buf_len(&t->last) + n > t->keep)
        buf_consume(&t->last, buf_len(&t->last) + n - t->keep);
    return buf_append(&t->last, data, n);
}

/* Prints the last `keep` bytes of a build's log, from a whole line on. */
static int print_log(struct cli *c, const char *name, const char *release, size_t keep, FILE *to,
                     struct error *err)
{
    AUTO_FREE char *path = client_path("/v1/templates/%s/releases/%s/log", name, release);
    struct tail tail = {.keep = keep};
    buf_init(&tail.last, keep);
    struct client_transfer t = {.method = "GET", .path = path, .write = on_log, .arg = &tail};
    struct client *client = path ? cli_client(c, err) : NULL;
    int rc = client ? client_stream(client, &t, err) : error_set(err, ERROR_NO_MEMORY, "out of memory");
    AUTO_FREE char *text = rc == 0 ? strndup((const char *)buf_head(&tail.last), buf_len(&tail.last)) : NULL;
    if (text) {
        const char *from = text;
        if (buf_len(&tail.last) == keep && strchr(text, '\n'))
            from = strchr(text, '\n') + 1;
        cli_print_text(to, from);
        if (*from && from[strlen(from) - 1] != '\n')
            (void)fputc('\n', to);
    }
    buf_finish(&tail.last);
    return rc;
}

int cmd_template_log(struct cli *c)
{
    struct error err = ERROR_INIT;
    if (print_log(c, c->args->positional[0], c->args->positional[1], LOG_MAX, c->out, &err) < 0)
        return cli_fail(c, &err);
    return EXIT_OK;
}

/* --- build --- */

/* ["a","b"] from "a,b" in each of the repeated options. */
static json_t *package_list(const struct cli_args *a)
{
    json_t *list = json_array();
    const char *text;
    for (size_t i = 0; (text = cli_item(a, "packages", i)); i++) {
        while (*text) {
            size_t n = strcspn(text, ", ");
            if (n > 0)
                (void)json_array_append_new(list, json_stringn(text, n));
            text += n + (text[n] != '\0');
        }
    }
    return list;
}

static json_t *build_body(const struct cli_args *a, const char *tag, const char *upload)
{
    json_t *body = json_pack("{s:s}", "kind", cli_flag(a, "dir") ? "dir" : upload ? "tar" : "debian");
    const char *suite = a->positional_count > 1 ? a->positional[1] : NULL;
    if (*tag)
        (void)json_object_set_new(body, "tag", json_string(tag));
    if (upload)
        (void)json_object_set_new(body, "upload", json_string(upload));
    if (suite)
        (void)json_object_set_new(body, "suite", json_string(suite));
    json_t *packages = package_list(a);
    if (json_array_size(packages) > 0)
        (void)json_object_set(body, "packages", packages);
    json_decref(packages);
    if (cli_flag(a, "seed-user"))
        (void)json_object_set_new(body, "seed_user", json_true());
    if (cli_flag(a, "disk-mib"))
        (void)json_object_set_new(body, "disk_mib", json_integer((json_int_t)cli_number(a, "disk-mib", 0)));
    return body;
}

static int check_source(const struct cli_args *a, struct error *err)
{
    int sources = cli_flag(a, "debian") + cli_flag(a, "tar") + cli_flag(a, "dir");
    if (sources != 1)
        return error_set(err, ERROR_INVALID, "give one of --debian, --tar FILE, --dir DIR");
    if (!cli_flag(a, "debian") && (a->positional_count > 1 || cli_flag(a, "packages")))
        return error_set(err, ERROR_INVALID, "a suite and --packages go with --debian");
    return 0;
}

static const char *text_at(const json_t *object, const char *member, const char *name)
{
    const json_t *value = member ? json_object_get(object, member) : object;
    return json_string_value(json_object_get(value, name));
}

/* Id of a failed build: the operation's error ends with it. False when it is not there. */
static bool failed_build_id(const json_t *operation, char id[ID_SIZE])
{
    const char *detail = text_at(operation, "error", "detail");
    for (const char *p = detail; p && (p = strstr(p, "tp_")); p++) {
        (void)str_copy(id, ID_SIZE, p); /* cut to the length of an id */
        if (id_valid(id, "tp"))
            return true;
    }
    return false;
}

/* The tail of a failed build's log. Best effort: the failure itself is told by the caller. */
static void show_failure(struct cli *c, const char *name, const json_t *operation)
{
    struct error ignored = ERROR_INIT;
    char id[ID_SIZE];
    if (!failed_build_id(operation, id))
        return;
    (void)fprintf(stderr, "space: the end of the build's log (%s):\n", id);
    (void)print_log(c, name, id, LOG_TAIL, stderr, &ignored);
}

/* Waits for the build and tells its end. */
static int finish_build(struct cli *c, const char *name, const json_t *answer, struct error *err)
{
    const char *id = text_at(answer, "operation", "id");
    json_t *operation = NULL;
    if (!id)
        id = text_at(answer, NULL, "id");
    if (!id)
        return error_set(err, ERROR_INTERNAL, "the server's answer has no operation");
    if (cli_flag(c->args, "no-wait")) {
        if (c->json)
            cli_print_object(c, answer);
        else
            (void)fprintf(c->out, "%s\n", id);
        return 0;
    }
    int rc = cli_wait_operation(c, id, !c->json, &operation, err);
    if (rc == 0) {
        rc = cli_operation_error(operation, err);
        if (rc < 0)
            show_failure(c, name, operation);
        else
            cli_print_object(c, c->json ? operation : json_object_get(operation, "result"));
    }
    json_decref(operation);
    return rc;
}

int cmd_template_build(struct cli *c)
{
    const struct cli_args *a = c->args;
    struct error err = ERROR_INIT;
    char name[128];
    char tag[128];
    AUTO_FREE char *upload = NULL;
    json_t *answer = NULL;
    if (check_source(a, &err) < 0 ||
        split_reference(a->positional[0], name, sizeof(name), tag, sizeof(tag), &err) < 0) {
        (void)cli_fail(c, &err);
        return EXIT_USAGE;
    }
    int rc = 0;
    if (cli_flag(a, "tar"))
        rc = upload_file(c, cli_text(a, "tar", ""), &upload, &err);
    else if (cli_flag(a, "dir"))
        rc = upload_directory(c, cli_text(a, "dir", ""), &upload, &err);
    if (rc == 0)
        rc = cli_call(c, "POST", client_path("/v1/templates/%s/releases", name), build_body(a, tag, upload),
                      &answer, &err);
    if (rc == 0)
        rc = finish_build(c, name, answer, &err);
    json_decref(answer);
    return rc < 0 ? cli_fail(c, &err) : EXIT_OK;
}

/* --- tags --- */

int cmd_template_tag(struct cli *c)
{
    struct error err = ERROR_INIT;
    char name[128];
    char tag[128];
    json_t *answer = NULL;
    int rc = split_reference(c->args->positional[0], name, sizeof(name), tag, sizeof(tag), &err);
    if (rc == 0 && !*tag)
        rc = error_set(&err, ERROR_INVALID, "'%s' has no tag: NAME:TAG", c->args->positional[0]);
    if (rc < 0) {
        (void)cli_fail(c, &err);
        return EXIT_USAGE;
    }
    rc = cli_call(c, "PUT", client_path("/v1/templates/%s/tags/%s", name, tag),
                  json_pack("{s:s}", "digest", c->args->positional[1]), &answer, &err);
    if (rc < 0)
        return cli_fail(c, &err);
    cli_print_object(c, answer);
    json_decref(answer);
    return EXIT_OK;
}

int cmd_template_rm(struct cli *c)
{
    const char *text = c->args->positional[0];
    struct error err = ERROR_INIT;
    char name[128];
    char tag[128];
    const char *digest = strstr(text, "@");
    char *path;
    if (digest) {
        AUTO_FREE char *before = strndup(text, (size_t)(digest - text));
        path = before ? client_path("/v1/templates/%s/releases/%s", before, digest + 1) : NULL;
    } else if (split_reference(text, name, sizeof(name), tag, sizeof(tag), &err) < 0) {
        (void)cli_fail(c, &err);
        return EXIT_USAGE;
    } else {
        path =
            *tag ? client_path("/v1/templates/%s/tags/%s", name, tag) : client_path("/v1/templates/%s", name);
    }
    return cli_call(c, "DELETE", path, NULL, NULL, &err) < 0 ? cli_fail(c, &err) : EXIT_OK;
}
