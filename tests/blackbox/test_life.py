"""Suspend, restore, snapshot, rollback, fork: what each promises, on real sandboxes."""
import contextlib
import os
import subprocess
import threading
import time

from harness import host, server
from harness.api import OperationFailed, Sandbox
from harness.case import OwnServerTest, SpaceTest, limit

MEMORY_MIB = 8


class Witness:
    """A process in a sandbox that keeps memory and can tell whether it is right, whatever happened meanwhile."""

    def __init__(self, sb):
        self.sb, self.end = sb, 0
        if sb.exec(["test", "-x", "/usr/bin/witness"]).code != 0:
            sb.put("/usr/bin/witness", server.witness(), mode="0755")
        answer = sb.session(["witness", "memory", str(MEMORY_MIB)], stdin=True, start="now")
        self.process = answer["session"]["process_id"]
        self.lines = []
        self.read(1)
        assert self.lines == ["ready"], self.lines

    def of(self, sb, process):
        """The same process in another sandbox (a fork), under its id there."""
        other = object.__new__(Witness)
        other.sb, other.process, other.end, other.lines = sb, process, self.end, list(self.lines)
        return other

    def read(self, more, timeout=60):
        want, deadline = len(self.lines) + more, time.monotonic() + timeout
        while len(self.lines) < want:
            data, first, _ = self.sb.output(self.process, offset=self.end)
            if first != self.end:
                raise AssertionError(f"output from {first}, expected {self.end}")
            self.lines += data.decode().splitlines()
            self.end += len(data)
            if time.monotonic() > deadline:
                raise AssertionError(f"the witness does not answer: {self.lines[-3:]}")

    def ask(self):
        """The rounds done so far; an error when a page is wrong."""
        self.sb.api.ok("POST", f"{self.sb.path}/processes/{self.process}/stdin", b"?\n")
        self.read(1)
        word, number = self.lines[-1].split()
        if word != "ok":
            raise AssertionError(f"the memory of the process is damaged: {self.lines[-1]}")
        return int(number)


@contextlib.contextmanager
def kept(path):
    """What is done to the file is undone; a further name would be one more user of it."""
    aside = path + ".kept"
    subprocess.run(["cp", "-a", "--reflink=auto", "--sparse=always", path, aside], check=True)
    try:
        yield
    finally:
        os.rename(aside, path)


def spoil(path):
    """One bit is another; of the memory, in a page that was written for this snapshot."""
    at = 100
    if os.path.basename(path) == "mem":
        with open(os.path.join(os.path.dirname(path), "pages"), "rb") as pages:
            at += int.from_bytes(pages.read(44)[40:], "big") * 4096
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))


def shorten(path):
    os.truncate(path, os.path.getsize(path) - 4096)


def only_process(sb, name="witness"):
    """Id of the one running process of that program."""
    found = [p["id"] for p in sb.api.pages(f"{sb.path}/processes")
             if p["state"] == "running" and p["argv"] and p["argv"][0] == name]
    if len(found) != 1:
        raise AssertionError(f"{len(found)} processes {name}: {sb.api.pages(f'{sb.path}/processes')}")
    return found[0]


def snapshot(sb, **body):
    answer = sb.api.ok("POST", f"{sb.path}/snapshots", body, status=202).json
    op = sb.api.wait_operation(answer["operation"])
    return op["result"]["snapshot_id"], op


def fork(sb, count=1, wait=True, **body):
    """Children of a sandbox, as handles; the operation."""
    answer = sb.api.ok("POST", f"{sb.path}/fork", {"count": count, **body}, status=202).json
    if not wait:
        return answer["operation"]
    op = sb.api.wait_operation(answer["operation"], 300)
    for child in op["result"]["children"]:
        if child["error"]:
            raise AssertionError(f"a child failed: {child}")
    return [Sandbox(sb.api, child["sandbox_id"]) for child in op["result"]["children"]], op


class Life(SpaceTest):
    def forked(self, sb, count=1, **body):
        children, _ = fork(sb, count, **body)
        for child in children:
            self.addCleanup(self.api.call, "DELETE", child.path)
        return children


