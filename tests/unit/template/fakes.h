/* Scripted template builds and goldens. The answers are given by the test. */
#pragma once

#include "template/template.h"

struct fake_build {
    char build_id[ID_SIZE];
    enum broker_build kind;
    int source_fd, log_fd; /* not owned */
    char suite[32];
    char packages[256]; /* joined by blanks */
    bool seed_user;
    uint32_t disk_mib;
    void (*done)(void *arg, const struct error *err, const char *digest, uint64_t content_bytes);
    void *arg;
};

#define FAKE_BUILDS 32

struct fake_templates {
    struct fake_build builds[FAKE_BUILDS]; /* asked for, not answered: the first `open` */
    unsigned open, asked;
    unsigned canceled;
    /* golden_prepare, golden_forget, broker_template_remove: kept for the test to answer */
    vm_done prepared, forgotten;
    void *prepared_arg, *forgotten_arg;
    char prepared_digest[BROKER_DIGEST_SIZE];
    struct vm_shape prepared_shape;
    void (*phase)(void *arg, const char *phase);
    broker_done removed;
    void *removed_arg;
    char removed_digest[BROKER_DIGEST_SIZE];
    unsigned prepares, forgets, removes;
};

extern struct fake_templates fake_templates;

void fake_build_answer(const char *digest_digit, uint64_t bytes); /* the oldest; 64 times the digit */
void fake_build_fail(int code);
void fake_prepare_answer(int code); /* 0: success */
void fake_forget_answer(int code);
void fake_remove_answer(int code);
