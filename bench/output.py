"""A command's output to an attached client, against the port it has to pass.

A command writes into a pipe, and a port takes bytes from whoever reads that pipe. So there are five bare limits: the
port alone (a guest that writes one hot buffer to it), on SPACE's command line and on the plain one; the pipe alone
(read into one hot buffer, nothing leaves the guest); and the least relay from one to the other, by read and write and
by splice.
"""
import os
import subprocess
import time

from harness import server
from harness.ws import WebSocket, attach_path
from table import Figure, median

GIB = 1 << 30
BARE_BYTES = 256 << 20
PLAIN_BYTES = 64 << 20
ROUNDS = 20


class Attached:
    """A sandbox whose command floods, and the client that checks every byte."""

    def __init__(self, bench):
        self.bench, self.api = bench, bench.api
        self.sb = bench.make()
        with open(os.path.join(server.bin_dir, "bench", "flood"), "rb") as program:
            self.sb.put("/usr/bin/flood", program.read(), mode="0755")
        self.before, self.peak = bench.rss(), 0

    def rate(self):
        """MB/s of 1 GiB. Raises when a byte is lost, doubled or changed."""
        session = self.sb.session(["flood", str(GIB)])
        begin = time.perf_counter()
        ws = WebSocket(self.api.host, self.api.port, attach_path(session, 0, 0, session["attach"]["token"]),
                       "space.attach.v1", timeout=600)
        try:
            ws.sock.setblocking(True)
            fd = ws.sock.fileno()
            reader = subprocess.Popen([os.path.join(server.bin_dir, "bench", "attach_reader"), str(fd), str(GIB)],
                                      pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            reader.stdin.write(ws.buffer)
            reader.stdin.close()
            while self.waits(reader):
                self.peak = max(self.peak, self.bench.rss())
            seconds = time.perf_counter() - begin
            if reader.returncode != 0:
                raise AssertionError(f"the client saw {reader.stdout.read().decode().strip()}")
            reader.stdout.close()
        finally:
            ws.abort()
        return GIB / seconds / 1e6

    @staticmethod
    def waits(reader):
        try:
            reader.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            return True
        return False

    def grown(self):
        return max(self.peak - self.before, 0) / 1048576


class Bare:
    """The bare VMs, by what they measure: (VM, bytes, word)."""

    def __init__(self, bench):
        self.vms, self.sides = [], {}
        vm = self.start(bench.bare_machine())
        self.sides = {"port": (vm, BARE_BYTES, "FLOOD"), "pipe": (vm, BARE_BYTES, "DRAIN"),
                      "relay": (vm, BARE_BYTES, "PIPE"), "splice": (vm, BARE_BYTES, "SPLICE")}
        if bench.bare_machine().emulated:
            self.sides["plain"] = (self.start(bench.bare_machine(plain=True)), PLAIN_BYTES, "FLOOD")

    def start(self, machine):
        self.vms.append(machine.spawn())
        self.vms[-1].restore()
        return self.vms[-1]

    def rate(self, name):
        vm, size, word = self.sides[name]
        return size / vm.flood(size, word) / 1e6

    def close(self):
        for vm in self.vms:
            vm.close()


def measure(bench):
    """Medians of rounds in which each takes its turn: a machine that is busy for a while is so for all."""
    bare = Bare(bench)
    try:
        attached = Attached(bench)
        rates = {name: [] for name in [*bare.sides, "space"]}
        for _ in range(ROUNDS):
            for name in bare.sides:
                rates[name].append(bare.rate(name))
            rates["space"].append(attached.rate())
    finally:
        bare.close()
    attached.sb.delete()
    return {name: median(values) for name, values in rates.items()}, attached.grown()


def figures(bench):
    rates, grown = measure(bench)
    ours = rates["space"]
    bare = rates.get("plain", rates["port"])
    yield Figure("1 GiB of output: the bare port", "MB/s", bare, ours,
                 [(">= 0.8 x", ours >= 0.8 * bare), ("same bytes", True)], ROUNDS)
    if "plain" in rates:
        yield Figure("  the port, SPACE's -cpu", "MB/s", rates["port"], ours, [], ROUNDS)
    yield Figure("  a pipe alone, no port", "MB/s", rates["pipe"], ours, [], ROUNDS)
    yield Figure("  pipe to port, no SPACE", "MB/s", rates["relay"], ours, [], ROUNDS)
    yield Figure("  pipe to port, by splice", "MB/s", rates["splice"], ours, [], ROUNDS)
    yield Figure("  daemon's growth meanwhile", "MiB", None, grown, [("<= 16 MiB", grown <= 16)], 1)
