#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A peer: gloo, as torch.distributed has it. Same command line, samples and lines as the peers in C (peer.h)."""
import argparse
import json
import multiprocessing
import os
import socket
import struct
import sys
import time

ARENA = 512 << 20
INNER = {"broadcast": 1, "barrier": 50, "allgather": 20, "split": 3}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def answers(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


class Rank:
    def __init__(self, args, rank, port, together):
        import torch
        import torch.distributed as dist
        torch.set_num_threads(1)
        self.torch, self.dist, self.args, self.rank = torch, dist, args, rank
        together.wait()  # all have loaded it
        start = time.monotonic()
        while rank and not answers(port):  # its own way of waiting for rank 0 is to sleep for a second
            time.sleep(0.001)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.ranks)
        self.created = [(start, self.slowest(time.monotonic() - start))]
        big = max([size for _, size in args.items if size >= 1 << 20], default=0)
        self.arena = torch.full((max(big, ARENA) if big else 1 << 20,), 0x5A, dtype=torch.uint8)
        self.at = 0

    def slowest(self, seconds):
        t = self.torch.tensor([seconds], dtype=self.torch.float64)
        self.dist.all_reduce(t, op=self.dist.ReduceOp.MAX)
        return float(t)

    def cut(self, size):
        at = 0 if self.at + size > self.arena.numel() else self.at
        self.at = at + size
        return self.arena[at:at + size]

    def once(self, what, piece, obj):
        dist = self.dist
        if what == "broadcast":
            dist.broadcast(piece, 0)
        elif what == "barrier":
            dist.barrier()
        elif what == "allgather":
            dist.all_gather_object([None] * self.args.ranks, obj)
        else:
            dist.destroy_process_group(dist.new_group(list(range(self.args.ranks))))

    def measure(self, what, size):
        inner, samples = INNER[what], []
        for i in range(-1, self.args.repeat):  # the first is to warm up
            piece = self.cut(size) if what == "broadcast" else None
            stamp = list(struct.pack("<Q", (i + 2) * 0x1234567))
            if piece is not None and self.rank == 0:
                piece[-8:] = self.torch.tensor(stamp, dtype=self.torch.uint8)
            obj = bytes(size) if what == "allgather" else None
            self.dist.barrier()
            start = time.monotonic()
            for _ in range(inner):
                self.once(what, piece, obj)
            seconds = self.slowest(time.monotonic() - start) / inner
            if piece is not None and piece[-8:].tolist() != stamp:
                sys.exit(f"gloo: rank {self.rank}: wrong bytes arrived")
            if i >= 0:
                samples.append((start, seconds))
        return samples

    def say(self, what, size, samples, how=""):
        if self.rank == 0:
            a = self.args
            print(json.dumps({"peer": a.name, "what": what, "how": how, "bytes": size, "ranks": a.ranks, "transport": a.transport,
                              "inner": INNER.get(what, 1), "at": [s[0] for s in samples], "seconds": [s[1] for s in samples]}), flush=True)

    def run(self):
        for what, size in self.args.items:
            if what == "create":
                self.say(what, size, self.created, "init_process_group")
            elif what in INNER:
                self.say(what, size, self.measure(what, size), "all_gather_object" if what == "allgather" else "")
            elif self.rank == 0:
                print(json.dumps({"peer": self.args.name, "what": what, "bytes": size, "ranks": self.args.ranks,
                                  "transport": self.args.transport, "why": "gloo has nothing like it"}), flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--name", default="gloo")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--transport", default="tcp")
    p.add_argument("items", nargs="+")
    args = p.parse_args()
    args.items = [(i.split(":")[0], int(i.split(":")[1]) if ":" in i else 0) for i in args.items]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    port, children, together = free_port(), [], multiprocessing.Barrier(args.ranks)
    for rank in range(args.ranks):  # forked before torch is loaded
        pid = os.fork()
        if pid == 0:
            Rank(args, rank, port, together).run()
            sys.stdout.flush()
            os._exit(0)
        children.append(pid)
    bad = 0
    while children:
        pid, status = os.wait()
        children.remove(pid)
        if status and not bad:
            bad = 1
            for other in children:
                os.kill(other, 15)
    sys.exit(bad)


if __name__ == "__main__":
    main()
