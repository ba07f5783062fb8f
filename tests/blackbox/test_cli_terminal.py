"""Commands on a terminal: `space exec -it` and `attach`, as people use them."""
import re
import signal

from harness.case import OwnServerTest, SharedSandboxTest, limit
from harness.terminal import Terminal

SHELL = ("env", "PS1=% ", "sh", "-i")
DETACH = b"\x10\x11"


class OnTerminal:
    def terminal(self, *args, **size):
        t = Terminal(self.server, *args, **size)
        self.addCleanup(t.close)
        return t

    def shell(self, **size):
        t = self.terminal("exec", "-it", self.sb.id, "--", *SHELL, **size)
        t.until("% ")
        return t

    def ended(self, t, code):
        self.assertEqual(t.wait(), code, t.shown)
        self.assertEqual(t.modes(), t.before)


class Programs(OnTerminal, SharedSandboxTest):
    def test_size_and_its_changes(self):
        watch = "stty size; trap 'stty size' WINCH; echo armed; while :; do sleep 0.1; done"
        t = self.terminal("exec", "-it", self.sb.id, "--", "sh", "-c", watch, rows=33, cols=101)
        at = t.until("armed", after=t.until("33 101"))
        for rows, cols in ((40, 90), (10, 200)):
            t.resize(rows, cols)
            at = t.until(f"{rows} {cols}", after=at)
        t.type(b"\x03")
        self.ended(t, 130)

    def test_environment(self):
        t = self.shell()
        t.type("tty; echo $TERM $LANG; stty -a\r")
        at = t.until("/dev/pts/")
        at = t.until("xterm C.UTF-8", after=at)
        t.until("intr = ^C", after=at)
        t.type("printf '\\303\\274ber\\n'; exit\r")
        t.until("\u00fcber")
        self.ended(t, 0)

    def test_interrupt(self):
        t = self.terminal("exec", "-it", self.sb.id, "--", "sh", "-c", "echo up; exec sleep 1000")
        t.until("up")
        t.type(b"\x03")
        self.ended(t, 130)

    def test_job_control(self):
        t = self.shell()
        t.type("sh -c 'echo u\"\"p; sleep 1000'\r")
        t.until("up")
        t.type(b"\x1a")
        at = t.until("Stopped")
        t.type("jobs; bg; echo in\"\"between\r")
        at = t.until("inbetween", after=at)
        t.type("fg\r")
        at = t.until("sleep 1000", after=at)
        t.type(b"\x03")
        at = t.until("% ", after=at)
        t.type("echo st\"\"atus $?\r")
        t.until("% ", after=t.until("status 130", after=at))
        t.type(b"\x04")  # the end of input ends the shell
        self.ended(t, 0)

    def test_an_editor(self):
        t = self.terminal("exec", "-it", self.sb.id, "--", "vi", "/root/edited")
        t.until("/root/edited")
        t.type("ifirst line\rsecond line\x1b")
        t.until("second line")
        t.type(":wq\r")
        self.ended(t, 0)
        self.assertEqual(self.sb.read("/root/edited"), b"first line\nsecond line\n")

    def test_a_pager(self):
        self.sb.put("/root/paged", b"".join(b"line %d\n" % i for i in range(200)))
        t = self.terminal("exec", "-it", self.sb.id, "--", "less", "/root/paged", rows=10)
        t.until("line 8")
        self.assertNotIn(b"line 20", t.shown)
        t.type("G")
        t.until("line 199")
        t.type("q")
        self.ended(t, 0)

    def test_a_monitor(self):
        t = self.terminal("exec", "-it", self.sb.id, "--", "top", "-d", "1", rows=30, cols=100)
        at = t.until("PID")
        t.until("PID", after=at)  # it draws again
        t.type("q")
        self.assertEqual(t.wait(), 0)
        self.assertEqual(t.modes(), t.before)

    def test_bytes_of_the_keyboard(self):
        t = self.terminal("exec", "-it", self.sb.id, "--", "sh", "-c", "stty raw -echo; echo go; head -c 5 | od -An -tx1")
        t.until("go")
        t.type(b"\x03\x1a\xff\x00\x1b")
        t.until("03 1a ff 00 1b")
        self.ended(t, 0)


