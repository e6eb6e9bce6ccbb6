//! The contract over real sockets: a server on the real engine and the embedded store.

mod connections;
mod deadlines;
mod lever;
mod listings;
mod malformed;
mod section;
mod statuses;
mod stopping;
mod streams;
mod world;
