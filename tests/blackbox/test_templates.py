"""Templates: builds, digests, tags, releases, removal."""
import io
import os
import tarfile
import threading

from harness import rootfs
from harness.api import Sandbox
from harness.case import SpaceTest, limit


class Templates(SpaceTest):
    def build(self, name, **kw):
        self.addCleanup(self.api.call, "DELETE", f"/v1/templates/{name}")
        return self.server.build_template(name, **kw)

    def tags(self, name):
        return {tag["tag"]: tag["digest"] for tag in self.api.get(f"/v1/templates/{name}")["tags"]}

    def test_listed(self):
        names = [one["name"] for one in self.api.pages("/v1/templates")]
        self.assertIn("busybox", names)
        self.assertEqual(names, sorted(names))
        digest = self.tags("busybox")["latest"]
        self.assertRegex(digest, r"^sha256:[0-9a-f]{64}$")

    def test_the_same_content_gives_the_same_digest(self):
        self.build("same")
        self.assertEqual(self.tags("same")["latest"], self.tags("busybox")["latest"])

    def test_a_disk_holds_the_template_and_the_guests_identity(self):
        """What the platform brings, kernel and agent, is not put there."""
        with tarfile.open(rootfs.make(self.server.base, name="compared.tar")) as archive:
            given = {"/" + name for name in archive.getnames()}
        sb = self.sandbox()
        self.assertEqual(set(sb.sh("find / -xdev").split()) - given,
                         {"/", "/lost+found", "/etc/hostname", "/etc/hosts", "/etc/machine-id"})
        self.assertEqual(sb.exec(["ls", sb.sh("readlink /proc/1/exe").strip()]).code, 1, "the agent's file is out of reach")

    @limit(300)
    def test_tags_move_and_releases_do_not_change(self):
        self.build("moving", extra={"/etc/release": b"one\n"}, tag="v1")
        one = self.tags("moving")["v1"]
        old = self.sandbox(template="moving:v1")
        self.build("moving", extra={"/etc/release": b"two\n"}, tag="v2")
        two = self.tags("moving")["v2"]
        self.assertNotEqual(one, two)
        self.api.ok("PUT", "/v1/templates/moving/tags/stable", {"digest": one})
        self.api.ok("PUT", "/v1/templates/moving/tags/stable", {"digest": two})
        self.assertEqual(self.tags("moving"), {"v1": one, "v2": two, "stable": two})
        self.assertEqual(old.sh("cat /etc/release"), "one\n")
        self.assertEqual(self.sandbox(template="moving:stable").sh("cat /etc/release"), "two\n")
        self.assertEqual(self.sandbox(template=f"moving@{one}").sh("cat /etc/release"), "one\n")

    def test_deleting_a_template_leaves_its_sandboxes(self):
        self.build("gone", extra={"/etc/release": b"still\n"})
        sb = self.sandbox(template="gone")
        self.api.ok("DELETE", "/v1/templates/gone")
        self.api.problem("GET", "/v1/templates/gone", status=404, slug="not_found")
        self.api.problem("POST", "/v1/sandboxes", {"template": "gone"}, status=404, slug="not_found")
        self.assertEqual(sb.sh("cat /etc/release"), "still\n")
        sb.verb("stop")
        sb.verb("start")
        self.assertEqual(sb.sh("cat /etc/release"), "still\n")

    def test_unknown_templates_are_named(self):
        for ref in ("absent", "busybox:absent", "busybox@sha256:" + "0" * 64):
            with self.subTest(ref=ref):
                problem = self.api.problem("POST", "/v1/sandboxes", {"template": ref}, status=404, slug="not_found")
                self.assertIn(ref.split("@")[0].split(":")[0], problem["detail"])

    def test_malformed_references(self):
        for ref in ("", "UPPER", "a b", "a:", ":tag", "a@sha256:12", "a@md5:" + "0" * 32, "../x", "a" * 300, "a/b/../c"):
            with self.subTest(ref=ref[:20]):
                self.assertIn(self.api.call("POST", "/v1/sandboxes", {"template": ref}).status, (400, 404))

    def test_bad_builds(self):
        path = "/v1/templates/bad/releases"
        for body in ({}, {"kind": "oci"}, {"kind": "tar"}, {"kind": "tar", "upload": "up_none"},
                     {"kind": "debian", "packages": ["not a name"]}, {"kind": "debian", "packages": "python3"},
                     {"kind": "debian", "packages": ["--option"]}, {"kind": "debian", "suite": "../../etc"},
                     {"kind": "tar", "upload": "up_none", "colour": 1}, {"kind": "tar", "upload": "up_none", "tag": "a b"},
                     {"kind": "tar", "upload": "up_none", "disk_mib": -1}):
            with self.subTest(body=body):
                answer = self.api.call("POST", path, body)
                self.assertIn(answer.status, (400, 404), answer)
        for name in ("UPPER", "-x", "a" * 200, "..", "a%2Fb"):
            with self.subTest(name=name[:20]):
                answer = self.api.call("POST", f"/v1/templates/{name}/releases", {"kind": "tar", "upload": "up_x"})
                self.assertIn(answer.status, (400, 404), answer)

    def test_an_upload_serves_one_build(self):
        upload = self.server.upload(rootfs.make(self.server.base))
        self.addCleanup(self.api.call, "DELETE", "/v1/templates/once")
        answer = self.api.ok("POST", "/v1/templates/once/releases", {"kind": "tar", "upload": upload}).json
        self.api.wait_operation(answer.get("operation", answer))
        answer = self.api.call("POST", "/v1/templates/once/releases", {"kind": "tar", "upload": upload})
        self.assertIn(answer.status, (400, 404), answer)


