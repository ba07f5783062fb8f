"""`space port` with the real server and guest."""
import hashlib
import http.client
import os
import select
import signal
import socket
import subprocess
import threading
import time

from harness import server as programs
from harness.case import OwnServerTest, SharedSandboxTest, limit


class Forwards:
    def forward(self, *ports):
        """The program, and the local ports that it has printed."""
        env = {"PATH": os.environ["PATH"], "SPACE_URL": self.server.url, "SPACE_API_KEY": self.server.key}
        child = subprocess.Popen([programs.program("space"), "port", self.sb.id, *ports], env=env, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        self.addCleanup(self.end, child)
        locals_ = []
        for _ in ports:
            line = child.stdout.readline().decode()
            self.assertIn(self.sb.id, line, "no address was printed")
            locals_.append(int(line.split()[0].rpartition(":")[2]))
        return child, locals_

    @staticmethod
    def end(child):
        if child.poll() is None:
            child.kill()
        child.wait()
        child.stdout.close()
        child.stderr.close()

    def said(self, child, text):
        seen, deadline = b"", time.monotonic() + 60
        while text not in seen:
            self.assertLess(time.monotonic(), deadline, seen)
            if select.select([child.stderr], [], [], 0.2)[0]:
                seen += os.read(child.stderr.fileno(), 65536)
        return seen

    def connect(self, port):
        s = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.addCleanup(s.close)
        return s

    @staticmethod
    def until_end(s):
        data = b""
        while part := s.recv(65536):
            data += part
        return data

    def listen(self, port, command):
        """A listener in the guest that runs a command for each connection; waits until it is there."""
        self.sb.session(["nc", "-ll", "-p", str(port), "-e", *command], start="now")
        self.until_listening(port)

    def until_listening(self, port):
        self.until(lambda: f":{port:04X} " in self.sb.sh("cat /proc/net/tcp /proc/net/tcp6 2>/dev/null"), "a listener")


class Port(Forwards, SharedSandboxTest):
    def test_http(self):
        self.sb.sh("mkdir -p /root/www && echo hello > /root/www/index.html && "
                   "dd if=/dev/urandom of=/root/www/large bs=64k count=64 2>/dev/null")
        self.sb.session(["httpd", "-f", "-p", "8080", "-h", "/root/www"], start="now")
        self.until_listening(8080)
        child, (port,) = self.forward("0:8080")
        for _ in range(3):
            conn = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            conn.request("GET", "/index.html")
            self.assertEqual(conn.getresponse().read(), b"hello\n")
            conn.close()
        conn = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        conn.request("GET", "/large")
        digest = hashlib.sha256(conn.getresponse().read()).hexdigest()
        conn.close()
        self.assertEqual(digest, self.sb.sh("sha256sum < /root/www/large").split()[0])
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.wait(30), 130)
        self.assertEqual(child.stderr.read(), b"")

    def test_half_close(self):
        self.listen(9001, ["sh", "-c", "sha256sum; echo end"])
        _, (port,) = self.forward("0:9001")
        data = os.urandom(1_000_000)
        s = self.connect(port)
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        self.assertEqual(self.until_end(s).split(), [hashlib.sha256(data).hexdigest().encode(), b"-", b"end"])

    def test_the_guest_speaks_first_and_ends_first(self):
        self.listen(9002, ["echo", "greeting"])
        _, (port,) = self.forward("0:9002")
        self.assertEqual(self.until_end(self.connect(port)), b"greeting\n")

    def test_several_ports_and_many_connections(self):
        self.listen(9003, ["cat"])
        self.listen(9004, ["tr", "a-z", "A-Z"])
        _, ports = self.forward("0:9003", "0:9004")
        results = []

        def one(i):
            text = (b"text %d " % i) * 5000
            s = self.connect(ports[i % 2])
            threading.Thread(target=lambda: (s.sendall(text), s.shutdown(socket.SHUT_WR)), daemon=True).start()
            got = self.until_end(s)
            results.append(got == (text if i % 2 == 0 else text.upper()))

        threads = [threading.Thread(target=one, args=(i,)) for i in range(10)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(90)
        self.assertEqual(results, [True] * 10)

    def test_a_port_that_opens_later(self):
        child, (port,) = self.forward("0:9005")
        with self.assertRaises(ConnectionResetError):
            self.connect(port).recv(1)
        self.assertIn(b"port 9005", self.said(child, b"\n"))
        self.listen(9005, ["cat"])
        s = self.connect(port)
        s.sendall(b"now")
        self.assertEqual(s.recv(3), b"now")
        self.assertIsNone(child.poll())

    def test_a_client_that_vanishes(self):
        self.listen(9006, ["sh", "-c", "yes; echo gone > /root/vanished"])
        _, (port,) = self.forward("0:9006")
        s = self.connect(port)
        s.recv(1000)
        self.assertNotEqual(self.sb.exec(["test", "-e", "/root/vanished"]).code, 0)
        s.close()
        self.until(lambda: self.sb.exec(["test", "-e", "/root/vanished"]).code == 0, "the end of the writer")

    def test_the_same_port_here(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            number = free.getsockname()[1]
        self.listen(number, ["echo", "greeting"])
        _, ports = self.forward(str(number))
        self.assertEqual(ports, [number])
        self.assertEqual(self.until_end(self.connect(number)), b"greeting\n")


class Life(Forwards, OwnServerTest):
    @limit(300)
    def test_a_server_that_restarts_and_a_sandbox_that_goes(self):
        self.sb = self.sandbox()
        self.listen(9001, ["cat"])
        child, (port,) = self.forward("0:9001")
        s = self.connect(port)
        s.sendall(b"x")
        self.assertEqual(s.recv(1), b"x")
        self.server.restart()
        with self.assertRaises(ConnectionResetError):  # not an end that looks like the guest's
            s.recv(100)
        s = self.connect(port)
        s.sendall(b"y")
        self.assertEqual(s.recv(1), b"y")
        self.sb.delete()
        with self.assertRaises(ConnectionResetError):
            self.connect(port).recv(1)
        self.assertIn(child.wait(60), (1, 3))
