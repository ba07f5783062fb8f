"""From inside the jail of a virtual machine monitor: the cases of inmate.c, which the broker starts in place of QEMU; what
goes on while the inmate keeps at something; and lies on its channels to the server."""
import os
import subprocess
import time

from case import Case, Escaped, Table, Unproven, hold
from harness import host
from harness.api import Exec, Sandbox
from harness.wait import until
from prison import Cell, Prison

table = Table()
SECONDS = 3
END_S = 8  # of patience with a VMM that lies: one that is only silent has longer from the server


def listed():
    """What the inmate can do: (kind, name, tries, must, marks)."""
    out = subprocess.run([Prison.built("inmate"), "--list"], check=True, capture_output=True, text=True).stdout
    return [line.split("\t") for line in out.splitlines()]


class Block:
    """The cell that the cases share, and its replacement when one has ended its VMM."""

    def __init__(self, prison, bystander):
        self.prison, self.bystander = prison, bystander
        self.facts = prison.facts(bystander.sandbox)
        self.cell = None

    def open_cell(self):
        if self.cell is None:
            self.cell = Cell(self.prison, self.facts)
        return self.cell

    def close_cell(self):
        cell, self.cell = self.cell, None
        if cell is not None:
            cell.close()


def judge(answer):
    """The text of the inmate's answer, when it was held."""
    word, text = answer
    if word == "escaped":
        raise Escaped(text)
    if word != "held":
        raise Unproven(text)
    return text


def run_inside(block, name, marks):
    """One case of the inmate's tables."""
    answer = block.open_cell().ask(f"RUN {name}")
    if answer is None:
        sandbox = block.cell.sandbox
        until(lambda: sandbox.state() == "failed", "the sandbox of an ended VMM has failed", 20)
        why = (sandbox.get().get("failure") or {}).get("message", "")
        block.close_cell()
        if "may-end" not in marks:
            raise Unproven(f"the VMM has ended: {why}")
        return f"the jail ended the VMM: {why}"
    if "uses-up" in marks:
        block.close_cell()
    return judge(answer)


