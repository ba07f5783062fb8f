"""A server whose virtual machine monitor can be changed for the inmate (inmate.c), and what the inmate is told."""
import atexit
import ctypes
import os
import shutil
import socket
import subprocess

from harness import host, server
from harness.api import Sandbox
from harness.wait import until

MEMORY_MIB, OVERHEAD_MIB, THREADS = 128, 192, 128  # docs/design/privilege.md: The jail of a VMM
LIBC = ctypes.CDLL(None, use_errno=True)
KEYCTL, ADD_KEY, JOIN_SESSION, SESSION_KEYRING = 250, 248, 1, -3


CONTENT = "what only the host has"


class Bait:
    """Things of the host that an attacker would like to reach, each of them really there."""

    def __init__(self, folder):
        self.folder = folder
        self.memory = ctypes.create_string_buffer(b"bait", 4096)
        self.file = os.path.join(folder, "host-canary")
        self.write(self.file, CONTENT)
        self.prey = os.path.join(folder, "jail", "prey")
        self.write(self.prey, "untouched" * 500)
        self.socket_path = os.path.join(folder, "host.sock")
        self.name = f"space-escape-{os.getpid()}"
        self.listeners = [self.listen(socket.AF_UNIX, self.socket_path), self.listen(socket.AF_UNIX, "\0" + self.name),
                          self.listen(socket.AF_INET, ("0.0.0.0", 0))]
        os.chmod(self.socket_path, 0o777)
        self.port = self.listeners[2].getsockname()[1]
        self.vsock_port = 7000 + os.getpid() % 50000
        try:
            self.listeners.append(self.listen(socket.AF_VSOCK, (socket.VMADDR_CID_ANY, self.vsock_port)))
        except OSError:
            pass  # a host without vsock
        self.shm_key = 0x5ACE0000 + os.getpid() % 65536
        self.shm = LIBC.shmget(self.shm_key, 4096, 0o1666)
        self.sem = LIBC.semget(self.shm_key, 1, 0o1666)
        self.posix = f"/{self.name}"
        self.write(f"/dev/shm{self.posix}", CONTENT, 0o666)
        self.queue = LIBC.mq_open(self.posix.encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
        # As a login does: a keyring for the session, which all that it starts inherits.
        LIBC.syscall(KEYCTL, JOIN_SESSION, None)
        self.key = LIBC.syscall(ADD_KEY, b"user", b"space-escape-key", b"secret", 6, SESSION_KEYRING)
        for what in ("shm", "sem", "queue", "key"):
            if getattr(self, what) < 0:
                raise RuntimeError(f"the bait {what} cannot be laid out")
        atexit.register(self.take_in)

    @staticmethod
    def write(path, text, mode=0o644):
        with open(path, "w", encoding="ascii") as out:
            out.write(text)
        os.chmod(path, mode)

    @staticmethod
    def listen(family, address):
        one = socket.socket(family, socket.SOCK_STREAM)
        one.bind(address)
        one.listen(64)
        return one

    @staticmethod
    def host_address():
        """An address of this machine that others reach it under."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))
                return probe.getsockname()[0]
            except OSError:
                return "127.0.0.1"

    def facts(self):
        return {"host_file": self.file, "host_socket": self.socket_path, "abstract": self.name, "prey": self.prey,
                "host_port": self.port, "host_address": self.host_address(), "vsock_port": self.vsock_port,
                "shm_key": self.shm_key, "shm_id": self.shm, "sem_key": self.shm_key, "mq_name": self.posix,
                "posix_shm": self.posix, "key": self.key, "host_pid": os.getpid(),
                "mapped_at": ctypes.addressof(self.memory)}

    def trouble(self):
        """What of it was changed."""
        seen = (host.read(self.file), host.read(self.prey), host.read(f"/dev/shm{self.posix}"), self.memory.value)
        return "" if seen == (CONTENT, "untouched" * 500, CONTENT, b"bait") else f"the bait was changed: {seen}"

    def take_in(self):
        """Removes what would stay on the host; once, also when a run ends early."""
        atexit.unregister(self.take_in)
        for one in self.listeners:
            one.close()
        LIBC.shmctl(self.shm, 0, None)
        LIBC.semctl(self.sem, 0, 0)
        LIBC.mq_unlink(self.posix.encode())
        os.unlink(f"/dev/shm{self.posix}")


class Prison(server.Server):
    """The server of the suite. Its programs are the real ones; only where the broker looks for QEMU is told apart."""

    def __init__(self, engine=None):
        super().__init__(config={"warm_per_golden": 0, "default_memory_mib": MEMORY_MIB}, engine=engine)
        self.tree = os.path.join(self.base, "programs", "src")
        self.jail = os.path.join(self.base, "jail")
        self.inmate = os.path.join(self.jail, "bin", "qemu-system-x86_64")
        os.makedirs(os.path.join(self.jail, "bin"))
        os.makedirs(os.path.join(self.tree, "spaced"))
        shutil.copy2(server.program("spaced"), os.path.join(self.tree, "spaced", "spaced"))
        shutil.copy2(self.built("inmate"), self.inmate)
        for name in ("agent", "cli"):
            os.symlink(os.path.join(server.bin_dir, "src", name), os.path.join(self.tree, name))
        self.bait = Bait(self.base)
        self.use_inmate(False)

    @staticmethod
    def built(name):
        path = os.path.join(server.bin_dir, "tests", "escape", name)
        if not os.access(path, os.X_OK):
            raise RuntimeError(f"{path} is missing: build first (make)")
        return path

    def command(self):
        return [os.path.join(self.tree, "spaced", "spaced"), *super().command()[1:]]

    def use_inmate(self, inmate):
        """Which VMM the broker starts from its next start on."""
        os.makedirs(os.path.join(self.tree, "broker"), exist_ok=True)
        path = os.path.join(self.tree, "broker", "space-privd")
        real = os.path.join(server.bin_dir, "src", "broker", "space-privd")
        option = f" --qemu {self.inmate}" if inmate else ""
        with open(path, "w", encoding="ascii") as out:
            out.write(f'#!/bin/sh\nexec {real} "$@"{option}\n')
        os.chmod(path, 0o755)

    def tell(self, facts):
        """Writes the inmate's facts; read at its start."""
        path = os.path.join(self.jail, "facts")
        with open(path + ".new", "w", encoding="ascii") as out:
            out.write("".join(f"{name}={value}\n" for name, value in facts.items()))
        os.rename(path + ".new", path)

    def facts(self, victim):
        """Everything about the host that a case wants to know; victim: a sandbox with a VMM of its own."""
        pool = os.path.join(self.state_dir, "pool")
        folder = os.path.join(pool, "sandboxes", victim.id)
        vmm = self.vmm(victim.id)
        uid = vmm.status()["Uid"].split()[0]
        version = subprocess.run(["qemu-system-x86_64", "--version"], check=True, capture_output=True, text=True)
        return {**self.bait.facts(), "state_dir": self.state_dir, "pool_dir": pool, "prefix": self.jail,
                "dev_key": os.path.join(self.state_dir, "dev.key"), "database": os.path.join(self.state_dir, "spaced"),
                "victim_disk": f"{folder}/disk.raw", "victim_mem": f"{folder}/mem",
                "victim_agent": f"{folder}/run/agent.sock", "victim_qmp": f"{folder}/run/qmp.sock",
                # Its own place in the pool has another name, but the same parent: that one is looked for.
                "own_dir": os.path.dirname(folder), "own_log": f"{folder}/run",
                "spaced_pid": self.daemon().pid, "broker_pid": self.broker().pid, "victim_pid": vmm.pid,
                "spaced_uid": self.daemon().status()["Uid"].split()[0], "victim_uid": uid, "api_port": self.port,
                "processes_max": THREADS + 1, "memory_limit": (MEMORY_MIB + OVERHEAD_MIB) << 20,
                "qemu_version": version.stdout.split("version ")[1].split()[0],
                "kvm": int(victim.get()["acceleration"] == "kvm")}

    def remains(self, sandbox_id, uid=None):
        """What is left of a deleted sandbox on the host."""
        pool = os.path.join(self.state_dir, "pool", "sandboxes", sandbox_id)
        left = [repr(p) for p in host.with_argument(sandbox_id)]
        left += [path for path in host.cgroups(sandbox_id)]
        left += [pool] if os.path.exists(pool) else []
        left += [path for path in host.mounts(self.state_dir) if sandbox_id in path]
        if uid:
            left += [f"{p!r} with uid {uid}" for p in host.processes() if p.status().get("Uid", "").split()[:1] == [uid]
                     and host.state(p.pid) not in ("Z", "X")]
        return left

    def remove(self, sandbox):
        """Deletes a sandbox; raises when something of it stays."""
        vmm = self.vmm(sandbox.id)
        uid = vmm.status().get("Uid", "").split()[0] if vmm else None
        sandbox.delete()
        until(lambda: not self.remains(sandbox.id, uid), f"nothing is left of {sandbox.id}: "
              f"{self.remains(sandbox.id, uid)}", 10)

    def close(self):
        self.bait.take_in()
        super().close()


class Cell:
    """A sandbox whose VMM is the inmate, and a connection to it."""

    def __init__(self, prison, facts):
        prison.tell(facts)
        self.prison = prison
        self.sandbox = Sandbox.create(prison.api, {"template": "busybox"})
        self.conn = None
        self.connect()

    def connect(self):
        self.conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.conn.settimeout(60)
        folder = os.open(os.path.join(self.prison.state_dir, "pool", "sandboxes", self.sandbox.id, "run"), os.O_PATH)
        try:
            self.conn.connect(f"/proc/self/fd/{folder}/qmp.sock")
        finally:
            os.close(folder)
        self.lines = self.conn.makefile("rb")
        self.lines.readline()  # the greeting

    def ask(self, request):
        """Returns (word, text) of the answer, or None when the VMM has ended instead."""
        try:
            self.conn.sendall(request.encode() + b"\n")
            line = self.lines.readline().decode(errors="replace").strip()
        except (BrokenPipeError, ConnectionResetError):
            line = ""
        if not line.startswith("RESULT "):
            return None
        return tuple((line[7:].split(" ", 1) + [""])[:2])

    @property
    def vmm(self):
        return self.prison.vmm(self.sandbox.id)

    def close(self):
        self.conn.close()
        self.prison.remove(self.sandbox)
