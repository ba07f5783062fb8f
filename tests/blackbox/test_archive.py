"""Archives in and out: what they keep, what they refuse, what they cost."""
import hashlib
import io
import os
import random
import subprocess
import tarfile
import threading

from harness.case import SharedSandboxTest, SpaceTest, limit
from harness.files import query, workers

ZSTD = {"Content-Type": "application/zstd"}


def entry(name, data=None, kind=tarfile.REGTYPE, mode=0o644, link="", **more):
    """(TarInfo, data) of one member."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.mtime = kind, mode, link, 1_600_000_000
    info.size = len(data or b"")
    for key, value in more.items():
        setattr(info, key, value)
    return info, data or b""


def directory(name, mode=0o755, **more):
    return entry(name, kind=tarfile.DIRTYPE, mode=mode, **more)


def symlink(name, link, **more):
    return entry(name, kind=tarfile.SYMTYPE, link=link, mode=0o777, **more)


def hard_link(name, link):
    return entry(name, kind=tarfile.LNKTYPE, link=link)


def tar(*entries, format=tarfile.PAX_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def members(data):
    """{name: (TarInfo, data)}; "." is the directory itself."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for info in archive:
            content = archive.extractfile(info).read() if info.isreg() else None
            found[info.name.removeprefix("./").rstrip("/") or "."] = (info, content)
    return found


def zstd(data, *options):
    return subprocess.run(["zstd", "-q", "-c", *options], input=data, capture_output=True, check=True).stdout


def unzstd(data):
    return subprocess.run(["zstd", "-q", "-d", "-c"], input=data, capture_output=True, check=True).stdout


class ArchiveTest(SharedSandboxTest):
    def setUp(self):
        super().setUp()
        self.sb.sh("chmod 755 /root; rm -rf /root/a /root/out; mkdir -p /root/a /root/out; printf outside > /root/out/file")

    def put(self, data, path="/root/a", headers=None, **more):
        return self.api.ok("PUT", query(self.sb, "archive", path, **more), data, status=200, headers=headers)

    def refuse(self, data, status=400, slug="invalid_request", path="/root/a", headers=None, **more):
        return self.api.problem("PUT", query(self.sb, "archive", path, **more), data, status=status, slug=slug,
                                headers=headers)

    def get(self, path="/root/a", accept=None, **more):
        return self.api.ok("GET", query(self.sb, "archive", path, **more),
                           headers={"Accept": accept} if accept else None).body

    def stat(self, *paths, form="%n %a %u %g %Y"):
        return self.sb.sh(f"cd /root/a; stat -c '{form}' {' '.join(paths)}").splitlines()


