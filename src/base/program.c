#include "base/program.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"

int program_find(const char *name, const char *module, char **ret, struct error *err)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "where the running program is");
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    AUTO_FREE char *beside = str_printf("%s/%s", self, name);
    AUTO_FREE char *tree = str_printf("%s/../%s/%s", self, module, name);
    AUTO_FREE char *unit = str_printf("%s/../../../src/%s/%s", self, module, name);
    AUTO_FREE char *bench = str_printf("%s/../src/%s/%s", self, module, name);
    AUTO_FREE char *prefix = str_printf("%s/../libexec/space/%s", self, name);
    AUTO_FREE char *libexec = str_printf("%s/%s", SPACE_LIBEXECDIR, name);
    char **places[] = {&beside, &tree, &unit, &bench, &prefix, &libexec};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        if (*places[i] && access(*places[i], R_OK | X_OK) == 0) {
            *ret = TAKE(*places[i]);
            return 0;
        }
    }
    return error_set(err, ERROR_NOT_FOUND, "%s is not in %s, %s/../%s or %s; build or install it", name, self,
                     self, module, SPACE_LIBEXECDIR);
}
