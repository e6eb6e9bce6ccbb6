//! A node of a cluster of its own, beside the shared one: for what all nodes of the shared one must not be set to.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use super::cluster::{END_MAX, lock_file, run_directory, wait_until_answering};
use super::node::{Group, Node, accepts};
use super::{ClusterError, NODES_MAX, Tools};

/// A running node; it ends with this. There is one at a time on a machine.
#[derive(Debug)]
pub struct Lone {
    node: Node,
    _user: File,
}

impl Lone {
    /// Starts one without data, as soon as no other one runs. Blocks.
    pub fn up(settings: &[(&str, String)], say: &dyn Fn(&str)) -> Result<Lone, ClusterError> {
        let tools = Tools::find(say)?;
        let node = Node::new(&run_directory()?, NODES_MAX + 1);
        let (users, user) = lock_file("user_of_lone")?;
        let until = Instant::now() + END_MAX;
        loop {
            user.lock().map_err(ClusterError::io(users.display()))?;
            if node.pid().is_none() {
                break;
            }
            if Instant::now() > until {
                return Err(ClusterError::TooSlow {
                    what: "the end of the node that ran before".to_owned(),
                    after: END_MAX,
                    logs: node.directory.join("logs"),
                });
            }
            // Its supervisor ends it under this lock.
            user.unlock().map_err(ClusterError::io(users.display()))?;
            thread::sleep(Duration::from_millis(200));
        }
        for address in node.listens() {
            if accepts(&address) {
                return Err(ClusterError::AddressInUse(address));
            }
        }
        say("starting a node of Cassandra with settings of its own");
        node.make_alone(settings)?;
        node.start(&tools, &users, Group::Inherited)?;
        wait_until_answering(&node, Instant::now())?;
        Ok(Lone { node, _user: user })
    }

    /// Where it is to run.
    pub fn address() -> String {
        format!("127.0.0.{}", NODES_MAX + 1)
    }

    /// Where clients connect.
    pub fn contact_point(&self) -> String {
        format!("{}:9042", self.node.address())
    }
}
