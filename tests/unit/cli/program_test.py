#!/usr/bin/env python3
"""The client as a program, against a stand-in for the server."""
import io
import json
import os
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_case import SPACE, STARTED, Case, problem, result
from fake_server import Stdin


class Statuses(Case):
    def test_statuses_by_problem(self):
        for status, slug, code in ((404, "not_found", 3), (409, "conflict", 4), (400, "invalid_request", 1),
                                   (503, "unavailable", 1), (410, "sandbox_gone", 1)):
            self.server.answers[("GET", "/v1/sandboxes/sb_x")] = (
                status, problem(status, slug, field="a.b", operation_id="op_9"), {})
            r = self.space("get", "sb_x")
            self.assertEqual(r.returncode, code, slug)
            self.assertEqual(r.stderr, b"space: T: d (field a.b) (operation op_9)\n")
            self.assertEqual(r.stdout, b"")

    def test_usage(self):
        for words in (["nope"], ["get"], ["run"], ["exec", "sb_1"], ["cp", "a", "b"], ["cp", "x:y", "b"],
                      ["kill", "-s", "SIGFOO", "sb_1", "pr_1"], ["template", "build", "x"], ["attach", "se_1"],
                      ["attach", "one"], ["create", "-m", "novalue"], ["run", "--tty", "true"], ["snapshot"], ["rollback", "sb_1"],
                      ["fork"], ["fork", "-n", "0", "sb_1"], ["fork", "-n", "101", "sb_1"],
                      ["fork", "-m", "novalue", "sb_1"], ["fork", "--on-idle", "pause:", "sb_1"],
                      ["create", "--snapshot", "sn_1", "-t", "seed"], ["run", "--snapshot", "x", "-t", "y", "z"],
                      ["create", "--on-idle", "pause:x"], ["create", "--on-idle", "pause:0"],
                      ["create", "--on-idle", ":5"], ["create", "--on-idle", "pause:5,"],
                      ["create", "--on-idle", "pause:5,suspend"], ["create", "--on-idle", "a:5:6"],
                      ["create", "--on-idle", "pause:99999999999999999999999999"],
                      ["create", "--on-expiry", "pause"], ["snapshots", "a", "b"]):
            self.assertEqual(self.space(*words).returncode, 2, words)
        self.assertEqual(self.server.requests, [])

    def test_unreachable(self):
        self.server.close()
        self.env["SPACE_URL"] = "http://127.0.0.1:1"
        r = self.space("ls")
        self.assertEqual(r.returncode, 5)
        self.assertIn(b"127.0.0.1:1", r.stderr)
        self.assertIn(b"SPACE_URL", r.stderr)
        self.assertEqual(self.space("run", "true").returncode, 5)

    def test_the_missing_key_is_asked_for(self):
        self.server.answers[("GET", "/v1/sandboxes/sb_x")] = (401, problem(401, "unauthorized"), {})
        r = self.space("get", "sb_x")
        self.assertEqual(r.returncode, 1)
        self.assertIn(b"SPACE_API_KEY", r.stderr)

    def test_what_a_beginner_types(self):
        for words, says in ((["template"], b"after `space template` comes one of: build, ls, get, "),
                            (["template", "-o", "json"], b"after `space template` comes one of: build, ls, get, "),
                            (["template", "-o", "json", "ls"], b"after `space template` comes one of: build, ls, get, "),
                            (["template", "lss"], b"after `space template` comes one of: build, ls, get, "),
                            (["help", "key", "nope"], b"no command is called 'key nope'"),
                            (["create", "--memroy", "1"], b"unknown option --memroy; see `space help create`\n"),
                            (["template", "ls", "-q"], b"unknown option -q; see `space help template ls`\n"),
                            (["--nope"], b"unknown option --nope; see `space help`\n")):
            r = self.space(*words)
            self.assertEqual(r.returncode, 2)
            self.assertIn(says, r.stderr)

    def test_a_sandbox_where_a_process_is_due(self):
        for words in (["logs", "sb_x"], ["kill", "demo"], ["process", "get", "demo"]):
            r = self.space(*words)
            self.assertEqual(r.returncode, 3)
            self.assertIn(f"'{words[-1]}' is no process (pr_...); `space ps -a SANDBOX`".encode(), r.stderr)
        self.assertEqual(self.server.requests, [])

    def test_the_commands_of_a_group(self):
        for words in (["help", "template"], ["template", "--help"], ["-h", "template"]):
            r = self.space(*words)
            self.assertEqual((r.returncode, r.stderr), (0, b""))
            self.assertIn(b"  template ls       List templates.\n", r.stdout)
            self.assertIn(b"`space help template COMMAND`", r.stdout)
            self.assertNotIn(b"op ls", r.stdout)

    def test_key_and_idempotency(self):
        self.space("create")
        post = self.server.requests[0]
        self.assertEqual(post[2]["authorization"], "Bearer sk_test")
        self.assertEqual(len(post[2]["idempotency-key"]), 32)
        self.assertEqual(json.loads(post[3]), {"template": "seed:latest"})

    def test_resources(self):
        self.space("create", "--cpus", "2", "--memory", "1G", "--disk", "3G", "--disk-mib-per-s", "40", "--disk-iops", "0")
        self.assertEqual(json.loads(self.server.requests[0][3])["resources"],
                         {"vcpus": 2, "memory_mib": 1024, "disk_mib": 3072, "disk_mib_per_s": 40, "disk_iops": 0})

    def test_key_file(self):
        del self.env["SPACE_API_KEY"]
        with tempfile.NamedTemporaryFile() as f:
            f.write(b"sk_file\n")
            f.flush()
            self.env["SPACE_KEY_FILE"] = f.name
            self.assertEqual(self.space("ls").returncode, 0)
        self.assertEqual(self.server.requests[0][2]["authorization"], "Bearer sk_file")
        self.env["SPACE_KEY_FILE"] = "/nonexistent"
        self.assertEqual(self.space("ls").returncode, 3)

    def test_post_is_repeated_once_with_its_key(self):
        answers = [(None, None, {}), (202, {"sandbox": {"id": "sb_1"}, "operation": {"id": "op_1"}}, {})]
        self.server.answers[("POST", "/v1/sandboxes")] = lambda q, b: answers.pop(0)
        self.assertEqual(self.space("create").returncode, 0)
        keys = [r[2]["idempotency-key"] for r in self.server.requests if r[0] == "POST"]
        self.assertEqual(len(keys), 2)
        self.assertEqual(keys[0], keys[1])

    def test_failed_operation(self):
        self.server.operation.update(status="failed", error=problem(429, "capacity", "No capacity"))
        r = self.space("create")
        self.assertEqual(r.returncode, 1)
        self.assertIn(b"create failed: No capacity: d", r.stderr)
        self.assertEqual(self.space("op", "wait", "op_1").returncode, 1)
        self.server.operation["progress"] = {"phase": "done", "percent": None}
        self.assertNotIn(b"done", self.space("op", "wait", "--progress", "op_1").stderr)
        r = self.space("run", "true")
        self.assertEqual(r.returncode, 1)
        self.assertIn("/v1/sandboxes/sb_1", self.paths("DELETE"))

    def test_full_output_is_a_failure(self):
        with open("/dev/full", "wb") as full:
            self.assertEqual(subprocess.run([SPACE, "help"], stdout=full, stderr=subprocess.DEVNULL,
                                            env=self.env).returncode, 1)


