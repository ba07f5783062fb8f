"""Sessions and attach: WebSocket and NDJSON, stdin, terminals, offsets, tokens, one result."""
import hashlib
import threading

from harness.case import OwnServerTest, SharedSandboxTest, SpaceTest, limit
from harness.ws import TEXT, Attach, AttachLines, Closed, Refused, WebSocket, attach_path


class SessionTest(SharedSandboxTest):
    def attach(self, session, **kw):
        attached = Attach(self.api, session, **kw)
        self.addCleanup(attached.abort)
        return attached

    def lines(self, session, **kw):
        attached = AttachLines(self.api, session, **kw)
        self.addCleanup(attached.abort)
        return attached

    def refused(self, session, status, slug, make=None, **kw):
        with self.assertRaises(Refused) as caught:
            (make or self.attach)(session, **kw)
        answer = caught.exception.answer
        self.assertEqual(answer.status, status, answer)
        self.assertEqual(answer.json["type"], f"urn:space:error:{slug}")


class Basics(SessionTest):
    def test_first_attach_starts_the_process(self):
        session = self.sb.session(["echo", "hello"])
        process = session["session"]["process_id"]
        self.assertEqual(self.sb.process(process)["state"], "created")
        attached = self.attach(session)
        result = attached.finish()
        self.assertEqual((result["reason"], result["exit_code"]), ("exit", 0))
        self.assertEqual((attached.out.data, attached.err.data), (b"hello\n", b""))
        self.assertEqual([e["type"] for e in attached.events], ["started", "result"])
        self.assertEqual(self.sb.process(process)["pid"], attached.pid)

    def test_answer(self):
        answer = self.sb.session(["true"])
        self.assertEqual(set(answer), {"session", "attach"})
        self.assertTrue(answer["session"]["id"].startswith("se_"))
        self.assertTrue(answer["session"]["process_id"].startswith("pr_"))
        self.assertEqual(answer["session"]["sandbox_id"], self.sb.id)
        self.assertRecent(answer["session"]["created_at"])
        self.assertRecent(answer["attach"]["expires_at"])
        self.assertIn(answer["session"]["id"], answer["attach"]["url"])
        self.assertNotIn(answer["attach"]["token"], str(self.server.log_bytes()))

    def test_start_now_runs_without_a_client(self):
        session = self.sb.session("echo alone; exit 4", start="now")
        self.assertEqual(self.sb.result(session["session"]["process_id"])["exit_code"], 4)
        attached = self.attach(session)
        self.assertEqual(attached.finish()["exit_code"], 4)
        self.assertEqual(attached.out.data, b"alone\n")

    def test_ndjson(self):
        session = self.sb.session(r"printf 'a\000\377\n'; echo err >&2; exit 5")
        attached = self.lines(session)
        result = attached.finish()
        self.assertEqual((result["reason"], result["exit_code"]), ("exit", 5))
        self.assertEqual((attached.out.data, attached.err.data), (b"a\x00\xff\n", b"err\n"))

    def test_bearer_token(self):
        session = self.sb.session(["echo", "x"])
        self.assertEqual(self.attach(session, bearer=True).finish()["exit_code"], 0)

    def test_start_failed(self):
        attached = self.attach(self.sb.session(["/no/such"]))
        result = attached.finish()
        self.assertEqual(result["reason"], "start_failed")
        self.assertIn("/no/such", result["message"])

    def test_neither_upgrade_nor_ndjson(self):
        session = self.sb.session(["true"])
        path = attach_path(session, 0, 0, session["attach"]["token"])
        answer = self.server.anonymous.call("GET", path)
        self.assertIn(answer.status, (200, 400, 406, 415, 426), answer)
        self.assertNotEqual(answer.status, 500)

    def test_wrong_subprotocol(self):
        session = self.sb.session(["true"])
        with self.assertRaises((Refused, AssertionError)):
            self.attach(session, protocol="chat")


