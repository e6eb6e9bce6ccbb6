//! A lock that is ended by force, whichever replica the operator asks, and whichever the holder is connected to.

use std::time::{Duration, Instant};

use fermata_client::{Client, LockRequest, LostReason, public_part};
use fermata_proto::ForceReleaseRequest;
use fermata_proto::lock_admin_client::LockAdminClient;
use tokio::time::timeout;

use super::replica::PATIENCE;
use super::world::World;

const WHY: &str = "the batch job hangs";
/// What was promised to operators …
const SOON: Duration = Duration::from_secs(1);
/// … and a round for each pair of replicas.
const ROUNDS: usize = 9;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_hears_within_a_second_that_its_lock_was_ended_by_force_and_why() {
    let Some(world) = World::that_waits(3).await else {
        return;
    };
    let mut took = Vec::new();
    for round in 0..ROUNDS {
        let [asked, connected] = [round % 3, round / 3 % 3].map(|n| &world.replicas[n]);
        let client = Client::connect([connected.endpoint()]).unwrap();
        // Each key has a home of its own.
        let guard = client.lock(LockRequest::new(format!("k{round}"))).await;
        let guard = guard.unwrap();
        // Whoever awaits the loss listens from then on, as a program does that holds a lock for long.
        let lost = guard.lost();
        tokio::pin!(lost);
        let early = timeout(Duration::from_millis(300), &mut lost).await;
        assert!(early.is_err(), "{early:?}");

        let force = ForceReleaseRequest {
            name: public_part(&guard.lock_ref()).to_owned(),
            reason: WHY.to_owned(),
            forced_by: "an operator".to_owned(),
        };
        let sent = Instant::now();
        let mut operator = LockAdminClient::new(asked.channel());
        let forced = operator.force_release(force);
        let (forced, lost) = tokio::join!(
            forced,
            timeout(PATIENCE, async {
                let lost = lost.await;
                (lost, sent.elapsed())
            })
        );
        assert!(forced.unwrap().into_inner().was_holder);
        let (lost, after) = lost.expect("it learns of it");
        assert_eq!(lost.reason, LostReason::Forced, "{lost:?}");
        assert!(lost.detail.contains(WHY), "{lost:?}");
        took.push(after);
    }
    took.sort_unstable();
    let [median, most] = [took[ROUNDS / 2], took[ROUNDS - 1]];
    eprintln!("ended by force: the holder heard of it after {median:.3?}, at most {most:.3?}");
    // One may be late on a machine that is busy.
    assert!(took[ROUNDS - 2] < SOON, "{took:?}");
}
