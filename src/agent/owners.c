#include "agent/owners.h"

#include <string.h>

#include "base/str.h"

void owners_init(struct owners *o, int etc)
{
    memset(o, 0, sizeof(*o));
    o->etc = etc;
}

static const char *name_of(struct owners_slot *slots, int etc, uint32_t id,
                           bool (*find)(int etc_fd, uint32_t id, char ret[USER_NAME_MAX]))
{
    struct owners_slot *s = &slots[id % OWNERS_SLOTS];
    if (!s->known || s->id != id) {
        s->id = id;
        s->known = true;
        if (etc < 0 || !find(etc, id, s->name))
            s->name[0] = '\0';
    }
    return s->name;
}

const char *owners_user(struct owners *o, uid_t uid)
{
    return name_of(o->user_names, o->etc, uid, user_name);
}

const char *owners_group(struct owners *o, gid_t gid)
{
    return name_of(o->group_names, o->etc, gid, user_group_name);
}

static int find_user(int etc_fd, const char *name, uint32_t *ret)
{
    struct user u;
    if (user_find(etc_fd, name, &u) < 0)
        return -1;
    *ret = u.uid;
    return 0;
}

static uint32_t id_of(struct owners_slot *slots, int etc, const char *name, uint32_t otherwise,
                      int (*find)(int etc_fd, const char *name, uint32_t *ret))
{
    unsigned hash = 0;
    uint64_t number;
    /* A name of digits would be taken for a number, which the archive has of its own. */
    if (etc < 0 || !name[0] || strlen(name) >= USER_NAME_MAX || str_to_u64(name, 0, UINT64_MAX, &number))
        return otherwise;
    for (const char *p = name; *p; p++)
        hash = hash * 31 + (unsigned char)*p;
    struct owners_slot *s = &slots[hash % OWNERS_SLOTS];
    if (!s->known || strcmp(s->name, name) != 0) {
        (void)str_copy(s->name, sizeof(s->name), name);
        s->known = true;
        s->found = find(etc, name, &s->id) == 0;
    }
    return s->found ? s->id : otherwise;
}

uid_t owners_uid(struct owners *o, const char *name, uid_t otherwise)
{
    return id_of(o->user_ids, o->etc, name, otherwise, find_user);
}

gid_t owners_gid(struct owners *o, const char *name, gid_t otherwise)
{
    return id_of(o->group_ids, o->etc, name, otherwise, user_find_group);
}