class Stdin(SessionTest):
    def test_echo_and_half_close(self):
        attached = self.attach(self.sb.session("cat; echo end", stdin=True))
        attached.stdin("one\n")
        attached.expect("one\n")
        attached.stdin(b"\x00\xff two\n")
        attached.expect(b"\x00\xff two\n")
        attached.control(type="stdin_close")
        self.assertEqual(attached.finish()["exit_code"], 0)
        self.assertEqual(attached.out.data, b"one\n\x00\xff two\nend\n")

    def test_closed_by_default(self):
        attached = self.attach(self.sb.session(["wc", "-c"]))
        attached.finish()
        self.assertEqual(attached.out.data.strip(), b"0")

    def test_four_mebibytes_through_cat(self):
        data = b"".join(b"%07d\n" % n for n in range(512 * 1024))
        attached = self.attach(self.sb.session(["cat"], stdin=True), timeout=170)

        def feed():
            for at in range(0, len(data), 60000):
                attached.stdin(data[at:at + 60000])
            attached.control(type="stdin_close")

        feeder = threading.Thread(target=feed)
        feeder.start()
        self.assertEqual(attached.finish(170)["exit_code"], 0)
        feeder.join()
        self.assertEqual(hashlib.sha256(attached.out.data).digest(), hashlib.sha256(data).digest())

    def test_stdin_to_a_command_that_does_not_read(self):
        attached = self.attach(self.sb.session("exec <&-; sleep 1; echo fine", stdin=True))
        attached.stdin(b"x" * 100000)
        self.assertEqual(attached.finish()["exit_code"], 0)
        self.assertEqual(attached.out.data, b"fine\n")

    def test_signal_over_the_socket(self):
        attached = self.attach(self.sb.session("trap 'echo int; exit 7' INT; echo set; while :; do sleep 1; done"))
        attached.expect("set\n")
        attached.control(type="signal", signal="SIGINT")
        self.assertEqual(attached.finish()["exit_code"], 7)


class Terminal(SessionTest):
    def test_size_resize_and_controlling_terminal(self):
        attached = self.attach(self.sb.session("stty size; tty; trap 'stty size' WINCH; echo set; "
                                               "while :; do read x && [ \"$x\" = q ] && exit 6; done",
                                               pty={"rows": 33, "cols": 77}, stdin=True))
        attached.expect("33 77")
        attached.expect("set")
        self.assertIn(b"/dev/pts/", attached.out.data)
        attached.control(type="resize", rows=40, cols=100)
        attached.stdin("\n")
        attached.expect("40 100")
        attached.stdin("q\n")
        self.assertEqual(attached.finish()["exit_code"], 6)
        self.assertEqual(attached.err.data, b"")

    def test_control_c_reaches_the_foreground(self):
        attached = self.attach(self.sb.session(["sh", "-c", "trap 'echo INT; exit 3' INT; echo ready; "
                                                "while :; do sleep 1; done"], pty={"rows": 24, "cols": 80}, stdin=True))
        attached.expect("ready")
        attached.stdin(b"\x03")
        self.assertEqual(attached.finish()["exit_code"], 3)

    def test_term_and_locale(self):
        attached = self.attach(self.sb.session("echo $TERM; echo $LANG", pty={"rows": 24, "cols": 80,
                                                                            "term": "vt100"}))
        attached.finish()
        self.assertIn(b"vt100", attached.out.data)
        self.assertIn(b"UTF-8", attached.out.data.upper())

    def test_bad_sizes(self):
        for pty in ({"rows": 0, "cols": 80}, {"rows": 24}, {"rows": 24, "cols": 70000}, {"rows": "24", "cols": 80},
                    [], {"rows": 24, "cols": 80, "colour": 1}):
            with self.subTest(pty=pty):
                self.api.problem("POST", f"{self.sb.path}/sessions", {"argv": ["sh"], "pty": pty}, status=400)


