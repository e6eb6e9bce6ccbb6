//! Renewals on a stream, for what another replica has.

use std::sync::Arc;
use std::time::Duration;

use fermata::clock::SystemIds;
use fermata::lock::Secret;
use fermata::rpc::calls::{KeepAlive, UnaryCall as _};
use fermata::rpc::route::Router;
use fermata_proto::{EndReason, KeepAliveRequest};

use super::replicas::create;
use super::shared::{Service, some_id};
use super::world::{call, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_ref_that_ends_while_its_key_is_asked_for_is_an_answer() {
    let (service, a, b) = &Service::two().await;
    let _held = create(a, call("k", 20_000)).await;
    let mut waits = call("k", 20_000);
    let secret = Secret::of_entry("", &waits.id, some_id());
    waits.tag = secret.tag("");
    let waiting = create(a, waits).await.lock_ref;
    // The other one cannot be called.
    let engine: &fermata::engine::Engine = b;
    let router = Router::new(engine.clone(), Arc::new(SystemIds), None);
    let context = router.context(&tonic::Request::new(()));
    let ask = KeepAliveRequest {
        session: waiting.without_grant().text(&secret),
    };
    let renewal = KeepAlive::parse(ask, &context).unwrap();
    let answer_by = tokio::time::Instant::now() + Duration::from_secs(10);
    let renewing = router.make(&renewal, &context, answer_by);
    let ending = async {
        until("it is asked for", || async {
            service.replicas[1].link.is_asked()
        })
        .await;
        a.release(&waiting, None, 0).await.unwrap();
    };
    let (answer, ()) = tokio::join!(renewing, ending);
    assert_eq!(answer.unwrap().answer.reason(), EndReason::Released);
}
