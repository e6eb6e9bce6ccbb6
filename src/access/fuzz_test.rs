//! What the files of this room promise, whatever stands in them.

use super::{Rules, Scope, Tokens, Verb};

/// The longest error, in bytes, beside what it quotes of the text.
const ERROR_BYTES_MAX: usize = 600;

/// A file of tokens and a file of rules: both are taken or refused in words, and what is taken allows nothing to nobody that
/// it does not name.
pub fn access_files(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Err(error) = Tokens::parse(text) {
        assert!(error.to_string().len() <= ERROR_BYTES_MAX, "{error}");
    }
    match Rules::parse(text) {
        Ok(rules) => {
            let unnamed = "\u{1}nobody's name";
            let all = rules.allow(unnamed, Verb::Admin.into(), Scope::Everything);
            assert!(!all || text.contains('*'));
        }
        Err(error) => assert!(
            error.to_string().len() <= ERROR_BYTES_MAX + 8 * text.len(),
            "{error}"
        ),
    }
}
