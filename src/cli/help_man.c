/* The manual page space(1): its own words around the command table. */
#include <string.h>

#include "cli/exit.h"
#include "cli/help.h"

static const char head[] = ".\\\" Generated from the command table by `space help --mdoc`; do not edit.\n"
                           ".Dd November 30, 2026\n"
                           ".Dt SPACE 1\n"
                           ".Os SPACE\n"
                           ".Sh NAME\n"
                           ".Nm space\n"
                           ".Nd run untrusted code in microVM sandboxes\n"
                           ".Sh SYNOPSIS\n"
                           ".Nm\n"
                           ".Op Ar options\n"
                           ".Ar command\n"
                           ".Op Ar arguments\n"
                           ".Sh DESCRIPTION\n"
                           ".Nm\n"
                           "is the client of\n"
                           ".Xr spaced 8 .\n"
                           "It talks to the server's HTTP API and to nothing else.\n"
                           ".Pp\n"
                           "A sandbox, and a snapshot, is named by its id or by its name.\n"
                           "Results are tables for people; with\n"
                           ".Fl o Cm json\n"
                           "they are the server's JSON, lists as\n"
                           ".Ql {\"items\": [...]} .\n"
                           "Options may stand anywhere before\n"
                           ".Ql -- .\n"
                           "For the commands that run something, the first word after their arguments starts "
                           "the command to run, whatever it looks "
                           "like.\n"
                           ".Pp\n"
                           "These options are taken by every command:\n";

static const char foreground[] =
    ".Ss Commands in the foreground\n"
    "The output of\n"
    ".Cm run , exec\n"
    "and\n"
    ".Cm attach\n"
    "is the command's own, byte for byte, standard output and standard error apart.\n"
    "Standard input is sent when it is not a terminal, or with\n"
    ".Fl i .\n"
    "SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the command and its children; a "
    "third SIGINT or SIGTERM, or a SIGHUP, leaves.\n"
    ".Pp\n"
    "With a terminal, keys go to the command as they are (ctrl-c and ctrl-z are the command's), and so do "
    "the size "
    "of the window and its changes.\n"
    "The keys that detach, ctrl-p ctrl-q unless\n"
    ".Fl -detach-keys\n"
    "says otherwise, leave the command running and print how to come back; the first of them is held back "
    "until the "
    "next key tells what it was for.\n"
    "A signal is then meant for\n"
    ".Nm\n"
    "itself, which leaves; SIGTSTP stops it.\n"
    "The terminal is put back on every way out.\n"
    ".Pp\n"
    "A connection that breaks is taken up again where it broke, for 30 seconds; on a terminal that is told, "
    "ctrl-c "
    "leaves meanwhile, and what else is typed arrives afterwards.\n"
    "If it does not come back, or the sandbox is gone, suspended or rolled back, or another client has taken "
    "the "
    "command over, the status is 125: there is no result, and none is made up.\n"
    "Standard error says how to come back.\n"
    "The same holds when the connection broke while input was being sent, because some of it may be "
    "missing.\n"
    "A command of\n"
    ".Cm run\n"
    "that goes on so keeps its sandbox.\n"
    "Output that the server had to drop is counted on standard error.\n";

static const char tail[] = ".Sh ENVIRONMENT\n"
                           ".Bl -tag -width Ds\n"
                           ".It Ev SPACE_URL\n"
                           "The server, by default http://127.0.0.1:7780.\n"
                           ".It Ev SPACE_API_KEY\n"
                           "The API key.\n"
                           ".It Ev SPACE_KEY_FILE\n"
                           "A file that holds it.\n"
                           "With neither, and a server on a loopback address,\n"
                           ".Pa /var/lib/space/dev.key\n"
                           "is used when it can be read.\n"
                           ".It Ev SPACE_ATTACH_TOKEN\n"
                           "Token of the session to attach to.\n"
                           ".It Ev TERM\n"
                           "Terminal type given to a command with a terminal.\n"
                           ".El\n";

