/* space-agent: PID 1 of a guest. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/boot.h"

int main(void)
{
    static struct agent agent;
    struct agent_config config = {.init = true};
    struct boot boot;
    if (getpid() != 1) {
        (void)fprintf(stderr, "space-agent %s: runs as the first process of a guest only\n", SPACE_VERSION);
        return 2;
    }
    if (boot_guest(&boot) < 0)
        boot_power_off();
    config.port_fd = boot.port_fd;
    config.listen_fd = boot.listen_fd;
    config.cgroup_fd = boot.cgroup_fd;
    if (agent_init(&agent, &config) < 0) {
        (void)fprintf(stderr, "space-agent: cannot start: %m\n");
        boot_power_off();
    }
    /* Its turn comes also when a command has started thousands of others. */
    (void)setpriority(PRIO_PROCESS, 0, -19);
    for (;;)
        agent_turn(&agent, -1);
}
