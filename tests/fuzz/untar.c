/* What `space cp` unpacks on the user's machine: any bytes, as from a hostile guest, into a directory in
 * memory. Nothing beside that directory may change, and nothing half made may stay. The first byte chooses
 * whether the directory holds something beforehand, whether owners and bits are kept, and in which pieces the
 * stream comes. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "below.h"
#include "cli/untar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

struct stream {
    const uint8_t *p;
    size_t left, piece;
};

static ssize_t give(void *arg, void *to, size_t n, struct error *err)
{
    struct stream *s = arg;
    (void)err;
    if (n > s->left)
        n = s->left;
    if (n > s->piece)
        n = s->piece;
    memcpy(to, s->p, n);
    s->p += n;
    s->left -= n;
    return (ssize_t)n;
}

static void passed(void *arg, const char *name, const char *why)
{
    (void)arg;
    below_check(*name != 0 && *why != 0, "what was passed over");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = ERROR_INIT;
    if (size == 0)
        return 0;
    struct stream s = {data + 1, size - 1, data[0] & 4 ? 700 : 65536};
    bool furnished = data[0] & 1;
    int top = below_begin(furnished);
    struct untar_config config = {.dir_fd = openat(top, "in", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                                  .made = !furnished,
                                  .keep = (data[0] & 2) != 0,
                                  .read = give,
                                  .passed = passed,
                                  .arg = &s};
    if (untar(&config, &err) < 0)
        below_check(*err.message && err.code < 0, "a reason");
    (void)close(config.dir_fd);
    below_end();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    size = LLVMFuzzerMutate(data, size, max);
    below_mend(data, size, seed);
    return size;
}
