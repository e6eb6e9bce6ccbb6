//! The metadata of each call: the token of the client, and its zone.

use tonic::codegen::Bytes;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Code, Request, Status};

use crate::transport::options::Zone;
use crate::transport::token::Token;

/// The name of the metadata with the zone of the client.
const ZONE: &str = "fermata-zone";

/// The client and its zone, as each call names them beside its message.
#[derive(Clone, Debug, Default)]
pub struct CallMetadata {
    /// The zone that the client runs in.
    pub zone: Option<Zone>,
    /// The token of the client.
    pub token: Option<Token>,
}

impl CallMetadata {
    /// Puts it on a call.
    pub fn put_on<T>(&self, request: &mut Request<T>) {
        let metadata = request.metadata_mut();
        if let Some(zone) = &self.zone {
            metadata.insert(ZONE, zone.value().clone());
        }
        if let Some(token) = self.sent_token() {
            metadata.insert("authorization", token);
        }
    }

    /// The token as it goes with calls that are made now.
    pub(crate) fn sent_token(&self) -> Option<AsciiMetadataValue> {
        self.token.as_ref().map(Token::value)
    }

    /// A refusal of the token that went with a call. It is UNAVAILABLE where the file has another token by now: the call may be
    /// repeated with that one.
    pub(crate) fn unless_replaced(
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

    /// The same, with the reason where the file of the token cannot be read.
    pub(crate) fn refused(&self, status: Status, sent: Option<&AsciiMetadataValue>) -> Status {
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
}
