#include "doctor/doctor.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

#include "base/cleanup.h"
#include "doctor/doctor_impl.h"

/* In the order they are shown. */
static void (*const checks[])(struct doctor *d) = {
    doctor_check_root, doctor_check_cpu,        doctor_check_kvm,    doctor_check_firecracker,
    doctor_check_qemu, doctor_check_kernel,     doctor_check_disk,   doctor_check_reflink,
    doctor_check_loop, doctor_check_memory,     doctor_check_cgroup, doctor_check_userns,
    doctor_check_tun,  doctor_check_mmdebstrap, doctor_check_mke2fs, doctor_check_port,
};

static const char *const status_names[] = {"ok", "degraded", "missing"};

struct doctor_check *doctor_add(struct doctor *d, const char *name, enum doctor_status status,
                                const char *advice, const char *detail, ...)
{
    struct doctor_report *r = d->report;
    static struct doctor_check
        overflow; /* more checks than lines is a bug; it must not cost more than a line */
    struct doctor_check *c = r->count < DOCTOR_CHECKS_MAX ? &r->checks[r->count++] : &overflow;
    c->status = status;
    (void)snprintf(c->name, sizeof(c->name), "%s", name);
    (void)snprintf(c->advice, sizeof(c->advice), "%s", advice);
    va_list ap;
    va_start(ap, detail);
    (void)vsnprintf(c->detail, sizeof(c->detail), detail, ap);
    va_end(ap);
    return c;
}

/* What `auto` does with what was found (src/vm chooses by the same rule). */
static void choose_engine(struct doctor *d)
{
    struct doctor_report *r = d->report;
    bool firecracker = d->firecracker_works && d->kvm_works;
    if (!d->qemu_works && !firecracker) {
        (void)snprintf(r->reason, sizeof(r->reason), "no usable VMM is installed");
        return;
    }
    (void)snprintf(r->engine, sizeof(r->engine), "%s", firecracker ? "firecracker" : "qemu");
    (void)snprintf(r->acceleration, sizeof(r->acceleration), "%s", d->kvm_works ? "kvm" : "tcg");
    (void)snprintf(r->reason, sizeof(r->reason), "%s",
                   d->kvm_works
                       ? "a probe guest ran on /dev/kvm"
                       : "KVM does not work here: software emulation, the same boundary with slower compute");
}

void doctor_run(const struct doctor_config *config, struct doctor_report *ret)
{
    *ret = (struct doctor_report){0};
    struct doctor d = {.config = config, .report = ret};
    for (size_t i = 0; i < ARRAY_LEN(checks); i++)
        checks[i](&d);
    choose_engine(&d);
}

bool doctor_can_run(const struct doctor_report *r)
{
    for (size_t i = 0; i < r->count; i++)
        if (r->checks[i].status == DOCTOR_MISSING)
            return false;
    return r->count > 0;
}

const char *doctor_status_name(enum doctor_status s)
{
    return (size_t)s < ARRAY_LEN(status_names) ? status_names[s] : "missing";
}

json_t *doctor_json(const struct doctor_report *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->count; i++)
        (void)json_array_append_new(list,
                                    json_pack("{s:s, s:s, s:s, s:s}", "name", r->checks[i].name, "status",
                                              doctor_status_name(r->checks[i].status), "detail",
                                              r->checks[i].detail, "advice", r->checks[i].advice));
    return json_pack("{s:b, s:s, s:s, s:s, s:o}", "can_run", doctor_can_run(r), "engine", r->engine,
                     "acceleration", r->acceleration, "reason", r->reason, "checks", list);
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

void doctor_print(FILE *to, const json_t *report)
{
    size_t i;
    const json_t *check;
    json_array_foreach(json_object_get(report, "checks"), i, check)
    {
        (void)fprintf(to, "%-9s %-18s %s\n", text_of(check, "status"), text_of(check, "name"),
                      text_of(check, "detail"));
        if (*text_of(check, "advice"))
            (void)fprintf(to, "%-9s %-18s -> %s\n", "", "", text_of(check, "advice"));
    }
    bool can = json_is_true(json_object_get(report, "can_run"));
    if (*text_of(report, "engine"))
        (void)fprintf(to, "\nengine auto: %s with %s (%s)\n", text_of(report, "engine"),
                      text_of(report, "acceleration"), text_of(report, "reason"));
    else
        (void)fprintf(to, "\nengine auto: none (%s)\n", text_of(report, "reason"));
    (void)fputs(can ? "Sandboxes can run here.\n"
                    : "Sandboxes cannot run here until what is missing is fixed.\n",
                to);
}
