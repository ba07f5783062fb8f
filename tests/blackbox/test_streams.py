"""Streams: every reader gets every byte at its own pace, connections live and die, and nothing is held back by it."""
import fcntl
import hashlib
import os
import random
import subprocess
import termios
import threading
import time

from harness.case import OwnServerTest, SharedSandboxTest, limit
from harness.workers import alone
from harness.ws import Attach, AttachLines

MIB = 1 << 20
# Of the test without a newline: less where the whole suite has its time.
GIB_TEST_MIB = int(os.environ.get("SPACE_GIB_MIB", "128" if os.environ.get("CI") else "1024"))


class StreamTest(SharedSandboxTest):
    def attach(self, session, make=Attach, **kw):
        attached = make(self.api, session, **kw)
        self.addCleanup(attached.abort)
        return attached

    def again(self, process, sb=None):
        return self.api.ok("POST", f"{(sb or self.sb).path}/processes/{process}/sessions", {}, status=201).json


def numbers(last):
    return "".join(f"{n}\n" for n in range(1, last + 1)).encode()


class Readers(StreamTest):
    @limit(240)
    def test_eight_readers_one_dead_one_slow(self):
        last = 600000
        expected = numbers(last)
        session = self.sb.session(f"read go; seq 1 {last}", stdin=True)
        process = session["session"]["process_id"]
        readers = [self.attach(session, (Attach, AttachLines)[n % 2], timeout=200) for n in range(7)]
        self.attach(session)  # the eighth is attached and never reads: as good as dead
        slow = readers[0]
        done, errors = [], []

        def read(reader):
            try:
                if reader is slow:  # begins when all the others have everything
                    self.until(lambda: len(done) == 6, "the others to end", 200)
                self.assertEqual(reader.finish()["exit_code"], 0)
                self.assertEqual(reader.out.gaps, [])
                self.assertEqual(reader.out.data, expected)
                done.append(reader)
            except BaseException as error:  # noqa: B902 - told by the test's own thread
                errors.append(error)

        threads = [threading.Thread(target=read, args=(reader,)) for reader in readers]
        for thread in threads:
            thread.start()
        self.api.ok("POST", f"{self.sb.path}/processes/{process}/stdin?close=1", b"go\n")
        for thread in threads:
            thread.join(200)
        self.assertEqual(errors, [])
        self.assertEqual(len(done), 7)
        late = self.attach(session)
        self.assertEqual(late.finish()["exit_code"], 0)
        self.assertEqual(late.out.data, expected)

    def test_block_holds_the_command_back(self):
        # Much more than its journal, the connection's queue and the kernel's buffers hold: the command cannot end
        # before its only reader reads.
        session = self.sb.session("read go; yes 0123456 | head -c 33554432; echo over >&2", stdin=True, journal_mib=1)
        reader = self.attach(session)
        process = session["session"]["process_id"]
        self.api.ok("POST", f"{self.sb.path}/processes/{process}/stdin?close=1", b"go\n")
        reader.until(lambda: reader.out.offset > 0, "the first bytes")
        time.sleep(3)
        self.assertEqual(self.sb.process(process)["state"], "running")
        end = self.sb.output(process)[2]
        self.assertLess(end, 32 * MIB)
        self.assertEqual(reader.finish(120)["exit_code"], 0)
        self.assertEqual(reader.out.gaps, [])
        self.assertEqual(reader.out.data, b"0123456\n" * (4 * MIB))
        self.assertEqual(reader.err.data, b"over\n")

    def test_drop_oldest_does_not(self):
        session = self.sb.session("read go; yes 0123456 | head -c 16777216; echo over >&2", stdin=True, journal_mib=1,
                                  overflow="drop_oldest")
        reader = self.attach(session)
        process = session["session"]["process_id"]
        self.api.ok("POST", f"{self.sb.path}/processes/{process}/stdin?close=1", b"go\n")
        self.assertEqual(self.sb.result(process, 120)["stdout_bytes"], 16 * MIB)  # while nobody reads
        self.assertEqual(reader.finish(120)["exit_code"], 0)
        self.assertEqual(reader.out.offset, 16 * MIB)
        self.assertGreater(len(reader.out.gaps), 0)
        self.assertEqual(len(reader.out.data) + sum(end - start for start, end in reader.out.gaps), 16 * MIB)
        self.assertEqual(set(reader.out.data), set(b"0123456\n"))
        self.assertEqual(reader.err.data, b"over\n")

    @limit(400)
    def test_a_gib_without_a_newline(self):
        size = GIB_TEST_MIB * MIB
        session = self.sb.session(f"head -c {size} /dev/zero")
        reader = self.attach(session, timeout=380)
        reader.out.keep, reader.out.digest = False, hashlib.sha256()
        daemon = self.server.daemon()
        before, peak = daemon.memory()["Rss"], 0
        reader.ws.sock.settimeout(60)
        while reader.step():
            if reader.out.offset & 0xffffff < 0x40000:
                peak = max(peak, daemon.memory()["Rss"])
        self.assertEqual(reader.result["exit_code"], 0)
        self.assertEqual((reader.out.offset, reader.out.gaps), (size, []))
        expected = hashlib.sha256()
        for _ in range(GIB_TEST_MIB):
            expected.update(bytes(MIB))
        self.assertEqual(reader.out.digest.digest(), expected.digest())
        self.assertLess(peak - before, 24 * MIB)


