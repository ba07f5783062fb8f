#include "cli/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/tty.h"

volatile int signals_interrupted;

/* Process-wide because signal handlers take no argument. */
static int pipe_fds[2] = {-1, -1};

static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGWINCH, SIGCONT};

static void on_signal(int number)
{
    int saved = errno;
    unsigned char byte = (unsigned char)number;
    if (number == SIGTSTP && !tty_is_raw()) {
        (void)raise(SIGSTOP);
        errno = saved;
        return;
    }
    if (number == SIGINT || number == SIGTERM || number == SIGHUP)
        signals_interrupted = number;
    /* A full pipe means that thousands are waiting: one less does not matter. */
    if (write(pipe_fds[1], &byte, 1) < 0)
        errno = saved;
    errno = saved;
}

int signals_catch(struct error *err)
{
    if (pipe_fds[0] < 0 && pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "pipe");
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < ARRAY_LEN(caught); i++) {
        struct sigaction old;
        /* What nohup or a background shell made us ignore stays ignored. */
        if (sigaction(caught[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            (void)sigaction(caught[i], &action, NULL);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    return 0;
}

int signals_fd(void)
{
    return pipe_fds[0];
}

int signals_next(void)
{
    unsigned char byte;
    return pipe_fds[0] >= 0 && read(pipe_fds[0], &byte, 1) == 1 ? byte : 0;
}

int signals_take(void)
{
    int first = 0;
    int number;
    while ((number = signals_next())) {
        bool ends = number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
        first = first == 0 && ends ? number : first;
    }
    return first;
}
