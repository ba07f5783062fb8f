/* Shared by the files of the HTTP client; no other includes it. */
#pragma once

#include "cli/client.h"

struct client {
    CURL *curl;
    char *url;
    char *authorization; /* header line, NULL without a key */
    bool unreachable;
    const volatile int *interrupt;
};

/* Options that every connection has. */
void client_options(CURL *h);
