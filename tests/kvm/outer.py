#!/usr/bin/env python3
"""A machine with a working /dev/kvm, systemd and cgroups of version 2, on one that has none of them.

QEMU's software emulation offers AMD's virtualization, so a Debian inside it has a real /dev/kvm. The machine is made of
Debian's packages alone, once, and kept; it is never written to: each run starts from the same image.

    outer.py build [--bare]                makes the image (minutes)
    outer.py run [--bare] [--time-limit S] TREE COMMAND
                                           boots it with TREE's files in /work and runs the command there as root;
                                           prints what it says, and ends with its status

There are two images: one with every package that SPACE needs, and no network, and a bare one, with next to nothing, from which the
network is reached.
"""
import argparse
import fcntl
import glob
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CACHE = os.environ.get("SPACE_KVM_CACHE", "/var/cache/space-kvm")
BASE = ["systemd-sysv", "udev", "dbus", "kmod", "procps"]
BARE = ["make", "sudo", "iproute2", "ca-certificates"]  # what somebody has who has just unpacked the sources
MEMORY_MIB, CPUS, DISK = 6144, 2, "16G"
# Without what is slow where a processor is emulated: `rep movsb`, a fifth level of page tables (and each of those walks others when a
# guest runs), an address space of its own for what the kernel copies from programs. Its time stamp counter is the host's; the kernel,
# which cannot know that, would ask an emulated HPET for each time of day.
CPU = "max,+svm,+npt,erms=off,la57=off,smap=off"
KERNEL_ARGS = ("console=ttyS0 root=/dev/nvme0n1 rw quiet panic=-1 mitigations=off init_on_alloc=0 hardened_usercopy=off clearcpuid=112 tsc=reliable "
               "systemd.mask=serial-getty@ttyS0.service systemd.mask=serial-getty@ttyS1.service systemd.mask=console-getty.service")
NO_DOCS = ["--aptopt=Acquire::Languages \"none\"", "--dpkgopt=path-exclude=/usr/share/doc/*",
           "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*"]

UNIT = """[Unit]
Description=The command this machine was started for
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/outer-job
StandardInput=null
StandardOutput=null
[Install]
WantedBy=multi-user.target
"""

# The job's output goes to the second serial line, alone; the first one is the console.
JOB = """#!/bin/bash
exec </dev/null >/dev/ttyS1 2>&1
stty -F /dev/ttyS1 raw -echo
modprobe kvm_amd
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb
mkdir -p /work && mount /dev/nvme1n1 /work && cd /work && bash /work/.outer-command
echo "outer: status $?"
sync
systemctl poweroff --force --force
"""


def say(text):
    print(f"outer: {text}", flush=True)


def kernel():
    """The newest of this host's kernels that a cloud image would have: NVMe, ext4 and KVM."""
    found = sorted(glob.glob("/boot/vmlinuz-*-cloud-amd64"), key=os.path.getmtime)
    if not found:
        raise SystemExit("outer: no /boot/vmlinuz-*-cloud-amd64: sudo make setup installs one")
    return found[-1]


# The bare machine's network: QEMU's own, addresses and all.
NETWORK = """[Match]
Type=ether
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
"""


def packages(bare):
    if bare:
        return BASE + BARE
    out = subprocess.run([os.path.join(TOP, "scripts", "setup.sh"), "--list"], check=True, capture_output=True, text=True)
    return [*BASE, "git", *out.stdout.split()]


def image_path(bare):
    text = "\n".join([*packages(bare), UNIT, JOB, *([NETWORK] if bare else []), DISK, kernel()])
    return os.path.join(CACHE, f"{'bare' if bare else 'debian'}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.ext4")


def make_ext4(tree, path, size, *options):
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0", *options, "-d", tree, path,
                    size], check=True)


def put(root, path, text, mode=0o644):
    path = os.path.join(root, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as out:
        out.write(text)
    os.chmod(path, mode)


def enable(root, unit, where):
    wants = os.path.join(root, "etc/systemd/system/multi-user.target.wants")
    os.makedirs(wants, exist_ok=True)
    link = os.path.join(wants, unit)
    if not os.path.lexists(link):
        os.symlink(os.path.join(where, unit), link)


def fill_root(root, bare):
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages(bare))}", *NO_DOCS, "bookworm",
                    root], check=True)
    release = os.path.basename(kernel()).removeprefix("vmlinuz-")
    modules = os.path.join(root, "usr/lib/modules", release)
    if not os.path.isdir(modules):  # the machine's own kernel: the host's, which may be another than the packages'
        shutil.copytree(f"/lib/modules/{release}", modules, symlinks=True)
        shutil.copy(kernel(), os.path.join(root, "boot"))
    put(root, "etc/systemd/system/outer-job.service", UNIT)
    put(root, "usr/local/sbin/outer-job", JOB, 0o755)
    enable(root, "outer-job.service", "/etc/systemd/system")
    if bare:
        put(root, "etc/systemd/network/10-outer.network", NETWORK)
        put(root, "etc/resolv.conf", "nameserver 10.0.2.3\n")
        enable(root, "systemd-networkd.service", "/lib/systemd/system")


