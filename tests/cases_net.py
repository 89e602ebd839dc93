#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two hosts with several networks each, of which one joins them: the others have the same bridge address, the host's own name
means loopback, and the meeting place's name means something else on each side. docs/field-cases.md says where that was seen.

    tests/cases_net.py PATH/TO/isthmus
"""
import os
import re
import socket
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "chaos"))

from e2e_test import Case, Done, write
from ground import FAR, MS_PRIVATE, MS_REC, NEAR, NEWNET, NEWNS, Cable, NoGround, call, enter_net, lo_up

NEWUTS, MS_BIND = 0x04000000, 4096
MIB = 1 << 20
PORT = 29600
# Two ends of one cable, both here: not every kernel has the type dummy.
BRIDGE = "link add docker0 type veth peer name docker1\naddr add 172.17.0.1/16 dev docker0\nlink set docker0 up\nlink set docker1 up\n"


def alone():
    """This process gets a network, mounts and a host name of its own."""
    call("unshare", NEWNET | NEWNS | NEWUTS)
    call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    socket.sethostname("node")
    lo_up()


def quiet():
    """This thread's network says nothing of its own: what an interface counts is what programs sent."""
    path = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
    if os.path.exists(path):
        with open(path, "w", encoding="ascii") as f:
            f.write("1")


def came(interface):
    """Bytes that this thread's network has received by it."""
    with open("/proc/thread-self/net/dev", encoding="ascii") as f:
        return next(int(line.split(":")[1].split()[0]) for line in f if line.strip().startswith(interface + ":"))


class Roads(Case):
    def setUp(self):
        super().setUp()
        self.cable = Cable()
        self.addCleanup(self.forget)
        for net in (self.cable.far, self.cable.near):
            enter_net(net)
            quiet()
            self.cable.run("ip", BRIDGE)
        write(self.path("m/model.safetensors"), [(f"t{i}", "U8", [MIB + i]) for i in range(9)])
        with open(self.path("secret"), "w", encoding="ascii", opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
            f.write("only for these two hosts")

    def forget(self):
        self.tear("near", "docker0")
        os.close(self.cable.near)
        os.close(self.cable.far)

    @staticmethod
    def tear(*links):
        for name in links:
            subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)

    def came_to_far(self):
        """By its loopback and its own bridge, and by the cable."""
        enter_net(self.cable.far)
        try:
            return came("lo") + came("docker0"), came("far")
        finally:
            enter_net(self.cable.near)

    def on(self, net, names):
        """For use before exec: on that host, where these names mean these addresses."""
        path = self.path(f"hosts-{net}")
        with open(path, "w", encoding="ascii") as f:
            f.writelines(f"{address} {name}\n" for name, address in [("localhost", "127.0.0.1"), ("node", "127.0.1.1"), *names])

        def enter():
            enter_net(net)
            call("unshare", NEWNS)
            call("mount", path.encode(), b"/etc/hosts", None, MS_BIND, None)

        return enter

    def pair(self, at, *options, near=(), far=(), timeout=20):
        meet = ("--at", at, "--world", "2", "--json", "--timeout", str(timeout), "--secret-file", self.path("secret"), *options)
        return [self.start("push", self.path("m"), "--rank", "0", *meet, preexec_fn=self.on(self.cable.near, near)),
                self.start("pull", self.path("to"), "--rank", "1", *meet, preexec_fn=self.on(self.cable.far, far))]

    def goes_over_the_cable(self, *args, **more):
        """Nothing that the far host sends goes to its own loopback or its own bridge, by whichever name it was told."""
        elsewhere, cable = self.came_to_far()
        done = [Done(p) for p in self.pair(*args, **more)]
        self.good(done)
        for one in done:
            self.assertEqual(one.document["transport"], {"shm": 0, "tcp": 1})
        self.same(self.path("m"), self.path("to"))
        self.assertEqual(self.came_to_far()[0] - elsewhere, 0)
        self.assertGreater(self.came_to_far()[1] - cable, 9 * MIB)

    def test_the_road_that_there_is(self):
        self.goes_over_the_cable(f"tcp://{NEAR}:{PORT}")

    def test_a_name_that_is_loopback_at_home(self):
        """What reached the meeting place by 127.0.1.1 has an address that means somebody else on the other host."""
        place = self.start("store", "--bind", f"0.0.0.0:{PORT}", "--secret-file", self.path("secret"), "-q", preexec_fn=self.on(self.cable.near, ()))
        place.stdout.readline()
        done = [Done(p) for p in self.pair(f"tcp://place:{PORT}", near=[("place", "127.0.1.1")], far=[("place", NEAR)], timeout=5)]
        self.assertEqual([(one.status, one.error["code"], one.error["ranks"]) for one in done], [(124, "TIMEOUT", [1]), (124, "TIMEOUT", [0])])
        self.assertRegex(done[1].error["detail"], r"127\.0\..\.1:[0-9]+: ECONNREFUSED")
        self.assertIn("--advertise", done[1].error["detail"])
        # with the word that was asked for it works
        self.goes_over_the_cable(f"tcp://place:{PORT}", "--bind", "10.9.0.0/24", near=[("place", "127.0.1.1")], far=[("place", NEAR)])

    def test_no_road(self):
        self.tear("near")
        done = [Done(p) for p in self.pair(f"tcp://place:{PORT}", far=[("place", NEAR), ("place", "192.0.2.7")], near=[("place", NEAR)], timeout=3)]
        self.assertEqual([(one.status, one.error["code"], one.error["ranks"]) for one in done], [(124, "TIMEOUT", [1]), (124, "TIMEOUT", [0])])
        self.assertIn(f"{NEAR}:{PORT}: ENETUNREACH", done[0].error["detail"])
        self.assertIn(f"{NEAR}:{PORT}: ENETUNREACH, 192.0.2.7:{PORT}: ENETUNREACH", done[1].error["detail"])


if __name__ == "__main__":
    try:
        alone()
    except NoGround as e:
        print(f"no two hosts can be made here: {e}")
        sys.exit(77)
    unittest.main()
