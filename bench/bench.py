#!/usr/bin/env python3
"""Measures SPACE against the bare limit of the same machine, in the same run, and prints a table.

    bench.py [--bin BUILD_DIR] [--engine NAME] [--runs N] [--only NAME]...

The bare limit is what a client gets who does the same by hand: its own VMM, restored from its own snapshot, one
command over the agent's port; or libmicrohttpd alone. table.py says which of the bare sides a limit is judged by; the
others stand beside it without a verdict. Needs root. Exit code 0 when every figure is within its limit.
"""
import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "tests", "blackbox")]
sys.dont_write_bytecode = True

from harness import host, server  # noqa: E402
from harness.api import Sandbox  # noqa: E402
from harness.wait import until  # noqa: E402
from table import AGENT, OWN, PLAIN, Failed, Figure, against, in_turns, median, milliseconds, show  # noqa: E402
import agent  # noqa: E402
import bare  # noqa: E402
import client  # noqa: E402
import files  # noqa: E402
import firecracker  # noqa: E402
import jail  # noqa: E402
import life  # noqa: E402
import output  # noqa: E402
import overhead  # noqa: E402
import port  # noqa: E402
import streams  # noqa: E402


NAMES = ("memory", "overhead", "create", "exec", "stream", "readers", "firstbyte", "idle", "port", "files", "archive", "get", "jail",
         "broker", *life.NAMES)
QEMU_ONLY = ("stream", "port", "files", "jail", "broker")  # their bare side is a guest or a start that only QEMU has
CONFIG = {"warm_per_golden": 2, "log_level": "warn"}
PROGRAMS = {"qemu": "qemu-system-", "firecracker": "firecracker"}


