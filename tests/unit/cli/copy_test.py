#!/usr/bin/env python3
"""cp and the file commands of the client, against a stand-in for the server."""
import filecmp
import io
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_case import SPACE, Case, TerminalCase, problem
from fake_files import Tree


class FileCase(Case):
    def setUp(self):
        super().setUp()
        self.tree = Tree(self.server)
        self.addCleanup(self.tree.close)
        self.dir = tempfile.mkdtemp(prefix="space-cli-")
        self.addCleanup(shutil.rmtree, self.dir, True)

    def here(self, *names):
        return os.path.join(self.dir, *names)

    def there(self, *names):
        return os.path.join(self.tree.root, *names)

    @staticmethod
    def write(path, data=b"data", mode=0o644):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)
        os.chmod(path, mode)

    @staticmethod
    def read(path):
        with open(path, "rb") as f:
            return f.read()

    def cp(self, *words, code=0, **kw):
        r = self.space("cp", *words, **kw)
        self.assertEqual(r.returncode, code, r.stderr)
        return r

    def until_open(self, p, path):
        while True:
            for number in os.listdir(f"/proc/{p.pid}/fd"):
                try:
                    if os.readlink(f"/proc/{p.pid}/fd/{number}") == path:
                        return
                except FileNotFoundError:
                    pass
            self.assertIsNone(p.poll())

    def plant(self, top):
        """A tree with what there is to be kept."""
        self.write(os.path.join(top, "a b"), b"x" * 100000, 0o751)
        self.write(os.path.join(top, "sub", "empty"), b"", 0o400)
        self.write(os.path.join(top, "sub", "deep", "f"), b"deep")
        os.makedirs(os.path.join(top, "none"))
        os.chmod(os.path.join(top, "none"), 0o500)
        os.symlink("a b", os.path.join(top, "link"))
        os.symlink("/nonexistent/x", os.path.join(top, "dangling"))
        os.link(os.path.join(top, "a b"), os.path.join(top, "sub", "hard"))
        self.write(os.path.join(top, "\N{SNOWMAN}"), b"utf-8")
        with open(os.path.join(os.fsencode(top), b"raw\xff"), "wb") as f:
            f.write(b"bytes")
        os.utime(os.path.join(top, "sub", "deep"), (1_500_000_000, 1_500_000_000))
        os.utime(os.path.join(top, "sub", "empty"), (1_400_000_000, 1_400_000_000))

    def check(self, top):
        """The tree of `plant`, elsewhere."""
        self.assertEqual(sorted(os.listdir(os.fsencode(top))), sorted(
            [b"a b", b"sub", b"none", b"link", b"dangling", "\N{SNOWMAN}".encode(), b"raw\xff"]))
        self.assertEqual(self.read(os.path.join(top, "a b")), b"x" * 100000)
        self.assertEqual(self.read(os.path.join(os.fsencode(top), b"raw\xff")), b"bytes")
        self.assertEqual(os.readlink(os.path.join(top, "link")), "a b")
        self.assertEqual(os.readlink(os.path.join(top, "dangling")), "/nonexistent/x")
        for name, mode in (("a b", 0o751), ("none", 0o500), ("sub/empty", 0o400)):
            self.assertEqual(stat.S_IMODE(os.stat(os.path.join(top, name)).st_mode), mode, name)
        self.assertTrue(os.path.samefile(os.path.join(top, "a b"), os.path.join(top, "sub", "hard")))
        self.assertEqual(int(os.stat(os.path.join(top, "sub", "deep")).st_mtime), 1_500_000_000)
        self.assertEqual(int(os.stat(os.path.join(top, "sub", "empty")).st_mtime), 1_400_000_000)

    def no_temporaries(self, top):
        for folder, folders, files in os.walk(top):
            for name in folders + files:
                self.assertFalse(name.startswith(".space-") or "." in name and len(name.rpartition(".")[2]) == 6, name)


