#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Odd things of the kinds that docs/field-cases.md lists, met by the finished program: files that change or are none, names that
lead elsewhere, limits of the process, members that stand still for a moment.

    tests/cases_odd.py PATH/TO/isthmus
"""
import json
import os
import resource
import signal
import socket
import stat
import struct
import sys
import unittest

sys.dont_write_bytecode = True

from e2e_test import Case, Done, wait_for, write

MIB = 1 << 20


class Odd(Case):
    def setUp(self):
        super().setUp()
        self.model = self.path("m")
        write(self.path("m/model.safetensors"), [("a", "F32", [MIB // 4]), ("b", "U8", [3 * MIB + 1])])

    def pair(self, to, *options, **more):
        """The default model to one sink: both ends, done."""
        return self.move([("push", self.model), ("pull", to)], *options, **more)

    def alike(self, done, code, status=1):
        self.assertEqual([(d.status, d.error.get("code")) for d in done], [(status, code)] * len(done), [d.stderr for d in done])

    def raw(self, name, header, data=b""):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        text = json.dumps(header).encode()
        with open(self.path(name), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + data)


class Files(Odd):
    def changed(self, change):
        """The source has opened its file, and waits for its sink."""
        at = self.store()
        file = self.path("m/model.safetensors")
        write(file, [("a", "F32", [MIB // 4]), ("b", "U8", [3 * MIB + 1])])
        meet = ("--at", at, "--world", "2", "--json", "--timeout", "60")
        source = self.start("push", self.model, *meet, "--rank", "0")
        wait_for(lambda: any(os.path.realpath(f"/proc/{source.pid}/fd/{n}") == file for n in os.listdir(f"/proc/{source.pid}/fd")))
        self.before = open(file, "rb").read()
        change(file)
        return [Done(p) for p in (source, self.start("pull", self.path("to"), *meet, "--rank", "1"))]

    def test_changed_after_opening(self):
        def overwrite(file):
            with open(file, "r+b") as f:
                f.seek(2 * MIB)
                f.write(b"\xaa" * MIB)

        def append(file):
            with open(file, "ab") as f:
                f.write(b"x")

        def shrink_and_grow(file):
            n = os.path.getsize(file)
            os.truncate(file, 100)
            os.truncate(file, n)

        for change in (lambda file: os.truncate(file, MIB), overwrite, append, shrink_and_grow):
            source, sink = self.changed(change)
            self.alike([source], "FILE_CHANGED")
            self.assertEqual((sink.status, sink.error["code"], sink.error["ranks"]), (1, "ABORTED", [0]), sink.stderr)
            self.assertIn(source.error["detail"], sink.error["detail"]) # it hears why
            self.assertEqual(os.listdir(self.folder.name), ["m"])

    def test_replaced_after_opening(self):
        """What was opened is sent, whatever has the name now."""
        def replace(file):
            write(self.path("m/new"), [("z", "U8", [5])])
            os.rename(self.path("m/new"), file)

        for change in (replace, os.remove):
            self.good(self.changed(change))
            with open(self.path("to/model.safetensors"), "rb") as f:
                self.assertEqual(f.read(), self.before)

    def test_beside_the_weights(self):
        """Regular files come along with their bytes; what is none stays, and nobody waits for a pipe."""
        beside = {"config.json": b"{}", ".hidden": b"h", "empty": b"", "n" * 255: b"long", "new\nline": b"n", "model.gguf": b"x" * 100}
        for name, data in beside.items():
            with open(os.path.join(self.model, name), "wb") as f:
                f.write(data)
        os.chmod(os.path.join(self.model, "config.json"), 0o6755)
        os.mkfifo(os.path.join(self.model, "pipe"))
        os.makedirs(os.path.join(self.model, "folder/inner"))
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(os.path.join(self.model, "socket"))
        self.good(self.pair(self.path("to")))
        for name in os.listdir(self.path("to")):
            with open(self.path("to/" + name), "rb") as a, open(os.path.join(self.model, name), "rb") as b:
                self.assertEqual(a.read(), b.read(), name)
            self.assertFalse(os.lstat(self.path("to/" + name)).st_mode & (stat.S_ISUID | stat.S_ISGID), name)
        self.assertEqual(set(os.listdir(self.path("to"))) - set(beside), {"model.safetensors"})
        self.assertIn("config.json", os.listdir(self.path("to")))

    def test_secrets_that_are_no_files(self):
        def made(name, make):
            make(self.path(name))
            return self.path(name)

        def big(path):
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as f:
                f.truncate(1 << 33)

        for path in (made("pipe", lambda p: os.mkfifo(p, 0o600)), made("folder", os.mkdir), made("big", big), "/dev/null", "/dev/zero"):
            done = Done(self.start("pull", "null:", "--at", "tcp://127.0.0.1:1", "--world", "2", "--rank", "1", "--json", "--timeout", "30", "--secret-file", path))
            self.assertEqual((done.status, done.error["code"]), (1, "BAD_CONFIG"), done.stderr)
            self.assertIn(path, done.error["detail"])


class Names(Odd):
    def test_groups_that_meet_in_a_folder(self):
        os.mkdir(self.path("meet"))
        before = sorted(os.listdir(self.folder.name))
        for name in ("../../evil", "/abs", "..", ".", "x" * 255, "new\nline", "esc\x1b[31m", "ü日本", " ", "%s%n", "-rf"):
            meet = ("--at", "dir:" + self.path("meet"), "--world", "2", "--json", "--timeout", "60", "--group", name)
            done = [Done(p) for p in (self.start("push", self.model, *meet, "--rank", "0"), self.start("pull", "null:", *meet, "--rank", "1"))]
            self.good(done)
            self.assertEqual(done[1].document["group"], name)
            for d in done: # what steers a terminal is not shown to it, and a name makes no lines of its own
                self.assertNotIn("\x1b", d.stderr)
                self.assertFalse([line for line in d.stderr.splitlines() if not line.startswith(("isthmus ", "push:", "pull:", "meeting:"))])
        self.assertEqual(sorted(os.listdir(self.folder.name)), before)
        self.assertEqual(os.listdir(self.path("meet")), [])

    def test_labels_that_steer_a_terminal(self):
        at = self.store()
        meet = ("--at", at, "--world", "2", "--timeout", "60")
        done = [Done(p) for p in (self.start("push", self.model, *meet, "--rank", "0", "--label", "a\x1b[31m\nb\u009b2Jc"),
                                  self.start("pull", "null:", *meet, "--rank", "1"))]
        for d in done:
            self.assertEqual(d.status, 0, d.stderr)
            self.assertTrue(d.stdout.startswith("version 1 a?[31m?b??2Jc: "), d.stdout)

    def test_tensors(self):
        names = ["a/../b", "../../etc/passwd", "/abs", "A", "a", "", " ", "e\u0301", "\u00e9", "x" * 60000, "%s%n", "-rf"]
        self.raw("m/model.safetensors", {n: {"dtype": "U8", "shape": [2], "data_offsets": [2 * i, 2 * i + 2]} for i, n in enumerate(names)}, bytes(2 * len(names)))
        self.good(self.pair(self.path("to")))
        self.same(self.model, self.path("to"))

    def test_shared_memory_that_is_taken(self):
        name = f"isthmus-odd-{os.getpid()}"
        path = "/dev/shm/" + name
        with open(self.path("precious"), "wb") as f:
            f.write(b"precious")

        def other():
            with open(path, "wb") as f:
                f.write(b"no checkpoint")

        for make, remove in ((lambda: os.symlink(self.path("precious"), path), os.remove), (lambda: os.mkfifo(path), os.remove),
                             (lambda: os.mkdir(path), os.rmdir), (other, os.remove)):
            make()
            try:
                done = self.pair("shm:" + name)[1]
                self.assertEqual((done.status, done.error["code"]), (1, "CONFLICT"), done.stderr)
            finally:
                remove(path)
        with open(self.path("precious"), "rb") as f:
            self.assertEqual(f.read(), b"precious")


class Processes(Odd):
    def test_files_may_not_be_so_large(self):
        """SIGXFSZ ends nobody."""
        name = f"isthmus-odd-{os.getpid()}"
        meet = ("--at", self.store(), "--world", "2", "--json", "--timeout", "60")
        for i, to in enumerate((self.path("to"), "shm:" + name)):
            source = self.start("push", self.model, *meet, "--group", str(i), "--rank", "0")
            sink = self.start("pull", to, *meet, "--group", str(i), "--rank", "1",
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB)))
            self.alike([Done(source), Done(sink)], "NO_SPACE")
        self.assertEqual(os.listdir(self.folder.name), ["m"])
        self.assertFalse([n for n in os.listdir("/dev/shm") if name in n])

    def test_stopped_for_a_moment(self):
        """One after the other, by a debugger or a terminal; for less than --no-progress."""
        write(self.path("m/model.safetensors"), [("a", "U8", [24 * MIB])])
        meet = ("--at", self.store(), "--world", "3", "--json", "--bucket", "64KiB", "--timeout", "60")
        members = [self.start("push", self.model, *meet, "--rank", "0"), self.start("pull", self.path("to"), *meet, "--rank", "1"),
                   self.start("pull", "mem:", *meet, "--rank", "2")]
        wait_for(lambda: any("isthmus-" in n for n in os.listdir(self.folder.name)) or members[1].poll() is not None)
        for p in members:
            p.send_signal(signal.SIGSTOP)
            wait_for(lambda: self.state(p) in "TZ")
            p.send_signal(signal.SIGCONT)
        self.good([Done(p) for p in members])
        self.same(self.model, self.path("to"))

    @staticmethod
    def state(p):
        with open(f"/proc/{p.pid}/stat", encoding="utf-8") as f:
            return f.read().rpartition(")")[2].split()[0]


if __name__ == "__main__":
    unittest.main()
