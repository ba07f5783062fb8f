#include "cli/client.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "base/str.h"
#include "cli/client_impl.h"

#define JSON_MAX (64u * 1024 * 1024)
#define PROBLEM_MAX 65536
#define CONNECT_TIMEOUT_S 10L
#define QUIET_TIMEOUT_S 120L /* longer than any long poll */
#define PAGES_MAX 10000

/* One call under way. */
struct call {
    struct client *client;
    const struct client_transfer *transfer;
    struct buf body; /* JSON answer, or the problem of a failed transfer */
    bool gave_up;    /* a callback of the transfer returned failure */
    bool too_large;
    bool answered; /* some of the answer arrived */
    const char *upload;
    size_t upload_size, upload_left;
};

int client_create(const struct client_config *config, struct client **ret, struct error *err)
{
    if (!str_starts(config->url, "http://") && !str_starts(config->url, "https://"))
        return error_set(err, ERROR_INVALID, "the server's address must start with http:// or https://: %s",
                         config->url);
    struct client *c = calloc(1, sizeof(*c));
    if (!c)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    c->curl = curl_easy_init();
    c->url = strdup(config->url);
    bool fine = c->curl && c->url;
    if (config->key) {
        c->authorization = str_printf("Authorization: Bearer %s", config->key);
        fine = fine && c->authorization;
    }
    if (!fine) {
        client_destroy(c);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    for (size_t n = strlen(c->url); n > 0 && c->url[n - 1] == '/'; n--)
        c->url[n - 1] = '\0';
    *ret = c;
    return 0;
}

void client_destroy(struct client *c)
{
    if (!c)
        return;
    curl_easy_cleanup(c->curl);
    free(c->url);
    free(c->authorization);
    free(c);
}

bool client_unreachable(const struct client *c)
{
    return c->unreachable;
}

const char *client_url(const struct client *c)
{
    return c->url;
}

const char *client_authorization(const struct client *c)
{
    return c->authorization;
}

void client_interruptible(struct client *c, const volatile int *flag)
{
    c->interrupt = flag;
}

void client_options(CURL *h)
{
    (void)curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075500
    (void)curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    (void)curl_easy_setopt(h, CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
    (void)curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT, CONNECT_TIMEOUT_S);
    (void)curl_easy_setopt(h, CURLOPT_TCP_KEEPALIVE, 1L);
    (void)curl_easy_setopt(h, CURLOPT_TCP_NODELAY, 1L);
    (void)curl_easy_setopt(h, CURLOPT_USERAGENT, "space/" SPACE_VERSION);
}

CURL *client_handle(struct client *c)
{
    CURL *h = curl_easy_init();
    if (!h)
        return NULL;
    client_options(h);
    (void)curl_easy_setopt(h, CURLOPT_URL, c->url);
    return h;
}

/* --- callbacks of curl --- */

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    struct call *call = arg;
    size_t bytes = size * n;
    long status = 0;
    call->answered = true;
    (void)curl_easy_getinfo(call->client->curl, CURLINFO_RESPONSE_CODE, &status);
    if (call->transfer && call->transfer->write && status >= 200 && status < 300) {
        call->gave_up = !call->transfer->write(call->transfer->arg, data, bytes);
        return call->gave_up ? 0 : bytes;
    }
    call->too_large = !buf_append(&call->body, data, bytes);
    return call->too_large ? 0 : bytes;
}

static size_t on_read(char *to, size_t size, size_t n, void *arg)
{
    struct call *call = arg;
    size_t most = size * n;
    if (!call->transfer) {
        size_t bytes = call->upload_left < most ? call->upload_left : most;
        memcpy(to, call->upload, bytes);
        call->upload += bytes;
        call->upload_left -= bytes;
        return bytes;
    }
    ssize_t got = call->transfer->read(call->transfer->arg, to, most);
    call->gave_up = got < 0;
    return got < 0 ? CURL_READFUNC_ABORT : (size_t)got;
}

