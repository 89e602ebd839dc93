#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""isthmus run: environment, exit statuses, signals, and that nobody outlives it, however it ends.

    tests/cli_run_test.py PATH/TO/isthmus
"""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

TOOL = os.path.abspath(sys.argv.pop(1))
GUARD_S = 60


def call(*args, **more):
    return subprocess.run([TOOL, "run", *args], capture_output=True, text=True, timeout=GUARD_S, stdin=subprocess.DEVNULL, **more)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition):
    end = time.monotonic() + GUARD_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("still not so after the guard time")
        time.sleep(0.01)


class Run(unittest.TestCase):
    def test_environment(self):
        done = call("-n", "3", "--", "sh", "-c", 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MASTER_PORT $ISTHMUS_PORT"')
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = sorted(line.split() for line in done.stdout.splitlines())
        self.assertEqual([(l[0], l[1], l[2]) for l in lines], [(str(r), "3", str(r)) for r in range(3)])
        self.assertEqual(len({tuple(l[3:]) for l in lines}), 1)
        self.assertNotEqual(lines[0][4], lines[0][5])

    def test_master_port_can_be_bound(self):
        done = call("-n", "1", "--", sys.executable, "-c", "import os, socket; s = socket.socket(); "
                    "s.bind(('', int(os.environ['MASTER_PORT']))); s.listen(); print('bound')")
        self.assertEqual((done.returncode, done.stdout), (0, "bound\n"), done.stderr)

    def test_meeting_place_answers(self):
        done = call("-n", "1", "--", sys.executable, "-c", "import os, socket; "
                    "socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['ISTHMUS_PORT'])), 5); print('there')")
        self.assertEqual((done.returncode, done.stdout), (0, "there\n"), done.stderr)

    def test_first_failure_is_the_status(self):
        with tempfile.TemporaryDirectory() as folder:
            done = call("-n", "3", "--", "sh", "-c", f'echo $$ > {folder}/$RANK; [ $RANK = 1 ] && {{ while ! [ -s {folder}/0 ] || ! [ -s {folder}/2 ]; do sleep 0.01; done; exit 7; }}; exec sleep 1000')
            self.assertEqual(done.returncode, 7, done.stderr)
            for rank in range(3):
                with open(f"{folder}/{rank}", encoding="utf-8") as f:
                    self.assertFalse(alive(int(f.read())))

    def test_statuses(self):
        self.assertEqual(call("-n", "2", "--", "sh", "-c", "kill -9 $$").returncode, 128 + 9)
        self.assertEqual(call("-n", "2", "--", "/nonexistent/program").returncode, 127)
        self.assertEqual(call("-n", "1", "--", "/etc/passwd").returncode, 126)
        self.assertEqual(call("-n", "2", "--timeout", "0.3", "--", "sleep", "1000").returncode, 124)
        self.assertEqual(call("-n", "0", "--", "true").returncode, 2)

    def test_options_after_the_program_are_its_own(self):
        done = call("-n", "1", "echo", "-n", "--json")
        self.assertEqual((done.returncode, done.stdout), (0, "--json"), done.stderr)

    def start(self, folder, script):
        """Starts two ranks that write the pids of their shell and of a grandchild; returns run's process and all pids."""
        p = subprocess.Popen([TOOL, "run", "-n", "2", "--", "sh", "-c", f"{script} sleep 1000 & echo $$ $! > {folder}/$RANK.tmp; mv {folder}/$RANK.tmp {folder}/$RANK; wait; wait"],
                             stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(p.kill)
        names = [f"{folder}/0", f"{folder}/1"]
        wait_for(lambda: all(os.path.exists(n) for n in names))
        pids = []
        for name in names:
            with open(name, encoding="utf-8") as f:
                pids += [int(x) for x in f.read().split()]
        return p, pids

    def test_killed_outright(self):
        with tempfile.TemporaryDirectory() as folder:
            p, pids = self.start(folder, "")
            self.assertTrue(all(alive(pid) for pid in pids))
            p.kill()
            p.wait(GUARD_S)
            wait_for(lambda: not any(alive(pid) for pid in pids))

    def test_signals_are_passed_on(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with tempfile.TemporaryDirectory() as folder:
                p, pids = self.start(folder, f"trap 'echo got > {folder}/got.$RANK; exit 0' {number.name[3:]};")
                p.send_signal(number)
                self.assertEqual(p.wait(GUARD_S), 128 + number)
                wait_for(lambda: not any(alive(pid) for pid in pids))  # the blow has fallen; the kernel may still be at it
                self.assertEqual(sorted(n for n in os.listdir(folder) if n.startswith("got")), ["got.0", "got.1"])

    def test_failures_of_several_are_one_document(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model")
            subprocess.run([TOOL, "make-checkpoint", model, "--tensors", "3", "--bytes", "300000", "-q"], check=True, timeout=GUARD_S)
            for args, code, status in ((["demo", "--model", model], "DIGEST", 3), (["bench", "broadcast", "--ranks", "3", "--backend", "/etc/passwd"], "BAD_PLUGIN", 1),
                                       (["bench", "update", "--ranks", "3", "--checkpoint", folder + "/nosuch"], "IO", 1)):
                fault = {"ISTHMUS_FAULT": "flip"} if args[0] == "demo" else {}
                done = subprocess.run([TOOL, *args, "--json"], capture_output=True, timeout=GUARD_S, stdin=subprocess.DEVNULL,
                                      env={**os.environ, "TMPDIR": folder, **fault}, check=False)
                self.assertEqual((json.loads(done.stdout)["error"]["code"], done.returncode), (code, status), done.stderr)

    def test_interrupted_demo_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            demo = subprocess.Popen([TOOL, "demo", "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    env={**os.environ, "TMPDIR": folder})
            wait_for(lambda: os.listdir(folder))
            demo.send_signal(signal.SIGTERM)
            demo.communicate(timeout=GUARD_S)
            self.assertEqual((demo.returncode, os.listdir(folder)), (128 + signal.SIGTERM, []))

    def test_two_signals_end_the_stubborn(self):
        with tempfile.TemporaryDirectory() as folder:
            p, pids = self.start(folder, "trap '' INT TERM;")
            p.send_signal(signal.SIGINT)
            p.send_signal(signal.SIGINT)
            self.assertEqual(p.wait(GUARD_S), 130)
            wait_for(lambda: not any(alive(pid) for pid in pids))  # the blow has fallen; the kernel may still be at it

    def test_children_have_no_blocked_signals(self):
        done = call("-n", "1", "--", "grep", "SigBlk", "/proc/self/status")
        self.assertEqual(int(done.stdout.split()[1], 16), 0, done.stdout)

    def test_no_descriptor_leaks_into_children(self):
        done = call("-n", "1", "--", "sh", "-c", "ls /proc/self/fd | wc -l")
        self.assertLessEqual(int(done.stdout), 4, done.stdout)


if __name__ == "__main__":
    unittest.main()
