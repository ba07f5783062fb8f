/* Well-formedness of the identifiers in requests to the broker: checked by both ends of the channel, and
 * where a client's request names one. */
#pragma once

#include <stdbool.h>

bool protocol_sandbox_id(const char *s);
bool protocol_build_id(const char *s);
bool protocol_snapshot_id(const char *s);
bool protocol_digest(const char *s);
bool protocol_key(const char *s);
bool protocol_package(const char *s);
bool protocol_suite(const char *s); /* "" is the host's own */
