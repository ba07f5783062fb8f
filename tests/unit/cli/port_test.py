#!/usr/bin/env python3
"""`space port`, against a stand-in for the server."""
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_case import Case, problem

PATH = "/v1/sandboxes/sb_1/ports/"


def echo(conn, f):
    """Gives back what it gets, then closes its half."""
    while data := f.read1(65536):
        conn.sendall(data)
    conn.shutdown(socket.SHUT_WR)


class Port(Case):
    def setUp(self):
        super().setUp()
        self.server.tunnels[PATH + "80"] = echo

    def forward(self, *words):
        """The program, and the addresses that it prints."""
        p = self.start("port", *words)
        self.addCleanup(self.end, p)
        ports = [int(p.stdout.readline().split()[0].rpartition(b":")[2]) for _ in words[1:]]
        return p, ports

    def end(self, p):
        if p.poll() is None:
            p.kill()
        p.wait()
        p.stdout.close()
        p.stderr.close()

    def connect(self, port):
        s = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.addCleanup(s.close)
        return s

    @staticmethod
    def until_end(s):
        data = b""
        while part := s.recv(65536):
            data += part
        return data

    def said(self, p, text):
        seen, deadline = b"", time.monotonic() + 30
        while text not in seen:
            self.assertLess(time.monotonic(), deadline, seen)
            if select.select([p.stderr], [], [], 0.1)[0]:
                seen += os.read(p.stderr.fileno(), 65536)
        return seen

    def exposing(self, now, *words):
        """What the server is asked to make public."""
        sandbox = {"id": "sb_1", "network": {"public_ports": now}}
        asked = []

        def patch(_query, body):
            asked.append(json.loads(body))
            return 200, {"id": "sb_1", "network": asked[-1]["network"]}, {}

        self.server.answers["GET", "/v1/sandboxes/sb_1"] = (200, sandbox, {})
        self.server.answers["PATCH", "/v1/sandboxes/sb_1"] = patch
        done = self.space("port", *words)
        return (asked[-1]["network"]["public_ports"] if asked else None), done

    def test_public_ports(self):
        for now, words, then in (([], ("--public", "one", "80"), [80]), ([80], ("--public", "one", "80", "443"), [80, 443]),
                                 ([80], ("--public", "one", "all"), "all"), ("all", ("--public", "one", "80"), "all"),
                                 ([80, 443], ("--private", "one", "80"), [443]), ([80], ("--private", "one", "81"), [80]),
                                 ("all", ("--private", "one", "all"), []), ([1, 2], ("--private", "one", "all"), [])):
            asked, done = self.exposing(now, *words)
            self.assertEqual((asked, done.returncode), (then, 0), (now, words, done.stderr))
        self.assertIn(b"public_ports", done.stdout)
        for now, words, why in (([], ("--public", "one", "0"), b"not a port"), ([], ("--public", "one", "1:2"), b"not a port"),
                                ("all", ("--private", "one", "80"), b"all private first"),
                                ([], ("--public", "--private", "one", "80"), b"together")):
            asked, done = self.exposing(now, *words)
            self.assertIsNone(asked)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(why, done.stderr)

    def test_traffic_tokens(self):
        path = "/v1/sandboxes/sb_1/traffic-token"
        self.server.answers["POST", path] = (201, {"token": "tt_1"}, {})
        self.server.answers["DELETE", path] = (204, b"", {})
        done = self.space("token", "create", "one")
        self.assertEqual((done.returncode, done.stdout.split()[-1]), (0, b"tt_1"))
        self.assertIn(b"only now", done.stderr)
        self.assertEqual(self.space("token", "rm", "one").returncode, 0)
        self.assertIn(path, self.paths("DELETE"))

    def test_bytes_both_ways_and_half_closed(self):
        p, (port,) = self.forward("one", "0:80")
        s = self.connect(port)
        s.sendall(b"\0\xff\r\nhello")
        self.assertEqual(s.recv(100), b"\0\xff\r\nhello")
        s.sendall(b"last")
        s.shutdown(socket.SHUT_WR)
        self.assertEqual(self.until_end(s), b"last")
        headers = self.server.requests[-1][2]
        self.assertEqual((headers["connection"], headers["upgrade"], headers["authorization"]),
                         ("Upgrade", "tcp", "Bearer sk_test"))
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(20), 130)
        self.assertEqual(p.stderr.read(), b"")

    def test_the_guest_closes_its_half_first(self):
        got = []

        def guest(conn, f):
            conn.sendall(b"greeting")
            conn.shutdown(socket.SHUT_WR)
            got.append(f.read())

        self.server.tunnels[PATH + "81"] = guest
        _, (port,) = self.forward("sb_1", "0:81")
        s = self.connect(port)
        self.assertEqual(self.until_end(s), b"greeting")
        s.sendall(b"still heard")
        s.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + 20
        while not got and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(got, [b"still heard"])

    def test_bytes_that_come_with_the_head(self):
        def guest(conn, f):
            echo(conn, f)
        guest.first = b"at once"
        self.server.tunnels[PATH + "82"] = guest
        _, (port,) = self.forward("sb_1", "0:82")
        s = self.connect(port)
        self.assertEqual(s.recv(100), b"at once")

    def test_large_bodies_and_many_at_once(self):
        _, ports = self.forward("sb_1", "0:80", "0:80")
        self.assertNotEqual(*ports)
        data = os.urandom(3_000_000)
        results = []

        def one(port):
            s = self.connect(port)
            threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR)), daemon=True).start()
            results.append(self.until_end(s) == data)

        threads = [threading.Thread(target=one, args=(ports[i % 2],)) for i in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        self.assertEqual(results, [True] * 12)

    def test_a_slow_reader_in_little_memory(self):
        def guest(conn, f):
            for _ in range(512):
                conn.sendall(b"x" * 65536)
            conn.shutdown(socket.SHUT_WR)
        self.server.tunnels[PATH + "83"] = guest
        p, ports = self.forward("sb_1", "0:83", "0:80")
        slow = self.connect(ports[0])
        time.sleep(1)
        quick = self.connect(ports[1])  # is not held up
        quick.sendall(b"q")
        self.assertEqual(quick.recv(1), b"q")
        with open(f"/proc/{p.pid}/status") as f:
            peak = [int(line.split()[1]) for line in f if line.startswith("VmHWM")][0]
        if "ASAN_OPTIONS" not in self.env:
            self.assertLess(peak, 30000)
        self.assertEqual(len(self.until_end(slow)), 512 * 65536)

    def test_a_closed_port_is_told_and_tried_again(self):
        closed = (502, problem(502, "port_closed", "Port closed"))
        self.server.tunnels[PATH + "80"] = closed
        p, (port,) = self.forward("sb_1", "0:80")
        for _ in range(3):
            with self.assertRaises(ConnectionResetError):
                self.connect(port).recv(1)
        said = self.said(p, b"\n")
        self.assertEqual(said, b"space: port 80: Port closed: d\n")  # once
        self.server.tunnels[PATH + "80"] = echo
        s = self.connect(port)
        s.sendall(b"x")
        self.assertEqual(s.recv(1), b"x")
        self.server.tunnels[PATH + "80"] = closed
        with self.assertRaises(ConnectionResetError):
            self.connect(port).recv(1)
        self.said(p, b"Port closed")
        self.assertIsNone(p.poll())

    def test_a_reset_is_passed_on(self):
        def guest(conn, f):
            f.read1(10)
            conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            f.detach()
            conn.close()
        self.server.tunnels[PATH + "84"] = guest
        _, (port,) = self.forward("sb_1", "0:84")
        s = self.connect(port)
        s.sendall(b"x")
        with self.assertRaises(ConnectionResetError):
            s.recv(1)

    def test_a_client_that_vanishes(self):
        ended = threading.Event()

        def guest(conn, f):
            try:
                while True:
                    conn.sendall(b"x" * 1000)
                    time.sleep(0.01)
            except OSError:
                ended.set()
        self.server.tunnels[PATH + "85"] = guest
        _, (port,) = self.forward("sb_1", "0:85")
        s = self.connect(port)
        s.recv(10)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
        self.assertTrue(ended.wait(20))

    def test_a_sandbox_that_goes(self):
        p, (port,) = self.forward("sb_1", "0:80")
        self.server.tunnels[PATH + "80"] = (410, problem(410, "sandbox_gone", "Sandbox gone"))
        with self.assertRaises(ConnectionResetError):
            self.connect(port).recv(1)
        self.assertEqual(p.wait(20), 1)
        self.assertIn(b"Sandbox gone", p.stderr.read())

    def test_a_server_that_goes_and_comes(self):
        p, (port,) = self.forward("sb_1", "0:80")
        self.server.close()
        with self.assertRaises(ConnectionResetError):
            self.connect(port).recv(1)
        self.assertIn(b"cannot reach the server", self.said(p, b"\n"))
        self.assertIsNone(p.poll())
        again = socket.create_server(("127.0.0.1", self.server.port))
        self.server.listener = again
        self.server.acceptor = threading.Thread(target=self.server.accept, daemon=True)
        self.server.acceptor.start()
        s = self.connect(port)
        s.sendall(b"x")
        self.assertEqual(s.recv(1), b"x")

    def test_answers_that_are_none(self):
        p, (port,) = self.forward("sb_1", "0:80")
        for raw in (b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"x" * 100000, b""):
            self.server.one_request = lambda conn, f, raw=raw: (f.readline(), conn.sendall(raw)) and False
            with self.assertRaises(ConnectionResetError):
                self.connect(port).recv(1)
        self.said(p, b"space: port 80: ")
        self.assertIsNone(p.poll())

    def test_statuses(self):
        for words in (["one"], ["one", "x"], ["one", "0"], ["one", "65536"], ["one", "1:2:3"], ["one", ":80"],
                      ["one", "-1:80"], ["one"] + ["0:80"] * 17):
            self.assertEqual(self.space("port", *words).returncode, 2, words)
        self.assertEqual(self.space("port", "sb_none", "80").returncode, 3)
        busy = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(busy.close)
        r = self.space("port", "one", "0:80", f"{busy.getsockname()[1]}:80")
        self.assertEqual((r.returncode, r.stdout), (1, b""))
        self.assertIn(b"Address already in use", r.stderr)
        p = self.start("port", "-ojson", "one", "0:80")
        self.addCleanup(self.end, p)
        line = json.loads(p.stdout.readline())
        self.assertRegex(line["address"], r"^127\.0\.0\.1:\d+$")
        self.assertEqual((line["sandbox_id"], line["port"]), ("sb_1", 80))
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(20), 143)


if __name__ == "__main__":
    unittest.main(verbosity=2)
