//! The servers' codec: prost's codec, except that a message that cannot be decoded is answered as a fault of the caller.

use std::collections::HashMap;
use std::marker::PhantomData;

use bytes::Buf as _;
use prost::{DecodeError, Message};
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::{Code, Status};
use tonic_prost::ProstEncoder;
use tonic_types::{ErrorDetails, FieldViolation, StatusExt as _};

use crate::DOMAIN;

/// The reasons, for programs.
const MALFORMED: &str = "MALFORMED";
const TOO_LARGE: &str = "TOO_LARGE";

/// How many fields a message may have, those within its fields aside. An empty one in a list takes two bytes on the wire and a
/// hundred times that once it is decoded, before anybody can count the list.
const FIELDS_MAX: usize = 16 * 1024;

/// Encodes `T`, decodes `U`. Bad UTF-8 or a bad wire format is INVALID_ARGUMENT that names the field
/// (tonic's own codec says INTERNAL).
#[derive(Debug, Clone)]
pub struct RequestCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for RequestCodec<T, U> {
    fn default() -> Self {
        RequestCodec(PhantomData)
    }
}

impl<T, U> Codec for RequestCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = RequestDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        RequestDecoder(PhantomData)
    }
}

/// Decodes requests.
#[derive(Debug, Clone)]
pub struct RequestDecoder<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for RequestDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        if has_more_fields_than(FIELDS_MAX, buf.chunk()) {
            return Err(of_too_many_fields());
        }
        match U::decode(buf) {
            Ok(message) => Ok(Some(message)),
            Err(error) => Err(of_undecodable(&error)),
        }
    }
}

/// Whether a message has more fields than that. What is no protobuf is for whoever decodes it to find.
fn has_more_fields_than(max: usize, mut message: &[u8]) -> bool {
    for _ in 0..=max {
        if message.is_empty() || skip_field(&mut message).is_none() {
            return false;
        }
    }
    true
}

/// Goes past the next field; `None` where there is none.
fn skip_field(message: &mut &[u8]) -> Option<()> {
    let key = varint(message)?;
    let bytes = match key & 7 {
        0 => return varint(message).map(drop),
        1 => 8,
        2 => usize::try_from(varint(message)?).ok()?,
        5 => 4,
        // Groups, which no message of ours has.
        _ => return None,
    };
    *message = message.get(bytes..)?;
    Some(())
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn of_too_many_fields() -> Status {
    let words = format!("the message has more than {FIELDS_MAX} fields");
    let details = ErrorDetails::with_error_info(
        TOO_LARGE,
        DOMAIN,
        HashMap::from([
            ("limit".to_owned(), "fields of a message".to_owned()),
            ("max".to_owned(), FIELDS_MAX.to_string()),
        ]),
    );
    Status::with_error_details(Code::InvalidArgument, words, details)
}

/// A message that is no protobuf of its type. prost says where, innermost first:
/// `failed to decode Protobuf message: Mutation.value: ReleaseLockRequest.put: <what>`.
pub fn of_undecodable(error: &DecodeError) -> Status {
    let text = error.to_string();
    let text = text
        .strip_prefix("failed to decode Protobuf message: ")
        .unwrap_or(&text);
    let mut fields = Vec::new();
    let mut what = text;
    while let Some((entry, rest)) = what.split_once(": ") {
        match entry.split_once('.') {
            Some((message, field)) if is_name(message) && is_name(field) => fields.push(field),
            Some(_) | None => break,
        }
        what = rest;
    }
    fields.reverse();
    let field = fields.join(".");
    let words = if field.is_empty() {
        format!("the message cannot be decoded: {what}")
    } else {
        format!("{field}: cannot be decoded: {what}")
    };
    let mut details = ErrorDetails::with_error_info(MALFORMED, DOMAIN, HashMap::new());
    details.set_bad_request(vec![FieldViolation {
        reason: MALFORMED.to_owned(),
        ..FieldViolation::new(field, words.clone())
    }]);
    Status::with_error_details(Code::InvalidArgument, words, details)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateLockRefRequest, ReleaseLockRequest};

    fn fields(status: &Status) -> Vec<String> {
        let bad = status.get_details_bad_request().unwrap();
        let violations = bad.field_violations.into_iter();
        violations.map(|violation| violation.field).collect()
    }

    #[test]
    fn fields_are_counted_before_they_are_decoded() {
        let frame = |calls| crate::PipelineRequest {
            calls: vec![crate::PipelineCall::default(); calls],
            given_up: Vec::new(),
        };
        for (calls, too_many) in [
            (0, false),
            (256, false),
            (FIELDS_MAX, false),
            (FIELDS_MAX + 1, true),
        ] {
            let message = frame(calls).encode_to_vec();
            assert_eq!(
                has_more_fields_than(FIELDS_MAX, &message),
                too_many,
                "{calls}"
            );
        }
        let create = CreateLockRefRequest {
            key: "k".to_owned(),
            mode: 1,
            read_value: true,
            ..Default::default()
        };
        assert!(!has_more_fields_than(3, &create.encode_to_vec()));
        assert!(has_more_fields_than(2, &create.encode_to_vec()));
        // Cut off, or no protobuf: prost says what is wrong.
        for broken in [&[0x0a][..], &[0x0a, 0x05, 0x61], &[0xff; 11], &[0x0b, 0x0c]] {
            assert!(!has_more_fields_than(0, broken), "{broken:?}");
        }
    }

    #[test]
    fn what_cannot_be_decoded_names_the_field_where_that_is_known() {
        // Field 1 of CreateLockRefRequest is a string.
        let bad_utf8 = CreateLockRefRequest::decode(&[0x0a, 0x01, 0xff][..]).unwrap_err();
        let status = of_undecodable(&bad_utf8);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(fields(&status), ["key"]);
        assert!(status.message().contains("UTF-8"), "{}", status.message());

        // Field 2 of ReleaseLockRequest is a Mutation, whose field 1 is bytes, sent here as a number.
        let nested = ReleaseLockRequest::decode(&[0x12, 0x02, 0x08, 0x01][..]).unwrap_err();
        assert_eq!(fields(&of_undecodable(&nested)), ["put.value"]);

        let no_field = CreateLockRefRequest::decode(&[0x00][..]).unwrap_err();
        let status = of_undecodable(&no_field);
        assert_eq!(fields(&status), [""]);
        assert!(
            status.message().contains("invalid tag"),
            "{}",
            status.message()
        );
    }
}
