"""Snapshots, rollback, fork, suspend and history at the API: bad input, rights, pages, repetition, documents."""
import uuid

from harness.api import Events, Sandbox
from harness.case import SharedSandboxTest, SpaceTest, limit
from test_requests import MALFORMED

T = "busybox"

SNAPSHOT = [
    ([], "invalid_request"),
    ("full", "invalid_request"),
    (7, "invalid_request"),
    ({"colour": "red"}, "unknown_field"),
    ({"Name": "x"}, "unknown_field"),
    ({"sandbox_id": "sb_x"}, "unknown_field"),
    ({"name": 7}, "invalid_request"),
    ({"name": ""}, "invalid_request"),
    ({"name": "a b"}, "invalid_request"),
    ({"name": "x" * 64}, "invalid_request"),
    ({"name": ["x"]}, "invalid_request"),
    ({"kind": "half"}, "invalid_request"),
    ({"kind": "FULL"}, "invalid_request"),
    ({"kind": ""}, "invalid_request"),
    ({"kind": 1}, "invalid_request"),
    ({"kind": ["full"]}, "invalid_request"),
    ({"kind": "full", "memory": True}, "unknown_field"),
]

FORK = [
    ([], "invalid_request"),
    (3, "invalid_request"),
    ({"count": 0}, "invalid_request"),
    ({"count": -1}, "invalid_request"),
    ({"count": 101}, "invalid_request"),
    ({"count": 2**62}, "invalid_request"),
    ({"count": 1.5}, "invalid_request"),
    ({"count": "2"}, "invalid_request"),
    ({"count": True}, "invalid_request"),
    ({"count": [1]}, "invalid_request"),
    ({"children": 2}, "unknown_field"),
    ({"template": T}, "unknown_field"),
    ({"resources": {"vcpus": 1}}, "unknown_field"),
    ({"name": 7}, "invalid_request"),
    ({"name": ""}, "invalid_request"),
    ({"name": "a/b"}, "invalid_request"),
    ({"name": "x" * 64}, "invalid_request"),
    ({"metadata": []}, "invalid_request"),
    ({"metadata": {"k": 7}}, "invalid_request"),
    ({"metadata": {"k": None}}, "invalid_request"),
    ({"metadata": {str(n): "v" for n in range(2000)}}, "invalid_request"),
    ({"lifecycle": []}, "invalid_request"),
    ({"lifecycle": {"nap": 1}}, "unknown_field"),
    ({"lifecycle": {"on_idle": "explode"}}, "invalid_request"),
    ({"lifecycle": {"max_lifetime_s": -1}}, "invalid_request"),
]

ROLLBACK = [
    ({}, "invalid_request"),
    ([], "invalid_request"),
    ({"snapshot_id": None}, "invalid_request"),
    ({"snapshot_id": 7}, "invalid_request"),
    ({"snapshot_id": ["sn_x"]}, "invalid_request"),
    ({"snapshot": "sn_x"}, "unknown_field"),
    ({"snapshot_id": "sn_x", "kind": "full"}, "unknown_field"),
]

LADDER = [
    ([], "invalid_request"),
    ([7], "invalid_request"),
    ([{}], "invalid_request"),
    (["pause"], "invalid_request"),
    ({"after_s": 5, "do": "pause"}, "invalid_request"),
    ([{"after_s": 5}], "invalid_request"),
    ([{"do": "pause"}], "invalid_request"),
    ([{"after_s": 0, "do": "pause"}], "invalid_request"),
    ([{"after_s": -5, "do": "pause"}], "invalid_request"),
    ([{"after_s": "5", "do": "pause"}], "invalid_request"),
    ([{"after_s": 5.5, "do": "pause"}], "invalid_request"),
    ([{"after_s": 10**12, "do": "pause"}], "invalid_request"),
    ([{"after_s": 5, "do": "explode"}], "invalid_request"),
    ([{"after_s": 5, "do": "none"}], "invalid_request"),
    ([{"after_s": 5, "do": 7}], "invalid_request"),
    ([{"after_s": 5, "do": "pause", "then": 1}], "unknown_field"),
    ([{"after_s": 5, "do": "pause"}, {"after_s": 5, "do": "suspend"}], "invalid_request"),
    ([{"after_s": 9, "do": "pause"}, {"after_s": 5, "do": "suspend"}], "invalid_request"),
    ([{"after_s": 5, "do": "suspend"}, {"after_s": 9, "do": "pause"}], "invalid_request"),
    ([{"after_s": 5, "do": "pause"}, {"after_s": 9, "do": "pause"}], "invalid_request"),
    ([{"after_s": n, "do": "pause"} for n in range(1, 300)], "invalid_request"),
    (True, "invalid_request"),
]