/* A kept connection that turns out to be closed: the request is sent again on another one. */
static int on_seek(void *arg, curl_off_t offset, int origin)
{
    struct call *call = arg;
    size_t sent = call->upload ? call->upload_size - call->upload_left : 0;
    if (call->transfer || origin != SEEK_SET || offset < 0 || (size_t)offset > call->upload_size)
        return CURL_SEEKFUNC_CANTSEEK;
    call->upload -= sent;
    call->upload += offset;
    call->upload_left = call->upload_size - (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

static size_t on_header(char *data, size_t size, size_t n, void *arg)
{
    struct call *call = arg;
    size_t bytes = size * n;
    call->answered = true;
    char line[1024];
    char *colon = memchr(data, ':', bytes);
    if (!call->transfer || !call->transfer->header || !colon || bytes >= sizeof(line))
        return bytes;
    memcpy(line, data, bytes);
    line[bytes] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    char *value = line + (colon - data);
    *value++ = '\0';
    call->transfer->header(call->transfer->arg, line, value + strspn(value, " \t"));
    return bytes;
}

static int on_progress(void *arg, curl_off_t dltotal, curl_off_t dlnow, curl_off_t ultotal, curl_off_t ulnow)
{
    (void)dltotal;
    (void)dlnow;
    (void)ultotal;
    (void)ulnow;
    const struct call *call = arg;
    return call->client->interrupt && *call->client->interrupt;
}

/* --- one call --- */

static bool add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *more = curl_slist_append(*list, line);
    if (more)
        *list = more;
    return more != NULL;
}

static bool add_headers(struct client *c, struct curl_slist **list, const struct client_transfer *t,
                        bool json_body, const char *idempotency)
{
    bool fine = add_header(list, "Expect:"); /* no waiting for 100 Continue */
    if (c->authorization)
        fine = fine && add_header(list, c->authorization);
    char line[256];
    if (idempotency) {
        (void)snprintf(line, sizeof(line), "Idempotency-Key: %s", idempotency);
        fine = fine && add_header(list, line);
    }
    const char *type = json_body ? "application/json" : NULL;
    if (t && t->read)
        type = t->content_type ? t->content_type : "application/octet-stream";
    if (type) {
        (void)snprintf(line, sizeof(line), "Content-Type: %s", type);
        fine = fine && add_header(list, line);
    }
    const char *accept = t ? t->accept : "application/json, application/problem+json";
    if (accept) {
        (void)snprintf(line, sizeof(line), "Accept: %s", accept);
        fine = fine && add_header(list, line);
    }
    return fine;
}

static void set_body(CURL *h, const char *method, bool has_body, int64_t length)
{
    if (has_body) {
        (void)curl_easy_setopt(h, CURLOPT_UPLOAD, 1L);
        (void)curl_easy_setopt(h, CURLOPT_INFILESIZE_LARGE, (curl_off_t)length);
    } else if (strcmp(method, "POST") == 0) {
        (void)curl_easy_setopt(h, CURLOPT_POST, 1L);
        (void)curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE, 0L);
        (void)curl_easy_setopt(h, CURLOPT_POSTFIELDS, "");
    } else if (strcmp(method, "HEAD") == 0) {
        (void)curl_easy_setopt(h, CURLOPT_NOBODY, 1L);
    }
    (void)curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, method);
}

static int transport_error(struct client *c, const struct call *call, CURLcode code, const char *why,
                           struct error *err)
{
    if (call->gave_up)
        return error_set(err, ERROR_INTERNAL, "the transfer was given up");
    if (call->too_large)
        return error_set(err, ERROR_TOO_LARGE, "the server's answer is larger than %u bytes", JSON_MAX);
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return error_set(err, ERROR_UNAVAILABLE, "interrupted");
    if (code == CURLE_OUT_OF_MEMORY)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (call->answered)
        return error_set(err, ERROR_UNAVAILABLE, "the server's answer broke off: %s",
                         *why ? why : curl_easy_strerror(code));
    c->unreachable = true;
    return error_set(err, ERROR_UNAVAILABLE, "cannot reach the server at %s: %s", c->url,
                     *why ? why : curl_easy_strerror(code));
}

