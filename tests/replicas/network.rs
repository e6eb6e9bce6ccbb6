//! A network of a test's own: a network namespace with nothing but loopback, in which a packet filter may do
//! what it likes. Nothing outside is touched, and nothing is left of it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};

/// `1` makes a failure of what this machine lacks.
const REQUIRE: &str = "FERMATA_REQUIRE_NETNS";
/// What a node sends carries it, whatever address it is sent from.
const MARK: &str = "7";
/// The rules that cut a node off; no packet passes them before they are put into force.
const CUT: &str = "CUT";

/// Makes the rules that are to cut off the one who has this address and runs in this group, and runs a test where
/// they hold: its threads and processes are in the new namespace, and no others are. Where that cannot be, it is
/// left out.
pub fn in_own_network<F: Future>(address: &str, group: u32, test: impl FnOnce() -> F + Send) {
    // A namespace is of a thread, and of those and of the processes that it starts.
    let ended = std::thread::scope(|scope| {
        let inside = scope.spawn(|| match enter(address, group) {
            Ok(()) => {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(test());
            }
            Err(why) => leave_out(&why),
        });
        inside.join()
    });
    if let Err(panicked) = ended {
        std::panic::resume_unwind(panicked);
    }
}

#[expect(
    clippy::explicit_write,
    reason = "the harness hides what eprintln! says in a test that passes"
)]
fn leave_out(why: &str) {
    let required = std::env::var(REQUIRE).is_ok_and(|value| value == "1");
    assert!(!required, "{REQUIRE}=1, and {why}");
    writeln!(
        std::io::stderr(),
        "SKIPPED: no node was cut off from its network: {why}"
    )
    .unwrap();
}

/// Takes this thread, and the threads and processes that it starts from now on, to such a network.
pub fn enter(address: &str, group: u32) -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("a network namespace cannot be made (it takes root): {error}"))?;
    run("ip", &["link", "set", "lo", "up"])?;
    // A node opens its connections from whatever address the system gives it, so those are told by its group.
    let group = group.to_string();
    let of_group = ["-m", "owner", "--gid-owner", &*group];
    let mark = ["-t", "mangle", "-A", "OUTPUT"];
    let marked = [&mark[..], &of_group, &["-j", "MARK", "--set-mark", MARK]];
    iptables(&marked.concat())?;
    iptables(&["-N", CUT])?;
    for packets in [
        &["!", "-s", address, "-d", address][..],
        &["-s", address, "!", "-d", address],
        &["-m", "mark", "--mark", MARK, "!", "-d", address],
    ] {
        iptables(&[&["-A", CUT], packets, &["-j", "DROP"]].concat())?;
    }
    Ok(())
}

/// From here on, what is sent to that one or by it is lost without a word.
pub fn cut() {
    // Where packets come in: one that is dropped where it goes out would be an error of the sender's.
    iptables(&["-I", "INPUT", "-j", CUT]).unwrap();
}

pub fn heal() {
    iptables(&["-D", "INPUT", "-j", CUT]).unwrap();
}

/// From here on nobody reaches this port, and nobody is told so.
pub fn close_port(port: u16) {
    iptables(&[&["-I"][..], &packets_to(&port.to_string())].concat()).unwrap();
}

pub fn open_port(port: u16) {
    iptables(&[&["-D"][..], &packets_to(&port.to_string())].concat()).unwrap();
}

fn packets_to(port: &str) -> [&str; 7] {
    ["INPUT", "-p", "tcp", "--dport", port, "-j", "DROP"]
}

fn iptables(words: &[&str]) -> Result<(), String> {
    run("iptables", &[&["-w"], words].concat())
}

fn run(program: &str, words: &[&str]) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null());
    let output = command
        .output()
        .map_err(|error| format!("{program} cannot be run: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "`{program} {}` fails: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}
