/* What is streamed from the client: PUT of a file, PUT of an archive. */
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "data/files.h"
#include "data/text.h"
#include "data/zstream.h"

struct write_call {
    struct file_call f; /* first */
    uint32_t mode;
    bool parents;
    char *owner; /* owned; NULL: as it is */
    bool archive;
    bool ended;                 /* the whole body has been given */
    struct zunpack *z;          /* NULL: the body is what is written */
    const unsigned char *piece; /* unpacked, not taken by the guest yet */
    size_t piece_n;
};

static void write_finish(struct file_call *f)
{
    struct write_call *c = (struct write_call *)f;
    if (c->z && f->call.d)
        f->call.d->zstd_streams--;
    zunpack_destroy(TAKE(c->z));
    free(TAKE(c->owner));
}

/* --- unpacking on the way --- */

/* Gives the guest what was unpacked; whether it took all of it. */
static bool push_piece(struct write_call *c)
{
    size_t taken = c->piece_n ? guest_file_push(c->f.file, c->piece, c->piece_n) : 0;
    c->piece += taken;
    c->piece_n -= taken;
    return c->piece_n == 0;
}

/* Returns how much of the body was taken. However much it stands for, no more is unpacked than the guest
 * takes and one piece. */
static size_t push_packed(struct write_call *c, const unsigned char *data, size_t n)
{
    size_t used = 0;
    struct error err = ERROR_INIT;
    while (push_piece(c)) {
        size_t taken;
        const void *out;
        if (zunpack_step(c->z, data ? data + used : NULL, n - used, &taken, &out, &c->piece_n, &err) < 0) {
            file_fail(&c->f, &err);
            return n;
        }
        c->piece = out;
        used += taken;
        if (c->piece_n == 0 && used == n)
            break;
    }
    return used;
}

static void commit(struct write_call *c)
{
    struct error err = ERROR_INIT;
    if (c->z)
        (void)push_packed(c, NULL, 0);
    if (c->f.over || c->piece_n > 0)
        return; /* refused, or the guest has no room: it goes on when there is */
    if (c->z && !zunpack_whole(c->z)) {
        (void)error_set(&err, ERROR_INVALID, "the zstd stream ends in the middle of a frame");
        file_fail(&c->f, &err);
        return;
    }
    guest_file_commit(c->f.file);
}

/* --- the body --- */

static size_t write_data(struct http_request *r, const void *data, size_t n)
{
    struct write_call *c = http_data(r);
    if (c->f.over)
        return n;
    if (!c->f.file)
        return 0; /* it waits for the sandbox */
    return c->z ? push_packed(c, data, n) : guest_file_push(c->f.file, data, n);
}

static void write_end(struct http_request *r)
{
    struct write_call *c = http_data(r);
    c->ended = true;
    if (c->f.file && !c->f.over)
        commit(c);
}

static const struct http_body_events write_body = {.data = write_data, .end = write_end};

static void write_room(void *arg)
{
    struct write_call *c = arg;
    if (c->f.over || !c->f.call.r)
        return;
    if (c->ended)
        commit(c);
    else
        http_body_resume(c->f.call.r);
}

static void write_done(void *arg, const struct error *err, const struct guest_stat *st)
{
    struct write_call *c = arg;
    struct file_call *f = &c->f;
    char etag[FILE_ETAG_SIZE];
    if (err) {
        file_fail(f, err);
        return;
    }
    if (f->over)
        return;
    f->over = true;
    file_etag(st, etag);
    if (!c->archive)
        http_add_header(f->call.r, "ETag", etag);
    http_reply_json(f->call.r, 200, file_json_stat(f->path, st));
}

static const struct guest_write_events write_events = {.room = write_room, .done = write_done};

static void write_running(struct data_call *call, struct sandbox *sb)
{
    struct write_call *c = (struct write_call *)call;
    struct file_call *f = &c->f;
    struct guest *g = sandbox_guest_link(sb);
    struct error err = ERROR_INIT;
    struct guest_write w = {
        .user = f->user, .path = f->path, .mode = c->mode, .parents = c->parents, .owner = c->owner};
    data_call_busy(call, true);
    int rc = c->archive ? guest_archive_write(g, &w, &write_events, c, &f->file, &err)
                        : guest_file_write(g, &w, &write_events, c, &f->file, &err);
    if (rc < 0)
        data_call_fail(call, &err);
    else if (c->ended)
        commit(c); /* an empty body was over before the sandbox ran */
    else
        http_body_resume(call->r);
}