/* Performs one call; the answer's body is in call->body. *ret_status 0 means that nothing was answered. */
static int perform(struct client *c, struct call *call, const char *method, const char *path,
                   const struct curl_slist *headers, int64_t length, CURLcode *ret_code, struct error *err)
{
    CURL *h = c->curl;
    AUTO_FREE char *url = str_printf("%s%s", c->url, path);
    if (!url)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    char why[CURL_ERROR_SIZE] = "";
    bool has_body = length >= 0 || (call->transfer && call->transfer->read);
    curl_easy_reset(h);
    client_options(h);
    (void)curl_easy_setopt(h, CURLOPT_URL, url);
    (void)curl_easy_setopt(h, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(h, CURLOPT_ERRORBUFFER, why);
    (void)curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(h, CURLOPT_WRITEDATA, call);
    (void)curl_easy_setopt(h, CURLOPT_HEADERFUNCTION, on_header);
    (void)curl_easy_setopt(h, CURLOPT_HEADERDATA, call);
    (void)curl_easy_setopt(h, CURLOPT_READFUNCTION, on_read);
    (void)curl_easy_setopt(h, CURLOPT_READDATA, call);
    (void)curl_easy_setopt(h, CURLOPT_SEEKFUNCTION, on_seek);
    (void)curl_easy_setopt(h, CURLOPT_SEEKDATA, call);
    if (call->transfer && call->transfer->read) /* a stream cannot be sent again */
        (void)curl_easy_setopt(h, CURLOPT_FRESH_CONNECT, 1L);
    (void)curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, on_progress);
    (void)curl_easy_setopt(h, CURLOPT_XFERINFODATA, call);
    (void)curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    if (!call->transfer || !call->transfer->endless) {
        (void)curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, 1L);
        (void)curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, QUIET_TIMEOUT_S);
    }
    set_body(h, method, has_body, length);
    CURLcode code = curl_easy_perform(h);
    *ret_code = code;
    (void)curl_easy_setopt(h, CURLOPT_ERRORBUFFER, NULL);
    return code == CURLE_OK ? 0 : transport_error(c, call, code, why, err);
}

/* Whether the connection broke under a request that may be sent again. */
static bool may_retry(CURLcode code, const struct call *call)
{
    return !call->answered && (code == CURLE_GOT_NOTHING || code == CURLE_RECV_ERROR ||
                               code == CURLE_SEND_ERROR || code == CURLE_SEND_FAIL_REWIND);
}

static int answer_json(const struct call *call, json_t **ret, struct error *err)
{
    if (!ret)
        return 0;
    size_t n = buf_len(&call->body);
    json_error_t why;
    json_t *json =
        n ? json_loadb((const char *)buf_head(&call->body), n, JSON_DECODE_ANY, &why) : json_null();
    if (!json)
        return error_set(err, ERROR_INTERNAL, "the server's answer is not JSON: %s", why.text);
    *ret = json;
    return 0;
}

/* Turns the status of a completed call into success or its problem. */
static int check_status(struct client *c, const struct call *call, struct error *err)
{
    long status = 0;
    (void)curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status >= 200 && status < 300)
        return 0;
    return client_problem((unsigned)status, (const char *)buf_head(&call->body), buf_len(&call->body), err);
}