class Bytes(StreamTest):
    def test_every_byte_both_ways(self):
        data = bytes(range(256)) * 64 + b"\r\n\n\n\r\0\0\xff\xfe\x80\n" + b"\n" * 100
        for make in (Attach, AttachLines):
            with self.subTest(form=make.__name__):
                session = self.sb.session(["cat"], stdin=True, start="now")
                process = session["session"]["process_id"]
                self.api.ok("POST", f"{self.sb.path}/processes/{process}/stdin?close=1", data)
                reader = self.attach(session, make)
                self.assertEqual(reader.finish()["exit_code"], 0)
                self.assertEqual(reader.out.data, data)

    def test_heredocs_and_many_lines(self):
        text = "cat <<'END'\n  $HOME `x` \\n\n\n\tTab\r\n'\"\nEND\nfor i in 1 2\ndo\n  echo \"line $i\"\ndone\n# end"
        wanted = b"  $HOME `x` \\n\n\n\tTab\r\n'\"\nline 1\nline 2\n"
        self.assertEqual(self.sb.exec(text).out, wanted)
        reader = self.attach(self.sb.session(text))
        reader.finish()
        self.assertEqual(reader.out.data, wanted)
        self.assertEqual(self.sb.exec(["sh", "-c", text]).out, wanted)


