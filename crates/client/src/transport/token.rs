//! The token of a client.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fermata_files::{ReadError, ReloadingFile};
use tonic::metadata::AsciiMetadataValue;

/// The shortest time between two reads of the file, while calls are made.
const READ_EVERY: Duration = Duration::from_secs(1);
/// A larger file holds no token.
const BYTES_MAX: u64 = 4096;

/// The token that goes with each call. Clones share it.
///
/// The token is never printed. A connection without TLS shows it to everybody on the network path.
#[derive(Clone)]
pub struct Token(Arc<Source>);

enum Source {
    Text(AsciiMetadataValue),
    File {
        path: PathBuf,
        last: ReloadingFile<AsciiMetadataValue>,
    },
}

/// The error of a text or file without a valid token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unusable token: {0}")]
pub struct InvalidToken(String);

impl Token {
    /// The token in this text.
    pub fn from_text(text: &str) -> Result<Token, InvalidToken> {
        Ok(Token(Arc::new(Source::Text(value(text)?))))
    }

    /// The token in this file. The file is read again as calls are made, so that the token may be replaced. If the file cannot be
    /// read, the last token stays in use.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Token, InvalidToken> {
        let path = path.into();
        // At the start it may be a pipe, `<(...)`.
        let value = read(&path, fermata_files::read)?;
        let read_from = path.clone();
        let last = ReloadingFile::new("the token", value, move || {
            let again = read(&read_from, fermata_files::read_regular);
            again.map_err(|error| error.to_string())
        });
        Ok(Token(Arc::new(Source::File { path, last })))
    }

    /// The token for calls that are made now.
    pub(crate) fn value(&self) -> AsciiMetadataValue {
        self.no_older_than(READ_EVERY)
    }

    /// Whether the file has another token by now than the token of a call.
    pub(crate) fn was_replaced(&self, sent: &AsciiMetadataValue) -> bool {
        *sent != self.no_older_than(Duration::ZERO)
    }

    /// Why the last read of the file failed, in words.
    pub(crate) fn read_failure(&self) -> Option<String> {
        match &*self.0 {
            Source::Text(_) => None,
            Source::File { path, last } => {
                let why = last.failure()?;
                // Most errors name the file.
                Some(match why.contains(&*path.to_string_lossy()) {
                    true => why,
                    false => format!("{}: {why}", path.display()),
                })
            }
        }
    }

    fn no_older_than(&self, no_older: Duration) -> AsciiMetadataValue {
        match &*self.0 {
            Source::Text(value) => value.clone(),
            Source::File { last, .. } => last.value(no_older),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Source::Text(_) => f.write_str("Token"),
            Source::File { path, .. } => write!(f, "Token of {}", path.display()),
        }
    }
}

fn value(text: &str) -> Result<AsciiMetadataValue, InvalidToken> {
    let token = text.trim();
    let is_plain = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let value = format!("Bearer {token}").parse::<AsciiMetadataValue>();
    match value {
        Ok(mut value) if is_plain => {
            value.set_sensitive(true);
            Ok(value)
        }
        _ => Err(InvalidToken(
            "a token is one line of printable ASCII without spaces".to_owned(),
        )),
    }
}

fn read(
    path: &Path,
    read: impl Fn(&Path, u64) -> Result<Vec<u8>, ReadError>,
) -> Result<AsciiMetadataValue, InvalidToken> {
    let failed = |why: &dyn fmt::Display| InvalidToken(format!("{}: {why}", path.display()));
    let text = read(path, BYTES_MAX).and_then(fermata_files::text);
    value(&text.map_err(|error| failed(&error))?).map_err(|InvalidToken(why)| failed(&why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(token: &Token) -> String {
        let value = token.no_older_than(Duration::ZERO);
        assert!(value.is_sensitive());
        value.to_str().unwrap().to_owned()
    }

    /// However long the reading takes, as on a busy machine.
    fn until(mut is_so: impl FnMut() -> bool) {
        while !is_so() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_token_goes_as_a_bearer_and_is_printed_nowhere() {
        let token = Token::from_text(" fmt_secret\n").unwrap();
        assert_eq!(sent(&token), "Bearer fmt_secret");
        assert_eq!(format!("{token:?}"), "Token");
        assert!(!token.was_replaced(&token.value()));
        for bad in ["", " ", "a b", "ä", "a\nb"] {
            let refused = Token::from_text(bad).unwrap_err();
            assert!(!refused.to_string().contains("fmt_"), "{refused}");
        }
    }

    #[test]
    fn a_token_in_a_file_may_be_replaced_and_stays_where_the_file_goes() {
        let directory = std::env::temp_dir().join(format!("fermata-token-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("token");
        std::fs::write(&file, "first\n").unwrap();
        let token = Token::from_file(&file).unwrap();
        assert_eq!(sent(&token), "Bearer first");
        let first = token.value();
        assert!(!token.was_replaced(&first));
        std::fs::write(&file, "second").unwrap();
        // Each call that was refused with the first one finds that out.
        until(|| token.was_replaced(&first));
        assert!(token.was_replaced(&first));
        assert_eq!(sent(&token), "Bearer second");
        std::fs::write(&file, "not one").unwrap();
        assert_eq!(sent(&token), "Bearer second");
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(sent(&token), "Bearer second");
        assert!(Token::from_file(&file).is_err());
    }
}
