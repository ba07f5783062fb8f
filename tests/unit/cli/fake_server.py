"""A stand-in for the server, for tests of the client: enough of the API, with faults on request.

A scenario is a list of connections' scripts for the attach route: each a list of steps, see `attach_steps`.
"""
import base64
import hashlib
import json
import socket
import struct
import threading
import urllib.parse

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Misplaced(Exception):
    """A client's input does not belong where it says."""


class Stdin:
    """The command's input. As in the real server a byte stands where its connection began, and as many further on as came
    before it over that connection; what stands there already is dropped."""

    def __init__(self):
        self.data = bytearray()
        self.closed = False

    def put(self, at, piece):
        """The place behind it."""
        if at > len(self.data) or (self.closed and at + len(piece) > len(self.data)):
            raise Misplaced
        self.data += piece[len(self.data) - at:]
        return at + len(piece)

    def close(self, at):
        if at != len(self.data):
            raise Misplaced
        self.closed = True

    def lose(self, end):
        """What is behind `end` was on its way when the server was killed; so was the word of the end."""
        del self.data[end:]
        self.closed = False


class Place:
    """Where one connection's input comes to stand."""

    def __init__(self, stdin, query):
        self.stdin = stdin
        self.at = {None: len(stdin.data), "end": None}.get(query, query)
        self.at = self.at if self.at is None else int(self.at)

    def told(self, event):
        if event.get("type") == "stdin" and self.at is None:
            self.at = event["next"]

    def take(self, message):
        if self.at is None:
            raise Misplaced
        if isinstance(message, bytes):
            self.at = self.stdin.put(self.at, message[1:])
        else:
            self.stdin.close(self.at)


