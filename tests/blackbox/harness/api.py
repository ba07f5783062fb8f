"""A small client of the HTTP API: whole answers, streams, server-sent events, operations."""
import base64
import http.client
import json
import time
import urllib.parse

from . import wait


class Answer:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = {name.lower(): value for name, value in headers}
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.status} {self.body[:600]!r}"


class Unexpected(AssertionError):
    """An answer with another status than the test asked for."""

    def __init__(self, method, path, answer, wanted):
        super().__init__(f"{method} {path}: expected {wanted}, got {answer!r}")
        self.answer = answer


class OperationFailed(AssertionError):
    def __init__(self, operation):
        super().__init__(f"operation {operation.get('kind')} {operation.get('status')}: {operation.get('error')}")
        self.operation = operation
        self.error = operation.get("error") or {}


class Api:
    """One key of one server. Every call opens a connection of its own, unless keep_alive()."""

    source = None  # address of the client's own end when it attaches; None: any

    def __init__(self, host, port, key=None, timeout=60):
        self.host, self.port, self.key, self.timeout = host, port, key, timeout

    def with_key(self, key):
        return Api(self.host, self.port, key, self.timeout)

    def connect(self, timeout=None):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout or self.timeout)

    def headers(self, extra=None):
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        headers.update(extra or {})
        return headers

    def call(self, method, path, body=None, headers=None, timeout=None):
        """body: bytes as they are, anything else as JSON. Returns an Answer, whatever its status."""
        conn = self.connect(timeout)
        try:
            return self.call_on(conn, method, path, body, headers)
        finally:
            conn.close()

    def call_on(self, conn, method, path, body=None, headers=None):
        headers = self.headers(headers)
        if body is not None and not isinstance(body, (bytes, bytearray)):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        conn.request(method, path, body, headers)
        response = conn.getresponse()
        return Answer(response.status, response.getheaders(), response.read())

    def ok(self, method, path, body=None, status=None, **kw):
        """Like call, but the status must be `status` (default: any 2xx)."""
        answer = self.call(method, path, body, **kw)
        good = 200 <= answer.status < 300 if status is None else answer.status == status
        if not good:
            raise Unexpected(method, path, answer, status or "2xx")
        return answer

    def get(self, path, **kw):
        return self.ok("GET", path, **kw).json

    def problem(self, method, path, body=None, status=400, slug=None, **kw):
        """The call must fail with this status and problem type; returns the problem document."""
        answer = self.call(method, path, body, **kw)
        if answer.status != status:
            raise Unexpected(method, path, answer, status)
        kind = answer.headers.get("content-type", "")
        assert kind.startswith("application/problem+json"), f"{method} {path}: Content-Type {kind}"
        document = answer.json
        assert document["status"] == status, document
        assert document["type"].startswith("urn:space:error:"), document
        assert document["title"] and isinstance(document["title"], str), document
        if slug is not None:
            slugs = (slug,) if isinstance(slug, str) else slug
            got = document["type"].rsplit(":", 1)[1]
            assert got in slugs, f"{method} {path}: problem {got}, expected {slug}: {document}"
        return document

    def stream(self, method, path, body=None, headers=None, timeout=None):
        """Returns (connection, response) with the body unread."""
        conn = self.connect(timeout)
        headers = self.headers(headers)
        if body is not None and not isinstance(body, (bytes, bytearray)):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        conn.request(method, path, body, headers)
        return conn, conn.getresponse()

    def pages(self, path, limit=None):
        """All items of a list, over its pages."""
        items, cursor = [], None
        while True:
            query = {}
            if limit:
                query["limit"] = limit
            if cursor:
                query["cursor"] = cursor
            sep = "&" if "?" in path else "?"
            page = self.get(path + (sep + urllib.parse.urlencode(query) if query else ""))
            assert set(page) == {"items", "next_cursor"}, page.keys()
            if limit:
                assert len(page["items"]) <= limit, (len(page["items"]), limit)
            items += page["items"]
            cursor = page["next_cursor"]
            if not cursor:
                return items

    def wait_operation(self, operation, timeout=120.0, check=True):
        """Long-polls an operation (object or id) to its end."""
        op_id = operation["id"] if isinstance(operation, dict) else operation
        timeout *= wait.slower
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            op = self.get(f"/v1/operations/{op_id}?wait_s={max(0, min(20, int(left)))}")
            if op["status"] in ("succeeded", "failed", "canceled"):
                break
            if left <= 0:
                raise AssertionError(f"operation not finished within {timeout:g} s: {op}")
        if check and op["status"] != "succeeded":
            raise OperationFailed(op)
        return op

    def sandbox(self, **body):
        return Sandbox.create(self, body)


