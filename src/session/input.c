/* A command's input: what stands where in it, whose it is, and what was taken from clients and has not
 * reached the guest: that goes where the process goes, into a suspend, a snapshot, a copy.
 *
 * Bytes have offsets from the process's start on. What the guest has it says itself, also to the next daemon.
 * A client that states where its bytes begin comes back with the same name (`writer`) and gives again what it
 * does not know to be there; what is there already is dropped. That is safe only while nobody else has
 * written in between, so whose turn it is since which offset is durable before the first byte of a turn
 * leaves here. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "session/base64.h"
#include "session/session_impl.h"

#define RETRY_MS 1000

/* --- offsets --- */

bool process_has_stdin(const struct process *p)
{
    return json_is_true(json_object_get(p->spec, "stdin")) || json_object_get(p->spec, "pty");
}

static struct guest_stdin account(const struct process *p)
{
    struct guest_stdin a = {p->stdin_base, p->stdin_base, p->stdin_base};
    if (p->gp && p->input_ready)
        guest_process_stdin_account(p->gp, &a);
    return a;
}

uint64_t process_stdin_taken(const struct process *p)
{
    uint64_t taken = account(p).taken;
    return p->input_kept && p->kept_end > taken ? p->kept_end : taken;
}

uint64_t process_stdin_end(const struct process *p)
{
    return account(p).end + buf_len(&p->feed);
}

bool process_stdin_known(const struct process *p)
{
    return p->state == PROCESS_EXITED || p->input_ready || !p->start_wanted ||
           (p->stdin_noted && (p->noted_here || process_asleep(p)));
}

bool process_stdin_is_closed(const struct process *p)
{
    return p->stdin_closed && !p->end_due && !p->feeding;
}

void process_input_note(struct process *p)
{
    p->stdin_base = account(p).taken;
}

void process_input_end(struct process *p)
{
    process_input_stop(p);
    p->stdin_base = process_stdin_taken(p);
    p->input_ready = p->input_kept = p->feeding = p->end_due = false;
    buf_finish(&p->feed);
}

/* --- what is kept --- */

/* Parts in order: what the link has (all that the guest has not said to have, or only what has not left),
 * then what was not given to it. */
static json_t *input_json(const struct process *p, bool untaken)
{
    bool close = false;
    const void *queued = NULL;
    size_t first = 0;
    if (p->gp)
        first =
            untaken ? guest_process_untaken(p->gp, &queued) : guest_process_unsent(p->gp, &queued, &close);
    size_t n = first + buf_len(&p->feed);
    if (n == 0)
        return NULL;
    AUTO_FREE unsigned char *bytes = malloc(n);
    AUTO_FREE char *text = malloc(base64_length(n));
    if (!bytes || !text)
        abort(); /* input that was acknowledged cannot be left out */
    if (first > 0)
        memcpy(bytes, queued, first);
    if (n > first)
        memcpy(bytes + first, buf_head(&p->feed), n - first);
    base64_encode(bytes, n, text);
    return json_stringn(text, base64_length(n));
}

json_t *process_input_json(const struct process *p)
{
    return input_json(p, false);
}

/* It is known how far the guest is: by what was noted, or by its own word. */
static bool guest_is_known(const struct process *p)
{
    return p->stdin_noted || (p->gp && p->input_ready);
}

json_t *process_input_at(const struct process *p)
{
    return guest_is_known(p) ? json_integer((json_int_t)account(p).sent) : NULL;
}

/* It is known where what is kept begins. Of a guest that has not said yet what it has it is not: a record
 * that claimed a place would make the next daemon drop what stands before it. */
static bool is_placed(const struct process *p)
{
    bool reached = p->sent || p->maybe;
    return p->state == PROCESS_EXITED || guest_is_known(p) || !reached;
}

