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
import socket
import subprocess
import sys
import tempfile
import threading
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

    def reset():
        g = ground.Ground(os.path.join(work, "try2"), True, 1 << 20, 1 << 20)
        with socket.socket() as s:
            s.bind((ground.NEAR, 0))
            s.listen()
            ground.enter_net(g.cable.far)
            far = socket.create_connection(s.getsockname(), 5)
            ground.enter_net(g.cable.near)
            with s.accept()[0] as near, far:
                g.cable.reset(lambda found: found)
                try:
                    near.settimeout(1)
                    near.recv(1)
                    raise ground.NoGround("ss -K resets nothing here")
                except ConnectionError:
                    pass

    def buffers():
        ground.Ground(os.path.join(work, "try3"), False, 1 << 20, 1 << 20).small_buffers(True)

    def cgroup():
        limit = ground.Limit(f"isthmus-chaos-try-{os.getpid()}")
        limit.write(limit.knob, str(1 << 30))
        limit.close()
    why = {"ground": attempt(plain), "cable": attempt(cable), "reset": attempt(reset), "cgroup": attempt(cgroup), "buffers": attempt(buffers)}
    why["plain"] = "the build is instrumented, and needs address space" if instrumented else None
    return why


def sweep():
    """What runs that were killed have left in the folder of temporaries."""
    for name in os.listdir(tempfile.gettempdir()):
        words = name.split("-")
        if name.startswith("isthmus-chaos-") and len(words) > 3 and words[2].isdigit() and not os.path.exists(f"/proc/{words[2]}"):
            shutil.rmtree(os.path.join(tempfile.gettempdir(), name), ignore_errors=True)


def programs(build):
    tool, worker = (os.path.abspath(os.path.join(build, "bin", n)) for n in ("isthmus", "chaos_worker"))
    with open(worker, "rb") as f:
        code = f.read()
    return {"tool": tool, "worker": worker, "instrumented": b"__asan_init" in code or b"__tsan_init" in code}


class Stalls(threading.Thread):
    """When the machine gave nobody the CPU: then what the members take for silence says nothing about them."""
    TICK_S, LONG_S = 0.02, 0.4

    def __init__(self):
        super().__init__(daemon=True)
        self.seen = []

    def run(self):
        last = time.monotonic()
        while True:
            time.sleep(self.TICK_S)
            now = time.monotonic()
            if now - last > self.LONG_S:
                self.seen.append((last, now))
            last = now

    def worst(self, since):
        return max((b - a for a, b in self.seen if b > since), default=0.0)


