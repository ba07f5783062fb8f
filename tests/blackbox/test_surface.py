"""What the server says of itself: OpenAPI document, version, health, metrics, events."""
import re
import threading

from harness.api import Events
from harness.case import SpaceTest, limit

METHODS = ("get", "put", "post", "delete", "patch")


class OpenApi(SpaceTest):
    def setUp(self):
        super().setUp()
        self.document = self.api.get("/openapi.json")

    def test_document(self):
        self.assertTrue(self.document["openapi"].startswith("3.1"), self.document["openapi"])
        for path in ("/v1/sandboxes", "/v1/sandboxes/{id}", "/v1/sandboxes/{id}/exec", "/v1/sandboxes/{id}/sessions",
                     "/v1/operations/{id}", "/v1/templates", "/v1/events", "/v1/sandboxes/{id}/files"):
            self.assertIn(path, self.document["paths"])
        text = str(self.document)
        for slug in ("unknown_field", "idempotency_mismatch", "no_such_file", "sandbox_gone"):
            self.assertIn(slug, text)

    def test_references_resolve(self):
        def walk(node):
            if isinstance(node, dict):
                for key, value in node.items():
                    if key == "$ref":
                        target = self.document
                        for part in value.removeprefix("#/").split("/"):
                            self.assertIn(part, target, value)
                            target = target[part]
                    else:
                        walk(value)
            elif isinstance(node, list):
                for item in node:
                    walk(item)

        walk(self.document)

    def test_a_problem_that_needs_words(self):
        answers = self.document["paths"]["/v1/sandboxes/{id}/exec"]["post"]["responses"]
        self.assertIn("X-Space-Process", answers["504"]["description"])
        attach = self.document["paths"]["/v1/attach/{session}"]["get"]["responses"]
        self.assertIn("X-Space-Stdin-End", attach["409"]["description"])
        stdin = self.document["paths"]["/v1/sandboxes/{id}/processes/{pr}/stdin"]["post"]
        self.assertIn("X-Space-Stdin-Offset", stdin["summary"])
        self.assertIn("504", stdin["responses"])

    def test_every_documented_route_exists(self):
        count = 0
        for path, item in self.document["paths"].items():
            for method in METHODS:
                if method not in item:
                    continue
                count += 1
                with self.subTest(method=method, path=path):
                    self.assertTrue(item[method].get("responses"))
                    real = re.sub(r"{[^}]*}", "x-unknown", path)
                    conn, response = self.api.stream(method.upper(), real, headers={"Accept": "application/json"})
                    status = response.status
                    body = response.read() if status >= 400 else b""
                    conn.close()
                    self.assertNotEqual(status, 405)
                    self.assertLess(status, 500, body)
                    if status == 404:
                        self.assertNotIn(b"no such route", body.lower())
        self.assertGreater(count, 30)

    @limit(240)
    def test_every_route_refuses_what_it_does_not_know(self):
        """Fields of a body and names in a query, on objects that are there: 400 before anything else is looked at."""
        sb = self.sandbox()
        process = sb.session(["sleep", "1000"], start="now")["session"]["process_id"]
        made = self.api.ok("POST", f"{sb.path}/snapshots", {"kind": "disk"}).json
        self.api.wait_operation(made["operation"])
        self.addCleanup(self.api.call, "DELETE", f"/v1/snapshots/{made['snapshot']['id']}")
        ids = {"sandboxes": sb.id, "processes": process, "snapshots": made["snapshot"]["id"],
               "operations": made["operation"]["id"], "templates": "busybox", "tags": "latest"}
        count = 0
        for path, item in self.document["paths"].items():
            if path.startswith(("/v1/attach/", "/v1/sandboxes/{id}/ports/")):
                continue  # their queries are a client's of another kind, and the guest's
            real = re.sub(r"/(\w+)/{[^}]*}", lambda part: f"/{part[1]}/{ids.get(part[1], 'x-unknown')}", path)
            for method in set(METHODS) & set(item):
                content = item[method].get("requestBody", {}).get("content", {})
                with self.subTest(method=method, path=path):
                    body = {} if "application/json" in content else None
                    self.api.problem(method.upper(), f"{real}?colour=red", body, slug="unknown_field")
                    if method != "get" and (not content or body is not None):
                        # DELETE takes no body at all; a build's fields depend on its kind.
                        other = method == "delete" or path.endswith("/releases")
                        self.api.problem(method.upper(), real, {"colour": "red"},
                                         slug=("unknown_field", "invalid_request") if other else "unknown_field")
                    count += 1
        self.assertGreater(count, 50)
        self.assertEqual(sb.state(), "running")

    def test_documents_match_their_schema(self):
        sb = self.sandbox()
        done = sb.exec(["true"])
        for name, document in (("Sandbox", sb.get()), ("Operation", self.api.get("/v1/operations")["items"][0]),
                               ("Process", done.process)):
            schema = self.document["components"]["schemas"].get(name)
            with self.subTest(name=name):
                self.assertIsNotNone(schema, list(self.document["components"]["schemas"]))
                self.assertLessEqual(set(document), set(schema["properties"]), "undocumented fields")
                self.assertLessEqual(set(schema.get("required", [])), set(document), "missing fields")


