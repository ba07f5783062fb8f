"""examples/first-sandbox, run as the documentation says, with the small template."""
import glob
import json
import os
import subprocess

from harness import server as programs
from harness.case import SpaceTest, limit


class FirstSandbox(SpaceTest):
    def run_example(self, *args):
        run_dir = os.path.join(self.server.base, "example-run")
        env = {"PATH": os.path.dirname(programs.program("space")) + ":" + os.environ["PATH"], "HOME": "/root",
               "SPACE_URL": self.server.url, "SPACE_API_KEY": self.server.key, "TEMPLATE": "busybox:latest",
               "RUN_DIR": run_dir}
        done = subprocess.run([os.path.join(programs.TOP, "examples", "first-sandbox", "run.sh"), *args], env=env,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=150, text=True)
        return run_dir, done

    @limit(200)
    def test_delete(self):
        before = {one["id"] for one in self.api.pages("/v1/sandboxes")}
        run_dir, done = self.run_example("--cleanup=delete")
        self.assertEqual(done.returncode, 0, done)
        self.until(lambda: {one["id"] for one in self.api.pages("/v1/sandboxes")} <= before, "the sandbox deleted")
        documents = glob.glob(os.path.join(run_dir, "**", "*.json"), recursive=True)
        self.assertTrue(documents, os.listdir(run_dir) if os.path.isdir(run_dir) else done)
        for path in documents:
            with open(path, encoding="utf-8") as text:
                json.load(text)
        self.assertIn("exit", done.stdout)

    @limit(200)
    def test_suspend(self):
        run_dir, done = self.run_example("--cleanup=suspend")
        self.assertEqual(done.returncode, 0, done)
        with open(os.path.join(run_dir, "sandbox.json"), encoding="utf-8") as text:
            path = f"/v1/sandboxes/{json.load(text)['id']}"
        self.addCleanup(self.api.call, "DELETE", path)
        self.assertEqual(self.api.get(path)["state"], "suspended")

    @limit(200)
    def test_keep(self):
        before = {one["id"] for one in self.api.pages("/v1/sandboxes")}
        _, done = self.run_example("--cleanup=keep")
        self.assertEqual(done.returncode, 0, done)
        made = {one["id"] for one in self.api.pages("/v1/sandboxes")} - before
        self.assertEqual(len(made), 1)
        self.api.ok("DELETE", f"/v1/sandboxes/{made.pop()}")
