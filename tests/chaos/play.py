# SPDX-License-Identifier: Apache-2.0
"""Plays one schedule: makes the ground, starts the workers, lets the fault strike, waits for all, lets the same processes start
anew, ends them, looks for what is left. Run in a process of its own, since it moves into other namespaces."""
import itertools
import json
import os
import random
import re
import resource
import selectors
import shutil
import signal
import subprocess
import time

import contents
import ground
import judge
import plan as plans
import relay

SLACK_S = 8      # beyond a call's own deadline; a guard, not a measurement
BLINK_S = 0.35
STROKE_S = 0.02  # SLOW: stopped, running, each so long
STORE_PORT, VIA_STORE = 6000, 6001


class Hang(Exception):
    pass


class Worker:
    def __init__(self, play, name, far):
        self.name, self.far = name, far
        self.err = open(os.path.join(play.folder, f"{name}.log"), "w+", encoding="utf-8", errors="replace")
        net = play.ground.net_of(far)
        words = [f"transport={play.plan['transport']}", "insecure=1", *play.endpoint_words(name)]
        if net is not None:
            ground.enter_net(net)
        self.process = subprocess.Popen([play.worker, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.err, env=play.env)
        if net is not None:
            ground.enter_net(play.ground.cable.near)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.text = b""
        self.up = self.idle = self.stopped = self.doomed = False
        self.phase, self.since, self.end, self.status = "", time.monotonic(), None, None
        self.done, self.state, self.state_first = {}, None, None
        self.lingers = False
        self.limits = {}

    def send(self, line):
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def begin(self, line):
        self.idle, self.done, self.state, self.state_first, self.phase, self.since = False, {}, None, None, "create", time.monotonic()
        self.send(line)

    def kill(self, how):
        if self.process.poll() is None:
            self.process.send_signal(how)

    def limit(self, what, value):
        old = resource.prlimit(self.process.pid, what)
        self.limits.setdefault(what, old)
        resource.prlimit(self.process.pid, what, (min(value, old[1]) if old[1] != resource.RLIM_INFINITY else value, old[1]))

    def unlimit(self):
        for what, old in self.limits.items():
            resource.prlimit(self.process.pid, what, old)
        self.limits = {}

    def log(self, n=60):
        self.err.seek(0)
        return "".join(self.err.readlines()[-n:])


class Play:
    def __init__(self, plan, tool, worker, folder, scale, instrumented):
        self.plan, self.tool, self.worker, self.folder, self.scale = plan, tool, worker, folder, scale
        self.slack = SLACK_S * (2 if instrumented else 1)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("ISTHMUS_", "SLURM_", "OMPI_", "PMI_", "RANK", "WORLD", "MASTER_"))}
        self.rng = random.Random(f"{plan['seed']}/{plan['number']}/play")
        self.sel = selectors.DefaultSelector()
        self.timers, self.bad = [], []
        self.hit = self.hit_at = None
        self.unswept = set()         # dead ones whose destination nobody came to use again
        self.store = self.relay = self.limit = None
        self.workers, self.told, self.times = [], [], {}
        self.host_at = ground.NEAR if plan["two"] else "127.0.0.1"

    # ---- beginning ----

    def endpoint_words(self, name):
        if self.plan["fault"] != "DELAY":
            return []
        i = int(name[1:].split("x")[0])
        return [f"bind=127.0.0.1:{7000 + i}", f"advertise=127.0.0.1:{8000 + i}"]

    def at(self):
        return f"tcp://{self.host_at}:{VIA_STORE if self.plan['fault'] == 'DELAY' else STORE_PORT}"

    def start_store(self):
        self.store = subprocess.Popen([self.tool, "store", "--bind", f"{self.host_at}:{STORE_PORT}", "--insecure", "-q"], stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL, env=self.env, preexec_fn=ground.tie)
        if not self.store.stdout.readline():
            raise Hang("the store did not start")

    def start(self):
        plan = self.plan
        self.ground = ground.Ground(self.folder, plan["two"], 64 << 20, 64 << 20)
        self.to = self.ground.folder
        if plan["fault"] == "DELAY":
            self.relay = relay.start([(("127.0.0.1", VIA_STORE), ("127.0.0.1", STORE_PORT))] +
                                     [(("127.0.0.1", 8000 + i), ("127.0.0.1", 7000 + i)) for i in range(plan["world"])], plan["seed"])
        if plan["fault"] == "MEMCG":
            self.limit = ground.Limit(f"isthmus-chaos-{os.getpid()}")
        if plan["store"]:
            self.start_store()
        for r in range(plan["world"]):
            self.make_old(r)
            self.add(Worker(self, f"w{r}", r in plan["far"]))
        self.wait(lambda: all(w.up for w in self.workers), "to start")

    def add(self, w):
        self.workers.append(w)
        self.sel.register(w.process.stdout, selectors.EVENT_READ, w)

    def dest(self, rank):
        kind = self.plan["dests"][rank]
        return {"dir": os.path.join(self.to, f"d{rank}"), "shm": f"shm:d{rank}"}.get(kind, kind)

    def file_of(self, dest):
        return "/dev/shm/" + dest[4:] if dest.startswith("shm:") else dest if dest.startswith("/") else None

    def make_old(self, rank):
        file = self.file_of(self.dest(rank))
        if file and file.startswith("/dev/shm"):
            contents.write(file, plans.OLD, self.plan["kb"])
            os.chmod(file, 0o600)
        elif file:
            os.mkdir(file)
            contents.write(os.path.join(file, "model.safetensors"), plans.OLD, self.plan["kb"])

    # ---- events ----

    def later(self, seconds, what):
        self.timers.append((time.monotonic() + seconds, what))

    def on_line(self, w, line):
        e = json.loads(line)
        kind = e["ev"]
        if kind == "up":
            w.up = True
        elif kind == "at":
            w.phase, w.since = e["phase"], time.monotonic()
        elif kind == "done":
            w.done[e["phase"]] = e
            if e["code"] == "OK" and w is not self.victim() and e["phase"] in self.scale:
                self.times.setdefault(e["phase"], []).append(e["ms"])
        elif kind == "state":
            w.state = e
            w.state_first = w.state_first or e
        elif kind == "linger":
            w.idle = w.lingers = True
        elif kind == "idle":
            w.idle = not w.doomed # its end is read next
        elif kind == "hold":
            self.on_hold(w)
        elif kind == "hit":
            self.on_hit(w, e)
        elif kind == "end":
            w.end = e

    def victim(self):
        return self.workers[self.plan["victim"]] if self.workers else None

    def on_hit(self, w, e):
        if self.hit is None:
            self.hit, self.hit_at = e["phase"], e["t"]
        if self.plan["fault"] in ("STOP", "BLINK", "LATE"):
            w.stopped = True
        if self.plan["fault"] == "PAIR":
            second = self.workers[self.plan["second"]]
            if not second.idle:
                second.stopped = True
                second.kill(signal.SIGSTOP)
        if self.plan["fault"] == "BLINK":
            self.later(BLINK_S, lambda: self.wake(w))
        if self.plan["fault"] == "TWICE":
            self.kill_second()
        if self.plan["fault"] == "HEADS":
            self.do_store(w)

    def kill_second(self):
        self.later(self.plan["gap_s"], lambda: self.doom(self.workers[self.plan["second"]]))

    @staticmethod
    def doom(w):
        if not w.idle:
            w.doomed = True
            w.kill(signal.SIGKILL)

    def wake(self, w):
        w.stopped, w.since = False, time.monotonic()
        self.keep_awake(w, w.since + 2)

    def keep_awake(self, w, until):
        """It told of its stop before it stopped: it may do so only now."""
        w.kill(signal.SIGCONT)
        if not w.idle and time.monotonic() < until:
            self.later(0.05, lambda: self.keep_awake(w, until))

    def read(self, w):
        try:
            data = os.read(w.process.stdout.fileno(), 65536)
        except BlockingIOError:
            return
        if not data:
            self.sel.unregister(w.process.stdout)
            w.status = w.process.wait()
            w.idle = True
            return
        *lines, w.text = (w.text + data).split(b"\n")
        for line in lines:
            self.on_line(w, line)

    def turn(self):
        now = time.monotonic()
        for t in [t for t in self.timers if t[0] <= now]:
            self.timers.remove(t)
            t[1]()
        soon = min([t[0] for t in self.timers], default=now + 0.1) - time.monotonic()
        for key, _ in self.sel.select(max(0.0, min(0.1, soon))):
            self.read(key.data)

    def wait(self, done, what, bound=None):
        bound = bound or plans.TIMEOUT_S + 1 + self.slack
        end = time.monotonic() + 6 * bound
        while not done():
            self.turn()
            for w in self.workers:
                if not w.idle and not w.stopped and time.monotonic() - w.since > bound:
                    raise Hang(f"{w.name} is in {w.phase or 'its beginning'} for {time.monotonic() - w.since:.1f} s, waiting {what}\n{stacks(w)}")
            if time.monotonic() > end:
                raise Hang(f"waiting {what}")

    # ---- the fault, from outside ----

    def on_hold(self, w):
        m = self.plan["moment"]
        if m == 0:
            self.strike(w)
            w.send("go")
        else:
            w.send("go")
            self.later(m * self.scale[self.plan["phase"]] / 1e3, lambda: self.strike(w))

    def strike(self, w):
        plan, fault = self.plan, self.plan["fault"]
        while self.hit is None and any(key.data is w for key, _ in self.sel.select(0)):
            self.read(w) # where it is now
            if w.idle:
                break
        if w.idle or w.status is not None:
            return
        if plan["fault"] == "OUTER" and not self.victim().lingers: # it forms the parent still
            self.later(0.001, lambda: self.strike(w))
            return
        getattr(self, "do_" + fault.lower())(w)
        self.hit, self.hit_at = (plan["phase"] if plan["moment"] == 0 else w.phase), time.monotonic()

    def do_cut(self, _):
        self.ground.cable.cut()

    def do_half(self, _):
        self.ground.cable.half(self.plan["way"])

    def do_reset(self, _):
        self.ground.cable.reset(lambda found: found if self.plan["all"] else self.rng.sample(found, min(1, len(found))))

    def do_loss(self, _):
        self.ground.cable.lose(self.plan["chance"])

    def do_rate(self, _):
        self.ground.cable.slow(self.plan["mbit"])

    def do_delay(self, _):
        os.kill(self.relay, signal.SIGUSR1)

    def do_store(self, _):
        self.store.kill()
        self.store.wait()
        if self.plan["back"]:
            self.later(0.03, self.start_store)

    def do_memcg(self, w):
        self.limit.take(w.process.pid, self.plan["room"])

    def do_space(self, w):
        with open(f"/proc/{w.process.pid}/statm", encoding="ascii") as f:
            w.limit(resource.RLIMIT_AS, int(f.read().split()[0]) * resource.getpagesize() + self.plan["room"])

    def do_files(self, w):
        used = {int(n) for n in os.listdir(f"/proc/{w.process.pid}/fd")}
        unused = (n for n in itertools.count() if n not in used)
        w.limit(resource.RLIMIT_NOFILE, next(itertools.islice(unused, self.plan["room"], None)))

    def do_full(self, w):
        self.ground.fill("/dev/shm" if self.plan["dests"][self.plan["victim"]] == "shm" else self.to, self.plan["leave"])

    def do_spill(self, w):
        self.do_full(w)
        self.kill_second()

    def do_outer(self, _):
        self.victim().kill(signal.SIGKILL)

    def do_slow(self, w):
        def stop():
            if w.idle:
                return
            w.kill(signal.SIGSTOP)
            self.later(STROKE_S, run)

        def run():
            w.kill(signal.SIGCONT)
            self.later(STROKE_S, stop)
        stop()

    def do_freeze(self, _):
        for w in self.workers:
            w.stopped = w.status is None and not w.idle
            w.kill(signal.SIGSTOP)
        self.later(self.plan["for_s"], self.thaw)

    def thaw(self):
        for w in self.workers:
            w.stopped, w.since = False, time.monotonic()
            w.kill(signal.SIGCONT)

    def do_tiny(self, _):
        self.ground.small_buffers(True)

    # ---- rounds ----

    def words(self, rank, world, group, role, dest, version, old):
        plan = self.plan
        return [f"rank={rank}", f"world={world}", f"at={self.at()}", f"group={group}", f"timeout={plans.TIMEOUT_S}", f"noprog={plans.NO_PROGRESS_S}", f"role={role}",
                f"dest={dest}", f"version={version}", f"old={old}", f"on_loss={plan['on_loss']}", f"bucket_kb={plan['bucket_kb']}", f"kb={plan['kb']}",
                f"folder={self.to}", "host=" + ("no" if plan["store"] else ""), f"retry={int(plan['retry'])}"]

    def struck_round(self):
        plan = self.plan
        us = int(plan["moment"] * self.scale[plan["phase"]] * 1000)
        for r, w in enumerate(self.workers):
            words = self.words(r, plan["world"], f"g{plan['number']}", plan["roles"][r], self.dest(r), plans.NEW, plans.OLD)
            words.append("split=" + ",".join(map(str, plan["split"])))
            if r == plan["victim"]:
                words += [f"slow_us={plan['slow_us']}", f"linger={int(plan['fault'] == 'OUTER')}", f"async={int(plan['fault'] == 'ABORT' and plan['phase'] == 'create')}"]
                if plan["fault"] in SELF:
                    words.append(f"harm={SELF[plan['fault']]}:{plan['phase']}:{plan['nth'] if 'nth' in plan else us}:{plan.get('row', 0)}")
            if r == plan.get("witness", plan["victim"]) and plan["fault"] in plans.FAULTS and plan["fault"] not in SELF:
                words.append(f"hold={plan['phase']}")
            if r == plan["liar"]:
                words.append(f"lie={plan['lie']}")
            w.begin(" ".join(words))
        asleep = plan["fault"] in ("STOP", "PAIR", "LATE") # until the others are through; who sleeps by another fault is woken by that
        self.wait(lambda: all(w.idle or (asleep and w.stopped) for w in self.workers), "for the others")
        self.wait_for_lingering()
        stopped = [w for w in self.workers if w.stopped]
        members = [self.story(r, w) for r, w in enumerate(self.workers)]
        meanwhile = self.round_meanwhile() if stopped and plan["fault"] == "LATE" else None
        for w in stopped:
            self.wake(w)
        self.wait(lambda: all(w.idle for w in self.workers), "for the one that slept")
        for r, w in enumerate(self.workers):
            if w in stopped:
                members[r] = self.story(r, w)
        dead = {r for r, w in enumerate(self.workers) if w.status is not None}
        for r in dead:
            self.check_death(r)
        self.told = self.told or [self.tell(w) for w in self.workers]
        if meanwhile:
            self.told.append("late " + self.tell(stopped[0]))
            self.judge_anew(meanwhile, plans.HEALED)
        self.bad += judge.Round(plan, members, self.hit, dead, bool(stopped)).check()
        return dead

    def story(self, rank, w):
        return {"done": w.done, "state": w.state, "state_first": w.state_first, "held": self.held(rank, w)}

    def wait_for_lingering(self):
        """Who stayed outside the child and lives, since nobody killed it."""
        for w in self.workers:
            if w.lingers and w.status is None and self.hit is None:
                w.idle, w.since = False, time.monotonic()
                w.send("go")
        if self.plan["fault"] == "OUTER":
            self.wait(lambda: self.victim().idle and (self.victim().status is not None or self.hit is None), "for the one outside")

    def round_meanwhile(self):
        """While one still sleeps in the group that was, the others make their next one; in the middle of that it wakes."""
        order = [r for r, w in enumerate(self.workers) if w.idle and w.status is None]
        late = self.victim()
        self.told = [self.tell(w) for w in self.workers]
        name = f"g{self.plan['number']}" if self.plan["same"] else f"l{self.plan['number']}"
        self.later(self.plan["wake_s"], lambda: self.wake(late))
        return self.anew(order, {r: self.dest(r) for r in order}, name, plans.HEALED)

    def held(self, rank, w):
        file = self.file_of(self.dest(rank))
        if file:
            return contents.version_of(file, [plans.OLD, plans.NEW], self.plan["kb"])
        return w.state["held"] if w.state else plans.OLD

    def check_death(self, rank):
        fault, status = self.plan["fault"], self.workers[rank].status
        wanted = {"KILL": -9, "PAIR": -9, "TWICE": -9, "HEADS": -9, "OUTER": -9, "EXIT": 7, "MEMCG": -9}.get(fault)
        if rank == self.plan.get("second") and fault in ("TWICE", "SPILL"):
            wanted = -9
        elif rank != self.plan["victim"]:
            wanted = None
        if status != wanted:
            self.bad.append(("DIED", f"rank {rank} ended with status {status}\n{self.workers[rank].log(15)}"))

    def repair(self):
        self.timers = []
        if self.plan["fault"] == "SLOW":
            self.victim().kill(signal.SIGCONT)
        if self.plan["fault"] == "TINY":
            self.ground.small_buffers(False)
        if self.ground.cable:
            self.ground.cable.mend()
        for w in self.workers:
            if w.status is None:
                w.unlimit()
        if self.limit and self.victim().status is None:
            self.limit.write(self.limit.knob, str(1 << 40))
        for where in ("/dev/shm", self.to):
            self.ground.empty(where)
        if self.relay:
            os.kill(self.relay, signal.SIGUSR2)
        if self.store and self.store.poll() is not None:
            self.start_store()

    def heal(self, dead):
        """The same processes form a group and finish an update that is verified."""
        plan = self.plan
        order = [r for r in range(plan["world"]) if r not in dead]
        if dead and plan["again"]:
            for r in dead:
                w = Worker(self, f"w{r}x", r in plan["far"])
                self.sel.register(w.process.stdout, selectors.EVENT_READ, w)
                self.workers[r] = w
                order.append(r)
            self.wait(lambda: all(w.up for w in self.workers), "for who replaces the dead")
        if len(order) < 2: # who is alone has nobody to start with, so no pull comes that would remove what the dead left
            self.unswept = dead
            return
        dests = {r: self.dest(r) for r in order}
        for r in dead - set(order): # what a killed one left beside its destination goes with the next pull there
            if self.file_of(self.dest(r)):
                sinks = [x for x in order if x != self.source_of(order)]
                heir = next((x for x in sinks if not self.file_of(dests[x])), sinks[0])
                dests[heir] = self.dest(r)
        new = self.anew(order, dests, f"h{plan['number']}", plans.HEALED_LATE)
        self.wait(lambda: all(self.workers[r].idle for r in order), "to start anew")
        self.judge_anew(new, plans.HEALED_LATE)

    def source_of(self, order):
        return next((r for r in order if self.plan["roles"][r] == "source"), order[0])

    def anew(self, order, dests, name, version):
        """Begins it; returns the destinations by worker, in the order of the new ranks, None for the source."""
        plan, source = self.plan, self.source_of(order)
        new = {r: None if r == source else dests[r] or "keep" for r in self.rng.sample(order, len(order))}
        for rank, (r, dest) in enumerate(new.items()):
            self.workers[r].begin(" ".join(self.words(rank, len(order), name, "sink" if dest else "source", dest or "", version, plans.OLD)))
        return new

    def judge_anew(self, new, version):
        held = []
        for r, dest in new.items():
            w, file = self.workers[r], self.file_of(dest or "")
            known = contents.version_of(file, [version], self.plan["kb"]) if file else w.state["held"] if w.state else None
            held.append(known if dest and dest != "null:" else None)
            if w.status is not None:
                self.bad.append(("DIED", f"{w.name} ended with status {w.status}\n{w.log(15)}"))
        self.bad += judge.healed([self.workers[r].name for r in new], [self.workers[r].done for r in new], held, version)

    # ---- the end ----

    def quit(self):
        for w in self.workers:
            if w.status is None:
                w.since, w.idle, w.phase = time.monotonic(), False, "its end"
                w.send("quit")
        self.wait(lambda: all(w.status is not None for w in self.workers), "for the end")
        for w in self.workers:
            if w.end and (w.end["fds"] > 0 or w.end["threads"] > 0):
                self.bad.append(("LEFT", f"{w.name}: {w.end['fds']} descriptors and {w.end['threads']} threads\n{w.log(20)}"))
            if w.end and w.status != 0:
                self.bad.append(("DIED", f"{w.name} ended with status {w.status}\n{w.log(40)}"))

    def waits_for_a_pull(self, name):
        """A killed pull may leave its temporary, which the next one to the same destination removes."""
        return any(re.fullmatch(rf"\.d{r}\.isthmus-[0-9]+-[0-9a-f]{{16}}", name) for r in self.unswept if self.plan["dests"][r] in ("dir", "shm"))

    def leftovers(self):
        plan = self.plan
        wanted = {f"d{r}" for r in range(plan["world"]) if plan["dests"][r] == "dir"}
        shm = {f"d{r}" for r in range(plan["world"]) if plan["dests"][r] == "shm"}
        for where, good in ((self.to, wanted), ("/dev/shm", shm)):
            left = sorted(x for x in set(os.listdir(where)) - good if not self.waits_for_a_pull(x))
            if left:
                self.bad.append(("LEFT", f"in {'/dev/shm' if where != self.to else 'the folder of destinations'}: {left}"))
        if self.store:
            self.store.kill()
            self.store.wait()
        if self.relay:
            os.kill(self.relay, signal.SIGKILL)
            os.waitpid(self.relay, 0)
        left = self.ground.sockets()
        if left:
            self.bad.append(("LEFT", f"sockets: {left}"))

    def run(self):
        try:
            self.start()
            dead = self.struck_round()
            if not any(b[0] == "HANG" for b in self.bad):
                self.repair()
                self.heal(dead)
                self.quit()
                self.leftovers()
        except Hang as hang:
            self.bad.append(("HANG", str(hang)))
        finally:
            self.end()
        return {"number": self.plan["number"], "fault": self.plan["fault"], "phase": self.plan["phase"], "hit": self.hit, "bad": self.bad, "times": self.times,
                "told": self.told or [self.tell(w) for w in self.workers]}

    def end(self):
        for w in self.workers:
            w.kill(signal.SIGCONT)
            w.kill(signal.SIGKILL)
            w.process.wait()
        if self.store and self.store.poll() is None:
            self.store.kill()
            self.store.wait()
        if self.limit:
            self.limit.close()

    @staticmethod
    def tell(w):
        return f"{w.name}: " + ", ".join(f"{p} {d['code']}{d['ranks'] or ''} {d['ms']:.0f} ms" for p, d in w.done.items())


SELF = plans.SELF


def stacks(w):
    """Where a process that hangs stands."""
    if shutil.which("gdb"):
        done = subprocess.run(["gdb", "-p", str(w.process.pid), "-batch", "-ex", "thread apply all bt 14"], capture_output=True, text=True, check=False, timeout=60)
        keep = [line for line in done.stdout.splitlines() if line.startswith(("#", "Thread"))]
        return "\n".join(keep) + "\n" + w.log(20)
    return w.log(40)
