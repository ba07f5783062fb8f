"""Files over HTTP, against the port that they have to pass, and archives against single files.

The bare limits are both directions of the port alone: a guest that writes one hot buffer to it, and one that reads
from it and keeps nothing. SPACE's side also frames the bytes, checks them, and has them on the sandbox's disk. What the
disk costs, rows without a verdict tell: a bare guest that reads the port into a file, and that file to the port.
"""
import contextlib
import io
import os
import shutil
import tarfile
import time

import bare
from harness import server
from harness.files import query
from table import OWN, PLAIN, Figure, median

GIB = 1 << 30
BLOCK = 1 << 20
BARE_BYTES = 256 << 20
PLAIN_BYTES = 64 << 20
ROUNDS = 5
LOAD = "LOAD"
STORES = {"FILE": "the port into a file, O_DIRECT", "CACHED": "the port into a file"}
SMALL_FILES = 10000
SINGLE_FILES = 500


@contextlib.contextmanager
def guest_with_disk(bench):
    """A bare guest whose disk lies where those of sandboxes do."""
    base = os.path.join(bench.server.state_dir, "pool", "bare")
    os.mkdir(base)
    sb = bench.make()
    try:
        machine = bare.Machine(base, bench.server.vmm(sb.id), bench.server.state_dir,
                               os.path.join(server.bin_dir, "bench", "bare_init"))
        vm = machine.spawn()
        try:
            vm.restore()
            yield vm
        finally:
            vm.close()
    finally:
        sb.delete()
        shutil.rmtree(base)


