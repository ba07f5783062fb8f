/* The OpenAPI 3.1 document, made from the table of routes. */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "http/http.h"

/* The whole document; new heap string, NULL when memory is short. */
char *openapi_text(const struct http_server *http);

/* One component schema: name and its text, in which ' stands for ". False at the end of the table. */
bool openapi_schema(size_t index, const char **ret_name, const char **ret_text);
