//! The settings of each session.

use std::mem::transmute_copy;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cassandra_cpp::{Cluster, Error, RetryPolicy, Ssl, SslVerifyFlag, TimestampGen};
use cassandra_cpp_sys::{
    CASS_OK, CassCluster, cass_cluster_set_prepare_on_up_or_add_host, cass_false,
};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::link::Link;
use super::outcome::not_connected;
use crate::driver::backend::{ANSWERS_WITHIN, KEEP_ALIVE, KEEP_ALIVE_TIMEOUT};
use crate::driver::scylla::client_config;
use crate::fault::ConnectFault;
use crate::options::{CassandraOptions, CassandraTls, Credentials};

/// The version of the protocol that nodes are spoken to in.
const PROTOCOL: i32 = 4;
/// The pause before a connection that broke is made again. There is one node at the other end, and it is wanted.
const RECONNECT_PAUSE: Duration = Duration::from_millis(250);
/// So many sessions are made at once: each takes a thread, longer than anybody waits for it where a node hangs.
const AT_ONCE_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Settings {
    /// That of all nodes.
    pub port: u16,
    pub keyspace: String,
    pub request_timeout: Duration,
    credentials: Option<Credentials>,
    tls: Option<Pem>,
    connections: u32,
    pub connect_timeout: Duration,
    /// Room for sessions that are being made.
    at_once: Arc<Semaphore>,
}

/// What the files hold.
struct Pem {
    ca: String,
    /// The certificate and its key.
    client: Option<[String; 2]>,
    verify_host: bool,
}

impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pem").finish_non_exhaustive()
    }
}

impl Pem {
    fn read(tls: &CassandraTls) -> Result<Pem, String> {
        // This library would not say which file is wrong, nor that a certificate has another key.
        client_config(tls)?;
        let text = |file: &Path| {
            std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
        };
        let client = match &tls.client {
            None => None,
            Some(client) => Some([text(&client.certificate_file)?, text(&client.key_file)?]),
        };
        // Others would be read first, with a password that is none.
        if let (Some(files), Some([_, key])) = (&tls.client, &client)
            && key.contains("ENCRYPTED")
        {
            let file = files.key_file.display();
            return Err(format!(
                "{file}: the key is encrypted; an unencrypted key is needed"
            ));
        }
        Ok(Pem {
            ca: text(&tls.ca_file)?,
            client,
            verify_host: tls.verify_host,
        })
    }

    fn ssl(&self) -> Result<Ssl, Error> {
        let mut ssl = Ssl::default();
        ssl.add_trusted_cert(&self.ca)?;
        ssl.set_verify_flags(match self.verify_host {
            true => &[SslVerifyFlag::PEER_CERT, SslVerifyFlag::PEER_IDENTITY],
            false => &[SslVerifyFlag::PEER_CERT],
        });
        if let Some([certificate, key]) = &self.client {
            ssl.set_cert(certificate)?;
            // As the password the crate hands on the key itself, from its begin to the first zero. A key that is encrypted is
            // refused by then; one that is not needs none.
            ssl.set_private_key(&format!("{key}\0"), "")?;
        }
        Ok(ssl)
    }
}

impl Settings {
    pub(super) fn new(options: &CassandraOptions, port: u16) -> Result<Settings, ConnectFault> {
        let tls = options.tls.as_ref().map(Pem::read).transpose();
        Ok(Settings {
            port,
            keyspace: options.keyspace.as_str().to_owned(),
            request_timeout: options.request_timeout,
            credentials: options.credentials.clone(),
            tls: tls.map_err(ConnectFault::Settings)?,
            connections: u32::try_from(options.connections_per_node.get()).unwrap_or(u32::MAX),
            connect_timeout: options.connect_timeout,
            at_once: Arc::new(Semaphore::new(AT_ONCE_MAX)),
        })
    }

    /// How long it may take to make a session: its two kinds of connections come one after the other.
    pub(super) fn session_timeout(&self) -> Duration {
        2 * self.connect_timeout
    }

    /// For how long a session may have no connection, or one by way of which the node does not answer.
    pub(super) fn alone_max(&self) -> Duration {
        let back = RECONNECT_PAUSE + self.connect_timeout + ANSWERS_WITHIN;
        self.session_timeout().max(back)
    }

