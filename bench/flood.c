/* Writes SIZE bytes (decimal argument) to standard output, in blocks of 64 KiB that differ: a command whose
 * output is worth a digest and which costs the guest next to nothing to make. Static; runs inside a sandbox.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned char block[65536];

int main(int argc, char **argv)
{
    uint64_t left = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    for (size_t i = 0; i < sizeof(block); i++)
        block[i] = (unsigned char)(i * 131 >> 3);
    for (uint64_t number = 0; left > 0; number++) {
        memcpy(block, &number, sizeof(number));
        size_t want = left < sizeof(block) ? (size_t)left : sizeof(block);
        for (size_t at = 0; at < want;) {
            ssize_t n = write(STDOUT_FILENO, block + at, want - at);
            if (n <= 0)
                return 1;
            at += (size_t)n;
        }
        left -= want;
    }
    return 0;
}
