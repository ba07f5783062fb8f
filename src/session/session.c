/* The registry: sessions and their tokens, requests, and what sandboxes tell. */
#include "session/session.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "session/session_impl.h"
#include "json/json.h"

#define MIB (1024ULL * 1024)
#define POOL_QUEUE 4096

/* --- what sandboxes tell --- */

/* Starts or takes up what waits for this sandbox's guest. */
static void bucket_run(struct bucket *b)
{
    struct process *p;
    DL_FOREACH(b->head, p)
    {
        if (p->state == PROCESS_EXITED && p->owed)
            process_adopt(p, b->guest);
        if (p->state == PROCESS_EXITED || !p->start_wanted || p->gp)
            continue;
        for (unsigned i = 0; i < STREAMS; i++)
            stream_open(p, i);
        bool known = p->sent || p->maybe || p->state == PROCESS_RUNNING || stream_end(p, 0) > 0 ||
                     stream_end(p, 1) > 0;
        if (known)
            process_adopt(p, b->guest);
        else
            process_begin(p, b->guest);
    }
}

/* Nothing is written until it is restored, so it may as well survive the host's own restart. */
static void bucket_suspended(struct bucket *b)
{
    struct process *p;
    DL_FOREACH(b->head, p)
    {
        if (p->state == PROCESS_EXITED)
            continue;
        streams_seal(p);
        readers_suspended(p);
    }
}

/* Who was to leave when the record of its input is durable; one whose process has ended gets the result. */
static void bucket_awake(struct bucket *b)
{
    struct process *p;
    DL_FOREACH(b->head, p)
    {
        if (p->state != PROCESS_EXITED)
            readers_awake(p);
    }
}

static void link_down(struct bucket *b, const struct sandbox *sb, const struct error *why)
{
    struct process *p;
    struct error lost = {.code = ERROR_UNAVAILABLE, .message = "the link to the sandbox is down"};
    bool sleeps = sandbox_state(sb) == SANDBOX_SUSPENDING || sandbox_state(sb) == SANDBOX_SUSPENDED;
    b->guest = NULL;
    DL_FOREACH(b->head, p)
    process_unlink_guest(p, sleeps);
    signals_fail(b, why && why->code ? why : &lost);
    DL_FOREACH(sleeps ? b->head : NULL, p)
    process_input_noted(p, p->state != PROCESS_EXITED && buf_len(&p->feed) > 0);
    bucket_end(b, sandbox_state(sb), why && *why->message ? why->message : "the sandbox has ended");
    if (sandbox_state(sb) == SANDBOX_SUSPENDED)
        bucket_suspended(b);
}

static void on_guest(void *arg, const struct sandbox *sb, struct guest *g, const struct error *why)
{
    struct sessions *s = arg;
    struct bucket *b = bucket_find(s, sandbox_id(sb));
    if (b && g) {
        b->guest = g;
        bucket_run(b);
    } else if (b) {
        link_down(b, sb, why);
    }
    if (s->link)
        s->link(s->link_arg, sandbox_id(sb), g, why);
}

/* The suspend did not come about: what waits is given to the guest by the link that it has, also when its
 * vCPUs stand still. What was told as taken stays in the record until then. */
static void bucket_stays(struct bucket *b)
{
    struct process *p;
    DL_FOREACH(b->head, p)
    process_input_stays(p);
}

static void on_changed(void *arg, const struct sandbox *sb, enum sandbox_state from, enum sandbox_state to)
{
    struct sessions *s = arg;
    struct bucket *b = from == to ? NULL : bucket_find(s, sandbox_id(sb));
    if (!b)
        return;
    char message[64];
    (void)snprintf(message, sizeof(message), "the sandbox was %s",
                   to == SANDBOX_FAILED ? "lost: it failed" : sandbox_state_name(to));
    bucket_end(b, to, message);
    if (from == SANDBOX_SUSPENDING && (to == SANDBOX_RUNNING || to == SANDBOX_PAUSED))
        bucket_stays(b);
    if (to == SANDBOX_SUSPENDED)
        bucket_suspended(b);
    if (from == SANDBOX_SUSPENDED)
        bucket_awake(b);
    /* Commands that were asked for while it slept: its link object may be the same as before. */
    struct guest *g = to == SANDBOX_RUNNING ? sandbox_guest_link(sb) : NULL;
    if (g) {
        b->guest = g;
        bucket_run(b);
    }
}

