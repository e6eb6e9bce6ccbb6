//! The first layer: connections to the replicas of a service, and one attempt of a call on one connection. Failures are
//! classified here (`retry`, `not_grpc`). Nothing here knows keys, locks or leases.

pub(crate) mod call_metadata;
pub(crate) mod connections;
pub(crate) mod endpoint;
pub(crate) mod local_status;
pub(crate) mod not_grpc;
pub(crate) mod options;
pub(crate) mod pipeline;
pub(crate) mod retry;
pub(crate) mod tls;
pub(crate) mod token;
