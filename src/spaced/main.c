/* spaced: the SPACE daemon. Two stages of one program: root prepares (root.c), then an unprivileged uid
 * serves (serve.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/str.h"
#include "spaced/handoff.h"
#include "spaced/root.h"
#include "spaced/serve.h"

static int report(const struct error *err)
{
    (void)fprintf(stderr, "spaced: %s\n", err->message);
    return err->code == ERROR_INVALID || err->code == ERROR_UNKNOWN_FIELD ? 2 : 1;
}

static void set_up_log(const struct config *c)
{
    enum log_level level = LOG_INFO;
    (void)log_level_parse(c->log_level, &level);
    log_setup("spaced", level, strcmp(c->log_format, "json") == 0);
}

static int second_stage_main(const char *number)
{
    struct error err = ERROR_INIT;
    struct handoff h;
    uint64_t fd;
    int rc = str_to_u64(number, 3, 1 << 20, &fd)
                 ? handoff_read((int)fd, &h, &err)
                 : error_set(&err, ERROR_INVALID, "--second-stage is not for people");
    if (rc < 0)
        return report(&err);
    set_up_log(&h.config);
    return serve(&h, &err) < 0 ? report(&err) : 0;
}

static void warn_dev(const struct config *c)
{
    if (c->dev)
        (void)fprintf(stderr,
                      "spaced: --dev: a development key with every right is in %s/dev.key; loopback only. "
                      "NOT a production setting.\n",
                      c->state_dir);
}

int main(int argc, char **argv)
{
    fault_init();
    if (argc >= 3 && strcmp(argv[1], "--second-stage") == 0)
        return second_stage_main(argv[2]);
    struct error err = ERROR_INIT;
    struct config c;
    enum config_action action;
    if (config_command_line(&c, argc, argv, &action, &err) < 0)
        return report(&err);
    set_up_log(&c);
    switch (action) {
    case CONFIG_HELP:
        config_print_help();
        return 0;
    case CONFIG_REFERENCE:
        config_print_reference();
        return 0;
    case CONFIG_VERSION:
        (void)printf("spaced %s\n", SPACE_VERSION);
        return 0;
    case CONFIG_PURGE:
        return root_purge(&c, &err) < 0 ? report(&err) : 0;
    case CONFIG_SERVE:
        break;
    }
    if (config_check(&c, &err) < 0)
        return report(&err);
    warn_dev(&c);
    (void)root_stage(&c, argv[0], &err);
    return report(&err);
}
