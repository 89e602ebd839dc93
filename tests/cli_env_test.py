#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line before anything moves: launchers' variables, ISTHMUS_* variables, addresses, exit statuses, JSON errors.

    tests/cli_env_test.py PATH/TO/isthmus
"""
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest

TOOL = os.path.abspath(sys.argv.pop(1))
GUARD_S = 60
# nobody listens on port 1: a call that gets as far as meeting ends at its deadline
NOWHERE = ["--at", "tcp://127.0.0.1:1", "--timeout", "0.3", "--no-host-meeting"]


def call(*args, **variables):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ISTHMUS_", "SLURM_", "OMPI_", "PMI_", "RANK", "WORLD", "MASTER_"))}
    env.update(variables)
    start = time.monotonic()
    done = subprocess.run([TOOL, *args], env=env, capture_output=True, text=True, errors="replace", timeout=GUARD_S, stdin=subprocess.DEVNULL)
    done.seconds = time.monotonic() - start
    return done


class Case(unittest.TestCase):
    def usage(self, done, *words):
        self.assertEqual(done.returncode, 2, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def says_rank(self, done, rank, world, *words):
        """It got as far as meeting, as this rank, and failed there for want of others."""
        self.assertIn(f"rank {rank} of {world}:", done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertNotEqual(done.returncode, 2, done.stderr)


class Launchers(Case):
    ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}

    def test_allocation_is_no_step(self):
        self.usage(call("pull", "null:", *NOWHERE, **self.ALLOCATION), "allocation, not a step")

    def test_reserved_step_is_no_step(self):
        self.usage(call("pull", "null:", *NOWHERE, SLURM_STEP_ID="4294967290", **self.ALLOCATION), "allocation, not a step")

    def test_inner_launcher_beats_allocation(self):
        self.says_rank(call("pull", "null:", *NOWHERE, RANK="1", WORLD_SIZE="2", **self.ALLOCATION), 1, 2, "RANK", "WORLD_SIZE")

    def test_half_a_set(self):
        env = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "4"}
        self.usage(call("pull", "null:", *NOWHERE, RANK="1", **env), "WORLD_SIZE")
        self.usage(call("pull", "null:", *NOWHERE, WORLD_SIZE="2"), "RANK")
        self.usage(call("pull", "null:", *NOWHERE, OMPI_COMM_WORLD_RANK="0"), "OMPI_COMM_WORLD_SIZE")
        self.usage(call("pull", "null:", *NOWHERE, PMI_SIZE="2"), "PMI_RANK")

    def test_rank_not_below_count(self):
        self.usage(call("pull", "null:", *NOWHERE, RANK="5", WORLD_SIZE="2"), "RANK", "WORLD_SIZE")

    def test_more_than_a_group_has(self):
        """Told before anything is opened or anybody waited for, whoever says it."""
        for args, env, word in ((("--world", "4097", "--rank", "1"), {}, "--world"), (("--world", "70000", "--rank", "1"), {}, "--world"),
                                ((), {"RANK": "5000", "WORLD_SIZE": "6000"}, "WORLD_SIZE"), (("--rank", "1"), {"ISTHMUS_WORLD": "4097"}, "ISTHMUS_WORLD")):
            done = call("pull", "null:", *NOWHERE, *args, **env)
            self.assertEqual(done.returncode, 1, done.stderr)
            for said in ("LIMIT", f"{word} says", "at most 4096"):
                self.assertIn(said, done.stderr)
        self.assertIn("missing of 4096", call("pull", "null:", *NOWHERE, "--world", "4096", "--rank", "4095").stderr)

    def test_value_that_does_not_parse(self):
        for bad in ("", "x", "1x", "-1", "0x1", " 1", "99999999999999999999"):
            self.usage(call("pull", "null:", *NOWHERE, RANK=bad, WORLD_SIZE="2"), "RANK")

    def test_each_set(self):
        for rank, size in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
            self.says_rank(call("pull", "null:", *NOWHERE, **{rank: "1", size: "3"}), 1, 3, rank, size)
        self.says_rank(call("pull", "null:", *NOWHERE, SLURM_STEP_ID="0", SLURM_PROCID="1", SLURM_NTASKS="3"), 1, 3, "SLURM_PROCID")

    def test_options_beat_sets(self):
        for env in (self.ALLOCATION, {"RANK": "5", "WORLD_SIZE": "2"}, {"RANK": "1"}):
            done = call("pull", "null:", *NOWHERE, "--rank", "1", "--world", "2", **env)
            self.assertNotEqual(done.returncode, 2, done.stderr)

    def test_offset(self):
        env = {"RANK": "1", "WORLD_SIZE": "3"}
        self.says_rank(call("pull", "null:", *NOWHERE, "--rank-offset", "2", "--world", "5", **env), 3, 5, "--rank-offset", "--world")
        self.usage(call("pull", "null:", *NOWHERE, "--rank-offset", "2", **env), "--world")
        self.usage(call("pull", "null:", *NOWHERE, "--rank-offset", "4", "--world", "5", **env), "rank 5")
        self.usage(call("pull", "null:", *NOWHERE, "--rank-offset", "1", "--rank", "1", "--world", "5"), "--rank-offset")

    def test_nothing_known(self):
        self.usage(call("pull", "null:", *NOWHERE), "--rank")
        self.usage(call("pull", "null:", *NOWHERE, "--rank", "0"), "--world")


class Variables(Case):
    KUBERNETES = {
        "ISTHMUS_PORT": "tcp://10.96.0.13:29600", "ISTHMUS_SERVICE_HOST": "10.96.0.13", "ISTHMUS_PORT_29600_TCP_ADDR": "10.96.0.13",
        "MASTER_ADDR": "master", "MASTER_PORT": "tcp://10.96.0.12:29500", "RANK": "0", "WORLD_SIZE": "2",
    }

    def test_injected_variables_are_harmless(self):
        done = call("pull", "null:", *NOWHERE, "--world", "2", "--rank", "1", **self.KUBERNETES)
        self.assertNotEqual(done.returncode, 2, done.stderr)

    def test_injected_port_is_refused_by_name(self):
        done = call("pull", "null:", "--json", **self.KUBERNETES)
        self.usage(done, "ISTHMUS_PORT", "tcp://10.96.0.13:29600", "MASTER_PORT", "tcp://10.96.0.12:29500")
        error = json.loads(done.stdout)["error"]
        self.assertEqual(error["code"], "INVALID_ARGUMENT")
        self.assertLess(done.seconds, 10)

    def test_no_address(self):
        self.usage(call("pull", "null:", RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500"), "--at")

    def test_master_port_is_never_dialled(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0)
            port = str(server.getsockname()[1])
            call("pull", "null:", RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, ISTHMUS_PORT="1", ISTHMUS_TIMEOUT="0.3")
            self.assertRaises(BlockingIOError, server.accept)

    def test_bad_mirror_is_named(self):
        for name, bad in (("ISTHMUS_BUCKET", "abc"), ("ISTHMUS_TIMEOUT", "soon"), ("ISTHMUS_WORLD", "2x"), ("ISTHMUS_TRANSPORT", "pigeon"),
                          ("ISTHMUS_QUIET", "perhaps"), ("ISTHMUS_LOG_LEVEL", "loud")):
            self.usage(call("pull", "null:", "--at", "tcp://127.0.0.1:1", "--rank", "1", **{name: bad, **({} if name == "ISTHMUS_WORLD" else {"ISTHMUS_WORLD": "2"})}), name, bad)

    def test_mirror_is_named_whoever_finds_the_fault(self):
        for name, bad in (("ISTHMUS_AT", "udp://x"), ("ISTHMUS_DEVICE", "tpu"), ("ISTHMUS_LABEL", "x" * 65), ("ISTHMUS_GROUP", "g" * 256)):
            place = {} if name == "ISTHMUS_AT" else {"ISTHMUS_AT": "tcp://127.0.0.1:1"}
            self.usage(call("push", "x", "--world", "2", "--rank", "1", **place, **{name: bad}), name, bad)

    def test_option_beats_bad_mirror(self):
        done = call("pull", "null:", *NOWHERE, "--world", "2", "--rank", "1", "--bucket", "1MiB", ISTHMUS_BUCKET="abc")
        self.assertNotEqual(done.returncode, 2, done.stderr)

    def test_mirrors_work(self):
        done = call("pull", "null:", *NOWHERE, ISTHMUS_WORLD="7", ISTHMUS_RANK="9")
        self.usage(done, "rank 9")


class Options(Case):
    def test_wrong_usage(self):
        for args in (["frobnicate"], ["pull"], ["pull", "a", "b"], ["pull", "a", "--nosuch"], ["pull", "a", "--world"], ["run", "--", "true"],
                     ["push", "x", "--bucket", "1MB"], ["push", "x", "--bucket", "1KiB"], ["push", "x", "--part", "2/2"],
                     ["push", "x", "--part", "1"], ["push", "x", "--version", "0"], ["push", "x", "--timeout", "0"],
                     ["push", "x", "--timeout", "1e3"], ["push", "x", "--label", "x" * 65], ["make-checkpoint", "d"],
                     ["make-checkpoint", "d", "--tensors", "1"], ["make-checkpoint", "d", "--layout", "nosuch"],
                     ["make-checkpoint", "d", "--layout", "qwen3-8b", "--layers", "37"], ["bench", "nosuch"], ["store"],
                     ["pull", "null:", *NOWHERE, "--rank", "0", "--world", "2", "--device", "tpu"]):
            done = call(*args, "--json") if "--" not in args else call(*args[:1], "--json", *args[1:])
            self.assertEqual(done.returncode, 2, (args, done.stderr))
            document = json.loads(done.stdout)
            self.assertEqual((document["schema"], document["error"]["code"]), (1, "INVALID_ARGUMENT"), args)
            self.assertTrue(document["error"]["next"], args)

    def test_texts(self):
        for args in (["--label", ""], ["--label", "\u00e9" * 32], ["--group", ""], ["--group", "a/b ../\u00fc"]):
            self.assertNotEqual(call("push", "/nonexistent", *NOWHERE, "--world", "2", "--rank", "1", *args).returncode, 2)
        for args in (["--label", "\u00e9" * 33], ["--label", b"\xff"], ["--group", b"\xc3("]):
            self.usage(call("push", "/nonexistent", *NOWHERE, "--world", "2", "--rank", "1", *args), args[0])

    def test_output_that_goes_nowhere(self):
        for args in (["--help"], ["push", "--help"], ["version"], ["backends", "--json"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([TOOL, *args], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.DEVNULL, timeout=60, check=False)
            self.assertEqual(done.returncode, 1, args)

    def test_not_built_yet(self):
        for args in (["join", "d"], ["serve", "c"], ["update", "c", "--engine", "http://localhost"], ["bench", "p2p"],
                     ["pull", "null:", *NOWHERE, "--rank", "0", "--world", "2", "--device", "ascend:0"]):
            done = call(*args, "--json")
            self.assertEqual(done.returncode, 1, (args, done.stderr))
            self.assertEqual(json.loads(done.stdout)["error"]["code"], "UNSUPPORTED", args)
        self.assertNotIn("join", call("--help").stdout)

    def test_help(self):
        done = call("--help")
        self.assertEqual(done.returncode, 0)
        for line in done.stdout.splitlines():
            if line.startswith("  ") and line.split()[0].isalpha():
                verb = call(line.split()[0], "--help")
                self.assertEqual(verb.returncode, 0)
                for option in ("--json", "--timeout", "--no-progress", "--log-level", "--quiet", "--help"):
                    self.assertIn(option, verb.stdout)

    def test_version(self):
        self.assertEqual(call("--version").stdout, call("version").stdout)
        document = json.loads(call("version", "--json").stdout)
        self.assertEqual(document["schema"], 1)
        self.assertEqual(list(document)[0], "schema")
        self.assertLessEqual(document["proto"][0], document["proto"][1])
        self.assertEqual(document["abi"], 1)
        self.assertIsInstance(document["features"], list)

    def test_error_document(self):
        done = call("inspect", "/nonexistent/x.safetensors", "--json")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(sorted(json.loads(done.stdout)["error"]),
                         sorted(["code", "scope", "op", "ranks", "tensor", "bucket", "errno", "next", "detail", "per_rank"]))


class Addresses(Case):
    def test_refused_as_text(self):
        for host in ("::1:29600", "482:29600", "127.1:29600", "0x7f.1:29600", "localhost:", "localhost:99999", "0.0.0.0:29600", "[::]:29600"):
            done = call("pull", "null:", "--at", "tcp://" + host, "--world", "2", "--rank", "1", "--timeout", "20")
            self.assertEqual(done.returncode, 2, (host, done.stderr))
            self.assertLess(done.seconds, 10)
        self.usage(call("pull", "null:", "--at", "http://localhost:1", "--world", "2", "--rank", "1"), "tcp://HOST:PORT")


class Secrets(Case):
    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "secret")

            def attempt(content, mode):
                with open(path, "wb") as f:
                    f.write(content)
                os.chmod(path, mode)
                return call("pull", "null:", *NOWHERE, "--world", "2", "--rank", "1", "--secret-file", path)

            for content, mode, word in ((b"x" * 16, 0o640, "chmod 600"), (b"x" * 16, 0o604, "chmod 600"), (b"x" * 15 + b"\n", 0o600, "fewer than 16")):
                done = attempt(content, mode)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(word, done.stderr)
                self.assertNotIn("xxxxxxxxxxxxxxx", done.stdout + done.stderr)
            self.assertNotIn("secret file", attempt(b"x" * 16 + b"\n", 0o600).stderr)


if __name__ == "__main__":
    unittest.main()
