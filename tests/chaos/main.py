#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Members die, freeze, run out of things, or lose their network at random points of create, split, gather, update and free.

    main.py BUILD [--rounds N] [--seconds S] [--seed N] [--only N[,N...]] [--fault F[,F...]] [--phase P] [--jobs N]

BUILD is a build folder with bin/isthmus and bin/chaos_worker. After each fault every survivor has come back in time, with
success or an error that names who is to blame; then the same processes form a group and finish an update; then nothing is left
behind. plan.py says what happens, play.py does it, judge.py says what is wrong. Seed and number repeat a schedule (the machine
picks the exact microsecond). CHAOS_ROUNDS, CHAOS_SECONDS and CHAOS_SEED stand in for the options.
"""
import argparse
import collections
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

import ground
import plan as plans
import play

GUARD_S = 150
SCALE = {"create": 12.0, "split": 6.0, "gather": 2.0, "update": 20.0, "free": 2.0} # ms; learned as we go


def become_root():
    """Without root, a user namespace of our own, where it is allowed."""
    if os.geteuid() == 0 or os.environ.get("CHAOS_INSIDE"):
        return
    if subprocess.run(["unshare", "-Urnm", "true"], capture_output=True, check=False).returncode:
        print("chaos: skipped: neither root nor user namespaces")
        sys.exit(77)
    os.environ["CHAOS_INSIDE"] = "1"
    os.execvp("unshare", ["unshare", "-Urnm", sys.executable, *sys.argv])


def attempt(what):
    """In a child, since it changes the process. None: works; else why not."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            what()
            os._exit(0)
        except (ground.NoGround, OSError, subprocess.SubprocessError) as e:
            os.write(w, str(e).encode()[:400] or b"?")
        finally:
            os._exit(1)
    os.close(w)
    text = os.read(r, 400).decode(errors="replace")
    os.close(r)
    os.waitpid(pid, 0)
    return text or None


def abilities(work, instrumented):
    """What can't be done here, and why."""
    def plain():
        ground.Ground(os.path.join(work, "try0"), False, 1 << 20, 1 << 20)

    def cable():
        g = ground.Ground(os.path.join(work, "try1"), True, 1 << 20, 1 << 20)
        g.cable.cut()
        g.cable.mend()
        g.cable.lose(0.5)
        g.cable.slow(16)

    def cgroup():
        limit = ground.Limit(f"isthmus-chaos-try-{os.getpid()}")
        limit.write(limit.knob, str(1 << 30))
        limit.close()
    why = {"ground": attempt(plain), "cable": attempt(cable), "cgroup": attempt(cgroup)}
    why["plain"] = "the build is instrumented, and needs address space" if instrumented else None
    return why


def programs(build):
    tool, worker = (os.path.abspath(os.path.join(build, "bin", n)) for n in ("isthmus", "chaos_worker"))
    with open(worker, "rb") as f:
        code = f.read()
    return {"tool": tool, "worker": worker, "instrumented": b"__asan_init" in code or b"__tsan_init" in code}


class Slot:
    def __init__(self, plan, args, work, scale):
        self.plan, self.began = plan, time.monotonic()
        os.makedirs(work, exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix=f"{plan['number']}-", dir=work)
        self.pipe, out = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            try:
                result = play.Play(plan, args.tool, args.worker, self.folder, scale, args.instrumented).run()
            except BaseException: # pylint: disable=broad-except # whatever it is, it is told by the parent
                result = {"number": plan["number"], "fault": plan["fault"], "phase": plan["phase"], "hit": None, "times": {}, "told": [],
                          "bad": [("BROKEN", traceback.format_exc(limit=-6))]}
            with os.fdopen(out, "w") as f:
                json.dump(result, f)
            os._exit(0)
        os.close(out)
        self.data = b""

    def read(self):
        data = os.read(self.pipe, 1 << 16)
        self.data += data
        return not data

    def result(self):
        os.close(self.pipe)
        os.waitpid(self.pid, 0)
        if not self.data:
            return {"number": self.plan["number"], "fault": self.plan["fault"], "phase": self.plan["phase"], "hit": None, "times": {}, "told": [],
                    "bad": [("BROKEN", "the play ended without a word")]}
        return json.loads(self.data)


