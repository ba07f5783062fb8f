"""Trees of files: listing, moving, copying, changing, linking, owners, names of any bytes."""
import os
import threading

from harness.api import Api
from harness.case import SharedSandboxTest, SpaceTest, limit
from harness.files import act, b64, listing, names, query, raw, refused, workers


def depth_first(paths):
    """The order of a listing: a directory, then what is in it; within one by the bytes of the names."""
    return sorted(paths, key=lambda path: path.split(b"/"))


class List(SharedSandboxTest):
    def test_attributes(self):
        self.sb.sh("rm -rf /root/l; mkdir /root/l; cd /root/l; printf 12345 > f; chown 1000:1000 f; chmod 4751 f; "
                   "mkdir d; ln -s ../nowhere s; mkfifo p; touch -d '2001-02-03 04:05:06' f")
        items = {item["name"]: item for item in listing(self.sb, "/root/l")}
        self.assertEqual(items["f"], {"name": "f", "path": "/root/l/f", "type": "file", "size": 5, "mode": "4751",
                                      "uid": 1000, "gid": 1000, "modified_at": "2001-02-03T04:05:06.000Z"})
        self.assertEqual({name: item["type"] for name, item in items.items()},
                         {"f": "file", "d": "directory", "s": "symlink", "p": "other"})
        self.assertEqual(items["s"]["target"], "../nowhere")
        for item in items.values():
            stat = self.sb.api.get(query(self.sb, "stat", item["path"]))
            self.assertEqual(stat, {k: v for k, v in item.items() if k not in ("name", "target")})

    def test_order_and_depth(self):
        self.sb.sh("rm -rf /root/o; mkdir /root/o; cd /root/o; mkdir -p a/b/c a-/x A b0 'a b'; "
                   "touch a/z a/b/y a/b/c/deep a.txt zz b0/1 b0/10 b0/2 é; ln -s a link")
        every = [line for line in self.sb.exec("cd /root/o && find . -mindepth 1").out.split(b"\n") if line]
        every = depth_first(path.removeprefix(b"./") for path in every)
        self.assertGreater(len(every), 15)
        for depth in (1, 2, 3, 4, 100):
            wanted = [path for path in every if path.count(b"/") < depth]
            for page in (None, 1, 3):
                with self.subTest(depth=depth, page=page):
                    self.assertEqual(names(self.sb, "/root/o", depth=depth, limit=page), wanted)
        # The names of entries are their own, whatever the depth.
        self.assertEqual({item["name"] for item in listing(self.sb, "/root/o/a", depth=9)},
                         {"b", "c", "deep", "y", "z"})

    def test_links_are_not_followed_below(self):
        self.sb.sh("rm -rf /root/k /root/to; mkdir -p /root/k /root/to/in; ln -s /root/to /root/k/dir; "
                   "ln -s / /root/k/root; ln -s . /root/k/loop")
        self.assertEqual(names(self.sb, "/root/k", depth=50), [b"dir", b"loop", b"root"])

    def test_empty_and_root(self):
        self.sb.sh("rm -rf /root/e; mkdir /root/e")
        self.assertEqual(self.api.get(query(self.sb, "list", "/root/e")), {"items": [], "next_cursor": None})
        self.assertIn("/etc", [item["path"] for item in listing(self.sb, "/")])

    def test_errors(self):
        self.sb.sh("rm -rf /root/x; mkdir -p /root/x; touch /root/x/f; mkdir -m 700 /root/x/secret; chmod 755 /root")
        for path, status, slug, more in (("/root/none", 404, "no_such_file", {}),
                                         ("/root/x/f", 409, "not_directory", {}),
                                         ("/root/x/f/y", 409, "not_directory", {}),
                                         ("/root/x/secret", 403, "permission_denied", {"user": "user"}),
                                         ("relative", 400, "invalid_request", {}),
                                         ("/root/x", 400, "invalid_request", {"depth": 0}),
                                         ("/root/x", 400, "invalid_request", {"limit": "many"}),
                                         ("/root/x", 400, "invalid_request", {"cursor": "%%"}),
                                         ("/root/x", 400, "invalid_request", {"user": "nobody-there"}),
                                         ("/root/x", 400, "unknown_field", {"recursive": 1})):
            with self.subTest(path=path, **more):
                self.api.problem("GET", query(self.sb, "list", path, **more), status=status, slug=slug)

    @limit(400)
    def test_a_wide_directory_while_it_changes(self):
        """No entry that is there all the time is lost or doubled, whatever is made and removed meanwhile."""
        self.sb.sh("mkdir /root/wide; cd /root/wide; seq -w 0 19999 | sed s/^/f/ | xargs touch", timeout=200)
        wanted = [b"f%05d" % n for n in range(20000)]
        self.assertEqual(names(self.sb, "/root/wide", limit=5000), wanted)
        stop = threading.Event()

        def change():
            n = 0
            while not stop.is_set():
                n += 1
                # Before, between and behind what is there; half of it goes again.
                self.sb.exec(f"cd /root/wide; touch a{n} f0{n:04}x zz{n} f15000.{n}; rm -f a{n - 1} zz{n - 1}")

        changer = threading.Thread(target=change)
        changer.start()
        try:
            for page in (777, 1000):
                seen = names(self.sb, "/root/wide", limit=page)
                self.assertEqual(len(seen), len(set(seen)), "an entry came twice")
                self.assertEqual([name for name in seen if len(name) == 6 and name[:1] == b"f"], wanted)
                self.assertEqual(seen, sorted(seen))
        finally:
            stop.set()
            changer.join()
        self.api.ok("DELETE", self.sb.file("/root/wide", recursive=1), timeout=200)

    def test_a_deep_tree(self):
        self.sb.sh("rm -rf /root/deep; mkdir /root/deep; cd /root/deep; "
                   "i=0; while [ $i -lt 200 ]; do mkdir d$i && cd d$i && : > f; i=$((i+1)); done", timeout=100)
        wanted, path = [], b""
        for n in range(200):
            path += (b"/" if path else b"") + b"d%d" % n
            wanted += [path, path + b"/f"]
        wanted = depth_first(wanted)
        for page in (None, 7):
            self.assertEqual(names(self.sb, "/root/deep", depth=1000, limit=page), wanted)
        self.assertEqual(len(listing(self.sb, "/root/deep", depth=50)), 99)
        self.sb.put("/root/deep/" + path.decode() + "/bottom", b"here")
        self.assertEqual(self.sb.read("/root/deep/" + path.decode() + "/bottom"), b"here")
        act(self.sb, "copy", **{"from": "/root/deep", "to": "/root/deeper", "recursive": True})
        self.assertEqual(len(listing(self.sb, "/root/deeper", depth=1000, limit=5000)), 401)
        for name in ("deep", "deeper"):
            self.api.ok("DELETE", self.sb.file(f"/root/{name}", recursive=1))
        refused(self.sb, "move", 404, "no_such_file", **{"from": "/root/deep", "to": "/root/other"})

    def test_documents_match_their_schema(self):
        schemas = self.api.get("/openapi.json")["components"]["schemas"]
        self.sb.sh("rm -rf /root/s; mkdir /root/s; ln -s x /root/s/l")
        page = self.api.get(query(self.sb, "list", "/root/s"))
        for name, document in (("FileList", page), ("FileEntry", page["items"][0]),
                               ("FileStat", self.api.get(query(self.sb, "stat", "/root/s"))),
                               ("FilePath", act(self.sb, "mkdir", path="/root/s/d").json)):
            self.assertLessEqual(set(document), set(schemas[name]["properties"]), name)
            self.assertLessEqual(set(schemas[name]["required"]), set(document), name)


