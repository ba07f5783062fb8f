"""Watches: every change is told, or it is said that some were lost; and why a watch ends."""
import socket
import threading
import time

from harness.api import Events
from harness.case import OwnServerTest, SharedSandboxTest, SpaceTest, limit
from harness.files import query, raw, workers


class Watch(Events):
    """Events of a watch that stands: `ready` has come."""

    def __init__(self, sb, path, timeout=60, **more):
        super().__init__(sb.api, query(sb, "watch", path, **more), timeout=timeout)
        self.ready = self.next()
        assert self.ready["event"] == "ready", self.ready

    def until_path(self, path, limit=100000):
        """Events up to the first about this path; with it."""
        seen = []
        for _ in range(limit):
            event = self.next()
            assert event is not None, f"the watch ended before {path}: {seen[-3:]}"
            seen.append(event)
            if event["data"].get("path") == path:
                return seen
        raise AssertionError(f"no event about {path}")

    def rest(self):
        """All that still comes; the end last."""
        seen = []
        while (event := self.next()) is not None:
            seen.append(event)
        return seen


def brief(events):
    return [(event["event"], event["data"]["path"], event["data"].get("type")) for event in events]


class Changes(SharedSandboxTest):
    def setUp(self):
        super().setUp()
        self.sb.sh("chmod 755 /root; rm -rf /root/w; mkdir /root/w")

    def test_kinds(self):
        self.sb.sh("cd /root/w; echo old > old; mkdir d; echo x > d/x")
        with Watch(self.sb, "/root/w", recursive=1) as watch:
            self.assertEqual(watch.ready["data"], {"path": "/root/w"})
            self.sb.sh("cd /root/w; echo new > new; echo more >> old; chmod 600 old; mkdir d/sub; mv new d/sub/moved; "
                       "rm d/x; ln -s x link; mv d/sub/moved /root/outside; mv /root/outside back; : > last")
            seen = watch.until_path("/root/w/last")
        events = brief(seen)
        for wanted in (("created", "/root/w/new", "file"), ("modified", "/root/w/old", "file"),
                       ("attributes", "/root/w/old", "file"), ("created", "/root/w/d/sub", "directory"),
                       ("moved", "/root/w/new", "file"), ("removed", "/root/w/d/x", "file"),
                       ("created", "/root/w/link", "file"), ("removed", "/root/w/d/sub/moved", "file"),
                       ("created", "/root/w/back", "file")):
            self.assertIn(wanted, events)
        moved = next(event for event in seen if event["event"] == "moved")
        self.assertEqual(moved["data"]["to"], "/root/w/d/sub/moved")
        self.assertEqual(len([e for e in events if e[0] == "created"]), len({e for e in events if e[0] == "created"}),
                         "a creation came twice")
        self.assertTrue(all(set(event["data"]) <= {"path", "to", "type"} for event in seen))

    def test_only_what_is_asked_for(self):
        self.sb.sh("mkdir /root/w/d")
        with Watch(self.sb, "/root/w") as watch:
            self.sb.sh("cd /root/w; echo x > d/inside; echo y > direct; : > last")
            events = brief(watch.until_path("/root/w/last"))
        self.assertIn(("created", "/root/w/direct", "file"), events)
        self.assertFalse([event for event in events if event[1] == "/root/w/d/inside"])

    def test_a_file(self):
        self.sb.sh("echo 1 > /root/w/f; echo 1 > /root/w/g")
        with Watch(self.sb, "/root/w/f") as watch:
            self.sb.sh("echo 2 > /root/w/g; echo 2 >> /root/w/f; rm /root/w/f")
            events = watch.rest()
        self.assertIn(("modified", "/root/w/f", "file"), brief(events[:-1]))
        self.assertEqual((events[-1]["event"], events[-1]["data"]["reason"]), ("end", "removed"))

    @limit(300)
    def test_a_thousand_files_in_new_nested_directories(self):
        with Watch(self.sb, "/root/w", recursive=1, timeout=120) as watch:
            self.sb.sh("cd /root/w; i=0; while [ $i -lt 100 ]; do d=a$((i%10))/b$i/c/d; mkdir -p $d; cd $d; "
                       "touch 0 1 2 3 4 5 6 7 8 9; cd /root/w; i=$((i+1)); done; : > last", timeout=100)
            events = brief(watch.until_path("/root/w/last"))
        self.assertFalse([event for event in events if event[0] == "overflow"])
        created = [path for kind, path, _ in events if kind == "created"]
        self.assertEqual(len(created), len(set(created)), "a creation came twice")
        wanted = set(self.sb.sh("find /root/w -mindepth 1").split())
        self.assertEqual(len(wanted), 10 + 3 * 100 + 1000 + 1)
        self.assertEqual(wanted - set(created), set(), "lost")
        self.assertEqual(set(created), wanted)

    @limit(300)
    def test_a_tree_that_is_moved_in_and_one_that_is_unpacked(self):
        self.sb.sh("rm -rf /root/tree; mkdir -p /root/tree/x/y; touch /root/tree/x/y/z /root/tree/1")
        with Watch(self.sb, "/root/w", recursive=1) as watch:
            self.sb.sh("mv /root/tree /root/w/tree; : > /root/w/tree/x/y/late; : > /root/w/last")
            created = [path for kind, path, _ in brief(watch.until_path("/root/w/last")) if kind == "created"]
        self.assertIn("/root/w/tree", created)
        self.assertIn("/root/w/tree/x/y/late", created)

    def test_ready_comes_before_the_first_change(self):
        """A client that acts on `ready` misses nothing, however soon it acts."""
        for turn in range(10):
            with Watch(self.sb, "/root/w", recursive=1) as watch:
                self.sb.put(f"/root/w/f{turn}", b"x")
                while True:
                    data = watch.next()["data"]
                    if data.get("to", data["path"]) == f"/root/w/f{turn}":
                        break

    def test_what_is_written_over_http(self):
        with Watch(self.sb, "/root/w") as watch:
            self.sb.put("/root/w/put", b"x")
            self.sb.sh(": > /root/w/last")
            events = watch.until_path("/root/w/last")
        told = [event["data"].get("to", event["data"]["path"]) for event in events
                if event["event"] in ("created", "moved")]
        self.assertIn("/root/w/put", told)

    def test_names_of_any_bytes(self):
        with Watch(self.sb, "/root/w") as watch:
            self.sb.sh("cd /root/w; : > \"$(printf 'a\\377')\"; mv \"$(printf 'a\\377')\" \"$(printf 'b\\n\\376')\"; : > last")
            events = watch.until_path("/root/w/last")
        created = next(event for event in events if event["event"] == "created")
        moved = next(event for event in events if event["event"] == "moved")
        self.assertEqual(raw(created["data"]), b"/root/w/a\xff")
        self.assertEqual(raw(moved["data"], "to"), b"/root/w/b\n\xfe")
        self.sb.exec("cd /root; mkdir \"$(printf 'w/\\377')\"")
        with Watch(self.sb, b"/root/w/\xff") as watch:
            self.assertEqual(raw(watch.ready["data"]), b"/root/w/\xff")
            self.sb.sh("cd /root/w; : > \"$(printf '\\377')\"/in")
            self.assertEqual(raw(watch.next()["data"]), b"/root/w/\xff/in")

    def test_errors(self):
        self.sb.sh("mkdir -m 700 /root/w/secret; : > /root/w/f")
        for path, status, slug, more in (("/root/none", 404, "no_such_file", {}),
                                         ("/root/w/f/x", 409, "not_directory", {}),
                                         ("/root/w/secret/x", 403, "permission_denied", {"user": "user"}),
                                         ("relative", 400, "invalid_request", {}),
                                         ("/root/w", 400, "invalid_request", {"recursive": "all"}),
                                         ("/root/w", 400, "unknown_field", {"depth": 2})):
            with self.subTest(path=path, **more):
                self.api.problem("GET", query(self.sb, "watch", path, **more), status=status, slug=slug)

    def test_the_end_of_what_is_watched(self):
        with Watch(self.sb, "/root/w", recursive=1) as watch:
            self.sb.sh("mkdir /root/w/d; rm -r /root/w")
            events = watch.rest()
        self.assertEqual((events[-1]["event"], events[-1]["data"]["reason"]), ("end", "removed"))
        self.assertIn(("removed", "/root/w/d", "directory"), brief(events[:-1]))

    @limit(120)
    def test_pings(self):
        with Watch(self.sb, "/root/w") as watch:
            self.assertEqual(watch.response.readline(), b": ping\n")
            self.assertEqual(watch.response.readline(), b"\n")
            self.sb.sh(": > /root/w/f")
            self.assertEqual(watch.next()["data"]["path"], "/root/w/f")

    def test_at_most_sixteen_and_no_trace(self):
        watches = [Watch(self.sb, "/root/w") for _ in range(16)]
        try:
            self.api.problem("GET", query(self.sb, "watch", "/root/w"), status=429, slug="capacity")
            self.sb.sh(": > /root/w/f")
            for watch in watches:
                self.assertEqual(watch.next()["data"], {"path": "/root/w/f", "type": "file"})
        finally:
            for watch in watches:
                watch.close()
        self.until(lambda: not workers(self.sb), "a watch that nobody follows ends in the guest")
        Watch(self.sb, "/root/w").close()