class Out(ArchiveTest):
    def test_what_is_kept(self):
        self.sb.sh("cd /root/a; printf data > f; chown 1000:1000 f; chmod 4751 f; mkdir -m 1777 d; mkdir -m 700 d/e; "
                   "printf x > d/e/x; ln f d/hard; ln -s ../f d/soft; ln -s /nowhere dangling; mkfifo -m 620 p; : > empty; "
                   "touch -d '2001-02-03 04:05:06' f d/e/x; chown -h 1000:1000 d/soft")
        body = self.get()
        found = members(body)
        self.assertEqual(set(found), {".", "f", "d", "d/e", "d/e/x", "d/hard", "d/soft", "dangling", "p", "empty"})
        both = [found["f"][0], found["d/hard"][0]]
        self.assertEqual(sorted(info.islnk() for info in both), [False, True], "one is a link to the other")
        real = next(info for info in both if not info.islnk())
        self.assertEqual((real.mode, real.uid, real.gid, real.uname, real.mtime, real.size),
                         (0o4751, 1000, 1000, "user", 981173106, 4))
        self.assertIn(next(info.linkname for info in both if info.islnk()).removeprefix("./"), ("f", "d/hard"))
        self.assertEqual(next(data for info, data in (found["f"], found["d/hard"]) if not info.islnk()), b"data")
        self.assertEqual([(name, info.type, info.mode) for name, (info, _) in sorted(found.items())
                          if name in ("d", "d/e", "p", "empty")],
                         [("d", tarfile.DIRTYPE, 0o1777), ("d/e", tarfile.DIRTYPE, 0o700),
                          ("empty", tarfile.REGTYPE, 0o644), ("p", tarfile.FIFOTYPE, 0o620)])
        self.assertEqual((found["d/soft"][0].linkname, found["d/soft"][0].uid, found["dangling"][0].linkname),
                         ("../f", 1000, "/nowhere"))
        self.assertEqual(found["d/e/x"][1], b"x")
        # A directory comes before what is in it.
        order = list(found)
        self.assertLess(order.index("d"), order.index("d/e"))
        self.assertLess(order.index("d/e"), order.index("d/e/x"))

    def test_of_one_file(self):
        self.sb.sh("printf one > /root/a/single")
        found = members(self.get("/root/a/single"))
        self.assertEqual([(info.name.removeprefix("./"), data) for info, data in found.values()], [("single", b"one")])

    def test_names_of_any_bytes(self):
        self.sb.sh("cd /root/a; printf bin > \"$(printf 'b\\377\\376')\"; printf uni > ünï; : > ' nl\n'; mkdir " +
                   "x" * 120 + "; : > " + "x" * 120 + "/" + "y" * 200)
        found = members(self.get())
        self.assertEqual(found["b\udcff\udcfe"][1], b"bin")
        self.assertEqual(found["ünï"][1], b"uni")
        self.assertIn(" nl\n", found)
        self.assertIn("x" * 120 + "/" + "y" * 200, found)

    def test_zstd(self):
        self.sb.sh("cd /root/a; seq 100000 > numbers; head -c 300000 /dev/urandom > noise")
        plain = members(self.get())
        for accept in ("application/zstd", "application/x-tar+zstd", "application/x-tar;q=0.1, application/zstd"):
            answer = self.api.ok("GET", query(self.sb, "archive", "/root/a"), headers={"Accept": accept})
            self.assertIn(answer.headers["content-type"], accept)
            self.assertLess(len(answer.body), 700000)
            packed = members(unzstd(answer.body))
            self.assertEqual({name: data for name, (_, data) in packed.items()},
                             {name: data for name, (_, data) in plain.items()})
        self.api.problem("GET", query(self.sb, "archive", "/root/a"), headers={"Accept": "image/png"}, status=400,
                         slug="unsupported")

    def test_head(self):
        answer = self.api.call("HEAD", query(self.sb, "archive", "/root/a"))
        self.assertEqual((answer.status, answer.headers["content-type"], answer.body), (200, "application/x-tar", b""))
        self.assertEqual(self.api.call("HEAD", query(self.sb, "archive", "/root/none")).status, 404)

    def test_errors(self):
        self.sb.sh("mkdir -m 700 /root/a/secret; mkfifo /root/a/fifo")
        for path, status, slug, more in (("/root/none", 404, "no_such_file", {}),
                                         ("/root/out/file/x", 409, "not_directory", {}),
                                         ("/root/a/secret", 403, "permission_denied", {"user": "user"}),
                                         ("/root/a/fifo", 400, "invalid_request", {}),
                                         ("relative", 400, "invalid_request", {}),
                                         ("/root/a", 400, "unknown_field", {"depth": 1})):
            with self.subTest(path=path):
                self.api.problem("GET", query(self.sb, "archive", path, **more), status=status, slug=slug)

    def test_what_a_user_may_not_read_breaks_the_answer(self):
        """A part is never taken for the whole."""
        self.sb.sh("cd /root/a; seq 1000 > first; mkdir -m 700 zz-secret; : > zz-secret/x")
        for accept in ("application/x-tar", "application/zstd"):
            conn, response = self.api.stream("GET", query(self.sb, "archive", "/root/a", user="user"),
                                             headers={"Accept": accept})
            whole = False
            if response.status == 200:
                try:
                    response.read()
                    whole = True
                except Exception:  # noqa: B902 - however the client notices
                    pass
            else:
                self.assertEqual(response.status, 403)
            conn.close()
            self.assertFalse(whole)

    def test_sparse_and_proc(self):
        self.sb.sh("cd /root/a; truncate -s 20M hole; printf end >> hole")
        found = members(self.get())
        self.assertEqual(found["hole"][1], bytes(20 << 20) + b"end")


