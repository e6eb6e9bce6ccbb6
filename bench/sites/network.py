"""Three sites on one machine: network namespaces with delays between them, inside a network namespace from which each site is
reached without a delay."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SITES = (1, 2, 3)
# Round trips between two sites in ms: across the United States, and across a continent and an ocean.
DELAYS = {
    "us": {(1, 2): 54, (1, 3): 72, (2, 3): 24},
    "intercontinental": {(1, 2): 68, (1, 3): 142, (2, 3): 150},
    "none": {(1, 2): 0, (1, 3): 0, (2, 3): 0},
}
INSIDE = "FERMATA_SITES_INSIDE"
ENDS_WITHIN_S = 10
# How long it takes to be refused a connection: one round trip. Prints the median of several, in ms.
REFUSED = """
import errno, socket, statistics, sys, time
def once():
    began = time.monotonic()
    assert socket.socket().connect_ex((sys.argv[1], 9)) == errno.ECONNREFUSED
    return (time.monotonic() - began) * 1000
print(f"{statistics.median(once() for _ in range(9)):.2f}")
"""


def namespace(site):
    return f"fermata-site{site}"


def address(site):
    return f"10.77.{site}.1"


def there(site):
    """The beginning of a command that runs in a site."""
    return ["nsenter", f"--net=/run/netns/{namespace(site)}", "--"]


def enter():
    """Starts this program again in a network namespace of its own."""
    if os.environ.get(INSIDE):
        return
    if os.geteuid():
        sys.exit("bench/sites/run makes network namespaces: run it as root")
    os.environ[INSIDE] = "1"
    os.execvp("unshare", ["unshare", "--net", "--", sys.executable, *sys.argv])


def run(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


class Network:
    """The sites, while it is up."""

    def __init__(self, delays):
        self.delays = DELAYS[delays]
        self.router = None
        self.is_ours = False

    def up(self):
        if taken := [namespace(site) for site in SITES if Path(f"/run/netns/{namespace(site)}").exists()]:
            raise RuntimeError(f"{', '.join(taken)} exist: end what runs there, and delete them (bench/sites/run --down)")
        self.is_ours = True
        run("ip", "link", "set", "lo", "up")
        for site in SITES:
            name = namespace(site)
            run("ip", "netns", "add", name)
            # TCP begins each run without what it learned in the one before.
            run(*there(site), "sysctl", "-qw", "net.ipv4.tcp_no_metrics_save=1", "net.ipv6.conf.all.disable_ipv6=1")
            run("ip", "-n", name, "link", "set", "lo", "up")
            self.device(["ip", "-n", name], site)
        self.device(["ip"], 0)
        between = [f"{namespace(a)}:{namespace(b)}:{rtt / 2}" for (a, b), rtt in self.delays.items()]
        names = [f"{namespace(site)}=10.77.{site}" for site in SITES]
        router = [sys.executable, Path(__file__).with_name("router.py"), "-=10.77.0", *names, "--", *between]
        # Not in the group that Ctrl-C ends: servers say good-bye over it.
        self.router = subprocess.Popen(
            router, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        if self.router.stdout.readline() != "ready\n":
            raise RuntimeError("the router did not start")

    @staticmethod
    def device(ip, site):
        run(*ip, "tuntap", "add", "dev", "wan0", "mode", "tun")
        # A full queue drops.
        run(*ip, "link", "set", "wan0", "txqueuelen", "10000", "up")
        run(*ip, "addr", "add", f"10.77.{site}.1/32", "dev", "wan0")
        run(*ip, "route", "add", "10.77.0.0/16", "dev", "wan0", "src", f"10.77.{site}.1")

    def round_trips(self):
        """As measured, in ms."""
        ask = [sys.executable, "-c", REFUSED]
        return {(a, b): float(run(*there(a), *ask, address(b))) for a, b in self.delays}

    def down(self):
        """Ends the processes in the sites, and returns the report of the router."""
        said = ""
        if self.router:
            self.router.send_signal(signal.SIGTERM)
            said = self.router.communicate(timeout=ENDS_WITHIN_S)[0].strip()
        if self.is_ours:
            down()
        return said


def down():
    for site in SITES:
        if not Path(f"/run/netns/{namespace(site)}").exists():
            continue
        by = time.monotonic() + ENDS_WITHIN_S
        while pids := run("ip", "netns", "pids", namespace(site)).split():
            if time.monotonic() > by:
                raise RuntimeError(f"{namespace(site)}: {', '.join(pids)} do not end")
            for pid in pids:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.1)
        run("ip", "netns", "del", namespace(site))
