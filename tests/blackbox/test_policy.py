"""What happens without a request: idle time, lifetime, waking, and room made for others; over restarts, too."""
import json
import threading

from harness.case import OwnServerTest, SpaceTest, limit
from harness.ws import Attach

LADDER = [{"after_s": 2, "do": "pause"}, {"after_s": 5, "do": "suspend"}, {"after_s": 3600, "do": "delete"}]


def transitions(sb):
    """States the sandbox has come to, oldest first."""
    return [step["to"] for step in sb.api.get(f"{sb.path}/history")["items"]]


class Given(SpaceTest):
    """What was given is what is shown, and can be given again."""

    def test_ladder_is_shown_as_given(self):
        sb = self.sandbox(lifecycle={"on_idle": [{"after_s": 600, "do": "suspend"}, {"after_s": 700, "do": "delete"}]})
        shown = sb.get()["lifecycle"]
        self.assertEqual(shown["on_idle"], [{"after_s": 600, "do": "suspend"}, {"after_s": 700, "do": "delete"}])
        self.assertEqual(shown["idle_timeout_s"], 600)
        self.assertEqual(self.api.ok("PATCH", sb.path, {"lifecycle": shown}, status=200).json["lifecycle"], shown)

    def test_none_is_a_number(self):
        shown = self.sandbox().get()
        self.assertEqual(shown["lifecycle"], {"idle_timeout_s": 0, "on_idle": "none", "max_lifetime_s": 0,
                                              "on_expiry": "delete", "auto_wake": False})
        self.assertIsNone(shown["expires_at"])

    def test_ladders_that_are_refused(self):
        for on_idle in ([], [{"after_s": 0, "do": "pause"}], [{"after_s": 5}], [{"after_s": 5, "do": "stop"}], "stop", 5,
                        [{"after_s": 5, "do": "delete"}, {"after_s": 9, "do": "pause"}],
                        [{"after_s": 5, "do": "pause"}, {"after_s": 5, "do": "delete"}]):
            with self.subTest(on_idle=on_idle):
                body = {"template": self.template, "lifecycle": {"on_idle": on_idle}}
                problem = self.api.problem("POST", "/v1/sandboxes", body, status=400, slug="invalid_request")
                self.assertIn("lifecycle.on_idle", problem["field"])


class Ladder(SpaceTest):
    @limit(180)
    def test_pause_suspend_delete(self):
        ladder = [{"after_s": 1, "do": "pause"}, {"after_s": 3, "do": "suspend"}, {"after_s": 6, "do": "delete"}]
        sb = self.sandbox(lifecycle={"on_idle": ladder})
        self.wait_state(sb, "deleted", 90)
        self.assertEqual(transitions(sb), ["running", "pausing", "paused", "suspending", "suspended", "deleting",
                                           "deleted"])
        reasons = {step["to"]: step["reason"] for step in self.api.get(f"{sb.path}/history")["items"]}
        for state in ("pausing", "suspending", "deleting"):
            self.assertEqual(reasons[state], "the sandbox was idle")

    @limit(180)
    def test_attached_is_not_idle(self):
        sb = self.sandbox(lifecycle={"on_idle": LADDER})
        with Attach(self.api, sb.session("for i in 1 2 3 4 5 6; do echo tick $i; sleep 1; done")) as at:
            self.assertEqual(at.finish()["exit_code"], 0)
        self.assertEqual(transitions(sb), ["running"])
        self.wait_state(sb, ("paused", "suspending", "suspended"), 60)


