# SPDX-License-Identifier: Apache-2.0
"""The ground that one schedule plays on: a network of its own (one host, or two with a cable between them), a /dev/shm and a
folder of destinations of its own, a memory limit. All of it goes when the process that made it ends."""
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess

PDEATHSIG, KILL = 1, 9
NEWNS, NEWNET = 0x00020000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
libc = ctypes.CDLL(None, use_errno=True)
NEAR, FAR = "10.9.0.1", "10.9.0.2"


class NoGround(Exception):
    """A privilege or a tool is missing."""


def call(name, *args):
    if getattr(libc, name)(*args) != 0:
        e = ctypes.get_errno()
        raise NoGround(f"{name}: {os.strerror(e)}")


def tie():
    """This process ends when the thread that made it does, however that ends. For a child, first of all."""
    libc.prctl(PDEATHSIG, KILL, 0, 0, 0)


def mount(kind, where, options):
    call("mount", b"none", where.encode(), kind.encode(), 0, options.encode())


def lo_up():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        flags = struct.unpack_from("16sh", fcntl.ioctl(s, 0x8913, struct.pack("16sh14s", b"lo", 0, b"")))[1]
        fcntl.ioctl(s, 0x8914, struct.pack("16sh14s", b"lo", flags | 1, b""))


def enter_net(fd):
    call("setns", fd, NEWNET)


class Cable:
    """Two hosts, near and far, and what happens on the way between them. Frames are dropped where they enter and leave the
    near end, by a filter of the traffic control: the kernel's own emulator of bad networks is not everywhere."""
    DROP = "1,6 0 0 2"

    def __init__(self):
        self.near = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        call("unshare", NEWNET)
        self.far = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        lo_up()
        enter_net(self.near)
        self.run("ip", f"link add near type veth peer name far netns /proc/self/fd/{self.far}\naddr add {NEAR}/24 dev near\nlink set near up\n")
        enter_net(self.far)
        self.run("ip", f"addr add {FAR}/24 dev far\nlink set far up\n")
        enter_net(self.near)
        self.run("tc", "qdisc add dev near clsact\n")
        self.tc = {}

    def run(self, tool, lines):
        done = subprocess.run([tool, "-batch", "-"], input=lines, text=True, capture_output=True, check=False, pass_fds=[self.far], timeout=30)
        if done.returncode:
            raise NoGround(f"{tool} {lines!r}: {done.stderr.strip()}")

    @staticmethod
    def chance(p):
        """Drops a frame with that probability."""
        return f"4,32 0 0 4294963256,37 0 1 {int((1 - p) * 0xffffffff)},6 0 0 2,6 0 0 4294967295"

    def bad(self, code, ways):
        self.run("tc", "".join(f"filter add dev near {way} pref 1 bpf da bytecode '{code}'\n" for way in ways))

    def cut(self):
        self.bad(self.DROP, ["ingress", "egress"])

    def half(self, way):
        self.bad(self.DROP, [way])

    def lose(self, p):
        self.bad(self.chance(p), ["ingress", "egress"])

    def connections(self):
        """From the near end: (own port, the other's)."""
        done = subprocess.run(["ss", "-Htn", "state", "established", "dst", FAR], text=True, capture_output=True, check=False, timeout=30)
        if done.returncode:
            raise NoGround(f"ss: {done.stderr.strip()}")
        return [tuple(int(at.rsplit(":", 1)[1]) for at in line.split()[2:4]) for line in done.stdout.splitlines()]

    def reset(self, pick):
        """Somebody on the way resets connections between members that live: those that pick picks."""
        for own, other in pick(sorted(self.connections())):
            done = subprocess.run(["ss", "-K", "-t", "dst", FAR, "sport", "=", f":{own}", "dport", "=", f":{other}"], text=True, capture_output=True, check=False, timeout=30)
            if done.returncode:
                raise NoGround(f"ss -K: {done.stderr.strip()}")

    def slow(self, mbit):
        queue = f"root tbf rate {mbit}mbit burst 64k limit 4m\n"
        self.run("tc", f"qdisc add dev near {queue}")
        enter_net(self.far)
        self.run("tc", f"qdisc add dev far {queue}")
        enter_net(self.near)

    def mend(self):
        for line in ("filter del dev near ingress pref 1\n", "filter del dev near egress pref 1\n", "qdisc del dev near root\n"):
            subprocess.run(["tc", "-batch", "-"], input=line, text=True, capture_output=True, check=False, timeout=30)
        enter_net(self.far)
        subprocess.run(["tc", "qdisc", "del", "dev", "far", "root"], capture_output=True, check=False, timeout=30)
        enter_net(self.near)