/* A guest that runs on may take more before this is read: with the offset that it begins at, that is seen. */
bool process_input_put(const struct process *p, json_t *body)
{
    int rc = 0;
    json_t *input = p->input_kept ? input_json(p, true) : NULL;
    if (input)
        rc |= json_object_set_new(body, "input_b64", input);
    /* Of one that was not heard yet only this much can be there already; of others all that is kept can be by
     * the time this is read. */
    if (input && p->stdin_noted && !p->noted_here)
        rc |= json_object_set_new(body, "before", json_integer((json_int_t)p->feed_before));
    bool noted = p->state == PROCESS_EXITED || p->stdin_noted;
    if ((input && is_placed(p)) || (noted && process_has_stdin(p)))
        rc |= json_object_set_new(body, "stdin", json_integer((json_int_t)account(p).taken));
    if (p->end_due)
        rc |= json_object_set_new(body, "end", json_integer((json_int_t)p->end_at));
    if (*p->writer)
        rc |= json_object_set_new(body, "writer", json_pack("[sI]", p->writer, (json_int_t)p->writer_base));
    return rc == 0;
}

/* Room is asked for by whole groups of base64. */
_Static_assert(INPUT_MAX % 3 == 0, "input that fits has to fit with its padding");
_Static_assert(SPEC_BYTES_MAX <= FEED_MAX, "an exec's own input has to fit with what its link queues");

bool process_input_set(struct process *p, const json_t *input)
{
    size_t got = 0;
    size_t n = json_string_length(input);
    buf_finish(&p->feed);
    if (n == 0)
        return true;
    void *to = n / 4 * 3 <= buf_room(&p->feed) ? buf_reserve(&p->feed, n / 4 * 3) : NULL;
    if (!to || !base64_decode(json_string_value(input), n, to, &got))
        return false;
    buf_added(&p->feed, got);
    return true;
}

void process_input_place(struct process *p, const json_t *at)
{
    p->stdin_noted = json_is_integer(at);
    p->stdin_base = p->stdin_noted ? (uint64_t)json_integer_value(at) : 0;
    p->noted_here = false;
    p->feed_before = 0;
}

void process_input_load(struct process *p, const json_t *body)
{
    const json_t *writer = json_object_get(body, "writer");
    const char *name = json_string_value(json_array_get(writer, 0));
    p->input_kept = json_object_get(body, "input_b64") != NULL;
    if (!process_input_set(p, json_object_get(body, "input_b64")))
        LOG(LOG_ERROR, "input lost: its record cannot be read", "sandbox=%s process=%s", p->b->sandbox_id,
            p->id);
    process_input_place(p, json_object_get(body, "stdin"));
    const json_t *before = json_object_get(body, "before");
    size_t n = buf_len(&p->feed);
    p->feed_before =
        before && json_integer_value(before) < (json_int_t)n ? (size_t)json_integer_value(before) : n;
    p->kept_end = process_stdin_end(p);
    p->kept_mark = UINT64_MAX;
    (void)str_copy(p->writer, sizeof(p->writer), name ? name : "");
    p->writer_base = (uint64_t)json_integer_value(json_array_get(writer, 1));
    p->end_due = json_object_get(body, "end") != NULL;
    p->end_at = (uint64_t)json_integer_value(json_object_get(body, "end"));
}

uint64_t process_input_keep(struct process *p, bool sleeps)
{
    json_t *input = p->state != PROCESS_EXITED ? process_input_json(p) : NULL;
    uint64_t sent = account(p).sent;
    if (p->input_ready) /* with a link that breaks is lost what was under way */
        p->noted_here = p->stdin_noted = sleeps;
    if (input && !process_input_set(p, input))
        abort(); /* it fits: nothing is kept that would not, together with what a link queues */
    json_decref(input);
    return sent;
}

void process_input_rest(struct process *p, uint64_t sent)
{
    if (p->state == PROCESS_EXITED)
        return;
    p->stdin_base = sent;
}

