/* Which port of which sandbox a request is for: by its path or by the host it names. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/id.h"

#define PORTS_TOKEN_MAX 128 /* bytes of a traffic token that are looked at, with the NUL */

struct port_address {
    char sandbox_id[ID_SIZE];
    uint16_t port;
    bool by_host;
    const char *rest; /* of the target: "" or from '/' or '?' on; by host all of it */
};

/* Whether the target or the authority names a port: "/v1/sandboxes/ID/ports/PORT...", or "PORT-ID.domain" in
 * whatever case, with or without a port of the server's own behind it; for names that must not hold '_',
 * "sb-" is "sb_". True also for what only looks like it: port_address_read says what is wrong. domain "": no
 * hosts. */
bool port_address_claims(const char *authority, const char *target, const char *domain);

/* Reads it. ERROR_NOT_FOUND, or ERROR_INVALID for a number that is no port. */
int port_address_read(const char *authority, const char *target, const char *domain, struct port_address *ret,
                      struct error *err);

/* Cuts "space_traffic_token=..." out of a target's query, in place. The value of the first one, decoded, goes
 * to token; "" when there is none or it is too long. */
void port_token_cut(char *target, char token[PORTS_TOKEN_MAX]);
