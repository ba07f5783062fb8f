#!/usr/bin/env python3
"""The client on a terminal: keys, sizes, and the terminal as it was after every way out."""
import fcntl
import json
import os
import signal
import struct
import sys
import termios
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_case import STARTED, TerminalCase, problem, result


class Terminal(TerminalCase):
    def test_size_keys_and_restore(self):
        self.script(("until", lambda m: isinstance(m, bytes) and b"q" in m), result(exit_code=9), ("close", 1000))
        p = self.open("exec", "-it", "sb_1", "--", "sh")
        self.until_raw()
        self.wait_message(lambda m: isinstance(m, str) and '"rows":33' in m)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 90, 0, 0))
        self.wait_message(lambda m: isinstance(m, str) and '"rows":40' in m)
        os.write(self.master, b"\x03")
        self.wait_message(lambda m: m == b"\0\x03")
        os.write(self.master, b"\x10x")  # ctrl-p that was not for detaching
        self.wait_message(lambda m: isinstance(m, bytes) and m.endswith(b"\x10x"))
        os.write(self.master, b"q")
        self.assertEqual(p.wait(20), 9)
        self.check_restored()
        body = json.loads([r for r in self.server.requests if r[1].endswith("/sessions")][0][3])
        self.assertEqual(body["pty"], {"rows": 33, "cols": 101, "term": "xterm"})

    def test_detach(self):
        self.script(("until", lambda m: False))
        p = self.open("exec", "-it", "sb_1", "--", "sh")
        self.until_raw()
        self.wait_message(lambda m: isinstance(m, str) and "resize" in m)
        os.write(self.master, b"\x10\x11")
        self.assertEqual(p.wait(20), 0)
        self.assertIn(b"space attach -it sb_1 pr_1\n", p.stderr.read())
        self.check_restored()

    def test_restored_after_signals(self):
        for number, code in ((signal.SIGHUP, 129), (signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGSEGV, -11),
                             (signal.SIGABRT, -6)):
            self.script(("until", lambda m: False))
            p = self.open("exec", "-it", "sb_1", "--", "sh")
            self.until_raw()
            self.wait_message(lambda m: isinstance(m, str) and "resize" in m)
            p.send_signal(number)
            self.assertEqual(p.wait(20), code)
            self.check_restored()
            self.server.received.clear()

    def test_restored_after_refusal(self):
        self.server.scripts = [[("refuse", 410, problem(410, "sandbox_gone"))]]
        p = self.open("exec", "-it", "sb_1", "--", "sh")
        self.assertEqual(p.wait(20), 1)
        self.check_restored()

    def test_keys_of_ones_own(self):
        self.script(("until", lambda m: isinstance(m, bytes) and m.endswith(b"x")), ("until", lambda m: False))
        p = self.open("exec", "-it", "--detach-keys", "ctrl-a,d", "sb_1", "--", "sh")
        self.until_raw()
        self.wait_message(lambda m: isinstance(m, str) and "resize" in m)
        os.write(self.master, b"\x10\x11\x01x")
        self.wait_message(lambda m: isinstance(m, bytes) and m.endswith(b"x"))
        self.assertEqual(self.typed(), b"\x10\x11\x01x")
        os.write(self.master, b"\x01\x01d")  # the first one is the command's
        self.assertEqual(p.wait(20), 0)
        self.assertTrue(self.server.wait(lambda: self.typed() == b"\x10\x11\x01x\x01"))
        self.check_restored()

    def test_no_keys(self):
        self.script(("until", lambda m: isinstance(m, bytes) and m.endswith(b"q")), result(exit_code=0), ("close", 1000))
        p = self.open("exec", "-it", "--detach-keys=none", "sb_1", "--", "sh")
        self.until_raw()
        os.write(self.master, b"\x10\x11q")
        self.assertEqual(p.wait(20), 0)
        self.assertEqual(self.typed(), b"\x10\x11q")

    def test_keys_that_are_none(self):
        for keys in ("ctrl-", "ctrl-1", "ab", "", "a,,b", "ctrl-p," * 17 + "a"):
            r = self.space("attach", "--detach-keys", keys, "sb_1", "pr_1")
            self.assertEqual(r.returncode, 2, keys)
            self.assertIn(b"--detach-keys", r.stderr)

    def test_what_is_typed_too_early_is_kept(self):
        gate = threading.Event()
        self.server.scripts = [[("wait", gate), STARTED, ("until", lambda m: isinstance(m, bytes) and b"ls\r" in m),
                                result(exit_code=0), ("close", 1000)]]
        p = self.open("exec", "-it", "sb_1", "--", "sh")
        self.until_raw()
        os.write(self.master, b"ls\r")
        time.sleep(0.1)
        gate.set()
        self.assertEqual(p.wait(20), 0)
        self.check_restored()

    def test_an_interrupt_before_the_command_has_started(self):
        self.server.scripts = [[("until", lambda m: False)]]
        p = self.open("exec", "-it", "sb_1", "--", "sh")
        self.until_raw()
        self.assertTrue(self.server.wait(lambda: self.server.attaches))
        os.write(self.master, b"\x03")
        self.assertEqual(p.wait(20), 130)
        self.check_restored()

    def test_stop_and_go_on(self):
        self.script(("until", lambda m: isinstance(m, bytes) and b"q" in m), result(exit_code=3), ("close", 1000))
        p = self.open("exec", "-it", "sb_1", "--", "sh")
        self.until_raw()
        self.wait_message(lambda m: isinstance(m, str) and "resize" in m)
        p.send_signal(signal.SIGTSTP)
        self.until_state(p, "T")
        self.check_restored()
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 60, 0, 0))
        p.send_signal(signal.SIGCONT)
        self.until_raw()
        self.wait_message(lambda m: isinstance(m, str) and '"rows":50' in m)
        os.write(self.master, b"q")
        self.assertEqual(p.wait(20), 3)
        self.check_restored()

    def test_a_terminal_that_takes_nothing(self):
        self.script(("out", 0, b"y" * 3000000), ("until", lambda m: False))
        p = self.open("exec", "-it", "sb_1", "--", "sh")
        self.until_raw()
        self.until_full()
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(20), 143)
        self.check_restored()

    def test_the_terminal_goes(self):
        self.script(("until", lambda m: False))
        p = self.open("exec", "-it", "sb_1", "--", "sh")
        self.until_raw()
        self.wait_message(lambda m: isinstance(m, str) and "resize" in m)
        self.close_master()
        self.assertEqual(p.wait(20), 129)
        self.assertNotIn('{"type":"stdin_close"}', self.server.received)

    def test_output_arrives_before_the_end(self):
        self.script(("out", 0, b"z" * 200000), result(exit_code=4), ("close", 1000))
        p = self.open("exec", "-it", "sb_1", "--", "sh")
        seen = 0
        while p.poll() is None or seen < 200000:
            seen += self.drain().count(b"z")
        self.assertEqual((p.wait(20), seen), (4, 200000))
        self.check_restored()

    def test_run_detached_keeps_its_sandbox(self):
        self.script(("until", lambda m: False))
        p = self.open("run", "-i", "--tty", "--", "sh")
        self.until_raw()
        self.wait_message(lambda m: isinstance(m, str) and "resize" in m)
        os.write(self.master, b"\x10\x11")
        self.assertEqual(p.wait(20), 0)
        said = p.stderr.read()
        self.assertIn(b"space attach -it sb_1 pr_1", said)
        self.assertIn(b"kept sb_1", said)
        self.assertEqual(self.paths("DELETE"), [])

    def test_a_frozen_writer_of_the_past(self):
        """--tail begins before the end, and asks a full-screen program to draw anew."""
        def output(query, body):
            end = 500 if query["stream"] == "stdout" else 3
            return 200, b"x", {"X-Space-Offset": query["offset"], "X-Space-End": end}
        self.server.answers[("GET", "/v1/sandboxes/sb_1/processes/pr_1/output")] = output
        self.script(("until", lambda m: isinstance(m, str) and '"cols":101' in m), result(exit_code=0), ("close", 1000))
        p = self.open("attach", "-it", "--tail", "100", "sb_1", "pr_1")
        self.assertEqual(p.wait(20), 0)
        query = self.server.attaches[0]
        self.assertEqual((query["stdout_offset"], query["stderr_offset"]), ("400", "0"))
        sizes = [json.loads(m)["cols"] for m in self.server.received if isinstance(m, str) and "resize" in m]
        self.assertEqual(sizes, [100, 101])
        self.check_restored()


