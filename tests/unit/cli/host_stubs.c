/* Stands in for what only `space doctor` needs of the rest, so that the client is tested without it. */
#include <stdio.h>

#include "image/image.h"
#include "vm/kvm_probe.h"

bool kvm_probe(unsigned timeout_ms, char *why, size_t why_size)
{
    (void)snprintf(why, why_size, "a stand-in, given %u ms", timeout_ms);
    return false;
}

int image_find(const struct image_config *config, struct image_info *ret, struct error *err)
{
    (void)config;
    (void)ret;
    return error_set(err, ERROR_NOT_FOUND, "no kernel in the test");
}
