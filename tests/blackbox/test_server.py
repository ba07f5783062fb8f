"""The server as a program: starting, refusing to start, two beside each other, purge, confinement."""
import fcntl
import json
import os
import re
import socket
import subprocess
import threading
import unittest

from harness import host, server
from harness.case import OwnServerTest, SpaceTest, limit
from harness.server import Server
from harness.ws import TEXT, Attach
from harness.workers import alone


def refused(one, timeout=60):
    """Starts a server that must not come up; returns (exit code, log)."""
    one.spawn()
    try:
        code = one.process.wait(timeout)
    except subprocess.TimeoutExpired as error:
        one.kill()
        raise AssertionError(f"it started: {one.log()}") from error
    finally:
        server.shutil.rmtree(one.base, ignore_errors=True) if one.process.poll() is None else None
    return code, one.log()


class Refusals(unittest.TestCase):
    def check(self, one, words, codes=(1, 2), purge=False):
        """purge: it gets as far as to have a pool, which is mounted."""
        code, log = refused(one)
        if purge:
            one.close()
        server.shutil.rmtree(one.base, ignore_errors=True)
        self.assertIn(code, codes, log)
        for word in words:
            self.assertIn(word, log)
        self.assertNotIn("spaced: ready", log)

    def test_port_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.check(Server(listen=f"127.0.0.1:{port}"), [str(port), "in use"])

    def test_dev_binds_loopback_only(self):
        self.check(Server(listen="0.0.0.0:0"), ["loopback"])

    def test_state_dir_is_a_file(self):
        one = Server()
        path = os.path.join(one.base, "file")
        with open(path, "w", encoding="ascii"):
            pass
        one.state_dir = path
        self.check(one, [path])

    def test_state_dir_not_writable(self):
        one = Server(state_dir="/proc/space-state")
        self.check(one, ["/proc/space-state"])

    def test_bad_configuration(self):
        for key, value in (("max_vcpus", "many"), ("colour", "red"), ("default_memory_mib", "1"),
                           ("engine", "warp"), ("pool_size_mib", "-1")):
            with self.subTest(key=key):
                self.check(Server(config={key: value}), [key])

    def test_missing_configuration(self):
        self.check(Server(args=["--config", "/nowhere/spaced.conf"]), ["/nowhere/spaced.conf"])

    def test_unknown_option(self):
        self.check(Server(args=["--colour", "red"]), ["--colour"], (2,))

    def test_engine_not_offered(self):
        """A Firecracker that is too old: on every host, whatever else it has."""
        old = os.path.join(server.temporary(), "firecracker")
        self.addCleanup(server.shutil.rmtree, os.path.dirname(old), ignore_errors=True)
        with open(old, "w", encoding="ascii") as script:
            script.write("#!/bin/sh\necho Firecracker v1.4.0\n")
        os.chmod(old, 0o755)
        self.check(Server(config={"engine": "firecracker", "firecracker": old}), ["firecracker"], purge=True)

    def test_engine_that_is_not_there_takes_nothing(self):
        """Told before there is a pool, a lease or a kernel image."""
        one = Server(config={"engine": "firecracker", "firecracker": "/nonexistent/firecracker"})
        code, log = refused(one)
        self.addCleanup(one.close)
        self.assertEqual(code, 1, log)
        self.assertIn("firecracker", log)
        self.assertEqual(os.listdir(one.state_dir), ["lock"])

    def test_without_root(self):
        one = Server()
        done = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
                               *one.command()], capture_output=True, timeout=60, text=True)
        server.shutil.rmtree(one.base, ignore_errors=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("root", done.stderr)


class LogTest(OwnServerTest):
    """Each line tells what it is about: the ids of its sandbox, operation and session."""

    def use(self):
        """A sandbox, the operation that paused it, and sessions: to the end, left by its client, refused."""
        sb = self.sandbox()
        session = sb.session(["echo", "x"])
        self.assertEqual(Attach(self.api, session).finish()["exit_code"], 0)
        left = sb.session(["sleep", "1000"])
        attached = Attach(self.api, left)
        attached.until(lambda: attached.pid, "started")
        attached.abort()
        sent_away = sb.session(["sleep", "1000"])
        attached = Attach(self.api, sent_away)
        attached.until(lambda: attached.pid, "started")
        attached.ws.send(TEXT, '{"type":"explode"}')
        while attached.step():
            pass
        return sb, sb.verb("pause")["id"], session["session"], left["session"], sent_away["session"]


class JsonLog(LogTest):
    config = {"log_format": "json", "log_level": "debug"}

    def events(self):
        lines = self.server.log_bytes().decode().splitlines()
        return [json.loads(line) for line in lines if not line.startswith("spaced: ")]

    def find(self, message, **fields):
        return self.until(lambda: [one for one in self.events() if one["message"] == message
                                   and fields.items() <= one.items()], f"{message} {fields}", 10)

    @limit(240)
    def test_ids(self):
        sb, pause, session, left, sent_away = self.use()
        for one in self.find("sandbox moved", sandbox=sb.id, operation=pause):
            self.assertEqual((one["level"], one["program"]), ("info", "spaced"))
            self.assertRecent(one["time"])
        self.find("sandbox moved", sandbox=sb.id, operation=sb.create_operation["id"])
        for one, end in ((session, "result"), (left, "the client has left"),
                         (sent_away, "a message's type is resize, signal or stdin_close")):
            ids = {"sandbox": sb.id, "session": one["id"], "process": one["process_id"]}
            self.find("session made", level="info", **ids)
            self.find("attached", **ids)
            self.assertEqual([event["reason"] for event in self.find("attach over", **ids)], [end])
        self.assertEqual({one["program"] for one in self.events()}, {"spaced", "space-privd"})


class TextLog(LogTest):
    @limit(240)
    def test_ids(self):
        sb, pause, session, _, _ = self.use()
        stamp = r"(?m)^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info  spaced: "
        log = self.server.log_bytes().decode()
        self.assertRegex(log, stamp + rf"sandbox moved sandbox={sb.id} operation={pause} from=running to=pausing ")
        self.assertRegex(log, stamp + rf"session made sandbox={sb.id} session={session['id']} "
                                      rf"process={session['process_id']}$")


class Programs(unittest.TestCase):
    def test_help_and_version(self):
        for args, word in ((["--help"], "--state-dir"), (["--version"], "spaced ")):
            done = subprocess.run([server.program("spaced"), *args], capture_output=True, text=True, timeout=30)
            self.assertEqual(done.returncode, 0, done)
            self.assertIn(word, done.stdout)


class TwoServers(OwnServerTest):
    @limit(300)
    def test_second_on_the_same_state_directory_is_refused(self):
        second = Server(state_dir=self.server.state_dir)
        code, log = refused(second)
        self.assertNotEqual(code, 0)
        self.assertIn(self.server.state_dir, log)
        self.assertEqual(self.sandbox().sh("echo first goes on"), "first goes on\n")

    @limit(300)
    def test_one_that_ends_is_waited_for(self):
        """A part of it that was killed later than the rest, say."""
        self.server.terminate()
        with open(os.path.join(self.server.state_dir, "lock"), "rb") as lock, socket.socket() as port:
            fcntl.flock(lock, fcntl.LOCK_EX)
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port.bind((self.server.host, self.server.port))
            port.listen()
            threading.Timer(0.3, port.close).start()
            threading.Timer(0.6, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
            self.server.start()
        self.assertEqual(self.sandbox().sh("echo here"), "here\n")

    @limit(400)
    def test_two_beside_each_other(self):
        other = Server().start().with_busybox()
        try:
            mine, theirs = self.sandbox(), other.api.sandbox(template="busybox")
            self.assertEqual(theirs.sh("echo other"), "other\n")
            uids = {p.status()["Uid"] for p in self.server.vmms()} & {p.status()["Uid"] for p in other.vmms()}
            self.assertFalse(uids, "uids are shared")
            self.assertNotEqual(self.server.daemon().status()["Uid"], other.daemon().status()["Uid"])
            self.assertEqual(other.api.call("GET", mine.path).status, 404)
            self.assertEqual(other.api.with_key(self.server.key).call("GET", "/v1/sandboxes").status, 401)
        finally:
            other.close()
        self.assertEqual(mine.sh("echo unharmed by the purge"), "unharmed by the purge\n")

    @limit(300)
    def test_purge_refuses_while_a_daemon_runs(self):
        done = subprocess.run([server.program("spaced"), "--state-dir", self.server.state_dir, "--purge"],
                              capture_output=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(self.sandbox().sh("echo alive"), "alive\n")


@alone  # it looks for processes of its uids, which another server may lease once they are free
class Purge(unittest.TestCase):
    @limit(400)
    def test_purge_leaves_nothing(self):
        one = Server().start().with_busybox()
        try:
            running, stopped = one.api.sandbox(template="busybox"), one.api.sandbox(template="busybox")
            stopped.verb("stop")
            ids, cgroups = one.sandbox_dirs(), one.cgroup_parents()
            uids = {int(p.status()["Uid"].split()[0]) for p in one.vmms()}
            self.assertIn(running.id, ids)
            self.assertTrue(cgroups)
            one.kill()
            done = one.purge()
            self.assertEqual(done.returncode, 0, done)
            self.assertFalse(host.with_argument(*ids), "VMM processes are left")
            self.assertFalse(one.leftovers())
            self.assertFalse([path for path in cgroups if os.path.exists(path)], "cgroups are left")
            owners = {os.stat(f"/proc/{p.pid}").st_uid for p in host.processes() if p.alive}
            self.assertFalse(uids & owners, "processes of its uids are left")
            for folder, _, names in os.walk("/run/space"):
                for name in names:
                    self.assertNotIn(one.state_dir, host.read(os.path.join(folder, name)), name)
            again = one.purge()
            self.assertEqual(again.returncode, 0, "purging twice")
        finally:
            one.purge_quietly()


class Confinement(SpaceTest):
    def test_the_vmm_process(self):
        sb, other = self.sandbox(), self.sandbox()
        vmm, second = self.server.vmm(sb.id), self.server.vmm(other.id)
        status = vmm.status()
        uids = status["Uid"].split()
        self.assertEqual(len(set(uids)), 1, "one uid, for good")
        self.assertNotEqual(uids[0], "0")
        self.assertNotEqual(uids[0], second.status()["Uid"].split()[0], "each VMM has a uid of its own")
        self.assertNotEqual(uids[0], self.server.daemon().status()["Uid"].split()[0])
        self.assertEqual(status["NoNewPrivs"], "1")
        self.assertEqual(status["Seccomp"], "2")
        for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"):
            self.assertEqual(int(status[name], 16), 0, name)
        self.assertEqual(status.get("Groups", "").split(), [])
        root = os.readlink(f"/proc/{vmm.pid}/root")
        entries = os.listdir(f"/proc/{vmm.pid}/root/")
        own = {"run"} if sb.get()["engine"] == "firecracker" else set()  # a small one, for its sockets
        self.assertFalse({"home", "root", "var", "boot", "proc", "sys", "run", "tmp"} - own & set(entries), (root, entries))
        if own:
            self.assertNotEqual(os.stat(f"/proc/{vmm.pid}/root/run").st_dev, os.stat("/run").st_dev)
            self.assertEqual(os.stat(f"/proc/{vmm.pid}/root/run").st_uid, int(uids[0]))
        for secret in ("etc/shadow", "etc/passwd", "etc/ssh"):
            self.assertFalse(os.path.exists(f"/proc/{vmm.pid}/root/{secret}"), secret)
        for space in ("net", "mnt", "ipc", "uts", "pid"):
            mine, theirs = (os.readlink(f"/proc/{pid}/ns/{space}") for pid in ("self", vmm.pid))
            self.assertNotEqual(mine, theirs, f"{space} namespace")
        interfaces = [line.split(":")[0].strip() for line in host.read(f"/proc/{vmm.pid}/net/dev").splitlines()[2:]]
        self.assertEqual(interfaces, ["lo"])
        self.assertIn(sb.id, " ".join(vmm.argv))
        self.assertNotIn(other.id, " ".join(vmm.argv))

    def test_the_vmm_sees_no_other_sandboxs_files(self):
        sb, other = self.sandbox(), self.sandbox()
        vmm = self.server.vmm(sb.id)
        uid = vmm.status()["Uid"].split()[0]
        for folder, dirs, names in os.walk(f"/proc/{vmm.pid}/root"):
            self.assertNotIn(other.id, dirs + names)
            if "proc" in dirs:
                dirs.remove("proc")
        disk = os.path.join(self.server.state_dir, "pool", "sandboxes", other.id, "disk.raw")
        self.assertTrue(os.path.exists(disk))
        done = subprocess.run(["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "cat", disk],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=30)
        self.assertNotEqual(done.returncode, 0)
        for target in vmm.fds():
            self.assertNotIn(other.id, target)

    def test_the_daemon(self):
        daemon = self.server.daemon()
        status = daemon.status()
        self.assertNotIn("0", status["Uid"].split())
        self.assertEqual(status["NoNewPrivs"], "1")
        self.assertEqual(int(status["CapEff"], 16), 0)
        self.assertEqual(int(status["CapPrm"], 16), 0)
        sanitized = b"__asan_init" in host.read(f"/proc/{daemon.pid}/exe", binary=True)
        self.assertEqual(status["Seccomp"], "0" if sanitized else "2")
        for name in ("dev.key", os.path.join("pool", "sandboxes")):
            path = os.path.join(self.server.state_dir, name)
            self.assertNotEqual(str(os.stat(path).st_uid), status["Uid"].split()[0], path)

    def test_the_broker_has_no_network(self):
        broker = self.server.broker()
        self.assertEqual(broker.status()["Uid"].split()[0], "0")
        sockets = [fd for fd in broker.fds() if fd.startswith("socket")]
        self.assertLess(len(sockets), 20)
        listening = re.findall(r"^ *\d+: [0-9A-F]+:[0-9A-F]+ [0-9A-F:]+ 0A .*$", host.read("/proc/net/tcp"), re.M)
        inodes = {line.split()[9] for line in listening}
        mine = set()
        for name in os.listdir(f"/proc/{broker.pid}/fd"):
            try:
                link = os.readlink(f"/proc/{broker.pid}/fd/{name}")
            except OSError:
                continue
            if link.startswith("socket:["):
                mine.add(link[8:-1])
        self.assertFalse(inodes & mine, "the broker listens on TCP")

    def test_nothing_secret_on_command_lines_or_in_the_log(self):
        sb = self.sandbox(env={"SECRET": "s3cr3t-value-of-env"})
        session = sb.session(["echo", "x"])
        token = session["attach"]["token"]
        for process in self.server.family() + self.server.vmms():
            line = " ".join(process.argv)
            for secret in (self.server.key, token, "s3cr3t-value-of-env"):
                self.assertNotIn(secret, line)
        log = self.server.log_bytes()
        for secret in (self.server.key, token, "s3cr3t-value-of-env"):
            self.assertNotIn(secret.encode(), log)
