/* Attributes of what is unpacked, and those of directories, which have to wait: a directory without the right
 * to write takes no files, and each file in it changes its time. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "agent/archive_impl.h"
#include "base/cleanup.h"
#include "base/str.h"

#define BYTES_MAX (16U << 20)
#define FD_PATH_SIZE 40

/* --- attributes --- */

static bool may_have(const struct archive_looks *l, const char *key)
{
    if (strcmp(key, "security.capability") == 0 && l->stranger)
        return false;
    return l->root || str_starts(key, "user.") || str_starts(key, "system.posix_acl_");
}

/* A file system that has no such attributes keeps none. */
static int give_xattrs(int fd, bool path, const struct archive_looks *l, const struct tar_entry *e)
{
    char key[TAR_XATTR_NAME_MAX], by_path[FD_PATH_SIZE];
    const unsigned char *value;
    size_t cursor = 0, n;
    /* There is no call for such descriptors, and a name might be somebody else's by now. */
    (void)snprintf(by_path, sizeof(by_path), "/proc/self/fd/%d", fd);
    while (tar_xattr(e, &cursor, key, &value, &n)) {
        if (!may_have(l, key))
            continue;
        int r = path ? setxattr(by_path, key, value, n, 0) : fsetxattr(fd, key, value, n, 0);
        if (r < 0 && errno != EOPNOTSUPP)
            return -1;
    }
    return 0;
}

/* Asking costs much less than changing what is right already. */
static int give_owner_and_mode(int fd, const struct archive_looks *l)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -1;
    bool same = (l->uid == (uid_t)-1 || l->uid == st.st_uid) && (l->gid == (gid_t)-1 || l->gid == st.st_gid);
    /* A change of owner takes away set-user-ID and capabilities, so it comes first. */
    if (!same && fchownat(fd, "", l->uid, l->gid, AT_EMPTY_PATH) < 0)
        return -1;
    if (l->mode_set || (same && (st.st_mode & 07777) == l->mode))
        return 0;
    return fchmod(fd, l->mode);
}

int archive_dress(int fd, bool path, const struct archive_looks *l, const struct tar_entry *e)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                {.tv_sec = (time_t)l->mtime_s, .tv_nsec = (long)l->mtime_ns}};
    if (give_owner_and_mode(fd, l) < 0 || (e->pax_n && give_xattrs(fd, path, l, e) < 0))
        return -1;
    return path ? utimensat(fd, "", times, AT_EMPTY_PATH) : futimens(fd, times);
}

/* --- directories --- */

struct later {
    struct later *next;
    struct archive_looks looks;
    bool known;
    size_t number, name_n, pax_n, size;
    char bytes[]; /* the name, its NUL, the extended header */
};

struct archive_dirs {
    struct archive_root *root;
    struct later *first; /* the newest */
    size_t count, bytes, number;
    int errnum; /* of the first that failed; 0: none has */
    char name[256];
};

struct archive_dirs *archive_dirs_create(struct archive_root *root)
{
    struct archive_dirs *d = calloc(1, sizeof(*d));
    if (d)
        d->root = root;
    return d;
}

void archive_dirs_destroy(struct archive_dirs *d)
{
    while (d && d->first) {
        struct later *l = d->first;
        d->first = l->next;
        free(l);
    }
    free(d);
}

static void apply(struct archive_dirs *d, const struct later *l)
{
    struct tar_entry e = {.pax = (const unsigned char *)l->bytes + l->name_n + 1, .pax_n = l->pax_n};
    AUTO_CLOSE int fd = archive_root_open_directory(d->root, l->bytes);
    if (fd >= 0 && archive_dress(fd, false, &l->looks, &e) == 0)
        return;
    /* Somebody may have taken it away again; and what belongs to others was not made here. */
    if (errno == ENOENT || (l->known && (errno == EPERM || errno == EACCES)) || d->errnum)
        return;
    d->errnum = errno;
    (void)str_copy(d->name, sizeof(d->name), l->bytes);
}

/* The deepest first, as a directory may become closed to its owner; of two for one directory the last one
 * last. */
static int by_depth(const void *a, const void *b)
{
    const struct later *x = *(struct later *const *)a, *y = *(struct later *const *)b;
    if (x->name_n != y->name_n)
        return x->name_n > y->name_n ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

static bool is_above(const struct later *l, const struct archive_name *name)
{
    return l->name_n <= name->n && memcmp(l->bytes, name->text, l->name_n) == 0 &&
           (l->name_n == 0 || l->name_n == name->n || name->text[l->name_n] == '/');
}

/* Applies and forgets all that are not above a name (NULL: all). */
static int apply_but(struct archive_dirs *d, const struct archive_name *above)
{
    AUTO_FREE struct later **all = calloc(d->count + 1, sizeof(struct later *));
    struct later *rest = NULL;
    size_t n = 0;
    if (!all)
        return -1;
    while (d->first) {
        struct later *l = d->first;
        d->first = l->next;
        all[n++] = l;
    }
    qsort(all, n, sizeof(struct later *), by_depth);
    d->count = d->bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (above && is_above(all[i], above)) {
            all[i]->next = rest;
            rest = all[i];
            d->count++;
            d->bytes += all[i]->size;
            continue;
        }
        apply(d, all[i]);
        free(all[i]);
    }
    d->first = rest;
    return 0;
}

static bool has_xattrs(const struct tar_entry *e)
{
    char key[TAR_XATTR_NAME_MAX];
    const unsigned char *value;
    size_t cursor = 0, n;
    return tar_xattr(e, &cursor, key, &value, &n);
}

int archive_dirs_add(struct archive_dirs *d, const struct archive_name *name, bool known,
                     const struct archive_looks *l, const struct tar_entry *e)
{
    size_t pax_n = has_xattrs(e) ? e->pax_n : 0;
    size_t size = sizeof(struct later) + name->n + 1 + pax_n;
    if (d->bytes + size > BYTES_MAX && apply_but(d, name) < 0)
        return -1;
    struct later *new = d->bytes + size <= BYTES_MAX ? malloc(size) : NULL;
    if (!new) {
        errno = ENOMEM;
        return -1;
    }
    *new = (struct later){.next = d->first,
                          .looks = *l,
                          .known = known,
                          .number = d->number++,
                          .name_n = name->n,
                          .pax_n = pax_n,
                          .size = size};
    memcpy(new->bytes, name->text, name->n + 1);
    if (pax_n)
        memcpy(new->bytes + name->n + 1, e->pax, pax_n);
    d->first = new;
    d->count++;
    d->bytes += size;
    return 0;
}

int archive_dirs_apply(struct archive_dirs *d, const char **ret_name)
{
    *ret_name = d->name;
    if (apply_but(d, NULL) < 0)
        return -1;
    errno = d->errnum;
    return d->errnum ? -1 : 0;
}
