/* Request bodies: text is parsed, then read by a table with a field of every kind. What is accepted must keep
 * to the table. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "json/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *v = NULL;
    struct error err = ERROR_INIT;
    const char *name = NULL;
    int64_t count = 5;
    bool on = false;
    const json_t *map = NULL, *list = NULL, *object = NULL, *array = NULL;
    const struct json_field fields[] = {
        {"n", JSON_KIND_STRING, true, 1, 8, &name},       {"c", JSON_KIND_INTEGER, false, 1, 100, &count},
        {"b", JSON_KIND_BOOL, false, 0, 0, &on},          {"m", JSON_KIND_STRING_MAP, false, 0, 2, &map},
        {"l", JSON_KIND_STRING_LIST, false, 1, 3, &list}, {"o", JSON_KIND_OBJECT, false, 0, 0, &object},
        {"a", JSON_KIND_ARRAY, false, 0, 2, &array},
    };
    if (json_parse((const char *)data, size, &v, &err) < 0) {
        must(err.code == ERROR_MALFORMED && err.message[0] && !v);
        return 0;
    }
    if (json_read(v, "", fields, ARRAY_LEN(fields), &err) == 0) {
        must(name && strlen(name) >= 1 && strlen(name) <= 8);
        must(count >= 1 && count <= 100);
        must(!map || json_object_size(map) <= 2);
        must(!list || (json_array_size(list) >= 1 && json_array_size(list) <= 3));
        must(!object || json_is_object(object));
        must(!array || json_array_size(array) <= 2);
    } else {
        must(err.code == ERROR_INVALID || err.code == ERROR_UNKNOWN_FIELD);
    }
    json_decref(v);
    return 0;
}
