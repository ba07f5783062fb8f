/* Which port of which sandbox a path or a host names, and tokens that are cut out of addresses. */
#include "base/cleanup.h"
#include "base/str.h"
#include "data/ports_address.h"
#include "unit.h"

#define ID "sb_0123456789abcdefghij"
#define BY_PATH "/v1/sandboxes/" ID "/ports/"

static char id[ID_SIZE]; /* a real one: the alphabet is id.h's */

/* "ID" in text stands for the id. */
static const char *with_id(const char *text)
{
    static char out[2][512];
    static unsigned at;
    char *to = out[at ^= 1];
    size_t n = 0;
    while (*text) {
        if (str_starts(text, ID)) {
            n += (size_t)snprintf(to + n, 512 - n, "%s", id);
            text += strlen(ID);
        } else {
            to[n++] = *text++;
        }
    }
    to[n] = '\0';
    return to;
}

struct address {
    const char *authority, *target;
    uint16_t port;
    const char *rest; /* NULL: as the target */
    bool by_host;
};

static const struct address good[] = {
    {"x", BY_PATH "8080", 8080, "", false},
    {"x", BY_PATH "8080/", 8080, "/", false},
    {"x", BY_PATH "1/a/../b%2f?c=d#e", 1, "/a/../b%2f?c=d#e", false},
    {"", BY_PATH "65535?a", 65535, "?a", false},
    {"80-" ID ".localhost", "/", 80, NULL, true},
    {"80-" ID ".localhost:7780", "/v1/sandboxes", 80, NULL, true},
    {"80-" ID ".LocalHost.:7780", "/", 80, NULL, true},
    {"80-" ID ".localhost:7780", BY_PATH "81/", 80, NULL, true}, /* the host comes first */
};

static void reads_addresses(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct error err = ERROR_INIT;
        struct port_address at;
        const char *authority = with_id(good[i].authority), *target = with_id(good[i].target);
        assert_true(port_address_claims(authority, target, "localhost"));
        assert_ok(port_address_read(authority, target, "localhost", &at, &err), &err);
        assert_string_equal(at.sandbox_id, id);
        assert_int_equal(at.port, good[i].port);
        assert_int_equal(at.by_host, good[i].by_host);
        assert_string_equal(at.rest, good[i].rest ? good[i].rest : target);
    }
}

static void hosts_in_other_spellings(void **state)
{
    (void)state;
    char host[128];
    struct port_address at;
    struct error err = ERROR_INIT;
    (void)snprintf(host, sizeof(host), "8080-SB-%s.a.b-c.example:1", id + 3);
    for (char *c = host + 8; *c != '.'; c++)
        *c = (char)(*c >= 'a' && *c <= 'z' ? *c - 32 : *c);
    assert_true(port_address_claims(host, "/", "a.b-c.example"));
    assert_ok(port_address_read(host, "/", "a.b-c.example", &at, &err), &err);
    assert_string_equal(at.sandbox_id, id);
    assert_false(port_address_claims(host, "/", "b-c.example")); /* one label, no more */
    assert_false(port_address_claims(host, "/", ""));
}

