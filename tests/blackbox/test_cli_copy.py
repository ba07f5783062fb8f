"""`space cp` and `space file` with the real server and guest."""
import filecmp
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time

from harness import server as programs
from harness.api import Sandbox
from harness.case import SharedSandboxTest, limit


class Copy(SharedSandboxTest):
    def setUp(self):
        super().setUp()
        self.dir = tempfile.mkdtemp(prefix="space-copy-")
        self.addCleanup(shutil.rmtree, self.dir, True)

    def here(self, *names):
        return os.path.join(self.dir, *names)

    def space(self, *words, code=0, **kw):
        done = self.server.cli(*words, **kw)
        self.assertEqual(done.returncode, code, f"space {words}: {done}")
        return done

    def plant(self, top):
        os.makedirs(os.path.join(top, "sub", "deep"))
        for name, mode, data in (("plain", 0o644, b"x" * 70000), ("sub/tool", 0o751, b"#!/bin/sh\n"), ("sub/empty", 0o400, b""),
                                 ("sub/deep/\N{SNOWMAN}", 0o600, b"snow")):
            with open(os.path.join(top, name), "wb") as f:
                f.write(data)
            os.chmod(os.path.join(top, name), mode)
        with open(os.path.join(os.fsencode(top), b"raw\xff\n"), "wb") as f:
            f.write(b"raw")
        os.symlink("sub/tool", os.path.join(top, "link"))
        os.symlink("/etc/nowhere", os.path.join(top, "dangling"))
        os.link(os.path.join(top, "plain"), os.path.join(top, "sub", "hard"))
        os.makedirs(os.path.join(top, "closed"))
        os.chmod(os.path.join(top, "closed"), 0o500)
        os.utime(os.path.join(top, "sub", "deep"), (1_500_000_000, 1_500_000_000))

    def check(self, top, other):
        """Two trees on this machine are the same, but for owners."""
        def seen(root):
            found = {}
            for folder, folders, files in os.walk(os.fsencode(root)):
                for name in folders + files:
                    path = os.path.join(folder, name)
                    st = os.lstat(path)
                    kind = stat.S_IFMT(st.st_mode)
                    content = os.readlink(path) if kind == stat.S_IFLNK else None
                    if kind == stat.S_IFREG:
                        with open(path, "rb") as f:
                            content = f.read(), int(st.st_mtime), st.st_nlink
                    mode = 0 if kind == stat.S_IFLNK else stat.S_IMODE(st.st_mode)
                    found[os.path.relpath(path, os.fsencode(root))] = (kind, mode, content)
            return found
        self.assertEqual(seen(top), seen(other))

    def test_a_tree_there_and_back(self):
        self.plant(self.here("t"))
        self.space("cp", self.here("t"), f"{self.sb.id}:/root/tree")
        self.assertEqual(self.sb.sh("cd /root/tree && cat sub/deep/* link && stat -c %a sub/tool closed && readlink dangling"),
                         "snow#!/bin/sh\n751\n500\n/etc/nowhere\n")
        self.assertEqual(self.sb.sh("stat -c %u:%g /root/tree /root/tree/plain /root/tree/link").split(), ["0:0"] * 3)
        self.space("cp", f"{self.sb.id}:/root/tree", self.here("back"))
        self.check(self.here("t"), self.here("back"))
        self.assertEqual(int(os.stat(self.here("back", "sub", "deep")).st_mtime), 1_500_000_000)
        self.space("cp", f"{self.sb.id}:/root/tree", self.here("back"))  # into what is there
        self.check(self.here("t"), self.here("back", "tree"))
        self.space("cp", f"{self.sb.id}:/root/tree/sub/.", self.here("back", "closed"))
        self.assertEqual(stat.S_IMODE(os.stat(self.here("back", "closed")).st_mode), 0o500)
        self.sb.sh("rm -r /root/tree")

    def test_paths_longer_than_any_call_takes(self):
        parts = [letter * 200 for letter in "abcdefghijklmnopqrstuvwxyz"] + ["z" * 200] * 9  # 7,035 bytes
        os.mkdir(self.here("t"))
        at = os.open(self.here("t"), os.O_RDONLY)
        for part in parts:
            os.mkdir(part, dir_fd=at)
            at, above = os.open(part, os.O_RDONLY, dir_fd=at), at
            os.close(above)
        with open(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=at), "wb") as f:
            f.write(b"deep")
        os.close(at)
        self.space("cp", self.here("t"), f"{self.sb.id}:/root/long")
        self.space("cp", f"{self.sb.id}:/root/long", self.here("back"))
        at = os.open(self.here("back"), os.O_RDONLY)
        for part in parts:
            at, above = os.open(part, os.O_RDONLY, dir_fd=at), at
            os.close(above)
        with open(os.open("f", os.O_RDONLY, dir_fd=at), "rb") as f:
            self.assertEqual(f.read(), b"deep")
        os.close(at)
        self.space("file", "rm", "--recursive", f"{self.sb.id}:/root/long")

    def test_owners(self):
        os.makedirs(self.here("t"))
        with open(self.here("t", "f"), "wb") as f:
            f.write(b"x")
        os.chown(self.here("t", "f"), 1000, 1234)
        os.chmod(self.here("t", "f"), 0o4755)
        self.space("cp", "-a", self.here("t"), f"{self.sb.id}:/root/kept")
        self.assertEqual(self.sb.sh("stat -c %u:%g:%a /root/kept/f"), "1000:1234:4755\n")
        self.space("cp", "-a", f"{self.sb.id}:/root/kept", self.here("kept"))
        st = os.stat(self.here("kept", "f"))
        self.assertEqual((st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)), (1000, 1234, 0o4755))
        self.space("cp", f"{self.sb.id}:/root/kept", self.here("ours"))
        st = os.stat(self.here("ours", "f"))
        self.assertEqual((st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)), (0, 0, 0o755))
        self.space("cp", "-u", "user", self.here("t"), f"{self.sb.id}:/home/user/theirs")
        self.assertEqual(self.sb.sh("stat -c %u /home/user/theirs /home/user/theirs/f").split(), ["1000", "1000"])
        done = self.space("cp", "-u", "user", self.here("t"), f"{self.sb.id}:/root/never", code=1)
        self.assertIn(b"Permission denied", done.stderr)
        self.space("cp", "-a", f"{self.sb.id}:/root/kept/f", self.here("one"))
        self.assertEqual(os.stat(self.here("one")).st_uid, 1000)
        self.sb.sh("rm -r /root/kept /home/user/theirs")

    def test_streams(self):
        self.plant(self.here("t"))
        self.space("cp", self.here("t"), f"{self.sb.id}:/root/streamed")
        archive = self.space("cp", f"{self.sb.id}:/root/streamed", "-").stdout
        os.makedirs(self.here("untarred"))
        subprocess.run(["tar", "-x", "-C", self.here("untarred")], input=archive, check=True)
        self.check(self.here("t"), self.here("untarred"))
        made = subprocess.run(["tar", "-c", "-C", self.here("t"), "."], capture_output=True, check=True).stdout
        self.space("cp", "-", f"{self.sb.id}:/root/unpacked/", stdin=made)
        self.space("cp", f"{self.sb.id}:/root/unpacked", self.here("unpacked"))
        self.check(self.here("t"), self.here("unpacked"))
        self.space("cp", "-", f"{self.sb.id}:/root", stdin=b"this is no archive" * 100, code=1)
        self.sb.sh("rm -r /root/streamed /root/unpacked")

    def test_between_sandboxes(self):
        other = self.sandbox()
        self.plant(self.here("t"))
        self.space("cp", self.here("t"), f"{self.sb.id}:/root/source")
        self.space("cp", f"{self.sb.id}:/root/source", f"{other.id}:/root/target")
        self.space("cp", f"{other.id}:/root/target", self.here("back"))
        self.check(self.here("t"), self.here("back"))
        self.sb.sh("chown 1000:1000 /root/source/sub/tool")
        self.space("cp", "-a", f"{self.sb.id}:/root/source/sub/tool", f"{other.id}:/root")
        self.assertEqual(other.sh("stat -c %u:%a /root/tool"), "1000:751\n")
        self.space("cp", "-a", f"{self.sb.id}:/root/source", f"{other.id}:/root/target")
        self.assertEqual(other.sh("stat -c %u /root/target/source/sub/tool"), "1000\n")
        self.space("cp", f"{self.sb.id}:/root/source", f"{self.sb.id}:/root/within")
        self.space("cp", f"{self.sb.id}:/root/within", self.here("within"))
        os.unlink(self.here("within", "sub", "hard"))  # within a sandbox a second name becomes a file of its own
        os.unlink(self.here("t", "sub", "hard"))
        self.check(self.here("t"), self.here("within"))
        self.space("cp", f"{self.sb.id}:/root/source", f"{self.sb.id}:/root/source/x", code=1)
        self.sb.sh("rm -r /root/source /root/within")

    def test_many_files(self):
        for i in range(2000):
            os.makedirs(self.here("t", f"d{i % 40}"), exist_ok=True)
            with open(self.here("t", f"d{i % 40}", f"f{i}"), "wb") as f:
                f.write(b"%d" % i * 100)
        self.space("cp", self.here("t"), f"{self.sb.id}:/root/many")
        self.space("cp", f"{self.sb.id}:/root/many", self.here("back"))
        compared = filecmp.dircmp(self.here("t"), self.here("back"))
        self.assertEqual((compared.left_only, compared.right_only), ([], []))
        self.check(self.here("t"), self.here("back"))
        self.sb.sh("rm -r /root/many")

    def test_links_of_a_hostile_guest(self):
        """What the guest has as links stays links here, and nothing is written where they lead."""
        os.makedirs(self.here("outside"))
        with open(self.here("outside", "secret"), "w", encoding="ascii") as f:
            f.write("secret")
        self.sb.sh(f"mkdir -p /root/evil/d && cd /root/evil && ln -s {self.here('outside')} out && "
                   "ln -s ../../../../etc/passwd up && echo x > d/f")
        self.space("cp", f"{self.sb.id}:/root/evil", self.here("got"))
        self.assertEqual(os.readlink(self.here("got", "out")), self.here("outside"))
        # Now a directory is where the link was: it must not be entered here.
        self.sb.sh("cd /root/evil && rm out && mkdir out && echo evil > out/secret")
        done = self.space("cp", f"{self.sb.id}:/root/evil/.", self.here("got"), code=4)
        self.assertIn(b"no directory", done.stderr)
        with open(self.here("outside", "secret"), encoding="ascii") as f:
            self.assertEqual(f.read(), "secret")
        self.sb.sh("rm -r /root/evil")

    def test_special_files_are_told(self):
        self.sb.sh("mkdir /root/odd && cd /root/odd && mkfifo pipe && mknod null c 1 3 && echo x > f")
        done = self.space("cp", f"{self.sb.id}:/root/odd", self.here("odd"), code=1)
        self.assertEqual(done.stderr.count(b"not copied"), 2, done.stderr)
        self.assertEqual(os.listdir(self.here("odd")), ["f"])
        self.sb.sh("rm -r /root/odd")

    def test_interrupted(self):
        self.sb.sh("dd if=/dev/zero of=/root/large bs=1M count=64 2>/dev/null")
        env = {"PATH": os.environ["PATH"], "SPACE_URL": self.server.url, "SPACE_API_KEY": self.server.key}
        child = subprocess.Popen([programs.program("space"), "cp", f"{self.sb.id}:/root/large", self.here("large")], env=env,
                                 stderr=subprocess.PIPE)
        self.until(lambda: any(os.path.getsize(self.here(n)) > 0 for n in os.listdir(self.dir)) or child.poll() is not None,
                   "bytes")
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
        if child.returncode != 0:  # it was not quicker than we
            self.assertEqual((child.returncode, os.listdir(self.dir)), (130, []))
        self.sb.sh("rm /root/large")

    def test_names_and_errors(self):
        with open(self.here("f"), "wb") as f:
            f.write(b"x")
        self.space("cp", self.here("f"), f"{self.sb.id}:/root/")
        self.assertEqual(self.sb.read("/root/f"), b"x")
        self.space("cp", self.here("f"), f"{self.sb.id}:/root/none/", code=3)
        self.space("cp", "-p", self.here("f"), f"{self.sb.id}:/root/some/where/")
        self.assertEqual(self.sb.read("/root/some/where/f"), b"x")
        self.space("cp", f"{self.sb.id}:/root/absent", self.dir, code=3)
        self.space("cp", self.here("absent"), f"{self.sb.id}:/root", code=3)
        self.space("cp", self.dir, f"{self.sb.id}:/root/f", code=4)
        self.sb.sh("ln -s some /root/linked")
        self.space("cp", self.here("f"), f"{self.sb.id}:/root/linked")
        self.assertEqual(self.sb.read("/root/some/f"), b"x")
        self.sb.sh("rm -r /root/some /root/f /root/linked")