# Path, and the methods it has.
METHODS = [
    ("/v1/sandboxes/{id}/suspend", {"POST"}),
    ("/v1/sandboxes/{id}/restore", {"POST"}),
    ("/v1/sandboxes/{id}/fork", {"POST"}),
    ("/v1/sandboxes/{id}/rollback", {"POST"}),
    ("/v1/sandboxes/{id}/snapshots", {"GET", "HEAD", "POST"}),
    ("/v1/sandboxes/{id}/history", {"GET", "HEAD"}),
    ("/v1/snapshots", {"GET", "HEAD"}),
    ("/v1/snapshots/{id}", {"GET", "HEAD", "DELETE"}),
]


class Mixin:
    def snapshot(self, sandbox, api=None, **body):
        """A finished snapshot that goes when the test ends; its document."""
        api = api or self.api
        answer = api.ok("POST", f"{sandbox.path}/snapshots", body, status=202).json
        path = f"/v1/snapshots/{answer['snapshot']['id']}"
        api.wait_operation(answer["operation"])
        self.addCleanup(self.api.call, "DELETE", path)
        return api.get(path)

    def key(self, role, project):
        made = self.api.ok("POST", "/v1/keys", {"role": role, "project": project}, status=201).json
        self.addCleanup(self.api.call, "DELETE", f"/v1/keys/{made['id']}")
        return self.api.with_key(made["key"])

    def snapshots(self, sandbox, api=None, limit=None):
        return (api or self.api).pages(f"{sandbox.path}/snapshots", limit)

    def fork(self, sandbox, **body):
        """Children that go when the test ends."""
        operation = sandbox.verb("fork", body)
        children = [Sandbox(self.api, one["sandbox_id"]) for one in operation["result"]["children"]]
        for child in children:
            self.addCleanup(self.api.call, "DELETE", child.path)
        self.assertEqual([one["error"] for one in operation["result"]["children"]], [None] * len(children))
        return children


