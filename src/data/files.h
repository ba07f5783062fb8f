/* What the handlers of a sandbox's files share: one request is one file or tree, or one question about it. */
#pragma once

#include "data/call.h"
#include "json/json.h"

#define FILE_PATH_MAX 4096 /* bytes of a path, with its NUL */
#define FILE_B64_MAX 5464  /* characters of one in base64 */
#define FILE_USER_MAX 64   /* bytes of a user's name */
#define FILE_OWNER_MAX (2 * FILE_USER_MAX + 1)
/* Read from the guest, not sent yet; it stops at GUEST_READ_WINDOW. */
#define FILE_QUEUE_MAX (1024 * 1024)
#define FILE_ETAG_SIZE 64
#define FILE_TO_END UINT64_MAX

struct file_call;

typedef void (*file_answered)(struct file_call *f, const struct error *err, const struct guest_stat *st);

/* One request about files: the first member of each handler's own state. */
struct file_call {
    struct data_call call;             /* first */
    char *path;                        /* any bytes; owned */
    char *user;                        /* owned; NULL: root */
    struct file_op *op;                /* a question that is out */
    void (*head)(struct file_call *f); /* what begins the answer to HEAD */
    struct guest_file *file;
    struct buf queue; /* of a transfer to the client */
    uint64_t left;    /* bytes that were announced and have not come; FILE_TO_END: none were announced */
    bool streaming;   /* the answer's head is out */
    bool ended;       /* the transfer's last byte has come */
    bool broken;      /* the answer can only be cut */
    bool over;        /* answered otherwise: the rest of a body is thrown away */
    /* The link has gone: in place of what a transfer usually does then. NULL: nothing else. */
    void (*lost)(struct file_call *f, const struct error *why);
    void (*finish)(
        struct file_call *f); /* frees what else the handler has; may be called again; may be NULL */
};

/* --- files.c: names, life, questions --- */

/* A call of `size` bytes about ?path= (or ?path_b64=) and ?user=; NULL after an error has been answered. */
struct file_call *file_call_new(size_t size, struct data *d, struct http_request *r);

/* A path as a client gave it: as text, or as base64 of any bytes. */
struct file_name {
    const char *field; /* "path"; its sibling is "path_b64" */
    const char *text;
    const char *b64;
};

/* A call whose names come from a JSON body, read by the caller: its path and user are still to be set. NULL
 * after an error has been answered. */
struct file_call *file_call_bare(size_t size, struct data *d, struct http_request *r);

/* An absolute path into *ret (the caller frees it). Exactly one of text and b64 must be there. */
int file_path_read(const struct file_name *name, char **ret, struct error *err);
/* The same without the rule that it be absolute: a link's text. */
int file_text_read(const struct file_name *name, char **ret, struct error *err);
/* NULL is fine and gives NULL. */
int file_user_read(const char *user, char **ret, struct error *err);
/* "USER", "USER:GROUP", ":GROUP" or NULL. */
int file_owner_check(const char *owner, struct error *err);

/* Ends a transfer with an error, also from within its callbacks: answered, or a broken answer when one is
 * under way. */
void file_fail(struct file_call *f, const struct error *err);

/* A question to the guest that is answered once and cannot be taken back; it outlives a client that leaves.
 * NULL after an error has been answered. file_on_stat and file_on_done take it as their argument. */
struct file_op *file_op_new(struct file_call *f, file_answered answered);
void file_on_stat(void *arg, const struct error *err, const struct guest_stat *st);
void file_on_done(void *arg, const struct error *err);

/* HEAD of what is streamed: when the path is there, `start` begins the answer, which has no body. */
void file_head(struct file_call *f, struct guest *g, void (*start)(struct file_call *f));

/* --- files_read.c: what is streamed to the client --- */

/* fill of an answer that is the queue. */
ssize_t file_fill(struct http_request *r, void *to, size_t max);
/* fill of an answer without a body. */
ssize_t file_no_fill(struct http_request *r, void *to, size_t max);
/* A transfer's data and end, as a guest_read_events has them; arg: the call. */
void file_data(void *arg, const void *data, size_t n);
void file_done(void *arg, const struct error *err);

/* --- files_json.c: names and attributes in answers --- */

/* Sets to[name] to the bytes as text; those that are not UTF-8 have '?' there, and to[name_b64] has them. */
void file_json_name(json_t *to, const char *name, const void *bytes, size_t n);
/* {"path": ...} */
json_t *file_json_path(const char *path);
/* A FileStat. */
json_t *file_json_stat(const char *path, const struct guest_stat *st);
/* Adds a FileStat's members but the path. */
void file_json_attributes(json_t *to, const struct guest_stat *st);
void file_etag(const struct guest_stat *st, char to[FILE_ETAG_SIZE]);
