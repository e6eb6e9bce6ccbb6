//! What goes with each call beside its message: who calls, and from where.

use tonic::Request;

use super::options::Zone;
use super::token::Token;

/// In which metadata each call says in which zone its client runs.
const ZONE: &str = "fermata-zone";

/// What goes with each call beside its message.
#[derive(Clone, Debug, Default)]
pub struct CallMetadata {
    /// In which zone the client runs.
    pub zone: Option<Zone>,
    /// The token by which the service knows it.
    pub token: Option<Token>,
}

impl CallMetadata {
    /// Puts it on a call.
    pub(super) fn put_on<T>(&self, request: &mut Request<T>) {
        self.put_zone(request);
        if let Some(token) = &self.token {
            token.put_on(request);
        }
    }

    /// Puts it on a call that stays open.
    pub(super) fn put_on_stream<T>(&self, request: &mut Request<T>) {
        self.put_zone(request);
        if let Some(token) = &self.token {
            token.put_on_stream(request);
        }
    }

    fn put_zone<T>(&self, request: &mut Request<T>) {
        if let Some(zone) = &self.zone {
            request.metadata_mut().insert(ZONE, zone.value().clone());
        }
    }
}
