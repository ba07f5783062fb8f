"""A machine whose power can be cut, and its disk, which loses what was not flushed.

The machine is outer.py's, with a disk for the state. Killing its QEMU loses what its kernel had not written yet. A disk loses more: what
it has taken and not been told to flush. QEMU keeps a log of all writes and flushes of that disk (blklogwrites); after a cut what was
written up to the last flush is put onto the disk, and of what came later nothing, all, or some, as a disk might. Each boot begins with that.
"""
import contextlib
import os
import queue
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading

import outer

MIB = 1 << 20
STATE_MIB, LOG_GIB = 6144, 64  # both sparse
SECTOR = 512
MAGIC, HEADER, ENTRY = 0x6A736677736872, struct.Struct("<QQQI"), struct.Struct("<QQQQ")
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8

# Runs in the machine as its command: the disk, a way in for the host, then what the host says, a line each.
INSIDE = r"""
set -u
export PYTHONDONTWRITEBYTECODE=1
modprobe -a virtio_blk virtio_net
for n in $(seq 600); do [ -b /dev/vda ] && ls /sys/class/net | grep -qv '^lo$' && break; sleep 0.1; done
mkdir -p /state && mount /dev/vda /state || exit 1
dev=$(ls /sys/class/net | grep -v '^lo$' | head -n 1)
ip link set lo up; ip addr add 10.0.2.15/24 dev "$dev"; ip link set "$dev" up
echo 1 >"/proc/sys/net/ipv4/conf/$dev/route_localnet"
nft -f - <<NFT || exit 1
table ip power { chain in { type nat hook prerouting priority -100; tcp dport 7780 dnat to 127.0.0.1:7780; }; }
NFT
exec 3</dev/ttyS1
echo "power: up"
while IFS= read -r line <&3; do bash -c "$line" 3<&-; echo "power: done $?"; done
"""

START = (
    "setsid build/src/spaced/spaced --dev --state-dir /state/s --engine {engine} --warm-per-golden 0 --default-memory-mib 128 "
    "--default-disk-mib 64 --pool-size-mib 3072 </dev/null >/run/spaced.out 2> >(exec cat >/dev/ttyS0) & "
    "for n in $(seq 6000); do grep -q '^spaced: ready' /run/spaced.out && break; kill -0 $! || exit 1; sleep 0.1; done; "
    "echo \"$(cat /state/s/dev.key)\"")

# What is there of sandboxes and snapshots, and what they take of the machine: a word and a name a line.
LOOK = (
    "for d in sandboxes snapshots trash; do ls -A /state/s/pool/$d 2>/dev/null | sed \"s/^/$d /\"; done; "
    "ls -A /state/s/privd/sandboxes 2>/dev/null | sed 's/^/record /; s/[.]json$//'; "
    "find /sys/fs/cgroup -type d -name 'sb_*' | sed 's/^/cgroup /'; "
    "grep -ls /state/s /sys/block/loop*/loop/backing_file | sed 's/^/loop /'; "
    "grep -o ' /state/s[^ ]*' /proc/self/mountinfo | sed 's/^/mount/'; "
    "for p in /proc/[0-9]*; do case $(readlink $p/exe) in *qemu-system*|*firecracker*) echo \"vmm ${p#/proc/}\";; esac; done; "
    "true")


class Failed(AssertionError):
    """Something that was promised is not so."""


# --- the disk ---
def entries(log):
    """(where in the log the data is, sector, sectors, flags) of each entry, up to the first that is not there."""
    magic, version, _, sector = HEADER.unpack(os.pread(log, HEADER.size, 0))
    if magic != MAGIC or version != 1 or sector != SECTOR:
        raise Failed(f"the log of the disk is none: {magic:x} {version} {sector}")
    at = SECTOR
    while True:
        head = os.pread(log, ENTRY.size, at)
        if len(head) < ENTRY.size:
            return
        to, count, flags, length = ENTRY.unpack(head)
        if not (to or count or flags or length):
            return
        yield at + SECTOR, to, count, flags
        at += SECTOR
        if not flags & (DISCARD | MARK):
            at += count * SECTOR


def replay(log_path, disk_path, keep, rng):
    """Puts onto the disk what it has for certain, and of the rest what `keep` says: none, all or some. (for certain, rest, kept).

    None when the log has a hole: several writes were on their way into it when the machine died.
    """
    log, disk = os.open(log_path, os.O_RDONLY), os.open(disk_path, os.O_WRONLY)
    try:
        found = list(entries(log)) if os.fstat(log).st_size else []
        if found and len(found) < HEADER.unpack(os.pread(log, HEADER.size, 0))[2]:
            return None
        flushes = [n for n, entry in enumerate(found) if entry[3] & FLUSH]
        certain = flushes[-1] + 1 if flushes else 0
        kept = 0
        for n, (data, to, count, flags) in enumerate(found):
            late = n >= certain and not flags & FUA
            if late and (keep == "none" or keep == "some" and rng.random() < 0.5):
                continue
            kept += n >= certain
            if flags & DISCARD:
                raise Failed("the disk was told to discard, which it does not offer")
            for done in range(0, count * SECTOR, MIB):
                size = min(MIB, count * SECTOR - done)
                os.pwrite(disk, os.pread(log, size, data + done).ljust(size, b"\0"), to * SECTOR + done)
        return certain, len(found) - certain, kept
    finally:
        os.close(log)
        os.close(disk)


