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
    cgroup_describe(&p->cgroups, r->cgroup_limits, sizeof(r->cgroup_limits));
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
    {REQUEST_INFO, .run = info_run},
    {REQUEST_SANDBOX_PREPARE, .on_sandbox = true, .begin = op_prepare_begin, .run = op_prepare_run,
     .end = op_prepare_end},
    {REQUEST_SANDBOX_PARK, .on_sandbox = true, .begin = op_park_begin, .run = op_park_run,
     .end = op_park_end},
    {REQUEST_SANDBOX_REVERT, .on_sandbox = true, .begin = op_need_sandbox, .run = op_revert_run},
    {REQUEST_SANDBOX_REMOVE, .on_sandbox = true, .begin = op_remove_begin, .run = op_remove_run,
     .end = op_remove_end},
    {REQUEST_SANDBOX_LIST, .begin = list_begin},
    {REQUEST_GOLDEN_BEGIN, .on_sandbox = true, .on_golden = true, .begin = op_need_leased,
     .run = op_golden_begin_run},
    {REQUEST_GOLDEN_CAPTURE, .on_sandbox = true, .on_golden = true, .begin = op_need_sandbox,
     .run = op_golden_capture_run},
    {REQUEST_GOLDEN_SEAL, .on_sandbox = true, .on_golden = true, .begin = op_need_sandbox,
     .run = op_golden_seal_run},
    {REQUEST_GOLDEN_REMOVE, .on_golden = true, .run = op_golden_remove_run},
    {REQUEST_GOLDEN_HAS, .on_golden = true, .run = op_golden_has_run},
    {REQUEST_SNAPSHOT_BEGIN, .on_sandbox = true, .on_snapshot = true, .begin = op_snapshot_begin_begin,
     .run = op_snapshot_begin_run, .end = op_snapshot_begin_end},
    {REQUEST_SNAPSHOT_CAPTURE, .on_sandbox = true, .on_snapshot = true, .begin = op_snapshot_capture_begin,
     .run = op_snapshot_capture_run, .end = op_snapshot_capture_end},
    {REQUEST_SNAPSHOT_SEAL, .on_snapshot = true, .run = op_snapshot_seal_run, .end = op_snapshot_seal_end},
    {REQUEST_SNAPSHOT_COPY, .on_snapshot = true, .begin = op_snapshot_copy_begin,
     .run = op_snapshot_copy_run},
    {REQUEST_SNAPSHOT_CHECK, .on_snapshot = true, .begin = op_snapshot_check_begin,
     .run = op_snapshot_check_run},
    {REQUEST_SNAPSHOT_REMOVE, .on_snapshot = true, .begin = op_snapshot_remove_begin,
     .run = op_snapshot_remove_run},
    {REQUEST_SNAPSHOT_LIST, .run = op_snapshot_list_run},
    {REQUEST_SNAPSHOT_PACK, .on_snapshot = true, .begin = op_snapshot_pack_begin,
     .run = op_snapshot_pack_run},
    {REQUEST_VMM_START, .on_sandbox = true, .begin = op_vmm_start_begin, .run = op_vmm_start_run,
     .end = op_vmm_start_end},
    {REQUEST_VMM_ADOPT, .on_sandbox = true, .begin = op_need_sandbox, .run = op_vmm_adopt_run,
     .end = op_vmm_adopt_end},
    {REQUEST_VMM_KILL, .on_sandbox = true, .run = op_vmm_kill_run, .end = op_vmm_kill_end},
    {REQUEST_BUILD_CANCEL, .begin = cancel_begin},
    {REQUEST_TEMPLATE_REMOVE, .run = op_template_remove_run},
};

const struct op *op_find(unsigned type)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i].type == type)
            return &table[i];
    return NULL;
}
