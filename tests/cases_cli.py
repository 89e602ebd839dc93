#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small containers, slow links, forbidden system calls, odd start orders: the finished program in surroundings that broke others.
docs/field-cases.md says where each was seen.

    tests/cases_cli.py PATH/TO/isthmus
"""
import ctypes
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True

from e2e_test import CLEAN_ENV, GUARD_S, TOOL, Case, Done, wait_for, write

MIB = 1 << 20


def instrumented():
    with open(TOOL, "rb") as f:
        program = f.read()
    return b"__asan_init" in program or b"__tsan_init" in program


class Group:
    """A control group of the test's own, in whichever version of their file system may be written."""
    LIMIT = {"memory": ("memory.limit_in_bytes", "memory.max"), "cpu": ("cpu.cfs_quota_us", "cpu.max")}

    def __init__(self, case, controller, first, second):
        """first and second: the limit as each version writes it."""
        v1 = "/sys/fs/cgroup/" + controller
        self.version = 0 if os.path.isdir(v1) else 1
        self.path = os.path.join("/sys/fs/cgroup" if self.version else v1, f"isthmus-test-{os.getpid()}")
        try:
            os.mkdir(self.path)
            case.addCleanup(self.remove)
            with open(os.path.join(self.path, self.LIMIT[controller][self.version]), "w", encoding="ascii") as f:
                f.write((first, second)[self.version])
        except OSError as e:
            case.skipTest(f"no control group for {controller} can be made here: {e}")

    def enter(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w", encoding="ascii") as f:
            f.write(str(os.getpid()))

    def number(self, first, second):
        with open(os.path.join(self.path, (first, second)[self.version]), encoding="ascii") as f:
            return int(f.read())

    def used(self):
        """Without what the kernel can drop."""
        if self.version == 0:
            with open(os.path.join(self.path, "memory.force_empty"), "w", encoding="ascii") as f:
                f.write("0")
        return self.number("memory.usage_in_bytes", "memory.current")

    def peak(self):
        return self.number("memory.max_usage_in_bytes", "memory.peak")

    def remove(self):
        for _ in range(1000):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.01) # who was killed is still on the way out


class Pairs(Case):
    def two(self, push, pull, *both, before=(), enter=None):
        """One source and one sink at a store of their own."""
        at = self.store()
        meet = ("--at", at, "--world", "2", "--json", "--timeout", "100", *both)
        return [self.start(*push, "--rank", "0", *meet, before=before, preexec_fn=enter), self.start(*pull, "--rank", "1", *meet, before=before, preexec_fn=enter)]

    def refused(self, done, *words):
        for one in done:
            self.assertEqual((one.status, one.error["code"]), (1, "NO_MEMORY"), one.stderr)
            for word in words:
                self.assertIn(word, one.error["detail"])