class Files(FileCase):
    def test_in(self):
        data = os.urandom(200000)
        self.write(self.here("a b"), data, 0o751)
        self.cp("--parents", self.here("a b"), "sb_1:/dir/")
        request = [r for r in self.server.requests if r[0] == "PUT"][-1]
        self.assertEqual(request[1], "/v1/sandboxes/sb_1/files?path=%2Fdir%2Fa%20b&mode=0751&parents=1")
        self.assertEqual(request[3], data)
        self.assertEqual(request[2]["content-length"], "200000")
        self.assertEqual(self.read(self.there("dir", "a b")), data)
        self.cp(self.here("a b"), "sb_1:/dir")
        self.cp(self.here("a b"), "sb_1:/other")
        self.assertEqual(self.read(self.there("other")), data)
        self.cp("--mode", "0600", "-u", "user", self.here("a b"), "sb_1:/moded")
        self.assertIn("&user=user&mode=0600", self.paths("PUT")[-1])
        os.chmod(self.here("a b"), 0o4755)
        self.cp(self.here("a b"), "sb_1:/x")
        self.assertIn("mode=0755", self.paths("PUT")[-1])
        self.cp("-a", self.here("a b"), "sb_1:/x")
        self.assertIn(f"mode=4755&owner={os.getuid()}%3A{os.getgid()}", self.paths("PUT")[-1])

    def test_pipes_in(self):
        self.cp("-", "sb_1:/x", input=b"piped")
        self.assertEqual(self.server.requests[-1][3], b"piped")
        self.assertEqual(self.server.requests[-1][2]["transfer-encoding"], "chunked")
        r = self.cp("-", "sb_1:/new/x", input=b"", code=3)
        self.assertIn(b"space: /new/x (--parents makes missing directories): T: d", r.stderr)

    def test_a_file_that_shrinks(self):
        path = self.here("f")
        self.write(path, b"x")
        os.truncate(path, 3_000_000_000)
        self.server.answers[("PUT", "/v1/sandboxes/sb_1/files")] = (200, {}, {})
        p = self.start("cp", path, "sb_1:/x")
        self.until_open(p, path)
        os.truncate(path, 1000)
        out, err = p.communicate(timeout=60)
        self.assertEqual(p.returncode, 4, err)
        self.assertIn(b"became shorter", err)

    def test_out(self):
        data = os.urandom(200000)
        self.write(self.there("etc", "motd"), data, 0o640)
        self.cp("sb_1:/etc/motd", self.dir)
        self.assertEqual(self.read(self.here("motd")), data)
        self.assertEqual(stat.S_IMODE(os.stat(self.here("motd")).st_mode), 0o640)
        self.assertEqual(self.cp("sb_1:/etc/motd", "-").stdout, data)
        self.cp("sb_1:/etc/motd", self.here("renamed"))
        self.assertEqual(self.read(self.here("renamed")), data)
        self.cp("sb_1:/etc/motd", "/dev/null")
        r = self.cp("sb_1:/nope", self.here("nope"), code=3)
        self.assertIn(b"/nope: no such file or directory", r.stderr)
        r = self.cp("sb_1:/etc/motd", self.here("absent/"), code=3)
        self.assertEqual(sorted(os.listdir(self.dir)), ["motd", "renamed"])

    def test_a_set_user_id_bit_stays_away(self):
        self.write(self.there("tool"), b"x", 0o4777)
        self.cp("sb_1:/tool", self.dir)
        self.assertEqual(stat.S_IMODE(os.stat(self.here("tool")).st_mode), 0o777)
        self.cp("-a", "sb_1:/tool", self.here("kept"))
        self.assertEqual(stat.S_IMODE(os.stat(self.here("kept")).st_mode), 0o4777)

    def test_a_link_of_ours_stays_one(self):
        self.write(self.there("f"), b"new")
        self.write(self.here("real"), b"old")
        os.symlink("real", self.here("link"))
        self.cp("sb_1:/f", self.here("link"))
        self.assertTrue(os.path.islink(self.here("link")))
        self.assertEqual(self.read(self.here("real")), b"new")

    def test_a_link_as_the_source_is_followed(self):
        self.write(self.there("real", "f"), b"behind")
        os.symlink("real", self.there("dir"))
        os.symlink("real/f", self.there("file"))
        self.cp("sb_1:/file", self.here("file"))
        self.assertFalse(os.path.islink(self.here("file")))
        self.cp("sb_1:/dir/", self.here("dir"))
        self.assertEqual(self.read(self.here("dir", "f")), b"behind")

    def test_an_answer_that_breaks(self):
        self.write(self.there("f"), b"x" * 100000)
        self.write(self.here("f"), b"before")
        self.tree.break_after = 5000
        r = self.cp("sb_1:/f", self.here("f"), code=1)
        self.assertIn(b"broke off", r.stderr)
        self.assertEqual((self.read(self.here("f")), os.listdir(self.dir)), (b"before", ["f"]))
        self.cp("sb_1:/f", self.here("new"), code=1)
        self.assertEqual(os.listdir(self.dir), ["f"])
        self.assertEqual(self.cp("sb_1:/f", "-", code=1).stdout, b"x" * 5000)

    def test_a_full_disk(self):
        self.write(self.there("f"), b"x" * 100000)
        with open("/dev/full", "wb") as full:
            r = subprocess.run([SPACE, "cp", "sb_1:/f", "-"], env=self.env, stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(r.returncode, 1, r.stderr)
        self.assertIn(b"No space left", r.stderr)

    def test_names_of_any_bytes(self):
        name = b"raw\xff\n"
        self.write(self.here("f"), b"bytes")
        self.cp(os.fsencode(self.here("f")), b"sb_1:/" + name)
        self.assertEqual(self.read(os.fsencode(self.tree.root) + b"/" + name), b"bytes")
        self.cp(b"sb_1:/" + name, os.fsencode(self.dir))
        self.assertEqual(self.read(os.fsencode(self.dir) + b"/" + name), b"bytes")

    def test_a_reader_that_leaves(self):
        self.write(self.there("f"), b"x" * 3000000)
        for words in (("cp", "sb_1:/f", "-"), ("file", "cat", "sb_1:/f")):
            p = self.start(*words)
            self.assertEqual(len(p.stdout.read(1000)), 1000)
            p.stdout.close()
            self.assertEqual(p.wait(30), 141)
            self.assertEqual(p.stderr.read(), b"")
            p.stderr.close()

    def test_interrupts(self):
        p = self.start("cp", "-", "sb_1:/x", stdin=subprocess.PIPE)
        self.assertTrue(self.server.wait(lambda: self.server.requests))
        time.sleep(0.3)
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(20), 130)
        p.stdin.close()
        p.stdout.close()
        p.stderr.close()
        self.server.answers[("GET", "/v1/sandboxes/sb_1/files")] = lambda q, b: time.sleep(20) or (200, b"", {})
        self.write(self.there("f"))
        self.server.requests.clear()
        p = self.start("cp", "sb_1:/f", self.here("f"))
        self.assertTrue(self.server.wait(lambda: any("/files?" in r[1] for r in self.server.requests)))
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(20), 143)
        p.stdout.close()
        p.stderr.close()
        self.assertEqual(os.listdir(self.dir), [])

    def test_usage(self):
        for words in ((self.here("a"), self.here("b")), ("-", "-"), ("sb_1:x", "y"), ("file", "stat", "/x")):
            command = words if words[0] == "file" else ("cp", *words)
            self.assertEqual(self.space(*command).returncode, 2, words)

    def test_constant_memory(self):
        os.makedirs(self.there("big"))
        with open(self.there("big", "f"), "wb") as f:
            f.truncate(64 << 20)
        p = self.start("cp", "sb_1:/big/f", "-", stdout=subprocess.PIPE)
        peak = 0
        while p.stdout.read(1 << 20):
            with open(f"/proc/{p.pid}/status") as f:
                peak = max([peak] + [int(line.split()[1]) for line in f if line.startswith("VmHWM")])
        self.assertEqual(p.wait(20), 0)
        if "ASAN_OPTIONS" not in self.env:
            self.assertLess(peak, 30000)
        p.stdout.close()
        p.stderr.close()


