"""exec: one command, its whole output, its result."""
import base64
import hashlib
import time

from harness.case import SharedSandboxTest


class Commands(SharedSandboxTest):
    def test_argv_is_passed_unchanged(self):
        words = ["a b", "", "*", "$HOME", "'\"\\", "ünïcode", "-n", "new\nline"]
        done = self.sb.exec(["sh", "-c", 'for a in "$@"; do printf "<%s>" "$a"; done', "sh", *words])
        self.assertEqual(done.out.decode(), "".join(f"<{word}>" for word in words))

    def test_shell(self):
        self.assertEqual(self.sb.exec("echo $((6*7)) | cat; false || echo or").out, b"42\nor\n")

    def test_which_shell(self):
        """bash where the sandbox has one, else sh; a login shell either way."""
        words = "tr '\\000' '|' < /proc/$$/cmdline; true"
        self.assertEqual(self.sb.exec(words).out.decode(), f"/bin/sh|-lc|{words}|")
        self.sb.put("/bin/bash", b"#!/bin/sh\nprintf '%s|' bash \"$@\"\n", mode="0755")
        try:
            self.assertEqual(self.sb.exec("echo  'as is'").out, b"bash|-lc|echo  'as is'|")
        finally:
            self.api.ok("DELETE", self.sb.file("/bin/bash"))

    def test_stdout_and_stderr_apart(self):
        done = self.sb.exec("echo out; echo err >&2")
        self.assertEqual((done.out, done.err), (b"out\n", b"err\n"))
        self.assertEqual((done.result["stdout_bytes"], done.result["stderr_bytes"]), (4, 4))
        self.assertFalse(done.document["truncated"])

    def test_exit_codes(self):
        for code in (0, 1, 2, 126, 127, 255):
            with self.subTest(code=code):
                result = self.sb.exec(["sh", "-c", f"exit {code}"]).result
                self.assertEqual((result["reason"], result["exit_code"], result["signal"]), ("exit", code, None))

    def test_signal(self):
        for name in ("KILL", "TERM", "SEGV"):
            with self.subTest(signal=name):
                result = self.sb.exec(["sh", "-c", f"kill -{name} $$"]).result
                self.assertEqual((result["reason"], result["exit_code"], result["signal"]),
                                 ("signal", None, f"SIG{name}"))

    def test_cwd(self):
        self.assertEqual(self.sb.exec(["pwd"], cwd="/usr/bin").out, b"/usr/bin\n")
        self.assertEqual(self.sb.exec(["pwd"]).out, b"/root\n")

    def test_missing_cwd_is_start_failed(self):
        result = self.sb.exec(["pwd"], cwd="/nowhere").result
        self.assertEqual(result["reason"], "start_failed")
        self.assertIn("/nowhere", result["message"])

    def test_user(self):
        done = self.sb.exec("id -u; id -g; echo $HOME; echo $USER; pwd", user="user")
        self.assertEqual(done.out, b"1000\n1000\n/home/user\nuser\n/home/user\n")
        self.assertEqual(self.sb.exec(["id", "-u"], user="1000").out, b"1000\n")
        self.assertNotEqual(self.sb.exec(["cat", "/proc/1/environ"], user="user").code, 0)

    def test_unknown_user_is_start_failed(self):
        result = self.sb.exec(["true"], user="nobody-here").result
        self.assertEqual(result["reason"], "start_failed")
        self.assertIn("nobody-here", result["message"])

    def test_missing_program_fails_at_once_with_its_name(self):
        begin = time.monotonic()
        result = self.sb.exec(["no-such-program", "x"]).result
        self.assertLess(time.monotonic() - begin, 5)
        self.assertEqual((result["reason"], result["exit_code"]), ("start_failed", None))
        self.assertIn("no-such-program", result["message"])

    def test_not_executable_is_start_failed(self):
        self.sb.put("/root/data", b"text", mode="0644")
        result = self.sb.exec(["/root/data"]).result
        self.assertEqual(result["reason"], "start_failed")
        self.assertIn("/root/data", result["message"])

    def test_stdin(self):
        data = bytes(range(256)) * 1000
        done = self.sb.exec(["sha256sum"], stdin_b64=base64.b64encode(data).decode())
        self.assertEqual(done.out.split()[0].decode(), hashlib.sha256(data).hexdigest())

    def test_without_stdin_it_is_empty(self):
        self.assertEqual(self.sb.exec(["wc", "-c"]).out.strip(), b"0")

    def test_environment_default(self):
        env = dict(line.split("=", 1) for line in self.sb.exec(["env"]).out.decode().splitlines())
        self.assertIn("/usr/bin", env["PATH"])
        self.assertEqual(env["HOME"], "/root")

    def test_no_descriptors_leak_into_commands(self):
        self.assertEqual(self.sb.exec(["sh", "-c", "ls /proc/self/fd | wc -l"]).out.strip(), b"4")

    def test_signals_are_at_their_defaults(self):
        status = self.sb.exec(["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]).out.decode()
        for line in status.splitlines():
            self.assertEqual(int(line.split()[1], 16) & ~(1 << 31), 0, status)


class CountTest(SharedSandboxTest):
    def count(self, command):
        """Processes in the guest with exactly this command line."""
        lines = self.sb.sh("for p in /proc/[0-9]*/cmdline; do tr '\\000' ' ' < $p 2>/dev/null; echo; done")
        return [line.strip() for line in lines.splitlines()].count(command)


class Timeouts(CountTest):
    def test_timeout_kills_the_whole_tree(self):
        begin = time.monotonic()
        session = self.sb.session("echo begun; setsid sleep 4321 & (trap '' TERM INT HUP; sleep 4321) & sleep 4321",
                                  start="now", timeout_s=3)
        process = session["session"]["process_id"]
        self.until(lambda: self.count("sleep 4321") == 3 or self.sb.process(process)["result"], "three processes")
        result = self.sb.result(process)
        self.assertTrue(2.5 < time.monotonic() - begin < 20)
        self.assertEqual((result["reason"], result["exit_code"]), ("timeout", None))
        self.assertEqual(self.sb.all_output(process), b"begun\n")
        self.assertEqual(self.count("sleep 4321"), 0)

    def test_a_command_that_ends_in_time_is_not_a_timeout(self):
        self.assertEqual(self.sb.exec(["true"], timeout_s=30).result["reason"], "exit")

    def test_timeout_while_flooding(self):
        result = self.sb.exec(["yes"], timeout_s=1).result
        self.assertEqual(result["reason"], "timeout")

    def test_background_process_does_not_hold_the_result(self):
        begin = time.monotonic()
        done = self.sb.exec("sleep 300 >/dev/null 2>&1 & echo done")
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual((done.code, done.out), (0, b"done\n"))


class Bytes(SharedSandboxTest):
    def test_bytes_are_bytes(self):
        script = r"printf 'a\000b\r\n\n\n\377\376\200z'"
        done = self.sb.exec(["sh", "-c", script])
        self.assertEqual(done.document["encoding"], "base64")
        self.assertEqual(done.out, b"a\x00b\r\n\n\n\xff\xfe\x80z")

    def test_text_is_utf8(self):
        done = self.sb.exec(["printf", "grün ✓ 𝄞"])
        self.assertEqual(done.document["encoding"], "utf-8")
        self.assertEqual(done.out.decode(), "grün ✓ 𝄞")

    def test_surrogates_and_overlong_forms_are_not_utf8(self):
        for escape, raw in ((r"\355\240\200", b"\xed\xa0\x80"), (r"\300\200", b"\xc0\x80"),
                            (r"\364\220\200\200", b"\xf4\x90\x80\x80")):
            with self.subTest(raw=raw):
                done = self.sb.exec(["printf", escape])
                self.assertEqual((done.document["encoding"], done.out), ("base64", raw))

    def test_ten_mebibytes_arrive_whole(self):
        # Numbered lines: a doubled or lost block changes the digest.
        done = self.sb.exec("seq 1 1500000 | head -c 10485760 | tee /dev/stderr 2>/root/copy | cat; "
                            "sha256sum < /root/copy >&2", timeout=170)
        self.assertEqual(done.result["stdout_bytes"], 10485760)
        if done.document["truncated"]:
            out = self.sb.all_output(done.process["id"])
        else:
            out = done.out
        self.assertEqual(len(out), 10485760)
        self.assertEqual(hashlib.sha256(out).hexdigest(), done.err.split()[0].decode())

    def test_empty_output(self):
        done = self.sb.exec(["true"])
        self.assertEqual((done.out, done.err, done.document["encoding"]), (b"", b"", "utf-8"))


class Processes(CountTest):
    def test_a_finished_process_stays_known(self):
        done = self.sb.exec(["sh", "-c", "echo out; echo err >&2; exit 3"])
        process = self.sb.process(done.process["id"])
        self.assertEqual((process["state"], process["result"]["exit_code"]), ("exited", 3))
        self.assertEqual(process["argv"], ["sh", "-c", "echo out; echo err >&2; exit 3"])
        self.assertRecent(process["started_at"])
        self.assertRecent(process["finished_at"])
        self.assertGreater(process["pid"], 0)
        self.assertEqual(self.sb.all_output(process["id"]), b"out\n")
        self.assertEqual(self.sb.all_output(process["id"], "stderr"), b"err\n")
        listed = [one["id"] for one in self.api.pages(f"{self.sb.path}/processes")]
        self.assertIn(process["id"], listed)

    def test_measures(self):
        result = self.sb.exec("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done").result
        self.assertGreater(result["cpu_ms"], 0)
        self.assertGreater(result["max_rss_bytes"], 100_000)

    def test_output_ranges(self):
        process = self.sb.exec(["printf", "0123456789"]).process["id"]
        self.assertEqual(self.sb.output(process, offset=3, limit=4), (b"3456", 3, 10))
        self.assertEqual(self.sb.output(process, offset=10), (b"", 10, 10))
        self.api.problem("GET", f"{self.sb.path}/processes/{process}/output?stream=stdout&offset=11",
                         status=416, slug="range_not_satisfiable")
        self.api.problem("GET", f"{self.sb.path}/processes/{process}/output?stream=stdin", status=400)

    def test_signal_to_the_tree(self):
        process = self.sb.session("sleep 777 & sleep 777 & wait", start="now")["session"]["process_id"]
        self.until(lambda: self.count("sleep 777") == 2, "both children")
        self.api.ok("POST", f"{self.sb.path}/processes/{process}/signal", {"signal": "SIGKILL", "tree": True})
        result = self.sb.result(process)
        self.assertEqual((result["reason"], result["signal"]), ("signal", "SIGKILL"))
        self.until(lambda: self.count("sleep 777") == 0, "no child left")

    def test_signal_to_one(self):
        process = self.sb.session(["sh", "-c", "trap 'echo caught; exit 9' TERM; echo set; while :; do sleep 1; done"],
                                  start="now")["session"]["process_id"]
        self.until(lambda: self.sb.output(process)[0] == b"set\n", "the trap set")
        self.api.ok("POST", f"{self.sb.path}/processes/{process}/signal", {"signal": "SIGTERM"})
        self.assertEqual(self.sb.result(process)["exit_code"], 9)
        self.assertEqual(self.sb.all_output(process), b"set\ncaught\n")

    def test_bad_signal(self):
        process = self.sb.exec(["true"]).process["id"]
        self.api.problem("POST", f"{self.sb.path}/processes/{process}/signal", {"signal": "SIGNOTHING"}, status=400)
        self.api.problem("POST", f"{self.sb.path}/processes/{process}/signal", {}, status=400)

    def test_stdin_by_request(self):
        process = self.sb.session(["cat"], stdin=True, start="now")["session"]["process_id"]
        self.api.ok("POST", f"{self.sb.path}/processes/{process}/stdin", b"one\n")
        self.api.ok("POST", f"{self.sb.path}/processes/{process}/stdin?close=1", b"two\x00\n")
        self.assertEqual(self.sb.result(process)["exit_code"], 0)
        self.assertEqual(self.sb.all_output(process), b"one\ntwo\x00\n")

    def test_unknown_process(self):
        path = f"{self.sb.path}/processes/pr_0000000000000000000"
        self.api.problem("GET", path, status=404, slug="not_found")
        self.api.problem("GET", f"{path}/output?stream=stdout", status=404, slug="not_found")
        self.api.problem("POST", f"{path}/signal", {"signal": "SIGTERM"}, status=404, slug="not_found")

    def test_many_at_once(self):
        import threading
        outs = {}

        def one(n):
            outs[n] = self.sb.exec(["sh", "-c", f"echo {n}; exit {n}"])

        threads = [threading.Thread(target=one, args=(n,)) for n in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual({n: (d.code, d.out) for n, d in outs.items()},
                         {n: (n, f"{n}\n".encode()) for n in range(24)})