class Server:
    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests = []  # (method, target, headers, body)
        self.attaches = []  # query of each attach
        self.received = []  # messages from attached clients
        self.scripts = []  # one per attach connection
        self.stdin = Stdin()  # the command's, over all connections
        self.operation = {"id": "op_1", "kind": "create", "sandbox_id": "sb_1", "status": "succeeded",
                          "progress": {"phase": "done", "percent": None}, "result": None, "error": None}
        self.close_after = None  # a target after which a connection is closed unannounced
        self.tunnels = {}  # path -> what answers there
        self.answers = {}  # (method, path) -> (status, object or bytes, headers)
        self.event = threading.Condition()
        self.acceptor = threading.Thread(target=self.accept, daemon=True)
        self.acceptor.start()

    def close(self):
        if self.listener.fileno() < 0:
            return
        # The thread must be out of accept() before the descriptor's number is another's.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.acceptor.join()
        self.listener.close()

    def accept(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(conn,), daemon=True).start()

    def note(self, where, what):
        with self.event:
            where.append(what)
            self.event.notify_all()

    def wait(self, condition, timeout=10):
        with self.event:
            return self.event.wait_for(condition, timeout)

    def serve(self, conn):
        try:
            f = conn.makefile("rb")
            while self.one_request(conn, f):
                pass
        except (OSError, ValueError):
            pass
        finally:
            conn.close()

    def one_request(self, conn, f):
        line = f.readline().split()
        if len(line) < 3:
            return False
        method, target = line[0].decode(), line[1].decode()
        headers = {}
        while True:
            h = f.readline().strip()
            if not h:
                break
            name, _, value = h.decode().partition(":")
            headers[name.lower()] = value.strip()
        url = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(url.query))
        if headers.get("upgrade") == "websocket":
            self.note(self.requests, (method, target, headers, b""))
            self.attach(conn, f, headers, query)
            return False
        if headers.get("upgrade") == "tcp":
            self.note(self.requests, (method, target, headers, b""))
            return self.tunnel(conn, f, url.path)
        body = self.body(f, headers)
        self.note(self.requests, (method, target, headers, body))
        status, answer, extra = self.answer(method, url.path, query, body)
        if status is None:
            return False  # the connection breaks without an answer
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        kind = "application/problem+json" if status >= 400 else "application/json"
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
        if "X-Break" in extra:  # more is announced than comes
            conn.sendall(head.encode() + b"\r\n" + data[:extra["X-Break"]])
            return False
        for name, value in extra.items():
            head += f"{name}: {value}\r\n"
        conn.sendall(head.encode() + b"\r\n" + (b"" if method == "HEAD" else data))
        return target != self.close_after

    @staticmethod
    def body(f, headers):
        if headers.get("transfer-encoding") == "chunked":
            data = b""
            while True:
                n = int(f.readline(), 16)
                data += f.read(n)
                f.readline()
                if n == 0:
                    return data
        size = int(headers.get("content-length", 0))
        data = f.read(size)
        if len(data) < size:
            raise ValueError("the body breaks off")
        return data

    def answer(self, method, path, query, body):
        fixed = self.answers.get((method, path))
        if callable(fixed):
            return fixed(query, body)
        if fixed:
            return fixed
        sandbox = {"id": "sb_1", "name": "one", "state": "running", "template": {"ref": "seed:latest"}}
        session = {"session": {"id": "se_1", "process_id": "pr_1", "sandbox_id": "sb_1"},
                   "attach": {"url": self.url + "/v1/attach/se_1", "token": "tok1", "expires_at": "x"}}
        snapshot = {"id": "sn_1", "sandbox_id": "sb_1", "name": "before", "kind": "full", "state": "ready",
                    "bytes": 7}
        moved = {"at": "2026-01-02T03:04:05.678Z", "from": "running", "to": "paused", "reason": "a request",
                 "operation_id": None}
        started = {"sandbox": sandbox, "operation": self.operation}
        table = {
            ("GET", "/v1/sandboxes/sb_1/history"): (200, {"items": [moved], "next_cursor": None}),
            ("POST", "/v1/sandboxes/sb_1/suspend"): (202, started),
            ("POST", "/v1/sandboxes/sb_1/restore"): (202, started),
            ("POST", "/v1/sandboxes/sb_1/rollback"): (202, started),
            ("POST", "/v1/sandboxes/sb_1/fork"): (202, started),
            ("POST", "/v1/sandboxes/sb_1/snapshots"): (202, dict(started, snapshot=snapshot)),
            ("GET", "/v1/sandboxes/sb_1/snapshots"): (200, {"items": [snapshot], "next_cursor": None}),
            ("GET", "/v1/snapshots"): (200, {"items": [snapshot], "next_cursor": None}),
            ("GET", "/v1/snapshots/sn_1"): (200, snapshot),
            ("DELETE", "/v1/snapshots/sn_1"): (204, b""),
            ("POST", "/v1/sandboxes"): (202, {"sandbox": sandbox, "operation": self.operation}),
            ("GET", "/v1/sandboxes"): (200, {"items": [sandbox], "next_cursor": None}),
            ("GET", "/v1/sandboxes/sb_1"): (200, sandbox),
            ("DELETE", "/v1/sandboxes/sb_1"): (202, {"sandbox": sandbox, "operation": self.operation}),
            ("GET", "/v1/operations/op_1"): (200, self.operation),
            ("POST", "/v1/sandboxes/sb_1/sessions"): (201, session),
            ("POST", "/v1/sandboxes/sb_1/processes/pr_1/sessions"): (201, session),
        }
        known = table.get((method, path))
        if known:
            return known[0], known[1], {}
        return 404, {"type": "urn:space:error:not_found", "title": "Not found", "status": 404,
                     "detail": f"no {path}"}, {}

    # --- tunnels ---

    def tunnel(self, conn, f, path):
        """What `tunnels` has for the path: a problem, or a function that is the guest's end."""
        target = self.tunnels.get(path, (404, {"type": "urn:space:error:not_found", "title": "Not found"}))
        if isinstance(target, tuple):
            data = json.dumps(target[1]).encode()
            conn.sendall(f"HTTP/1.1 {target[0]} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            return True
        conn.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n" +
                     getattr(target, "first", b""))
        target(conn, f)
        return False

    # --- the attach route ---

    def attach(self, conn, f, headers, query):
        script = self.scripts.pop(0) if self.scripts else [("drop",)]
        self.note(self.attaches, dict(query, authorization=headers.get("authorization")))
        if script[0][0] == "refuse":
            data = json.dumps(script[0][2]).encode()
            conn.sendall(f"HTTP/1.1 {script[0][1]} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            return
        accept = base64.b64encode(hashlib.sha1(headers["sec-websocket-key"].encode() + GUID).digest()).decode()
        if script[0][0] == "bad-accept":
            accept = "x" * 28
        conn.sendall(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                      f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: space.attach.v1\r\n\r\n").encode())
        self.attach_steps(conn, f, script, Place(self.stdin, query.get("stdin_offset")))

    def attach_steps(self, conn, f, script, place):
        for step in script:
            kind = step[0]
            if kind in ("out", "err"):  # (kind, offset, bytes)
                channel = b"\x01" if kind == "out" else b"\x02"
                self.frame(conn, 2, channel + struct.pack(">Q", step[1]) + step[2])
            elif kind == "fragments":  # one binary message in frames of these payloads
                for i, part in enumerate(step[1]):
                    self.frame(conn, 2 if i == 0 else 0, part, fin=i + 1 == len(step[1]))
                    self.frame(conn, 9, b"between")
            elif kind == "json":
                place.told(step[1])
                self.frame(conn, 1, json.dumps(step[1]).encode())
            elif kind == "lose":  # (kind, end)
                self.stdin.lose(step[1])
            elif kind == "raw":
                conn.sendall(step[1])
            elif kind == "until":  # read messages until one satisfies the condition
                while True:
                    message = self.read_input(conn, f, place)
                    if message is None:
                        return
                    if step[1](message):
                        break
            elif kind == "close":
                self.frame(conn, 8, struct.pack(">H", step[1]) + (step[2] if len(step) > 2 else b""))
                conn.shutdown(socket.SHUT_WR)
                break  # what the client sent is read: closing over it would discard what was not yet delivered
            elif kind == "wait":
                step[1].wait(30)
            elif kind == "drop":
                conn.shutdown(socket.SHUT_RDWR)
                return
        while self.read_input(conn, f, place) is not None:
            pass

    def read_input(self, conn, f, place):
        """The next message, as read_message has it; input comes to stand where it belongs, or the client is sent away."""
        message = self.read_message(conn, f)
        try:
            if (isinstance(message, bytes) and message[:1] == b"\0") or message == '{"type":"stdin_close"}':
                place.take(message)
        except Misplaced:
            self.frame(conn, 1, json.dumps({"type": "stdin_conflict", "next": len(self.stdin.data),
                                            "message": "it has no place there"}).encode())
            self.frame(conn, 8, struct.pack(">H", 4002) + b"it has no place there")
            return None
        return message

    @staticmethod
    def frame(conn, opcode, payload, fin=True):
        head = bytes([(0x80 if fin else 0) | opcode])
        n = len(payload)
        head += bytes([n]) if n < 126 else b"\x7e" + struct.pack(">H", n) if n < 65536 else b"\x7f" + struct.pack(">Q", n)
        conn.sendall(head + payload)

    def read_message(self, conn, f):
        """The next text (str) or binary (bytes) message; pings are answered."""
        while True:
            head = f.read(2)
            if len(head) < 2:
                return None
            opcode, n = head[0] & 15, head[1] & 127
            assert head[1] & 128, "a client's frames are masked"
            if n == 126:
                n = struct.unpack(">H", f.read(2))[0]
            elif n == 127:
                n = struct.unpack(">Q", f.read(8))[0]
            mask = f.read(4)
            data = f.read(n)
            data = bytes(b ^ mask[i & 3] for i, b in enumerate(data)) if n < 4096 else self.unmask(data, mask)
            if opcode == 9:
                self.frame(conn, 10, data)
                continue
            if opcode == 8:
                self.note(self.received, "close")
                return None
            if opcode == 10:
                self.note(self.received, "pong")
                continue
            message = data.decode() if opcode == 1 else data
            self.note(self.received, message)
            return message

    @staticmethod
    def unmask(data, mask):
        n = len(data)
        key = (mask * (n // 4 + 1))[:n]
        return (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(n, "big")
