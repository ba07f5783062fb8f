#!/usr/bin/env python3
"""`make check-power`: the power is cut at random moments, and all that anybody was told by then must be so afterwards.

    power.py [--bin BUILD] [--rounds N] [--seed N] [--engine NAME] [--time-limit S]

spaced runs in a machine with KVM whose state has a disk of its own (cut.py). Clients do random verbs and keep a ledger of every answer
they got. Then the machine dies, as at a power cut, is booted again, and the ledger is compared with what is there: every object that was
acknowledged, every operation, the contents of what was suspended, stopped and kept as a snapshot, the output of commands. What a cut
takes: the VMs that run, and of a command's end what was shown right before (docs/design/data-plane.md).

Exit code 0 when all rounds held. The last line is "N rounds, N answers told, N failed".
"""
import argparse
import http.client
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time

import cut

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "blackbox"))
from cut import Failed  # noqa: E402
from harness import rootfs  # noqa: E402
from harness.api import Api, Exec  # noqa: E402

SETTLED = ("running", "paused", "suspended", "stopped", "failed", "deleted")
CLIENTS, BOXES = 2, 2  # sandboxes of each client
PATIENCE = 900
LINES = 200  # of a command's output

# verb -> {state before: state afterwards}
MOVES = {
    "write": {"running": "running"},
    "pause": {"running": "paused"},
    "resume": {"paused": "running"},
    "suspend": {"running": "suspended", "paused": "suspended"},
    "restore": {"suspended": "running"},
    "stop": {"running": "stopped"},
    "start": {"stopped": "running"},
    "full": {"running": "running", "paused": "paused", "suspended": "suspended"},
    "disk": {"running": "running", "stopped": "stopped"},
    "fork": {"running": "running", "suspended": "suspended"},
    "rollback": {state: "running" for state in ("running", "suspended", "stopped", "failed")},
    "patch": {state: state for state in ("running", "suspended", "stopped")},
    "delete": {state: "deleted" for state in ("running", "paused", "suspended", "stopped", "failed")},
}
WEIGHTS = {"write": 8, "pause": 1, "resume": 4, "suspend": 5, "restore": 2, "stop": 1, "start": 1, "full": 3, "disk": 1, "fork": 1,
           "rollback": 2, "patch": 2, "delete": 1}
APART = {"key": 2, "tag": 2, "drop": 1}  # what is of no sandbox
OF_RUNNING = ("running", "paused")
# What a verb that was under way may have come to when it did not succeed.
TORN = {"restore": {"suspended", "failed"}, "start": {"stopped", "failed"}, "stop": {"failed"}, "suspend": {"failed"},
        "rollback": {"suspended", "stopped", "failed"}, "create": {"failed"}}


class Cut(Exception):
    """The machine has gone; the answer was not heard."""


def output_of(n):
    return "".join(f"{n}-{line}\n" for line in range(1, LINES + 1)).encode()


class Process:
    """A command whose end was told."""

    def __init__(self, document, out):
        self.id, self.result, self.out, self.sealed = document["id"], document["result"], out, False


class Box:
    """A sandbox, as it was told."""

    def __init__(self, sandbox_id, state, disk=0, memory=0):
        self.id, self.path = sandbox_id, f"/v1/sandboxes/{sandbox_id}"
        self.state, self.disk, self.memory = state, disk, memory
        self.verb, self.operation, self.target = None, None, None  # what is under way
        self.processes, self.metadata = [], {}
        self.metadata_maybe = None
        self.others = []  # (disk, memory) that it may have instead: a rollback was under way

    def after(self, verb, kind):
        """The state after that verb; kind: of a rollback's snapshot."""
        return "stopped" if verb == "rollback" and kind == "disk" and self.state == "stopped" else MOVES[verb][self.state]

    def __repr__(self):
        return f"{self.id} ({self.state}, disk {self.disk}, memory {self.memory}, under way: {self.verb} {self.operation})"


class Kept:
    """A snapshot that was told to be ready."""

    def __init__(self, kind, disk, memory, sandbox):
        self.kind, self.disk, self.memory, self.sandbox = kind, disk, memory, sandbox
        self.deleting = False