/* --- life --- */

static int open_resources(struct sessions *s, struct error *err)
{
    int rc = fs_mkdir_p(s->journal_dir, 0700, err);
    if (rc < 0)
        return rc;
    s->dir_fd = open(s->journal_dir, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (s->dir_fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "open %s", s->journal_dir);
    rc = loop_pool_create(s->config.loop, "journal-read", 2, POOL_QUEUE, &s->warmers, err);
    return rc < 0 ? rc : loop_pool_create(s->config.loop, "journal", 1, POOL_QUEUE, &s->pool, err);
}

static void set_defaults(struct sessions_config *c)
{
    if (!c->journal_default_bytes)
        c->journal_default_bytes = 64 * MIB;
    if (!c->journal_max_bytes)
        c->journal_max_bytes = 1024 * MIB;
    if (!c->journal_sandbox_bytes)
        c->journal_sandbox_bytes = 1024 * MIB;
    if (!c->token_ttl_s)
        c->token_ttl_s = 3600;
    if (!c->max_processes)
        c->max_processes = 4096;
    if (!c->max_live)
        c->max_live = 256;
    if (!c->max_readers)
        c->max_readers = 4096;
}

static json_t *hook_capture(void *arg, const struct sandbox *sb)
{
    return sessions_capture(arg, sb);
}

static int hook_revive(void *arg, const struct sandbox *sb, const json_t *processes, bool in_place,
                       struct error *err)
{
    return sessions_revive(arg, sb, processes, in_place, NULL, err);
}

static const struct sandbox_process_hooks hooks = {.capture = hook_capture, .revive = hook_revive};

int sessions_create(const struct sessions_config *config, struct sessions **ret, struct error *err)
{
    struct sessions *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    s->config = *config;
    s->dir_fd = -1;
    set_defaults(&s->config);
    journal_boot(s->boot);
    s->journal_dir = strdup(config->journal_dir);
    s->scratch = malloc(READ_BYTES);
    int rc = s->journal_dir && s->scratch ? open_resources(s, err)
                                          : error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (rc < 0) {
        sessions_destroy(s);
        return rc;
    }
    sandboxes_observe(config->sandboxes, on_changed, NULL, on_guest, s);
    sandboxes_set_process_hooks(config->sandboxes, &hooks, s);
    *ret = s;
    return 0;
}

void sessions_destroy(struct sessions *s)
{
    struct bucket *b;
    struct bucket *next;
    if (!s)
        return;
    s->config.sandboxes = NULL; /* may be gone already */
    s->ending = true;
    loop_timer_stop(&s->sweep);
    loop_pool_destroy(s->pool); /* what is under way looks for its process */
    loop_pool_destroy(s->warmers);
    s->pool = s->warmers = NULL;
    HASH_ITER(hh, s->buckets, b, next)
    bucket_free(s, b);
    if (s->dir_fd >= 0)
        (void)close(s->dir_fd);
    free(s->scratch);
    free(s->journal_dir);
    free(s);
}

static int load_process(void *arg, const char *id, const char *parent, const json_t *body)
{
    struct process *p;
    struct error err = ERROR_INIT;
    (void)parent;
    if (process_load(arg, id, body, &p, &err) < 0)
        LOG(LOG_ERROR, "process record skipped", "process=%s reason=" LOG_Q, id, err.message);
    return 0;
}

static int load_session(void *arg, const char *id, const char *parent, const json_t *body)
{
    struct sessions *s = arg;
    struct error err = ERROR_INIT;
    (void)parent;
    /* A session without its process has nothing to attach to. */
    if (session_load(s, id, body, &err) < 0)
        store_delete(s->config.store, STORE_SESSION, id);
    return 0;
}

int sessions_start(struct sessions *s, struct error *err)
{
    struct bucket *b;
    struct bucket *next;
    int rc = store_each(s->config.store, STORE_PROCESS, load_process, s, err);
    if (rc == 0)
        rc = store_each(s->config.store, STORE_SESSION, load_session, s, err);
    if (rc < 0)
        return rc;
    HASH_ITER(hh, s->buckets, b, next)
    {
        bucket_sort(b);
        bucket_measure(s, b);
        bucket_trim(b);
    }
    sweep_start(s);
    return 0;
}

void sessions_on_link(struct sessions *s, sessions_link fn, void *arg)
{
    s->link = fn;
    s->link_arg = arg;
}

struct store *sessions_store(const struct sessions *s)
{
    return s->config.store;
}

/* --- sessions --- */

static void token_digest(const char *token, unsigned char ret[DIGEST_BYTES])
{
    _Static_assert(DIGEST_BYTES == SHA256_DIGEST_LENGTH, "the digest is SHA-256");
    (void)SHA256((const unsigned char *)token, strlen(token), ret);
}

/* Keeps a process's sessions bounded: expired ones go first. */
static int session_room(struct process *p, struct error *err)
{
    unsigned n = 0;
    int64_t now = clock_wall_ms();
    struct session *se;
    struct session *expired = NULL;
    DL_FOREACH(p->sessions, se)
    {
        n++;
        if (!expired && se->expires_ms <= now)
            expired = se;
    }
    if (n < SESSIONS_PER_PROCESS)
        return 0;
    if (!expired)
        return error_set(err, ERROR_CAPACITY, "process %s has %u sessions already", p->id, n);
    store_delete(p->s->config.store, STORE_SESSION, expired->id);
    session_free(expired);
    return 0;
}

int sessions_for_process(struct sessions *s, struct process *p, struct session **ret, char **ret_token,
                         struct error *err)
{
    int rc = session_room(p, err);
    if (rc < 0)
        return rc;
    unsigned char secret[TOKEN_BYTES];
    AUTO_FREE char *token = malloc(2 * TOKEN_BYTES + 1);
    struct session *se = token ? calloc(1, sizeof(*se)) : NULL;
    if (!se)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    id_random(secret, sizeof(secret));
    str_hex(secret, sizeof(secret), token);
    OPENSSL_cleanse(secret, sizeof(secret));
    id_new("se", se->id);
    token_digest(token, se->digest);
    se->process = p;
    se->created_ms = clock_wall_ms();
    se->expires_ms = se->created_ms + (int64_t)s->config.token_ttl_s * 1000;
    DL_APPEND(p->sessions, se);
    HASH_ADD_STR(s->sessions, id, se);
    session_put(se);
    *ret_token = TAKE(token);
    *ret = se;
    return 0;
}

/* A sandbox that will never run again takes no commands. */
static int check_sandbox(const struct sandbox *sb, struct error *err)
{
    enum sandbox_state state = sandbox_state(sb);
    if (state != SANDBOX_DELETING && state != SANDBOX_DELETED && state != SANDBOX_FAILED)
        return 0;
    return error_set(err, ERROR_GONE, "sandbox %s is %s", sandbox_id(sb), sandbox_state_name(state));
}

/* Reads the body and makes the process; nothing is left behind on failure. */
static int make_process(struct sessions *s, struct sandbox *sb, const json_t *body, bool exec, bool *ret_now,
                        struct process **ret, struct error *err)
{
    struct spec_request q;
    int rc =
        spec_read(body, exec, sandbox_env(sb), sandbox_defaults(sb), s->config.journal_max_bytes, &q, err);
    if (rc < 0)
        return rc;
    rc = check_sandbox(sb, err);
    struct bucket *b = rc == 0 ? bucket_get(s, sandbox_id(sb)) : NULL;
    if (rc == 0 && !b)
        rc = error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (rc == 0)
        rc = process_make(s, b, &q, ret, err);
    *ret_now = q.start_now;
    spec_request_finish(&q);
    return rc;
}

int sessions_new(struct sessions *s, struct sandbox *sb, const json_t *body, struct session **ret,
                 char **ret_token, struct error *err)
{
    bool now = false;
    struct process *p = NULL;
    int rc = make_process(s, sb, body, false, &now, &p, err);
    if (rc < 0)
        return rc;
    process_put(p);
    char *token = NULL;
    rc = sessions_for_process(s, p, ret, &token, err);
    if (rc == 0 && now)
        rc = process_start(p, err); /* last: what has started cannot be taken back */
    if (rc == 0)
        *ret_token = TAKE(token);
    free(token);
    if (rc < 0)
        process_forget(p);
    return rc;
}

int sessions_exec(struct sessions *s, struct sandbox *sb, const json_t *body, struct process **ret,
                  struct error *err)
{
    bool now = true;
    struct process *p = NULL;
    int rc = make_process(s, sb, body, true, &now, &p, err);
    if (rc < 0)
        return rc;
    p->brief = true;
    rc = process_start(p, err);
    if (rc < 0) {
        process_forget(p);
        return rc;
    }
    *ret = p;
    return 0;
}

int sessions_check(struct sessions *s, const struct sandbox *sb, const json_t *body, bool exec, bool *ret_now,
                   struct error *err)
{
    struct spec_request q;
    int rc =
        spec_read(body, exec, sandbox_env(sb), sandbox_defaults(sb), s->config.journal_max_bytes, &q, err);
    if (rc < 0)
        return rc;
    if (ret_now)
        *ret_now = q.start_now;
    spec_request_finish(&q);
    return check_sandbox(sb, err);
}

int sessions_attach(struct sessions *s, const char *session_id, const char *token, struct process **ret,
                    struct error *err)
{
    unsigned char digest[DIGEST_BYTES];
    struct session *se = NULL;
    HASH_FIND_STR(s->sessions, session_id, se);
    if (!se)
        return error_set(err, ERROR_NOT_FOUND, "there is no session %.64s", session_id);
    token_digest(token, digest);
    if (CRYPTO_memcmp(digest, se->digest, DIGEST_BYTES) != 0)
        return error_set(err, ERROR_UNAUTHORIZED, "the token is not this session's");
    if (se->expires_ms <= clock_wall_ms())
        return error_set(err, ERROR_TOKEN_EXPIRED, "the session's token has expired; ask for a new session");
    struct sandbox *sb = sandboxes_find(s->config.sandboxes, se->process->b->sandbox_id);
    enum sandbox_state state = sb ? sandbox_state(sb) : SANDBOX_DELETED;
    if (state == SANDBOX_DELETING || state == SANDBOX_DELETED)
        return error_set(err, ERROR_GONE, "sandbox %s is %s", se->process->b->sandbox_id,
                         sandbox_state_name(state));
    *ret = se->process;
    return 0;
}

json_t *session_json(const struct session *se)
{
    return json_pack("{ss ss ss so}", "id", se->id, "process_id", se->process->id, "sandbox_id",
                     se->process->b->sandbox_id, "created_at", json_time(se->created_ms));
}

int64_t session_expires_ms(const struct session *se)
{
    return se->expires_ms;
}

const char *session_id(const struct session *se)
{
    return se->id;
}

/* --- reading processes --- */

struct process *processes_find(struct sessions *s, const char *sandbox_id, const char *process_id)
{
    struct process *p = NULL;
    HASH_FIND_STR(s->processes, process_id, p);
    return p && str_eq(p->b->sandbox_id, sandbox_id) ? p : NULL;
}

struct process *processes_next(struct sessions *s, const char *sandbox_id, const struct process *after)
{
    if (after)
        return after->next;
    struct bucket *b = bucket_find(s, sandbox_id);
    return b ? b->head : NULL;
}

json_t *process_json(const struct process *p)
{
    static const char *const states[] = {"created", "running", "exited"};
    bool known = process_has_stdin(p) && process_stdin_known(p);
    return json_pack("{ss so ss so so so so so}", "id", p->id, "argv", spec_argv(p->spec), "state",
                     states[p->state], "pid", p->pid ? json_integer(p->pid) : json_null(), "started_at",
                     json_time(p->started_ms), "finished_at", json_time(p->finished_ms), "result",
                     process_result_json(p), "stdin_offset",
                     known ? json_integer((json_int_t)process_stdin_taken(p)) : json_null());
}

json_t *process_result_json(const struct process *p)
{
    return p->result ? json_incref(p->result) : json_null();
}

const char *process_id(const struct process *p)
{
    return p->id;
}

const char *process_sandbox_id(const struct process *p)
{
    return p->b->sandbox_id;
}

enum process_state process_state(const struct process *p)
{
    return p->state;
}

uint32_t process_pid(const struct process *p)
{
    return p->pid;
}

void sessions_count(const struct sessions *s, unsigned *ret_live, unsigned *ret_readers)
{
    *ret_live = s->live;
    *ret_readers = s->readers;
}
