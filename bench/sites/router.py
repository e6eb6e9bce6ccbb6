"""Carries packets between network namespaces, each after the delay of its way. Started by bench/sites/run.

    router.py NAMESPACE=SUBNET... -- A:B:MS...

Each namespace has a TUN device `wan0`, through which it reaches the subnets of the others (`10.77.1` and so on); the one that
this runs in is named `-`. A way that is not named has no delay. Prints `ready`, and in the end how late it was.
"""

import ctypes
import fcntl
import os
import select
import signal
import struct
import sys
import time
from collections import deque

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
# A packet of IPv4 with its largest length.
PACKET_BYTES = 65_536
# The most packets on one way; further ones are dropped, as by a router.
WAY_PACKETS = 20_000
libc = ctypes.CDLL(None, use_errno=True)


def tun_in(namespace):
    """The device of a namespace. This process enters the namespace to make it."""
    if namespace != "-":
        there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        if libc.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        os.close(there)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"wan0", IFF_TUN | IFF_NO_PI))
    return device


class Way:
    """From one namespace to another. The delay is the same for all packets, so they stay in order."""

    def __init__(self, to, delay_s):
        self.to, self.delay_s, self.packets = to, delay_s, deque()


def main(words):
    # Nobody else would end it.
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    split = words.index("--")
    subnets = dict(word.split("=") for word in words[:split])
    delays = {}
    for word in words[split + 1 :]:
        a, b, ms = word.split(":")
        delays[a, b] = delays[b, a] = float(ms) / 1000
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    devices = {}
    for namespace in subnets:
        devices[namespace] = tun_in(namespace)
        libc.setns(home, CLONE_NEWNET)
    libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        print("delays will be less exact: no real-time priority", file=sys.stderr)
    numbers = {tuple(map(int, subnet.split("."))): name for name, subnet in subnets.items()}
    ways = {
        device: {
            bytes(subnet): Way(devices[to], delays.get((name, to), 0.0))
            for subnet, to in numbers.items()
            if to != name
        }
        for name, device in devices.items()
    }
    all_ways = [way for to in ways.values() for way in to.values()]
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    sent = dropped = 0
    late_sum = late_most = 0.0
    now = time.monotonic
    print("ready", flush=True)
    while not ended:
        waits = [way.packets[0][0] for way in all_ways if way.packets]
        timeout = max(0.0, min(waits) - now()) if waits else 0.5
        try:
            readable, _, _ = select.select(list(ways), [], [], timeout)
        except InterruptedError:
            continue
        for device in readable:
            while True:
                try:
                    packet = os.read(device, PACKET_BYTES)
                except BlockingIOError:
                    break
                way = ways[device].get(packet[16:19]) if packet[0] >> 4 == 4 else None
                if way is None or len(way.packets) >= WAY_PACKETS:
                    dropped += way is not None
                    continue
                way.packets.append((now() + way.delay_s, packet))
        for way in all_ways:
            while way.packets and way.packets[0][0] <= now():
                due, packet = way.packets.popleft()
                late = now() - due
                late_sum, late_most = late_sum + late, max(late_most, late)
                try:
                    os.write(way.to, packet)
                    sent += 1
                except OSError:
                    dropped += 1
    print(f"{sent} packets, {dropped} dropped, late by {late_sum / max(sent, 1) * 1e3:.2f} ms, {late_most * 1e3:.1f} at most")


if __name__ == "__main__":
    main(sys.argv[1:])
