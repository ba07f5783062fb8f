#include "cli/pull.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "cli/client_impl.h"

#define QUEUE_HIGH (256 * 1024)
#define QUEUE_MAX (QUEUE_HIGH + CURL_MAX_WRITE_SIZE)
#define QUIET_NS (120 * CLOCK_NS_PER_S) /* as for other calls */
#define TURN_MS 1000
#define PROBLEM_MAX 65536

struct pull {
    struct client *client;
    const struct pull_config *config; /* NULL once pull_open has returned */
    CURLM *multi;
    CURL *curl;
    struct curl_slist *headers;
    char *url;
    struct buf queue; /* the body; or the problem */
    bool head;        /* has arrived whole */
    bool paused;
    bool over;
    CURLcode code; /* over: how */
    int64_t heard_at;
    char why[CURL_ERROR_SIZE];
};

static unsigned status_of(const struct pull *p)
{
    long status = 0;
    (void)curl_easy_getinfo(p->curl, CURLINFO_RESPONSE_CODE, &status);
    return (unsigned)status;
}

static bool is_success(const struct pull *p)
{
    return status_of(p) >= 200 && status_of(p) < 300;
}

/* --- callbacks of curl --- */

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    struct pull *p = arg;
    p->head = true;
    if (is_success(p) && buf_len(&p->queue) >= QUEUE_HIGH) {
        p->paused = true; /* curl gives the same bytes again */
        return CURL_WRITEFUNC_PAUSE;
    }
    p->heard_at = clock_mono_ns();
    if (!is_success(p) && buf_len(&p->queue) + size * n > PROBLEM_MAX)
        return 0;
    return buf_append(&p->queue, data, size * n) ? size * n : 0;
}

static size_t on_header(char *data, size_t size, size_t n, void *arg)
{
    struct pull *p = arg;
    size_t bytes = size * n;
    char line[1024];
    const char *colon = memchr(data, ':', bytes);
    p->heard_at = clock_mono_ns();
    if (bytes == 2 && status_of(p) >= 200) /* the empty line */
        p->head = true;
    if (!p->config || !p->config->header || !colon || bytes >= sizeof(line))
        return bytes;
    memcpy(line, data, bytes);
    line[bytes] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    char *value = line + (colon - data);
    *value++ = '\0';
    p->config->header(p->config->arg, line, value + strspn(value, " \t"));
    return bytes;
}

/* --- the transfer --- */

static int broke(const struct pull *p, struct error *err)
{
    const char *why = *p->why ? p->why : curl_easy_strerror(p->code);
    if (p->head)
        return error_set(err, ERROR_UNAVAILABLE, "the server's answer broke off: %s", why);
    p->client->unreachable = true;
    return error_set(err, ERROR_UNAVAILABLE, "cannot reach the server at %s: %s", p->client->url, why);
}

/* One turn: what is there now is taken, else it is waited for. */
static int turn(struct pull *p, struct error *err)
{
    int running = 0;
    int left;
    if (p->client->interrupt && *p->client->interrupt)
        return error_set(err, ERROR_UNAVAILABLE, "interrupted");
    if (p->paused) {
        p->paused = false;
        p->heard_at = clock_mono_ns(); /* it was our rest */
        (void)curl_easy_pause(p->curl, CURLPAUSE_CONT);
    }
    if (curl_multi_perform(p->multi, &running) != CURLM_OK)
        return error_set(err, ERROR_INTERNAL, "libcurl has failed");
    const CURLMsg *m = curl_multi_info_read(p->multi, &left);
    if (m && m->msg == CURLMSG_DONE) {
        p->over = true;
        p->code = m->data.result;
    }
    if (p->over || buf_len(&p->queue) > 0 || p->paused)
        return 0;
    if (clock_mono_ns() - p->heard_at > QUIET_NS)
        return error_set(err, ERROR_TIMEOUT, "the server has sent nothing for %d s",
                         (int)(QUIET_NS / CLOCK_NS_PER_S));
    (void)curl_multi_poll(p->multi, NULL, 0, TURN_MS, NULL);
    return 0;
}

