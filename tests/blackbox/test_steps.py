"""Every step of every verb: the server dies there, or a VMM, or the whole machine does, and all ends well.

The programs pass named points between their side effects (src/base/fault.h). A first run of each verb lists the points
it passes; then the verb is done again for each of them, with a death at that very point. SPACE_STEPS picks by name.
A crash of the machine is tried at every fourth point, the death of a VMM, and all of what VARIANTS has, at every eighth; at
others each time, and at all with SPACE_CRASHES=all.
"""
import http.client
import os
import random
import signal

from harness import host
from harness.api import Sandbox
from harness.case import FaultTest, limit
from harness.wait import until

PICK = os.environ.get("SPACE_STEPS", "")
ALL = os.environ.get("SPACE_CRASHES") == "all"
SETTLED = ("running", "paused", "suspended", "stopped", "failed", "deleted")


def mark(sb):
    sb.sh("echo disk > /root/mark; sync; echo memory > /run/mark")


class Verb:
    """How a verb is prepared and asked for."""

    def __init__(self, name, before=(), body=None, snapshot=None):
        self.name, self.before, self.body, self.snapshot = name, before, body, snapshot  # its kind, where it needs one

    def prepare(self, api):
        sb = Sandbox.create(api, {"template": "busybox"})
        mark(sb)
        body = dict(self.body or {})
        if self.snapshot:
            answer = api.ok("POST", f"{sb.path}/snapshots", {"kind": self.snapshot}).json
            taken = api.wait_operation(answer["operation"])["result"]["snapshot_id"]
            body["snapshot" if self.name == "create" else "snapshot_id"] = taken
        for verb in self.before:
            sb.verb(verb)
        return sb, body

    def ask(self, api, sb, body):
        """The request; the operation's id when it was answered. None: nobody asks for a failure."""
        if self.name == "create":
            return api.ok("POST", "/v1/sandboxes", body or {"template": "busybox"}).json["operation"]["id"]
        if self.name == "delete":
            return api.ok("DELETE", sb.path).json["operation"]["id"]
        if self.name == "fail":
            os.kill(self.vmm(sb.id).pid, signal.SIGKILL)
            return None
        path = "snapshots" if self.name == "snapshot" else self.name
        return api.ok("POST", f"{sb.path}/{path}", body or None).json["operation"]["id"]


VERBS = {
    "create": Verb("create"),
    "delete": Verb("delete"),
    "pause": Verb("pause"),
    "resume": Verb("resume", ["pause"]),
    "stop": Verb("stop"),
    "start": Verb("start", ["stop"]),
    "suspend": Verb("suspend"),
    "suspend of a paused": Verb("suspend", ["pause"]),
    "restore": Verb("restore", ["suspend"]),
    "snapshot": Verb("snapshot", body={"kind": "full"}),
    "snapshot of the disk": Verb("snapshot", body={"kind": "disk"}),
    "rollback": Verb("rollback", snapshot="full"),
    "fork": Verb("fork", body={"count": 2}),
}
# The same verbs by another way, on which they share most of their points.
VARIANTS = {
    "create from a snapshot": Verb("create", snapshot="full"),
    "stop of a paused": Verb("stop", ["pause"]),
    "snapshot of a suspended": Verb("snapshot", ["suspend"], {"kind": "full"}),
    "rollback of the disk": Verb("rollback", ["stop"], snapshot="disk"),
    "fork of a suspended": Verb("fork", ["suspend"], {"count": 2}),
    "fail": Verb("fail"),
}
# Where a verb has led when its operation says that it succeeded.
LEADS_TO = {"pause": "paused", "resume": "running", "stop": "stopped", "start": "running", "suspend": "suspended",
            "restore": "running"}


