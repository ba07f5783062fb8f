"""HTTP to a port of a sandbox, against a bare channel to the same server.

The tiny server (bench/tiny_http.c) and the client (bench/http_load.c) are the same on both sides. A port is a socket of
the guest, so the bare channel is the least that reaches one: a guest whose init passes bytes between the raw virtio port
and a socket. Beside it: the server on the virtio port itself, without any socket; and the socket without the virtio port.
"""
import os
import subprocess

from harness import server
from harness.wait import until
from table import OWN, PLAIN, Figure, median

ROUNDS = 10
PORT = 8080
AT_ONCE = 16
COUNTS = {1: 1000, AT_ONCE: 4000}
PATH = "/200"  # so many bytes of an answer
PARTS = {"port": "the virtio port, no socket", "socket": "the socket, no virtio port"}


def load(target, at_once, request):
    """(requests a second, p50 in ms, p99 in ms). Raises when an answer is not the right one."""
    done = subprocess.run([os.path.join(server.bin_dir, "bench", "http_load"), target, str(COUNTS[at_once]),
                           str(at_once)], input=request.encode(), capture_output=True, timeout=300, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode().strip())
    return tuple(float(word) for word in done.stdout.split())


class Bare:
    """A bare guest that has turned its virtio port into a channel to the server."""

    def __init__(self, machine, word):
        self.vm = machine.spawn()
        self.vm.restore()
        self.vm.port.sendall(f"{word}\n".encode())
        self.vm.port.close()  # the client connects by itself
        self.load(1)  # waits for it to answer

    def load(self, at_once):
        return load(f"unix:{self.vm.folder}/agent", at_once, f"GET {PATH} HTTP/1.1\r\nHost: bare\r\n\r\n")

    def close(self):
        self.vm.close()


class Socket:
    """The same server behind its socket, asked from within the guest."""

    def __init__(self, machine):
        self.vm = machine.spawn()
        self.vm.restore()

    def load(self, at_once):
        return (COUNTS[1] / self.vm.loop(COUNTS[1]) if at_once == 1 else 0, 0, 0)

    def close(self):
        self.vm.close()


class Space:
    """The server in a sandbox, through SPACE."""

    def __init__(self, bench):
        self.api = bench.api
        self.sb = bench.make()
        with open(os.path.join(server.bin_dir, "bench", "port_server"), "rb") as program:
            self.sb.put("/usr/bin/port_server", program.read(), mode="0755")
        self.sb.session(["port_server", str(PORT)], start="now")
        self.path = f"{self.sb.path}/ports/{PORT}{PATH}"
        until(lambda: self.api.call("GET", self.path).status == 200, "the server in the sandbox", 30)

    def load(self, at_once):
        return load(f"{self.api.host}:{self.api.port}", at_once,
                    f"GET {self.path} HTTP/1.1\r\nHost: space\r\nAuthorization: Bearer {self.api.key}\r\n\r\n")

    def close(self):
        self.sb.delete()


def measure(bench):
    """Medians by side and number at once, of rounds in which each takes its turn."""
    sides, found = {}, {}
    try:
        machine = bench.bare_machine()
        for name, each in bench.bare_machines().items():
            sides[name] = Bare(each, "RELAY")
        sides["port"] = Bare(machine, "HTTP")
        sides["socket"] = Socket(machine)
        sides["space"] = Space(bench)
        for _ in range(ROUNDS):
            for at_once in COUNTS:
                for name, side in sides.items():
                    found.setdefault((name, at_once), []).append(side.load(at_once))
    finally:
        for side in sides.values():
            side.close()
    return {key: [median(column) for column in zip(*rows)] for key, rows in found.items()}


def figures(bench):
    found = measure(bench)
    channels = [name for name in (OWN, PLAIN) if (name, 1) in found]

    def lines(name, unit, at_once, column, limit):
        """One for each bare channel, which are judged, and one for each of the parts of a channel."""
        ours = found["space", at_once][column]
        for side in channels:
            bare = found[side, at_once][column]
            yield Figure(name if side == OWN else f"  {side}", unit, bare, ours, [limit(bare, ours)], ROUNDS)
        for side, text in PARTS.items():
            if found.get((side, at_once), (0, 0, 0))[column]:
                yield Figure(f"  {text}", unit, found[side, at_once][column], ours, [], ROUNDS)

    for at_once, text in ((1, "one at a time"), (AT_ONCE, f"{AT_ONCE} at once")):
        yield from lines(f"HTTP to a port, {text}", "1/s", at_once, 0, lambda b, o: (">= 0.5 x", o >= 0.5 * b))
    yield from lines("latency through a port, p50", "ms", 1, 1, lambda b, o: ("<= + 1 ms", o <= b + 1))
    yield from lines("latency through a port, p99", "ms", 1, 2, lambda b, o: ("<= + 5 ms", o <= b + 5))
