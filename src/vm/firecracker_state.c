/* Device state, from the VMM's directory to the file of a golden or a snapshot. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "vm/firecracker.h"

#define STATE_MIN 24 /* a header and the sum */
#define STATE_NAME "state"

/* CRC-64 with Jones's polynomial, reflected, as Firecracker's files end with it: over a file and its own sum
 * it is zero. */
static uint64_t crc64(const unsigned char *p, size_t n)
{
    uint64_t table[256];
    uint64_t crc = 0;
    for (unsigned i = 0; i < 256; i++) {
        uint64_t v = i;
        for (int bit = 0; bit < 8; bit++)
            v = v & 1 ? v >> 1 ^ 0x95ac9329ac4bc9b5ULL : v >> 1;
        table[i] = v;
    }
    for (; n > 0; p++, n--)
        crc = table[(crc ^ *p) & 0xff] ^ crc >> 8;
    return crc;
}

bool fc_state_is_whole(const unsigned char *p, size_t n)
{
    return n >= STATE_MIN && crc64(p, n) == 0;
}

/* The VMM may have put anything there. */
static int read_state(int run_fd, unsigned char **ret, size_t *ret_n, struct error *err)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(run_fd, STATE_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return error_errno(err, ERROR_UNAVAILABLE, errno, "the device state that Firecracker wrote");
    if (!S_ISREG(st.st_mode) || st.st_size < STATE_MIN || st.st_size > FC_STATE_MAX)
        return error_set(err, ERROR_PROTOCOL, "what Firecracker wrote is no device state");
    size_t n = (size_t)st.st_size;
    AUTO_FREE unsigned char *data = malloc(n);
    if (!data)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = fs_read_at(fd, data, n, 0, err);
    if (rc < 0)
        return rc;
    *ret = TAKE(data);
    *ret_n = n;
    return 0;
}

int fc_state_take(int run_fd, int state_fd, struct error *err)
{
    AUTO_FREE unsigned char *data = NULL;
    size_t n = 0;
    int rc = read_state(run_fd, &data, &n, err);
    if (rc == 0 && !fc_state_is_whole(data, n))
        rc = error_set(err, ERROR_PROTOCOL, "the device state that Firecracker wrote is not whole");
    return rc < 0 || state_fd < 0 ? rc : fs_write_at(state_fd, data, n, 0, err);
}
