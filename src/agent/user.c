#include "agent/user.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"

#define FILE_MAX 1048576
#define PASSWD_FIELDS 7
#define GROUP_FIELDS 4

/* A whole regular file of at most FILE_MAX bytes, NUL-terminated, or NULL. */
static char *read_text(int etc_fd, const char *name)
{
    AUTO_CLOSE int fd = openat(etc_fd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_MAX)
        return NULL;
    AUTO_FREE char *text = malloc((size_t)st.st_size + 1);
    size_t have = 0;
    while (text && have < (size_t)st.st_size) {
        ssize_t n = read(fd, text + have, (size_t)st.st_size - have);
        if (n <= 0)
            break;
        have += (size_t)n;
    }
    if (text)
        text[have] = '\0';
    return TAKE(text);
}

/* Splits a line at its colons; the count of fields found. */
static size_t split(char *line, char **fields, size_t max)
{
    size_t n = 0;
    while (n < max) {
        fields[n++] = line;
        line = strchr(line, ':');
        if (!line)
            break;
        *line++ = '\0';
    }
    return n;
}

static bool number(const char *s, uint32_t *ret)
{
    uint64_t v;
    if (!str_to_u64(s, 0, UINT32_MAX - 1, &v))
        return false;
    *ret = (uint32_t)v;
    return true;
}

static bool take_passwd(char *line, const char *who, bool by_id, uint32_t id, struct user *ret)
{
    char *f[PASSWD_FIELDS];
    uint32_t uid, gid;
    if (split(line, f, PASSWD_FIELDS) < PASSWD_FIELDS || !number(f[2], &uid) || !number(f[3], &gid))
        return false;
    if (by_id ? uid != id : strcmp(f[0], who) != 0)
        return false;
    ret->uid = uid;
    ret->gid = gid;
    if (!str_copy(ret->name, sizeof(ret->name), f[0]) || !str_copy(ret->home, sizeof(ret->home), f[5]) ||
        !str_copy(ret->shell, sizeof(ret->shell), f[6]))
        return false;
    return true;
}

static bool from_passwd(int etc_fd, const char *who, bool by_id, uint32_t id, struct user *ret)
{
    AUTO_FREE char *text = read_text(etc_fd, "passwd");
    char *rest = text, *line;
    while (rest && (line = strsep(&rest, "\n")))
        if (take_passwd(line, who, by_id, id, ret))
            return true;
    return false;
}

static bool lists(char *members, const char *name)
{
    char *one;
    while ((one = strsep(&members, ",")))
        if (strcmp(one, name) == 0)
            return true;
    return false;
}

static void add_groups(int etc_fd, struct user *u)
{
    AUTO_FREE char *text = read_text(etc_fd, "group");
    char *rest = text, *line;
    u->groups[0] = u->gid;
    u->group_count = 1;
    while (rest && (line = strsep(&rest, "\n")) && u->group_count < USER_GROUPS_MAX) {
        char *f[GROUP_FIELDS];
        uint32_t gid;
        if (split(line, f, GROUP_FIELDS) == GROUP_FIELDS && number(f[2], &gid) && gid != u->gid &&
            lists(f[3], u->name))
            u->groups[u->group_count++] = gid;
    }
}

static void fill_defaults(struct user *u)
{
    if (!u->home[0])
        (void)str_copy(u->home, sizeof(u->home), "/");
    if (!u->shell[0])
        (void)str_copy(u->shell, sizeof(u->shell), "/bin/sh");
}

int user_find(int etc_fd, const char *who, struct user *ret)
{
    uint32_t id = 0;
    struct user u = {.uid = 0};
    bool by_id = number(who, &id);
    /* An all-digit name is a number here, as for chown(1) when no such name exists. */
    if (!from_passwd(etc_fd, who, false, 0, &u) && !(by_id && from_passwd(etc_fd, who, true, id, &u))) {
        if (!by_id && strcmp(who, "root") != 0)
            return -1;
        bool root = id == 0;
        u.uid = u.gid = id;
        (void)str_copy(u.name, sizeof(u.name), root ? "root" : who);
        (void)str_copy(u.home, sizeof(u.home),
                       root && faccessat(etc_fd, "../root", X_OK, 0) == 0 ? "/root" : "/");
    }
    fill_defaults(&u);
    add_groups(etc_fd, &u);
    *ret = u;
    return 0;
}