class Steps(FaultTest):
    spread = True  # each verb is a long test of its own
    # No warm VMs: what passes a point is the verb that was asked for.
    config = {"warm_per_golden": 0}

    def points(self, verb):
        """The points a verb passes, in order, each once."""
        sb, body = verb.prepare(self.api)
        os.truncate(self.server.passed, 0)
        operation = verb.ask(self.api, sb, body)
        if operation:
            self.api.wait_operation(operation)
        else:
            self.wait_state(sb, "failed")
        if verb.name != "delete":
            sb.get()
        found = list(dict.fromkeys(self.passed()))
        self.wipe()
        return [name for name in found if PICK in name]

    # --- deaths: of the server ("killed"), of a VMM ("vmm"), of the machine ("crashed") ---
    def dead(self):
        return not self.server.alive()

    def halted(self):
        """The program that stands at its point, or None."""
        for process in (self.server.daemon(), self.server.broker()):
            if process and host.state(process.pid) == "T":
                return process
        return None

    def strike(self, verb, sb, body, name, how):
        """Asks for the verb and lets what must die die at the point. Returns the operation's id, if it was told."""
        self.arm(f"{name}:{'kill' if how == 'killed' else 'stop'}")
        operation = None
        try:
            operation = verb.ask(Api_quick(self.api), sb, body)
        except (OSError, http.client.HTTPException):
            pass  # it died before it answered
        reached = self.dead if how == "killed" else self.halted
        try:
            until(reached, f"{name} is reached", 30)
        except AssertionError:
            if name in self.passed()[-1:]:
                raise
            return operation  # this time the verb took another way; what follows holds all the same
        finally:
            self.arm("")
        self.kill_vmms(how)
        return operation

    def kill_vmms(self, how):
        vmms = self.server.vmms()
        if how == "vmm":
            for vmm in random.sample(vmms, min(1, len(vmms))):
                os.kill(vmm.pid, signal.SIGKILL)
            os.kill(self.halted().pid, signal.SIGCONT)
        elif how == "crashed":
            for vmm in vmms:
                os.kill(vmm.pid, signal.SIGKILL)

    # --- what must be true afterwards ---
    def settled(self):
        for got in self.api.pages("/v1/sandboxes"):
            if got["state"] not in SETTLED or got["operation_id"]:
                return False
        return not [op for status in ("pending", "running") for op in self.api.pages(f"/v1/operations?status={status}")]

    def truthful(self, operation, sb, verb, how):
        """The operation has ended, and says what has become of its sandbox and of those it made."""
        op = self.api.get(f"/v1/operations/{operation}")
        self.assertIn(op["status"], ("succeeded", "failed", "canceled"))
        if op["status"] != "succeeded":
            self.assertTrue(op["error"]["detail"], op)
            return
        # What was reached may have been lost since, if something died that it needs.
        lost = set() if how == "killed" else {"failed"}
        if verb.name in LEADS_TO:
            self.assertIn(sb.state(), {LEADS_TO[verb.name]} | lost)
        for child in op["result"]["children"] if verb.name == "fork" else ():
            state = self.api.get(f"/v1/sandboxes/{child['sandbox_id']}")["state"]
            self.assertIn(state, {"failed"} if child["error"] else {"running"} | lost)

    def check(self, sb, verb, how):
        """The sandbox can be woken and has what it had, or has failed with a reason and can be deleted."""
        got = sb.get()
        if got["state"] == "failed":
            self.assertTrue(got["failure"]["message"], got)
            self.assertTrue(how != "killed" or verb.name in ("create", "delete", "fail"),
                            f"failed though its VMM lived: {got['failure']}")
            return
        if got["state"] == "deleted":
            return
        had_memory = got["state"] in ("running", "paused", "suspended") and verb.name != "start"
        sb.verb("wake")
        self.assertEqual(sb.sh("cat /root/mark"), "disk\n")
        if had_memory:
            self.assertEqual(sb.exec(["test", "-e", "/run/mark"]).code, 0, "the memory is another")

    def wipe(self):
        """Deletes everything; nothing may be left on the host."""
        for got in self.api.pages("/v1/sandboxes"):
            answer = self.api.ok("DELETE", f"/v1/sandboxes/{got['id']}").json
            self.api.wait_operation(answer["operation"])
        for got in self.api.pages("/v1/snapshots"):
            self.api.ok("DELETE", f"/v1/snapshots/{got['id']}")
        pool = os.path.join(self.server.state_dir, "pool")
        until(lambda: not any(host.listing(os.path.join(pool, name)) for name in ("sandboxes", "snapshots", "trash")),
              "an empty pool", 30)
        self.assertEqual(self.server.vmms(), [])
        self.assertEqual(host.listing(os.path.join(self.server.state_dir, "privd", "sandboxes")), [])

    def every_step(self, key, how):
        verb = {**VERBS, **VARIANTS}[key]
        verb.vmm = self.server.vmm
        points = self.points(verb)
        self.assertTrue(points or PICK, f"{key} passes no point")
        step = 1 if ALL else 8 if how == "vmm" or key in VARIANTS else 4 if how == "crashed" else 1
        points = points[random.randrange(min(step, len(points))) if points else 0::step]
        for name in points:
            with self.subTest(verb=key, point=name, how=how):
                sb, body = verb.prepare(self.api)
                operation = self.strike(verb, sb, body, name, how)
                if how != "vmm":
                    self.again()
                self.until(self.settled, "everything is settled", 90)
                if operation:
                    self.truthful(operation, sb, verb, how)
                self.check(sb, verb, how)
                self.wipe()


def Api_quick(api):
    """The same with little patience: a stopped server does not answer."""
    from harness.api import Api
    return Api(api.host, api.port, api.key, timeout=5)


def add_tests():
    for key in (*VERBS, *VARIANTS):
        word = key.replace(" ", "_")
        for how in ("killed", "vmm", "crashed"):
            def test(self, key=key, how=how):
                self.every_step(key, how)

            test.__name__ = f"test_{word}_{how}_at_every_step"
            setattr(Steps, test.__name__, limit(1200)(test))


add_tests()