static const char end[] = ".Sh EXAMPLES\n"
                          "One command in a sandbox of its own:\n"
                          ".Pp\n"
                          ".Dl $ space run -- uname -a\n"
                          ".Pp\n"
                          "A shell in one that stays:\n"
                          ".Pp\n"
                          ".Dl $ space create --name work\n"
                          ".Dl $ space exec -it work -- bash\n"
                          ".Pp\n"
                          "A file in and out:\n"
                          ".Pp\n"
                          ".Dl $ space cp data.csv work:/root/\n"
                          ".Dl $ space cp work:/root/result.csv -\n"
                          ".Pp\n"
                          "A point in time, gone back to, and three copies that start from now:\n"
                          ".Pp\n"
                          ".Dl $ space snapshot --name before work\n"
                          ".Dl $ space rollback work before\n"
                          ".Dl $ space fork -n 3 work\n"
                          ".Pp\n"
                          "A template from a directory:\n"
                          ".Pp\n"
                          ".Dl $ space template build mine:v1 --dir ./rootfs\n"
                          ".Sh SEE ALSO\n"
                          ".Xr spaced.conf 5 ,\n"
                          ".Xr spaced 8\n";

/* A line of text: no byte of it is a request or an escape of the formatter. */
static void text_line(FILE *to, const char *text)
{
    if (*text == '.' || *text == '\'')
        (void)fputs("\\&", to);
    for (; *text; text++) {
        if (*text == '\\')
            (void)fputs("\\e", to);
        else if (*text == '`')
            (void)fputc('"', to);
        else
            (void)fputc(*text, to);
        /* Sentences start on lines of their own. */
        if (*text == '.' && text[1] == ' ') {
            (void)fputc('\n', to);
            text++;
        }
    }
    (void)fputc('\n', to);
}

static void options(FILE *to, const struct cli_option *o)
{
    (void)fputs(".Bl -tag -width Ds\n", to);
    for (; o->name; o++) {
        (void)fputs(".It ", to);
        if (o->letter)
            (void)fprintf(to, "Fl %c , ", o->letter);
        (void)fprintf(to, "Fl -%s%s%s\n", o->name, o->value ? " Ar " : "", o->value ? o->value : "");
        text_line(to, o->help);
    }
    (void)fputs(".El\n", to);
}

static void command(FILE *to, const struct cli_command *c)
{
    (void)fprintf(to, ".It Cm %s", c->name);
    (void)fprintf(to, "%s%s%s\n", c->options ? " Oo Ar options Oc" : "", *c->arguments ? " Ar " : "",
                  c->arguments);
    text_line(to, c->summary);
    if (c->detail)
        text_line(to, c->detail);
    if (c->options)
        options(to, c->options);
}

static void statuses(FILE *to)
{
    const char *row;
    (void)fputs(".Sh EXIT STATUS\n.Bl -tag -width Ds\n", to);
    for (int i = 0; (row = exit_table(i)); i++) {
        const char *bar = strstr(row, " | ");
        (void)fputs(".It ", to);
        for (const char *p = row; p < bar; p++)
            if (*p != '`')
                (void)fputc(*p, to);
        (void)fputc('\n', to);
        text_line(to, bar + 3);
    }
    (void)fputs(".El\n", to);
}

void help_mdoc(FILE *to, const struct cli_command *table)
{
    (void)fputs(head, to);
    options(to, cli_global_options);
    (void)fputs(".Sh COMMANDS\n", to);
    for (; table->name; table++) {
        if (table->section)
            (void)fprintf(to, ".Ss %s\n.Bl -tag -width Ds\n", table->section);
        command(to, table);
        if (!table[1].name || table[1].section)
            (void)fputs(".El\n", to);
    }
    (void)fputs(foreground, to);
    (void)fputs(tail, to);
    statuses(to);
    (void)fputs(end, to);
}