class Suspend(Life):
    @limit(300)
    def test_memory_and_processes_go_on(self):
        sb = self.sandbox()
        witness = Witness(sb)
        sb.sh("echo memory > /run/mark; echo disk > /root/mark")
        rounds, before = witness.ask(), sb.get()
        self.assertEqual(sb.verb("suspend")["kind"], "suspend")
        got = sb.get()
        self.assertEqual((got["state"], got["desired_state"]), ("suspended", "suspended"))
        op = sb.verb("restore")
        self.assertEqual(op["kind"], "restore")
        got = sb.get()
        self.assertEqual((got["state"], got["generation"]), ("running", before["generation"] + 1))
        self.assertEqual(sb.sh("cat /run/mark /root/mark"), "memory\ndisk\n")
        self.assertGreaterEqual(witness.ask(), rounds)
        self.assertEqual(sb.sh("cat /run/space/generation"), f"{got['generation']}\n")

    @limit(300)
    def test_everything_on_the_host_is_released(self):
        sb = self.sandbox()
        vmm = self.server.vmm(sb.id)
        uid = vmm.status()["Uid"].split()[0]
        self.assertTrue(host.cgroups(sb.id))
        sb.verb("suspend")
        self.assertFalse(vmm.alive)
        self.assertIsNone(self.server.vmm(sb.id))
        self.assertEqual(host.cgroups(sb.id), [])
        folder = os.path.join(self.server.state_dir, "pool", "sandboxes", sb.id)
        owned = [name for name in host.listing(folder) if str(os.lstat(os.path.join(folder, name)).st_uid) == uid]
        self.assertEqual(owned, [], "files of the uid that was given back")
        sb.verb("wake")
        self.assertEqual(sb.sh("echo awake"), "awake\n")

    @limit(600)
    def test_twenty_cycles_with_a_writing_workload(self):
        """The disk's hash tree and a process's memory are right after each cycle; writes go on at the moment of it."""
        sb = self.sandbox()
        witness = Witness(sb)
        sb.sh("mkdir /root/tree; cat > /root/write.sh <<'EOF'\n"
              "echo $$ > /run/writer; n=0; while :; do d=/root/tree/$((n % 16)); mkdir -p $d; head -c 20000 /dev/urandom > $d/new; "
              "s=$(sha256sum < $d/new); mv $d/new $d/data.$((n % 8)); echo \"$s\" > $d/sum.$((n % 8)).new; "
              "mv $d/sum.$((n % 8)).new $d/sum.$((n % 8)); n=$((n+1)); "
              "echo $n > /run/written.new; mv /run/written.new /run/written; done\nEOF")
        sb.session("exec sh /root/write.sh", start="now")
        rounds = written = 0
        for cycle in range(20):
            with self.subTest(cycle=cycle):
                self.until(lambda: int(sb.sh("cat /run/written 2>/dev/null || echo 0")) > written, "the writer writes")
                sb.verb("suspend")
                sb.verb("restore")
                now = witness.ask()
                self.assertGreaterEqual(now, rounds)
                # The writer and what it has started stand still while the sums are compared: first as the memory has them, then as the disk has.
                # One that renames stands still when it has done so.
                check = ("w=$(cat /run/writer); stands() { for s in /proc/[0-9]*/stat; do set -- $(cat $s 2>/dev/null); "
                         "case $5.$3 in $w.[!TZ]) return 1;; esac; done; }; "
                         "kill -STOP -$w; until stands; do :; done; check() { bad=0; n=0; for d in /root/tree/*; do "
                         "for i in 0 1 2 3 4 5 6 7; do [ -e $d/sum.$i ] || continue; n=$((n+1)); "
                         "s=$(sha256sum < $d/data.$i); [ \"$s\" = \"$(cat $d/sum.$i)\" ] || bad=$((bad+1)); done; done; "
                         "echo $bad $n; }; check; sync; echo 3 > /proc/sys/vm/drop_caches; check; cat /run/written; "
                         "kill -CONT -$w")
                bad, files, on_disk, files_there, written = map(int, sb.sh(check).split())
                # One pair may be between its two renames.
                self.assertLessEqual(bad, 1)
                self.assertEqual((on_disk, files_there), (bad, files))
                self.assertGreater(files, 0)
                rounds = now
        self.assertEqual(sb.get()["generation"], 21)

    @limit(300)
    def test_from_paused_and_by_wake(self):
        sb = self.sandbox()
        witness = Witness(sb)
        sb.verb("pause")
        sb.verb("suspend")
        self.assertEqual(sb.state(), "suspended")
        sb.verb("wake")
        self.assertEqual(sb.state(), "running")
        witness.ask()

    def test_done_already(self):
        sb = self.sandbox()
        self.assertEqual(self.api.ok("POST", f"{sb.path}/restore", status=200).json["operation"]["status"], "succeeded")
        sb.verb("suspend")
        answer = self.api.ok("POST", f"{sb.path}/suspend", status=200).json
        self.assertEqual(answer["operation"]["status"], "succeeded")

    def test_conflicts_name_the_operation(self):
        sb = self.sandbox()
        first = sb.verb("suspend", wait=False)
        same = self.api.ok("POST", f"{sb.path}/suspend").json["operation"]
        self.assertEqual(same["id"], first["id"])
        answer = self.api.call("POST", f"{sb.path}/pause")
        if answer.status != 409:  # it was over already
            self.assertEqual(sb.state(), "suspended")
            return
        problem = answer.json
        self.assertTrue(problem["type"].endswith(":conflict"), problem)
        if problem.get("operation_id"):
            self.assertEqual(problem["operation_id"], first["id"])
        self.api.wait_operation(first)

    def test_verbs_that_do_not_fit(self):
        sb = self.sandbox()
        sb.verb("suspend")
        for verb in ("pause", "resume", "stop", "start"):
            with self.subTest(verb=verb):
                problem = self.api.problem("POST", f"{sb.path}/{verb}", status=409, slug="conflict")
                self.assertIn("suspended", problem["detail"])
        self.assertEqual(sb.state(), "suspended")

    @limit(300)
    def test_delete_while_suspended_and_suspending(self):
        sb, other = self.sandbox(), self.sandbox()
        sb.verb("suspend")
        sb.delete()
        self.assertEqual(sb.state(), "deleted")
        op = other.verb("suspend", wait=False)
        other.delete()
        self.assertIn(self.api.wait_operation(op, check=False)["status"], ("canceled", "succeeded"))
        self.assertEqual(other.state(), "deleted")

    @limit(300)
    def test_the_clock_after_a_restore(self):
        sb = self.sandbox()
        sb.put("/usr/bin/witness", server.witness(), mode="0755")
        wall, mono, boot = map(int, sb.sh("witness clocks").split())
        sb.verb("suspend")
        begin = time.monotonic()
        self.until(lambda: time.monotonic() - begin > 3, "three seconds")
        sb.verb("restore")
        errors = []
        for _ in range(5):
            before = time.time()
            now = [int(n) for n in sb.sh("witness clocks").split()]
            errors.append(max(before - now[0] / 1e9, now[0] / 1e9 - time.time(), 0))
        self.assertLess(min(errors), 0.2)
        # Neither of the others counts the time in which the sandbox did not exist (docs/design/protocol.md).
        self.assertGreater(now[1], mono)
        self.assertLess(now[1] - mono, now[0] - wall - 2_000_000_000)