class FileCommands(SharedSandboxTest):
    def file(self, *words, code=0, **kw):
        done = self.server.cli("file", *words, **kw)
        self.assertEqual(done.returncode, code, f"space file {words}: {done}")
        return done.stdout

    def at(self, path):
        return f"{self.sb.id}:{path}"

    def test_all_of_them(self):
        self.file("mkdir", "-p", self.at("/root/w/a/b"))
        self.file("put", "--mode", "0600", self.at("/root/w/a/f"), stdin=b"\0\xff data")
        self.assertEqual(self.file("cat", self.at("/root/w/a/f"), self.at("/root/w/a/f")), b"\0\xff data" * 2)
        self.assertEqual(json.loads(self.file("stat", "-ojson", self.at("/root/w/a/f")))["mode"], "0600")
        self.file("cp", self.at("/root/w/a/f"), "/root/w/a/g")
        self.file("cp", self.at("/root/w/a/f"), "/root/w/a/g", code=4)
        self.file("cp", "-f", self.at("/root/w/a/f"), "/root/w/a/g")
        self.file("mv", self.at("/root/w/a/g"), self.at("/root/w/h"))
        self.file("ln", "a/f", self.at("/root/w/l"))
        self.file("chmod", "0711", self.at("/root/w/h"))
        self.file("chown", "user:user", self.at("/root/w/h"))
        self.file("cp", "-r", self.at("/root/w/a"), "/root/w/copy")
        self.assertEqual(self.sb.sh("cd /root/w && readlink l && stat -c %a:%u h && ls copy").split(), ["a/f", "711:1000", "b", "f"])
        names = [one["name"] for one in json.loads(self.file("ls", "-ojson", self.at("/root/w")))["items"]]
        self.assertEqual(names, ["a", "copy", "h", "l"])
        self.assertGreater(len(json.loads(self.file("ls", "-ojson", "--depth", "3", self.at("/root/w")))["items"]), 6)
        self.assertIn(b"symlink", self.file("ls", self.at("/root/w")))
        self.file("rm", self.at("/root/w"), code=4)
        self.file("rm", "-r", self.at("/root/w"))
        self.file("stat", self.at("/root/w"), code=3)
        self.file("put", "--mode", "0600", self.at("/root/mine"), stdin=b"x")
        self.file("cat", "-u", "user", self.at("/root/mine"), code=1)
        self.file("rm", self.at("/root/mine"))

    def test_many_entries(self):
        self.sb.sh("mkdir /root/wide && cd /root/wide && for i in $(seq 1 350); do : > f$i; done")
        items = json.loads(self.file("ls", "-ojson", self.at("/root/wide")))["items"]
        self.assertEqual(len({one["name"] for one in items}), 350)
        self.sb.sh("rm -r /root/wide")

    def test_names_of_any_bytes(self):
        self.file("put", self.at("/root/").encode() + b"r\xffw\n", stdin=b"raw")
        self.assertEqual(self.file("cat", self.at("/root/").encode() + b"r\xffw\n"), b"raw")
        self.file("rm", self.at("/root/").encode() + b"r\xffw\n")

    @limit(120)
    def test_watch(self):
        self.sb.sh("mkdir /root/seen")
        env = {"PATH": os.environ["PATH"], "SPACE_URL": self.server.url, "SPACE_API_KEY": self.server.key}
        child = subprocess.Popen([programs.program("space"), "file", "watch", "-r", "-n", "3", self.at("/root/seen")], env=env,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(child.stderr.readline(), b"space: watching\n")
        self.sb.sh("mkdir /root/seen/d && echo x > /root/seen/d/f && mv /root/seen/d/f /root/seen/g")
        out, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 0, err)
        self.assertIn(b"created     /root/seen/d\n", out)
        self.sb.sh("rm -r /root/seen")
        self.file("watch", self.at("/root/absent"), code=3)


