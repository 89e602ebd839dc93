#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Slips of users and of their surroundings: who is turned away hears why, who waits hears whom, and nothing else changes.

    tests/slips_test.py PATH/TO/isthmus
"""
import errno
import os
import socket
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True

from e2e_test import Case, Done, wait_for, write


class Refused(Case):
    """Somebody was turned away: whoever waits for him says so at the deadline, instead of only that he is missing."""

    def setUp(self):
        super().setUp()
        write(self.path("m/model.safetensors"), [("t", "U8", [1000])])

    def secret(self, name, text):
        with open(os.open(self.path(name), os.O_CREAT | os.O_WRONLY, 0o600), "wb") as f:
            f.write(text)
        return ("--secret-file", self.path(name))

    def host(self, world, *more):
        """Rank 0, which hosts the place, and the place."""
        p = self.start("push", self.path("m"), "--at", f"tcp://127.0.0.1:{self.port()}", "--world", str(world), "--rank", "0", "--json",
                       "--timeout", "4", *more)
        return p, p.args[p.args.index("--at") + 1]

    @staticmethod
    def port():
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return s.getsockname()[1]

    def pull(self, at, world, rank, *more):
        return self.start("pull", "null:", "--at", at, "--world", str(world), "--rank", str(rank), "--json", "--timeout", "4", *more)

    def waited_in_vain(self, done, missing, *words):
        self.assertEqual((done.status, done.error["code"], done.error["ranks"]), (124, "TIMEOUT", missing), done.stderr)
        for word in words:
            self.assertIn(word, done.error["detail"], done.stderr)

    def test_another_secret(self):
        right, wrong = self.secret("right", b"0123456789abcdef"), self.secret("wrong", b"0123456789abcdeF")
        for ours, theirs in ((right, wrong), (right, ()), ((), right)):
            host, at = self.host(2, *ours)
            turned = Done(self.pull(at, 2, 1, *theirs))
            self.assertEqual((turned.status, turned.error["code"]), (1, "BAD_SECRET"), turned.stderr)
            done = Done(host)
            self.waited_in_vain(done, [1], "refused meanwhile", "secret")
            self.assertIn("give every member the same secret file", done.error["next"])

    def test_another_size(self):
        host, at = self.host(3)
        waits = self.pull(at, 3, 1)
        turned = Done(self.pull(at, 4, 2))
        self.assertEqual((turned.status, turned.error["code"], turned.error["ranks"]), (1, "MISMATCH", [2, 0]), turned.stderr)
        for one in (Done(host), Done(waits)): # both tell the same story
            self.waited_in_vain(one, [2], "a world of 4, rank 0 says 3")

    def test_a_rank_twice(self):
        host, at = self.host(3)
        holders = [self.pull(at, 3, 1) for _ in range(2)]
        wait_for(lambda: any(p.poll() is not None for p in holders))
        turned = next(p for p in holders if p.poll() is not None)
        other = next(p for p in holders if p is not turned)
        done = Done(turned)
        self.assertEqual((done.status, done.error["code"], done.error["ranks"]), (1, "CONFLICT", [1]), done.stderr)
        for pid in (turned.pid, other.pid): # both are named
            self.assertIn(f"pid {pid}", done.error["detail"])
        for one in (Done(host), Done(other)):
            self.waited_in_vain(one, [2], f"pid {turned.pid} claims it too")

    def test_rank_0_twice(self):
        host, at = self.host(2)
        line = ""
        while "listening" not in line:
            line = host.stderr.readline()
        second = self.start("push", self.path("m"), "--at", at, "--world", "2", "--rank", "0", "--json", "--timeout", "4")
        done = Done(second)
        self.assertEqual((done.status, done.error["code"], done.error["ranks"]), (1, "CONFLICT", [0]), done.stderr)
        for pid in (host.pid, second.pid):
            self.assertIn(f"pid {pid}", done.error["detail"])
        host.kill()


class Names(Case):
    """Two sides that call the group differently wait for each other in two rooms; each hears of the other room."""

    def both(self, at):
        write(self.path("m/model.safetensors"), [("t", "U8", [1000])])
        meet = ("--at", at, "--world", "2", "--json", "--timeout", "8")
        sides = [self.start("push", self.path("m"), *meet, "--rank", "0", "--group", "w"),
                 self.start("pull", "null:", *meet, "--rank", "1", "--group", "weights")]
        for done, other in zip([Done(p) for p in sides], ('group "weights" waits too: rank 1', 'group "w" waits too: rank 0')):
            self.assertEqual((done.status, done.error["code"]), (124, "TIMEOUT"), done.stderr)
            self.assertIn(other, done.error["detail"])
            self.assertIn("same --group", done.error["next"])
            self.assertEqual(done.stderr.count("warning: group"), 2, done.stderr) # said once, and that it did not form

    def test_two_names_at_a_store(self):
        self.both(self.store())

    def test_two_names_in_a_folder(self):
        os.mkdir(self.path("meet"))
        self.both("dir:" + self.path("meet"))


class Places(Case):
    """A host that is made on demand has no name before it runs."""

    def test_a_name_that_is_known_later(self):
        write(self.path("m/model.safetensors"), [("t", "U8", [1000])])
        with open(self.path("hosts"), "w", encoding="ascii") as f:
            f.write("127.0.0.1 localhost\n")
        inside = ("unshare", "-m", "sh", "-c", f'mount --bind {self.path("hosts")} /etc/hosts && exec "$0" "$@"')
        probe = subprocess.run([*inside, "true"], capture_output=True, check=False)
        if probe.returncode:
            self.skipTest("no mount namespace here")
        meet = ("--at", f"tcp://later.test:{Refused.port()}", "--world", "2", "--json")
        lost = Done(self.start("pull", "null:", *meet, "--rank", "1", "--timeout", "2", before=inside))
        self.assertEqual((lost.status, lost.error["code"], lost.error["ranks"]), (124, "TIMEOUT", [0]), lost.stderr)
        self.assertIn("host later.test: ", lost.error["detail"])
        sink = self.start("pull", "null:", *meet, "--rank", "1", "--timeout", "60", before=inside)
        line = ""
        while "asking again" not in line:
            line = sink.stderr.readline()
            self.assertTrue(line)
        with open(self.path("hosts"), "a", encoding="ascii") as f:
            f.write("127.0.0.1 later.test\n")
        self.good([Done(self.start("push", self.path("m"), *meet, "--rank", "0", "--timeout", "60", before=inside)), Done(sink)])


class Waiting(Case):
    """Who waits for a group to form is seen, and goes without a trace."""

    def status(self, at):
        done = Done(self.start("status", "--at", at, "--json"))
        self.assertEqual(done.status, 0, done.stderr)
        return [(m["rank"], m["pid"], m["state"]) for m in done.document["members"]]

    def shown(self, at, store):
        write(self.path("m/model.safetensors"), [("t", "U8", [1000])])
        meet = ("--at", at, "--world", "3", "-q")
        waits = [self.start("push", self.path("m"), *meet, "--rank", "0"), self.start("pull", "null:", *meet, "--rank", "1")]
        wait_for(lambda: len(self.status(at)) == 2)
        self.assertEqual(self.status(at), [(r, p.pid, "JOINING") for r, p in enumerate(waits)])
        waits[1].kill() # its lease is left to run out where only a file remembers it
        waits[1].wait()
        if store:
            wait_for(lambda: self.status(at) == [(0, waits[0].pid, "JOINING")])
        waits[1] = self.start("pull", "null:", *meet, "--rank", "1")
        last = self.start("pull", "null:", *meet, "--rank", "2")
        for p in (*waits, last):
            done = Done(p)
            self.assertEqual(done.status, 0, done.stderr)

    def test_at_a_store(self):
        self.shown(self.store(), True)

    def test_in_a_folder(self):
        os.mkdir(self.path("meet"))
        self.shown("dir:" + self.path("meet"), False)
        left = Done(self.start("pull", "null:", "--at", "dir:" + self.path("meet"), "--world", "2", "--rank", "1", "--timeout", "2", "-q"))
        self.assertEqual(left.status, 124, left.stderr)
        self.assertFalse([n for n in os.listdir(self.path("meet")) if f"-{left.pid}" in n])

    def test_pipes_in_a_folder(self):
        """Whoever may write into the folder may put a pipe where a record is due: nobody waits for its other end."""
        os.mkdir(self.path("meet"))
        at = "dir:" + self.path("meet")
        waits = self.start("pull", "null:", "--at", at, "--world", "3", "--rank", "0", "-q")
        wait_for(lambda: len(os.listdir(self.path("meet"))) == 3) # its lock, its record and what status shows of it
        names = os.listdir(self.path("meet"))
        waits.kill()
        waits.wait()
        for name in names:
            os.remove(os.path.join(self.path("meet"), name))
            os.mkfifo(os.path.join(self.path("meet"), name))
        self.assertEqual(self.status(at), [])
        done = [Done(p) for p in [self.start("pull", "null:", "--at", at, "--world", "3", "--rank", str(r), "--timeout", "2", "--json") for r in range(2)]]
        self.assertEqual([(d.status, d.error["code"]) for d in done], [(1, "IO"), (124, "TIMEOUT")], done[1].stderr)
        self.assertIn("no file of ours", done[1].error["detail"])

    def test_no_such_folder(self):
        with open(self.path("file"), "wb"):
            pass
        for at, status, code, word in ((self.path("none"), 1, "IO", "No such file"), (self.path("file"), 2, "BAD_CONFIG", "no folder")):
            done = Done(self.start("pull", "null:", "--at", "dir:" + at, "--world", "2", "--rank", "1", "--json"))
            self.assertEqual((done.status, done.error["code"]), (status, code), done.stderr)
            self.assertIn(word, done.error["detail"], done.stderr)


class Folders(Case):
    """Folders that lead to the destination are made, like mkdir -p does, and go again where nothing came of it."""

    def test_made_on_the_way(self):
        model, to = self.path("a/b/m"), self.path("c/d//e/to")
        made = Done(self.start("make-checkpoint", model, "--tensors", "3", "--bytes", "4000", "-q"))
        self.assertEqual(made.status, 0, made.stderr)
        self.good(self.move([("push", model), ("pull", to)]))
        self.same(model, to)
        self.good(self.move([("push", model), ("pull", self.path("c/d/e/to"))])) # and again over it
        self.same(model, to)
        self.assertEqual(os.listdir(self.path("c/d/e")), ["to"])

    def test_gone_when_nothing_came(self):
        write(self.path("m/model.safetensors"), [("t", "U8", [1000])])
        before = sorted(os.listdir(self.folder.name))
        for to in ("x/y/z/to", "m/model.safetensors/y/to"):
            done = Done(self.start("pull", self.path(to), "--at", self.store(), "--world", "2", "--rank", "1", "--timeout", "1", "-q"))
            self.assertNotEqual(done.status, 0, done.stderr)
            made = Done(self.start("make-checkpoint", self.path(to), "--tensors", "3", "--bytes", str(1 << 50), "-q"))
            self.assertEqual(made.status, 1, made.stderr)
        self.assertEqual(sorted(os.listdir(self.folder.name)), before)
        self.assertEqual(os.listdir(self.path("m")), ["model.safetensors"])

    def test_a_path_without_end(self):
        done = Done(self.start("pull", self.path("d/" * 3000), "--at", self.store(), "--world", "2", "--rank", "1", "--timeout", "1", "--json"))
        self.assertEqual((done.status, done.error["code"], done.error["errno"]), (1, "IO", errno.ENAMETOOLONG))
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_names_as_long_as_they_can_be(self):
        write(self.path("m/model.safetensors"), [("t", "U8", [1000])])
        to = self.path("n" * 255)
        left = self.path("." + "n" * 208 + ".isthmus-1-0123456789abcdef") # nobody holds it
        for _ in range(2):
            os.mkdir(left)
            self.good(self.move([("push", self.path("m")), ("pull", to)]))
            self.same(self.path("m"), to)
            self.assertEqual(sorted(os.listdir(self.folder.name)), sorted(["m", "n" * 255]))
        done = self.move([("push", self.path("m")), ("pull", self.path("n" * 256))])[1]
        self.assertEqual((done.status, done.error["code"], done.error["errno"]), (1, "IO", errno.ENAMETOOLONG))


class Words(Case):
    """What comes from outside does not steer the terminal that shows it."""

    def test_names_that_steer_a_terminal(self):
        write(self.path("m.safetensors"), [("a\x1b[31mb\x7f", "U8", [1])])
        done = Done(self.start("inspect", self.path("m.safetensors")))
        self.assertEqual(done.status, 1, done.stderr)
        self.assertIn("BAD_NAME", done.stderr)
        self.assertIn("a?[31mb", done.stderr)
        self.assertFalse([c for c in done.stderr if c < " " and c != "\n"] + ["\x7f"] * ("\x7f" in done.stderr))

    def test_an_empty_destination(self):
        done = Done(self.start("pull", "", "--at", self.store(), "--world", "2", "--rank", "1", "--json", "--timeout", "2"))
        self.assertEqual((done.status, done.error["code"]), (2, "INVALID_ARGUMENT"), done.stderr)
        self.assertIn("empty", done.error["detail"])


if __name__ == "__main__":
    unittest.main()
