"""Terminals: job control, keys, sizes, full-screen programs, as a person at a keyboard has them."""
import os
import re
import shutil
import subprocess
import time

from harness import server
from harness.case import SharedSandboxTest, limit
from harness.ws import Attach

ESCAPES = re.compile(rb"\x1b(\[[0-9;?]*[ -/]*[@-~]|[()][A-Z0-9]|[=>78])")


class TerminalTest(SharedSandboxTest):
    def terminal(self, argv=("sh",), rows=24, cols=80, **body):
        """An attached terminal; .seen() is what came since the last call of it."""
        session = self.sb.session(list(argv), pty={"rows": rows, "cols": cols}, **body)
        attached = Attach(self.api, session, timeout=60)
        self.addCleanup(attached.abort)
        attached.session, attached.mark = session, 0

        def expect(text, timeout=60):
            text = text.encode() if isinstance(text, str) else text
            attached.until(lambda: text in attached.out.data[attached.mark:], repr(text), timeout)
            attached.mark = attached.out.data.index(text, attached.mark) + len(text)

        def screen(*words, timeout=60):
            """All words have come since the last mark, whatever moves the cursor between them."""
            def there():
                plain = ESCAPES.sub(b"", attached.out.data[attached.mark:])
                return all(word.encode() in plain for word in words)

            attached.until(there, repr(words), timeout)
            attached.mark = len(attached.out.data)

        attached.wait, attached.screen = expect, screen
        return attached

    def pid_of(self, command):
        """Of the process with exactly this command line, or ""."""
        return self.sb.sh("for p in /proc/[0-9]*; do [ \"$(tr '\\000' ' ' < $p/cmdline 2>/dev/null)\" = "
                          f"'{command} ' ] && echo ${{p#/proc/}}; done; true").strip()

    def state_of(self, command):
        return self.sb.sh(f"cut -d' ' -f3 /proc/{self.pid_of(command)}/stat").strip()

    def shell(self, **kw):
        shell = self.terminal(["sh", "-i"], env={"PS1": "ready> ", "ENV": ""}, **kw)
        shell.wait("ready> ")
        return shell


class JobControl(TerminalTest):
    def test_stop_background_and_foreground(self):
        shell = self.shell()
        shell.stdin("sleep 4004\n")
        self.until(lambda: self.pid_of("sleep 4004"), "the sleep")
        shell.stdin(b"\x1a")
        self.until(lambda: self.state_of("sleep 4004") == "T", "stopped")
        shell.wait("ready> ")
        shell.stdin("bg\n")
        self.until(lambda: self.state_of("sleep 4004") == "S", "running")
        shell.stdin("jobs\n")
        shell.wait("Running")
        shell.stdin("fg\n")
        # In the foreground when its group is the terminal's.
        self.until(lambda: len(set(self.sb.sh(f"cut -d' ' -f5,8 /proc/{self.pid_of('sleep 4004')}/stat").split())) == 1,
                   "the foreground")
        shell.stdin(b"\x03")
        self.until(lambda: not self.pid_of("sleep 4004"), "the end")
        shell.stdin("echo co\"\"de $?\n")
        shell.wait("code 130")
        shell.stdin("exit 7\n")
        self.assertEqual(shell.finish()["exit_code"], 7)

    def test_control_c_ends_the_command_and_not_the_shell(self):
        shell = self.shell()
        shell.stdin("while :; do sleep 0.1; done\n")
        time.sleep(0.5)
        shell.stdin(b"\x03")
        shell.wait("ready> ")
        shell.stdin("echo alive\n")
        shell.wait("\r\nalive")

    def test_control_d_and_quit(self):
        shell = self.shell()
        shell.stdin("cat\n")
        self.until(lambda: self.pid_of("cat"), "cat")
        shell.stdin("line\n")
        shell.wait("line\r\nline")
        shell.stdin(b"\x04")
        shell.wait("ready> ")
        shell.stdin("sleep 100\n")
        self.until(lambda: self.pid_of("sleep 100"), "the sleep")
        shell.stdin(b"\x1c")
        shell.wait("ready> ")
        shell.stdin(b"\x04")
        self.assertEqual(shell.finish()["reason"], "exit")

    def test_suspended_output(self):
        """Ctrl-S and Ctrl-Q are the terminal's."""
        shell = self.shell()
        shell.stdin(b"\x13")
        shell.stdin("echo held\n")
        time.sleep(1)
        before = shell.out.offset
        shell.stdin(b"\x11")
        shell.wait("\r\nheld")
        self.assertGreater(shell.out.offset, before)

    def test_hangup_by_signal(self):
        shell = self.shell()
        process = shell.session["session"]["process_id"]
        shell.stdin("sleep 4005 &\n")
        self.until(lambda: self.pid_of("sleep 4005"), "the sleep")
        self.api.ok("POST", f"{self.sb.path}/processes/{process}/signal", {"signal": "SIGHUP"})
        self.assertEqual(shell.finish()["reason"], "signal")
        self.until(lambda: not self.pid_of("sleep 4005"), "nothing left")


