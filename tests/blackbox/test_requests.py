"""Bad input: every case is refused with its problem type, and nothing is made."""
import json
import re
import socket
import uuid

from harness.case import SharedSandboxTest, SpaceTest

T = "busybox"
LONG = "x" * 5000

# (body, slugs): bodies of POST /v1/sandboxes
CREATE = [
    ({}, "invalid_request"),
    ([], "invalid_request"),
    ("busybox", "invalid_request"),
    (7, "invalid_request"),
    ({"template": None}, "invalid_request"),
    ({"template": 7}, "invalid_request"),
    ({"template": [T]}, "invalid_request"),
    ({"template": T, "colour": "red"}, "unknown_field"),
    ({"template": T, "Name": "x"}, "unknown_field"),
    ({"template": T, "name": 7}, "invalid_request"),
    ({"template": T, "name": LONG}, "invalid_request"),
    ({"template": T, "name": "a\u0000b"}, ("invalid_request", "malformed_json")),
    ({"template": T, "metadata": []}, "invalid_request"),
    ({"template": T, "metadata": {"k": 7}}, "invalid_request"),
    ({"template": T, "metadata": {"k": None}}, "invalid_request"),
    ({"template": T, "metadata": {LONG: "v"}}, "invalid_request"),
    ({"template": T, "metadata": {"k": "v" * 100000}}, "invalid_request"),
    ({"template": T, "metadata": {str(n): "v" for n in range(2000)}}, "invalid_request"),
    ({"template": T, "env": {"A=B": "v"}}, "invalid_request"),
    ({"template": T, "env": {"": "v"}}, "invalid_request"),
    ({"template": T, "env": {"K": 1}}, "invalid_request"),
    ({"template": T, "env": "K=V"}, "invalid_request"),
    ({"template": T, "resources": []}, "invalid_request"),
    ({"template": T, "resources": {"vcpus": 0}}, "invalid_request"),
    ({"template": T, "resources": {"vcpus": -1}}, "invalid_request"),
    ({"template": T, "resources": {"vcpus": 1.5}}, "invalid_request"),
    ({"template": T, "resources": {"vcpus": "1"}}, "invalid_request"),
    ({"template": T, "resources": {"vcpus": True}}, "invalid_request"),
    ({"template": T, "resources": {"vcpus": 100000}}, ("invalid_request", "capacity")),
    ({"template": T, "resources": {"memory_mib": 1}}, "invalid_request"),
    ({"template": T, "resources": {"memory_mib": 2**31}}, ("invalid_request", "capacity")),
    ({"template": T, "resources": {"memory_mib": 2**64}}, ("invalid_request", "malformed_json")),
    ({"template": T, "resources": {"memory_mib": 1e400}}, ("invalid_request", "malformed_json")),
    ({"template": T, "resources": {"disk_mib": 0}}, "invalid_request"),
    ({"template": T, "resources": {"disk_mib": 2**40}}, "invalid_request"),
    ({"template": T, "resources": {"gpus": 1}}, "unknown_field"),
    ({"template": T, "lifecycle": {"idle_timeout_s": -1}}, "invalid_request"),
    ({"template": T, "lifecycle": {"on_idle": "explode"}}, "invalid_request"),
    ({"template": T, "lifecycle": {"on_expiry": 3}}, "invalid_request"),
    ({"template": T, "lifecycle": {"auto_wake": "yes"}}, "invalid_request"),
    ({"template": T, "lifecycle": {"max_lifetime_s": 10**15}}, "invalid_request"),
    ({"template": T, "lifecycle": {"nap": 1}}, "unknown_field"),
    ({"template": T, "network": {"mode": "wormhole"}}, "invalid_request"),
    ({"template": T, "network": {"mode": "none", "speed": 1}}, "unknown_field"),
    ({"template": T, "snapshot": "sn_x"}, ("invalid_request", "unsupported", "unknown_field", "not_found")),
]