    fn cluster(&self, ip: IpAddr) -> Result<Cluster, Error> {
        let mut cluster = Cluster::default();
        cluster.set_contact_points(&ip.to_string())?;
        // The crate hands the text on as it is; the library takes it as one that ends with a zero.
        cluster.set_whitelist_filtering(vec![format!("{ip}\0")]);
        cluster.set_port(self.port)?;
        // Of what it would try first no node of ours speaks anything. And what later ones say may have codes that the crate does
        // not know, which it takes for one that it does, without looking.
        cluster.set_protocol_version(PROTOCOL)?;
        cluster.set_num_threads_io(1)?;
        cluster.set_core_connections_per_host(self.connections)?;
        cluster.set_token_aware_routing(false);
        cluster.set_use_schema(false);
        cluster.set_connect_timeout(self.connect_timeout);
        cluster.set_resolve_timeout(self.connect_timeout);
        cluster.set_request_timeout(self.request_timeout);
        cluster.set_connection_heartbeat_interval(KEEP_ALIVE);
        cluster.set_connection_idle_timeout(KEEP_ALIVE + KEEP_ALIVE_TIMEOUT);
        let pause = u32::try_from(RECONNECT_PAUSE.as_millis()).unwrap_or(u32::MAX);
        cluster.set_reconnect_wait_time(pause);
        prepare_nothing_unasked(&cluster)?;
        cluster.set_retry_policy(RetryPolicy::fallthrough_new());
        // Else this process would date what it writes, by its own clock.
        cluster.set_timestamp_gen(&TimestampGen::gen_server_side_new());
        if let Some(credentials) = &self.credentials {
            cluster.set_credentials(&credentials.user, &credentials.password)?;
        }
        if let Some(tls) = &self.tls {
            cluster.set_ssl(tls.ssl()?);
        }
        Ok(cluster)
    }

    /// Makes a session with this node, if that takes no longer than it may.
    pub(super) async fn link(&self, ip: IpAddr) -> Result<Arc<Link>, ConnectFault> {
        match timeout(self.session_timeout(), self.begin_link(ip)).await {
            Ok(made) => made,
            Err(_) => Err(ConnectFault::Unreachable(format!(
                "{ip} does not answer within {:?}",
                self.session_timeout()
            ))),
        }
    }

    /// The same, however long it takes. (The library gives up what it does for it one by one, after 12 s each at most.)
    pub(super) async fn begin_link(&self, ip: IpAddr) -> Result<Arc<Link>, ConnectFault> {
        let cluster = self.cluster(ip);
        let mut cluster = cluster.map_err(|error| ConnectFault::Settings(error.to_string()))?;
        let ended = |what: &dyn std::fmt::Display| {
            ConnectFault::Unreachable(format!("the thread that connects to {ip} failed: {what}"))
        };
        let room = Arc::clone(&self.at_once).acquire_owned().await;
        let room = room.map_err(|error| ended(&error))?;
        let (answer, answered) = oneshot::channel();
        let runtime = Handle::current();
        let is_encrypted = self.tls.is_some();
        // Who frees a session that still connects waits, maybe for long: no task does.
        let connecting = thread::Builder::new().spawn(move || {
            let connected = runtime.block_on(cluster.connect());
            let connected = connected.map(Link::new);
            // Where nobody waits for it any more, it ends here.
            let _ = answer.send(connected.map_err(|error| not_connected(&error, is_encrypted)));
            drop(cluster);
            drop(room);
        });
        connecting.map_err(|error| ended(&error))?;
        answered.await.map_err(|error| ended(&error))?
    }
}

/// Has the library prepare nothing of its own accord at a node that it is connected to again. It would say meanwhile that there is
/// no node; and a session that is ended then would be called when it is no more, which ends the process. A node that does
/// not know a statement any more says so and has done nothing; the library prepares it there then, and asks once more.
fn prepare_nothing_unasked(cluster: &Cluster) -> Result<(), Error> {
    const { assert!(size_of::<Cluster>() == size_of::<*mut CassCluster>()) };
    #[allow(unsafe_code)]
    // SAFETY: the crate's `Cluster`, whose version is pinned, is a pointer to the library's and nothing else, as long as it
    // lives. The library changes a setting of it, which nobody else has here.
    let code = unsafe {
        let inner = transmute_copy::<Cluster, *mut CassCluster>(cluster);
        cass_cluster_set_prepare_on_up_or_add_host(inner, cass_false)
    };
    match code {
        CASS_OK => Ok(()),
        other => Err(Error::from(format!(
            "the driver cassandra-cpp refuses a setting: {other:?}"
        ))),
    }
}
