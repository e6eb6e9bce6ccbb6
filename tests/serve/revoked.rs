//! A token, or a rule, that is taken away.

use std::time::Instant;

use super::certificates::Authority;
use super::secured::{EVERYTHING, Files, PATIENCE, Server, replace, token, until};

/// Whoever has one that leaked is to be kept out at once, whatever else is wrong; and what is wrong is said again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_taken_away_counts_no_more_though_the_rules_cannot_be_used() {
    let authority = Authority::named("ours");
    let (leaked, other) = (token("leaked"), token("other"));
    let server = Server::start(Files::new(&authority, &[&leaked], EVERYTHING));
    assert!(server.is_reached_by(&authority.file(), &leaked).await);
    let refused = || server.log().matches("rules: TOML parse error").count();
    replace(&server.files.path("rules"), "nonsense");
    until("the rules are refused", || refused() == 1).await;
    replace(&server.files.path("rules"), "nonsense ");
    until("they are refused again", || refused() == 2).await;
    replace(&server.files.path("tokens"), &other.line);
    let waited = Instant::now();
    while server.is_reached_by(&authority.file(), &leaked).await {
        assert!(waited.elapsed() < PATIENCE, "{}", server.log());
    }
    assert!(server.is_reached_by(&authority.file(), &other).await);
}
