//! Names of locks, which are bytes, as keys, which are UTF-8 without control characters.

use std::fmt::Write as _;

/// The key of a name.
pub(super) fn key_of(name: &[u8]) -> String {
    let mut key = String::with_capacity(name.len());
    let escape = |key: &mut String, bytes: &[u8]| {
        for byte in bytes {
            // (A String takes all that is written.)
            let _ = write!(key, "%{byte:02X}");
        }
    };
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c == '%' || c.is_control() {
                true => escape(&mut key, c.encode_utf8(&mut [0; 4]).as_bytes()),
                false => key.push(c),
            }
        }
        escape(&mut key, chunk.invalid());
    }
    key
}

#[cfg(test)]
mod tests {
    use super::key_of;

    #[test]
    fn a_name_that_is_a_key_keeps_its_form() {
        for name in ["users::snap", "a b/c", "größe 日本"] {
            assert_eq!(key_of(name.as_bytes()), name);
        }
    }

    #[test]
    fn what_a_key_may_not_have_is_escaped_and_no_two_names_are_one_key() {
        for (name, key) in [
            (&b"a\xff"[..], "a%FF"),
            (b"a%FF", "a%25FF"),
            (b"a%25FF", "a%2525FF"),
            (b"\0\n", "%00%0A"),
            // U+0085, a control character of two bytes, and one of its bytes alone.
            (b"\xc2\x85", "%C2%85"),
            (b"\x85", "%85"),
            // A character that is cut off.
            (b"\xe6\x97", "%E6%97"),
        ] {
            assert_eq!(key_of(name), key, "{name:?}");
        }
    }
}