class Trees(FileCase):
    def test_in(self):
        self.plant(self.here("t"))
        self.cp(self.here("t"), "sb_1:/new")
        self.check(self.there("new"))
        self.assertEqual({(e.uid, e.gid) for e in self.tree.entries}, {(0, 0)})
        self.cp(self.here("t"), "sb_1:/new")  # a directory: the tree goes into it
        self.check(self.there("new", "t"))
        r = self.cp(self.here("t"), "sb_1:/a/b", code=3)
        self.assertIn(b"--parents", r.stderr)
        self.cp("-p", self.here("t"), "sb_1:/a/b")
        self.check(self.there("a", "b"))
        self.write(self.there("file"))
        self.cp(self.here("t"), "sb_1:/file", code=4)

    def test_contents(self):
        self.plant(self.here("t"))
        for have, source in (("have", self.here("t", ".")), ("more", self.here("t") + "//./")):
            os.makedirs(self.there(have))
            self.write(self.there(have, "old"))
            os.chmod(self.there(have), 0o711)
            self.cp(source, f"sb_1:/{have}")
            self.assertEqual(self.read(self.there(have, "sub", "deep", "f")), b"deep")
            self.assertTrue(os.path.exists(self.there(have, "old")))
            self.assertEqual(stat.S_IMODE(os.stat(self.there(have)).st_mode), 0o711)
        r = subprocess.run([SPACE, "cp", ".", "sb_1:/whole"], cwd=self.here("t"), env=self.env, capture_output=True)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.check(self.there("whole"))

    def test_owners_in(self):
        self.write(self.here("t", "f"))
        if os.geteuid() == 0:
            os.chown(self.here("t", "f"), 1234, 4321)
        st = os.stat(self.here("t", "f"))
        self.cp("-a", self.here("t"), "sb_1:/new")
        self.assertEqual([(e.uid, e.gid) for e in self.tree.entries if e.name == "./f"], [(st.st_uid, st.st_gid)])

    def test_out(self):
        self.plant(self.there("t"))
        self.cp("sb_1:/t", self.here("new"))
        self.check(self.here("new"))
        self.cp("sb_1:/t", self.here("new"))
        self.check(self.here("new", "t"))
        self.cp("sb_1:/t", self.here("no", "such"), code=1)
        self.write(self.here("file"))
        self.cp("sb_1:/t", self.here("file"), code=4)
        self.no_temporaries(self.dir)
        self.cp("sb_1:/t", self.here("again"))
        shutil.rmtree(self.here("again"))

    def test_out_into(self):
        self.plant(self.there("t"))
        self.write(self.here("d", "sub", "deep", "f"), b"old", 0o600)
        os.chmod(self.here("d"), 0o711)
        os.chmod(self.here("d", "sub"), 0o700)
        self.cp("sb_1:/t/.", self.here("d"))
        self.assertEqual(self.read(self.here("d", "sub", "deep", "f")), b"deep")
        self.assertEqual(stat.S_IMODE(os.stat(self.here("d")).st_mode), 0o711)
        self.assertEqual(stat.S_IMODE(os.stat(self.here("d", "sub")).st_mode), 0o700)

    @unittest.skipIf(os.geteuid() != 0, "needs root")
    def test_owners_out(self):
        self.write(self.there("t", "f"), b"x", 0o4755)
        os.chown(self.there("t", "f"), 1234, 4321)
        os.chmod(self.there("t", "f"), 0o4755)
        self.cp("sb_1:/t", self.here("ours"))
        st = os.stat(self.here("ours", "f"))
        self.assertEqual((st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)), (0, 0, 0o755))
        self.cp("-a", "sb_1:/t", self.here("theirs"))
        st = os.stat(self.here("theirs", "f"))
        self.assertEqual((st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)), (1234, 4321, 0o4755))

    def test_streams(self):
        self.plant(self.there("t"))
        data = self.cp("sb_1:/t", "-").stdout
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            self.assertIn("./sub/deep/f", tar.getnames())
        os.makedirs(self.there("into"))
        self.cp("-", "sb_1:/into", input=data)
        self.check(self.there("into"))
        self.assertEqual(self.tree.queries[-1][2].get("owner"), "0:0")
        self.cp("-a", "-", "sb_1:/made/", input=data)
        self.check(self.there("made"))
        self.assertNotIn("owner", self.tree.queries[-1][2])

    def test_an_archive_that_breaks(self):
        self.plant(self.there("t"))
        whole = len(self.cp("sb_1:/t", "-").stdout)
        for cut in (0, 1, 512, 1000, 5000, whole // 2, whole - 1):
            self.tree.break_after = cut
            shutil.rmtree(self.here("d"), ignore_errors=True)
            self.cp("sb_1:/t", self.here("d"), code=1)
            self.no_temporaries(self.dir)
            for folder, _, files in os.walk(self.here("d")):
                for name in files:
                    if name == "a b":
                        self.assertEqual(os.path.getsize(os.path.join(folder, name)), 100000)

    def test_a_hidden_break_is_no_success(self):
        """The archive is whole, its stream is not."""
        self.plant(self.there("t"))
        self.tree.break_after = len(self.cp("sb_1:/t", "-").stdout) - 600
        self.cp("sb_1:/t", self.here("d"), code=1)

    def test_what_cannot_be_copied_is_told(self):
        self.write(self.there("t", "f"))
        os.mkfifo(self.there("t", "pipe"))
        r = self.cp("sb_1:/t", self.here("d"), code=1)
        self.assertIn(b"not copied: pipe", r.stderr)
        self.assertEqual(os.listdir(self.here("d")), ["f"])
        s = socket.socket(socket.AF_UNIX)
        self.addCleanup(s.close)
        s.bind(self.here("d", "socket"))
        self.cp(self.here("d"), "sb_1:/back")
        self.assertEqual(os.listdir(self.there("back")), ["f"])

    def test_a_tree_that_is_read_only(self):
        self.write(self.there("t", "a", "b", "f"))
        for name in ("t/a/b", "t/a"):
            os.chmod(self.there(name), 0o555)
        self.cp("sb_1:/t", self.here("d"))
        self.assertEqual(self.read(self.here("d", "a", "b", "f")), b"data")
        self.assertEqual(stat.S_IMODE(os.stat(self.here("d", "a")).st_mode), 0o555)

    def test_many_files_and_deep_ones(self):
        for i in range(3000):
            self.write(self.there("t", f"d{i % 7}", f"f{i}"), str(i).encode())
        self.write(self.there("t", *["x" * 10] * 100, "end"), b"end")
        self.cp("sb_1:/t", self.here("d"))
        self.assertEqual(filecmp.dircmp(self.there("t"), self.here("d")).diff_files, [])
        self.assertEqual(sum(len(f) for _, _, f in os.walk(self.here("d"))), 3001)
        self.cp(self.here("d"), "sb_1:/back")
        self.assertEqual(sum(len(f) for _, _, f in os.walk(self.there("back"))), 3001)

    PARTS = [letter * 200 for letter in "abcdefghijklmnopqrstuvwxyz"] + ["z" * 200] * 9  # 7,035 bytes: longer than PATH_MAX

    def test_long_paths_out(self):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            member = tarfile.TarInfo("./" + "/".join(self.PARTS + ["f"]))
            member.size = 4
            tar.addfile(member, io.BytesIO(b"deep"))
            member = tarfile.TarInfo("./after")
            tar.addfile(member)
        os.mkdir(self.there("top"))
        self.tree.archive = out.getvalue()
        self.cp("sb_1:/top", self.here("out"))
        at = os.open(self.here("out"), os.O_RDONLY)
        self.assertEqual(sorted(os.listdir(at)), ["a" * 200, "after"])
        for part in self.PARTS:
            at, above = os.open(part, os.O_RDONLY, dir_fd=at), at
            os.close(above)
        with open(os.open("f", os.O_RDONLY, dir_fd=at), "rb") as f:
            self.assertEqual(f.read(), b"deep")
        os.close(at)

    def test_long_paths_in(self):
        os.mkdir(self.here("top"))
        at = os.open(self.here("top"), os.O_RDONLY)
        for part in self.PARTS:
            os.mkdir(part, dir_fd=at)
            at, above = os.open(part, os.O_RDONLY, dir_fd=at), at
            os.close(above)
        with open(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=at), "wb") as f:
            f.write(b"deep")
        os.close(at)
        bodies = []
        self.server.answers[("PUT", "/v1/sandboxes/sb_1/files/archive")] = lambda _, body: bodies.append(body) or (200, {}, {})
        self.cp(self.here("top"), "sb_1:/dir")
        with tarfile.open(fileobj=io.BytesIO(bodies[-1])) as tar:
            self.assertEqual(tar.extractfile("./" + "/".join(self.PARTS + ["f"])).read(), b"deep")

    def test_a_sparse_file(self):
        os.makedirs(self.there("t"))
        with open(self.there("t", "f"), "wb") as f:
            f.truncate(1 << 20)
            f.seek(1 << 19)
            f.write(b"middle")
        out = self.here("sparse.tar")
        subprocess.run(["tar", "--sparse", "--format=posix", "-C", self.there("t"), "-cf", out, "."], check=True)
        self.tree.archive = self.read(out)
        self.cp("sb_1:/t", self.here("d"))
        self.assertEqual(self.read(self.here("d", "f")), self.read(self.there("t", "f")))