class Settings(TerminalTest):
    def test_it_is_a_terminal(self):
        shell = self.shell(rows=30, cols=100)
        for command, answer in (("stty size", "30 100"), ("tty", "/dev/pts/"), ("echo $TERM", "xterm-256color"),
                                ("echo $LANG", "C.UTF-8"), ("test -t 0 -a -t 1 -a -t 2 && echo all of it", "all of it"),
                                ("stty -a | grep -o ' iutf8'", "iutf8")):
            shell.stdin(command + "\n")
            shell.wait(command.encode())
            shell.wait(answer)

    def test_characters_are_erased_whole(self):
        cat = self.terminal(["cat"])
        cat.stdin("aü✓".encode() + b"\x7f\x7f" + b"b\n")
        cat.wait("\r\nab\r\n")

    def test_resize_reaches_the_foreground(self):
        shell = self.shell()
        shell.stdin("sh -c 'trap \"stty size\" WINCH; echo be\"\"gun; while :; do sleep 0.1; done'\n")
        shell.wait("begun")
        for rows, cols in ((40, 132), (10, 20)):
            shell.control(type="resize", rows=rows, cols=cols)
            shell.wait(f"{rows} {cols}")

    def test_bytes_pass_a_raw_terminal_unchanged(self):
        raw = self.terminal(["sh", "-c", "stty raw -echo; echo go; head -c 256 | od -An -v -tx1 | tr -d ' \\n'"])
        raw.wait("go")
        raw.stdin(bytes(range(256)))
        self.assertEqual(raw.finish()["exit_code"], 0)
        self.assertIn(bytes(range(256)).hex().encode(), raw.out.data)


class FullScreen(TerminalTest):
    @limit(120)
    def test_vi(self):
        vi = self.terminal(["vi", "/root/letter"], rows=24, cols=80)
        vi.screen("letter")
        vi.stdin("ihello\rworld\x1b")
        vi.screen("hello", "world")
        vi.control(type="resize", rows=40, cols=100)
        vi.stdin("\x0c")  # draws anew
        vi.screen("hello", "world")
        vi.stdin(":wq\r")
        self.assertEqual(vi.finish()["exit_code"], 0)
        self.assertEqual(self.sb.read("/root/letter"), b"hello\nworld\n")

    @limit(120)
    def test_less(self):
        self.sb.put("/root/long", b"".join(b"line %d of it\n" % n for n in range(1, 501)))
        less = self.terminal(["less", "/root/long"], rows=11, cols=60)
        less.screen("line 1 of it", "line 10 of it")
        less.stdin(" ")
        less.screen("line 20 of it")
        less.stdin("G")
        less.screen("line 500 of it")
        less.stdin("g")
        less.screen("line 1 of it", "line 10 of it")
        # It may throw away what was typed ahead when it begins to read the words.
        self.until(lambda: self.state_of("less /root/long") == "S", "less waits for a key")
        less.stdin("/")
        self.until(lambda: self.state_of("less /root/long") == "S", "less waits for words")
        less.stdin("line 42 \r")
        less.screen("line 42 of it")
        less.stdin("q")
        self.assertEqual(less.finish()["exit_code"], 0)

    @limit(120)
    def test_top(self):
        top = self.terminal(["top", "-d", "1"], rows=20, cols=80)
        top.screen("Mem:", "PID", "COMMAND")
        top.screen("Mem:", "PID", "COMMAND")  # it draws again by itself
        top.stdin("q")
        self.assertEqual(top.finish()["exit_code"], 0)

    @limit(120)
    def test_a_second_client_takes_over(self):
        vi = self.terminal(["vi", "/root/taken"], rows=24, cols=80)
        vi.screen("taken")
        vi.stdin("ifirst")
        vi.screen("first")
        second = Attach(self.api, vi.session, stdout_offset=vi.out.offset, takeover=True, timeout=60)
        self.addCleanup(second.abort)
        while vi.step():
            pass
        self.assertEqual(vi.closed.code, 4001)
        second.control(type="resize", rows=30, cols=90)
        second.stdin(" second\x1b")
        second.stdin("\x0c")
        second.until(lambda: b"first second" in ESCAPES.sub(b"", second.out.data), "both words")
        second.stdin(":wq\r")
        self.assertEqual(second.finish()["exit_code"], 0)
        self.assertEqual(self.sb.read("/root/taken"), b"first second\n")


