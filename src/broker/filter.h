/* System call filters: of a VMM, by kind, of the broker itself, and of spaced. Each is a table of calls with
 * a reason for every row (filter.c), made into a program for the kernel while nothing else runs and installed
 * later, in a child that may not allocate.
 *
 * Three answers: a call of the table works; one that no VMM or broker has any reason to make, and that would
 * be a step of an attack, ends the process; every other call fails with ENOSYS, as on a kernel that does not
 * have it. So a library that begins to try a new call after an update of the host goes on without it. */
#pragma once

#include <linux/filter.h>
#include <stdbool.h>

#include "base/error.h"

enum filter_kind {
    FILTER_QEMU,        /* QEMU, emulating */
    FILTER_QEMU_KVM,    /* QEMU with /dev/kvm */
    FILTER_FIRECRACKER, /* Firecracker, which always has /dev/kvm */
    FILTER_BROKER,      /* space-privd, and what it starts until that installs its own */
    FILTER_DAEMON,      /* spaced: everything works but what ends the process and a few more */
    FILTER_KINDS,
};

/* Sanitizers look at their process with calls of their own (ptrace among them): the programs of such a build
 * put no filter on themselves. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FILTER_SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define FILTER_SANITIZED true
#endif
#endif
#ifndef FILTER_SANITIZED
#define FILTER_SANITIZED false
#endif

#define FILTER_INSNS_MAX 2048

struct filter {
    unsigned short count;
    struct sock_filter insns[FILTER_INSNS_MAX];
};

/* Makes the program of a kind. ERROR_UNSUPPORTED when this library cannot. */
int filter_make(enum filter_kind kind, struct filter *ret, struct error *err);

/* Installs a program for this process and what it executes; all_threads: for threads that run already too.
 * Allocates nothing, takes no lock. The process needs no_new_privs or CAP_SYS_ADMIN. 0, or -1 with errno. */
int filter_install(const struct filter *f, bool all_threads);

/* One row of the table, for the tests and for who wants to print it. */
struct filter_row {
    const char *call;
    bool ends;       /* this call ends the process */
    unsigned kinds;  /* bits of enum filter_kind */
    bool conditions; /* only with certain arguments */
    const char *why;
};

/* Row n of the table; false behind the last. */
bool filter_row(unsigned n, struct filter_row *ret);
