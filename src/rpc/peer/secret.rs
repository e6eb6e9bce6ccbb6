//! The secret that all replicas of one service know.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use tonic::metadata::{BinaryMetadataKey, BinaryMetadataValue, MetadataMap, MetadataValue};

/// The metadata with the secret.
const NAME: &str = "fermata-peer-secret-bin";

/// The secret. Whoever knows it and reaches a replica can take every lock.
#[derive(Clone)]
pub struct PeerSecret(Vec<u8>);

/// Why a text is no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a secret of replicas has {min} to {max} bytes; this one has {bytes}", min = PeerSecret::BYTES_MIN, max = PeerSecret::BYTES_MAX)]
pub struct SecretError {
    bytes: usize,
}

impl fmt::Debug for PeerSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerSecret")
    }
}

impl PeerSecret {
    /// The fewest bytes.
    pub const BYTES_MIN: usize = 16;
    /// The most bytes.
    pub const BYTES_MAX: usize = 1024;

    /// The text of a file, without the white space around it.
    pub fn parse(text: &str) -> Result<PeerSecret, SecretError> {
        let bytes = text.trim().as_bytes();
        match (Self::BYTES_MIN..=Self::BYTES_MAX).contains(&bytes.len()) {
            true => Ok(PeerSecret(bytes.to_vec())),
            false => Err(SecretError { bytes: bytes.len() }),
        }
    }

    /// Puts it into a request.
    pub(super) fn show(&self, metadata: &mut MetadataMap) {
        let mut value = BinaryMetadataValue::from_bytes(&self.0);
        value.set_sensitive(true);
        metadata.insert_bin(BinaryMetadataKey::from_static(NAME), value);
    }

    /// Whether a request shows it, once.
    pub(in crate::rpc) fn is_shown(&self, metadata: &MetadataMap) -> bool {
        let mut shown = metadata.get_all_bin(NAME).iter();
        let first = shown.next().map(MetadataValue::to_bytes);
        match (first, shown.next()) {
            (Some(Ok(given)), None) => self.is(&given),
            (Some(_) | None, _) => false,
        }
    }

    fn is(&self, given: &[u8]) -> bool {
        verify_slices_are_equal(&self.0, given).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> PeerSecret {
        PeerSecret::parse("  0123456789abcdef\n").unwrap()
    }

    #[test]
    fn only_the_whole_secret_is_it() {
        assert!(secret().is(b"0123456789abcdef"));
        let others = [
            "",
            "0123456789abcde",
            "0123456789abcdefg",
            "0123456789abcdeF",
        ];
        for other in others {
            assert!(!secret().is(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn what_is_shown_is_seen_once_only() {
        let mut metadata = MetadataMap::new();
        assert!(!secret().is_shown(&metadata));
        secret().show(&mut metadata);
        assert!(secret().is_shown(&metadata));
        let again = BinaryMetadataValue::from_bytes(b"0123456789abcdef");
        metadata.append_bin(BinaryMetadataKey::from_static(NAME), again);
        assert!(!secret().is_shown(&metadata));
    }

    #[test]
    fn a_short_secret_is_refused_and_none_is_printed() {
        assert!(PeerSecret::parse("0123456789abcde\n\n\n\n").is_err());
        assert!(!format!("{:?}", secret()).contains('0'));
    }
}
