#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How calls end that nobody else takes part in: at the deadline, on a signal, without a place for their output. Each says why, in
words that fit, and leaves nothing behind.

    tests/cli_end_test.py PATH/TO/isthmus PATH/TO/A/PLUG-IN.so
"""
import errno
import os
import resource
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
PLUGIN = os.path.abspath(sys.argv.pop(2))

from e2e_test import CLEAN_ENV, GUARD_S, TOOL, Case, Done, wait_for


MIB = 1 << 20


class Alone(Case):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("tmp"))
        self.variables = {**CLEAN_ENV, "TMPDIR": self.path("tmp")}

    def begin(self, *args):
        p = subprocess.Popen([TOOL, *args], env=self.variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, start_new_session=True)
        self.addCleanup(self.end, p)
        return p

    def nobody_is_left(self, p):
        """All that it started was in its session; what was killed may still be on its way out."""
        left = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as f:
                    state, _, _, session = f.read().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) == p.pid and state not in "ZX":
                left.append(name)
        self.assertFalse(left)

    def over_time(self, *args):
        done = Done(p := self.begin(*args, "--timeout", "0.5", "--json"))
        self.assertEqual((done.status, done.error["code"]), (124, "TIMEOUT"), done.stderr)
        self.assertEqual(done.error["next"], "give more time with --timeout")
        self.nobody_is_left(p)
        self.assertEqual(os.listdir(self.path("tmp")), [])

    def interrupted(self, line, *args):
        """As soon as something is told on standard output (line), or a folder of its own is there."""
        for sig in (signal.SIGINT, signal.SIGTERM):
            p = self.begin(*args)
            if line:
                self.assertTrue(p.stdout.readline())
            else:
                wait_for(lambda: p.poll() is not None or os.listdir(self.path("tmp")))
            p.send_signal(sig)
            done = Done(p)
            self.assertEqual(done.status, 128 + sig, done.stderr)
            self.nobody_is_left(p)
            self.assertEqual(os.listdir(self.path("tmp")), [])

    def test_load_without_end(self):
        self.over_time("bench", "load", "--repeat", "100000")
        self.interrupted(False, "bench", "load", "--repeat", "100000")

    def test_check(self):
        self.over_time("check", PLUGIN)
        self.interrupted(True, "check", PLUGIN)

    def test_files_may_not_be_so_large(self):
        self.variables["LC_ALL"] = "C"
        p = subprocess.Popen([TOOL, "make-checkpoint", self.path("m/x"), "--tensors", "1", "--bytes", "4MiB", "--json"], env=self.variables,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB)))
        done = Done(p)
        self.assertEqual((done.status, done.error["errno"]), (1, errno.EFBIG), done.stderr)
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["tmp"])

    def test_what_is_not_built(self):
        for args in (("join", "x"), ("serve", "x"), ("update", "x"), ("bench", "p2p")):
            done = Done(self.begin(*args, "--json"))
            self.assertEqual((done.status, done.error["code"]), (1, "UNSUPPORTED"), done.stderr)
            self.assertIn("--help", done.error["next"])


class Output(Case):
    """Standard output that is full, or closed, is told of: who reads the exit status alone must not take it for success."""

    def call(self, redirect, *args):
        return subprocess.run(["sh", "-c", f'exec {redirect}; exec "$0" "$@"', TOOL, *args], env=CLEAN_ENV, stdin=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=GUARD_S)

    def test_is_full_or_closed(self):
        for i, (redirect, why) in enumerate(((">/dev/full", "No space left"), (">&-", "Bad file descriptor"))):
            for args in (("version",), ("version", "--json"), ("backends",), ("--help",), ("push", "--help"),
                         ("make-checkpoint", self.path(f"m{i}"), "--tensors", "1", "--bytes", "10"), ("inspect", self.path(f"m{i}"), "--digests")):
                done = self.call(redirect, *args)
                self.assertEqual(done.returncode, 1, (redirect, args))
                self.assertIn("standard output can't be written: " + why, done.stderr)

    def test_reader_has_seen_enough(self):
        done = subprocess.run(["sh", "-c", '"$0" make-checkpoint "$1" --tensors 3000 --bytes 3000 -q && "$0" inspect "$1" | head -n 1', TOOL, self.path("m")],
                              env=CLEAN_ENV, capture_output=True, text=True, timeout=GUARD_S)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("tensor.0000000", done.stdout)


if __name__ == "__main__":
    unittest.main()