class Attachments(OnTerminal, SharedSandboxTest):
    def detach(self, t):
        """Leaves; returns the arguments of the command that comes back."""
        t.type(DETACH)
        self.ended(t, 0)
        words = re.search(rb"space (attach -it \S+ \S+)", t.shown).group(1).decode().split()
        return words

    def test_detach_and_come_back(self):
        t = self.shell()
        t.type("x=kept; echo s\"\"et\r")
        t.until("set")
        words = self.detach(t)
        self.assertIn(words[-1].encode(), self.server.cli("ps", self.sb.id).stdout)
        again = self.terminal(*words)
        at = again.until("set")  # the past is shown
        again.type("echo is $x; exit 4\r")
        again.until("is kept", after=at)
        self.ended(again, 4)

    def test_come_back_to_the_end_only(self):
        t = self.terminal("exec", "-it", self.sb.id, "--", "vi", "/root/again")
        t.until("/root/again")
        t.type("isome text\x1b")
        t.until("some text")
        words = self.detach(t)
        again = self.terminal(*words, "--tail", "0")
        again.until("some text")  # the editor was asked to draw anew
        again.type(":q!\r")
        self.ended(again, 0)

    def test_other_keys(self):
        t = self.terminal("exec", "-it", "--detach-keys", "ctrl-a,d", self.sb.id, "--", *SHELL)
        t.until("% ")
        t.type(b"echo a\x10\x11\rexit\r")
        self.assertEqual(t.wait(), 0)
        t = self.terminal("exec", "-it", "--detach-keys", "ctrl-a,d", self.sb.id, "--", *SHELL)
        t.until("% ")
        t.type(b"\x01d")
        self.ended(t, 0)
        self.assertIn(b"detached", t.shown)

    def test_take_over(self):
        t = self.shell()
        t.type("x=mine; echo s\"\"et\r")
        t.until("set")
        process = [one["id"] for one in self.api.pages(f"{self.sb.path}/processes") if one["state"] == "running"][0]
        other = self.terminal("attach", "-it", "--takeover", self.sb.id, process)
        self.ended(t, 125)
        self.assertIn(b"another client has taken over", t.shown)
        other.until("set")
        other.type("echo is $x; exit 6\r")
        other.until("is mine")
        self.ended(other, 6)

    def test_two_at_once(self):
        t = self.shell()
        process = [one["id"] for one in self.api.pages(f"{self.sb.path}/processes") if one["state"] == "running"][0]
        watcher = self.terminal("attach", "--no-stdin", self.sb.id, process)
        watcher.until("% ")
        self.assertFalse(watcher.is_raw())
        t.type("echo se\"\"en; exit 2\r")
        watcher.until("seen")
        self.ended(t, 2)
        self.ended(watcher, 2)


class WaysOut(OnTerminal, SharedSandboxTest):
    """After each of them the terminal is as it was."""

    def test_the_commands_end(self):
        for command, code in ((["true"], 0), (["sh", "-c", "exit 3"], 3), (["sh", "-c", "kill -9 $$"], 137),
                              (["no-such-program"], 127)):
            self.ended(self.terminal("exec", "-it", self.sb.id, "--", *command), code)

    def test_modes_that_the_command_has_set(self):
        self.ended(self.terminal("exec", "-it", self.sb.id, "--", "sh", "-c", "stty -echo raw; exit 1"), 1)

    def test_errors(self):
        self.ended(self.terminal("exec", "-it", "sb_0000000000000000000", "--", "true"), 3)
        self.ended(self.terminal("attach", "-it", self.sb.id, "pr_0000000000000000000"), 3)
        self.ended(self.terminal("exec", "-it", "-w", "/nowhere", self.sb.id, "--", "true"), 127)

    def test_signals(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            t = self.shell()
            t.process.send_signal(number)
            self.ended(t, 128 + number)
            self.assertIn(b"space attach -it", t.shown)

    def test_stop_and_go_on(self):
        t = self.shell()
        t.stop_and_go_on(lambda: self.assertEqual(t.modes(), t.before))
        t.until_raw()
        t.type("echo th\"\"ere; exit\r")
        t.until("there")
        self.ended(t, 0)

    def test_detaching(self):
        t = self.shell()
        t.type(DETACH)
        self.ended(t, 0)

    def test_timeout(self):
        self.ended(self.terminal("exec", "-it", "--timeout", "1", self.sb.id, "--", "sleep", "100"), 124)

    def test_the_sandbox_sleeps_and_wakes(self):
        t = self.shell()
        t.type("x=slept; echo s\"\"et\r")
        t.until("set")
        self.sb.verb("suspend")
        self.ended(t, 125)
        words = re.search(rb"space (attach .*?)\r", t.shown).group(1).decode().split()
        self.assertIn("--stdout-offset", words)
        self.sb.verb("restore")
        again = self.terminal(*words)
        again.until_raw()
        again.type("echo has $x; exit 8\r")
        again.until("has slept")
        self.ended(again, 8)


class Server(OnTerminal, OwnServerTest):
    def setUp(self):
        super().setUp()
        self.sb = self.sandbox()

    @limit(300)
    def test_restarts_under_a_shell(self):
        t = self.shell()
        t.type("x=survived; echo s\"\"et\r")
        at = t.until("set")
        self.server.restart()
        t.type("echo has $x\r")
        at = t.until("has survived", after=at)
        self.server.kill()
        t.until("trying again", after=at)
        t.type("echo still $x; exit 9\r")
        self.server.start()
        self.api = self.server.api
        t.until("still survived", after=at)
        self.ended(t, 9)

    @limit(300)
    def test_goes_away(self):
        t = self.shell()
        self.server.kill()
        self.ended(t, 125)
        self.assertRegex(t.shown, rb"space: come back: space attach -it \S+ \S+ --stdout-offset \d+")
        self.server.start()
        self.api = self.server.api