class AnyBytes(SharedSandboxTest):
    # Every byte but NUL and '/', in names of at most 200.
    NAMES = [bytes(n for n in range(1, 128) if n != 47), bytes(range(128, 256)), b"\xff", b"-n", b" ", b"\n",
             "ünï\U0001f600".encode(), b"\xc3", b"a\xc3\xa4\xff", b"..x", b"\\", b"%2e%2e", b"*"]

    def setUp(self):
        super().setUp()
        self.sb.sh("rm -rf /root/b; mkdir /root/b")

    def test_round_trip(self):
        for n, name in enumerate(self.NAMES):
            path = b"/root/b/" + name
            with self.subTest(name=name):
                stat = self.api.ok("PUT", query(self.sb, None, path), b"%d" % n).json
                self.assertEqual(raw(stat), path)
                self.assertEqual("path_b64" in stat, not self.is_text(path))
                self.assertEqual(self.api.ok("GET", query(self.sb, None, path)).body,
                                 b"%d" % n)
                self.assertEqual(raw(self.api.get(query(self.sb, "stat", path))), path)
        self.assertEqual(names(self.sb, "/root/b", limit=2), sorted(self.NAMES))
        for item in listing(self.sb, "/root/b"):
            self.assertEqual("name_b64" in item, not self.is_text(raw(item, "name")))
        # The guest sees the same.
        self.assertEqual(sorted(self.sb.exec("cd /root/b; find . -mindepth 1 -print0").out.split(b"\0")[:-1]),
                         sorted(b"./" + name for name in self.NAMES))

    @staticmethod
    def is_text(data):
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
        return True

    def test_in_every_request(self):
        a, b, c = (b"/root/b/" + name for name in (b"\xff1", b"\xfe2", b"\xfd/3"))
        self.assertEqual(raw(act(self.sb, "mkdir", path_b64=b64(a)).json), a)
        self.assertEqual(raw(act(self.sb, "copy", from_b64=b64(a), to_b64=b64(b), recursive=True).json), b)
        self.assertEqual(raw(act(self.sb, "move", from_b64=b64(b), to_b64=b64(c), parents=True).json), c)
        self.assertEqual(raw(act(self.sb, "chmod", path_b64=b64(c), mode="0700").json), c)
        self.assertEqual(raw(act(self.sb, "symlink", path_b64=b64(b), target_b64=b64(b"\xfd")).json), b)
        self.assertEqual(names(self.sb, "/root/b", depth=2), [b"\xfd", b"\xfd/3", b"\xfe2", b"\xff1"])
        link = [item for item in listing(self.sb, "/root/b") if item["type"] == "symlink"][0]
        self.assertEqual(raw(link, "target"), b"\xfd")
        self.assertEqual(names(self.sb, b"/root/b/\xfe2"), [b"3"])
        self.api.ok("DELETE", query(self.sb, None, b"/root/b/\xfd", recursive=1))
        self.assertEqual(names(self.sb, "/root/b"), [b"\xfe2", b"\xff1"])

    def test_errors_name_such_a_path_in_text(self):
        problem = self.api.problem("GET", query(self.sb, "stat", b"/root/b/\xff\n"), status=404, slug="no_such_file")
        self.assertIsInstance(problem["detail"], str)


