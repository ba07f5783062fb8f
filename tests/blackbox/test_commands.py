"""Commands: how they start, end, are ended, and how many there may be. SPACE_SHORT sets how many short ones are run
(default 1000; 10000 for the whole)."""
import os
import threading
import time

from harness.case import OwnServerTest, SharedSandboxTest, limit

SHORT = int(os.environ.get("SPACE_SHORT", "1000"))


class CommandTest(SharedSandboxTest):
    def count(self, command):
        """Processes in the guest with exactly this command line."""
        lines = self.sb.sh("for p in /proc/[0-9]*/cmdline; do tr '\\000' ' ' < $p 2>/dev/null; echo; done")
        return [line.strip() for line in lines.splitlines()].count(command)

    def start(self, command, **body):
        return self.sb.session(command, start="now", **body)["session"]["process_id"]


class Grace(CommandTest):
    # Ends by itself at SIGTERM, in a session of its own.
    POLITE = "setsid sh -c 'trap \"echo far; exit\" TERM; while :; do sleep 0.1; done' & "

    def test_timeout_asks_first(self):
        process = self.start(self.POLITE + "trap 'wait; echo near; exit 3' TERM; echo up; wait", timeout_s=2,
                             kill_grace_s=60)
        begin = time.monotonic()
        result = self.sb.result(process)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual((result["reason"], result["exit_code"], result["signal"]), ("timeout", None, "SIGTERM"))
        self.assertEqual(self.sb.all_output(process), b"up\nfar\nnear\n")

    def test_what_ignores_it_is_killed(self):
        process = self.start("trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 5432' & echo up; "
                             "while :; do sleep 0.1; done", timeout_s=1, kill_grace_s=1.5)
        begin = time.monotonic()
        result = self.sb.result(process)
        self.assertTrue(1.5 < time.monotonic() - begin < 20)
        self.assertEqual((result["reason"], result["signal"]), ("timeout", "SIGKILL"))
        self.until(lambda: self.count("sleep 5432") == 0, "nothing left")

    def test_without_it_the_kill_is_at_once(self):
        result = self.sb.exec(["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"], timeout_s=1).result
        self.assertEqual((result["reason"], result["signal"]), ("timeout", "SIGKILL"))

    def test_who_leaves_its_group_is_killed(self):
        process = self.start("mkdir -p /sys/fs/cgroup/mine && echo 0 >/sys/fs/cgroup/mine/cgroup.procs; "
                             "cat /proc/self/cgroup; exec sleep 4321", timeout_s=2)
        result = self.sb.result(process)
        self.assertEqual((result["reason"], result["signal"]), ("timeout", "SIGKILL"))
        self.assertIn(b"/mine\n", self.sb.all_output(process))

    def test_a_signal_escalates(self):
        stubborn = self.start("trap '' TERM; echo set; while :; do sleep 0.1; done")
        polite = self.start("trap 'exit 4' TERM; echo set; while :; do sleep 0.1; done")
        for process in (stubborn, polite):
            self.until(lambda: self.sb.output(process)[0] == b"set\n", "the trap set")
            self.api.ok("POST", f"{self.sb.path}/processes/{process}/signal",
                        {"signal": "SIGTERM", "kill_grace_s": 1 if process == stubborn else 60}, status=204)
        result = self.sb.result(stubborn)
        self.assertEqual((result["reason"], result["signal"]), ("signal", "SIGKILL"))
        self.assertEqual(self.sb.result(polite)["exit_code"], 4)

    def test_refused(self):
        for body in ({"kill_grace_s": 1}, {"timeout_s": 1, "kill_grace_s": 0}, {"timeout_s": 1, "kill_grace_s": "1"}):
            problem = self.api.problem("POST", f"{self.sb.path}/exec", {"argv": ["true"], **body}, status=400)
            self.assertEqual(problem["field"], "kill_grace_s")
        process = self.start(["sleep", "100"])
        for body in ({"kill_grace_s": 1, "tree": False}, {"kill_grace_s": -1}):
            problem = self.api.problem("POST", f"{self.sb.path}/processes/{process}/signal",
                                       {"signal": "SIGTERM", **body}, status=400)
            self.assertEqual(problem["field"], "kill_grace_s")
        self.api.ok("POST", f"{self.sb.path}/processes/{process}/signal", {"signal": "SIGKILL"})

    def test_a_killed_shell_leaves_nothing(self):
        for tree in (True, False):
            with self.subTest(tree=tree):
                process = self.start(["sh", "-c", "sleep 6543 & (setsid sleep 6543 &) ; echo up; wait"])
                self.until(lambda: self.count("sleep 6543") == 2, "both asleep")
                self.api.ok("POST", f"{self.sb.path}/processes/{process}/signal", {"signal": "SIGKILL", "tree": tree})
                self.assertEqual(self.sb.result(process)["signal"], "SIGKILL")
                self.until(lambda: self.count("sleep 6543") == 0, "nothing left")


