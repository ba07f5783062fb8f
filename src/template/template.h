/* Templates: names, immutable releases, tags, builds. A release is a digest and what it was built from; a tag
 * is a movable name for one. Building makes the root file system (through the broker), then the golden
 * snapshot of the default shape. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "broker/broker.h"
#include "golden/golden.h"
#include "loop/loop.h"
#include "sandbox/sandbox.h"
#include "store/store.h"

struct templates;

struct templates_config {
    struct loop *loop;
    struct store *store;
    struct broker *broker;
    struct golden *golden;
    struct vm_shape default_shape;
    const char *upload_dir;    /* where uploaded archives and build logs are kept meanwhile; copied */
    uint64_t upload_max_bytes; /* default 16 GiB */
    unsigned builds_max;       /* at once; default 1, others wait */
    int64_t build_limit_ms;    /* for a root file system; default 2 hours */
};

int templates_create(const struct templates_config *config, struct templates **ret, struct error *err);
/* Cancels builds; uploads must have been ended. Before golden_destroy and broker_destroy. NULL is accepted.
 */
void templates_destroy(struct templates *t);

/* After sandboxes_create: operations are recorded there. Loads the store; interrupted builds become failed.
 */
int templates_start(struct templates *t, struct sandboxes *s, struct error *err);

/* sandbox_resolve of sandbox.h (arg: struct templates *). ERROR_NOT_FOUND naming the template; ERROR_INVALID
 * for a malformed reference. */
int templates_resolve(void *arg, const char *ref, char ret_digest[BROKER_DIGEST_SIZE], uint32_t *ret_disk_mib,
                      struct error *err);

/* POST /v1/templates/{name}/releases. body:
 * {"kind":"debian","suite"?,"packages"?,"seed_user"?,"disk_mib"?,"tag"?} or {"kind":"tar",
 * "upload":"up_...","seed_user"?,"disk_mib"?,"tag"?}, or the same with "dir" where the archive was made of a
 * directory, which is told of the release; tag defaults to "latest". Strictly checked. disk_mib is
 * the size of the image's file system, sparse; without it the default shape's, or for an archive four times
 * its size and 512 MiB when that is more. The operation's result is {"release_id", "digest", "name", "tag"}.
 */
int templates_build(struct templates *t, const char *name, const json_t *body, struct operation **ret_op,
                    struct error *err);

/* PUT /v1/template-uploads: a tarball for a build of kind tar. begin gives an id ("up_...") and a file that
 * the HTTP layer writes (templates_upload_write may block briefly: page cache); end makes it usable for one
 * build, within an hour. */
struct template_upload;
int templates_upload_begin(struct templates *t, struct template_upload **ret, struct error *err);
int templates_upload_write(struct template_upload *u, const void *data, size_t n, struct error *err);
/* Frees u. keep false: discards. *ret_id (24 bytes) gets the id. */
int templates_upload_end(struct template_upload *u, bool keep, char ret_id[ID_SIZE], struct error *err);

/* PUT /v1/templates/{name}/tags/{tag} {digest}. */
int templates_tag(struct templates *t, const char *name, const char *tag, const json_t *body,
                  struct error *err);

/* DELETE a template, or with tag (or digest "sha256:hex") only that. ERROR_CONFLICT while sandboxes use the
 * digest's disk is NOT an error: their disks are clones; goldens and the image go when no tag refers to the
 * release. */
int templates_delete(struct templates *t, const char *name, const char *tag_or_digest, struct error *err);

json_t *templates_list_json(struct templates *t, const char *after, size_t limit,
                            const char **ret_next); /* new reference: array */
json_t *templates_get_json(
    struct templates *t, const char *name,
    struct error *err); /* new reference or NULL: {name, tags:[{tag,digest}], releases:[...]} */

/* Last 64 KiB of a build's log, new heap string, or NULL. */
char *templates_build_log(struct templates *t, const char *release_id, struct error *err);
