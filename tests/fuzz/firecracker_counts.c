/* A line of counters, as a hostile VMM may write it. What is taken for one counts no more than a VM can do.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "vm/firecracker.h"

#define MOST (4ULL << 50) /* four names may be one counter */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct vm_counters c;
    uint64_t values[sizeof(c) / sizeof(uint64_t)];
    memset(&c, 0xff, sizeof(c));
    bool fine = fc_metrics_parse((const char *)data, size, &c);
    memcpy(values, &c, sizeof(c));
    for (size_t i = 0; i < ARRAY_LEN(values); i++)
        if (fine ? values[i] > MOST : values[i] != UINT64_MAX)
            abort();
    return 0;
}
