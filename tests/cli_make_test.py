#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""isthmus make-checkpoint and inspect: layouts as the models have them, files as the format has them, equal seeds.

    tests/cli_make_test.py PATH/TO/isthmus
"""
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

TOOL = os.path.abspath(sys.argv.pop(1))
GUARD_S = 100


def call(*args):
    return subprocess.run([TOOL, *args], capture_output=True, text=True, timeout=GUARD_S, stdin=subprocess.DEVNULL)


def header(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        return n, json.loads(f.read(n))


def sha(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class Make(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.dir = os.path.join(self.folder.name, "model")

    def make(self, *args, status=0):
        done = call("make-checkpoint", self.dir, "--json", *args)
        self.assertEqual(done.returncode, status, done.stderr)
        return json.loads(done.stdout)

    def test_small_layout(self):
        document = self.make("--layout", "qwen3-0.6b", "--layers", "1")
        path = os.path.join(self.dir, "model.safetensors")
        n, entries = header(path)
        self.assertEqual(n % 8, 0)
        self.assertEqual(entries.pop("__metadata__"), {"format": "pt"})
        self.assertEqual(len(entries), document["tensors"])
        self.assertEqual(entries["model.embed_tokens.weight"]["shape"], [151936, 1024])
        self.assertEqual(entries["model.layers.0.self_attn.o_proj.weight"]["shape"], [1024, 2048])
        self.assertEqual(entries["model.layers.0.self_attn.k_proj.weight"]["shape"], [1024, 1024])
        self.assertEqual(entries["model.layers.0.self_attn.q_norm.weight"]["shape"], [128])
        self.assertNotIn("lm_head.weight", entries)
        at = 0
        for entry in entries.values():
            size = 2
            for d in entry["shape"]:
                size *= d
            self.assertEqual((entry["dtype"], entry["data_offsets"]), ("BF16", [at, at + size]))
            at += size
        self.assertEqual(os.path.getsize(path), 8 + n + at)
        with open(os.path.join(self.dir, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        self.assertEqual((config["num_hidden_layers"], config["hidden_size"], config["architectures"]), (1, 1024, ["Qwen3ForCausalLM"]))

    def test_seeds(self):
        self.make("--tensors", "7", "--bytes", "100003", "--seed", "5")
        first = sha(os.path.join(self.dir, "model.safetensors"))
        for seed, same in (("5", True), ("6", False)):
            self.dir += "x"
            self.make("--tensors", "7", "--bytes", "100003", "--seed", seed)
            self.assertEqual(sha(os.path.join(self.dir, "model.safetensors")) == first, same)

    def test_bytes_add_up(self):
        for tensors, size in ((1, 0), (3, 1), (10, 1001), (2000, 4096)):
            self.dir += "x"
            document = self.make("--tensors", str(tensors), "--bytes", str(size))
            self.assertEqual((document["tensors"], document["bytes"]), (tensors, size))
            listed = json.loads(call("inspect", self.dir, "--json").stdout)
            self.assertEqual((len(listed["tensors"]), listed["totals"]["bytes"]), (tensors, size))

    def test_existing_folder(self):
        os.mkdir(self.dir)
        self.make("--tensors", "1", "--bytes", "8")
        error = self.make("--tensors", "1", "--bytes", "8", status=1)["error"]
        self.assertEqual(error["code"], "CONFLICT")
        self.assertEqual(os.listdir(self.folder.name), ["model"])

    def test_deadline_leaves_nothing(self):
        error = self.make("--layout", "qwen3-8b", "--timeout", "0.05", status=124)["error"]
        self.assertEqual(error["code"], "TIMEOUT")
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_no_space_is_told_before_writing(self):
        fs = os.statvfs(self.folder.name)
        need = 2 * fs.f_blocks * fs.f_frsize + (1 << 30)
        error = self.make("--tensors", "4", "--bytes", str(need), status=1)["error"]
        self.assertEqual(error["code"], "NO_SPACE")
        self.assertRegex(error["detail"], r"needs \d{10,} bytes, and there are \d+")
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_inspect_digests(self):
        self.make("--tensors", "5", "--bytes", "1MiB")
        listed = json.loads(call("inspect", self.dir, "--digests", "--json").stdout)
        self.assertEqual(listed["schema"], 1)
        digests = [t["digest"] for t in listed["tensors"]] + [listed["totals"]["digest"]]
        self.assertEqual(len(set(digests)), 6)
        for digest in digests:
            self.assertRegex(digest, "^[0-9a-f]{32}$")
        plain = json.loads(call("inspect", self.dir, "--json").stdout)
        self.assertIsNone(plain["tensors"][0]["digest"])

    def test_inspect_hub_folder(self):
        """Names come from the snapshot, bytes from the blob."""
        self.make("--tensors", "2", "--bytes", "64")
        snapshot = os.path.join(self.folder.name, "models--o--m", "snapshots", "r")
        blobs = os.path.join(self.folder.name, "models--o--m", "blobs")
        os.makedirs(snapshot)
        os.makedirs(blobs)
        os.rename(os.path.join(self.dir, "model.safetensors"), os.path.join(blobs, "f" * 64))
        os.symlink("../../blobs/" + "f" * 64, os.path.join(snapshot, "model.safetensors"))
        listed = json.loads(call("inspect", snapshot, "--json").stdout)
        self.assertEqual([t["file"] for t in listed["tensors"]], ["model.safetensors"] * 2)
        os.remove(os.path.join(blobs, "f" * 64))
        done = call("inspect", snapshot, "--json")
        self.assertEqual((done.returncode, json.loads(done.stdout)["error"]["code"]), (1, "MISSING_SHARD"), done.stderr)


if __name__ == "__main__":
    unittest.main()
