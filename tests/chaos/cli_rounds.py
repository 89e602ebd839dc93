#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Members die or freeze at random moments of an update by the command line: two sources, three sinks.

    tests/chaos/cli_rounds.py PATH/TO/isthmus [--rounds N] [--seconds S] [--seed N] [--only ROUND]

After each round: every survivor has ended in time, with success or an error that names the victim; no destination is torn,
and under --on-loss fail all survivors agree on old or new; nothing is left in /dev/shm or beside a destination. The seed is
printed; a round depends on the seed and its number alone (and on the clock of the machine, which picks the exact moment).
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import ground

WORLD, SOURCES = 5, 2
DEADLINE_S, NO_PROGRESS_S, GUARD_S = 20, 2, 15
LOSS = {"PEER_LOST", "NO_PROGRESS", "PEER_LEFT", "ABORTED", "SLOW_PEER"}


class Bad(Exception):
    pass


def private_shm():
    """Root gets a /dev/shm of its own, so that what is left there is certainly ours."""
    if os.environ.get("CHAOS_PRIVATE") or os.geteuid() != 0:
        return
    os.environ["CHAOS_PRIVATE"] = "1"
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/dev/shm"], capture_output=True, check=False).returncode == 0:
        script = 'mount -t tmpfs none /dev/shm && exec "$@"'
        os.execvp("unshare", ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, *sys.argv])


def digest(folder):
    """Of a whole folder; None: there is none."""
    if not os.path.isdir(folder):
        return None
    h = hashlib.blake2b()
    for name in sorted(os.listdir(folder)):
        h.update(name.encode() + b"\0")
        with open(os.path.join(folder, name), "rb") as f:
            shutil.copyfileobj(f, type("Sink", (), {"write": staticmethod(h.update)}), 1 << 20)
    return h.hexdigest()


class Member:
    def __init__(self, tool, rank, args, folder, env):
        self.rank = rank
        self.out = open(os.path.join(folder, f"out.{rank}"), "w+", encoding="utf-8")
        self.err = open(os.path.join(folder, f"err.{rank}"), "w+", encoding="utf-8")
        self.process = subprocess.Popen([tool, *args], stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, env=env, preexec_fn=ground.tie)
        self.status = self.document = self.ended = None

    def poll(self):
        if self.status is None and self.process.poll() is not None:
            self.status, self.ended = self.process.returncode, time.monotonic()
            self.out.seek(0)
            text = self.out.read()
            self.document = json.loads(text) if text.strip() else None
        return self.status is not None

    def error(self):
        return (self.document or {}).get("error")

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        self.out.close()
        self.err.close()

    def tell(self):
        self.err.seek(0)
        return f"--- rank {self.rank}: status {self.status}, document {json.dumps(self.document)}\n{self.err.read()[-3000:]}"


