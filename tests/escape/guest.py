"""From inside a guest, as root, and through the API as its user: everything a hostile tenant can do.

A case marked `hostile` has a sandbox of its own, which is deleted afterwards: nothing may be left of it. The others share
one. `g` is the Guest below."""
import http.client
import io
import json
import os
import socket
import tarfile
import threading
import time

from case import Table, Unproven, hold
from harness import host
from harness.api import Exec, Sandbox
from harness.files import query
from harness.wait import until
from harness.ws import AttachLines
from prison import CONTENT, Prison

table = Table()
SECONDS = 3  # how long floods last


class Guest:
    """The sandbox that a case attacks from."""

    def __init__(self, prison, bystander, sandbox):
        self.prison, self.bystander, self.sb = prison, bystander, sandbox
        self.api = prison.api
        with open(Prison.built("prisoner"), "rb") as image:
            sandbox.put("/tmp/prisoner", image.read(), mode="0755")

    def sh(self, text, **more):
        """Output of a shell command, whatever its status."""
        done = self.sb.exec(text, timeout=120, **{"timeout_s": 60, **more})
        return (done.out + done.err).decode(errors="replace").strip()

    def helper(self, *args):
        return self.sh(" ".join(["/tmp/prisoner", *(str(a) for a in args)]))

    def start(self, text):
        """Begins a command that nobody waits for."""
        return self.sb.session(["sh", "-c", text], start="now")["session"]["process_id"]

    def flood(self, text, seconds=SECONDS):
        """A command that may end the guest, the agent or nothing: what it said, and what became of the sandbox."""
        body = {"shell": text, "timeout_s": seconds + 4}
        try:
            answer = self.api.call("POST", f"{self.sb.path}/exec", body, timeout=seconds + 90)
        except OSError as error:
            return f"no answer to the command ({type(error).__name__}); the sandbox is {self.fate()}"
        if answer.status == 200:
            done = Exec(answer.json)
            out = (done.out + done.err).decode(errors="replace").strip().replace("\n", ", ")
            if done.result["reason"] == "start_failed" or done.code in (126, 127):
                raise Unproven(f"the attack did not begin: {done}")
            said = f"{done.result['reason']} {done.code}: {out[-200:]}"
        elif answer.status in (409, 410, 429, 502, 503, 504):
            said = f"the command was cut off ({answer.status}): {answer.json.get('detail', '')[:100]}"
        else:
            raise Unproven(f"the attack did not begin: {answer}")
        return f"{said}; the sandbox is {self.fate()}"

    def fate(self):
        """State and reason of the sandbox, which must be a proper answer in any case."""
        answer = self.api.get(self.sb.path)
        reason = (answer.get("failure") or {}).get("message", "")
        hold(all(ord(c) >= 32 for c in json.dumps(answer, ensure_ascii=False)), f"control bytes in {answer}")
        return f"{answer['state']}{': ' + str(reason)[:120] if reason else ''}"

    def works(self):
        done = self.sb.exec(["echo", "alive"], timeout=90)
        hold(done.out == b"alive\n", f"the sandbox does not work any more: {done}")
        return "the sandbox works"


def refused(text, *good):
    """Every line of a helper's output must be a refusal."""
    for line in text.splitlines():
        hold("DONE" not in line or any(word in line for word in good), line)
    return text.replace("\n", ", ")


# --- network ---

@table("guest-network-devices", "look for network devices", "loopback alone")
def network_devices(g):
    names = g.sh("ls /sys/class/net").split()
    hold(set(names) <= {"lo"}, f"devices {names}")
    return f"devices {names}"


def fetch(g, address, port):
    """What connecting to an address gives; an escape when it succeeds."""
    said = g.helper("connect", f"{address}/{port}")
    if "refused" not in said and "DONE" not in said:
        raise Unproven(f"nothing was tried: {said}")
    return refused(said)


@table("guest-network-metadata", "fetch the cloud's metadata", "unreachable")
def network_metadata(g):
    return "; ".join(fetch(g, at, 80) for at in ("169.254.169.254", "100.100.100.200", "fd00:ec2::254"))


@table("guest-network-host", "fetch from services of the host on its address and its usual names", "unreachable")
def network_host(g):
    bait = g.prison.bait
    return "; ".join(fetch(g, at, bait.port) for at in (bait.host_address(), "127.0.0.1", "10.0.2.2", "192.168.122.1"))


