"""examples/first-sandbox, run as the documentation says, with the small template."""
import json
import os
import subprocess
import tempfile

from harness import server as programs
from harness.api import Sandbox
from harness.case import SpaceTest, limit
from harness.terminal import Terminal

EXAMPLE = os.path.join(programs.TOP, "examples", "first-sandbox", "run.sh")


class FirstSandbox(SpaceTest):
    def run_example(self, *args):
        run_dir = os.path.join(self.server.base, "example-run")
        env = {"PATH": os.path.dirname(programs.program("space")) + ":" + os.environ["PATH"], "HOME": "/root",
               "SPACE_URL": self.server.url, "SPACE_API_KEY": self.server.key, "TEMPLATE": "busybox:latest",
               "RUN_DIR": run_dir}
        done = subprocess.run([EXAMPLE, *args], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=150,
                              text=True)
        return run_dir, done

    @limit(200)
    def test_delete(self):
        before = {one["id"] for one in self.api.pages("/v1/sandboxes")}
        run_dir, done = self.run_example("--cleanup=delete")
        self.assertEqual(done.returncode, 0, done)
        self.until(lambda: {one["id"] for one in self.api.pages("/v1/sandboxes")} <= before, "the sandbox deleted")
        kept = {name: self.kept(run_dir, name) for name in ("sandbox", "operation", "session", "process", "result")}
        self.assertEqual((kept["operation"]["kind"], kept["operation"]["status"]), ("create", "succeeded"))
        self.assertEqual(kept["operation"]["sandbox_id"], kept["sandbox"]["id"])
        self.assertEqual(kept["session"]["session"]["sandbox_id"], kept["sandbox"]["id"])
        self.assertEqual(kept["process"]["id"], kept["session"]["session"]["process_id"])
        self.assertEqual((kept["result"]["reason"], kept["result"]["exit_code"]), ("exit", 0))
        with open(os.path.join(run_dir, "transcript.txt"), encoding="utf-8") as text:
            transcript = text.read()
        lines = transcript.splitlines()
        self.assertRegex(transcript, "(?m)^hello from Linux")
        self.assertIn("this line goes to standard error", lines)
        self.assertEqual([line for line in lines if line.startswith("step ")], [f"step {n} of 3" for n in (1, 2, 3)])
        # It ends with both on the terminal: the output as it was, and the result.
        result = done.stdout.rindex("{")
        self.assertTrue(done.stdout[:result].endswith(transcript), done.stdout)
        self.assertEqual(json.loads(done.stdout[result:]), kept["result"])

    @staticmethod
    def kept(run_dir, name):
        with open(os.path.join(run_dir, f"{name}.json"), encoding="utf-8") as text:
            return json.load(text)

    def asked(self, answer):
        """Runs it on a terminal whose operator answers so; the sandbox, and what was kept."""
        run_dir = tempfile.mkdtemp(dir=self.server.base)
        terminal = Terminal(self.server, "--template=busybox:latest", f"--run-dir={run_dir}", program=EXAMPLE)
        self.addCleanup(terminal.close)
        terminal.until("or [d]elete it?", 150)
        terminal.type(answer + "\n")
        self.assertEqual(terminal.wait(60), 0, terminal.shown)
        sandbox = Sandbox(self.api, self.kept(run_dir, "sandbox")["id"])
        self.addCleanup(self.api.call, "DELETE", sandbox.path)
        with open(os.path.join(run_dir, "cleanup"), encoding="ascii") as text:
            return sandbox, text.read().strip()

    @limit(600)
    def test_the_operator_is_asked(self):
        for answer, word, state in (("k", "keep", "running"), ("s", "suspend", "suspended"), ("t", "stop", "stopped"),
                                    ("stop", "stop", "stopped"), ("d", "delete", "deleted"), ("", "delete", "deleted")):
            with self.subTest(answer=answer):
                sandbox, done = self.asked(answer)
                self.assertEqual((done, sandbox.state()), (word, state))

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
