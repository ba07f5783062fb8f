#include "spaced/host_report.h"

#include <stdio.h>
#include <stdlib.h>

#include "doctor/doctor.h"

struct host_report {
    struct loop_pool *pool;
    struct loop_work work;
    const struct handoff *h;
    struct doctor_report report; /* the worker's until done */
    json_t *json;
};

static int known_kernel(const struct doctor_config *config, char *detail, size_t size, struct error *err)
{
    (void)err;
    (void)snprintf(detail, size, "%s, in use", config->kernel);
    return 0;
}

static void run(struct loop_work *w)
{
    struct host_report *r = w->arg;
    struct doctor_config config = {
        .state_dir = r->h->config.state_dir,
        .kernel = r->h->image.kernel_path,
        .is_root = true, /* what needs root was found out by the root stage */
        .kvm_why = r->h->kvm_why,
        .kvm_works = r->h->kvm_works,
        .find_kernel = known_kernel,
    };
    doctor_run(&config, &r->report);
}

static void done(struct loop_work *w)
{
    struct host_report *r = w->arg;
    r->json = doctor_json(&r->report);
}

int host_report_create(struct loop *l, const struct handoff *h, struct host_report **ret, struct error *err)
{
    struct host_report *r = calloc(1, sizeof(*r));
    if (!r)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    r->h = h;
    r->work = (struct loop_work){.run = run, .done = done, .arg = r};
    int rc = loop_pool_create(l, "doctor", 1, 1, &r->pool, err);
    if (rc == 0)
        rc = loop_pool_submit(r->pool, &r->work, err);
    if (rc < 0)
        host_report_destroy(r);
    else
        *ret = r;
    return rc;
}

void host_report_destroy(struct host_report *r)
{
    if (!r)
        return;
    loop_pool_destroy(r->pool);
    json_decref(r->json);
    free(r);
}

json_t *host_report_json(void *arg)
{
    const struct host_report *r = arg;
    return json_incref(r->json);
}
