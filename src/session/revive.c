/* What a snapshot keeps of processes, and how a sandbox goes on from it.
 *
 * Doing it again is the same as doing it once: what is in the snapshot says what each process is to be, and a
 * copy for a new sandbox is found again by its origin. The records are put in one turn of the loop, so a
 * crash leaves all of them or none. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "session/session_impl.h"

#define DOCUMENT_VERSION 1

/* --- capture --- */

/* Its guest has it, or may have it. */
static bool in_guest(const struct process *p)
{
    return p->state == PROCESS_RUNNING || (p->state == PROCESS_CREATED && p->start_wanted && p->sent);
}

/* A command that runs needs its environment no more; one that may have to be asked for again does. */
static json_t *capture_spec(const struct process *p)
{
    json_t *spec = json_copy(p->spec);
    if (spec && p->state == PROCESS_RUNNING)
        (void)json_object_del(spec, "env");
    return spec;
}

static json_t *capture_one(struct process *p)
{
    for (unsigned i = 0; i < STREAMS; i++)
        stream_open(p, i);
    return json_pack("{so* so* ss ss sb sb so sI sI sI sI sI sI sI sI}", "input_b64", process_input_json(p),
                     "stdin", process_input_at(p), "id", p->id, "guest_id", process_guest_id(p), "running",
                     p->state == PROCESS_RUNNING, "stdin_closed", p->stdin_closed || p->feeding, "spec",
                     capture_spec(p), "pid", (json_int_t)p->pid, "seq", (json_int_t)p->seq, "journal_bytes",
                     (json_int_t)p->journal_bytes, "created_ms", (json_int_t)p->created_ms, "started_ms",
                     (json_int_t)p->started_ms, "branch", (json_int_t)p->branch, "stdout",
                     (json_int_t)stream_end(p, 0), "stderr", (json_int_t)stream_end(p, 1));
}

json_t *sessions_capture(struct sessions *s, const struct sandbox *sb)
{
    struct process *p;
    struct bucket *b = bucket_find(s, sandbox_id(sb));
    bool suspends = sandbox_state(sb) == SANDBOX_SUSPENDING;
    json_t *list = json_array();
    DL_FOREACH(b ? b->head : NULL, p)
    {
        if (!in_guest(p))
            continue;
        if (json_array_append_new(list, capture_one(p)) < 0)
            abort(); /* a snapshot that forgot a process would end it */
        for (unsigned i = 0; i < STREAMS; i++)
            p->stream[i].floor = stream_end(p, i);
        if (!suspends)
            continue;
        /* A host that crashes before it is restored may lose what the journals say, a server that is killed
         * the input. */
        json_t *input = process_input_json(p);
        process_input_noted(p, input || p->input_kept); /* what was told as taken stays that */
        if (!p->input_kept)
            process_put(p);
        json_decref(input);
    }
    json_t *document = json_pack("{si so}", "v", DOCUMENT_VERSION, "processes", list);
    if (!document)
        abort();
    return document;
}

/* --- reading it --- */

struct entry {
    const char *id;
    const char *guest_id;
    int running;
    int stdin_closed;
    json_t *spec;
    json_t *input;    /* NULL: none */
    json_t *stdin_at; /* where that begins; NULL: a snapshot of an earlier release */
    json_int_t pid, seq, journal_bytes, created_ms, started_ms, branch, at[STREAMS];
};

static int entry_read(json_t *o, struct entry *e, struct error *err)
{
    int rc = json_unpack(o, "{ss ss sb sb so sI sI sI sI sI sI sI sI}", "id", &e->id, "guest_id",
                         &e->guest_id, "running", &e->running, "stdin_closed", &e->stdin_closed, "spec",
                         &e->spec, "pid", &e->pid, "seq", &e->seq, "journal_bytes", &e->journal_bytes,
                         "created_ms", &e->created_ms, "started_ms", &e->started_ms, "branch", &e->branch,
                         "stdout", &e->at[0], "stderr", &e->at[1]);
    e->input = json_object_get(o, "input_b64");
    e->stdin_at = json_object_get(o, "stdin");
    if (rc == 0 && id_valid(e->id, "pr") && id_valid(e->guest_id, "pr") && json_is_object(e->spec) &&
        e->at[0] >= 0 && e->at[1] >= 0)
        return 0;
    return error_set(err, ERROR_INTERNAL, "what the snapshot keeps of its processes cannot be read");
}

