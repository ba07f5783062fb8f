/* doctor: what this machine, or the server's, offers to sandboxes. */
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli/cli.h"
#include "doctor/doctor.h"
#include "image/image.h"
#include "vm/kvm_probe.h"

static int find_kernel(const struct doctor_config *config, char *detail, size_t size, struct error *err)
{
    struct image_config image = {.kernel = config->kernel,
                                 .modules = config->modules,
                                 .state_dir = config->state_dir ? config->state_dir : "/var/lib/space"};
    struct image_info info = {0};
    int rc = image_find(&image, &info, err);
    if (rc == 0)
        (void)snprintf(detail, size, "%s (%.120s) with its modules", info.kernel_release, info.kernel_path);
    return rc;
}

int cmd_doctor(struct cli *c)
{
    struct error err = ERROR_INIT;
    json_t *report = NULL;
    if (cli_flag(c->args, "server")) {
        if (cli_call(c, "GET", strdup("/v1/doctor"), NULL, &report, &err) < 0)
            return cli_fail(c, &err);
    } else {
        struct doctor_config config = {.state_dir = cli_text(c->args, "state-dir", NULL),
                                       .port = (uint16_t)cli_number(c->args, "port", 7780),
                                       .kernel = cli_text(c->args, "kernel", NULL),
                                       .modules = cli_text(c->args, "modules", NULL),
                                       .is_root = geteuid() == 0,
                                       .kvm_probe = kvm_probe,
                                       .find_kernel = find_kernel};
        AUTO_FREE struct doctor_report *r = calloc(1, sizeof(*r));
        if (r) {
            doctor_run(&config, r);
            report = doctor_json(r);
        }
    }
    if (!report) {
        (void)error_set(&err, ERROR_NO_MEMORY, "out of memory");
        return cli_fail(c, &err);
    }
    if (c->json)
        cli_print_object(c, report);
    else
        doctor_print(c->out, report);
    bool can = json_is_true(json_object_get(report, "can_run"));
    json_decref(report);
    return can ? EXIT_OK : EXIT_FAILED;
}
