"""Base classes of the tests."""
import os
import unittest

from . import host, server
from .api import Sandbox
from .wait import until


def limit(seconds):
    """The longest a test may take, in place of the default."""

    def mark(function):
        function.time_limit = seconds
        return function

    return mark


class SpaceTest(unittest.TestCase):
    """Tests on the shared server. They make their own sandboxes and leave the rest as they found it."""

    maxDiff = 4000
    template = "busybox"

    def setUp(self):
        self.server = server.shared()
        self.api = self.server.api

    def tearDown(self):
        self.assertTrue(self.server.alive(), "the server has died")
        reports = self.server.sanitizer_reports()
        self.assertFalse(reports, reports)

    def sandbox(self, wait=True, **body):
        """A running sandbox that goes when the test ends."""
        body.setdefault("template", self.template)
        made = Sandbox.create(self.api, body, wait=wait)
        self.addCleanup(self.api.call, "DELETE", made.path)
        return made

    def small_sandbox(self):
        """A sandbox whose disk is quickly full: 64 MiB."""
        if "small" not in self.server.templates:
            self.server.templates["small"] = self.server.build_template("small", {"/etc/small": b""},
                                                                               disk_mib=64)
        return self.sandbox(template="small", resources={"disk_mib": 64})

    def until(self, condition, what, timeout=30.0):
        return until(condition, what, timeout)

    def wait_state(self, sandbox, state, timeout=30.0):
        states = (state,) if isinstance(state, str) else state
        until(lambda: sandbox.state() in states, f"{sandbox.id} in state {state}", timeout)

    def assertRecent(self, timestamp):
        self.assertRegex(timestamp, r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")


class SharedSandboxTest(SpaceTest):
    """Tests that may share one sandbox: made once for the class, on the shared server."""

    _sandbox = None

    def setUp(self):
        super().setUp()
        cls = type(self)
        if cls._sandbox is None or cls._server is not self.server:
            cls._server = self.server
            cls._sandbox = Sandbox.create(self.api, {"template": self.template})
        self.sb = cls._sandbox

    @classmethod
    def tearDownClass(cls):
        if cls._sandbox is not None and cls._server.alive():
            cls._sandbox.delete(wait=False)
        cls._sandbox = None


class OwnServerTest(SpaceTest):
    """Tests that stop, starve or break a server: each class has one of its own; `config` configures it."""

    config = None
    busybox = True
    _server = None

    def setUp(self):
        cls = type(self)
        if cls._server is None or not cls._server.alive():
            self.drop()
            cls._server = server.Server(config=self.config)
            cls._server.start()
            if self.busybox:
                cls._server.with_busybox()
        self.server = cls._server
        self.api = self.server.api

    @classmethod
    def drop(cls):
        """Gives up the class's server; the next test gets a new one."""
        if cls._server is not None:
            one, cls._server = cls._server, None
            one.purge_quietly()

    @classmethod
    def tearDownClass(cls):
        one, cls._server = cls._server, None
        if one is not None:
            one.close()


class FaultTest(OwnServerTest):
    """A server whose programs can be made to die at named points (src/base/fault.h)."""

    def setUp(self):
        cls = type(self)
        if cls._server is None or not cls._server.alive():
            self.drop()
            one = cls._server = server.Server(config=self.config)
            one.arm = os.path.join(one.base, "arm")
            one.passed = os.path.join(one.base, "passed")
            for path in (one.arm, one.passed):
                with open(path, "w", encoding="ascii"):
                    pass
                os.chmod(path, 0o666)
            one.env = {"SPACE_FAULT": f"@{one.arm}", "SPACE_FAULT_LOG": one.passed}
            one.start()
            one.with_busybox()
        self.server, self.api = cls._server, cls._server.api

    def arm(self, text):
        with open(self.server.arm, "w", encoding="ascii") as out:
            out.write(text)

    def passed(self):
        return host.read(self.server.passed).split()

    def again(self):
        self.server.kill()
        self.server.start()