static void on_kept(void *arg, const struct error *err)
{
    struct process *p = (struct process *)((char *)arg - offsetof(struct process, kept_end));
    if (err) {
        p->keep_failed = true;
        loop_timer_start(&p->retry, RETRY_MS);
        return;
    }
    p->keep_due = false;
    p->kept_end = p->kept_next;
    readers_stdin_kept(p);
}

static void keep_asked(struct process *p)
{
    p->keep_failed = false;
    store_commit(p->s->config.store, on_kept, &p->kept_end);
}

void process_input_noted(struct process *p, bool kept)
{
    if (!kept && !p->input_kept)
        return;
    if (kept) { /* more than before, perhaps; and what the guest has asked for it is of before */
        p->kept_next = process_stdin_end(p);
        p->kept_mark = UINT64_MAX;
    }
    p->input_kept = kept;
    process_put(p);
    store_commit_cancel(p->s->config.store, &p->kept_end); /* its answer would be too early for this one */
    p->keep_failed = false;
    p->keep_due = kept;
    if (kept)
        keep_asked(p);
}

bool process_input_settling(const struct process *p)
{
    return p->keep_due && p->state != PROCESS_EXITED;
}

/* --- to the guest --- */

/* What was kept over a suspend is in the record until the guest has it. */
static void feed_given(struct process *p)
{
    if (p->input_kept && p->input_ready && buf_len(&p->feed) == 0 &&
        !guest_process_stdin_ask(p->gp, &p->kept_mark))
        process_input_noted(p, false);
}

void process_input_stays(struct process *p)
{
    if (p->gp)
        feed_given(p);
}

void process_input_feed(struct process *p)
{
    if (!p->input_ready || p->writer_due || (!p->feeding && buf_len(&p->feed) == 0))
        return;
    if (buf_len(&p->feed) > 0)
        buf_consume(&p->feed, guest_process_stdin(p->gp, buf_head(&p->feed), buf_len(&p->feed)));
    if (buf_len(&p->feed) > 0)
        return;
    feed_given(p);
    if (!p->feeding)
        return;
    guest_process_stdin_close(p->gp);
    p->feeding = false;
    p->stdin_closed = true;
}

/* --- what has to be durable first --- */

static void on_turn(void *arg, const struct error *err)
{
    struct process *p = (struct process *)((char *)arg - offsetof(struct process, writer));
    if (err) {
        p->turn_failed = true;
        loop_timer_start(&p->retry, RETRY_MS);
        return;
    }
    p->writer_due = false;
    process_input_feed(p);
    readers_stdin_room(p);
}

static void turn_asked(struct process *p)
{
    p->turn_failed = false;
    store_commit(p->s->config.store, on_turn, p->writer);
}

/* Nothing leaves for the guest before what was put of it is durable. */
static void record_first(struct process *p)
{
    if (p->writer_due) /* its answer would be too early for this one */
        store_commit_cancel(p->s->config.store, p->writer);
    p->writer_due = true;
    turn_asked(p);
}

void process_input_retry(struct process *p)
{
    if (p->turn_failed)
        turn_asked(p);
    if (p->keep_failed)
        keep_asked(p);
}

void process_input_stop(struct process *p)
{
    store_commit_cancel(p->s->config.store, p->writer);
    store_commit_cancel(p->s->config.store, &p->kept_end);
    p->writer_due = p->turn_failed = p->keep_due = p->keep_failed = false;
}

/* --- the guest is heard --- */

bool process_input_is_cut(const struct process *p)
{
    return p->end_due && !p->stdin_closed && json_object_get(p->spec, "fed") &&
           process_stdin_end(p) < p->end_at;
}

/* The end was given to an earlier daemon. With all that stands before it, it is the end; without, its client
 * has to come back, and says it again. Who gave it with the command cannot: half of it must not be taken for
 * the whole. */
