//! Every call of the contract that one answer ends means the same by itself and in a frame of a Pipeline.

use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::pipeline_call::Call;
use fermata_proto::*;

use crate::access::token;
use crate::ask;
use crate::each_call::Caller;
use crate::world::{World, code_and_reason};

macro_rules! made {
    ($by:expr, $name:ident, $ask:expr) => {
        match $by.carried_as_it_is(Call::$name($ask)).await {
            Ok(Outcome::$name(made)) => Ok(made),
            Ok(other) => panic!("{other:?}"),
            Err(status) => Err(status),
        }
    };
}

/// Every call of the contract that one answer ends, one after the other: what each says, but for what no two runs have in
/// common.
async fn all_calls(by: &mut Caller<'_>) -> Vec<String> {
    let mut said = Vec::new();
    let opened = made!(by, OpenSession, OpenSessionRequest::default()).unwrap();
    said.push(format!("{:?} {:?}", opened.ttl, opened.disconnect_grace));
    let held = made!(by, CreateLockRef, ask::create("a")).unwrap();
    said.push(format!(
        "{:?} {:?} {}",
        held.state(),
        held.ttl,
        held.durable
    ));
    let create = ask::create_in("a", &opened.session);
    let waiter = made!(by, CreateLockRef, create).unwrap();
    said.push(format!("{:?} {}", waiter.state(), waiter.position));
    let put = made!(by, CriticalPut, ask::critical_put(&held.lock_ref, "one")).unwrap();
    said.push(format!("{}", put.durable));
    let get = CriticalGetRequest {
        call_no: 3,
        ..ask::critical_get(&held.lock_ref)
    };
    let got = made!(by, CriticalGet, get.clone()).unwrap();
    said.push(format!("{:?} {}", got.value, got.exists));
    let again = made!(by, CriticalGet, get);
    said.push(format!("{:?}", code_and_reason(again)));
    let read = made!(by, Get, ask::get("a")).unwrap();
    said.push(format!("{:?} {}", read.value, read.exists));
    made!(by, CriticalDelete, ask::critical_delete(&held.lock_ref)).unwrap();
    let read = made!(by, Get, ask::get("a")).unwrap();
    said.push(format!("{:?} {}", read.value, read.exists));
    let renewed = made!(by, RenewSession, ask::renew_session(&held.session)).unwrap();
    said.push(format!("{:?} {}", renewed.ttl, renewed.durable));
    let renew = ask::renew_locks(&[&held.lock_ref, &waiter.lock_ref, "no"]);
    for renewal in made!(by, RenewLocks, renew).unwrap().renewals {
        said.push(match renewal.outcome.unwrap() {
            lock_renewal::Outcome::Renewed(lock) => format!("{:?}", lock.state()),
            lock_renewal::Outcome::Error(error) => error.reason,
        });
    }
    let acquired = made!(by, AcquireLock, ask::acquire(&waiter.lock_ref)).unwrap();
    said.push(format!("{:?} {}", acquired.state(), acquired.position));
    let release = ask::release_with_put(&held.lock_ref, "two");
    for _ in 0..2 {
        let released = made!(by, ReleaseLock, release.clone()).unwrap();
        said.push(format!("already released: {}", released.already_released));
    }
    let wait = AcquireLockRequest {
        read_value: true,
        ..ask::wait(&waiter.lock_ref, 20)
    };
    let acquired = made!(by, AcquireLock, wait).unwrap();
    said.push(format!("{:?} {:?}", acquired.state(), acquired.value));
    for _ in 0..2 {
        let close = ask::close_session(&opened.session);
        let closed = made!(by, CloseSession, close).unwrap();
        said.push(format!("already closed: {}", closed.already_closed));
    }
    let put = ask::critical_put(&acquired.lock_ref, "three");
    said.push(format!(
        "{:?}",
        code_and_reason(made!(by, CriticalPut, put))
    ));
    let renew = made!(by, RenewSession, ask::renew_session(&opened.session));
    said.push(format!("{:?}", code_and_reason(renew)));
    said
}

#[tokio::test]
async fn each_call_says_the_same_by_itself_and_in_a_frame() {
    let anybody = token("anybody");
    let mut said = Vec::new();
    for way in [0, 1] {
        let world = World::new().await;
        let (client, admin) = (world.client().await, world.admin().await);
        let mut callers = Caller::both(&client, &admin, &anybody).await;
        said.push(all_calls(&mut callers[way]).await);
    }
    assert_eq!(said[0], said[1]);
    let expected = [
        "(FailedPrecondition, \"CALL_NO_NOT_ABOVE\")",
        "Waiting 1",
        "already released: true",
        "Held b\"two\"",
        "already closed: true",
        "(FailedPrecondition, \"SESSION_CLOSED\")",
    ];
    let mut said = said[0].iter();
    for text in expected {
        assert!(said.any(|one| one == text), "{text} in its turn");
    }
}
