"""Files of a sandbox over HTTP."""
import hashlib
import os
import threading

from harness.case import SharedSandboxTest, SpaceTest, limit

LARGE_MIB = int(os.environ.get("SPACE_FILE_MIB", "64"))


class Files(SharedSandboxTest):
    def test_round_trip_of_any_bytes(self):
        for name, data in (("empty", b""), ("one", b"\x00"), ("binary", bytes(range(256)) * 4),
                           ("odd", os.urandom(70001))):
            with self.subTest(name=name):
                self.sb.put(f"/root/{name}", data)
                self.assertEqual(self.sb.read(f"/root/{name}"), data)
                self.assertEqual(self.sb.sh(f"stat -c '%s %a %U' /root/{name}"), f"{len(data)} 644 root\n")

    def test_what_a_command_wrote(self):
        self.sb.sh("printf written > /root/w")
        self.assertEqual(self.sb.read("/root/w"), b"written")

    def test_read_after_write_in_both_directions(self):
        for n in range(10):
            self.sb.put("/root/turn", b"%d" % n)
            self.assertEqual(self.sb.sh("cat /root/turn"), str(n))

    def test_names(self):
        for name in ("/root/with space", "/root/ünï", "/root/a%2Fb", "/root/plus+amp&x=1", "/root/'q\"", "/root/-n"):
            with self.subTest(name=name):
                self.sb.put(name, name.encode())
                self.assertEqual(self.sb.read(name), name.encode())

    def test_mode_user_and_parents(self):
        self.sb.put("/home/user/deep/er/file", b"x", mode="0600", user="user", parents=1)
        self.assertEqual(self.sb.sh("stat -c '%a %u %g' /home/user/deep/er/file"), "600 1000 1000\n")
        self.sb.put("/root/script", b"#!/bin/sh\necho ran\n", mode="0755")
        self.assertEqual(self.sb.exec(["/root/script"]).out, b"ran\n")

    def test_missing_parents_unless_asked(self):
        self.api.problem("PUT", self.sb.file("/root/none/file"), b"x", status=404, slug="no_such_file")

    def test_permissions_of_a_user_apply(self):
        self.api.problem("PUT", self.sb.file("/root/forbidden", user="user"), b"x", status=403,
                         slug="permission_denied")
        self.sb.put("/tmp/secret", b"s", mode="0600")
        self.api.problem("PUT", self.sb.file("/tmp/secret/x", user="user"), b"x", status=(409), slug="not_directory")

    def test_failures_answer_before_and_after_the_body(self):
        # Small bodies have been sent when the guest fails, large ones have not.
        for size in [1] * 20 + [3_000_000] * 3:
            self.api.problem("PUT", self.sb.file("/root/none/file"), b"x" * size, status=404, slug="no_such_file")

    def test_an_existing_mode_is_kept(self):
        self.sb.put("/root/keep", b"1", mode="0750")
        self.sb.put("/root/keep", b"2")
        self.assertEqual(self.sb.sh("stat -c %a /root/keep; cat /root/keep"), "750\n2")

    def test_errors(self):
        self.sb.sh("mkdir -p /root/dir/sub; echo x > /root/plain; ln -sfn /nowhere /root/dangling")
        cases = (("GET", "/root/absent", 404, "no_such_file"), ("GET", "/root/dir", 409, "is_directory"),
                 ("GET", "/root/plain/x", 409, "not_directory"), ("GET", "/root/dangling", 404, "no_such_file"),
                 ("PUT", "/root/dir", 409, "is_directory"), ("PUT", "/root/plain/x", 409, "not_directory"),
                 ("DELETE", "/root/absent", 404, "no_such_file"), ("DELETE", "/root/dir", 409, "not_empty"))
        for method, path, status, slug in cases:
            with self.subTest(method=method, path=path):
                self.api.problem(method, self.sb.file(path), b"x" if method == "PUT" else None, status=status,
                                 slug=slug)

    def test_bad_paths(self):
        for path in ("", "relative", "/a\x00b", "/" + "x" * 5000, "/root/" + "y" * 300):
            with self.subTest(path=path[:20]):
                answer = self.api.call("GET", self.sb.file(path))
                self.assertIn(answer.status, (400, 404, 414, 431), answer)
        self.api.problem("GET", f"{self.sb.path}/files", status=400)
        self.api.problem("GET", self.sb.file("/etc/passwd", colour="red"), status=400, slug="unknown_field")
        self.api.problem("PUT", self.sb.file("/root/m", mode="999"), b"", status=400)

    def test_delete(self):
        self.sb.sh("mkdir -p /root/tree/a/b; echo x > /root/tree/a/b/c; ln -sfn /etc /root/tree/link; echo x > /root/f")
        self.api.ok("DELETE", self.sb.file("/root/f"))
        self.api.ok("DELETE", self.sb.file("/root/tree", recursive=1))
        self.assertEqual(self.sb.sh("ls -d /root/f /root/tree /etc/passwd 2>/dev/null || true"), "/etc/passwd\n")

    def test_special_files_are_refused_not_hung(self):
        self.sb.sh("rm -f /root/fifo; mkfifo /root/fifo")
        answer = self.api.call("GET", self.sb.file("/root/fifo"), timeout=30)
        self.assertTrue(400 <= answer.status < 500, answer)
        # Its size is said to be 0; its content comes all the same.
        self.assertIn(b"MemTotal", self.sb.read("/proc/meminfo"))


