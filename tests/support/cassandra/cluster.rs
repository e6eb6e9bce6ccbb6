//! All nodes together: start, share, wait, end.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Output;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::node::{Group, Network, Node, Purpose, accepts};
use super::{ClusterError, NODES_MAX, Tools, cache_directory};

/// How long all nodes may take to accept clients: a slow machine is not a broken one.
const START_MAX: Duration = Duration::from_secs(300);
/// How long they may then take to see each other.
const SEE_EACH_OTHER_MAX: Duration = Duration::from_secs(120);
/// How long a node may take to end once nobody wants it.
pub(super) const END_MAX: Duration = Duration::from_secs(30);

/// A running cluster; it goes on for as long as anybody has one of these.
#[derive(Debug)]
pub struct Cluster {
    tools: Tools,
    nodes: Vec<Node>,
    users: PathBuf,
    /// A shared lock, given back by the system when this process ends.
    _user: File,
    /// The lock of who starts a cluster, where nobody is to join this one or to start another meanwhile.
    alone: Option<File>,
}

/// Where the nodes lie.
pub(super) fn run_directory() -> Result<PathBuf, ClusterError> {
    let run = cache_directory()?.join("run");
    fs::create_dir_all(&run).map_err(ClusterError::io(run.display()))?;
    Ok(run)
}

pub(super) fn lock_file(name: &str) -> Result<(PathBuf, File), ClusterError> {
    let path = run_directory()?.join(name);
    let file = File::options().create(true).append(true).open(&path);
    Ok((
        path.clone(),
        file.map_err(ClusterError::io(path.display()))?,
    ))
}

/// All nodes that there may be.
fn all_nodes() -> Result<Vec<Node>, ClusterError> {
    let run = run_directory()?;
    Ok((1..=NODES_MAX)
        .map(|number| Node::new(&run, number))
        .collect())
}

fn size_file() -> Result<PathBuf, ClusterError> {
    Ok(run_directory()?.join("nodes"))
}

/// With how many nodes the latest cluster was made; 0 where nobody may join that.
fn size() -> Result<usize, ClusterError> {
    let size = fs::read_to_string(size_file()?).ok();
    Ok(size.and_then(|size| size.trim().parse().ok()).unwrap_or(0))
}

impl Cluster {
    /// Joins the running cluster, or starts one without data. Blocks.
    pub fn up(
        nodes: usize,
        purpose: Purpose,
        network: Network,
        say: &dyn Fn(&str),
    ) -> Result<Cluster, ClusterError> {
        let tools = Tools::find(say)?;
        let _starting = starting()?;
        let whole = size()?;
        let (users, user, running) = use_when(|running| running == 0 || running == whole)?;
        let mut cluster = Cluster {
            tools,
            nodes: all_nodes()?.into_iter().take(nodes).collect(),
            users,
            _user: user,
            alone: None,
        };
        match running {
            0 => cluster.start_all(purpose, network, say)?,
            _ if cluster.nodes.iter().any(|node| node.network != network) => {
                return Err(ClusterError::OtherNetwork);
            }
            running if running == nodes => say("joining the Cassandra that runs already"),
            running => {
                return Err(ClusterError::OtherSize {
                    running,
                    wanted: nodes,
                });
            }
        }
        cluster.wait_until_up(say)?;
        Ok(cluster)
    }

    /// Starts one without data that nobody joins, and whose nodes are each in a group of their own; takes root.
    /// While it runs no other one does: others wait for its end. Blocks.
    pub fn up_alone(
        nodes: usize,
        purpose: Purpose,
        say: &dyn Fn(&str),
    ) -> Result<Cluster, ClusterError> {
        let tools = Tools::find(say)?;
        let starting = starting()?;
        let (users, user, _) = use_when(|running| running == 0)?;
        let mut cluster = Cluster {
            tools,
            nodes: all_nodes()?.into_iter().take(nodes).collect(),
            users,
            _user: user,
            alone: Some(starting),
        };
        cluster.start_all(purpose, Network::Here, say)?;
        cluster.wait_until_up(say)?;
        Ok(cluster)
    }

