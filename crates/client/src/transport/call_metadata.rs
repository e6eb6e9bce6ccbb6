//! The metadata of each call: the token of the client, its zone, and the trace that the call is part of.

use std::fmt;
use std::sync::Arc;

use tonic::metadata::AsciiMetadataValue;
use tonic::{Code, Request, Status};

use super::local_status::in_other_words;
use super::token::Token;

/// The name of the metadata with the zone of the client.
const ZONE: &str = "fermata-zone";

/// The name of the metadata with the trace of a call, as W3C names it.
const TRACEPARENT: &str = "traceparent";

/// The token and the zone of a client and the traces of its calls, as metadata of each call.
#[derive(Clone, Debug, Default)]
pub struct CallMetadata {
    /// The zone that the client runs in.
    pub zone: Option<Zone>,
    /// The token of the client.
    pub token: Option<Token>,
    /// The traces of calls.
    pub traces: Option<TraceContext>,
}

/// Tells for each call which trace it is part of. It is asked as the call is made, in the task that makes it.
#[derive(Clone)]
pub struct TraceContext(Arc<dyn Fn() -> Option<String> + Send + Sync>);

impl TraceContext {
    /// Asks this function. The text has the form of W3C's `traceparent`: `00-TRACE-SPAN-FLAGS`; `None`: no trace.
    pub fn new(traceparent: impl Fn() -> Option<String> + Send + Sync + 'static) -> TraceContext {
        TraceContext(Arc::new(traceparent))
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TraceContext")
    }
}

impl CallMetadata {
    /// Puts the metadata on a call.
    pub fn put_on<T>(&self, request: &mut Request<T>) {
        let metadata = request.metadata_mut();
        if let Some(zone) = &self.zone {
            metadata.insert(ZONE, zone.value().clone());
        }
        if let Some(token) = self.sent_token() {
            metadata.insert("authorization", token);
        }
        if let Some(Ok(trace)) = self.traceparent().map(|trace| trace.parse()) {
            metadata.insert(TRACEPARENT, trace);
        }
    }

    /// The trace of a call that is made now.
    pub(crate) fn traceparent(&self) -> Option<String> {
        (self.traces.as_ref()?.0)()
    }

    /// The token for calls that are made now.
    pub(crate) fn sent_token(&self) -> Option<AsciiMetadataValue> {
        self.token.as_ref().map(Token::value)
    }

    /// A refusal of a call's token. It becomes UNAVAILABLE if the file has another token by now: the call may be repeated with
    /// that token.
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

    /// As `unless_replaced`, with the reason if the file of the token cannot be read.
    pub(crate) fn refused(&self, status: Status, sent: Option<&AsciiMetadataValue>) -> Status {
        let status = self.unless_replaced(status, sent);
        let failure = self.token.as_ref().and_then(Token::read_failure);
        let Some(why) = failure.filter(|_| status.code() == Code::Unauthenticated) else {
            return status;
        };
        let words = format!(
            "{}; the token file cannot be read again: {why}",
            status.message()
        );
        in_other_words(status, words)
    }
}

/// The name of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone(AsciiMetadataValue);

/// The error of a text that is not the name of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a zone has 1 to 64 printable ASCII characters")]
pub struct InvalidZone;

impl Zone {
    const BYTES_MAX: usize = 64;

    /// 1 to 64 printable ASCII characters.
    pub fn parse(text: &str) -> Result<Zone, InvalidZone> {
        let is_printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if text.is_empty() || text.len() > Zone::BYTES_MAX || !is_printable {
            return Err(InvalidZone);
        }
        text.parse().map(Zone).map_err(|_| InvalidZone)
    }

    /// Its text, as metadata of a call.
    pub(crate) fn value(&self) -> &AsciiMetadataValue {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_has_as_many_characters_as_its_replicas_take() {
        let long = "x".repeat(64);
        for good in ["a", "eu-west 1", &long] {
            let zone = Zone::parse(good);
            assert_eq!(zone.unwrap().value().to_str().unwrap(), good);
        }
        for bad in ["", "zürich", "a\nb", &format!("{long}x")] {
            assert_eq!(Zone::parse(bad), Err(InvalidZone), "{bad:?}");
        }
    }
}