class Lists(Case):
    def test_pages_and_escapes(self):
        pages = {None: {"items": [{"id": "sb_a", "name": "\x1b]0;x\x07", "state": "running"}], "next_cursor": "c 1"},
                 "c 1": {"items": [{"id": "sb_b", "name": "b", "state": "paused"}], "next_cursor": None}}
        self.server.answers[("GET", "/v1/sandboxes")] = lambda q, b: (200, pages[q.get("cursor")], {})
        r = self.space("ls", "--state", "a b", "-m", "k=v&w")
        self.assertEqual(r.returncode, 0)
        self.assertNotIn(b"\x1b", r.stdout)
        self.assertEqual([line.split()[0] for line in r.stdout.splitlines()], [b"ID", b"sb_a", b"sb_b"])
        self.assertIn("metadata.k=v%26w", self.server.requests[0][1])
        self.assertIn("state=a%20b", self.server.requests[0][1])
        r = self.space("ls", "-o", "json")
        self.assertEqual([i["id"] for i in json.loads(r.stdout)["items"]], ["sb_a", "sb_b"])
        self.server.answers[("GET", "/v1/sandboxes/sb_1")] = (400, problem(400, "invalid_request", field="a\x1b]0;x"), {})
        r = self.space("get", "sb_1")
        self.assertIn(b"(field a?]0;x)", r.stderr)

    def test_names_are_looked_up(self):
        self.assertEqual(self.space("get", "one").returncode, 0)
        self.assertEqual(self.space("get", "two").returncode, 3)
        two = {"items": [{"id": "sb_1", "name": "one"}, {"id": "sb_2", "name": "one"}], "next_cursor": None}
        self.server.answers[("GET", "/v1/sandboxes")] = (200, two, {})
        self.assertEqual(self.space("get", "one").returncode, 4)

    def test_tags_are_words(self):
        items = [{"name": "seed", "tags": [{"tag": "latest", "digest": "sha256:a"}, {"tag": "v1", "digest": "d"}]}]
        self.server.answers[("GET", "/v1/templates")] = (200, {"items": items, "next_cursor": None}, {})
        self.assertEqual(self.space("template", "ls").stdout.split(), [b"NAME", b"TAGS", b"seed", b"latest", b"v1"])
        self.assertEqual(json.loads(self.space("template", "ls", "-o", "json").stdout)["items"], items)

    def test_events_resume(self):
        def events(query, body):
            if "since" not in query:
                return 200, b"id: 1\nevent: e\ndata: {\"time\":\"t\",\"sandbox_id\":\"sb_1\"}\n\n", {}
            return 200, b"id: 2\nevent: e\ndata: {\"n\":2}\n\n", {}
        self.server.answers[("GET", "/v1/events")] = events
        r = self.space("events", "-n", "2", "-o", "json")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual([json.loads(line)["id"] for line in r.stdout.splitlines()], ["1", "2"])
        self.assertIn("/v1/events?since=1", self.paths("GET"))


class Lifecycle(Case):
    def lifecycle(self, *options):
        self.server.requests.clear()
        self.assertEqual(self.space("create", *options).returncode, 0)
        return json.loads(self.server.requests[0][3]).get("lifecycle")

    def test_options(self):
        self.assertEqual(self.lifecycle("--idle-timeout", "60", "--on-idle", "suspend", "--auto-wake"),
                         {"idle_timeout_s": 60, "on_idle": "suspend", "auto_wake": True})
        self.assertEqual(self.lifecycle("--on-idle", "pause:300,suspend:3600"),
                         {"on_idle": [{"after_s": 300, "do": "pause"}, {"after_s": 3600, "do": "suspend"}]})
        self.assertEqual(self.lifecycle("--on-idle", "delete:5"), {"on_idle": [{"after_s": 5, "do": "delete"}]})
        self.assertEqual(self.lifecycle("--max-lifetime", "9", "--on-expiry", "suspend"),
                         {"max_lifetime_s": 9, "on_expiry": "suspend"})
        self.assertIsNone(self.lifecycle())

    def test_what_is_wrong_is_told(self):
        self.assertIn(b"ACTION:SECONDS", self.space("create", "--on-idle", "pause:5,suspend").stderr)

    def test_an_object_in_the_table(self):
        self.server.answers[("GET", "/v1/sandboxes/sb_1")] = (200, {
            "id": "sb_1", "template": {"ref": "t:1", "deep": {"er": [1]}}, "metadata": {}, "expires_at": None, "env": {"a\nid": ""},
            "name": "two\nlines"}, {})
        lines = self.space("get", "sb_1").stdout.decode().splitlines()
        self.assertEqual([line.split() for line in lines[:7]], [
            ["id", "sb_1"], ["template.ref", "t:1"], ["template.deep", '{"er":[1]}'], ["metadata", "{}"],
            ["expires_at", "-"], ["env.a", "id"], ["name", '"two\\nlines"']])
        self.assertEqual(lines[1], "template.ref   t:1")

    def test_a_template_in_tables(self):
        self.server.answers[("GET", "/v1/templates/t")] = (200, {
            "name": "t", "tags": [{"tag": "a", "digest": "sha256:1"}],
            "releases": [{"id": "tp_1", "source": {"kind": "tar"}, "disk_mib": 9, "digest": "sha256:1"}]}, {})
        out = self.space("template", "get", "t").stdout
        self.assertIn(b"a    sha256:1\n\nRELEASE", out)
        self.assertIn(b"tp_1     tar     9 ", out)
        self.assertIn(b'"releases": [', self.space("template", "get", "t", "-o", "json").stdout)

    def test_verbs(self):
        for verb in ("suspend", "restore"):
            r = self.space(verb, "one")
            self.assertEqual((r.returncode, r.stdout), (0, b"sb_1\n"))
            self.assertEqual(self.paths("POST").pop(), f"/v1/sandboxes/sb_1/{verb}")
            self.assertEqual(self.space(verb, "--no-wait", "sb_1").stdout, b"op_1\n")

    def test_history_in_the_table(self):
        r = self.space("get", "one")
        self.assertEqual(r.returncode, 0)
        head, _, table = r.stdout.decode().partition("\n\n")
        self.assertIn("state", head)
        self.assertEqual(table.splitlines()[0].split(), ["TIME", "FROM", "TO", "OPERATION", "REASON"])
        self.assertEqual(table.splitlines()[1].split(None, 4),
                         ["2026-01-02T03:04:05.678Z", "running", "paused", "-", "a request"])
        self.assertNotIn("items", json.loads(self.space("get", "-o", "json", "one").stdout))

    def test_no_history(self):
        for answer in ((404, problem(404, "not_found"), {}), (200, {"items": [], "next_cursor": None}, {})):
            self.server.answers[("GET", "/v1/sandboxes/sb_1/history")] = answer
            r = self.space("get", "one")
            self.assertEqual((r.returncode, r.stderr), (0, b""))
            self.assertNotIn(b"REASON", r.stdout)
        self.server.answers[("GET", "/v1/sandboxes/sb_1/history")] = (503, problem(503, "unavailable"), {})
        self.assertEqual(self.space("get", "one").returncode, 1)


