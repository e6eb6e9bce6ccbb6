//! Answers with the home of the key in their metadata, so that a client with several endpoints can call it directly next time
//! (H10).

use fermata_proto::{HOME_ADDRESS, HOME_ID, HOME_TERM};
use tonic::Response;
use tonic::metadata::MetadataMap;

use crate::engine::KeyHome;

/// An answer, and its home.
#[derive(Debug)]
pub struct Served<A> {
    /// The answer.
    pub answer: A,
    /// The home of the key; `None` for a session, and without a home.
    pub home: Option<KeyHome>,
}

impl<A> Served<A> {
    /// The same with a mapped answer.
    pub fn map<B>(self, made: impl FnOnce(A) -> B) -> Served<B> {
        Served {
            answer: made(self.answer),
            home: self.home,
        }
    }

    /// The answer, with the home in its metadata.
    pub fn into_response(self) -> Response<A> {
        let mut response = Response::new(self.answer);
        if let Some(home) = self.home {
            describe(&home, response.metadata_mut());
        }
        response
    }
}

fn describe(home: &KeyHome, metadata: &mut MetadataMap) {
    let mut insert = |name, value: &str| {
        // An address that no header can carry is left out.
        if let Ok(value) = value.parse() {
            metadata.insert(name, value);
        }
    };
    insert(HOME_ID, &home.id.to_string());
    insert(HOME_TERM, &home.term.to_string());
    if !home.address.is_empty() {
        insert(HOME_ADDRESS, &home.address);
    }
}