class BadInput(Mixin, SharedSandboxTest):
    def refuse(self, route, cases):
        for body, slug in cases:
            with self.subTest(route=route, body=str(body)[:100]):
                problem = self.api.problem("POST", f"{self.sb.path}/{route}", body, status=400, slug=slug)
                if isinstance(body, dict) and body:
                    self.assertTrue(problem.get("field"), problem)

    def test_snapshots(self):
        self.refuse("snapshots", SNAPSHOT)
        self.assertEqual(self.snapshots(self.sb), [])
        self.assertEqual(self.sb.state(), "running")

    def test_forks(self):
        before = {one["id"] for one in self.api.pages("/v1/sandboxes")}
        self.refuse("fork", FORK)
        self.assertLessEqual({one["id"] for one in self.api.pages("/v1/sandboxes")}, before)

    def test_rollback(self):
        generation = self.sb.get()["generation"]
        self.refuse("rollback", ROLLBACK)
        for text in ("sn_absent", "sn_" + "a" * 20, self.sb.id, "../../etc", ""):
            with self.subTest(text=text):
                answer = self.api.call("POST", f"{self.sb.path}/rollback", {"snapshot_id": text})
                self.assertIn(answer.status, (400, 404), answer)
        self.api.problem("POST", f"{self.sb.path}/rollback", status=400, slug="invalid_request")
        self.assertEqual(self.sb.get()["generation"], generation)

    def test_verbs_take_no_fields(self):
        for verb in ("suspend", "restore"):
            with self.subTest(verb=verb):
                self.api.problem("POST", f"{self.sb.path}/{verb}", {"now": True}, slug="unknown_field")
                self.api.problem("POST", f"{self.sb.path}/{verb}", [], slug="invalid_request")
        self.assertEqual(self.sb.state(), "running")

    def test_malformed(self):
        for route in ("snapshots", "fork", "rollback", "suspend"):
            for text in MALFORMED:
                if not text:  # no body is a body without fields
                    continue
                with self.subTest(route=route, text=text[:40]):
                    answer = self.api.call("POST", f"{self.sb.path}/{route}", text,
                                           headers={"Content-Type": "application/json"})
                    self.assertIn(answer.status, (400, 413), answer)
        self.assertEqual(self.sb.state(), "running")

    def test_too_large(self):
        for route in ("snapshots", "rollback", "suspend"):
            with self.subTest(route=route):
                self.api.problem("POST", f"{self.sb.path}/{route}", {"name": "x" * 10000}, status=413, slug="too_large")

    def test_create(self):
        for body, status, slug in (({"snapshot": 7}, 400, "invalid_request"), ({"snapshot": ""}, 400, "invalid_request"),
                                   ({"snapshot": ["sn_x"]}, 400, "invalid_request"),
                                   ({"snapshot": None}, 400, "invalid_request"),
                                   ({"snapshot": "sn_absent", "template": T}, 400, "invalid_request"),
                                   ({"snapshot": "sn_absent"}, 404, "not_found"),
                                   ({"snapshot": "sn_" + "a" * 20}, 404, "not_found"),
                                   ({"snapshot_id": "sn_absent"}, 400, "unknown_field")):
            with self.subTest(body=body):
                self.api.problem("POST", "/v1/sandboxes", body, status=status, slug=slug)

    def test_ladders(self):
        before = self.sb.get()["lifecycle"]
        for ladder, slug in LADDER:
            with self.subTest(ladder=str(ladder)[:100]):
                problem = self.api.problem("POST", "/v1/sandboxes", {"template": T, "lifecycle": {"on_idle": ladder}},
                                           slug=slug)
                self.assertTrue(problem["field"].startswith("lifecycle.on_idle"), problem)
                self.api.problem("PATCH", self.sb.path, {"lifecycle": {"on_idle": ladder}}, slug=slug)
        for word in ("pause", "none", "", 7):
            with self.subTest(on_expiry=word):
                self.api.problem("PATCH", self.sb.path, {"lifecycle": {"on_expiry": word}}, slug="invalid_request")
        self.assertEqual(self.sb.get()["lifecycle"], before)

    def test_a_ladder_is_told_as_it_was_given(self):
        ladder = [{"after_s": 3000, "do": "pause"}, {"after_s": 4000, "do": "suspend"}, {"after_s": 5000, "do": "delete"}]
        lifecycle = self.api.ok("PATCH", self.sb.path, {"lifecycle": {"on_idle": ladder, "on_expiry": "suspend"}}).json
        self.assertEqual(lifecycle["lifecycle"]["on_idle"], ladder)
        self.assertEqual(lifecycle["lifecycle"]["on_expiry"], "suspend")
        back = self.api.ok("PATCH", self.sb.path, {"lifecycle": {"on_idle": "none", "on_expiry": "delete"}}).json
        self.assertEqual((back["lifecycle"]["on_idle"], back["lifecycle"]["on_expiry"]), ("none", "delete"))

    def test_unknown_ids(self):
        for method, path, body in (("POST", "/v1/sandboxes/sb_absent/suspend", None),
                                   ("POST", "/v1/sandboxes/sb_absent/restore", None),
                                   ("POST", "/v1/sandboxes/sb_absent/fork", {}),
                                   ("POST", "/v1/sandboxes/sb_absent/snapshots", {}),
                                   ("POST", "/v1/sandboxes/sb_absent/rollback", {"snapshot_id": "sn_x"}),
                                   ("GET", "/v1/sandboxes/sb_absent/snapshots", None),
                                   ("GET", "/v1/sandboxes/sb_absent/history", None),
                                   ("GET", "/v1/snapshots/sn_absent", None), ("DELETE", "/v1/snapshots/sn_absent", None),
                                   ("GET", f"/v1/snapshots/{self.sb.id}", None)):
            with self.subTest(method=method, path=path):
                self.api.problem(method, path, body, status=404, slug="not_found")

    def test_methods(self):
        for path, has in METHODS:
            path = path.replace("{id}", self.sb.id if "sandboxes" in path else "sn_absent")
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
                if method in has:
                    continue
                with self.subTest(method=method, path=path):
                    answer = self.api.call(method, path)
                    self.assertEqual((answer.status, answer.json["type"]), (405, "urn:space:error:method_not_allowed"))
                    self.assertEqual({one.strip() for one in answer.headers["allow"].split(",")} | {"HEAD", "OPTIONS"},
                                     has | {"HEAD", "OPTIONS"})

    def test_queries(self):
        for query, slug in (("limit=0", "invalid_request"), ("limit=201", "invalid_request"), ("limit=x", "invalid_request"),
                            ("cursor=", "invalid_request"), ("cursor=sn_absent", "invalid_request"),
                            ("colour=red", "unknown_field"), ("state=ready", "unknown_field")):
            for path in ("/v1/snapshots", f"{self.sb.path}/snapshots"):
                with self.subTest(path=path, query=query):
                    self.api.problem("GET", f"{path}?{query}", slug=slug)
        self.api.problem("GET", f"{self.sb.path}/snapshots?sandbox_id=sb_x", slug="unknown_field")
        self.api.problem("GET", f"{self.sb.path}/history?limit=3", slug="unknown_field")
        self.assertEqual(self.api.pages("/v1/snapshots?sandbox_id=sb_absent"), [])


