#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The judge of chaos is judged: workers with planted faults play schedules, and each fault is caught by its name; the same
schedules with honest workers pass."""
import argparse
import os
import subprocess
import sys
import tempfile
import time
import types

import main as chaos
import plan as plans

# the lie, the name it must be caught by, a schedule in which it shows
LIES = [
    ("unmoved", "UNMOVED", {"fault": "STORE", "phase": "free", "liar": "sink"}),
    ("misname", "WRONG_NAME", {"fault": "KILL", "phase": "gather", "moment": 0.0, "liar": "survivor"}),
    ("hang", "HANG", {"fault": "STORE", "phase": "free", "liar": "sink"}),
    ("litter-shm", "LEFT", {"fault": "STORE", "phase": "free", "liar": "sink"}),
    ("litter-dest", "LEFT", {"fault": "KILL", "phase": "update", "liar": "survivor"}),
    ("litter-fd", "LEFT", {"fault": "STORE", "phase": "split", "liar": "sink"}),
    ("litter-socket", "LEFT", {"fault": "STORE", "phase": "update", "liar": "sink"}),
    ("alone", "DISAGREE", {"fault": "KILL", "phase": "update", "moment": 0.0, "on_loss": "fail", "liar": "survivor"}),
    ("alone-split", "DISAGREE", {"fault": "KILL", "phase": "split", "moment": 0.0, "liar": "survivor"}),
    ("nameless", "UNNAMED", {"fault": "KILL", "phase": "update", "moment": 0.0, "on_loss": "fail", "liar": "survivor"}),
    ("nameless-retry", "UNNAMED", {"fault": "KILL", "phase": "update", "moment": 0.0, "on_loss": "fail", "retry": True, "liar": "survivor"}),
    ("mislost", "WRONG_NAME", {"fault": "KILL", "phase": "update", "moment": 0.3, "on_loss": "continue", "liar": "survivor"}),
    ("misname-self", "WRONG_NAME", {"fault": "RESET", "phase": "gather", "moment": 0.0, "all": True, "on_loss": "fail", "liar": "survivor"}),
]


# Whether there is something to lie about depends on the moment of the death: not before all have gathered, nor after the end.
CHANCY, TRIES = {"mislost"}, 8


def fits(plan, lie):
    """A schedule in which the lie would show."""
    ranks = plan["split"] or list(range(plan["world"]))
    left = {plan["roles"][r] for r in ranks if r != plan["victim"]}
    if lie == "mislost":
        return not plan["split"] and left == {"source", "sink"}
    if lie == "alone-split": # rank 0 may give its word to some before it dies
        return plan["victim"] in ranks[1:]
    if lie == "misname-self": # all lose somebody
        return not plan["split"]
    return not plan["two"]


def pick_liar(plan, kind):
    """A member that has a part in all phases, and whose destination can be looked into."""
    ranks = plan["split"] or range(plan["world"])
    good = [r for r in ranks if r != plan["victim"] and (kind != "sink" or plan["dests"][r] in ("dir", "shm", "keep"))]
    return good[0] if good else None


def schedule(seed, number, spec):
    plan = plans.make(seed, number, fault=spec["fault"], phase=spec["phase"])
    plan.update({k: v for k, v in spec.items() if k != "liar"})
    plan["liar"] = pick_liar(plan, spec["liar"])
    return plan


def play(args, work, plan, name):
    slot = chaos.Slot(plan, args, work, dict(chaos.SCALE))
    while not slot.read():
        pass
    result = slot.result()
    caught = {n for n, _ in result["bad"]}
    print(f"{name} in {plans.text(plan)}: {sorted(caught) or 'nothing'}", flush=True)
    return caught, result


def marked(mark):
    """Processes that have it in their environment: [command line]."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if mark in f.read():
                    with open(f"/proc/{pid}/cmdline", "rb") as f:
                        found.append(f.read().replace(b"\0", b" ").decode())
        except OSError:
            pass # not ours, or gone
    return found


def until(what, seconds=60):
    end = time.monotonic() + seconds
    while not (done := what()) and time.monotonic() < end:
        time.sleep(0.01)
    return done


def killed(build):
    """chaos itself is killed: nothing of it stays."""
    mark = f"CHAOS_MARK={os.getpid()}-{time.monotonic_ns()}"
    env = {**os.environ, **dict([mark.split("=")])}
    command = [sys.executable, chaos.__file__, build, "--fault", "STORE,DELAY", "--rounds", "40", "--jobs", "4"]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, start_new_session=True) as run:
        up = until(lambda: any(" store " in c for c in marked(mark.encode())) and any("chaos_worker" in c for c in marked(mark.encode())))
        run.kill()
    gone = until(lambda: not marked(mark.encode()))
    print(f"killed: {'it played, ' if up else 'it never played, '}{'nothing stays' if gone else marked(mark.encode())}", flush=True)
    return [] if up and gone else ["chaos was killed, and left processes, or never began"]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("build")
    p.add_argument("--seeds", type=int, default=2)
    given = p.parse_args()
    chaos.become_root()
    args = types.SimpleNamespace(**chaos.programs(given.build))
    failures = []
    with tempfile.TemporaryDirectory(prefix="isthmus-lies-") as work:
        why = chaos.abilities(work, args.instrumented)
        if why["ground"]:
            print(f"skipped: {why['ground']}")
            return 77
        number = 0
        for lie, name, spec in LIES:
            if why.get(plans.NEEDS.get(spec["fault"])):
                print(f"{lie} is left out: {why[plans.NEEDS[spec['fault']]]}")
                continue
            for _ in range(1 if lie == "hang" else given.seeds):
                number += 1
                while (plan := schedule("lies", number, spec))["liar"] is None or not fits(plan, lie):
                    number += 1
                caught, result = play(args, work + "/honest" + str(number), plan, "honest")
                if caught:
                    failures.append(f"an honest schedule {number} is blamed: {result['bad']}")
                plan["lie"] = lie
                for again in range(TRIES):
                    caught, result = play(args, f"{work}/liar{number}-{again}", plan, lie)
                    if name in caught or lie not in CHANCY:
                        break
                if name not in caught:
                    failures.append(f"{lie} is not caught as {name} in schedule {number}: {result['bad']} {result['told']}")
    failures += killed(given.build)
    for f in failures:
        print(f"FAILED: {f}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
