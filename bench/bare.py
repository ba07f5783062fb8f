"""The bare client: QEMU by hand, without any of SPACE.

Takes the command line of one of SPACE's own VMMs, so that both sides run the same machine; replaces the guest by
bench/bare_init (a static init that answers on the virtio port), boots it once, keeps its snapshot, and restores from
that snapshot in VMMs spawned beforehand, as SPACE does.
"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

TUNING = ("mitigations", "init_on_alloc", "hardened_usercopy", "cgroup.memory", "clearcpuid")
MODULES = ("virtio_ring", "virtio", "virtio_mmio", "virtio_blk", "virtio_console")


def cpio(entries):
    """A newc archive. entries: (name, mode, data)."""
    out = bytearray()

    def add(name, mode, data, inode):
        fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        out.extend(b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0")
        out.extend(b"\0" * (-len(out) % 4))
        out.extend(data)
        out.extend(b"\0" * (-len(out) % 4))

    for inode, entry in enumerate(entries, 1):
        add(*entry, inode)
    add("TRAILER!!!", 0, b"", 0)
    return bytes(out)


def module_files(release):
    """Module images in order of loading, for those that are not built in."""
    base = f"/lib/modules/{release}"
    with open(f"{base}/modules.dep", encoding="ascii") as dep:
        paths = [line.split(":")[0] for line in dep]
    for name in MODULES:
        for path in paths:
            if re.sub(r"\.ko(\.\w+)?$", "", os.path.basename(path)).replace("-", "_") == name:
                yield name, read_module(os.path.join(base, path))


def read_module(path):
    if path.endswith(".ko"):
        with open(path, "rb") as module:
            return module.read()
    tool = {".xz": ["xz", "-dc"], ".zst": ["zstd", "-dcq"], ".gz": ["gzip", "-dc"]}[os.path.splitext(path)[1]]
    return subprocess.run([*tool, path], check=True, capture_output=True).stdout


class Qmp:
    def __init__(self, sock):
        self.sock = sock
        self.lines = self.sock.makefile("r", encoding="utf-8")
        self.read(lambda m: "QMP" in m)
        self.command("qmp_capabilities")

    def read(self, match):
        while True:
            line = self.lines.readline()
            if not line:
                raise RuntimeError("QMP: the VMM is gone")
            message = json.loads(line)
            if "error" in message:
                raise RuntimeError(f"QMP: {message}")
            if match(message):
                return message

    def command(self, name, **arguments):
        text = {"execute": name}
        if arguments:
            text["arguments"] = arguments
        self.sock.sendall(json.dumps(text).encode() + b"\n")
        return self.read(lambda m: "return" in m)["return"]

    def event(self, name):
        return self.read(lambda m: m.get("event") == name)


class Machine:
    """The snapshot and how to start VMMs on it."""

    def __init__(self, base, vmm, state_dir, init, plain=False):
        self.dir = tempfile.mkdtemp(prefix="bare-", dir=base)
        self.memory, self.state = (os.path.join(self.dir, name) for name in ("mem", "state"))
        templates = os.path.join(state_dir, "pool", "templates")
        # Any release will do: the bare guest needs no more than its busybox.
        self.disk = next(os.path.join(templates, d, "rootfs.raw") for d in sorted(os.listdir(templates)))
        self.take_over(vmm, state_dir, init)
        self.emulated = not any(arg.startswith("kvm") for arg in self.argv)
        if plain:
            self.make_plain()
        self.snapshot()

    def take_over(self, vmm, state_dir, init):
        """The kernel is SPACE's; the initramfs is the bare guest's."""
        self.argv = vmm.argv
        self.argv[0] = shutil.which("qemu-system-x86_64")
        platform = os.path.join(state_dir, "platform")
        self.kernel = next(os.path.join(platform, d, "vmlinuz") for d in os.listdir(platform)
                           if os.path.exists(os.path.join(platform, d, "vmlinuz")))
        with open(os.path.join(os.path.dirname(self.kernel), "manifest.json"), encoding="utf-8") as text:
            release = re.search(r'"(?:kernel_)?release"\s*:\s*"([^"]+)"', text.read()).group(1)
        self.initrd = os.path.join(self.dir, "initrd")
        with open(init, "rb") as program:
            entries = [("dev", 0o040755, b""), ("proc", 0o040755, b""), ("sys", 0o040755, b""),
                       ("modules", 0o040755, b""), ("init", 0o100755, program.read())]
        listed = []
        for name, data in module_files(release):
            entries.append((f"modules/{name}.ko", 0o100644, data))
            listed.append(f"/modules/{name}.ko\n")
        entries.append(("modules.list", 0o100644, "".join(listed).encode()))
        with open(self.initrd, "wb") as out:
            out.write(cpio(entries))

    def make_plain(self):
        """Without SPACE's choices for emulated guests."""
        cpu, append = (self.argv.index(option) + 1 for option in ("-cpu", "-append"))
        self.argv[cpu] = self.argv[cpu].split(",")[0]
        self.argv[append] = " ".join(word for word in self.argv[append].split() if word.split("=")[0] not in TUNING)

    def command_line(self, folder, shared, incoming):
        """SPACE's command line with the bare client's files in it."""
        args, skip = [], False
        for at, arg in enumerate(self.argv):
            if skip:
                skip = False
                continue
            follow = self.argv[at + 1] if at + 1 < len(self.argv) else ""
            if arg == "-incoming":
                skip = True
            elif arg == "-S":
                continue
            elif arg in ("-kernel", "-initrd", "-name"):
                args += [arg, {"-kernel": self.kernel, "-initrd": self.initrd, "-name": "bare"}[arg]]
                skip = True
            elif arg in ("-object", "-blockdev", "-chardev"):
                follow = re.sub(r"mem-path=[^,]+", f"mem-path={self.memory}", follow)
                follow = re.sub(r"share=(on|off)", f"share={'on' if shared else 'off'}", follow)
                follow = re.sub(r"filename=[^,]+", f"filename={folder}/disk", follow)
                follow = re.sub(r"socket,id=(\w+),fd=\d+", rf"socket,id=\1,path={folder}/\1", follow)
                args += [arg, follow]
                skip = True
            else:
                args.append(arg)
        return args + (["-incoming", "defer", "-S"] if incoming else [])

    def start(self, shared, incoming):
        folder = tempfile.mkdtemp(prefix="vm-", dir=self.dir)
        subprocess.run(["cp", "--sparse=always", self.disk, f"{folder}/disk"], check=True)
        process = subprocess.Popen(self.command_line(folder, shared, incoming), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        return self.attach(folder, process)

    def attach(self, folder, process):
        return Vm(self, folder, process)

    def snapshot(self):
        with open(self.memory, "wb") as memory:
            memory.truncate(int(re.match(r"(\d+)", self.argv[self.argv.index("-m") + 1]).group(1)) << 20)
        vm = self.start(shared=True, incoming=False)
        vm.command()
        vm.qmp.command("stop")
        vm.ignore_shared()
        with open(self.state, "wb") as out:
            vm.pass_fd("state", out.fileno())
            vm.qmp.command("migrate", uri="fd:state")
            while True:
                status = vm.qmp.command("query-migrate").get("status")
                if status == "completed":
                    break
                if status == "failed":
                    raise RuntimeError("the bare snapshot could not be saved")
        vm.close()

    def spawn(self):
        """A VMM waiting for its state, as a warm pool has it."""
        vm = self.start(shared=False, incoming=True)
        vm.ignore_shared()
        return vm


class Vm:
    def __init__(self, machine, folder, process):
        self.machine, self.folder, self.process = machine, folder, process
        self.qmp = Qmp(self.connect("qmp"))
        self.port = self.connect("agent")
        self.port.settimeout(120)

    def connect(self, name):
        """Once it listens: the file is there a moment earlier."""
        deadline = time.monotonic() + 60
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(f"{self.folder}/{name}")
                return sock
            except OSError:
                sock.close()
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the bare VMM did not start: {self.process.stderr.read().decode()[-500:]}")
            time.sleep(0.005)

    def ignore_shared(self):
        self.qmp.command("migrate-set-capabilities",
                         capabilities=[{"capability": "x-ignore-shared", "state": True}])

    def pass_fd(self, name, fd):
        request = json.dumps({"execute": "getfd", "arguments": {"fdname": name}}).encode() + b"\n"
        socket.send_fds(self.qmp.sock, [request], [fd])
        self.qmp.read(lambda m: "return" in m)

    def restore(self):
        """State load and go: what a client does by hand in a VMM spawned beforehand."""
        with open(self.machine.state, "rb") as state:
            self.pass_fd("state", state.fileno())
            self.qmp.command("migrate-incoming", uri="fd:state")
            while True:
                status = self.qmp.command("query-migrate").get("status")
                if status == "completed":
                    break
                if status == "failed":
                    raise RuntimeError("the bare snapshot could not be loaded")
        self.qmp.command("cont")

    def stop(self):
        self.qmp.command("stop")

    def go(self):
        self.qmp.command("cont")

    def command(self):
        """One command (`true`) over the port; returns when its result is there."""
        self.port.sendall(b"true\n")
        self.expect_exit()

    def expect_exit(self):
        answer = b""
        while not answer.endswith(b"\n"):
            part = self.port.recv(4096)
            if not part:
                raise RuntimeError("the bare port is closed")
            answer += part
        if answer != b"EXIT 0\n":
            raise RuntimeError(f"the bare guest answered {answer!r}")

    def flood(self, size, word="FLOOD"):
        """Seconds until the last of size bytes has been taken. FLOOD: init itself writes them to the port, its bare
        rate. PIPE: a child writes them into a pipe, as every command's output has to come, and init passes them on.
        DRAIN: the same, but they end in init."""
        left, part = (0 if word == "DRAIN" else size), bytearray(1 << 20)
        begin = time.perf_counter()
        self.port.sendall(f"{word} {size}\n".encode())
        while left:
            n = self.port.recv_into(part, min(left, len(part)))
            if n == 0:
                raise RuntimeError("the bare port is closed")
            left -= n
        if word == "DRAIN":
            self.expect_exit()
        return time.perf_counter() - begin

    def sink(self, size):
        """Seconds until init has read size bytes from the port."""
        left, part = size, memoryview(bytes(1 << 20))
        self.port.sendall(f"SINK {size}\n".encode())
        if self.port.recv(1) != b"G":
            raise RuntimeError("the bare guest does not take bytes")
        begin = time.perf_counter()
        while left:
            n = min(left, len(part))
            self.port.sendall(part[:n])
            left -= n
        self.expect_exit()
        return time.perf_counter() - begin

    def loop(self, requests):
        """Seconds of so many requests from init to a server of its own, without the port."""
        begin = time.perf_counter()
        self.port.sendall(f"LOOP {requests}\n".encode())
        self.expect_exit()
        return time.perf_counter() - begin

    def close(self):
        self.port.close()
        self.qmp.sock.close()
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stderr.close()
        shutil.rmtree(self.folder, ignore_errors=True)