class StartFailed(CommandTest):
    def failed(self, argv, *words, **body):
        begin = time.monotonic()
        result = self.sb.exec(argv, **body).result
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual((result["reason"], result["exit_code"], result["signal"]), ("start_failed", None, None))
        for word in words:
            self.assertIn(word, result["message"])

    def test_each_is_named(self):
        self.sb.put("/root/text", b"text", mode="0644")
        self.sb.put("/root/garbage", b"\x00\x01garbage", mode="0755")
        self.sb.put("/root/other-machine", b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xf3\x00\x01\x00\x00\x00"
                    + bytes(40), mode="0755")
        self.sb.put("/root/no-loader", b"#!/nowhere/interpreter\n", mode="0755")
        self.failed(["no-such"], "no-such", "PATH")
        self.failed(["/root/no-such"], "/root/no-such", "No such file")
        self.failed(["/root"], "/root", "Permission denied")
        self.failed(["/root/text"], "/root/text", "Permission denied")
        self.failed(["/root/garbage"], "/root/garbage", "Exec format error")
        self.failed(["/root/other-machine"], "/root/other-machine", "Exec format error")
        self.failed(["/root/no-loader"], "/root/no-loader", "interpreter")
        self.failed(["/root/text/x"], "/root/text/x", "Not a directory")
        self.failed(["true"], "/nowhere", "No such file", cwd="/nowhere")
        self.failed(["true"], "/etc/passwd", "Not a directory", cwd="/etc/passwd")
        self.failed(["true"], "/root/private", "Permission denied", cwd=self.private(), user="user")
        self.failed(["true"], "nobody-here", user="nobody-here")

    def private(self):
        self.sb.sh("mkdir -p -m 700 /root/private")
        return "/root/private"

    def test_in_a_session_too(self):
        for argv, body in ((["no-such"], {}), (["true"], {"cwd": "/nowhere"}), (["true"], {"user": "nobody-here"})):
            process = self.start(argv, **body)
            self.assertEqual(self.sb.result(process)["reason"], "start_failed")


class Arguments(CommandTest):
    def test_a_megabyte(self):
        words = [chr(97 + n % 26) * 100_000 for n in range(10)]
        done = self.sb.exec(["sh", "-c", 'n=0; for a in "$@"; do n=$((n+${#a})); done; echo $# $n', "sh", *words])
        self.assertEqual((done.code, done.out), (0, b"10 1000000\n"), done)

    def test_what_is_too_much_says_how_much_is_not(self):
        argv = ["true", *["a" * 100_000] * 11]
        problem = self.api.problem("POST", f"{self.sb.path}/exec", {"argv": argv}, status=413)
        self.assertIn("1048576", problem["detail"])
        self.api.problem("POST", f"{self.sb.path}/exec", {"argv": ["true"] + ["a"] * 4096}, status=400)
        # The kernel's own limit of one argument.
        result = self.sb.exec(["true", "a" * 200_000]).result
        self.assertEqual(result["reason"], "start_failed")
        self.assertIn("131071", result["message"])
        self.assertEqual(self.sb.exec(["sh", "-c", "echo ${#1}", "sh", "a" * 131_071]).out, b"131071\n")

    def test_a_long_shell_text(self):
        text = "echo " + "x" * 100_000 + "; echo end"
        self.assertEqual(self.sb.exec(text).out, b"x" * 100_000 + b"\nend\n")


class Order(OwnServerTest):
    """The command's own, then its sandbox's, then the guest's."""

    @limit(240)
    def test_env_user_and_cwd(self):
        sb = self.sandbox(env={"A": "sandbox", "B": "sandbox", "LANG": "sandbox"}, user="user", cwd="/tmp")
        text = "echo $A $B $LANG; id -un; pwd; echo $HOME"
        body = {"env": {"B": "command"}}
        self.assertEqual(sb.exec(["sh", "-c", text], **body).out.decode().split(),
                         ["sandbox", "command", "sandbox", "user", "/tmp", "/home/user"])
        self.assertEqual(sb.exec(["sh", "-c", text], user="root", cwd="/usr", **body).out.decode().split(),
                         ["sandbox", "command", "sandbox", "root", "/usr", "/root"])
        # After a restart of the server, and in copies.
        self.server.kill()
        self.server.start()
        sb.api = self.api = self.server.api
        op = self.api.ok("POST", f"{sb.path}/fork", {"count": 1}, status=202).json["operation"]
        child = type(sb)(self.api, self.api.wait_operation(op)["result"]["children"][0]["sandbox_id"])
        self.addCleanup(self.api.call, "DELETE", child.path)
        op = self.api.ok("POST", f"{sb.path}/snapshots", {"name": "one"}, status=202).json["operation"]
        snapshot = self.api.wait_operation(op)["result"]["snapshot_id"]
        made = type(sb).create(self.api, {"snapshot": snapshot, "cwd": "/bin"})
        self.addCleanup(self.api.call, "DELETE", made.path)
        for one, cwd in ((sb, "/tmp"), (child, "/tmp"), (made, "/bin")):
            self.assertEqual(one.exec(["sh", "-c", text], **body).out.decode().split(),
                             ["sandbox", "command", "sandbox", "user", cwd, "/home/user"])

    def test_refused(self):
        for field, value in (("user", "a b"), ("user", ""), ("user", 5), ("cwd", "tmp"), ("cwd", "")):
            problem = self.api.problem("POST", "/v1/sandboxes", {"template": "busybox", field: value}, status=400)
            self.assertEqual(problem["field"], field)


