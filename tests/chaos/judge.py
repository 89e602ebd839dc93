# SPDX-License-Identifier: Apache-2.0
"""Says what is wrong with a round that was played. Pure: it sees what the workers told, what the play saw, and the plan.

A violation is (NAME, text). The names:
    HANG        a call did not come back in time          DIED       a worker ended that nobody killed
    UNNAMED     an error names nobody                     WRONG_NAME an error names somebody who has nothing to do with it
    WRONG_CODE  an error of another kind than the fault   DISAGREE   some have success where others have an error
    SPOILT      an error where nothing was lost           UNMOVED    success, and the bytes are not there
    TORN        bytes of no version, not said to be so    LEFT       something was left behind
    NOT_HEALED  the same processes could not start anew   EARLY_NEW  an error, and yet the new version
"""
import plan as plans

LOSS = {"PEER_LOST", "NO_PROGRESS", "TIMEOUT", "PEER_LEFT", "ABORTED"}
OWN_STATE = {"DIRTY", "BAD_STATE"} # it can't take part: of a group that went on without it, or not before a full update
DIRTY = 2


class Round:
    """What is known of one round: members by rank of the world."""

    def __init__(self, plan, members, hit, dead, stopped):
        self.plan, self.members, self.hit, self.dead, self.stopped = plan, members, hit, dead, stopped
        self.kind = plans.FAULTS[plan["fault"]]
        if self.kind == "own" and plan["victim"] in dead:
            self.kind = "lethal"
        self.sleeper = plan["second"] if plan["fault"] == "PAIR" else plan["victim"]
        self.struck = {plan["victim"], self.sleeper} | ({plan["second"]} & dead if "second" in plan else set())
        self.bad = []

    def say(self, name, text):
        self.bad.append((name, text))

    def world_rank(self, phase, rank):
        """Errors of a child group count in the child's ranks."""
        split = self.plan["split"]
        if phase == "create" or not split:
            return rank
        return split[rank] if rank < len(split) else -1

    def done(self, rank, phase):
        return self.members[rank]["done"].get(phase)

    def failed(self, rank):
        """The first failure of a member: (phase, what it told)."""
        for phase in plans.PHASES:
            d = self.done(rank, phase)
            if d and d["code"] != "OK":
                return phase, d
        return None

    def names(self, rank):
        f = self.failed(rank)
        return {self.world_rank(f[0], r) for r in f[1]["ranks"] or f[1]["per"]} if f else set()

    def culprits(self, observer):
        if self.kind == "lossy" or self.plan["fault"] in ("HALF", "RESET"): # either end of a bad way; who sees it first may still tell all
            return set(range(self.plan["world"])) - {observer}
        if self.kind == "cut":
            far = set(self.plan["far"])
            return set(range(self.plan["world"])) - far if observer in far else far
        if self.plan["fault"] in ("FULL", "SPILL"): # whoever writes there
            dests = self.plan["dests"]
            return {r for r, d in enumerate(dests) if d == dests[self.plan["victim"]]} | self.struck
        return self.struck

    def gave_up_before(self, rank, observer):
        """In an earlier phase, or sooner while a group was forming: to the observer it is lost too, then."""
        a, b = self.failed(rank), self.failed(observer)
        if not a or not b:
            return False
        order = plans.PHASES.index
        return order(a[0]) < order(b[0]) or (a[0] == b[0] and a[0] in ("create", "split"))

    def explained(self, observer, named, seen=()):
        """The one to blame, or one who gave up because of the one to blame."""
        if named in self.culprits(observer):
            return True
        if named == observer or named in seen or not 0 <= named < self.plan["world"] or not self.gave_up_before(named, observer):
            return False
        return any(self.explained(named, n, (*seen, named)) for n in self.names(named))

    def check_own(self):
        """Who has run out of descriptors says so."""
        f = self.failed(self.plan["victim"]) if self.plan["fault"] == "FILES" and self.hit else None
        if f and f[1]["code"] != "LIMIT":
            self.say("WRONG_CODE", f"rank {self.plan['victim']} has no descriptors, {f[0]}: {f[1]['code']}: {f[1]['detail']}")

    def judged(self):
        """Those whose story counts: not the dead, nor the one who has run out of something itself."""
        own = {self.sleeper} if self.kind in ("own", "abort") or self.stopped else set()
        return [r for r in range(self.plan["world"]) if r not in self.dead and r not in own]

    def alive(self):
        return [r for r in range(self.plan["world"]) if r not in self.dead]

    # ---- errors ----

    def check_error(self, rank, phase, d):
        names = sorted({self.world_rank(phase, r) for r in d["ranks"] or d["per"]})
        where = f"rank {rank}, {phase}: {d['code']} {names}: {d['detail']}"
        if not d["same"]:
            self.say("WRONG_CODE", f"{where}: returned another code than the error holds")
        if d["code"] == "EVICTED" and "SLOW_PEER" in d["detail"] and rank == self.plan["victim"] and self.plan["fault"] in ("SLOW", "BLINK") and \
                phase == "update" and self.plan["on_loss"] == "continue":
            return # it did hold up the others, for longer than a third of the no-progress limit
        if self.kind == "harmless" or self.hit is None or (self.kind == "store" and self.hit != "create"):
            self.say("SPOILT", where)
            return
        if self.kind == "store":
            return
        apart = self.kind in ("cut", "lossy")
        codes = LOSS | ({"EVICTED"} if apart else set()) | ({"IO"} if phase in ("create", "split") else set()) # IO: refused
        if apart and self.plan["on_loss"] == "continue" and phase in ("gather", "update"):
            codes = codes | {"NO_RECEIVERS", "EMPTY_UPDATE"} # sources, or sinks, that are among themselves: it names the lost
        if self.plan["fault"] == "FILES" and phase in ("create", "split") and d["code"] not in ("LIMIT", "EVICTED"):
            self.say("WRONG_CODE", f"{where}: out of descriptors is LIMIT, and nobody waits for it in vain")
        if self.plan["fault"] == "MEMCG":
            codes = codes | {"NO_MEMORY"} # what it says before the kernel ends it
        if self.kind in ("lethal", "cut", "lossy", "abort") and d["code"] not in codes:
            self.say("WRONG_CODE", where)
        if self.kind == "lethal" and d["code"] == "TIMEOUT" and phase not in ("create", "split"):
            self.say("WRONG_CODE", f"{where}: a loss is noticed before the deadline")
        if not names:
            self.say("UNNAMED", where)
        elif d["code"] == "EVICTED": # the word for one's own loss, and for nobody else's
            if set(names) != {rank}:
                self.say("WRONG_NAME", where)
        elif d["code"] in ("TIMEOUT", "IO"): # late are all whom the one to blame holds up; IO names both who can't be reached and who says so
            meets_far = apart and phase == "create" and rank not in names # who can't reach the meeting place is missing for all
            late = (self.kind == "lossy" or self.plan["fault"] == "HALF") and set(names) == {rank} # its word was lost on the way, and they did wait for it
            if not meets_far and not late and not any(self.explained(rank, n) for n in names):
                self.say("WRONG_NAME", where)
        elif not all(self.explained(rank, n) for n in names):
            self.say("WRONG_NAME", where)

    # ---- agreement ----

    def check_agreement(self, phase):
        told = {r: self.done(r, phase) for r in self.alive() if self.done(r, phase)}
        good = {r for r, d in told.items() if d["code"] == "OK"}
        bad = set(told) - good
        if not good or not bad:
            return
        split = self.plan["split"]
        root = 0 if phase == "create" or not split else split[0]
        if self.hit is None or self.kind == "harmless":
            return # told as SPOILT
        if phase in ("create", "split"):
            if (self.kind in ("lethal", "own") and root in self.struck) or self.kind in ("cut", "lossy", "store"):
                return # rank 0 was lost while it gave its word
            bad -= self.struck
            if not bad:
                return
        if phase == "gather":
            return # its last exchange may be whole for some and not for others; nothing was moved yet
        if phase == "update" and (self.kind in ("cut", "lossy") and self.plan["on_loss"] == "continue"):
            return # each half goes on by itself
        if phase == "update":
            bad = {r for r in bad if not self.doubts(r)}
            if (self.stopped or self.kind in ("own", "abort")) and self.plan["on_loss"] == "continue":
                bad -= {self.sleeper} # the others left it behind
                if self.plan["fault"] in ("FULL", "SPILL"): # and each that writes there too, for its own reason
                    bad -= {r for r in self.culprits(None) if told.get(r, {}).get("code") == "NO_SPACE" and self.names(r) == {r}}
            if not bad:
                return
        self.say("DISAGREE", f"{phase}: ranks {sorted(good)} have success, " + "; ".join(f"rank {r} {told[r]['code']}: {told[r]['detail']}" for r in sorted(bad)))

    def doubts(self, rank, state="state_first"):
        s = self.members[rank].get(state)
        return bool(s) and s["kind"] == DIRTY

    # ---- bytes ----

    def check_bytes(self, rank):
        plan, m = self.plan, self.members[rank]
        if plan["roles"][rank] != "sink" or plan["dests"][rank] == "null:":
            return
        d, held = self.done(rank, "retry") or self.done(rank, "update"), m["held"]
        dirty = self.doubts(rank, "state")
        kind = plan["dests"][rank]
        what = f"rank {rank}, {kind}: version {held}"
        if rank in self.dead:
            if kind in ("dir", "shm") and held not in (plans.OLD, plans.NEW):
                self.say("TORN", f"{what} where a killed one was to write")
        elif d and d["code"] == "OK":
            if held != plans.NEW:
                self.say("UNMOVED", f"{what} after success")
        elif kind == "keep":
            if held == 0 and d and not dirty:
                self.say("TORN", f"{what}, and its state is not DIRTY")
        elif held == plans.NEW and not dirty:
            self.say("EARLY_NEW", f"{what} after {d['code'] if d else 'no update'}")
        elif held not in (plans.OLD, plans.NEW) and not (kind == "mem:" and held == -1):
            self.say("TORN", f"{what} after {d['code'] if d else 'no update'}")

    # ---- the update that is called again at once ----

    def check_retry(self):
        """It comes to an end, and tells whom to blame, or of a state in which there is nothing to be done; who has success there, has it with all."""
        told = {r: d for r in self.judged() if (d := self.done(r, "retry"))}
        for r, d in told.items():
            names = {self.world_rank("update", x) for x in d["ranks"] or d["per"]}
            where = f"rank {r}, update again: {d['code']} {sorted(names)}: {d['detail']}"
            if d["code"] == "OK" or d["code"] in OWN_STATE:
                continue
            if not names:
                self.say("UNNAMED", where)
            elif d["code"] != "EVICTED" and not any(self.explained(r, n) for n in names):
                self.say("WRONG_NAME", where)
            if d["code"] == "TIMEOUT" or not d["same"]:
                self.say("WRONG_CODE", where)
        good = {r for r, d in told.items() if d["code"] == "OK"}
        bad = {r for r in set(told) - good if not self.doubts(r, "state")}
        if good and bad and not (self.kind in ("cut", "lossy") and self.plan["on_loss"] == "continue"):
            self.say("DISAGREE", f"update again: ranks {sorted(good)} have success, " + "; ".join(f"rank {r} {told[r]['code']}: {told[r]['detail']}" for r in sorted(bad)))

    # ---- all ----

    def check_continue(self):
        """One that dies in an update with on_loss continue is left behind, and told of."""
        plan = self.plan
        ranks = plan["split"] or list(range(plan["world"]))
        left = [r for r in ranks if r not in self.struck]
        roles = {plan["roles"][r] for r in left}
        if self.kind != "lethal" or self.hit != "update" or plan["on_loss"] != "continue" or roles != {"source", "sink"} or plan["victim"] not in ranks:
            return
        if any((self.done(r, "gather") or {"code": "OK"})["code"] != "OK" for r in left):
            return  # some were in the gather still, where not all may know what the lost one would have given
        for r in left:
            d, s = self.done(r, "update"), self.members[r].get("state_first")
            if d and d["code"] != "OK":
                self.say("SPOILT", f"rank {r}: {d['code']} although on_loss is continue: {d['detail']}")
            elif d and s and s["lost"] and not {plan["victim"]} <= {self.world_rank("update", x) for x in s["lost"]} <= self.struck:
                self.say("WRONG_NAME", f"rank {r} went on and says that {s['lost']} of its group are lost")

    def check(self):
        for rank in self.judged():
            f = self.failed(rank)
            if f:
                self.check_error(rank, *f)
        self.check_own()
        for phase in plans.PHASES[:4]:
            self.check_agreement(phase)
        self.check_retry()
        for rank in range(self.plan["world"]):
            self.check_bytes(rank)
        self.check_continue()
        return self.bad


def healed(order, done, held, version):
    """The round after: everybody has success, every destination the newest version. order: workers by new rank."""
    bad = []
    for rank, who in enumerate(order):
        for phase, d in done[rank].items():
            if d["code"] != "OK":
                bad.append(("NOT_HEALED", f"{who} as rank {rank}, {phase}: {d['code']} {d['ranks']}: {d['detail']}"))
        if "update" not in done[rank] and not any(d["code"] != "OK" for d in done[rank].values()):
            bad.append(("NOT_HEALED", f"{who} as rank {rank} made no update"))
        if held[rank] not in (version, None):
            bad.append(("NOT_HEALED", f"{who} as rank {rank}: version {held[rank]} at its destination"))
    return bad
