"""The real server in a temporary state directory."""
import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from . import host, rootfs
from .api import Api
from .wait import until

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
READY = re.compile(rb"^spaced: ready on http://([0-9.]+):([0-9]+)\s*$", re.MULTILINE)
# What a sanitizer writes; its presence in a log fails the test, whatever the test itself saw.
SANITIZER = re.compile(rb"AddressSanitizer|LeakSanitizer|runtime error:|UndefinedBehaviorSanitizer")

bin_dir = os.environ.get("SPACE_BIN", os.path.join(TOP, "build"))
default_engine = os.environ.get("SPACE_TEST_ENGINE", "auto")  # of every server, unless a test names one
start_timeout = 120.0


def program(name):
    """Path of a built program; a missing one is an error, never a skipped test."""
    path = os.path.join(bin_dir, "src", {"spaced": "spaced", "space": "cli"}[name], name)
    if not os.access(path, os.X_OK):
        raise RuntimeError(f"{path} is missing: build first (make)")
    return path


def witness():
    """Bytes of the program that runs inside sandboxes and tells whether memory, clocks and randomness are right."""
    with open(os.path.join(bin_dir, "tests", "guest", "witness"), "rb") as image:
        return image.read()


def temporary():
    """A fresh directory on a disk with room: /var/tmp, not a tmpfs."""
    path = tempfile.mkdtemp(prefix="space-test-", dir=os.environ.get("SPACE_TEST_DIR", "/var/tmp"))
    # The daemon runs as another user and must be able to pass through.
    os.chmod(path, 0o755)
    return path