class Rights(Mixin, SpaceTest):
    @limit(120)
    def test_roles_and_projects(self):
        blue, viewer, red = self.key("user", "blue"), self.key("viewer", "blue"), self.key("user", "red")
        sb = Sandbox.create(blue, {"template": T})
        self.addCleanup(self.api.call, "DELETE", sb.path)
        sn = self.snapshot(sb, blue, kind="disk")
        path, rollback = f"/v1/snapshots/{sn['id']}", {"snapshot_id": sn["id"]}
        for what in ("snapshots", "fork", "suspend", "restore", "rollback"):
            body = rollback if what == "rollback" else {}
            with self.subTest(what=what):
                viewer.problem("POST", f"{sb.path}/{what}", body, status=403, slug="forbidden")
                red.problem("POST", f"{sb.path}/{what}", body, status=404, slug="not_found")
                self.server.anonymous.problem("POST", f"{sb.path}/{what}", body, status=401, slug="unauthorized")
        viewer.problem("DELETE", path, status=403, slug="forbidden")
        for method, target in (("GET", path), ("DELETE", path), ("GET", f"{sb.path}/snapshots"),
                               ("GET", f"{sb.path}/history")):
            red.problem(method, target, status=404, slug="not_found")
        red.problem("POST", "/v1/sandboxes", {"snapshot": sn["id"]}, status=404, slug="not_found")
        red.problem("GET", f"/v1/snapshots?cursor={sn['id']}", status=400, slug="invalid_request")
        self.assertEqual(red.pages("/v1/snapshots"), [])
        for who in (blue, viewer, self.api):
            self.assertEqual([one["id"] for one in self.snapshots(sb, who)], [sn["id"]])
            self.assertIn(sn["id"], [one["id"] for one in who.pages("/v1/snapshots")])
            self.assertEqual(who.get(path)["id"], sn["id"])
            self.assertTrue(who.get(f"{sb.path}/history")["items"])
        self.assertEqual(sb.state(), "running")
        blue.ok("DELETE", path, status=204)

    def test_a_snapshot_of_another_sandbox(self):
        one, two = self.sandbox(), self.sandbox()
        sn = self.snapshot(one, kind="disk")
        answer = self.api.call("POST", f"{two.path}/rollback", {"snapshot_id": sn["id"]})
        self.assertIn(answer.status, (400, 404, 409), answer)
        self.assertEqual(two.get()["generation"], 1)


class Pages(Mixin, SpaceTest):
    @limit(120)
    def test_lists(self):
        sb, other = self.sandbox(), self.sandbox()
        made = [self.snapshot(sb, kind="disk", name=f"n{n}")["id"] for n in range(5)]
        theirs = self.snapshot(other, kind="disk")["id"]
        made.reverse()  # newest first
        for size in (None, 1, 2, 5, 200):
            self.assertEqual([one["id"] for one in self.snapshots(sb, limit=size)], made)
        self.assertEqual([one["id"] for one in self.api.pages(f"/v1/snapshots?sandbox_id={sb.id}", 2)], made)
        everything = [one["id"] for one in self.api.pages("/v1/snapshots", 2)]
        self.assertEqual(len(everything), len(set(everything)))
        self.assertEqual([one for one in everything if one in made], made)
        self.assertIn(theirs, everything)
        # Who deletes each page before asking for the next sees all of them too.
        gone, cursor = [], ""
        while cursor is not None:
            page = self.api.get(f"{sb.path}/snapshots?limit=2" + (f"&cursor={cursor}" if cursor else ""))
            for one in page["items"]:
                self.api.ok("DELETE", f"/v1/snapshots/{one['id']}", status=204)
                gone.append(one["id"])
            cursor = page["next_cursor"]
        self.assertEqual(gone, made)
        self.assertEqual(self.snapshots(sb), [])
        self.api.problem("DELETE", f"/v1/snapshots/{made[0]}", status=404, slug="not_found")


