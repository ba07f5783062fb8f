/* The content digest of a root file system: SHA-256 over a canonical listing. Equal trees give equal
 * digests, whoever unpacked them and when: modification times do not count.
 *
 * Entries come in depth-first order, names of a directory sorted by bytes. Each is a sequence of fields
 * ended by NUL: path, type, mode, uid, gid; then by type size and SHA-256 of the content, link target,
 * or, for further names of a file with several, the first name; then the extended attributes, sorted. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <uthash.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "broker/builder.h"

#define HASH_BYTES 32
#define XATTR_LIST_MAX 65536
#define XATTR_VALUE_MAX 65536
#define XATTRS_MAX 64
#define PATH_BYTES 8192

/* First name of an inode with several. */
struct inode {
    ino_t ino;
    UT_hash_handle hh;
    char path[];
};

struct digest {
    EVP_MD_CTX *all;
    EVP_MD_CTX *file;
    struct inode *inodes;
    uint64_t bytes;
    uint64_t entries;
    char path[PATH_BYTES]; /* of the current entry, relative to the tree */
    size_t path_len;
};

static int walk(struct digest *d, int dir_fd, unsigned depth, struct error *err);

static void put(struct digest *d, const void *data, size_t n)
{
    (void)EVP_DigestUpdate(d->all, data, n);
}

static void put_text(struct digest *d, const char *s)
{
    put(d, s, strlen(s) + 1);
}

static void put_number(struct digest *d, uint64_t v)
{
    char text[24];
    (void)snprintf(text, sizeof(text), "%llo", (unsigned long long)v);
    put_text(d, text);
}

static int hash_file(struct digest *d, int dir_fd, const char *name, const struct stat *st, struct error *err)
{
    static unsigned char block[1 << 17];
    AUTO_CLOSE int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "open %s", d->path);
    (void)EVP_DigestInit_ex(d->file, EVP_sha256(), NULL);
    for (;;) {
        ssize_t n = read(fd, block, sizeof(block));
        if (n < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "read %s", d->path);
        if (n == 0)
            break;
        (void)EVP_DigestUpdate(d->file, block, (size_t)n);
    }
    unsigned char hash[HASH_BYTES];
    (void)EVP_DigestFinal_ex(d->file, hash, NULL);
    put_number(d, (uint64_t)st->st_size);
    put(d, hash, sizeof(hash));
    d->bytes += (uint64_t)st->st_size;
    return 0;
}

/* Whether this inode has been listed under another name, which then stands for its content. */
static int seen_before(struct digest *d, const struct stat *st, bool *ret, struct error *err)
{
    struct inode *i = NULL;
    *ret = false;
    if (st->st_nlink < 2)
        return 0;
    HASH_FIND(hh, d->inodes, &st->st_ino, sizeof(st->st_ino), i);
    if (i) {
        put_text(d, "same-as");
        put_text(d, i->path);
        *ret = true;
        return 0;
    }
    i = malloc(sizeof(*i) + d->path_len + 1);
    if (!i)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    i->ino = st->st_ino;
    memcpy(i->path, d->path, d->path_len + 1);
    HASH_ADD(hh, d->inodes, ino, sizeof(i->ino), i);
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool counts(const char *name)
{
    return str_starts(name, "user.") || strcmp(name, "security.capability") == 0 ||
           str_starts(name, "system.posix_acl");
}

/* By path relative to the working directory, which is the entry's directory: there is no l*at call. */
static int put_xattrs(struct digest *d, const char *name, struct error *err)
{
    static char list[XATTR_LIST_MAX];
    static char value[XATTR_VALUE_MAX];
    const char *names[XATTRS_MAX];
    unsigned count = 0;
    ssize_t n = llistxattr(name, list, sizeof(list));
    if (n < 0 && errno != ENOTSUP)
        return error_errno(err, ERROR_INTERNAL, errno, "attributes of %s", d->path);
    for (ssize_t at = 0; at < n; at += (ssize_t)strlen(list + at) + 1) {
        if (!counts(list + at))
            continue;
        if (count == XATTRS_MAX)
            return error_set(err, ERROR_INVALID, "%s has more than %d extended attributes", d->path,
                             XATTRS_MAX);
        names[count++] = list + at;
    }
    qsort(names, count, sizeof(names[0]), compare_names);
    for (unsigned i = 0; i < count; i++) {
        ssize_t size = lgetxattr(name, names[i], value, sizeof(value));
        if (size < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "attribute %s of %s", names[i], d->path);
        put_text(d, names[i]);
        put_number(d, (uint64_t)size);
        put(d, value, (size_t)size);
    }
    put_text(d, "");
    return 0;
}

static int put_link(struct digest *d, int dir_fd, const char *name, struct error *err)
{
    char target[PATH_BYTES];
    ssize_t n = readlinkat(dir_fd, name, target, sizeof(target) - 1);
    if (n < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "read the link %s", d->path);
    target[n] = '\0';
    put_text(d, target);
    return 0;
}

static int list_directory(struct digest *d, int dir_fd, const char *name, unsigned depth, struct error *err)
{
    AUTO_CLOSE int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fchdir(fd) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "open %s", d->path);
    int rc = walk(d, fd, depth + 1, err);
    if (rc == 0 && fchdir(dir_fd) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "leave %s", d->path);
    return rc;
}