    fn start_all(
        &mut self,
        purpose: Purpose,
        network: Network,
        say: &dyn Fn(&str),
    ) -> Result<(), ClusterError> {
        for node in &mut self.nodes {
            node.network = network;
        }
        for address in self.nodes.iter().flat_map(Node::listens) {
            if accepts(&address) {
                return Err(ClusterError::AddressInUse(address));
            }
        }
        say(&format!(
            "starting Cassandra: {} nodes, about a GB of memory each",
            self.nodes.len()
        ));
        // Nor may anybody join while its supervisors end it.
        let joined = match self.alone {
            None => self.nodes.len(),
            Some(_) => 0,
        };
        for node in &self.nodes {
            node.make(self.nodes.len(), purpose)?;
            node.start(&self.tools, &self.users, self.group())?;
        }
        let size = size_file()?;
        fs::write(&size, joined.to_string()).map_err(ClusterError::io(size.display()))
    }

    fn group(&self) -> Group {
        match self.alone {
            None => Group::Inherited,
            Some(_) => Group::Own,
        }
    }

    /// Starts a node again that was killed, with its data.
    pub fn start_again(&self, number: usize) -> Result<(), ClusterError> {
        let node = self.nodes.iter().find(|node| node.number == number);
        let node = node.ok_or(ClusterError::NoSuchNode(number))?;
        let until = Instant::now() + END_MAX;
        while node.pid().is_some() {
            if Instant::now() > until {
                return Err(ClusterError::TooSlow {
                    what: format!("the end of node {number}"),
                    after: END_MAX,
                    logs: node.directory.join("logs"),
                });
            }
            thread::sleep(Duration::from_millis(50));
        }
        node.start(&self.tools, &self.users, self.group())
    }

    /// Waits until every node sees every node up.
    pub fn wait_until_up(&self, say: &dyn Fn(&str)) -> Result<(), ClusterError> {
        let from = Instant::now();
        for (number, node) in self.nodes.iter().enumerate() {
            wait_until_answering(node, from)?;
            let up = format!("{} of {} accept clients", number + 1, self.nodes.len());
            say(&format!("{up} after {:.0} s", from.elapsed().as_secs_f32()));
        }
        // They accept clients before they know of each other.
        let until = Instant::now() + SEE_EACH_OTHER_MAX;
        while !self.see_each_other() {
            if Instant::now() > until {
                return Err(ClusterError::Blind {
                    after: SEE_EACH_OTHER_MAX,
                    logs: run_directory()?,
                });
            }
        }
        say(&format!(
            "every node sees every node up after {:.0} s; contact points: {}",
            from.elapsed().as_secs_f32(),
            self.contact_points().join(",")
        ));
        Ok(())
    }

    fn see_each_other(&self) -> bool {
        let status = ["status".to_owned()];
        thread::scope(|scope| {
            let asked: Vec<_> = self
                .nodes
                .iter()
                .map(|node| scope.spawn(|| node.nodetool(&self.tools, &status).output()))
                .collect();
            asked.into_iter().all(|one| {
                let answered = one.join().ok().and_then(Result::ok);
                let answered =
                    answered.map(|answered| String::from_utf8_lossy(&answered.stdout).into_owned());
                let up = |text: String| text.lines().filter(|l| l.starts_with("UN")).count();
                answered.map(up) == Some(self.nodes.len())
            })
        })
    }

    /// Where clients connect.
    pub fn contact_points(&self) -> Vec<String> {
        let points = self
            .nodes
            .iter()
            .map(|node| format!("{}:9042", node.address()));
        points.collect()
    }

    /// The log of a node.
    pub fn log(&self, number: usize) -> Result<PathBuf, ClusterError> {
        let node = self.nodes.iter().find(|node| node.number == number);
        node.map(Node::log).ok_or(ClusterError::NoSuchNode(number))
    }
}

/// The lock of who starts a cluster.
fn starting() -> Result<File, ClusterError> {
    let (path, starting) = lock_file("starting")?;
    starting.lock().map_err(ClusterError::io(path.display()))?;
    Ok(starting)
}

/// The shared lock of who uses the cluster, once as many nodes run as are wanted; and how many those are.
fn use_when(wanted: impl Fn(usize) -> bool) -> Result<(PathBuf, File, usize), ClusterError> {
    let (users, user) = lock_file("users")?;
    let until = Instant::now() + END_MAX;
    loop {
        user.lock_shared()
            .map_err(ClusterError::io(users.display()))?;
        // A node that was just killed is gone after this.
        thread::sleep(Duration::from_millis(200));
        let nodes = all_nodes()?;
        let running = nodes.iter().filter(|node| node.pid().is_some()).count();
        if wanted(running) {
            return Ok((users, user, running));
        }
        if Instant::now() > until {
            return Err(match running == size()? {
                true => ClusterError::InUse { running },
                false => ClusterError::Incomplete { running },
            });
        }
        // Those that their supervisors are ending: let them.
        user.unlock().map_err(ClusterError::io(users.display()))?;
        thread::sleep(Duration::from_millis(200));
    }
}