class Change(SharedSandboxTest):
    def setUp(self):
        super().setUp()
        self.sb.sh("chmod 755 /root; rm -rf /root/c /tmp/c; mkdir -p /root/c/dir/sub /tmp/c; chmod 777 /tmp/c; cd /root/c; "
                   "printf 1 > one; printf 2 > two; printf in > dir/sub/in; ln -s one link")

    def state(self):
        return self.sb.sh("cd /root/c; find . -mindepth 1 | sort | tr '\\n' ' '")

    # --- move ---
    def test_move(self):
        answer = act(self.sb, "move", status=200, **{"from": "/root/c/one", "to": "/root/c/three"})
        self.assertEqual(answer.json, {"path": "/root/c/three"})
        self.assertEqual(self.sb.read("/root/c/three"), b"1")
        act(self.sb, "move", **{"from": "/root/c/dir", "to": "/root/c/x/y/dir", "parents": True})
        self.assertEqual(self.sb.read("/root/c/x/y/dir/sub/in"), b"in")
        act(self.sb, "move", **{"from": "/root/c/link", "to": "/root/c/moved-link"})
        self.assertEqual(self.sb.sh("readlink /root/c/moved-link"), "one\n")

    def test_move_does_not_replace_unless_asked(self):
        before = self.state()
        refused(self.sb, "move", 409, "exists", **{"from": "/root/c/one", "to": "/root/c/two"})
        refused(self.sb, "move", 409, "exists", **{"from": "/root/c/one", "to": "/root/c/dir"})
        self.assertEqual(self.state(), before)
        self.assertEqual(self.sb.read("/root/c/two"), b"2")
        act(self.sb, "move", **{"from": "/root/c/one", "to": "/root/c/two", "replace": True})
        self.assertEqual(self.sb.read("/root/c/two"), b"1")
        answer = self.api.call("POST", f"{self.sb.path}/files/move",
                               {"from": "/root/c/two", "to": "/root/c/dir", "replace": True})
        self.assertEqual(answer.status, 409, answer)

    def test_move_refused(self):
        for body, status, slug in (({"from": "/root/c/none", "to": "/root/c/x"}, 404, "no_such_file"),
                                   ({"from": "/root/c/one", "to": "/root/c/no/x"}, 404, "no_such_file"),
                                   ({"from": "/root/c/one", "to": "/root/c/two/x"}, 409, "not_directory"),
                                   ({"from": "/root/c/dir", "to": "/root/c/dir/sub/x"}, 400, "invalid_request"),
                                   ({"from": "/root/c/one", "to": "/tmp/c/x", "user": "user"}, 403,
                                    "permission_denied")):
            with self.subTest(**body):
                refused(self.sb, "move", status, slug, **body)
        self.assertEqual(self.sb.sh("ls -A /tmp/c"), "")

    def test_move_to_another_file_system(self):
        self.sb.sh("rm -rf /dev/shm/c; chmod 640 /root/c/one; chown 1000:1000 /root/c/one; "
                   "touch -d '2001-02-03 04:05:06' /root/c/one; ln /root/c/dir/sub/in /root/c/dir/again")
        act(self.sb, "move", **{"from": "/root/c/one", "to": "/dev/shm/c/one", "parents": True})
        self.assertEqual(self.sb.sh("stat -c '%a %u %g %Y' /dev/shm/c/one; cat /dev/shm/c/one; ls /root/c"),
                         "640 1000 1000 981173106\n1dir\nlink\ntwo\n")
        act(self.sb, "move", **{"from": "/root/c/dir", "to": "/dev/shm/c/dir"})
        self.assertEqual(self.sb.sh("cat /dev/shm/c/dir/sub/in; ls /root/c; rm -r /dev/shm/c"), "inlink\ntwo\n")

    # --- copy ---
    def test_copy(self):
        self.sb.sh("cd /root/c; chown 1000:1000 one; chmod 4750 one; touch -d '2001-02-03 04:05:06' one dir/sub/in; "
                   "mkfifo dir/fifo; chmod 711 dir; ln -s /nowhere dir/dangling")
        answer = act(self.sb, "copy", status=201, **{"from": "/root/c/one", "to": "/root/c/other"})
        self.assertEqual(answer.json, {"path": "/root/c/other"})
        self.assertEqual(self.sb.sh("stat -c '%a %u %g %Y' /root/c/other; cat /root/c/other"),
                         "4750 1000 1000 981173106\n1")
        act(self.sb, "copy", **{"from": "/root/c/dir", "to": "/root/c/new/dir2", "recursive": True, "parents": True})
        one, two = (self.sb.sh(f"cd /root/c/{name}; find . | sort | xargs stat -c '%n %a %F %Y'")
                    for name in ("dir", "new/dir2"))
        self.assertEqual([line for line in one.split("\n") if "directory" not in line],
                         [line for line in two.split("\n") if "directory" not in line])
        self.assertEqual(self.sb.sh("stat -c %a /root/c/new/dir2; readlink /root/c/new/dir2/dangling"),
                         "711\n/nowhere\n")
        act(self.sb, "copy", **{"from": "/root/c/link", "to": "/root/c/link2"})
        self.assertIn(self.sb.sh("readlink /root/c/link2 || cat /root/c/link2"), ("one\n", "1"))

    def test_copy_refused(self):
        before = self.state()
        for body, status, slug in (({"from": "/root/c/one", "to": "/root/c/two"}, 409, "exists"),
                                   ({"from": "/root/c/none", "to": "/root/c/x"}, 404, "no_such_file"),
                                   ({"from": "/root/c/dir", "to": "/root/c/x"}, 409, "is_directory"),
                                   ({"from": "/root/c/dir", "to": "/root/c/dir/x", "recursive": True}, 400,
                                    "invalid_request"),
                                   ({"from": "/root/c/one", "to": "/root/c/no/x"}, 404, "no_such_file"),
                                   ({"from": "/root/c/one", "to": "/root/c/x", "user": "user"}, 403,
                                    "permission_denied")):
            with self.subTest(**body):
                refused(self.sb, "copy", status, slug, **body)
        self.assertEqual(self.state(), before)
        act(self.sb, "copy", **{"from": "/root/c/one", "to": "/root/c/two", "replace": True})
        self.assertEqual(self.sb.read("/root/c/two"), b"1")

    def test_copy_as_a_user_is_the_users(self):
        self.sb.sh("chmod 644 /root/c/one")
        act(self.sb, "copy", **{"from": "/root/c/one", "to": "/tmp/c/mine", "user": "user"})
        self.assertEqual(self.sb.sh("stat -c '%u %g' /tmp/c/mine"), "1000 1000\n")

    # --- chmod ---
    def test_chmod(self):
        answer = act(self.sb, "chmod", status=200, path="/root/c/one", mode="0640")
        self.assertEqual(answer.json, {"path": "/root/c/one"})
        act(self.sb, "chmod", path="/root/c/two", owner="user:user")
        act(self.sb, "chmod", path="/root/c/dir", owner="1000", mode="2750", recursive=True)
        self.assertEqual(self.sb.sh("cd /root/c; stat -c '%n %a %u %g' one two dir dir/sub dir/sub/in"),
                         "one 640 0 0\ntwo 644 1000 1000\ndir 2750 1000 0\ndir/sub 2750 1000 0\n"
                         "dir/sub/in 2750 1000 0\n")
        act(self.sb, "chmod", path="/root/c/two", owner=":0")
        self.assertEqual(self.sb.sh("stat -c '%u %g' /root/c/two"), "1000 0\n")
        # A link is followed at the path itself, and not below it.
        self.sb.sh("mkdir /root/c/links; ln -s ../two /root/c/links/to; chmod 644 /root/c/two")
        act(self.sb, "chmod", path="/root/c/link", mode="0600")
        act(self.sb, "chmod", path="/root/c/links", mode="0700", recursive=True)
        self.assertEqual(self.sb.sh("stat -c %a /root/c/one /root/c/two"), "600\n644\n")

    def test_chmod_refused(self):
        for body, status, slug in (({"path": "/root/c/none", "mode": "0644"}, 404, "no_such_file"),
                                   ({"path": "/root/c/one", "mode": "0644", "user": "user"}, 403, "permission_denied"),
                                   ({"path": "/root/c/one", "owner": "user", "user": "user"}, 403,
                                    "permission_denied"),
                                   ({"path": "/root/c/one", "owner": "nobody-there"}, 400, "invalid_request"),
                                   ({"path": "/root/c/one", "owner": "root:no-group"}, 400, "invalid_request"),
                                   ({"path": "/root/c/one"}, 400, "invalid_request"),
                                   ({"path": "/root/c/one", "mode": "rwx"}, 400, "invalid_request"),
                                   ({"path": "/root/c/one", "mode": 420}, 400, "invalid_request")):
            with self.subTest(**body):
                refused(self.sb, "chmod", status, slug, **body)
        self.assertEqual(self.sb.sh("stat -c '%a %u' /root/c/one"), "644 0\n")

    # --- symlink ---
    def test_symlink(self):
        answer = act(self.sb, "symlink", status=201, path="/root/c/a/b/link", target="../../../one two", parents=True)
        self.assertEqual(answer.json, {"path": "/root/c/a/b/link"})
        self.assertEqual(self.sb.sh("readlink /root/c/a/b/link"), "../../../one two\n")
        for body, status, slug in (({"path": "/root/c/one", "target": "x"}, 409, "exists"),
                                   ({"path": "/root/c/no/x", "target": "x"}, 404, "no_such_file"),
                                   ({"path": "/root/c/x", "target": "y", "user": "user"}, 403, "permission_denied")):
            with self.subTest(**body):
                refused(self.sb, "symlink", status, slug, **body)
        act(self.sb, "symlink", path="/tmp/c/mine", target="/etc/passwd", user="user")
        self.assertEqual(self.sb.sh("stat -c %u /tmp/c/mine"), "1000\n")
        # Read through it, as any program would.
        self.assertEqual(self.sb.read("/tmp/c/mine"), self.sb.read("/etc/passwd"))

    def test_writing_through_links(self):
        self.sb.sh("cd /root/c; ln -s dir way; ln -s nowhere dangling; ln -s round about; ln -s about round; chmod 640 one")
        self.sb.put("/root/c/link", b"through")
        self.assertEqual(self.sb.sh("cd /root/c; readlink link; cat one; stat -c ' %a' one"), "one\nthrough 640\n")
        self.sb.put("/root/c/way/new", b"n")
        self.assertEqual(self.sb.sh("cd /root/c; readlink way; cat dir/new"), "dir\nn")
        for name in ("dangling", "about"):  # it leads nowhere: the file takes its place
            self.sb.put(f"/root/c/{name}", b"here")
            self.assertEqual(self.sb.sh(f"cd /root/c; stat -c %F {name}; cat {name}; ls -d nowhere 2>/dev/null || true"),
                             "regular file\nhere")

    def test_wrong_bodies(self):
        for verb in ("move", "copy", "chmod", "symlink", "mkdir"):
            for body, slug in (({}, "invalid_request"), ([], "invalid_request"), ({"path": 1}, "invalid_request"),
                               ({"from": "/a", "to": "/b", "path": "/c", "target": "d", "x": 1}, "unknown_field")):
                with self.subTest(verb=verb, body=body):
                    answer = self.api.call("POST", f"{self.sb.path}/files/{verb}", body)
                    self.assertEqual(answer.status, 400, answer)
                    if slug == "unknown_field":
                        self.assertIn(slug, answer.json["type"])
            self.api.problem("POST", f"{self.sb.path}/files/{verb}", b"{", status=400,
                             headers={"Content-Type": "application/json"}, slug="malformed_json")
            self.api.problem("POST", f"{self.sb.path}/files/{verb}", b"{}", status=415,
                             headers={"Content-Type": "text/plain"})
            self.api.problem("GET", f"{self.sb.path}/files/{verb}", status=405)
        long = "/" + "x" * 4095
        refused(self.sb, "move", 400, "invalid_request", **{"from": long, "to": "/a"})
        refused(self.sb, "symlink", 400, "invalid_request", path="/root/c/x", target="y" * 4096)

    def test_idempotency_key(self):
        key = {"Idempotency-Key": f"move-{os.urandom(8).hex()}"}
        body = {"from": "/root/c/one", "to": "/root/c/once"}
        first = self.api.ok("POST", f"{self.sb.path}/files/move", body, headers=key)
        again = self.api.ok("POST", f"{self.sb.path}/files/move", body, headers=key)
        self.assertEqual(first.json, again.json)
        self.api.problem("POST", f"{self.sb.path}/files/move", {**body, "to": "/root/c/x"}, headers=key, status=422)