class Slow(SpaceTest):
    @limit(400)
    def test_overflow_is_told_to_who_does_not_read(self):
        sb = self.sandbox()
        # The kernel's own queue is made small, so that this takes seconds, not minutes.
        sb.sh("mkdir -p /root/w/" + "d" * 200 + "; echo 200 > /proc/sys/fs/inotify/max_queued_events")
        daemon = self.server.daemon()
        conn = self.api.connect(120)
        conn.sock = socket.socket()
        conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        conn.sock.settimeout(120)
        conn.sock.connect((self.api.host, self.api.port))
        conn.request("GET", query(sb, "watch", "/root/w", recursive=1), headers=self.api.headers())
        response = conn.getresponse()
        self.assertEqual(response.status, 200)
        before, peak = daemon.memory()["Rss"], 0
        for _ in range(12):
            sb.sh("cd /root/w/d*; i=0; while [ $i -lt 1500 ]; do : > " + "n" * 150 + "$i; i=$((i+1)); done; rm -f n*",
                  timeout=100)
            peak = max(peak, daemon.memory()["Rss"])
        self.assertLess(peak - before, 8 << 20)
        # It reads now: what was kept, then the word that more was lost.
        sb.sh(": > /root/w/last")
        text = b""
        while b"event: overflow" not in text or b'/root/w/last"' not in text:
            part = response.read1(1 << 16)
            self.assertTrue(part, text[-500:])
            text = (text + part)[-200000:] if b"event: overflow" not in text else text + part
            if len(text) > 40 << 20:
                self.fail("no overflow was told")
            if b"event: overflow" in text and b'/root/w/last"' not in text:
                # What came after the loss may have been lost too; new changes are told again.
                sb.sh("rm -f /root/w/last; : > /root/w/last")
        response.close()
        conn.close()
        self.until(lambda: not workers(sb), "it ends in the guest")

    def test_a_client_that_vanishes(self):
        sb = self.sandbox()
        sb.sh("mkdir /root/w")
        for _ in range(20):
            watch = Watch(sb, "/root/w", recursive=1)
            watch.close()
        self.until(lambda: not workers(sb), "none is left")


