/* The inside of the template registry, shared by its files. */
#pragma once

/* The default hash falls through its cases, which compilers report. */
#define HASH_FUNCTION(key, len, hash) HASH_FNV(key, len, hash)
#include <uthash.h>
#include <utlist.h>

#include "base/buf.h"
#include "template/template.h"

#define NAME_MAX_BYTES 63
#define RELEASES_MAX 1024 /* over all templates */
#define TAGS_MAX 4096     /* over all templates */
#define BUILDS_WAITING_MAX 16
#define BUILD_LIMIT_MS (2 * 3600 * 1000LL)
#define UPLOADS_OPEN_MAX 8  /* being written */
#define UPLOADS_KEPT_MAX 16 /* whole, waiting for their build */
#define UPLOAD_KEEP_MS 3600000
#define LOG_QUOTE_MAX 300  /* bytes of it that an error quotes, with the NUL */
#define LOG_MAX 65536      /* bytes of a build's log that are kept: the last ones */
#define FAILED_LOGS_MAX 16 /* logs kept of builds that failed */
#define TAG_DEFAULT "latest"

enum release_state {
    RELEASE_PREPARING, /* the image is there, its golden is not yet: nobody sees the release */
    RELEASE_READY,
    RELEASE_REMOVING /* nobody sees it any more; image and goldens go when nothing else needs them */
};

struct release {
    struct release *prev, *next; /* oldest first */
    char id[ID_SIZE];
    char name[NAME_MAX_BYTES + 1];
    char digest[BROKER_DIGEST_SIZE];
    enum release_state state;
    json_t *source; /* owned: what it was built from, {"kind", ...} */
    uint32_t disk_mib;
    uint64_t content_bytes;
    int64_t created_ms;
};

struct tag {
    UT_hash_handle hh;
    char key[2 * NAME_MAX_BYTES + 2]; /* name:tag */
    char name[NAME_MAX_BYTES + 1];
    char tag[NAME_MAX_BYTES + 1];
    char digest[BROKER_DIGEST_SIZE];
};

enum build_state { BUILD_WAITING, BUILD_ROOT, BUILD_GOLDEN };

struct build {
    struct build *prev, *next;
    struct templates *t; /* NULL: the registry is gone; freed when the broker answers */
    enum build_state state;
    char id[ID_SIZE]; /* also the release's */
    char operation_id[ID_SIZE];
    char name[NAME_MAX_BYTES + 1];
    char tag[NAME_MAX_BYTES + 1];
    char digest[BROKER_DIGEST_SIZE]; /* BUILD_GOLDEN */
    enum broker_build kind;
    bool directory; /* the archive was made of one by the client: told of the release, and no more */
    char suite[32];
    json_t *packages; /* array of strings or NULL; owned */
    bool seed_user;
    uint32_t disk_mib;
    int source_fd;           /* TAR; owned */
    int log_read, log_write; /* pipe; owned */
    struct loop_fd log_watch;
    struct buf log;
    struct loop_timer limit; /* while BUILD_ROOT */
    bool late;               /* it was canceled because its time was over */
};

struct upload_file {
    char id[ID_SIZE];
    int64_t until_ns; /* monotonic */
};

struct removal {
    struct templates *t; /* NULL: the registry is gone */
    char digest[BROKER_DIGEST_SIZE];
    struct removal *prev, *next;
};

struct templates {
    struct templates_config config;
    char *upload_dir; /* owned */
    int upload_fd;    /* the directory; owned */
    struct sandboxes *sandboxes;
    struct release *releases;
    struct tag *tags; /* hash */
    struct build *builds;
    struct removal *removal; /* the one under way */
    struct loop_deferred pump;
    struct loop_timer retry; /* of removals */
    unsigned uploads_open;
    struct upload_file uploads[UPLOADS_KEPT_MAX];
    char failed_logs[FAILED_LOGS_MAX][ID_SIZE];
    unsigned failed_count; /* ever */
};

/* registry.c */
int template_check_name(const char *name, struct error *err);
int template_check_tag(const char *tag, const char *field, struct error *err);
/* "sha256:<hex64>" to hex64. */
int template_read_digest(const char *text, const char *field, char to[BROKER_DIGEST_SIZE], struct error *err);
struct release *release_find(struct templates *t, const char *name, const char *digest); /* in any state */
struct release *release_by_id(struct templates *t, const char *id);
bool digest_in_use(const struct templates *t, const char *digest); /* by a release that stays */
int release_add(struct templates *t, const struct build *b, const char *digest, uint64_t content_bytes,
                struct release **ret, struct error *err);
void release_save(struct templates *t, const struct release *r);
void release_drop(struct templates *t, struct release *r);
struct tag *tag_find(struct templates *t, const char *name, const char *tag);
int tag_set(struct templates *t, const char *name, const char *tag, const char *digest, struct error *err);
void tag_drop(struct templates *t, struct tag *tag);
bool release_tagged(const struct templates *t, const struct release *r);
void releases_free(struct templates *t);
int registry_load(struct templates *t, struct error *err);

/* build.c */
void builds_pump(struct templates *t); /* starts what may start, from phase 5 */
unsigned builds_running(const struct templates *t);
void builds_destroy(struct templates *t);
void build_free(struct build *b);
int build_spec_read(struct templates *t, const json_t *body, struct build *b, char upload[ID_SIZE],
                    struct error *err); /* spec.c */

/* remove.c */
void removals_pump(struct templates *t);
void removals_destroy(struct templates *t);

/* upload.c */
int upload_open(struct templates *t, const char *id, int *ret_fd, uint64_t *ret_bytes, struct error *err);
void upload_consume(struct templates *t, const char *id);

/* log.c */
int build_log_open(struct build *b, struct error *err);
void build_log_close(struct build *b, bool failed); /* the file is written */
/* What the log says last, for an error: lines that are marked as errors ("E: ", as APT does), or, where none
 * is, the last ones; on one line of text, "; " between them. "" when it says nothing. */
void build_log_quote(const struct build *b, char *to, size_t size);
void build_log_sweep(struct templates *t); /* at start: files of nobody */