@unittest.skipIf(instrumented(), "a sanitizer takes more memory than the containers have")
class Containers(Pairs):
    """Limits of a control group, where the machine has plenty."""
    BYTES = 320 * MIB + 3

    def setUp(self):
        super().setUp()
        self.model = self.path("m")
        subprocess.run([TOOL, "make-checkpoint", self.model, "--tensors", "3", "--bytes", str(self.BYTES), "-q"], check=True, timeout=GUARD_S, env=CLEAN_ENV)

    def test_default_bucket_fits(self):
        limit = Group(self, "memory", str(160 * MIB), str(160 * MIB))
        for to in ("null:", self.path("to")):
            self.good([Done(p) for p in self.two(("push", self.model), ("pull", to), enter=limit.enter)])
        self.same(self.model, self.path("to"))

    def test_bucket_that_can_not_be_had(self):
        limit = Group(self, "memory", str(160 * MIB), str(160 * MIB))
        for bucket in ("512MiB", "256MiB", "100MiB"): # one, two, and those of both members are too much
            done = [Done(p) for p in self.two(("push", self.model), ("pull", self.path("to")), "--bucket", bucket, enter=limit.enter)]
            self.refused(done, str(160 * MIB), "need ")
            self.assertEqual(done[0].error["detail"].split("rank")[0], done[1].error["detail"].split("rank")[0])
            self.assertFalse([n for n in os.listdir(self.folder.name) if "to" in n])

    def test_sinks_that_hold_it_all(self):
        limit = Group(self, "memory", str(160 * MIB), str(160 * MIB))
        name = f"isthmus-cases-{os.getpid()}"
        for to in ("mem:", "shm:" + name):
            self.refused([Done(p) for p in self.two(("push", self.model), ("pull", to), enter=limit.enter)], str(160 * MIB), str(self.BYTES))
        self.assertFalse(os.path.exists("/dev/shm/" + name))

    def test_killed_again_and_again(self):
        """Shared memory outlives nobody, also where it counts against a limit."""
        limit = Group(self, "memory", str(400 * MIB), str(400 * MIB))
        sizes = []
        for _ in range(5):
            members = self.two(("push", self.model), ("pull", self.path("to")), "--bucket", "16MiB", enter=limit.enter)
            wait_for(lambda: any(n.startswith(".to") for n in os.listdir(self.folder.name)) or members[1].poll() is not None)
            for p in members:
                p.kill()
            for p in members:
                p.communicate()
            wait_for(lambda: limit.number("memory.usage_in_bytes", "memory.current") >= 0 and limit.used() < 8 * MIB)
            sizes.append(limit.used())
        self.assertLess(sizes[-1], sizes[0] + 2 * MIB, sizes)

    def test_quota_of_one_cpu(self):
        quota = Group(self, "cpu", "100000", "100000 100000")
        self.good([Done(p) for p in self.two(("push", self.model), ("pull", "null:"), enter=quota.enter)])

    def test_a_few_buckets_and_no_more(self):
        """The source's file is in shared memory, charged to this test: what the members take beside it is counted alone."""
        limit = Group(self, "memory", str(4096 * MIB), str(4096 * MIB))
        source = f"/dev/shm/isthmus-cases-{os.getpid()}"
        self.addCleanup(shutil.rmtree, source, True)
        shutil.copytree(self.model, source)
        for transport in ("shm", "tcp"):
            self.good([Done(p) for p in self.two(("push", source), ("pull", "null:"), "--bucket", "1MiB", "--transport", transport, enter=limit.enter)])
        self.assertLess(limit.peak(), 64 * MIB) # two processes, two buckets each, and no copy of 320 MiB


class Quotas(Pairs):
    def digest_threads(self, *before):
        """The most threads that compute digests in one process beside the one that called, of two sources and two sinks."""
        at, most = self.store(), 0
        meet = ("--at", at, "--world", "4", "--json", "--timeout", "100")
        members = [self.start(*(("push", self.path("m")) if r < 2 else ("pull", "null:")), "--rank", str(r), *meet, before=before) for r in range(4)]
        while any(p.poll() is None for p in members):
            for p in members:
                threads = 0
                try:
                    for task in os.listdir(f"/proc/{p.pid}/task"):
                        with open(f"/proc/{p.pid}/task/{task}/comm", encoding="ascii") as f:
                            threads += f.read() == "ist-digest\n"
                except OSError:
                    continue # it ends
                most = max(most, threads)
        self.good([Done(p) for p in members])
        return most

    def test_threads_are_counted_by_the_quota(self):
        """With a control group of the test's own making, in both versions: one CPU of however many there are."""
        fake = ("unshare", "-m", "sh", "-c", "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/cpu && cd /sys/fs/cgroup && "
                "echo 100000 100000 > cpu.max && echo 100000 > cpu/cpu.cfs_quota_us && echo 100000 > cpu/cpu.cfs_period_us && cd / && exec \"$0\" \"$@\"")
        probe = subprocess.run([*fake, "true"], capture_output=True, check=False)
        if probe.returncode:
            self.skipTest("no mount namespace here")
        write(self.path("m/model.safetensors"), [(f"t{i}", "U8", [16 * MIB]) for i in range(12)])
        if len(os.sched_getaffinity(0)) > 1:
            self.assertGreater(self.digest_threads(), 0)
        self.assertEqual(self.digest_threads(*fake), 0)