class In(ArchiveTest):
    def test_what_is_kept(self):
        data = tar(directory("d", 0o1777), directory("d/e", 0o700, uid=1000, gid=1000),
                   entry("d/e/f", b"data", mode=0o640, uid=1000, gid=1000, mtime=981173106),
                   entry("s", b"#!", mode=0o4755), hard_link("again", "d/e/f"), symlink("link", "/nowhere", uid=12, gid=34),
                   entry("fifo", kind=tarfile.FIFOTYPE, mode=0o620), entry("no-parent/x", b""))
        stat = self.put(data).json
        self.assertEqual((stat["path"], stat["type"]), ("/root/a", "directory"))
        self.assertEqual(self.stat("d", "d/e", "d/e/f", "s", form="%n %a %u %g"),
                         ["d 1777 0 0", "d/e 700 1000 1000", "d/e/f 640 1000 1000", "s 4755 0 0"])
        self.assertEqual(self.stat("d/e/f", "d/e", form="%Y"), ["981173106", "1600000000"])
        self.assertEqual(self.sb.sh("cd /root/a; readlink link; stat -c '%u %g' link; stat -c '%F %a' fifo; "
                                    "stat -c '%h %i' again d/e/f | uniq | wc -l; cat again"),
                         "/nowhere\n12 34\nfifo 620\n1\ndata")

    def test_owners_by_name(self):
        self.put(tar(entry("f", b"", uid=777, gid=777, uname="user", gname="user"),
                     entry("g", b"", uid=777, gid=777, uname="nobody-here", gname="")))
        self.assertEqual(self.stat("f", "g", form="%u %g"), ["1000 1000", "777 777"])

    def test_round_trip_with_extended_attributes(self):
        headers = {"SCHILY.xattr.user.colour": "blue ü", "SCHILY.xattr.user.empty": ""}
        self.put(tar(entry("f", b"x", pax_headers=headers), directory("d", pax_headers=headers), symlink("l", "f"),
                     hard_link("h", "f")))
        first = self.get()
        self.put(first, "/root/a/again/there", parents=1)
        second = members(self.get("/root/a/again/there"))
        found = members(first)
        self.assertEqual(set(found), set(second))
        for name, (info, data) in found.items():
            other = second[name]
            self.assertEqual((info.type, info.mode, info.uid, info.gid, info.linkname, data),
                             (other[0].type, other[0].mode, other[0].uid, other[0].gid, other[0].linkname, other[1]))
            if name in ("f", "d") and not info.islnk():
                for key, value in headers.items():
                    self.assertEqual(info.pax_headers.get(key), value, (name, key))
                    self.assertEqual(other[0].pax_headers.get(key), value, (name, key))

    def test_every_format(self):
        long = "p" * 90 + "/" + "q" * 120
        for number, name in ((tarfile.USTAR_FORMAT, "ustar"), (tarfile.GNU_FORMAT, "gnu"), (tarfile.PAX_FORMAT, "pax")):
            with self.subTest(name):
                names = ["short", "ünï"] + ([long] if number != tarfile.USTAR_FORMAT else ["p" * 90 + "/" + "q" * 60])
                self.put(tar(*(entry(n, n.encode()) for n in names), format=number), f"/root/a/{name}", parents=1)
                for n in names:
                    self.assertEqual(self.sb.read(f"/root/a/{name}/{n}"), n.encode())

    def test_names_of_any_bytes(self):
        for number in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            self.put(tar(entry("b\udcff\udcfe", b"bin"), entry("-n *", b"text"), format=number))
            self.assertEqual(self.sb.sh("cat /root/a/\"$(printf 'b\\377\\376')\" '/root/a/-n *'; rm -r /root/a/*"), "bintext")

    def test_zstd(self):
        data = tar(*(entry(f"f{n}", b"%d" % n * 1000) for n in range(300)))
        third = len(data) // 3
        frames = zstd(data[:third]) + zstd(b"") + zstd(data[third:2 * third], "-19") + zstd(data[2 * third:], "-1")
        for body, headers in ((zstd(data), ZSTD), (zstd(data), {"Content-Type": "application/x-tar+zstd"}),
                              (zstd(data), {"Content-Type": "application/x-tar", "Content-Encoding": "zstd"}),
                              (frames, ZSTD)):
            with self.subTest(**headers):
                self.put(body, headers=headers)
                self.assertEqual(self.sb.sh("cd /root/a; ls | wc -l; cat f299; rm f*"), "300\n" + "299" * 1000)

    def test_existing_files_are_replaced_never_written_through(self):
        self.sb.sh("cd /root/a; ln -s ../out/file soft; ln /root/out/file hard; printf old > plain; mkdir d; printf k > d/keep")
        self.put(tar(entry("soft", b"new1"), entry("hard", b"new2"), entry("plain", b"new3"), directory("d", 0o711),
                     entry("d/more", b"m")))
        self.assertEqual(self.sb.sh("cd /root/a; cat soft hard plain d/keep d/more; stat -c '%a %F' d soft; "
                                    "cat ../out/file; stat -c %h ../out/file"),
                         "new1new2new3km711 directory\n644 regular file\noutside1\n")

    def test_as_a_user(self):
        self.sb.sh("rm -rf /tmp/u; mkdir -m 755 /tmp/u; chown 1000:1000 /tmp/u")
        data = tar(directory("d"), entry("d/f", b"x", mode=0o4755, uid=0, gid=0, uname="root"))
        self.put(data, "/tmp/u", user="user")
        self.assertEqual(self.sb.sh("stat -c '%u %g' /tmp/u/d /tmp/u/d/f"), "1000 1000\n1000 1000\n")
        self.refuse(data, 403, "permission_denied", user="user")
        self.refuse(tar(entry("dev", kind=tarfile.CHRTYPE, devmajor=1, devminor=3)), 403, "permission_denied", "/tmp/u",
                    user="user")
        # One owner for everything.
        self.put(data, "/root/a", owner="12:34")
        self.assertEqual(self.stat("d", "d/f", form="%u %g"), ["12 34", "12 34"])

    def test_refused_requests(self):
        data = tar(entry("f", b"x"))
        self.refuse(data, 404, "no_such_file", "/root/none/deeper")
        self.refuse(data, 409, "not_directory", "/root/out/file")
        self.refuse(data, 415, "unsupported_media_type", headers={"Content-Type": "application/zip"})
        self.refuse(data, 415, "unsupported_media_type", headers={"Content-Encoding": "gzip"})
        self.refuse(data, 400, "unknown_field", mode="0755")
        self.refuse(data, 400, "invalid_request", owner="nobody-there")
        self.refuse(data, 400, "invalid_request", path="relative")
        self.assertEqual(self.sb.sh("ls -A /root/a"), "")

    def test_damaged(self):
        data = tar(entry("first", b"1" * 600), entry("second", b"2" * 3000), entry("third", b"3"))
        for cut in (2000, 3000, 700, 100):
            self.refuse(data[:cut])
        # What came before stays; what was cut is not there.
        self.refuse(data[:3000])
        self.assertEqual(self.sb.sh("cd /root/a; ls -A; stat -c %s first"), "first\n600\n")
        self.refuse(b"this is no archive" * 100)
        broken = bytearray(data)
        broken[1536 + 148] ^= 1  # the checksum of the second header
        problem = self.refuse(bytes(broken))
        self.assertIn("first", problem["detail"])
        packed = zstd(data)
        self.refuse(packed[:-5], headers=ZSTD)
        self.refuse(packed[:20], headers=ZSTD)
        self.refuse(b"", headers=ZSTD)
        self.refuse(packed + b"garbage", headers=ZSTD)
        self.refuse(data, headers=ZSTD)
        self.until(lambda: not workers(self.sb), "no operation is left in the guest")

    def test_a_window_that_is_too_large(self):
        # The size is not known to the tool, so the frame asks for the whole window.
        problem = self.refuse(zstd(tar(entry("f", bytes(1000))), "--ultra", "-22", "--long=27"), headers=ZSTD)
        self.assertIn("window", problem["detail"])


