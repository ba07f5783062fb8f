/* The reference page in the repository is what the command table says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "cli/help.h"

static char *markdown(size_t *ret_size)
{
    char *text = NULL;
    FILE *to = open_memstream(&text, ret_size);
    assert_non_null(to);
    help_markdown(to, cli_commands);
    assert_int_equal(fclose(to), 0);
    return text;
}

static void the_manual_page_is_current(void **state)
{
    (void)state;
    size_t n;
    size_t kept_n;
    char *text = NULL;
    AUTO_FREE char *kept = NULL;
    FILE *to = open_memstream(&text, &n);
    assert_non_null(to);
    help_mdoc(to, cli_commands);
    assert_int_equal(fclose(to), 0);
    assert_int_equal(fs_read_file(AT_FDCWD, MAN_PAGE, 1 << 20, &kept, &kept_n, NULL), 0);
    if (strcmp(text, kept) != 0)
        fail_msg("docs/man/space.1 is out of date: space help --mdoc > docs/man/space.1");
    free(text);
}

static void the_reference_page_is_current(void **state)
{
    (void)state;
    size_t n;
    size_t kept_n;
    AUTO_FREE char *kept = NULL;
    AUTO_FREE char *text = markdown(&n);
    assert_int_equal(fs_read_file(AT_FDCWD, CLI_REFERENCE, 1 << 20, &kept, &kept_n, NULL), 0);
    if (strcmp(text, kept) != 0)
        fail_msg("docs/reference/cli.md is out of date: space help --markdown > docs/reference/cli.md");
}

static void every_command_has_help(void **state)
{
    (void)state;
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        char *text = NULL;
        size_t n;
        FILE *to = open_memstream(&text, &n);
        assert_non_null(to);
        help_command(to, c);
        assert_int_equal(fclose(to), 0);
        assert_non_null(strstr(text, c->name));
        for (const struct cli_option *o = c->options; o && o->name; o++)
            assert_non_null(strstr(text, o->name));
        free(text);
    }
}

/* Fifty commands in one list are found by who knows them. */
static void commands_stand_in_sections(void **state)
{
    char *text = NULL;
    size_t n;
    unsigned in_section = 0;
    (void)state;
    FILE *to = open_memstream(&text, &n);
    assert_non_null(to);
    help_overview(to, cli_commands);
    assert_int_equal(fclose(to), 0);
    assert_non_null(cli_commands[0].section);
    const char *at = text;
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        AUTO_FREE char *line = str_printf("\n  %s ", c->name);
        AUTO_FREE char *title = str_printf("\n\n%s:\n  %s ", c->section ? c->section : "", c->name);
        in_section = c->section ? 1 : in_section + 1;
        assert_true(in_section <= 15);
        at = strstr(at, c->section ? title : line); /* each once, in the order of the table */
        assert_non_null(at);
        for (const struct cli_command *later = c + 1; later->name; later++) {
            assert_true(!c->section || !later->section || strcmp(c->section, later->section) != 0);
            assert_true(strcmp(c->name, later->name) != 0);
        }
        at++;
    }
    free(text);
}

static void lines_fit_a_terminal(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n;
    FILE *to = open_memstream(&text, &n);
    assert_non_null(to);
    help_overview(to, cli_commands);
    for (const struct cli_command *c = cli_commands; c->name; c++)
        help_command(to, c);
    assert_int_equal(fclose(to), 0);
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
        assert_true(strcspn(line, "\n") <= 120);
    free(text);
}

static void the_page_of_errors_is_current(void **state)
{
    (void)state;
    size_t n;
    AUTO_FREE char *page = NULL;
    int code;
    unsigned status;
    const char *slug;
    const char *title;
    size_t rows = 0;
    assert_int_equal(fs_read_file(AT_FDCWD, ERRORS_PAGE, 1 << 20, &page, &n, NULL), 0);
    for (; error_table(rows, &code, &status, &slug, &title); rows++) {
        AUTO_FREE char *row = str_printf("| %u | `%s` | %s |", status, slug, title);
        if (!strstr(page, row))
            fail_msg("docs/design/errors.md lacks the row %s", row);
    }
    for (const char *p = page; (p = strstr(p, "` |\n")); p++)
        rows--;
    assert_int_equal(rows, 0); /* and no row too many */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_page_is_current), cmocka_unit_test(the_manual_page_is_current),
        cmocka_unit_test(every_command_has_help),        cmocka_unit_test(commands_stand_in_sections),
        cmocka_unit_test(lines_fit_a_terminal),          cmocka_unit_test(the_page_of_errors_is_current),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
