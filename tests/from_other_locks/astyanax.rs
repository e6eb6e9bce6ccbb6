//! Astyanax's `ColumnPrefixDistributedRowLock`: a lock column beside the data of a row.

use std::process::Command;
use std::time::Duration;

use fermata_proto::lock_service_client::LockServiceClient;
use fermata_proto::row_lock_service_client::RowLockServiceClient;
use fermata_proto::{
    AcquireAndReadRowRequest, AcquireAndReadRowResponse, Backoff, ReadLockColumnsRequest,
    ReleaseAllRequest, ReleaseExpiredRequest, ReleaseLockRequest, ReleaseWithMutationRequest,
    RowMutation, VerifyRequest,
};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

use super::process::Serve;
use super::served::{BAKERY, ROWS, Served};

type Rows = RowLockServiceClient<Channel>;

async fn rows(served: &Served) -> Rows {
    Rows::connect(served.serve.endpoint()).await.unwrap()
}

/// `new ColumnPrefixDistributedRowLock(keyspace, columnFamily, key)` with its defaults.
fn lock(key: &str) -> AcquireAndReadRowRequest {
    AcquireAndReadRowRequest {
        table: ROWS.to_owned(),
        key: key.to_owned(),
        ..Default::default()
    }
}

fn span(ms: u64) -> Option<prost_types::Duration> {
    Some(Duration::from_millis(ms).try_into().unwrap())
}

async fn acquire(
    rows: &mut Rows,
    ask: AcquireAndReadRowRequest,
) -> Result<AcquireAndReadRowResponse, Status> {
    let acquired = rows.acquire_and_read_row(ask).await;
    acquired.map(tonic::Response::into_inner)
}

/// `release()`, which is that of every lock.
async fn release(served: &Served, lock_ref: &str) {
    let channel = Channel::from_shared(served.serve.endpoint()).unwrap();
    let mut locks = LockServiceClient::new(channel.connect().await.unwrap());
    let ask = ReleaseLockRequest {
        lock_ref: lock_ref.to_owned(),
        ..Default::default()
    };
    locks.release_lock(ask).await.unwrap();
}

fn put(column: &str, value: String) -> RowMutation {
    RowMutation {
        column: column.to_owned(),
        value: value.into_bytes().into(),
        ..Default::default()
    }
}

fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    details
        .error_info()
        .map_or_else(String::new, |info| info.reason.clone())
}

async fn lock_columns(rows: &mut Rows, key: &str) -> Vec<(String, bool)> {
    let ask = ReadLockColumnsRequest {
        table: ROWS.to_owned(),
        key: key.to_owned(),
    };
    let read = rows.read_lock_columns(ask).await.unwrap().into_inner();
    read.columns
        .into_iter()
        .map(|one| (one.name, one.stale))
        .collect()
}

/// The first sample: acquire, work, release in `finally`.
#[tokio::test]
async fn a_lock_is_taken_and_given_back() {
    let served = Served::start();
    let mut rows = rows(&served).await;
    let held = acquire(&mut rows, lock("KeyBeingLocked")).await.unwrap();
    let busy = acquire(&mut rows, lock("KeyBeingLocked"))
        .await
        .unwrap_err();
    assert_eq!((busy.code(), &*reason(&busy)), (Code::Aborted, "ROW_BUSY"));
    let verified = rows.verify(VerifyRequest {
        lock_ref: held.lock_ref.clone(),
        fail_on_stale: true,
    });
    verified.await.unwrap();
    release(&served, &held.lock_ref).await;
    assert!(served.is_free(ROWS, "KeyBeingLocked").await);
    // The calls are for these tables only.
    let other = AcquireAndReadRowRequest {
        table: BAKERY.to_owned(),
        ..lock("KeyBeingLocked")
    };
    let refused = acquire(&mut rows, other).await.unwrap_err();
    assert_eq!(reason(&refused), "NOT_IN_PROTOCOL");
}