static void settle_end(struct process *p)
{
    if (!p->end_due || p->stdin_closed)
        return;
    if (process_input_is_cut(p)) {
        LOG(LOG_WARN, "a command ends: its input was cut when the server was", "sandbox=%s process=%s",
            p->b->sandbox_id, p->id);
        (void)process_signal(p, "SIGKILL", true, 0, NULL, NULL, NULL);
        return;
    }
    p->end_due = false;
    p->feeding = p->stdin_closed = process_stdin_end(p) >= p->end_at;
    process_put(p);
}

void process_input_opened(struct process *p)
{
    if (p->input_ready || !p->gp || p->state == PROCESS_EXITED)
        return;
    uint64_t base = p->stdin_base;
    bool noted = p->stdin_noted;
    p->input_ready = true;
    p->noted_here = p->stdin_noted = false;
    uint64_t has = account(p).taken;
    if (noted && has > base) /* an earlier daemon gave it some of what was kept */
        buf_consume(&p->feed, has - base < p->feed_before ? (size_t)(has - base) : p->feed_before);
    p->feed_before = 0;
    if (p->input_kept && (!noted || buf_len(&p->feed) == 0))
        /* The record can say now where what it keeps stands, or needs to keep nothing any more. */
        process_input_noted(p, buf_len(&p->feed) > 0);
    else if (noted)
        process_put(p); /* from here on the guest has more than was noted */
    if (buf_len(&p->feed) > 0 && (noted || p->input_kept))
        record_first(p); /* a record that does not say where it stands would give it again */
    settle_end(p);
    process_input_feed(p);
    readers_stdin_room(p);
}

void process_input_arrived(struct process *p, uint64_t mark)
{
    if (p->input_kept && buf_len(&p->feed) == 0 && mark >= p->kept_mark)
        process_input_noted(p, false);
    if (!p->feeding && mark > account(p).end)
        p->end_due = false;
}

/* --- whose turn it is --- */

static void take_turn(struct process *p, const char *writer)
{
    uint64_t at = process_stdin_end(p);
    bool own = str_eq(p->writer, writer);
    /* What came before its turn may have been lost with an earlier daemon: then it begins earlier now. */
    if (own && (!*writer || at >= p->writer_base))
        return;
    (void)str_copy(p->writer, sizeof(p->writer), writer);
    p->writer_base = at;
    process_put(p);
    record_first(p);
}

/* Two who wait do not take it from each other while it is being recorded: whose it becomes may give first. */
static void ask_for_turn(struct process *p, const char *writer)
{
    if (!p->writer_due || str_eq(p->writer, writer))
        take_turn(p, writer);
}

/* --- requests --- */

static int check_has(const struct process *p, struct error *err)
{
    int rc = process_check_running(p, err);
    if (rc < 0)
        return rc;
    if (!process_has_stdin(p))
        return error_set(err, ERROR_CONFLICT, "process %s was started without stdin", p->id);
    return 0;
}

static int check_open(const struct process *p, struct error *err)
{
    if (p->stdin_closed || p->feeding)
        return error_set(err, ERROR_CONFLICT, "the stdin of process %s is closed", p->id);
    return 0;
}

static int check_stdin(const struct process *p, struct error *err)
{
    int rc = check_has(p, err);
    return rc < 0 ? rc : check_open(p, err);
}

static size_t give(struct process *p, const void *data, size_t n)
{
    bool now = p->input_ready && !p->writer_due && n > 0 && buf_len(&p->feed) == 0;
    return now ? guest_process_stdin(p->gp, data, n) : 0;
}

int process_stdin(struct process *p, const void *data, size_t n, size_t *ret_taken, struct error *err)
{
    int rc = check_stdin(p, err);
    if (rc < 0)
        return rc;
    if (n > 0)
        ask_for_turn(p, "");
    *ret_taken = give(p, data, n);
    return 0;
}

