/* A VM of either engine over a played broker and a played VMM, and what its owner was told. */
#pragma once

#include "unit.h"

#include "fake_broker.h"
#include "fc_server.h"
#include "qmp_server.h"
#include "vm/engine.h"

struct fixture {
    struct loop *loop;
    char *dir;
    struct broker *broker;
    struct vm_engine *engine;
    struct vm *vm;
    struct qmp_server qmp;
    struct fc_server fc;
    bool qmp_plays, fc_plays;
    int state_fd;   /* a file, for device state */
    int process[2]; /* stands for the VMM's pidfd: readable once the other end is closed */
    unsigned dones, exits;
    int code;
    char text[ERROR_MESSAGE_MAX];
    char why[300];
    bool destroy_in_done, destroy_in_exit;
    char order[64]; /* 'd' for each done, 'x' for exited, 'c' for console */
};

/* setup and teardown of a test, for cmocka. */
int fixture_setup(void **state);
int fixture_teardown(void **state);

/* What the owner gives to a VM and its calls; arg: the fixture. */
extern const struct vm_events fixture_events;
void fixture_done(void *arg, const struct error *err);
void fixture_console(void *arg, const struct error *err, const char *text);

/* A spec that is good, of a VM with a new id. */
struct vm_spec fixture_spec(enum vm_boot boot);

/* Firecracker's engine, whose program tells this version. */
int fixture_firecracker(struct fixture *f, const char *version, struct error *err);
/* QEMU's engine, without KVM; skips the test where QEMU is not installed, for the engine asks it. */
void fixture_qemu(struct fixture *f);

/* Firecracker's VMM alone. */
void fixture_play_firecracker(struct fixture *f);

/* The engine, where there is none yet, a VMM that is played, and a VM that is not started. */
void fixture_use_firecracker(struct fixture *f, enum vm_boot boot);
void fixture_use_qemu(struct fixture *f, enum vm_boot boot);

/* The VM and its VMM go away; another can be used. */
void fixture_drop(struct fixture *f);

/* The VMM's process ends; arg: the fixture. */
void fixture_die(void *arg);

void fixture_close(int *fd);
void fixture_put(const struct fixture *f, const char *name, const void *data, size_t n);
void fixture_remove(const struct fixture *f, const char *name);

/* Turns the loop until the counter has come to this value, no longer than a few seconds. */
void fixture_wait(struct fixture *f, const unsigned *counter, unsigned value);
/* Some turns, in which nothing has to happen. */
void fixture_turn(struct fixture *f);

/* One call's answer: 0 or its error code. Checks that it does not come from inside the call. */
#define CALL(f, call)                                \
    ({                                               \
        unsigned before_ = (f)->dones;               \
        call;                                        \
        assert_int_equal((f)->dones, before_);       \
        fixture_wait((f), &(f)->dones, before_ + 1); \
        (f)->code;                                   \
    })
