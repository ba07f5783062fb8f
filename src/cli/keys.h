/* The keys that detach from a terminal, picked out of what is typed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define KEYS_MAX 16
#define KEYS_DEFAULT "ctrl-p,ctrl-q"

struct keys {
    unsigned char sequence[KEYS_MAX];
    size_t n; /* 0: nothing detaches */
    unsigned char held[KEYS_MAX];
    size_t held_n; /* typed, and not known yet whether it detaches */
};

/* "ctrl-p,ctrl-q": keys with commas between, each a character or ctrl- and one of a-z @ [ \ ] ^ _. "none":
 * nothing detaches. ERROR_INVALID names what is wrong. */
int keys_parse(const char *text, struct keys *ret, struct error *err);

/* Copies to `to`, which has room for KEYS_MAX bytes more than n, what is the command's of n typed bytes;
 * returns how many. The beginning of the sequence is held back until the next key tells. *ret_detach: the
 * sequence is complete; what was typed after it is dropped. */
size_t keys_filter(struct keys *k, const unsigned char *from, size_t n, unsigned char *to, bool *ret_detach);