/* The entries, newest first; *ret_list stays NULL when there are none. */
static int document_read(const json_t *document, const json_t **ret_list, struct error *err)
{
    struct entry e;
    size_t i;
    json_t *o;
    const json_t *list = json_object_get(document, "processes");
    if (!document || json_is_null(document))
        return 0;
    if (json_integer_value(json_object_get(document, "v")) != DOCUMENT_VERSION || !json_is_array(list))
        return error_set(err, ERROR_INTERNAL, "what the snapshot keeps of its processes has another version");
    json_array_foreach(list, i, o)
    {
        int rc = entry_read(o, &e, err);
        if (rc < 0)
            return rc;
    }
    *ret_list = list;
    return 0;
}

/* --- one process --- */

static struct process *find_id(struct sessions *s, const char *id)
{
    struct process *p = NULL;
    HASH_FIND_STR(s->processes, id, p);
    return p;
}

static struct process *find_copy(struct bucket *b, const char *origin)
{
    struct process *p;
    DL_FOREACH(b->head, p)
    {
        if (str_eq(p->origin, origin))
            return p;
    }
    return NULL;
}

static int make(struct sessions *s, struct bucket *b, const struct entry *e, bool in_place,
                struct process **ret, struct error *err)
{
    size_t bytes = spec_size(e->spec);
    int rc = bucket_room(b, bytes, err);
    struct process *p = rc == 0 ? calloc(1, sizeof(*p)) : NULL;
    if (!p)
        return rc < 0 ? rc : error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (in_place)
        (void)str_copy(p->id, sizeof(p->id), e->id);
    else
        id_new("pr", p->id);
    p->spec_bytes = bytes;
    p->seq = in_place ? (uint64_t)e->seq : s->seq;
    process_link(s, b, p);
    *ret = p;
    return 0;
}

static void set_live(struct process *p)
{
    if (p->start_wanted && p->state != PROCESS_EXITED)
        return;
    p->b->live++;
    p->s->live++;
}

/* Makes it what it was. Its streams are not touched. */
static void set_state(struct process *p, const struct entry *e)
{
    process_detach(p);
    set_live(p);
    json_decref(p->result);
    p->result = NULL;
    json_decref(p->spec);
    p->spec = json_deep_copy(e->spec);
    if (!p->spec)
        abort(); /* as any record that cannot be made */
    (void)str_copy(p->guest_id, sizeof(p->guest_id), str_eq(e->guest_id, p->id) ? "" : e->guest_id);
    p->state = e->running ? PROCESS_RUNNING : PROCESS_CREATED;
    p->start_wanted = true;
    p->sent = e->running != 0;
    p->maybe = !p->sent;
    p->stdin_closed = e->stdin_closed != 0;
    p->brief = p->adopted = p->owed = p->durable = p->warned = p->feeding = false;
    if (!process_input_set(p, e->input))
        LOG(LOG_WARN, "input lost", "sandbox=%s process=%s", p->b->sandbox_id, p->id);
    p->input_kept = buf_len(&p->feed) > 0;
    process_input_place(p, e->stdin_at);
    p->kept_end = 0; /* before all this is durable nothing of it is told */
    p->kept_mark = UINT64_MAX;
    *p->writer = '\0'; /* nobody can come back to bytes of another time */
    p->end_due = false;
    p->pid = (uint32_t)e->pid;
    p->journal_bytes = (uint64_t)e->journal_bytes;
    p->created_ms = e->created_ms;
    p->started_ms = e->started_ms;
    p->finished_ms = 0;
}