@table("guest-network-api", "fetch the server's API", "unreachable")
def network_api(g):
    return "; ".join(fetch(g, at, g.prison.port) for at in ("127.0.0.1", g.prison.bait.host_address()))


@table("guest-network-borrowed", "take the host's address for its own loopback and call it", "it calls itself")
def network_borrowed(g):
    bait = g.prison.bait
    g.sh(f"ip addr add {bait.host_address()}/32 dev lo")
    serve_once(g, 8100, "mine")
    said = g.helper("connect", f"{bait.host_address()}/8100")
    if "DONE" not in said:
        raise Unproven(f"its own service does not answer either: {said}")
    return fetch(g, bait.host_address(), bait.port)


@table("guest-network-names", "ask name servers", "unreachable")
def network_names(g):
    done = g.sb.exec("for s in 8.8.8.8 10.0.2.3 127.0.0.53; do timeout 3 nslookup example.com $s; done", timeout=60)
    hold(b"Address 1: 93." not in done.out and done.code != 0, f"{done}")
    return done.err.decode(errors="replace").strip()[-100:].replace("\n", ", ")


@table("guest-network-new-devices", "make network devices that lead out", "none, or of its own kernel alone")
def network_new_devices(g):
    out = g.sh("for k in dummy veth macvlan bridge; do ip link add x type $k && echo made $k; done; ls /sys/class/net")
    hold(g.sh("ip route show default") == "", "a default route")
    return out.replace("\n", ", ")[-200:]


@table("guest-vsock", "connect by vsock to host, hypervisor and other guests", "refused")
def vsock(g):
    return refused(g.helper("vsock"))


# --- virtual hardware ---

@table("guest-kvm", "use KVM, by its device and by a node of its own making", "not there")
def kvm(g):
    return refused(g.helper("kvm"), "make the node") + ", " + g.sh("modprobe kvm 2>&1; modprobe kvm_amd 2>&1; ls /dev/kvm 2>&1")


@table("guest-cpu-virtualization", "see VMX or SVM in the processor", "hidden")
def cpuid(g):
    said = g.helper("cpuid")
    hold("vmx 1" not in said and "svm 1" not in said, said)
    return said.replace("\n", ", ")


@table("guest-block-devices", "see disks other than its own", "its own alone")
def block_devices(g):
    names = g.sh("ls /sys/block").split()
    real = [name for name in names if not name.startswith(("loop", "ram", "zram"))]
    hold(real == ["vda"], f"disks {names}")
    return f"disks {names}"


@table("guest-disk-residue", "find others' data in unused blocks of its disk", "zeros, but for what its own tools wrote")
def disk_residue(g):
    read = "dd if=/dev/vda bs=1M skip={} count=8 2>/dev/null | tr -d '\\000' | {}"
    names = g.sh(read.format(0, "strings | grep -c -e 'BEGIN OPENSSH' -e space-test-"))
    hold(names == "0", f"{names} of the host's names")
    sums = [g.sh(read.format(at, "wc -c")) for at in (1024, 1500, 2000)]
    hold(all(int(one) < 1 << 18 for one in sums), f"{sums} bytes that are not zero")
    return f"of 8 MiB each at 1, 1.5 and 2 GiB {', '.join(sums)} bytes are not zero"


@table("guest-disk-beyond", "read and write behind the end of its disk", "an error")
def disk_beyond(g):
    size = int(g.sh("cat /sys/block/vda/size"))
    out = g.sh(f"dd if=/dev/zero of=/dev/vda bs=512 seek={size} count=8 conv=notrunc 2>&1")
    disk = os.path.join(g.prison.state_dir, "pool", "sandboxes", g.sb.id, "disk.raw")
    hold(os.path.getsize(disk) == size * 512, "the file has grown")
    return out.replace("\n", ", ")[-160:]


@table("guest-memory-beyond", "read physical memory beyond its own", "nothing there")
def memory_beyond(g):
    said = g.helper("dev-mem")
    words = int(said.splitlines()[-1].split()[0])
    hold(words < 64, said)
    return said.replace("\n", ", ")


@table("guest-pci", "look for PCI devices", "no bus")
def pci(g):
    said = g.helper("pci")
    hold(said.startswith("0 ") or "refused" in said, said)
    return said


