/* Sandboxes, operations, templates and the rest as the api sees them, without any of it behind. */
#pragma once

#include "loop/loop.h"
#include "sandbox/sandbox.h"
#include "template/template.h"

/* Sandboxes become running, and verbs reach their state, this long after they were asked for. */
#define FAKE_DELAY_MS 30

/* Ends of operations are durable so long after they came; 0: at once. */
extern unsigned fake_durable_after_ms;

struct sandboxes *fake_sandboxes(struct loop *l, struct store *st);
void fake_sandboxes_free(struct sandboxes *s);

struct templates *fake_templates(void);
void fake_templates_free(struct templates *t);
/* Bytes of the last finished upload; uploads begun minus ended. */
size_t fake_upload_bytes(const struct templates *t);
int fake_uploads_open(const struct templates *t);
