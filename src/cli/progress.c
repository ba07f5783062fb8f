#include "cli/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"

#define FIRST_NS CLOCK_NS_PER_S
#define EVERY_NS (CLOCK_NS_PER_S / 5)
#define NAME_MOST 40

void progress_init(struct progress *p, const char *name, uint64_t total, bool quiet)
{
    *p = (struct progress){
        .shown = !quiet && isatty(STDERR_FILENO), .total = total, .name = name, .began_at = clock_mono_ns()};
}

/* "12.3 MiB" */
static void print_size(char *to, size_t size, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    unsigned unit = 0;
    while (bytes >= 1024 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    (void)snprintf(to, size, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

static void draw(struct progress *p, int64_t now)
{
    char done[24];
    char rate[24];
    char name[NAME_MOST + 1];
    char part[16] = "";
    print_size(done, sizeof(done), (double)p->done);
    print_size(rate, sizeof(rate), (double)p->done * CLOCK_NS_PER_S / (double)(now - p->began_at));
    if (p->total > 0)
        (void)snprintf(part, sizeof(part), "%3.0f%%  ", 100.0 * (double)p->done / (double)p->total);
    (void)snprintf(name, sizeof(name), "%s", p->name);
    (void)fputs("\r\033[K", stderr);
    cli_print_text(stderr, name);
    (void)fprintf(stderr, "  %s%s  %s/s", part, done, rate);
    (void)fflush(stderr);
    p->drawn = true;
    p->drawn_at = now;
}

void progress_add(struct progress *p, uint64_t n)
{
    p->done += n;
    if (!p->shown)
        return;
    int64_t now = clock_mono_ns();
    if (now - p->began_at >= FIRST_NS && now - p->drawn_at >= EVERY_NS)
        draw(p, now);
}

void progress_finish(struct progress *p)
{
    if (p->drawn)
        (void)fputs("\r\033[K", stderr);
    p->drawn = p->shown = false;
}