class Memory(Pairs):
    def test_many_tensors_few_mappings(self):
        n = 100000
        write(self.path("m/model.safetensors"), [(f"l.{i}", "U8", [64]) for i in range(n)])
        push, pull = self.two(("push", self.path("m")), ("pull", "null:"))
        peak = dirty = 0
        while push.poll() is None:
            try:
                with open(f"/proc/{push.pid}/smaps", encoding="ascii", errors="replace") as f:
                    smaps = f.read()
            except OSError:
                break
            peak = max(peak, smaps.count("VmFlags:"))
            for part in smaps.split("VmFlags:"):
                if "model.safetensors" in part:
                    dirty = max(dirty, sum(int(line.split()[1]) for line in part.splitlines() if line.startswith("Private_Dirty:")))
            time.sleep(0.02)
        done = [Done(push), Done(pull)]
        self.good(done)
        self.assertEqual(done[0].document["tensors"], n)
        self.assertGreater(peak, 0)
        if not instrumented():
            self.assertLess(peak, 300)
        self.assertEqual(dirty, 0)

    def test_output_does_not_grow_with_buckets(self):
        write(self.path("m/model.safetensors"), [(f"l.{i}", "U8", [48 << 10]) for i in range(2000)])
        at = self.store()
        members = [subprocess.Popen([TOOL, *what, "--at", at, "--world", "2", "--rank", str(r), "--bucket", "64KiB", "--timeout", "100"], env=CLEAN_ENV,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                   for r, what in enumerate([("push", self.path("m")), ("pull", "null:")])]
        for p in members:
            self.addCleanup(p.wait)
            self.addCleanup(p.kill)
        for p in members:
            out, err = p.communicate(timeout=GUARD_S)
            self.assertEqual(p.returncode, 0, err)
            self.assertLess(len(out.splitlines()) + len([line for line in err.splitlines() if "%" not in line]), 10, err)


class Forbidden(Pairs):
    """System calls that containers forbid: what is faster with them goes on without them."""

    @staticmethod
    def forbid(*numbers):
        """For use before exec: each of the calls gives EPERM."""
        class Filter(ctypes.Structure):
            _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]

        class Program(ctypes.Structure):
            _fields_ = [("n", ctypes.c_ushort), ("at", ctypes.POINTER(Filter))]

        lines = [Filter(0x20, 0, 0, 0)]                                                     # load the number
        lines += [Filter(0x15, len(numbers) - i, 0, n) for i, n in enumerate(numbers)]       # one of them: to the last line
        lines += [Filter(0x06, 0, 0, 0x7fff0000), Filter(0x06, 0, 0, 0x00050000 | 1)]        # allow; EPERM
        code = (Filter * len(lines))(*lines)
        program = Program(len(lines), code)
        libc = ctypes.CDLL(None, use_errno=True)

        def enter():
            libc.prctl(38, 1, 0, 0, 0)
            if libc.prctl(22, 2, ctypes.byref(program), 0, 0):
                os._exit(99)

        return enter

    def both_ways(self, *numbers):
        if os.uname().machine != "x86_64":
            self.skipTest("the numbers of the calls are those of x86_64")
        write(self.path("m/model.safetensors"), [(f"t{i}", "U8", [MIB + i]) for i in range(9)])
        done = [Done(p) for p in self.two(("push", self.path("m")), ("pull", self.path("to")), enter=self.forbid(*numbers))]
        self.good(done)
        self.same(self.path("m"), self.path("to"))
        return done

    def test_no_looking_into_other_processes(self):
        ptrace = () if instrumented() else (101,) # which the leak checker itself needs
        self.both_ways(310, 311, *ptrace, 312, 434, 438) # process_vm_readv, process_vm_writev, kcmp, pidfd_open, pidfd_getfd

    def test_no_event_shortcuts(self):
        self.both_ways(425, 426, 427) # io_uring

    def test_no_memory_files(self):
        """Then the bytes go over tcp, and there is no sign of life."""
        for one in self.both_ways(319): # memfd_create
            self.assertEqual(one.document["transport"], {"shm": 0, "tcp": 1})
            self.assertIn("no shared memory", one.stderr)
        done = [Done(p) for p in self.two(("push", self.path("m")), ("pull", "null:"), "--transport", "shm", enter=self.forbid(319))]
        for one in done:
            self.assertEqual(one.status, 1, one.stderr)
            self.assertIn("shared memory", one.error["detail"])

    def test_no_memory_files_for_one(self):
        write(self.path("m/model.safetensors"), [(f"t{i}", "U8", [MIB + i]) for i in range(9)])
        for odd in range(3):
            at, meet = self.store(), ("--world", "3", "--json", "--timeout", "100")
            done = [Done(p) for p in [self.start("pull" if r else "push", "mem:" if r else self.path("m"), "--at", at, "--rank", str(r), *meet,
                                                 preexec_fn=self.forbid(319) if r == odd else None) for r in range(3)]]
            self.good(done)
            self.assertEqual([one.document["transport"]["shm"] for one in done], [0 if r == odd else 1 for r in range(3)])

    def test_no_locked_memory(self):
        self.both_ways(149, 151, 325) # mlock, mlockall, mlock2