COMMAND = [
    ({}, "invalid_request"),
    ({"argv": []}, "invalid_request"),
    ({"argv": "true"}, "invalid_request"),
    ({"argv": [1]}, "invalid_request"),
    ({"argv": [""]}, ("invalid_request", "start_failed")),
    ({"argv": ["true"], "shell": "true"}, "invalid_request"),
    ({"shell": 7}, "invalid_request"),
    ({"argv": ["x"] * 100000}, ("invalid_request", "too_large")),
    ({"argv": ["true"], "cwd": 7}, "invalid_request"),
    ({"argv": ["true"], "cwd": "relative"}, "invalid_request"),
    ({"argv": ["true"], "cwd": "/" + LONG}, "invalid_request"),
    ({"argv": ["true"], "env": {"A=": "x"}}, "invalid_request"),
    ({"argv": ["true"], "env": {"A": 5}}, "invalid_request"),
    ({"argv": ["true"], "user": 1000}, "invalid_request"),
    ({"argv": ["true"], "user": LONG}, "invalid_request"),
    ({"argv": ["true"], "timeout_s": -1}, "invalid_request"),
    ({"argv": ["true"], "timeout_s": "1"}, "invalid_request"),
    ({"argv": ["true"], "timeout_s": 10**12}, "invalid_request"),
    ({"argv": ["true"], "colour": 1}, "unknown_field"),
]

MALFORMED = [b"", b"{", b"}", b'{"template":"busybox"', b'{"template":"busybox",}', b"{'template':'busybox'}",
             b'{"template":"busybox"} x', b'{"template":"bus\xffybox"}', b'\xef\xbb\xbf{"template":"busybox"}',
             b'{"template":"busybox","template":"other"}', b'{"template":"\\ud800"}', b"nul", b"[" * 5000,
             b'{"a":' * 5000 + b"1" + b"}" * 5000, b'{"template": NaN}', b'{"template":"a\nb"}']


class Create(SpaceTest):
    def test_bodies(self):
        before = {one["id"] for one in self.api.pages("/v1/sandboxes")}
        for body, slugs in CREATE:
            with self.subTest(body=str(body)[:100]):
                text = json.dumps(body).replace("Infinity", "1e400").encode()
                problem = self.api.problem("POST", "/v1/sandboxes", text, status=400, slug=slugs,
                                           headers={"Content-Type": "application/json"}) \
                    if "capacity" not in slugs else None
                if problem is None:
                    answer = self.api.call("POST", "/v1/sandboxes", text, headers={"Content-Type": "application/json"})
                    self.assertIn(answer.status, (400, 429), answer)
                elif problem["type"].endswith((":unknown_field", ":invalid_request")) and isinstance(body, dict) and body:
                    self.assertTrue(problem.get("field"), problem)
        self.assertLessEqual({one["id"] for one in self.api.pages("/v1/sandboxes")}, before)

    def test_malformed(self):
        for text in MALFORMED:
            with self.subTest(text=text[:40]):
                self.api.problem("POST", "/v1/sandboxes", text, status=400,
                                 slug=("malformed_json", "invalid_request"),
                                 headers={"Content-Type": "application/json"})

    def test_field_is_named(self):
        problem = self.api.problem("POST", "/v1/sandboxes", {"template": T, "resources": {"memory_mib": "many"}})
        self.assertEqual(problem["field"], "resources.memory_mib")
        self.assertIn("memory_mib", problem["detail"])

    def test_more_memory_than_the_machine_has(self):
        answer = self.api.call("POST", "/v1/sandboxes", {"template": T, "resources": {"memory_mib": 65536}})
        self.assertIn(answer.status, (400, 429), answer)

    def test_body_too_large(self):
        self.api.problem("POST", "/v1/sandboxes", b'{"name":"' + b"x" * (64 << 20) + b'"}', status=413,
                         slug="too_large", headers={"Content-Type": "application/json"})

    def test_wrong_content_type(self):
        answer = self.api.call("POST", "/v1/sandboxes", b'template=busybox',
                               headers={"Content-Type": "application/x-www-form-urlencoded"})
        self.assertIn(answer.status, (400, 415), answer)