class Across(FileCase):
    def setUp(self):
        super().setUp()
        self.other = Tree(self.server, "sb_2")
        self.addCleanup(self.other.close)

    def test_files(self):
        self.write(self.there("f"), os.urandom(300000), 0o750)
        self.cp("sb_1:/f", "sb_2:/g")
        g = os.path.join(self.other.root, "g")
        self.assertEqual(self.read(g), self.read(self.there("f")))
        self.assertEqual(self.other.queries[-1][2]["mode"], "0750")
        self.cp("-a", "sb_1:/f", "sb_2:/")
        self.assertEqual(self.other.queries[-1][2]["owner"], f"{os.getuid()}:{os.getgid()}")
        self.assertEqual(self.other.queries[-1][2]["path"], "/f")

    def test_trees(self):
        self.plant(self.there("t"))
        self.cp("sb_1:/t", "sb_2:/new")
        self.check(os.path.join(self.other.root, "new"))
        self.assertEqual(self.other.queries[-1][2].get("owner"), "0:0")
        self.cp("-a", "sb_1:/t", "sb_2:/new")
        self.check(os.path.join(self.other.root, "new", "t"))
        self.assertNotIn("owner", self.other.queries[-1][2])
        os.chmod(self.other.root, 0o711)
        os.chmod(self.there("t"), 0o755)
        self.cp("sb_1:/t/.", "sb_2:/")
        self.assertEqual(stat.S_IMODE(os.stat(self.other.root).st_mode), 0o711)

    def test_a_source_that_breaks(self):
        self.write(self.there("f"), b"x" * 100000)
        self.tree.break_after = 50000
        r = self.cp("sb_1:/f", "sb_2:/g", code=1)
        self.assertIn(b"broke off", r.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.other.root, "g")))

    def test_within_one(self):
        self.plant(self.there("t"))
        self.cp("sb_1:/t", "sb_1:/u")
        self.assertEqual(self.tree.queries[-1], ("POST", "/copy", {"from": "/t", "to": "/u", "recursive": True,
                                                                   "replace": True}))
        self.cp("sb_1:/t/a b", "sb_1:/u")
        self.assertEqual(self.tree.queries[-1][2]["to"], "/u/a b")
        self.cp("sb_1:/t", "sb_1:/t/x", code=1)
        os.makedirs(self.there("v", "sub"))
        self.cp("sb_1:/t/.", "sb_1:/v")  # two trees are merged
        self.check(self.there("v"))