class Snapshots(Case):
    def body(self, path):
        return json.loads([r for r in self.server.requests if r[0] == "POST" and r[1] == path][-1][3])

    def test_made(self):
        self.server.operation.update(kind="snapshot", result={"snapshot_id": "sn_1", "bytes": 7})
        r = self.space("snapshot", "one")
        self.assertEqual((r.returncode, r.stdout), (0, b"sn_1\n"), r.stderr)
        self.assertEqual(self.body("/v1/sandboxes/sb_1/snapshots"), {"kind": "full"})
        r = self.space("snapshot", "-o", "json", "--name", "before", "--disk", "sb_1")
        self.assertEqual(json.loads(r.stdout)["name"], "before")
        self.assertEqual(self.body("/v1/sandboxes/sb_1/snapshots"), {"kind": "disk", "name": "before"})
        self.assertEqual(self.space("snapshot", "--no-wait", "sb_1").stdout, b"op_1\n")

    def test_an_answer_without_the_snapshot(self):
        self.assertEqual(self.space("snapshot", "sb_1").returncode, 1)

    def test_failure(self):
        self.server.operation.update(kind="snapshot", status="failed", error=problem(507, "no_space", "No space left"))
        r = self.space("snapshot", "sb_1")
        self.assertEqual((r.returncode, r.stdout), (1, b""))
        self.assertIn(b"snapshot failed: No space left", r.stderr)

    def test_listed(self):
        for words, path in ((["snapshots"], "/v1/snapshots"), (["snapshots", "one"], "/v1/sandboxes/sb_1/snapshots")):
            r = self.space(*words)
            self.assertEqual(r.stdout.splitlines()[1].split()[:6], [b"sn_1", b"before", b"sb_1", b"full", b"ready", b"7"])
            self.assertTrue(self.paths("GET")[-1].startswith(path), self.paths("GET"))
        self.assertEqual(self.space("snapshots", "two").returncode, 3)

    def test_shown_and_removed(self):
        self.assertIn(b"before", self.space("snapshot", "get", "sn_1").stdout)
        self.assertEqual(json.loads(self.space("snapshot", "get", "-o", "json", "before").stdout)["id"], "sn_1")
        self.assertEqual(self.space("snapshot", "rm", "sn_1", "before").returncode, 0)
        self.assertEqual(self.paths("DELETE"), ["/v1/snapshots/sn_1"] * 2)
        self.server.answers[("DELETE", "/v1/snapshots/sn_1")] = (409, problem(409, "conflict"), {})
        self.assertEqual(self.space("snapshot", "rm", "sn_1", "absent").returncode, 4)

    def test_a_sandbox_called_rm(self):
        rm = {"items": [{"id": "sb_1", "name": "rm"}], "next_cursor": None}
        self.server.answers[("GET", "/v1/sandboxes")] = (200, rm, {})
        self.space("snapshot", "--disk", "rm")
        self.assertEqual(self.paths("POST"), ["/v1/sandboxes/sb_1/snapshots"])

    def test_rollback(self):
        for snapshot in ("sn_1", "before"):
            r = self.space("rollback", "one", snapshot)
            self.assertEqual((r.returncode, r.stdout), (0, b"sb_1\n"), r.stderr)
            self.assertEqual(self.body("/v1/sandboxes/sb_1/rollback"), {"snapshot_id": "sn_1"})
        self.assertEqual(self.space("rollback", "one", "absent").returncode, 3)
        two = {"items": [{"id": "sn_1", "name": "x"}, {"id": "sn_2", "name": "x"}], "next_cursor": None}
        self.server.answers[("GET", "/v1/sandboxes/sb_1/snapshots")] = (200, two, {})
        r = self.space("rollback", "one", "x")
        self.assertEqual(r.returncode, 4)
        self.assertIn(b"several snapshots are called x", r.stderr)

    def test_create_from_one(self):
        for name in ("sn_1", "before"):
            self.assertEqual(self.space("create", "--snapshot", name, "--name", "copy").returncode, 0)
            self.assertEqual(self.body("/v1/sandboxes"), {"snapshot": "sn_1", "name": "copy"})
        self.assertEqual(self.space("create", "--snapshot", "absent").returncode, 3)
        self.server.scripts = [[STARTED, result(exit_code=0), ("close", 1000)]]
        self.assertEqual(self.space("run", "--no-stdin", "--snapshot", "before", "true").returncode, 0)
        self.assertEqual(self.body("/v1/sandboxes"), {"snapshot": "sn_1"})


