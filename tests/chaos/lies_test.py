#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The judge of chaos is judged: workers with planted faults play schedules, and each fault is caught by its name; the same
schedules with honest workers pass."""
import argparse
import sys
import tempfile
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
]


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
            for _ in range(1 if lie == "hang" else given.seeds):
                number += 1
                while (plan := schedule("lies", number, spec))["liar"] is None or plan["two"]:
                    number += 1
                caught, result = play(args, work + "/honest" + str(number), plan, "honest")
                if caught:
                    failures.append(f"an honest schedule {number} is blamed: {result['bad']}")
                plan["lie"] = lie
                caught, result = play(args, work + "/liar" + str(number), plan, lie)
                if name not in caught:
                    failures.append(f"{lie} is not caught as {name} in schedule {number}: {result['bad']} {result['told']}")
    for f in failures:
        print(f"FAILED: {f}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
