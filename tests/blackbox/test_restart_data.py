"""The server ends in the middle of everything that goes through it: what was answered stays true, what was not is never
taken for whole, and whoever asks again gets every byte."""
import http.client
import io
import tarfile
import threading
import time

from harness.case import OwnServerTest, limit
from harness.files import query, workers
from harness.ws import Attach, AttachLines

LINES = 300
COUNT = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); usleep 20000; done"
WHOLE = b"".join(b"line %d\n" % n for n in range(LINES))
BIG = "".join(f"{n}\n" for n in range(1, 3_000_001)).encode()  # 22 MiB: more than anything on the way holds


class Input(OwnServerTest):
    """A 204 is the guest's word: behind it there is no hole, however the server ends."""

    PIECE = 20_000

    def give(self, sb, process, data, timeout):
        """POSTs pieces until one is not answered; returns how much was answered."""
        for at in range(0, len(data), self.PIECE):
            try:
                self.api.ok("POST", f"{sb.path}/processes/{process}/stdin", data[at:at + self.PIECE], status=204,
                            timeout=timeout)
            except TimeoutError:
                return at
        return len(data)

    @limit(300)
    def test_what_was_answered_is_given(self):
        # It reads a little, then nothing: the guest has taken much and has little room, so some waits in the server.
        command = ("while [ ! -e /tmp/a-{0} ]; do usleep 10000; done; dd bs=4096 count=10 iflag=fullblock 2>/dev/null; "
                   "while [ ! -e /tmp/b-{0} ]; do usleep 10000; done; cat")
        data = b"".join(b"%07d\n" % n for n in range(75_000))
        sb = self.sandbox()
        for how in ("kill", "terminate"):
            with self.subTest(how=how):
                process = sb.session(command.format(how), stdin=True, start="now")["session"]["process_id"]
                self.until(lambda: sb.process(process)["state"] == "running", "it runs")
                first = 6 * self.PIECE  # a pipe, and nearly as much as the agent holds
                self.assertEqual(self.give(sb, process, data[:first], 30), first)
                sb.put(f"/tmp/a-{how}", b"")
                self.until(lambda: sb.output(process)[2] == 40960, "it has read a little")
                answered = first + self.give(sb, process, data[first:], 3)
                self.assertLess(answered, len(data))
                getattr(self.server, how)()
                self.server.start()
                sb.api = self.api = self.server.api
                sb.put(f"/tmp/b-{how}", b"")
                self.api.ok("POST", f"{sb.path}/processes/{process}/stdin?close=1", b"the end", status=204)
                self.assertEqual(sb.result(process)["exit_code"], 0)
                given = sb.all_output(process)
                self.assertTrue(given.endswith(b"the end"), given[-20:])
                given = given[:-len(b"the end")]
                self.assertGreaterEqual(len(given), answered)
                self.assertEqual(given, data[:len(given)])


