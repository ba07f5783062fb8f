"""The command line tool, or a program that uses it, on a terminal of its own."""
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

from . import server as programs


class Terminal:
    """`space` with a pseudo-terminal as its controlling terminal. What it shows is kept in `shown`."""

    def __init__(self, server, *args, rows=24, cols=80, program=None):
        self.master, self.slave = pty.openpty()
        self.resize(rows, cols)
        self.before = termios.tcgetattr(self.slave)
        self.shown = b""

        def take_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        space = programs.program("space")
        env = {"PATH": f"{os.path.dirname(space)}:{os.environ['PATH']}", "HOME": "/root", "TERM": "xterm",
               "SPACE_URL": server.url, "SPACE_API_KEY": server.key}
        self.process = subprocess.Popen([program or space, *args], env=env, stdin=self.slave, stdout=self.slave,
                                        stderr=self.slave, preexec_fn=take_terminal)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.slave)
        os.close(self.master)

    def modes(self):
        return termios.tcgetattr(self.slave)

    def is_raw(self):
        return not self.modes()[3] & termios.ICANON

    def resize(self, rows, cols):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, text):
        os.write(self.master, text if isinstance(text, bytes) else text.encode())

    def read(self, wait=0.2):
        while select.select([self.master], [], [], wait)[0]:
            self.shown += os.read(self.master, 65536)
            wait = 0

    def until(self, text, timeout=60.0, after=0):
        """Waits until `text` is shown behind position `after`; returns the position behind it."""
        text = text if isinstance(text, bytes) else text.encode()
        deadline = time.monotonic() + timeout
        while text not in self.shown[after:]:
            if time.monotonic() > deadline:
                raise AssertionError(f"{text!r} is not shown within {timeout:g} s: {self.shown[after:]!r}")
            self.read()
        return self.shown.index(text, after) + len(text)

    def until_raw(self, timeout=60.0):
        deadline = time.monotonic() + timeout
        while not self.is_raw():
            if time.monotonic() > deadline:
                raise AssertionError(f"the terminal does not become raw: {self.shown!r}")
            self.read(0.02)

    def wait(self, timeout=60.0):
        """The exit status; what is shown until then is kept."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"still running after {timeout:g} s: {self.shown!r}")
            self.read(0.05)
        self.read(0)
        return self.process.returncode

    def stop_and_go_on(self, while_stopped):
        """SIGTSTP, then a call, then SIGCONT."""
        self.process.send_signal(signal.SIGTSTP)
        deadline = time.monotonic() + 30
        while True:
            with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "T":
                    break
            if time.monotonic() > deadline:
                raise AssertionError("it does not stop")
            time.sleep(0.02)
        while_stopped()
        self.process.send_signal(signal.SIGCONT)