class Ends(SpaceTest):
    """Why a watch ends is told by its last event."""

    def watch(self, sb):
        sb.sh("mkdir -p /root/w")
        watch = Watch(sb, "/root/w", timeout=120)
        self.addCleanup(watch.close)
        return watch

    def end(self, watch):
        events = watch.rest()
        self.assertTrue(events, "it ended without an event")
        self.assertEqual(events[-1]["event"], "end")
        self.assertEqual(set(events[-1]["data"]), {"reason", "detail"})
        return events[-1]["data"]["reason"], events[:-1]

    @limit(300)
    def test_suspend_and_again(self):
        sb = self.sandbox(lifecycle={"auto_wake": True})
        watch = self.watch(sb)
        sb.sh(": > /root/w/before")
        sb.verb("suspend")
        reason, events = self.end(watch)
        self.assertEqual(reason, "suspended")
        self.assertIn(("created", "/root/w/before", "file"), brief(events))
        # Asking again wakes the sandbox.
        watch = Watch(sb, "/root/w", timeout=120)
        sb.sh(": > /root/w/after")
        self.assertEqual(watch.next()["data"]["path"], "/root/w/after")
        watch.close()

    @limit(300)
    def test_rollback(self):
        sb = self.sandbox()
        sb.sh("mkdir -p /root/w")
        operation = self.api.ok("POST", f"{sb.path}/snapshots", {"name": "point"}).json["operation"]
        snapshot = self.api.wait_operation(operation)["result"]["snapshot_id"]
        watch = self.watch(sb)
        sb.verb("rollback", {"snapshot_id": snapshot})
        self.assertEqual(self.end(watch)[0], "rolled_back")

    @limit(300)
    def test_stop_and_delete(self):
        sb = self.sandbox()
        watch = self.watch(sb)
        sb.verb("stop")
        self.assertEqual(self.end(watch)[0], "stopped")
        sb.verb("start")
        watch = self.watch(sb)
        sb.delete()
        self.assertEqual(self.end(watch)[0], "sandbox_gone")

    @limit(300)
    def test_pause_sends_nobody_away(self):
        sb = self.sandbox()
        watch = self.watch(sb)
        sb.verb("pause")
        sb.verb("resume")
        sb.sh(": > /root/w/f")
        self.assertEqual(watch.next()["data"]["path"], "/root/w/f")

    @limit(300)
    def test_a_watch_keeps_no_sandbox_awake(self):
        sb = self.sandbox(lifecycle={"idle_timeout_s": 3, "on_idle": "pause", "auto_wake": True})
        watch = self.watch(sb)
        self.wait_state(sb, "paused", 60)
        # It goes on when the sandbox does.
        sb.sh(": > /root/w/f")
        self.assertEqual(watch.next()["data"]["path"], "/root/w/f")


class Restart(OwnServerTest):
    @limit(300)
    def test_a_server_that_ends_says_no_reason(self):
        """A broken answer without `end` is a lost connection: the client asks again."""
        sb = self.sandbox()
        sb.sh("mkdir -p /root/w")
        watch = Watch(sb, "/root/w", timeout=60)
        failed = []

        def read():
            try:
                while (event := watch.next()) is not None:
                    failed.append(event)
            except Exception:  # noqa: B902 - however the client notices
                pass

        reader = threading.Thread(target=read)
        reader.start()
        self.server.restart()
        reader.join(60)
        self.assertFalse(reader.is_alive())
        self.assertEqual([event for event in failed if event["event"] == "end"], [])
        watch.close()
        sb.api = self.server.api
        begin = time.monotonic()
        with Watch(sb, "/root/w") as again:
            self.assertLess(time.monotonic() - begin, 60)
            sb.sh(": > /root/w/f")
            self.assertEqual(again.next()["data"]["path"], "/root/w/f")
        self.until(lambda: not workers(sb), "none is left of the first one either")