class Owners(SharedSandboxTest):
    def test_put(self):
        for owner, wanted in (("user", "1000 0"), ("user:user", "1000 1000"), (":user", "0 1000"), ("12:34", "12 34"),
                              ("1000:", None), ("0", "0 0")):
            with self.subTest(owner=owner):
                if wanted is None:
                    self.api.problem("PUT", self.sb.file("/root/owned", owner=owner), b"x", status=400)
                    continue
                self.sb.sh("rm -f /root/owned")
                self.sb.put("/root/owned", b"x", owner=owner, mode="0640")
                self.assertEqual(self.sb.sh("stat -c '%u %g %a' /root/owned"), f"{wanted} 640\n")

    def test_the_replaced_files_owner_is_kept_or_not(self):
        self.sb.sh("printf old > /root/r; chown 1000:1000 /root/r; chmod 600 /root/r")
        self.sb.put("/root/r", b"new", owner="0:0")
        self.assertEqual(self.sb.sh("stat -c '%u %g %a' /root/r; cat /root/r"), "0 0 600\nnew")

    def test_refused(self):
        self.sb.sh("mkdir -p /tmp/o; chmod 777 /tmp/o; chown 1000 /tmp/o; rm -f /tmp/o/*")
        self.api.problem("PUT", self.sb.file("/tmp/o/f", user="user", owner="root"), b"x", status=403,
                         slug="permission_denied")
        self.api.problem("PUT", self.sb.file("/tmp/o/f", owner="no-such-user"), b"x", status=400,
                         slug="invalid_request")
        self.api.problem("PUT", self.sb.file("/tmp/o/f", owner="a:b:c"), b"x", status=400, slug="invalid_request")
        self.assertEqual(self.sb.sh("ls -A /tmp/o"), "", "nothing half made is left")
        self.sb.put("/tmp/o/f", b"x", user="user", owner="user")
        self.assertEqual(self.sb.sh("stat -c %u /tmp/o/f"), "1000\n")


