/* Where SPACE's own programs are: beside the running one, in the build tree (also for its unit tests), or
 * in libexec. */
#pragma once

#include "base/error.h"

/* Finds program `name`; `module` is its folder in a build tree ("agent"). *ret: new heap string.
 * ERROR_NOT_FOUND lists where it was looked for. */
int program_find(const char *name, const char *module, char **ret, struct error *err);