class Asleep(OwnServerTest):
    @limit(240)
    def test_a_refused_command_leaves_nothing(self):
        sb = self.sandbox(lifecycle={"auto_wake": False})
        sb.sh("true")
        for down, up in (("pause", "resume"), ("suspend", "restore"), ("stop", "start")):
            with self.subTest(state=down):
                sb.verb(down)
                before = self.api.pages(f"{sb.path}/processes")
                self.api.problem("POST", f"{sb.path}/sessions", {"argv": ["true"]}, status=409, slug="conflict")
                self.api.problem("POST", f"{sb.path}/exec", {"argv": ["true"]}, status=409, slug="conflict")
                done = self.server.cli("exec", sb.id, "--", "true")
                self.assertNotEqual(done.returncode, 0)
                self.assertEqual(self.api.pages(f"{sb.path}/processes"), before)
                # One that is to start by itself waits, and is not lost.
                process = sb.session(["echo", "later"], start="now")["session"]["process_id"]
                sb.verb(up)
                self.assertEqual(sb.result(process)["exit_code"], 0)
                self.assertEqual(sb.all_output(process), b"later\n")


class Many(OwnServerTest):
    """Nothing is left of commands that have ended: not in the guest, not in the daemon, not in its store."""

    def picture(self, sb):
        """Descriptors of the guest's agent, its control groups, its zombies; the daemon's descriptors."""
        guest = sb.sh("ls /proc/1/fd | wc -l; ls -d /sys/fs/cgroup/space*/ | wc -l; "
                      "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true")
        return tuple(int(n) for n in guest.split()), len(self.server.daemon().fds())

    def quiet(self, sb):
        """The picture once the guest has tidied up, which it does when nothing is asked of it."""
        last = []

        def same():
            time.sleep(3)
            last.append(self.picture(sb))
            return last[-1] if last[-1] in last[-3:-1] else None

        return self.until(same, f"a quiet guest: {last}", 120)

    def in_parallel(self, sb, clients, each):
        errors = []

        def client(number):
            conn = self.api.connect(120)
            try:
                for n in range(each):
                    answer = self.api.call_on(conn, "POST", f"{sb.path}/exec", {"argv": ["echo", f"{number}.{n}"]})
                    if answer.status != 200 or answer.json["stdout"] != f"{number}.{n}\n":
                        errors.append(answer)
            except OSError as error:
                errors.append(error)
            finally:
                conn.close()

        threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])

    @limit(240)
    def test_a_hundred_at_once(self):
        sb = self.sandbox(resources={"memory_mib": 512})
        begun = [sb.session(["sh", "-c", f"echo {n}; read x; echo end {n}; exit {n}"], stdin=True, start="now")
                 for n in range(100)]
        ids = [one["session"]["process_id"] for one in begun]
        for n, process in enumerate(ids):
            self.until(lambda: sb.output(process)[0] == f"{n}\n".encode(), f"command {n}", 120)
        self.assertTrue(all(sb.process(process)["state"] == "running" for process in ids))
        for process in ids:
            self.api.ok("POST", f"{sb.path}/processes/{process}/stdin?close=1", b"x\n")
        for n, process in enumerate(ids):
            self.assertEqual(sb.result(process, 120)["exit_code"], n)
            self.assertEqual(sb.all_output(process), f"{n}\nend {n}\n".encode())
        self.in_parallel(sb, 100, 1)

    @limit(240 + SHORT // 4)
    def test_many_short_ones(self):
        sb = self.sandbox()
        self.in_parallel(sb, 8, 16)
        (descriptors, groups, zombies), ours = self.quiet(sb)
        self.assertIn(groups, (1, 2))  # one is ready, and one that was used may be kept for the next command
        self.assertEqual(zombies, 0)
        rss = self.server.daemon().memory()["Rss"]
        store = os.path.join(self.server.state_dir, "spaced")
        self.in_parallel(sb, 8, SHORT // 8)
        (more, kept, zombies), still = self.quiet(sb)
        self.assertIn(kept, (1, 2))
        self.assertEqual((more - kept, zombies, still), (descriptors - groups, 0, ours))
        known = len(self.api.pages(f"{sb.path}/processes", limit=1000))
        self.assertLessEqual(known, 4096)
        kept = min(SHORT, 4096)
        self.assertLess(self.server.daemon().memory()["Rss"] - rss, (8 << 20) + kept * 6144)
        files = sum(len(files) for path, _, files in os.walk(os.path.join(store, "journals")))
        self.assertLessEqual(files, 4096 + 8)
