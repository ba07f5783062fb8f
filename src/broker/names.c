/* Identifiers of the broker channel, apart from it: who takes them from a client checks them as well. */
#include "broker/names.h"

#include <string.h>

#include "base/id.h"
#include "base/str.h"
#include "broker/broker.h"

bool protocol_sandbox_id(const char *s)
{
    return id_valid(s, "sb");
}

bool protocol_build_id(const char *s)
{
    return id_valid(s, "tp");
}

bool protocol_snapshot_id(const char *s)
{
    return id_valid(s, "sn");
}

bool protocol_digest(const char *s)
{
    return strlen(s) == BROKER_DIGEST_SIZE - 1 && strspn(s, "0123456789abcdef") == BROKER_DIGEST_SIZE - 1;
}

bool protocol_key(const char *s)
{
    return str_is_name(s, 1, BROKER_KEY_SIZE - 1);
}

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define DIGITS "0123456789"

bool protocol_package(const char *s)
{
    size_t n = strlen(s);
    return n >= 2 && n <= 100 && strspn(s, LOWER DIGITS) >= 1 && strspn(s, LOWER DIGITS "+.-") == n;
}

bool protocol_suite(const char *s)
{
    size_t n = strlen(s);
    return n == 0 || (n <= 31 && strspn(s, LOWER) >= 1 && strspn(s, LOWER "-") == n);
}