class Sizes(SpaceTest):
    def test_nothing_and_a_sparse_8_gibibytes(self):
        sb = self.sandbox()
        sb.put("/root/empty", b"")
        self.assertEqual((sb.read("/root/empty"), sb.sh("stat -c %s /root/empty")), (b"", "0\n"))
        size = 8 << 30
        sb.sh(f"printf first > /root/huge; truncate -s {size} /root/huge; "
              f"printf middle | dd of=/root/huge bs=1 seek={size // 2 + 5} conv=notrunc 2>/dev/null; "
              f"printf last | dd of=/root/huge bs=1 seek={size - 4} conv=notrunc 2>/dev/null")
        head = self.api.call("HEAD", sb.file("/root/huge"))
        self.assertEqual((head.status, head.headers["content-length"]), (200, str(size)))
        self.assertEqual(self.api.get(query(sb, "stat", "/root/huge"))["size"], size)
        for spec, wanted in (("0-5", b"first\0"), (f"{size // 2 + 4}-{size // 2 + 11}", b"\0middle\0"),
                             ("-6", b"\0\0last"), (f"{size - 4}-", b"last")):
            answer = self.api.call("GET", sb.file("/root/huge"), headers={"Range": f"bytes={spec}"})
            self.assertEqual((answer.status, answer.body), (206, wanted), spec)
        self.assertEqual(self.api.call("GET", sb.file("/root/huge"), headers={"Range": f"bytes={size}-"}).status, 416)
        # A long piece of it, by a client that then has had enough.
        conn, response = self.api.stream("GET", sb.file("/root/huge"))
        self.assertEqual(response.getheader("Content-Length"), str(size))
        self.assertEqual(response.read(5), b"first")
        for _ in range(16):
            self.assertEqual(response.read(1 << 20).strip(b"\0"), b"")
        response.close()
        conn.close()
        self.until(lambda: not workers(sb), "the guest stops reading for a client that has left")

    @limit(300)
    def test_a_full_disk_leaves_nothing_half_made(self):
        sb = self.small_sandbox()
        sb.sh("mkdir /root/d; head -c 3000000 /dev/zero > /root/d/big; ln -s big /root/d/link")
        sb.exec("dd if=/dev/zero of=/root/fill bs=1M count=200; sync", timeout=200)
        sb.sh("sync")
        before = sb.sh("cd /; find root tmp | sort")
        self.api.problem("PUT", sb.file("/root/more"), b"x" * (4 << 20), status=507, slug="no_space")
        refused(sb, "copy", 507, "no_space", **{"from": "/root/d/big", "to": "/root/copy"})
        # Of a directory the files that came before stay; the one that did not fit is not there.
        refused(sb, "copy", 507, "no_space", **{"from": "/root/d", "to": "/root/copies", "recursive": True})
        self.assertEqual(sb.exec("ls -A /root/copies/big").code, 1)
        sb.exec("rm -rf /root/copies")
        self.until(lambda: sb.sh("cd /; find root tmp | sort") == before, "nothing else is left")
        sb.sh("rm /root/fill; sync")
        act(sb, "copy", **{"from": "/root/d", "to": "/root/copies", "recursive": True})
        self.assertEqual(sb.sh("cmp /root/d/big /root/copies/big; readlink /root/copies/link"), "big\n")


class Who(SpaceTest):
    def test_roles_and_projects(self):
        sb = self.sandbox()
        keys = {}
        for role, project in (("viewer", "default"), ("user", "elsewhere")):
            made = self.api.ok("POST", "/v1/keys", {"role": role, "project": project, "name": role}).json
            self.addCleanup(self.api.call, "DELETE", f"/v1/keys/{made['id']}")
            keys[role] = Api(self.server.host, self.server.port, made["key"])
        for kind in ("list", "stat", "watch", "archive"):
            keys["viewer"].problem("GET", query(sb, kind, "/"), status=403, slug="forbidden")
            keys["user"].problem("GET", query(sb, kind, "/"), status=404, slug="not_found")
            self.server.anonymous.problem("GET", query(sb, kind, "/"), status=401, slug="unauthorized")
        for verb in ("move", "copy", "chmod", "symlink", "mkdir"):
            keys["viewer"].problem("POST", f"{sb.path}/files/{verb}", {"path": "/a"}, status=403)
            keys["user"].problem("POST", f"{sb.path}/files/{verb}", {"path": "/a"}, status=404)
