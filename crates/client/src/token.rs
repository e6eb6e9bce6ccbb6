//! The token by which a service knows its client.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tonic::Request;
use tonic::metadata::AsciiMetadataValue;

/// A file is read again this often at most, while calls are made.
const READ_EVERY: Duration = Duration::from_secs(1);
/// So long a call waits for that at most.
const READ_WITHIN: Duration = Duration::from_millis(100);
/// A larger file holds no token.
const BYTES_MAX: u64 = 4096;

/// The token that goes with each call. Clones share it.
///
/// It is printed nowhere. Over a connection without TLS everybody on the way can read it.
#[derive(Clone)]
pub struct Token(Arc<Source>);

enum Source {
    Text(AsciiMetadataValue),
    File(Arc<TokenFile>),
}

struct TokenFile {
    path: PathBuf,
    last: Mutex<LastRead>,
    /// Notified when it was read.
    was_read: Condvar,
}

struct LastRead {
    /// When that began.
    at: Instant,
    value: AsciiMetadataValue,
    is_reading: bool,
}

/// What is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no token: {0}")]
pub struct InvalidToken(String);

impl Token {
    /// This token.
    pub fn from_text(text: &str) -> Result<Token, InvalidToken> {
        Ok(Token(Arc::new(Source::Text(value(text)?))))
    }

    /// The token in this file, which is read again as calls are made: so it may be replaced. Where it cannot be read then, the
    /// one that was read last is used.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Token, InvalidToken> {
        let path = path.into();
        let last = Mutex::new(LastRead {
            at: Instant::now(),
            value: read(&path)?,
            is_reading: false,
        });
        let file = TokenFile {
            path,
            last,
            was_read: Condvar::new(),
        };
        Ok(Token(Arc::new(Source::File(Arc::new(file)))))
    }

    /// Puts it on a call.
    pub(super) fn put_on<T>(&self, request: &mut Request<T>) {
        self.insert(request, READ_EVERY);
    }

    /// Puts it on a call that stays open: as it is now.
    pub(super) fn put_on_stream<T>(&self, request: &mut Request<T>) {
        self.insert(request, Duration::ZERO);
    }

    /// As it goes with calls that are made now, to be compared.
    pub(super) fn sent_now(&self) -> AsciiMetadataValue {
        self.value(READ_EVERY)
    }

    /// Whether the file has another one by now than went with a call.
    pub(super) fn was_replaced(&self, sent: &AsciiMetadataValue) -> bool {
        *sent != self.value(Duration::ZERO)
    }

    fn insert<T>(&self, request: &mut Request<T>, no_older: Duration) {
        let value = self.value(no_older);
        request.metadata_mut().insert("authorization", value);
    }

    fn value(&self, no_older: Duration) -> AsciiMetadataValue {
        match &*self.0 {
            Source::Text(value) => value.clone(),
            Source::File(file) => file.value(no_older),
        }
    }
}

impl TokenFile {
    fn lock(&self) -> MutexGuard<'_, LastRead> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it holds, or held so long ago at most; what it held last where it cannot be read in time.
    fn value(self: &Arc<TokenFile>, no_older: Duration) -> AsciiMetadataValue {
        let mut last = self.lock();
        if last.at.elapsed() >= no_older {
            // What is being read now may be what it held before.
            last = self.wait(last);
            if !last.is_reading && last.at.elapsed() >= no_older {
                last.at = Instant::now();
                last.is_reading = self.begin();
                last = self.wait(last);
            }
            if last.is_reading {
                // A file system that hangs holds up a call now and then, and not each.
                last.at = Instant::now();
            }
        }
        last.value.clone()
    }

    fn wait<'a>(&self, last: MutexGuard<'a, LastRead>) -> MutexGuard<'a, LastRead> {
        let waited = self
            .was_read
            .wait_timeout_while(last, READ_WITHIN, |last| last.is_reading);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Reads it in a thread of its own, which may hang with the file system. False: there can be none.
    fn begin(self: &Arc<TokenFile>) -> bool {
        let file = Arc::clone(self);
        let thread = std::thread::Builder::new().name("token".to_owned());
        let begun = thread.spawn(move || {
            let read = read_again(&file.path);
            let mut last = file.lock();
            last.is_reading = false;
            match read {
                Ok(value) => last.value = value,
                Err(error) => {
                    tracing::warn!(%error, "the token is not read again; the last one is used");
                }
            }
            drop(last);
            file.was_read.notify_all();
        });
        begun.is_ok()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Source::Text(_) => f.write_str("Token"),
            Source::File(file) => write!(f, "Token of {}", file.path.display()),
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
            "one line of printable ASCII without spaces is needed".to_owned(),
        )),
    }
}

fn read(path: &Path) -> Result<AsciiMetadataValue, InvalidToken> {
    let failed = |why: &dyn fmt::Display| InvalidToken(format!("{}: {why}", path.display()));
    let mut text = String::new();
    let read = File::open(path).and_then(|file| {
        let mut bounded = file.take(BYTES_MAX + 1);
        bounded.read_to_string(&mut text)
    });
    let bytes = read.map_err(|error| failed(&error))?;
    if bytes as u64 > BYTES_MAX {
        return Err(failed(&format!("it has more than {BYTES_MAX} bytes")));
    }
    value(&text).map_err(|InvalidToken(why)| failed(&why))
}

/// The same while calls are made: what is no regular file, such as a pipe, might have them wait for ever.
fn read_again(path: &Path) -> Result<AsciiMetadataValue, InvalidToken> {
    match std::fs::metadata(path).is_ok_and(|found| found.is_file()) {
        true => read(path),
        false => {
            let path = path.display();
            Err(InvalidToken(format!("{path}: it is no regular file (now)")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(token: &Token) -> String {
        let mut request = Request::new(());
        token.put_on_stream(&mut request);
        let value = request.metadata().get("authorization").unwrap();
        assert!(value.is_sensitive());
        value.to_str().unwrap().to_owned()
    }

    /// Nobody ever writes to it, and a call that reads it waits for that.
    #[test]
    fn a_pipe_in_place_of_the_file_holds_up_no_call() {
        let directory = std::env::temp_dir().join(format!("fermata-pipe-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("token");
        std::fs::write(&file, "fmt_one").unwrap();
        let token = Token::from_file(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&file).status();
        assert!(made.unwrap().success());
        assert_eq!(sent(&token), "Bearer fmt_one");
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "fmt_two").unwrap();
        assert_eq!(sent(&token), "Bearer fmt_two");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_token_goes_as_a_bearer_and_is_printed_nowhere() {
        let token = Token::from_text(" fmt_secret\n").unwrap();
        assert_eq!(sent(&token), "Bearer fmt_secret");
        assert_eq!(format!("{token:?}"), "Token");
        assert!(!token.was_replaced(&token.sent_now()));
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
        let first = token.sent_now();
        assert!(!token.was_replaced(&first));
        std::fs::write(&file, "second").unwrap();
        // Each call that was refused with the first one finds that out.
        assert!(token.was_replaced(&first) && token.was_replaced(&first));
        assert_eq!(sent(&token), "Bearer second");
        std::fs::write(&file, "not one").unwrap();
        assert_eq!(sent(&token), "Bearer second");
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(sent(&token), "Bearer second");
        assert!(Token::from_file(&file).is_err());
    }
}
