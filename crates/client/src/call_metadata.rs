//! What goes with each call beside its message: who calls, and from where.

use tonic::codegen::Bytes;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Code, Request, Status};

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

    /// What it means that a call was refused for the token that went with it: where there is another one by now, it may be
    /// repeated with that.
    pub(super) fn unless_replaced(
        &self,
        status: Status,
        sent: Option<&AsciiMetadataValue>,
    ) -> Status {
        let both = self.token.as_ref().zip(sent);
        match both.is_some_and(|(token, sent)| token.was_replaced(sent)) {
            true => Status::unavailable("the token was replaced meanwhile"),
            false => status,
        }
    }

    /// The same; where the file of the token cannot be read, that is said as well.
    pub(super) fn refused(&self, status: Status, sent: Option<&AsciiMetadataValue>) -> Status {
        let status = self.unless_replaced(status, sent);
        let failure = self.token.as_ref().and_then(Token::read_failure);
        let Some(why) = failure.filter(|_| status.code() == Code::Unauthenticated) else {
            return status;
        };
        let words = format!("{}; its file cannot be read again: {why}", status.message());
        let details = Bytes::copy_from_slice(status.details());
        let metadata = status.metadata().clone();
        Status::with_details_and_metadata(status.code(), words, details, metadata)
    }

    fn put_zone<T>(&self, request: &mut Request<T>) {
        if let Some(zone) = &self.zone {
            request.metadata_mut().insert(ZONE, zone.value().clone());
        }
    }
}
