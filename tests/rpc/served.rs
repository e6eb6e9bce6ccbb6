//! Answers about keys say who the home is (H10).

use fermata::engine::KeyHome;
use fermata::rpc::calls::{CreateLockRef, OpenSession};
use fermata_proto::OpenSessionRequest;

use crate::ask;
use crate::peers::{Called, answered, client, forward_served};
use crate::world::World;

#[tokio::test]
async fn an_answer_about_a_key_says_who_its_home_is() {
    let world = World::new().await;
    let mut client = world.client().await;
    let created = client
        .create_lock_ref(ask::create("orders-42"))
        .await
        .unwrap();
    let says = |name| {
        created
            .metadata()
            .get(name)
            .map(|says| says.to_str().unwrap())
    };
    let id = world.engine.replica().to_string();
    assert_eq!(says("fermata-home-id"), Some(id.as_str()));
    assert_eq!(says("fermata-home-term"), Some("1"));
    let session = client.open_session(OpenSessionRequest::default()).await;
    let session = session.unwrap();
    assert!(!session.metadata().contains_key("fermata-home-id"));
}

#[tokio::test]
async fn an_answer_that_is_passed_on_says_who_the_home_of_its_key_is() {
    let called = Called::start().await;
    let mut to = called.peer.clone();
    to.address = "home:7450".to_owned();
    let served =
        answered(forward_served::<CreateLockRef>(&client(), &to, ask::create("a"), 5_000).await);
    let expected = KeyHome {
        id: called.engine.replica(),
        address: "home:7450".to_owned(),
        term: 1,
    };
    assert_eq!(served.home, Some(expected));
    let ask = OpenSessionRequest::default();
    let served = answered(forward_served::<OpenSession>(&client(), &to, ask, 5_000).await);
    assert_eq!(served.home, None);
}
