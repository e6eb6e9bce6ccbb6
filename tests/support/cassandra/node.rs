//! One node: its directory, its configuration, its command line.

use std::ffi::OsString;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{ClusterError, Tools};

const CONFIGURATION: &str = include_str!("cassandra.yaml");
const LOGGING: &str = include_str!("logback.xml");
const TOOLS_LOGGING: &str = include_str!("logback-tools.xml");
const SUPERVISE: &str = include_str!("supervise.sh");
/// How long a node may take to write out what keyspaces and tables there are.
const KEEP_SCHEMA_MAX: Duration = Duration::from_secs(30);
/// Which data center a node is in, where there are several.
const DATA_CENTER: &str = "conf/cassandra-rackdc.properties";
/// Three equal ranges.
const TOKENS: [&str; 3] = [
    "-9223372036854775808",
    "-3074457345618258603",
    "3074457345618258602",
];

/// What Cassandra needs of the modules of Java.
const MODULES: &[&str] = &[
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.management.rmi/com.sun.jmx.remote.internal.rmi=ALL-UNNAMED",
    "--add-exports=java.management/com.sun.jmx.remote.security=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.server=ALL-UNNAMED",
    "--add-exports=java.sql/java.sql=ALL-UNNAMED",
    "--add-exports=java.base/java.lang.ref=ALL-UNNAMED",
    "--add-exports=jdk.unsupported/sun.misc=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.module=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.loader=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.reflect=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.math=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.module=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.util.jar=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.reflect=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
];

/// Where the nodes of a cluster run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// All on this machine, at 127.0.0.1 and so on.
    #[default]
    Here,
    /// Each in a network namespace and a data center of its own, which are joined by whoever made the namespaces: see
    /// [`Network::site`].
    Sites,
}

impl Network {
    /// The network namespace of a node.
    pub fn site(self, number: usize) -> Option<String> {
        match self {
            Network::Here => None,
            Network::Sites => Some(format!("fermata-site{number}")),
        }
    }

    fn address(self, number: usize) -> String {
        match self {
            Network::Here => format!("127.0.0.{number}"),
            Network::Sites => format!("10.77.{number}.1"),
        }
    }
}

/// The group that a node runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// That of who starts it.
    Inherited,
    /// [`own_group`]: what it sends can be told from what others send, which its addresses do not tell of the
    /// connections that it opens. Takes root.
    Own,
}

/// What a node is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Tests, which run it for some minutes and make many keyspaces. Java compiles with its first compiler alone: what
    /// the second one takes of the processor is not won back so soon. And what keyspaces and tables there are is not
    /// written out at each change, which takes longer than the change: see [`Node::keep_schema`].
    Tests,
    /// To work with it, or to measure it.
    Work(CommitLog),
}

/// When a node syncs what it acknowledges to its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CommitLog {
    /// Before it does, for what comes within 2 ms together.
    #[default]
    Group,
    /// Before it does, at once, together with what came while the disk was busy.
    Batch,
    /// Afterwards, every 10 s, as Cassandra is shipped: what a majority acknowledged is lost where all lose their power.
    Periodic,
}

/// Keeps Java's second compiler away.
const QUICK_TO_START: &str = "-XX:TieredStopAtLevel=1";
/// What keyspaces and tables there are stays in memory, and in the commit log.
const SCHEMA_IN_MEMORY: &str = "-Dcassandra.test.flush_local_schema_changes=false";

impl Purpose {
    /// What Java is told beside what it is always told.
    fn words(self) -> &'static [&'static str] {
        match self {
            Purpose::Tests => &[QUICK_TO_START, SCHEMA_IN_MEMORY],
            Purpose::Work(_) => &[],
        }
    }

    /// What its configuration says otherwise.
    fn settings(self) -> Vec<(&'static str, String)> {
        match self {
            Purpose::Work(CommitLog::Batch) => vec![("commitlog_sync", "batch".to_owned())],
            Purpose::Work(CommitLog::Periodic) => vec![
                ("commitlog_sync", "periodic".to_owned()),
                ("commitlog_sync_period", "10s".to_owned()),
            ],
            Purpose::Work(CommitLog::Group) | Purpose::Tests => Vec::new(),
        }
    }
}

/// The group of a node that has its own.
pub fn own_group(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(0) + 127_000
}

/// A node by its number, from 1.
#[derive(Clone, Debug)]
pub struct Node {
    pub number: usize,
    pub directory: PathBuf,
    pub network: Network,
}

impl Node {
    /// Where it runs, or ran last.
    pub fn new(run: &Path, number: usize) -> Node {
        let directory = run.join(format!("n{number}"));
        let network = match directory.join(DATA_CENTER).exists() {
            true => Network::Sites,
            false => Network::Here,
        };
        Node {
            number,
            directory,
            network,
        }
    }

    pub fn address(&self) -> String {
        self.network.address(self.number)
    }

