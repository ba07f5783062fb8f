"""The command line tool, as scripts use it."""
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import time

from harness import server as programs
from harness.case import SharedSandboxTest, SpaceTest


class Cli:
    def space(self, *args, code=0, **kw):
        done = self.server.cli(*args, **kw)
        self.assertEqual(done.returncode, code, f"space {args}: {done}")
        return done.stdout

    def space_json(self, *args, **kw):
        return json.loads(self.space("-o", "json", *args, **kw))


class Run(Cli, SpaceTest):
    def test_output_and_exit_code(self):
        done = self.server.cli("run", "-t", "busybox", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
        self.assertEqual((done.returncode, done.stdout), (7, b"out\n"))
        self.assertIn(b"err\n", done.stderr)

    def test_the_sandbox_is_gone_afterwards(self):
        before = {one["id"] for one in self.api.pages("/v1/sandboxes")}
        self.space("run", "-t", "busybox", "--", "true")
        self.until(lambda: {one["id"] for one in self.api.pages("/v1/sandboxes")} <= before, "the sandbox deleted")

    def test_keep(self):
        before = {one["id"] for one in self.api.pages("/v1/sandboxes")}
        self.space("run", "-t", "busybox", "--keep", "--", "true")
        made = {one["id"] for one in self.api.pages("/v1/sandboxes")} - before
        self.assertEqual(len(made), 1)
        self.space("rm", made.pop())

    def test_unknown_template(self):
        done = self.server.cli("run", "-t", "absent", "--", "true")
        self.assertEqual(done.returncode, 3, done)
        self.assertIn(b"absent", done.stderr)

    def test_interrupt_deletes_the_sandbox(self):
        before = {one["id"] for one in self.api.pages("/v1/sandboxes")}
        child = subprocess.Popen([programs.program("space"), "run", "-t", "busybox", "--", "sh", "-c",
                                  "echo up; exec sleep 1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env={"SPACE_URL": self.server.url, "SPACE_API_KEY": self.server.key, "HOME": "/root",
                                      "PATH": os.environ["PATH"]})
        self.assertEqual(child.stdout.readline(), b"up\n")
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        self.assertNotEqual(child.returncode, 0, (out, err))
        self.until(lambda: {one["id"] for one in self.api.pages("/v1/sandboxes")} <= before, "the sandbox deleted")


class Exec(Cli, SharedSandboxTest):
    def test_exit_codes(self):
        for command, code in ((["true"], 0), (["sh", "-c", "exit 42"], 42), (["sh", "-c", "kill -TERM $$"], 143),
                              (["no-such-program"], 127)):
            with self.subTest(command=command):
                self.space("exec", self.sb.id, "--", *command, code=code)

    def test_arguments_are_not_interpreted(self):
        out = self.space("exec", self.sb.id, "--", "printf", "%s|", "a b", "", "*", "--help", "$X")
        self.assertEqual(out, b"a b||*|--help|$X|")

    def test_stdin_and_binary_output(self):
        data = bytes(range(256)) * 500
        self.assertEqual(self.space("exec", "-i", self.sb.id, "--", "cat", stdin=data), data)

    def test_terminal(self):
        pid, fd = pty.fork()
        if pid == 0:
            os.environ.update({"SPACE_URL": self.server.url, "SPACE_API_KEY": self.server.key})
            os.execv(programs.program("space"), ["space", "exec", "-it", self.sb.id, "--", "sh", "-c",
                                                 "tty; read x; echo got:$x; exit 9"])
        text, deadline = b"", time.monotonic() + 60
        sent = False
        while time.monotonic() < deadline:
            if not select.select([fd], [], [], 1)[0]:
                continue
            try:
                part = os.read(fd, 4096)
            except OSError:
                break
            if not part:
                break
            text += part
            if b"/dev/pts/" in text and not sent:
                os.write(fd, b"typed\r")
                sent = True
        os.close(fd)
        _, status = os.waitpid(pid, 0)
        self.assertIn(b"got:typed", text)
        self.assertEqual(os.waitstatus_to_exitcode(status), 9, text)

    def test_ps_and_logs(self):
        done = self.sb.exec("echo logged; echo wrong >&2")
        for words, there in (((), False), (("-a",), True)):  # it has ended
            items = self.space_json("ps", *words, self.sb.id)["items"]
            self.assertEqual(done.process["id"] in [one["id"] for one in items], there)
        self.assertIn(b"'echo logged; echo wrong >&2'", self.space("ps", "-a", self.sb.id))
        answer = self.server.cli("logs", done.process["id"])
        if answer.returncode == 2:
            answer = self.server.cli("logs", self.sb.id, done.process["id"])
        self.assertEqual((answer.returncode, answer.stdout), (0, b"logged\n"), answer)
        self.assertIn(b"wrong", answer.stderr)

    def test_cp_both_ways(self):
        data = os.urandom(3_000_000)
        local = os.path.join(self.server.base, "local")
        with open(local, "wb") as out:
            out.write(data)
        self.space("cp", local, f"{self.sb.id}:/root/copied")
        self.assertEqual(self.sb.sh("wc -c < /root/copied").strip(), str(len(data)))
        self.space("cp", f"{self.sb.id}:/root/copied", local + ".back")
        with open(local + ".back", "rb") as back:
            self.assertEqual(back.read(), data)
        self.assertEqual(self.space("cp", f"{self.sb.id}:/root/copied", "-"), data)
        self.space("cp", "-", f"{self.sb.id}:/root/piped", stdin=b"through a pipe")
        self.assertEqual(self.sb.read("/root/piped"), b"through a pipe")
        self.space("cp", f"{self.sb.id}:/root/absent", local, code=3)
        os.unlink(local)


class Objects(Cli, SpaceTest):
    def test_create_get_ls_verbs_rm(self):
        made = self.space_json("create", "-t", "busybox", "--name", "cli-fox", "--wait")
        sandbox = made.get("sandbox", made)
        self.assertTrue(sandbox["id"].startswith("sb_"))
        got = self.space_json("get", sandbox["id"])
        self.assertEqual((got["state"], got["name"]), ("running", "cli-fox"))
        listed = self.space("ls")
        self.assertIn(sandbox["id"].encode(), listed)
        for verb, state in (("pause", "paused"), ("resume", "running"), ("stop", "stopped"), ("start", "running")):
            self.space(verb, "--wait", sandbox["id"])
            self.assertEqual(self.space_json("get", sandbox["id"])["state"], state)
        self.space("rm", "--wait", sandbox["id"])
        self.assertEqual(self.space_json("get", sandbox["id"])["state"], "deleted")

    def test_get_tells_the_history(self):
        """Below the document: each move with its time, its operation and its reason."""
        sb = self.sandbox()
        operation = sb.verb("pause")["id"]
        lines = self.space("get", sb.id).decode().splitlines()
        head = next(n for n, line in enumerate(lines) if line.split() == ["TIME", "FROM", "TO", "OPERATION", "REASON"])
        moves = [line.split(maxsplit=4) for line in lines[head + 1:]]
        self.assertEqual([(move[1], move[2]) for move in moves],
                         [("creating", "running"), ("running", "pausing"), ("pausing", "paused")])
        self.assertEqual([move[3] for move in moves], [sb.create_operation["id"], operation, operation])
        for move, told in zip(moves, self.api.get(f"{sb.path}/history")["items"]):
            self.assertRecent(move[0])
            self.assertEqual((move[0], move[4]), (told["at"], told["reason"]))
        self.assertNotIn("TIME", self.space("-o", "json", "get", sb.id).decode())

    def test_exit_codes(self):
        self.space("get", "sb_0000000000000000000", code=3)
        self.space("frobnicate", code=2)
        self.space("get", code=2)
        self.space("ls", "--colour", code=2)
        self.space("ls", code=5, env={"SPACE_URL": "http://127.0.0.1:1"})
        self.space("ls", code=1, env={"SPACE_API_KEY": "wrong"})

    def test_conflict(self):
        sb = self.sandbox()
        sb.verb("stop")
        self.space("pause", sb.id, code=4)

    def test_version_and_help(self):
        self.assertRegex(self.space("version").decode(), r"\d+\.\d+\.\d+")
        for args in (["--help"], ["help"], ["help", "run"], ["run", "--help"]):
            self.assertIn(b"Usage", self.space(*args))
        everything = self.space("--help").decode()
        for command in ("run", "create", "exec", "cp", "template build", "doctor", "key create"):
            self.assertIn(command.split()[0], everything)

    def test_templates(self):
        self.assertIn(b"busybox", self.space("template", "ls"))
        archive = programs.rootfs.make(self.server.base, {"/etc/from": b"cli\n"}, "cli.tar")
        self.addCleanup(self.api.call, "DELETE", "/v1/templates/cli-made")
        self.space("template", "build", "cli-made:v1", "--tar", archive)
        out = self.space("run", "-t", "cli-made:v1", "--", "cat", "/etc/from")
        self.assertEqual(out, b"cli\n")
        # The same from a directory, with another file in it.
        tree = os.path.join(self.server.base, "cli-tree")
        self.addCleanup(shutil.rmtree, tree)
        os.mkdir(tree)
        subprocess.run(["tar", "xf", archive, "-C", tree], check=True)
        with open(os.path.join(tree, "etc", "from"), "w", encoding="ascii") as out:
            out.write("a directory\n")
        self.space("template", "build", "cli-made:v2", "--dir", tree)
        self.assertEqual(self.space("run", "-t", "cli-made:v2", "--", "cat", "/etc/from"), b"a directory\n")
        releases = self.space_json("template", "get", "cli-made")["releases"]
        self.assertEqual(sorted(one["source"]["kind"] for one in releases), ["dir", "tar"])
        self.assertEqual(self.space("run", "-t", "cli-made:v1", "--", "cat", "/etc/from"), b"cli\n")
        self.space("template", "rm", "cli-made")
        self.space("run", "-t", "cli-made:v1", "--", "true", code=3)

    def test_keys(self):
        made = self.space_json("key", "create", "--role", "viewer")
        secret = made["key"] if isinstance(made["key"], str) else made["secret"]
        self.space("ls", env={"SPACE_API_KEY": secret})
        self.assertIn(made["id"].encode(), self.space("key", "ls"))
        self.space("key", "rm", made["id"])
        self.space("ls", code=1, env={"SPACE_API_KEY": secret})

    def test_operations(self):
        sb = self.sandbox(wait=False)
        operation = self.space_json("op", "wait", sb.create_operation["id"])
        self.assertEqual(operation["status"], "succeeded")
        self.assertIn(sb.create_operation["id"].encode(), self.space("op", "ls"))

    def test_doctor(self):
        done = self.server.cli("doctor")
        text = done.stdout.decode()
        for word in ("kvm", "kernel", "loop", "disk"):
            self.assertIn(word, text.lower())
        self.assertIn("ok", text)
