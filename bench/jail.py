"""Figures of the jail and the broker: see jail_cost.c, which measures them without the daemon."""
import os
import shutil
import statistics
import subprocess
import tempfile

from harness import server
from table import Figure, median


def samples(bench):
    """Microseconds by name; measured once for both figures."""
    if not hasattr(bench, "jail_samples"):
        platform = os.path.join(bench.server.state_dir, "platform")
        images = os.path.join(platform, os.listdir(platform)[0])
        folder = tempfile.mkdtemp(prefix="space-bench-", dir=os.environ.get("SPACE_TEST_DIR", "/var/tmp"))
        try:
            done = subprocess.run([os.path.join(server.bin_dir, "bench", "jail_cost"), folder,
                                   os.path.join(images, "vmlinuz"), os.path.join(images, "initrd"), str(max(bench.runs, 20))],
                                  stdout=subprocess.PIPE, check=True, timeout=900, text=True)
        finally:
            shutil.rmtree(folder)
        bench.jail_samples = {}
        for line in done.stdout.splitlines():
            name, value = line.split()
            bench.jail_samples.setdefault(name, []).append(float(value))
    return bench.jail_samples


def jail(bench):
    """What the jail adds to the start of a VMM: to its QMP greeting, against the same QEMU without any of it. Beside it, without
    the time that was spent waiting for a processor, which depends on what else the machine does."""
    found = samples(bench)
    plain, jailed = (median(found[name]) / 1000 for name in ("plain", "jail"))
    yield Figure("a VMM to its greeting", "ms", plain, jailed, [("<= + 10 ms", jailed <= plain + 10)],
                 len(found["jail"]))
    plain, jailed = (median(all_of - wait for all_of, wait in zip(found[name], found[f"{name}-wait"])) / 1000
                     for name in ("plain", "jail"))
    yield Figure("  the same, processor at hand", "ms", plain, jailed, [], len(found["jail"]))
    yield Figure("request to execution", "ms", None, median(found["exec"]) / 1000, [], len(found["exec"]))
    plain, jailed = (median(found[f"{name}-cpu"]) / 1000 for name in ("plain", "jail"))
    yield Figure("processor time until then", "ms", plain, jailed, [], len(found["jail-cpu"]))


def broker(bench):
    """A request to the broker and its answer, against as many bytes there and back."""
    found = samples(bench)
    echo, asked = (median(found[name]) / 1000 for name in ("echo", "broker"))
    late = statistics.quantiles(found["broker"], n=100)[98] / 1000
    yield Figure("broker, p50 of a request", "ms", echo, asked, [("<= 0.3 ms", asked <= 0.3)], len(found["broker"]))
    yield Figure("broker, p99 of a request", "ms", None, late, [], len(found["broker"]))