int client_call(struct client *c, const char *method, const char *path, json_t *body, json_t **ret,
                struct error *err)
{
    AUTO_FREE char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    bool had_body = body != NULL;
    json_decref(body);
    if (had_body && !text)
        return error_set(err, ERROR_INVALID, "the request is not valid UTF-8 text");
    unsigned char random[16];
    char idempotency[2 * sizeof(random) + 1];
    id_random(random, sizeof(random));
    str_hex(random, sizeof(random), idempotency);
    bool post = strcmp(method, "POST") == 0;
    struct curl_slist *headers = NULL;
    if (!add_headers(c, &headers, NULL, had_body, post ? idempotency : NULL)) {
        curl_slist_free_all(headers);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    struct call call;
    int rc;
    CURLcode code = CURLE_OK;
    c->unreachable = false;
    for (int attempt = 0;; attempt++) {
        call = (struct call){.client = c, .upload = text, .upload_size = text ? strlen(text) : 0};
        call.upload_left = call.upload_size;
        buf_init(&call.body, JSON_MAX);
        rc = perform(c, &call, method, path, headers, text ? (int64_t)strlen(text) : -1, &code, err);
        if (rc == 0 || attempt > 0 || !may_retry(code, &call))
            break;
        buf_finish(&call.body);
        c->unreachable = false;
    }
    if (rc == 0)
        rc = check_status(c, &call, err);
    if (rc == 0)
        rc = answer_json(&call, ret, err);
    buf_finish(&call.body);
    curl_slist_free_all(headers);
    return rc;
}

int client_stream(struct client *c, const struct client_transfer *t, struct error *err)
{
    struct curl_slist *headers = NULL;
    if (!add_headers(c, &headers, t, false, NULL)) {
        curl_slist_free_all(headers);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    struct call call = {.client = c, .transfer = t};
    buf_init(&call.body, PROBLEM_MAX);
    CURLcode code;
    c->unreachable = false;
    int rc = perform(c, &call, t->method, t->path, headers, t->read ? t->length : -1, &code, err);
    /* A server that refuses an upload may answer and close before it has read all of it. */
    long status = 0;
    (void)curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    if (rc == 0 || (status >= 400 && !call.gave_up && buf_len(&call.body) > 0)) {
        c->unreachable = false;
        rc = check_status(c, &call, err);
    }
    buf_finish(&call.body);
    curl_slist_free_all(headers);
    return rc;
}

/* Takes the items of one page; *ret_cursor (heap) is NULL at the last one. */
static int take_page(const json_t *page, json_t *all, char **ret_cursor, struct error *err)
{
    json_t *items = json_object_get(page, "items");
    if (!json_is_array(items) || json_array_extend(all, items) < 0)
        return error_set(err, ERROR_INTERNAL, "the server's list has no items");
    const char *next = json_string_value(json_object_get(page, "next_cursor"));
    *ret_cursor = next ? strdup(next) : NULL;
    return next && !*ret_cursor ? error_set(err, ERROR_NO_MEMORY, "out of memory") : 0;
}

int client_list(struct client *c, const char *path, const char *query, json_t **ret, struct error *err)
{
    json_t *all = json_array();
    AUTO_FREE char *cursor = NULL;
    int rc = 0;
    for (int page = 0; rc == 0 && page < PAGES_MAX; page++) {
        AUTO_FREE char *more = cursor ? client_path("&cursor=%s", cursor) : strdup("");
        AUTO_FREE char *full = str_printf("%s?limit=100%s%s%s", path, *query ? "&" : "", query, more);
        json_t *answer = NULL;
        free(TAKE(cursor));
        rc = more && full ? client_call(c, "GET", full, NULL, &answer, err)
                          : error_set(err, ERROR_NO_MEMORY, "out of memory");
        if (rc == 0)
            rc = take_page(answer, all, &cursor, err);
        json_decref(answer);
        if (!cursor)
            break;
    }
    if (rc == 0)
        *ret = all;
    else
        json_decref(all);
    return rc;
}

/* --- problems --- */

/* The code with this slug, or else one with this status, or ERROR_INTERNAL. */
static int code_for(const char *slug, unsigned status)
{
    int by_status = ERROR_INTERNAL;
    int code;
    unsigned row_status;
    const char *row_slug;
    const char *row_title;
    for (size_t i = 0; error_table(i, &code, &row_status, &row_slug, &row_title); i++) {
        if (slug && strcmp(slug, row_slug) == 0)
            return code;
        if (row_status == status && error_status(by_status) != status)
            by_status = code;
    }
    return by_status;
}

int client_problem(unsigned status, const char *body, size_t n, struct error *err)
{
    json_t *problem = n ? json_loadb(body, n, 0, NULL) : NULL;
    const char *type = json_string_value(json_object_get(problem, "type"));
    const char *title = json_string_value(json_object_get(problem, "title"));
    const char *detail = json_string_value(json_object_get(problem, "detail"));
    const char *field = json_string_value(json_object_get(problem, "field"));
    const char *operation = json_string_value(json_object_get(problem, "operation_id"));
    const char *slug =
        type && str_starts(type, "urn:space:error:") ? type + strlen("urn:space:error:") : NULL;
    int code = code_for(slug, status);
    if (title)
        (void)error_field(err, code, field ? field : "", "%s%s%s", title, detail ? ": " : "",
                          detail ? detail : "");
    else
        (void)error_set(err, code, "the server answered with status %u", status);
    if (err && operation)
        (void)str_copy(err->operation_id, sizeof(err->operation_id), operation);
    json_decref(problem);
    return code;
}