class Repetition(Mixin, SpaceTest):
    def twice(self, path, body, status=202):
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        first = self.api.call("POST", path, body, headers=headers)
        second = self.api.call("POST", path, body, headers=headers)
        self.assertEqual((first.status, second.status), (status, status), (first, second))
        self.assertEqual(first.json, second.json)
        self.assertEqual(first.headers["location"], second.headers["location"])
        self.assertEqual(second.headers.get("idempotency-replayed"), "true")
        other = self.api.call("POST", path, {"name": "other", "snapshot_id": "sn_other"}, headers=headers)
        self.assertEqual((other.status, other.json["type"]), (422, "urn:space:error:idempotency_mismatch"))
        return first.json

    @limit(180)
    def test_once_for_a_key(self):
        sb = self.sandbox()
        answer = self.twice(f"{sb.path}/snapshots", {"name": "one"})
        self.api.wait_operation(answer["operation"])
        self.addCleanup(self.api.call, "DELETE", f"/v1/snapshots/{answer['snapshot']['id']}")
        self.assertEqual([one["id"] for one in self.snapshots(sb)], [answer["snapshot"]["id"]])
        mark = str(uuid.uuid4())
        forked = self.twice(f"{sb.path}/fork", {"count": 2, "metadata": {"mark": mark}})
        self.api.wait_operation(forked["operation"])
        children = self.api.pages(f"/v1/sandboxes?metadata.mark={mark}")
        for child in children:
            self.addCleanup(self.api.call, "DELETE", f"/v1/sandboxes/{child['id']}")
        self.assertEqual(len(children), 2)
        generation = sb.get()["generation"]
        back = self.twice(f"{sb.path}/rollback", {"snapshot_id": answer["snapshot"]["id"]})
        self.api.wait_operation(back["operation"])
        self.assertEqual(sb.get()["generation"], generation + 1)
        sleep = self.twice(f"{sb.path}/suspend", {})
        self.api.wait_operation(sleep["operation"])
        self.assertEqual(sb.state(), "suspended")

    def test_already_there(self):
        sb = self.sandbox()
        self.assertEqual(self.api.call("POST", f"{sb.path}/restore").status, 200)
        sb.verb("suspend")
        again = self.api.ok("POST", f"{sb.path}/suspend", status=200).json
        self.assertEqual(again["operation"]["status"], "succeeded")
        sb.verb("restore")
        self.assertEqual(sb.state(), "running")


