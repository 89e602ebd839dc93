# SPDX-License-Identifier: Apache-2.0
"""What happens in schedule NUMBER of SEED: who is in it, which fault strikes whom, in which phase, how far into it. A plan
follows from the two numbers alone; how many microseconds a part of a phase is depends on the machine."""
import random

PHASES = ["create", "split", "gather", "update", "free"]

# self: the worker does it to itself, to the microsecond; else the play does, from outside.
FAULTS = {
    "KILL": "lethal",     # SIGKILL
    "EXIT": "lethal",     # _exit in the middle of a call
    "STOP": "lethal",     # SIGSTOP, woken when the others are through
    "PAIR": "lethal",     # one is killed, and another stopped at once
    "TWICE": "lethal",    # one is killed, and a moment later another, while the rest recover
    "HEADS": "lethal",    # rank 0 and the meeting place die at once
    "LATE": "lethal",     # SIGSTOP, woken while the others are at work in their next group, whatever that is called
    "OUTER": "harmless",  # one that has no part in the child is killed while the child is at work
    "BLINK": "harmless",  # SIGSTOP for less than the no-progress limit
    "SLOW": "harmless",   # stopped half of the time; as a sink also slow to take what comes
    "ABORT": "abort",     # by the user, in another thread; while a group forms: cancelled
    "CUT": "cut",         # all that goes between two hosts is dropped
    "HALF": "cut",        # what goes one way is dropped
    "RESET": "cut",       # connections between two hosts are reset, new ones pass
    "LOSS": "lossy",      # some per cent of the frames are dropped, both ways
    "RATE": "harmless",   # the cable becomes slow
    "FREEZE": "harmless", # all are stopped, for longer than the no-progress limit even, and go on at once
    "STORM": "harmless",  # signals without end: system calls are interrupted
    "CLOCK": "harmless",  # the time of day jumps, back or ahead
    "TINY": "harmless",   # connections made from now on have the smallest buffers
    "DELAY": "harmless",  # connections arrive late and out of order, chunks are held up
    "STORE": "store",     # the meeting place dies; every other time it comes back
    "MEMCG": "own",       # memory limit of a control group: an error, or the kernel's SIGKILL
    "SPACE": "own",       # RLIMIT_AS: no more address space
    "ALLOC": "own",       # the allocator says no, once, a few times, or from now on
    "FILES": "own",       # RLIMIT_NOFILE: no more descriptors
    "FULL": "own",        # the destination, or /dev/shm, is full
    "SPILL": "own",       # the same, and a moment later another is killed
}
SELF = {"KILL": "kill", "PAIR": "kill", "TWICE": "kill", "HEADS": "kill", "LATE": "stop", "EXIT": "exit", "STOP": "stop", "BLINK": "stop", "ABORT": "abort",
        "ALLOC": "alloc", "STORM": "storm", "CLOCK": "clock"}
CABLE = {"CUT", "HALF", "RESET", "LOSS", "RATE"}
LIMITS = {"SPACE", "FILES"}
EXTRA = ("nth", "row", "room", "chance", "mbit", "way", "leave", "back", "all", "for_s", "second", "gap_s", "wake_s", "same", "witness", "retry")
NEVER = {("OUTER", "create"): "there is no child yet"}
TIMEOUT_S, NO_PROGRESS_S = 10.0, 2.0 # others may want the CPUs as well
OLD, NEW, HEALED, HEALED_LATE = 1, 2, 3, 4
NEEDS = {**{f: "cable" for f in CABLE}, "RESET": "reset", "MEMCG": "cgroup", "SPACE": "plain", "TINY": "buffers"}


def cells(faults):
    return [(f, p) for f in faults for p in PHASES if (f, p) not in NEVER]


def cell_of(seed, number, faults):
    """For single numbers: all cells equally often, one deck after the other, each in an order of its own."""
    deck = cells(faults)
    n, k = divmod(number - 1, len(deck))
    random.Random(f"{seed}/deck/{n}").shuffle(deck)
    return deck[k]


