"""Ports of sandboxes: any HTTP, upgrades and raw connections, through the server to programs in the guest."""
import base64
import hashlib
import os
import socket
import struct
import threading
import time

from harness import server
from harness.case import OwnServerTest, SharedSandboxTest, limit

BLOCK = bytes((7 * i + i // 256) % 256 for i in range(65536))
HTTP, RAW, MIB = 8080, 7000, 1 << 20


def pattern(n):
    return BLOCK * (n // len(BLOCK)) + BLOCK[:n % len(BLOCK)]


def portd():
    with open(os.path.join(server.bin_dir, "tests", "guest", "portd"), "rb") as image:
        return image.read()


def start_portd(sb):
    """The test's own servers in the guest, listening when it returns."""
    if sb.exec(["test", "-x", "/usr/bin/portd"]).code != 0:
        sb.put("/usr/bin/portd", portd(), mode="0755")
    for kind, port in (("http", HTTP), ("raw", RAW)):
        process = sb.session(["portd", kind, str(port)], start="now")["session"]["process_id"]
        until = time.monotonic() + 60
        while b"listening" not in sb.output(process)[0] and time.monotonic() < until:
            time.sleep(0.05)


class Raw:
    """A socket to the server, for what http.client does not do."""

    def __init__(self, api, text=b"", timeout=60):
        self.sock = socket.create_connection((api.host, api.port), timeout=timeout)
        self.data = b""
        self.send(text)

    def send(self, text):
        self.sock.sendall(text if isinstance(text, bytes) else text.encode())

    def until(self, mark):
        """What comes up to and with the mark."""
        while mark not in self.data:
            more = self.sock.recv(1 << 16)
            if not more:
                raise AssertionError(f"no {mark!r} before the end, only {self.data[-500:]!r}")
            self.data += more
        at = self.data.index(mark) + len(mark)
        head, self.data = self.data[:at], self.data[at:]
        return head

    def rest(self):
        out, self.data = [self.data], b""
        while more := self.sock.recv(1 << 16):
            out.append(more)
        return b"".join(out)

    def exactly(self, n):
        while len(self.data) < n:
            more = self.sock.recv(1 << 16)
            if not more:
                raise AssertionError(f"the end after {len(self.data)} of {n} bytes")
            self.data += more
        head, self.data = self.data[:n], self.data[n:]
        return head

    def end(self):
        self.sock.shutdown(socket.SHUT_WR)

    def close(self):
        self.sock.close()


class PortsTest:
    def path(self, port=HTTP, tail="/", sb=None):
        return f"{(sb or self.sb).path}/ports/{port}{tail}"

    def head(self, path, protocol="thing", more="", sb=None):
        return (f"GET {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {self.api.key}\r\nConnection: Upgrade\r\n"
                f"Upgrade: {protocol}\r\n{more}\r\n")

    def plain(self, tail):
        return f"GET {self.path(tail=tail)} HTTP/1.1\r\nHost: h\r\nX-API-Key: {self.api.key}\r\n\r\n"

    def raw(self, text=b"", **kw):
        made = Raw(self.api, text, **kw)
        self.addCleanup(made.close)
        return made

    def memory(self):
        return self.metric("process_resident_memory_bytes")

    def metric(self, name):
        text = self.api.call("GET", "/metrics").body.decode()
        return float(next(line for line in text.splitlines() if line.startswith(name + " ")).split()[1])


class Ports(PortsTest, SharedSandboxTest):
    def setUp(self):
        super().setUp()
        if not getattr(self.sb, "has_portd", False):
            start_portd(self.sb)
            self.sb.has_portd = True

    def test_a_request(self):
        answer = self.api.call("GET", self.path(tail="/anything?a=b&a=c"))
        self.assertEqual((answer.status, answer.body), (200, b"hello"))
        answer = self.api.call("GET", self.path(tail=""))
        self.assertEqual((answer.status, answer.body), (200, b"hello"))

    def test_any_status_and_repeated_fields(self):
        conn = self.api.connect()
        conn.request("GET", self.path(tail="/cookies"), headers=self.api.headers())
        answer = conn.getresponse()
        self.assertEqual((answer.status, answer.read()), (418, b"tea"))
        self.assertEqual(answer.headers.get_all("Set-Cookie"), ["a=1", "b=2"])
        conn.close()

    def test_methods(self):
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"):
            with self.subTest(method=method):
                answer = self.api.call(method, self.path(tail="/head"), b"" if method == "POST" else None)
                self.assertEqual(answer.status, 200)
                self.assertTrue(answer.body.startswith(f"{method} /head HTTP/1.1\n".encode()), answer.body)
        conn = self.api.connect()
        conn.request("HEAD", self.path(tail="/source?n=12345"), headers=self.api.headers())
        answer = conn.getresponse()
        self.assertEqual((answer.status, answer.read(), answer.headers["Content-Length"]), (200, b"", "12345"))
        conn.close()

    def test_by_host(self):
        host = f"{HTTP}-{self.sb.id}.localhost:{self.api.port}"
        answer = self.api.call("GET", "/v1/sandboxes", headers={"Host": host})
        self.assertEqual((answer.status, answer.body), (200, b"hello"))
        answer = self.api.call("GET", "/head", headers={"Host": host.upper()})
        self.assertIn(b"\nHost: " + host.upper().encode() + b"\n", answer.body)
        self.api.problem("GET", "/", headers={"Host": f"0-{self.sb.id}.localhost"}, status=400)
        self.assertEqual(self.api.call("GET", "/healthz", headers={"Host": "localhost"}).status, 200)

    def test_what_the_guest_is_told(self):
        headers = {"X-Forwarded-For": "1.2.3.4", "Connection": "keep-alive, X-Hop", "X-Hop": "1", "Accept": "x/y",
                   "Referer": "http://h/?space_traffic_token=tt_secret&a"}
        body = self.api.call("GET", self.path(tail="/head?x=%2F%ff&space_traffic_token=tt_s"), headers=headers).body
        lines = body.decode().splitlines()
        self.assertEqual(lines[0], "GET /head?x=%2F%ff HTTP/1.1")
        self.assertIn("X-Forwarded-For: 1.2.3.4, 127.0.0.1", lines)
        self.assertIn("X-Forwarded-Proto: http", lines)
        self.assertIn(f"X-Forwarded-Prefix: {self.sb.path}/ports/{HTTP}", lines)
        self.assertIn("Accept: x/y", lines)
        self.assertIn("Referer: http://h/?a", lines)
        for secret in (self.api.key, "X-Hop", "tt_s", "Authorization"):
            self.assertNotIn(secret, body.decode())

    def test_a_closed_port(self):
        problem = self.api.problem("GET", self.path(port=4444), status=502, slug="port_closed")
        self.assertIn("4444", problem["detail"])
        self.api.problem("PUT", self.path(port=4444), pattern(3 * MIB), status=502, slug="port_closed")
        raw = self.raw(self.head(self.path(port=4444, tail=""), "tcp"))
        self.assertIn(b"HTTP/1.1 502 ", raw.until(b"\r\n"))
        raw.until(b"port_closed")

    def test_programs_that_answer_badly(self):
        self.api.problem("GET", self.path(tail="/garbage"), status=502, slug="guest_protocol")
        self.api.problem("GET", self.path(tail="/hang-up"), status=502, slug="connection_reset")
        self.assertEqual(self.api.call("GET", self.path()).body, b"hello")

    def test_connections_are_kept(self):
        conn = self.api.connect()
        pids = {self.api.call_on(conn, "GET", self.path(tail="/pid")).body for _ in range(50)}
        conn.close()
        self.assertLess(len(pids), 10)  # each connection to portd is a process

    def test_eight_at_once(self):
        failures = []

        def work(n):
            conn = self.api.connect()
            try:
                for i in range(10):
                    tail = f"/source?{n}&n={n * 1000 + i}"
                    answer = self.api.call_on(conn, "GET", self.path(tail=tail))
                    if answer.body != pattern(n * 1000 + i):
                        failures.append((n, i, answer.status, len(answer.body)))
            except Exception as error:  # told by the test, not by the thread
                failures.append((n, error))
            finally:
                conn.close()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])

    def test_one_that_waits_holds_up_nobody(self):
        slow = self.raw(self.plain("/slow?ms=5000"))
        before = time.monotonic()
        self.assertEqual(self.api.call("GET", self.path()).body, b"hello")
        self.assertLess(time.monotonic() - before, 4)
        slow.until(b"slow")

    @limit(300)
    def test_large_bodies(self):
        n = 64 * MIB
        data = pattern(n)
        memory = self.memory()
        answer = self.api.call("PUT", self.path(tail="/sink"), data, timeout=280)
        self.assertEqual(answer.body.decode(), f"{n} 0")
        answer = self.api.call("GET", self.path(tail=f"/source?n={n}"), timeout=280)
        self.assertEqual(hashlib.sha256(answer.body).digest(), hashlib.sha256(data).digest())
        self.assertLess(self.memory() - memory, 24 * MIB)

    def test_framings(self):
        n = 3 * MIB + 17
        for tail in (f"/source?n={n}", f"/source?chunked&n={n}", f"/source?end&n={n}"):
            with self.subTest(tail=tail):
                answer = self.api.call("GET", self.path(tail=tail))
                self.assertEqual(answer.body, pattern(n))
        conn = self.api.connect()
        pieces = [pattern(n)[at:at + 50001] for at in range(0, n, 50001)]
        conn.request("POST", self.path(tail="/sink"), iter(pieces), headers=self.api.headers(), encode_chunked=True)
        self.assertEqual(conn.getresponse().read().decode(), f"{n} 0")
        conn.close()

    def test_a_body_that_is_expected(self):
        raw = self.raw(f"PUT {self.path(tail='/sink')} HTTP/1.1\r\nHost: h\r\nX-API-Key: {self.api.key}\r\n"
                       "Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n")
        raw.until(b"HTTP/1.1 100 Continue\r\n\r\n")
        raw.send(pattern(1000))
        raw.until(b"1000 0")

    def test_events_come_at_once(self):
        raw = self.raw(self.plain("/events?n=10"))
        raw.until(b"text/event-stream")
        times = []
        for n in range(10):
            raw.until(f"data: {n}\n\n".encode())
            times.append(time.monotonic())
        self.assertGreater(times[-1] - times[0], 1.0)  # not all at the end
        raw.until(b"\r\n0\r\n\r\n")

    @limit(300)
    def test_a_slow_reader(self):
        memory = self.memory()
        n = 40 * MIB
        raw = self.raw(self.plain(f"/source?n={n}"))
        raw.until(b"\r\n\r\n")
        for _ in range(20):
            self.assertEqual(self.api.call("GET", self.path()).body, b"hello")
        self.assertLess(self.memory() - memory, 16 * MIB)
        digest = hashlib.sha256()
        for _ in range(n // MIB):
            digest.update(raw.exactly(MIB))
        self.assertEqual(digest.digest(), hashlib.sha256(pattern(n)).digest())

    def test_an_upgrade(self):
        raw = self.raw(self.head(self.path(tail="/upgrade")).encode() + b"early ")
        head = raw.until(b"\r\n\r\n")
        self.assertIn(b"HTTP/1.1 101 ", head)
        self.assertIn(b"Upgrade: thing", head)
        raw.until(b"welcome\n")
        raw.until(b"early ")
        for n in range(20):
            raw.send(f"turn {n};")
            raw.until(f"turn {n};".encode())
        raw.end()  # the other half goes on
        self.assertTrue(raw.rest().startswith(b"\nend after "))

    def test_a_websocket(self):
        host = f"{HTTP}-{self.sb.id}.localhost"
        key = base64.b64encode(os.urandom(16)).decode()
        raw = self.raw(f"GET /upgrade HTTP/1.1\r\nHost: {host}\r\nX-API-Key: {self.api.key}\r\nConnection: Upgrade\r\n"
                       f"Upgrade: websocket\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n")
        self.assertIn(b"Upgrade: websocket", raw.until(b"\r\n\r\n"))
        frame = b"\x81\x85" + b"\x00" * 4 + b"hello"
        raw.until(b"welcome\n")
        raw.send(frame)
        self.assertEqual(raw.exactly(len(frame)), frame)  # bytes are bytes
        self.assertGreaterEqual(self.metric("space_port_tunnels"), 1)

    def test_a_raw_connection(self):
        raw = self.raw(self.head(self.path(RAW, ""), "tcp").encode() + b"first")
        self.assertIn(b"101 ", raw.until(b"\r\n\r\n"))
        raw.until(b"first")
        data = pattern(4 * MIB)
        sender = threading.Thread(target=lambda: (raw.send(data), raw.end()))
        sender.start()
        back = raw.rest()
        sender.join()
        self.assertEqual(back[:len(data)], data)
        self.assertEqual(back[len(data):], f"\nend after {len(data) + 5}\n".encode())

    def test_a_client_that_has_said_all_at_once(self):
        raw = self.raw(self.head(self.path(RAW, ""), "tcp").encode() + b"all")
        raw.end()
        raw.until(b"\r\n\r\n")
        self.assertEqual(raw.rest(), b"all\nend after 3\n")

    def test_clients_that_leave(self):
        """A client that is gone leaves nothing behind in the guest."""
        def busy():
            return int(self.sb.sh("ls /proc | grep -c '^[0-9]' ; true").split()[0])
        idle = busy()
        for _ in range(5):
            raw = Raw(self.api, self.head(self.path(RAW, ""), "tcp"))
            raw.until(b"\r\n\r\n")
            raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.close()
            raw = Raw(self.api, self.plain("/source?n=1000000000"))
            raw.until(b"\r\n\r\n")
            raw.close()
        self.until(lambda: busy() <= idle + 1, "the guest's processes to end", timeout=60)
        self.until(lambda: self.metric("space_port_tunnels") == 0, "no tunnels")

    def test_smuggling(self):
        """Whatever a client says about the length of a body, the program sees one request, or none."""
        for framing in ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                        "Content-Length: 5\r\nContent-Length: 6\r\n",
                        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
                        "Transfer-Encoding: xchunked\r\n",
                        "Content-Length : 5\r\n", "Transfer-Encoding : chunked\r\n", "Content-Length: +5\r\n",
                        "Content-Length: 5\r\n Content-Length: 6\r\n"):
            with self.subTest(framing=framing):
                raw = self.raw(f"POST {self.path(tail='/sink')} HTTP/1.1\r\nHost: h\r\nX-API-Key: {self.api.key}\r\n"
                               f"{framing}\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n")
                self.assertIn(b"HTTP/1.1 400 ", raw.until(b"\r\n"))


class Access(PortsTest, SharedSandboxTest):
    def setUp(self):
        super().setUp()
        if not getattr(self.sb, "has_portd", False):
            start_portd(self.sb)
            self.sb.has_portd = True
        self.anonymous = self.server.anonymous

    def test_private_by_default(self):
        self.assertEqual(self.sb.get()["network"]["public_ports"], [])
        self.anonymous.problem("GET", self.path(), status=401, slug="unauthorized")
        self.anonymous.problem("GET", "/", headers={"Host": f"{HTTP}-{self.sb.id}.localhost"}, status=401)
        raw = Raw(self.anonymous, f"GET {self.path(RAW, '')} HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n"
                                  "Upgrade: tcp\r\n\r\n")
        self.addCleanup(raw.close)
        self.assertIn(b"HTTP/1.1 401 ", raw.until(b"\r\n"))

    def key(self, role, project):
        made = self.api.ok("POST", "/v1/keys", {"role": role, "project": project}, status=201).json
        self.addCleanup(self.api.call, "DELETE", f"/v1/keys/{made['id']}")
        return self.api.with_key(made["key"])

    def test_keys(self):
        project = "default"
        other, viewer = self.key("user", "another"), self.key("viewer", project)
        other.problem("GET", self.path(), status=404, slug="not_found")
        viewer.problem("GET", self.path(), status=403, slug="forbidden")
        self.api.with_key("sk_" + "0" * 40).problem("GET", self.path(), status=401)

    def test_traffic_tokens(self):
        path = f"{self.sb.path}/traffic-token"
        token = self.api.ok("POST", path, status=201).json["token"]
        answer = self.anonymous.call("GET", self.path(tail="/head"), headers={"X-Space-Traffic-Token": token})
        self.assertEqual(answer.status, 200)
        self.assertNotIn(token, answer.body.decode())
        answer = self.anonymous.call("GET", self.path(tail=f"/head?a=1&space_traffic_token={token}&b"))
        self.assertTrue(answer.body.startswith(b"GET /head?a=1&b HTTP/1.1\n"), answer.body)
        self.anonymous.problem("GET", self.path(), headers={"X-Space-Traffic-Token": token + "x"}, status=401)
        second = self.api.ok("POST", path, status=201).json["token"]
        self.anonymous.problem("GET", self.path(), headers={"X-Space-Traffic-Token": token}, status=401)
        self.assertEqual(self.anonymous.call("GET", self.path(), headers={"X-Space-Traffic-Token": second}).status, 200)
        self.anonymous.problem("GET", self.sb.path, headers={"X-Space-Traffic-Token": second}, status=401)  # ports only
        self.api.ok("DELETE", path, status=204)
        self.anonymous.problem("GET", self.path(), headers={"X-Space-Traffic-Token": second}, status=401)

    def test_public_by_choice(self):
        self.api.ok("PATCH", self.sb.path, {"network": {"public_ports": [HTTP]}})
        self.addCleanup(self.api.call, "PATCH", self.sb.path, {"network": {"public_ports": []}})
        headers = {"Authorization": "Bearer of-the-program", "X-API-Key": "too"}
        body = self.anonymous.call("GET", self.path(tail="/head"), headers=headers).body.decode()
        self.assertIn("\nAuthorization: Bearer of-the-program\n", body)
        self.assertIn("\nX-API-Key: too\n", body)
        self.assertNotIn(self.api.key, self.api.call("GET", self.path(tail="/head")).body.decode())
        self.anonymous.problem("GET", self.path(RAW), status=401)
        self.api.ok("PATCH", self.sb.path, {"network": {"public_ports": "all"}})
        self.anonymous.problem("GET", self.path(4445), status=502, slug="port_closed")
        self.api.ok("PATCH", self.sb.path, {"network": {"public_ports": []}})
        self.anonymous.problem("GET", self.path(), status=401)

    def test_the_document(self):
        document = self.api.call("GET", "/openapi.json").json
        path = document["paths"]["/v1/sandboxes/{id}/ports/{port}/{path}"]
        self.assertEqual(set(path), {"get", "head", "post", "put", "patch", "delete", "options"})
        self.assertIn("/v1/sandboxes/{id}/traffic-token", document["paths"])


class Life(PortsTest, OwnServerTest):
    """What becomes of requests when the sandbox or the server stops under them."""

    def setUp(self):
        super().setUp()
        self.sb = self.sandbox(lifecycle={"auto_wake": True})
        start_portd(self.sb)

    @limit(300)
    def test_a_sleeping_sandbox_wakes(self):
        for verb in ("pause", "suspend"):
            with self.subTest(verb=verb):
                self.sb.verb(verb)
                self.assertEqual(self.api.call("GET", self.path(), timeout=120).body, b"hello")
                self.assertEqual(self.sb.state(), "running")
        self.api.ok("PATCH", self.sb.path, {"lifecycle": {"auto_wake": False}})
        self.sb.verb("suspend")
        self.api.problem("GET", self.path(), status=409, slug="conflict")
        self.server.anonymous.problem("GET", self.path(), status=401)

    @limit(300)
    def test_traffic_is_activity(self):
        """Requests, and a tunnel for as long as it lasts, keep the sandbox awake; without them it is idle."""
        def moves():
            return [move["to"] for move in self.api.get(f"{self.sb.path}/history")["items"]]

        def for_a_while(use):
            begin = time.monotonic()
            while time.monotonic() - begin < 6:
                use()
                time.sleep(0.2)

        self.api.ok("PATCH", self.sb.path, {"lifecycle": {"idle_timeout_s": 2, "on_idle": "pause"}})
        for_a_while(lambda: self.assertEqual(self.api.call("GET", self.path()).body, b"hello"))
        self.assertEqual(moves(), ["running"])
        tunnel = self.raw(self.head(self.path(RAW, ""), "tcp"))
        tunnel.until(b"\r\n\r\n")
        for_a_while(lambda: None)
        self.assertEqual(moves(), ["running"])
        tunnel.close()
        self.wait_state(self.sb, "paused", 60)

    @limit(300)
    def test_a_suspend_under_requests(self):
        tunnel = self.raw(self.head(self.path(RAW, ""), "tcp"))
        tunnel.until(b"\r\n\r\n")
        waiting = self.raw(self.plain("/slow?ms=600000"), timeout=120)
        self.until(lambda: self.metric("space_port_connections") >= 2, "both connections")
        self.sb.verb("suspend")
        self.assertIn(b"HTTP/1.1 503 ", waiting.until(b"\r\n"))
        with self.assertRaises(OSError):  # a reset: no end that could be taken for one
            while tunnel.sock.recv(4096):
                pass
            raise AssertionError("the tunnel ended in order")
        self.assertEqual(self.api.call("GET", self.path(), timeout=120).body, b"hello")

    @limit(300)
    def test_a_restart_under_requests(self):
        tunnel = self.raw(self.head(self.path(RAW, ""), "tcp"))
        tunnel.until(b"\r\n\r\n")
        token = self.api.ok("POST", f"{self.sb.path}/traffic-token", status=201).json["token"]
        self.api.ok("PATCH", self.sb.path, {"network": {"public_ports": [RAW]}})
        self.server.terminate()
        with self.assertRaises(OSError):
            while tunnel.sock.recv(4096):
                pass
            raise AssertionError("the tunnel ended in order")
        self.server.start()
        self.api = self.server.api
        answer = self.server.anonymous.call("GET", self.path(), headers={"X-Space-Traffic-Token": token}, timeout=120)
        self.assertEqual((answer.status, answer.body), (200, b"hello"))
        self.assertEqual(self.sb.get()["network"]["public_ports"], [RAW])
        self.assertEqual(self.metric("space_port_tunnels"), 0)

    @limit(300)
    def test_a_fork_has_no_token(self):
        token = self.api.ok("POST", f"{self.sb.path}/traffic-token", status=201).json["token"]
        self.api.ok("PATCH", self.sb.path, {"network": {"public_ports": "all"}})
        operation = self.sb.verb("fork", {"count": 1})
        child = operation["result"]["children"][0]["sandbox_id"]
        self.addCleanup(self.api.call, "DELETE", f"/v1/sandboxes/{child}")
        path = f"/v1/sandboxes/{child}/ports/{HTTP}/"
        self.server.anonymous.problem("GET", path, status=401)
        self.server.anonymous.problem("GET", path, headers={"X-Space-Traffic-Token": token}, status=401)
        self.assertEqual(self.api.call("GET", path, timeout=120).body, b"hello")  # its own copy of the server