class Disk:
    """The state's disk over all boots: .path is what it has, .live what the machine that runs writes to."""

    def __init__(self, work):
        self.path, self.live, self.log = (os.path.join(work, name) for name in ("state", "state.live", "state.log"))
        with open(self.path, "wb") as out:
            out.truncate(STATE_MIB * MIB)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=0", self.path], check=True)

    def ready(self):
        """For the next boot; the arguments."""
        subprocess.run(["cp", "--sparse=always", self.path, self.live], check=True)
        with open(self.log, "wb") as out:
            out.truncate(LOG_GIB << 30)
        nodes = []
        for name, path in (("live", self.live), ("log", self.log)):
            nodes += ["-blockdev", f"driver=file,filename={path},node-name={name}-file,cache.no-flush=on",
                      "-blockdev", f"driver=raw,file={name}-file,node-name={name},cache.no-flush=on"]
        return [*nodes, "-blockdev", f"driver=blklogwrites,file=live,log=log,log-sector-size={SECTOR},node-name=state",
                "-device", "virtio-blk-pci,drive=state,discard=off,write-zeroes=off"]

    def cut(self, keep, rng):
        """What the disk has now, in words."""
        done = replay(self.log, self.path, keep, rng)
        os.unlink(self.log)
        if not done:
            os.rename(self.live, self.path)
            return "the log has a hole: everything written was kept"
        return "{} writes were flushed, {} not, {} of them kept".format(*done)


# --- the machine ---
def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Machine:
    """One boot of it after the other."""

    def __init__(self, build, engine, binary, limit):
        self.work = tempfile.mkdtemp(prefix="run-", dir=outer.CACHE)
        self.engine, self.limit = engine, limit
        self.process, self.boots, self.said = None, 0, []
        self.image = outer.build()
        with tempfile.TemporaryDirectory(prefix="power-", dir="/var/tmp") as tree:
            outer.stage_build(tree, build, binary)
            with open(os.path.join(tree, ".outer-command"), "w", encoding="utf-8") as out:
                out.write(INSIDE)
            outer.make_ext4(tree, os.path.join(self.work, "tree"), "4G")
        self.disk = Disk(self.work)

    def boot(self):
        """Starts it; returns the address and key of the server in it."""
        self.boots += 1
        port = free_port()
        more = [*self.disk.ready(), "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:7780",
                "-device", "virtio-net-pci,netdev=net,romfile="]
        command = outer.qemu(self.image, os.path.join(self.work, "tree"), self.work, False, more, keep_tree=True)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, args=(self.process, self.lines), daemon=True).start()
        self.until("power: up")
        key = self.run(START.format(engine=self.engine))[-1]
        return port, key

    @staticmethod
    def read(process, lines):
        for line in process.stdout:
            lines.put(line.decode(errors="replace").rstrip("\r\n"))
        lines.put(None)

    def until(self, prefix):
        """The lines before the one that begins so, and that one."""
        before = []
        while True:
            try:
                line = self.lines.get(timeout=self.limit)
            except queue.Empty:
                raise Failed(f"the machine has not said {prefix!r} in {self.limit} s\n{self.console()}") from None
            if line is None:
                raise Failed(f"the machine ended by itself\n{before}\n{self.console()}")
            before.append(line)
            if line.startswith(prefix):
                return before

    def run(self, command, check=True):
        """Runs a line of shell in it; its lines."""
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()
        lines = self.until("power: done ")
        if check and lines[-1] != "power: done 0":
            raise Failed(f"{command}: {lines}\n{self.console()}")
        return lines[:-1]

    def console(self, size=6000):
        with contextlib.suppress(OSError), open(os.path.join(self.work, "console"), "rb") as console:
            return console.read()[-size:].decode(errors="replace")
        return ""

    def look(self):
        """{word: [names]} of LOOK."""
        found = {}
        for line in self.run(LOOK):
            word, _, name = line.partition(" ")
            found.setdefault(word, []).append(name)
        return found

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """The power is gone."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)

    def gone(self):
        self.kill()
        if self.process is not None:
            self.process.wait()

    def close(self):
        self.gone()
        shutil.rmtree(self.work, ignore_errors=True)