class Logs(SharedSandboxTest):
    def test_following(self):
        env = {"PATH": os.environ["PATH"], "SPACE_URL": self.server.url, "SPACE_API_KEY": self.server.key}
        process = self.server.cli("exec", "-d", self.sb.id, "--", "sh", "-c",
                                  "echo one; echo two >&2; until [ -e /root/go ]; do sleep 0.1; done; echo three; exit 9")
        self.assertEqual(process.returncode, 0, process)
        name = process.stdout.decode().strip()
        child = subprocess.Popen([programs.program("space"), "logs", "-f", name], env=env, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        self.assertEqual(child.stdout.readline(), b"one\n")
        self.assertEqual(child.stderr.readline(), b"two\n")
        self.sb.put("/root/go", b"")
        out, err = child.communicate(timeout=60)
        self.assertEqual((child.returncode, out, err), (0, b"three\n", b""))
        for words, out in ((["--tail", "6"], b"three\n"), (["--since-offset", "4"], b"three\n"), (["-f"], b"one\nthree\n"),
                           (["--stream", "stderr"], b"")):
            self.assertEqual(self.server.cli("logs", *words, self.sb.id, name).stdout, out)

    def test_after_the_sandbox(self):
        one = Sandbox.create(self.api, {"template": self.template})
        name = one.exec("echo kept").process["id"]
        one.delete()
        for words in ([], ["-f"]):
            done = self.server.cli("logs", *words, one.id, name)
            self.assertEqual((done.returncode, done.stdout), (0, b"kept\n"), done)

    def test_signals(self):
        def start():
            return self.server.cli("exec", "-d", self.sb.id, "--", "sh", "-c", "sleep 1000 & wait").stdout.decode().strip()
        for words, name in ((["-s", "9"], "SIGKILL"), (["-s", "int", "--tree"], "SIGINT"), ([], "SIGTERM")):
            process = start()
            deadline = time.monotonic() + 30
            while self.server.cli("kill", *words, self.sb.id, process).returncode != 0:
                self.assertLess(time.monotonic(), deadline)
            self.assertEqual(self.sb.result(process)["reason"], "signal")
            self.assertEqual(self.sb.result(process)["signal"], name)
