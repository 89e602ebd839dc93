#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/run keeps of samples, and what bench/report makes of a result. Nothing is measured."""
import importlib.machinery
import importlib.util
import json
import os
import sys
import tempfile
import unittest
import xml.dom.minidom

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MIB = 1 << 20


def program(name):
    loader = importlib.machinery.SourceFileLoader("bench_" + name, os.path.join(ROOT, "bench", name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


RUN, REPORT = program("run"), program("report")


def watch(foreign, stolen):
    """One look every 0.1 s; foreign and stolen are shares of a core from second 2 to second 3, and nothing else."""
    w, at = RUN.Watch(), [i / 10 for i in range(60)]
    inside = [min(max(t - 2, 0), 1) for t in at]
    w.log = [(t, foreign * x, stolen * x) for t, x in zip(at, inside)]
    return w


class Samples(unittest.TestCase):
    def test_load_beside_a_sample(self):
        self.assertEqual(watch(0.9, 0).spoiled(2.2, 0.5), "foreign")
        self.assertEqual(watch(0, 0.5).spoiled(2.2, 0.5), "stolen")
        self.assertIsNone(watch(0.9, 0.5).spoiled(4, 0.5))
        self.assertIsNone(watch(0.1, 0.02).spoiled(2.2, 0.5))
        self.assertIsNone(RUN.Watch().spoiled(2, 1))

    def test_own_time_is_not_foreign(self):
        w = RUN.Watch()
        before = w.own()
        spent = 0
        while w.own() - before < 0.05 and spent < 10 ** 8:
            spent += 1
        self.assertGreaterEqual(w.own() - before, 0.05)

    def test_rows_grow_from_round_to_round(self):
        result, w = RUN.Result(), watch(0.9, 0)
        row = {"peer": "isthmus", "what": "broadcast", "how": "", "bytes": 8, "ranks": 2, "transport": "shm", "inner": 1, "limit": 10.0}
        result.add({**row, "at": [0.5, 2.3], "seconds": [0.1, 0.2]}, w)
        result.add({**row, "at": [4.5], "seconds": [0.3], "limit": 12.0}, w)
        (kept,) = result.rows.values()
        result.add({**row, "at": [4.6], "seconds": [0.4], "limit": 13.0, "limits": [13.0]}, w)  # those of the samples, where they are there
        self.assertEqual((kept["seconds"], kept["discarded"], kept["limits_gbps"]), ([0.1, 0.3, 0.4], {"foreign": 1}, [10.0, 12.0, 13.0]))

    def test_result_survives_its_file(self):
        result = RUN.Result()
        result.add({"peer": "gloo", "what": "barrier", "how": "", "bytes": 0, "ranks": 2, "transport": "tcp", "inner": 1, "at": [1], "seconds": [0.5]},
                   RUN.Watch())
        result.add({"peer": "ucx-old", "what": "split", "bytes": 0, "ranks": 2, "transport": "tcp", "why": 'a "reason" \\ here'}, RUN.Watch())
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "r.json")
            RUN.save(path, type("Args", (), {"rounds": 1, "repeat": 2}), result, {"gloo": {"name": "gloo", "version": "1"}}, "cubic", None)
            again = RUN.Result()
            self.assertEqual(RUN.load(path, again)["rounds"], 1)
        self.assertEqual((again.rows, again.whys), (result.rows, result.whys))


def row(peer, what, seconds, size=0, ranks=2, transport="shm", how="", limits=(), discarded=None):
    return {"peer": peer, "what": what, "how": how, "bytes": size, "ranks": ranks, "transport": transport, "inner": 1, "seconds": list(seconds),
            "discarded": discarded or {}, "limits_gbps": list(limits)}


class Page(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def page(self, rows, peers=(), whys=()):
        path = os.path.join(self.folder.name, "r.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"schema": 1, "date": "2000-01-01", "commit": "abc", "congestion": "cubic", "rounds": 1, "repeat": 3, "foreign_limit": 0.25,
                       "steal_limit": 0.1, "machine": {"cpus": 2, "cpu": "c", "memory_gib": 1, "kernel": "k"}, "peers": list(peers), "rows": rows,
                       "whys": list(whys)}, f)
        return REPORT.page(REPORT.Result(path), self.folder.name)

    def test_nothing_to_compare_with(self):
        page = self.page([row("isthmus", "broadcast", [0.1], 64 * MIB)])
        self.assertIn("| 64 MiB | **Isthmus** |  | 0.67 | 0.67 - 0.67 |  | 1 |", page)
        self.assertIn("| 64 MiB, 1 -> 1, shm, group memory | | not measured | |", page)

    def test_share_of_the_limit(self):
        size = 512 * MIB
        rows = [row("isthmus", "broadcast", [size / 5e9, size / 4e9, size / 6e9], size, limits=[8.0, 10.0]),
                row("ucx-old", "broadcast", [size / 2e9], size, how="tag"), row("ucx-old", "broadcast", [size / 3e9], size, how="get")]
        page = self.page(rows, [{"name": "ucx-old", "version": "9"}, {"name": "openmpi", "why": "not <here>"}])
        self.assertIn("| 512 MiB | **Isthmus** |  | 5.00 | 4.00 - 6.00 | 56 % of 9.0 | 3 |", page)
        self.assertIn("| 512 MiB | UCX 9 | get | 3.00 | 3.00 - 3.00 | 33 % of 9.0 | 1 |", page)
        self.assertIn("| 512 MiB | Open MPI |  | - | not <here> |", page)
        with open(os.path.join(self.folder.name, "broadcast-shm-1.svg"), encoding="utf-8") as f:
            texts = [n.firstChild.data for n in xml.dom.minidom.parseString(f.read()).getElementsByTagName("text")]
        self.assertIn("UCX 9", texts)
        self.assertIn("5.00", texts)

    def test_both_kinds_of_memory_and_what_was_wanted(self):
        size = 64 * MIB
        page = self.page([row("isthmus", "broadcast", [size / 6e9], size, 4, how="group memory", limits=[6.5, 7.0, 9.0]),
                          row("isthmus", "broadcast", [size / 4e9], size, 4, how="plain memory", limits=[8.0]),
                          row("openmpi", "broadcast", [size / 3e9], size, 4), row("ucx-old", "broadcast", [size / 2e9], size, 4, how="put"),
                          row("isthmus", "plan 200000 x 64", [0.05], ranks=1, transport="none")])
        self.assertIn("| 64 MiB | **Isthmus** | group memory | 6.00 | 6.00 - 6.00 | 86 % of 7.0 | 1 |", page)
        self.assertIn("| 64 MiB | **Isthmus** | plain memory | 4.00 | 4.00 - 4.00 | 50 % of 8.0 | 1 |", page)
        self.assertIn("| 64 MiB, 1 -> 3, shm, group memory | >= 2.5 x Open MPI or UCX or gloo | 2.00 x Open MPI | does not hold |", page)
        self.assertIn("| 64 MiB, 1 -> 3, shm, group memory | >= 85 % of the limit | 86 % | holds |", page)
        self.assertIn("| plan of 200,000 tensors from 64 ranks | <= 2.0 s | 50.0 ms (50.0 ms - 50.0 ms) | holds |", page)

    def test_what_was_lost_is_said(self):
        page = self.page([row("isthmus", "barrier", [], discarded={"foreign": 3}), row("isthmus", "split", [0.002])],
                         whys=[{"peer": "ucx-old", "what": "split", "how": None, "bytes": 0, "ranks": 2, "transport": "shm", "why": "has none"}])
        self.assertIn("3 of 4 were thrown away", " ".join(page.split()))
        self.assertIn("all samples were taken beside other load", page)
        self.assertIn("2.0 ms", page)
        self.assertIn("has none", page)

    def test_every_unit(self):
        self.assertEqual([REPORT.duration(s) for s in (2.5, 0.25, 0.0015, 2e-7)], ["2.5 s", "250 ms", "1.5 ms", "0.2 µs"])


if __name__ == "__main__":
    unittest.main()
