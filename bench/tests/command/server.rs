//! A server in the process of the test, over a real socket.

use std::sync::Arc;

use fermata::access::{Access, Tokens};
use fermata::clock::{SystemClock, SystemIds};
use fermata::engine::{Engine, EngineOptions, NoPeers, Packing, REPLICA_TTL};
use fermata::limits::Limits;
use fermata::server::{Server, bind};
use fermata::store::embedded::{EmbeddedOptions, EmbeddedStore};
use tokio::sync::oneshot;

/// A running server; it ends when this is dropped.
pub struct Running {
    pub endpoint: String,
    _stop: oneshot::Sender<()>,
    _directory: tempfile::TempDir,
}

pub async fn server() -> Running {
    server_of(None).await
}

/// One whose clients are known by these tokens, where there are any.
pub async fn server_of(tokens: Option<Tokens>) -> Running {
    let directory = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(EmbeddedOptions::new(directory.path())).unwrap();
    let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let engine = Engine::start(EngineOptions {
        store: Arc::new(store).store(),
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        peers: Arc::new(NoPeers),
        tables: Vec::new(),
        write_back: std::collections::BTreeSet::new(),
        limits: Limits::default(),
        name: String::new(),
        zone: String::new(),
        address: address.clone(),
        peer_address: String::new(),
        packing: Packing::default(),
        replica_ttl: REPLICA_TTL,
    })
    .await
    .unwrap();
    let access = Access::open();
    access.replace_tokens(tokens);
    let (stop, stopped) = oneshot::channel::<()>();
    let server = Server::new(engine, Arc::new(SystemIds)).with_access(access);
    tokio::spawn(server.serve_tcp(vec![listener], async move {
        drop(stopped.await);
    }));
    Running {
        endpoint: format!("http://{address}"),
        _stop: stop,
        _directory: directory,
    }
}