def from_host(*programs):
    """{"/path": bytes} of programs of this host with all they need, terminals' descriptions included."""
    files = {}
    for program in programs:
        path = os.path.realpath(shutil.which(program))
        needs = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout
        files[f"/usr/bin/{program}"] = path
        for library in re.findall(r"(/\S+) \(0x", needs):
            files[library] = library
    for folder in ("/lib/terminfo", "/usr/lib/locale/C.utf8"):
        for where, _, names in os.walk(folder):
            files.update({os.path.join(where, name): os.path.join(where, name) for name in names})
    read = {}
    for inside, path in files.items():
        with open(path, "rb") as source:
            read[inside] = source.read()
    return read


class Editors(TerminalTest):
    """Programs of a full distribution, as far as this host has them."""

    template = "editors"

    def setUp(self):
        programs = [name for name in ("vim", "less", "tmux", "htop") if shutil.which(name)]
        if "editors" not in server.shared().templates and programs:
            server.shared().templates["editors"] = server.shared().build_template("editors", from_host(*programs),
                                                                                  disk_mib=256)
        if not programs:
            self.skipTest("none of them is installed")
        super().setUp()

    def need(self, program):
        if not shutil.which(program):
            self.skipTest(f"{program} is not installed")

    def size_becomes(self, terminal, size, ask="stty size > /tmp/size\r"):
        """As the program in it sees it when it looks, and it may be asked before it does; what is drawn comes in whatever pieces."""
        seen = None

        def answer():
            nonlocal seen
            seen = self.sb.sh("cat /tmp/size 2>/dev/null; true").strip()
            return seen

        def told():
            self.sb.sh("rm -f /tmp/size")
            terminal.stdin(ask)
            self.until(answer, "an answer", 60)
            return seen == size

        self.until(told, size, 60)

    @limit(240)
    def test_vim(self):
        self.need("vim")
        vim = self.terminal(["vim", "-u", "NONE", "-N", "/root/novel"], rows=24, cols=80)
        vim.screen("novel", "~", timeout=120)
        vim.stdin("ihello\rgr\u00fcn\x1b")
        vim.screen("hello")
        vim.control(type="resize", rows=40, cols=100)
        self.size_becomes(vim, "40x100", ":call writefile([&lines .. 'x' .. &columns], '/tmp/size')\r")
        vim.stdin(":wq\r")
        self.assertEqual(vim.finish()["exit_code"], 0)
        self.assertEqual(self.sb.read("/root/novel"), "hello\ngr\u00fcn\n".encode())

    @limit(240)
    def test_tmux(self):
        self.need("tmux")
        tmux = self.terminal(["tmux", "-u", "new", "sh"], rows=30, cols=90)
        tmux.screen("[0] 0:sh", timeout=120)
        tmux.stdin("echo in$((20+3))side\r")
        tmux.screen("in23side")
        tmux.stdin(b"\x02%")  # splits
        self.size_becomes(tmux, "29 44")
        tmux.control(type="resize", rows=40, cols=100)
        self.size_becomes(tmux, "39 49")
        for left in (1, 0):
            tmux.stdin("exit\r")
            self.until(lambda: len(self.pid_of("sh").split()) == left, f"{left} shells")
        self.assertEqual(tmux.finish()["exit_code"], 0)

    @limit(240)
    def test_less(self):
        self.need("less")
        self.sb.put("/root/long", b"".join(b"line %d of it\n" % n for n in range(1, 501)))
        less = self.terminal(["less", "/root/long"], rows=11, cols=60)
        less.screen("line 1 of it", "line 10 of it", timeout=120)
        less.stdin("/line 42 \r")
        less.screen("line 42 of it")
        less.stdin("G")
        less.screen("line 500 of it")
        less.stdin("q")
        self.assertEqual(less.finish()["exit_code"], 0)

    @limit(240)
    def test_htop(self):
        self.need("htop")
        htop = self.terminal(["htop"], rows=30, cols=100)
        htop.screen("PID", "USER", "Load average", timeout=120)
        htop.stdin("q")
        self.assertEqual(htop.finish()["exit_code"], 0)
