/* The command line as tables: commands, their options, and the parser that the tables drive. Help and the
 * reference page (cli/help.h) are made from the same tables. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct cli;

enum cli_option_kind {
    OPTION_FLAG,
    OPTION_STRING,
    OPTION_NUMBER, /* decimal, within [min, max] */
    OPTION_CHOICE, /* one of the words in `choices`, separated by '|' */
    OPTION_LIST,   /* may be repeated */
    OPTION_SIZE,   /* memory or disk in MiB, or with a unit: 512, 512M, 1.5G; within [min, max] MiB */
};

struct cli_option {
    const char *name; /* without dashes; NULL ends a table */
    char letter;      /* short form, 0: none */
    enum cli_option_kind kind;
    const char *value; /* what the value is called in help; NULL for a flag */
    const char *help;
    const char *choices;
    uint64_t min, max;
};

struct cli_command {
    const char *name;                 /* one or two words; NULL ends the table */
    const char *arguments;            /* positional part of the usage line */
    unsigned min, max;                /* positional arguments */
    bool rest;                        /* further words are a command to run, taken as they are */
    const struct cli_option *options; /* NULL: none of its own */
    const char *summary;
    const char *detail; /* further paragraphs of help; NULL: none */
    int (*run)(struct cli *c);
    const char *section; /* of help, which begins with this command; NULL: it belongs to the one before */
};

#define CLI_VALUES_MAX 256
#define CLI_POSITIONAL_MAX 64

struct cli_value {
    const struct cli_option *option;
    const char *text; /* "" for a flag */
};

/* A parsed command line. Pointers go into argv and the tables. */
struct cli_args {
    const struct cli_command *command; /* NULL: none was given */
    const char *group; /* with --help and no command: the word that several commands begin with */
    struct cli_value values[CLI_VALUES_MAX];
    size_t value_count;
    const char *positional[CLI_POSITIONAL_MAX];
    size_t positional_count;
    char **rest; /* NULL-terminated tail of argv; NULL: none */
    size_t rest_count;
};

/* Options every command takes. */
extern const struct cli_option cli_global_options[];

/* All commands (commands.c). */
extern const struct cli_command cli_commands[];

/* The command with these words ("ls", "template build"), NULL when there is none. */
const struct cli_command *cli_command_find(const struct cli_command *table, const char *name);

/* The second words of the commands whose first is `word`, with commas between, cut at `size`: "ls, get" for
 * "template". False when there are none. */
bool cli_command_group(const struct cli_command *table, const char *word, char *buf, size_t size);

/* Parses argv[1..]. Options may stand anywhere before "--"; for a command with `rest`, the first word beyond
 * its positional arguments starts the command to run. With --help among the options, missing arguments, or
 * the second word of a command's name, are not an error. ERROR_INVALID says what is wrong. */
int cli_args_parse(const struct cli_command *table, int argc, char **argv, struct cli_args *ret,
                   struct error *err);

bool cli_flag(const struct cli_args *a, const char *name);

/* Last value given, or fallback. */
const char *cli_text(const struct cli_args *a, const char *name, const char *fallback);

/* Last value of a number or size option (checked by the parser), or fallback. */
uint64_t cli_number(const struct cli_args *a, const char *name, uint64_t fallback);

/* The index-th value of a repeated option; NULL past the end. */
const char *cli_item(const struct cli_args *a, const char *name, size_t index);

/* "512", "512M", "1.5G", "1GiB": whole MiB within [min, max]; false for anything else. */
bool cli_parse_size(const char *text, uint64_t min, uint64_t max, uint64_t *ret_mib);