def run_free(block, names):
    """Without a jail, by root, each of these must escape: else the case cannot fail, and says nothing."""
    facts = os.path.join(block.prison.base, "free-facts")
    with open(facts, "w", encoding="ascii") as out:
        out.write("".join(f"{name}={value}\n" for name, value in block.facts.items()))
    free = []
    for name in names:
        done = subprocess.run(["unshare", "--mount", "--uts", "--propagation", "private", Prison.built("inmate"), "--free",
                               facts, name], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        if not done.stdout.startswith("RESULT escaped"):
            free.append(f"{name}: {done.stdout.strip()[:200]} {done.stderr.strip()[:100]}")
    if free:
        raise Unproven(f"held without a jail: {' | '.join(free)}")
    return f"{len(names)} of them escape where there is no jail"


# --- what the host sees of it ---

@table("seen-identity", "run with an identity, groups, capabilities or privileges to gain", "a uid of its own, and nothing")
def seen_identity(block):
    cell = block.open_cell()
    seen = cell.vmm.status()
    uids = set(seen["Uid"].split() + seen["Gid"].split())
    others = {process.status()["Uid"].split()[0] for process in (block.prison.daemon(), block.prison.broker(),
                                                                  block.prison.vmm(block.bystander.sandbox.id))}
    hold(len(uids) == 1 and not uids & others, f"ids {uids}, of others {others}")
    hold(not seen["Groups"], f"groups {seen['Groups']}")
    capabilities = [seen[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")]
    hold(all(int(one, 16) == 0 for one in capabilities), f"capabilities {capabilities}")
    hold(seen["NoNewPrivs"] == "1", "no_new_privs is not set")
    return f"uid {uids.pop()}, no groups, no capabilities, no new privileges"


@table("seen-filter", "run without a filter of system calls", "filtered")
def seen_filter(block):
    seen = block.open_cell().vmm.status()
    hold(seen["Seccomp"] == "2" and int(seen.get("Seccomp_filters", "1")) >= 1, f"seccomp mode {seen['Seccomp']}")
    return f"mode 2, {seen.get('Seccomp_filters', '?')} filters"


@table("seen-namespaces", "share a namespace with host, server, broker or another VMM", "five of its own")
def seen_namespaces(block):
    mine = block.open_cell().vmm
    kinds = ("mnt", "net", "ipc", "uts", "pid")
    for other in (host.Process(os.getpid()), block.prison.daemon(), block.prison.broker(), block.prison.vmm(block.bystander.sandbox.id)):
        for kind in kinds:
            hold(os.readlink(f"/proc/{mine.pid}/ns/{kind}") != os.readlink(f"/proc/{other.pid}/ns/{kind}"),
                 f"the {kind} namespace of {other!r}")
    return ", ".join(kinds)


@table("seen-oom", "be spared when memory is short", "ended before server and broker")
def seen_oom(block):
    score = [int(host.read(f"/proc/{p.pid}/oom_score_adj")) for p in (block.open_cell().vmm, block.prison.daemon(),
                                                                     block.prison.broker())]
    hold(score[0] > max(score[1:]), f"scores {score}")
    return f"scores {score[0]} against {score[1]} and {score[2]}"


@table("seen-cgroup", "run outside of the limits of a control group", "in one of its own")
def seen_cgroup(block):
    cell = block.open_cell()
    lines = [line for line in host.read(f"/proc/{cell.vmm.pid}/cgroup").splitlines() if cell.sandbox.id in line]
    if not host.cgroups(cell.sandbox.id):
        raise Unproven("this host has no control groups to enforce limits with")
    hold(lines, "in none of its own")
    return "; ".join(line.split(":", 1)[1].replace(cell.sandbox.id, "...") for line in lines)


@table("seen-mounts", "see mounts of the host", "a read-only root with its own files")
def seen_mounts(block):
    mounts = host.read(f"/proc/{block.open_cell().vmm.pid}/mountinfo").splitlines()
    points = [line.split()[4] for line in mounts]
    hold(not any(point.startswith(("/proc", "/sys", "/run", "/home", "/root")) for point in points), f"{points}")
    writable = [line.split()[4] for line in mounts if line.split()[5].startswith("rw")]
    hold(set(writable) <= {"/disk.raw", "/dev"}, f"writable: {writable}")
    return f"{len(points)} mounts, writable: {', '.join(writable)}"


# --- while the inmate keeps at something ---

class Pursuit:
    """The cell keeps at something inside the with block."""

    def __init__(self, block, name):
        self.cell, self.name = block.open_cell(), name

    def __enter__(self):
        hold(self.cell.ask(f"START {self.name}") is not None, "the VMM has ended")
        return self.cell

    def __exit__(self, *_):
        self.cell.ask("STOP")


def cpu_seconds(process):
    fields = host.stat_fields(process.pid)
    return sum(int(n) for n in fields[11:13]) / os.sysconf("SC_CLK_TCK")


@table("pursuit-burn", "keep more threads busy than there are processors", "server and bystander get their share")
def burn(block):
    with Pursuit(block, "burn"):
        began = time.monotonic()
        for _ in range(5):
            block.bystander.sandbox.exec(["true"], timeout=60)
        return f"5 commands in the bystander took {time.monotonic() - began:.1f} s"


@table("pursuit-locks", "lock and lease the memory, kernel and disk that others map", "others start all the same")
def locks(block):
    with Pursuit(block, "lock-shared"):
        other = Sandbox.create(block.prison.api, {"template": "busybox"})
        block.prison.remove(other)
    return "another sandbox was made and deleted meanwhile"


@table("pursuit-log", "write to its standard error without end", "16 KiB of it are kept, the broker is not kept busy")
def log(block):
    broker = block.prison.broker()
    before, began = cpu_seconds(broker), time.monotonic()
    with Pursuit(block, "flood-log"):
        time.sleep(SECONDS)
        share = (cpu_seconds(broker) - before) / (time.monotonic() - began)
    folder = os.path.join(block.prison.state_dir, "pool", "sandboxes", block.cell.sandbox.id, "run")
    size = os.path.getsize(os.path.join(folder, "vmm.log"))
    hold(size <= 16384, f"vmm.log has {size} bytes")
    hold(share < 0.5, f"the broker used {share:.2f} of a processor")
    return f"{size} bytes are kept, the broker used {share:.2f} of a processor"


@table("pursuit-forged-log", "write log lines of the server and a terminal's commands to its output",
       "nothing of it is in the server's log")
def forged_log(block):
    with Pursuit(block, "forge-log"):
        time.sleep(1)
    said = block.prison.log_bytes()
    hold(b"forged" not in said and b"\x1b" not in said, "a forged line is in the log")
    return "the server's log has none of it"


@table("pursuit-disk", "write and sync its disk without end", "the others get their share")
def disk(block):
    with Pursuit(block, "flood-disk"):
        began = time.monotonic()
        other = Sandbox.create(block.prison.api, {"template": "busybox"}, timeout=180)
        took = time.monotonic() - began
        block.prison.remove(other)
    return f"another sandbox was made in {took:.1f} s meanwhile"


@table("pursuit-calls", "make short system calls without end", "the others get their share")
def calls(block):
    with Pursuit(block, "flood-calls"):
        time.sleep(SECONDS)
    return "done"


@table("pursuit-snapshot", "take part in a snapshot, a suspend and a restore of itself", "nobody else is held up")
def snapshot(block):
    """The device state of its snapshot is a file that it writes: what it writes there only its own restore reads."""
    sandbox = block.open_cell().sandbox
    answer = block.prison.api.call("POST", f"{sandbox.path}/suspend", timeout=60)
    said = [str(answer.status)]
    if answer.status in (200, 202):
        operation = block.prison.api.wait_operation(answer.json["operation"], 90, check=False)
        said.append(f"suspend {operation['status']}: {(operation.get('error') or {}).get('detail', '')[:80]}")
    said.append(f"the sandbox is {sandbox.state()}")
    block.close_cell()
    return ", ".join(said)


# --- lies ---

def run_lie(block, name):
    """A sandbox whose VMM lies: its create or its command ends truthfully, and nothing is left of it."""
    prison = block.prison
    prison.tell({**block.facts, "lie": name})
    daemon = prison.daemon()
    before, began = daemon.memory()["Rss"], time.monotonic()
    answer = prison.api.ok("POST", "/v1/sandboxes", {"template": "busybox"}, status=202).json
    sandbox = Sandbox(prison.api, answer["sandbox"]["id"])
    said = []
    try:
        operation = prison.api.wait_operation(answer["operation"], END_S)
        said.append(f"create {operation['status']}")
    except AssertionError as error:
        operation = getattr(error, "operation", None)
        said.append(f"create: {str(error)[:160]}" if operation else f"no end within {END_S} s")
    if operation and operation["status"] == "succeeded":
        try:
            done = prison.api.call("POST", f"{sandbox.path}/exec", {"argv": ["true"], "timeout_s": 5}, timeout=END_S)
            said.append(f"command: {describe(name, done)}")
        except TimeoutError:
            said.append(f"command: no answer within {END_S} s, the sandbox is {sandbox.state()}")
    grown = (prison.daemon().memory()["Rss"] - before) >> 20
    hold(prison.daemon() == daemon, "the server has died")
    text = repr(sandbox.get()) if "failed" not in said[0] else repr(operation)
    hold("\\x1b" not in text and "\x1b" not in text, f"a terminal's commands came through: {text[:200]}")
    prison.remove(sandbox)
    hold(grown < 96, f"the server has grown by {grown} MiB")
    return f"{', '.join(said)}; {time.monotonic() - began:.1f} s, the server has grown by {grown} MiB"


def describe(name, answer):
    """An exec's answer. Where a lie was told about a command, no exit status may come of it."""
    if answer.status != 200:
        return f"status {answer.status} {answer.json.get('type', '')}"
    result = Exec(answer.json).result
    hold(not name.startswith("exec-") or result["reason"] != "exit", f"an exit status was invented: {result}")
    return f"{result['reason']} {result['exit_code']}"


def cases():
    inside, lies, proven = [], [], []
    for kind, name, tries, must, marks in listed():
        if kind == "case":
            inside.append(Case(name, tries, must, lambda block, n=name, m=marks: run_inside(block, n, m)))
            proven += [name] if "proven" in marks else []
        else:
            lies.append(Case(f"lie-{name}", tries, must, lambda block, n=name: run_lie(block, n)))
    proof = Case("proof", "do the same without a jail, as root", "every attempt that this cannot harm succeeds",
                 lambda block: run_free(block, proven))
    return [proof, *inside, *table.cases, *lies]
