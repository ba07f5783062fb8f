#include "cli/args.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/str.h"

const struct cli_option cli_global_options[] = {
    {"url", 0, OPTION_STRING, "URL", "The server (environment SPACE_URL; default http://127.0.0.1:7780)."},
    {"key", 0, OPTION_STRING, "KEY",
     "The API key. Other users of this machine can see it in the process list: prefer the environment "
     "(SPACE_API_KEY, or SPACE_KEY_FILE naming a file)."},
    {"output", 'o', OPTION_CHOICE, "table|json", "How results are printed (default table).", "table|json"},
    {"help", 'h', OPTION_FLAG, NULL, "Show the help of the command."},
    {NULL},
};

struct parser {
    struct cli_args *args;
    int argc;
    char **argv;
    int at; /* next word */
    struct error *err;
};

const struct cli_command *cli_command_find(const struct cli_command *table, const char *name)
{
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0)
            return table;
    return NULL;
}

bool cli_command_group(const struct cli_command *table, const char *word, char *buf, size_t size)
{
    size_t n = strlen(word);
    size_t used = 0;
    buf[0] = '\0';
    for (; n > 0 && table->name; table++) {
        if (strncmp(table->name, word, n) != 0 || table->name[n] != ' ')
            continue;
        int more = snprintf(buf + used, size - used, "%s%s", used > 0 ? ", " : "", table->name + n + 1);
        used += more > 0 ? (size_t)more : 0;
        if (used >= size)
            break;
    }
    return buf[0] != '\0';
}

static const struct cli_option *find_in(const struct cli_option *table, const char *name, size_t n,
                                        char letter)
{
    for (; table && table->name; table++) {
        if (name && strlen(table->name) == n && memcmp(table->name, name, n) == 0)
            return table;
        if (!name && table->letter == letter)
            return table;
    }
    return NULL;
}

/* A command's own options come first: they may give a letter another meaning. */
static const struct cli_option *find_option(const struct parser *p, const char *name, size_t n, char letter)
{
    const struct cli_command *command = p->args->command;
    const struct cli_option *o = command ? find_in(command->options, name, n, letter) : NULL;
    return o ? o : find_in(cli_global_options, name, n, letter);
}

static bool is_choice(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (const char *p = choices; p; p = strchr(p, '|'), p = p ? p + 1 : NULL)
        if (strcspn(p, "|") == n && memcmp(p, text, n) == 0)
            return true;
    return false;
}

/* KiB in a unit, 0 for what is none; none at all is MiB. "M", "MB" and "MiB" are the same. */
static uint64_t unit_kib(const char *unit)
{
    static const char letters[] = "kmgt";
    uint64_t kib = 1;
    if (*unit == '\0')
        return 1024;
    const char *at = strchr(letters, *unit | 0x20);
    if (!at || (strcasecmp(unit + 1, "ib") != 0 && strcasecmp(unit + 1, "b") != 0 && unit[1] != '\0'))
        return 0;
    for (const char *c = letters; c < at; c++)
        kib *= 1024;
    return kib;
}

#define SIZE_DIGITS 12 /* so that no product overflows */

bool cli_parse_size(const char *text, uint64_t min, uint64_t max, uint64_t *ret_mib)
{
    uint64_t number = 0;
    uint64_t scale = 1;
    size_t digits = 0;
    bool point = false;
    for (; (*text >= '0' && *text <= '9') || (*text == '.' && !point && digits > 0); text++) {
        if (*text == '.') {
            point = true;
            continue;
        }
        if (++digits > SIZE_DIGITS)
            return false;
        number = number * 10 + (uint64_t)(*text - '0');
        scale *= point ? 10 : 1;
    }
    uint64_t kib;
    if (digits == 0 || __builtin_mul_overflow(number, unit_kib(text), &kib) || unit_kib(text) == 0)
        return false;
    if (kib % scale != 0 || kib / scale % 1024 != 0)
        return false;
    uint64_t mib = kib / scale / 1024;
    if (mib < min || mib > max)
        return false;
    *ret_mib = mib;
    return true;
}

