/* Counters and histograms in the text format of Prometheus. */
#pragma once

#include "api/internal.h"

int metrics_create(struct metrics **ret, struct error *err);
void metrics_destroy(struct metrics *m); /* NULL is accepted */

/* route: NULL when none matched. */
void metrics_answer(struct metrics *m, const struct http_route *route, unsigned status, double seconds);
void metrics_operation(struct metrics *m, const struct operation *op);
void metrics_commit(struct metrics *m, double seconds);

/* Everything as text, new heap string; NULL when memory is short. */
char *metrics_text(struct api *a);