class Hostile(ArchiveTest):
    """Whatever an archive says, nothing outside of the directory is touched."""

    def world(self):
        seen = self.sb.sh("cd /; find root tmp etc dev/shm -path root/a -prune -o "
                          "-exec stat -c '%n %i %h %s %a %u %Y %Z' {} + | sort; cat /root/out/file")
        self.assertIn("root/out/file ", seen)
        return seen

    def unpack(self, *entries, wanted=400, **more):
        """PUTs the archive, which must be refused, and looks whether anything outside is another."""
        before = self.world()
        answer = self.api.call("PUT", query(self.sb, "archive", "/root/a", **more), tar(*entries))
        if wanted == 400:
            self.assertEqual((answer.status, answer.json["type"]), (400, "urn:space:error:invalid_request"), answer)
        else:
            self.assertEqual(answer.status, wanted, answer)
        self.assertEqual(self.world(), before)
        return answer

    def test_the_way_up(self):
        for name in ("../out/evil", "a/../../out/evil", "..", "../", "./../out/evil", "d/..", "a/b/../../../out/evil"):
            with self.subTest(name=name):
                if not name.endswith("/"):
                    answer = self.unpack(directory("a"), entry(name, b"evil"))
                    self.assertIn("..", answer.json["detail"])
                self.unpack(directory(name))
                self.unpack(symlink(name, "x"))

    def test_absolute_names_are_taken_as_relative(self):
        self.unpack(entry("/root/out/file", b"evil"), entry("//tmp//x", b"y"), directory("/etc"), wanted=200)
        self.assertEqual(self.sb.sh("cd /root/a; cat root/out/file tmp/x; ls -d etc"), "evilyetc\n")

    def test_through_links_of_the_archive(self):
        for target in ("/root/out", "../out", "/", ".."):
            with self.subTest(target=target):
                self.sb.sh("rm -rf /root/a/*")
                self.unpack(symlink("way", target), entry("way/file", b"evil"))
                self.sb.sh("rm -rf /root/a/*")
                self.unpack(symlink("way", target), directory("way/new"))
                self.sb.sh("rm -rf /root/a/*")
                self.unpack(symlink("one", target), symlink("two", "one"), entry("two/root/out/file", b"evil"))

    def test_through_links_that_were_there(self):
        self.sb.sh("cd /root/a; ln -s /root/out way; mkdir d; ln -s ../../out d/way")
        self.unpack(entry("way/file", b"evil"))
        self.unpack(entry("d/way/file", b"evil"))
        self.unpack(entry("way/new/er", b"evil"))

    def test_hard_links_to_the_outside(self):
        for target in ("/root/out/file", "../out/file", "d/../../out/file", "way/file", "/etc/passwd"):
            with self.subTest(target=target):
                self.sb.sh("rm -rf /root/a/*; mkdir /root/a/d; ln -s ../out /root/a/way")
                before = self.world()
                answer = self.api.call("PUT", query(self.sb, "archive", "/root/a"),
                                       tar(hard_link("l", target), entry("l", b"evil")))
                self.assertGreaterEqual(answer.status, 400, answer)
                self.assertEqual(self.world(), before)
                # To a link that the archive makes: the link itself, if at all.
                self.api.call("PUT", query(self.sb, "archive", "/root/a"),
                              tar(symlink("s", target), hard_link("h", "s"), entry("h", b"new")))
                self.assertEqual(self.world(), before)

    def test_a_directory_that_becomes_a_link_and_back(self):
        before = self.world()
        self.api.call("PUT", query(self.sb, "archive", "/root/a"),
                      tar(symlink("d", "/root/out"), directory("d", 0o777), entry("d/file", b"evil")))
        self.api.call("PUT", query(self.sb, "archive", "/root/a"),
                      tar(directory("e"), entry("e/x", b""), symlink("e", "/root/out"), entry("e/file", b"evil")))
        self.assertEqual(self.world(), before)

    def test_links_swapped_while_it_unpacks(self):
        """Somebody in the sandbox puts links in the way all the time."""
        self.sb.sh("mkdir -p /root/a/d")
        swap = self.sb.session("cd /root/a; while :; do rm -rf d; ln -s /root/out d; rm -f d; mkdir d; done 2>/dev/null",
                               start="now")
        data = tar(*(entry(f"d/f{n}", b"evil") for n in range(20)))
        met = []

        def meet():
            answer = self.api.call("PUT", query(self.sb, "archive", "/root/a"), data)
            if answer.status == 400 and "link" in answer.json["detail"]:
                met.append(answer)
            return len(met) >= 3

        try:
            self.until(meet, "it comes across a link", 90)
        finally:
            self.api.ok("POST", f"{self.sb.path}/processes/{swap['session']['process_id']}/signal",
                        {"signal": "SIGKILL", "tree": True})
        self.assertEqual(self.sb.sh("ls -A /root/out; cat /root/out/file"), "file\noutside")

    def test_rubbish(self):
        rng = random.Random(7)
        good = bytearray(tar(directory("d"), entry("d/f", b"x" * 2000), symlink("l", "../out"), hard_link("h", "d/f"),
                             entry("n" * 300, b"y" * 100)))
        before = self.world()
        for _ in range(40):
            bad = bytearray(good)
            for _ in range(rng.randrange(1, 30)):
                bad[rng.randrange(len(bad))] = rng.randrange(256)
            answer = self.api.call("PUT", query(self.sb, "archive", "/root/a"), bytes(bad))
            self.assertIn(answer.status, (200, 400, 403, 404, 409), answer)
        self.assertEqual(self.world(), before)
        self.assertFalse(workers(self.sb))