class Sandbox:
    """Handle of a sandbox, with the calls that tests make all the time."""

    def __init__(self, api, sandbox_id):
        self.api, self.id = api, sandbox_id
        self.path = f"/v1/sandboxes/{sandbox_id}"

    @staticmethod
    def create(api, body, wait=True, timeout=120.0):
        answer = api.ok("POST", "/v1/sandboxes", body, status=202).json
        sandbox = Sandbox(api, answer["sandbox"]["id"])
        sandbox.create_operation = answer["operation"]
        if wait:
            api.wait_operation(answer["operation"], timeout)
        return sandbox

    def get(self):
        return self.api.get(self.path)

    def state(self):
        return self.get()["state"]

    def verb(self, name, body=None, wait=True, timeout=120.0):
        answer = self.api.ok("POST", f"{self.path}/{name}", body).json
        return self.api.wait_operation(answer["operation"], timeout) if wait else answer["operation"]

    def delete(self, wait=True, timeout=60.0):
        answer = self.api.ok("DELETE", self.path, status=202).json
        return self.api.wait_operation(answer["operation"], timeout) if wait else answer["operation"]

    def exec(self, command, timeout=None, **body):
        """command: a list is argv, a string is shell. Returns Exec."""
        body["argv" if isinstance(command, (list, tuple)) else "shell"] = command
        return Exec(self.api.ok("POST", f"{self.path}/exec", body, status=200, timeout=timeout).json)

    def sh(self, text, timeout=None, **body):
        """Runs a shell command that must exit 0; returns its output as text."""
        done = self.exec(text, timeout=timeout, **body)
        assert done.code == 0, f"{text!r}: {done.result} stderr {done.err!r}"
        return done.out.decode()

    def session(self, command, **body):
        body["argv" if isinstance(command, (list, tuple)) else "shell"] = command
        return self.api.ok("POST", f"{self.path}/sessions", body, status=201).json

    def process(self, process_id, wait_s=None):
        return self.api.get(f"{self.path}/processes/{process_id}" + (f"?wait_s={wait_s}" if wait_s else ""))

    def result(self, process_id, timeout=60.0):
        """Waits for a process to end; returns its result."""
        deadline = time.monotonic() + timeout
        while True:
            process = self.process(process_id, wait_s=10)
            if process["result"] is not None:
                return process["result"]
            if time.monotonic() > deadline:
                raise AssertionError(f"no result within {timeout:g} s: {process}")

    def output(self, process_id, stream="stdout", offset=0, limit=None):
        """A process's journal from an offset to its present end; (bytes, first offset, end)."""
        path = f"{self.path}/processes/{process_id}/output?stream={stream}&offset={offset}"
        answer = self.api.ok("GET", path + (f"&limit={limit}" if limit else ""))
        return answer.body, int(answer.headers["x-space-offset"]), int(answer.headers["x-space-end"])

    def all_output(self, process_id, stream="stdout", offset=0):
        parts = []
        while True:
            data, first, end = self.output(process_id, stream, offset)
            assert first == offset, (first, offset)
            parts.append(data)
            offset += len(data)
            if offset >= end:
                return b"".join(parts)

    def file(self, path, **query):
        return f"{self.path}/files?" + urllib.parse.urlencode({"path": path, **query})

    def put(self, path, data, **query):
        return self.api.ok("PUT", self.file(path, **query), bytes(data))

    def read(self, path):
        return self.api.ok("GET", self.file(path)).body


class Exec:
    """The answer of `exec`, decoded."""

    def __init__(self, document):
        self.document = document
        self.process = document["process"]
        self.result = self.process["result"]
        decode = base64.b64decode if document["encoding"] == "base64" else str.encode
        self.out, self.err = decode(document["stdout"]), decode(document["stderr"])
        self.code = self.result["exit_code"]

    def __repr__(self):
        return f"Exec({self.result}, out {self.out[:200]!r}, err {self.err[:200]!r})"


class Events:
    """Reader of a server-sent event stream."""

    def __init__(self, api, path, headers=None, timeout=60):
        self.conn, self.response = api.stream("GET", path, headers={"Accept": "text/event-stream", **(headers or {})},
                                              timeout=timeout)
        if self.response.status != 200:
            answer = Answer(self.response.status, self.response.getheaders(), self.response.read())
            self.conn.close()
            raise Unexpected("GET", path, answer, 200)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self.response.close()
        self.conn.close()

    def next(self):
        """The next event: {"id", "event", "data"}, data parsed; comments are skipped. None at the end."""
        event, data = {}, []
        while True:
            line = self.response.readline()
            if not line:
                return None
            line = line.rstrip(b"\r\n").decode()
            if not line:
                if data:
                    event["data"] = json.loads("\n".join(data))
                    return event
                event = {}
                continue
            name, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "data":
                data.append(value)
            elif name:
                event[name] = value

    def find(self, match, limit=1000):
        """Reads on until match(event) is true."""
        for _ in range(limit):
            event = self.next()
            if event is None:
                raise AssertionError("the event stream ended")
            if match(event):
                return event
        raise AssertionError(f"not among {limit} events")
