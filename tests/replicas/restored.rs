//! Tables that were restored from a backup.

use std::process::{Command, Output};

use fermata_proto::CreateLockRefRequest;
use tokio::task::block_in_place;
use uuid::Uuid;

use super::replica::Replica;
use super::support::Signal;
use super::world::World;

/// The fencing token of the lock on a key, which is released.
async fn fence(world: &World, replica: usize) -> u64 {
    let client = world.at(replica);
    let ask = CreateLockRefRequest {
        key: "restored".to_owned(),
        request_id: Uuid::new_v4().to_string(),
        ..Default::default()
    };
    let lock_ref = client.create(ask).await.unwrap();
    let acquired = client.acquire(&lock_ref).await.unwrap();
    client.release(&acquired.lock_ref).await.unwrap();
    acquired.fencing_token
}

fn restored(world: &World) -> Output {
    let command = || {
        Command::new(env!("CARGO_BIN_EXE_fermata"))
            .args(["schema", "restored"])
            .args(["--contact-points", &world.contact_points().join(",")])
            .args(["--keyspace", &world.keyspace.to_string()])
            .output()
            .unwrap()
    };
    block_in_place(command)
}

/// What the command said.
fn floor(done: &Output) -> u64 {
    assert!(done.status.success(), "{done:?}");
    let said = String::from_utf8(done.stdout.clone()).unwrap();
    said.trim().rsplit(' ').next().unwrap().parse().unwrap()
}

/// What the backup does not know of was given out before the clock's time and two hours: after the command no token is
/// lower than that, whether its replica hung meanwhile and knows the floor that was there before, or starts later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_command_for_restored_tables_no_fence_is_below_what_it_said() {
    let Some(mut world) = World::that_waits(1).await else {
        return;
    };
    let before = fence(&world, 0).await;
    let refused = restored(&world);
    assert_eq!(refused.status.code(), Some(69), "{refused:?}");

    world.replicas[0].signal(Signal::SIGSTOP);
    let done = restored(&world);
    world.replicas[0].signal(Signal::SIGCONT);
    let first = floor(&done);
    let two_hours_us = 2 * 3600 * 1_000_000;
    assert!(first > before + two_hours_us / 2, "{first}: {before}");
    let after = fence(&world, 0).await;
    assert!(after >= first, "{first}: {after}");

    let status = block_in_place(|| world.replicas[0].stop());
    assert!(status.success(), "{status}");
    let second = floor(&restored(&world));
    world.replicas.push(Replica::start(world.setup()));
    block_in_place(|| world.replicas[1].serving());
    let after = fence(&world, 1).await;
    assert!(after >= second, "{second}: {after}");
}