class Fork(Case):
    def finish(self, *children):
        self.server.operation.update(kind="fork", result={"children": list(children)})

    def test_children(self):
        self.finish({"sandbox_id": "sb_2", "error": None}, {"sandbox_id": "sb_3", "error": None})
        r = self.space("fork", "-n", "2", "--name", "c", "-m", "a=b", "--on-idle", "pause:9", "--no-wait", "one")
        self.assertEqual((r.returncode, r.stdout), (0, b"op_1\n"), r.stderr)
        self.assertEqual(json.loads(self.server.requests[-1][3]),
                         {"count": 2, "name": "c", "metadata": {"a": "b"},
                          "lifecycle": {"on_idle": [{"after_s": 9, "do": "pause"}]}})
        r = self.space("fork", "one")
        self.assertEqual((r.returncode, r.stdout), (0, b"sb_2\nsb_3\n"), r.stderr)
        post = [r for r in self.server.requests if r[0] == "POST"][-1]
        self.assertEqual((post[1], json.loads(post[3])), ("/v1/sandboxes/sb_1/fork", {}))
        r = self.space("fork", "-o", "json", "one")
        self.assertEqual(len(json.loads(r.stdout)["children"]), 2)

    def test_one_that_did_not_come_up(self):
        self.finish({"sandbox_id": "sb_2", "error": None},
                    {"sandbox_id": "sb_3", "error": problem(429, "capacity", "No capacity\x1b")},
                    {"sandbox_id": None, "error": None})
        r = self.space("fork", "-n", "3", "sb_1")
        self.assertEqual((r.returncode, r.stdout), (1, b"sb_2\n"))
        self.assertIn(b"sb_3: No capacity?: d", r.stderr)
        self.assertIn(b"2 of 3 children did not come up", r.stderr)
        r = self.space("fork", "-o", "json", "sb_1")
        self.assertEqual(r.returncode, 1)
        self.assertEqual(len(json.loads(r.stdout)["children"]), 3)

    def test_no_result(self):
        self.finish()
        self.server.operation.update(result=None)
        self.assertEqual(self.space("fork", "sb_1").returncode, 1)


class Run(Case):
    def test_streams_and_status(self):
        everything = bytes(range(256)) * 300
        self.server.scripts = [[STARTED, ("out", 0, everything), ("err", 0, b"\x00\xff\r\n"),
                                ("out", len(everything), b"end"), result(exit_code=3), ("close", 1000)]]
        r = self.space("run", "-t", "tiny", "-e", "A=b", "--", "cmd", "-x")
        self.assertEqual(r.returncode, 3)
        self.assertEqual(r.stdout, everything + b"end")
        self.assertEqual(r.stderr, b"\x00\xff\r\n")
        self.assertEqual(self.paths("DELETE"), ["/v1/sandboxes/sb_1"])
        self.assertEqual(self.server.attaches[0]["authorization"], "Bearer tok1")
        body = json.loads([r for r in self.server.requests if r[1].endswith("/sessions")][0][3])
        self.assertEqual(body, {"argv": ["cmd", "-x"], "stdin": True})
        create = json.loads(self.server.requests[0][3])
        self.assertEqual(create, {"template": "tiny", "env": {"A": "b"}})

    def test_other_ends(self):
        for end, code in ((result("signal", signal="SIGKILL"), 137), (result("timeout"), 124),
                          (result("start_failed", message="no such file: nope"), 127),
                          (result("sandbox_gone"), 125), (result("oom_killed"), 137)):
            self.server.scripts = [[STARTED, end, ("close", 1000)]]
            r = self.space("run", "--no-stdin", "--keep", "x")
            self.assertEqual(r.returncode, code)
            if code == 127:
                self.assertIn(b"space: the command did not start: no such file: nope\n", r.stderr)
        self.assertEqual(self.paths("DELETE"), [])

    def test_fragments_and_pings(self):
        whole = b"\x01" + struct.pack(">Q", 0) + b"abcdef"
        self.server.scripts = [[STARTED, ("fragments", [whole[:1], whole[1:5], whole[5:11], whole[11:]]),
                                result(exit_code=0), ("close", 1000)]]
        r = self.space("exec", "sb_1", "x")
        self.assertEqual((r.returncode, r.stdout), (0, b"abcdef"))

    def test_large_messages_in_little_memory(self):
        block = os.urandom(1 << 20) * 16
        script = [STARTED]
        for i in range(16):
            script.append(("out", i * len(block), block))
        self.server.scripts = [script + [result(exit_code=0), ("close", 1000)]]
        p = self.start("exec", "sb_1", "x")
        total = 0
        peak = 0
        while True:
            data = p.stdout.read(1 << 20)
            if not data:
                break
            total += len(data)
            with open(f"/proc/{p.pid}/status") as f:
                for line in f:
                    if line.startswith("VmHWM"):
                        peak = max(peak, int(line.split()[1]))
        self.assertEqual(p.wait(), 0, p.stderr.read())
        self.assertEqual(total, 16 * len(block))
        if not os.environ.get("ASAN_OPTIONS"):
            self.assertLess(peak, 40000)
        p.stdout.close()
        p.stderr.close()

    def test_stdin_is_forwarded_and_closed(self):
        data = os.urandom(300000)
        self.server.scripts = [[STARTED, ("until", lambda m: isinstance(m, str) and "stdin_close" in m),
                                result(exit_code=0), ("close", 1000)]]
        r = self.space("exec", "sb_1", "x", input=data)
        self.assertEqual(r.returncode, 0, r.stderr)
        sent = b"".join(m[1:] for m in self.server.received if isinstance(m, bytes) and m[:1] == b"\0")
        self.assertEqual(sent, data)

    def test_dropped_bytes_are_told(self):
        self.server.scripts = [[STARTED, ("json", {"type": "gap", "stream": "stdout", "from": 0, "to": 10}),
                                ("out", 10, b"x"), ("out", 20, b"y"), result(exit_code=0), ("close", 1000)]]
        r = self.space("exec", "sb_1", "x")
        self.assertEqual((r.returncode, r.stdout), (0, b"xy"))
        self.assertIn(b"10 bytes of stdout were dropped", r.stderr)
        self.assertIn(b"9 bytes of stdout were dropped", r.stderr)

    def test_result_file(self):
        with tempfile.TemporaryDirectory() as d:
            self.server.scripts = [[STARTED, result(exit_code=0), ("close", 1000)]]
            path = os.path.join(d, "result.json")
            self.assertEqual(self.space("exec", "--result-file", path, "sb_1", "x").returncode, 0)
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            with open(path) as f:
                self.assertEqual(json.load(f)["reason"], "exit")

    def test_reader_of_stdout_leaves(self):
        self.server.scripts = [[STARTED, ("out", 0, b"x" * 1000000),
                                ("until", lambda m: isinstance(m, str) and "SIGPIPE" in m),
                                result("signal", signal="SIGPIPE"), ("close", 1000)]]
        p = self.start("run", "x")
        p.stdout.close()
        self.assertEqual(p.wait(20), 141)
        p.stderr.close()
        self.assertEqual(self.paths("DELETE"), ["/v1/sandboxes/sb_1"])


