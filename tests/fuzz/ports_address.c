/* Hosts and targets of requests, up to the first line feed and behind it: what claims to be a port reads as
 * one or is refused with words, and no token is left in a target that is passed on. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "data/ports_address.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const domains[] = {"localhost", "a.b-c.example", ""};
    char *text = malloc(size + 1);
    must(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    char *target = strchr(text, '\n');
    if (target) {
        *target++ = '\0';
        for (size_t i = 0; i < 3; i++) {
            struct port_address at = {.port = 0};
            struct error err = ERROR_INIT;
            int rc = port_address_read(text, target, domains[i], &at, &err);
            must(rc == 0 || (*err.message && (rc == ERROR_NOT_FOUND || rc == ERROR_INVALID)));
            must(rc != 0 || port_address_claims(text, target, domains[i]));
            if (rc != 0)
                continue;
            must(at.port > 0 && id_valid(at.sandbox_id, "sb"));
            must(at.rest >= target && at.rest <= target + strlen(target));
            must(at.by_host ? at.rest == target : !*at.rest || *at.rest == '/' || *at.rest == '?');
        }
        char token[PORTS_TOKEN_MAX], again[PORTS_TOKEN_MAX];
        size_t before = strlen(target);
        port_token_cut(target, token);
        must(strlen(target) <= before && strlen(token) < sizeof(token));
        port_token_cut(target, again);
        must(!*again);
    }
    free(text);
    return 0;
}
