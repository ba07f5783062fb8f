"""What the tests of the client as a program share."""
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fake_server import Server

SPACE = os.path.abspath(sys.argv.pop(1))
# What the run was started with ignored, by nohup or a shell's background, would be ignored by what is tested too.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
STARTED = ("json", {"type": "started", "pid": 7})


def result(reason="exit", **more):
    base = {"type": "result", "reason": reason, "exit_code": None, "signal": None, "message": None}
    base.update(more)
    return ("json", base)


def problem(status, slug, title="T", **more):
    return dict({"type": "urn:space:error:" + slug, "title": title, "status": status, "detail": "d"}, **more)


class Case(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.env = {"PATH": os.environ["PATH"], "SPACE_URL": self.server.url, "SPACE_API_KEY": "sk_test",
                    "TERM": "xterm"}
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"):
            if name in os.environ:
                self.env[name] = os.environ[name]

    def tearDown(self):
        self.server.close()

    def space(self, *args, stdin=subprocess.DEVNULL, **kw):
        data = kw.pop("input", None)
        if data is not None:
            stdin = None
        return subprocess.run([SPACE, *args], env=self.env, stdin=stdin, input=data, capture_output=True, timeout=60,
                              **kw)

    def start(self, *args, **kw):
        return subprocess.Popen([SPACE, *args], env=self.env, stdin=kw.pop("stdin", subprocess.DEVNULL),
                                stdout=kw.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE, **kw)

    def paths(self, method):
        return [r[1] for r in self.server.requests if r[0] == method]


class TerminalCase(Case):
    """Runs the client on a terminal of its own."""

    def open(self, *args, stdin=None, stderr=False):
        """stdin: in place of the terminal; stderr: goes to the terminal as well."""
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        def take_terminal():
            os.setsid()
            fcntl.ioctl(1, termios.TIOCSCTTY, 0)
        p = subprocess.Popen([SPACE, *args], env=self.env, stdin=self.slave if stdin is None else stdin,
                             stdout=self.slave, stderr=self.slave if stderr else subprocess.PIPE,
                             preexec_fn=take_terminal)
        if p.stderr:
            self.addCleanup(p.stderr.close)
        self.addCleanup(self.end, p, self.master, self.slave)
        self.closed = False
        return p

    def end(self, p, master, slave):
        if p.poll() is None:
            p.kill()
        p.wait()
        os.close(slave)
        if not self.closed:
            os.close(master)

    def close_master(self):
        os.close(self.master)
        self.closed = True

    def drain(self):
        """What the terminal shows now."""
        return os.read(self.master, 65536) if select.select([self.master], [], [], 0.05)[0] else b""

    def until_said(self, p, text):
        """Reads standard error until it has the text."""
        seen, deadline = b"", time.monotonic() + 30
        while text not in seen:
            self.assertLess(time.monotonic(), deadline, seen)
            if select.select([p.stderr], [], [], 0.1)[0]:
                seen += os.read(p.stderr.fileno(), 65536)
        return seen

    def until_full(self):
        """Nobody reads the terminal: wait until it takes nothing more."""
        before, deadline = -1, time.monotonic() + 30
        while True:
            self.assertLess(time.monotonic(), deadline)
            queued = struct.unpack("i", fcntl.ioctl(self.master, termios.FIONREAD, b"\0" * 4))[0]
            if queued and queued == before:
                return
            before = queued
            time.sleep(0.3)

    def until_state(self, p, letter):
        deadline = time.monotonic() + 30
        while True:
            with open(f"/proc/{p.pid}/stat") as f:
                if f.read().rpartition(")")[2].split()[0] == letter:
                    return
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def typed(self):
        """What the command has got of input."""
        return b"".join(m[1:] for m in self.server.received if isinstance(m, bytes))

    def until_raw(self):
        deadline = time.monotonic() + 30
        while termios.tcgetattr(self.slave)[3] & termios.ICANON:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def check_restored(self):
        self.assertEqual(termios.tcgetattr(self.slave), self.before)

    def script(self, *steps):
        self.server.scripts = [[STARTED, *steps]]

    def wait_message(self, condition):
        self.assertTrue(self.server.wait(lambda: any(condition(m) for m in self.server.received)))