static int add_value(struct parser *p, const struct cli_option *o, const char *text)
{
    uint64_t number;
    if (o->kind == OPTION_NUMBER && !str_to_u64(text, o->min, o->max, &number))
        return error_set(p->err, ERROR_INVALID, "--%s takes a number from %llu to %llu, not '%s'", o->name,
                         (unsigned long long)o->min, (unsigned long long)o->max, text);
    if (o->kind == OPTION_SIZE && !cli_parse_size(text, o->min, o->max, &number))
        return error_set(
            p->err, ERROR_INVALID,
            "--%s takes a size such as 512M or 1G (a bare number is MiB), from %llu MiB on, not '%s'",
            o->name, (unsigned long long)o->min, text);
    if (o->kind == OPTION_CHOICE && !is_choice(o->choices, text))
        return error_set(p->err, ERROR_INVALID, "--%s takes one of %s, not '%s'", o->name, o->choices, text);
    if (p->args->value_count >= ARRAY_LEN(p->args->values))
        return error_set(p->err, ERROR_INVALID, "more than %d options", CLI_VALUES_MAX);
    p->args->values[p->args->value_count++] = (struct cli_value){o, text};
    return 0;
}

/* The value of an option that needs one: what is attached to it, else the next word. */
static int take_value(struct parser *p, const struct cli_option *o, const char *attached)
{
    if (attached)
        return add_value(p, o, attached);
    if (p->at >= p->argc)
        return error_set(p->err, ERROR_INVALID, "--%s needs a value (%s)", o->name, o->value);
    return add_value(p, o, p->argv[p->at++]);
}

static int unknown_option(const struct parser *p, const char *dashes, const char *name, size_t n)
{
    const struct cli_command *command = p->args->command;
    return error_set(p->err, ERROR_INVALID, "unknown option %s%.*s; see `space help%s%s`", dashes, (int)n,
                     name, command ? " " : "", command ? command->name : "");
}

static int parse_long(struct parser *p, const char *word)
{
    const char *name = word + 2;
    size_t n = strcspn(name, "=");
    const char *attached = name[n] == '=' ? name + n + 1 : NULL;
    const struct cli_option *o = find_option(p, name, n, 0);
    if (!o)
        return unknown_option(p, "--", name, n);
    if (o->kind != OPTION_FLAG)
        return take_value(p, o, attached);
    if (attached)
        return error_set(p->err, ERROR_INVALID, "--%s takes no value", o->name);
    return add_value(p, o, "");
}

