"""SPACE's own agent by hand: a client that speaks the guest protocol over the agent's port, without the daemon.

The VMM, its command line, kernel, initramfs and disk are those of a sandbox; only spaced is missing. So what SPACE takes
beyond this is the daemon's, and what this takes beyond the bare guest is the agent's. docs/design/protocol.md has the
protocol.
"""
import collections
import os
import shutil
import struct
import time

import bare

SYNC, SYNC_ACK = b"\xF1SPACE-SYNC\r\n\x1A\xB7\x02", b"\xF2SPACE-SACK\r\n\x1A\xB7\x03"
RECORD = struct.Struct(">16sHHIQII")
FRAME = struct.Struct(">HBBIII")
MARKER, VERSION, PAYLOAD_MAX = 0xA5C3, 3, 65536
HELLO, PING, PONG, REPLY, IDENTIFY, EXEC, STARTED, EXIT, RELEASE, DATA, QUIESCE = 1, 3, 4, 5, 6, 9, 11, 12, 13, 16, 23
U32, U64, BYTES, STRING = 1, 2, 3, 4
REQUEST, CODE, SANDBOX, HOSTNAME, MACHINE, GENERATION, SEED, WALL = 1, 2, 6, 7, 8, 9, 10, 11
PROCESS, ARG, FLAGS, TIMEOUT, REASON, EXIT_CODE, STDOUT_LIMIT, STDERR_LIMIT, TOKEN, LIMIT, MONO = (
    13, 14, 19, 23, 25, 26, 33, 34, 44, 47, 49)
WINDOW = 262144

Frame = collections.namedtuple("Frame", "type channel payload")


def u32(tag, value):
    return struct.pack(">HBBII", tag, U32, 0, 4, value)


def u64(tag, value):
    return struct.pack(">HBBIQ", tag, U64, 0, 8, value)


def octets(tag, value, kind=BYTES):
    return struct.pack(">HBBI", tag, kind, 0, len(value)) + value


def text(tag, value):
    return octets(tag, value.encode() + b"\0", STRING)


def numbers(payload):
    """The numbers among a message's fields, by tag."""
    found, at = {}, 0
    while at < len(payload):
        tag, kind, _, length = struct.unpack_from(">HBBI", payload, at)
        at += 8
        if kind in (U32, U64):
            found[tag] = int.from_bytes(payload[at:at + length], "big")
        at += length
    return found


def fnv(data):
    check = 2166136261
    for byte in data:
        check = (check ^ byte) * 16777619 & 0xFFFFFFFF
    return check


class Machine(bare.Machine):
    """Boots SPACE's kernel and initramfs, and so its agent."""

    def take_over(self, vmm, state_dir, init):
        self.argv = vmm.argv
        self.argv[0] = shutil.which("qemu-system-x86_64")
        platform = os.path.join(state_dir, "platform")
        folder = next(os.path.join(platform, d) for d in os.listdir(platform)
                      if os.path.exists(os.path.join(platform, d, "vmlinuz")))
        self.kernel, self.initrd = os.path.join(folder, "vmlinuz"), os.path.join(folder, "initrd")

    def attach(self, folder, process):
        return Vm(self, folder, process)