class Cost(SpaceTest):
    SIZE = 160 << 20

    @limit(600)
    def test_constant_memory_both_ways(self):
        """Streams far larger than what the daemon may keep, plain and packed, and a client that rests."""
        sb = self.sandbox()
        daemon = self.server.daemon()
        sb.put("/root/warm-up", b"x")
        before = daemon.memory()["Rss"]
        peak = [0]
        done = threading.Event()

        def watch():
            while not done.wait(0.05):
                peak[0] = max(peak[0], daemon.memory()["Rss"])

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            sb.sh("mkdir /root/in")
            digest = self.upload(sb, {})
            self.assertEqual(sb.sh("sha256sum < /root/in/big", timeout=120).split()[0], digest)
            for accept in ("application/x-tar", "application/zstd"):
                self.assertEqual(self.download(sb, accept), digest)
        finally:
            done.set()
            watcher.join()
        # A window of zstd and the queues of one transfer, not more.
        self.assertLess(peak[0] - before, 24 << 20)

    def blocks(self):
        rng = random.Random(1)
        block = rng.randbytes(1 << 20)
        for n in range(self.SIZE >> 20):
            yield n.to_bytes(8, "big") + block[8:]

    def upload(self, sb, headers):
        digest = hashlib.sha256()
        info, _ = entry("big")
        info.size = self.SIZE

        def body():
            yield info.tobuf(tarfile.PAX_FORMAT)
            for block in self.blocks():
                digest.update(block)
                yield block
            yield bytes(1024)

        conn = self.api.connect(300)
        conn.request("PUT", query(sb, "archive", "/root/in"), body(), self.api.headers(headers), encode_chunked=True)
        response = conn.getresponse()
        self.assertEqual(response.status, 200, response.read())
        conn.close()
        return digest.hexdigest()

    def download(self, sb, accept):
        conn, response = self.api.stream("GET", query(sb, "archive", "/root/in"), headers={"Accept": accept},
                                         timeout=300)
        self.assertEqual(response.status, 200)
        unpack = subprocess.Popen(["zstd", "-q", "-d", "-c"] if "zstd" in accept else ["cat"], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
        found = {}

        def read():
            with tarfile.open(fileobj=unpack.stdout, mode="r|") as archive:
                for info in archive:
                    if info.isreg():
                        digest, source = hashlib.sha256(), archive.extractfile(info)
                        for block in iter(lambda: source.read(1 << 20), b""):
                            digest.update(block)
                        found[os.path.basename(info.name)] = digest.hexdigest()

        reader = threading.Thread(target=read)
        reader.start()
        while True:
            part = response.read(1 << 18)
            if not part:
                break
            unpack.stdin.write(part)
        unpack.stdin.close()
        reader.join()
        unpack.wait()
        conn.close()
        return found["big"]

    @limit(300)
    def test_a_bomb_fills_the_disk_and_nothing_else(self):
        """100 GiB of zeros in some megabytes, in a sandbox of 64 MiB."""
        sb = self.small_sandbox()
        sb.sh("mkdir /root/in")
        before = sb.sh("find / -xdev | sort")
        info, _ = entry("zeros")
        info.size = 100 << 30
        head = zstd(info.tobuf(tarfile.GNU_FORMAT))
        piece = zstd(bytes(64 << 20))
        daemon = self.server.daemon()
        rss, peak = daemon.memory()["Rss"], [0]

        def body():
            yield head
            for _ in range(1600):
                peak[0] = max(peak[0], daemon.memory()["Rss"])
                yield piece

        conn = self.api.connect(200)
        try:
            conn.request("PUT", query(sb, "archive", "/root/in"), body(), self.api.headers(ZSTD), encode_chunked=True)
        except OSError:
            pass  # the answer came before the body had gone
        response = conn.getresponse()
        answer = response.read()
        conn.close()
        self.assertEqual(response.status, 507, answer)
        self.assertIn(b"urn:space:error:no_space", answer)
        self.assertLess(peak[0] - rss, 24 << 20)
        self.until(lambda: sb.sh("find / -xdev | sort") == before, "no half file is left")
        sb.put("/root/in/fits", b"again")

    @limit(300)
    def test_ten_thousand_small_files(self):
        sb = self.sandbox()
        sb.sh("mkdir /root/many")
        data = tar(*(entry(f"d{n % 10}/f{n}", b"%d" % n * 100) for n in range(10000)), format=tarfile.USTAR_FORMAT)
        self.api.ok("PUT", query(sb, "archive", "/root/many"), data, timeout=200)
        self.assertEqual(sb.sh("find /root/many -type f | wc -l; cat /root/many/d9/f9999", timeout=60),
                         "10000\n" + "9999" * 100)
        back = members(self.api.ok("GET", query(sb, "archive", "/root/many"), timeout=200).body)
        self.assertEqual(sum(info.isreg() for info, _ in back.values()), 10000)
        self.assertEqual(back["d3/f1233"][1], b"1233" * 100)

    def test_a_client_that_leaves(self):
        sb = self.sandbox()
        sb.sh("mkdir /root/in; printf old > /root/in/big")
        before = sb.sh("find / -xdev | sort")
        info, _ = entry("big")
        info.size = 50 << 20
        for headers, pack in (({}, bytes), (ZSTD, zstd)):
            conn = self.api.connect()
            conn.putrequest("PUT", query(sb, "archive", "/root/in"))
            for name, value in self.api.headers({"Content-Length": str(60 << 20), **headers}).items():
                conn.putheader(name, value)
            conn.endheaders()
            conn.send(pack(info.tobuf() + os.urandom(2 << 20)))
            self.until(lambda: workers(sb), "it is being unpacked")
            conn.sock.close()
            conn.close()
            self.until(lambda: not workers(sb), "the guest gives up what nobody sends any more")
            self.assertEqual(sb.sh("find / -xdev | sort"), before)
            self.assertEqual(sb.read("/root/in/big"), b"old")
        sb.sh("head -c 60000000 /dev/urandom > /root/in/big")
        for accept in ("application/x-tar", "application/zstd"):
            conn, response = self.api.stream("GET", query(sb, "archive", "/root/in"), headers={"Accept": accept})
            response.read(100000)
            self.assertTrue(workers(sb))
            response.close()
            conn.close()
            self.until(lambda: not workers(sb), "the guest stops packing")

    def test_a_suspend_in_the_middle(self):
        """Both ends are told, nothing half is left, and asking again works."""
        sb = self.sandbox(lifecycle={"auto_wake": True})
        sb.sh("mkdir /root/in; head -c 40000000 /dev/urandom > /root/in/big")
        conn, response = self.api.stream("GET", query(sb, "archive", "/root/in"))
        response.read(100000)
        sb.verb("suspend")
        with self.assertRaises(Exception):  # noqa: B017 - however the client notices
            while response.read(1 << 20):
                pass
        conn.close()
        found = members(self.api.ok("GET", query(sb, "archive", "/root/in"), timeout=120).body)
        self.assertEqual(len(found["big"][1]), 40000000)