class HostileArchives(SpaceTest):
    """An archive is a client's data: it must not reach outside of the image."""

    def archive(self, fill):
        path = os.path.join(self.server.base, f"hostile-{self.id().rsplit('.', 1)[1]}.tar")
        rootfs.busybox_tar(path)
        with tarfile.open(path, "a") as tar:
            fill(tar)
        return path

    def attempt(self, fill):
        upload = self.server.upload(self.archive(fill))
        self.addCleanup(self.api.call, "DELETE", "/v1/templates/hostile")
        answer = self.api.ok("POST", "/v1/templates/hostile/releases", {"kind": "tar", "upload": upload}).json
        return self.api.wait_operation(answer.get("operation", answer), check=False, timeout=120)

    @staticmethod
    def entry(name, kind=tarfile.REGTYPE, link="", data=b""):
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size, info.mode = kind, link, len(data), 0o644
        return info, io.BytesIO(data)

    def test_paths_that_climb(self):
        mark = f"/var/tmp/space-escape-{os.getpid()}"

        def fill(tar):
            for name in ("../" * 12 + mark[1:], mark):
                tar.addfile(*self.entry(name, data=b"escaped"))

        self.attempt(fill)
        self.assertFalse(os.path.exists(mark))

    def test_symlink_then_file_through_it(self):
        mark = f"space-escape-{os.getpid()}"

        def fill(tar):
            tar.addfile(*self.entry("esc", tarfile.SYMTYPE, link="/var/tmp"))
            tar.addfile(*self.entry(f"esc/{mark}", data=b"escaped"))

        self.attempt(fill)
        self.assertFalse(os.path.exists(f"/var/tmp/{mark}"))

    def test_hard_link_to_the_hosts_files(self):
        def fill(tar):
            tar.addfile(*self.entry("stolen", tarfile.LNKTYPE, link="../../../../etc/shadow"))

        op = self.attempt(fill)
        if op["status"] == "succeeded":
            sb = self.sandbox(template="hostile")
            self.assertNotEqual(sb.exec(["test", "-s", "/stolen"]).code, 0)

    def test_not_an_archive(self):
        path = os.path.join(self.server.base, "noise")
        with open(path, "wb") as out:
            out.write(os.urandom(100000))
        upload = self.server.upload(path)
        self.addCleanup(self.api.call, "DELETE", "/v1/templates/noise")
        answer = self.api.ok("POST", "/v1/templates/noise/releases", {"kind": "tar", "upload": upload}).json
        op = self.api.wait_operation(answer.get("operation", answer), check=False)
        self.refused(op, "Unrecognized archive format")
        self.api.problem("POST", "/v1/sandboxes", {"template": "noise"}, status=404)

    def refused(self, op, words, slug="invalid_request"):
        """It failed, says why, and nothing of it is left."""
        self.assertEqual(op["status"], "failed")
        self.assertEqual(op["error"]["type"], f"urn:space:error:{slug}", op)
        self.assertIn(words, op["error"]["detail"], op)
        self.assertEqual(os.listdir(os.path.join(self.server.state_dir, "pool/building")), [])

    def test_an_archive_that_ends_early(self):
        with open(self.archive(lambda tar: tar.addfile(*self.entry("large", data=b"x" * 1000000))), "rb") as whole:
            path = os.path.join(self.server.base, "early.tar")
            with open(path, "wb") as out:
                out.write(whole.read()[:-500000])
        answer = self.api.ok("POST", "/v1/templates/early/releases", {"kind": "tar", "upload": self.server.upload(path)}).json
        self.refused(self.api.wait_operation(answer.get("operation", answer), check=False), "runcated")

    def test_a_package_that_does_not_exist(self):
        """Debian's tools say so; whoever asked reads it, and not that the server is broken."""
        answer = self.api.ok("POST", "/v1/templates/mistyped/releases",
                             {"kind": "debian", "packages": ["nosuchpkg"]}).json
        op = self.api.wait_operation(answer.get("operation", answer), check=False, timeout=170)
        self.refused(op, "Unable to locate package nosuchpkg", "build_failed")
        self.api.problem("GET", "/v1/templates/mistyped", status=404, slug="not_found")

    def test_larger_than_its_disk(self):
        def fill(tar):
            tar.addfile(*self.entry("zeros", data=b"\1" * (40 << 20)))

        upload = self.server.upload(self.archive(fill))
        self.addCleanup(self.api.call, "DELETE", "/v1/templates/tight")
        answer = self.api.ok("POST", "/v1/templates/tight/releases",
                             {"kind": "tar", "upload": upload, "disk_mib": 32}).json
        op = self.api.wait_operation(answer.get("operation", answer), check=False)
        self.refused(op, "disk", "too_large")


class Shapes(SpaceTest):
    @limit(300)
    def test_one_golden_made_once_for_many_that_ask_at_the_same_time(self):
        made = []

        def one():
            made.append(Sandbox.create(self.api, {"template": "busybox", "resources": {"memory_mib": 128}}))

        threads = [threading.Thread(target=one) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(made), 4)
        for sb in made:
            self.addCleanup(self.api.call, "DELETE", sb.path)
            self.assertEqual(sb.sh("echo up"), "up\n")
