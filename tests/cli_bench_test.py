#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The verb bench: each WHAT gives the rows that docs/cli.md promises, limits come from the same run, and peers are run as they
are listed. No figure is judged, only that figures fit together.

    tests/cli_bench_test.py PATH/TO/isthmus
"""
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
import unittest

TOOL = os.path.abspath(sys.argv.pop(1))
GUARD_S = 200

# What a peer is asked for, and what it then prints; it keeps its arguments.
PEER = """#!/bin/sh
echo "$@" > "$(dirname "$0")/said"
echo 'this is no JSON'
echo '{"peer": "x", "what": "barrier", "how": "fast", "bytes": 0, "ranks": 2, "transport": "shm", "inner": 5, "at": [1, 2], "seconds": [0.25, 0.75]}'
echo '{"peer": "x", "what": "split", "bytes": 0, "why": "it has none"}'
"""


def clean():
    return {k: v for k, v in os.environ.items() if not k.startswith(("ISTHMUS_", "SLURM_", "OMPI_", "PMI_", "RANK", "WORLD", "MASTER_"))}


def wait_for_pages(process, name, kib):
    """Until that process has the file mapped, and so much of it is there."""
    end = time.monotonic() + GUARD_S
    while True:
        with open(f"/proc/{process.pid}/smaps", encoding="utf-8") as f:
            for line in f:
                if line.rstrip().endswith(name):
                    if next(f).startswith("Size") and int(next(r for r in f if r.startswith("Rss:")).split()[1]) >= kib:
                        return
        if time.monotonic() > end or process.poll() is not None:
            raise AssertionError(f"{name} was never mapped: {process.communicate(timeout=GUARD_S)}")


def bench(*args, **variables):
    env = clean()
    env.update(variables)
    return subprocess.run([TOOL, "bench", *args, "--json"], env=env, capture_output=True, text=True, timeout=GUARD_S)


class Bench(unittest.TestCase):
    def rows(self, *args, repeat=2, **variables):
        done = bench(*args, "--repeat", str(repeat), **variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        document = json.loads(done.stdout)
        self.assertEqual((document["schema"], document["what"]), (1, args[0]))
        return document, {r["name"]: r for r in document["rows"]}

    def check(self, row, repeat=2, limited=False):
        s = row["seconds"]
        self.assertTrue(0 < s["min"] <= s["median"] <= s["max"], row)
        self.assertEqual(len(row["samples"]), repeat)
        self.assertEqual(min(row["samples"]), s["min"])
        if limited:
            self.assertGreater(row["limit_gbps"], 0)
            self.assertAlmostEqual(row["percent_of_limit"], 100 * row["gbps"] / row["limit_gbps"], delta=0.01)

    def test_mesh(self):
        _, rows = self.rows("group", "--ranks", "3")
        self.assertEqual(set(rows), {"group", "free group", "split", "free split"})
        for row in rows.values():
            self.check(row)
        _, rows = self.rows("barrier", "--ranks", "2")
        self.check(rows["barrier"])
        self.assertGreater(rows["barrier"]["inner"], 1)
        _, rows = self.rows("objects", "--ranks", "2", "--size", "1024")
        self.check(rows["all_gather_bytes 1024"])

    def test_broadcast(self):
        document, rows = self.rows("broadcast", "--ranks", "2", "--size", "1MiB")
        self.check(rows["broadcast 1048576"], limited=True)
        self.check(rows["broadcast, group memory 1048576"], limited=True)
        self.assertIn("view 1048576", rows)
        self.assertIn("view, read 1048576", rows)
        m = document["machine"]
        self.assertAlmostEqual(rows["broadcast 1048576"]["limit_gbps"], max(m["copy_apart_gbps"], m["copy_together_gbps"]), places=6)
        self.assertNotIn("socket_gbps", m)

    def test_broadcast_over_tcp(self):
        document, rows = self.rows("broadcast", "--ranks", "3", "--size", "1MiB", "--transport", "tcp")
        self.check(rows["broadcast 1048576"], limited=True)
        self.assertEqual(len(rows), 1)  # nobody can look into the root's memory
        m = document["machine"]
        self.assertAlmostEqual(rows["broadcast 1048576"]["limit_gbps"], max(m["socket_chain_gbps"], m["socket_gbps"] / 2), places=6)
        self.assertNotIn("copy_together_gbps", m)

    def test_sync(self):
        _, rows = self.rows("update", "--ranks", "2", "--tensors", "50", "--bytes", "1000001")
        self.assertEqual(rows["update"]["bytes"], 1000001)
        self.check(rows["update"], limited=True)
        _, rows = self.rows("gather", "--ranks", "3", "--tensors", "7")
        self.check(rows["gather"])
        self.assertEqual(bench("gather", "--ranks", "1").returncode, 2)

    def test_load(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model")
            subprocess.run([TOOL, "make-checkpoint", model, "--tensors", "5", "--bytes", "3000000", "-q"], check=True, timeout=GUARD_S)
            _, rows = self.rows("load", "--checkpoint", model)
        self.assertEqual(set(rows), {"read", "map", "load", "load, first", "load into places"})
        self.assertEqual(rows["load into places"]["bytes"], 3000000)
        self.check(rows["load"], limited=True)
        self.assertEqual(rows["load"]["bytes"], 3000000)
        best = max(rows[n]["bytes"] / rows[n]["seconds"]["min"] / 1e9 for n in ("read", "map"))
        self.assertAlmostEqual(rows["load"]["limit_gbps"], best, places=6)

    def test_file_that_shrinks(self):
        """While it is read as while it lies in a mapping: an error that names it, and no signal."""
        for mapped in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run([TOOL, "make-checkpoint", folder + "/model", "--tensors", "3", "--bytes", "8000000", "-q"], check=True, timeout=GUARD_S)
                name, = (n for n in os.listdir(folder + "/model") if n.endswith(".safetensors"))
                with subprocess.Popen([TOOL, "bench", "load", "--checkpoint", folder + "/model", "--repeat", "400" if mapped else "100000", "--json"],
                                      env=clean(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
                    wait_for_pages(p, name, 1 if mapped else 0)
                    os.truncate(f"{folder}/model/{name}", 5000)
                    out, err = p.communicate(timeout=GUARD_S)
                self.assertEqual(p.returncode, 1, err)
                self.assertIn("IO", out + err)
                self.assertIn(f"{name} has become shorter", out + err)


class Peers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.makedirs(os.path.join(self.folder.name, "isthmus", "bench"))

    def script(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(path, stat.S_IRWXU)
        return path

    def listed(self, *peers):
        with open(os.path.join(self.folder.name, "isthmus", "bench", "peers.json"), "w", encoding="utf-8") as f:
            json.dump({"schema": 1, "peers": list(peers)}, f)

    def run_beside(self, peers, *args):
        return bench(*args, "--ranks", "2", "--repeat", "2", "--peers", peers, XDG_CACHE_HOME=self.folder.name)

    def test_listed(self):
        self.listed({"name": "good", "command": [self.script("good", PEER), "word"]}, {"name": "absent", "why": "not installed"},
                    {"name": "broken", "command": [self.script("broken", "#!/bin/sh\nexit 3\n")]},
                    {"name": "nowhere", "command": [os.path.join(self.folder.name, "nowhere")]})
        done = self.run_beside("all", "barrier")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {r["name"]: r for r in json.loads(done.stdout)["rows"]}
        self.assertEqual(set(rows), {"barrier", "good: barrier (fast)", "good: split", "absent", "broken", "nowhere"})
        row = rows["good: barrier (fast)"]
        self.assertEqual((row["peer"], row["seconds"]["median"], row["samples"], row["inner"]), ("good", 0.5, [0.25, 0.75], 5))
        self.assertEqual((rows["absent"]["why"], rows["good: split"]["why"]), ("not installed", "it has none"))
        self.assertTrue(rows["broken"]["why"] and rows["nowhere"]["why"])
        with open(os.path.join(self.folder.name, "said"), encoding="utf-8") as f:
            self.assertEqual(f.read().split(), ["word", "--ranks", "2", "--repeat", "2", "--transport", "shm", "barrier"])

    def test_chosen(self):
        self.listed({"name": "a", "why": "x"}, {"name": "ab", "why": "y"}, {"name": "b", "why": "z"})
        done = self.run_beside("b,ab", "barrier")
        self.assertEqual([r["name"] for r in json.loads(done.stdout)["rows"]], ["barrier", "ab", "b"])
        done = self.run_beside("none", "barrier")
        self.assertEqual([r["name"] for r in json.loads(done.stdout)["rows"]], ["barrier"])
        self.assertEqual(self.run_beside("c", "barrier").returncode, 2)

    def test_what_peers_are_asked_for(self):
        self.listed({"name": "good", "command": [self.script("good", PEER)]})
        for args, items in ((["broadcast", "--size", "64KiB"], ["broadcast:65536"]), (["objects", "--size", "512"], ["allgather:512"]),
                            (["group"], ["create", "split"])):
            done = self.run_beside("good", *args)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(os.path.join(self.folder.name, "said"), encoding="utf-8") as f:
                self.assertEqual(f.read().split()[6:], items)

    def test_no_list(self):
        done = self.run_beside("all", "barrier")
        self.assertEqual(done.returncode, 1)
        self.assertIn("BAD_CONFIG", done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
