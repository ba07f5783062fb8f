/* The memory of a VMM as a snapshot takes it: which pages the guest changed, and their content.
 *
 * The VMM is hostile. What is relied on is the kernel alone: /proc/PID/maps and map_files say which part of
 * its address space maps which file, /proc/PID/pagemap which pages of that are its own. A VMM can only lie
 * about its own memory: every page is counted against the size its record names, a page is taken from one
 * place, and what cannot be read is an error. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

#define MEMORY_PAGE 4096U
#define MEMORY_HOLE (3072ULL << 20)

/* Changed pages that follow each other, in memory and in the VMM's address space. */
struct memory_run {
    uint64_t address;
    uint32_t page; /* number of the first */
    uint32_t count;
};

struct memory_map {
    struct memory_run *runs; /* ascending by page; owned */
    size_t count, room;
    uint64_t pages; /* in all runs */
};

/* How long a VMM may still make its memory take to be read. Only what memory_scan and memory_read take
 * counts, not what their caller does with the pages meanwhile. One thread reads; any may ask whether it takes
 * too long. */
struct memory_clock {
    int64_t left_ns;
    _Atomic int64_t due_ns; /* of the read under way, by the monotonic clock; 0: none is */
};

/* For a memory of that size: some time, and more for each byte. */
void memory_clock_init(struct memory_clock *c, uint64_t bytes);

/* Whether a read under way has used up all the time there was. */
bool memory_clock_overdue(const struct memory_clock *c, int64_t now_ns);

/* A process that was identified by its pidfd. */
struct memory_vmm {
    pid_t pid;
    int pidfd;
    int base_fd;    /* file it maps privately as its memory; -1: anonymous memory */
    int under_fd;   /* with a base: another file it may map parts of, each at its place; -1: none */
    uint64_t bytes; /* size of its memory, a multiple of MEMORY_PAGE */
    bool holed;     /* Firecracker's: memory of more than MEMORY_HOLE may be in two mappings */
    bool plain;     /* read pagemap also where the kernel has a quicker way: for tests */
    struct memory_clock *clock; /* may be NULL */
};

/* Finds the changed pages. ERROR_NOT_FOUND when the process has ended, ERROR_CONFLICT when its address space
 * is not what a VMM's looks like. */
int memory_scan(const struct memory_vmm *v, struct memory_map *ret, struct error *err);
void memory_map_finish(struct memory_map *m);

/* Reads the pages from `first` on (counted through all runs) into `to`, `count` of them. */
int memory_read(const struct memory_vmm *v, const struct memory_map *m, uint64_t first, uint64_t count,
                unsigned char *to, struct error *err);

/* The numbers of the same pages. */
void memory_numbers(const struct memory_map *m, uint64_t first, uint64_t count, uint32_t *to);
