/* Who may reach ports of a guest without an API key: public ports, and the traffic token. Nobody, unless
 * asked for. */
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "sandbox/private.h"
#include "json/json.h"

/* --- requests --- */

static int read_port(const json_t *value, struct exposure *e, struct error *err)
{
    json_int_t port = json_integer_value(value);
    if (port < 1 || port > UINT16_MAX)
        return error_field(err, ERROR_INVALID, "network.public_ports",
                           "network.public_ports is \"all\" or a list of ports, 1 to 65535");
    for (unsigned i = 0; i < e->ports; i++)
        if (e->port[i] == port)
            return error_field(err, ERROR_INVALID, "network.public_ports",
                               "port %d is in network.public_ports twice", (int)port);
    e->port[e->ports++] = (uint16_t)port;
    return 0;
}

int exposure_read(const char *word, const json_t *list, struct exposure *e, struct error *err)
{
    struct exposure now = *e;
    size_t i;
    const json_t *value;
    int rc = 0;
    now.all = word != NULL;
    now.ports = 0;
    if (word && strcmp(word, "all") != 0)
        rc = read_port(NULL, &now, err);
    json_array_foreach(list, i, value)
    {
        if (rc == 0)
            rc = read_port(value, &now, err);
    }
    if (rc == 0)
        *e = now;
    return rc;
}

/* --- answers and records --- */

json_t *exposure_json(const struct exposure *e)
{
    if (e->all)
        return json_made(json_string("all"));
    json_t *list = json_made(json_array());
    for (unsigned i = 0; i < e->ports; i++)
        (void)json_array_append_new(list, json_made(json_integer(e->port[i])));
    return list;
}

void exposure_store(const struct exposure *e, json_t *record)
{
    char hex[2 * sizeof(e->token) + 1] = "";
    if (e->has_token)
        str_hex(e->token, sizeof(e->token), hex);
    if (json_object_set_new(record, "public_ports", exposure_json(e)) < 0 ||
        json_object_set_new(record, "traffic_token", json_made(json_string(hex))) < 0)
        abort(); /* as in json_made */
}

/* Records of before this version have none, and what cannot be read opens nothing. */
void exposure_load(const json_t *record, struct exposure *ret)
{
    const json_t *ports = json_object_get(record, "public_ports");
    const char *token = json_string_value(json_object_get(record, "traffic_token"));
    *ret = (struct exposure){.all = false};
    if (json_is_string(ports) || (json_is_array(ports) && json_array_size(ports) <= PUBLIC_PORTS_MAX))
        (void)exposure_read(json_string_value(ports), json_is_array(ports) ? ports : NULL, ret, NULL);
    ret->has_token = token && str_unhex(token, ret->token, sizeof(ret->token));
}

/* --- use --- */

bool sandbox_port_public(const struct sandbox *sb, uint16_t port)
{
    for (unsigned i = 0; i < sb->exposure.ports; i++)
        if (sb->exposure.port[i] == port)
            return true;
    return sb->exposure.all;
}

bool sandbox_traffic_token_is(const struct sandbox *sb, const char *token)
{
    unsigned char digest[SHA256_DIGEST_LENGTH];
    if (!sb->exposure.has_token)
        return false;
    (void)SHA256((const unsigned char *)token, strlen(token), digest);
    return CRYPTO_memcmp(digest, sb->exposure.token, sizeof(digest)) == 0;
}

static int change(struct sandboxes *s, struct sandbox *sb, struct error *err)
{
    if (sb->state == SANDBOX_DELETED || sb->state == SANDBOX_DELETING)
        return verb_conflict(sb, "a change of the traffic token", err);
    return store_check(s, err);
}

int sandbox_traffic_token_new(struct sandboxes *s, struct sandbox *sb, char ret[SANDBOX_TOKEN_SIZE],
                              struct error *err)
{
    static const char prefix[] = "tt_";
    unsigned char secret[(SANDBOX_TOKEN_SIZE - sizeof(prefix)) / 2];
    int rc = change(s, sb, err);
    if (rc < 0)
        return rc;
    id_random(secret, sizeof(secret));
    memcpy(ret, prefix, sizeof(prefix) - 1);
    str_hex(secret, sizeof(secret), ret + sizeof(prefix) - 1);
    OPENSSL_cleanse(secret, sizeof(secret));
    (void)SHA256((const unsigned char *)ret, strlen(ret), sb->exposure.token);
    sb->exposure.has_token = true;
    sandbox_save(s, sb);
    return 0;
}

int sandbox_traffic_token_remove(struct sandboxes *s, struct sandbox *sb, struct error *err)
{
    int rc = change(s, sb, err);
    if (rc < 0 || !sb->exposure.has_token)
        return rc;
    sb->exposure.has_token = false;
    memset(sb->exposure.token, 0, sizeof(sb->exposure.token));
    sandbox_save(s, sb);
    return 0;
}