@table("guest-fw-cfg", "read what the VMM hands over beside the disk", "nothing that tells of the host")
def fw_cfg(g):
    said = g.helper("fw-cfg")
    for secret in (g.prison.state_dir, g.prison.base, socket.gethostname() + ".", g.prison.key):
        hold(secret not in said, f"{secret} is told")
    return said.replace("\n", ", ")[-200:]


@table("guest-host-names", "read the host's paths, names and keys out of command line, DMI, log and environment",
       "none of them")
def host_names(g):
    said = g.sh("cat /proc/cmdline /proc/1/environ /proc/*/environ /proc/1/cmdline; dmesg; "
                "cat /sys/class/dmi/id/* /sys/firmware/dmi/tables/* /etc/hosts /etc/resolv.conf; env", timeout_s=30)
    for secret in (g.prison.state_dir, g.prison.base, g.prison.key, host.read("/etc/machine-id").strip() or "\0"):
        hold(secret not in said, f"{secret} is told")
    return f"{len(said)} characters, none of them"


@table("guest-identity", "be taken for another sandbox or the host", "names, ids and random numbers of its own")
def identity(g):
    ask = "hostname; cat /etc/machine-id /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | md5sum"
    mine, other = g.sh(ask).splitlines(), g.bystander.sandbox.sh(ask).splitlines()
    for one, two in zip(mine, other):
        hold(one != two, f"{one} is the bystander's as well")
    hold(mine[1] != host.read("/etc/machine-id").strip(), "the host's machine-id")
    return "all differ"


@table("guest-clock", "set the clock, hardware clock included", "the host's stays")
def clock(g):
    before = time.time() - time.monotonic()
    g.sh("date -s '2001-01-01 00:00:00'; hwclock -w 2>&1")
    hold(abs(time.time() - time.monotonic() - before) < 1.0, "the host's clock has moved")
    year = g.bystander.sandbox.sh("date +%Y").strip()
    hold(year == time.strftime("%Y", time.gmtime()), f"the bystander's year is {year}")
    process = g.sb.exec(["true"]).process
    hold(process["started_at"][:4] == year, f"the API tells the guest's time: {process['started_at']}")
    return "the host's and the bystander's clocks are right"


# --- files ---

@table("guest-link-read", "have the API read the host through symbolic links", "the guest's own file system alone")
def link_read(g):
    secret = g.prison.bait.file
    seen = []
    for number, target in enumerate((secret, f"/proc/1/root{secret}", f"/proc/1/cwd{secret}", f"../../../../..{secret}")):
        g.sh(f"ln -s {target} /tmp/l{number}")
        answer = g.api.call("GET", g.sb.file(f"/tmp/l{number}"))
        hold(CONTENT.encode() not in answer.body, f"{target} was read")
        seen.append(str(answer.status))
    return f"statuses {', '.join(seen)}"


@table("guest-link-write", "have the API write to the host through symbolic links", "the host's file stays")
def link_write(g):
    secret = g.prison.bait.file
    g.sh(f"ln -s {secret} /tmp/w; mkdir -p /tmp/d; ln -s {os.path.dirname(secret)} /tmp/d/up")
    statuses = [g.api.call("PUT", g.sb.file(path), b"overwritten").status
                for path in ("/tmp/w", f"/tmp/d/up/{os.path.basename(secret)}", f"/proc/1/root{secret}")]
    hold(not g.prison.bait.trouble(), g.prison.bait.trouble())
    return f"statuses {statuses}, the file is as it was"


@table("guest-archive-out", "have an archive hold the host's files by links", "links are kept as links")
def archive_out(g):
    secret = g.prison.bait.file
    g.sh(f"mkdir -p /tmp/farm; ln -s {secret} /tmp/farm/a; ln -s / /tmp/farm/b; ln -s /proc/1/root/ /tmp/farm/c")
    answer = g.api.ok("GET", query(g.sb, "archive", "/tmp/farm"))
    hold(CONTENT.encode() not in answer.body, "the host's file is in the archive")
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        kinds = {member.name: member.issym() for member in tar if not member.isdir()}
    hold(kinds and all(kinds.values()), f"{kinds}")
    return f"links {sorted(kinds)}"