    /// A command where the node runs.
    fn command_there(&self, program: &Path) -> Command {
        match self.network.site(self.number) {
            None => Command::new(program),
            Some(site) => {
                let mut there = Command::new("nsenter");
                there.arg(format!("--net=/run/netns/{site}")).arg("--");
                there.arg(program);
                there
            }
        }
    }

    /// Where it listens: for clients, for other nodes, for nodetool.
    pub fn listens(&self) -> [String; 3] {
        let address = self.address();
        let jmx = format!("127.0.0.1:{}", self.jmx_port());
        [format!("{address}:9042"), format!("{address}:7000"), jmx]
    }

    fn jmx_port(&self) -> usize {
        7_099 + 100 * self.number
    }

    pub fn log(&self) -> PathBuf {
        self.directory.join("logs/system.log")
    }

    fn pid_file(&self) -> PathBuf {
        self.directory.join("pid")
    }

    /// Its pid while it runs. Whatever else may have got the number is not taken for it.
    pub fn pid(&self) -> Option<i32> {
        let pid: i32 = fs::read_to_string(self.pid_file())
            .ok()?
            .trim()
            .parse()
            .ok()?;
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let ours = self.storage_setting();
        let mut words = words.split(|byte| *byte == 0);
        words.any(|word| word == ours.as_bytes()).then_some(pid)
    }

    /// What Java is told for its purpose, a word a line.
    fn purpose_file(&self) -> PathBuf {
        self.directory.join("conf/purpose")
    }

    fn storage_setting(&self) -> String {
        format!("-Dcassandra.storagedir={}", self.directory.display())
    }

    pub fn answers_clients(&self) -> bool {
        let address = format!("{}:9042", self.address());
        accepts(&address)
    }

    /// Makes its directory anew: a node without data, of a cluster of so many.
    pub fn make(&self, nodes: usize, purpose: Purpose) -> Result<(), ClusterError> {
        let seed = |n| format!("{}:7000", self.network.address(n));
        let seeds: Vec<String> = (1..=nodes).map(seed).collect();
        let token = match nodes {
            1 => "0",
            _ => TOKENS.get(self.number - 1).copied().unwrap_or("0"),
        };
        let mut settings = purpose.settings();
        if self.network == Network::Sites {
            settings.push(("endpoint_snitch", "GossipingPropertyFileSnitch".to_owned()));
            // Else small answers wait for acknowledgements that are delayed.
            settings.push(("inter_dc_tcp_nodelay", "true".to_owned()));
        }
        self.make_with(token, &seeds.join(","), &settings, purpose)
    }

    /// The same for tests, of a cluster of its own, with some settings set otherwise: each a name and what follows the
    /// colon.
    pub fn make_alone(&self, settings: &[(&str, String)]) -> Result<(), ClusterError> {
        let seed = format!("{}:7000", self.address());
        self.make_with("0", &seed, settings, Purpose::Tests)
    }

    fn make_with(
        &self,
        token: &str,
        seeds: &str,
        settings: &[(&str, String)],
        purpose: Purpose,
    ) -> Result<(), ClusterError> {
        let directory = self.directory.display();
        let mut configuration = CONFIGURATION
            .replace("@TOKEN@", token)
            .replace("@SEEDS@", seeds)
            .replace("@ADDRESS@", &self.address())
            .replace("@DIRECTORY@", &directory.to_string());
        for (name, value) in settings {
            let start = format!("{name}:");
            let others = configuration
                .lines()
                .filter(|line| !line.starts_with(&start));
            configuration = others.map(|line| format!("{line}\n")).collect();
            configuration.push_str(&format!("{start} {value}\n"));
        }
        let make = || {
            match fs::remove_dir_all(&self.directory) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            for part in [
                "conf",
                "logs",
                "data",
                "commitlog",
                "saved_caches",
                "hints",
                "cdc_raw",
                "tmp",
            ] {
                fs::create_dir_all(self.directory.join(part))?;
            }
            fs::write(self.directory.join("conf/cassandra.yaml"), configuration)?;
            fs::write(self.directory.join("conf/logback.xml"), LOGGING)?;
            if self.network == Network::Sites {
                let center = format!("dc=site{}\nrack=rack1\n", self.number);
                fs::write(self.directory.join(DATA_CENTER), center)?;
            }
            fs::write(self.purpose_file(), purpose.words().join("\n"))?;
            fs::create_dir_all(self.directory.join("tools"))?;
            fs::write(
                self.directory.join("tools/logback-tools.xml"),
                TOOLS_LOGGING,
            )
        };
        make().map_err(ClusterError::io(directory))
    }

    /// Starts it under a supervisor that ends it when nobody holds `users` any more.
    pub fn start(&self, tools: &Tools, users: &Path, group: Group) -> Result<(), ClusterError> {
        let pid_file = self.pid_file();
        let _ = fs::remove_file(&pid_file);
        let directory = self.directory.display();
        let mut supervisor = self.command_there(Path::new("sh"));
        supervisor
            .args(["-c", SUPERVISE, "sh"])
            .arg(&pid_file)
            .arg(self.directory.join("logs/out.log"))
            .arg(users)
            .args(self.command(tools))
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        supervisor.process_group(0);
        if group == Group::Own {
            supervisor.gid(own_group(self.number));
        }
        supervisor.spawn().map_err(ClusterError::io(&directory))?;
        Ok(())
    }

