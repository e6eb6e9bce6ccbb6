//! What this project promises about itself: which room may use which, that the contract only grows, that
//! dependencies and settings are documented, that the chart is for this service, that a release can be made, and
//! that nothing stands here that should not.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod alerts;
mod chart;
mod circles;
mod contract;
mod dependencies;
mod documents;
mod files;
#[path = "../support/helm.rs"]
mod helm;
mod image;
mod packages;
mod releases;
mod rooms;
#[allow(dead_code, reason = "the tests of the server use more of it")]
#[path = "../support/rules.rs"]
mod rules;
mod source;
mod words;
