"""Random verbs by many clients over many sandboxes, with random deaths; a model says what each answer may be.

SPACE_VERBS sets how many verbs (default 160), SPACE_SEED the order of things; the seed is printed with a failure.
"""
import http.client
import os
import random
import signal
import threading
import time

from harness import host
from harness.api import Api, Sandbox
from harness.case import OwnServerTest, limit
from harness.wait import until
from harness.workers import alone

VERBS = int(os.environ.get("SPACE_VERBS", "160"))
SEED = int(os.environ.get("SPACE_SEED", "0")) or random.randrange(1, 1 << 30)
CLIENTS, SANDBOXES = 8, 20 if VERBS >= 1000 else 8

# The state machine as a client sees it: verb -> {state: state afterwards}. Any other settled state: 409.
MOVES = {
    "pause": {"running": "paused", "paused": "paused"},
    "resume": {"paused": "running", "running": "running"},
    "suspend": {"running": "suspended", "paused": "suspended", "suspended": "suspended"},
    "restore": {"suspended": "running", "running": "running"},
    "stop": {"running": "stopped", "paused": "stopped", "stopped": "stopped"},
    "start": {"stopped": "running", "running": "running"},
    "wake": {"running": "running", "paused": "running", "suspended": "running", "stopped": "running"},
    "snapshot": {state: state for state in ("running", "paused", "suspended")},
    "fork": {state: state for state in ("running", "paused", "suspended")},
    "rollback": {state: "running" for state in ("running", "paused", "suspended", "stopped", "failed")},
    "delete": {state: "deleted" for state in ("running", "paused", "suspended", "stopped", "failed")},
}
WEIGHTS = {"exec": 8, "pause": 3, "resume": 3, "suspend": 4, "restore": 4, "stop": 1, "start": 2, "wake": 3,
           "snapshot": 2, "fork": 1, "rollback": 2, "delete": 1}
SETTLED = ("running", "paused", "suspended", "stopped", "failed", "deleted")


class Wrong(AssertionError):
    """An answer that the model does not allow."""


class Model:
    """One sandbox: what it must be, by what was answered so far."""

    def __init__(self, sb):
        self.sb, self.lock = sb, threading.Lock()
        self.state = "running"
        self.disk = self.memory = 0       # the number last written to its disk, and to its memory
        self.snapshots = []               # [(id, disk, memory, doubts)]
        self.doubts = set()               # numbers that may or may not have been written: the server died