static void set_options(struct pull *p)
{
    CURL *h = p->curl;
    client_options(h);
    (void)curl_easy_setopt(h, CURLOPT_URL, p->url);
    (void)curl_easy_setopt(h, CURLOPT_HTTPHEADER, p->headers);
    (void)curl_easy_setopt(h, CURLOPT_ERRORBUFFER, p->why);
    (void)curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(h, CURLOPT_WRITEDATA, p);
    (void)curl_easy_setopt(h, CURLOPT_HEADERFUNCTION, on_header);
    (void)curl_easy_setopt(h, CURLOPT_HEADERDATA, p);
}

static bool add_header(struct pull *p, const char *line)
{
    struct curl_slist *more = line ? curl_slist_append(p->headers, line) : NULL;
    if (more)
        p->headers = more;
    return more != NULL;
}

/* Everything up to the first turn. */
static bool prepare(struct pull *p)
{
    const struct pull_config *config = p->config;
    AUTO_FREE char *accept = config->accept ? str_printf("Accept: %s", config->accept) : NULL;
    p->multi = curl_multi_init();
    p->curl = curl_easy_init();
    p->url = str_printf("%s%s", p->client->url, config->path);
    bool fine = p->multi && p->curl && p->url && (!config->accept || add_header(p, accept));
    if (p->client->authorization)
        fine = fine && add_header(p, p->client->authorization);
    if (!fine)
        return false;
    set_options(p);
    return curl_multi_add_handle(p->multi, p->curl) == CURLM_OK;
}

/* The head, and of a refusal the whole. */
static int wait_for_head(struct pull *p, struct error *err)
{
    int rc = 0;
    while (rc == 0 && !p->over && !(p->head && is_success(p)))
        rc = turn(p, err);
    if (rc < 0)
        return rc;
    bool usable = p->head && is_success(p); /* what has arrived can be read, whatever comes after it */
    if (p->over && p->code != CURLE_OK && !usable)
        return broke(p, err);
    if (!is_success(p))
        return client_problem(status_of(p), (const char *)buf_head(&p->queue), buf_len(&p->queue), err);
    return 0;
}

int pull_open(struct client *c, const struct pull_config *config, struct pull **ret, struct error *err)
{
    struct pull *p = calloc(1, sizeof(*p));
    if (!p)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    c->unreachable = false;
    p->client = c;
    p->config = config;
    p->heard_at = clock_mono_ns();
    buf_init(&p->queue, QUEUE_MAX);
    int rc = prepare(p) ? wait_for_head(p, err) : error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (rc < 0) {
        pull_close(p);
        return rc;
    }
    p->config = NULL; /* it is the caller's no longer; trailers are nobody's */
    *ret = p;
    return 0;
}

void pull_close(struct pull *p)
{
    if (!p)
        return;
    if (p->multi && p->curl)
        (void)curl_multi_remove_handle(p->multi, p->curl);
    curl_easy_cleanup(p->curl);
    if (p->multi)
        (void)curl_multi_cleanup(p->multi);
    curl_slist_free_all(p->headers);
    buf_finish(&p->queue);
    free(p->url);
    free(p);
}

ssize_t pull_read(struct pull *p, void *to, size_t n, struct error *err)
{
    p->heard_at = clock_mono_ns(); /* until now the reader rested */
    while (buf_len(&p->queue) == 0 && !p->over) {
        int rc = turn(p, err);
        if (rc < 0)
            return rc;
    }
    if (buf_len(&p->queue) == 0)
        return p->code == CURLE_OK ? 0 : broke(p, err);
    if (n > buf_len(&p->queue))
        n = buf_len(&p->queue);
    memcpy(to, buf_head(&p->queue), n);
    buf_consume(&p->queue, n);
    return (ssize_t)n;
}

int64_t pull_length(const struct pull *p)
{
    curl_off_t length = -1;
    (void)curl_easy_getinfo(p->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    return (int64_t)length;
}