class Life(Mixin, SpaceTest):
    @limit(180)
    def test_back_and_anew(self):
        sb = self.sandbox(name="origin")
        sb.sh("echo one > /root/n")
        sn = self.snapshot(sb, name="before")
        self.assertEqual((sn["kind"], sn["state"], sn["sandbox_id"], sn["name"]), ("full", "ready", sb.id, "before"))
        self.assertGreater(sn["bytes"], 0)
        self.assertRecent(sn["created_at"])
        sb.sh("echo two > /root/n")
        operation = sb.verb("rollback", {"snapshot_id": sn["id"]})
        self.assertEqual((operation["kind"], operation["sandbox_id"]), ("rollback", sb.id))
        self.assertEqual(sb.sh("cat /root/n").strip(), "one")
        self.assertEqual((sb.get()["generation"], sb.get()["name"]), (2, "origin"))
        fresh = Sandbox.create(self.api, {"snapshot": sn["id"]})
        self.addCleanup(self.api.call, "DELETE", fresh.path)
        self.assertEqual(fresh.sh("cat /root/n").strip(), "one")
        self.assertEqual(fresh.get()["template"], sb.get()["template"])
        fresh.sh("echo three > /root/n")
        self.assertEqual(sb.sh("cat /root/n").strip(), "one")
        # What was made from it does not need it any more.
        self.api.ok("DELETE", f"/v1/snapshots/{sn['id']}", status=204)
        self.assertEqual(fresh.sh("cat /root/n").strip(), "three")

    @limit(180)
    def test_fork(self):
        sb = self.sandbox(metadata={"who": "parent"})
        sb.sh("echo one > /root/n")
        children = self.fork(sb, count=3, name="child", metadata={"who": "child"})
        self.assertEqual(len({child.id for child in children} | {sb.id}), 4)
        self.assertEqual(sorted(child.get()["name"] for child in children), ["child-1", "child-2", "child-3"])
        for child in children:
            document = child.get()
            self.assertEqual((document["state"], document["metadata"]), ("running", {"who": "child"}))
            self.assertEqual(document["generation"], sb.get()["generation"] + 1)
            self.assertEqual(child.sh("cat /root/n").strip(), "one")
        self.assertEqual(self.snapshots(sb), [], "what a fork starts from is nobody's snapshot")
        machines = {box.sh("cat /etc/machine-id").strip() for box in [sb, *children]}
        self.assertEqual(len(machines), 4)

    @limit(120)
    def test_history(self):
        sb = self.sandbox()
        operations = [sb.verb(verb)["id"] for verb in ("pause", "resume", "suspend", "restore")]
        moves = self.api.get(f"{sb.path}/history")["items"]
        self.assertEqual([move["to"] for move in moves],
                         ["running", "pausing", "paused", "resuming", "running", "suspending", "suspended", "restoring",
                          "running"])
        for before, after in zip(moves, moves[1:]):
            self.assertEqual(before["to"], after["from"])
            self.assertLessEqual(before["at"], after["at"])
        for move in moves:
            self.assertRecent(move["at"])
            self.assertTrue(move["reason"])
        # Both moves of a verb name its operation.
        self.assertEqual([move["operation_id"] for move in moves[1:]], [one for one in operations for _ in range(2)])

    @limit(120)
    def test_what_is_not_possible(self):
        sb = self.sandbox()
        sb.verb("stop")
        for what, body in (("fork", {}), ("snapshots", {"kind": "full"}), ("suspend", {}), ("restore", {})):
            with self.subTest(what=what):
                self.api.problem("POST", f"{sb.path}/{what}", body, status=409, slug="conflict")
        sn = self.snapshot(sb, kind="disk")
        sb.verb("rollback", {"snapshot_id": sn["id"]})
        self.assertEqual(sb.state(), "stopped")
        sb.delete()
        for what, body in (("fork", {}), ("snapshots", {}), ("suspend", {}), ("rollback", {"snapshot_id": sn["id"]})):
            with self.subTest(what=what):
                answer = self.api.call("POST", f"{sb.path}/{what}", body)
                self.assertIn(answer.status, (404, 409, 410), answer)


class Documents(Mixin, SpaceTest):
    def check(self, schemas, name, document):
        schema = schemas[name]
        self.assertLessEqual(set(document), set(schema["properties"]), f"{name}: undocumented fields")
        self.assertLessEqual(set(schema.get("required", [])), set(document), f"{name}: missing fields")

    @limit(120)
    def test_answers_match_their_schema(self):
        document = self.api.get("/openapi.json")
        for path, has in METHODS:
            self.assertLessEqual({method.lower() for method in has - {"HEAD"}}, set(document["paths"][path]))
        schemas = document["components"]["schemas"]
        sb = self.sandbox(lifecycle={"on_idle": [{"after_s": 900, "do": "pause"}, {"after_s": 999, "do": "suspend"}]})
        answer = self.api.ok("POST", f"{sb.path}/snapshots", {}, status=202)
        self.check(schemas, "SnapshotOperation", answer.json)
        self.assertEqual(answer.headers["location"], f"/v1/operations/{answer.json['operation']['id']}")
        self.check(schemas, "Snapshot", answer.json["snapshot"])
        operation = self.api.wait_operation(answer.json["operation"])
        self.check(schemas, "SnapshotResult", operation["result"])
        snapshot = self.api.get(f"/v1/snapshots/{operation['result']['snapshot_id']}")
        self.addCleanup(self.api.call, "DELETE", f"/v1/snapshots/{snapshot['id']}")
        self.check(schemas, "Snapshot", snapshot)
        self.check(schemas, "TemplateUsed", snapshot["template"])
        self.check(schemas, "Resources", snapshot["resources"])
        self.assertEqual(snapshot["bytes"], operation["result"]["bytes"])
        self.check(schemas, "Lifecycle", sb.get()["lifecycle"])
        self.check(schemas, "Sandbox", sb.get())
        self.check(schemas, "Transition", self.api.get(f"{sb.path}/history")["items"][0])
        answer = self.api.ok("POST", f"{sb.path}/fork", None, status=202).json
        self.check(schemas, "SandboxOperation", answer)
        self.assertEqual(answer["sandbox"]["id"], sb.id)
        result = self.api.wait_operation(answer["operation"])["result"]
        self.check(schemas, "ForkResult", result)
        self.assertEqual(len(result["children"]), 1)
        self.addCleanup(self.api.call, "DELETE", f"/v1/sandboxes/{result['children'][0]['sandbox_id']}")

    @limit(120)
    def test_events_and_metrics(self):
        def ready():
            text = self.api.ok("GET", "/metrics").body.decode()
            found = [line for line in text.splitlines() if line.startswith('space_snapshots{state="ready"} ')]
            return int(found[0].rsplit(" ", 1)[1]), text

        sb = self.sandbox()
        before, _ = ready()
        with Events(self.api, "/v1/events") as events:
            sn = self.snapshot(sb)
            event = events.find(lambda e: e["event"] == "snapshot.ready" and sb.id in str(e["data"]))
            self.assertEqual((event["data"]["snapshot_id"], event["data"]["kind"]), (sn["id"], "full"))
            after, text = ready()
            self.assertEqual(after, before + 1)
            self.assertIn('space_operation_seconds_count{kind="snapshot",status="succeeded"}', text)
            self.api.ok("DELETE", f"/v1/snapshots/{sn['id']}", status=204)
            event = events.find(lambda e: e["event"] == "snapshot.deleted")
            self.assertEqual(event["data"]["snapshot_id"], sn["id"])
        self.assertEqual(ready()[0], before)


