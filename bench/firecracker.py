"""SPACE's own guest in a Firecracker by hand: no daemon, no broker, no jail beyond a root directory.

The program, its arguments, the state, the memory and the disk are those of SPACE's golden snapshot. The state names its files by
the paths of a jail, so each VMM gets a root with the same paths. docs/design/engines.md has what SPACE asks of Firecracker.
"""
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time

import agent

VSOCK_PORT = 1024
DEVICES = {"null": (1, 3), "urandom": (1, 9), "kvm": (10, 232)}
NO_PLACE = "/nowhere/mem"  # no file can be made there: what is written then is the state of the devices alone
# Its sockets and its device state are in memory, as in SPACE's jail; the mount ends with the process. cwd is the root.
START = 'mount -t tmpfs -o size=8m run run && exec chroot . /firecracker "$@"'


def libraries(program):
    """What the dynamic linker needs for it; nothing for a static program."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(/\S+) \(0x", said)


def golden_of(vmm, state_dir):
    """The folder of the golden whose memory a VMM of SPACE's has mapped."""
    mine = os.stat(f"/proc/{vmm.pid}/root/mem")
    folder = os.path.join(state_dir, "pool", "golden")
    for name in os.listdir(folder):
        path = os.path.join(folder, name, "mem")
        if os.path.exists(path) and os.path.samestat(os.stat(path), mine):
            return os.path.join(folder, name)
    raise RuntimeError("no golden has this VMM's memory")


def api(sock, method, path, body, fails=None):
    """One request over a connection that is kept. fails: a word of the one refusal that is expected."""
    data = json.dumps(body).encode() if body is not None else b""
    sock.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += more(sock)
    head, _, answer = answer.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    while length and len(answer) < int(length.group(1)):
        answer += more(sock)
    good = int(head.split(None, 2)[1]) < 300
    if good != (fails is None) or (fails and fails not in answer):
        raise RuntimeError(f"Firecracker, {method} {path}: {head.splitlines()[0].decode()} {answer.decode(errors='replace')[:300]}")


def more(sock):
    part = sock.recv(65536)
    if not part:
        raise RuntimeError("Firecracker has closed its control interface")
    return part


class Machine:
    """SPACE's golden, copied, and how to start VMMs on it."""

    emulated = False

    def __init__(self, base, vmm, state_dir):
        self.dir = tempfile.mkdtemp(prefix="byhand-", dir=base)
        self.files = os.path.join(self.dir, "files")
        self.arguments = [arg for arg in vmm.argv[1:] if not arg.startswith("/run/metrics") and arg != "--metrics-path"]
        self.arguments[self.arguments.index("--id") + 1] = "by-hand"
        self.environment = {**dict(line.split("=", 1) for line in self.environment_of(vmm)), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        golden = golden_of(vmm, state_dir)
        self.disk = os.path.join(self.dir, "disk")
        os.mkdir(self.files)
        self.copy(os.path.join(golden, "disk.raw"), self.disk)
        for name in ("mem", "state"):
            self.copy(os.path.join(golden, name), os.path.join(self.files, name))
        program = os.path.join(self.files, "firecracker")
        self.copy(f"/proc/{vmm.pid}/exe", program)
        os.chmod(program, 0o755)
        for library in libraries(program):
            self.copy(library, self.files + library)

    @staticmethod
    def environment_of(vmm):
        with open(f"/proc/{vmm.pid}/environ", encoding="ascii") as text:
            return [part for part in text.read().split("\0") if "=" in part]

    @staticmethod
    def copy(source, target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        subprocess.run(["cp", "--sparse=always", "--dereference", source, target], check=True)

    def root(self):
        """A new root: files that all share, by their links; a disk of its own; the devices."""
        folder = tempfile.mkdtemp(prefix="vm-", dir=self.dir)
        shutil.copytree(self.files, folder, copy_function=os.link, dirs_exist_ok=True)
        self.copy(self.disk, os.path.join(folder, "disk.raw"))
        os.mkdir(os.path.join(folder, "run"))
        os.mkdir(os.path.join(folder, "dev"))
        for name, number in DEVICES.items():
            os.mknod(os.path.join(folder, "dev", name), stat.S_IFCHR | 0o600, os.makedev(*number))
        return folder

    def spawn(self):
        """A VMM waiting for its state, as a warm pool has it."""
        folder = self.root()
        process = subprocess.Popen(["unshare", "--mount", "sh", "-c", START, "sh", *self.arguments], cwd=folder,
                                   env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, start_new_session=True)
        return Vm(folder, process)


class Vm(agent.Link):
    """A Firecracker, its control interface and the connection to its guest's agent, which is made when it is needed."""

    sync_wait = 10  # a new connection has nothing in it that could be in the way

    def __init__(self, folder, process):
        super().__init__()
        self.folder, self.process, self.port = folder, process, None
        self.control = self.connect("api.sock")
        api(self.control, "GET", "/version", None)

    def connect(self, name):
        """Once it listens."""
        deadline = time.monotonic() + 60
        while True:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(120)
            try:
                sock.connect(f"/proc/{self.process.pid}/root/run/{name}")
                return sock
            except OSError:
                sock.close()
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError(f"a Firecracker by hand, {name}: {self.process.stderr.read().decode(errors='replace')[-500:]}")
            time.sleep(0.002)

    def restore(self):
        api(self.control, "PUT", "/snapshot/load", {
            "snapshot_path": "/state", "mem_backend": {"backend_type": "File", "backend_path": "/mem"}, "resume_vm": True})

    def stop(self):
        """The connection to the agent does not outlive it."""
        self.port.sendall(self.released)
        self.released = b""
        api(self.control, "PATCH", "/vm", {"state": "Paused"})

    def go(self):
        """Saving the state of the devices tells the guest to give up its connections: without it, it hears nobody from then on."""
        api(self.control, "PUT", "/snapshot/create", {
            "snapshot_type": "Full", "snapshot_path": "/run/state", "mem_file_path": NO_PLACE}, fails=b"memory backing file")
        api(self.control, "PATCH", "/vm", {"state": "Resumed"})
        self.port.close()
        self.port, self.tag, self.input = None, 0, b""

    def synchronise(self):
        """The agent, asked for at the socket device, then as everywhere."""
        self.port = self.connect("agent.sock")
        self.port.sendall(f"CONNECT {VSOCK_PORT}\n".encode())
        while b"\n" not in self.input:
            self.more()
        line, _, self.input = self.input.partition(b"\n")
        if not line.startswith(b"OK "):
            raise RuntimeError(f"the guest's socket device says {line!r}")
        super().synchronise()

    def close(self):
        for sock in (self.port, self.control):
            if sock:
                sock.close()
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stderr.close()
        shutil.rmtree(self.folder, ignore_errors=True)
