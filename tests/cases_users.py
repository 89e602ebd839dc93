#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two users of one machine: what the one does at the sockets and files of the other's group. docs/field-cases.md says where that
was seen. Root alone can play both.

    tests/cases_users.py PATH/TO/isthmus
"""
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "chaos"))

from cases_net import alone
from e2e_test import CLEAN_ENV, GUARD_S, TOOL, Case, Done, wait_for, write
from ground import NoGround

OURS, THEIRS = 61001, 65534
MIB = 1 << 20
SECRET = "what only the first user knows"


def become(user, mask=0):
    """For use before exec, or in a forked child."""
    def enter():
        os.umask(mask)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)

    return enter


def as_other(what):
    """What a function gives in a process of the other user: text."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become(THEIRS)()
            os.write(w, what().encode())
        finally:
            os._exit(0)
    os.close(w)
    with os.fdopen(r) as f:
        text = f.read()
    os.waitpid(pid, 0)
    return text


class Users(Case):
    def setUp(self):
        super().setUp()
        os.chmod(self.folder.name, 0o755)
        self.tool = self.path("isthmus")
        shutil.copy(TOOL, self.tool)
        os.chmod(self.tool, 0o755)
        for name, user, mode in (("place", OURS, 0o1777), ("home", OURS, 0o777)): # as open as a folder of all users can be
            os.mkdir(self.path(name))
            os.chown(self.path(name), user, user)
            os.chmod(self.path(name), mode)
        write(self.path("home/m/model.safetensors"), [(f"t{i}", "U8", [MIB + i]) for i in range(4)])
        with open(self.path("home/secret"), "w", encoding="ascii") as f:
            f.write(SECRET)
        os.chmod(self.path("home/secret"), 0o600)
        os.chown(self.path("home/secret"), OURS, OURS)

    def member(self, rank, user=OURS, secret="home/secret", timeout=60, what=None):
        verb, target = what or (("push", self.path("home/m")) if rank == 0 else ("pull", self.path("home/to")))
        p = subprocess.Popen([self.tool, verb, target, "--at", "dir:" + self.path("place"), "--group", "ours", "--world", "2", "--rank", str(rank),
                              "--json", "--timeout", str(timeout), *(("--secret-file", self.path(secret)) if secret else ())], env=CLEAN_ENV, cwd="/",
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=become(user))
        self.addCleanup(self.end, p)
        return p

    def at_the_place(self):
        return [os.path.join(self.path("place"), n) for n in os.listdir(self.path("place"))]

    @staticmethod
    def sockets():
        with open("/proc/net/unix", encoding="ascii", errors="replace") as f:
            return [line.split()[-1] for line in f if "@isthmus" in line]

    def knock_at_all(self):
        """Connects to every socket, says nothing, rubbish, and half a hello; gives back what came, in hexadecimal."""
        came = b""
        for name in self.sockets():
            for words in (b"", os.urandom(64), os.urandom(4096), b"ISTHMUS" + bytes(121)):
                with socket.socket(socket.AF_UNIX) as s:
                    s.settimeout(GUARD_S)
                    s.connect("\0" + name[1:])
                    try:
                        if words:
                            s.sendall(words)
                        s.shutdown(socket.SHUT_WR)
                        while got := s.recv(65536):
                            came += got
                    except ConnectionError:
                        pass
        return came.hex() + "."

    def read_all(self):
        """The names of the files that could be read or written."""
        open_to_all = []
        for path in self.at_the_place():
            for how in (os.O_RDONLY, os.O_WRONLY):
                try:
                    os.close(os.open(path, how))
                    open_to_all.append(path)
                except PermissionError:
                    pass
        return " ".join(open_to_all) + "."

    def test_knocks_at_everything(self):
        first = self.member(0)
        wait_for(lambda: first.poll() is not None or (self.sockets() and any(n.endswith(".rank0") for n in self.at_the_place())))
        self.assertIsNone(first.poll())
        self.assertEqual(as_other(self.read_all), ".")
        came = as_other(self.knock_at_all)
        self.assertTrue(came.endswith("."), "the other user did not get through his round")
        for text in (SECRET, "ours", self.folder.name, socket.gethostname()):
            self.assertNotIn(text.encode().hex(), came)
        stranger = Done(self.member(1, THEIRS, None, 5)) # with the finished program
        self.assertNotEqual(stranger.status, 0)
        self.assertIn("EACCES", stranger.error["detail"])
        self.assertIsNone(first.poll())
        done = [Done(p) for p in (first, self.member(1))]
        self.good(done)
        self.same(self.path("home/m"), self.path("home/to"))
        self.assertRegex(done[0].stderr, rf"refused: local socket of process [0-9]+, user {THEIRS}")
        self.assertEqual(self.at_the_place(), [])

    def test_takes_the_paths_first(self):
        """Whatever he puts where our files will be, nobody follows it: an error that names the path, or another path."""
        first = self.member(0)
        wait_for(lambda: first.poll() is not None or any(n.endswith(".rank0") for n in self.at_the_place()))
        names = self.at_the_place()
        first.kill()
        first.communicate()
        for path in self.at_the_place():
            os.unlink(path)
        self.assertGreater(len(names), 1)
        for make in (lambda path: os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)), lambda path: os.symlink("/etc/passwd", path), os.mkdir):
            self.assertEqual(as_other(lambda make=make: [make(path) for path in names] and "done"), "done")
            p = self.member(0, timeout=3)
            done = Done(p)
            self.assertEqual(done.status, 1, done.stderr)
            self.assertIn(done.error["code"], ("IO", "DENIED", "CONFLICT"))
            self.assertTrue(any(path in done.error["detail"] for path in names), done.error["detail"])
            for path in names:
                os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)

    def test_two_instances_of_one_user(self):
        """Side by side under two names: nothing has a name of which there is only one."""
        pairs = []
        for name in ("a", "b"):
            pairs.append([self.start(verb, target, "--at", "dir:" + self.path("place"), "--group", name, "--world", "2", "--rank", str(r), "--json", "--timeout", "60",
                                     "--secret-file", self.path("home/secret"), preexec_fn=become(OURS), cwd="/")
                          for r, (verb, target) in enumerate((("push", self.path("home/m")), ("pull", self.path(f"home/to-{name}"))))])
        for pair in pairs:
            self.good([Done(p) for p in pair])

    def test_files_show_nothing_at_any_moment(self):
        """umask 000: everything at the meeting place, a pull's folder on the way, and a sink in /dev/shm."""
        shm = f"isthmus-users-{os.getpid()}"
        self.addCleanup(lambda: os.path.exists("/dev/shm/" + shm) and os.remove("/dev/shm/" + shm))
        seen, over = {}, threading.Event()

        def watch():
            while not over.is_set():
                for folder, kind in ((self.path("place"), "place"), (self.path("home"), "home"), ("/dev/shm", "shm")):
                    for name in os.listdir(folder):
                        if (kind == "home" and not name.startswith(".to")) or (kind == "shm" and shm not in name):
                            continue
                        try:
                            mode = stat.S_IMODE(os.lstat(os.path.join(folder, name)).st_mode)
                        except FileNotFoundError:
                            continue
                        key = (kind, re.sub(r"[0-9a-f]{6,}|[0-9]+", "N", name))
                        seen.setdefault(key, set()).add(mode)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            for to in (self.path("home/to"), "shm:" + shm) * 3:
                self.good([Done(p) for p in [self.member(0), self.member(1, what=("pull", to))]])
        finally:
            over.set()
            thread.join()
        self.assertEqual({kind for kind, _ in seen}, {"place", "home", "shm"}, seen)
        # a pull's folder is closed while it is filled; what it becomes in the end the umask decides
        (home,) = {frozenset(modes) for (kind, _), modes in seen.items() if kind == "home"}
        self.assertIn(0o700, home)
        self.assertLessEqual(home, {0o700, 0o777})
        bad = {key: [oct(m) for m in modes] for key, modes in seen.items() if key[0] != "home" and any(m & 0o077 for m in modes)}
        self.assertEqual(bad, {})


if __name__ == "__main__":
    try:
        if os.geteuid() != 0:
            raise NoGround("only root can be two users")
        alone()
    except NoGround as e:
        print(f"no two users can be had here: {e}")
        sys.exit(77)
    unittest.main()
