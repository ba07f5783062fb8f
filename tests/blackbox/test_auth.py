"""Keys and roles."""
import os
import stat

from harness.case import SpaceTest


class Keys(SpaceTest):
    def make(self, role, **body):
        answer = self.api.ok("POST", "/v1/keys", {"role": role, **body}, status=201).json
        key = answer["key"] if isinstance(answer["key"], str) else answer["secret"]
        key_id = answer.get("id") or answer.get("key_id")
        self.addCleanup(self.api.call, "DELETE", f"/v1/keys/{key_id}")
        return key_id, key

    def test_the_development_key(self):
        path = os.path.join(self.server.state_dir, "dev.key")
        info = os.stat(path)
        self.assertEqual((stat.S_IMODE(info.st_mode), info.st_uid), (0o600, 0))
        self.assertNotIn(self.server.key.encode(), self.server.log_bytes())

    def test_without_and_with_a_wrong_key(self):
        for key in (None, "x", "", "sk_" + "0" * 40, self.server.key[:-1], self.server.key + "0"):
            for method, path in (("GET", "/v1/sandboxes"), ("POST", "/v1/sandboxes"), ("GET", "/v1/templates"),
                                 ("GET", "/v1/events"), ("GET", "/v1/operations/op_x"), ("GET", "/v1/keys")):
                with self.subTest(key=(key or "")[:5], path=path):
                    answer = self.api.with_key(key).call(method, path)
                    self.assertEqual(answer.status, 401, answer)
                    self.assertEqual(answer.json["type"], "urn:space:error:unauthorized")

    def test_public_routes(self):
        for path in ("/healthz", "/readyz"):
            self.assertEqual(self.server.anonymous.call("GET", path).status, 200)

    def test_x_api_key(self):
        answer = self.server.anonymous.call("GET", "/v1/sandboxes", headers={"X-API-Key": self.server.key})
        self.assertEqual(answer.status, 200)

    def test_other_schemes(self):
        for value in (f"Basic {self.server.key}", self.server.key, f"bearer {self.server.key}", "Bearer", "Bearer  "):
            answer = self.server.anonymous.call("GET", "/v1/sandboxes", headers={"Authorization": value})
            self.assertIn(answer.status, (200, 401) if value.startswith("bearer ") else (401,), value)

    def test_roles(self):
        sb = self.sandbox()
        _, viewer = self.make("viewer")
        _, user = self.make("user")
        allowed = {
            ("GET", "/v1/sandboxes", None): (200, 200),
            ("GET", sb.path, None): (200, 200),
            ("POST", f"{sb.path}/exec", '{"argv":["true"]}'): (403, 200),
            ("POST", f"{sb.path}/sessions", '{"argv":["true"]}'): (403, 201),
            ("POST", f"{sb.path}/pause", None): (403, 202),
            ("POST", f"{sb.path}/wake", None): (403, 202),
            ("PATCH", sb.path, '{"name":"n"}'): (403, 200),
            ("POST", "/v1/keys", '{"role":"admin"}'): (403, 403),
            ("GET", "/v1/keys", None): (403, 403),
        }
        for (method, path, body), (for_viewer, for_user) in allowed.items():
            for key, wanted, role in ((viewer, for_viewer, "viewer"), (user, for_user, "user")):
                with self.subTest(method=method, path=path.replace(sb.id, "SB"), role=role):
                    answer = self.api.with_key(key).call(method, path, body.encode() if body else None,
                                                         {"Content-Type": "application/json"} if body else None)
                    self.assertEqual(answer.status, wanted, answer)
                    if method == "POST" and path.endswith("pause") and wanted == 202:
                        self.api.wait_operation(answer.json["operation"])

    def test_a_deleted_key_is_refused_at_once(self):
        key_id, key = self.make("user")
        self.assertEqual(self.api.with_key(key).call("GET", "/v1/sandboxes").status, 200)
        self.api.ok("DELETE", f"/v1/keys/{key_id}")
        self.assertEqual(self.api.with_key(key).call("GET", "/v1/sandboxes").status, 401)

    def test_secrets_are_shown_once_and_not_stored(self):
        key_id, key = self.make("viewer", name="once")
        listed = self.api.ok("GET", "/v1/keys")
        self.assertIn(key_id.encode(), listed.body)
        self.assertNotIn(key.encode(), listed.body)
        for folder, _, names in os.walk(os.path.join(self.server.state_dir, "spaced")):
            for name in names:
                with open(os.path.join(folder, name), "rb") as data:
                    self.assertNotIn(key.encode(), data.read(), name)

    def test_bad_keys(self):
        for body in ({}, {"role": "king"}, {"role": 7}, {"role": "user", "colour": 1}, {"role": "user", "name": 7}):
            with self.subTest(body=body):
                self.api.problem("POST", "/v1/keys", body, status=400)