def roles_of(rng, plan):
    world = plan["world"]
    sources = rng.randint(1, max(1, world // 2))
    plan["roles"] = ["source"] * sources + ["sink"] * (world - sources)
    rng.shuffle(plan["roles"])
    kinds = rng.choices(["dir", "shm", "mem:", "keep", "null:"], [4, 2, 2, 2, 1], k=world)
    plan["dests"] = [k if r == "sink" else "" for k, r in zip(kinds, plan["roles"])]


def split_of(rng, plan):
    """The list of the child group, or none: then the parent itself is used. Maybe somebody stays out."""
    world = plan["world"]
    ranks = rng.sample(range(world), world)
    if plan["fault"] == "OUTER":
        return [r for r in ranks if r != plan["victim"]]
    if plan["phase"] != "split" and rng.random() < 0.3:
        return []
    if world > 3 and rng.random() < 0.35:
        for r in ranks:
            rest = [plan["roles"][x] for x in ranks if x != r]
            if r != plan["victim"] and "source" in rest and "sink" in rest:
                ranks.remove(r)
                break
    return ranks


def strength_of(rng, plan):
    fault = plan["fault"]
    if fault == "ALLOC":
        most = rng.choice({"create": [3, 20, 120], "free": [1, 2]}.get(plan["phase"], [3, 12, 50]))
        plan["nth"], plan["row"] = int(most * rng.random()), rng.choice([1, 1, 1, 2, 5, 0])
    elif fault == "FILES":
        plan["room"] = rng.randint(0, 12)
    elif fault == "SPACE":
        plan["room"] = int(2 ** rng.uniform(12, 23))
    elif fault == "MEMCG":
        plan["room"] = int(2 ** rng.uniform(14, 22))
    elif fault == "LOSS":
        plan["chance"] = rng.choice([0.005, 0.02, 0.05])
    elif fault == "RATE":
        plan["mbit"] = rng.choice([16, 40, 100])
    elif fault == "HALF":
        plan["way"] = rng.choice(["ingress", "egress"])
    elif fault == "RESET":
        plan["all"] = rng.random() < 0.3
        if plan["phase"] == "update" and rng.random() < 0.5:
            plan["moment"] = rng.uniform(0.7, 1.0) # near the vote
    elif fault in ("FULL", "SPILL"):
        plan["leave"] = rng.choice([0, 0, 4096, 100000, 1 << 20])
    elif fault == "STORE":
        plan["back"] = rng.random() < 0.5
    elif fault == "LATE":
        plan["store"] = True # one that sleeps would keep the port
        plan["wake_s"], plan["same"] = rng.choice([0.0, rng.uniform(0, 0.03)]), rng.random() < 0.5
        plan["same"] = plan["same"] and plan["phase"] != "create" # who wakes while it forms still claims the name: CONFLICT is right
    elif fault == "HEADS":
        plan["store"], plan["back"] = True, rng.random() < 0.5
        plan["victim"] = plan["split"][0] if plan["split"] and plan["phase"] != "create" else 0
    elif fault == "OUTER":
        plan["witness"] = rng.choice(plan["split"])
    elif fault == "FREEZE":
        plan["for_s"] = rng.choice([0.3, 1.0, 1.2 * NO_PROGRESS_S])
    elif fault == "CLOCK":
        plan["row"] = rng.choice([1, 3600, 86400 * 365]) * 2 + rng.randint(0, 1) # seconds, and whether back
    elif fault == "TINY":
        plan["transport"] = plan["transport"] if plan["two"] else "tcp"
        plan["kb"] = 64 # 4 KiB at a time, and each may wait for an acknowledgement
    elif fault == "STOP" and plan["phase"] == "update" and rng.random() < 0.3: # rank 0, near the vote
        plan["victim"] = plan["split"][0] if plan["split"] else 0
        plan["moment"] = rng.uniform(0.8, 1.0)
    if fault in ("PAIR", "TWICE", "SPILL"):
        plan["second"] = rng.choice([r for r in range(plan["world"]) if r != plan["victim"]])
    if fault in ("TWICE", "SPILL"):
        plan["gap_s"] = rng.choice([0.0, 0.001, rng.uniform(0, 0.01), rng.uniform(0, 0.1)])


def victim_of(rng, plan):
    world, roles = plan["world"], plan["roles"]
    plan["victim"] = rng.randrange(world)
    if plan["fault"] in ("FULL", "SPILL"):
        plan["victim"] = rng.choice([r for r in range(world) if roles[r] == "sink"])
        plan["dests"][plan["victim"]] = rng.choice(["dir", "shm"])
    elif plan["fault"] == "OUTER":
        plan["victim"] = rng.choice([r for r in range(world) if {"source", "sink"} == {roles[x] for x in range(world) if x != r}])


def make(seed, number, fault, phase):
    rng = random.Random(f"{seed}/{number}")
    plan = {"seed": seed, "number": number, "fault": fault, "phase": phase, "world": rng.choice([3, 4, 4, 5]), "lie": "", "liar": None}
    world = plan["world"]
    roles_of(rng, plan)
    victim_of(rng, plan)
    plan["split"] = split_of(rng, plan)
    two = plan["fault"] in CABLE or (plan["fault"] != "DELAY" and rng.random() < 0.15)
    plan["far"] = rng.sample(range(world), rng.randint(1, world - 1)) if two else []
    plan["two"] = two
    plan["transport"] = "auto" if two else rng.choice(["shm", "tcp", "auto"])
    plan["store"] = plan["fault"] in ("STORE", "DELAY") or two or rng.random() < 0.6
    plan["on_loss"] = rng.choice(["fail", "fail", "continue"])
    plan["bucket_kb"] = rng.choice([64, 256, 1024])
    plan["kb"] = rng.choice([64, 512, 1024, 2048]) if plan["fault"] != "RATE" else 512
    early = plan["phase"] == "free" # short, and nothing comes after it
    plan["moment"] = 0.0 if rng.random() < (0.5 if early else 0.25) else rng.uniform(0, 0.8 if early else 1.05)
    plan["again"] = rng.random() < 0.5  # a killed one is replaced when the others start anew
    plan["slow_us"] = rng.choice([0, 3000, 20000]) if plan["fault"] == "SLOW" else 0
    strength_of(rng, plan)
    plan["retry"] = rng.random() < 0.4 # who fails in the update tries again at once
    return plan


def text(plan):
    extra = " ".join(f"{k}={plan[k]}" for k in EXTRA if k in plan)
    split = ",".join(map(str, plan["split"])) or "none"
    return (f"{plan['fault']} rank {plan['victim']} in {plan['phase']} at {plan['moment']:.2f} {extra} | world {plan['world']} "
            f"{' '.join(r + (':' + d if d else '') for r, d in zip(plan['roles'], plan['dests']))} | split {split} | {plan['transport']}"
            f"{' far ' + ','.join(map(str, plan['far'])) if plan['two'] else ''} | store {'own' if plan['store'] else 'rank 0'} | on_loss {plan['on_loss']} "
            f"| bucket {plan['bucket_kb']} KiB of {plan['kb']} KiB tensors{' | again' if plan['again'] else ''}{' | lie ' + plan['lie'] if plan['lie'] else ''}")
