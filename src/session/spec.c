#include "session/spec.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "session/base64.h"
#include "json/json.h"

#define ENV_NAME_MAX 256
#define ENV_ENTRIES_MAX 4096
#define PTY_SIDE_MAX 10000
#define MIB (1024 * 1024LL)

/* The body's fields as read; strings and objects are borrowed from it. */
struct fields {
    const json_t *argv;
    const char *shell;
    const char *cwd;
    const json_t *env;
    const char *user;
    bool stdin_open;
    const json_t *pty;
    const char *start;
    int64_t journal_mib;
    const char *stdin_b64;
    const char *overflow;
    const char *on_detach;
    uint32_t timeout_ms; /* 0: none */
    uint32_t grace_ms;
};

int spec_take_seconds(json_t *body, const char *name, int64_t max_s, uint32_t *ret_ms, struct error *err)
{
    const json_t *v = json_object_get(body, name);
    if (!v)
        return 0;
    if (!json_is_null(v)) {
        double t = json_number_value(v);
        if (!json_is_number(v) || !(t > 0) || t > (double)max_s)
            return error_field(err, ERROR_INVALID, name,
                               "%s must be a number of seconds over 0, at most %lld", name, (long long)max_s);
        *ret_ms = t < 0.001 ? 1 : (uint32_t)(t * 1000);
    }
    (void)json_object_del(body, name);
    return 0;
}

static int take_times(json_t *body, struct fields *f, struct error *err)
{
    int rc = spec_take_seconds(body, "timeout_s", SPEC_TIMEOUT_MAX_S, &f->timeout_ms, err);
    if (rc == 0)
        rc = spec_take_seconds(body, "kill_grace_s", SPEC_GRACE_MAX_S, &f->grace_ms, err);
    if (rc == 0 && f->grace_ms && !f->timeout_ms)
        rc = error_field(
            err, ERROR_INVALID, "kill_grace_s",
            "kill_grace_s is the time between the end of timeout_s and the kill; there is no timeout_s");
    return rc;
}

static int read_session_body(const json_t *body, uint64_t journal_max, struct fields *f, struct error *err)
{
    int64_t mib_max = (int64_t)(journal_max / MIB);
    const struct json_field table[] = {
        {"argv", JSON_KIND_ARRAY, false, 1, SPEC_ARGS_MAX, &f->argv},
        {"shell", JSON_KIND_STRING, false, 1, SPEC_BYTES_MAX, &f->shell},
        {"cwd", JSON_KIND_STRING, false, 1, 4095, &f->cwd},
        {"env", JSON_KIND_OBJECT, false, 0, 0, &f->env},
        {"user", JSON_KIND_STRING, false, 1, 64, &f->user},
        {"stdin", JSON_KIND_BOOL, false, 0, 0, &f->stdin_open},
        {"pty", JSON_KIND_OBJECT, false, 0, 0, &f->pty},
        {"start", JSON_KIND_STRING, false, 1, 16, &f->start},
        {"journal_mib", JSON_KIND_INTEGER, false, 1, mib_max, &f->journal_mib},
        {"overflow", JSON_KIND_STRING, false, 1, 16, &f->overflow},
        {"stdin_on_detach", JSON_KIND_STRING, false, 1, 16, &f->on_detach},
    };
    return json_read(body, "", table, ARRAY_LEN(table), err);
}

static int read_exec_body(const json_t *body, uint64_t journal_max, struct fields *f, struct error *err)
{
    int64_t mib_max = (int64_t)(journal_max / MIB);
    const struct json_field table[] = {
        {"argv", JSON_KIND_ARRAY, false, 1, SPEC_ARGS_MAX, &f->argv},
        {"shell", JSON_KIND_STRING, false, 1, SPEC_BYTES_MAX, &f->shell},
        {"cwd", JSON_KIND_STRING, false, 1, 4095, &f->cwd},
        {"env", JSON_KIND_OBJECT, false, 0, 0, &f->env},
        {"user", JSON_KIND_STRING, false, 1, 64, &f->user},
        {"journal_mib", JSON_KIND_INTEGER, false, 1, mib_max, &f->journal_mib},
        {"overflow", JSON_KIND_STRING, false, 1, 16, &f->overflow},
        {"stdin_b64", JSON_KIND_STRING, false, 0, JSON_BODY_MAX, &f->stdin_b64},
    };
    return json_read(body, "", table, ARRAY_LEN(table), err);
}