@alone  # it wants both processors for itself
class Storm(OwnServerTest):
    config = {"warm_per_golden": 1, "max_sandboxes": 200}

    def setUp(self):
        super().setUp()
        self.random = random.Random(SEED)
        self.calm = threading.RLock()     # held by who kills, so that one death is over before the next
        self.left = VERBS
        self.counter = 0
        self.wrong = []
        self.deaths = {"vmm": 0, "daemon": 0, "broker": 0}
        self.done = {}
        self.epoch = 0                    # counts deaths of the server, before each and after it
        self.models, self.strangers = [], 0   # deaths of VMMs that are no model's: children, and new ones
        self.lock = threading.Lock()

    def number(self):
        with self.lock:
            self.counter += 1
            return self.counter

    def client(self):
        return Api(self.server.host, self.server.port, self.server.key, timeout=120)

    # --- one sandbox, one verb; the model's lock is held ---
    def make(self):
        sb = Sandbox.create(self.client(), {"template": "busybox"})
        model = Model(sb)
        self.write(model)
        return model

    def write(self, model):
        n = self.number()
        done = model.sb.exec(f"echo {n} > /root/n; sync; echo {n} > /run/n", timeout=120)
        if done.code != 0:
            raise Wrong(f"write: {done}")
        model.disk = model.memory = n

    def read(self, model):
        out = model.sb.exec("cat /root/n; cat /run/n 2>/dev/null || echo 0", timeout=120)
        if out.code != 0:
            raise Wrong(f"read: {out}")
        return [int(n) for n in out.out.split()]

    def verify(self, model):
        """A running sandbox holds what was written to it."""
        disk, memory = self.read(model)
        if disk != model.disk and disk not in model.doubts or memory != model.memory and memory not in model.doubts:
            raise Wrong(f"{model.sb.id}: disk {disk} memory {memory}, expected {model.disk} {model.memory} "
                        f"doubts {model.doubts}")
        model.disk, model.memory, model.doubts = disk, memory, set()

    def act(self, model, verb):
        if verb == "exec":
            self.act_exec(model)
        else:
            self.act_verb(model, verb)
        with self.lock:
            self.done[verb] = self.done.get(verb, 0) + 1

    def act_exec(self, model):
        answer = model.sb.api.call("POST", f"{model.sb.path}/exec", {"argv": ["true"]}, timeout=120)
        if model.state != "running":
            if answer.status not in (409, 410, 404):
                raise Wrong(f"exec in {model.state}: {answer}")
            return
        if answer.status != 200:
            raise Wrong(f"exec in running: {answer}")
        self.verify(model)
        self.write(model)

    def request(self, model, verb):
        path = {"snapshot": "snapshots"}.get(verb, verb)
        body = None
        if verb == "rollback":
            if not model.snapshots:
                return None
            body = {"snapshot_id": self.random.choice(model.snapshots)[0]}
        if verb == "delete":
            return model.sb.api.call("DELETE", model.sb.path), body
        return model.sb.api.call("POST", f"{model.sb.path}/{path}", body or ({} if verb in ("snapshot", "fork") else None)), body

    def act_verb(self, model, verb):
        before = model.state
        to = MOVES[verb].get(before)
        made = self.request(model, verb)
        if made is None:
            return
        answer, body = made
        if to is None:
            if answer.status not in (409, 410):
                raise Wrong(f"{verb} of a {before}: {answer}")
            return
        if answer.status not in (200, 202):
            if answer.status == 429:
                return
            raise Wrong(f"{verb} of a {before}: {answer}")
        op = model.sb.api.wait_operation(answer.json["operation"], 180, check=False)
        if op["status"] != "succeeded":
            raise Wrong(f"{verb} of a {before}: {op}")
        self.moved(model, verb, to, op, body)

    def moved(self, model, verb, to, op, body):
        before, model.state = model.state, to
        got = model.sb.get()
        if got["state"] != to:
            raise Wrong(f"after {verb} of a {before}: {got['state']}, expected {to}")
        if verb == "stop" or before == "stopped":
            model.memory = 0
        if verb == "snapshot":
            model.snapshots.append((op["result"]["snapshot_id"], model.disk, model.memory, set(model.doubts)))
        if verb == "rollback":
            _, model.disk, model.memory, doubts = next(s for s in model.snapshots if s[0] == body["snapshot_id"])
            model.doubts = set(doubts)
        if verb == "fork":
            self.forked(model, op)
        if to == "running":
            self.verify(model)

    def forked(self, model, op):
        """The child has what the parent had, and goes."""
        for child in op["result"]["children"]:
            if child["error"]:
                raise Wrong(f"fork: {child}")
            one = Model(Sandbox(model.sb.api, child["sandbox_id"]))
            one.disk, one.memory, one.doubts = model.disk, model.memory, set(model.doubts)
            self.verify(one)
            one.sb.delete()

    # --- clients and deaths ---
    def work(self, models):
        while True:
            with self.lock:
                if self.left <= 0 or self.wrong:
                    return
                self.left -= 1
                at = self.random.randrange(len(models))
                verb = self.random.choices(list(WEIGHTS), WEIGHTS.values())[0]
            with models[at].lock:
                before = self.epoch, self.strangers
                try:
                    if models[at].state == "deleted":
                        models[at] = self.replacement(models[at])
                    self.act(models[at], verb)
                except (Wrong, AssertionError, OSError, http.client.HTTPException, ValueError) as error:
                    self.judge(models[at], verb, before, error)

    def replacement(self, old):
        new = self.make()
        new.lock = old.lock
        return new

    def judge(self, model, verb, before, error):
        for _ in range(3):
            try:
                if self.excused(model, before):
                    return
                break
            except AssertionError as worse:  # what the death left is wrong
                error = worse
                break
            except (OSError, http.client.HTTPException):
                pass  # the next death
        with self.lock:
            self.wrong.append(f"{verb}: {type(error).__name__}: {error}")

    def excused(self, model, before):
        """A death explains a wrong answer if afterwards the sandbox is in a legal state and works."""
        with self.calm:
            pass  # until whoever kills has started the server again
        died = before != (self.epoch, self.strangers) or model.sb.id in self.victims or not self.server.alive()
        if not died:
            return False
        self.relearn(model)
        return True

    def relearn(self, model):
        def settled():
            got = model.sb.get()
            return got if got["state"] in SETTLED and not got["operation_id"] else None

        for attempt in range(10):
            try:
                got = until(settled, f"{model.sb.id} is settled", 120)
                break
            except (OSError, http.client.HTTPException):
                with self.calm:
                    pass
        else:
            raise Wrong("the server does not answer")
        model.state = got["state"]
        if model.state == "failed":
            if model.sb.id not in self.victims:
                raise Wrong(f"failed though its VMM was not killed: {got['failure']}")
            self.victims.discard(model.sb.id)
        # What was under way may or may not have happened.
        model.doubts |= {model.disk, model.memory, 0, self.counter} | set(range(max(0, self.counter - 64), self.counter + 1))
        for taken in model.snapshots:  # it may have been a rollback
            model.doubts |= {taken[1], taken[2]} | taken[3]
        self.known_snapshots(model)

    def known_snapshots(self, model):
        known = {s["id"] for s in model.sb.api.pages(f"{model.sb.path}/snapshots") if s["state"] == "ready"} \
            if model.state != "deleted" else set()
        model.snapshots = [s for s in model.snapshots if s[0] in known]

    def reap(self, models, stop):
        """Kills something now and then."""
        kinds = ["vmm", "vmm", "daemon", "broker", "all"]
        while not stop.wait(1.5 + self.random.random() * 3):
            kind = self.random.choice(kinds)
            with self.calm:
                self.strike(kind)

    def strike(self, kind):
        if kind == "vmm":
            ids = [got["id"] for got in self.client().pages("/v1/sandboxes")]
            victims = [p for p in self.server.vmms() if any(i in a for i in ids for a in p.argv)]
            if victims:
                victim = self.random.choice(victims)
                struck = {i for i in ids if any(i in a for a in victim.argv)}
                self.victims |= struck
                self.strangers += not struck & {model.sb.id for model in self.models}
                os.kill(victim.pid, signal.SIGKILL)
                self.deaths["vmm"] += 1
            return
        self.epoch += 1
        process = self.server.broker() if kind == "broker" else self.server.daemon()
        if process and kind != "all":
            os.kill(process.pid, signal.SIGKILL)
        self.server.kill()
        self.deaths["broker" if kind == "broker" else "daemon"] += 1
        self.epoch += 1
        self.server.start()

    # --- the test ---
    @limit(600 + VERBS * 3)
    def test_storm(self):
        self.victims = set()
        self.models = models = [self.make() for _ in range(SANDBOXES)]
        stop = threading.Event()
        clients = [threading.Thread(target=self.work, args=(models,)) for _ in range(CLIENTS)]
        reaper = threading.Thread(target=self.reap, args=(models, stop))
        for thread in [*clients, reaper]:
            thread.start()
        for thread in clients:
            thread.join()
        stop.set()
        reaper.join()
        print(f"storm: seed {SEED}, {self.done}, deaths {self.deaths}", flush=True)
        self.assertEqual(self.wrong, [], f"seed {SEED}\n{self.server.log(3000)}")
        if not self.server.alive():
            self.server.start()
        self.all_converges()

    def all_converges(self):
        """Nothing is stuck, all can be deleted, nothing is left."""
        def settled():
            return all(got["state"] in SETTLED and not got["operation_id"] for got in self.api.pages("/v1/sandboxes"))

        self.until(settled, "all sandboxes are settled", 120)
        for status in ("pending", "running"):
            self.assertEqual(self.api.pages(f"/v1/operations?status={status}"), [])
        for got in self.api.pages("/v1/sandboxes"):
            Sandbox(self.api, got["id"]).delete()
        for got in self.api.pages("/v1/snapshots"):
            self.api.ok("DELETE", f"/v1/snapshots/{got['id']}")
        pool = os.path.join(self.server.state_dir, "pool")

        def empty():
            ids = set(self.server.sandbox_dirs())
            warm = {i for p in self.server.vmms() for i in ids if any(i in a for a in p.argv)}
            return ids <= warm and not host.listing(os.path.join(pool, "snapshots")) and \
                not host.listing(os.path.join(pool, "trash"))

        self.until(empty, "an empty pool but for the warm VM", 60)
        begin = time.monotonic()
        self.assertEqual(self.api.get("/v1/sandboxes")["items"], [])
        self.assertLess(time.monotonic() - begin, 5)