def store(vm, word, size):
    """MB/s until the guest has size bytes of the port in a file on its disk. FILE: past its page cache; CACHED: not."""
    part = memoryview(bytes(BLOCK))
    vm.port.sendall(f"{word} {size}\n".encode())
    if vm.port.recv(1) != b"G":
        raise RuntimeError("the bare guest does not take bytes")
    begin = time.perf_counter()
    for _ in range(size // BLOCK):
        vm.port.sendall(part)
    vm.expect_exit()
    return size / (time.perf_counter() - begin) / 1e6


class Transfer:
    """One sandbox, one file of 1 GiB there and back, every byte looked at."""

    def __init__(self, bench):
        self.bench, self.api = bench, bench.api
        self.sb = bench.make(resources={"disk_mib": 4096})
        self.block = os.urandom(BLOCK)
        self.before, self.peak = bench.rss(), 0

    def part(self, n):
        return n.to_bytes(8, "big") + self.block[8:]

    def upload(self):
        """MB/s until the file is durable and has its name."""
        conn = self.api.connect(600)
        conn.putrequest("PUT", self.sb.file("/root/big"))
        for name, value in self.api.headers({"Content-Length": str(GIB)}).items():
            conn.putheader(name, value)
        begin = time.perf_counter()
        conn.endheaders()
        for n in range(GIB // BLOCK):
            conn.sock.sendall(self.part(n))
            if n % 64 == 0:
                self.peak = max(self.peak, self.bench.rss())
        response = conn.getresponse()
        answer = response.read()
        seconds = time.perf_counter() - begin
        conn.close()
        if response.status != 200:
            raise AssertionError(f"upload: {response.status} {answer!r}")
        return GIB / seconds / 1e6

    def download(self):
        buffer, tail = bytearray(BLOCK), memoryview(self.block)[8:]
        begin = time.perf_counter()
        conn, response = self.api.stream("GET", self.sb.file("/root/big"), timeout=600)
        for n in range(GIB // BLOCK):
            view, got = memoryview(buffer), 0
            while got < BLOCK:
                count = response.readinto(view[got:])
                if not count:
                    raise AssertionError(f"download: cut in block {n}")
                got += count
            # Comparing views goes byte by byte, and would be slower than what is measured.
            if buffer[:8] != n.to_bytes(8, "big") or not buffer.endswith(tail):
                raise AssertionError(f"download: block {n} is another")
            if n % 64 == 0:
                self.peak = max(self.peak, self.bench.rss())
        seconds = time.perf_counter() - begin
        conn.close()
        return GIB / seconds / 1e6

    def grown(self):
        return max(self.peak - self.before, 0) / 1048576


def files(bench):
    vms = {name: machine.spawn() for name, machine in bench.bare_machines().items()}
    for vm in vms.values():
        vm.restore()
    rates = {}
    transfer = Transfer(bench)
    try:
        with guest_with_disk(bench) as disk:
            for _ in range(ROUNDS):
                for name, vm in vms.items():
                    size = BARE_BYTES if name == OWN else PLAIN_BYTES
                    rates.setdefault(("upload", name), []).append(size / vm.sink(size) / 1e6)
                    rates.setdefault(("download", name), []).append(size / vm.flood(size) / 1e6)
                for word in STORES:
                    rates.setdefault(("upload", word), []).append(store(disk, word, BARE_BYTES))
                rates.setdefault(("download", LOAD), []).append(BARE_BYTES / disk.flood(BARE_BYTES, LOAD) / 1e6)
                rates.setdefault(("upload", "space"), []).append(transfer.upload())
                rates.setdefault(("download", "space"), []).append(transfer.download())
    finally:
        for vm in vms.values():
            vm.close()
    transfer.sb.delete()
    rate = {key: median(values) for key, values in rates.items()}
    for name in ("upload", "download"):
        ours, bare = rate[name, "space"], rate[name, PLAIN if PLAIN in vms else OWN]
        yield Figure(f"{name} of 1 GiB: the bare port", "MB/s", bare, ours,
                     [(">= 0.6 x", ours >= 0.6 * bare), ("same bytes", True)], ROUNDS)
        if PLAIN in vms:
            yield Figure("  the port, SPACE's -cpu", "MB/s", rate[name, OWN], ours, [], ROUNDS)
        for word, what in STORES.items() if name == "upload" else ():
            yield Figure(f"  {what}", "MB/s", rate[name, word], ours, [], ROUNDS)
        if name == "download":
            yield Figure("  a file to the port, O_DIRECT", "MB/s", rate[name, LOAD], ours, [], ROUNDS)
    grown = transfer.grown()
    yield Figure("  daemon's growth meanwhile", "MiB", None, grown, [("<= 16 MiB", grown <= 16)], 1)


def archive(bench):
    sb, data = bench.make(), os.urandom(1024)
    sb.sh("mkdir /root/single /root/many")
    conn = bench.api.connect(120)
    begin = time.perf_counter()
    for n in range(SINGLE_FILES):
        answer = bench.api.call_on(conn, "PUT", sb.file(f"/root/single/f{n}"), data)
        assert answer.status == 200, answer
    single = SINGLE_FILES / (time.perf_counter() - begin)
    conn.close()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for n in range(SMALL_FILES):
            info = tarfile.TarInfo(f"f{n}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    begin = time.perf_counter()
    bench.api.ok("PUT", query(sb, "archive", "/root/many"), out.getvalue(), timeout=600)
    many = SMALL_FILES / (time.perf_counter() - begin)
    count = int(sb.sh("ls /root/many | wc -l", timeout=60))
    begin = time.perf_counter()
    back = bench.api.ok("GET", query(sb, "archive", "/root/many"), timeout=600).body
    out_rate = SMALL_FILES / (time.perf_counter() - begin)
    with tarfile.open(fileobj=io.BytesIO(back)) as tar:
        same = sum(tar.extractfile(info).read() == data for info in tar if info.isreg()) == SMALL_FILES
    sb.delete()
    yield Figure("10,000 files of 1 KiB: single PUTs", "1/s", single, many,
                 [(">= 5 x", many >= 5 * single), ("all there", count == SMALL_FILES and same)], 1)
    yield Figure("  and out again", "1/s", single, out_rate, [], 1)
