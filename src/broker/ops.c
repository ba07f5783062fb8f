/* The table of requests and their handlers, and the short ones. docs/design/privilege.md lists it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "broker/privd.h"

static int info_run(struct job *j)
{
    const struct privd *p = j->p;
    struct reply *r = &j->rep;
    (void)snprintf(r->pool_path, sizeof(r->pool_path), "%s/pool", p->state_dir);
    (void)str_copy(r->pool_kind, sizeof(r->pool_kind), p->pool.kind);
    (void)str_copy(r->cgroup_mode, sizeof(r->cgroup_mode), cgroup_mode_name(p->cgroups.mode));
    r->reflink = p->pool.reflink;
    r->uid_first = p->lease.uid_first;
    r->uid_count = LEASE_BLOCK;
    AUTO_CLOSE int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    r->kvm_device = kvm >= 0;
    return pool_space(p->state_dir, &r->pool_free_bytes, &r->pool_total_bytes, &j->err);
}

static int compare_ids(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A page of ids in order, so that a list longer than a message can be asked for in parts. */
static int list_begin(struct job *j)
{
    unsigned n = 0;
    AUTO_FREE const char **ids = calloc(HASH_COUNT(j->p->sandboxes) + 1, sizeof(*ids));
    if (!ids)
        return error_set(&j->err, ERROR_NO_MEMORY, "out of memory");
    for (struct sandbox *s = j->p->sandboxes; s; s = s->hh.next)
        if (strcmp(s->rec.id, j->req.after) > 0)
            ids[n++] = s->rec.id;
    qsort(ids, n, sizeof(*ids), compare_ids);
    for (unsigned i = 0; i < n; i++)
        if (!wire_list_add(&j->rep.ids, ids[i])) {
            j->rep.more = 1;
            break;
        }
    return 0;
}

static int cancel_begin(struct job *j)
{
    build_cancel(j->p, j->req.build_id);
    return 0;
}

static const struct op table[] = {
    {REQUEST_INFO, false, false, NULL, info_run, NULL},
    {REQUEST_SANDBOX_PREPARE, true, false, op_prepare_begin, op_prepare_run, op_prepare_end},
    {REQUEST_SANDBOX_REMOVE, true, false, op_remove_begin, op_remove_run, op_remove_end},
    {REQUEST_SANDBOX_LIST, false, false, list_begin, NULL, NULL},
    {REQUEST_GOLDEN_BEGIN, true, true, op_need_sandbox, op_golden_begin_run, NULL},
    {REQUEST_GOLDEN_SEAL, true, true, op_need_sandbox, op_golden_seal_run, NULL},
    {REQUEST_GOLDEN_REMOVE, false, true, NULL, op_golden_remove_run, NULL},
    {REQUEST_GOLDEN_HAS, false, true, NULL, op_golden_has_run, NULL},
    {REQUEST_VMM_START, true, false, op_need_sandbox, op_vmm_start_run, op_vmm_start_end},
    {REQUEST_VMM_ADOPT, true, false, op_need_sandbox, op_vmm_adopt_run, op_vmm_adopt_end},
    {REQUEST_VMM_KILL, true, false, NULL, op_vmm_kill_run, op_vmm_kill_end},
    {REQUEST_BUILD_CANCEL, false, false, cancel_begin, NULL, NULL},
    {REQUEST_TEMPLATE_REMOVE, false, false, NULL, op_template_remove_run, NULL},
};

const struct op *op_find(unsigned type)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i].type == type)
            return &table[i];
    return NULL;
}