class Links(Pairs):
    def shaped(self, rate, push, pull):
        """In a network of their own whose loopback has that rate."""
        script = f'ip link set lo up mtu 1500 && tc qdisc add dev lo root tbf rate {rate} burst 32kb limit 64kb && exec "$0" "$@"'
        probe = subprocess.run(["unshare", "-rn", "sh", "-c", script, "true"], capture_output=True, check=False)
        if probe.returncode:
            self.skipTest("no link can be shaped here: " + probe.stderr.decode(errors="replace").strip()[-100:])
        inner = f"exec {TOOL} run -n 2 -- sh -c 'if [ $RANK = 0 ]; then exec {TOOL} {push}; else exec {TOOL} {pull}; fi'"
        return subprocess.Popen(["unshare", "-rn", "sh", "-c", script, "sh", "-c", inner], env=CLEAN_ENV, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_slow_but_moving(self):
        """Five times the no-progress limit, and never still: that is no failure."""
        write(self.path("m/model.safetensors"), [("t", "U8", [6 * MIB])])
        options = "--transport tcp --bucket 1MiB --no-progress 1 --timeout 100 -q"
        p = self.shaped("10mbit", f"push {self.path('m')} {options}", f"pull {self.path('to')} {options}")
        self.addCleanup(p.kill)
        began = time.monotonic()
        out, err = p.communicate(timeout=GUARD_S)
        self.assertEqual(p.returncode, 0, out + err)
        self.assertGreater(time.monotonic() - began, 3) # it was slow
        self.same(self.path("m"), self.path("to"))

    def test_abort_overtakes_the_bytes(self):
        """What was asked to end ends although the link is full: everybody hears of it by the other way."""
        write(self.path("m/model.safetensors"), [("t", "U8", [200 * MIB])])
        options = "--transport tcp --no-progress 20 --timeout 100"
        p = self.shaped("80mbit", f"push {self.path('m')} {options} -q", f"pull {self.path('to')} {options} --json")
        self.addCleanup(p.kill)
        wait_for(lambda: any(n.startswith(".to") for n in os.listdir(self.folder.name)) or p.poll() is not None)
        time.sleep(0.5) # the link is full; when exactly does not matter
        began = time.monotonic()
        p.send_signal(signal.SIGTERM)
        out, err = p.communicate(timeout=GUARD_S)
        self.assertLess(time.monotonic() - began, 15, out + err)
        self.assertNotEqual(p.returncode, 0)
        self.assertFalse([n for n in os.listdir(self.folder.name) if n.startswith(".to")])


class Orders(Case):
    def test_all_start_orders(self):
        write(self.path("m/model.safetensors"), [(f"t{i}", "F32", [1000]) for i in range(9)])
        for order in itertools.permutations(("store", "push", "pull")):
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            meet = ("--at", f"tcp://127.0.0.1:{port}", "--world", "2", "--json", "--timeout", "60", "--no-host-meeting")
            commands = {"store": ("store", "--bind", f"127.0.0.1:{port}", "-q"), "push": ("push", self.path("m"), "--rank", "0", *meet),
                        "pull": ("pull", "null:", "--rank", "1", *meet)}
            started = {}
            for what in order:
                started[what] = self.start(*commands[what])
                time.sleep(0.2) # the order is this test's input
            self.good([Done(started["push"]), Done(started["pull"])])
            started["store"].terminate()
            started["store"].communicate(timeout=GUARD_S)

    def test_one_story_of_who_is_missing(self):
        at = self.store()
        done = [Done(p) for p in [self.start("pull", "null:", "--at", at, "--world", "6", "--rank", str(r), "--json", "--timeout", "2") for r in (0, 1, 3, 4)]]
        self.assertEqual([(d.status, d.error["code"], d.error["ranks"]) for d in done], [(124, "TIMEOUT", [2, 5])] * 4, json.dumps([d.error for d in done]))


class Places(Pairs):
    def test_shared_memory_that_is_too_small(self):
        """A destination in /dev/shm that is larger than the mount: told before the first byte, and nothing stays."""
        write(self.path("m/model.safetensors"), [("t", "U8", [20 * MIB])])
        probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/dev/shm"], capture_output=True, check=False)
        if probe.returncode:
            self.skipTest("no mount namespace here")
        pair = f"{TOOL} run -n 2 -- sh -c 'if [ $RANK = 0 ]; then exec {TOOL} push {self.path('m')} -q; else exec {TOOL} pull shm:x -q; fi'"
        done = subprocess.run(["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size=16M none /dev/shm && {{ {pair}; ls -A /dev/shm; }}"], capture_output=True,
                              text=True, env=CLEAN_ENV, timeout=GUARD_S, check=False)
        self.assertIn("NO_SPACE", done.stderr)
        self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
