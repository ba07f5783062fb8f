"""Figures of the life verbs: pause, fork, suspend, restore, chains of snapshots."""
import functools
import struct
import threading
import time

import client
from harness import server
from harness.api import Sandbox
from harness.ws import Attach
from table import AGENT, Figure, against, in_turns, median, milliseconds

MIB = 1 << 20
PAGE = 4096
FROZEN = "the agent, freeze and identity"
CHAIN_ROUNDS = 5  # of the fifty


def dirty_bytes(vmm):
    """What a VMM's guest has changed of its memory: anonymous pages of the private mapping of the memory file."""
    total = 0
    with open(f"/proc/{vmm.pid}/maps", encoding="ascii") as maps, open(f"/proc/{vmm.pid}/pagemap", "rb") as pagemap:
        for line in maps:
            fields = line.split()
            if len(fields) < 6 or not fields[5].startswith(("/mem", "/under")) or "w" not in fields[1]:
                continue
            begin, end = (int(n, 16) for n in fields[0].split("-"))
            pagemap.seek(begin // PAGE * 8)
            data = pagemap.read((end - begin) // PAGE * 8)
            for (entry,) in struct.iter_unpack("<Q", data):
                total += bool(entry >> 62 and not entry >> 61 & 1)
    return total * PAGE


def bare_restore(machine):
    """Milliseconds of a restore by hand: a VMM started, its state loaded, the first command's result."""
    made = []

    def run():
        made.append(machine.spawn())
        made[0].restore()
        made[0].command()

    took = milliseconds(run)
    made[0].close()
    return took


class Life:
    """Mixed into the bench: uses its server, its bare machine and its number of runs."""

    def with_witness(self, **body):
        sb = self.make(**body)
        sb.put("/usr/bin/witness", server.witness(), mode="0755")
        return sb

    def with_dirty(self, mib, **body):
        """A sandbox in which a process keeps that much memory which it has written."""
        sb = self.with_witness(**body)
        answer = sb.session(["witness", "dirty", str(mib)], stdin=True, start="now")
        process = answer["session"]["process_id"]
        deadline = time.monotonic() + 120
        while sb.output(process)[0] != b"dirty\n":
            if time.monotonic() > deadline:
                raise RuntimeError("the witness does not get its memory")
        return sb

    def restored_machines(self):
        """What is restored by hand: the bare guests, and SPACE's own."""
        return {**self.bare_machines(), AGENT: self.agent_machine()}

    def pause(self):
        """Pause, resume and the first command, against the same by hand."""
        vms = self.bare_vms()

        def by_hand(vm):
            vm.stop()
            vm.go()
            vm.command()

        def promised(vm):
            vm.freeze()
            vm.stop()
            vm.go()
            vm.identify()
            vm.command()

        sb, conn = self.make(), client.Client(self.api)

        def run():
            conn.verb(sb.path, "pause")
            conn.verb(sb.path, "resume")
            conn.exec(sb.path)

        sides = {name: functools.partial(by_hand, vm) for name, vm in vms.items()}
        frozen = {FROZEN: functools.partial(promised, vms[AGENT])}
        times = in_turns({**sides, **frozen, "space": run}, self.runs, warm_up=3)
        conn.close()
        sb.delete()
        for vm in vms.values():
            vm.close()
        yield from against("pause, resume, first exec", times, lambda o, b: [("<= + 5 ms", o <= b + 5)])
        yield Figure(f"  bare: {FROZEN}", "ms", median(times[FROZEN]), median(times["space"]), [], self.runs,
                     "what a pause promises, without the daemon")

    def standstill(self):
        """How long a running parent with 10 MB dirty stands still for a fork: the longest gap in what it writes."""
        found = {}
        for memory in (256, 2048):
            sb = self.with_dirty(10, resources={"memory_mib": memory})
            gaps, usual = [], []
            for _ in range(max(5, self.runs // 2)):
                quiet, gap = self.gap_of_a_fork(sb)
                gaps.append(gap)
                usual.append(quiet)
            sb.delete()
            found[memory] = median(gaps)
            yield Figure(f"standstill of a fork, {memory} MiB", "ms", median(usual), found[memory],
                         [("<= 40 ms", found[memory] <= 40)], len(gaps), "bare: the longest gap without a fork")
        ratio = found[2048] / found[256]
        yield Figure("the same, 2 GiB over 256 MiB", "x", None, ratio, [("<= 1.2", ratio <= 1.2)], 1)

    def gap_of_a_fork(self, sb):
        """The longest gap in a ticking process's output, in a quiet time as long, and over the fork."""
        session = sb.session(["witness", "tick"], start="now")
        arrivals, stop = [], threading.Event()
        reader = Attach(self.api, session)

        def read():
            while not stop.is_set() and reader.step():
                arrivals.append(time.perf_counter())

        thread = threading.Thread(target=read)
        thread.start()
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.3 or len(arrivals) < 20:
            time.sleep(0.01)
        middle = time.perf_counter()
        operation = self.api.ok("POST", f"{sb.path}/fork", {"count": 1}).json["operation"]
        while not [at for at in arrivals if at > middle + 0.3]:
            time.sleep(0.01)
        end = time.perf_counter()
        stop.set()
        thread.join()
        reader.abort()
        sb.api.ok("POST", f"{sb.path}/processes/{session['session']['process_id']}/signal", {"signal": "SIGKILL"})
        done = self.api.wait_operation(operation)
        for child in done["result"]["children"]:
            Sandbox(self.api, child["sandbox_id"]).delete()

        def longest(first, last):
            times = [at for at in arrivals if first <= at <= last]
            return max((b - a for a, b in zip(times, times[1:])), default=0) * 1000

        return longest(begin, middle), longest(begin + 0.05, end)

    def fork(self):
        """Twenty children of one parent, each answering, against restores by hand one after the other."""
        machines = self.restored_machines()
        times = in_turns({name: functools.partial(bare_restore, machine) for name, machine in machines.items()}, self.runs)
        sb = self.with_dirty(10)
        begin = time.perf_counter()
        operation = self.api.ok("POST", f"{sb.path}/fork", {"count": 20}).json["operation"]
        done = self.api.wait_operation(operation, 300)
        children = [Sandbox(self.api, child["sandbox_id"]) for child in done["result"]["children"]]
        answered = sum(child.exec(["true"], timeout=120).code == 0 for child in children)
        each = (time.perf_counter() - begin) * 1000 / 20
        for child in children:
            child.delete(wait=False)
        sb.delete()
        times["space"] = [each]
        yield from against("fork of 20, each child", times,
                           lambda o, b: [("<= 1.3 x", o <= 1.3 * b), ("20 answer", answered == 20)])

    def suspend(self):
        """Bytes and time of a suspend; restore to the first command, against a restore by hand."""
        sizes, times, dirties = [], [], []
        machines = self.restored_machines()
        restores = {name: [] for name in (*machines, "space")}
        for _ in range(self.runs):
            for name, machine in machines.items():
                restores[name].append(bare_restore(machine))
            sb = self.with_dirty(10)
            sb.verb("pause")
            dirty = dirty_bytes(self.server.vmm(sb.id))
            sb.verb("resume")
            done = []
            times.append(milliseconds(lambda: done.append(sb.verb("suspend"))))
            dirties.append(dirty)
            sizes.append(done[0]["result"]["bytes"])
            restores["space"].append(milliseconds(lambda: (sb.verb("restore"), sb.exec(["true"]))))
            sb.delete()
        dirty, size, took = median(dirties) / MIB, median(sizes) / MIB, median(times)
        yield Figure("suspend: written", "MiB", dirty, size, [("<= 1.1 x + 1 MiB", size <= 1.1 * dirty + 1)], self.runs,
                     "bare: pages changed")
        limit = 60 + 2 * dirty
        yield Figure("suspend: time", "ms", None, took, [(f"<= {limit:.0f} ms (60 + 2 for each MiB)", took <= limit)],
                     self.runs)
        yield from against("restore -> first exec", restores, lambda o, b: [("<= 1.3 x", o <= 1.3 * b)])

    def snapshot_of(self, sb, taken):
        operation = self.api.ok("POST", f"{sb.path}/snapshots", {}).json["operation"]
        taken.append(self.api.wait_operation(operation)["result"]["snapshot_id"])

    def child_of(self, sb):
        operation = self.api.ok("POST", f"{sb.path}/fork", {"count": 1}).json["operation"]
        return Sandbox(self.api, self.api.wait_operation(operation)["result"]["children"][0]["sandbox_id"])

    def fifty_snapshots(self):
        sb, taken = self.with_dirty(10), []
        for _ in range(50 - CHAIN_ROUNDS):
            self.snapshot_of(sb, taken)
        second, last = [], []
        for _ in range(CHAIN_ROUNDS):
            fresh = self.with_dirty(10)
            self.snapshot_of(fresh, taken)
            self.warm()  # the pool is not being filled meanwhile
            second.append(milliseconds(self.snapshot_of, fresh, taken))
            last.append(milliseconds(self.snapshot_of, sb, taken))
            fresh.delete()
        sb.delete()
        for one in taken:
            self.api.ok("DELETE", f"/v1/snapshots/{one}")
        return median(second), median(last)

    def fifty_forks(self):
        def fork(sb, children):
            children.append(self.child_of(sb))

        chain = [self.with_dirty(10)]
        for _ in range(50 - CHAIN_ROUNDS):
            fork(chain[-1], chain)
            chain.pop(0).delete(wait=False)
        second, last = [], []
        for _ in range(CHAIN_ROUNDS):
            fresh = [self.with_dirty(10)]
            fork(fresh[0], fresh)
            self.warm()
            second.append(milliseconds(fork, fresh[1], fresh))
            last.append(milliseconds(fork, chain[-1], chain))
            for sb in (*fresh, chain.pop(0)):
                sb.delete()
        chain[0].delete()
        return median(second), median(last)

    def chain(self):
        """Fifty snapshots of one sandbox, and fifty forks each of the last one's child: the last ones take turns with the second of
        fresh sandboxes (their first costs more: it comes out of a golden)."""
        for name, measured in (("50th snapshot", self.fifty_snapshots), ("50th fork of a fork", self.fifty_forks)):
            second, last = measured()
            yield Figure(name, "ms", second, last, [("<= 1.2 x the second", last <= 1.2 * second)], CHAIN_ROUNDS)


NAMES = ("pause", "standstill", "fork", "suspend", "chain")