def entry(name, kind=tarfile.REGTYPE, link="", data=b"evil", mode=0o644, **more):
    e = tarfile.TarInfo(name)
    e.type, e.linkname, e.mode = kind, link, mode
    e.size = len(data) if kind == tarfile.REGTYPE else 0
    for name, value in more.items():
        setattr(e, name, value)
    return e, data


def archive(*entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for e, data in entries:
            tar.addfile(e, io.BytesIO(data) if e.size else None)
    return out.getvalue()


class Hostile(FileCase):
    """Archives of a guest that wants to write elsewhere."""

    def setUp(self):
        super().setUp()
        os.makedirs(self.there("t"))
        self.outside = self.here("outside")
        os.makedirs(self.outside)
        self.write(os.path.join(self.outside, "secret"), b"secret", 0o600)

    def unpack(self, *entries, code=1, into="d", raw=None):
        self.tree.archive = raw if raw is not None else archive(*entries)
        before = self.state()
        r = self.cp("sb_1:/t/.", self.here(into), code=code)
        self.assertEqual(self.state(), before)
        self.assertFalse([n for n in os.listdir(self.here(into)) if n.startswith(".space-")])
        return r

    def state(self):
        """Everything around the destination, names and contents."""
        found = {}
        for name in os.listdir(self.outside):
            path = os.path.join(self.outside, name)
            st = os.lstat(path)
            found[name] = (st.st_mode, st.st_nlink, st.st_ino, self.read(path))
        return found, sorted(n for n in os.listdir(self.dir) if n not in ("d", "outside", "e"))

    def test_names(self):
        for name in ("../evil", "a/../../evil", "..", "/tmp/space-cli-evil", "//x", "sub/.."):
            r = self.unpack(entry(name))
            self.assertIn(b"refused", r.stderr, name)
        self.assertFalse(os.path.exists("/tmp/space-cli-evil"))

    def test_links_of_the_archive(self):
        for target in (self.outside, "../outside", ".", "sub"):
            self.unpack(entry("l", tarfile.SYMTYPE, target), entry("l/evil"))
            self.unpack(entry("l", tarfile.SYMTYPE, target), entry("l/x", tarfile.DIRTYPE))
            self.unpack(entry("l", tarfile.SYMTYPE, target), entry("l/y/z"))
            self.unpack(entry("l", tarfile.SYMTYPE, target), entry("l", tarfile.DIRTYPE), code=4)
        # A file of the same name takes the link's place, and is not written through it.
        self.unpack(entry("l", tarfile.SYMTYPE, "../outside/secret"), entry("l"), code=0)
        self.assertFalse(os.path.islink(self.here("d", "l")))
        self.assertEqual(self.read(self.here("d", "l")), b"evil")

    def test_links_of_ours(self):
        os.makedirs(self.here("d"))
        os.symlink("../outside", self.here("d", "ours"))
        os.symlink("../outside/secret", self.here("d", "file"))
        for e in (entry("ours/evil"), entry("ours", tarfile.DIRTYPE), entry("ours/secret"),
                  entry("ours/d/e", tarfile.SYMTYPE, "x")):
            self.unpack(e, code=4 if e[0].name == "ours" else 1)
        self.unpack(entry("file"), code=0)
        self.assertEqual(self.read(self.here("d", "file")), b"evil")

    def test_hard_links(self):
        for target in ("../outside/secret", self.here("outside", "secret"), "missing", "d/x", "."):
            self.unpack(entry("h", tarfile.LNKTYPE, target))
        self.unpack(entry("s", tarfile.SYMTYPE, "../outside/secret"), entry("h", tarfile.LNKTYPE, "s"))
        self.unpack(entry("s", tarfile.SYMTYPE, "../outside"), entry("h", tarfile.LNKTYPE, "s/secret"))
        # A file that was there before is not the archive's to link to.
        self.write(self.here("d", "mine"), b"mine", 0o600)
        self.unpack(entry("h", tarfile.LNKTYPE, "mine"))
        self.assertEqual(os.stat(self.here("d", "mine")).st_nlink, 1)
        self.unpack(entry("mine"), entry("h", tarfile.LNKTYPE, "mine"), code=0)
        self.assertTrue(os.path.samefile(self.here("d", "mine"), self.here("d", "h")))
        self.unpack(entry("a"), entry("a", tarfile.LNKTYPE, "a"), code=0)

    def test_hard_links_are_not_written_through(self):
        self.unpack(entry("a", data=b"first"), entry("b", tarfile.LNKTYPE, "a"), entry("b", data=b"second"), code=0)
        self.assertEqual((self.read(self.here("d", "a")), self.read(self.here("d", "b"))), (b"first", b"second"))

    def test_devices(self):
        r = self.unpack(entry("null", tarfile.CHRTYPE, devmajor=1, devminor=3), entry("disk", tarfile.BLKTYPE),
                        entry("pipe", tarfile.FIFOTYPE), entry("f"))
        self.assertEqual(os.listdir(self.here("d")), ["f"])
        self.assertEqual(r.stderr.count(b"not copied"), 3)

    def test_bits(self):
        self.unpack(entry("f", mode=0o7777), entry("x", tarfile.DIRTYPE, mode=0o7777), code=0)
        for name in ("f", "x"):
            self.assertEqual(stat.S_IMODE(os.stat(self.here("d", name)).st_mode), 0o777)

    def test_a_directory_in_the_way(self):
        os.makedirs(self.here("d", "x", "y"))
        self.unpack(entry("x"), code=4)
        self.unpack(entry("x", tarfile.SYMTYPE, "y"), code=4)
        self.assertTrue(os.path.isdir(self.here("d", "x", "y")))
        self.write(self.here("d", "f"))
        self.unpack(entry("f", tarfile.DIRTYPE), code=4)
        self.unpack(entry("f/g"))

    def test_directories_in_disorder(self):
        self.unpack(entry("a", tarfile.DIRTYPE, mode=0o700), entry("b", tarfile.DIRTYPE, mode=0o711), entry("a/f"),
                    entry("a", tarfile.DIRTYPE, mode=0o777), entry("b/c/d/e"), entry("a/g"), code=0)
        self.assertEqual(stat.S_IMODE(os.stat(self.here("d", "a")).st_mode), 0o700)
        self.assertEqual(sorted(os.listdir(self.here("d", "a"))), ["f", "g"])

    def test_escapes_do_not_reach_the_terminal(self):
        r = self.unpack(entry("\x1b]0;x\x07", tarfile.FIFOTYPE))
        self.assertNotIn(b"\x1b", r.stderr)

    def test_the_root_as_a_file(self):
        for e in (entry("."), entry("./", tarfile.SYMTYPE, "x"), entry(".", tarfile.LNKTYPE, "x")):
            self.unpack(e)

    def test_names_that_are_too_long(self):
        self.unpack(entry("n" * 300))
        self.unpack(entry("/".join(["n" * 200] * 400)))
        self.unpack(entry("s", tarfile.SYMTYPE, "t" * 5000))

    def test_damage(self):
        good = archive(entry("a", data=b"x" * 5000), entry("b", data=b"y" * 5000))
        self.unpack(raw=b"\0" * 1024, code=0)
        for raw in (b"", b"not an archive" * 100, good[:600], good[:3000], good[:512] + b"\xff" * 512 + good[1024:3000],
                    b"\xff" * 4096):
            self.unpack(raw=raw)
        self.assertFalse(os.path.exists(self.here("d", "a")) and os.path.getsize(self.here("d", "a")) != 5000)

    def test_a_head_without_end(self):
        """A map of a sparse file that is larger than any memory should be."""
        count = 3_000_000
        head = entry("GNUSparseFile.0/f", data=b"")[0]
        body = f"{count}\n".encode() + b"0\n0\n" * count
        head.size = len(body)
        head.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "f",
                            "GNU.sparse.realsize": "1"}
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            tar.addfile(head, io.BytesIO(body))
        r = self.unpack(raw=out.getvalue())
        self.assertIn(b"head is too large", r.stderr)

    def test_padding_without_end(self):
        self.unpack(raw=archive(entry("f")) + b"\0" * (8 << 20))