class CommandLine(Mixin, SpaceTest):
    def space(self, *args, code=0):
        done = self.server.cli(*args)
        self.assertEqual(done.returncode, code, f"space {args}: {done}")
        return done.stdout.decode()

    @limit(180)
    def test_tour(self):
        sb = self.sandbox(name="tour")
        sb.sh("echo one > /root/n")
        sn = self.space("snapshot", "--name", "before", "tour").strip()
        self.addCleanup(self.api.call, "DELETE", f"/v1/snapshots/{sn}")
        self.assertTrue(sn.startswith("sn_"), sn)
        self.assertIn(sn, self.space("snapshots", "tour"))
        self.assertIn("before", self.space("snapshot", "get", sn))
        sb.sh("echo two > /root/n")
        self.assertEqual(self.space("rollback", "tour", "before").strip(), sb.id)
        self.assertEqual(sb.sh("cat /root/n").strip(), "one")
        children = self.space("fork", "-n", "2", "tour").split()
        for child in children:
            self.addCleanup(self.api.call, "DELETE", f"/v1/sandboxes/{child}")
        self.assertEqual(len(children), 2)
        self.assertEqual(self.space("run", "--snapshot", sn, "--", "cat", "/root/n"), "one\n")
        self.space("suspend", "tour")
        self.assertIn("suspended", self.space("get", "tour"))
        self.space("restore", "tour")
        self.assertIn("restoring", self.space("get", "tour"))
        self.space("snapshot", "rm", sn)
        self.space("snapshot", "get", sn, code=3)
        self.space("rollback", "tour", "before", code=3)

    @limit(120)
    def test_down_in_steps_and_up_again(self):
        made = self.space("create", "-t", T, "--on-idle", "pause:1,suspend:3", "--auto-wake", "--max-lifetime", "600",
                          "--on-expiry", "suspend").strip()
        sb = Sandbox(self.api, made)
        self.addCleanup(self.api.call, "DELETE", sb.path)
        lifecycle = sb.get()["lifecycle"]
        self.assertEqual((lifecycle["on_idle"][1], lifecycle["on_expiry"], lifecycle["auto_wake"]),
                         ({"after_s": 3, "do": "suspend"}, "suspend", True))
        self.wait_state(sb, "suspended")
        self.assertEqual(self.space("exec", "--no-stdin", made, "--", "echo", "awake"), "awake\n")
        moves = [move["to"] for move in self.api.get(f"{sb.path}/history")["items"]]
        self.assertLess(moves.index("paused"), moves.index("suspended"))
        self.assertIn("restoring", moves)

    def test_failure(self):
        sb = self.sandbox()
        sb.verb("stop")
        self.space("fork", sb.id, code=4)
