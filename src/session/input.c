/* Input that was taken from clients and has not reached the guest: it goes where the process goes, into a
 * suspend, a snapshot, a copy. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "session/base64.h"
#include "session/session_impl.h"

/* Parts in order: what the link has queued, then what was not given to it. */
json_t *process_input_json(const struct process *p)
{
    bool close = false;
    const void *queued = NULL;
    size_t first = p->gp ? guest_process_unsent(p->gp, &queued, &close) : 0;
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

/* Room is asked for by whole groups of base64. */
_Static_assert(INPUT_MAX % 3 == 0, "input that fits has to fit with its padding");

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

void process_input_keep(struct process *p)
{
    json_t *input = p->state != PROCESS_EXITED ? process_input_json(p) : NULL;
    if (input && !process_input_set(p, input))
        abort(); /* it fits: a link queues less than what is beyond a command's own input */
    json_decref(input);
}

void process_input_noted(struct process *p, bool kept)
{
    if (p->input_kept == kept)
        return;
    p->input_kept = kept;
    process_put(p);
}