/* from: the process whose journals hold its output so far; NULL: none does any more. */
static int set_streams(struct process *p, struct process *from, const struct entry *e, struct error *err)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        int rc = stream_revive(p, i, from, e->branch, (uint64_t)e->at[i], err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Branches count up and are not used twice, not even when the process was forgotten in between. */
static void branch_off(struct process *p, const struct entry *e)
{
    const uint64_t at[STREAMS] = {(uint64_t)e->at[0], (uint64_t)e->at[1]};
    int64_t branch = clock_wall_ms();
    if (branch <= p->branch)
        branch = p->branch + 1;
    if (branch <= e->branch)
        branch = e->branch + 1;
    streams_branch(p, branch, at);
}

/* --- rollback --- */

static int go_back(struct process *p, bool fresh, const struct entry *e, struct error *err)
{
    int rc = set_streams(p, fresh ? NULL : p, e, err);
    if (rc < 0)
        return rc;
    set_state(p, e);
    branch_off(p, e);
    p->revived = true;
    process_put(p);
    readers_rolled_back(p);
    return 0;
}

/* Those that are still known first: making the others may push out what is not marked yet. */
static int go_back_all(struct sessions *s, struct bucket *b, const json_t *list, bool known,
                       struct error *err)
{
    struct entry e;
    for (size_t i = json_array_size(list); i-- > 0;) {
        int rc = entry_read(json_array_get(list, i), &e, err);
        struct process *p = rc == 0 ? find_id(s, e.id) : NULL;
        if (rc == 0 && known != (p != NULL))
            continue;
        if (rc == 0 && p && p->b != b)
            rc = error_set(err, ERROR_INTERNAL, "process %s is of another sandbox", e.id);
        if (rc == 0 && !p)
            rc = make(s, b, &e, true, &p, err);
        if (rc == 0)
            rc = go_back(p, !known, &e, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static void end_later_ones(struct bucket *b)
{
    struct process *p;
    DL_FOREACH(b->head, p)
    {
        bool reached = p->sent || p->state == PROCESS_RUNNING || stream_end(p, 0) > 0 || stream_end(p, 1) > 0;
        if (!p->revived && p->state != PROCESS_EXITED && reached)
            process_end_gone(p, "rolled back");
    }
}

static int revive_in_place(struct sessions *s, struct bucket *b, const json_t *list, struct error *err)
{
    struct process *p;
    DL_FOREACH(b->head, p)
    p->revived = false;
    int rc = go_back_all(s, b, list, true, err);
    if (rc == 0)
        rc = go_back_all(s, b, list, false, err);
    if (rc == 0)
        end_later_ones(b);
    bucket_sort(b);
    return rc;
}

/* --- a new sandbox --- */

static int copy_one(struct sessions *s, struct bucket *b, const struct entry *e, struct process **ret,
                    struct error *err)
{
    struct process *p = find_copy(b, e->id);
    struct process *from = find_id(s, e->id);
    bool fresh = !p;
    int rc = fresh ? make(s, b, e, false, &p, err) : 0;
    if (rc < 0)
        return rc;
    rc = set_streams(p, from == p ? NULL : from, e, err);
    if (rc < 0) {
        if (fresh)
            process_forget(p);
        return rc;
    }
    set_state(p, e);
    (void)str_copy(p->origin, sizeof(p->origin), e->id);
    process_put(p);
    *ret = p;
    return 0;
}

/* What a start that came to nothing has left: no record names it. */
static void remove_leftovers(struct sessions *s, const struct bucket *b)
{
    struct error err = ERROR_INIT;
    if (!b->head && fs_remove_tree(s->dir_fd, b->sandbox_id, &err) < 0)
        LOG(LOG_WARN, "journals not removed", "sandbox=%s reason=" LOG_Q, b->sandbox_id, err.message);
}

static int revive_copies(struct sessions *s, struct bucket *b, const json_t *list, json_t *ids,
                         struct error *err)
{
    struct entry e;
    remove_leftovers(s, b);
    for (size_t i = json_array_size(list); i-- > 0;) {
        struct process *p = NULL;
        int rc = entry_read(json_array_get(list, i), &e, err);
        if (rc == 0)
            rc = copy_one(s, b, &e, &p, err);
        if (rc < 0)
            return rc;
        (void)json_object_set_new(ids, e.id, json_string(p->id));
    }
    return 0;
}

static void keep_ids(const json_t *list, json_t *ids)
{
    size_t i;
    json_t *o;
    json_array_foreach(list, i, o)
    {
        const char *id = json_string_value(json_object_get(o, "id"));
        (void)json_object_set_new(ids, id, json_string(id));
    }
}

int sessions_revive(struct sessions *s, const struct sandbox *sb, const json_t *processes, bool in_place,
                    json_t **ret_ids, struct error *err)
{
    const json_t *list = NULL;
    int rc = document_read(processes, &list, err);
    if (rc < 0)
        return rc;
    struct bucket *b = bucket_get(s, sandbox_id(sb));
    json_t *ids = b ? json_object() : NULL;
    if (!ids)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (in_place) {
        rc = revive_in_place(s, b, list, err);
        keep_ids(list, ids);
    } else {
        rc = revive_copies(s, b, list, ids, err);
    }
    if (rc == 0 && ret_ids)
        *ret_ids = json_incref(ids);
    json_decref(ids);
    return rc;
}
