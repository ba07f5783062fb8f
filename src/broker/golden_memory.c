/* The memory of a golden whose VMM did not write it into the golden's file itself. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "broker/memory.h"
#include "broker/privd.h"
#include "broker/snapshot.h"

#define MIB (1024ULL * 1024)
#define STEP_PAGES 1024U

/* The pages the guest has written, but for zeros: `mem` is as empty as the guest's memory was at first. */
static int copy_pages(struct job *j, const struct memory_vmm *v, const struct memory_map *m, struct pages *to)
{
    AUTO_FREE unsigned char *content = malloc((size_t)STEP_PAGES * MEMORY_PAGE);
    AUTO_FREE uint32_t *numbers = calloc(STEP_PAGES, sizeof(*numbers));
    if (!content || !numbers)
        return error_set(&j->err, ERROR_NO_MEMORY, "out of memory");
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < m->pages;) {
        uint64_t n = m->pages - i < STEP_PAGES ? m->pages - i : STEP_PAGES;
        memory_numbers(m, i, n, numbers);
        rc = memory_read(v, m, i, n, content, &j->err);
        if (rc == 0)
            rc = pages_settle(to, numbers, content, n, &j->err);
        i += n;
    }
    return rc;
}

static int capture(struct job *j, int pidfd, struct pages *to)
{
    const struct record *r = &j->sandbox->rec;
    const struct memory_vmm v = {
        .pid = r->vmm_pid, .pidfd = pidfd, .base_fd = -1, .bytes = r->memory_mib * MIB, .holed = true};
    struct memory_map map = {0};
    char path[BROKER_KEY_SIZE + 16];
    (void)snprintf(path, sizeof(path), "golden/%s/mem", j->req.key);
    to->memory_bytes = v.bytes;
    to->mem_fd = openat(j->p->pool_fd, path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (to->mem_fd < 0)
        return error_errno(&j->err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno, "open %s",
                           path);
    /* What an attempt before has left there would count as the guest's. */
    if (ftruncate(to->mem_fd, 0) < 0 || ftruncate(to->mem_fd, (off_t)v.bytes) < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "size of %s", path);
    int rc = memory_scan(&v, &map, &j->err);
    if (rc == 0)
        rc = copy_pages(j, &v, &map, to);
    memory_map_finish(&map);
    return rc;
}

int op_golden_capture_run(struct job *j)
{
    const struct record *r = &j->sandbox->rec;
    AUTO_CLOSE int pidfd = -1;
    char sealed[BROKER_KEY_SIZE + 16];
    (void)snprintf(sealed, sizeof(sealed), "golden/%s/sealed", j->req.key);
    if (strcmp(r->golden, j->req.key) != 0 || faccessat(j->p->pool_fd, sealed, F_OK, 0) == 0)
        return error_set(&j->err, ERROR_CONFLICT, "golden %s was not begun for this sandbox", j->req.key);
    if (!vmm_alive(r, &pidfd))
        return error_set(&j->err, ERROR_NOT_FOUND, "%s has no VMM", r->id);
    if (r->vmm_kind != BROKER_VMM_FIRECRACKER)
        return error_set(&j->err, ERROR_CONFLICT, "the VMM of %s writes the golden's memory itself", r->id);
    struct pages to;
    int rc = pages_init(&to, &j->err);
    if (rc < 0)
        return rc;
    rc = capture(j, pidfd, &to);
    pages_finish(&to);
    fault_point("privd.golden-capture.memory");
    return rc;
}
