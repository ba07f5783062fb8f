#include "broker/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/id.h"
#include "base/str.h"
#include "json/json.h"

#define FILE_MAX 8192

static const char *lease_dir = "/run/space/leases";

void privd_lease_directory(const char *path)
{
    lease_dir = path ? path : "/run/space/leases";
}

static int write_json(int dir_fd, const char *name, const json_t *j, struct error *err)
{
    AUTO_FREE char *text = json_dumps(j, JSON_COMPACT);
    if (!text)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    return fs_write_atomic(dir_fd, name, text, strlen(text), 0600, err);
}

/* The object in a file, or NULL when it is absent or no object of version 1. */
static json_t *read_json(int dir_fd, const char *name)
{
    AUTO_FREE char *text = NULL;
    size_t n;
    if (fs_read_file(dir_fd, name, FILE_MAX, &text, &n, NULL) < 0)
        return NULL;
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    if (json_integer_value(json_object_get(j, "version")) == 1)
        return j;
    json_decref(j);
    return NULL;
}

/* Opens the claims' directory and takes its lock: claims are made and given back by one at a time. */
static int lock_claims(int *ret_fd, struct error *err)
{
    int rc = fs_mkdir_p(lease_dir, 0755, err);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int fd = open(lease_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "lock %s", lease_dir);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static void claim_name(unsigned block, char name[32])
{
    (void)snprintf(name, 32, "%u.json", block);
}

/* Whether any process runs under a uid of the block. */
static bool block_in_use(unsigned block)
{
    uid_t first = LEASE_UID_BASE + block * LEASE_BLOCK;
    AUTO_CLOSEDIR DIR *d = opendir("/proc");
    struct dirent *e;
    while (d && (e = readdir(d))) {
        struct stat st;
        if (e->d_name[0] < '1' || e->d_name[0] > '9' || fstatat(dirfd(d), e->d_name, &st, 0) < 0)
            continue;
        if (st.st_uid >= first && st.st_uid - first < LEASE_BLOCK)
            return true;
    }
    return !d;
}

/* Whether the claim in a file still stands: its state directory exists and says the same server. */
static bool claim_stands(const json_t *claim)
{
    const char *dir = json_string_value(json_object_get(claim, "state_dir"));
    const char *id = json_string_value(json_object_get(claim, "server_id"));
    struct privd_lease lease;
    return dir && id && privd_lease_read(dir, &lease, NULL) == 0 && strcmp(lease.server_id, id) == 0;
}

static bool block_free(int claims_fd, unsigned block)
{
    char name[32];
    claim_name(block, name);
    AUTO_JSON json_t *claim = read_json(claims_fd, name);
    return !claim_stands(claim) && !block_in_use(block);
}

static bool block_ours(int claims_fd, const struct privd_lease *lease, const char *state_dir)
{
    char name[32];
    claim_name(lease->block, name);
    AUTO_JSON json_t *claim = read_json(claims_fd, name);
    const char *dir = json_string_value(json_object_get(claim, "state_dir"));
    const char *id = json_string_value(json_object_get(claim, "server_id"));
    if (!id || strcmp(id, lease->server_id) != 0)
        return false;
    /* A copied state directory carries the id too: the path tells the two apart while both exist. */
    return dir && strcmp(dir, state_dir) == 0;
}

static int claim(int claims_fd, int privd_fd, const char *state_dir, const struct privd_lease *lease,
                 struct error *err)
{
    AUTO_JSON json_t *memory =
        json_pack("{s:i,s:s,s:i}", "version", 1, "server_id", lease->server_id, "block", (int)lease->block);
    AUTO_JSON json_t *file =
        json_pack("{s:i,s:s,s:s}", "version", 1, "state_dir", state_dir, "server_id", lease->server_id);
    char name[32];
    claim_name(lease->block, name);
    if (!memory || !file)
        return error_set(err, ERROR_INTERNAL, "the state directory's path cannot be recorded");
    /* The state directory first: a crash between the two leaves a memory that is claimed again. */
    int rc = write_json(privd_fd, "lease.json", memory, err);
    return rc < 0 ? rc : write_json(claims_fd, name, file, err);
}

static void set_block(struct privd_lease *lease, unsigned block)
{
    lease->block = block;
    lease->uid_first = LEASE_UID_BASE + block * LEASE_BLOCK;
}

int privd_lease_read(const char *state_dir, struct privd_lease *ret, struct error *err)
{
    AUTO_FREE char *path = str_printf("%s/privd/lease.json", state_dir);
    AUTO_JSON json_t *j = path ? read_json(AT_FDCWD, path) : NULL;
    const char *id = json_string_value(json_object_get(j, "server_id"));
    json_int_t block = json_integer_value(json_object_get(j, "block"));
    if (!id || strlen(id) != LEASE_SERVER_ID_SIZE - 1 || block < 0 || block >= LEASE_BLOCKS)
        return error_set(err, ERROR_NOT_FOUND, "%s has no uid lease", state_dir);
    (void)str_copy(ret->server_id, sizeof(ret->server_id), id);
    set_block(ret, (unsigned)block);
    return 0;
}

static void new_server_id(struct privd_lease *lease)
{
    unsigned char r[(LEASE_SERVER_ID_SIZE - 1) / 2];
    id_random(r, sizeof(r));
    str_hex(r, sizeof(r), lease->server_id);
}

/* The remembered block when it is ours or can be ours again. Else the server keeps its id, which names
 * what it made on this host, unless the claim in the way has the same: then this directory is a copy. */
static bool remembered(int claims_fd, const char *state_dir, struct privd_lease *lease)
{
    if (privd_lease_read(state_dir, lease, NULL) < 0) {
        new_server_id(lease);
        return false;
    }
    char name[32];
    claim_name(lease->block, name);
    AUTO_JSON json_t *other = read_json(claims_fd, name);
    if (block_ours(claims_fd, lease, state_dir) || !claim_stands(other))
        return true;
    const char *id = json_string_value(json_object_get(other, "server_id"));
    if (id && strcmp(id, lease->server_id) == 0)
        new_server_id(lease);
    return false;
}

static int choose(int claims_fd, const char *state_dir, struct privd_lease *lease, struct error *err)
{
    if (remembered(claims_fd, state_dir, lease))
        return 0;
    for (unsigned block = 0; block < LEASE_BLOCKS; block++)
        if (block_free(claims_fd, block)) {
            set_block(lease, block);
            return 0;
        }
    return error_set(err, ERROR_CAPACITY, "all %u blocks of uids are leased", LEASE_BLOCKS);
}

int privd_lease_acquire(const char *state_dir, struct privd_lease *ret, struct error *err)
{
    AUTO_FREE char *real = realpath(state_dir, NULL);
    AUTO_FREE char *privd = real ? str_printf("%s/privd", real) : NULL;
    if (!privd)
        return error_errno(err, ERROR_INVALID, errno, "state directory %s", state_dir);
    int rc = fs_mkdir_p(privd, 0700, err);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int privd_fd = open(privd, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (privd_fd < 0 || fchown(privd_fd, 0, 0) < 0 || fchmod(privd_fd, 0700) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "%s", privd);
    AUTO_CLOSE int claims_fd = -1;
    rc = lock_claims(&claims_fd, err);
    if (rc < 0)
        return rc;
    struct privd_lease lease;
    rc = choose(claims_fd, real, &lease, err);
    if (rc == 0 && !block_ours(claims_fd, &lease, real))
        rc = claim(claims_fd, privd_fd, real, &lease, err);
    if (rc < 0)
        return error_wrap(err, "uid lease");
    *ret = lease;
    return 0;
}

int privd_lease_release(const char *state_dir, struct error *err)
{
    AUTO_FREE char *real = realpath(state_dir, NULL);
    struct privd_lease lease;
    if (!real || privd_lease_read(real, &lease, NULL) < 0)
        return 0;
    AUTO_CLOSE int claims_fd = -1;
    int rc = lock_claims(&claims_fd, err);
    if (rc < 0)
        return rc;
    char name[32];
    claim_name(lease.block, name);
    if (block_ours(claims_fd, &lease, real) && unlinkat(claims_fd, name, 0) < 0 && errno != ENOENT)
        return error_errno(err, ERROR_INTERNAL, errno, "remove the claim %s", name);
    AUTO_FREE char *memory = str_printf("%s/privd/lease.json", real);
    if (!memory || (unlink(memory) < 0 && errno != ENOENT))
        return error_errno(err, ERROR_INTERNAL, errno, "remove the lease of %s", real);
    return 0;
}