class Waking(SpaceTest):
    """A command, an attach and a file call find the sandbox asleep, whichever way."""

    lifecycle = {"auto_wake": True}

    def setUp(self):
        super().setUp()
        self.sb = self.sandbox(lifecycle=self.lifecycle)
        self.sb.put("/root/file", b"kept")
        self.session = self.sb.session("read line; echo got $line", stdin=True, start="now")

    def asleep(self, verb):
        self.sb.verb(verb)
        self.assertIn(self.sb.state(), ("paused", "suspended", "stopped"))

    def use(self, verb):
        self.asleep(verb)
        self.assertEqual(self.sb.exec(["echo", "awake"]).out, b"awake\n")
        self.asleep(verb)
        self.assertEqual(self.sb.read("/root/file"), b"kept")
        self.asleep(verb)
        self.sb.put("/root/other", b"new")
        self.assertEqual(self.sb.state(), "running")

    def attach(self, verb):
        self.asleep(verb)
        with Attach(self.api, self.session) as at:
            at.stdin("word\n")
            self.assertEqual(at.finish()["exit_code"], 0)
            self.assertEqual(at.out.data, b"got word\n")

    @limit(120)
    def test_paused(self):
        self.use("pause")
        self.attach("pause")

    @limit(240)
    def test_suspended(self):
        self.use("suspend")
        self.attach("suspend")

    @limit(240)
    def test_stopped(self):
        self.use("stop")
        self.asleep("stop")
        with Attach(self.api, self.sb_session_after_stop()) as at:
            self.assertEqual(at.finish()["exit_code"], 0)
            self.assertEqual(at.out.data, b"kept")

    def sb_session_after_stop(self):
        return self.sb.session(["cat", "/root/file"])

    @limit(180)
    def test_many_at_once(self):
        """One wake for all who come."""
        self.asleep("suspend")
        answers, lock = [], threading.Lock()

        def use(n):
            out = self.sb.exec(["echo", str(n)]).out
            with lock:
                answers.append(int(out))

        threads = [threading.Thread(target=use, args=(n,)) for n in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
        self.assertEqual(sorted(answers), list(range(8)))
        self.assertEqual(transitions(self.sb).count("restoring"), 1)


class NotWoken(SpaceTest):
    @limit(180)
    def test_without_auto_wake_it_is_told(self):
        sb = self.sandbox()
        for verb in ("pause", "suspend", "stop"):
            sb.verb(verb)
            state = sb.state()
            for method, path, body in (("POST", "/exec", {"argv": ["true"]}), ("GET", "/files?path=/etc/hosts", None)):
                problem = self.api.problem(method, sb.path + path, body, status=409, slug="conflict")
                self.assertIn(state, problem["detail"])
            self.assertEqual(sb.state(), state)
            sb.verb("wake")


class Sweeper(SpaceTest):
    @limit(300)
    def test_whoever_comes_while_it_falls_asleep_is_served(self):
        """Commands in the moments around the end of the idle time, again and again: none may fail."""
        for on_idle in ("pause", "suspend"):
            sb = self.sandbox(lifecycle={"idle_timeout_s": 1, "on_idle": on_idle, "auto_wake": True})
            for n in range(6):
                # From before the tick to after it: the history tells when it has begun.
                wanted = ("running", on_idle.replace("pause", "pausing").replace("suspend", "suspending"))[n % 2]
                if wanted != "running":
                    count = transitions(sb).count(wanted)
                    self.until(lambda: transitions(sb).count(wanted) > count, wanted, 60)
                self.assertEqual(sb.sh(f"echo {on_idle} {n}"), f"{on_idle} {n}\n")


class Deadlines(OwnServerTest):
    config = {"expired_retention_s": 3600}

    @limit(240)
    def test_hold_over_restarts(self):
        idle = self.sandbox(lifecycle={"on_idle": LADDER, "auto_wake": True})
        over = self.sandbox(lifecycle={"max_lifetime_s": 4, "on_expiry": "suspend"})
        gone = self.sandbox(lifecycle={"max_lifetime_s": 4})
        self.server.kill()
        self.server.start()
        self.wait_state(gone, "deleted", 60)
        self.wait_state(over, "suspended", 60)
        self.wait_state(idle, "suspended", 60)
        expires = over.get()["expires_at"]
        self.server.kill()
        self.server.start()
        self.assertEqual((over.state(), over.get()["expires_at"]), ("suspended", expires))
        self.assertEqual(idle.sh("echo back"), "back\n")
        over.verb("wake")
        self.assertLess(over.get()["expires_at"], expires)  # a new lifetime of its own
        self.wait_state(over, "suspended", 60)

    @limit(180)
    def test_restart_while_it_falls_asleep(self):
        sb = self.sandbox(lifecycle={"idle_timeout_s": 1, "on_idle": "suspend", "auto_wake": True})
        self.until(lambda: "suspending" in transitions(sb), "the beginning of it", 60)
        self.server.kill()
        self.server.start()
        self.assertEqual(sb.sh("echo whole"), "whole\n")


class Defaults(OwnServerTest):
    config = {"default_idle_timeout_s": 2, "default_on_idle": "suspend", "default_max_lifetime_s": 3600,
              "default_auto_wake": "yes"}

    @limit(180)
    def test_of_the_server(self):
        sb = self.sandbox()
        shown = sb.get()
        self.assertEqual(shown["lifecycle"], {"idle_timeout_s": 2, "on_idle": "suspend", "max_lifetime_s": 3600,
                                              "on_expiry": "delete", "auto_wake": True})
        self.assertRecent(shown["expires_at"])
        none = self.sandbox(lifecycle={"idle_timeout_s": 0, "max_lifetime_s": 0})
        self.wait_state(sb, "suspended", 60)
        self.assertEqual(sb.sh("echo woken"), "woken\n")
        self.assertEqual(none.state(), "running")
        self.assertIsNone(none.get()["expires_at"])


class WakeTimeout(OwnServerTest):
    """A cold boot takes longer than requests may wait here."""

    config = {"wake_timeout_s": 1}

    @limit(240)
    def test_who_waits_too_long_is_told_and_the_wake_goes_on(self):
        sb = self.sandbox(lifecycle={"auto_wake": True})
        sb.verb("stop")
        answer = self.api.call("POST", sb.path + "/exec", {"argv": ["true"]})
        if answer.status != 200:  # with hardware virtualisation a boot is that quick
            self.assertEqual((answer.status, answer.json["type"]), (504, "urn:space:error:timeout"))
        self.wait_state(sb, "running", 120)
        self.assertEqual(sb.sh("echo there"), "there\n")


class Pressure(OwnServerTest):
    """Memory for two, and a third wants in."""

    config = {"memory_limit_mib": 300, "memory_pressure": "suspend", "default_memory_mib": 128, "warm_per_golden": 0}

    @limit(300)
    def test_the_longest_idle_makes_room(self):
        first = self.sandbox(lifecycle={"auto_wake": True})
        mark = first.session("sleep 1000 & echo $!; wait", start="now")["session"]["process_id"]
        second = self.sandbox(lifecycle={"auto_wake": True})

        def third():
            answer = self.api.call("POST", "/v1/sandboxes", {"template": self.template})
            if answer.status == 202:
                return json.loads(answer.body)
            # Both were used a moment ago: refused, with a time to come back.
            self.assertEqual((answer.status, answer.json["type"]), (429, "urn:space:error:capacity"))
            self.assertGreater(int(answer.headers["retry-after"]), 0)
            return None

        made = self.until(third, "room for a third", 60)
        self.addCleanup(self.api.call, "DELETE", f"/v1/sandboxes/{made['sandbox']['id']}")
        self.api.wait_operation(made["operation"])
        self.wait_state(first, "suspended", 60)
        self.assertEqual(second.state(), "running")
        self.assertEqual(first.process(mark)["state"], "running")


class Disk(OwnServerTest):
    config = {"pool_size_mib": 700, "min_free_disk_mib": 600, "default_memory_mib": 128, "warm_per_golden": 0}
    busybox = False

    @limit(120)
    def test_reserve_of_the_pool(self):
        self.server.with_busybox()

        def refused():
            answer = self.api.call("POST", "/v1/sandboxes", {"template": self.template})
            if answer.status == 202:
                self.api.call("DELETE", f"/v1/sandboxes/{answer.json['sandbox']['id']}")
                return None
            return answer

        answer = self.until(refused, "the pool below its reserve", 60)
        self.assertEqual((answer.status, answer.json["type"]), (507, "urn:space:error:no_space"))
        self.assertGreater(int(answer.headers["retry-after"]), 0)