class Chaos:
    def __init__(self, args, work):
        self.tool, self.args, self.work = os.path.abspath(args.tool), args, work
        self.models = [os.path.join(work, f"model{i}") for i in range(2)]
        for i, model in enumerate(self.models):
            subprocess.run([self.tool, "make-checkpoint", model, "--tensors", "24", "--bytes", args.bytes, "--seed", str(i + 1), "-q"], check=True, timeout=120)
            with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as f:
                json.dump({"model": i}, f)
        self.whole = [digest(m) for m in self.models]
        self.copies = [os.path.join(work, f"copy{i}") for i in range(2)]
        self.usual_s = {"shm": 1.0, "tcp": 1.0}
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("ISTHMUS_", "SLURM_", "OMPI_", "PMI_", "RANK", "WORLD", "MASTER_"))}
        self.shm = sorted(os.listdir("/dev/shm"))
        self.count = {"new": 0, "old": 0, "mixed": 0}

    def beside(self):
        return [n for n in os.listdir(self.work) if n.startswith(".copy")]

    def start(self, at, plan, folder):
        common = ["--at", at, "--world", str(WORLD), "--json", "--timeout", str(self.args.timeout), "--no-progress", str(NO_PROGRESS_S), "--transport", plan["transport"],
                  "--on-loss", plan["on_loss"], "--bucket", plan["bucket"]]
        whats = [("push", self.models[plan["model"]])] * SOURCES + [("pull", self.copies[0]), ("pull", self.copies[1]), ("pull", plan["third"])]
        members = [Member(self.tool, r, [verb, what, "--rank", str(r), *common], folder, self.env) for r, (verb, what) in enumerate(whats)]
        return members

    def plan(self, rng, number):
        plan = {
            "number": number,
            "transport": rng.choice(["shm", "tcp"]),
            "on_loss": rng.choice(["fail", "continue"]),
            "model": number % 2,
            "third": rng.choice(["null:", "mem:", "shm:chaos"]),
            "bucket": rng.choice(["256KiB", "1MiB", "8MiB", "128MiB"]),
            "victim": rng.randrange(WORLD),
            "how": rng.choice(["KILL"] * 6 + ["STOP", "BLINK", "TERM", "NOBODY"]),
            "when": rng.uniform(0.0, 1.1),
        }
        return plan

    def round(self, plan):
        folder = os.path.join(self.work, "logs")
        os.makedirs(folder, exist_ok=True)
        before = [digest(c) for c in self.copies]
        store = subprocess.Popen([self.tool, "store", "--bind", "127.0.0.1:0", "-q"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self.env, text=True,
                                 preexec_fn=ground.tie)
        members = []
        try:
            at = store.stdout.readline().strip()
            begun = time.monotonic()
            members = self.start(at, plan, folder)
            hit = self.hit(plan, members, begun)
            self.wait(plan, members, hit)
            self.judge(plan, members, hit, before)
            if plan["how"] == "NOBODY":
                self.usual_s[plan["transport"]] = max(m.ended for m in members) - begun
        except Bad as bad:
            raise Bad(f"round {plan['number']}, {plan}: {bad}\n" + "\n".join(m.tell() for m in members if m.poll() or True)) from None
        finally:
            for m in members:
                m.close()
            store.kill()
            store.communicate()
        self.leftovers(plan, members)
        return plan, members, hit

    def hit(self, plan, members, begun):
        """Strikes at the moment; the time of it, None: nobody was."""
        if plan["how"] == "NOBODY":
            return None
        victim = members[plan["victim"]]
        time.sleep(max(0.0, begun + plan["when"] * self.usual_s[plan["transport"]] - time.monotonic()))
        if victim.poll():
            return None
        victim.process.send_signal({"KILL": signal.SIGKILL, "TERM": signal.SIGTERM}.get(plan["how"], signal.SIGSTOP))
        at = time.monotonic()
        if plan["how"] == "BLINK":
            time.sleep(NO_PROGRESS_S * 0.4)
            victim.process.send_signal(signal.SIGCONT)
            return None
        return at

    def wait(self, plan, members, hit):
        end = (hit or time.monotonic()) + self.args.timeout + GUARD_S
        while True:
            alive = [m for m in members if not m.poll() and not (plan["how"] == "STOP" and hit and m.rank == plan["victim"])]
            if not alive:
                break
            if time.monotonic() > end:
                raise Bad(f"ranks {[m.rank for m in alive]} hang")
            time.sleep(0.005)
        if plan["how"] == "STOP" and hit: # the frozen one wakes up and must end too
            members[plan["victim"]].process.send_signal(signal.SIGCONT)
            end = time.monotonic() + self.args.timeout + GUARD_S
            while not members[plan["victim"]].poll():
                if time.monotonic() > end:
                    raise Bad("the frozen one woke up and hangs")
                time.sleep(0.005)

    def judge(self, plan, members, hit, before):
        struck = hit is not None
        survivors = [m for m in members if not (struck and m.rank == plan["victim"])]
        if not struck:
            for m in survivors:
                if m.status != 0:
                    raise Bad(f"nobody was lost, yet rank {m.rank} failed")
        for m in survivors:
            if m.status != 0:
                self.judge_error(plan, members, m, hit)
        self.judge_copies(plan, members, before, struck, survivors)

    @staticmethod
    def names_victim(plan, members, error):
        """Or one that had not heard that the group stands, and gave up because of the victim: to the others it is lost too."""
        ranks = error["ranks"] or []
        other = [members[r].error() or {} for r in ranks]
        return plan["victim"] in ranks or (ranks and all(o.get("op") == "group_new" and plan["victim"] in o["ranks"] for o in other))

    def judge_error(self, plan, members, m, hit):
        error = m.error()
        if m.status not in (1, 124) or not error:
            raise Bad(f"rank {m.rank} ended oddly")
        if (error["code"] == "TIMEOUT") != (m.status == 124):
            raise Bad(f"rank {m.rank}: status {m.status} and {error['code']}")
        if m.status == 124 and "has formed" in m.tell(): # while they meet, the victim may come back or be replaced
            raise Bad(f"rank {m.rank} ran into its deadline")
        if m.status == 1 and error["code"] not in LOSS:
            raise Bad(f"rank {m.rank}: {error['code']} for a loss")
        if not self.names_victim(plan, members, error):
            raise Bad(f"rank {m.rank} does not name rank {plan['victim']}")
        if m.status == 1 and m.ended - hit > NO_PROGRESS_S + 6:
            raise Bad(f"rank {m.rank} took {m.ended - hit:.1f} s to notice")

    def judge_copies(self, plan, members, before, struck, survivors):
        after = [digest(c) for c in self.copies]
        new = self.whole[plan["model"]]
        for i, m in enumerate(members[SOURCES:SOURCES + 2]):
            if after[i] not in (before[i], new):
                raise Bad(f"{self.copies[i]} is torn")
            if m.status == 0 and after[i] != new:
                raise Bad(f"rank {m.rank} succeeded, but {self.copies[i]} is old")
            if m in survivors and m.status != 0 and after[i] == new and before[i] != new:
                raise Bad(f"rank {m.rank} failed, but {self.copies[i]} is new")
        outcomes = {m.status == 0 for m in survivors}
        if plan["on_loss"] == "fail" and len(outcomes) > 1:
            raise Bad("survivors do not agree")
        if plan["on_loss"] == "continue" and struck and len(outcomes) > 1:
            raise Bad("survivors do not agree (continue)")
        self.count["mixed" if len(outcomes) > 1 else "new" if outcomes == {True} else "old"] += 1

    def leftovers(self, plan, members):
        shm = [n for n in sorted(os.listdir("/dev/shm")) if n not in self.shm]
        if "chaos" in shm:
            shm.remove("chaos")
            os.unlink("/dev/shm/chaos")
        if shm and os.environ.get("CHAOS_PRIVATE"):
            raise Bad(f"round {plan['number']}, {plan}: left in /dev/shm: {shm}")
        for name in self.beside():
            m = members[SOURCES + int(name[len(".copy")])]
            if m.status == 0 or f".isthmus-{m.process.pid}-" in name and m.status != -signal.SIGKILL:
                raise Bad(f"round {plan['number']}, {plan}: left beside a destination: {name}")

    def quiet_round(self, transport):
        """Nobody is struck."""
        plan = {"number": 0, "transport": transport, "on_loss": "fail", "model": 0, "third": "null:", "bucket": "8MiB", "victim": 0, "how": "NOBODY", "when": 0}
        self.round(plan)

    def run(self):
        for transport in ("shm", "tcp"): # how long a round takes here
            self.quiet_round(transport)
        end = time.monotonic() + self.args.seconds if self.args.seconds else None
        numbers = [self.args.only] if self.args.only is not None else range(1, self.args.rounds + 1)
        done = 0
        for number in numbers:
            if end and time.monotonic() > end:
                break
            plan, members, hit = self.round(self.plan(random.Random(f"{self.args.seed}/{number}"), number))
            done += 1
            if not self.args.quiet:
                codes = " ".join(str(m.status) if m.status in (0, -9) or not m.error() else m.error()["code"] for m in members)
                last = max(m.ended for m in members) - hit if hit else 0
                print(f"{number}: {plan['how']} {plan['victim']} at {plan['when']:.2f}, {plan['transport']} {plan['on_loss']} {plan['bucket']} {plan['third']}{'' if hit else ' (not lost)'}: {codes}, {last:.1f} s", flush=True)
        self.quiet_round("shm")
        if self.beside():
            raise Bad(f"after the last round: left beside a destination: {self.beside()}")
        return done


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("tool")
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--seconds", type=float, default=0, help="begin no round after this")
    p.add_argument("--seed", type=int, default=None)
    p.add_argument("--only", type=int, default=None, help="this round only")
    p.add_argument("--bytes", default="24MiB")
    p.add_argument("--timeout", type=int, default=DEADLINE_S)
    p.add_argument("--quiet", action="store_true")
    args = p.parse_args()
    if args.seed is None:
        args.seed = int.from_bytes(os.urandom(3), "big")
    private_shm()
    print(f"chaos: seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="isthmus-chaos-") as work:
        chaos = Chaos(args, work)
        try:
            done = chaos.run()
        except Bad as bad:
            print(f"chaos: seed {args.seed}: {bad}", file=sys.stderr)
            return 1
        print(f"chaos: {done} rounds, all new {chaos.count['new']}, all old {chaos.count['old']}, some {chaos.count['mixed']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