    fn command(&self, tools: &Tools) -> Vec<OsString> {
        let directory = self.directory.display();
        let mut words: Vec<OsString> = vec![tools.java.clone().into()];
        let mut add = |word: String| words.push(word.into());
        for word in [
            "-ea",
            "-da:net.openhft...",
            "-XX:+UseSerialGC",
            "-Xms512M",
            "-Xmx512M",
            "-Xss512k",
            "-XX:MaxDirectMemorySize=256M",
            "-XX:+PerfDisableSharedMem",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djdk.attach.allowAttachSelf=true",
            "-Djava.net.preferIPv4Stack=true",
            "-Dio.netty.tryReflectionSetAccessible=true",
            "-Dio.netty.allocator.useCacheForAllThreads=true",
            "-Dio.netty.allocator.maxOrder=11",
            "-Dio.netty.eventLoopThreads=2",
            "-Dchronicle.analytics.disable=true",
            "-Dlogback.configurationFile=logback.xml",
            "-Dcassandra-foreground=yes",
            "-Dcassandra.libjemalloc=-",
            "-Dcom.sun.management.jmxremote.authenticate=false",
            "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            "-Dcassandra.ring_delay_ms=1000",
            "-Dcassandra.superuser_setup_delay_ms=0",
            "-Dcassandra.shutdown_announce_in_ms=0",
            "-Dcassandra.size_recorder_interval=0",
            "-Dcassandra.max_local_pause_in_ms=5000",
        ] {
            add(word.to_owned());
        }
        for word in MODULES {
            add((*word).to_owned());
        }
        add(format!("@{}", self.purpose_file().display()));
        add(format!("-javaagent:{}", tools.agent.display()));
        add(format!("-Djava.io.tmpdir={directory}/tmp"));
        add(format!("-Djna.tmpdir={directory}/tmp"));
        add(format!("-Dcassandra.logdir={directory}/logs"));
        add(self.storage_setting());
        add(format!(
            "-Dcassandra.config=file://{directory}/conf/cassandra.yaml"
        ));
        add(format!("-Dcassandra.jmx.local.port={}", self.jmx_port()));
        add("-cp".to_owned());
        add(format!("{directory}/conf:{}/*", tools.jars.display()));
        add("org.apache.cassandra.service.CassandraDaemon".to_owned());
        words
    }

    /// Has it write out what keyspaces and tables there are, if it keeps that in memory. It reads those when it is started
    /// again, before what its commit log has of them; and what the log has of a table that it does not know is lost.
    pub fn keep_schema(&self, tools: &Tools) -> Result<(), ClusterError> {
        let purpose = fs::read_to_string(self.purpose_file()).unwrap_or_default();
        if !purpose.contains(SCHEMA_IN_MEMORY) {
            return Ok(());
        }
        let words = ["flush", "system_schema"].map(str::to_owned);
        let mut flush = self.nodetool(tools, &words);
        let flush = flush.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut flush = flush.map_err(ClusterError::io("nodetool"))?;
        let until = Instant::now() + KEEP_SCHEMA_MAX;
        while matches!(flush.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(50));
        }
        // One that has ended is only collected.
        let _ = flush.kill();
        match flush.wait() {
            Ok(status) if status.success() => Ok(()),
            _ => Err(ClusterError::TooSlow {
                what: format!("writing out the schema of node {}", self.number),
                after: KEEP_SCHEMA_MAX,
                logs: self.directory.join("logs"),
            }),
        }
    }

    /// `nodetool` on this node.
    pub fn nodetool(&self, tools: &Tools, words: &[String]) -> Command {
        let directory = self.directory.display();
        let mut command = self.command_there(&tools.java);
        command
            .args(["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .args(MODULES)
            .arg("-Djava.net.preferIPv4Stack=true")
            .arg("-Dlogback.configurationFile=logback-tools.xml")
            .arg(format!("-Dcassandra.storagedir={directory}/tools"))
            .arg(format!("-Dcassandra.logdir={directory}/logs"))
            .arg("-cp")
            .arg(format!("{directory}/tools:{}/*", tools.jars.display()))
            .arg("org.apache.cassandra.tools.NodeTool")
            .args(["-h", "127.0.0.1", "-p"])
            .arg(self.jmx_port().to_string())
            .args(words)
            .stdin(Stdio::null());
        command
    }

    /// The end of what it has logged.
    pub fn log_end(&self) -> String {
        let mut end = String::new();
        for log in [self.directory.join("logs/out.log"), self.log()] {
            let text = fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(20)..] {
                end.push_str(line);
                end.push('\n');
            }
        }
        end
    }
}

/// Whether something accepts connections there.
pub fn accepts(address: &str) -> bool {
    let Ok(address) = address.parse::<SocketAddr>() else {
        return false;
    };
    TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok()
}
