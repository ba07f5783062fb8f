/* Time. Deadlines use the monotonic clock in nanoseconds; what a person reads is RFC 3339 UTC. */
#pragma once

#include <stdint.h>

#define CLOCK_NS_PER_MS 1000000LL
#define CLOCK_NS_PER_S 1000000000LL

/* CLOCK_MONOTONIC in nanoseconds. */
int64_t clock_mono_ns(void);

/* CLOCK_REALTIME in milliseconds since the epoch: what the store keeps. */
int64_t clock_wall_ms(void);

/* CLOCK_REALTIME in nanoseconds. */
int64_t clock_wall_ns(void);

#define CLOCK_RFC3339_SIZE 32

/* "2026-01-02T03:04:05.678Z" into to (at least CLOCK_RFC3339_SIZE bytes). */
void clock_rfc3339(int64_t wall_ms, char *to);