@table("guest-archive-in", "unpack an archive with .., absolute names and links to outside", "refused or inside the guest")
def archive_in(g):
    secret = g.prison.bait.file
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in (f"../../../../../..{secret}", secret, f"up/{os.path.basename(secret)}"):
            if name.startswith("up/"):
                entry = tarfile.TarInfo("up")
                entry.type, entry.linkname = tarfile.SYMTYPE, os.path.dirname(secret)
                tar.addfile(entry)
            entry = tarfile.TarInfo(name)
            entry.size = 3
            tar.addfile(entry, io.BytesIO(b"bad"))
    answer = g.api.call("PUT", query(g.sb, "archive", "/tmp"), out.getvalue(), headers={"Content-Type": "application/x-tar"})
    hold(not g.prison.bait.trouble(), g.prison.bait.trouble())
    return f"status {answer.status}, the file is as it was"


@table("guest-file-endless", "have the API read files without an end or a writer", "an answer, and the server goes on")
def file_endless(g):
    g.sh("mkfifo /tmp/fifo; ln -s /dev/zero /tmp/zero")
    seen = []
    for path in ("/tmp/fifo", "/dev/zero", "/tmp/zero", "/proc/kmsg"):
        try:
            conn, answer = g.api.stream("GET", g.sb.file(path), timeout=10)
            seen.append(f"{path} {answer.status}")
            answer.read(65536)
            conn.close()
        except (OSError, http.client.HTTPException) as error:  # no end, or an end before the length that was told
            seen.append(f"{path} {type(error).__name__}")
    return ", ".join(seen) + "; " + g.works()


@table("guest-file-names", "name files with what a path, a header or a terminal would obey", "they stay names")
def file_names(g):
    g.sh("mkdir -p /tmp/names; cd /tmp/names; touch -- '-rf' '$(reboot)' \"$(printf 'a\\r\\nX-Evil: 1')\" "
         "\"$(printf '\\033[2J')\" '%2e%2e%2f' '..\\..'")
    answer = g.api.ok("GET", query(g.sb, "list", "/tmp/names"))
    hold("x-evil" not in answer.headers, "a name became a header")
    hold(all(b >= 32 for b in answer.body), "a control byte came through")
    return f"{len(answer.json['items'])} names"


# --- ports ---

@table("guest-port-host", "reach ports of the host through its own port proxy", "only the guest's ports answer")
def port_host(g):
    seen = []
    for port in (g.prison.port, g.prison.bait.port, 22):
        answer = g.api.call("GET", f"{g.sb.path}/ports/{port}/v1/sandboxes")
        hold(answer.status == 502, f"port {port} answered {answer}")
        seen.append(answer.status)
    return f"statuses {seen}"


@table("guest-port-address", "name addresses in place of a port", "refused")
def port_address(g):
    seen = []
    for port in ("169.254.169.254:80", "127.0.0.1:22", "80@169.254.169.254", "0", "65536", "-1", "0x50", "80%2f..%2f.."):
        answer = g.api.call("GET", f"{g.sb.path}/ports/{port}/")
        hold(400 <= answer.status < 500, f"port {port} answered {answer}")
        seen.append(answer.status)
    return f"statuses {seen}"


def serve_once(g, port, text):
    """A server in the guest that gives one answer to whoever calls."""
    g.sb.put("/tmp/answer", text.encode())
    g.start(f"nc -l -p {port} < /tmp/answer > /tmp/request")
    g.sh(f"for i in $(seq 100); do grep -q ':{port:04X} ' /proc/net/tcp /proc/net/tcp6 && exit; sleep 0.1; done")


