"""A strict WebSocket client (RFC 6455) and, on top, a client of the attach protocol in both its forms.

Strict: whatever the server may not send raises ProtocolError, so that the tests find it.
"""
import base64
import hashlib
import http.client
import json
import os
import socket
import struct
import time
import urllib.parse

from .api import Answer

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
STDIN, STDOUT, STDERR = 0, 1, 2


class ProtocolError(AssertionError):
    pass


class Refused(AssertionError):
    """The handshake was answered with an ordinary response."""

    def __init__(self, answer):
        super().__init__(f"no upgrade: {answer!r}")
        self.answer = answer


class Closed(Exception):
    def __init__(self, code, reason):
        super().__init__(f"closed with {code} {reason}")
        self.code, self.reason = code, reason


class WebSocket:
    def __init__(self, host, port, path, protocol=None, headers=None, timeout=60, source=None):
        """source: the client's own address; None: any."""
        self.sock = socket.create_connection((host, port), timeout, source and (source, 0))
        self.buffer = b""
        self.parts, self.kind = [], None
        self.close_sent = False
        try:
            self.handshake(host, port, path, protocol, headers or {})
        except BaseException:
            self.sock.close()
            raise

    def handshake(self, host, port, path, protocol, headers):
        key = base64.b64encode(os.urandom(16))
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}:{port}", "Upgrade: websocket", "Connection: Upgrade",
                 f"Sec-WebSocket-Key: {key.decode()}", "Sec-WebSocket-Version: 13"]
        if protocol:
            lines.append(f"Sec-WebSocket-Protocol: {protocol}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        head = self.read_head()
        status = int(head.split(b" ", 2)[1])
        fields = {}
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            fields[name.strip().lower().decode()] = value.strip().decode()
        if status != 101:
            length = int(fields.get("content-length", 0))
            while len(self.buffer) < length:
                self.fill()
            raise Refused(Answer(status, list(fields.items()), self.buffer[:length]))
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest()).decode()
        self.must(fields.get("sec-websocket-accept") == accept, f"Sec-WebSocket-Accept {fields}")
        self.must(fields.get("upgrade", "").lower() == "websocket", f"Upgrade {fields}")
        self.must("upgrade" in fields.get("connection", "").lower(), f"Connection {fields}")
        self.must(fields.get("sec-websocket-protocol") == protocol, f"subprotocol {fields}")
        self.must("sec-websocket-extensions" not in fields, f"an extension nobody offered: {fields}")

    @staticmethod
    def must(true, what):
        if not true:
            raise ProtocolError(what)

    def read_head(self):
        while b"\r\n\r\n" not in self.buffer:
            self.fill()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        return head

    def fill(self):
        try:
            data = self.sock.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Closed(1006, "the connection ended without a close frame")
        self.buffer += data

    def take(self, n):
        while len(self.buffer) < n:
            self.fill()
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    def frame(self):
        first, second = self.take(2)
        self.must(not first & 0x70, "reserved bits are set")
        self.must(not second & 0x80, "a frame from the server is masked")
        final, opcode, length = bool(first & 0x80), first & 15, second & 127
        if length == 126:
            length = struct.unpack(">H", self.take(2))[0]
            self.must(length > 125, "length not in its shortest form")
        elif length == 127:
            length = struct.unpack(">Q", self.take(8))[0]
            self.must(length > 65535, "length not in its shortest form")
        if opcode >= 8:
            self.must(final and length <= 125, "a control frame is fragmented or too long")
        return final, opcode, self.take(length)

    def receive(self):
        """The next message: (TEXT, str) or (BINARY, bytes). Raises Closed at the end."""
        while True:
            final, opcode, data = self.frame()
            if opcode == PING:
                self.send(PONG, data)
            elif opcode == CLOSE:
                code = struct.unpack(">H", data[:2])[0] if len(data) >= 2 else 1005
                if not self.close_sent:
                    self.close_sent = True
                    try:
                        self.send(CLOSE, data[:2])
                    except OSError:
                        pass  # it has gone already, which it may after a protocol error
                raise Closed(code, data[2:].decode())
            elif opcode in (TEXT, BINARY):
                self.must(self.kind is None, "a message begins inside another")
                self.kind, self.parts = opcode, [data]
            elif opcode == 0:
                self.must(self.kind is not None, "a continuation of nothing")
                self.parts.append(data)
            elif opcode != PONG:
                raise ProtocolError(f"opcode {opcode}")
            if opcode in (0, TEXT, BINARY) and final:
                kind, whole = self.kind, b"".join(self.parts)
                self.kind, self.parts = None, []
                return (kind, whole.decode("utf-8")) if kind == TEXT else (kind, whole)

    def send(self, opcode, data, final=True):
        if isinstance(data, str):
            data = data.encode()
        head = bytes([(0x80 if final else 0) | opcode])
        if len(data) < 126:
            head += bytes([0x80 | len(data)])
        elif len(data) < 65536:
            head += bytes([0x80 | 126]) + struct.pack(">H", len(data))
        else:
            head += bytes([0x80 | 127]) + struct.pack(">Q", len(data))
        # A mask of zeros is as valid as any other, and the payload stays as it is.
        self.sock.sendall(head + b"\0\0\0\0" + data)

    def close(self, code=1000):
        if not self.close_sent:
            self.close_sent = True
            self.send(CLOSE, struct.pack(">H", code))

    def abort(self):
        """Drops the connection as a dying client would."""
        self.sock.close()