class Progress(TerminalCase):
    def test_on_a_terminal_only(self):
        tree = Tree(self.server)
        self.addCleanup(tree.close)
        with open(os.path.join(tree.root, "f"), "wb") as f:
            f.write(b"x" * 1000000)
        r, w = os.pipe()
        for words, shown in (((), True), (("-q",), False)):
            p = self.open("cp", *words, "-", "sb_1:/x", stdin=r, stderr=True)
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline:
                os.write(w, b"y" * 1000)
                time.sleep(0.05)
            seen = self.drain()
            self.assertEqual(b"KiB/s" in seen, shown, seen)
            p.kill()
            p.wait()
        os.close(r)
        os.close(w)


class Commands(FileCase):
    def run_file(self, *words, code=0, **kw):
        r = self.space("file", *words, **kw)
        self.assertEqual(r.returncode, code, r.stderr)
        return r.stdout

    def test_ls(self):
        for name in "abcde":
            self.write(self.there("d", name))
        out = self.run_file("ls", "sb_1:/d").decode().splitlines()
        self.assertEqual(out[0].split(), ["TYPE", "MODE", "UID", "GID", "SIZE", "MODIFIED", "NAME"])
        self.assertEqual([line.split()[-1] for line in out[1:]], list("abcde"))  # of several pages
        self.assertEqual(self.tree.queries[0][2]["depth"], "1")
        items = json.loads(self.run_file("ls", "-ojson", "--depth", "3", "-u", "user", "one:/d"))["items"]
        self.assertEqual(len(items), 5)
        self.assertEqual((self.tree.queries[-1][2]["depth"], self.tree.queries[-1][2]["user"]), ("3", "user"))
        self.run_file("ls", "sb_1:/none", code=3)

    def test_contents(self):
        self.run_file("put", "--mode", "0600", "sb_1:/f", input=b"\0\xffdata")
        self.assertEqual(self.tree.queries[-1][2], {"path": "/f", "mode": "0600"})
        self.run_file("put", "-p", "sb_1:/x/y/g", input=b"g")
        self.assertEqual(self.run_file("cat", "sb_1:/f", "sb_1:/x/y/g"), b"\0\xffdatag")
        self.assertEqual(json.loads(self.run_file("stat", "-ojson", "sb_1:/f"))["size"], 6)
        self.run_file("cat", "sb_1:/none", "sb_1:/f", code=3)

    def test_changes(self):
        self.run_file("mkdir", "-p", "sb_1:/a/b")
        self.run_file("mkdir", "sb_1:/a/b", code=4)
        self.run_file("put", "sb_1:/a/f", input=b"f")
        self.run_file("mv", "sb_1:/a/f", "/a/g")
        self.run_file("cp", "sb_1:/a/g", "sb_1:/a/h")
        self.run_file("cp", "-r", "one:/a", "sb_1:/c")
        self.run_file("mv", "sb_1:/a/g", "/a/h", code=4)
        self.run_file("mv", "-f", "sb_1:/a/g", "/a/h")
        self.run_file("ln", "../x y", "sb_1:/a/l")
        self.run_file("chmod", "-r", "0711", "sb_1:/a/h")
        self.assertEqual(self.tree.queries[-1][2], {"path": "/a/h", "mode": "0711", "recursive": True})
        self.run_file("chown", "user:1", "sb_1:/a/h")
        self.assertEqual(self.tree.queries[-1][2], {"path": "/a/h", "owner": "user:1"})
        self.assertEqual(os.readlink(self.there("a", "l")), "../x y")
        self.assertEqual(sorted(os.listdir(self.there("a"))), ["b", "h", "l"])
        self.run_file("rm", "sb_1:/a/h")
        self.run_file("rm", "-r", "sb_1:/a")
        self.assertEqual(os.listdir(self.tree.root), ["c"])
        self.run_file("rm", "sb_1:/a", code=3)

    def test_usage(self):
        for words in (("ls", "/x"), ("mv", "sb_1:/a", "b"), ("mv", "sb_1:/a", "sb_2:/b"), ("chmod", "0644", "/x"),
                      ("ln", "x", "y"), ("nope",), ()):
            self.run_file(*words, code=2)
        self.assertEqual(self.tree.queries, [])

    def watch(self, *events, code, words=()):
        text = "".join(f"event: {e}\ndata: {json.dumps(d)}\n\n: ping\n\n" for e, d in events)
        self.server.answers[("GET", "/v1/sandboxes/sb_1/files/watch")] = (200, text.encode(), {})
        r = self.space("file", "watch", "-r", *words, "sb_1:/d")
        self.assertEqual(r.returncode, code, r.stderr)
        return r

    def test_watch(self):
        some = (("ready", {}), ("created", {"path": "/d/\x1bx"}), ("moved", {"path": "/d/a", "to": "/d/b"}))
        r = self.watch(*some, code=0, words=("-n", "2"))
        self.assertEqual(r.stdout, b"created     /d/?x\nmoved       /d/a -> /d/b\n")
        self.assertIn("recursive=1", self.server.requests[-1][1])
        r = self.watch(*some, ("end", {"reason": "suspended"}), code=1)
        self.assertIn(b"the watch has ended: suspended", r.stderr)
        r = self.watch(*some, code=1)  # one that just ends has missed what comes
        r = self.watch(("ready", {}), ("overflow", {}), code=1, words=("-n", "1"))
        r = self.watch(*some, code=0, words=("-ojson", "-n", "2"))
        self.assertEqual([json.loads(line)["event"] for line in r.stdout.splitlines()], ["ready", "created", "moved"])
        self.server.answers[("GET", "/v1/sandboxes/sb_1/files/watch")] = (429, problem(429, "capacity"), {})
        self.assertEqual(self.space("file", "watch", "sb_1:/d").returncode, 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