/// The second sample: read, modify, write, with the lock columns in the same calls.
#[tokio::test]
async fn a_row_is_read_modified_and_written() {
    const CLIENTS: usize = 4;
    const SECTIONS: usize = 5;
    let served = Served::start();
    let endpoint = served.serve.endpoint();
    served
        .contend(CLIENTS, |_| {
            let endpoint = endpoint.clone();
            async move {
                let mut rows = Rows::connect(endpoint).await.unwrap();
                for _ in 0..SECTIONS {
                    let ask = AcquireAndReadRowRequest {
                        read_row: true,
                        backoff: Some(Backoff {
                            retries: 1_000,
                            pause: span(5),
                            pause_max: span(100),
                        }),
                        ..lock("KeyBeingLocked")
                    };
                    let row = acquire(&mut rows, ask).await.unwrap();
                    let count = row.columns.iter().find(|one| one.name == "count");
                    let count: usize = count.map_or(0, |one| {
                        std::str::from_utf8(&one.value).unwrap().parse().unwrap()
                    });
                    let release = ReleaseWithMutationRequest {
                        lock_ref: row.lock_ref,
                        mutations: vec![put("count", (count + 1).to_string())],
                    };
                    rows.release_with_mutation(release).await.unwrap();
                }
            }
        })
        .await;
    let mut rows = rows(&served).await;
    let ask = AcquireAndReadRowRequest {
        read_row: true,
        ..lock("KeyBeingLocked")
    };
    let row = acquire(&mut rows, ask).await.unwrap();
    let total = (CLIENTS * SECTIONS).to_string();
    assert_eq!(row.columns.len(), 1);
    assert_eq!(row.columns[0].value, total.as_bytes());
}

/// Notes 4 and 5, `failOnStaleLock`, `withTtl`, `releaseExpiredLocks`.
#[tokio::test]
async fn a_client_that_failed_leaves_a_stale_lock() {
    let served = Served::start();
    let mut rows = rows(&served).await;
    let failed = AcquireAndReadRowRequest {
        expire_after: span(1_000),
        column_ttl: span(60_000),
        lock_id: "failed".to_owned(),
        ..lock("a")
    };
    acquire(&mut rows, failed).await.unwrap();
    let strict = AcquireAndReadRowRequest {
        fail_on_stale: true,
        backoff: Some(Backoff {
            retries: 100,
            pause: span(100),
            pause_max: None,
        }),
        ..lock("a")
    };
    let stale = acquire(&mut rows, strict.clone()).await.unwrap_err();
    assert_eq!(reason(&stale), "STALE_LOCK");
    assert!(stale.message().contains("_LOCK_failed"), "{stale:?}");
    assert_eq!(
        lock_columns(&mut rows, "a").await,
        [("_LOCK_failed".to_owned(), true)]
    );
    let ask = ReleaseExpiredRequest {
        table: ROWS.to_owned(),
        key: "a".to_owned(),
    };
    let removed = rows
        .release_expired(ask)
        .await
        .unwrap()
        .into_inner()
        .removed;
    assert_eq!(removed.len(), 1);
    acquire(&mut rows, strict).await.unwrap();
}

/// Notes 6 and 7, `withLockId`: a foreign key that is unique in its row.
#[tokio::test]
async fn two_locks_of_one_id_are_not_held_at_once() {
    let served = Served::start();
    let mut rows = rows(&served).await;
    let user = AcquireAndReadRowRequest {
        lock_id: "user-4711".to_owned(),
        ..lock("snap@example.com")
    };
    let first = acquire(&mut rows, user.clone()).await.unwrap();
    let expected = [("_LOCK_user-4711".to_owned(), false)];
    assert_eq!(lock_columns(&mut rows, "snap@example.com").await, expected);
    let second = acquire(&mut rows, user.clone()).await.unwrap_err();
    assert_eq!(reason(&second), "ROW_BUSY");
    release(&served, &first.lock_ref).await;
    acquire(&mut rows, user).await.unwrap();
    let attempt = AcquireAndReadRowRequest {
        lock_id: "~x".to_owned(),
        ..lock("snap@example.com")
    };
    let refused = acquire(&mut rows, attempt).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
}

/// `withBackoff`, `getRetryCount`, `releaseAllLocks`.
#[tokio::test]
async fn retries_are_counted_and_an_operator_may_release_all() {
    let served = Served::start();
    let mut rows = rows(&served).await;
    let held = acquire(&mut rows, lock("a")).await.unwrap();
    let patient = AcquireAndReadRowRequest {
        backoff: Some(Backoff {
            retries: 3,
            pause: span(20),
            pause_max: None,
        }),
        ..lock("a")
    };
    let busy = acquire(&mut rows, patient).await.unwrap_err();
    let details = busy.get_error_details();
    assert_eq!(details.error_info().unwrap().metadata["retries"], "3");
    let ask = ReleaseAllRequest {
        table: ROWS.to_owned(),
        key: "a".to_owned(),
        reason: "its host burned down".to_owned(),
        forced_by: "op".to_owned(),
    };
    let removed = rows.release_all(ask).await.unwrap().into_inner().removed;
    assert_eq!(removed.len(), 1);
    let verify = VerifyRequest {
        lock_ref: held.lock_ref,
        fail_on_stale: false,
    };
    let told = rows.verify(verify).await.unwrap_err();
    assert_eq!(reason(&told), "FORCED");
    assert!(told.message().contains("its host burned down"), "{told:?}");
    acquire(&mut rows, lock("a")).await.unwrap();
}

