#include "realvm.h"

#include "../unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/proc.h"
#include "base/str.h"
#include "image/image.h"
#include "vm/qemu_argv.h"

#define DISK_MIB "64"
#define MEMORY_MIB 128

static void command(const char *const *argv)
{
    pid_t pid;
    int pidfd = -1;
    struct error err = ERROR_INIT;
    struct proc_spawn s = {.argv = (char *const *)argv, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
    assert_ok(proc_spawn(&s, &pid, &pidfd, &err), &err);
    (void)close(pidfd);
    assert_int_equal(proc_wait(pid), 0);
}

static void make_disk(const struct realvm_kit *k)
{
    AUTO_FREE char *root = str_printf("%s/root", k->dir);
    AUTO_FREE char *bin = str_printf("%s/root/bin", k->dir);
    AUTO_FREE char *etc = str_printf("%s/root/etc", k->dir);
    AUTO_FREE char *disk = str_printf("%s/disk", k->dir);
    AUTO_FREE char *links = str_printf(
        "for n in $(busybox --list); do ln -s busybox %s/$n 2>&-; done; echo old > %s/machine-id", bin, etc);
    assert_int_equal(mkdir(root, 0755) | mkdir(bin, 0755) | mkdir(etc, 0755), 0);
    command((const char *const[]){"cp", "/bin/busybox", bin, NULL});
    command((const char *const[]){"sh", "-c", links, NULL});
    command((const char *const[]){"mke2fs", "-q", "-t", "ext4", "-d", root, disk, DISK_MIB "m", NULL});
}

bool realvm_kit_make(struct realvm_kit *k)
{
    struct image_info info;
    struct error err = ERROR_INIT;
    if (geteuid() != 0 || image_find(&(struct image_config){0}, &info, NULL) < 0)
        return false;
    k->dir = unit_mkdir();
    struct image_config c = {.agent = SPACE_AGENT, .state_dir = k->dir};
    assert_ok(image_build(&c, &info, &err), &err);
    (void)snprintf(k->kernel, sizeof(k->kernel), "%s/platform/%s/vmlinuz", k->dir, info.digest);
    (void)snprintf(k->initrd, sizeof(k->initrd), "%s/platform/%s/initrd", k->dir, info.digest);
    make_disk(k);
    return true;
}

void realvm_kit_remove(struct realvm_kit *k)
{
    struct error err = ERROR_INIT;
    assert_ok(fs_remove_tree(AT_FDCWD, k->dir, &err), &err);
    free(k->dir);
}

static struct sockaddr_un address(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    assert_true(str_copy(a.sun_path, sizeof(a.sun_path), path));
    return a;
}

static int listen_at(const char *path)
{
    struct sockaddr_un a = address(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, 4), 0);
    return fd;
}

/* Reads lines until one with the text; an error fails the test. */
static void await(struct realvm *vm, const char *text)
{
    char line[65536];
    size_t n = 0;
    for (;;) {
        ssize_t r = n < sizeof(line) - 1 ? read(vm->qmp, line + n, 1) : -1;
        if (r != 1)
            fail_msg("the VMM does not answer '%s'", text);
        if (line[n++] != '\n')
            continue;
        line[n] = '\0';
        n = 0;
        if (strstr(line, "\"error\":"))
            fail_msg("the VMM says %s", line);
        if (strstr(line, text))
            return;
    }
}

void realvm_qmp(struct realvm *vm, const char *what, const char *arguments)
{
    AUTO_FREE char *text =
        str_printf("{\"execute\":\"%s\",\"arguments\":{%s}}\n", what, arguments ? arguments : "");
    assert_int_equal(write(vm->qmp, text, strlen(text)), (ssize_t)strlen(text));
    await(vm, "\"return\"");
}

