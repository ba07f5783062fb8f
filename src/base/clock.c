#include "base/clock.h"

#include <stdio.h>
#include <time.h>

static int64_t now(clockid_t id)
{
    struct timespec t;
    (void)clock_gettime(id, &t); /* cannot fail for these clocks */
    return (int64_t)t.tv_sec * CLOCK_NS_PER_S + t.tv_nsec;
}

int64_t clock_mono_ns(void)
{
    return now(CLOCK_MONOTONIC);
}

int64_t clock_wall_ns(void)
{
    return now(CLOCK_REALTIME);
}

int64_t clock_wall_ms(void)
{
    return clock_wall_ns() / CLOCK_NS_PER_MS;
}

void clock_rfc3339(int64_t wall_ms, char *to)
{
    int ms = (int)(wall_ms % 1000); /* of the second before, for times before 1970 */
    ms += ms < 0 ? 1000 : 0;
    time_t s = (time_t)((wall_ms - ms) / 1000);
    struct tm tm;
    if (!gmtime_r(&s, &tm)) {
        to[0] = '\0';
        return;
    }
    char day[24];
    (void)strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(to, CLOCK_RFC3339_SIZE, "%s.%03dZ", day, ms);
}