/* --- requests --- */

static int read_mode(struct http_request *r, uint32_t *ret, struct error *err)
{
    const char *mode = http_query(r, "mode");
    if (mode && !mode_parse(mode, ret))
        return error_field(err, ERROR_INVALID, "mode", "mode is octal, at most 7777");
    return 0;
}

static int read_owner(struct http_request *r, char **ret, struct error *err)
{
    const char *owner = http_query(r, "owner");
    int rc = file_owner_check(owner, err);
    if (rc == 0 && owner && !(*ret = strdup(owner)))
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    return rc;
}

static bool is_plain(const char *encoding)
{
    return !encoding || !*encoding || strcasecmp(encoding, "identity") == 0;
}

/* Whether an archive's body is packed, by its type and its encoding; ERROR_MEDIA_TYPE for what is not read.
 */
static int read_packed(struct http_request *r, bool *ret, struct error *err)
{
    const char *type = http_header(r, "Content-Type");
    const char *encoding = http_header(r, "Content-Encoding");
    bool zstd = media_is(type, "application/zstd") || media_is(type, "application/x-tar+zstd");
    bool encoded = encoding && strcasecmp(encoding, "zstd") == 0;
    if (type && *type && !zstd && !media_is(type, "application/x-tar") &&
        !media_is(type, "application/octet-stream"))
        return error_field(err, ERROR_MEDIA_TYPE, "Content-Type",
                           "an archive is application/x-tar, or application/x-tar+zstd or application/zstd");
    if (!encoded && !is_plain(encoding))
        return error_field(err, ERROR_MEDIA_TYPE, "Content-Encoding", "the only Content-Encoding is zstd");
    if (zstd && encoded)
        return error_field(err, ERROR_MEDIA_TYPE, "Content-Encoding",
                           "the archive is said to be packed twice, by its type and by its encoding");
    *ret = zstd || encoded;
    return 0;
}

static int start_unpacking(struct write_call *c, struct error *err)
{
    struct data *d = c->f.call.d;
    if (d->zstd_streams >= DATA_ZSTD_MAX)
        return error_set(err, ERROR_CAPACITY, "%u archives are being packed or unpacked already",
                         d->zstd_streams);
    int rc = zunpack_create(&c->z, err);
    if (rc == 0)
        d->zstd_streams++;
    return rc;
}

static struct write_call *write_call_new(struct data *d, struct http_request *r, struct error *err)
{
    struct write_call *c = (struct write_call *)file_call_new(sizeof(*c), d, r);
    if (!c)
        return NULL;
    c->f.finish = write_finish;
    c->mode = UINT32_MAX;
    int rc = http_query_flag(r, "parents", &c->parents, err);
    if (rc == 0)
        (void)read_owner(r, &c->owner, err);
    return c;
}

static void write_start(struct write_call *c, const struct error *err)
{
    if (err->code) {
        data_call_fail(&c->f.call, err);
        return;
    }
    http_body_start(c->f.call.r, &write_body);
    data_call_when_running(&c->f.call, write_running);
}

void file_put(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    struct write_call *c = write_call_new(arg, r, &err);
    if (!c)
        return;
    if (!err.code)
        (void)read_mode(r, &c->mode, &err);
    if (!err.code && !is_plain(http_header(r, "Content-Encoding")))
        (void)error_field(&err, ERROR_MEDIA_TYPE, "Content-Encoding",
                          "a file is taken without Content-Encoding");
    write_start(c, &err);
}

void archive_put(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    bool packed = false;
    struct write_call *c = write_call_new(arg, r, &err);
    if (!c)
        return;
    c->archive = true;
    if (!err.code)
        (void)read_packed(r, &packed, &err);
    if (packed)
        (void)start_unpacking(c, &err);
    write_start(c, &err);
}
