//! Who is the home of the key that a call was about: told in the metadata of its answer, so that a client with several
//! endpoints can go there itself next time (H10).

use fermata_proto::{HOME_ADDRESS, HOME_ID, HOME_TERM};
use tonic::Response;
use tonic::metadata::MetadataMap;

use crate::engine::KeyHome;

/// An answer, and who gave it.
#[derive(Debug)]
pub struct Served<A> {
    /// What the caller asked for.
    pub answer: A,
    /// The home of the key; `None` of a call about a session, and where nothing was done at a home.
    pub home: Option<KeyHome>,
}

impl<A> Served<A> {
    /// The same with what is made of the answer.
    pub fn map<B>(self, made: impl FnOnce(A) -> B) -> Served<B> {
        Served {
            answer: made(self.answer),
            home: self.home,
        }
    }

    /// The answer, with who gave it in its metadata.
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
