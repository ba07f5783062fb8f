#include "agent/share.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>

_Static_assert(SHARE_DATA <= PROTO_DATA_MAX && PROTO_DATA_BEFORE + PROTO_TRAILER <= SHARE_DATA_AT,
               "what stands around a slot's data must fit between it and its neighbours'");

unsigned char *share_map(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void share_unmap(unsigned char *mem, size_t size)
{
    if (mem)
        (void)munmap(mem, size);
}

bool share_tell(int control, const struct share_word *w)
{
    ssize_t n;
    do
        n = send(control, w, sizeof(*w), MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n == sizeof(*w);
}

bool share_hear(int control, struct share_word *ret)
{
    ssize_t n;
    do
        n = recv(control, ret, sizeof(*ret), 0);
    while (n < 0 && errno == EINTR);
    return n == sizeof(*ret);
}
