/* Archives on their way to a build: written by the HTTP layer, whole or gone, used once, within an hour. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"
#include "template/private.h"

struct template_upload {
    struct templates *t;
    char id[ID_SIZE];
    int fd;
    uint64_t bytes;
};

static void forget(struct templates *t, struct upload_file *f)
{
    (void)unlinkat(t->upload_fd, f->id, 0);
    f->id[0] = '\0';
}

static void expire(struct templates *t)
{
    int64_t now = clock_mono_ns();
    for (unsigned i = 0; i < UPLOADS_KEPT_MAX; i++)
        if (t->uploads[i].id[0] && t->uploads[i].until_ns <= now)
            forget(t, &t->uploads[i]);
}

static struct upload_file *find(struct templates *t, const char *id)
{
    for (unsigned i = 0; i < UPLOADS_KEPT_MAX; i++)
        if (strcmp(t->uploads[i].id, id) == 0)
            return &t->uploads[i];
    return NULL;
}

int templates_upload_begin(struct templates *t, struct template_upload **ret, struct error *err)
{
    expire(t);
    if (t->uploads_open >= UPLOADS_OPEN_MAX)
        return error_set(err, ERROR_CAPACITY, "%u archives are being uploaded and the server allows %d",
                         t->uploads_open, UPLOADS_OPEN_MAX);
    if (!find(t, ""))
        return error_set(err, ERROR_CAPACITY, "%d uploaded archives wait for their build", UPLOADS_KEPT_MAX);
    struct template_upload *u = calloc(1, sizeof(*u));
    if (!u)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    u->t = t;
    id_new("up", u->id);
    u->fd = openat(t->upload_fd, u->id, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (u->fd < 0) {
        int saved = errno;
        free(u);
        return error_errno(err, ERROR_INTERNAL, saved, "create a file for the upload");
    }
    t->uploads_open++;
    *ret = u;
    return 0;
}

int templates_upload_write(struct template_upload *u, const void *data, size_t n, struct error *err)
{
    uint64_t max = u->t->config.upload_max_bytes;
    if (n > max - u->bytes)
        return error_set(err, ERROR_TOO_LARGE, "the archive is larger than %llu bytes",
                         (unsigned long long)max);
    u->bytes += n;
    return fs_write_all(u->fd, data, n, err);
}

int templates_upload_end(struct template_upload *u, bool keep, char ret_id[ID_SIZE], struct error *err)
{
    struct templates *t = u->t;
    struct upload_file *f = keep ? find(t, "") : NULL;
    int rc = 0;
    t->uploads_open--;
    if (f) {
        (void)str_copy(f->id, sizeof(f->id), u->id);
        f->until_ns = clock_mono_ns() + UPLOAD_KEEP_MS * CLOCK_NS_PER_MS;
        (void)str_copy(ret_id, ID_SIZE, u->id);
    } else {
        (void)unlinkat(t->upload_fd, u->id, 0);
        if (keep) /* others took the places that were free when it began */
            rc =
                error_set(err, ERROR_CAPACITY, "%d uploaded archives wait for their build", UPLOADS_KEPT_MAX);
    }
    (void)close(u->fd);
    free(u);
    return rc;
}

int upload_open(struct templates *t, const char *id, int *ret_fd, uint64_t *ret_bytes, struct error *err)
{
    struct stat st;
    expire(t);
    if (!id_valid(id, "up") || !find(t, id))
        return error_field(err, ERROR_NOT_FOUND, "upload", "there is no upload %.23s; it may have expired",
                           id);
    AUTO_CLOSE int fd = openat(t->upload_fd, id, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "open the upload");
    *ret_bytes = (uint64_t)st.st_size;
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* The build holds the file open; the name is not needed any more. */
void upload_consume(struct templates *t, const char *id)
{
    struct upload_file *f = find(t, id);
    if (f)
        forget(t, f);
}