/// What the original does not have: each call needs its verbs.
#[tokio::test]
async fn the_calls_need_the_verbs_of_the_rules() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let mut tokens = String::new();
    let mut secrets = Vec::new();
    for who in ["locker", "reader", "writer", "admin"] {
        let made = Command::new(env!("CARGO_BIN_EXE_fermata"))
            .args(["token", who, "--out", &path(who)])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        tokens.push_str(&String::from_utf8(made.stdout).unwrap());
        secrets.push(
            std::fs::read_to_string(path(who))
                .unwrap()
                .trim()
                .to_owned(),
        );
    }
    let rule = |who: &str, allow: &[&str]| {
        format!("[[rule]]\nwho = [{who:?}]\ntable = \"*\"\nallow = {allow:?}\n")
    };
    let rules = [
        rule("locker", &["lock"]),
        rule("reader", &["lock", "read"]),
        rule("writer", &["lock", "write"]),
        rule("admin", &["admin"]),
    ];
    std::fs::write(path("tokens"), tokens).unwrap();
    std::fs::write(path("rules"), rules.concat()).unwrap();
    let serve = Serve::with(&[
        ("TABLES__ROWS__PROTOCOL", "column-prefix".to_owned()),
        ("TABLES__ROWS__ALLOW_UNFENCED", "true".to_owned()),
        ("AUTH__TOKENS_FILE", path("tokens")),
        ("AUTH__RULES_FILE", path("rules")),
    ]);
    let mut rows = Rows::connect(serve.endpoint()).await.unwrap();
    let [locker, reader, writer, admin] = &secrets[..] else {
        panic!("{secrets:?}");
    };
    let denied = |came: Result<(), Status>| {
        let code = came.map_err(|status| status.code());
        assert_eq!(code, Err(Code::PermissionDenied));
    };
    let reading = || AcquireAndReadRowRequest {
        read_row: true,
        ..lock("a")
    };
    let acquire = async |rows: &mut Rows, who: &str, ask| {
        let acquired = rows.acquire_and_read_row(by(who, ask)).await;
        acquired.map(|acquired| acquired.into_inner().lock_ref)
    };
    denied(acquire(&mut rows, locker, reading()).await.map(drop));
    denied(acquire(&mut rows, admin, lock("a")).await.map(drop));
    let held = acquire(&mut rows, reader, reading()).await.unwrap();
    let release = |lock_ref: &str, mutations| ReleaseWithMutationRequest {
        lock_ref: lock_ref.to_owned(),
        mutations,
    };
    let verify = VerifyRequest {
        lock_ref: held.clone(),
        fail_on_stale: false,
    };
    denied(rows.verify(by(admin, verify.clone())).await.map(drop));
    rows.verify(by(reader, verify)).await.unwrap();
    let changes = || vec![put("name", "one".to_owned())];
    let write = rows.release_with_mutation(by(reader, release(&held, changes())));
    denied(write.await.map(drop));
    let read = ReadLockColumnsRequest {
        table: ROWS.to_owned(),
        key: "a".to_owned(),
    };
    rows.read_lock_columns(by(locker, read.clone()))
        .await
        .unwrap();
    rows.read_lock_columns(by(admin, read)).await.unwrap();
    let expired = ReleaseExpiredRequest {
        table: ROWS.to_owned(),
        key: "a".to_owned(),
    };
    denied(
        rows.release_expired(by(admin, expired.clone()))
            .await
            .map(drop),
    );
    rows.release_expired(by(locker, expired)).await.unwrap();
    let all = ReleaseAllRequest {
        table: ROWS.to_owned(),
        key: "a".to_owned(),
        reason: "test".to_owned(),
        forced_by: String::new(),
    };
    denied(rows.release_all(by(writer, all.clone())).await.map(drop));
    let removed = rows
        .release_all(by(admin, all))
        .await
        .unwrap()
        .into_inner()
        .removed;
    assert_eq!(removed.len(), 1);
    // A lockRef is of the client that made it.
    let held = acquire(&mut rows, writer, lock("a")).await.unwrap();
    let stranger = rows.release_with_mutation(by(locker, release(&held, vec![])));
    assert_eq!(reason(&stranger.await.unwrap_err()), "NEVER_ISSUED");
    let write = rows.release_with_mutation(by(writer, release(&held, changes())));
    write.await.unwrap();
}

fn by<T>(token: &str, ask: T) -> Request<T> {
    let mut request = Request::new(ask);
    let bearer = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", bearer);
    request
}
