//! What there is before the first row and after each.

use fermata_proto::lock_admin_client::LockAdminClient;
use fermata_proto::*;
use tonic::transport::Channel;

use crate::ask;
use crate::world::{Client, World, done};

pub const KEY: &str = "orders 42";
pub const REQUEST_ID: &str = "2c1743a3-91b6-4a36-a1a0-4f4a1ac8b7a1";
pub const HOUR: i64 = 3_600;

pub fn span(seconds: i64, nanos: i32) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos }
}

/// What there is before the first row.
pub struct Stage {
    pub world: World,
    pub client: Client,
    pub admin: LockAdminClient<Channel>,
    /// Holds [`KEY`], whose value is `kept`; with its grant.
    pub held: CreateLockRefResponse,
    /// Waits behind it.
    pub waiter: CreateLockRefResponse,
    /// Was made with the request_id [`REQUEST_ID`] and a TTL of an hour.
    pub once: CreateLockRefResponse,
    /// Released, with `last` as its value.
    pub ended: CreateLockRefResponse,
    pub session: String,
}

impl Stage {
    pub async fn new() -> Stage {
        let world = World::with_table("archive").await;
        let mut client = world.client().await;
        let mut create = async |key: &str, table: &str, request_id: &str| {
            let ask = CreateLockRefRequest {
                table: table.to_owned(),
                request_id: request_id.to_owned(),
                ttl: Some(span(HOUR, 0)),
                ..ask::create(key)
            };
            done(client.create_lock_ref(ask)).await
        };
        let held = create(KEY, "", "").await;
        let waiter = create(KEY, "", "").await;
        create(KEY, "archive", "").await;
        create("other", "", "").await;
        let once = create("once", "", REQUEST_ID).await;
        let ended = create("over", "", "").await;
        let put = ask::critical_put(&held.lock_ref, "kept");
        done(client.critical_put(put)).await;
        let release = ask::release_with_put(&ended.lock_ref, "last");
        done(client.release_lock(release)).await;
        let open = OpenSessionRequest {
            ttl: Some(span(HOUR, 0)),
            request_id: REQUEST_ID.to_owned(),
            ..Default::default()
        };
        let session = done(client.open_session(open)).await.session;
        Stage {
            admin: world.admin().await,
            world,
            client,
            held,
            waiter,
            once,
            ended,
            session,
        }
    }

    /// All that may not change: each key as operators see it, its value, and the listings. What is left of
    /// a lease does.
    pub async fn facts(&self) -> Vec<String> {
        let (mut client, mut admin) = (self.client.clone(), self.admin.clone());
        let mut facts = Vec::new();
        let without_lease = |entry: &mut QueueEntry| entry.lease_left = None;
        for table in ["default", "archive"] {
            let keys: &[&str] = match table {
                "default" => &[KEY, "other", "once", "over", "fresh"],
                _ => &[KEY],
            };
            for key in keys {
                let ask = DescribeLockRequest {
                    table: table.to_owned(),
                    ..ask::describe(key)
                };
                let mut described = done(admin.describe_lock(ask)).await;
                described.holders.iter_mut().for_each(without_lease);
                described.waiters.iter_mut().for_each(without_lease);
                let ask = GetRequest {
                    table: table.to_owned(),
                    ..ask::get(key)
                };
                let value = done(client.get(ask)).await;
                facts.push(format!("{described:?} {value:?}"));
            }
            let ask = ListLocksRequest {
                table: table.to_owned(),
                ..Default::default()
            };
            let mut listed = done(admin.list_locks(ask)).await;
            let holders = listed.locks.iter_mut().filter_map(|l| l.holder.as_mut());
            holders.for_each(without_lease);
            facts.push(format!("{} locks: {listed:?}", listed.locks.len()));
        }
        let ask = ListSessionsRequest::default();
        let mut listed = done(admin.list_sessions(ask)).await;
        listed.sessions.iter_mut().for_each(|s| s.lease_left = None);
        facts.push(format!("{} sessions: {listed:?}", listed.sessions.len()));
        facts
    }
}