static int die_with_the_test(void *arg, struct error *err)
{
    (void)arg;
    (void)err;
    return prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void launch(const struct realvm_kit *k, struct realvm *vm, const char *name, bool incoming, int state)
{
    static struct qemu_argv argv;
    struct error err = ERROR_INIT;
    int pidfd = -1;
    struct qemu_argv_spec s = {.binary = "qemu-system-x86_64",
                               .sandbox_id = name,
                               .vcpus = 1,
                               .memory_mib = MEMORY_MIB,
                               .mem_path = vm->mem,
                               .mem_shared = !incoming,
                               .disk_path = vm->disk,
                               .kernel_path = k->kernel,
                               .initrd_path = k->initrd,
                               .qmp_fd = 3,
                               .agent_fd = 4,
                               .incoming = incoming};
    assert_ok(qemu_argv_build(&s, &argv, &err), &err);
    AUTO_CLOSE int qmp = listen_at(vm->qmp_path);
    AUTO_CLOSE int agent = listen_at(vm->agent_path);
    const int keep[3] = {qmp, agent, state};
    struct proc_spawn spawn = {.argv = argv.argv,
                               .stdin_fd = -1,
                               .stdout_fd = -1,
                               .stderr_fd = -1,
                               .prepare = die_with_the_test,
                               .keep_fds = keep,
                               .keep_count = state >= 0 ? 3 : 2};
    assert_ok(proc_spawn(&spawn, &vm->pid, &pidfd, &err), &err);
    (void)close(pidfd);
    struct sockaddr_un a = address(vm->qmp_path);
    vm->qmp = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(vm->qmp, (const struct sockaddr *)&a, sizeof(a)), 0);
    await(vm, "\"QMP\"");
    realvm_qmp(vm, "qmp_capabilities", NULL);
}

static void make_place(const struct realvm_kit *k, struct realvm *vm, const char *name, const char *disk)
{
    *vm = (struct realvm){.kit = k, .qmp = -1};
    (void)snprintf(vm->dir, sizeof(vm->dir), "%s/%s", k->dir, name);
    assert_int_equal(mkdir(vm->dir, 0755), 0);
    (void)snprintf(vm->agent_path, sizeof(vm->agent_path), "%s/agent", vm->dir);
    (void)snprintf(vm->qmp_path, sizeof(vm->qmp_path), "%s/qmp", vm->dir);
    (void)snprintf(vm->disk, sizeof(vm->disk), "%s/disk", vm->dir);
    (void)snprintf(vm->mem, sizeof(vm->mem), "%s/mem", vm->dir);
    command((const char *const[]){"cp", "--reflink=auto", "--sparse=always", disk, vm->disk, NULL});
}

void realvm_boot(const struct realvm_kit *k, struct realvm *vm, const char *name)
{
    AUTO_FREE char *disk = str_printf("%s/disk", k->dir);
    make_place(k, vm, name, disk);
    AUTO_CLOSE int mem = open(vm->mem, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(mem, (off_t)MEMORY_MIB << 20), 0);
    launch(k, vm, name, false, -1);
}

void realvm_restore(const struct realvm_kit *k, struct realvm *vm, const char *name,
                    const struct realvm *image)
{
    AUTO_FREE char *state = str_printf("%s/state", image->dir);
    make_place(k, vm, name, image->disk);
    (void)str_copy(vm->mem, sizeof(vm->mem), image->mem); /* mapped privately */
    AUTO_CLOSE int fd = open(state, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    launch(k, vm, name, true, fd);
    realvm_qmp(vm, "migrate-incoming", "\"uri\":\"fd:5\"");
    for (;;) {
        char answer[8192];
        static const char ask[] = "{\"execute\":\"query-status\"}\n";
        assert_int_equal(write(vm->qmp, ask, sizeof(ask) - 1), sizeof(ask) - 1);
        ssize_t n = read(vm->qmp, answer, sizeof(answer) - 1);
        assert_true(n > 0);
        answer[n] = '\0';
        if (!strstr(answer, "inmigrate"))
            break;
    }
}

void realvm_stop(struct realvm *vm)
{
    realvm_qmp(vm, "stop", NULL);
}

void realvm_cont(struct realvm *vm)
{
    realvm_qmp(vm, "cont", NULL);
}

void realvm_save(struct realvm *vm)
{
    AUTO_FREE char *where = str_printf("\"filename\":\"%s/state\",\"live\":false", vm->dir);
    realvm_qmp(vm, "xen-save-devices-state", where);
    realvm_end(vm);
}

void realvm_console(struct realvm *vm)
{
    static const char ask[] =
        "{\"execute\":\"ringbuf-read\",\"arguments\":{\"device\":\"console\",\"size\":4000}}\n";
    char answer[8192];
    assert_int_equal(write(vm->qmp, ask, sizeof(ask) - 1), sizeof(ask) - 1);
    ssize_t n = read(vm->qmp, answer, sizeof(answer) - 1);
    answer[n > 0 ? n : 0] = '\0';
    print_message("console: %s\n", answer);
}

void realvm_end(struct realvm *vm)
{
    if (vm->pid > 0) {
        (void)kill(vm->pid, SIGKILL);
        (void)waitpid(vm->pid, NULL, 0);
    }
    if (vm->qmp >= 0)
        (void)close(vm->qmp);
    vm->pid = 0;
    vm->qmp = -1;
}
