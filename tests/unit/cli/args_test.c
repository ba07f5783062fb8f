/* The command table and its parser. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/args.h"

static struct cli_args args;
static struct error err;

/* Parses words up to a NULL, with the program's name before them. */
static int parse(char **words)
{
    static char *argv[CLI_VALUES_MAX * 2 + 8];
    int argc = 0;
    argv[argc++] = "space";
    while (*words)
        argv[argc++] = *words++;
    argv[argc] = NULL;
    err = (struct error){0};
    return cli_args_parse(cli_commands, argc, argv, &args, &err);
}

#define PARSE(...) parse((char *[]){__VA_ARGS__, NULL})

static void every_command_is_complete(void **state)
{
    (void)state;
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        assert_non_null(c->run);
        assert_non_null(c->summary);
        assert_true(c->min <= c->max);
        assert_ptr_equal(cli_command_find(cli_commands, c->name), c); /* names are unique */
        for (const struct cli_option *o = c->options; o && o->name; o++) {
            assert_non_null(o->help);
            assert_true((o->kind == OPTION_FLAG) == (o->value == NULL));
            assert_true((o->kind == OPTION_CHOICE) == (o->choices != NULL));
            if (o->kind == OPTION_NUMBER)
                assert_true(o->min <= o->max && o->max > 0);
            for (const struct cli_option *p = c->options; p < o; p++) {
                assert_string_not_equal(p->name, o->name);
                assert_true(!o->letter || p->letter != o->letter);
            }
        }
    }
}

static void the_commands_of_the_api_are_there(void **state)
{
    (void)state;
    static const char *const names[] = {
        "run",          "create",      "ls",     "get",     "rm",          "exec",
        "attach",       "pause",       "resume", "stop",    "start",       "wake",
        "cp",           "ps",          "logs",   "kill",    "template ls", "template build",
        "template tag", "template rm", "op ls",  "op wait", "events",      "doctor",
        "key create",   "key ls",      "key rm", "version", "template log"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        assert_non_null(cli_command_find(cli_commands, names[i]));
}

static void the_words_of_a_group(void **state)
{
    (void)state;
    char buf[64];
    char small[6];
    assert_true(cli_command_group(cli_commands, "key", buf, sizeof(buf)));
    assert_string_equal(buf, "create, ls, rm");
    assert_true(cli_command_group(cli_commands, "key", small, sizeof(small)));
    assert_string_equal(small, "creat");
    assert_false(cli_command_group(cli_commands, "ke", buf, sizeof(buf)));
    assert_false(cli_command_group(cli_commands, "ls", buf, sizeof(buf)));
    assert_false(cli_command_group(cli_commands, "", buf, sizeof(buf)));
    assert_string_equal(buf, "");
}

static void options_stand_anywhere(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--url", "http://h", "get", "-ojson", "sb_1"), 0);
    assert_string_equal(args.command->name, "get");
    assert_string_equal(cli_text(&args, "url", ""), "http://h");
    assert_string_equal(cli_text(&args, "output", ""), "json");
    assert_int_equal(args.positional_count, 1);
    assert_string_equal(args.positional[0], "sb_1");
    assert_int_equal(PARSE("template", "build", "n:t", "--debian", "bookworm", "--packages=a,b"), 0);
    assert_string_equal(args.command->name, "template build");
    assert_string_equal(args.positional[1], "bookworm");
}

static void the_rest_is_taken_as_it_is(void **state)
{
    (void)state;
    assert_int_equal(PARSE("exec", "-it", "sb_1", "--", "ls", "-la", "--", "x"), 0);
    assert_true(cli_flag(&args, "interactive") && cli_flag(&args, "tty"));
    assert_int_equal(args.rest_count, 4);
    assert_string_equal(args.rest[1], "-la");
    assert_string_equal(args.rest[2], "--");
    assert_null(args.rest[4]);
    assert_int_equal(PARSE("exec", "sb_1", "ls", "--keep", "-o"), 0);
    assert_int_equal(args.rest_count, 3);
    assert_int_equal(PARSE("run", "-t", "tiny", "--keep", "true", "--keep"), 0);
    assert_string_equal(cli_text(&args, "template", ""), "tiny");
    assert_int_equal(args.rest_count, 2);
    assert_int_equal(PARSE("run", "--", "--weird"), 0);
    assert_string_equal(args.rest[0], "--weird");
}

static void dashes_alone_and_negative_words(void **state)
{
    (void)state;
    assert_int_equal(PARSE("cp", "-", "sb:/x"), 0);
    assert_string_equal(args.positional[0], "-");
    assert_int_equal(PARSE("cp", "--", "-file", "sb:/x"), 0);
    assert_string_equal(args.positional[0], "-file");
}

static void lists_keep_their_order_and_last_text_wins(void **state)
{
    (void)state;
    assert_int_equal(PARSE("create", "-e", "A=1", "--env=B=2", "--name", "x", "--name", "y"), 0);
    assert_string_equal(cli_item(&args, "env", 0), "A=1");
    assert_string_equal(cli_item(&args, "env", 1), "B=2");
    assert_null(cli_item(&args, "env", 2));
    assert_string_equal(cli_text(&args, "name", ""), "y");
}

static void refusals_name_the_fault(void **state)
{
    (void)state;
    static const struct {
        char *words[6];
        const char *says;
    } cases[] = {
        {{"nonsense"}, "nonsense"},
        {{"ls", "--frob"}, "--frob"},
        {{"ls", "-Z"}, "-Z"},
        {{"ls", "extra"}, "extra"},
        {{"get"}, "SANDBOX"},
        {{"create", "--cpus", "0"}, "--cpus"},
        {{"create", "--cpus", "-1"}, "-1"},
        {{"create", "--cpus", "two"}, "two"},
        {{"create", "--cpus"}, "needs a value"},
        {{"create", "--disk-iops", "-1"}, "-1"},
        {{"create", "--disk-mib-per-s", "1.5"}, "1.5"},
        {{"ls", "-o", "yaml"}, "yaml"},
        {{"ls", "-o", "tab"}, "tab"},
        {{"run", "--keep=yes", "true"}, "takes no value"},
        {{"key", "create", "--role", "god"}, "god"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(parse((char **)cases[i].words), ERROR_INVALID);
        assert_non_null(strstr(err.message, cases[i].says));
    }
}

static void too_many_options_are_refused(void **state)
{
    (void)state;
    char *words[CLI_VALUES_MAX * 2 + 4] = {"create"};
    int n = 1;
    for (int i = 0; i < CLI_VALUES_MAX; i++) {
        words[n++] = "-e";
        words[n++] = "A=1";
    }
    assert_int_equal(parse(words), 0);
    words[n++] = "--wait";
    assert_int_equal(parse(words), ERROR_INVALID);
}

static void help_excuses_missing_arguments(void **state)
{
    (void)state;
    assert_int_equal(PARSE("get", "--help"), 0);
    assert_int_equal(PARSE("-h"), 0);
    assert_null(args.command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_command_is_complete),
        cmocka_unit_test(the_commands_of_the_api_are_there),
        cmocka_unit_test(the_words_of_a_group),
        cmocka_unit_test(options_stand_anywhere),
        cmocka_unit_test(the_rest_is_taken_as_it_is),
        cmocka_unit_test(dashes_alone_and_negative_words),
        cmocka_unit_test(lists_keep_their_order_and_last_text_wins),
        cmocka_unit_test(refusals_name_the_fault),
        cmocka_unit_test(too_many_options_are_refused),
        cmocka_unit_test(help_excuses_missing_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