int user_find_group(int etc_fd, const char *who, gid_t *ret)
{
    AUTO_FREE char *text = read_text(etc_fd, "group");
    char *rest = text, *line;
    uint32_t gid;
    while (rest && (line = strsep(&rest, "\n"))) {
        char *f[GROUP_FIELDS];
        if (split(line, f, GROUP_FIELDS) == GROUP_FIELDS && strcmp(f[0], who) == 0 && number(f[2], &gid)) {
            *ret = gid;
            return 0;
        }
    }
    if (!number(who, &gid) && strcmp(who, "root") != 0)
        return -1;
    *ret = strcmp(who, "root") == 0 ? 0 : gid;
    return 0;
}

bool user_name(int etc_fd, uid_t uid, char ret[USER_NAME_MAX])
{
    struct user u = {.uid = 0};
    if (!from_passwd(etc_fd, NULL, true, uid, &u) && uid != 0)
        return false;
    return str_copy(ret, USER_NAME_MAX, u.name[0] ? u.name : "root");
}

bool user_group_name(int etc_fd, gid_t gid, char ret[USER_NAME_MAX])
{
    AUTO_FREE char *text = read_text(etc_fd, "group");
    char *rest = text, *line;
    uint32_t id;
    while (rest && (line = strsep(&rest, "\n"))) {
        char *f[GROUP_FIELDS];
        if (split(line, f, GROUP_FIELDS) == GROUP_FIELDS && number(f[2], &id) && id == gid && f[0][0])
            return str_copy(ret, USER_NAME_MAX, f[0]);
    }
    return gid == 0 && str_copy(ret, USER_NAME_MAX, "root");
}

int user_find_owner(int etc_fd, const char *spec, uid_t *ret_uid, gid_t *ret_gid)
{
    AUTO_FREE char *who = strdup(spec);
    char *group = who ? strchr(who, ':') : NULL;
    uid_t uid = (uid_t)-1;
    gid_t gid = (gid_t)-1;
    struct user u;
    if (group)
        *group++ = '\0';
    if (!who || (!who[0] && (!group || !group[0])))
        return -1;
    if (who[0]) {
        if (user_find(etc_fd, who, &u) < 0)
            return -1;
        uid = u.uid;
        gid = group ? u.gid : gid;
    }
    if (group && group[0] && user_find_group(etc_fd, group, &gid) < 0)
        return -1;
    *ret_uid = uid;
    *ret_gid = gid;
    return 0;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static bool settled(const struct stat *st, time_t now)
{
    return st->st_ctim.tv_sec < now - 1;
}

static bool look(const char *etc, const char *name, struct stat *ret)
{
    char path[64];
    int n = snprintf(path, sizeof(path), "%s/%s", etc, name);
    return n > 0 && (size_t)n < sizeof(path) && stat(path, ret) == 0;
}

int user_find_cached(struct user_cache *c, const char *etc, const char *who, struct user *ret)
{
    struct stat passwd;
    struct stat group;
    bool known = look(etc, "passwd", &passwd) && look(etc, "group", &group);
    if (known && c->valid && strcmp(c->who, who) == 0 && same_file(&c->passwd, &passwd) &&
        same_file(&c->group, &group)) {
        *ret = c->user;
        return 0;
    }
    c->valid = false;
    AUTO_CLOSE int etc_fd = open(etc, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (user_find(etc_fd, who, ret) < 0)
        return -1;
    time_t now = time(NULL);
    if (known && settled(&passwd, now) && settled(&group, now) && str_copy(c->who, sizeof(c->who), who)) {
        c->passwd = passwd;
        c->group = group;
        c->user = *ret;
        c->valid = true;
    }
    return 0;
}

/* The one supplementary group that this process has; false when it has none, or several. */
static bool own_group(gid_t *ret)
{
    const gid_t root = 0;
    gid_t groups[1];
    if (geteuid() == 0 && getgroups(0, NULL) == 0)
        (void)syscall(SYS_setgroups, 1, &root);
    if (getgroups(1, groups) != 1)
        return false;
    *ret = groups[0];
    return true;
}

bool user_is_own(const struct user *u)
{
    static bool asked, simple;
    static uid_t uid[3];
    static gid_t gid[3], group;
    if (!asked) {
        asked = true;
        simple = getresuid(&uid[0], &uid[1], &uid[2]) == 0 && getresgid(&gid[0], &gid[1], &gid[2]) == 0 &&
                 own_group(&group);
    }
    for (int i = 0; i < 3; i++)
        if (uid[i] != u->uid || gid[i] != u->gid)
            return false;
    return simple && u->group_count == 1 && u->groups[0] == group;
}

int user_become(const struct user *u)
{
    if (syscall(SYS_setgroups, u->group_count, u->groups) < 0)
        return -1;
    if (syscall(SYS_setresgid, u->gid, u->gid, u->gid) < 0)
        return -1;
    return (int)syscall(SYS_setresuid, u->uid, u->uid, u->uid);
}
