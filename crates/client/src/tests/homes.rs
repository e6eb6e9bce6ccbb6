//! A client with several endpoints goes where an answer says that the home of a key is (H10).

use tonic::Status;
use uuid::Uuid;

use super::fake::Act;
use super::*;
use crate::{LockRequest, Zone};

/// Two replicas, of which the second one is the home of all keys, as the first one says.
fn two() -> (Fake, Fake, Client) {
    two_with(ClientOptions::default())
}

fn two_with(options: ClientOptions) -> (Fake, Fake, Client) {
    let (first, to_first, _) = serve(None);
    let (home, to_home, _) = serve(None);
    first.state().home = Some("home:1".to_owned());
    home.state().home = Some("home:1".to_owned());
    let replicas = [
        ("http://first:1".to_owned(), to_first),
        ("http://home:1".to_owned(), to_home),
    ];
    let clock = Arc::new(FakeClock::new());
    let client = Client::from_connectors_and_clock(replicas, options, clock).unwrap();
    (first, home, client)
}

async fn create(client: &Client) -> String {
    let request = LockRequest::new("k");
    let created = client.create_lock_ref(&request, "", Uuid::new_v4()).await;
    created.unwrap().lock_ref
}

#[tokio::test(start_paused = true)]
async fn the_next_call_about_a_key_goes_to_its_home() {
    let (first, home, client) = two();
    create(&client).await;
    assert_eq!((first.count("create"), home.count("create")), (1, 0));
    create(&client).await;
    assert_eq!((first.count("create"), home.count("create")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_home_that_does_not_answer_is_left_for_the_replica_in_use() {
    let (first, home, client) = two();
    create(&client).await;
    home.next("create", Act::Refuse(Status::unavailable("it stops")));
    create(&client).await;
    assert_eq!((first.count("create"), home.count("create")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn the_home_hears_in_which_zone_its_client_is_whoever_was_asked_first() {
    let (first, home, client) = two_with(ClientOptions {
        zone: Some(Zone::parse("west").unwrap()),
        ..ClientOptions::default()
    });
    create(&client).await;
    create(&client).await;
    for replica in [first, home] {
        assert_eq!(replica.state().zone.as_deref(), Some("west"));
    }
    let (first, _, client) = two();
    create(&client).await;
    assert_eq!(first.state().zone, None);
}
