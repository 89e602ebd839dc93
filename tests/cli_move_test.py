#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""push and pull as users start them: every destination, reports, failures, signals, nothing left behind.

    tests/cli_move_test.py PATH/TO/isthmus
"""
import filecmp
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOOL = os.path.abspath(sys.argv.pop(1))
GUARD_S = 120


def start(*args, **variables):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ISTHMUS_", "SLURM_", "OMPI_", "PMI_", "RANK", "WORLD", "MASTER_"))}
    env.update(variables)
    return subprocess.Popen([TOOL, *args], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Finished:
    def __init__(self, process):
        self.stdout, self.stderr = process.communicate(timeout=GUARD_S)
        self.status = process.returncode
        self.document = json.loads(self.stdout) if self.stdout.startswith("{") else None


class Move(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = os.path.join(cls.folder.name, "model")
        subprocess.run([TOOL, "make-checkpoint", cls.model, "--tensors", "9", "--bytes", "3000001", "-q"], check=True, timeout=GUARD_S)
        with open(os.path.join(cls.model, "tokenizer.json"), "w", encoding="utf-8") as f:
            f.write("{}")
        cls.n = 0

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.store = start("store", "--bind", "127.0.0.1:0")
        self.at = self.store.stdout.readline().strip()
        self.assertTrue(self.at.startswith("tcp://127.0.0.1:"), self.at)

    def tearDown(self):
        self.store.terminate()
        self.store.communicate(timeout=GUARD_S)
        self.assertEqual(self.store.returncode, 128 + signal.SIGTERM)

    def name(self):
        type(self).n += 1
        return os.path.join(self.folder.name, f"copy{self.n}")

    def member(self, verb, what, rank, world, *more, **variables):
        return start(verb, what, "--at", self.at, "--rank", str(rank), "--world", str(world), "--json", "--timeout", "60", *more, **variables)

    def move(self, members):
        """members: (verb, what, *options) by rank."""
        started = [self.member(m[0], m[1], r, len(members), *m[2:]) for r, m in enumerate(members)]
        return [Finished(p) for p in started]

    def good(self, done):
        for one in done:
            self.assertEqual(one.status, 0, one.stderr)
            self.assertEqual((one.document["schema"], one.document["verified"], one.document["lost"]), (1, True, []))
        self.assertEqual(len({d.document["digest"] for d in done}), 1)
        self.assertEqual({d.document["bytes"] for d in done}, {3000001})
        self.assertEqual({d.document["tensors"] for d in done}, {9})

    def same_folder(self, a, b):
        match = filecmp.dircmp(a, b)
        self.assertEqual((match.left_only, match.right_only), ([], []))
        self.assertEqual(filecmp.cmpfiles(a, b, match.common_files, shallow=False)[1:], ([], []))

    def test_folder(self):
        to = self.name()
        done = self.move([("push", self.model, "--label", "step 7"), ("pull", to)])
        self.good(done)
        self.same_folder(self.model, to)
        document = done[1].document
        self.assertEqual((document["label"], document["version"], document["rank"], document["world"]), ("step 7", 1, 1, 2))
        self.assertEqual(set(document["seconds"]), {"meet", "register", "gather", "plan", "update", "verify", "total"})
        self.assertEqual(document["transport"]["shm"] + document["transport"]["tcp"], 1)
        self.assertFalse([n for n in os.listdir(self.folder.name) if n.startswith(".")])

    def test_all_destinations(self):
        shm = f"isthmus-test-{os.getpid()}"
        self.good(self.move([("push", self.model), ("pull", "null:"), ("pull", "mem:"), ("pull", "shm:" + shm)]))
        path = "/dev/shm/" + shm
        self.addCleanup(os.remove, path)
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)

    def test_transports(self):
        for transport in ("shm", "tcp"):
            done = self.move([("push", self.model, "--transport", transport), ("pull", "null:", "--transport", transport)])
            self.good(done)
            self.assertEqual(done[0].document["transport"][transport], 1)

    def test_two_sources(self):
        to = self.name()
        self.good(self.move([("push", self.model), ("push", self.model), ("pull", to)]))
        self.same_folder(self.model, to)

    def test_weights_only(self):
        to = self.name()
        self.good(self.move([("push", self.model, "--weights-only"), ("pull", to, "--weights-only")]))
        self.assertEqual(os.listdir(to), ["model.safetensors"])

    def test_no_replace(self):
        to = self.name()
        self.good(self.move([("push", self.model), ("pull", to)]))
        done = self.move([("push", self.model), ("pull", to, "--no-replace")])
        self.assertEqual((done[1].status, done[1].document["error"]["code"]), (1, "CONFLICT"))
        self.assertEqual((done[0].status, done[0].document["error"]["code"]), (1, "ABORTED"), done[0].stderr)
        self.assertEqual(done[0].document["error"]["ranks"], [1])
        self.good(self.move([("push", self.model), ("pull", to)]))

    def test_flipped_byte(self):
        members = [self.member("push", self.model, 0, 2, ISTHMUS_FAULT="flip"), self.member("pull", self.name(), 1, 2, ISTHMUS_FAULT="flip")]
        for done in map(Finished, members):
            self.assertEqual(done.status, 3, done.stderr)
            self.assertEqual(done.document["error"]["code"], "DIGEST")
            self.assertTrue(done.document["error"]["tensor"].startswith("tensor."))
        self.assertFalse(os.path.exists(os.path.join(self.folder.name, f"copy{self.n}")))

    def test_versions_have_64_bits(self):
        for version in (1, 2 ** 63 - 1, 2 ** 63, 2 ** 64 - 1):
            done = self.move([("push", self.model, "--version", str(version), "--label", "{\"\": \"7\"}"), ("pull", "null:")])
            self.good(done)
            self.assertEqual([(d.document["version"], d.document["label"]) for d in done], [(version, "{\"\": \"7\"}")] * 2)

    def test_nobody_reads_the_messages(self):
        """Somebody who reads nothing of stderr, and somebody who goes away, hold up nobody."""
        unread, full = os.pipe()
        os.set_blocking(full, False)
        try:
            while True:
                os.write(full, bytes(4096))
        except BlockingIOError:
            os.set_blocking(full, True)
        gone, broken = os.pipe()
        os.close(gone)
        arguments = ["--at", self.at, "--world", "2", "--json", "--timeout", "60", "--log-level", "trace"]
        push = subprocess.Popen([TOOL, "push", self.model, "--rank", "0", *arguments], stdout=subprocess.PIPE, stderr=full, text=True)
        pull = subprocess.Popen([TOOL, "pull", "null:", "--rank", "1", *arguments], stdout=subprocess.PIPE, stderr=broken, text=True)
        for one in (push, pull):
            out = one.communicate(timeout=GUARD_S)[0]
            self.assertEqual((one.returncode, json.loads(out)["verified"]), (0, True))
        for fd in (unread, full, broken):
            os.close(fd)

    def test_one_document_of_a_store(self):
        store = start("store", "--bind", "127.0.0.1:0", "--json", "--timeout", "0.1")
        done = Finished(store)
        self.assertEqual(done.status, 124, done.stderr)
        self.assertIn("address", done.document)

    def test_nobody_comes(self):
        done = Finished(start("pull", "null:", "--at", self.at, "--rank", "1", "--world", "3", "--json", "--timeout", "0.5"))
        self.assertEqual((done.status, done.document["error"]["code"]), (124, "TIMEOUT"))
        self.assertEqual(done.document["error"]["ranks"], [0, 2])

    def test_late_source(self):
        """A sink that has waited for a while at a meeting place on its own is still heard there."""
        to = self.name()
        sink = self.member("pull", to, 1, 2)
        for line in sink.stderr:
            if "waiting for rank 0" in line:
                break
        self.good([Finished(self.member("push", self.model, 0, 2)), Finished(sink)])
        self.same_folder(self.model, to)

    def test_one_rank_twice(self):
        """The group waits for rank 2 while two processes claim rank 1: one of them is refused, the other is served."""
        source = self.member("push", self.model, 0, 3)
        claims = [self.member("pull", "null:", 1, 3), self.member("pull", "null:", 1, 3)]
        end = time.monotonic() + GUARD_S
        while all(p.poll() is None for p in claims) and time.monotonic() < end:
            time.sleep(0.01)
        loser = next(p for p in claims if p.poll() is not None)
        done = Finished(loser)
        self.assertEqual((done.status, done.document["error"]["code"]), (1, "CONFLICT"), done.stderr)
        self.assertEqual(done.document["error"]["ranks"], [1])
        winner = next(p for p in claims if p is not loser)
        self.assertIn(f"pid {winner.pid}", done.stderr)
        last = self.member("pull", "null:", 2, 3)
        self.good([Finished(source), Finished(winner), Finished(last)])

    def test_signal_while_meeting(self):
        p = start("pull", self.name(), "--at", self.at, "--rank", "1", "--world", "2", "--timeout", "60")
        p.stderr.readline()  # "waiting for rank 0": it is meeting
        p.send_signal(signal.SIGINT)
        done = Finished(p)
        self.assertEqual(done.status, 130, done.stderr)
        self.assertFalse([n for n in os.listdir(self.folder.name) if n.startswith(".")])

    def test_status(self):
        done = Finished(start("status", "--at", self.at, "--json"))
        self.assertEqual((done.status, done.document["members"]), (0, []))

    def test_run(self):
        to = self.name()
        done = subprocess.run([TOOL, "run", "-n", "2", "--", "sh", "-c", f'if [ $RANK = 0 ]; then exec {TOOL} push {self.model}; else exec {TOOL} pull {to}; fi'],
                              capture_output=True, text=True, timeout=GUARD_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.same_folder(self.model, to)


if __name__ == "__main__":
    unittest.main()
