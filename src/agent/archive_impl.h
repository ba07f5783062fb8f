/* What the parts of unpacking share: places below the directory that is unpacked into (archive_place.c), and
 * what directories are to look like in the end (archive_dirs.c). */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "agent/filework.h"
#include "agent/owners.h"
#include "agent/tar.h"

/* A name below the directory that is unpacked into: no "..", no "." and no empty part; "": itself. */
struct archive_name {
    size_t n;
    char text[TAR_NAME_MAX];
};

/* Makes one of a name as it is in an archive. NULL, or what is wrong with it. */
const char *archive_name_set(struct archive_name *to, const char *from);

/* Where the last part of the name begins. */
size_t archive_name_last(const struct archive_name *name);

/* The directory that is unpacked into, and the one that was used last. */
struct archive_root {
    int fd;    /* owned */
    int sync;  /* owned; -1: it may not be read */
    uid_t uid; /* of directories that no entry names; -1: as they come */
    gid_t gid;
    int parent;  /* owned; -1: none */
    size_t at_n; /* its name is the first at_n bytes of at */
    char at[TAR_NAME_MAX];
};

/* Opens the directory below which everything happens. 0, or -1 with errno. */
int archive_root_open(struct archive_root *root, const char *path);
void archive_root_finish(struct archive_root *root);

/* The directory with the name text[0..n). No link is followed on the way, whoever made it. make: what is
 * missing is made (0755). The descriptor (O_PATH) is the root's and good until the next call; -1 with errno:
 * ELOOP when a link is in the way. */
int archive_root_find(struct archive_root *root, const char *text, size_t n, bool make);

/* Opens a directory to be changed itself. The caller closes it. */
int archive_root_open_directory(struct archive_root *root, const char *text);

/* --- what a file is given --- */
struct archive_looks {
    uid_t uid; /* -1: as it is */
    gid_t gid;
    mode_t mode;
    int64_t mtime_s;
    uint32_t mtime_ns;
    bool root;     /* it is root who unpacks */
    bool stranger; /* the owner is not the one that the archive names */
    bool mode_set; /* it was made with its mode, or has none */
};

/* Gives them to what fd stands for, in the order in which none undoes another. path: fd is O_PATH, of
 * something that cannot be opened. 0, or -1 with errno. */
int archive_dress(int fd, bool path, const struct archive_looks *l, const struct tar_entry *e);

/* --- directories get theirs when everything is in them --- */
struct archive_dirs;

struct archive_dirs *archive_dirs_create(struct archive_root *root);
void archive_dirs_destroy(struct archive_dirs *d); /* NULL is accepted */

/* Remembers it. known: it was there before, so what the user may not change in it stays. When there is no
 * more room those that are not above `name` get theirs now. 0, or -1 with errno. */
int archive_dirs_add(struct archive_dirs *d, const struct archive_name *name, bool known,
                     const struct archive_looks *l, const struct tar_entry *e);

/* All get theirs, the deepest first. 0, or -1 with the errno of the first that could not, whose name is in
 * *ret_name (valid until the destroy). */
int archive_dirs_apply(struct archive_dirs *d, const char **ret_name);
