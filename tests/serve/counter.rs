//! Counters under the lock, with the server killed on the way: nothing acknowledged is lost, nothing is
//! done twice, fences only rise.

use super::counters::Counters;
use super::history::Recorder;
use super::process::Serve;
use super::sprayed::Sprayed;

const KILLS: usize = 5;
/// Sections between two kills: those come by progress, not by time.
const SECTIONS: usize = 250;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_are_exact_though_the_server_is_killed_five_times() {
    let mut serve = Serve::start();
    let history = Recorder::new();
    let clients = Sprayed::new(std::iter::once(serve.channel()), &history);
    let counters = Counters::start(clients);
    for _ in 0..KILLS {
        counters.more(SECTIONS).await;
        tokio::task::block_in_place(|| serve.kill_and_restart());
    }
    counters.more(SECTIONS).await;
    let counted = counters.finish().await;
    // A section whose put was in doubt went on where it was.
    assert!(counted.lost.is_empty(), "{:?}", counted.lost);
    history.check("a server that is killed");
}
