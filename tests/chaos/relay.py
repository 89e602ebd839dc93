# SPDX-License-Identifier: Apache-2.0
"""A relay that delays: connections to FROM go to TO; while it is told to be bad (SIGUSR1, USR2 ends it), new connections are
put through after a random while, so that they arrive in another order, and each chunk of bytes is held a little."""
import os
import random
import selectors
import signal
import socket
import time

import ground

CONNECT_S, CHUNK_S = 0.25, 0.015


class Flow:
    """One direction of a connection."""

    def __init__(self, src, dst):
        self.src, self.dst, self.queue, self.eof = src, dst, [], False


class Relay:
    def __init__(self, pairs, seed):
        self.rng = random.Random(seed)
        self.bad = False
        self.sel = selectors.DefaultSelector()
        self.waiting, self.flows = [], []
        for start, to in pairs:
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(start)
            s.listen(64)
            self.sel.register(s, selectors.EVENT_READ, ("listen", to))

    def put_through(self, near, to):
        far = socket.socket()
        try:
            far.settimeout(2)
            far.connect(to)
        except OSError:
            far.close()
            near.close()
            return
        for s in (near, far):
            s.settimeout(5)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        there, back = Flow(near, far), Flow(far, near)
        self.flows += [there, back]
        self.sel.register(near, selectors.EVENT_READ, ("flow", there))
        self.sel.register(far, selectors.EVENT_READ, ("flow", back))

    def take(self, flow):
        try:
            data = flow.src.recv(65536)
        except OSError:
            data = b""
        now = time.monotonic()
        at = max(now + (self.rng.uniform(0, CHUNK_S) if self.bad else 0), flow.queue[-1][0] if flow.queue else 0)
        flow.queue.append((at, data))
        if not data:
            self.sel.unregister(flow.src)

    def give(self, flow, now):
        while flow.queue and flow.queue[0][0] <= now:
            data = flow.queue.pop(0)[1]
            try:
                if data:
                    flow.dst.sendall(data)
                else:
                    flow.dst.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def turn(self):
        for key, _ in self.sel.select(0.002):
            what, x = key.data
            if what == "listen":
                near, _ = key.fileobj.accept()
                self.waiting.append((time.monotonic() + (self.rng.uniform(0, CONNECT_S) if self.bad else 0), near, x))
            else:
                self.take(x)
        now = time.monotonic()
        for w in [w for w in self.waiting if w[0] <= now]:
            self.waiting.remove(w)
            self.put_through(w[1], w[2])
        for flow in self.flows:
            self.give(flow, now)


def start(pairs, seed):
    """In a process of its own; returns its pid once it listens."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        os.read(ready, 1)
        os.close(ready)
        return pid
    try:
        os.close(ready)
        ground.tie()
        relay = Relay(pairs, seed)
        signal.signal(signal.SIGUSR1, lambda *_: setattr(relay, "bad", True))
        signal.signal(signal.SIGUSR2, lambda *_: setattr(relay, "bad", False))
        os.write(told, b".")
        os.close(told)
        parent = os.getppid()
        while os.getppid() == parent:
            relay.turn()
    finally:
        os._exit(0)