class Snapshots(Life):
    @limit(300)
    def test_rollback_goes_back_in_memory_and_on_disk(self):
        sb = self.sandbox(name="origin")
        witness = Witness(sb)
        sb.sh("echo before > /root/mark; echo before > /run/mark")
        rounds = witness.ask()
        taken, op = snapshot(sb, name="point")
        self.assertEqual((op["kind"], sb.state()), ("snapshot", "running"))
        self.assertGreater(op["result"]["bytes"], 0)
        got = self.api.get(f"/v1/snapshots/{taken}")
        self.assertEqual((got["sandbox_id"], got["name"], got["kind"], got["state"]), (sb.id, "point", "full", "ready"))
        sb.sh("echo after > /root/mark; echo after > /run/mark; echo new > /root/new")
        later = sb.exec(["echo", "later"]).process["id"]
        self.assertGreaterEqual(witness.ask(), rounds)
        generation = sb.get()["generation"]
        sb.verb("rollback", {"snapshot_id": taken})
        self.assertEqual(sb.sh("cat /root/mark /run/mark; ls /root"), "before\nbefore\nmark\n")
        got = sb.get()
        self.assertEqual((got["id"], got["name"], got["state"]), (sb.id, "origin", "running"))
        self.assertGreater(got["generation"], generation)
        # The witness is the one of the snapshot: what it said afterwards is not part of its output any more.
        self.assertEqual(only_process(sb), witness.process)
        again = Witness.of(witness, sb, witness.process)
        again.end = sb.output(witness.process)[2]
        again.ask()
        self.assertEqual(sb.process(later)["result"]["reason"] in ("exit", "sandbox_gone"), True)
        sb.verb("rollback", {"snapshot_id": taken})
        self.assertEqual(sb.sh("cat /run/mark"), "before\n")

    @limit(300)
    def test_disk_snapshot_and_rollback_of_a_stopped_sandbox(self):
        sb = self.sandbox()
        sb.sh("echo one > /root/mark; sync")
        taken, _ = snapshot(sb, kind="disk")
        sb.sh("echo two > /root/mark; sync")
        sb.verb("stop")
        sb.verb("rollback", {"snapshot_id": taken})
        self.assertEqual(sb.state(), "stopped")
        sb.verb("start")
        self.assertEqual(sb.sh("cat /root/mark"), "one\n")

    @limit(300)
    def test_a_rollback_to_what_is_damaged_touches_nothing(self):
        def files(taken, name=""):
            return os.path.join(self.server.state_dir, "pool", "snapshots", taken, name)

        sb = self.sandbox()
        witness = Witness(sb)
        sb.sh("echo kept > /root/mark; echo kept > /run/mark")
        talker = sb.session(["sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.2; done"],
                            start="now")["session"]["process_id"]
        taken, _ = snapshot(sb)
        disk, _ = snapshot(sb, kind="disk")
        sb.sh("echo later > /root/mark; echo later > /run/mark")
        vmm, before = self.server.vmm(sb.id).pid, sb.get()
        harms = [(taken, name, harm) for name in ("mem", "state", "pages", "manifest") for harm in (spoil, os.unlink)]
        harms += [(one, "disk.raw", harm) for one in (taken, disk) for harm in (shorten, os.unlink)]
        for one, name, harm in harms:
            with self.subTest(snapshot=one, file=name, harm=harm.__name__):
                with kept(files(one, name)):
                    harm(files(one, name))
                    self.refused(sb, one, "running")
                self.assertEqual(self.server.vmm(sb.id).pid, vmm)
                witness.ask()
        got = sb.get()
        self.assertEqual([got[key] for key in ("state", "generation")], [before[key] for key in ("state", "generation")])
        self.assertEqual(sb.sh("cat /root/mark /run/mark"), "later\nlater\n")
        data, first, end = sb.output(talker)
        self.assertEqual((first, end), (0, len(data)))
        self.assertEqual(data.decode().split(), [str(n + 1) for n in range(len(data.split()))])
        for verb, state in (("pause", "paused"), ("suspend", "suspended")):
            sb.verb(verb)
            with kept(files(taken, "mem")):
                spoil(files(taken, "mem"))
                self.refused(sb, taken, state)
        sb.verb("restore")
        witness.ask()
        sb.verb("rollback", {"snapshot_id": taken})  # whole again
        self.assertEqual(sb.sh("cat /root/mark /run/mark"), "kept\nkept\n")
        sb.verb("stop")
        with kept(files(disk, "disk.raw")):
            os.unlink(files(disk, "disk.raw"))
            self.refused(sb, disk, "stopped")

    def refused(self, sb, taken, state):
        with self.assertRaises(OperationFailed) as failed:
            sb.verb("rollback", {"snapshot_id": taken})
        self.assertEqual(failed.exception.error["type"], "urn:space:error:damaged_snapshot", failed.exception.error)
        self.assertEqual((sb.state(), sb.get()["operation_id"]), (state, None))

    @limit(300)
    def test_create_from_a_snapshot_outlives_its_origin(self):
        sb = self.sandbox()
        sb.sh("echo kept > /root/mark; echo kept > /run/mark")
        taken, _ = snapshot(sb)
        disk, _ = snapshot(sb, kind="disk")
        machine = sb.sh("cat /etc/machine-id")
        sb.delete()
        for source, has_memory in ((taken, True), (disk, False)):
            with self.subTest(memory=has_memory):
                made = Sandbox.create(self.api, {"snapshot": source})
                self.addCleanup(self.api.call, "DELETE", made.path)
                self.assertEqual(made.sh("cat /root/mark"), "kept\n")
                self.assertEqual(made.exec(["test", "-e", "/run/mark"]).code, 0 if has_memory else 1)
                self.assertNotEqual(made.sh("cat /etc/machine-id"), machine)
        self.api.ok("DELETE", f"/v1/snapshots/{taken}")
        self.until(lambda: self.api.call("GET", f"/v1/snapshots/{taken}").status == 404, "the snapshot is gone")
        self.assertEqual(made.sh("echo lives"), "lives\n")

    @limit(300)
    def test_snapshots_of_paused_and_suspended(self):
        sb = self.sandbox()
        sb.sh("echo kept > /run/mark")
        sb.verb("pause")
        one, _ = snapshot(sb)
        self.assertEqual(sb.state(), "paused")
        sb.verb("suspend")
        two, _ = snapshot(sb)
        self.assertEqual(sb.state(), "suspended")
        for source in (one, two):
            made = Sandbox.create(self.api, {"snapshot": source})
            self.addCleanup(self.api.call, "DELETE", made.path)
            self.assertEqual(made.sh("cat /run/mark"), "kept\n")
        sb.verb("restore")
        self.assertEqual(sb.sh("cat /run/mark"), "kept\n")

    @limit(600)
    def test_a_chain_of_many(self):
        """The twelfth snapshot is no dearer than the first, and a snapshot of a child of a child is whole."""
        sb = self.sandbox()
        witness = Witness(sb)
        sizes = []
        for _ in range(12):
            taken, op = snapshot(sb)
            sizes.append(op["result"]["bytes"])
        self.assertLess(sizes[-1], sizes[0] * 2 + (4 << 20), sizes)
        witness.ask()
        one = self.forked(sb)[0]
        two = self.forked(one)[0]
        three = Sandbox.create(self.api, {"snapshot": snapshot(two)[0]})
        self.addCleanup(self.api.call, "DELETE", three.path)
        for made in (one, two, three):
            witness.of(made, only_process(made)).ask()