@table("guest-port-redirect", "redirect the proxy to the host's API and to the metadata address", "passed on, not followed")
def port_redirect(g):
    seen = []
    for port, where in ((8101, f"http://127.0.0.1:{g.prison.port}/v1/sandboxes"), (8102, "http://169.254.169.254/")):
        serve_once(g, port, f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        answer = g.api.call("GET", f"{g.sb.path}/ports/{port}/")
        hold(answer.status == 302, f"{answer}")
        seen.append(answer.status)
    return f"statuses {seen}"


@table("guest-port-smuggling", "answer with two lengths, and with a second answer behind the first", "502, or one answer")
def port_smuggling(g):
    two = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
    serve_once(g, 8103, two)
    first = g.api.call("GET", f"{g.sb.path}/ports/8103/")
    hold(first.status == 502, f"{first}")
    serve_once(g, 8104, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    second = g.api.call("GET", f"{g.sb.path}/ports/8104/")
    hold(b"evil" not in second.body, f"{second}")
    return f"statuses {first.status} and {second.status}"


@table("guest-port-key", "learn the API key from what the proxy passes on", "not passed")
def port_key(g):
    serve_once(g, 8105, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    g.api.call("GET", f"{g.sb.path}/ports/8105/")
    # It answers without having read, and may write later than its answer is here.
    g.sh("for i in $(seq 100); do grep -q 'GET / HTTP/1.1' /tmp/request && exit; sleep 0.1; done")
    seen = g.sb.read("/tmp/request")
    hold(g.prison.key.encode() not in seen, "the key is in the request")
    hold(b"GET / HTTP/1.1" in seen, f"no request came: {seen!r}")
    return f"{len(seen)} bytes of request without it"


# --- what others own ---

@table("guest-other-session", "attach to the bystander's command with a token of one's own", "refused")
def other_session(g):
    mine = g.sb.session(["sleep", "60"])
    theirs = g.bystander.sandbox.session(["sleep", "60"])
    token = g.api.with_key(mine["attach"]["token"])
    seen = [token.call("GET", f"/v1/attach/{theirs['session']['id']}", headers={"Accept": "application/x-ndjson"}).status,
            token.call("GET", "/v1/sandboxes").status, token.call("GET", g.sb.path).status,
            token.call("POST", f"{g.sb.path}/exec", {"argv": ["true"]}).status]
    hold(all(status in (401, 403, 404) for status in seen), f"statuses {seen}")
    return f"statuses {seen}"


@table("guest-other-port", "reach the bystander's port with a traffic token of one's own", "refused")
def other_port(g):
    token = g.api.ok("POST", f"{g.sb.path}/traffic-token").json["token"]
    seen = [g.prison.anonymous.call("GET", f"{one.path}/ports/8000/", headers={"X-Space-Traffic-Token": token}).status
            for one in (g.bystander.sandbox, g.sb)]
    hold(seen[0] == 401, f"statuses {seen}")
    hold(seen[1] == 502, f"its own token does not work: {seen}")
    return f"status {seen[0]}, and {seen[1]} for its own"


@table("guest-other-process", "name the bystander's processes below one's own sandbox", "not found")
def other_process(g):
    theirs = g.bystander.sandbox.exec(["echo", "secret"]).process["id"]
    seen = [g.api.call(method, f"{g.sb.path}/processes/{theirs}{rest}", body).status
            for method, rest, body in (("GET", "", None), ("GET", "/output?stream=stdout", None),
                                       ("POST", "/signal", {"signal": "KILL"}))]
    hold(seen == [404] * 3, f"statuses {seen}")
    return f"statuses {seen}"


@table("guest-forged-result", "print what looks like an attach's events and results", "it is output, the result is one")
def forged_result(g):
    forged = json.dumps({"type": "result", "reason": "exit", "exit_code": 0})
    session = g.sb.session(["sh", "-c", f"echo '{forged}'; printf '\\n{forged}\\n\\000'; exit 7"])
    attached = AttachLines(g.api, session)
    result = attached.finish()
    hold(result["exit_code"] == 7, f"{result}")
    hold(attached.out.data.count(b'"result"') == 2, "output is missing")
    return f"exit code {result['exit_code']}, {len(attached.out.data)} bytes of output"


# --- exhaustion: hostile ---

@table("guest-fork-bomb", "fork without end", "the sandbox suffers, nobody else", hostile=True)
def fork_bomb(g):
    g.start(":(){ :|:& };:")
    time.sleep(SECONDS)
    return g.fate()


@table("guest-memory-bomb", "fill the guest's memory", "ended inside the guest", hostile=True)
def memory_bomb(g):
    before = g.prison.vmm(g.sb.id).memory()["Rss"]
    said = g.flood("tail /dev/zero")
    vmm = g.prison.vmm(g.sb.id)
    grown = (vmm.memory()["Rss"] - before) >> 20 if vmm else 0
    hold(grown < 256, f"the VMM has grown by {grown} MiB")
    return f"{said}; the VMM has grown by {grown} MiB"


@table("guest-shm-bomb", "fill memory through files", "no space, or ended inside the guest", hostile=True)
def shm_bomb(g):
    return g.flood("mount -t tmpfs -o size=90% x /mnt 2>/dev/null || mkdir -p /mnt; for d in /mnt /dev/shm /run; do "
                   "dd if=/dev/zero of=$d/big bs=1M count=1000 2>&1 | tail -n 1; done")


@table("guest-disk-fill", "fill the disk", "no space in the guest; the host loses no more than the disk's size",
       hostile=True, disk_mib=64)
def disk_fill(g):
    said = g.flood("dd if=/dev/urandom of=/fill bs=1M count=200 2>&1 | tail -n 1; sync")
    disk = os.path.join(g.prison.state_dir, "pool", "sandboxes", g.sb.id, "disk.raw")
    used = os.stat(disk).st_blocks * 512 >> 20
    hold(used <= 65, f"{used} MiB on the host")
    return f"{said}; {used} MiB on the host"


@table("guest-inode-fill", "use up all inodes", "an error in the guest", hostile=True, disk_mib=64)
def inode_fill(g):
    return g.flood("mkdir -p /inodes; /tmp/prisoner inodes /inodes")


@table("guest-descriptors", "use up all descriptors of the kernel", "an error in the guest", hostile=True)
def descriptors(g):
    return g.flood("/tmp/prisoner descriptors")


@table("guest-spin", "keep every processor busy", "the others get their share", hostile=True, vcpus=4)
def spin(g):
    return g.flood(f"/tmp/prisoner spin {SECONDS}")


@table("guest-timers", "have 200 timers fire every 50 microseconds", "the others get their share", hostile=True)
def timers(g):
    return g.flood(f"/tmp/prisoner timers {SECONDS}")


@table("guest-disk-flood", "write and sync without end", "the others get their share", hostile=True)
def disk_flood(g):
    return g.flood(f"timeout {SECONDS} sh -c 'while :; do dd if=/dev/zero of=/flood bs=64k count=8 conv=fsync; done' 2>&1 "
                   "| tail -n 1")


@table("guest-output-flood", "print without end", "the journal keeps its bound", hostile=True)
def output_flood(g):
    process = g.start(f"timeout {SECONDS} yes")
    time.sleep(SECONDS)
    folder = os.path.join(g.prison.state_dir, "spaced")
    size = sum(os.stat(os.path.join(at, name)).st_blocks * 512 for at, _, names in os.walk(folder) for name in names)
    hold(size < 200 << 20, f"{size >> 20} MiB below {folder}")
    return f"{g.api.call('GET', f'{g.sb.path}/processes/{process}').status}, {size >> 20} MiB kept; {g.fate()}"


@table("guest-console-flood", "write to the console without end", "the host keeps a bounded end of it", hostile=True)
def console_flood(g):
    before = os.path.getsize(g.prison.log_path)
    said = g.flood(f"timeout {SECONDS} sh -c 'yes > /dev/ttyS0'")
    grown = os.path.getsize(g.prison.log_path) - before
    hold(grown < 65536, f"the server's log has grown by {grown} bytes")
    return f"{said}; the server's log has grown by {grown} bytes"


@table("guest-kmsg-flood", "write to the kernel's log without end", "bounded", hostile=True)
def kmsg_flood(g):
    return g.flood(f"echo 8 > /proc/sys/kernel/printk; "
                   f"timeout {SECONDS} sh -c 'while :; do echo flood > /dev/kmsg; done'")


@table("guest-request-flood", "have 64 commands and connections wait at once", "refused beyond a limit", hostile=True)
def request_flood(g):
    answers = []

    def one():
        try:
            answers.append(g.api.call("POST", f"{g.sb.path}/exec", {"argv": ["sleep", "1"]}, timeout=60).status)
        except OSError as error:
            answers.append(type(error).__name__)

    threads = [threading.Thread(target=one) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"{dict((a, answers.count(a)) for a in answers)}; {g.fate()}"


# --- the end of the guest: hostile ---

def ends(g, text, seconds=60):
    """Does what ends a guest; the sandbox must tell."""
    g.start(text)
    until(lambda: g.sb.state() in ("failed", "stopped"), "the end of the sandbox", seconds)
    return g.fate()


@table("guest-panic", "panic its kernel", "failed, with the reason", hostile=True)
def panic(g):
    return ends(g, "echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger")


@table("guest-panic-forged", "print a terminal's commands on the console, then panic", "failed, the reason is clean text",
       hostile=True)
def panic_forged(g):
    return ends(g, "printf '\\033[2J\\033]0;pwned\\007Kernel panic: \\001\\002' > /dev/ttyS0; echo c > /proc/sysrq-trigger")


@table("guest-reboot", "reboot", "stopped or failed, with the reason", hostile=True)
def reboot(g):
    return ends(g, "reboot -f")


@table("guest-poweroff", "power off", "stopped or failed, with the reason", hostile=True)
def poweroff(g):
    return ends(g, "poweroff -f")


@table("guest-halt", "halt the processors", "failed, or it stands still alone", hostile=True)
def halt(g):
    g.start("halt -f")
    time.sleep(1)
    return g.fate()


@table("guest-sysrq", "end all processes by sysrq", "the agent stays, or the sandbox fails", hostile=True)
def sysrq(g):
    return g.flood("echo 1 > /proc/sys/kernel/sysrq; echo i > /proc/sysrq-trigger; sleep 1")


@table("guest-modules", "load a module and another kernel of its own", "of its own kernel alone", hostile=True)
def modules(g):
    return g.helper("modules").replace("\n", ", ") + "; " + g.works()


# --- its own system taken apart: hostile ---

@table("guest-kill-all", "kill every process, the agent too", "the agent stays", hostile=True)
def kill_all(g):
    said = g.flood("kill -9 1; kill -STOP 1; kill -SEGV 1; kill -9 -1")
    return f"{said}; {g.works()}"


@table("guest-empty-root", "remove every file", "a typed failure, and it can be deleted", hostile=True)
def empty_root(g):
    return g.flood("rm -rf /bin /etc /usr /lib /root /var /home 2>/dev/null; echo done")


@table("guest-unmount", "unmount /proc, /sys, /dev and the control groups", "the agent goes on", hostile=True)
def unmount(g):
    said = g.flood("umount -l /sys/fs/cgroup; umount -l /proc; umount -l /sys; umount -l /dev; echo done")
    return f"{said}; {g.works()}"


@table("guest-overmount", "mount over /, /bin and /proc", "the agent goes on", hostile=True)
def overmount(g):
    return g.flood("mount -t tmpfs x /proc; mount -t tmpfs x /home; mount -t tmpfs x /bin; mount -t tmpfs x /; echo done")


@table("guest-remount", "remount its root read-only and back", "its own affair", hostile=True)
def remount(g):
    said = g.flood("mount -o remount,ro /; mount -o remount,rw /; echo done")
    return f"{said}; {g.works()}"


@table("guest-freeze-disk", "freeze its file system", "typed failures, and it can be deleted", hostile=True)
def freeze_disk(g):
    said = g.flood("fsfreeze --freeze / && echo frozen", seconds=5)
    began = time.monotonic()
    if "frozen" not in said:
        raise Unproven(said)
    try:
        ended = g.api.call("PUT", g.sb.file("/x"), b"x", timeout=20).status
        hold(ended != 200, "a file was written to a frozen file system")
    except OSError as error:  # it waits, and only for itself
        ended = type(error).__name__
    return f"{said}; a write ends with {ended} after {time.monotonic() - began:.1f} s"


@table("guest-leave-cgroup", "move out of the command's control group and hold its output", "the result comes all the same",
       hostile=True)
def leave_cgroup(g):
    began = time.monotonic()
    done = g.sb.exec("mkdir -p /tmp/cg; mount -t cgroup2 x /tmp/cg; "
                     "(for c in $(find /tmp/cg -name cgroup.procs); do echo 0 > $c; done; exec setsid sleep 300) & exit 5",
                     timeout=90)
    hold(done.code == 5, f"{done}")
    return f"exit code 5 after {time.monotonic() - began:.1f} s; {g.works()}"


@table("guest-hide-process", "hide a daemon from /proc and leave its parent", "ended with its command, or its own affair",
       hostile=True)
def hide_process(g):
    done = g.sb.exec("setsid sh -c 'setsid sleep 300 & p=$!; mkdir -p /tmp/e; mount --bind /tmp/e /proc/$p' & exit 6",
                     timeout=90)
    hold(done.code == 6, f"{done}")
    return f"exit code 6; {g.works()}"


# --- virtual hardware as a weapon: hostile ---

@table("guest-ports", "write to the ports of ACPI, CMOS, SMI, fw_cfg, debug exits", "its own VM at most", hostile=True)
def ports(g):
    return g.flood("/tmp/prisoner ports")


@table("guest-random-ports", "write random values to random ports", "its own VM at most", hostile=True)
def random_ports(g):
    return g.flood(f"/tmp/prisoner random-ports {SECONDS}")


@table("guest-registers", "write random values into the registers of its virtio devices", "its own VM at most", hostile=True)
def registers(g):
    """The kernel gives registers only of devices without a driver; taking the drivers away takes the agent's port, too. So that
    the attack took place is told by a reset at its end."""
    return ends(g, "cp /tmp/prisoner /run/prisoner; echo 1 > /proc/sys/kernel/sysrq; (cd /sys/bus/virtio/drivers; "
                   "for d in virtio_rng virtio_blk virtio_console; do for v in $d/virtio*; do "
                   "echo ${v##*/} > $d/unbind & done; done; sleep 1; cd /sys/bus/platform/drivers/virtio-mmio; "
                   "for d in virtio-mmio*; do echo $d > unbind & done; sleep 1; "
                   f"/run/prisoner registers {SECONDS} > /dev/ttyS0 && echo b > /proc/sysrq-trigger) & wait", 30)


@table("guest-unbind", "take its devices away from their drivers", "its own VM at most", hostile=True)
def unbind(g):
    return g.flood("cd /sys/bus/virtio/drivers; for d in virtio_rng virtio_blk virtio_console; do for v in $d/virtio*; do "
                   "echo ${v##*/} > $d/unbind & done; done; sleep 1; echo done", seconds=5)


# --- the agent and its port: hostile ---

@table("guest-agent-open", "open the agent's port itself", "refused: it is open")
def agent_open(g):
    said = g.helper("open-port")
    hold("DONE" not in said, said)
    return said.replace("\n", ", ")


def port_flood(g, command):
    said = g.flood(f"/tmp/prisoner {command} {SECONDS}")
    if "its port: DONE" not in said and "cut off" not in said and "no answer" not in said:
        raise Unproven(f"the port was not taken: {said}")
    grown = (g.prison.daemon().memory()["Rss"] - g.prison.rss_before) >> 20
    hold(grown < 128, f"the server has grown by {grown} MiB")
    return f"{said}; the server has grown by {grown} MiB"


for kind, what in (("noise", "random bytes"), ("zeros", "zeros"), ("headers", "headers of frames with wrong all else"),
                   ("acks", "acknowledgements of epochs nobody began")):
    table(f"guest-port-{kind}", f"take the agent's port from it and write {what}", "that sandbox alone is lost",
          hostile=True)(lambda g, kind=kind: port_flood(g, f"port-{kind}"))


def seize(g, command):
    """Begins a command that stops the agent, and returns when it has."""
    g.start(f"/tmp/prisoner {command} 30")
    until(lambda: g.sb.exec(["test", "-e", "/run/seized"], timeout=60).code == 0, "the agent is seized")
    time.sleep(2)


@table("guest-port-eat", "stop the agent and read what is for it", "typed failures, and it can be deleted", hostile=True)
def port_eat(g):
    seize(g, "port-eat")
    began = time.monotonic()
    try:
        answer = g.api.call("PUT", g.sb.file("/tmp/big"), b"x" * (8 << 20), timeout=90).status
    except OSError as error:
        answer = type(error).__name__
    if answer == 200:
        raise Unproven("the agent was not stopped")
    return f"an upload ends with {answer} after {time.monotonic() - began:.1f} s; {g.fate()}"


def lost(g):
    """A command to an agent that is none any more."""
    said = g.flood("true", seconds=10)
    if said.startswith("exit 0"):
        raise Unproven(f"the agent answers: {said}")
    return said


@table("guest-agent-held", "stop the agent as a debugger and leave it so", "typed failures, and it can be deleted",
       hostile=True)
def agent_held(g):
    seize(g, "hold-agent")
    return lost(g)


@table("guest-agent-broken", "write over the agent's code", "that sandbox alone is lost", hostile=True)
def agent_broken(g):
    seize(g, "break-agent")
    return lost(g)


def cases():
    return table.cases


def make(prison, bystander, marks):
    """The sandbox that a case wants."""
    resources = {"vcpus": marks.get("vcpus", 1)}
    body = {"template": "busybox", "resources": resources}
    if "disk_mib" in marks:
        body.update(template="small", resources={"disk_mib": marks["disk_mib"]})
    prison.rss_before = prison.daemon().memory()["Rss"]
    return Guest(prison, bystander, Sandbox.create(prison.api, body, timeout=180))