/// Waits until a node accepts clients that was started at `from`.
pub(super) fn wait_until_answering(node: &Node, from: Instant) -> Result<(), ClusterError> {
    while !node.answers_clients() {
        if from.elapsed() > Duration::from_secs(5) && node.pid().is_none() {
            let log = node.log_end();
            return Err(ClusterError::Crashed {
                node: node.number,
                log,
            });
        }
        if from.elapsed() > START_MAX {
            return Err(ClusterError::TooSlow {
                what: format!("the start of node {}", node.number),
                after: START_MAX,
                logs: node.directory.join("logs"),
            });
        }
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Sends a running node a signal: SIGKILL, SIGSTOP, SIGCONT.
pub fn signal(number: usize, signal: Signal) -> Result<(), ClusterError> {
    let nodes = all_nodes()?;
    let running = |node: &&Node| node.number == number && node.pid().is_some();
    let node = nodes.iter().find(running);
    let node = node.ok_or(ClusterError::NoSuchNode(number))?;
    if signal == Signal::SIGKILL {
        node.keep_schema(tools()?)?;
    }
    let pid = node.pid().ok_or(ClusterError::NoSuchNode(number))?;
    kill(Pid::from_raw(pid), signal)
        .map_err(|error| ClusterError::io(signal)(std::io::Error::from(error)))?;
    // What a busy thread of it still answers would look as if it had not been stopped.
    let mut looks = 0;
    while signal == Signal::SIGSTOP && !is_stopped(pid) && looks < 400 {
        thread::sleep(Duration::from_millis(5));
        looks += 1;
    }
    Ok(())
}

/// Whether every thread of a process stands still.
fn is_stopped(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        matches!(state, Some('T' | 't' | 'Z' | 'X') | None)
    })
}

/// Starts a node again that was killed, with its data.
pub fn start_node(number: usize) -> Result<(), ClusterError> {
    let tools = Tools::find(&|_| {})?;
    let (users, _) = lock_file("users")?;
    let nodes = all_nodes()?;
    match nodes
        .iter()
        .find(|node| node.number == number && node.directory.is_dir())
    {
        Some(node) if node.pid().is_none() => node.start(&tools, &users, Group::Inherited),
        Some(_) => Ok(()),
        None => Err(ClusterError::NoSuchNode(number)),
    }
}

/// What this machine has, looked for once.
fn tools() -> Result<&'static Tools, ClusterError> {
    static TOOLS: OnceLock<Tools> = OnceLock::new();
    match TOOLS.get() {
        Some(tools) => Ok(tools),
        None => {
            let found = Tools::find(&|_| {})?;
            Ok(TOOLS.get_or_init(|| found))
        }
    }
}

/// Runs `nodetool` on a node.
pub fn nodetool(number: usize, words: &[String]) -> Result<Output, ClusterError> {
    let nodes = all_nodes()?;
    let node = nodes.iter().find(|node| node.number == number);
    let node = node.ok_or(ClusterError::NoSuchNode(number))?;
    let output = node.nodetool(tools()?, words).output();
    output.map_err(ClusterError::io("nodetool"))
}

/// A node as it is now.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// From 1.
    pub number: usize,
    pub address: String,
    /// While it runs.
    pub pid: Option<i32>,
    pub answers_clients: bool,
}

/// What runs.
pub fn status() -> Result<Vec<NodeStatus>, ClusterError> {
    let made = all_nodes()?
        .into_iter()
        .filter(|node| node.directory.is_dir());
    let answered = made.map(|node| NodeStatus {
        number: node.number,
        address: node.address(),
        pid: node.pid(),
        answers_clients: node.answers_clients(),
    });
    Ok(answered.collect())
}

/// Ends every node of ours, whoever uses it.
pub fn down() -> Result<(), ClusterError> {
    for node in all_nodes()? {
        if let Some(pid) = node.pid() {
            // Gone meanwhile is as good.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    wait_for_end()
}

fn wait_for_end() -> Result<(), ClusterError> {
    let until = Instant::now() + END_MAX;
    while all_nodes()?.iter().any(|node| node.pid().is_some()) {
        if Instant::now() > until {
            return Err(ClusterError::TooSlow {
                what: "the end of a node".to_owned(),
                after: END_MAX,
                logs: run_directory()?,
            });
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