class Fork(Life):
    @limit(600)
    def test_eight_children_are_nobodys_twins(self):
        sb = self.sandbox()
        sb.put("/usr/bin/witness", server.witness(), mode="0755")
        witness = Witness(sb)
        sb.sh("echo parent > /run/mark; echo parent > /root/mark")
        children = self.forked(sb, 8, name="child")
        seen = []
        for one in [sb, *children]:
            seen.append(one.sh("head -c 32 /dev/urandom | sha256sum | cut -c1-64; cat /proc/sys/kernel/random/uuid; "
                               "witness tls; cat /etc/machine-id; hostname; cat /run/space/sandbox", timeout=180).split())
        for what, values in zip(("urandom", "uuid", "TLS random", "machine-id", "hostname", "id"), zip(*seen)):
            self.assertEqual(len(set(values)), 9, f"{what}: {values}")
        self.assertEqual([row[5] for row in seen], [one.id for one in [sb, *children]])
        for child in children:
            self.assertEqual(child.sh("cat /run/mark /root/mark"), "parent\nparent\n")
            got = child.get()
            self.assertGreater(got["generation"], 1)
            mine = only_process(child)
            self.assertNotEqual(mine, witness.process)
            witness.of(child, mine).ask()
        self.assertEqual([c.get()["name"] for c in children], [f"child-{n}" for n in range(1, 9)])
        witness.ask()
        children[0].sh("echo child > /root/mark")
        self.assertEqual(sb.sh("cat /root/mark"), "parent\n")
        self.assertEqual(children[1].sh("cat /root/mark"), "parent\n")

    @limit(300)
    def test_from_paused_and_suspended(self):
        sb = self.sandbox()
        sb.sh("echo kept > /run/mark")
        sb.verb("pause")
        child = self.forked(sb)[0]
        self.assertEqual(sb.state(), "paused")
        self.assertEqual(child.sh("cat /run/mark"), "kept\n")
        sb.verb("suspend")
        child = self.forked(sb)[0]
        self.assertEqual(sb.state(), "suspended")
        self.assertEqual(child.sh("cat /run/mark"), "kept\n")
        sb.verb("wake")
        self.assertEqual(sb.sh("cat /run/mark"), "kept\n")

    @limit(300)
    def test_output_goes_on_in_each(self):
        sb = self.sandbox()
        process = sb.session("n=0; while :; do echo $n; n=$((n+1)); usleep 20000; done",
                             start="now")["session"]["process_id"]
        self.until(lambda: sb.output(process)[2] > 50, "output")
        child = self.forked(sb)[0]
        mine = [p["id"] for p in self.api.pages(f"{child.path}/processes") if p["state"] == "running"]
        self.assertEqual(len(mine), 1)
        for one, pr in ((sb, process), (child, mine[0])):
            end = one.output(pr)[2]
            self.until(lambda: one.output(pr)[2] > end + 50, "output goes on")
            lines = one.all_output(pr).split(b"\n")[:-1]
            self.assertEqual(lines, [b"%d" % n for n in range(len(lines))])

    def test_of_what_cannot_be_forked(self):
        sb = self.sandbox()
        sb.verb("stop")
        self.api.problem("POST", f"{sb.path}/fork", {"count": 1}, status=409, slug="conflict")

    @limit(300)
    def test_a_fork_in_the_middle_of_everything(self):
        """The parent's own requests are answered meanwhile, or refused with the operation in the way."""
        sb = self.sandbox()
        errors, stop = [], threading.Event()

        def work():
            while not stop.is_set():
                try:
                    sb.sh("echo works")
                except Exception as error:  # noqa: B902 - reported below
                    errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(3):
                self.forked(sb, 2)
        finally:
            stop.set()
            thread.join()
        self.assertEqual(errors, [])