class Limit:
    """A memory control group, of either version."""
    V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"

    def __init__(self, name):
        v1 = os.path.exists(os.path.join(self.V1, "cgroup.procs"))
        self.knob = "memory.limit_in_bytes" if v1 else "memory.max"
        self.folder = os.path.join(self.V1 if v1 else self.V2, name)
        try:
            os.mkdir(self.folder)
            if not os.path.exists(os.path.join(self.folder, self.knob)):
                os.rmdir(self.folder)
                raise NoGround("no memory control group can be written here")
        except OSError as e:
            raise NoGround(f"memory control group: {e}") from None

    def write(self, file, text):
        with open(os.path.join(self.folder, file), "w", encoding="ascii") as f:
            f.write(text)

    def take(self, pid, room):
        """What pid asks for from now on is counted, up to room."""
        self.write(self.knob, str(room))
        self.write("cgroup.procs", str(pid))

    def close(self):
        for file in ("memory.force_empty",):
            try:
                self.write(file, "0")
            except OSError:
                pass
        for _ in range(200):
            try:
                os.rmdir(self.folder)
                return
            except OSError:
                libc.usleep(5000)


class Ground:
    def __init__(self, work, two_hosts, shm_bytes, dest_bytes):
        call("unshare", NEWNET | NEWNS)
        call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        mount("tmpfs", "/dev/shm", f"size={shm_bytes}")
        self.folder = os.path.join(work, "to")
        os.makedirs(self.folder)
        mount("tmpfs", self.folder, f"size={dest_bytes}")
        lo_up()
        self.cable = Cable() if two_hosts else None

    def net_of(self, far):
        return self.cable.far if self.cable and far else None

    def small_buffers(self, small):
        """Of the connections that are made from now on."""
        text = "4096 4096 4096" if small else "4096 131072 4194304"
        for net in [self.cable.far, self.cable.near] if self.cable else [None]:
            if net is not None:
                enter_net(net)
            for knob in ("tcp_rmem", "tcp_wmem"):
                with open(f"/proc/sys/net/ipv4/{knob}", "w", encoding="ascii") as f:
                    f.write(text)

    def fill(self, where, leave):
        """Takes all the space but so much."""
        free = shutil.disk_usage(where).free
        if free <= leave:
            return
        with open(os.path.join(where, "filler"), "wb") as f:
            try: # others write there meanwhile
                os.posix_fallocate(f.fileno(), 0, free - leave)
            except OSError:
                pass

    @staticmethod
    def empty(where):
        try:
            os.unlink(os.path.join(where, "filler"))
        except FileNotFoundError:
            pass

    def sockets(self):
        """Names and listeners that are still there, of all hosts."""
        left = []
        for net in [self.cable.far, self.cable.near] if self.cable else [None]:
            if net is not None:
                enter_net(net)
            with open("/proc/thread-self/net/unix", encoding="ascii", errors="replace") as f:
                left += [line.split()[-1] for line in f if "@isthmus" in line]
            for family in ("tcp", "tcp6"):
                try:
                    with open(f"/proc/thread-self/net/{family}", encoding="ascii") as f:
                        left += [f"listener {line.split()[1]}" for line in f if line.split()[3] == "0A"]
                except FileNotFoundError:
                    pass
        return left
