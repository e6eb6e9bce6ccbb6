//! What goes with each call beside its message: who calls, and from where.

use tonic::Request;
use tonic::metadata::AsciiMetadataValue;

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
    pub fn put_on<T>(&self, request: &mut Request<T>) {
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

    /// The token as it goes with calls that are made now.
    pub(super) fn sent_token(&self) -> Option<AsciiMetadataValue> {
        self.token.as_ref().map(Token::sent_now)
    }

    /// Whether there is another token by now than went with a call.
    pub(super) fn has_another_token(&self, sent: Option<&AsciiMetadataValue>) -> bool {
        let both = self.token.as_ref().zip(sent);
        both.is_some_and(|(token, sent)| token.was_replaced(sent))
    }

    fn put_zone<T>(&self, request: &mut Request<T>) {
        if let Some(zone) = &self.zone {
            request.metadata_mut().insert(ZONE, zone.value().clone());
        }
    }
}
