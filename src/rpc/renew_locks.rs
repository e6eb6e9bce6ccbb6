//! RenewLocks: many lockRefs in one call. Each is renewed at its home, as by AcquireLock without a wait, and has a result
//! of its own.
//!
//! The lockRefs of each other home go there in one call. LockRefs without an answer, and those served here, are renewed one by
//! one. The answer comes within [`ANSWER_WITHIN`]: a lockRef that hangs has an error of its own then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fermata_proto::lock_renewal::Outcome;
use fermata_proto::{AcquireLockResponse, LockRenewal, RenewLocksRequest, RenewLocksResponse};
use futures_util::future::{join, join_all, ready};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::budget::{CALL_BYTES, ChargeKind, wide};
use super::calls::{AcquireLock, CallContext, UnaryCall as _};
use super::deadline::{by, later};
use super::part_limit::{Part, PartLimit};
use super::route::Router;
use super::{parse, status};
use crate::engine::Peer;
use crate::lock::ReplicaId;

/// How long a call may take: a lock that is not durable is promised for 90 % of the replica TTL, 4.5 s unless set, and its client
/// asks at half of that.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The memory of one renewal from its request on, in bytes. In progress it counts as a call besides.
const ASKED_BYTES: u64 = 1024;

/// The result of one renewal.
type Renewed = Result<AcquireLockResponse, Status>;

/// Renews many lockRefs.
pub async fn renew(
    router: &Router,
    ask: RenewLocksRequest,
    context: &CallContext,
) -> Result<RenewLocksResponse, Status> {
    let lock_refs = ask.lock_refs;
    parse::lock_refs(&lock_refs, &context.limits)?;
    let connection = context.connection.as_ref();
    let _kept = connection
        .map(|connection| connection.charge(ChargeKind::Call, wide(lock_refs.len()) * ASKED_BYTES));
    let soon = later(Instant::now(), ANSWER_WITHIN);
    let renewals = Renewals {
        router,
        answer_by: context.deadline.answer_within(ANSWER_WITHIN).min(soon),
        context,
    };
    let renewed = renewals.all(lock_refs).await;
    Ok(RenewLocksResponse {
        renewals: renewed.into_iter().map(answer).collect(),
    })
}

fn answer(renewed: Renewed) -> LockRenewal {
    LockRenewal {
        outcome: Some(match renewed {
            Ok(lock) => Outcome::Renewed(lock),
            Err(status) => Outcome::Error(status::lock_error(&status)),
        }),
    }
}

/// The renewals of one call.
struct Renewals<'a> {
    router: &'a Router,
    context: &'a CallContext,
    answer_by: Instant,
}

/// The lockRefs of one home, with their indices in the call.
#[derive(Default)]
struct Group {
    indices: Vec<usize>,
    calls: Vec<AcquireLock>,
}

impl Group {
    fn push(&mut self, index: usize, call: AcquireLock) {
        self.indices.push(index);
        self.calls.push(call);
    }
}

impl Renewals<'_> {
    /// In the order of the lockRefs.
    async fn all(&self, lock_refs: Vec<String>) -> Vec<Renewed> {
        let mut renewed: Vec<(usize, Renewed)> = Vec::with_capacity(lock_refs.len());
        let mut here = Group::default();
        let mut elsewhere: BTreeMap<ReplicaId, (Arc<Peer>, Group)> = BTreeMap::new();
        for (index, lock_ref) in lock_refs.into_iter().enumerate() {
            match self.permitted(lock_ref) {
                Err(status) => renewed.push((index, Err(status))),
                Ok(call) => match self.router.expected(&call.target()) {
                    None => here.push(index, call),
                    Some(peer) => {
                        let group = elsewhere.entry(peer.id);
                        let (_, group) = group.or_insert_with(|| (peer, Group::default()));
                        group.push(index, call);
                    }
                },
            }
        }
        let elsewhere = elsewhere.into_values();
        let elsewhere = elsewhere.map(|(peer, group)| self.elsewhere(peer, group));
        let (here, elsewhere) = join(self.here(here), join_all(elsewhere)).await;
        renewed.extend(here);
        renewed.extend(elsewhere.into_iter().flatten());
        renewed.sort_unstable_by_key(|(index, _)| *index);
        renewed.into_iter().map(|(_, renewed)| renewed).collect()
    }

    fn permitted(&self, lock_ref: String) -> Result<AcquireLock, Status> {
        let call = AcquireLock::renewal(lock_ref, self.context)?;
        let (access, login) = (self.router.access(), &self.context.login);
        access.check(login, call.needs(), &call.target())?;
        Ok(call)
    }

    async fn here(&self, group: Group) -> Vec<(usize, Renewed)> {
        let parts = group.calls.iter();
        let parts =
            parts.map(|call| -> Part<'_, Renewed> { Box::new(move || Box::pin(self.one(call))) });
        let renewed = self.worked_at(parts.collect()).await;
        group.indices.into_iter().zip(renewed).collect()
    }

    /// Renews a group in one call, and those without an answer one by one.
    async fn elsewhere(&self, peer: Arc<Peer>, group: Group) -> Vec<(usize, Renewed)> {
        let (context, answer_by) = (self.context, self.answer_by);
        let together = self
            .router
            .renew_at(&peer, &group.calls, context, answer_by);
        let together = timeout_at(answer_by, together).await;
        let together = together.unwrap_or_else(|_| group.calls.iter().map(|_| None).collect());
        let parts = group.calls.iter().zip(together);
        let parts = parts.map(|(call, came)| -> Part<'_, Renewed> {
            Box::new(move || match came {
                Some(renewed) => Box::pin(ready(renewed)),
                None => Box::pin(self.one(call)),
            })
        });
        let renewed = self.worked_at(parts.collect()).await;
        group.indices.into_iter().zip(renewed).collect()
    }

    /// Runs the parts, taking turns with other calls of the same connection.
    async fn worked_at(&self, parts: Vec<Part<'_, Renewed>>) -> Vec<Renewed> {
        match &self.context.connection {
            Some(connection) => connection.parts().all(parts, self.answer_by).await,
            None => PartLimit::default().all(parts, self.answer_by).await,
        }
    }

    /// Renews one lockRef, as a call of its own.
    async fn one(&self, call: &AcquireLock) -> Renewed {
        if Instant::now() >= self.answer_by {
            return Err(status::outcome_unknown());
        }
        let connection = self.context.connection.as_ref();
        let _kept = connection.map(|connection| connection.charge(ChargeKind::Call, CALL_BYTES));
        let made = self.router.make_part(call, self.context, self.answer_by);
        let served = by(self.answer_by, made).await?;
        Ok(served.answer)
    }
}
