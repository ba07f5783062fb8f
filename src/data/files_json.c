/* Names and attributes of files in answers. What a guest says is data here and nothing else. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "data/files.h"
#include "session/base64.h"

/* '?' for what is not text. */
static json_t *lossy_text(const void *bytes, size_t n)
{
    AUTO_FREE char *text = malloc(n + 1);
    if (!text)
        return NULL;
    memcpy(text, bytes, n);
    text[n] = '\0';
    for (size_t i = 0; i < n; i++)
        if (text[i] == '\0')
            text[i] = '?';
    str_make_text(text, false);
    return json_string(text);
}

static json_t *base64_text(const void *bytes, size_t n)
{
    AUTO_FREE char *text = malloc(base64_length(n) + 1);
    if (!text)
        return NULL;
    base64_encode(bytes, n, text);
    return json_stringn(text, base64_length(n));
}

void file_json_name(json_t *to, const char *name, const void *bytes, size_t n)
{
    if (str_is_utf8(bytes, n)) {
        (void)json_object_set_new(to, name, json_made(json_stringn(bytes, n)));
        return;
    }
    char b64[32];
    (void)snprintf(b64, sizeof(b64), "%s_b64", name);
    (void)json_object_set_new(to, name, json_made(lossy_text(bytes, n)));
    (void)json_object_set_new(to, b64, json_made(base64_text(bytes, n)));
}

json_t *file_json_path(const char *path)
{
    json_t *to = json_made(json_object());
    file_json_name(to, "path", path, strlen(path));
    return to;
}

static const char *type_name(enum guest_file_type type)
{
    static const char *const names[] = {
        [GUEST_FILE_REGULAR] = "file",
        [GUEST_FILE_DIRECTORY] = "directory",
        [GUEST_FILE_SYMLINK] = "symlink",
        [GUEST_FILE_OTHER] = "other",
    };
    return type >= GUEST_FILE_REGULAR && type <= GUEST_FILE_OTHER ? names[type] : "other";
}

void file_json_attributes(json_t *to, const struct guest_stat *st)
{
    char mode[8];
    json_int_t size = st->size > INT64_MAX ? INT64_MAX : (json_int_t)st->size;
    (void)snprintf(mode, sizeof(mode), "%04o", st->mode & 07777u);
    json_t *more = json_made(json_pack("{ss sI ss sI sI so}", "type", type_name(st->type), "size", size,
                                       "mode", mode, "uid", (json_int_t)st->uid, "gid", (json_int_t)st->gid,
                                       "modified_at", json_time(st->mtime_ns / 1000000)));
    (void)json_object_update(to, more);
    json_decref(more);
}

json_t *file_json_stat(const char *path, const struct guest_stat *st)
{
    json_t *to = file_json_path(path);
    file_json_attributes(to, st);
    return to;
}

void file_etag(const struct guest_stat *st, char to[FILE_ETAG_SIZE])
{
    (void)snprintf(to, FILE_ETAG_SIZE, "\"%llx-%llx-%llx\"", (unsigned long long)st->inode,
                   (unsigned long long)st->mtime_ns, (unsigned long long)st->size);
}