class Health(SpaceTest):
    def test_health_and_version(self):
        self.assertEqual(self.server.anonymous.call("GET", "/healthz").status, 200)
        self.assertEqual(self.server.anonymous.call("GET", "/readyz").status, 200)
        version = self.api.get("/v1/version")
        self.assertRegex(version["version"], r"^\d+\.\d+\.\d+")
        self.assertIn("engine", str(version))

    def test_components(self):
        """What the server consists of, each with its version and age, by API and by client."""
        def found():
            answer = self.api.call("GET", "/v1/version?all=true")
            self.assertIn(answer.status, (200, 503), answer)
            return answer.json["components"] if answer.status == 200 else None

        components = self.until(found, "the components looked up", 60)
        by_name = {one["name"]: one for one in components}
        version = self.api.get("/v1/version")
        self.assertEqual(by_name["spaced"]["version"], version["version"])
        self.assertEqual(by_name["space-agent"]["kind"], "agent")
        self.assertEqual(by_name["linux"]["version"], version["kernel"])
        self.assertEqual(by_name[version["engine"]]["version"], version["vmm_version"])
        self.assertEqual({one["kind"] for one in components},
                         {"server", "agent", "vmm", "kernel", "initramfs", "library"})
        schema = self.api.get("/openapi.json")["components"]["schemas"]["Component"]
        for one in components:
            self.assertEqual(set(one), set(schema["properties"]))
            self.assertEqual(one["released"] is None, one["age_days"] is None, one)
            self.assertIn(one["released_from"], schema["properties"]["released_from"]["enum"])
        table = self.server.cli("version", "--all").stdout.decode()
        for one in components:
            self.assertRegex(table, rf"(?m)^{one['name']} +{one['kind']} +")
        self.api.problem("GET", "/v1/version?all=maybe", status=400)

    def test_doctor(self):
        answer = self.api.call("GET", "/v1/doctor")
        self.assertIn(answer.status, (200, 404), answer)


class Metrics(SpaceTest):
    LINE = re.compile(r'^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-zA-Z_][a-zA-Z0-9_]*="(\\.|[^"\\])*"'
                      r'(,[a-zA-Z_][a-zA-Z0-9_]*="(\\.|[^"\\])*")*\})? (-?[0-9.e+-]+|\+Inf|NaN)$')

    def read(self):
        answer = self.api.ok("GET", "/metrics")
        self.assertTrue(answer.headers["content-type"].startswith("text/plain"), answer.headers)
        return answer.body.decode()

    def test_format(self):
        typed = set()
        for line in self.read().splitlines():
            if line.startswith("# TYPE "):
                name = line.split()[2]
                self.assertNotIn(name, typed, "TYPE twice")
                typed.add(name)
            elif line and not line.startswith("#"):
                self.assertRegex(line, self.LINE)
                name = re.match(r"[a-zA-Z0-9_:]+", line).group(0)
                base = re.sub(r"_(bucket|sum|count)$", "", name)
                self.assertTrue(name in typed or base in typed, line)
        self.assertTrue(typed)

    def test_numbers_move(self):
        sb = self.sandbox()
        text = self.read()
        running = re.search(r'^space_sandboxes\{[^}]*state="running"[^}]*\} (\d+)', text, re.MULTILINE)
        self.assertIsNotNone(running, text[:2000])
        before = int(running.group(1))
        sb.verb("pause")
        after = int(re.search(r'^space_sandboxes\{[^}]*state="running"[^}]*\} (\d+)', self.read(),
                              re.MULTILINE).group(1))
        self.assertEqual(after, before - 1)
        self.assertIn("_bucket{", text)

    def test_histograms_are_cumulative(self):
        series = {}
        for line in self.read().splitlines():
            found = re.match(r'^(\w+)_bucket\{(.*)le="([^"]+)"(.*)\} (\S+)$', line)
            if found:
                key = (found.group(1), found.group(2) + found.group(4))
                series.setdefault(key, []).append((float(found.group(3)), float(found.group(5))))
        self.assertTrue(series)
        for key, points in series.items():
            self.assertEqual(points, sorted(points), key)
            self.assertEqual([c for _, c in points], sorted(c for _, c in points), key)
            self.assertEqual(points[-1][0], float("inf"), key)


class EventStream(SpaceTest):
    def test_states_and_operations_in_order(self):
        with Events(self.api, "/v1/events") as events:
            sb = self.sandbox()
            sb.delete()
            seen = []
            while "deleted" not in seen:
                event = events.find(lambda e: sb.id in str(e["data"]))
                if "state" in event["data"].get("sandbox", event["data"]):
                    state = event["data"].get("sandbox", event["data"])["state"]
                    if not seen or seen[-1] != state:
                        seen.append(state)
        self.assertEqual(seen, ["creating", "running", "deleting", "deleted"])

    def test_resume_after_the_last_id(self):
        with Events(self.api, "/v1/events") as events:
            sb = self.sandbox()
            first = events.find(lambda e: sb.id in str(e["data"]))
        sb.delete()
        for path, headers in ((f"/v1/events?since={first['id']}", {}), ("/v1/events", {"Last-Event-ID": first["id"]})):
            with self.subTest(path=path), Events(self.api, path, headers) as events:
                ids, state = [], None
                while state != "deleted":
                    event = events.next()
                    ids.append(int(event["id"]))
                    if sb.id in str(event["data"]):
                        state = event["data"].get("sandbox", event["data"]).get("state", state)
                self.assertEqual(ids, sorted(set(ids)))
                self.assertGreater(ids[0], int(first["id"]))

    def test_many_followers(self):
        streams = [Events(self.api, "/v1/events") for _ in range(20)]
        sb = self.sandbox()
        found = []

        def follow(stream):
            found.append(stream.find(lambda e: sb.id in str(e["data"])) is not None)
            stream.close()

        threads = [threading.Thread(target=follow, args=(stream,)) for stream in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [True] * 20)

    def test_bad_since(self):
        for since in ("x", "-1", ""):
            with self.subTest(since=since):
                self.api.problem("GET", f"/v1/events?since={since}", status=400)
