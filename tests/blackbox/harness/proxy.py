"""A network between the client and the server, in which connections break while both live."""
import select
import socket
import struct
import threading

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() throws away what was not sent yet and sends an RST
PIECE = 65536


class Cut:
    """How one connection is cut: after so many bytes from the client (`up`) or from the server (`down`).

    With `reset` what is on its way is thrown away, else each side finds an end behind what was passed on. With `apart` the
    server does not hear of it until the next connection is over, as when a client's machine changes its network."""

    def __init__(self, up=None, down=None, reset=True, apart=False):
        self.up, self.down, self.reset, self.apart = up, down, reset, apart


class Way:
    """One direction of a connection."""

    def __init__(self, source, target, most):
        self.source, self.target, self.left = source, target, most  # left: None is endless
        self.waiting = b""
        self.ended = False

    def read(self):
        data = self.source.recv(PIECE)
        self.ended = not data
        self.waiting = data if self.left is None else data[:self.left]

    def write(self):
        """Whether the cut is due."""
        n = self.target.send(self.waiting)
        self.waiting = self.waiting[n:]
        if self.left is not None:
            self.left -= n
        return self.left == 0


class Link:
    """One connection; its thread alone uses its sockets."""

    def __init__(self, proxy, client, server, cut):
        self.proxy, self.client, self.server, self.cut = proxy, client, server, cut
        self.ways = [Way(client, server, cut and cut.up), Way(server, client, cut and cut.down)]
        for sock in (client, server):
            sock.setblocking(False)

    def run(self):
        cut = False
        try:
            while not cut and not all(way.ended for way in self.ways):
                cut = self.turn()
        except OSError:
            pass
        if cut and self.cut.apart:
            self.proxy.held.append(self.server)
            self.close(self.client)
        else:
            self.proxy.release()
            self.close(self.client)
            self.close(self.server)
        self.proxy.made += cut

    def turn(self):
        """One step; whether the connection is to be cut."""
        reads = [way.source for way in self.ways if not way.ended and not way.waiting]
        writes = [way.target for way in self.ways if way.waiting]
        readable, writable, _ = select.select([self.proxy.stop, *reads], writes, [])
        if self.proxy.stop in readable:
            raise InterruptedError  # an OSError, as the end of either side
        for way in self.ways:
            if way.source in readable:
                way.read()
                if way.ended:
                    way.target.shutdown(socket.SHUT_WR)
            if way.waiting and way.target in writable and way.write():
                return True
        return False

    def close(self, sock):
        if self.cut and self.cut.reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.close()


class Proxy:
    """Passes connections on to `port()`. Those whose request begins with `victims` are cut, each as the next of `cuts` says."""

    def __init__(self, port, victims, cuts):
        self.to, self.victims, self.cuts = port, victims, list(cuts)
        self.made = 0
        self.held = []  # servers' sides of connections that the client has lost
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.stop, self.stopper = socket.socketpair()
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self):
        while True:
            readable, _, _ = select.select([self.stop, self.listener], [], [])
            if self.stop in readable:
                return
            client, _ = self.listener.accept()
            self.threads.append(threading.Thread(target=self.serve, args=(client,)))
            self.threads[-1].start()

    def serve(self, client):
        try:
            server = socket.create_connection(("127.0.0.1", self.to()))
        except OSError:  # it is being started again
            client.close()
            return
        ready, _, _ = select.select([self.stop, client], [], [])
        begin = client.recv(len(self.victims), socket.MSG_PEEK) if client in ready else b""
        cut = self.cuts.pop(0) if self.cuts and begin == self.victims else None
        Link(self, client, server, cut).run()

    def release(self):
        while self.held:
            self.held.pop().close()

    def close(self):
        self.stopper.close()
        for thread in self.threads:
            thread.join(30)
        self.release()
        self.listener.close()
        self.stop.close()