class Breaks(Case):
    def test_taken_up_at_the_offset(self):
        self.server.scripts = [
            [STARTED, ("out", 0, b"abc"), ("err", 0, b"E"), ("drop",)],
            [("drop",)],
            [STARTED, ("out", 1, b"bcdef"), ("close", 1011)],
            [STARTED, ("out", 6, b"g"), result(exit_code=0), ("close", 1000)],
        ]
        r = self.space("exec", "--no-stdin", "sb_1", "x")
        self.assertEqual((r.returncode, r.stdout, r.stderr), (0, b"abcdefg", b"E"))
        self.assertEqual([a["stdout_offset"] for a in self.server.attaches], ["0", "3", "3", "6"])
        self.assertEqual(self.server.attaches[3]["stderr_offset"], "1")

    def test_a_clean_close_without_result_is_not_success(self):
        self.server.scripts = [[STARTED, ("close", 1000)],
                               [("refuse", 410, problem(410, "sandbox_gone", "Sandbox gone"))]]
        r = self.space("run", "--no-stdin", "x")
        self.assertEqual(r.returncode, 125)
        self.assertIn(b"Sandbox gone", r.stderr)
        self.assertEqual(self.paths("DELETE"), ["/v1/sandboxes/sb_1"])

    def test_the_reason_of_a_close_is_told(self):
        self.server.scripts = [[STARTED, ("close", 1008, b"stdin was not asked for")]]
        r = self.space("exec", "--no-stdin", "sb_1", "x")
        self.assertEqual(r.returncode, 125)
        self.assertIn(b"stdin was not asked for", r.stderr)
        self.assertEqual(len(self.server.attaches), 1)

    def test_a_sleeping_sandbox_sends_us_away(self):
        for word in ("suspended", "rolled_back"):
            event = {"type": word, "sandbox_id": "sb_1", "session_id": "se_1", "stdout_offset": 3,
                     "stderr_offset": 0, "attach": "/v1/attach/se_1"}
            self.server.scripts = [[STARTED, ("out", 0, b"abc"),
                                    ("json", event), ("close", 1001, word.encode())]]
            del self.server.attaches[:]
            r = self.space("exec", "--no-stdin", "sb_1", "x")
            self.assertEqual((r.returncode, r.stdout), (125, b"abc"))
            self.assertIn(word.replace("_", " ").encode(), r.stderr)
            self.assertIn(b"space attach sb_1 pr_1 --stdout-offset 3 --stderr-offset 0", r.stderr)
            self.assertEqual(len(self.server.attaches), 1)  # it does not come back by itself

    def test_expired_token_is_renewed(self):
        self.server.scripts = [[STARTED, ("out", 0, b"a"), ("drop",)],
                               [("refuse", 401, problem(401, "token_expired"))],
                               [STARTED, ("out", 1, b"b"), result(exit_code=0), ("close", 1000)]]
        r = self.space("exec", "--no-stdin", "sb_1", "x")
        self.assertEqual((r.returncode, r.stdout), (0, b"ab"), r.stderr)
        self.assertIn("/v1/sandboxes/sb_1/processes/pr_1/sessions", self.paths("POST"))

    def test_refused_at_first(self):
        self.server.scripts = [[("refuse", 404, problem(404, "not_found"))]]
        self.env["SPACE_ATTACH_TOKEN"] = "t"
        self.assertEqual(self.space("attach", "se_x").returncode, 3)
        self.assertEqual(self.server.attaches[0]["authorization"], "Bearer t")

    def test_a_wrong_handshake_is_refused(self):
        self.server.scripts = [[("bad-accept",), STARTED, result(exit_code=0)]]
        self.assertEqual(self.space("exec", "--no-stdin", "sb_1", "x").returncode, 1)

    def test_a_frame_that_breaks_the_protocol(self):
        self.server.scripts = [[STARTED, ("raw", b"\xf3\x05hello")],
                               [STARTED, result(exit_code=0), ("close", 1000)]]
        self.assertEqual(self.space("exec", "--no-stdin", "sb_1", "x").returncode, 0)

