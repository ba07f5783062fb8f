/* The bound over all journals of a sandbox: what has ended gives way first, the oldest first; then the
 * journal that holds the most. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "session/session_impl.h"

void stream_count(struct process *p, unsigned i)
{
    struct stream *st = &p->stream[i];
    stream_count_as(p, i, st->j ? journal_end(st->j) - journal_start(st->j) : 0);
}

void stream_count_as(struct process *p, unsigned i, uint64_t kept)
{
    p->b->kept += kept - p->stream[i].kept;
    p->stream[i].kept = kept;
}

static struct process *oldest_ended(struct bucket *b)
{
    struct process *p = b->head ? b->head->prev : NULL; /* the tail */
    while (p && (p->state != PROCESS_EXITED || p->stream[0].kept + p->stream[1].kept == 0))
        p = p == b->head ? NULL : p->prev;
    return p;
}

/* The journal that holds the most. */
static struct process *largest(struct bucket *b, unsigned *ret_i)
{
    uint64_t most = 0;
    struct process *p;
    struct process *found = NULL;
    DL_FOREACH(b->head, p)
    {
        for (unsigned i = 0; i < STREAMS; i++) {
            if (!p->stream[i].j || p->stream[i].kept <= most)
                continue;
            most = p->stream[i].kept;
            found = p;
            *ret_i = i;
        }
    }
    return found;
}

/* Drops the oldest bytes of one journal, a step at least, so that this is not done for every piece. */
static bool shorten(struct process *p, unsigned i, uint64_t n)
{
    struct journal *j = p->stream[i].j;
    uint64_t least = journal_step(j);
    n = n < least ? least : n;
    n = n > p->stream[i].kept ? p->stream[i].kept : n;
    bool dropped = journal_drop(j, journal_start(j) + n);
    stream_count(p, i);
    return dropped;
}

void bucket_trim(struct bucket *b)
{
    uint64_t most = b->head ? b->head->s->config.journal_sandbox_bytes : UINT64_MAX;
    while (b->kept > most) {
        unsigned i = 0;
        struct process *p = oldest_ended(b);
        if (p) {
            streams_evict(p);
            continue;
        }
        p = largest(b, &i);
        if (!p || !shorten(p, i, b->kept - most))
            break; /* the disk refuses; the next piece tries again */
    }
}

uint64_t bucket_share(const struct bucket *b)
{
    uint64_t most = b->head->s->config.journal_sandbox_bytes;
    return most / (STREAMS * (b->live ? b->live : 1));
}

/* --- after a restart --- */

/* "pr_....stdout": its process, and the stream. */
static struct process *owner(struct sessions *s, const char *name, unsigned *ret_i)
{
    char id[ID_SIZE];
    struct process *p = NULL;
    const char *dot = strchr(name, '.');
    if (!dot || (size_t)(dot - name) >= sizeof(id))
        return NULL;
    memcpy(id, name, (size_t)(dot - name));
    id[dot - name] = '\0';
    for (*ret_i = 0; *ret_i < STREAMS && strcmp(dot + 1, stream_suffix(*ret_i)) != 0;)
        ++*ret_i;
    if (*ret_i < STREAMS)
        HASH_FIND_STR(s->processes, id, p);
    return p;
}

void bucket_measure(struct sessions *s, const struct bucket *b)
{
    AUTO_CLOSEDIR DIR *dir = fs_open_dir(s->dir_fd, b->sandbox_id);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
        unsigned i = 0;
        struct stat st;
        struct process *p = owner(s, e->d_name, &i);
        if (!p || p->b != b || fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        /* What was dropped for the sake of the bound is a hole. */
        uint64_t size = st.st_size > JOURNAL_HEADER ? (uint64_t)st.st_size - JOURNAL_HEADER : 0;
        uint64_t blocks = (uint64_t)st.st_blocks * 512;
        stream_count_as(p, i, size < blocks ? size : blocks);
    }
}
