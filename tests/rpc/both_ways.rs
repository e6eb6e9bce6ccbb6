//! Every call of the contract that one answer ends means the same by itself and in a frame of a Pipeline.

use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::pipeline_call::Call;
use fermata_proto::*;

use crate::pipeline::{Pipe, create_ask, put_ask, release_ask, wait_ask};
use crate::world::{Client, World, code_and_reason};

/// How the calls of [`all_calls`] are made.
enum By {
    Themselves(Client),
    Frames(Pipe),
}

macro_rules! made {
    ($by:expr, $method:ident, $name:ident, $ask:expr) => {
        match $by {
            By::Themselves(client) => client.$method($ask).await.map(|made| made.into_inner()),
            By::Frames(pipe) => match pipe.made(Call::$name($ask)).await {
                Ok(Outcome::$name(made)) => Ok(made),
                Ok(other) => panic!("{other:?}"),
                Err(status) => Err(status),
            },
        }
    };
}

/// Every call of the contract that one answer ends, one after the other: what each says, but for what no two runs have in
/// common.
async fn all_calls(mut by: By) -> Vec<String> {
    let by = &mut by;
    let mut said = Vec::new();
    let opened = made!(by, open_session, OpenSession, OpenSessionRequest::default()).unwrap();
    said.push(format!("{:?} {:?}", opened.ttl, opened.disconnect_grace));
    let held = made!(by, create_lock_ref, CreateLockRef, create_ask("a")).unwrap();
    said.push(format!(
        "{:?} {:?} {}",
        held.state(),
        held.ttl,
        held.durable
    ));
    let ask = CreateLockRefRequest {
        session: opened.session.clone(),
        ..create_ask("a")
    };
    let waiter = made!(by, create_lock_ref, CreateLockRef, ask).unwrap();
    said.push(format!("{:?} {}", waiter.state(), waiter.position));
    let put = made!(
        by,
        critical_put,
        CriticalPut,
        put_ask(&held.lock_ref, "one")
    )
    .unwrap();
    said.push(format!("{}", put.durable));
    let get = CriticalGetRequest {
        lock_ref: held.lock_ref.clone(),
        call_no: 3,
    };
    let got = made!(by, critical_get, CriticalGet, get.clone()).unwrap();
    said.push(format!("{:?} {}", got.value, got.exists));
    let refused = made!(by, critical_get, CriticalGet, get).unwrap_err();
    said.push(format!("{:?}", code_and_reason(Err::<(), _>(refused))));
    let get = GetRequest {
        key: "a".to_owned(),
        ..Default::default()
    };
    let read = made!(by, get, Get, get.clone()).unwrap();
    said.push(format!("{:?} {}", read.value, read.exists));
    let delete = CriticalDeleteRequest {
        lock_ref: held.lock_ref.clone(),
        call_no: 0,
    };
    made!(by, critical_delete, CriticalDelete, delete).unwrap();
    let read = made!(by, get, Get, get).unwrap();
    said.push(format!("{:?} {}", read.value, read.exists));
    let renew = RenewSessionRequest {
        session: held.session.clone(),
    };
    let renewed = made!(by, renew_session, RenewSession, renew).unwrap();
    said.push(format!("{:?} {}", renewed.ttl, renewed.durable));
    let ask = RenewLocksRequest {
        lock_refs: vec![
            held.lock_ref.clone(),
            waiter.lock_ref.clone(),
            "no".to_owned(),
        ],
    };
    let renewed = made!(by, renew_locks, RenewLocks, ask).unwrap();
    for renewal in renewed.renewals {
        said.push(match renewal.outcome.unwrap() {
            lock_renewal::Outcome::Renewed(lock) => format!("{:?}", lock.state()),
            lock_renewal::Outcome::Error(error) => error.reason,
        });
    }
    let ask = AcquireLockRequest {
        lock_ref: waiter.lock_ref.clone(),
        ..Default::default()
    };
    let acquired = made!(by, acquire_lock, AcquireLock, ask).unwrap();
    said.push(format!("{:?} {}", acquired.state(), acquired.position));
    let ask = ReleaseLockRequest {
        put: Some(Mutation {
            value: "two".into(),
            delete: false,
        }),
        ..release_ask(&held.lock_ref)
    };
    for _ in 0..2 {
        let released = made!(by, release_lock, ReleaseLock, ask.clone()).unwrap();
        said.push(format!("{}", released.already_released));
    }
    let ask = AcquireLockRequest {
        read_value: true,
        ..wait_ask(&waiter.lock_ref, 20)
    };
    let acquired = made!(by, acquire_lock, AcquireLock, ask).unwrap();
    said.push(format!("{:?} {:?}", acquired.state(), acquired.value));
    for _ in 0..2 {
        let close = CloseSessionRequest {
            session: opened.session.clone(),
        };
        let closed = made!(by, close_session, CloseSession, close).unwrap();
        said.push(format!("{}", closed.already_closed));
    }
    let put = made!(
        by,
        critical_put,
        CriticalPut,
        put_ask(&acquired.lock_ref, "three")
    );
    said.push(format!(
        "{:?}",
        code_and_reason(Err::<(), _>(put.unwrap_err()))
    ));
    said
}

#[tokio::test]
async fn each_call_says_the_same_by_itself_and_in_a_frame() {
    let (world, other) = (World::new().await, World::new().await);
    let by_themselves = all_calls(By::Themselves(world.client().await)).await;
    let pipe = Pipe::open(&mut other.client().await).await;
    let in_frames = all_calls(By::Frames(pipe)).await;
    assert_eq!(in_frames, by_themselves);
    assert!(by_themselves.len() > 15 && by_themselves.contains(&"Held b\"two\"".to_owned()));
}
