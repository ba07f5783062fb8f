/* Printing of what the server answers. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli/cli.h"
#include "cli/signals.h"

#define COLUMNS_MAX 12
#define CELL_MAX 256

/* Waits until fd can be written, or a signal ends the program. */
static int wait_output(int fd, struct error *err)
{
    while (!signals_interrupted) {
        struct pollfd p[2] = {{.fd = fd, .events = POLLOUT}, {.fd = signals_fd(), .events = POLLIN}};
        if (poll(p, 2, -1) > 0 && p[0].revents)
            return 0;
        (void)signals_take();
    }
    return error_set(err, ERROR_UNAVAILABLE, "interrupted");
}

int cli_put(struct cli *c, int fd, const void *data, size_t n, struct error *err)
{
    const char *p = data;
    struct stat st;
    bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    while (n > 0) {
        int rc = regular ? 0 : wait_output(fd, err);
        if (rc < 0)
            return rc;
        /* No more than what goes without blocking, so that a signal is seen. */
        ssize_t w = write(fd, p, regular || n < PIPE_BUF ? n : PIPE_BUF);
        if (w > 0) {
            p += w;
            n -= (size_t)w;
        } else if (w < 0 && errno != EINTR && errno != EAGAIN) {
            c->reader_left |= errno == EPIPE;
            return error_errno(err, ERROR_INTERNAL, errno, "write");
        }
    }
    return 0;
}

void cli_print_text(FILE *to, const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        /* Names and messages come from others: no escape sequence reaches the terminal. C1 controls are, in
         * UTF-8, 0xc2 and a byte below 0xa0. */
        bool c1 = c == 0xc2 && (unsigned char)text[1] >= 0x80 && (unsigned char)text[1] < 0xa0;
        if ((c < 0x20 && c != '\t' && c != '\n') || c == 0x7f || c1) {
            (void)fputc('?', to);
            text += c1;
        } else {
            (void)fputc(c, to);
        }
    }
}

static const json_t *at_path(const json_t *item, const char *path)
{
    while (item && *path) {
        char name[64];
        size_t n = strcspn(path, ".");
        if (n >= sizeof(name))
            return NULL;
        memcpy(name, path, n);
        name[n] = '\0';
        item = json_object_get(item, name);
        path += n + (path[n] == '.');
    }
    return item;
}

static void one_line(char *text)
{
    for (; *text; text++)
        if (*text == '\n' || *text == '\t')
            *text = ' ';
}

/* A value as one line of text. */
static void value_text(const json_t *value, char *to, size_t size)
{
    AUTO_FREE char *text = NULL;
    if (!value || json_is_null(value)) {
        (void)str_copy(to, size, "-");
    } else if (json_is_string(value)) {
        (void)str_copy(to, size, *json_string_value(value) ? json_string_value(value) : "-");
    } else {
        text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        (void)str_copy(to, size, text ? text : "?");
    }
    one_line(to);
}

static void print_cell(FILE *to, const char *text, size_t width, bool last)
{
    cli_print_text(to, text);
    for (size_t n = strlen(text); !last && n < width + 2; n++)
        (void)fputc(' ', to);
}

static void print_table(FILE *to, const json_t *items, const struct cli_column *columns)
{
    size_t widths[COLUMNS_MAX] = {0};
    size_t count = 0;
    char text[CELL_MAX];
    size_t i;
    json_t *item;
    for (; columns[count].title && count < COLUMNS_MAX; count++) {
        widths[count] = strlen(columns[count].title);
        json_array_foreach(items, i, item)
        {
            value_text(at_path(item, columns[count].path), text, sizeof(text));
            if (strlen(text) > widths[count])
                widths[count] = strlen(text);
        }
    }
    for (size_t c = 0; c < count; c++)
        print_cell(to, columns[c].title, widths[c], c + 1 == count);
    (void)fputc('\n', to);
    json_array_foreach(items, i, item)
    {
        for (size_t c = 0; c < count; c++) {
            value_text(at_path(item, columns[c].path), text, sizeof(text));
            print_cell(to, text, widths[c], c + 1 == count);
        }
        (void)fputc('\n', to);
    }
}

static void print_json(FILE *to, const json_t *value)
{
    (void)json_dumpf(value, to, JSON_INDENT(2) | JSON_ENCODE_ANY);
    (void)fputc('\n', to);
}

void cli_print_list(struct cli *c, const json_t *items, const struct cli_column *columns)
{
    if (!c->json) {
        print_table(c->out, items, columns);
        return;
    }
    json_t *whole = json_pack("{s:O}", "items", items);
    print_json(c->out, whole);
    json_decref(whole);
}

/* The width of the names in an object's table: "id", and "template.ref" for what is one level down. */
static size_t names_width(const json_t *object, const char *prefix)
{
    const char *key;
    json_t *value;
    size_t widest = 0;
    json_object_foreach((json_t *)object, key, value)
    {
        size_t width = strlen(prefix) + strlen(key);
        if (!*prefix && json_object_size(value) > 0) {
            AUTO_FREE char *deeper = str_printf("%s.", key);
            width = names_width(value, deeper ? deeper : ".");
        }
        if (width > widest)
            widest = width;
    }
    return widest;
}

static void print_members(FILE *to, const json_t *object, const char *prefix, size_t width)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        AUTO_FREE char *name = str_printf("%s%s", prefix, key);
        if (name && !*prefix && json_object_size(value) > 0) {
            AUTO_FREE char *deeper = str_printf("%s.", key);
            print_members(to, value, deeper ? deeper : ".", width);
            continue;
        }
        /* Lines are ours: text of others must not look like one. */
        if (name)
            one_line(name);
        const char *plain = json_string_value(value);
        bool dumped = !plain || strpbrk(plain, "\n\t");
        AUTO_FREE char *dump = dumped ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        const char *text = !dumped ? plain : dump ? dump : "?";
        print_cell(to, name ? name : "?", width, false);
        cli_print_text(to, json_is_null(value) ? "-" : text);
        (void)fputc('\n', to);
    }
}

void cli_print_object(struct cli *c, const json_t *object)
{
    if (c->json || !json_is_object(object))
        print_json(c->out, object);
    else
        print_members(c->out, object, "", names_width(object, ""));
}
