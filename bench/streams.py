"""Readers of a command's output: many at once, the first byte, thousands that idle."""
import functools
import os
import resource
import subprocess
import time

import client
from harness import host, server
from harness.api import Sandbox
from harness.ws import WebSocket, attach_path
from table import AGENT, Figure, against, in_turns, median, milliseconds

READERS = 8
BYTES = 512 << 20
ROUNDS = 5
IDLE_SANDBOXES = 20
IDLE_EACH = 100
PROTOCOL = "space.attach.v1"


def attach(api, session, timeout=600):
    return WebSocket(api.host, api.port, attach_path(session, 0, 0, session["attach"]["token"]), PROTOCOL,
                     timeout=timeout)


class Checked:
    """A reader that is a program of its own and checks every byte of bench/flood."""

    def __init__(self, api, session):
        self.ws = attach(api, session)
        self.ws.sock.setblocking(True)
        fd = self.ws.sock.fileno()
        self.reader = subprocess.Popen([os.path.join(server.bin_dir, "bench", "attach_reader"), str(fd), str(BYTES)],
                                       pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.reader.stdin.write(self.ws.buffer)
        self.reader.stdin.close()

    def finish(self):
        said = self.reader.stdout.read().decode().strip()
        code = self.reader.wait()
        self.ws.abort()
        if code != 0:
            raise AssertionError(f"a reader saw {said}")


def cpu_seconds(process):
    fields = host.read(f"/proc/{process.pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def flood(bench, sb, count):
    """(wall seconds, CPU seconds of the daemon) until each reader has every byte."""
    answer = sb.session(f"read go; exec flood {BYTES}", stdin=True, start="now")
    process = answer["session"]["process_id"]
    daemon = bench.server.daemon()
    before = cpu_seconds(daemon)
    all_of_them = [Checked(bench.api, answer) for _ in range(count)]
    begin = time.perf_counter()
    bench.api.ok("POST", f"{sb.path}/processes/{process}/stdin?close=1", b"go\n")
    for one in all_of_them:
        one.finish()
    return time.perf_counter() - begin, cpu_seconds(daemon) - before


def readers(bench):
    sb, walls, cpus = bench.make(), {1: [], READERS: []}, {1: [], READERS: []}
    with open(os.path.join(server.bin_dir, "bench", "flood"), "rb") as program:
        sb.put("/usr/bin/flood", program.read(), mode="0755")
    for _ in range(ROUNDS):
        for n in (1, READERS):
            wall, cpu = flood(bench, sb, n)
            walls[n].append(wall)
            cpus[n].append(cpu)
    sb.delete()
    one, many = median(walls[1]), median(walls[READERS])
    yield Figure(f"{READERS} readers at once, time", "s", one, many, [("<= 2 x one", many <= 2 * one),
                                                                    ("same bytes", True)], ROUNDS)
    yield Figure("  the daemon's CPU time", "s", median(cpus[1]), median(cpus[READERS]), [], ROUNDS)


def first_byte(bench):
    """From the attach, which starts the command, to the first byte; by hand from the request to the end of `true`, and
    of SPACE's agent by hand to the same first byte."""
    runs = max(bench.runs, 60)
    vms = bench.bare_vms()
    sb = bench.make()
    times = {name: [] for name in (*vms, "space")}

    def run(session):
        ws = attach(bench.api, session, 60)
        kind = None
        while kind != 2:  # past "started"
            kind, data = ws.receive()
        assert data[9:] == b"x\n", data
        return ws

    for n in range(20 + runs):
        session, took, opened = sb.session(["echo", "x"]), {}, []
        for name, vm in vms.items():
            took[name] = milliseconds(vm.first_byte if name == AGENT else vm.command)
        vms[AGENT].finish()
        took["space"] = milliseconds(lambda: opened.append(run(session)))
        opened[0].abort()
        for name, ms in took.items():
            times[name] += [ms] if n >= 20 else []
    sb.delete()
    for vm in vms.values():
        vm.close()
    yield from against("attach -> first byte of output", times, lambda o, b: [("<= + 3 ms", o <= b + 3)])


def idle(bench):
    """Sessions that say nothing: what each costs, and what they cost a new command."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    quiet = bench.another_server()
    made = [bench.make() for _ in range(IDLE_SANDBOXES)]
    sides = {"quiet": Sandbox.create(quiet.api, {"template": "busybox"}), "space": made[-1]}
    try:
        for sb in made:
            sb.sh("true")
        for one in (quiet, bench.server):
            bench.warm(one.api)
        before, attached = bench.rss(), []
        for sb in made:
            for _ in range(IDLE_EACH):
                attached.append(attach(bench.api, sb.session(["cat"], stdin=True)))
                attached[-1].receive()  # "started"
        each = (bench.rss() - before) / len(attached) / 1024
        conns = {name: client.Client(sb.api) for name, sb in sides.items()}
        times = in_turns({name: functools.partial(conns[name].exec, sb.path) for name, sb in sides.items()}, max(bench.runs, 100),
                         warm_up=20)
        for ws in attached:
            ws.abort()
        for conn in conns.values():
            conn.close()
    finally:
        for sb in made:
            sb.delete(wait=False)
        quiet.close()
    u, n = median(times["quiet"]), median(times["space"])
    yield Figure("idle attached sessions, each", "KiB", None, max(each, 0), [("<= 32 KiB", each <= 32)],
                 IDLE_SANDBOXES * IDLE_EACH)
    yield Figure("exec meanwhile, vs. unloaded", "ms", u, n, [("<= 1.1 x", n <= 1.1 * u)], len(times["space"]))
