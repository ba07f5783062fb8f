/* Names of owners for archives: many files and few owners, so what /etc says is remembered. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/user.h"

#define OWNERS_SLOTS 64

struct owners_slot {
    bool known, found;
    uint32_t id;
    char name[USER_NAME_MAX];
};

struct owners {
    int etc; /* the caller's; -1: nobody has a name */
    struct owners_slot user_names[OWNERS_SLOTS], group_names[OWNERS_SLOTS]; /* by number */
    struct owners_slot user_ids[OWNERS_SLOTS], group_ids[OWNERS_SLOTS];     /* by name */
};

void owners_init(struct owners *o, int etc);

/* The name of a number, "" when it has none; valid until the next call. */
const char *owners_user(struct owners *o, uid_t uid);
const char *owners_group(struct owners *o, gid_t gid);

/* The number of a name; `otherwise` when there is no such name here. */
uid_t owners_uid(struct owners *o, const char *name, uid_t otherwise);
gid_t owners_gid(struct owners *o, const char *name, gid_t otherwise);
