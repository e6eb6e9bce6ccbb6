//! The secret texts, a lockRef and the text of a session, and their public parts.

use std::fmt;

/// The public part of a lockRef, or of the text of a session: the name of the entry, `table/key#seq`, as LockAdmin shows it, or
/// the id of the session. The whole text lets every reader act for its client.
pub fn public_part(text: &str) -> &str {
    let number_at = text.rfind('#').unwrap_or(0);
    let (_, number) = text.split_at(number_at);
    let end = number.find('.').map_or(text.len(), |dot| number_at + dot);
    text.get(..end).unwrap_or(text)
}

/// Displays the public part.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(public_part(self.0), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lets_a_client_act_is_cut_off() {
        for (text, shown) in [
            ("default/k.1#17.0abc@5", "default/k.1#17"),
            ("default/k.1#17.0abc", "default/k.1#17"),
            ("default/k.1#17", "default/k.1#17"),
            ("67e55044-10b1.0abc", "67e55044-10b1"),
            ("67e55044-10b1", "67e55044-10b1"),
            ("", ""),
        ] {
            assert_eq!(public_part(text), shown);
            assert_eq!(format!("{:?}", Shown(text)), format!("{shown:?}"));
        }
    }
}