/* Where a client that states its place may write, or end. */
static int check_place(const struct process *p, const char *writer, uint64_t offset, struct error *err)
{
    uint64_t end = process_stdin_end(p);
    bool own = str_eq(p->writer, writer) && offset >= p->writer_base;
    if (offset == end || (offset < end && own))
        return 0;
    return error_set(err, ERROR_CONFLICT,
                     offset < end ? "the stdin of process %s has %llu bytes, and those from %llu on are not "
                                    "all this client's"
                                  : "the stdin of process %s has %llu bytes, and this client goes on at %llu",
                     p->id, (unsigned long long)end, (unsigned long long)offset);
}

int process_stdin_at(struct process *p, const char *writer, uint64_t offset, const void *data, size_t n,
                     size_t *ret_taken, struct error *err)
{
    int rc = check_has(p, err);
    if (rc < 0)
        return rc;
    *ret_taken = 0;
    if (!process_stdin_known(p))
        return 0;
    rc = check_place(p, writer, offset, err);
    uint64_t had = process_stdin_end(p) - offset;
    if (rc < 0 || n == 0)
        return rc;
    if (had >= n) {
        *ret_taken = n;
        return 0;
    }
    rc = check_open(p, err);
    if (rc < 0)
        return rc;
    ask_for_turn(p, writer);
    *ret_taken = (size_t)had + give(p, (const char *)data + had, n - (size_t)had);
    return 0;
}

/* Nothing comes before an end that its client has stated a place for, or has to state again. */
static bool may_keep(const struct process *p)
{
    return check_stdin(p, NULL) == 0 && !p->end_due;
}

/* Appends to what goes before any other; the rest of what does not fit is not taken. */
static bool keep(struct process *p, const void *data, size_t size)
{
    size_t n = size;
    size_t used = buf_len(&p->feed);
    size_t room = used < FEED_MAX ? FEED_MAX - used : 0;
    n = n < room ? n : room;
    if (n == 0 || !buf_append(&p->feed, data, n))
        return false;
    if (p->gp)
        process_input_feed(p); /* the rest when there is room */
    else
        process_input_noted(p, true);
    return n == size;
}

bool process_stdin_keep(struct process *p, const void *data, size_t n)
{
    if (!may_keep(p))
        return false;
    take_turn(p, "");
    return keep(p, data, n);
}

bool process_stdin_keep_at(struct process *p, const char *writer, uint64_t offset, const void *data, size_t n)
{
    size_t had = 0;
    if (!may_keep(p) || !process_stdin_known(p) ||
        process_stdin_at(p, writer, offset, data, n, &had, NULL) < 0)
        return false;
    if (had == n)
        return true;
    take_turn(p, writer);
    return keep(p, (const char *)data + had, n - had);
}

int process_stdin_close(struct process *p, struct error *err)
{
    int rc = check_stdin(p, err);
    if (rc < 0)
        return rc;
    p->stdin_closed = true;
    p->feeding = true; /* closed once that is durable, there is a link, and what comes before is given */
    process_put(p);
    record_first(p);
    return 0;
}

int process_stdin_close_at(struct process *p, const char *writer, uint64_t offset, struct error *err)
{
    int rc = check_has(p, err);
    if (rc == 0)
        rc = check_place(p, writer, offset, err);
    if (rc == 0 && offset < process_stdin_end(p))
        rc = error_set(err, ERROR_CONFLICT, "the stdin of process %s goes on behind that", p->id);
    if (rc < 0 || check_open(p, NULL) < 0)
        return rc;
    /* Who states its place comes back when the guest has not all of it. */
    p->end_due = true;
    p->end_at = offset;
    return process_stdin_close(p, err);
}

bool process_stdin_waits(struct process *p, uint64_t *ret_mark)
{
    /* One that starts takes input before it is known to run. */
    bool asks = p->state != PROCESS_EXITED && p->gp;
    return asks && guest_process_stdin_ask(p->gp, ret_mark);
}

bool process_stdin_is_here(const struct process *p)
{
    return p->state != PROCESS_EXITED && p->start_wanted && (!p->gp || buf_len(&p->feed) > 0);
}

bool process_stdin_end_waits(const struct process *p)
{
    return p->feeding && p->writer_due;
}