class Server:
    def __init__(self, config=None, state_dir=None, listen="127.0.0.1:0", args=(), engine=None):
        self.base = temporary()
        atexit.register(shutil.rmtree, self.base, ignore_errors=True)
        self.state_dir = state_dir or os.path.join(self.base, "state")
        self.log_path = os.path.join(self.base, "spaced.log")
        self.listen, self.args = listen, list(args)
        self.engine = engine or default_engine
        if self.engine != "auto" and "engine" not in (config or {}):
            self.args += ["--engine", self.engine]
        if config is not None:
            path = os.path.join(self.base, "spaced.conf")
            with open(path, "w", encoding="utf-8") as out:
                out.write("".join(f"{name} = {value}\n" for name, value in config.items()))
            self.args += ["--config", path]
        self.env = {}  # on top of the test's own environment
        self.process = None
        self.host = self.port = self.key = None
        self.templates = {}
        self.log_from = 0
        self.purged = False

    # --- the life of the server ---
    def command(self):
        return [program("spaced"), "--dev", "--state-dir", self.state_dir, "--listen", self.listen, *self.args]

    def spawn(self):
        """Starts it without waiting."""
        self.log_from = os.path.getsize(self.log_path) if os.path.exists(self.log_path) else 0
        with open(self.log_path, "ab") as log:
            # A session of its own: signals to the test run do not reach it.
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True, env={**os.environ, **self.env})
        return self

    def start(self):
        self.spawn()
        atexit.register(self.purge_quietly)

        def ready():
            found = READY.search(self.log_bytes()[self.log_from:])
            if not found and self.process.poll() is not None:
                raise RuntimeError(f"spaced ended with {self.process.returncode} before it was ready\n{self.log()}")
            return found

        try:
            found = until(ready, "the ready line", start_timeout)
        except AssertionError as error:
            self.kill()
            raise RuntimeError(f"{error}\n{self.log()}") from error
        self.host, self.port = found.group(1).decode(), int(found.group(2))
        # Stay on the port over restarts, as a service would.
        self.listen = f"{self.host}:{self.port}"
        with open(os.path.join(self.state_dir, "dev.key"), encoding="ascii") as key:
            self.key = key.read().strip()
        return self

    @property
    def api(self):
        return Api(self.host, self.port, self.key)

    @property
    def anonymous(self):
        return Api(self.host, self.port)

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def terminate(self, timeout=30.0):
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def kill(self):
        """kill -9 of the whole server (daemon and broker), not of its virtual machines."""
        if self.process is None:
            return
        for process in [self.daemon(), self.broker()]:
            if process and process.alive:
                os.kill(process.pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)

    def restart(self):
        self.terminate()
        return self.start()

    def purge(self):
        """Ends the server and runs --purge; returns the finished process."""
        if self.alive():
            self.terminate()
        done = subprocess.run([program("spaced"), "--state-dir", self.state_dir, "--purge"], capture_output=True,
                              timeout=120, stdin=subprocess.DEVNULL)
        self.purged = done.returncode == 0
        return done

    def close(self):
        """Ends everything and removes the directory; raises when something is left over or a sanitizer spoke."""
        atexit.unregister(self.purge_quietly)
        done = self.purge()
        reports = self.sanitizer_reports()
        left = self.leftovers()
        if done.returncode != 0:  # what it is about stays, for the next try to find
            raise AssertionError(f"--purge ended with {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}")
        shutil.rmtree(self.base, ignore_errors=True)
        if left:
            raise AssertionError(f"left over after --purge: {left}")
        if reports:
            raise AssertionError(f"sanitizer reports:\n{reports}")

    def purge_quietly(self):
        try:
            self.kill()
            if not self.purged:
                self.purge()
            shutil.rmtree(self.base, ignore_errors=True)
        except (OSError, subprocess.SubprocessError, RuntimeError) as error:
            print(f"clean-up of {self.base}: {error}", file=sys.stderr)

    # --- what it leaves on the host ---
    def family(self):
        """Processes of the server itself: those started below the process the test started."""
        return [host.Process(self.process.pid)] + host.descendants(self.process.pid) if self.process else []

    def by_exe(self, name):
        for process in self.family() + host.with_argument(self.state_dir):
            if os.path.basename(process.exe) == name and host.state(process.pid) not in ("Z", "X"):
                return process
        return None

    def daemon(self):
        """The unprivileged daemon."""
        found = [p for p in self.family() + host.with_argument(self.state_dir)
                 if os.path.basename(p.exe) == "spaced" and host.state(p.pid) not in ("Z", "X")]
        for process in found:
            if process.status().get("Uid", "0").split()[0] != "0":
                return process
        return None

    def broker(self):
        return self.by_exe("space-privd")

    def sandbox_dirs(self):
        return host.listing(os.path.join(self.state_dir, "pool", "sandboxes"))

    def vmms(self):
        """All VMM processes of this server, warm ones included."""
        ids = self.sandbox_dirs()
        return [p for p in host.with_argument(*ids) if "qemu" in p.exe or "firecracker" in p.exe] if ids else []

    def vmm(self, sandbox_id):
        """The VMM process of one sandbox, or None."""
        found = [p for p in host.with_argument(sandbox_id) if "qemu" in p.exe or "firecracker" in p.exe]
        return found[0] if found else None

    def cgroup_parents(self):
        """The cgroup directories, one of each hierarchy, that hold this server's sandboxes."""
        ids = self.sandbox_dirs()
        return {os.path.dirname(path) for path in host.cgroups(*ids)} if ids else set()

    def cgroups(self):
        return sorted(os.path.join(parent, name) for parent in self.cgroup_parents()
                      for name in host.listing(parent) if name.startswith("sb_"))

    def leftovers(self):
        """What must not be there after --purge."""
        left = {
            "processes": [repr(p) for p in host.with_argument(self.state_dir)],
            "mounts": host.mounts(self.state_dir),
            "loops": host.loops(self.state_dir),
            "sandboxes": self.sandbox_dirs(),
        }
        return {name: value for name, value in left.items() if value}

    # --- logs ---
    def log_bytes(self):
        return host.read(self.log_path, binary=True)

    def log(self, size=6000):
        return self.log_bytes()[-size:].decode(errors="replace")

    def sanitizer_reports(self):
        text = self.log_bytes()
        for name in host.listing(os.path.join(self.state_dir, "asan")):
            text += host.read(os.path.join(self.state_dir, "asan", name), binary=True)
        found = SANITIZER.search(text)
        return text[max(0, found.start() - 200):found.start() + 6000].decode(errors="replace") if found else ""

    # --- templates and keys ---
    def build_template(self, name="busybox", extra=None, tag=None, timeout=180.0, **body):
        """Uploads the busybox archive and builds it; returns the finished operation."""
        archive = rootfs.make(self.base, extra, f"{name}.tar")
        upload = self.upload(archive)
        body.update({"kind": "tar", "upload": upload})
        if tag:
            body["tag"] = tag
        answer = self.api.ok("POST", f"/v1/templates/{name}/releases", body, status=202).json
        return self.api.wait_operation(answer.get("operation", answer), timeout)

    def upload(self, archive):
        with open(archive, "rb") as source:
            return self.api.ok("PUT", "/v1/template-uploads", source.read()).json["upload"]

    def with_busybox(self):
        """The server with the template busybox:latest."""
        if "busybox" not in self.templates:
            self.templates["busybox"] = self.build_template()
        return self

    def cli(self, *args, stdin=b"", timeout=120, env=None, key=True):
        """Runs the command line tool against this server."""
        environment = {"PATH": os.environ["PATH"], "HOME": "/root", "SPACE_URL": self.url or "", **(env or {})}
        if key:
            environment.setdefault("SPACE_API_KEY", self.key)
        return subprocess.run([program("space"), *args], input=stdin, capture_output=True, timeout=timeout,
                              env=environment)


_shared = None


def shared():
    """One server with the busybox template for all tests that do not harm it."""
    global _shared
    if _shared is not None and not _shared.alive():
        _shared.purge_quietly()
        _shared = None
    if _shared is None:
        _shared = Server().start().with_busybox()
    return _shared


def close_shared():
    global _shared
    server, _shared = _shared, None
    if server is not None:
        server.close()


def current_shared():
    return _shared
