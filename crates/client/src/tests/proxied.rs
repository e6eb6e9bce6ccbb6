//! Behind a proxy that answers by itself, as while its server is down: with a page of HTML, or nothing but an HTTP status.

use super::fake::Act;
use super::{World, secs};
use crate::{CallError, ClientOptions, CreateError, CriticalError, LockError, LockRequest};

const PAGE: &str = "<html><head><title>502 Bad Gateway</title></head></html>";

/// Calls that go by themselves, and those of a Pipeline.
fn worlds() -> [World; 2] {
    [false, true].map(|pipeline| {
        World::with(ClientOptions {
            pipeline,
            ..ClientOptions::default()
        })
    })
}

#[tokio::test(start_paused = true)]
async fn what_a_proxy_answers_for_a_server_that_is_down_is_said_in_words_and_repeated() {
    let cut_off = "the answer is not gRPC, or was cut off by a proxy";
    for (status, page, words) in [
        (502, PAGE, "a proxy answered 502 Bad Gateway"),
        (503, "", "a proxy answered 503 Service Unavailable"),
        (504, PAGE, "a proxy answered 504 Gateway Timeout"),
        (429, "too many", "a proxy answered 429 Too Many Requests"),
        (404, PAGE, "a proxy answered 404 Not Found"),
        (500, "no", cut_off),
        (200, PAGE, cut_off),
        (200, "", cut_off),
    ] {
        let words = format!("fake: {words}");
        for world in worlds() {
            world.fake.state().page = Some(("", status, page));
            let failed = world.client.get("", "k").await.unwrap_err();
            assert!(matches!(failed, CallError::Unavailable(_)), "{failed:?}");
            assert!(failed.to_string().contains(&words), "{failed}");
            let (guard, ()) = tokio::join!(world.client.lock("k"), async {
                tokio::time::sleep(secs(3)).await;
                world.fake.state().page = None;
            });
            guard.unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_keeps_its_entry_while_a_proxy_answers_for_its_server() {
    for world in worlds() {
        let holder = world.fake.occupy();
        let (guard, ()) = tokio::join!(world.client.lock("k"), async {
            tokio::time::sleep(secs(1)).await;
            world.fake.state().page = Some(("", 502, PAGE));
            tokio::time::sleep(secs(16)).await;
            assert!(world.fake.count("page") > 2);
            world.fake.state().page = None;
            world.fake.end(&holder, "RELEASED", "");
        });
        assert!(guard.unwrap().lock_ref().starts_with("default/k#2."));
        assert_eq!(world.fake.count("create"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_endpoint_is_tried_where_one_is_not_the_service() {
    for (status, page) in [(404, PAGE), (404, ""), (502, PAGE)] {
        let (world, second) = World::with_second();
        world.fake.state().page = Some(("", status, page));
        let guard = world.client.lock("k").await.unwrap();
        guard.put("a").await.unwrap();
        assert_eq!(second.count("put"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_a_proxy_answers_may_have_been_done() {
    for world in worlds() {
        let guard = world.client.lock("k").await.unwrap();
        world.fake.break_pipelines();
        world.fake.state().is_passed_on = !world.client.options().pipeline;
        world.fake.state().page = Some(("", 502, PAGE));
        let failed = guard.put("a").await.unwrap_err();
        let is_in_doubt = matches!(failed, CriticalError::WriteUnknown(_));
        assert!(is_in_doubt, "{failed:?}");
        assert!(failed.to_string().contains("502 Bad Gateway"), "{failed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_kept_alive_while_a_proxy_answers_for_its_server() {
    let (world, guard) = World::locked().await;
    for _ in 0..5 {
        world.fake.state().page = Some(("", 502, PAGE));
        world.fake.break_streams();
        tokio::time::sleep(secs(12)).await;
        world.fake.state().page = None;
        tokio::time::sleep(secs(3)).await;
        assert!(guard.valid_for() > secs(15), "{:?}", guard.last_failure());
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_proxy_refuses_is_not_repeated() {
    for world in worlds() {
        for (status, words) in [
            (401, "a proxy answered 401 Unauthorized"),
            (403, "a proxy answered 403 Forbidden"),
            (413, "client_max_body_size"),
            (431, "the metadata of the call is too large"),
        ] {
            world.fake.state().page = Some(("", status, PAGE));
            world.fake.state().calls.clear();
            let refused = world.client.lock("k").await.unwrap_err();
            assert!(refused.to_string().contains(words), "{refused}");
            let LockError::Create(CreateError::Denied(_) | CreateError::Limit(_)) = refused else {
                panic!("{refused:?}");
            };
            // The stream of a Pipeline may be refused before.
            assert!(world.fake.count("page") <= 2, "{status}");
        }
    }
}

/// It was decided by the headers, or by the size, and the server did not see it.
#[tokio::test(start_paused = true)]
async fn a_write_that_a_proxy_refuses_was_not_done() {
    for world in worlds() {
        let guard = world.client.lock("k").await.unwrap();
        for status in [401, 403, 413, 431] {
            world.fake.break_pipelines();
            tokio::time::sleep(secs(1)).await;
            world.fake.state().page = Some(("", status, PAGE));
            // (With 413 it is too large for a frame as well.)
            let bytes = if status == 413 { 100_000 } else { 10 };
            let put = guard.put(vec![7; bytes]).await;
            let Err(CriticalError::Denied(_) | CriticalError::Limit(_)) = put else {
                panic!("{status}: {put:?}");
            };
            world.fake.state().page = None;
        }
        guard.put("a").await.unwrap();
    }
}

/// As where a server, or a proxy, answers a wait after less time than it asks for.
#[tokio::test(start_paused = true)]
async fn a_proxy_that_ends_each_wait_costs_no_entry() {
    let world = World::new();
    let holder = world.fake.occupy();
    world.fake.always("acquire", Act::Late(secs(0)));
    world.fake.state().page = Some(("/AcquireLock", 504, PAGE));
    let (guard, ()) = tokio::join!(world.client.lock(LockRequest::new("k")), async {
        tokio::time::sleep(secs(20)).await;
        world.fake.state().page = None;
        world.fake.end(&holder, "RELEASED", "");
    });
    assert!(guard.unwrap().lock_ref().starts_with("default/k#2."));
}