class Slot:
    def __init__(self, plan, args, work, scale):
        self.plan, self.began = plan, time.monotonic()
        os.makedirs(work, exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix=f"{plan['number']}-", dir=work)
        self.pipe, out = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            ground.tie()
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
        self.dealt = collections.Counter()
        self.under_way = collections.Counter()
        self.again = []
        self.stalls = Stalls()
        self.stalls.start()
        self.kinds = collections.Counter()
        self.done = self.bad = self.missed = self.stalled = 0
        self.next = args.first
        if args.resume and os.path.exists(args.resume):
            self.load(args.resume)

    def learn(self, times):
        for phase, all_ms in times.items():
            for ms in all_ms:
                if ms < 1000:
                    self.scale[phase] += (min(ms, 10 * self.scale[phase]) - self.scale[phase]) * 0.02

    def cell(self, number):
        """The cell that has been hit least; after so many vain ones another has its turn. One number's is drawn, so that it can be repeated."""
        faults = self.args.faults
        if self.args.only:
            f, p = plans.cell_of(self.args.seed, number, faults)
        else:
            cells = [c for c in plans.cells(faults) if not self.args.phase or c[1] == self.args.phase]
            most = 2 * self.args.rounds / len(cells) + 2
            f, p = min(cells, key=lambda c: (self.dealt[c] >= most, self.table[c] + self.under_way[c], hash((number, c))))
        return f, self.args.phase or p

    def make(self, number):
        f, p = self.cell(number)
        self.dealt[f, p] += 1
        self.under_way[f, p] += 1
        return plans.make(self.args.seed, number, f, p)

    def take(self, slot):
        r = slot.result()
        self.under_way[slot.plan["fault"], slot.plan["phase"]] -= 1
        stall = self.stalls.worst(slot.began)
        if r["bad"] and stall and slot.plan.get("tries", 0) < 2:
            self.stalled += 1
            slot.plan["tries"] = slot.plan.get("tries", 0) + 1
            self.again.append(slot.plan)
            print(f"    {plans.text(slot.plan)}: the machine stood still for {stall:.1f} s meanwhile; played again", flush=True)
            shutil.rmtree(slot.folder, ignore_errors=True)
            return
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
            print(f"    again: --seed {self.args.seed} --fault {r['fault']} --phase {r['phase']} --only {r['number']}"
                  f"{'; logs: ' + slot.folder if self.args.keep else ''}", flush=True)
        elif self.args.verbose:
            print(f"{r['number']}: {plans.text(slot.plan)} | hit in {r['hit']} | {time.monotonic() - slot.began:.1f} s\n    " + "\n    ".join(r["told"]), flush=True)
        if not (r["bad"] and self.args.keep):
            shutil.rmtree(slot.folder, ignore_errors=True)

    def run(self, numbers):
        slots, end = [], time.monotonic() + self.args.seconds if self.args.seconds else None
        numbers = iter(numbers)
        more = True
        while more or slots or self.again:
            while self.again and len(slots) < self.args.jobs:
                slots.append(Slot(self.again.pop(), self.args, self.work, self.scale))
            while more and len(slots) < self.args.jobs:
                number = next(numbers, None)
                if number is None or (end and time.monotonic() > end) or self.bad >= self.args.stop:
                    more = False
                    break
                self.next = number + 1
                slots.append(Slot(self.make(number), self.args, self.work, self.scale))
            for fd in select.select([s.pipe for s in slots], [], [], 1)[0] if slots else []:
                slot = next(s for s in slots if s.pipe == fd)
                if slot.read():
                    slots.remove(slot)
                    self.take(slot)
            for s in slots:
                if time.monotonic() - s.began > GUARD_S:
                    os.kill(s.pid, 9)

    COUNTS = ("done", "bad", "missed", "stalled", "next")

    def load(self, file):
        """Where an earlier run with this file stopped."""
        with open(file, encoding="utf-8") as f:
            old = json.load(f)
        self.args.seed, self.scale, self.kinds = old["seed"], old["scale"], collections.Counter(old["kinds"])
        for name in self.COUNTS:
            setattr(self, name, old[name])
        for name in ("table", "dealt"):
            setattr(self, name, collections.Counter({(f, p): n for f, p, n in old[name]}))

    def save(self, file):
        new = {"seed": self.args.seed, "scale": self.scale, "kinds": self.kinds, **{name: getattr(self, name) for name in self.COUNTS},
               **{name: [[f, p, n] for (f, p), n in getattr(self, name).items()] for name in ("table", "dealt")}}
        with open(file, "w", encoding="utf-8") as f:
            json.dump(new, f)

    def report(self):
        for (fault, phase), why in plans.NEVER.items():
            if fault in self.args.faults:
                print(f"chaos: no {fault} in {phase}: {why}")
        print(f"{'hits':8}" + "".join(f"{p:>8}" for p in plans.PHASES))
        for fault in self.args.faults:
            row = "".join(f"{'-' if (fault, p) in plans.NEVER else self.table[fault, p]:>8}" for p in plans.PHASES)
            print(f"{fault:8}{row}")
        least = min((self.table[c] for c in plans.cells(self.args.faults)), default=0)
        print(f"chaos: seed {self.args.seed}: {self.done} schedules, {self.bad} with violations {dict(self.kinds) or ''}, {self.missed} where the fault came too late; "
              f"{f'{self.stalled} played again, since the machine stood still; ' if self.stalled else ''}least hits in a cell: {least}")


def options():
    env = os.environ.get
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("build")
    p.add_argument("--rounds", type=int, default=int(env("CHAOS_ROUNDS") or 3000))
    p.add_argument("--seconds", type=float, default=float(env("CHAOS_SECONDS") or 0), help="begin no schedule after this")
    p.add_argument("--seed", type=int, default=int(env("CHAOS_SEED")) if env("CHAOS_SEED") else None)
    p.add_argument("--first", type=int, default=1, help="number of the first schedule")
    p.add_argument("--only", help="these numbers")
    p.add_argument("--fault", help="these faults")
    p.add_argument("--without", default="", help="all faults but these")
    p.add_argument("--phase", choices=plans.PHASES)
    p.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1))
    p.add_argument("--stop", type=int, default=20, help="begin nothing more after so many bad ones")
    p.add_argument("--resume", metavar="FILE", help="go on where the run that wrote this file stopped, and write it again")
    p.add_argument("--keep", action="store_true", help="keep the logs of bad schedules")
    p.add_argument("--verbose", action="store_true")
    args = p.parse_args()
    vars(args).update(programs(args.build))
    if args.seed is None:
        args.seed = int.from_bytes(os.urandom(3), "big")
    return args


def main():
    args = options()
    become_root()
    sweep()
    work = tempfile.mkdtemp(prefix=f"isthmus-chaos-{'kept' if args.keep else os.getpid()}-")
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
        chaos = Chaos(args, work)
        print(f"chaos: seed {args.seed}, {args.jobs} at a time", flush=True)
        chaos.run(map(int, args.only.split(",")) if args.only else range(chaos.next, args.first + args.rounds))
        chaos.report()
        if args.resume:
            chaos.save(args.resume)
        return 1 if chaos.bad else 0
    finally:
        if not args.keep:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
