/* GET of an archive: a tar stream, or one packed by zstd. (PUT is in files_write.c.) */
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "data/files.h"
#include "data/text.h"
#include "data/zstream.h"

struct archive_call {
    struct file_call f; /* first */
    bool head_only;
    const char *type;
    struct zpack *z; /* NULL: as it comes */
};

static void archive_finish(struct file_call *f)
{
    struct archive_call *c = (struct archive_call *)f;
    if (c->z && f->call.d)
        f->call.d->zstd_streams--;
    zpack_destroy(TAKE(c->z));
}

/* Packs until there is something to send. */
static ssize_t packed_fill(struct http_request *r, void *to, size_t max)
{
    struct archive_call *c = http_data(r);
    struct file_call *f = &c->f;
    while (!f->broken && !zpack_ended(c->z)) {
        size_t n = buf_len(&f->queue);
        size_t taken = 0;
        long out = zpack_step(c->z, buf_head(&f->queue), n, f->ended, &taken, to, max);
        if (out < 0)
            return -2;
        buf_consume(&f->queue, taken);
        if (f->file && taken > 0)
            guest_file_taken(f->file, taken);
        if (out > 0)
            return out;
        if (!f->ended && taken == n)
            return 0;
    }
    return f->broken ? -2 : -1;
}

static void start_answer(struct file_call *f)
{
    struct archive_call *c = (struct archive_call *)f;
    struct http_request *r = c->f.call.r;
    c->f.streaming = true;
    http_add_header(r, "Vary", "Accept");
    http_stream_start(r, 200, c->type, FILE_TO_END,
                      c->head_only ? file_no_fill
                      : c->z       ? packed_fill
                                   : file_fill);
}

static void archive_opened(void *arg, const struct guest_stat *st)
{
    struct archive_call *c = arg;
    (void)st;
    if (!c->f.streaming && !c->f.over)
        start_answer(&c->f);
}

static const struct guest_read_events archive_events = {
    .opened = archive_opened, .data = file_data, .done = file_done};

static void archive_running(struct data_call *call, struct sandbox *sb)
{
    struct archive_call *c = (struct archive_call *)call;
    struct file_call *f = &c->f;
    struct guest *g = sandbox_guest_link(sb);
    struct error err = ERROR_INIT;
    if (c->head_only) {
        file_head(f, g, start_answer);
        return;
    }
    data_call_busy(call, true);
    if (guest_archive_read(g, f->user, f->path, &archive_events, c, &f->file, &err) < 0)
        data_call_fail(call, &err);
}

/* The type that the client likes best; of those it likes alike, the first. */
static int choose_type(struct archive_call *c, bool *ret_packed, struct error *err)
{
    static const struct {
        const char *type;
        bool packed;
    } offers[] = {
        {"application/x-tar", false},
        {"application/x-tar+zstd", true},
        {"application/zstd", true},
    };
    const char *accept = http_header(c->f.call.r, "Accept");
    unsigned best = 0;
    for (size_t i = 0; i < ARRAY_LEN(offers); i++) {
        unsigned quality = accept_quality(accept, offers[i].type);
        if (quality <= best)
            continue;
        best = quality;
        c->type = offers[i].type;
        *ret_packed = offers[i].packed;
    }
    if (best == 0)
        return error_field(err, ERROR_UNSUPPORTED, "Accept",
                           "an archive is application/x-tar, or application/x-tar+zstd or application/zstd");
    return 0;
}

static int start_packing(struct archive_call *c, struct error *err)
{
    struct data *d = c->f.call.d;
    if (d->zstd_streams >= DATA_ZSTD_MAX)
        return error_set(err, ERROR_CAPACITY, "%u archives are being packed or unpacked already",
                         d->zstd_streams);
    int rc = zpack_create(&c->z, err);
    if (rc == 0)
        d->zstd_streams++;
    return rc;
}

void archive_get(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    bool packed = false;
    struct archive_call *c = (struct archive_call *)file_call_new(sizeof(*c), arg, r);
    if (!c)
        return;
    c->f.finish = archive_finish;
    c->f.left = FILE_TO_END;
    c->head_only = str_eq(http_method(r), "HEAD");
    int rc = choose_type(c, &packed, &err);
    if (rc == 0 && packed && !c->head_only)
        rc = start_packing(c, &err);
    if (rc < 0)
        data_call_fail(&c->f.call, &err);
    else
        data_call_when_running(&c->f.call, archive_running);
}
