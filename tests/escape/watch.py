"""What goes on beside the cases: the API is asked all the time, and a bystander looked after.

An answer of the API is late after LIMIT seconds. On a machine that does other work at the same time this says nothing
about SPACE, so that work is measured: processor time that neither the server, its virtual machines nor the suite
have used. While it is at least FOREIGN processors, an answer may take up to BUSY_LIMIT seconds, and that is told."""
import os
import threading
import time

from harness import host
from harness.wait import until

LIMIT, BUSY_LIMIT = 1.0, 10.0
FOREIGN = 0.25
LEASED = range(1_900_000_000, 1_900_000_000 + (1 << 28))
TICK = os.sysconf("SC_CLK_TCK")


def busy_seconds():
    """Processor time of the whole machine, that of a hypervisor below included."""
    user, nice, system, _, _, irq, soft, steal = (int(n) for n in host.read("/proc/stat").split()[1:9])
    return (user + nice + system + irq + soft + steal) / TICK


def our_seconds():
    """Processor time of the suite, the server and everything under the uids it leases, those that ended included."""
    times, parents, ours = {}, {}, {os.getpid()}
    for name in os.listdir("/proc"):
        fields = host.stat_fields(int(name)) if name.isdigit() else None
        if not fields:
            continue
        pid = int(name)
        times[pid] = sum(int(n) for n in fields[11:15]) / TICK
        parents[pid] = int(fields[1])
        try:
            if os.stat(f"/proc/{name}").st_uid in LEASED:
                ours.add(pid)
        except OSError:
            pass
    for pid in times:
        line, at = [], pid
        while at > 1 and at not in ours:
            line.append(at)
            at = parents.get(at, 0)
        if at in ours:
            ours.update(line)
    return sum(times.get(pid, 0) for pid in ours)


class Watch:
    """Threads that look; check() says what they have seen since the last one."""

    def __init__(self, server, bystander):
        self.server, self.bystander = server, bystander
        self.lock = threading.Lock()
        self.answers, self.loads, self.troubles = [], [], []
        self.worst, self.busy_worst, self.excused, self.asked = 0.0, 0.0, 0, 0
        self.paused = True
        self.ended = threading.Event()
        self.idle = threading.Event()
        self.threads = [threading.Thread(target=loop, daemon=True) for loop in (self.ask, self.weigh, self.visit)]
        for thread in self.threads:
            thread.start()

    def pause(self):
        """Around a restart of the server, which answers nobody meanwhile."""
        self.paused = True

    def go_on(self):
        self.paused = False

    def end(self):
        self.ended.set()
        for thread in self.threads:
            thread.join(BUSY_LIMIT + 30)

    def ask(self):
        while not self.ended.wait(0.05):
            if self.paused:
                continue
            began = time.monotonic()
            try:
                answer = self.server.api.call("GET", "/v1/sandboxes?limit=5", timeout=30)
                trouble = "" if answer.status == 200 else f"the API answered {answer!r}"
            except OSError as error:
                trouble = f"the API did not answer: {error!r}"
            took = time.monotonic() - began
            with self.lock:
                if self.paused:
                    continue
                self.answers.append((began, took))
                if trouble:
                    self.troubles.append(trouble)

    def weigh(self):
        last = (time.monotonic(), busy_seconds(), our_seconds())
        while not self.ended.wait(0.5):
            now = (time.monotonic(), busy_seconds(), our_seconds())
            span = now[0] - last[0]
            foreign = (now[1] - last[1] - max(0.0, now[2] - last[2])) / span
            with self.lock:
                self.loads.append((last[0], now[0], foreign))
                del self.loads[:-400]
            last = now

    def visit(self):
        while not self.ended.wait(1.0):
            if not self.paused:
                self.look_after()

    def look_after(self):
        try:
            trouble = self.bystander.trouble()
        except Exception as error:  # whatever went wrong with it is what is looked for
            trouble = f"the bystander does not answer: {error!r}"
        with self.lock:
            if trouble and not self.paused:
                self.troubles.append(trouble)

    def foreign(self, begin, end):
        """Processors that others kept busy around that time."""
        near = [load for first, last, load in self.loads if last >= begin - 1 and first <= end + 1]
        return max(near, default=0.0)

    def check(self):
        """What went wrong since the last call, as text; empty when nothing did."""
        self.look_after()
        time.sleep(0 if self.loads else 0.6)
        with self.lock:
            answers, troubles = self.answers, self.troubles
            self.answers, self.troubles = [], []
        for began, took in answers:
            self.asked += 1
            foreign = self.foreign(began, began + took)
            if took <= LIMIT:
                self.worst = max(self.worst, took)
            elif foreign >= FOREIGN and took <= BUSY_LIMIT:
                self.excused += 1
                self.busy_worst = max(self.busy_worst, took)
            else:
                self.worst = max(self.worst, took)
                troubles.append(f"the API took {took:.2f} s (others kept {foreign:.2f} processors busy)")
        return "; ".join(dict.fromkeys(troubles))

    def summary(self):
        text = f"the API was asked {self.asked} times, the slowest answer took {self.worst * 1000:.0f} ms"
        if self.excused:
            text += (f"; {self.excused} took longer than {LIMIT:g} s (at most {self.busy_worst:.1f} s) while other work"
                     " kept the machine busy")
        return text


class Bystander:
    """A sandbox that nobody attacks on purpose: a file on its disk, one in its memory, a process."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        sandbox.sh("echo disk > /root/canary; mkdir -p /dev/shm; echo memory > /dev/shm/canary")
        sandbox.session(["sh", "-c", "echo $$ > /run/canary; while :; do sleep 600; done"], start="now")
        until(lambda: sandbox.exec(["test", "-s", "/run/canary"]).code == 0, "the bystander's process")
        self.expected = self.look()

    def look(self):
        done = self.sandbox.exec("cat /root/canary /dev/shm/canary /run/canary /proc/sys/kernel/random/boot_id; "
                                 "cat /proc/$(cat /run/canary)/cmdline | tr '\\0' ' '", timeout=60)
        return (done.code, done.out)

    def trouble(self):
        seen = self.look()
        return "" if seen == self.expected else f"the bystander has changed: {seen} instead of {self.expected}"
