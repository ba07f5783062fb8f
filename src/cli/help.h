/* Help and the reference page, both made from the command table. */
#pragma once

#include <stdio.h>

#include "cli/args.h"

/* The list of commands. */
void help_overview(FILE *to, const struct cli_command *table);

/* The commands whose first word is `group`, of which there is at least one. */
void help_group(FILE *to, const struct cli_command *table, const char *group);

/* One command with its options. */
void help_command(FILE *to, const struct cli_command *command);

/* docs/reference/cli.md. */
void help_markdown(FILE *to, const struct cli_command *table);

/* docs/man/space.1, in mdoc(7). */
void help_mdoc(FILE *to, const struct cli_command *table);