static const char *type_name(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return "file";
    case S_IFDIR:
        return "directory";
    case S_IFLNK:
        return "link";
    case S_IFIFO:
        return "fifo";
    default:
        return NULL;
    }
}

static int list_entry(struct digest *d, int dir_fd, const char *name, unsigned depth, struct error *err)
{
    struct stat st;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "stat %s", d->path);
    const char *type = type_name(st.st_mode);
    if (!type)
        return error_set(err, ERROR_INVALID, "%s is of a kind that no image holds", d->path);
    if (++d->entries > BUILDER_ENTRIES_MAX)
        return error_set(err, ERROR_TOO_LARGE, "more than %u entries", BUILDER_ENTRIES_MAX);
    put_text(d, d->path);
    put_text(d, type);
    put_number(d, st.st_mode & 07777);
    put_number(d, st.st_uid);
    put_number(d, st.st_gid);
    int rc = put_xattrs(d, name, err);
    bool seen = false;
    if (rc == 0 && S_ISREG(st.st_mode))
        rc = seen_before(d, &st, &seen, err);
    if (rc == 0 && S_ISREG(st.st_mode) && !seen)
        rc = hash_file(d, dir_fd, name, &st, err);
    if (rc == 0 && S_ISLNK(st.st_mode))
        rc = put_link(d, dir_fd, name, err);
    if (rc == 0 && S_ISDIR(st.st_mode))
        rc = list_directory(d, dir_fd, name, depth, err);
    return rc;
}

struct names {
    char **name;
    size_t count;
    size_t cap;
};

static void names_free(struct names *n)
{
    for (size_t i = 0; i < n->count; i++)
        free(n->name[i]);
    free(n->name);
}

static bool names_add(struct names *n, const char *s)
{
    if (n->count == n->cap) {
        size_t cap = n->cap ? n->cap * 2 : 32;
        char **more = reallocarray(n->name, cap, sizeof(*more));
        if (!more)
            return false;
        n->name = more;
        n->cap = cap;
    }
    n->name[n->count] = strdup(s);
    return n->name[n->count++] != NULL;
}

static int read_names(int dir_fd, struct names *ret, struct error *err)
{
    AUTO_CLOSEDIR DIR *dir = fs_open_dir(dir_fd, ".");
    if (!dir)
        return error_errno(err, ERROR_INTERNAL, errno, "read a directory");
    struct dirent *e;
    while ((e = readdir(dir))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (ret->count > BUILDER_ENTRIES_MAX || !names_add(ret, e->d_name))
            return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    return 0;
}

/* All entries of a directory, which is the working directory too. */
static int walk(struct digest *d, int dir_fd, unsigned depth, struct error *err)
{
    if (depth > BUILDER_DEPTH_MAX)
        return error_set(err, ERROR_INVALID, "directories deeper than %d", BUILDER_DEPTH_MAX);
    CLEANUP(names_free) struct names names = {0};
    int rc = read_names(dir_fd, &names, err);
    if (names.count > 0)
        qsort(names.name, names.count, sizeof(names.name[0]), compare_names);
    size_t base = d->path_len;
    for (size_t i = 0; rc == 0 && i < names.count; i++) {
        int n = snprintf(d->path + base, sizeof(d->path) - base, "%s%s", base ? "/" : "", names.name[i]);
        if (n < 0 || (size_t)n >= sizeof(d->path) - base)
            return error_set(err, ERROR_INVALID, "a path longer than %d bytes", PATH_BYTES);
        d->path_len = base + (size_t)n;
        rc = list_entry(d, dir_fd, names.name[i], depth, err);
    }
    d->path_len = base;
    d->path[base] = '\0';
    return rc;
}

static void digest_finish(struct digest *d)
{
    struct inode *i;
    struct inode *next;
    HASH_ITER(hh, d->inodes, i, next)
    {
        HASH_DEL(d->inodes, i);
        free(i);
    }
    EVP_MD_CTX_free(d->all);
    EVP_MD_CTX_free(d->file);
    free(d);
}

int digest_tree(int tree_fd, char ret_digest[BROKER_DIGEST_SIZE], uint64_t *ret_bytes, struct error *err)
{
    struct digest *d = calloc(1, sizeof(*d));
    if (!d)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    d->all = EVP_MD_CTX_new();
    d->file = EVP_MD_CTX_new();
    if (!d->all || !d->file || EVP_DigestInit_ex(d->all, EVP_sha256(), NULL) != 1) {
        digest_finish(d);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    put_text(d, "space-tree 1");
    int rc = fchdir(tree_fd) < 0 ? error_errno(err, ERROR_INTERNAL, errno, "enter the tree")
                                 : walk(d, tree_fd, 0, err);
    if (rc == 0) {
        unsigned char hash[HASH_BYTES];
        (void)EVP_DigestFinal_ex(d->all, hash, NULL);
        str_hex(hash, sizeof(hash), ret_digest);
        *ret_bytes = d->bytes;
    }
    digest_finish(d);
    return rc;
}
