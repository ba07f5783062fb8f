"""What a VMM takes of the host beyond the memory of its guest."""
import re

from harness import host
from table import AGENT, Figure, median

MIB = 1 << 20
GUEST = ("/mem", "/under")  # files that are mapped as a guest's memory
LIMIT_MIB = 5               # of Firecracker
NAMES = {"rss": "VMM beyond its guest, RSS", "program": "  of it program and libraries", "own": "  of it heap, stacks, data",
         "huge": "    of that huge pages", "tables": "  page tables"}


def beyond_guest(smaps):
    """Bytes outside the mapping of the guest's memory: resident, and of that what files have and others can share, and what only
    this process has, and what of that the kernel has made huge pages of. None when there is no guest."""
    found, guests, counted = {"Rss": 0, "Anonymous": 0, "AnonHugePages": 0}, 0, False
    for line in smaps.splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            fields = line.split(maxsplit=5)
            is_guest = len(fields) == 6 and fields[5].endswith(GUEST)
            guests, counted = guests + is_guest, not is_guest
        elif counted and re.match(r"(Rss|Anonymous|AnonHugePages):", line):
            found[line.split(":")[0]] += int(line.split()[1]) * 1024
    own = found["Anonymous"]
    return {"rss": found["Rss"], "program": found["Rss"] - own, "own": own, "huge": found["AnonHugePages"]} if guests else None


def sizes(pid):
    """The same of a process, with its page tables."""
    found = beyond_guest(host.read(f"/proc/{pid}/smaps"))
    if found is None:
        raise RuntimeError(f"process {pid} has not mapped a guest's memory")
    tables = int(re.search(r"^VmPTE:\s+(\d+) kB", host.read(f"/proc/{pid}/status"), re.M).group(1)) * 1024
    return {**found, "tables": tables}


def figures(bench):
    """Of sandboxes that have done a command, and of a VMM by hand that has."""
    vm, made = bench.agent_machine().spawn(), [bench.make() for _ in range(3)]
    vm.restore()
    vm.command()
    for sb in made:
        sb.exec(["true"])
    bare = sizes(vm.process.pid)
    ours = [sizes(bench.server.vmm(sb.id).pid) for sb in made]
    for sb in made:
        sb.delete()
    vm.close()
    for name, text in NAMES.items():
        mib = median([one[name] for one in ours]) / MIB
        judged = name == "rss" and bench.engine == "firecracker"
        yield Figure(text, "MiB", bare[name] / MIB, mib, [(f"<= {LIMIT_MIB} MiB", mib <= LIMIT_MIB)] if judged else [], len(ours),
                     f"bare: {AGENT}")
