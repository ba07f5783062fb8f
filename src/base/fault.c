#include "base/fault.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"

/* Of the process, as the environment is. */
static struct {
    bool on;
    char name[64];
    int signal;
    unsigned long countdown;
    const char *file, *log;
    pthread_mutex_t lock; /* over name, signal and countdown */
} fault = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* NAME:ACTION[:N]; what cannot be read switches nothing on. */
static void read_spec(const char *spec)
{
    char action[8] = "";
    *fault.name = '\0';
    const char *colon = strchr(spec, ':');
    size_t n = colon ? (size_t)(colon - spec) : 0;
    if (n == 0 || n >= sizeof(fault.name))
        return;
    const char *end = strchr(colon + 1, ':');
    size_t action_n = end ? (size_t)(end - colon - 1) : strlen(colon + 1);
    if (action_n >= sizeof(action))
        return;
    memcpy(action, colon + 1, action_n);
    fault.signal = strcmp(action, "kill") == 0 ? SIGKILL : strcmp(action, "stop") == 0 ? SIGSTOP : 0;
    fault.countdown = end ? strtoul(end + 1, NULL, 10) : 1;
    if (!fault.signal)
        return;
    memcpy(fault.name, spec, n);
    fault.name[n] = '\0';
}

void fault_init(void)
{
    const char *spec = getenv("SPACE_FAULT");
    fault.log = getenv("SPACE_FAULT_LOG");
    if (spec && *spec == '@')
        fault.file = spec + 1;
    else if (spec)
        read_spec(spec);
    fault.on = fault.log || fault.file || *fault.name;
}

static void read_file(void)
{
    char text[96];
    AUTO_CLOSE int fd = open(fault.file, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    read_spec(text);
}

static void note(const char *name)
{
    char line[80];
    int n = snprintf(line, sizeof(line), "%s\n", name);
    AUTO_CLOSE int fd = open(fault.log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0 && n > 0 && (size_t)n < sizeof(line))
        (void)!write(fd, line, (size_t)n);
}

void fault_point(const char *name)
{
    if (!fault.on)
        return;
    if (fault.log)
        note(name);
    (void)pthread_mutex_lock(&fault.lock);
    if (fault.file)
        read_file();
    if (*fault.name && strcmp(fault.name, name) == 0 && fault.countdown > 0 && --fault.countdown == 0)
        (void)kill(getpid(), fault.signal);
    (void)pthread_mutex_unlock(&fault.lock);
}
