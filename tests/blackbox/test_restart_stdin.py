"""The server is killed, or the connection breaks, in the middle of a command's input: whoever states where its bytes stand
comes back and gives the rest, and the command gets each byte once."""
import base64
import hashlib
import http.client
import os
import random
import subprocess
import threading
import time

from harness.case import OwnServerTest, limit
from harness.proxy import Cut, Proxy
from harness.server import program
from harness.ws import Attach, Closed, Refused

SEED = int(os.environ.get("SPACE_SEED", "20261201"))
# More than anything on the way holds, and some seconds of a guest.
SIZE = (48 if os.environ.get("SPACE_TEST_KVM") else 12) << 20


def numbered(size):
    """Bytes of which no two places look alike."""
    return b"".join(b"%015d\n" % n for n in range(size // 16))


class Writer:
    """A client that knows the protocol: keeps what is not known to be taken."""

    PIECE = 40_000
    KEPT = 1 << 20

    def __init__(self, session, data, name):
        self.session, self.data, self.name = session, data, name
        self.taken = self.sent = self.breaks = 0
        self.output = b""

    def events(self, attached):
        """Takes what the server has said about stdin; the offsets only grow, and never beyond what was sent."""
        for event in attached.events:
            if event["type"] == "stdin":
                assert event["offset"] >= self.taken, (event, self.taken)
                assert event["offset"] <= self.sent, (event, self.sent)
                self.taken = event["offset"]
        attached.events.clear()

    def connection(self, api):
        attached = Attach(api, self.session, stdout_offset=len(self.output), stdin=(self.taken, self.name))
        at = self.taken
        try:
            while at < len(self.data):
                while at - self.taken > self.KEPT:
                    if not attached.step():
                        return False
                    self.events(attached)
                piece = self.data[at:at + self.PIECE]
                self.sent = max(self.sent, at + len(piece))
                attached.stdin(piece)
                at += len(piece)
            attached.control(type="stdin_close")
            while attached.result is None:
                if not attached.step():
                    return False
                self.events(attached)
            return attached.result["exit_code"] == 0
        finally:
            self.output += attached.out.data
            attached.abort()

    def run(self, api, deadline):
        while time.monotonic() < deadline:
            try:
                if self.connection(api()):
                    return
            except (OSError, Closed):
                pass
            except Refused as refused:
                if refused.answer.status < 500:
                    raise
            self.breaks += 1
            time.sleep(0.2)
        raise AssertionError(f"not through; {self.taken} of {len(self.data)} were taken")


class Working:
    """Something done beside the test, whose failure is the test's."""

    def __init__(self, work):
        self.failure = None
        self.thread = threading.Thread(target=self.body, args=(work,))
        self.thread.start()

    def body(self, work):
        try:
            work()
        except BaseException as error:  # told by join, in the test's own thread
            self.failure = error

    def over(self):
        return not self.thread.is_alive()

    def join(self, timeout=170):
        self.thread.join(timeout)
        if self.failure:
            raise self.failure
        if not self.over():
            raise AssertionError("it is not done yet")


class Broken(OwnServerTest):
    """What the tests share."""

    KILLS = 3

    def setUp(self):
        super().setUp()
        self.random = random.Random(SEED)

    def tearDown(self):
        if not self.server.alive():
            self.server.start()
        super().tearDown()

    def kills(self, taken, over):
        """Kills the server and starts it again, each time when the guest has taken so many bytes; how often."""
        part = SIZE * 6 // 10 // self.KILLS  # it is seen late, and what is on the way goes on
        for count in range(self.KILLS):
            mark = count * part + self.random.randrange(part // 4, part)
            self.until(lambda mark=mark: over() or (taken() or 0) >= mark, f"{mark} bytes taken", 60)
            if over():
                return count
            self.server.kill()
            self.server.start()
            self.api = self.server.api
        return self.KILLS

    def given(self, data):
        """A file with this."""
        path = os.path.join(self.server.base, "input")
        with open(path, "wb") as out:
            out.write(data)
        return path

    def client(self, sb, given, url):
        """The command line tool, which gives a command the file."""
        environment = {"SPACE_URL": url, "SPACE_API_KEY": self.server.key, "HOME": "/root", "PATH": os.environ["PATH"]}
        with open(given, "rb") as stdin:
            client = subprocess.Popen([program("space"), "exec", "-i", sb.id, "--", "sha256sum"], stdin=stdin,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        self.addCleanup(client.kill)
        return client

    def taken(self, sb, turn):
        """How much the newest command, the sandbox's turn-th, certainly has."""
        known = list(self.api.pages(f"{sb.path}/processes"))
        return known[0]["stdin_offset"] if len(known) > turn else 0

    def check_digest(self, client, data):
        out, err = client.communicate(timeout=150)
        self.assertEqual((client.returncode, err), (0, b""))
        self.assertEqual(out.split()[0].decode(), hashlib.sha256(data).hexdigest())


class Killed(Broken):
    @limit(400)
    def test_a_client_of_the_protocol(self):
        sb = self.sandbox()
        data = numbered(SIZE)
        for turn in range(3):
            with self.subTest(turn=turn, seed=SEED):
                writer = Writer(sb.session(["sha256sum"], stdin=True), data, f"writer-{turn}")
                working = Working(lambda: writer.run(lambda: self.api, time.monotonic() + 150))
                killed = self.kills(lambda: writer.taken, working.over)
                working.join()
                self.assertEqual((killed, writer.breaks > 0), (self.KILLS, True))
                self.assertEqual(writer.output.split()[0].decode(), hashlib.sha256(data).hexdigest())
                sb.api = self.api
                process = sb.process(writer.session["session"]["process_id"])
                # What it had been heard to have when it ended: the last may have been in its hands unheard of.
                self.assertLessEqual(process["stdin_offset"], len(data))
                self.assertGreater(process["stdin_offset"], len(data) - (256 << 10))

    @limit(400)
    def test_the_command_line_tool(self):
        sb = self.sandbox()
        data = numbered(SIZE)
        given = self.given(data)
        for turn in range(3):
            with self.subTest(turn=turn, seed=SEED):
                client = self.client(sb, given, self.server.url)
                killed = self.kills(lambda turn=turn: self.taken(sb, turn), lambda: client.poll() is not None)
                self.check_digest(client, data)
                self.assertEqual(killed, self.KILLS)

    @limit(240)
    def test_a_commands_own_input(self):
        """It comes with the command, and nobody can give the rest of it: what has a part of it ends."""
        sb = self.sandbox()
        body = {"argv": ["sh", "-c", "sleep 3; wc -c"], "stdin_b64": base64.b64encode(bytes(700_000)).decode()}

        def client():
            with self.assertRaises((OSError, http.client.HTTPException)):
                self.api.ok("POST", f"{sb.path}/exec", body)

        working = Working(client)
        self.until(lambda: self.api.pages(f"{sb.path}/processes"), "the command is there")
        process = self.api.pages(f"{sb.path}/processes")[0]["id"]
        self.until(lambda: sb.process(process)["state"] == "running", "it is known to run")
        self.server.kill()
        working.join()
        self.server.start()
        sb.api = self.api = self.server.api
        self.until(lambda: sb.process(process)["state"] == "exited", "it has ended")
        result = sb.process(process)["result"]
        self.assertEqual((result["reason"], result["signal"]), ("signal", "SIGKILL"))
        self.assertEqual(sb.all_output(process), b"")

    def placed(self, session, offset, name):
        attached = Attach(self.api, session, stdin=(offset, name))
        self.addCleanup(attached.abort)
        return attached

    def told(self, attached, **expected):
        """Waits for the word on stdin that says this."""
        attached.until(lambda: any(event["type"] == "stdin" and expected.items() <= event.items()
                                   for event in attached.events), f"word of stdin: {expected}")

    def refused(self, session, offset, name, at):
        with self.assertRaises(Refused) as caught:
            self.placed(session, offset, name)
        answer = caught.exception.answer
        self.assertEqual((answer.status, answer.headers["x-space-stdin-end"]), (409, str(at)))

    @limit(240)
    def test_others_are_not_mixed_in(self):
        sb = self.sandbox()
        session = sb.session(["cat"], stdin=True)
        process = session["session"]["process_id"]
        first = self.placed(session, 0, "first")
        self.told(first, offset=0, next=0, closed=False)
        first.stdin("first one\n")
        self.told(first, offset=10)
        answer = self.api.ok("POST", f"{sb.path}/processes/{process}/stdin", b"post\n", status=204)
        self.assertEqual(answer.headers["x-space-stdin-offset"], "15")
        first.stdin("first two\n")
        while first.step():
            pass
        self.assertEqual((first.closed.code, first.events[-1]["type"], first.events[-1]["next"]),
                         (4002, "stdin_conflict", 15))
        self.refused(session, 10, "first", 15)
        self.server.kill()
        self.server.start()
        sb.api = self.api = self.server.api
        self.until(lambda: sb.process(process)["stdin_offset"] == 15, "the guest has said what it has")
        self.refused(session, 10, "first", 15)  # whose bytes those are outlives the server
        self.refused(session, 16, "first", 15)
        second = self.placed(session, "end", "second")
        self.told(second, offset=15, next=15)
        second.stdin("second\n")
        self.told(second, offset=22)
        first = self.placed(session, 22, "first")
        self.told(first, offset=22)
        first.stdin("first two\n")
        self.told(first, offset=32)
        first.control(type="stdin_close")
        self.assertEqual(first.finish()["exit_code"], 0)
        self.assertEqual(sb.all_output(process), b"first one\npost\nsecond\nfirst two\n")
        self.assertEqual(sb.process(process)["stdin_offset"], 32)

    @limit(120)
    def test_the_end_is_told(self):
        """Also when it comes after all bytes were told, and to a command that does not read."""
        sb = self.sandbox()
        writer = self.placed(sb.session(["sleep", "100"], stdin=True), 0, "one")
        writer.stdin("abc")
        self.told(writer, offset=3, closed=False)
        writer.control(type="stdin_close")
        self.told(writer, offset=3, closed=True)

    @limit(120)
    def test_more_than_is_kept(self):
        """Two clients leave more than the server keeps; what it has kept fits into what a suspend keeps."""
        sb = self.sandbox()
        session = sb.session("head -c 16384 > /dev/null; sleep 100", stdin=True)
        for _ in range(2):
            writer = Attach(self.api, session, timeout=2)
            with self.assertRaises(OSError):  # it is held back
                for _ in range(20):
                    writer.stdin(bytes((1 << 20) - 1))  # the largest message: the rest of one is waited for
            writer.abort()
        sb.verb("suspend")
        self.assertTrue(self.server.alive())
        sb.verb("restore")
        self.assertEqual(sb.process(session["session"]["process_id"])["state"], "running")

    @limit(240)
    def test_over_a_suspend_and_a_rollback(self):
        sb = self.sandbox()
        session = sb.session(["cat"], stdin=True)
        process = session["session"]["process_id"]
        writer = self.placed(session, 0, "one")
        writer.stdin("before\n")
        self.told(writer, offset=7)
        made = self.api.ok("POST", f"{sb.path}/snapshots", {}, status=202).json
        self.api.wait_operation(made["operation"])
        snapshot = made["snapshot"]["id"]
        writer.stdin("between\n")
        self.told(writer, offset=15)
        sb.verb("suspend")
        while writer.step():
            pass
        self.assertEqual([writer.events[-1][name] for name in ("type", "stdin_offset", "stdin_end")],
                         ["suspended", 15, 15])
        self.assertEqual(sb.process(process)["stdin_offset"], 15)
        sb.verb("restore")
        writer = self.placed(session, 7, "one")  # its own bytes
        writer.stdin("between\nlater\n")
        self.told(writer, offset=21)
        sb.verb("rollback", {"snapshot_id": snapshot})
        while writer.step():
            pass
        self.assertEqual(writer.events[-1]["type"], "rolled_back")
        self.until(lambda: sb.process(process)["stdin_offset"] == 7, "the guest has said what it has")
        self.refused(session, 21, "one", 7)
        writer = self.placed(session, 7, "one")
        writer.stdin("again\n")
        writer.control(type="stdin_close")
        self.assertEqual(writer.finish()["exit_code"], 0)
        self.assertEqual(sb.all_output(process), b"before\nagain\n")


class Cuts(Broken):
    """Connections break, and the server lives: it has more of the input than it had told, and says so to who comes back before
    the command is heard to run."""

    CUTS = 12

    def cut(self):
        """After some input, or about when the client hears where it is; the first connection has to begin, that is all."""
        how = {"reset": self.random.random() < 0.6, "apart": self.random.random() < 0.3}
        if self.random.random() < 0.3:
            return Cut(down=self.random.randrange(1, 400), **how)
        return Cut(up=self.random.randrange(1, 3 << 19), **how)

    def proxy(self):
        cuts = [Cut(up=self.random.randrange(4096, 3 << 19)), *(self.cut() for _ in range(1, self.CUTS))]
        proxy = Proxy(lambda: self.server.port, b"GET /v1/attach/", cuts)
        self.addCleanup(proxy.close)
        return proxy

    @limit(300)
    def test_the_connection_breaks(self):
        sb = self.sandbox()
        data = numbered(SIZE)
        given = self.given(data)
        for turn in range(3):
            with self.subTest(turn=turn, seed=SEED):
                proxy = self.proxy()
                self.check_digest(self.client(sb, given, proxy.url), data)
                self.assertEqual(proxy.made, self.CUTS)

    @limit(400)
    def test_it_breaks_and_the_server_is_killed(self):
        sb = self.sandbox()
        data = numbered(SIZE)
        given = self.given(data)
        for turn in range(2):
            with self.subTest(turn=turn, seed=SEED):
                proxy = self.proxy()
                client = self.client(sb, given, proxy.url)
                killed = self.kills(lambda turn=turn: self.taken(sb, turn), lambda: client.poll() is not None)
                self.check_digest(client, data)
                self.assertEqual((killed, proxy.made > self.CUTS // 3), (self.KILLS, True))