class Ledger:
    """Everything that was told."""

    def __init__(self):
        self.lock = threading.Lock()
        self.boxes, self.snapshots, self.operations, self.keys, self.tags = {}, {}, {}, {}, {}
        self.digest = None  # of the template's release
        self.creating = 0  # requests for new sandboxes that were not answered
        self.numbers = itertools.count(1)
        self.told = 0

    def asked(self, more):
        with self.lock:
            self.creating += more

    def kind(self, snapshot):
        return self.snapshots[snapshot].kind if snapshot in self.snapshots else None

    def of(self, box):
        """The snapshots of a sandbox that nobody deletes."""
        return sorted(name for name, kept in list(self.snapshots.items()) if kept.sandbox == box.id and not kept.deleting)


class Client:
    """Speaks for one thread. Each answer counts before anything else is done, and the one that was chosen is the machine's last."""

    def __init__(self, power, address, rng):
        self.power, self.ledger, self.rng = power, power.ledger, rng
        self.api = Api("127.0.0.1", address[0], address[1], timeout=PATIENCE)

    def call(self, method, path, body=None, good=(200, 201, 202, 204), note=None):
        """The answer; Cut when there will be none. note(answer) writes down what it says, before the power may go."""
        try:
            answer = self.api.call(method, path, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if self.power.cutting.wait(30):
                raise Cut from None
            raise Failed(f"{method} {path}: {error!r}") from error
        if answer.status not in good:
            if self.power.cutting.is_set():
                raise Cut
            raise Failed(f"{method} {path}: {answer}")
        if note and answer.status < 300:
            note(answer)
        self.power.heard()
        return answer

    def operation(self, answer):
        """Waits for one that was just accepted; it is in the ledger from the beginning."""
        op = answer.json["operation"]
        deadline = time.monotonic() + PATIENCE
        while op["status"] in ("pending", "running"):
            if time.monotonic() > deadline:
                raise Failed(f"operation not finished in {PATIENCE} s: {op}")
            op = self.call("GET", f"/v1/operations/{op['id']}?wait_s=20", note=self.note_operation).json
        return op

    def note_operation(self, answer):
        document = answer.json
        op = document.get("operation", document)
        self.ledger.operations[op["id"]] = op

    # --- sandboxes ---
    def create(self, body, disk=0, memory=0):
        """A new one; None when it failed."""
        self.ledger.asked(1)
        box = None

        def note(answer):
            nonlocal box
            self.note_operation(answer)
            box = Box(answer.json["sandbox"]["id"], "creating", disk, memory)
            box.verb, box.operation = "create", answer.json["operation"]["id"]
            self.ledger.boxes[box.id] = box
            self.ledger.asked(-1)

        op = self.operation(self.call("POST", "/v1/sandboxes", body, note=note))
        self.ended(box, op, "running")
        return box

    def ended(self, box, op, to):
        """Its operation was told to have ended."""
        if op["status"] == "succeeded":
            box.state = to
        else:
            self.power.say(f"{box.verb} of {box}: {op['error']}")
            box.state = self.call("GET", box.path).json["state"]
        box.verb = box.operation = box.target = None

    def write(self, box):
        n = next(self.ledger.numbers)
        box.verb = "write"
        script = f"echo {n} > /root/n; sync; echo {n} > /run/n; seq 1 {LINES} | sed s/^/{n}-/"
        done = Exec(self.call("POST", f"{box.path}/exec", {"shell": script}).json)
        if done.code != 0 or done.out != output_of(n):
            raise Failed(f"{box}: {done}")
        box.disk = box.memory = n
        box.processes.append(Process(done.process, done.out))
        box.verb = None

    def verify(self, box):
        """It runs, and has what it should."""
        done = Exec(self.call("POST", f"{box.path}/exec", {"shell": "cat /root/n || echo 0; cat /run/n || echo 0"}).json)
        found = tuple(int(n) for n in done.out.split())
        if done.code != 0 or found not in [(box.disk, box.memory), *box.others]:
            raise Failed(f"{box}: it has {found}, {done}; or {box.others}")
        (box.disk, box.memory), box.others = found, []

    def patch(self, box):
        box.metadata_maybe = {"n": str(next(self.ledger.numbers))}
        self.call("PATCH", box.path, {"metadata": box.metadata_maybe})
        box.metadata, box.metadata_maybe = box.metadata_maybe, None

    def act(self, box, verb):
        if verb in ("write", "patch"):
            getattr(self, verb)(box)
            return
        body, path = None, verb
        box.verb = verb
        if verb in ("full", "disk"):
            body, path = {"kind": verb}, "snapshots"
        elif verb == "rollback":
            with self.ledger.lock:
                mine = self.ledger.of(box)
                box.target = self.rng.choice(mine) if mine else None
            if not mine:
                box.verb = None
                return
            body = {"snapshot_id": box.target}
        elif verb == "fork":
            body = {"count": 1}
            self.ledger.asked(1)

        def note(answer):
            self.note_operation(answer)
            box.operation = answer.json["operation"]["id"]

        method, where = ("DELETE", box.path) if verb == "delete" else ("POST", f"{box.path}/{path}")
        op = self.operation(self.call(method, where, body, note=note))
        self.moved(box, verb, op)

    def moved(self, box, verb, op):
        good, target = op["status"] == "succeeded", box.target
        self.ended(box, op, box.after(verb, self.ledger.kind(target)))
        if verb == "fork":
            self.ledger.asked(-1)
        if not good:
            return
        if verb in ("full", "disk"):
            self.ledger.snapshots[op["result"]["snapshot_id"]] = \
                Kept(verb, box.disk, box.memory if verb == "full" else 0, box.id)
        elif verb == "fork":
            for child in op["result"]["children"]:
                if not child["error"]:
                    self.ledger.boxes[child["sandbox_id"]] = one = Box(child["sandbox_id"], "running", box.disk, box.memory)
                    one.metadata = box.metadata
        elif verb == "stop":
            box.memory = 0
        elif verb == "rollback":
            self.rolled_back(box, target)
        elif verb == "suspend":
            for process in box.processes:
                process.sealed = True

    def rolled_back(self, box, target):
        kept = self.ledger.snapshots[target]
        box.disk, box.memory, box.processes, box.others = kept.disk, kept.memory, [], []

    def tags(self):
        return {item["tag"]: item["digest"] for item in self.api.get("/v1/templates/busybox")["tags"]}

    # --- the rest ---
    def key(self):
        with self.ledger.lock:
            mine = [name for name, key in self.ledger.keys.items() if key["state"] == "there"]
            name = self.rng.choice(sorted(mine)) if len(mine) > 3 else None
            if name:
                self.ledger.keys[name]["state"] = "going"
        if name:
            key = self.ledger.keys[name]
            self.call("DELETE", f"/v1/keys/{key['id']}")
            key["state"] = "gone"
            return

        def note(answer):
            with self.ledger.lock:
                self.ledger.keys[answer.json["id"]] = {**answer.json, "state": "there"}

        self.call("POST", "/v1/keys", {"role": "user", "name": f"key-{next(self.ledger.numbers)}"}, note=note)

    def tag(self):
        """Puts a tag, or takes it away."""
        with self.ledger.lock:
            name = f"t{self.rng.randrange(4)}"
            before = self.ledger.tags.get(name, {None})
            digest = self.ledger.digest if before == {None} else None
            self.ledger.tags[name] = before | {digest}
            self.call("PUT" if digest else "DELETE", f"/v1/templates/busybox/tags/{name}", {"digest": digest} if digest else None)
            self.ledger.tags[name] = {digest}

    def drop(self):
        """Deletes a snapshot."""
        with self.ledger.lock:
            free = [name for name, kept in list(self.ledger.snapshots.items()) if not kept.deleting
                    and not any(box.target == name for box in list(self.ledger.boxes.values()))]
            if len(free) < 4:
                return
            name = self.rng.choice(sorted(free))
            self.ledger.snapshots[name].deleting = True
        if self.call("DELETE", f"/v1/snapshots/{name}", good=(204, 409)).status == 204:
            del self.ledger.snapshots[name]
        else:  # a sandbox hangs on it
            self.ledger.snapshots[name].deleting = False

    def work(self, mine):
        """Random verbs until the power goes."""
        while True:
            boxes = [box for box in mine if box.state != "deleted"]
            if len(boxes) < BOXES:
                mine.append(self.create({"template": "busybox", "metadata": {}}))
                if mine[-1].state == "running":
                    self.write(mine[-1])
                continue
            apart = self.rng.random() < 0.12
            if apart:
                getattr(self, self.rng.choices(list(APART), APART.values())[0])()
                continue
            box = self.rng.choice(boxes)
            verbs = [verb for verb in MOVES if box.state in MOVES[verb]]
            self.act(box, self.rng.choices(verbs, [WEIGHTS[verb] for verb in verbs])[0])


# --- after a cut ---
class Check(Client):
    """Compares the ledger with what is there."""

    def check(self):
        self.settle()
        self.check_operations()
        self.check_boxes()
        self.check_apart()
        self.check_snapshots()
        self.check_contents()
        self.check_leftovers()

    def wait(self, condition, what, patience=PATIENCE):
        deadline = time.monotonic() + patience
        while True:
            last = condition()
            if not last:
                return
            if time.monotonic() > deadline:
                raise Failed(f"{what}: {last}")
            time.sleep(0.5)

    def pages(self, path):
        return self.api.pages(path)

    def settle(self):
        def open_ones():
            open_boxes = [(got["id"], got["state"]) for got in self.pages("/v1/sandboxes")
                          if got["state"] not in SETTLED or got["operation_id"]]
            return open_boxes or [op for status in ("pending", "running") for op in self.pages(f"/v1/operations?status={status}")]

        self.wait(open_ones, "not settled")

    def check_operations(self):
        """What was told to have ended is what it was, and what was accepted has ended."""
        for name, told in list(self.ledger.operations.items()):
            answer = self.api.call("GET", f"/v1/operations/{name}")
            if answer.status != 200:
                raise Failed(f"operation {told} was accepted, and is not there: {answer}")
            now = answer.json
            if told["status"] in ("succeeded", "failed", "canceled"):
                if (now["status"], now["result"], now["error"]) != (told["status"], told["result"], told["error"]):
                    raise Failed(f"operation was told to be {told}, and is {now}")
            elif now["status"] not in ("succeeded", "failed", "canceled") or now["status"] != "succeeded" and not now["error"]["detail"]:
                raise Failed(f"operation was {told}, and is {now}")
            self.ledger.operations[name] = now

    def expected(self, box, op):
        """The states that a sandbox may be in now."""
        verb = box.verb
        kept = {"failed"} if box.state in OF_RUNNING else {box.state}
        if verb == "delete":
            return {"deleted"} if op else kept | {"deleted"}
        if verb in ("restore", "start", "stop", "suspend", "rollback", "create"):
            to = "running" if verb == "create" else box.after(verb, self.ledger.kind(box.target))
            if op and op["status"] == "succeeded":
                # It may have ended before the cut, which took the VM.
                return {to, "failed"} if to == "running" else {to}
            return TORN[verb] | kept | (set() if op else {to})
        return kept

    def check_boxes(self):
        there = {got["id"]: got for got in self.pages("/v1/sandboxes")}
        for box in list(self.ledger.boxes.values()):
            self.check_box(box, there.pop(box.id, None))
        if len(there) > self.ledger.creating:
            raise Failed(f"sandboxes that nobody asked for: {list(there)}, {self.ledger.creating} requests were not answered")
        self.ledger.creating = 0
        for got in there.values():
            self.ledger.boxes[got["id"]] = Box(got["id"], "unknown")

    def check_box(self, box, got):
        if box.state == "deleted":
            if got:
                raise Failed(f"{box} was told to be deleted, and is {got['state']}")
            return
        got = got or self.api.call("GET", box.path).json
        if "state" not in got:
            raise Failed(f"{box} is not there: {got}")
        op = self.ledger.operations.get(box.operation)
        wanted = self.expected(box, op)
        if got["state"] not in wanted:
            raise Failed(f"{box}: {got['state']}, expected {wanted}; {op}; {got.get('failure')}")
        if got["state"] == "failed" and not (got["failure"] or {}).get("message"):
            raise Failed(f"{box}: failed without a reason: {got}")
        if got["state"] != "deleted" and got["metadata"] not in (box.metadata, box.metadata_maybe):
            raise Failed(f"{box}: metadata {got['metadata']}, told {box.metadata}, or {box.metadata_maybe}")
        box.metadata, box.metadata_maybe = got.get("metadata"), None
        for process in box.processes if got["state"] != "deleted" and box.verb != "rollback" else ():
            self.check_process(box, process)
        self.learn(box, got, op)

    def learn(self, box, got, op):
        """From now on it is what it is."""
        done = op and op["status"] == "succeeded"
        if box.verb == "rollback" and done:
            self.rolled_back(box, box.target)
        elif box.verb == "rollback":
            kept = self.ledger.snapshots[box.target]
            box.others, box.processes = [(kept.disk, kept.memory), (kept.disk, 0)], []
        elif box.verb == "stop" and got["state"] == "stopped" or box.verb == "start":
            box.memory = 0
        if box.verb in ("full", "disk") and done:
            self.ledger.snapshots[op["result"]["snapshot_id"]] = Kept(box.verb, box.disk, box.memory if box.verb == "full" else 0, box.id)
        box.state, box.verb, box.operation, box.target = got["state"], None, None, None

    def check_process(self, box, process):
        """The end that was told, or that nobody knows it any more; the output that was told, or its beginning."""
        answer = self.api.call("GET", f"{box.path}/processes/{process.id}")
        if answer.status == 404 and not process.sealed:
            return
        result = answer.json.get("result") if answer.status == 200 else None
        if result != process.result and (process.sealed or not result or result["reason"] != "sandbox_gone"):
            raise Failed(f"{box}: {process.id} was told to have ended with {process.result}, now: {answer}")
        got = self.api.ok("GET", f"{box.path}/processes/{process.id}/output?stream=stdout&offset=0")
        first = int(got.headers["x-space-offset"])
        if got.body != process.out[first:first + len(got.body)]:
            raise Failed(f"{box}: {process.id} has output that it never wrote: {got.body[:200]!r} at {first}")
        if process.sealed and got.body != process.out:
            raise Failed(f"{box}: of the output of {process.id}, which had ended before a suspend, {len(got.body)} bytes "
                         f"of {len(process.out)} are left, from {first}")
        self.power.count("output whole" if got.body == process.out else "output lost")

    def check_apart(self):
        for key in self.ledger.keys.values():
            status = Api("127.0.0.1", self.api.port, key["key"], timeout=PATIENCE).call("GET", "/v1/version").status
            if status not in {"there": (200,), "gone": (401,), "going": (200, 401)}[key["state"]]:
                raise Failed(f"key {key['id']} is {key['state']}, and is answered {status}")
            key["state"] = "there" if status == 200 else "gone"
        tags = self.tags()
        for name, digests in self.ledger.tags.items():
            if tags.get(name) not in digests:
                raise Failed(f"tag {name} is {tags.get(name)}, told {digests}")
            self.ledger.tags[name] = {tags.get(name)}

    def check_snapshots(self):
        there = {got["id"]: got for got in self.pages("/v1/snapshots")}
        for name, kept in list(self.ledger.snapshots.items()):
            got = there.get(name)
            if kept.deleting and not got:
                del self.ledger.snapshots[name]
                continue
            kept.deleting = False
            if not got or got["state"] != "ready" or got["kind"] != kept.kind:
                raise Failed(f"snapshot {name} ({kept.kind}) was told to be ready: {got}")
        for name, got in there.items():
            if got["state"] == "ready" and name not in self.ledger.snapshots:
                raise Failed(f"snapshot {got} is ready, and no operation says so")

    def check_contents(self):
        """What was suspended and stopped goes on with what it had, and snapshots have what they were taken of."""
        for box in list(self.ledger.boxes.values()):
            if box.state in ("suspended", "stopped"):
                self.act(box, "restore" if box.state == "suspended" else "start")
                self.goes_on(box)
                self.power.count("went on")
            elif box.state == "running":  # a restore or start was done again
                self.verify(box)
                self.power.count("done again")
        for name in self.chosen():
            kept = self.ledger.snapshots[name]
            box = self.create({"snapshot": name}, kept.disk, kept.memory)
            self.goes_on(box)
            self.act(box, "delete")
            self.power.count(f"made from {kept.kind}")
        for box in list(self.ledger.boxes.values()):
            if box.state in ("failed", "unknown") or box.state == "running" and self.rng.random() < 0.3:
                box.state = "failed" if box.state == "unknown" else box.state
                if box.state == "failed" and self.ledger.of(box) and self.rng.random() < 0.6:
                    self.act(box, "rollback")
                    self.goes_on(box)
                    self.power.count("rolled back")
                else:
                    self.act(box, "delete")

    def chosen(self):
        """Snapshots to make something from: three with memory, and one without, which has to boot."""
        for kind, most in (("full", 3), ("disk", 1)):
            names = sorted(name for name, kept in self.ledger.snapshots.items() if kept.kind == kind)
            yield from self.rng.sample(names, min(most, len(names)))

    def goes_on(self, box):
        if box.state != "running":
            got = self.api.get(box.path)
            raise Failed(f"{box} should run: {got['state']} {got.get('failure')}")
        self.verify(box)

    def check_leftovers(self):
        """Nothing is there that nobody knows."""
        def left():
            found = self.power.machine.look()
            boxes = {box.id for box in self.ledger.boxes.values() if box.state != "deleted"}
            running = [box for box in self.ledger.boxes.values() if box.state in OF_RUNNING]
            wrong = {word: set(found.get(word, ())) - boxes for word in ("sandboxes", "record")}
            wrong["trash"] = found.get("trash", [])
            wrong["cgroup"] = [name for name in found.get("cgroup", ()) if not any(box in name for box in boxes)]
            wrong["snapshots"] = set(found.get("snapshots", ())) - set(self.ledger.snapshots)
            wrong["vmm"] = found.get("vmm", []) if len(found.get("vmm", [])) != len(running) else []
            wrong["loop"] = found.get("loop", [])[1:]
            return {word: names for word, names in wrong.items() if names}

        self.wait(left, "left over", 200)  # more than what the server takes to look around

    def wipe(self):
        """Everything can be deleted."""
        for box in list(self.ledger.boxes.values()):
            if box.state != "deleted":
                self.act(box, "delete")
        for name in list(self.ledger.snapshots):
            self.call("DELETE", f"/v1/snapshots/{name}")
            del self.ledger.snapshots[name]
        self.check_leftovers()
        machine = self.power.machine
        machine.run("kill $(pgrep -o -x spaced); for n in $(seq 600); do pgrep -x spaced >/dev/null || break; sleep 0.1; done; "
                    "build/src/spaced/spaced --state-dir /state/s --purge")
        left = {word: names for word, names in machine.look().items() if names}
        if left:
            raise Failed(f"left after --purge: {left}")


class Power:
    """The rounds."""

    def __init__(self, args, machine):
        self.rng, self.machine, self.ledger = random.Random(args.seed), machine, Ledger()
        self.rounds, self.counts = args.rounds, {}
        self.cutting = threading.Event()
        self.left = self.late = None
        self.lock = threading.Lock()
        self.wrong = []

    @staticmethod
    def say(text):
        print(f"power: {text}", flush=True)

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def heard(self):
        """An answer was told. The last one of a round is followed by the cut, at once or a moment later."""
        with self.lock:
            self.ledger.told += 1
            if self.left is None or self.cutting.is_set():
                return
            self.left -= 1
            if self.left <= 0 and self.late == 0:
                self.strike()
            elif self.left == 0:
                threading.Timer(self.late, self.strike).start()

    def strike(self):
        self.cutting.set()
        self.machine.kill()

    def work(self, client, mine):
        try:
            client.work(mine)
        except Cut:
            pass
        except Exception as error:  # whatever it is, it is told, and ends the round
            self.wrong.append(f"{type(error).__name__}: {error}")
            self.strike()

    def one(self, number, address):
        self.left = self.rng.randrange(15, 60)
        self.late = 0 if self.rng.random() < 0.5 else self.rng.random() * 3
        keep = self.rng.choices(["none", "some", "all"], [3, 2, 1])[0]
        self.say(f"round {number}: the power goes {self.late:.1f} s after {self.left} answers, and the disk keeps {keep} of what it "
                 "was not told to flush")
        boxes = [box for box in self.ledger.boxes.values() if box.state != "deleted"]
        threads = [threading.Thread(target=self.work, args=(Client(self, address, random.Random(self.rng.random())), boxes[n::CLIENTS]))
                   for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.machine.gone()
        if self.wrong:
            raise Failed("; ".join(self.wrong))
        disk = self.machine.disk.cut(keep, self.rng)
        under_way = [f"{box.verb} ({box.state})" for box in self.ledger.boxes.values() if box.verb]
        self.say(f"round {number}: cut: {disk}; under way: {under_way}")
        self.left = None
        self.cutting.clear()
        begin = time.monotonic()
        address = self.machine.boot()
        booted = time.monotonic()
        Check(self, address, self.rng).check()
        self.say(f"round {number}: all is as told; booted in {booted - begin:.0f} s, looked at in {time.monotonic() - booted:.0f} s; "
                 f"so far {self.counts}")
        return address

    def prepare(self, address):
        client = Client(self, address, self.rng)
        with tempfile.TemporaryDirectory(prefix="power-", dir="/var/tmp") as work:
            path = rootfs.make(work)
            for _ in range(3):  # it boots, which on a busy host may take longer than the server grants
                with open(path, "rb") as archive:
                    upload = client.call("PUT", "/v1/template-uploads", archive.read()).json["upload"]
                body = {"kind": "tar", "upload": upload}
                op = client.operation(client.call("POST", "/v1/templates/busybox/releases", body, note=client.note_operation))
                if op["status"] == "succeeded":
                    break
            else:
                raise Failed(f"template: {op}")
        self.ledger.digest = client.tags()["latest"]

    def run(self):
        begin = time.monotonic()
        address = self.machine.boot()
        self.say(f"booted in {time.monotonic() - begin:.0f} s")
        self.prepare(address)
        for number in range(1, self.rounds + 1):
            address = self.one(number, address)
        Check(self, address, self.rng).wipe()


def main():
    parser = argparse.ArgumentParser(description="power cuts")
    parser.add_argument("--bin", default=os.environ.get("BUILD", "build"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(1, 1 << 30))
    parser.add_argument("--engine", choices=("qemu", "firecracker"), default="qemu")
    parser.add_argument("--time-limit", type=int, default=900, help="seconds without a word from the machine (default 900)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    binary = os.environ.get("SPACE_FIRECRACKER", "") if args.engine == "firecracker" else ""
    if args.engine == "firecracker" and not os.access(binary, os.X_OK):
        raise SystemExit("power: SPACE_FIRECRACKER names no program")
    Power.say(f"seed {args.seed}, {args.rounds} rounds, engine {args.engine}")
    machine = cut.Machine(args.bin, args.engine, binary, args.time_limit)
    power = Power(args, machine)
    failed = 0
    try:
        power.run()
    except Exception as error:
        failed = 1
        print(machine.console())
        Power.say(f"FAILED (seed {args.seed}): {type(error).__name__}: {error}")
        if not isinstance(error, (AssertionError, OSError, http.client.HTTPException)):
            raise
    finally:
        machine.close()
    print(f"{machine.boots - 1} rounds, {power.ledger.told} answers told, {failed} failed")
    return 1 if failed or machine.boots - 1 != args.rounds else 0


if __name__ == "__main__":
    sys.exit(main())