/* "-it", "-ojson", "-n 3": flags may be bundled, the first option with a value ends the word. */
static int parse_short(struct parser *p, const char *word)
{
    for (const char *c = word + 1; *c; c++) {
        const struct cli_option *o = find_option(p, NULL, 0, *c);
        if (!o)
            return unknown_option(p, "-", c, 1);
        if (o->kind != OPTION_FLAG)
            return take_value(p, o, c[1] ? c + 1 : NULL);
        int rc = add_value(p, o, "");
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int not_of_group(struct parser *p, const struct cli_command *table, const char *group)
{
    char words[256];
    (void)cli_command_group(table, group, words, sizeof(words));
    return error_set(p->err, ERROR_INVALID, "after `space %s` comes one of: %s", group, words);
}

/* One or two words name the command; the longer name wins. */
static int find_command(struct parser *p, const struct cli_command *table)
{
    const char *first = p->argv[p->at];
    char two[64];
    char words[256];
    if (p->args->group)
        return not_of_group(p, table, p->args->group);
    if (p->at + 1 < p->argc) {
        bool whole = strlen(first) + strlen(p->argv[p->at + 1]) + 2 <= sizeof(two);
        if (whole) {
            (void)str_copy(two, sizeof(two), first);
            size_t n = strlen(two);
            two[n] = ' ';
            (void)str_copy(two + n + 1, sizeof(two) - n - 1, p->argv[p->at + 1]);
            p->args->command = cli_command_find(table, two);
            if (p->args->command) {
                p->at += 2;
                return 0;
            }
        }
    }
    p->args->command = cli_command_find(table, first);
    if (!p->args->command && cli_command_group(table, first, words, sizeof(words)))
        p->args->group = first;
    else if (!p->args->command)
        return error_set(p->err, ERROR_INVALID, "unknown command '%s'; see `space help`", first);
    p->at++;
    return 0;
}

static void take_rest(struct parser *p)
{
    p->args->rest = p->argv + p->at;
    p->args->rest_count = (size_t)(p->argc - p->at);
    p->at = p->argc;
}

static int parse_positional(struct parser *p, const struct cli_command *table)
{
    struct cli_args *a = p->args;
    if (!a->command)
        return find_command(p, table);
    if (a->command->rest && a->positional_count >= a->command->max) {
        take_rest(p);
        return 0;
    }
    if (a->positional_count >= a->command->max || a->positional_count >= ARRAY_LEN(a->positional))
        return error_set(p->err, ERROR_INVALID, "'%s' is one argument too many for `space %s`",
                         p->argv[p->at], a->command->name);
    a->positional[a->positional_count++] = p->argv[p->at++];
    return 0;
}

/* After "--" nothing is an option any more. */
static int parse_after_dashes(struct parser *p, const struct cli_command *table)
{
    if (p->args->command && p->args->command->rest && p->args->positional_count >= p->args->command->min) {
        take_rest(p);
        return 0;
    }
    int rc = 0;
    while (rc == 0 && p->at < p->argc)
        rc = parse_positional(p, table);
    return rc;
}

static int parse_word(struct parser *p, const struct cli_command *table)
{
    const char *word = p->argv[p->at];
    if (word[0] != '-' || word[1] == '\0') /* "-" alone is standard input or output */
        return parse_positional(p, table);
    p->at++;
    if (strcmp(word, "--") == 0)
        return parse_after_dashes(p, table);
    return word[1] == '-' ? parse_long(p, word) : parse_short(p, word);
}

int cli_args_parse(const struct cli_command *table, int argc, char **argv, struct cli_args *ret,
                   struct error *err)
{
    *ret = (struct cli_args){0};
    struct parser p = {.args = ret, .argc = argc, .argv = argv, .at = 1, .err = err};
    while (p.at < argc) {
        int rc = parse_word(&p, table);
        if (rc < 0)
            return rc;
    }
    if (cli_flag(ret, "help"))
        return 0;
    if (ret->group)
        return not_of_group(&p, table, ret->group);
    if (!ret->command)
        return 0;
    if (ret->positional_count < ret->command->min)
        return error_set(err, ERROR_INVALID, "`space %s` needs %s", ret->command->name,
                         ret->command->arguments);
    return 0;
}

bool cli_flag(const struct cli_args *a, const char *name)
{
    return cli_text(a, name, NULL) != NULL;
}

const char *cli_text(const struct cli_args *a, const char *name, const char *fallback)
{
    for (size_t i = a->value_count; i-- > 0;)
        if (strcmp(a->values[i].option->name, name) == 0)
            return a->values[i].text;
    return fallback;
}

uint64_t cli_number(const struct cli_args *a, const char *name, uint64_t fallback)
{
    const char *text = cli_text(a, name, NULL);
    uint64_t number = fallback;
    if (text && !str_to_u64(text, 0, UINT64_MAX, &number))
        (void)cli_parse_size(text, 0, UINT64_MAX, &number);
    return number;
}

const char *cli_item(const struct cli_args *a, const char *name, size_t index)
{
    for (size_t i = 0; i < a->value_count; i++)
        if (strcmp(a->values[i].option->name, name) == 0 && index-- == 0)
            return a->values[i].text;
    return NULL;
}
