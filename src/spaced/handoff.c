#include "spaced/handoff.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"

#define DOCUMENT_MAX 65536

struct fd_field {
    const char *name;
    int *fd;
};

static void fd_fields(struct handoff *h, struct fd_field to[3])
{
    to[0] = (struct fd_field){"channel_fd", &h->channel_fd};
    to[1] = (struct fd_field){"listen_fd", &h->listen_fd};
    to[2] = (struct fd_field){"lock_fd", &h->lock_fd};
}

int handoff_write(const struct handoff *h, int *ret_fd, struct error *err)
{
    json_t *o = json_pack("{s:o, s:s, s:s, s:s, s:b, s:s, s:s}", "config", config_to_json(&h->config),
                          "platform", h->image.digest, "kernel_release", h->image.kernel_release,
                          "kernel_path", h->image.kernel_path, "kvm_works", h->kvm_works, "kvm_why",
                          h->kvm_why, "dev_key", h->dev_key);
    struct handoff copy = *h;
    struct fd_field fds[3];
    fd_fields(&copy, fds);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        (void)json_object_set_new(o, fds[i].name, json_integer(*fds[i].fd));
        if (fcntl(*fds[i].fd, F_SETFD, 0) < 0) {
            json_decref(o);
            return error_errno(err, ERROR_INTERNAL, errno, "keep %s across exec", fds[i].name);
        }
    }
    AUTO_FREE char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    AUTO_CLOSE int fd = memfd_create("space-handoff", 0);
    if (!text || fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "hand over to the second stage");
    int rc = fs_write_all(fd, text, strlen(text), err);
    if (rc == 0 && lseek(fd, 0, SEEK_SET) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "seek");
    if (rc == 0)
        *ret_fd = TAKE_FD(fd);
    return rc;
}

static int read_text(const json_t *o, const char *name, char *to, size_t size, struct error *err)
{
    const char *s = json_string_value(json_object_get(o, name));
    if (!s || !str_copy(to, size, s))
        return error_set(err, ERROR_INTERNAL, "second stage: bad %s", name);
    return 0;
}

static int read_fd(const json_t *o, const struct fd_field *field, struct error *err)
{
    const json_t *v = json_object_get(o, field->name);
    int fd = json_is_integer(v) ? (int)json_integer_value(v) : -1;
    if (fd < 3 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return error_set(err, ERROR_INTERNAL, "second stage: bad %s", field->name);
    *field->fd = fd;
    return 0;
}

static int read_document(const json_t *o, struct handoff *h, struct error *err)
{
    const struct {
        const char *name;
        char *to;
        size_t size;
    } texts[] = {
        {"platform", h->image.digest, sizeof(h->image.digest)},
        {"kernel_release", h->image.kernel_release, sizeof(h->image.kernel_release)},
        {"kernel_path", h->image.kernel_path, sizeof(h->image.kernel_path)},
        {"kvm_why", h->kvm_why, sizeof(h->kvm_why)},
        {"dev_key", h->dev_key, sizeof(h->dev_key)},
    };
    struct fd_field fds[3];
    fd_fields(h, fds);
    int rc = config_from_json(&h->config, json_object_get(o, "config"), err);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(texts); i++)
        rc = read_text(o, texts[i].name, texts[i].to, texts[i].size, err);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(fds); i++)
        rc = read_fd(o, &fds[i], err);
    h->kvm_works = json_is_true(json_object_get(o, "kvm_works"));
    return rc;
}

int handoff_read(int fd, struct handoff *ret, struct error *err)
{
    char text[DOCUMENT_MAX];
    ssize_t n = read(fd, text, sizeof(text));
    (void)close(fd);
    json_t *o = n > 0 ? json_loadb(text, (size_t)n, 0, NULL) : NULL;
    if (!o)
        return error_set(err, ERROR_INTERNAL,
                         "second stage: nothing was handed over; start spaced without --second-stage");
    struct handoff h = {.channel_fd = -1, .listen_fd = -1, .lock_fd = -1};
    int rc = read_document(o, &h, err);
    json_decref(o);
    if (rc == 0)
        *ret = h;
    return rc;
}