/* --- checks, one field each --- */

static bool has_control(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            return true;
    return false;
}

static bool only(const char *s, const char *extra)
{
    for (; *s; s++) {
        bool alnum = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9');
        if (!alnum && !strchr(extra, *s))
            return false;
    }
    return true;
}

static int check_string(const json_t *v, const char *field, struct error *err)
{
    if (!json_is_string(v))
        return error_field(err, ERROR_INVALID, field, "%s must be a string", field);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return error_field(err, ERROR_INVALID, field, "%s holds a NUL byte", field);
    return 0;
}

static int check_argv(const json_t *argv, size_t *bytes, struct error *err)
{
    size_t i;
    json_t *v;
    json_array_foreach(argv, i, v)
    {
        char field[32];
        (void)snprintf(field, sizeof(field), "argv[%zu]", i);
        int rc = check_string(v, field, err);
        if (rc < 0)
            return rc;
        if (i == 0 && json_string_length(v) == 0)
            return error_field(err, ERROR_INVALID, field, "argv[0] is the program's name; it is empty");
        *bytes += json_string_length(v) + 1;
    }
    return 0;
}

static int check_command(const struct fields *f, size_t *bytes, struct error *err)
{
    if (!f->argv == !f->shell)
        return error_field(err, ERROR_INVALID, "argv", "give exactly one of argv and shell");
    if (f->argv)
        return check_argv(f->argv, bytes, err);
    *bytes += strlen(f->shell) + 1;
    return 0;
}