class Outages(TerminalCase):
    def lose(self, *words):
        """A client whose connection has broken and does not come back."""
        self.server.scripts = [[STARTED, ("out", 0, b"hello"), ("drop",)]] + [[("drop",)]] * 1000
        p = self.open(*(words or ("exec", "-it", "sb_1", "--", "sh")))
        self.until_raw()
        self.until_said(p, b"trying again")
        return p

    def test_interrupt(self):
        p = self.lose()
        os.write(self.master, b"\x03")
        self.assertEqual(p.wait(20), 130)
        self.assertIn(b"space attach -it sb_1 pr_1", p.stderr.read())
        self.check_restored()

    def test_detach(self):
        p = self.lose()
        os.write(self.master, b"\x10\x11")
        self.assertEqual(p.wait(20), 0)
        self.check_restored()

    def test_terminate(self):
        p = self.lose()
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(20), 143)
        self.check_restored()

    def test_to_the_end(self):
        p = self.lose()
        self.assertEqual(p.wait(60), 125)
        said = p.stderr.read()
        self.assertIn(b"did not come back within 30 s", said)
        self.assertIn(b"space attach -it sb_1 pr_1 --stdout-offset 5 --stderr-offset 0", said)
        self.check_restored()

    def test_what_is_typed_meanwhile_arrives(self):
        gate = threading.Event()
        self.server.scripts = [[STARTED, ("drop",)],
                               [("wait", gate), STARTED, ("until", lambda m: isinstance(m, bytes) and b"typed" in m),
                                result(exit_code=0), ("close", 1000)]]
        p = self.open("exec", "-it", "sb_1", "--", "sh")
        self.until_raw()
        self.until_said(p, b"trying again")
        os.write(self.master, b"typed")
        time.sleep(0.2)
        gate.set()
        self.assertEqual(p.wait(20), 0)

    def test_taken_over(self):
        for last in (("close", 4001, b"taken over"), ("json", {"type": "taken_over"})):
            self.script(("out", 0, b"hello"), last, ("until", lambda m: False))
            del self.server.attaches[:]
            p = self.open("exec", "-it", "sb_1", "--", "sh")
            self.assertEqual(p.wait(20), 125)
            said = p.stderr.read()
            self.assertIn(b"another client has taken over", said)
            self.assertIn(b"space attach -it sb_1 pr_1 --stdout-offset 5", said)
            self.assertEqual(len(self.server.attaches), 1)
            self.check_restored()

    def test_who_takes_over_does_so_once(self):
        self.server.scripts = [[STARTED, ("drop",)], [STARTED, result(exit_code=0), ("close", 1000)]]
        r = self.space("attach", "--takeover", "sb_1", "pr_1")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual([a.get("takeover") for a in self.server.attaches], ["1", None])

    def test_suspended(self):
        event = {"type": "suspended", "sandbox_id": "sb_1", "session_id": "se_1", "stdout_offset": 5, "stderr_offset": 0}
        for words in (("exec", "-it", "sb_1", "--", "sh"), ("run", "--tty", "--", "sh")):
            self.script(("out", 0, b"hello"), ("json", event), ("close", 1001))
            p = self.open(*words)
            self.assertEqual(p.wait(20), 125)
            self.assertIn(b"space attach -it sb_1 pr_1 --stdout-offset 5", p.stderr.read())
            self.check_restored()
        self.assertEqual(self.paths("DELETE"), [])  # the command goes on in it


if __name__ == "__main__":
    unittest.main(verbosity=2)