class Everything(OwnServerTest):
    def download(self, path):
        """A download that has begun and rests."""
        conn, response = self.api.stream("GET", path)
        self.addCleanup(conn.close)
        self.assertEqual(response.status, 200)
        return [response, response.read(100_000)]

    def upload(self, path, head, size):
        """An upload of `size` bytes of which the first have been sent."""
        conn = self.api.connect()
        self.addCleanup(conn.close)
        conn.putrequest("PUT", path)
        for name, value in self.api.headers({"Content-Length": str(size)}).items():
            conn.putheader(name, value)
        conn.endheaders()
        conn.send(head)
        return conn

    def broken(self, response, had):
        """It must not end as if it were whole."""
        try:
            while part := response.read(1 << 20):
                had += part
        except (http.client.IncompleteRead, OSError):
            return
        self.assertTrue(response.length, "it ended as if it were whole")  # what was announced and has not come

    def archive_of(self, name, data):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        return out.getvalue()

    def reader(self, sb, make):
        session = sb.session(COUNT)
        reader = make(self.api, session)
        self.addCleanup(reader.abort)
        reader.session = session
        while reader.out.offset < 100:
            reader.step()
        return reader

    def begin(self, sb):
        """Everything, in its middle."""
        sb.sh("mkdir -p /root/d /root/in; seq 1 3000000 > /root/d/big; printf old > /root/up", timeout=100)
        readers = [self.reader(sb, make) for make in (Attach, AttachLines)]
        ends = sb.session("echo up; (setsid sleep 4321 &); sleep 4321", start="now", timeout_s=6)
        return {"readers": readers, "ends": ends["session"]["process_id"],
                "down": self.download(sb.file("/root/d/big")),
                "unpacked": self.download(query(sb, "archive", "/root/d")),
                "up": self.upload(sb.file("/root/up"), b"n" * 1_500_000, 3_000_000),
                "in": self.upload(query(sb, "archive", "/root/in"), self.archive_of("cut", BIG)[:1_500_000], len(BIG))}

    def in_flight(self, sb):
        """An exec whose answer is cut; what came of it is added to the list."""
        came = []

        def ask():
            try:
                came.append(self.api.call("POST", f"{sb.path}/exec", {"shell": "echo begun >/tmp/begun; sleep 3; echo done"}))
            except (OSError, http.client.HTTPException) as error:
                came.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        self.until(lambda: self.api.call("GET", sb.file("/tmp/begun")).status == 200, "the command has begun")
        return asking, came

    def check(self, sb, had, came):
        for reader in had["readers"]:
            while self.steps(reader):
                pass
            self.assertIsNone(reader.result, "a result nobody could know")
        self.broken(*had["down"])
        self.broken(*had["unpacked"])
        for name in ("up", "in"):
            with self.assertRaises((http.client.HTTPException, OSError)):
                had[name].send(b"n" * 1_500_000)
                status = had[name].getresponse().status
                if status >= 500:
                    raise OSError("told")
        self.assertTrue(isinstance(came[0], Exception) or came[0].status >= 500, came)
        self.assertNotIn("result", str(came[0]))

    @staticmethod
    def steps(reader):
        try:
            return reader.step()
        except (OSError, http.client.HTTPException, AssertionError):
            return False

    def again(self, sb, had):
        """After the restart: nothing half is there, and all of it works again."""
        self.until(lambda: not workers(sb), "the guest has given up what nobody follows any more")
        self.assertEqual(sb.sh("cat /root/up; ls -A /root/in; ls -A /root"), "oldd\nin\nup\n")
        self.assertEqual(sb.read("/root/d/big"), BIG)
        with tarfile.open(fileobj=io.BytesIO(self.api.ok("GET", query(sb, "archive", "/root/d")).body)) as archive:
            self.assertEqual([archive.extractfile(one).read() for one in archive if one.isreg()], [BIG])
        processes = {one["id"]: one for one in self.api.pages(f"{sb.path}/processes")}
        for reader in had["readers"]:
            process = reader.session["session"]["process_id"]
            rest = type(reader)(self.api, reader.session, stdout_offset=reader.out.offset)
            self.assertEqual((rest.finish()["exit_code"], reader.out.data + rest.out.data), (0, WHOLE))
            self.assertEqual(sb.all_output(process), WHOLE)
        done = next(one for one in processes.values() if "begun" in str(one["argv"]))
        self.assertEqual((sb.result(done["id"])["exit_code"], sb.all_output(done["id"])), (0, b"done\n"))
        # Its deadline was the guest's: it came although nobody was there.
        result = sb.result(had["ends"])
        self.assertEqual((result["reason"], sb.all_output(had["ends"])), ("timeout", b"up\n"))
        commands = sb.sh("for p in /proc/[0-9]*/cmdline; do tr '\\000' ' ' < $p 2>/dev/null; echo; done")
        self.assertNotIn("sleep 4321", commands)
        self.assertIn("cmdline", commands)  # it looked

    def across(self, how):
        sb = self.sandbox()
        had = self.begin(sb)
        asking, came = self.in_flight(sb)
        begin = time.monotonic()
        getattr(self.server, how)()
        asking.join(30)
        self.check(sb, had, came)
        self.until(lambda: time.monotonic() - begin > 7, "the deadline of one command has passed")
        self.server.start()
        sb.api = self.api = self.server.api
        self.again(sb, had)

    def tearDown(self):
        if not self.server.alive():
            self.server.start()  # a failure in the middle
        super().tearDown()

    @limit(300)
    def test_it_is_killed(self):
        self.across("kill")

    @limit(300)
    def test_it_is_ended(self):
        self.across("terminate")
