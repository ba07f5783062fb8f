/* Files of a sandbox, as the file commands and cp name and ask for them. */
#pragma once

#include "cli/cli.h"

/* "SANDBOX:/path" in one argument; sandbox NULL: a local path, or "-". */
struct place {
    char *sandbox; /* its id, owned */
    const char *path;
};

/* The part before the first colon has no slash, the path behind it is absolute. The sandbox is still a name
 * or an id: see place_resolve. ERROR_INVALID. */
int place_parse(const char *text, struct place *ret, struct error *err);
/* Looks the sandbox up. */
int place_resolve(struct cli *c, struct place *p, struct error *err);
void place_finish(struct place *p);

/* Request target for a file's route: action is "", "/stat", "/list", "/watch" or "/archive"; with ?path= (or
 * path_b64= for a name that is not UTF-8) and, with --user, &user=. Heap, NULL when memory is short. */
char *remote_target(const struct cli *c, const char *sandbox_id, const char *action, const char *path);

/* Sets a path in a body: "path", or "path_b64" for one that is not UTF-8. */
void remote_set_path(json_t *body, const char *member, const char *path);

/* A body with "path" and, with --user, "user". */
json_t *remote_body(const struct cli *c, const char *member, const char *path);

/* POST .../files/ACTION; body is stolen. */
int remote_post(struct cli *c, const char *sandbox_id, const char *action, json_t *body, json_t **ret,
                struct error *err);

enum remote_type { REMOTE_NONE, REMOTE_FILE, REMOTE_DIRECTORY, REMOTE_OTHER };

struct remote_stat {
    enum remote_type type;
    unsigned mode; /* permission bits */
    unsigned uid, gid;
};

/* What a path is, links followed: one to nothing, and a path below what is no directory, are REMOTE_NONE. */
int remote_stat(struct cli *c, const char *sandbox_id, const char *path, struct remote_stat *ret,
                struct error *err);

/* Last part of a path without slashes at its end, or NULL when it has none to give a copy ("/", "/x/.",
 * ".."): then what is in it is meant. Heap. */
char *path_name(const char *path);

/* "dir/name". Heap, NULL when memory is short or either is NULL. */
char *path_join(const char *dir, const char *name);