class Input(Case):
    """What the server does not say to be with the command is given again."""

    DATA = b"".join(b"%07d\n" % n for n in range(250_000))  # more than is kept: some must be taken before the rest is read

    @staticmethod
    def told(offset):
        return ("json", {"type": "stdin", "offset": offset, "next": offset, "closed": False})

    def placed(self, end):
        """A step that takes input until so much of it stands in its place."""
        return ("until", lambda message: len(self.server.stdin.data) >= end)

    def taking(self, *ends):
        """Steps that take input, and say so at each end."""
        return [step for end in ends for step in (self.placed(end), self.told(end))]

    def ended(self):
        return [("until", lambda m: isinstance(m, str) and "stdin_close" in m), result(exit_code=0), ("close", 1000)]

    def attached(self):
        """Where each connection has begun; the client's name is always the same."""
        names = {a["stdin_writer"] for a in self.server.attaches}
        self.assertEqual(len(names), 1)
        self.assertRegex(names.pop(), "^[0-9a-f]{32}$")
        return [a["stdin_offset"] for a in self.server.attaches]

    def test_it_goes_on_where_the_command_is(self):
        size = len(self.DATA)
        self.server.scripts = [[STARTED, *self.taking(100_000, 900_000), ("lose", 900_000), ("drop",)],
                               [("refuse", 503, problem(503, "unavailable"))],
                               [STARTED, self.told(900_000), self.placed(900_001), ("lose", 900_000), ("drop",)],
                               [STARTED, *self.taking(1_500_000, size), *self.ended()]]
        r = self.space("exec", "-i", "sb_1", "x", input=self.DATA)
        self.assertEqual((r.returncode, r.stderr), (0, b""))
        self.assertEqual(self.attached(), ["0", "900000", "900000", "900000"])
        self.assertEqual(self.server.stdin.data, self.DATA)

    def test_the_server_has_more_than_it_had_said(self):
        """Only the connection has broken: what was on its way has come. That is told before the command has started."""
        size = len(self.DATA)
        self.server.scripts = [[STARTED, *self.taking(100_000), self.placed(600_000), ("drop",)],
                               [self.told(600_000), STARTED, self.placed(900_000), ("drop",)],
                               [self.told(700_000), STARTED, self.told(900_000), *self.taking(1_500_000, size), *self.ended()]]
        r = self.space("exec", "-i", "sb_1", "x", input=self.DATA)
        self.assertEqual((r.returncode, r.stderr), (0, b""))
        self.assertEqual(self.attached(), ["0", "100000", "600000"])
        self.assertEqual(self.server.stdin.data, self.DATA)

    def test_a_break_when_the_server_has_all_that_is_kept(self):
        """It has told of it already, and does so only once: the rest must be read all the same."""
        self.server.scripts = [[STARTED, self.placed(1 << 20), ("drop",)],
                               [self.told(1 << 20), STARTED, self.placed(len(self.DATA)), *self.ended()]]
        r = self.space("exec", "-i", "sb_1", "x", input=self.DATA)
        self.assertEqual((r.returncode, r.stderr), (0, b""))
        self.assertEqual(self.attached(), ["0", "0"])
        self.assertEqual(self.server.stdin.data, self.DATA)

    def test_a_break_when_the_server_has_the_end(self):
        closed = ("json", {"type": "stdin", "offset": 3, "next": 3, "closed": True})
        is_end = ("until", lambda m: isinstance(m, str) and "stdin_close" in m)
        self.server.scripts = [[STARTED, is_end, ("drop",)], [closed, STARTED, *self.ended()]]
        r = self.space("exec", "-i", "sb_1", "x", input=b"abc")
        self.assertEqual((r.returncode, r.stderr), (0, b""))
        self.assertEqual((self.server.stdin.data, self.server.stdin.closed), (b"abc", True))

    def test_the_end_is_given_again(self):
        self.server.scripts = [[STARTED, ("until", lambda m: isinstance(m, str) and "stdin_close" in m), ("drop",)],
                               [STARTED, *self.ended()]]
        r = self.space("exec", "-i", "sb_1", "x", input=b"abc")
        self.assertEqual((r.returncode, r.stderr), (0, b""))
        self.assertEqual([m for m in self.server.received if m in (b"\0abc", '{"type":"stdin_close"}')],
                         [b"\0abc", '{"type":"stdin_close"}'] * 2)

    def test_no_more_is_read_than_is_kept(self):
        held = threading.Event()
        self.server.scripts = [[STARTED, ("wait", held), result(exit_code=0), ("close", 1000)]]
        read, write = os.pipe()
        p = self.start("exec", "-i", "sb_1", "x", stdin=read)
        os.close(read)
        os.set_blocking(write, False)
        taken = idle = 0
        while idle < 20:
            try:
                taken += os.write(write, bytes(65536))
                idle = 0
            except BlockingIOError:
                idle += 1
                time.sleep(0.05)  # for as long as nothing more is taken
        self.assertGreaterEqual(taken, 1 << 20)
        self.assertLessEqual(taken, (1 << 20) + 2 * 65536)  # and what the pipe holds
        held.set()
        self.assertEqual(p.wait(20), 0)
        os.close(write)
        p.stdout.close()
        p.stderr.close()

    def test_it_begins_at_the_end_of_another_ones(self):
        before = bytes(50)
        self.server.stdin.data += before
        first = ("json", {"type": "stdin", "offset": 40, "next": 50, "closed": False})
        self.server.scripts = [[STARTED, first, self.placed(53), ("drop",)],
                               [self.told(52), STARTED, ("until", lambda m: m == b"\0abc"), *self.ended()]]
        r = self.space("attach", "-i", "sb_1", "pr_1", input=b"abc")
        self.assertEqual((r.returncode, r.stderr), (0, b""))
        self.assertEqual(self.attached(), ["end", "50"])
        self.assertEqual(self.server.stdin.data, before + b"abc")
        self.server.stdin = Stdin()
        self.server.stdin.data += before
        self.server.scripts = [[STARTED, first, self.placed(53), ("close", 4002)]]
        r = self.space("attach", "-i", "sb_1", "pr_1", input=b"abc")
        self.assertEqual(r.returncode, 125)
        self.assertIn(b"the command certainly has 40 bytes of its input\n", r.stderr)  # the next ten are on their way

    def sent_away(self, *scripts, **event):
        """What is said when the last connection ends with this event."""
        event.update(sandbox_id="sb_1", session_id="se_1", stdout_offset=0, stderr_offset=0, attach="/v1/attach/se_1")
        *broken, last = scripts
        self.server.scripts = [*broken, [*last, ("json", event), ("close", 1001)]]
        self.server.stdin = Stdin()
        r = self.space("exec", "-i", "sb_1", "x", input=b"abc")
        self.assertEqual(r.returncode, 125)
        return r.stderr

    def test_how_much_it_has_is_told_at_the_end(self):
        script = [STARTED, self.placed(3)]
        self.assertIn(b"the command certainly has 2 bytes of its input\n",
                      self.sent_away(script, type="suspended", stdin_offset=2, stdin_end=3))
        self.assertNotIn(b"certainly", self.sent_away(script, type="rolled_back"))

    def test_how_much_it_has_counts_what_has_not_gone_again(self):
        said = self.sent_away([STARTED, self.placed(3), ("drop",)], [self.told(2)], type="suspended", stdin_offset=3, stdin_end=3)
        self.assertIn(b"the command certainly has 3 bytes of its input\n", said)

    def test_a_place_that_is_lost_is_told(self):
        refused = problem(409, "conflict", "another one's bytes")
        for script, word in (([("json", {"type": "stdin_conflict", "next": 9, "message": "no"}),
                               ("close", 4002, b"another one's bytes")], b"another one's bytes"),
                             ([("drop",)], b"another one's bytes"),
                             ([("json", {"type": "stdin", "offset": 999, "next": 999, "closed": False})], b"more input")):
            self.server.scripts = [[STARTED, ("until", lambda m: isinstance(m, bytes)), *script], [("refuse", 409, refused)]]
            r = self.space("exec", "-i", "sb_1", "x", input=b"abc")
            self.assertEqual(r.returncode, 125, script)
            self.assertIn(word, r.stderr)


