/* The broker's functions as a unit test needs them: in memory, answered by the loop, with a record of every
 * call. Link fake_broker.c instead of libbroker. */
#pragma once

#include <stdbool.h>

#include "broker/broker.h"

struct broker *fake_broker_create(struct loop *l, const char *pool_path);
void fake_broker_destroy(struct broker *b); /* drops what was not answered */

/* The next `count` calls of this kind fail. */
void fake_broker_fail(struct broker *b, const char *what, unsigned count);
/* Calls of this kind are answered only by fake_broker_release. */
void fake_broker_hold(struct broker *b, const char *what);
void fake_broker_release(struct broker *b);

unsigned fake_broker_count(const struct broker *b, const char *what);
/* Sandboxes that exist; goldens that are sealed. */
unsigned fake_broker_sandboxes(const struct broker *b);
unsigned fake_broker_sealed(const struct broker *b);
bool fake_broker_has_sandbox(const struct broker *b, const char *id);

/* What broker_vmm_start answers with. pidfd is duplicated for each call. kill_fn runs for broker_vmm_kill. */
void fake_broker_vmm(struct broker *b, const char *qmp_socket, const char *agent_socket, int pidfd,
                     void (*kill_fn)(void *arg), void *arg);
/* The same of a Firecracker whose directory this is. */
void fake_broker_firecracker(struct broker *b, const char *dir, int pidfd, void (*kill_fn)(void *arg),
                             void *arg);
const struct broker_vmm *fake_broker_last_vmm(const struct broker *b);
