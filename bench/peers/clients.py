"""One run of one system's client, and the processor time that it and its servers took."""

import json
import os
import subprocess
import tempfile
import threading
import time

from servers import BENCH, JAVA_CLASSES, WORK

TICKS = os.sysconf("SC_CLK_TCK")
VALUE_BYTES = 64
TTL_S = 30
# Of the load `near`.
NEAR_KEYS = 30
# Of the load `new`, for each second: more than any system uses.
NEW_KEYS_A_S = 50_000
# A JVM compiles what it runs often: its client starts anew with each run.
JVM_WARM_UP_S = 6
# What a run may take beyond its warm-up and duration: the last sections, and the reading of all counters.
ENDS_WITHIN_S = 120


def cpu_s(pids):
    """The processor time of these processes so far, with all their threads, in seconds."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


class Load:
    """A load, the same for all systems."""

    def __init__(self, keys, workers, part=None):
        """`part` is for `near` keys: the third of the keys with most sections."""
        self.keys, self.workers, self.part = keys, workers, part

        # Keys move to where they are used, which takes some sections each.
        self.warm_up_s = 15 if keys == "near" else 0

    def at(self, site):
        return Load(self.keys, self.workers, site) if self.keys == "near" else self

    def __str__(self):
        return f"{self.keys} key, {self.workers} worker{'s' if self.workers > 1 else ''}"


class Client:
    """One way to take a lock."""

    warm_up_s = 2

    def __init__(self, name, servers):
        self.name, self.servers = name, servers

    def warm_up(self, load):
        return max(self.warm_up_s, load.warm_up_s)

    def takes(self, load):
        """Whether it can do this load."""
        return True

    def command(self, load, prefix, duration_s, addresses):
        raise NotImplementedError

    def marks(self, process, load, duration_s):
        """The processor times of the servers and of the client, at the beginning and the end of the measurement."""
        pids = self.servers.pids()
        times = []
        for word in ("begin", "end"):
            line = process.stdout.readline().strip()
            if line != word:
                raise RuntimeError(f"{self.name}: {line or 'no mark'}")
            times.append((cpu_s(pids), cpu_s([process.pid])))
        return times

    def result(self, text):
        return json.loads(text)

    def run(self, load, prefix, duration_s, site=None):
        """One run: what its client reports, and `servers_ms` and `client_ms`, the processor time a section in ms. At a site the
        client knows the server there alone."""
        addresses, there = self.servers.addresses(), []
        if site:
            addresses, there = [addresses[site - 1]], self.servers.network.there(site)
        command = [*there, *(str(word) for word in self.command(load, prefix, duration_s, addresses))]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            # Its output ends with the process, so a client that hangs is killed.
            guard = threading.Timer(self.warm_up(load) + duration_s + ENDS_WITHIN_S, process.kill)
            guard.start()
            try:
                (servers_0, client_0), (servers_1, client_1) = self.marks(process, load, duration_s)
                output = process.stdout.read()
                process.wait()
            except (RuntimeError, OSError) as error:
                errors.seek(0)
                raise RuntimeError(f"{error}: {errors.read()[-2000:]}") from error
            finally:
                guard.cancel()
                if process.poll() is None:
                    process.kill()
                    process.wait()
            errors.seek(0)
            if not output.strip():
                raise RuntimeError(f"{self.name}: {errors.read()[-2000:]}")
        self.servers.check()
        run = self.result(output)
        sections = max(run["sections_per_s"] * duration_s, 1)
        run["servers_ms"] = round((servers_1 - servers_0) * 1000 / sections, 4)
        run["client_ms"] = round((client_1 - client_0) * 1000 / sections, 4)
        return {**run, "system": self.name, "keys": load.keys, "workers": load.workers, "log": self.servers.log}


class GoClient(Client):
    def __init__(self, system, servers, name=None):
        super().__init__(name or system, servers)
        self.system = system

    def command(self, load, prefix, duration_s, addresses):
        return [
            *(WORK / "client", "--system", self.system, "--endpoints", ",".join(addresses)),
            *("--workers", load.workers, "--keys", load.keys, "--prefix", prefix),
            *("--warm-up", f"{self.warm_up(load)}s", "--duration", f"{duration_s}s", "--ttl", f"{TTL_S}s"),
            *("--value-bytes", VALUE_BYTES),
            *(("--key-count", NEAR_KEYS, "--near-part", load.part) if load.part else ()),
        ]


class CuratorClient(Client):
    warm_up_s = JVM_WARM_UP_S

    def takes(self, load):
        return load.keys != "near"

    def command(self, load, prefix, duration_s, addresses):
        return [
            *("java", "-Xms256m", "-Xmx1g", "-cp", JAVA_CLASSES, "Sections"),
            *("--endpoints", ",".join(addresses), "--workers", load.workers),
            *("--keys", load.keys, "--prefix", prefix, "--warm-up", self.warm_up(load)),
            *("--duration", duration_s, "--ttl", TTL_S, "--value-bytes", VALUE_BYTES),
        ]


def sections(addresses, *words):
    """One run of `fermata-bench section` in frames, without its processor time: its report, the latencies of whole sections as
    `section`, and as `wrong` the number of errors, of lost, surplus or unread increments, and of sections not begun or not ended."""
    endpoints = [word for a in addresses for word in ("--endpoint", f"http://{a}")]
    command = [BENCH, "section", *endpoints, "--pipeline", "--output", "json", *words]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if not done.stdout.strip():
        raise RuntimeError(done.stderr)
    (run,) = json.loads(done.stdout)["runs"]
    run["section"] = next(phase for phase in run["phases"] if phase["phase"] == "section")
    # Without a check a section did not end.
    check = run["counter_check"] or {"lost": 0, "surplus": 0, "unread": 1}
    counts = [run["errors"], run["not_begun"], run["unfinished"], check["lost"], check["surplus"], check["unread"]]
    run["wrong"] = sum(counts)
    return run


class FermataClient(Client):
    """`fermata-bench section`. It prints its report at the end, so the marks go by time."""

    # The system of the run that counts.
    of = "fermata"

    def __init__(self, name, servers, *words):
        super().__init__(name, servers)
        self.words = words

    def command(self, load, prefix, duration_s, addresses):
        endpoints = [word for a in addresses for word in ("--endpoint", f"http://{a}")]
        return [
            *(BENCH, "section", *endpoints, "--workers", load.workers, "--keys", load.keys),
            *("--key-prefix", prefix, "--warm-up", f"{self.warm_up(load)}s", "--duration", f"{duration_s}s"),
            *("--ttl", f"{TTL_S}s", "--value-size", VALUE_BYTES, "--output", "json", *self.words),
            *(("--key-count", NEAR_KEYS, "--near-part", f"{load.part}/3") if load.part else ()),
            *(("--key-count", NEW_KEYS_A_S * (self.warm_up(load) + duration_s)) if load.keys == "new" else ()),
        ]

    def marks(self, process, load, duration_s):
        pids = self.servers.pids()
        times = []
        for span in (self.warm_up(load), duration_s):
            time.sleep(span)
            times.append((cpu_s(pids), cpu_s([process.pid])))
        return times

    def result(self, text):
        (run,) = [run for run in json.loads(text)["runs"] if run["system"] == self.of]
        sections = [row for row in run["phases"] if row["phase"] == "section"]
        check = run["counter_check"]
        if not sections or not check or check["unread"]:
            raise RuntimeError(f"{self.name}: nothing was measured, or not counted: {run['errors_by_code']}")
        section = sections[0]
        return {
            "sections": run["sections"],
            "sections_per_s": run["sections_per_s"],
            **{name: section[name] for name in ("p50_us", "p99_us", "p999_us", "max_us")},
            "errors": run["errors"],
            "error_kinds": {row["message"]: row["count"] for row in run["errors_by_code"]},
            "lost": check["lost"],
            "surplus": check["surplus"],
        }


class BaselineClient(FermataClient):
    """What `fermata-bench --baseline` does straight to Cassandra, beside sections of Fermata in the same run: `puts`, the put of a
    section alone at QUORUM, or `music`, MUSIC's statements for a section."""

    def __init__(self, name, servers, of):
        super().__init__(name, servers)
        self.of = of

    def takes(self, load):
        return load.keys == "own"

    def marks(self, process, load, duration_s):
        """They share the run with sections, so their processor time is not counted."""
        return [(0, 0), (0, 0)]

    def command(self, load, prefix, duration_s, addresses):
        command = super().command(load, prefix, duration_s, addresses)
        baseline = ["--baseline", self.of, "--rounds", 1, "--keyspace", "peers"]
        for number, address in enumerate(self.servers.addresses(), 1):
            if addresses == [address]:
                return [
                    *(*command, *baseline, "--contact-points", self.servers.node(number)),
                    *("--datacenter", f"site{number}"),
                ]
        return [*command, *baseline, "--contact-points", self.servers.node(1)]
