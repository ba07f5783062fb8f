/* Users and groups from the root file system's own /etc/passwd and /etc/group, without the C library's name
 * services: the files belong to the guest, so size, lines and fields are bounded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

#define USER_NAME_MAX 64
#define USER_PATH_MAX 1024
#define USER_GROUPS_MAX 256

struct user {
    uid_t uid;
    gid_t gid;
    char name[USER_NAME_MAX];
    char home[USER_PATH_MAX];
    char shell[USER_PATH_MAX];
    gid_t groups[USER_GROUPS_MAX];
    size_t group_count;
};

/* Finds a user by name or number. A number without an entry is that uid and gid with "/" as home; "root"
 * always exists. etc_fd: directory that holds passwd and group. Returns 0, or -1: no such user. */
int user_find(int etc_fd, const char *who, struct user *ret);

/* Finds a group by name or number (any number is one). 0, or -1: no such group. */
int user_find_group(int etc_fd, const char *who, gid_t *ret);

/* The name that a number has; root always has one. False: none, or one that is too long. */
bool user_name(int etc_fd, uid_t uid, char ret[USER_NAME_MAX]);
bool user_group_name(int etc_fd, gid_t gid, char ret[USER_NAME_MAX]);

/* What "USER", "USER:GROUP", ":GROUP" and "USER:" (with the group that the user logs in with) mean, names or
 * numbers; what is not named is left as -1. 0, or -1: there is no such user or group. */
int user_find_owner(int etc_fd, const char *spec, uid_t *ret_uid, gid_t *ret_gid);

/* The user of the command before: most commands are one user's, and the files hardly ever change. Zero it
 * before its first use. */
struct user_cache {
    bool valid;
    char who[USER_NAME_MAX];
    struct stat passwd, group;
    struct user user;
};

/* user_find in the directory of that (short) path, without opening anything when its files are those of the
 * call before. Files changed within the last second are read: a second change might not show in their times.
 */
int user_find_cached(struct user_cache *c, const char *etc, const char *who, struct user *ret);

/* Whether this process, which never becomes another itself, is that user with just these groups already. The
 * first call of a process of root's without groups gives it root's group, so that this is so of root. */
bool user_is_own(const struct user *u);

/* Makes this process that user for good. 0 or -1 with errno. Raw system calls only: may be used by a child
 * that shares its parent's memory. */
int user_become(const struct user *u);
