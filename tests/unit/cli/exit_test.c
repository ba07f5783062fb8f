/* Exit statuses, problems, paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/client.h"
#include "cli/exit.h"

static int status_of(const char *json)
{
    json_t *result = json_loads(json, 0, NULL);
    assert_non_null(result);
    int status = exit_for_result(result);
    json_decref(result);
    return status;
}

static void results_become_statuses(void **state)
{
    (void)state;
    assert_int_equal(status_of("{\"reason\":\"exit\",\"exit_code\":0}"), 0);
    assert_int_equal(status_of("{\"reason\":\"exit\",\"exit_code\":255}"), 255);
    assert_int_equal(status_of("{\"reason\":\"signal\",\"signal\":\"SIGKILL\"}"), 137);
    assert_int_equal(status_of("{\"reason\":\"signal\",\"signal\":15}"), 143);
    assert_int_equal(status_of("{\"reason\":\"timeout\",\"signal\":\"SIGKILL\"}"), 124);
    assert_int_equal(status_of("{\"reason\":\"oom_killed\",\"signal\":\"SIGKILL\"}"), 137);
    assert_int_equal(status_of("{\"reason\":\"start_failed\",\"exit_code\":null}"), 127);
    assert_int_equal(status_of("{\"reason\":\"sandbox_gone\"}"), 125);
}

static void nothing_unclear_becomes_success(void **state)
{
    (void)state;
    static const char *const odd[] = {"{}",
                                      "[]",
                                      "{\"reason\":\"exit\"}",
                                      "{\"reason\":\"exit\",\"exit_code\":null}",
                                      "{\"reason\":\"exit\",\"exit_code\":256}",
                                      "{\"reason\":\"exit\",\"exit_code\":-1}",
                                      "{\"reason\":\"signal\",\"signal\":\"SIGNOTHING\"}",
                                      "{\"reason\":\"signal\",\"signal\":0}",
                                      "{\"reason\":7,\"exit_code\":0}",
                                      "{\"reason\":\"new\",\"exit_code\":0}"};
    for (size_t i = 0; i < ARRAY_LEN(odd); i++)
        assert_int_equal(status_of(odd[i]), EXIT_BROKEN);
}

static void errors_become_statuses(void **state)
{
    (void)state;
    struct error e = {.code = ERROR_NOT_FOUND};
    assert_int_equal(exit_for_error(&e, false), EXIT_NOT_FOUND);
    e.code = ERROR_NO_SUCH_FILE;
    assert_int_equal(exit_for_error(&e, false), EXIT_NOT_FOUND);
    e.code = ERROR_CONFLICT;
    assert_int_equal(exit_for_error(&e, false), EXIT_CONFLICT);
    e.code = ERROR_UNAVAILABLE;
    assert_int_equal(exit_for_error(&e, false), EXIT_FAILED);
    assert_int_equal(exit_for_error(&e, true), EXIT_UNREACHABLE);
}

static void signal_names_go_both_ways(void **state)
{
    (void)state;
    assert_int_equal(exit_signal_number("SIGTERM"), SIGTERM);
    assert_int_equal(exit_signal_number("USR1"), SIGUSR1);
    assert_int_equal(exit_signal_number("TERMINATE"), 0);
    assert_string_equal(exit_signal_name(SIGHUP), "SIGHUP");
    assert_null(exit_signal_name(64));
}

static void problems_become_errors(void **state)
{
    (void)state;
    struct error e = ERROR_INIT;
    const char *text = "{\"type\":\"urn:space:error:conflict\",\"title\":\"Conflict\",\"status\":409,"
                       "\"detail\":\"busy\",\"operation_id\":\"op_1\"}";
    assert_int_equal(client_problem(409, text, strlen(text), &e), ERROR_CONFLICT);
    assert_string_equal(e.message, "Conflict: busy");
    assert_string_equal(e.operation_id, "op_1");
    text = "{\"type\":\"urn:space:error:unknown_field\",\"title\":\"Unknown "
           "field\",\"detail\":\"d\",\"field\":\"a.b\"}";
    assert_int_equal(client_problem(400, text, strlen(text), &e), ERROR_UNKNOWN_FIELD);
    assert_string_equal(e.field, "a.b");
    /* A proxy's page: the status decides. */
    assert_int_equal(client_problem(404, "<html>", 6, &e), ERROR_NOT_FOUND);
    assert_non_null(strstr(e.message, "404"));
    assert_int_equal(client_problem(599, "", 0, &e), ERROR_INTERNAL);
    assert_int_equal(client_problem(500, "{\"title\":7}", 11, &e), ERROR_INTERNAL);
}

static void paths_are_encoded(void **state)
{
    (void)state;
    AUTO_FREE char *path = client_path("/v1/x/%s/y?path=%s", "a/b?c", "/t\xc3\xa9 %&");
    assert_string_equal(path, "/v1/x/a%2Fb%3Fc/y?path=%2Ft%C3%A9%20%25%26");
}

static void loopback_is_this_machine_only(void **state)
{
    (void)state;
    assert_true(client_is_loopback("http://127.0.0.1:7780"));
    assert_true(client_is_loopback("https://localhost/x"));
    assert_true(client_is_loopback("http://[::1]:1"));
    assert_false(client_is_loopback("http://127.0.0.1.example.com"));
    assert_false(client_is_loopback("http://user@127.0.0.1@example.com"));
    assert_false(client_is_loopback("http://127.0.0.1@example.com"));
    assert_false(client_is_loopback("http://10.0.0.1"));
    assert_false(client_is_loopback("nonsense"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_become_statuses),       cmocka_unit_test(nothing_unclear_becomes_success),
        cmocka_unit_test(errors_become_statuses),        cmocka_unit_test(signal_names_go_both_ways),
        cmocka_unit_test(problems_become_errors),        cmocka_unit_test(paths_are_encoded),
        cmocka_unit_test(loopback_is_this_machine_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