class Signals(Case):
    def test_forwarded(self):
        self.server.scripts = [[STARTED, ("out", 0, b"up\n"), ("until", lambda m: isinstance(m, str) and "SIGTERM" in m),
                                result("signal", signal="SIGTERM"), ("close", 1000)]]
        p = self.start("run", "--no-stdin", "x")
        self.assertEqual(p.stdout.readline(), b"up\n")
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(20), 143)
        self.assertEqual(self.paths("DELETE"), ["/v1/sandboxes/sb_1"])
        p.stdout.close()
        p.stderr.close()

    def test_a_watcher_keeps_them(self):
        self.server.scripts = [[STARTED, ("out", 0, b"up\n"), ("until", lambda m: False)]]
        p = self.start("attach", "--no-stdin", "sb_1", "pr_1")
        self.assertEqual(p.stdout.readline(), b"up\n")
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(20), 130)
        self.assertFalse([m for m in self.server.received if isinstance(m, str) and "SIG" in m])
        self.assertIn(b"the command may run on", p.stderr.read())
        p.stdout.close()
        p.stderr.close()

    def test_third_interrupt_leaves_and_deletes(self):
        self.server.scripts = [[STARTED, ("out", 0, b"up\n"), ("until", lambda m: False)]]
        p = self.start("run", "--no-stdin", "x")
        self.assertEqual(p.stdout.readline(), b"up\n")
        for i in range(3):
            p.send_signal(signal.SIGINT)
            if i < 2:
                want = i + 1
                self.assertTrue(self.server.wait(
                    lambda: sum("SIGINT" in m for m in self.server.received if isinstance(m, str)) >= want))
        self.assertEqual(p.wait(20), 130)
        self.assertEqual(self.paths("DELETE"), ["/v1/sandboxes/sb_1"])
        p.stdout.close()
        p.stderr.close()

    def test_interrupted_while_creating(self):
        gate = threading.Event()
        def slow(query, body):
            gate.wait(15)
            return 200, self.server.operation, {}
        self.server.answers[("GET", "/v1/operations/op_1")] = slow
        p = self.start("run", "--no-stdin", "x")
        self.assertTrue(self.server.wait(lambda: any("/v1/operations/" in r[1] for r in self.server.requests)))
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(10), 130)
        gate.set()
        self.assertEqual(self.paths("DELETE"), ["/v1/sandboxes/sb_1"])
        p.stdout.close()
        p.stderr.close()


class Logs(Case):
    def test_logs(self):
        whole = os.urandom(2500)
        def output(query, body):
            at = max(int(query["offset"]), 100)
            part = whole[at:at + 1000] if query["stream"] == "stdout" else b""
            end = len(whole) if query["stream"] == "stdout" else 0
            return 200, part, {"X-Space-Offset": at if end else 0, "X-Space-End": end}
        self.server.answers[("GET", "/v1/sandboxes/sb_1/processes/pr_1/output")] = output
        self.server.answers[("GET", "/v1/sandboxes/sb_1/processes/pr_1")] = (200, {"id": "pr_1", "state": "exited"}, {})
        r = self.space("logs", "pr_1")
        self.assertEqual((r.returncode, r.stdout), (0, whole[100:]))
        self.assertIn(b"100 bytes were dropped", r.stderr)

    def journal(self, state, out=b"", err=b""):
        """A process with this output."""
        def output(query, body):
            data = out if query["stream"] == "stdout" else err
            at = int(query["offset"])
            if at > len(data):
                return 416, problem(416, "range_not_satisfiable"), {}
            return 200, data[at:at + int(query["limit"])], {"X-Space-Offset": at, "X-Space-End": len(data)}
        self.server.answers[("GET", "/v1/sandboxes/sb_1/processes/pr_1/output")] = output
        self.server.answers[("GET", "/v1/sandboxes/sb_1/processes/pr_1")] = (200, {"id": "pr_1", "state": state}, {})

    def test_parts_of_logs(self):
        self.journal("exited", b"0123456789", b"abc")
        for words, out, err in ((["--tail", "4"], b"6789", b"abc"), (["--tail", "0"], b"", b""),
                                (["--since-offset", "7"], b"789", b""), (["--tail=99"], b"0123456789", b"abc"),
                                (["--stream", "stderr"], b"", b"abc"), (["--stream=stdout", "--tail=1"], b"9", b""),
                                (["-f", "--tail=1"], b"9", b"c")):  # it has ended: nothing is attached to
            r = self.space("logs", *words, "sb_1", "pr_1")
            self.assertEqual((r.returncode, r.stdout, r.stderr), (0, out, err), words)
        self.assertEqual(self.server.attaches, [])

    def test_following(self):
        self.journal("running", b"0123456789", b"abc")
        self.server.scripts = [[STARTED, ("out", 6, b"6789"), ("err", 1, b"bc"), ("drop",)],
                               [STARTED, ("out", 10, b"more"), result("signal", signal="SIGKILL"), ("close", 1000)]]
        r = self.space("logs", "-f", "--tail", "4", "--stream", "stdout", "sb_1", "pr_1")
        self.assertEqual((r.returncode, r.stdout, r.stderr), (0, b"6789more", b""))
        self.assertEqual([(a["stdout_offset"], a["stderr_offset"]) for a in self.server.attaches],
                         [("6", "3"), ("10", "3")])
        self.assertEqual(self.server.received.count('{"type":"stdin_close"}'), 0)

    def test_following_what_breaks(self):
        self.journal("running")
        self.server.scripts = [[STARTED, ("out", 0, b"x"), ("close", 1000)],
                               [("refuse", 410, problem(410, "sandbox_gone", "Sandbox gone"))]]
        r = self.space("logs", "-f", "sb_1", "pr_1")
        self.assertEqual((r.returncode, r.stdout), (125, b"x"))

    def test_readers_that_leave(self):
        self.journal("exited", b"x" * 3_000_000)
        p = self.start("logs", "sb_1", "pr_1")
        p.stdout.read(10)
        p.stdout.close()
        self.assertEqual((p.wait(20), p.stderr.read()), (141, b""))
        p.stderr.close()
        self.journal("running")
        self.server.scripts = [[STARTED, ("out", 0, b"x" * 3_000_000), ("until", lambda m: False)]]
        p = self.start("logs", "-f", "sb_1", "pr_1")
        p.stdout.read(10)
        p.stdout.close()
        self.assertEqual((p.wait(20), p.stderr.read()), (141, b""))
        p.stderr.close()

    def test_logs_do_not_start_a_command(self):
        self.server.answers[("GET", "/v1/sandboxes/sb_1/processes/pr_1")] = (200, {"id": "pr_1", "state": "created"}, {})
        self.assertEqual(self.space("logs", "-f", "sb_1", "pr_1").returncode, 4)
        self.assertEqual(self.server.attaches, [])


