#include "spaced/host_report.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "doctor/components.h"
#include "doctor/doctor.h"

struct host_report {
    struct loop_pool *pool;
    struct loop_work work;
    const struct handoff *h;
    struct doctor_report report; /* the worker's until done */
    json_t *json;
    json_t *components; /* the worker's until done; without ages */
    bool finished;
};

static int known_kernel(const struct doctor_config *config, char *detail, size_t size, struct error *err)
{
    (void)err;
    (void)snprintf(detail, size, "%s, in use", config->kernel);
    return 0;
}

static json_t *find_components(const struct handoff *h)
{
    AUTO_FREE char *initrd = str_printf("%s/platform/%s/initrd", h->config.state_dir, h->image.digest);
    struct components_config config = {.firecracker = h->config.firecracker,
                                       .kernel_release = h->image.kernel_release,
                                       .image_digest = h->image.digest,
                                       .initrd = initrd};
    return components_find(&config);
}

static void run(struct loop_work *w)
{
    struct host_report *r = w->arg;
    r->components = find_components(r->h);
    struct doctor_config config = {
        .state_dir = r->h->config.state_dir,
        .firecracker = r->h->config.firecracker,
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
    r->finished = true;
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
    json_decref(r->components);
    free(r);
}

json_t *host_report_json(void *arg)
{
    const struct host_report *r = arg;
    return json_incref(r->json);
}

json_t *host_report_components(void *arg)
{
    const struct host_report *r = arg;
    return r->finished ? components_aged(r->components, time(NULL)) : NULL;
}
