"""The servers of each system: three of them on this machine, each with its log synced at every write.

All are started once. Whoever has no turn is paused (SIGSTOP): it takes no processor, and a JVM stays warm.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "target" / "peers"
RELEASE = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
FERMATA = RELEASE / "fermata"
BENCH = RELEASE / "fermata-bench"
CASSANDRA = RELEASE / "examples" / "cassandra"
JAVA_CLASSES = f"{WORK}/java/classes:{WORK}/java/lib/*"
# The time for a server to answer, after its start or after a pause.
READY_WITHIN_S = 120
STOPPED_WITHIN_S = 30
SECRET = "of the replicas of a benchmark alone\n"
# A table with each commit mode that is not the default.
WRITE_THROUGH = "through"
WRITE_BACK = "back"

# The times at which Cassandra syncs acknowledged writes.
SYNCED = {"batch": "before the answer", "group": "before the answer, of 2 ms together", "periodic": "every 10 s, after the answer"}


class Loopback:
    """All servers on this machine."""

    # For the settings of Cassandra and of etcd.
    sites = False

    def host(self, subnet, number):
        return f"{subnet}.{number}"

    def there(self, number):
        """The beginning of a command that runs at this server."""
        return []


LOOPBACK = Loopback()


def said(*command, **options):
    """The output of a command. If it fails, an error with all of its output."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout


def answers(address):
    """Whether somebody accepts a connection there."""
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