class Link:
    """The agent over whatever joins it to the host, self.port. Requests follow each other; nothing is repeated when the guest does not
    answer."""

    sync_wait = 0.25  # until SYNC is sent once more

    def __init__(self):
        self.tag, self.channel, self.request, self.input, self.released = 0, 0, 0, b"", b""
        self.identified = False

    # --- the link ---
    def synchronise(self):
        """SYNC until the agent answers: one that boots listens later."""
        wait, deadline = self.sync_wait, time.monotonic() + 120
        while True:
            self.port.settimeout(wait)
            epoch = int.from_bytes(os.urandom(8), "big")
            record = RECORD.pack(SYNC, 1, VERSION, PAYLOAD_MAX, epoch, 0, 0)[:-4]
            self.port.sendall(record + struct.pack(">I", fnv(record)))
            if self.acknowledged(epoch):
                break
            if time.monotonic() > deadline:
                raise RuntimeError("the agent does not answer")
            wait = min(2 * wait, 4)
        self.port.settimeout(120)
        self.tag = (epoch ^ epoch >> 32) & 0xFFFFFFFF or 1
        assert self.receive().type == HELLO

    def acknowledged(self, epoch):
        try:
            while True:
                at = self.input.find(SYNC_ACK)
                if at < 0 or len(self.input) < at + RECORD.size:
                    self.more()
                    continue
                _, version, _, _, answered, _, _ = RECORD.unpack_from(self.input, at)
                self.input = self.input[at + RECORD.size:]
                if answered == epoch:
                    assert version == VERSION, version
                    return True
        except TimeoutError:
            return False

    def more(self):
        part = self.port.recv(65536)
        if not part:
            raise RuntimeError("the agent's port is closed")
        self.input += part

    def frame(self, kind, channel, payload):
        return FRAME.pack(MARKER, kind, 0, len(payload), channel, self.tag) + payload + struct.pack(">I", self.tag)

    def receive(self):
        while True:
            if len(self.input) >= FRAME.size:
                marker, kind, _, length, channel, tag = FRAME.unpack_from(self.input)
                assert marker == MARKER and tag == self.tag
                end = FRAME.size + length + 4
                if len(self.input) >= end:
                    payload = self.input[FRAME.size:FRAME.size + length]
                    self.input = self.input[end:]
                    return Frame(kind, channel, payload)
            self.more()

    # --- requests ---
    def ask(self, kind, payload):
        self.request += 1
        self.port.sendall(self.frame(kind, 0, u32(REQUEST, self.request) + payload))
        while True:
            got = self.receive()
            if got.type == REPLY:
                said = numbers(got.payload)
                assert said[REQUEST] == self.request and said[CODE] == 0, got
                return

    def identify(self):
        """As the daemon does it: first the guest's clock, then who it is and what time it was then."""
        if not self.tag:
            self.synchronise()
        token = int.from_bytes(os.urandom(8), "big")
        self.port.sendall(self.frame(PING, 0, u64(TOKEN, token)))
        said = numbers(self.receive().payload)
        assert said[TOKEN] == token
        self.ask(IDENTIFY, text(SANDBOX, "sb_byhand") + text(HOSTNAME, "by-hand") + octets(MACHINE, bytes(16)) +
                 u64(GENERATION, 1) + octets(SEED, os.urandom(64)) + u64(WALL, time.time_ns()) + u64(MONO, said[MONO]))
        self.identified = True

    def freeze(self):
        self.ask(QUIESCE, u32(LIMIT, 2000))

    def start(self, argv):
        """Sends EXEC; what was released before goes with it, so that the guest is woken once."""
        if not self.identified:
            self.identify()
        if not self.tag:
            self.synchronise()
        self.channel += 1
        payload = text(PROCESS, f"pr_{os.urandom(10).hex()}") + u32(FLAGS, 0) + u32(TIMEOUT, 0)
        payload += u64(STDOUT_LIMIT, WINDOW) + u64(STDERR_LIMIT, WINDOW) + b"".join(text(ARG, arg) for arg in argv)
        self.port.sendall(self.released + self.frame(EXEC, self.channel, payload))
        self.released = self.frame(RELEASE, self.channel, b"")

    def wait(self, kind):
        while True:
            got = self.receive()
            if got.type == EXIT and got.channel == self.channel:
                said = numbers(got.payload)
                assert (said[REASON], said[EXIT_CODE]) == (1, 0), got
            if got.type == kind and got.channel == self.channel:
                return got

    def command(self):
        """`true`, until its result is there."""
        self.start(["true"])
        self.wait(EXIT)

    def first_byte(self):
        """`echo x`, until its first byte is there. Then finish()."""
        self.start(["echo", "x"])
        assert self.wait(DATA).payload[16:] == b"x\n"

    def finish(self):
        self.wait(EXIT)


class Vm(Link, bare.Vm):
    """SPACE's guest in a QEMU, by its virtio port."""

    def __init__(self, machine, folder, process):
        Link.__init__(self)
        bare.Vm.__init__(self, machine, folder, process)