class Reattach(SessionTest):
    COUNT = "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); usleep 5000; done"
    WHOLE = b"".join(b"line %d\n" % n for n in range(300))

    def test_from_the_offset_after_a_lost_connection(self):
        session = self.sb.session(self.COUNT)
        first = self.attach(session)
        first.until(lambda: first.out.offset > 200, "some output")
        first.abort()
        second = self.attach(session, stdout_offset=first.out.offset)
        self.assertEqual(second.finish()["exit_code"], 0)
        self.assertEqual(first.out.data + second.out.data, self.WHOLE)

    def test_from_the_middle_and_the_end_of_a_finished_process(self):
        session = self.sb.session(["printf", "0123456789"], start="now")
        self.sb.result(session["session"]["process_id"])
        for offset, data in ((0, b"0123456789"), (4, b"456789"), (10, b"")):
            for attach in (self.attach, self.lines):
                with self.subTest(offset=offset, form=attach.__name__):
                    attached = attach(session, stdout_offset=offset)
                    self.assertEqual(attached.finish()["exit_code"], 0)
                    self.assertEqual(attached.out.data, data)

    def test_beyond_the_end(self):
        session = self.sb.session(["printf", "x"], start="now")
        self.sb.result(session["session"]["process_id"])
        try:
            attached = self.attach(session, stdout_offset=5000)
        except Refused as refused:
            self.assertEqual(refused.answer.status, 416, refused.answer)
        else:
            with self.assertRaises(AssertionError):
                attached.finish()
            self.assertNotEqual(attached.closed.code, 1000)

    def test_two_readers_each_get_everything_and_one_result(self):
        session = self.sb.session(self.COUNT)
        readers = [self.attach(session), self.lines(session), self.attach(session)]
        results = [None] * 3

        def read(n):
            results[n] = readers[n].finish()

        threads = [threading.Thread(target=read, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for reader, result in zip(readers, results):
            self.assertIsNotNone(result)
            self.assertEqual(result["exit_code"], 0)
            self.assertEqual(reader.out.data, self.WHOLE)

    def test_a_reader_that_does_not_read_harms_nobody(self):
        session = self.sb.session("seq 1 400000", start="attach")
        slow = self.attach(session)
        quick = self.attach(session, timeout=170)
        self.assertEqual(quick.finish(170)["exit_code"], 0)
        expected = "".join(f"{n}\n" for n in range(1, 400001)).encode()
        self.assertEqual(quick.out.data, expected)
        self.assertEqual(self.sb.sh("echo free"), "free\n")
        self.assertEqual(slow.finish(170)["exit_code"], 0)
        self.assertEqual(slow.out.data, expected)

    def test_disconnecting_does_not_end_the_process(self):
        session = self.sb.session("echo one; sleep 2; echo two")
        first = self.attach(session)
        first.expect("one")
        first.abort()
        self.assertEqual(self.sb.result(session["session"]["process_id"])["reason"], "exit")

    def test_a_further_session_for_a_process(self):
        session = self.sb.session("echo before; read x; echo got $x", stdin=True, start="now")
        process = session["session"]["process_id"]
        more = self.api.ok("POST", f"{self.sb.path}/processes/{process}/sessions", {}, status=201).json
        self.assertEqual(more["session"]["process_id"], process)
        self.assertNotEqual(more["session"]["id"], session["session"]["id"])
        self.assertNotEqual(more["attach"]["token"], session["attach"]["token"])
        attached = self.attach(more)
        attached.expect("before")
        attached.stdin("it\n")
        self.assertEqual(attached.finish()["exit_code"], 0)
        self.assertEqual(attached.out.data, b"before\ngot it\n")

    def test_pause_and_resume_lose_nothing(self):
        sb = self.sandbox()
        attached = self.attach(sb.session(self.COUNT))
        attached.until(lambda: attached.out.offset > 100, "some output")
        sb.verb("pause")
        sb.verb("resume")
        try:
            self.assertEqual(attached.finish()["exit_code"], 0)
            whole = attached.out.data
        except AssertionError:
            # The channel may have been closed by the pause, without a result; then a new attach goes on.
            self.assertIsNone(attached.result)
            session = self.api.ok("POST", f"{sb.path}/processes/"
                                  f"{self.api.pages(sb.path + '/processes')[0]['id']}/sessions", {}).json
            again = self.attach(session, stdout_offset=attached.out.offset)
            self.assertEqual(again.finish()["exit_code"], 0)
            whole = attached.out.data + again.out.data
        self.assertEqual(whole, self.WHOLE)


class Journals(SessionTest):
    def test_a_small_journal_drops_the_oldest_and_counts_it(self):
        session = self.sb.session("seq 1 400000", start="now", journal_mib=1)
        process = session["session"]["process_id"]
        result = self.sb.result(process, 120)
        expected = "".join(f"{n}\n" for n in range(1, 400001)).encode()
        self.assertEqual(result["stdout_bytes"], len(expected))
        attached = self.attach(session)
        attached.finish()
        self.assertEqual(len(attached.out.gaps), 1, attached.out.gaps)
        start, end = attached.out.gaps[0]
        self.assertEqual(start, 0)
        self.assertLessEqual(len(expected) - end, 2 * 1048576)
        self.assertGreater(len(expected) - end, 200_000)
        self.assertEqual(attached.out.data, expected[end:])

    @limit(240)
    def test_64_mebibytes_unless_asked_for(self):
        size, kept = 66 << 20, 64 << 20
        session = self.sb.session(f"yes 0123456 | head -c {size}; echo err >&2", start="now")
        process = session["session"]["process_id"]
        self.assertEqual(self.sb.result(process, 200)["stdout_bytes"], size)
        data, first, end = self.sb.output(process, limit=1)
        self.assertEqual((end, data), (size, b"0123456\n"[first % 8:first % 8 + 1]))
        self.assertTrue(kept - kept // 32 <= end - first <= kept, (first, end))  # the oldest go in steps
        self.assertEqual(self.sb.all_output(process, "stderr"), b"err\n")  # each stream has its own

    def test_sizes_out_of_range(self):
        for size in (0, -1, 10**9, "1", 1.5):
            with self.subTest(size=size):
                self.api.problem("POST", f"{self.sb.path}/sessions", {"argv": ["true"], "journal_mib": size},
                                 status=400)


class Tokens(SessionTest):
    def test_wrong_tokens(self):
        session = self.sb.session(["true"])
        other = self.sb.session(["true"])
        for token in ("x", "", session["attach"]["token"][:-1], session["attach"]["token"] + "0",
                      other["attach"]["token"], self.server.key):
            for make in (self.attach, self.lines):
                with self.subTest(token=token[:6], form=make.__name__):
                    self.refused(session, 401, "unauthorized", make, token=token)
        self.assertEqual(self.sb.process(session["session"]["process_id"])["state"], "created")

    def test_unknown_session(self):
        session = self.sb.session(["true"])
        session["attach"]["url"] = session["attach"]["url"].replace(session["session"]["id"], "se_000000000000000000")
        with self.assertRaises(Refused) as caught:
            self.attach(session)
        self.assertIn(caught.exception.answer.status, (401, 404))

    def test_deleted_sandbox(self):
        sb = self.sandbox()
        running = sb.session(["sleep", "1000"])
        attached = self.attach(running)
        attached.until(lambda: attached.pid, "started")
        fresh = sb.session(["true"])
        sb.delete()
        while attached.step():
            pass
        if attached.result is None:
            self.assertEqual(attached.closed.code, 1011)
        else:
            self.assertEqual(attached.result["reason"], "sandbox_gone")
        self.refused(fresh, 410, "sandbox_gone")
        process = sb.process(running["session"]["process_id"])
        self.assertEqual(process["result"]["reason"], "sandbox_gone")

    def test_the_session_belongs_to_one_sandbox(self):
        other = self.sandbox()
        process = self.sb.session(["true"])["session"]["process_id"]
        self.api.problem("GET", f"{other.path}/processes/{process}", status=404, slug="not_found")
        self.api.problem("POST", f"{other.path}/processes/{process}/sessions", {}, status=404, slug="not_found")


class Messages(SessionTest):
    """What a client may not send ends its connection, not the process."""

    def bad(self, send):
        session = self.sb.session("sleep 2; echo survived", stdin=True)
        attached = self.attach(session)
        attached.until(lambda: attached.pid, "started")
        send(attached.ws)
        while attached.step():
            pass
        again = self.attach(session)
        self.assertEqual(again.finish()["exit_code"], 0)
        self.assertEqual(again.out.data, b"survived\n")
        return attached.closed.code

    def test_not_json(self):
        self.assertIn(self.bad(lambda ws: ws.send(TEXT, "{")), (1002, 1003, 1007, 1008, 1000))

    def test_unknown_type(self):
        self.assertIn(self.bad(lambda ws: ws.send(TEXT, '{"type":"explode"}')), (1002, 1003, 1008, 1000))

    def test_unknown_channel(self):
        self.assertIn(self.bad(lambda ws: ws.send(2, b"\x09x")), (1002, 1003, 1008, 1000))

    def test_invalid_utf8_in_text(self):
        self.assertIn(self.bad(lambda ws: ws.send(TEXT, b"\xff\xfe")), (1002, 1007, 1006))

    def test_unmasked_frame(self):
        self.assertIn(self.bad(lambda ws: ws.sock.sendall(b"\x81\x02{}")), (1002, 1006))

    def test_huge_message(self):
        def send(ws):
            try:
                ws.sock.sendall(b"\x82\xff" + (1 << 40).to_bytes(8, "big") + b"\0\0\0\0" + b"x" * 100000)
            except OSError:
                pass

        self.assertIn(self.bad(send), (1009, 1002, 1006))


class ShortTokens(OwnServerTest):
    """A server whose session tokens expire soon."""

    config = {"token_ttl_s": 10}

    def test_expired(self):
        sb = self.sandbox()
        session = sb.session(["echo", "late"])

        def expired():
            try:
                attached = Attach(self.api, session)
            except Refused as refused:
                return refused.answer
            attached.abort()
            return None

        answer = self.until(expired, "the token to expire")
        self.assertEqual(answer.status, 401, answer)
        self.assertEqual(answer.json["type"], "urn:space:error:token_expired")

    def test_an_open_attachment_outlives_its_token(self):
        sb = self.sandbox()
        attached = Attach(self.api, sb.session("sleep 12; echo whole"))
        self.assertEqual(attached.finish()["exit_code"], 0)
        self.assertEqual(attached.out.data, b"whole\n")


class WebSocketLimits(SpaceTest):
    def test_upgrade_on_another_route_is_refused(self):
        with self.assertRaises(Refused) as caught:
            WebSocket(self.api.host, self.api.port, "/v1/sandboxes", "space.attach.v1", self.api.headers())
        self.assertNotEqual(caught.exception.answer.status, 500)

    def test_ping_is_answered(self):
        sb = self.sandbox()
        attached = Attach(self.api, sb.session(["sleep", "5"]))
        attached.until(lambda: attached.pid, "started")
        attached.ws.send(9, b"are you there")
        final, opcode, data = attached.ws.frame()
        self.assertEqual((final, opcode, data), (True, 10, b"are you there"))
        attached.ws.close()
        with self.assertRaises(Closed):
            while True:
                attached.ws.receive()
