//! What the benchmark takes of the program that it is a command of.

use std::fmt::Debug;

use fermata_cassandra::CassandraOptions;
use fermata_command::Failure;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use tonic::body::Body;
use tower::{BoxError, Service};

use crate::connect::{Client, unary};

/// The flags by which the program finds Cassandra, and what it does by them. The benchmark knows no settings, no store
/// and no engine.
pub trait Program: clap::Args + Clone + Debug + Send + Sync {
    /// Whether one of the flags was given.
    fn is_given(&self) -> bool;

    /// How the cluster is reached.
    fn cassandra(&self) -> Result<CassandraOptions, Failure>;

    /// What a replica in this process would be made of: on that cluster, and serving this table, where one is named.
    fn replica(&self, table: &str) -> Result<Box<dyn StartReplica>, Failure>;
}

/// A replica that can be started in this process.
pub trait StartReplica: Debug + Send {
    /// Starts it; fails where it cannot start at once.
    fn start(self: Box<Self>) -> BoxFuture<'static, Result<InProcess, Failure>>;
}

/// A whole replica, among all others on its store; nobody but this process can call it.
pub struct InProcess {
    client: Client,
    stop: BoxFuture<'static, ()>,
}

impl InProcess {
    /// That of a replica which runs. `stop` is awaited once nobody calls it any more.
    pub fn new<S>(service: S, stop: impl Future<Output = ()> + Send + 'static) -> InProcess
    where
        S: Service<Request<Body>, Response = Response<Body>, Error: Into<BoxError>>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send,
    {
        InProcess {
            client: Client::Unary(unary(service)),
            stop: Box::pin(stop),
        }
    }

    /// A client of it.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Ends it.
    pub(crate) async fn stop(self) {
        drop(self.client);
        self.stop.await;
    }
}
