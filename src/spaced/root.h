/* The root stage of spaced: everything that needs root, once, before privileges are dropped for good. */
#pragma once

#include "base/error.h"
#include "spaced/config.h"

/* Locks the state directory, leases uids, probes KVM, builds the platform image, starts space-privd, then
 * drops to the leased uid and executes itself as the second stage. Returns only on failure. */
int root_stage(const struct config *c, const char *self, struct error *err);

/* --purge: removes every sandbox, and everything taken on the host, of the state directory. Refuses while a
 * daemon runs on it. */
int root_purge(const struct config *c, struct error *err);
