/* Any bytes are unpacked below a directory in memory. Nothing beside that directory may change, nothing half
 * made may stay, and it ends with exactly one report; then what is there is packed again, and must be an
 * archive. The first byte chooses whether the directory holds something beforehand. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/filework.h"
#include "agent/tar.h"
#include "below.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

static int etc_fd = -1, work_fd, control[2];

static void set_up(void)
{
    work_fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    etc_fd = open("/etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    below_check(work_fd >= 0 && etc_fd >= 0, "directories");
    below_check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, control) == 0,
                "a socket");
    (void)signal(SIGPIPE, SIG_IGN);
}

static int file_with(const void *data, size_t size)
{
    int fd = memfd_create("archive", MFD_CLOEXEC);
    below_check(fd >= 0 && write(fd, data, size) == (ssize_t)size && lseek(fd, 0, SEEK_SET) == 0,
                "a file in memory");
    return fd;
}

/* The code of the one end that was reported. */
static int end(void)
{
    struct file_report r;
    int code = 1;
    while (recv(control[0], &r, sizeof(r), MSG_DONTWAIT) == sizeof(r))
        if (!r.opened) {
            below_check(code == 1, "two ends");
            code = r.code;
        }
    below_check(code != 1, "no end");
    below_check(code != ERROR_INTERNAL, "an error without a name");
    return code;
}

static void unpack(struct file_job *job, const uint8_t *data, size_t size)
{
    job->op = PROTO_OP_ARCHIVE_WRITE;
    job->data = file_with(data, size);
    below_check(send(control[0], "C", 1, 0) == 1, "a commit");
    (void)archive_write_work(job);
    (void)close(job->data);
    char word;
    (void)recv(job->control, &word, 1, MSG_DONTWAIT); /* when it ended before it looked */
    (void)end();
}

static void pack(struct file_job *job)
{
    struct tar_entry e;
    enum tar_result r;
    job->op = PROTO_OP_ARCHIVE_READ;
    job->data = file_with("", 0);
    (void)archive_read_work(job);
    if (end() == 0) {
        below_check(lseek(job->data, 0, SEEK_SET) == 0, "the archive");
        struct tar_reader *reader = tar_reader_create(job->data);
        below_check(reader != NULL, "memory");
        while ((r = tar_next(reader, &e)) == TAR_ENTRY)
            ;
        below_check(r == TAR_END, "an archive of its own");
        tar_reader_destroy(reader);
    }
    (void)close(job->data);
    below_check(fchdir(work_fd) == 0, "the way back"); /* it may be anywhere, in a process of its own */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[96];
    if (etc_fd < 0)
        set_up();
    if (size == 0)
        return 0;
    struct file_job job = {.path = path,
                           .user = "root",
                           .target = "",
                           .mode = UINT32_MAX,
                           .control = control[1],
                           .uid = (uid_t)-1,
                           .gid = (gid_t)-1,
                           .etc = etc_fd};
    (void)below_begin(data[0] & 1);
    (void)snprintf(path, sizeof(path), "%s/in", below_path());
    unpack(&job, data + 1, size - 1);
    pack(&job);
    below_end();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    size = LLVMFuzzerMutate(data, size, max);
    below_mend(data, size, seed);
    return size;
}