class Ranges(SharedSandboxTest):
    def setUp(self):
        super().setUp()
        self.data = bytes(range(256)) * 40
        self.sb.put("/root/range", self.data)

    def fetch(self, **headers):
        return self.api.call("GET", self.sb.file("/root/range"), headers={k.replace("_", "-"): v
                                                                          for k, v in headers.items()})

    def test_ranges(self):
        size = len(self.data)
        for spec, start, end in (("0-0", 0, 1), ("10-99", 10, 100), ("10000-", 10000, size), ("-5", size - 5, size),
                                 ("5-999999", 5, size)):
            with self.subTest(spec=spec):
                answer = self.fetch(Range=f"bytes={spec}")
                self.assertEqual(answer.status, 206, answer)
                self.assertEqual(answer.body, self.data[start:end])
                self.assertEqual(answer.headers["content-range"], f"bytes {start}-{end - 1}/{size}")

    def test_unsatisfiable(self):
        answer = self.fetch(Range="bytes=99999-")
        self.assertEqual(answer.status, 416, answer)

    def test_nonsense_is_ignored(self):
        answer = self.fetch(Range="lines=1-2")
        self.assertIn(answer.status, (200, 400, 416))

    def test_etag_and_head(self):
        whole = self.fetch()
        etag = whole.headers["etag"]
        self.assertRegex(etag, r'^(W/)?"[^"]+"$')
        head = self.api.call("HEAD", self.sb.file("/root/range"))
        self.assertEqual((head.status, head.headers["etag"], head.headers["content-length"], head.body),
                         (200, etag, str(len(self.data)), b""))
        self.assertEqual(self.fetch(If_None_Match=etag).status, 304)
        self.sb.put("/root/range", self.data + b"!")
        changed = self.fetch(If_None_Match=etag)
        self.assertEqual(changed.status, 200)
        self.assertNotEqual(changed.headers["etag"], etag)


class Large(SpaceTest):
    @limit(400 + LARGE_MIB)
    def test_large_both_ways_in_constant_memory(self):
        sb = self.sandbox(resources={"disk_mib": max(2048, 2 * LARGE_MIB)})
        block = os.urandom(1 << 20)
        digest = hashlib.sha256()

        def blocks():
            for n in range(LARGE_MIB):
                part = n.to_bytes(8, "big") + block[8:]
                digest.update(part)
                yield part

        daemon = self.server.daemon()
        before = daemon.memory()["Rss"]
        conn = self.api.connect(300 + LARGE_MIB)
        # Chunked: the length is not known beforehand.
        conn.request("PUT", sb.file("/root/large"), blocks(), self.api.headers(), encode_chunked=True)
        response = conn.getresponse()
        self.assertIn(response.status, (200, 201, 204), response.read())
        response.read()
        conn.close()
        self.assertEqual(sb.sh("sha256sum < /root/large", timeout=120 + LARGE_MIB).split()[0], digest.hexdigest())

        conn, response = self.api.stream("GET", sb.file("/root/large"), timeout=300)
        self.assertEqual((response.status, response.getheader("Content-Length")), (200, str(LARGE_MIB << 20)))
        back, size = hashlib.sha256(), 0
        while True:
            part = response.read(1 << 16)
            if not part:
                break
            back.update(part)
            size += len(part)
        conn.close()
        self.assertEqual((size, back.hexdigest()), (LARGE_MIB << 20, digest.hexdigest()))
        self.assertLess(daemon.memory()["Rss"] - before, 16 << 20)

    def test_an_upload_cut_short_leaves_the_old_file(self):
        sb = self.sandbox()
        sb.put("/root/whole", b"old")
        conn = self.api.connect()
        conn.putrequest("PUT", sb.file("/root/whole"))
        for name, value in self.api.headers({"Content-Length": "1000000"}).items():
            conn.putheader(name, value)
        conn.endheaders()
        conn.send(b"n" * 300000)
        conn.sock.close()
        conn.close()
        self.until(lambda: sb.sh("ls -A /root").split() == ["whole"], "no temporary file left")
        self.assertEqual(sb.read("/root/whole"), b"old")

    def test_readers_see_the_old_or_the_new_file(self):
        sb = self.sandbox()
        old, new = b"a" * 300000, b"b" * 300000
        sb.put("/root/swap", old)
        seen, stop = set(), threading.Event()

        def read():
            while not stop.is_set():
                seen.add(sb.read("/root/swap"))

        reader = threading.Thread(target=read)
        reader.start()
        for n in range(6):
            sb.put("/root/swap", new if n % 2 == 0 else old)
        stop.set()
        reader.join()
        self.assertLessEqual(seen, {old, new})

    @limit(300)
    def test_a_full_disk_is_no_space(self):
        sb = self.small_sandbox()
        sb.exec("dd if=/dev/zero of=/root/fill bs=1M count=200; sync", timeout=200)
        self.api.problem("PUT", sb.file("/root/more"), b"x" * (4 << 20), status=507, slug="no_space")
        sb.sh("rm /root/fill; sync")
        sb.put("/root/more", b"fits")
        self.assertEqual(sb.read("/root/more"), b"fits")

    def test_a_client_that_leaves_in_the_middle_of_a_download(self):
        sb = self.sandbox()
        sb.sh("head -c 30000000 /dev/zero > /root/zeros")
        conn, response = self.api.stream("GET", sb.file("/root/zeros"))
        response.read(100000)
        conn.sock.close() if conn.sock else None
        response.close()
        conn.close()
        self.assertEqual(sb.sh("echo on"), "on\n")