class Processes(Case):
    def list(self, *items):
        self.server.answers[("GET", "/v1/sandboxes/sb_1/processes")] = (200, {"items": list(items), "next_cursor": None}, {})

    def test_command_lines(self):
        words = ["sh", "-c", "echo 'a b' \"$X\"\n\tdone", "", "it's", "ü", "a\x1bb", "--x=1,2"]
        self.list({"id": "pr_1", "state": "running", "argv": words}, {"id": "pr_2", "state": "created", "argv": ["x"] * 1000},
                  {"id": "pr_3", "state": "exited", "argv": ["gone"]})
        out = self.space("ps", "one").stdout.decode()
        lines = out.splitlines()
        self.assertEqual([line.split()[0] for line in lines], ["ID", "pr_1", "pr_2"])
        text = lines[1][lines[0].index("COMMAND"):]
        back = subprocess.run(["bash", "-c", "printf '%s\\0' " + text], capture_output=True).stdout
        self.assertEqual(back, b"".join(w.encode() + b"\0" for w in words))
        self.assertIn("pr_3", self.space("ps", "-a", "one").stdout.decode())
        items = json.loads(self.space("ps", "-ojson", "one").stdout)["items"]
        self.assertEqual([set(i) for i in items], [{"id", "state", "argv"}] * 2)

    def test_how_they_ended(self):
        self.list({"id": "pr_1", "state": "exited", "argv": ["a"], "result": {"reason": "exit", "exit_code": 3, "signal": None}},
                  {"id": "pr_2", "state": "exited", "argv": ["b"],
                   "result": {"reason": "signal", "exit_code": None, "signal": "SIGTERM"}},
                  {"id": "pr_3", "state": "running", "argv": ["c"], "result": None})
        lines = self.space("ps", "-a", "one").stdout.decode().splitlines()
        at = lines[0].index("EXIT")
        self.assertEqual([line[at:].split()[0] for line in lines[1:]], ["3", "SIGTERM", "-"])

    def test_odd_answers(self):
        for argv in (None, [], [1], "x", {"a": 1}):
            self.list({"id": "pr_1", "state": "running", "argv": argv})
            self.assertEqual(self.space("ps", "one").returncode, 0)

    def test_kill(self):
        self.server.answers[("POST", "/v1/sandboxes/sb_1/processes/pr_1/signal")] = (204, b"", {})
        for words, signal_name, tree in (([], "SIGTERM", True), (["-s", "9"], "SIGKILL", True), (["-s", "int"], "SIGINT", True),
                                         (["--tree", "-s", "SIGhup"], "SIGHUP", True), (["--only", "-s2"], "SIGINT", False)):
            self.assertEqual(self.space("kill", *words, "sb_1", "pr_1").returncode, 0)
            self.assertEqual(json.loads(self.server.requests[-1][3]), {"signal": signal_name, "tree": tree})
        for words in (["-s", "0"], ["-s", "65"], ["-s", "99"], ["-s", "FOO"], ["--tree", "--only"]):
            self.assertEqual(self.space("kill", *words, "sb_1", "pr_1").returncode, 2)

    def test_a_post_on_a_connection_that_was_closed(self):
        """The server closes a kept connection just then: the request goes out on another one."""
        def answer(query, body):
            return 200, {"items": [{"id": "sb_1", "name": "one"}], "next_cursor": None}, {"Connection": "keep-alive"}
        self.server.answers[("GET", "/v1/sandboxes")] = answer
        self.server.close_after = "/v1/sandboxes?limit=100"
        self.server.answers[("POST", "/v1/sandboxes/sb_1/processes/pr_1/signal")] = (204, b"", {})
        for _ in range(5):
            self.assertEqual(self.space("kill", "one", "pr_1").returncode, 0)


class Templates(Case):
    def setUp(self):
        super().setUp()
        self.server.answers[("PUT", "/v1/template-uploads")] = (201, {"upload": "up_1"}, {})
        self.server.answers[("POST", "/v1/templates/t/releases")] = (202, {"operation": {"id": "op_1"}}, {})
        self.server.operation.update(kind="template build", sandbox_id="", result={"digest": "sha256:aa"})

    def build(self):
        return json.loads([r for r in self.server.requests if r[0] == "POST"][0][3])

    def test_debian(self):
        r = self.space("template", "build", "t:v1", "bookworm", "--debian", "--packages", "a,b", "--packages", "c",
                       "--disk-mib", "900", "--seed-user")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(self.build(), {"kind": "debian", "tag": "v1", "suite": "bookworm", "disk_mib": 900,
                                        "packages": ["a", "b", "c"], "seed_user": True})
        self.assertIn(b"sha256:aa", r.stdout)

    def test_directory(self):
        with tempfile.TemporaryDirectory() as d:
            with open(os.path.join(d, "f"), "w") as f:
                f.write("text")
            self.assertEqual(self.space("template", "build", "t", "--dir", d).returncode, 0)
        upload = [r for r in self.server.requests if r[0] == "PUT"][0]
        self.assertEqual(upload[2]["transfer-encoding"], "chunked")
        with tarfile.open(fileobj=io.BytesIO(upload[3])) as t:
            self.assertEqual(sorted(t.getnames()), [".", "./f"])
            self.assertEqual(t.getmember("./f").uid, 0)
        self.assertEqual(self.build(), {"kind": "dir", "upload": "up_1"})

    def test_failure_shows_the_log(self):
        build = "tp_" + "a2" * 10
        self.server.operation.update(status="failed", result=None, error=dict(problem(500, "internal", "Internal error"), detail=f"x (log of build {build})"))
        log = b"old line\n" * 2000 + b"E: no such package\n"
        self.server.answers[("GET", f"/v1/templates/t/releases/{build}/log")] = (200, log, {})
        r = self.space("template", "build", "t", "--debian")
        self.assertEqual(r.returncode, 1)
        self.assertIn(b"E: no such package\n", r.stderr)
        self.assertLess(len(r.stderr), 5000)
        self.assertEqual(self.space("template", "log", "t", build).stdout, log)


class Doctor(Case):
    def test_json_and_status(self):
        r = self.space("doctor", "-o", "json", "--port", "0")
        self.assertEqual(r.returncode, 1)  # the stand-in has no kernel
        report = json.loads(r.stdout)
        self.assertFalse(report["can_run"])
        self.assertEqual(set(c["status"] for c in report["checks"]) - {"ok", "degraded", "missing"}, set())

    def test_server(self):
        self.server.answers[("GET", "/v1/doctor")] = (
            200, {"can_run": True, "engine": "qemu", "acceleration": "tcg", "reason": "r",
                  "checks": [{"name": "n", "status": "ok", "detail": "d", "advice": ""}]}, {})
        r = self.space("doctor", "--server")
        self.assertEqual(r.returncode, 0)
        self.assertIn(b"qemu with tcg (r)", r.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
