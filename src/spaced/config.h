/* The daemon's configuration: one table of keys serves the file, the command line, --help and the reference
 * page. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "vm/vm.h"

#define CONFIG_TEXT_MAX 512

struct config {
    char listen[CONFIG_TEXT_MAX];
    char state_dir[CONFIG_TEXT_MAX];
    char engine[CONFIG_TEXT_MAX];
    char firecracker[CONFIG_TEXT_MAX];
    char kernel[CONFIG_TEXT_MAX];
    char modules[CONFIG_TEXT_MAX];
    char public_url[CONFIG_TEXT_MAX];
    char log_level[CONFIG_TEXT_MAX];
    char log_format[CONFIG_TEXT_MAX];
    uint64_t default_vcpus;
    uint64_t default_memory_mib;
    uint64_t default_disk_mib;
    uint64_t default_disk_mib_per_s;
    uint64_t default_disk_iops;
    uint64_t max_vcpus;
    uint64_t max_memory_mib;
    uint64_t max_disk_mib;
    uint64_t max_disk_mib_per_s;
    uint64_t max_disk_iops;
    uint64_t max_sandboxes;
    uint64_t memory_limit_mib;
    uint64_t memory_reserve_mib;
    char memory_pressure[CONFIG_TEXT_MAX];
    uint64_t min_free_disk_mib;
    uint64_t default_idle_timeout_s;
    char default_on_idle[CONFIG_TEXT_MAX];
    uint64_t default_max_lifetime_s;
    char default_auto_wake[CONFIG_TEXT_MAX];
    uint64_t wake_timeout_s;
    uint64_t expired_retention_s;
    uint64_t snapshot_pack_after_s;
    uint64_t warm_per_golden;
    uint64_t warm_total;
    uint64_t retention_s;
    uint64_t pool_size_mib;
    uint64_t journal_mib;
    uint64_t journal_sandbox_mib;
    uint64_t token_ttl_s;
    char domain[CONFIG_TEXT_MAX];
    uint64_t max_tunnels;
    uint64_t reader_queue_mib;
    uint64_t port_timeout_s;
    bool dev;
};

enum config_action { CONFIG_SERVE, CONFIG_PURGE, CONFIG_HELP, CONFIG_VERSION, CONFIG_REFERENCE };

/* Every key at its default. */
void config_defaults(struct config *c);

/* Sets one key from text. ERROR_INVALID names the key and what it accepts. */
int config_set(struct config *c, const char *key, const char *value, struct error *err);

/* Reads `key = value` lines; '#' starts a comment. ERROR_INVALID with file and line. */
int config_file(struct config *c, const char *path, struct error *err);

/* Defaults, then the file named by --config (or the default file when it is there), then the other options.
 */
int config_command_line(struct config *c, int argc, char *const *argv, enum config_action *ret,
                        struct error *err);

/* What concerns several keys: --dev on loopback only, defaults within limits. */
int config_check(const struct config *c, struct error *err);

enum vm_engine_choice config_engine(const struct config *c);

/* Help text, or the reference page in Markdown, to standard output. */
void config_print_help(void);
void config_print_reference(void);

/* To and from JSON, to hand a checked configuration to the process's second stage. */
json_t *config_to_json(const struct config *c);
int config_from_json(struct config *c, const json_t *json, struct error *err);