class Ends(StreamTest):
    @alone
    def test_the_end_comes_without_output(self):
        """From a command's end to the end of its stream, against the same with a last byte: no wait in between."""
        silent, loud = [], []
        for turn in range(12):
            for times, text in ((silent, "read go"), (loud, "read go; echo")):
                reader = self.attach(self.sb.session(["sh", "-c", text], stdin=True))
                reader.until(lambda: reader.pid, "started")
                begin = time.monotonic()
                reader.stdin("go\n")
                reader.finish()
                times.append(time.monotonic() - begin)
        self.assertLess(sorted(silent)[len(silent) // 2], 0.1)
        self.assertLess(sorted(silent)[len(silent) // 2], sorted(loud)[len(loud) // 2] + 0.1)

    def test_what_escaped_does_not_hold_the_end(self):
        begin = time.monotonic()
        reader = self.attach(self.sb.session("(setsid sleep 1000 &); echo x"))
        self.assertEqual(reader.finish()["exit_code"], 0)
        self.assertLess(time.monotonic() - begin, 5)


class TakeOver(StreamTest):
    def test_the_others_leave(self):
        session = self.sb.session("echo one; read x; echo got $x", stdin=True)
        first, lines = self.attach(session), self.attach(session, AttachLines)
        for reader in (first, lines):
            reader.until(lambda: reader.out.data == b"one\n", "the first line")
        second = self.attach(self.again(session["session"]["process_id"]), takeover=True)
        for reader in (first, lines):
            while reader.step():
                pass
            self.assertIsNone(reader.result)
        self.assertEqual((first.closed.code, first.closed.reason), (4001, "taken over"))
        self.assertEqual(lines.events[-1], {"type": "taken_over"})
        second.stdin("it\n")
        self.assertEqual(second.finish()["exit_code"], 0)
        self.assertEqual(second.out.data, b"one\ngot it\n")

    def test_lines_take_over_as_well_and_nobody_need_be_there(self):
        session = self.sb.session("sleep 2; echo end")
        first = self.attach(session)
        first.until(lambda: first.pid, "started")
        lines = self.attach(session, AttachLines, takeover=True)
        while first.step():
            pass
        self.assertEqual(first.closed.code, 4001)
        again = self.attach(session, takeover=True)
        while lines.step():
            pass
        self.assertEqual(lines.events[-1], {"type": "taken_over"})
        self.assertEqual(again.finish()["exit_code"], 0)
        self.assertEqual(self.attach(session, takeover=True).finish()["exit_code"], 0)  # it has ended already

    def test_another_process_is_left_alone(self):
        other = self.attach(self.sb.session("sleep 2; echo whole"))
        other.until(lambda: other.pid, "started")
        taken = self.attach(self.sb.session(["true"]), takeover=True)
        self.assertEqual(taken.finish()["exit_code"], 0)
        self.assertEqual(other.finish()["exit_code"], 0)

    def test_only_0_and_1(self):
        session = self.sb.session(["true"])
        self.api.problem("GET", f"/v1/attach/{session['session']['id']}?takeover=2&token=x", status=400)


class WriterGone(StreamTest):
    def test_stdin_stays_open(self):
        session = self.sb.session("while read x; do echo got $x; done; echo end", stdin=True)
        for n in range(3):
            writer = self.attach(session, stdout_offset=n * len("got 0\n"))
            writer.stdin(f"{n}\n")
            writer.expect(f"got {n}\n")
            writer.abort()
        process = session["session"]["process_id"]
        self.api.ok("POST", f"{self.sb.path}/processes/{process}/stdin?close=1", b"3\n")
        self.assertEqual(self.sb.result(process)["exit_code"], 0)
        self.assertEqual(self.sb.all_output(process), b"got 0\ngot 1\ngot 2\ngot 3\nend\n")

    def end_of_stdin(self, session):
        looker = self.attach(session, stdin=("end", "looker"))
        looker.until(lambda: any(event["type"] == "stdin" for event in looker.events), "where stdin ends")
        looker.ws.close()
        return next(event["next"] for event in looker.events if event["type"] == "stdin")

    def test_what_it_gave_arrives(self):
        # More than a pipe and the link hold, so that a part of it is with the server when the writer goes.
        data = os.urandom(700_000)
        session = self.sb.session("while [ ! -e /tmp/go1 ]; do usleep 10000; done; sha256sum", stdin=True)
        process = session["session"]["process_id"]
        writer = self.attach(session)
        writer.until(lambda: writer.pid, "started")  # unread, it would make the end a reset, which takes what is on its way
        writer.stdin(data)
        fd = writer.ws.sock.fileno()
        self.until(lambda: fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0" * 4) == b"\0" * 4, "all of it is on the server's side")
        writer.abort()
        self.until(lambda: self.end_of_stdin(session) == len(data), "the server has read all of it")
        self.sb.put("/tmp/go1", b"")
        self.api.ok("POST", f"{self.sb.path}/processes/{process}/stdin?close=1", b"")
        self.assertEqual(self.sb.result(process)["exit_code"], 0)
        self.assertEqual(self.sb.all_output(process).split()[0].decode(), hashlib.sha256(data).hexdigest())

    def test_close_when_asked_for(self):
        session = self.sb.session("cat; echo end", stdin=True, stdin_on_detach="close")
        process = session["session"]["process_id"]
        first, second = self.attach(session), self.attach(session)
        first.stdin("one\n")
        second.expect("one\n")
        first.abort()  # another writer is still there
        second.stdin("two\n")
        second.expect("two\n")
        second.stdin("three\n")
        second.ws.close()
        self.assertEqual(self.sb.result(process)["exit_code"], 0)
        self.assertEqual(self.sb.all_output(process), b"one\ntwo\nthree\nend\n")

    def test_a_take_over_is_no_end(self):
        session = self.sb.session("read x; echo got $x", stdin=True, stdin_on_detach="close")
        self.attach(session).until(lambda: True, "")
        second = self.attach(session, takeover=True)
        second.until(lambda: second.pid, "started")
        second.stdin("it\n")
        self.assertEqual(second.finish()["exit_code"], 0)
        self.assertEqual(second.out.data, b"got it\n")

    def test_a_terminal_hangs_up(self):
        for policy, ends in (("keep", False), ("close", True)):
            with self.subTest(policy=policy):
                session = self.sb.session(["sh", "-c", "trap 'echo HUP; exit 9' HUP; echo set; while :; do sleep 0.2; "
                                           "done"], pty={"rows": 24, "cols": 80}, stdin_on_detach=policy)
                process = session["session"]["process_id"]
                client = self.attach(session)
                client.expect("set")
                client.abort()
                if ends:
                    self.assertEqual(self.sb.result(process)["exit_code"], 9)
                    self.assertIn(b"HUP", self.sb.all_output(process))
                else:
                    time.sleep(2)
                    self.assertEqual(self.sb.process(process)["state"], "running")
                    self.api.ok("POST", f"{self.sb.path}/processes/{process}/signal", {"signal": "SIGHUP"})
                    self.assertEqual(self.sb.result(process)["exit_code"], 9)

    def test_refused_where_it_means_nothing(self):
        for body in ({"stdin_on_detach": "close"}, {"stdin": True, "stdin_on_detach": "drop"}):
            problem = self.api.problem("POST", f"{self.sb.path}/sessions", {"argv": ["true"], **body}, status=400)
            self.assertEqual(problem["field"], "stdin_on_detach")


class Alive(StreamTest):
    @limit(120)
    def test_a_silent_stream_says_something(self):
        """Lines: no silence of 15 s. A WebSocket: a ping every 30 s."""
        session = self.sb.session(["sleep", "35"])
        lines, ws = self.attach(session, AttachLines), self.attach(session)
        times = [time.monotonic()]
        while lines.step():
            times.append(time.monotonic())
        self.assertEqual(lines.result["exit_code"], 0)
        self.assertGreaterEqual(lines.pings, 2)
        self.assertLess(max(b - a for a, b in zip(times, times[1:])), 18)
        frames = []
        while 8 not in frames:  # the end; all of it has come by now
            frames.append(ws.ws.frame()[1])
        self.assertEqual(frames, [1, 9, 1, 8])  # started, ping, result


class Vanishing(OwnServerTest):
    """Clients on an address of the loopback network that becomes unreachable."""

    @limit(400)
    def test_dead_clients_are_dropped_and_slow_ones_kept(self):
        sb, gone = self.sandbox(), self.server.api
        gone.source = f"127.{random.randrange(64, 128)}.{random.randrange(256)}.{random.randrange(1, 255)}"
        session = sb.session("read go; yes 0123456 | head -c 67108864", stdin=True)
        idle = sb.session(["cat"], stdin=True)
        process = session["session"]["process_id"]

        def readers():
            text = self.api.ok("GET", "/metrics").body.decode()
            return int(next(line.split()[1] for line in text.splitlines() if line.startswith("space_readers ")))

        kept = Attach(self.api, session, timeout=300)  # alive, and does not read for long
        self.addCleanup(kept.abort)
        dead = [Attach(gone, session), AttachLines(gone, session), Attach(gone, idle), AttachLines(gone, idle)]
        self.assertEqual(readers(), 5)
        self.api.ok("POST", f"{sb.path}/processes/{process}/stdin?close=1", b"go\n")
        kept.until(lambda: kept.out.offset > 0, "output")
        route = ["blackhole", gone.source, "table", "local"]
        subprocess.run(["ip", "route", "add", *route], check=True)
        try:
            self.until(lambda: readers() == 1, "the dead to be dropped", 240)
        finally:
            subprocess.run(["ip", "route", "del", *route], check=True)
        self.assertEqual(kept.finish(120)["exit_code"], 0)
        self.assertEqual((kept.out.offset, kept.out.gaps), (64 * MIB, []))
        self.assertEqual(sb.process(idle["session"]["process_id"])["state"], "running")
        for one in dead:
            one.abort()