static void leaves_what_is_not_a_port(void **state)
{
    (void)state;
    static const char *const others[][2] = {
        {"localhost:7780", "/v1/sandboxes/" ID},
        {"localhost", "/v1/sandboxes/" ID "/ports"},
        {"localhost", "/v1/sandboxes/" ID "/ports/"},
        {"localhost", "/v1/sandboxes/" ID "/ports?8080"},
        {"localhost", "/v1/sandboxes//ports/80"},
        {"localhost", "/v1/sandboxes/" ID "/files/ports/80"},
        {"localhost", "/v1/sandboxes/" ID "%2fports/80"},
        {"localhost", "/v2/sandboxes/" ID "/ports/80"},
        {"localhost", "/x?/v1/sandboxes/" ID "/ports/80"},
        {"api.localhost", "/"},
        {".localhost", "/"},
        {"80-" ID, "/"},
        {"80-" ID ".example", "/"},
        {"80-" ID ".xlocalhost", "/"},
        {"a.80-" ID ".localhost", "/"},
        {"-" ID ".localhost", "/"},
        {ID ".localhost", "/"},
        {"80-web.localhost", "/"},
        {"80" ID ".localhost", "/"},
        {"80-" ID ".localhost:x", "/"},
        {"", "/"},
    };
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        struct port_address at;
        const char *authority = with_id(others[i][0]), *target = with_id(others[i][1]);
        if (port_address_claims(authority, target, "localhost"))
            fail_msg("claims %s %s", authority, target);
        assert_int_equal(port_address_read(authority, target, "localhost", &at, NULL), ERROR_NOT_FOUND);
    }
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *authority, *target;
        int code;
    } cases[] = {
        {"x", BY_PATH "0", ERROR_INVALID},
        {"x", BY_PATH "65536/", ERROR_INVALID},
        {"x", BY_PATH "http", ERROR_INVALID},
        {"x", BY_PATH "-1", ERROR_INVALID},
        {"x", BY_PATH "80%20", ERROR_INVALID},
        {"x", BY_PATH "8000000000000000000000", ERROR_INVALID},
        {"x", "/v1/sandboxes/sb_x/ports/80", ERROR_NOT_FOUND},
        {"x", "/v1/sandboxes/../ports/80", ERROR_NOT_FOUND},
        {"x", "/v1/sandboxes/" ID "x/ports/80", ERROR_NOT_FOUND},
        {"x", "/v1/sandboxes/op_0123456789abcdefghij/ports/80", ERROR_NOT_FOUND},
        {"0-" ID ".localhost", "/", ERROR_INVALID},
        {"70000-" ID ".localhost", "/", ERROR_INVALID},
        {"80-sb_x.localhost", "/", ERROR_NOT_FOUND},
        {"80-" ID "x.localhost", "/", ERROR_NOT_FOUND},
        {"80-" ID "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx.localhost", "/", ERROR_NOT_FOUND},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct port_address at;
        struct error err = ERROR_INIT;
        const char *authority = with_id(cases[i].authority), *target = with_id(cases[i].target);
        if (!port_address_claims(authority, target, "localhost"))
            fail_msg("does not claim %s %s", authority, target);
        assert_int_equal(port_address_read(authority, target, "localhost", &at, &err), cases[i].code);
        assert_true(*err.message);
    }
}

static void cuts_the_token(void **state)
{
    (void)state;
#define T "space_traffic_token"
    static const struct {
        const char *target, *left, *token;
    } cases[] = {
        {"/a", "/a", ""},
        {"/a?", "/a?", ""},
        {"/a?b=c&&d", "/a?b=c&&d", ""},
        {"/a?b=c&", "/a?b=c&", ""},
        {"/a?" T "=tt_1", "/a", "tt_1"},
        {"/a?" T "=tt_1&b=c", "/a?b=c", "tt_1"},
        {"/a?b=c&" T "=tt_1", "/a?b=c", "tt_1"},
        {"/a?b=c&" T "=tt_1&d", "/a?b=c&d", "tt_1"},
        {"/a?b&" T "=tt_1&" T "=tt_2&d", "/a?b&d", "tt_1"},
        {"/a?" T "=%74t%5f1", "/a", "tt_1"},
        {"/a?space%5ftraffic_tok%65n=x&y", "/a?y", "x"},
        {"/a?" T, "/a", ""},
        {"/a?" T "=", "/a", ""},
        {"/a?" T "=%00x", "/a", ""},
        {"/a?x" T "=1&" T "x=2", "/a?x" T "=1&" T "x=2", ""},
        {"/a?b=" T "=1", "/a?b=" T "=1", ""},
        {"/" T "=1", "/" T "=1", ""},
        {"/a?%zz&%&" T "=1", "/a?%zz&%", "1"},
        {"/?a?" T "=1", "/?a?" T "=1", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char token[PORTS_TOKEN_MAX] = "x";
        AUTO_FREE char *target = strdup(cases[i].target);
        port_token_cut(target, token);
        assert_string_equal(target, cases[i].left);
        assert_string_equal(token, cases[i].token);
    }
    char *longest = calloc(1, 4096);
    char token[PORTS_TOKEN_MAX];
    (void)snprintf(longest, 64, "/?%s=", T);
    memset(longest + strlen(longest), 'x', 2000);
    port_token_cut(longest, token);
    assert_string_equal(longest, "/");
    assert_string_equal(token, "");
    free(longest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_addresses),
        cmocka_unit_test(hosts_in_other_spellings),
        cmocka_unit_test(leaves_what_is_not_a_port),
        cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(cuts_the_token),

    };
    id_new("sb", id);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