class OverRestarts(OwnServerTest):
    @limit(300)
    def test_suspended_over_a_restart(self):
        for name, harm in (("SIGTERM", self.server_terminate), ("kill -9", self.server_kill)):
            with self.subTest(by=name):
                sb = self.sandbox()
                witness = Witness(sb)
                taken, _ = snapshot(sb)
                sb.verb("suspend")
                harm()
                self.server.start()
                self.assertEqual(sb.state(), "suspended")
                self.assertEqual(self.api.get(f"/v1/snapshots/{taken}")["state"], "ready")
                sb.verb("restore")
                witness.ask()
                sb.verb("rollback", {"snapshot_id": taken})
                witness.end = sb.output(witness.process)[2]
                witness.ask()
                self.api.ok("DELETE", f"/v1/snapshots/{taken}")

    def server_terminate(self):
        self.server.terminate()

    def server_kill(self):
        self.server.kill()

    @limit(300)
    def test_a_damaged_image_is_refused_and_said(self):
        sb = self.sandbox()
        sb.sh("echo kept > /run/mark")
        taken, _ = snapshot(sb)
        sb.verb("suspend")
        pool = os.path.join(self.server.state_dir, "pool", "snapshots")
        folder = os.path.join(pool, next(name for name in host.listing(pool) if name != taken))
        with open(os.path.join(folder, "state"), "r+b") as state:
            state.seek(100)
            byte = state.read(1)[0]
            state.seek(100)
            state.write(bytes([byte ^ 1]))
        for missing in (False, True):  # nothing is lost or done by trying
            if missing:  # its memory is gone altogether, which is looked at first
                os.unlink(os.path.join(folder, "mem"))
            with self.assertRaises(OperationFailed) as failed:
                sb.verb("restore")
            error = failed.exception.error
            self.assertEqual(error["type"], "urn:space:error:damaged_snapshot", error)
            self.assertIn("damaged: it can be rolled back to another snapshot or deleted", error["detail"])
            self.assertEqual(sb.state(), "suspended")
        sb.verb("rollback", {"snapshot_id": taken})
        self.assertEqual(sb.sh("cat /run/mark"), "kept\n")
        sb.delete()
        self.api.ok("DELETE", f"/v1/snapshots/{taken}")

    @limit(300)
    def test_nothing_is_left_of_snapshots(self):
        def files():
            pool = os.path.join(self.server.state_dir, "pool")
            return {name: host.listing(os.path.join(pool, name)) for name in ("sandboxes", "snapshots", "trash")}

        sb = self.sandbox()
        taken, _ = snapshot(sb)
        children, _ = fork(sb, 2)
        sb.verb("suspend")
        for child in children:
            child.verb("suspend")
        for one in [sb, *children]:
            one.delete()
        self.until(lambda: files()["snapshots"] == [taken], "only the named snapshot is left")
        self.api.ok("DELETE", f"/v1/snapshots/{taken}")
        self.until(lambda: files()["snapshots"] == [] and files()["trash"] == [], "nothing is left")