class Servers:
    """Processes that are started, paused, resumed and ended together."""

    name = ""
    # The sync of its writes, for the table.
    log = ""
    # The address of each for clients, by its number.
    subnet = "127.0.1"
    port = 0

    def __init__(self, count=3, network=LOOPBACK):
        self.count, self.network = count, network
        self.processes = []
        self.folder = WORK / ("sites" if network.sites else "data") / self.name

    def host(self, number):
        return self.network.host(self.subnet, number)

    def addresses(self):
        return [f"{self.host(n)}:{self.port}" for n in range(1, self.count + 1)]

    def start(self):
        taken = [address for address in self.addresses() if answers(address)]
        if taken:
            raise RuntimeError(f"somebody else answers at {', '.join(taken)}: end that first")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for number in range(1, self.count + 1):
            self.begin(number)
        self.wait()

    def begin(self, number):
        raise NotImplementedError

    def spawn(self, number, command, **environment):
        with open(self.folder / f"{number}.log", "ab") as log:
            process = subprocess.Popen(
                [*self.network.there(number), *(str(word) for word in command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self.processes.append(process)

    def is_ready(self, address):
        return answers(address)

    def wait(self):
        by = time.monotonic() + READY_WITHIN_S
        while not all(self.is_ready(address) for address in self.addresses()):
            self.check()
            if time.monotonic() > by:
                raise RuntimeError(f"{self.name} does not answer, see {self.folder}")
            time.sleep(0.2)

    def pids(self):
        return [process.pid for process in self.processes]

    def check(self):
        """An error if a server has ended. The others would go on, and be measured."""
        ended = [p.args[0] for p in self.processes if p.poll() is not None]
        if ended:
            raise RuntimeError(f"{self.name}: {ended} ended, see {self.folder}")

    def signal(self, number):
        for pid in self.pids():
            os.kill(pid, number)

    def pause(self):
        self.signal(signal.SIGSTOP)

    def resume(self):
        self.signal(signal.SIGCONT)

    def stop(self):
        for process in self.processes:
            process.terminate()
            process.send_signal(signal.SIGCONT)
        for process in self.processes:
            try:
                process.wait(STOPPED_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = []


class Etcd(Servers):
    name = "etcd"
    log = "fdatasync for each batch of entries (default)"
    port = 2379
    binary = "etcd"

    def begin(self, number):
        members = ",".join(f"n{n}=http://{self.host(n)}:2380" for n in range(1, self.count + 1))
        client, peer = f"http://{self.host(number)}:2379", f"http://{self.host(number)}:2380"
        # As its documentation says for members apart: a heartbeat takes as long as the longest round trip, an election ten.
        apart = ("--heartbeat-interval", "150", "--election-timeout", "1500") if self.network.sites else ()
        self.spawn(
            number,
            [
                *(WORK / self.binary, "--name", f"n{number}", "--data-dir", self.folder / str(number)),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", members, "--initial-cluster-state", "new", "--log-level", "warn"),
                *apart,
            ],
        )


class EtcdQuickWatch(Etcd):
    """etcd with a changed constant: it serves new watchers every 1 ms, not 100."""

    name = "etcd-1ms"
    binary = "etcd-1ms"
    # Its processes are there beside those of the other one.
    subnet = "127.0.3"


class ZooKeeper(Servers):
    name = "zookeeper"
    log = "fsync for each batch of transactions (forceSync, default)"
    port = 2181

    def begin(self, number):
        folder = self.folder / str(number)
        folder.mkdir()
        (folder / "myid").write_text(f"{number}\n")
        servers = "".join(f"server.{n}={self.host(n)}:2888:3888\n" for n in range(1, self.count + 1))
        settings = folder / "zoo.cfg"
        settings.write_text(
            f"tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={folder}\nclientPort=2181\n"
            f"clientPortAddress={self.host(number)}\nmaxClientCnxns=0\nadmin.enableServer=false\n{servers}"
        )
        # The memory is that of ZooKeeper's own script, the collector that of the nodes of Cassandra here.
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self.spawn(number, ["java", "-Xmx1000m", "-XX:+UseSerialGC", "-cp", JAVA_CLASSES, main, settings])


class Redis(Servers):
    name = "redis"
    log = "appendonly, appendfsync always (not the default)"
    port = 6379

    def begin(self, number):
        folder = self.folder / str(number)
        folder.mkdir()
        where = ("--bind", f"127.0.1.{number}", "--port", "6379", "--dir", folder, "--daemonize", "no")
        # No snapshots: each would be a fork that copies the memory.
        log = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        self.spawn(number, ["redis-server", *where, *log])


class Fermata(Servers):
    """Three replicas on three Cassandra nodes. A replica that is paused is declared down, so replicas are
    stopped instead, and started again."""

    name = "fermata"
    subnet = "127.0.2"
    port = 7450

    def __init__(self, commit_log="batch", network=LOOPBACK):
        super().__init__(network=network)
        self.is_ours = False
        self.commit_log = commit_log
        self.log = f"Cassandra: commitlog_sync {commit_log}, {SYNCED[commit_log]}; compare-and-swaps and puts at QUORUM"

    def nodes(self):
        lines = said(CASSANDRA, "status").splitlines()
        return [int(line.rsplit("pid ", 1)[1]) for line in lines if "pid " in line]

    def pids(self):
        return super().pids() + self.nodes()

    def check(self):
        super().check()
        if len(self.nodes()) != 3:
            raise RuntimeError("a Cassandra node has ended")

    def is_ready(self, address):
        """Until a call is answered: a replica accepts connections while it still waits for Cassandra."""
        call = (FERMATA, "locks", "ls", "--limit", "1", "--timeout", "2s", "--endpoint", f"http://{address}")
        words = [str(word) for word in call]
        return answers(address) and not subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL).returncode

    def start(self):
        self.is_ours = not self.nodes()
        if not self.is_ours:
            raise RuntimeError("Cassandra nodes run already: `cargo run --example cassandra -- down` first")
        apart = ["--sites"] if self.network.sites else []
        said(CASSANDRA, "up", "3", "--detach", "--commit-log", self.commit_log, *apart)
        copies = "site1=1,site2=1,site3=1" if apart else "datacenter1=3"
        nodes = ",".join(self.node(n) for n in (1, 2, 3))
        said(
            *(FERMATA, "schema", "apply", "--contact-points", nodes, "--keyspace", "peers"),
            *("--replication", copies, "--table", WRITE_THROUGH),
        )
        super().start()

    def node(self, number):
        return self.network.host("127.0.0", number)

    def begin(self, number):
        secret = self.folder / "secret"
        if not secret.exists():
            secret.touch(mode=0o600)
            secret.write_text(SECRET)
        environment = {
            "STORE__KIND": "cassandra",
            "STORE__CASSANDRA__CONTACT_POINTS": ",".join(self.node(n) for n in (1, 2, 3)),
            "STORE__CASSANDRA__KEYSPACE": "peers",
            f"TABLES__{WRITE_THROUGH}__COMMIT": "write-through",
            "LISTEN": f"{self.host(number)}:7450",
            "PEERS__LISTEN": f"{self.host(number)}:7451",
            "PEERS__SECRET_FILE": str(secret),
            "PEERS__NAME": f"replica-{number}",
        }
        if self.network.sites:
            environment["STORE__CASSANDRA__DATACENTER"] = f"site{number}"
            environment["PEERS__ZONE"] = f"site{number}"
            # Its network leads nowhere else.
            environment["INSECURE"] = "true"
        self.spawn(
            number, [FERMATA, "serve"], **{f"FERMATA_CFG_{name}": value for name, value in environment.items()}
        )

    def pause(self):
        super().stop()
        for pid in self.nodes():
            os.kill(pid, signal.SIGSTOP)

    def resume(self):
        for pid in self.nodes():
            os.kill(pid, signal.SIGCONT)
        for number in range(1, self.count + 1):
            self.begin(number)
        self.wait()

    def stop(self):
        if not self.is_ours:
            return
        for pid in self.nodes():
            os.kill(pid, signal.SIGCONT)
        super().stop()
        said(CASSANDRA, "down")


class FermataEmbedded(Servers):
    """One server, with the embedded store."""

    name = "fermata-embedded"
    log = "fdatasync for each batch of changes"
    subnet = "127.0.2"
    port = 7450

    def __init__(self):
        super().__init__(count=1)

    def begin(self, number):
        data = self.folder / str(number)
        commit = {f"FERMATA_CFG_TABLES__{WRITE_BACK}__COMMIT": "write-back"}
        self.spawn(number, [FERMATA, "serve", "--listen", self.addresses()[0], "--data-dir", data], **commit)