def make_image(path, bare):
    say(f"making {path} from Debian's packages (two minutes or more)")
    work = tempfile.mkdtemp(prefix="making-", dir=CACHE)
    try:
        fill_root(os.path.join(work, "root"), bare)
        make_ext4(os.path.join(work, "root"), os.path.join(work, "image"), DISK)
        os.rename(os.path.join(work, "image"), path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for old in glob.glob(os.path.join(CACHE, f"{os.path.basename(path).split('-')[0]}-*.ext4")):
        if old != path:
            os.unlink(old)


def build(bare=False):
    """The image's path; made now when it is not there. Of two at once the second waits for the first."""
    path = image_path(bare)
    os.makedirs(CACHE, exist_ok=True)
    with open(os.path.join(CACHE, "lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            make_image(path, bare)
    return path


def qemu(image, tree_image, work, network, more=(), keep_tree=False):
    """The command. more: further arguments; keep_tree: what the machine changes of the tree is lost at its end."""
    drives = []
    tree = "snapshot=on,cache=unsafe" if keep_tree else "cache=unsafe"
    for name, file, extra in (("root", image, "snapshot=on,cache=unsafe"), ("tree", tree_image, tree)):
        drives += ["-drive", f"file={file},if=none,id={name},format=raw,{extra}", "-device", f"nvme,drive={name},serial={name}"]
    net = ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="] if network else []
    return ["qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi,tb-size=1024", "-cpu", CPU, "-smp", str(CPUS),
            "-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-serial", f"file:{work}/console", "-serial", "stdio", "-kernel", kernel(), "-append", KERNEL_ARGS, *drives, *net, *more]


def follow(process, heard):
    """Passes on what the job says, and gives each line to heard(); its status, or None when the machine ended without one."""
    status = None
    for line in process.stdout:
        text = line.decode(errors="replace").rstrip("\r\n")
        if text.startswith("outer: status "):
            status = int(text.split()[-1])
        else:
            print(text, flush=True)
            heard(text)
    return status


def stage(to):
    """The checkout's files, as they are now, without what was built."""
    names = subprocess.run(["git", "-C", TOP, "ls-files", "-z"], check=True, capture_output=True).stdout
    for name in filter(None, names.decode().split("\0")):
        source, target = os.path.join(TOP, name), os.path.join(to, name)
        if os.path.lexists(source):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def stage_build(to, build, firecracker):
    """The checkout's files, the build as ./build, and that program, if there is one, as ./firecracker."""
    stage(to)
    shutil.copytree(os.path.abspath(build), os.path.join(to, "build"), symlinks=True,
                    ignore=shutil.ignore_patterns("*.o", "*.d", "meson-*", ".ninja*", "*.a"))
    if firecracker:
        shutil.copy(firecracker, os.path.join(to, "firecracker"))


def run(tree, command, time_limit, bare=False, heard=lambda line: None):
    image = build(bare)
    work = tempfile.mkdtemp(prefix="run-", dir=CACHE)
    try:
        with open(os.path.join(tree, ".outer-command"), "w", encoding="utf-8") as out:
            out.write(command)
        make_ext4(tree, os.path.join(work, "tree"), "4G")
        process = subprocess.Popen(["timeout", "-k", "5", str(time_limit), *qemu(image, os.path.join(work, "tree"), work, bare)],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            status = follow(process, heard)
        except KeyboardInterrupt:
            process.terminate()  # timeout passes it on to the machine
            raise
        ended = process.wait()
        if status is None:
            with open(os.path.join(work, "console"), encoding="utf-8", errors="replace") as console:
                print(console.read()[-3000:])
            say("the machine ended before its command did" + (f": {time_limit} s were not enough" if ended == 124 else ""))
            return 1
        return status
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description="a machine with KVM, systemd and cgroups of version 2")
    actions = parser.add_subparsers(dest="action", required=True)
    make = actions.add_parser("build")
    one = actions.add_parser("run")
    one.add_argument("--time-limit", type=int, default=1800)
    for action in (make, one):
        action.add_argument("--bare", action="store_true")
    one.add_argument("tree")
    one.add_argument("command")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if args.action == "build":
        print(build(args.bare))
        return 0
    return run(args.tree, args.command, args.time_limit, args.bare)


if __name__ == "__main__":
    sys.exit(main())
