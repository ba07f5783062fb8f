#include "cli/help.h"

#include <string.h>

#include "cli/exit.h"

#define WIDTH 100
#define OPTION_COLUMN 28

/* Words of text from column `indent` on, broken before WIDTH. */
static void wrap(FILE *to, const char *text, int indent)
{
    int column = indent;
    while (*text) {
        size_t word = strcspn(text, " \n");
        if (column > indent && column + 1 + (int)word > WIDTH) {
            (void)fprintf(to, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            (void)fputc(' ', to);
            column++;
        }
        (void)fwrite(text, 1, word, to);
        column += (int)word;
        text += word;
        if (*text == '\n') {
            (void)fprintf(to, "\n%*s", indent, "");
            column = indent;
        }
        text += *text ? 1 : 0;
    }
    (void)fputc('\n', to);
}

static void usage_line(FILE *to, const struct cli_command *c)
{
    (void)fprintf(to, "space %s%s%s%s", c->name, c->options ? " [OPTIONS]" : "", *c->arguments ? " " : "",
                  c->arguments);
}

static void option_name(char *to, size_t n, const struct cli_option *o)
{
    char letter[8] = "";
    if (o->letter)
        (void)snprintf(letter, sizeof(letter), "-%c, ", o->letter);
    (void)snprintf(to, n, "%s--%s%s%s", letter, o->name, o->value ? " " : "", o->value ? o->value : "");
}

static void option_list(FILE *to, const struct cli_option *o)
{
    for (; o && o->name; o++) {
        char name[80];
        option_name(name, sizeof(name), o);
        (void)fprintf(to, "  %-*s", OPTION_COLUMN - 2, name);
        if (strlen(name) > OPTION_COLUMN - 3)
            (void)fprintf(to, "\n%*s", OPTION_COLUMN, "");
        wrap(to, o->help, OPTION_COLUMN);
    }
}

static void command_line(FILE *to, const struct cli_command *c)
{
    (void)fprintf(to, "  %-16s  ", c->name);
    wrap(to, c->summary, 20);
}

void help_overview(FILE *to, const struct cli_command *table)
{
    (void)fputs("Run untrusted code in microVM sandboxes.\n\nUsage: space [OPTIONS] COMMAND ...\n", to);
    for (; table->name; table++) {
        if (table->section)
            (void)fprintf(to, "\n%s:\n", table->section);
        command_line(to, table);
    }
    (void)fputs("\nOptions of every command:\n", to);
    option_list(to, cli_global_options);
    (void)fputs("\n`space help COMMAND` explains one command.\n", to);
}

void help_group(FILE *to, const struct cli_command *table, const char *group)
{
    size_t n = strlen(group);
    (void)fprintf(to, "Usage: space %s COMMAND ...\n\nCommands:\n", group);
    for (; table->name; table++)
        if (strncmp(table->name, group, n) == 0 && table->name[n] == ' ')
            command_line(to, table);
    (void)fprintf(to, "\n`space help %s COMMAND` explains one command.\n", group);
}

void help_command(FILE *to, const struct cli_command *c)
{
    (void)fputs("Usage: ", to);
    usage_line(to, c);
    (void)fputs("\n\n", to);
    wrap(to, c->summary, 0);
    if (c->detail) {
        (void)fputc('\n', to);
        wrap(to, c->detail, 0);
    }
    if (c->options) {
        (void)fputs("\nOptions:\n", to);
        option_list(to, c->options);
    }
    (void)fputs("\nOptions of every command:\n", to);
    option_list(to, cli_global_options);
}

/* A '|' would end a table cell. */
static void cell(FILE *to, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            (void)fputc('\\', to);
        (void)fputc(*text, to);
    }
}

static void markdown_options(FILE *to, const struct cli_option *o)
{
    (void)fputs("\n| option | meaning |\n|---|---|\n", to);
    for (; o->name; o++) {
        char name[80];
        option_name(name, sizeof(name), o);
        (void)fputs("| `", to);
        cell(to, name);
        (void)fputs("` | ", to);
        cell(to, o->help);
        (void)fputs(" |\n", to);
    }
}

static void markdown_exit(FILE *to)
{
    (void)fputs("\n## Exit status\n\n| status | meaning |\n|---|---|\n", to);
    const char *meaning;
    for (int i = 0; (meaning = exit_table(i)); i++)
        (void)fprintf(to, "| %s |\n", meaning);
}

void help_markdown(FILE *to, const struct cli_command *table)
{
    (void)fputs("# The command line\n\nGenerated from the command table by `space help --markdown`; do not "
                "edit.\n\n## Options of every command\n",
                to);
    markdown_options(to, cli_global_options);
    for (; table->name; table++) {
        if (table->section)
            (void)fprintf(to, "\n## %s\n", table->section);
        (void)fprintf(to, "\n### space %s\n\n    ", table->name);
        usage_line(to, table);
        (void)fprintf(to, "\n\n%s\n", table->summary);
        if (table->detail)
            (void)fprintf(to, "\n%s\n", table->detail);
        if (table->options)
            markdown_options(to, table->options);
    }
    markdown_exit(to);
}
