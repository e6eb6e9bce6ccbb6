//! A server that is told to stop, with calls and streams open.

use std::time::{Duration, Instant};

use fermata::limits::Limits;
use fermata::server::Stopped;
use fermata_proto::*;
use futures_util::stream;
use tokio::time::sleep;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::ask;
use crate::lever::Mode;
use crate::world::{World, create, done, has_retry_info, hold};

#[tokio::test]
async fn open_waits_and_streams_end_and_the_server_with_them() {
    let mut world = World::new().await;
    let mut client = world.client().await;
    hold(&mut client, "a").await;
    let waiter = create(&mut client, "a").await;
    let mut watch = done(client.watch_lock(ask::watch(&waiter.lock_ref))).await;
    watch.next().await.unwrap().unwrap();
    let asks = stream::pending::<KeepAliveRequest>();
    let mut alive = done(client.keep_alive(asks)).await;
    let mut health = HealthClient::new(world.channel().await);
    let ask = HealthCheckRequest::default();
    let mut healthy = done(health.watch(ask)).await;
    let waiting = tokio::spawn({
        let mut client = client.clone();
        async move { client.acquire_lock(ask::wait(&waiter.lock_ref, 60)).await }
    });
    sleep(Duration::from_millis(100)).await;

    let started = Instant::now();
    let stopped = world.stop();
    for status in [
        waiting.await.unwrap().unwrap_err(),
        watch.next().await.unwrap().unwrap_err(),
        alive.next().await.unwrap().unwrap_err(),
    ] {
        assert_eq!(status.code(), Code::Unavailable);
        assert!(has_retry_info(&status));
    }
    let mut last = ServingStatus::Unknown;
    while let Some(answered) = healthy.next().await {
        last = answered.unwrap().status();
    }
    assert_eq!(last, ServingStatus::NotServing);
    assert_eq!(stopped.await.unwrap().unwrap(), Stopped::Clean);
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
    assert!(
        world.try_channel().await.is_err(),
        "nobody listens any more"
    );
}

#[tokio::test]
async fn what_outlives_the_grace_period_is_cut_off() {
    let mut world = World::with_grace(Limits::default(), Duration::from_millis(300)).await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    world.store.send_replace(Mode::Hangs);
    let call = tokio::spawn(async move {
        client
            .critical_put(ask::critical_put(&held.lock_ref, "v"))
            .await
    });
    sleep(Duration::from_millis(100)).await;
    let started = Instant::now();
    let stopped = world.stop().await.unwrap().unwrap();
    assert_eq!(stopped, Stopped::CutOff);
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
    call.await.unwrap().unwrap_err();
    world.store.send_replace(Mode::Works);
}
