//! For how long the keys of a replica that was killed stand still (H12).

use std::time::Duration;

use fermata::engine::REPLICA_TTL;
use fermata_proto::CreateLockRefRequest;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep, timeout};

use super::calls::seconds;
use super::kills::{home_of_key, rounds};
use super::replica::PATIENCE;
use super::world::World;

/// Between two tries of a client.
const AGAIN: Duration = Duration::from_millis(20);
/// How much later than the replica TTL a busy machine may be; half a second where it is not.
const LATE: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_of_a_killed_replica_go_on_soon_after_its_replica_ttl_and_not_long_before() {
    let Some(mut world) = World::that_waits(3).await else {
        return;
    };
    for _ in 0..rounds() {
        let home = home_of_key(&world).await;
        let mut client = world.replicas[(home + 1) % 3].client();
        block_in_place(|| world.replicas[home].kill());
        let killed = Instant::now();
        let goes_on = async {
            let ask = CreateLockRefRequest {
                key: "k".to_owned(),
                ttl: Some(seconds(Duration::from_secs(1))),
                ..Default::default()
            };
            while client.create_lock_ref(ask.clone()).await.is_err() {
                sleep(AGAIN).await;
            }
        };
        timeout(PATIENCE, goes_on).await.unwrap();
        let still = killed.elapsed();
        eprintln!("the key of a killed replica stood still for {still:.2?}");
        assert!(still < REPLICA_TTL + LATE, "{still:?}");
        // Its last heartbeat was a tenth of the TTL before the kill at most, and 90 % of the TTL are its own.
        assert!(still > REPLICA_TTL * 8 / 10, "{still:?}");
        block_in_place(|| {
            world.replicas[home].start_again();
            world.replicas[home].serving();
        });
    }
}