class Output:
    """One stream as a reader has it: checks that the pieces join without gaps or overlaps."""

    def __init__(self, offset):
        self.first = self.offset = offset
        self.parts, self.gaps = [], []
        self.keep, self.digest = True, None

    def add(self, offset, data):
        if offset != self.offset:
            raise ProtocolError(f"output at {offset}, expected {self.offset}")
        self.offset += len(data)
        if self.keep:
            self.parts.append(data)
        if self.digest:
            self.digest.update(data)

    def gap(self, start, end):
        if start != self.offset or end <= start:
            raise ProtocolError(f"gap {start}..{end} at {self.offset}")
        self.gaps.append((start, end))
        self.offset = end

    @property
    def data(self):
        return b"".join(self.parts)


class Attachment:
    """What both forms of attach share: streams, events, the one result."""

    def __init__(self, stdout_offset=0, stderr_offset=0):
        self.out, self.err = Output(stdout_offset), Output(stderr_offset)
        self.events, self.result, self.pid, self.pings = [], None, None, 0

    def event(self, event):
        if self.result is not None:
            raise ProtocolError(f"an event after the result: {event}")
        if event == {"type": "ping"}:
            self.pings += 1
            return
        self.events.append(event)
        kind = event["type"]
        if kind == "started":
            self.pid = event["pid"]
        elif kind == "gap":
            {"stdout": self.out, "stderr": self.err}[event["stream"]].gap(event["from"], event["to"])
        elif kind == "result":
            self.result = event

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.abort()


def attach_path(session, stdout_offset, stderr_offset, token, takeover=False, stdin=None):
    url = urllib.parse.urlsplit(session["attach"]["url"])
    query = dict(urllib.parse.parse_qsl(url.query))
    if token:
        query["token"] = token
    if stdout_offset:
        query["stdout_offset"] = stdout_offset
    if stderr_offset:
        query["stderr_offset"] = stderr_offset
    if takeover:
        query["takeover"] = 1
    if stdin:
        query["stdin_offset"], query["stdin_writer"] = stdin
    return url.path + ("?" + urllib.parse.urlencode(query) if query else "")


