#!/usr/bin/env python3
"""`make check-fresh`: what the README promises of a new machine, on one: a bare Debian with systemd and cgroups of version 2 (outer.py).

    fresh.py [--check PATTERN]... [--time-limit S]

The committed sources are unpacked there; `make run` installs, builds, starts the server, builds a template and runs the example,
seed.sh looks at that template, and `make run` is repeated; then `make check` of the tests that match (default: test_exec).
Packages come from the distribution's archive as this host reaches it: its apt's proxy, its addresses. Where it is not reached,
the machine has the packages already, and `make run`, whose template needs the archive, is not run: that is said, and is no pass.
All is some ten times slower there than on the host.

The last line is "N passed, N failed", over the steps.
"""
import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import outer

ARCHIVE = "deb.debian.org"
HOST_INSIDE = "10.0.2.2"  # this host, as the machine sees it

STEPS = {
    "make run": "make run CLEANUP=delete && SPACE_KEY_FILE=/var/lib/space/dev.key tests/kvm/seed.sh build/src/cli/space && "
                "build/src/cli/space doctor && make run CLEANUP=delete && make stop",
    "make check": "make check SLOWER=20 K='@CHECK@'",
}

INSIDE = r"""
set -u
export CI=true DEBIAN_FRONTEND=noninteractive
for n in $(seq 60); do ip route 2>/dev/null | grep -q default && break; sleep 1; done
[ ! -d .apt ] || { cp .apt/proxy /etc/apt/apt.conf.d/00host; cat .apt/hosts >>/etc/hosts; rm -r .apt; }
echo "fresh: $(. /etc/os-release; echo "$PRETTY_NAME"), $(ps -p 1 -o comm=), $(stat -f -c %T /sys/fs/cgroup), $(dpkg -l | grep -c ^ii) packages"
step() {
    local from=$SECONDS status=0
    echo "fresh: begin $1"
    bash -c "$2" </dev/null || status=$?
    echo "fresh: end $1 $status after $((SECONDS - from)) s"
}
"""


def proxy_lines():
    """This host's apt's proxies, in the syntax of apt.conf; one on the host itself has another address inside."""
    dump = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True).stdout
    lines = [line for line in dump.splitlines() if re.match(r'Acquire::https?::(\S+::)?Proxy\S* ".+";', line)]
    return [re.sub(r"//(127\.0\.0\.1|localhost)\b", f"//{HOST_INSIDE}", line) for line in lines]


def hosts_lines():
    try:
        return [f"{socket.gethostbyname(ARCHIVE)} {ARCHIVE}"]
    except OSError:
        return []


def archive_reached():
    """Whether this host's apt would reach the archive."""
    found = re.search(r'Acquire::http::Proxy "(.+?)";', "\n".join(proxy_lines()))
    proxies = {"http": found.group(1).replace(HOST_INSIDE, "127.0.0.1")} if found else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    try:
        with opener.open(f"http://{ARCHIVE}/debian/dists/bookworm/InRelease", timeout=20) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def stage(tree, reached):
    archive = subprocess.Popen(["git", "-C", outer.TOP, "archive", "HEAD"], stdout=subprocess.PIPE)
    subprocess.run(["tar", "x", "-C", tree], stdin=archive.stdout, check=True)
    if archive.wait():
        raise SystemExit("fresh: git archive failed")
    if reached:
        os.mkdir(os.path.join(tree, ".apt"))
        for name, lines in (("proxy", proxy_lines()), ("hosts", hosts_lines())):
            with open(os.path.join(tree, ".apt", name), "w", encoding="utf-8") as out:
                out.writelines(line + "\n" for line in lines)


def summary(text, steps):
    """(passed, failed) from what the machine said; a step that did not end has failed."""
    passed = failed = 0
    for name in steps:
        found = re.search(rf"^fresh: end {re.escape(name)} (\d+) after (\d+) s$", text, re.MULTILINE)
        good = found is not None and found.group(1) == "0"
        passed, failed = passed + good, failed + (not good)
        print(f"{name}: " + (f"{'passed' if good else 'failed'} after {found.group(2)} s" if found else "did not end"))
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description="make run and make check on a new machine")
    parser.add_argument("--check", action="append", default=[], help="black-box tests (default: test_exec)")
    parser.add_argument("--time-limit", type=int, default=4 * 3600)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    reached = archive_reached()
    steps = {name: command.replace("@CHECK@", " ".join(args.check) or "test_exec") for name, command in STEPS.items()
             if reached or name != "make run"}
    command = INSIDE + "".join(f"step '{name}' \"{command}\"\n" for name, command in steps.items())
    with tempfile.TemporaryDirectory(prefix="fresh-", dir="/var/tmp") as tree:
        stage(tree, reached)
        text = []
        status = outer.run(tree, command, args.time_limit, bare=reached, heard=text.append)
    print("packages: " + ("installed from the archive by the machine itself" if reached else "in the machine from the start"))
    passed, failed = summary("\n".join(text), steps)
    if not reached:
        print(f"make run: not run: {ARCHIVE} is not reached")
        failed += 1
    print(f"{passed} passed, {failed + (1 if status and not failed else 0)} failed")
    return 1 if failed or status else 0


if __name__ == "__main__":
    sys.exit(main())