static int check_env(const json_t *env, struct error *err)
{
    const char *name;
    json_t *v;
    if (json_object_size(env) > ENV_ENTRIES_MAX)
        return error_field(err, ERROR_INVALID, "env", "env has more than %d entries", ENV_ENTRIES_MAX);
    json_object_foreach((json_t *)env, name, v)
    {
        char field[ERROR_FIELD_MAX];
        (void)snprintf(field, sizeof(field), "env.%.80s", name);
        if (!*name || strlen(name) > ENV_NAME_MAX || strchr(name, '=') || has_control(name))
            return error_field(err, ERROR_INVALID, field,
                               "a variable's name has 1 to %d bytes, no '=' and no control bytes",
                               ENV_NAME_MAX);
        int rc = check_string(v, field, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int check_names(const struct fields *f, struct error *err)
{
    if (f->cwd && f->cwd[0] != '/')
        return error_field(err, ERROR_INVALID, "cwd", "cwd must be an absolute path");
    if (f->user && !only(f->user, "_.-$"))
        return error_field(err, ERROR_INVALID, "user",
                           "user is a name or a number of the sandbox's own users");
    if (f->start && !str_eq(f->start, "attach") && !str_eq(f->start, "now"))
        return error_field(err, ERROR_INVALID, "start", "start is \"attach\" or \"now\"");
    if (f->overflow && !str_eq(f->overflow, "block") && !str_eq(f->overflow, "drop_oldest"))
        return error_field(err, ERROR_INVALID, "overflow", "overflow is \"block\" or \"drop_oldest\"");
    if (f->on_detach && !str_eq(f->on_detach, "keep") && !str_eq(f->on_detach, "close"))
        return error_field(err, ERROR_INVALID, "stdin_on_detach", "stdin_on_detach is \"keep\" or \"close\"");
    if (f->on_detach && !f->stdin_open && !f->pty)
        return error_field(err, ERROR_INVALID, "stdin_on_detach",
                           "stdin_on_detach is for a command with stdin or a terminal");
    return f->env ? check_env(f->env, err) : 0;
}

/* --- the spec --- */

/* The sandbox's environment with the command's own over it; NULL when memory is short. */
static json_t *merge_env(const json_t *under, const json_t *over, size_t *bytes)
{
    json_t *env = under ? json_copy((json_t *)under) : json_object();
    const char *name;
    json_t *v;
    if (!env || (over && json_object_update(env, (json_t *)over) != 0)) {
        json_decref(env);
        return NULL;
    }
    json_object_foreach(env, name, v) *bytes += strlen(name) + json_string_length(v) + 2;
    return env;
}

static int read_pty(const json_t *pty, json_t *spec, struct error *err)
{
    int64_t rows = 0;
    int64_t cols = 0;
    const char *term = "xterm-256color";
    const struct json_field table[] = {
        {"rows", JSON_KIND_INTEGER, true, 1, PTY_SIDE_MAX, &rows},
        {"cols", JSON_KIND_INTEGER, true, 1, PTY_SIDE_MAX, &cols},
        {"term", JSON_KIND_STRING, false, 1, 64, &term},
    };
    int rc = json_read(pty, "pty", table, ARRAY_LEN(table), err);
    if (rc < 0)
        return rc;
    if (!only(term, "_.+-"))
        return error_field(err, ERROR_INVALID, "pty.term", "pty.term is a terminal's name");
    json_t *own = json_pack("{sI sI ss}", "rows", (json_int_t)rows, "cols", (json_int_t)cols, "term", term);
    return json_object_set_new(spec, "pty", own) == 0 ? 0 : error_set(err, ERROR_NO_MEMORY, "out of memory");
}

static bool put_string(json_t *spec, const char *name, const char *value)
{
    return !value || json_object_set_new(spec, name, json_string(value)) == 0;
}

/* Everything but the pty. */
static bool put_fields(json_t *spec, const struct fields *f, const json_t *env)
{
    bool ok = put_string(spec, "shell", f->shell) && put_string(spec, "cwd", f->cwd) &&
              put_string(spec, "user", f->user);
    if (ok && f->argv)
        ok = json_object_set_new(spec, "argv", json_deep_copy(f->argv)) == 0;
    if (ok && json_object_size(env) > 0)
        ok = json_object_set(spec, "env", (json_t *)env) == 0;
    if (ok && f->timeout_ms)
        ok = json_object_set_new(spec, "timeout_ms", json_integer(f->timeout_ms)) == 0;
    if (ok && f->grace_ms)
        ok = json_object_set_new(spec, "grace_ms", json_integer(f->grace_ms)) == 0;
    if (ok && f->overflow && str_eq(f->overflow, "drop_oldest"))
        ok = json_object_set_new(spec, "drop_oldest", json_true()) == 0;
    if (ok && f->on_detach && str_eq(f->on_detach, "close"))
        ok = json_object_set_new(spec, "close_on_detach", json_true()) == 0;
    if (ok && f->stdin_b64) /* nobody can give the rest of it again */
        ok = json_object_set_new(spec, "fed", json_true()) == 0;
    bool open = f->stdin_open || f->stdin_b64;
    return ok && json_object_set_new(spec, "stdin", json_boolean(open)) == 0;
}

static int read_feed(const char *text, struct spec_request *ret, struct error *err)
{
    size_t n = strlen(text);
    ret->feed = malloc(n / 4 * 3 + 1);
    if (!ret->feed)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (!base64_decode(text, n, ret->feed, &ret->feed_n))
        return error_field(err, ERROR_INVALID, "stdin_b64", "stdin_b64 is not base64");
    return 0;
}

static int build(const struct fields *f, const json_t *sandbox_env, struct spec_request *q, struct error *err)
{
    AUTO_JSON json_t *env = merge_env(sandbox_env, f->env, &q->bytes);
    if (!env)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (q->bytes > SPEC_BYTES_MAX)
        return error_field(err, ERROR_INVALID, f->argv ? "argv" : "shell",
                           "the command and its environment have %zu bytes; allowed are %d", q->bytes,
                           SPEC_BYTES_MAX);
    q->spec = json_object();
    if (!q->spec || !put_fields(q->spec, f, env))
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = f->pty ? read_pty(f->pty, q->spec, err) : 0;
    return rc == 0 && f->stdin_b64 ? read_feed(f->stdin_b64, q, err) : rc;
}

int spec_read(const json_t *body, bool exec, const json_t *env, const json_t *defaults, uint64_t journal_max,
              struct spec_request *ret, struct error *err)
{
    if (!json_is_object(body))
        return error_field(err, ERROR_INVALID, "", "the body must be a JSON object");
    struct fields f = {.journal_mib = 0};
    struct spec_request q = {.spec = NULL};
    AUTO_JSON json_t *own = json_copy((json_t *)body); /* shallow: the fields stay the body's */
    if (!own)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = take_times(own, &f, err);
    if (rc == 0)
        rc = exec ? read_exec_body(own, journal_max, &f, err) : read_session_body(own, journal_max, &f, err);
    if (rc == 0)
        rc = check_command(&f, &q.bytes, err);
    if (rc == 0)
        rc = check_names(&f, err);
    if (!f.user)
        f.user = json_string_value(json_object_get(defaults, "user"));
    if (!f.cwd)
        f.cwd = json_string_value(json_object_get(defaults, "cwd"));
    if (rc == 0)
        rc = build(&f, env, &q, err);
    if (rc < 0) {
        spec_request_finish(&q);
        return rc;
    }
    q.start_now = exec || (f.start && str_eq(f.start, "now"));
    q.journal_bytes = (uint64_t)f.journal_mib * MIB;
    *ret = q;
    return 0;
}

void spec_request_finish(struct spec_request *q)
{
    json_decref(q->spec);
    free(q->feed);
    *q = (struct spec_request){.spec = NULL};
}

/* --- using a spec --- */

json_t *spec_argv(const json_t *spec)
{
    json_t *argv = json_object_get(spec, "argv");
    if (argv)
        return json_incref(argv);
    return json_pack("[s, s, O]", "sh", "-lc", json_object_get(spec, "shell"));
}

static const char *string_of(const json_t *spec, const char *name)
{
    return json_string_value(json_object_get(spec, name));
}

static bool list_argv(const json_t *argv, struct spec_exec *x)
{
    size_t i;
    json_t *v;
    x->argv = calloc(json_array_size(argv) + 1, sizeof(*x->argv));
    if (!x->argv)
        return false;
    json_array_foreach(argv, i, v) x->argv[i] = json_string_value(v);
    x->exec.argv = x->argv;
    return true;
}

static bool list_env(const json_t *env, struct spec_exec *x)
{
    const char *name;
    json_t *v;
    size_t n = 0;
    x->env = calloc(json_object_size(env) + 1, sizeof(*x->env));
    if (!x->env)
        return false;
    json_object_foreach((json_t *)env, name, v)
    {
        x->env[n] = str_printf("%s=%s", name, json_string_value(v));
        if (!x->env[n++])
            return false;
    }
    x->exec.env = (const char *const *)x->env;
    return true;
}

int spec_exec_init(const json_t *spec, const char *process_id, struct spec_exec *ret, struct error *err)
{
    struct spec_exec x = {.argv = NULL};
    const json_t *argv = json_object_get(spec, "argv");
    const json_t *env = json_object_get(spec, "env");
    const json_t *pty = json_object_get(spec, "pty");
    (void)str_copy(x.exec.process_id, sizeof(x.exec.process_id), process_id);
    x.exec.shell = string_of(spec, "shell");
    x.exec.cwd = string_of(spec, "cwd");
    x.exec.user = string_of(spec, "user");
    x.exec.stdin_open = json_is_true(json_object_get(spec, "stdin"));
    x.exec.timeout_ms = (uint32_t)json_integer_value(json_object_get(spec, "timeout_ms"));
    x.exec.grace_ms = (uint32_t)json_integer_value(json_object_get(spec, "grace_ms"));
    if (pty) {
        x.exec.pty = true;
        x.exec.stdin_open = true; /* a terminal without input would be none */
        x.exec.rows = (uint16_t)json_integer_value(json_object_get(pty, "rows"));
        x.exec.cols = (uint16_t)json_integer_value(json_object_get(pty, "cols"));
        x.exec.term = string_of(pty, "term");
    }
    if ((argv && !list_argv(argv, &x)) || (env && !list_env(env, &x))) {
        spec_exec_finish(&x);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    *ret = x;
    return 0;
}

void spec_exec_finish(struct spec_exec *x)
{
    free(x->argv);
    for (size_t i = 0; x->env && x->env[i]; i++)
        free(x->env[i]);
    free(x->env);
    *x = (struct spec_exec){.argv = NULL};
}