class Commands(SharedSandboxTest):
    def test_bodies(self):
        for route in ("exec", "sessions"):
            for body, slugs in COMMAND:
                with self.subTest(route=route, body=str(body)[:100]):
                    answer = self.api.call("POST", f"{self.sb.path}/{route}", body)
                    slug = answer.json.get("type", "").rsplit(":", 1)[-1] if answer.status >= 400 else None
                    wanted = (slugs,) if isinstance(slugs, str) else slugs
                    if slug is None and "start_failed" in wanted:
                        continue
                    self.assertIn(slug, wanted, answer)

    def test_what_exec_does_not_take(self):
        for extra in ({"pty": {"rows": 24, "cols": 80}}, {"start": "now"}, {"stdin": True}, {"stdin_b64": "***"},
                      {"stdin_b64": 7}):
            with self.subTest(extra=extra):
                self.api.problem("POST", f"{self.sb.path}/exec", {"argv": ["true"], **extra}, status=400)

    def test_malformed(self):
        for text in MALFORMED:
            with self.subTest(text=text[:40]):
                self.api.problem("POST", f"{self.sb.path}/exec", text, status=400,
                                 slug=("malformed_json", "invalid_request"),
                                 headers={"Content-Type": "application/json"})


class Http(SpaceTest):
    def test_wrong_methods_name_the_right_ones(self):
        for method, path, allowed in (("PUT", "/v1/sandboxes", "POST"), ("POST", "/v1/version", "GET"),
                                      ("DELETE", "/v1/operations/op_x", "GET"), ("PATCH", "/v1/templates", "GET")):
            with self.subTest(path=path):
                answer = self.api.call(method, path)
                self.assertEqual(answer.status, 405, answer)
                self.assertIn(allowed, answer.headers["allow"])

    def test_unknown_paths(self):
        for path in ("/", "/v1", "/v2/sandboxes", "/v1/sandboxes/", "/v1/sandboxes/x/y/z", "/v1/%2e%2e/etc/passwd",
                     "/v1/sandboxes/..%2f..%2fetc"):
            with self.subTest(path=path):
                self.assertIn(self.api.call("GET", path).status, (400, 404, 410), path)

    def raw(self, data, timeout=10):
        with socket.create_connection((self.server.host, self.server.port), timeout=timeout) as sock:
            sock.sendall(data)
            answer = b""
            try:
                while True:
                    part = sock.recv(65536)
                    if not part:
                        break
                    answer += part
                    if b"\r\n\r\n" in answer and b"HTTP/1.1 200" not in answer:
                        break
            except (socket.timeout, ConnectionError):
                pass
            return answer

    def test_noise_is_not_fatal(self):
        for data in (b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 500,
                     b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
                     b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 20000 + b"\r\n",
                     b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
                     b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
                     b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
            with self.subTest(data=data[:40]):
                try:
                    self.assertNotIn(b"HTTP/1.1 2", self.raw(data, 5)[:12])
                except ConnectionError:
                    pass
                self.assertEqual(self.api.call("GET", "/healthz").status, 200)

    def test_a_slow_client_holds_nobody_up(self):
        with socket.create_connection((self.server.host, self.server.port), timeout=5) as sock:
            sock.sendall(b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
            self.assertEqual(self.api.call("GET", "/healthz").status, 200)

    def test_keep_alive(self):
        conn = self.api.connect()
        for _ in range(50):
            self.assertEqual(self.api.call_on(conn, "GET", "/v1/version").status, 200)
        conn.close()

    def test_many_connections(self):
        socks = [socket.create_connection((self.server.host, self.server.port), timeout=10) for _ in range(300)]
        self.assertEqual(self.api.call("GET", "/healthz").status, 200)
        for sock in socks:
            sock.close()


class Idempotency(SpaceTest):
    def post(self, key, body, path="/v1/sandboxes"):
        return self.api.call("POST", path, body, headers={"Idempotency-Key": key})

    def test_the_same_request_again(self):
        key = str(uuid.uuid4())
        body = {"template": T, "metadata": {"once": key}}
        first, second = self.post(key, body), self.post(key, body)
        self.addCleanup(self.api.call, "DELETE", f"/v1/sandboxes/{first.json['sandbox']['id']}")
        self.assertEqual((first.status, second.status), (202, 202))
        self.assertEqual(first.json["sandbox"]["id"], second.json["sandbox"]["id"])
        self.assertEqual(first.json["operation"]["id"], second.json["operation"]["id"])
        self.assertEqual(len(self.api.pages(f"/v1/sandboxes?metadata.once={key}")), 1)

    def test_another_body_is_refused(self):
        key = str(uuid.uuid4())
        first = self.post(key, {"template": T})
        self.addCleanup(self.api.call, "DELETE", f"/v1/sandboxes/{first.json['sandbox']['id']}")
        self.assertEqual(first.status, 202)
        answer = self.post(key, {"template": T, "name": "other"})
        self.assertEqual((answer.status, answer.json["type"]), (422, "urn:space:error:idempotency_mismatch"))

    def test_exec_runs_once(self):
        sb = self.sandbox()
        key = str(uuid.uuid4())
        body = {"shell": "echo run >> /root/count; wc -l < /root/count"}
        first = self.post(key, body, f"{sb.path}/exec")
        second = self.post(key, body, f"{sb.path}/exec")
        self.assertEqual((first.status, second.status), (200, 200))
        self.assertEqual(first.json["process"]["id"], second.json["process"]["id"])
        self.assertEqual(sb.sh("wc -l < /root/count").strip(), "1")

    def test_a_session_answer_is_repeated_whole(self):
        sb = self.sandbox()
        key = str(uuid.uuid4())
        first = self.post(key, {"argv": ["true"]}, f"{sb.path}/sessions")
        second = self.post(key, {"argv": ["true"]}, f"{sb.path}/sessions")
        self.assertEqual((first.status, second.status), (201, 201))
        self.assertEqual(first.json["session"]["id"], second.json["session"]["id"])

    def stdin(self, sb, process, key, data):
        return self.api.call("POST", f"{sb.path}/processes/{process}/stdin", data, headers={"Idempotency-Key": key})

    def test_input_is_given_once(self):
        sb = self.sandbox()
        process = sb.session(["cat"], stdin=True, start="now")["session"]["process_id"]
        one, two = str(uuid.uuid4()), str(uuid.uuid4())
        for key, data, status, replayed in ((one, b"one\n", 204, None), (one, b"one\n", 204, "true"), (two, b"two\n", 204, None),
                                            (one, b"other\n", 422, None), (two, b"two\n", 204, "true")):
            answer = self.stdin(sb, process, key, data)
            self.assertEqual((answer.status, answer.headers.get("idempotency-replayed")), (status, replayed), answer)
        answer = self.stdin(sb, process, str(uuid.uuid4()), bytes(1024 * 1024 + 1))
        self.assertEqual((answer.status, answer.json["type"]), (413, "urn:space:error:too_large"))
        self.api.ok("POST", f"{sb.path}/processes/{process}/stdin?close=1", b"")
        self.assertEqual(sb.result(process)["exit_code"], 0)
        self.assertEqual(sb.all_output(process), b"one\ntwo\n")

    def test_input_that_is_cut_off_is_not_given_twice(self):
        sb = self.sandbox()
        process = sb.session("while [ ! -e /tmp/go ]; do usleep 10000; done; wc -c", stdin=True,
                             start="now")["session"]["process_id"]
        key, data = str(uuid.uuid4()), b"x" * (1024 * 1024)
        conn = self.api.connect()
        conn.request("POST", f"{sb.path}/processes/{process}/stdin", data, self.api.headers({"Idempotency-Key": key}))
        self.until(lambda: "still running" in self.stdin(sb, process, key, data).json["detail"], "the first is under way")
        conn.close()

        def told():
            answer = self.stdin(sb, process, key, data)
            self.assertEqual((answer.status, answer.json["type"]), (409, "urn:space:error:conflict"))
            found = re.search(r"cut off when (\d+) bytes", answer.json["detail"])
            return int(found.group(1)) if found else None

        taken = self.until(told, "how much was taken")
        self.assertLess(taken, len(data))
        self.assertEqual(told(), taken)
        sb.put("/tmp/go", b"")
        # The client goes on where it was cut off, with another key.
        rest = self.api.call("POST", f"{sb.path}/processes/{process}/stdin?close=1", data[taken:],
                             headers={"Idempotency-Key": str(uuid.uuid4())}, timeout=60)
        self.assertEqual(rest.status, 204, rest)
        self.assertEqual(sb.result(process)["exit_code"], 0)
        self.assertEqual(sb.all_output(process).strip(), b"%d" % len(data))

    def test_bad_keys(self):
        for key in ("", "x" * 5000):
            with self.subTest(key=key[:5]):
                answer = self.post(key, {"template": "absent-template"})
                self.assertIn(answer.status, (400, 404, 431), answer)