class Attach(Attachment):
    """Attach by WebSocket. session: the answer of POST .../sessions."""

    def __init__(self, api, session, stdout_offset=0, stderr_offset=0, token=None, bearer=False, timeout=60,
                 protocol="space.attach.v1", takeover=False, stdin=None):
        """stdin: (offset of the first byte that will be sent, or "end"; the writer's name)."""
        super().__init__(stdout_offset, stderr_offset)
        token = session["attach"]["token"] if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if bearer else {}
        self.ws = WebSocket(api.host, api.port,
                            attach_path(session, stdout_offset, stderr_offset, None if bearer else token, takeover,
                                        stdin),
                            protocol, headers, timeout, api.source)
        self.closed = None

    def step(self):
        """Takes one message; False once the connection has been closed."""
        try:
            kind, data = self.ws.receive()
        except Closed as closed:
            self.closed = closed
            self.ws.sock.close()
            return False
        if kind == TEXT:
            self.event(json.loads(data))
        else:
            channel, offset = data[0], struct.unpack(">Q", data[1:9])[0]
            if channel not in (STDOUT, STDERR) or len(data) == 9:
                raise ProtocolError(f"binary message {data[:16]!r} of {len(data)} bytes")
            if self.result is not None:
                raise ProtocolError("output after the result")
            (self.out if channel == STDOUT else self.err).add(offset, data[9:])
        return True

    def until(self, condition, what, timeout=60.0):
        """Reads until condition() is true."""
        self.ws.sock.settimeout(timeout)
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout:g} s: {what}; out {self.out.data[-300:]!r}")
            if not self.step():
                raise AssertionError(f"{self.closed} before: {what}; out {self.out.data[-300:]!r} "
                                     f"events {self.events[-5:]}")

    def expect(self, text, timeout=60.0):
        text = text.encode() if isinstance(text, str) else text
        self.until(lambda: text in self.out.data, f"{text!r} in stdout", timeout)

    def finish(self, timeout=60.0):
        """Reads to the end; there must be one result, then close 1000. Returns the result."""
        self.ws.sock.settimeout(timeout)
        while self.step():
            pass
        if self.result is None or self.closed.code != 1000:
            raise AssertionError(f"{self.closed}, result {self.result}, events {self.events[-5:]}")
        return self.result

    def stdin(self, data):
        self.ws.send(BINARY, bytes([STDIN]) + (data.encode() if isinstance(data, str) else data))

    def control(self, **message):
        self.ws.send(TEXT, json.dumps(message))

    def abort(self):
        self.ws.abort()


class AttachLines(Attachment):
    """Attach by chunked HTTP, one JSON object a line."""

    def __init__(self, api, session, stdout_offset=0, stderr_offset=0, token=None, timeout=60, takeover=False):
        super().__init__(stdout_offset, stderr_offset)
        token = session["attach"]["token"] if token is None else token
        self.conn = http.client.HTTPConnection(api.host, api.port, timeout=timeout,
                                               source_address=api.source and (api.source, 0))
        self.conn.request("GET", attach_path(session, stdout_offset, stderr_offset, token, takeover),
                          headers={"Accept": "application/x-ndjson"})
        self.response = self.conn.getresponse()
        if self.response.status != 200:
            answer = Answer(self.response.status, self.response.getheaders(), self.response.read())
            self.conn.close()
            raise Refused(answer)
        kind = self.response.getheader("Content-Type", "")
        if not kind.startswith("application/x-ndjson"):
            raise ProtocolError(f"Content-Type {kind}")

    def step(self):
        line = self.response.readline()
        if not line:
            return False
        event = json.loads(line)
        if event["type"] in ("stdout", "stderr"):
            if self.result is not None:
                raise ProtocolError("output after the result")
            stream = self.out if event["type"] == "stdout" else self.err
            stream.add(event["offset"], base64.b64decode(event["data_b64"], validate=True))
        else:
            self.event(event)
        return True

    def until(self, condition, what):
        while not condition():
            if not self.step():
                raise AssertionError(f"the stream ended before: {what}; events {self.events[-5:]}")

    def finish(self):
        while self.step():
            pass
        if self.result is None:
            raise AssertionError(f"the stream ended without a result; events {self.events[-5:]}")
        return self.result

    def abort(self):
        self.conn.close()