class Bench(life.Life):
    def __init__(self, args):
        self.args, self.runs = args, args.runs
        self.server = self.engine = None
        self.bare = {}   # by whether it is plain
        self.agent = None
        self.notes = []  # what is to be said under the table

    # --- fixtures ---
    def start(self):
        print("starting the server and building the busybox template", flush=True)
        self.server = server.Server(config=CONFIG).start()
        self.rest_rss = self.rss()
        self.server.with_busybox()
        self.api = self.server.api
        self.engine = self.check_engine()

    @staticmethod
    def another_server():
        """One that is as this one was at the start, to be closed."""
        made = server.Server(config=CONFIG).start()
        made.with_busybox()
        return made

    def check_engine(self):
        """The engine that runs, which must be the one that was asked for: the server's word, and its process."""
        said, sb = self.api.ok("GET", "/v1/version").json, self.make()
        vmm = self.server.vmm(sb.id)
        if self.args.engine not in ("auto", said["engine"]) or not os.path.basename(vmm.exe).startswith(PROGRAMS[said["engine"]]):
            raise RuntimeError(f"the engine is {said['engine']} ({vmm.exe}), and {self.args.engine} was asked for")
        print(f"engine: {said['engine']} ({said['acceleration']}), {vmm.exe}", flush=True)
        sb.delete()
        return said["engine"]

    def bare_machine(self, plain=False):
        """The bare client's snapshot: the same kernel, machine and memory as a sandbox's, a guest of its own. plain:
        without what SPACE leaves out of the processor and the guest's kernel to make it faster."""
        if plain not in self.bare:
            print(f"making the bare client's own {'plain ' if plain else ''}snapshot", flush=True)
            sb = self.make()
            self.bare[plain] = bare.Machine(self.server.base, self.server.vmm(sb.id), self.server.state_dir,
                                            os.path.join(server.bin_dir, "bench", "bare_init"), plain)
            sb.delete()
        return self.bare[plain]

    def agent_machine(self):
        """SPACE's own guest with its agent, without the daemon."""
        if self.agent is None:
            print("making a snapshot of SPACE's own guest for a client by hand", flush=True)
            sb = self.make()
            files = self.server.base, self.server.vmm(sb.id), self.server.state_dir
            self.agent = firecracker.Machine(*files) if self.engine == "firecracker" else agent.Machine(*files, None)
            sb.delete()
        return self.agent

    def bare_machines(self):
        """The bare limits by name: SPACE's own command line, and, where the processor is emulated, the plain one. The least guest
        answers on a virtio port, which Firecracker has not: there are none."""
        if self.engine == "firecracker":
            return {}
        found = {OWN: self.bare_machine()}
        if found[OWN].emulated:
            found[PLAIN] = self.bare_machine(plain=True)
        return found

    def bare_vms(self):
        """One restored VM of each, and one of SPACE's agent by hand, that has answered once."""
        vms = {name: machine.spawn() for name, machine in self.bare_machines().items()}
        vms[AGENT] = self.agent_machine().spawn()
        for vm in vms.values():
            vm.restore()
            vm.command()
        return vms

    def make(self, **body):
        return Sandbox.create(self.api, {"template": "busybox", **body})

    def rss(self):
        return self.server.daemon().memory()["Rss"]

    def warm(self, api=None):
        """Waits until the pool is full: then both sides start with VMMs that were spawned beforehand."""
        def full():
            text = (api or self.api).ok("GET", "/metrics").body.decode()
            ready, wanted = (re.search(rf"^space_warm_{name} (\d+)", text, re.M)
                             for name in ("ready", "wanted"))
            if not ready or not wanted:
                raise RuntimeError("no pool depth among the metrics")
            return int(ready.group(1)) >= int(wanted.group(1)) > 0

        until(full, "a full warm pool", 60)

    # --- figures ---
    def create(self):
        """Create to the first command's result, against a restore by hand."""
        machines = self.restored_machines()
        times = {name: [] for name in (*machines, "space")}
        for _ in range(self.runs):
            for name, machine in machines.items():
                vm = machine.spawn()
                times[name].append(milliseconds(lambda: (vm.restore(), vm.command())))
                vm.close()
            self.warm()
            conn, path = client.Client(self.api), []

            def run():
                status, answer = conn.call("POST", "/v1/sandboxes", {"template": "busybox"})
                assert status < 300, answer
                path.append(f"/v1/sandboxes/{answer['sandbox']['id']}")
                conn.exec(path[0])

            times["space"].append(milliseconds(run))
            conn.close()
            Sandbox(self.api, path[0].split("/")[-1]).delete()
        yield from against("create -> first result", times, lambda o, b: [("<= 1.3 x", o <= 1.3 * b)])

    def exec(self):
        """A command in a running sandbox, against the same over a bare port."""
        runs = max(self.runs, 100)
        vms = self.bare_vms()
        sb, conn = self.make(), client.Client(self.api)
        sides = {name: vm.command for name, vm in vms.items()}
        times = in_turns({**sides, "space": lambda: conn.exec(sb.path)}, runs, warm_up=20)
        conn.close()
        sb.delete()
        for vm in vms.values():
            vm.close()
        yield from against("exec of true", times, lambda o, b: [("<= 1.3 x", o <= 1.3 * b), ("<= + 3 ms", o <= b + 3)])

    def stream(self):
        """1 GiB of output to an attached client: rate, every byte checked, memory of the daemon."""
        yield from output.figures(self)

    def readers(self):
        """Output to eight clients at once, every byte checked by each, against one client."""
        yield from streams.readers(self)

    def firstbyte(self):
        """The first byte of a command's output, against a command by hand."""
        yield from streams.first_byte(self)

    def idle(self):
        """Two thousand attached sessions that idle: memory, and what a new command notices."""
        yield from streams.idle(self)

    def port(self):
        """HTTP requests to a port of a sandbox: rate and latency, against a bare channel to the same server."""
        yield from port.figures(self)

    def files(self):
        """A file of 1 GiB there and back, against both directions of the bare port."""
        yield from files.files(self)

    def archive(self):
        """10,000 files of 1 KiB by one archive, against single PUTs."""
        yield from files.archive(self)

    def jail(self):
        """What the jail adds to the start of a VMM."""
        yield from jail.jail(self)

    def broker(self):
        """A request to the broker and its answer."""
        yield from jail.broker(self)

    def get(self):
        """GET of a sandbox over keep-alive connections, one core for the server and another for the client."""
        sb = self.make()
        daemon = self.server.daemon()
        document = os.path.join(self.server.base, "document.json")
        with open(document, "w", encoding="utf-8") as out:
            json.dump(sb.get(), out)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        limit = subprocess.Popen(["taskset", "-c", "0", os.path.join(server.bin_dir, "bench", "bare_http"), str(port),
                                  document], stdout=subprocess.PIPE)
        try:
            limit.stdout.readline()
            # The sandbox itself and the warm VMs idle; they are kept off the two cores' account by being paused.
            sb.verb("pause")
            subprocess.run(["taskset", "-acp", "0", str(daemon.pid)], check=True, stdout=subprocess.DEVNULL)
            b, o = [], []
            for _ in range(20):
                b.append(self.wrk(f"http://127.0.0.1:{port}/"))
                o.append(self.wrk(self.server.url + sb.path))
        finally:
            limit.kill()
            limit.wait()
            cores = f"0-{os.cpu_count() - 1}"
            subprocess.run(["taskset", "-acp", cores, str(daemon.pid)], check=False, stdout=subprocess.DEVNULL)
        sb.delete()
        b, o = median(b), median(o)
        yield Figure("GET of a sandbox", "1/s", b, o, [(">= 0.5 x", o >= 0.5 * b)], 20, "each run 2 s, 32 connections")

    def wrk(self, url):
        done = subprocess.run(["taskset", "-c", "1", "wrk", "-t", "1", "-c", "32", "-d", "2s", "-H",
                               f"Authorization: Bearer {self.server.key}", url], capture_output=True, text=True,
                              check=True, timeout=60)
        if "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
            raise AssertionError(done.stdout)
        return float(re.search(r"Requests/sec:\s+([0-9.]+)", done.stdout).group(1))

    def overhead(self):
        """Memory of a VMM beyond its guest's."""
        yield from overhead.figures(self)

    def memory(self):
        """Memory of the daemon and of idle sandboxes; forty at once, all answering."""
        yield Figure("daemon at rest", "MiB", None, self.rest_rss / 1048576, [("<= 25 MiB", self.rest_rss <= 25 << 20)],
                     1)
        count = self.args.sandboxes
        available = int(re.search(r"MemAvailable:\s+(\d+)", host.read("/proc/meminfo")).group(1)) // 1024
        if available < 22 * 1024 * count // 40:
            count = max(4, available * 40 // (22 * 1024))
        self.warm()
        before = self.rss()
        begin = time.perf_counter()
        made = [Sandbox.create(self.api, {"template": "busybox"}, wait=False) for _ in range(count)]
        for sb in made:
            self.api.wait_operation(sb.create_operation, 600)
        seconds = time.perf_counter() - begin
        answered = 0
        for n, sb in enumerate(made):
            answered += sb.exec(["echo", str(n)], timeout=120).out == f"{n}\n".encode()
        self.warm()
        each = (self.rss() - before) / count / 1024
        sizes = [self.server.vmm(sb.id).memory()["Pss"] / 1048576 for sb in made]
        for sb in made:
            sb.delete(wait=False)
        yield Figure("sandboxes at once", "", None, count, [(f"all {count} answer", answered == count)], 1,
                     f"created in {seconds:.1f} s")
        yield Figure("daemon, each idle sandbox", "KiB", None, max(each, 0), [("<= 200 KiB", each <= 200)], count)
        yield Figure("PSS of an idle sandbox", "MiB", None, median(sizes), [("<= 48 MiB", median(sizes) <= 48)], count)

    # --- all of it ---
    def run(self):
        figures = []
        for name in NAMES:
            if self.args.only and name not in self.args.only:
                continue
            if self.engine == "firecracker" and name in QEMU_ONLY:
                self.notes.append(f"{name}: not measured: the bare side is QEMU's")
                continue
            print(f"measuring: {name} - {getattr(self, name).__doc__.splitlines()[0]}", flush=True)
            before = len(figures)
            try:
                figures += getattr(self, name)()
            except Exception as error:  # noqa: B902 - one figure's trouble leaves the others
                import traceback
                traceback.print_exc()
                figures.append(Failed(name, error))
            for figure in figures[before:]:  # of a run that is ended early, something remains
                print("    " + "  ".join(cell for cell in figure.row() if cell), flush=True)
        return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build")
    parser.add_argument("--engine", default="auto", choices=("auto", *PROGRAMS), help="the server's engine (default auto)")
    parser.add_argument("--runs", type=int, default=20, help="runs of which the median is taken (default 20)")
    parser.add_argument("--sandboxes", type=int, default=40, help="how many at once (default 40)")
    parser.add_argument("--only", action="append", default=[], choices=NAMES, help="one of: " + ", ".join(NAMES))
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench.py: needs root: run `sudo make bench`")
    server.bin_dir = os.path.abspath(args.bin)
    server.default_engine = args.engine
    bench = Bench(args)
    bench.start()
    try:
        figures = bench.run()
    finally:
        bench.server.close()
    print()
    show(figures)
    for note in bench.notes:
        print(f"\n{note}")
    judged = [figure for figure in figures if figure.limits]
    good = sum(figure.passed for figure in judged)
    print(f"\n{good} figures within their limits, {len(judged) - good} not")
    return 0 if judged and good == len(judged) else 1


if __name__ == "__main__":
    sys.exit(main())