class Chaos:
    def __init__(self, args, work):
        self.args, self.work = args, work
        self.scale = dict(SCALE)
        self.table = collections.Counter()
        self.kinds = collections.Counter()
        self.done = self.bad = self.missed = 0

    def learn(self, times):
        for phase, all_ms in times.items():
            for ms in all_ms:
                if ms < 1000:
                    self.scale[phase] += (min(ms, 10 * self.scale[phase]) - self.scale[phase]) * 0.02

    def take(self, slot):
        r = slot.result()
        self.done += 1
        self.learn(r["times"])
        if r["hit"]:
            self.table[r["fault"], r["hit"]] += 1
        else:
            self.missed += 1
        if r["bad"]:
            self.bad += 1
            for name, _ in r["bad"]:
                self.kinds[name] += 1
            print(f"--- seed {self.args.seed} schedule {r['number']}: {plans.text(slot.plan)}\n    hit in {r['hit']}")
            for name, text in r["bad"]:
                print(f"    {name}: {text}")
            for line in r["told"]:
                print(f"    {line}")
            print(f"    again: --seed {self.args.seed} --only {r['number']}; logs: {slot.folder}" if self.args.keep else
                  f"    again: --seed {self.args.seed} --only {r['number']}", flush=True)
        elif self.args.verbose:
            print(f"{r['number']}: {plans.text(slot.plan)} | hit in {r['hit']} | {time.monotonic() - slot.began:.1f} s\n    " + "\n    ".join(r["told"]), flush=True)
        if not (r["bad"] and self.args.keep):
            shutil.rmtree(slot.folder, ignore_errors=True)

    def run(self, numbers):
        slots, end = [], time.monotonic() + self.args.seconds if self.args.seconds else None
        numbers = iter(numbers)
        more = True
        while more or slots:
            while more and len(slots) < self.args.jobs:
                number = next(numbers, None)
                if number is None or (end and time.monotonic() > end) or self.bad >= self.args.stop:
                    more = False
                    break
                slots.append(Slot(plans.make(self.args.seed, number, self.args.faults, self.args.only and self.args.one_fault, self.args.phase), self.args, self.work,
                                  self.scale))
            for fd in select.select([s.pipe for s in slots], [], [], 1)[0] if slots else []:
                slot = next(s for s in slots if s.pipe == fd)
                if slot.read():
                    slots.remove(slot)
                    self.take(slot)
            for s in slots:
                if time.monotonic() - s.began > GUARD_S:
                    os.kill(s.pid, 9)

    def report(self):
        print(f"{'hits':8}" + "".join(f"{p:>8}" for p in plans.PHASES))
        for fault in self.args.faults:
            row = "".join(f"{'-' if (fault, p) in plans.NEVER else self.table[fault, p]:>8}" for p in plans.PHASES)
            print(f"{fault:8}{row}")
        least = min((self.table[c] for c in plans.cells(self.args.faults)), default=0)
        print(f"chaos: seed {self.args.seed}: {self.done} schedules, {self.bad} with violations {dict(self.kinds) or ''}, {self.missed} where the fault came too late; "
              f"least hits in a cell: {least}")


def options():
    env = os.environ.get
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("build")
    p.add_argument("--rounds", type=int, default=int(env("CHAOS_ROUNDS") or 2000))
    p.add_argument("--seconds", type=float, default=float(env("CHAOS_SECONDS") or 0), help="begin no schedule after this")
    p.add_argument("--seed", type=int, default=int(env("CHAOS_SEED")) if env("CHAOS_SEED") else None)
    p.add_argument("--first", type=int, default=1, help="number of the first schedule")
    p.add_argument("--only", help="these numbers")
    p.add_argument("--fault", help="these faults")
    p.add_argument("--without", default="", help="all faults but these")
    p.add_argument("--phase", choices=plans.PHASES)
    p.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1))
    p.add_argument("--stop", type=int, default=20, help="begin nothing more after so many bad ones")
    p.add_argument("--keep", action="store_true", help="keep the logs of bad schedules")
    p.add_argument("--verbose", action="store_true")
    args = p.parse_args()
    vars(args).update(programs(args.build))
    if args.seed is None:
        args.seed = int.from_bytes(os.urandom(3), "big")
    args.one_fault = None
    return args


def main():
    args = options()
    become_root()
    work = tempfile.mkdtemp(prefix="isthmus-chaos-")
    try:
        why = abilities(work, args.instrumented)
        if why["ground"]:
            print(f"chaos: skipped: {why['ground']}")
            return 77
        wanted = [f for f in (args.fault.split(",") if args.fault else plans.FAULTS) if f not in args.without.split(",")]
        args.faults = [f for f in wanted if not why.get(plans.NEEDS.get(f))]
        for f in wanted:
            if f not in args.faults:
                print(f"chaos: {f} is left out: {why[plans.NEEDS[f]]}")
        print(f"chaos: seed {args.seed}, {args.jobs} at a time", flush=True)
        chaos = Chaos(args, work)
        chaos.run(map(int, args.only.split(",")) if args.only else range(args.first, args.first + args.rounds))
        chaos.report()
        return 1 if chaos.bad else 0
    finally:
        if not args.keep:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
