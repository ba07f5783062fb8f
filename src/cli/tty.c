#include "cli/tty.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/cleanup.h"

/* Process-wide: exit handlers and signal handlers take no argument. */
static int raw_fd = -1;
static struct termios saved_mode, raw_mode;
static volatile sig_atomic_t is_raw;

static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGALRM, SIGSYS};

/* Whether this process is in the foreground. In the background a terminal's modes are those of another
 * program, and setting them would stop us. */
static bool is_ours(int fd)
{
    pid_t group = tcgetpgrp(fd);
    return group < 0 || group == getpgrp();
}

void tty_restore(void)
{
    if (!is_raw)
        return;
    int saved = errno;
    if (is_ours(raw_fd))
        (void)tcsetattr(raw_fd, TCSANOW, &saved_mode);
    is_raw = 0;
    errno = saved;
}

void tty_stop(const volatile int *ended)
{
    bool raw = is_raw != 0;
    tty_restore();
    do
        (void)raise(SIGSTOP);
    while (raw && !is_ours(raw_fd) && !*ended);
    if (raw && !*ended)
        (void)tty_raw(raw_fd, NULL);
}

void tty_again(void)
{
    if (is_raw && is_ours(raw_fd))
        (void)tcsetattr(raw_fd, TCSANOW, &raw_mode);
}

static void on_fatal(int number)
{
    tty_restore();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

/* Signals nobody else catches; those that are caught end the program through a normal exit. */
static void guard_signals(void)
{
    static const int deadly[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    struct sigaction action = {.sa_handler = on_fatal};
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < ARRAY_LEN(fatal); i++)
        (void)sigaction(fatal[i], &action, NULL);
    for (size_t i = 0; i < ARRAY_LEN(deadly); i++) {
        struct sigaction old;
        if (sigaction(deadly[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            (void)sigaction(deadly[i], &action, NULL);
    }
}

int tty_raw(int fd, struct error *err)
{
    static bool arranged;
    if (is_raw)
        return 0;
    if (tcgetattr(fd, &saved_mode) < 0)
        return error_errno(err, ERROR_INVALID, errno, "the input is not a terminal");
    if (!arranged) {
        (void)atexit(tty_restore);
        guard_signals();
        arranged = true;
    }
    raw_fd = fd;
    raw_mode = saved_mode;
    cfmakeraw(&raw_mode);
    is_raw = 1; /* before the change: a signal in between restores what is still there */
    if (tcsetattr(fd, TCSANOW, &raw_mode) < 0) {
        is_raw = 0;
        return error_errno(err, ERROR_INTERNAL, errno, "set the terminal to raw mode");
    }
    return 0;
}

bool tty_is_raw(void)
{
    return is_raw != 0;
}

bool tty_size(int fd, uint16_t *ret_rows, uint16_t *ret_cols)
{
    struct winsize size;
    if (ioctl(fd, TIOCGWINSZ, &size) < 0 || size.ws_row == 0 || size.ws_col == 0)
        return false;
    *ret_rows = size.ws_row;
    *ret_cols = size.ws_col;
    return true;
}
