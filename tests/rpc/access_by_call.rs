//! What each call of the contract needs of the rules. Where one of its verbs is missing it is denied, and nothing has changed; with
//! them, and no more than them, it is done: by itself, and in a frame of a Pipeline.

use std::collections::BTreeSet;
use std::time::Duration;

use fermata::access::NewToken;
use fermata_client::public_part;
use fermata_proto::lock_admin_client::LockAdminClient;
use fermata_proto::pipeline_call::Call;
use fermata_proto::*;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tokio::time::sleep;
use tonic::Code;
use tonic::transport::Channel;

use crate::access::{Files, by, token};
use crate::ask;
use crate::each_call::AnyCall::{self, Carried};
use crate::each_call::{Caller, Came, HOUR, Holdings};
use crate::world::{Client, World, done};

const VERBS: [&str; 4] = ["lock", "read", "write", "admin"];

/// The table and the prefix of a rule for everything.
const EVERYTHING: (&str, &str) = ("*", "");

/// How all keys of this test begin.
const PREFIX: &str = "orders/";

/// Where a rule must have the verbs of a call.
#[derive(Clone, Copy)]
enum Reach {
    /// For the key that it is about, or the prefix.
    Keys,
    /// Anywhere: it is about something of its caller's own.
    Anywhere,
    /// For every table and key.
    Everything,
    /// Nowhere: a login is enough.
    Nowhere,
}

/// One line of the table.
struct Needs {
    reach: Reach,
    verbs: &'static [&'static str],
    /// One of them is enough.
    any: bool,
    /// The call, of who has this.
    call: fn(&Holdings) -> AnyCall,
}

fn needs(reach: Reach, verbs: &'static [&'static str], call: fn(&Holdings) -> AnyCall) -> Needs {
    Needs {
        reach,
        verbs,
        any: false,
        call,
    }
}

fn needs_any(
    reach: Reach,
    verbs: &'static [&'static str],
    call: fn(&Holdings) -> AnyCall,
) -> Needs {
    Needs {
        any: true,
        ..needs(reach, verbs, call)
    }
}

/// Every call of the contract, and what else makes a difference to a rule.
fn table() -> Vec<Needs> {
    use Reach::{Anywhere, Everything, Keys, Nowhere};
    vec![
        needs(Keys, &["lock"], |has| {
            Carried(Call::CreateLockRef(ask::create(&has.key)))
        }),
        needs(Keys, &["lock"], |has| {
            Carried(Call::CreateLockRef(ask::create_in(&has.key, &has.session)))
        }),
        needs(Keys, &["lock", "read"], |has| {
            Carried(Call::CreateLockRef(CreateLockRefRequest {
                read_value: true,
                ..ask::create(&has.key)
            }))
        }),
        needs(Keys, &["lock"], |has| {
            Carried(Call::AcquireLock(ask::acquire(&has.waiting.lock_ref)))
        }),
        // One that waits is checked in another way.
        needs(Keys, &["lock"], |has| {
            Carried(Call::AcquireLock(AcquireLockRequest {
                wait: Some(prost_types::Duration {
                    seconds: 0,
                    nanos: 1_000_000,
                }),
                ..ask::acquire(&has.waiting.lock_ref)
            }))
        }),
        needs(Keys, &["lock"], |has| {
            Carried(Call::AcquireLock(ask::give_up(&has.waiting.lock_ref)))
        }),
        needs(Keys, &["lock", "read"], |has| {
            Carried(Call::AcquireLock(AcquireLockRequest {
                read_value: true,
                ..ask::acquire(&has.held.lock_ref)
            }))
        }),
        needs(Keys, &["lock"], |has| {
            Carried(Call::RenewLocks(ask::renew_locks(&[&has.held.lock_ref])))
        }),
        needs(Keys, &["lock"], |has| {
            Carried(Call::ReleaseLock(ask::release(&has.held.lock_ref)))
        }),
        needs(Keys, &["lock", "write"], |has| {
            Carried(Call::ReleaseLock(ask::release_with_put(
                &has.held.lock_ref,
                "last",
            )))
        }),
        needs(Keys, &["lock", "read"], |has| {
            Carried(Call::CriticalGet(ask::critical_get(&has.held.lock_ref)))
        }),
        needs(Keys, &["lock", "write"], |has| {
            Carried(Call::CriticalPut(ask::critical_put(
                &has.held.lock_ref,
                "another one",
            )))
        }),
        needs(Keys, &["lock", "write"], |has| {
            Carried(Call::CriticalDelete(ask::critical_delete(
                &has.held.lock_ref,
            )))
        }),
        needs(Keys, &["lock"], |has| {
            AnyCall::WatchLock(ask::watch(&has.held.lock_ref))
        }),
        needs(Anywhere, &["lock"], |_| {
            Carried(Call::OpenSession(OpenSessionRequest {
                ttl: HOUR,
                ..Default::default()
            }))
        }),
        needs(Anywhere, &["lock"], |has| {
            Carried(Call::RenewSession(ask::renew_session(&has.session)))
        }),
        // A lockRef without a session is about a key.
        needs(Keys, &["lock"], |has| {
            Carried(Call::RenewSession(ask::renew_session(&has.held.session)))
        }),
        needs(Anywhere, &["lock"], |has| {
            Carried(Call::KeepAlive(ask::keep_alive(&has.session)))
        }),
        needs(Keys, &["lock"], |has| {
            Carried(Call::KeepAlive(ask::keep_alive(&has.held.session)))
        }),
        needs(Anywhere, &["lock"], |has| {
            Carried(Call::CloseSession(ask::close_session(&has.session)))
        }),
        needs(Keys, &["read"], |has| {
            Carried(Call::Get(ask::get(&has.key)))
        }),
        // Each call on it is checked by itself.
        needs(Nowhere, &[], |_| AnyCall::Pipeline),
        needs(Nowhere, &[], |_| AnyCall::ListTables(Default::default())),
        needs(Keys, &["admin"], |has| {
            AnyCall::ListLocks(ask::list_locks(&has.key))
        }),
        needs_any(Keys, &["lock", "admin"], |has| {
            AnyCall::DescribeLock(ask::describe(&has.key))
        }),
        needs(Keys, &["admin"], |has| {
            AnyCall::ForceRelease(ask::force(public_part(&has.held.lock_ref), "stuck"))
        }),
        needs(Everything, &["admin"], |_| {
            AnyCall::ListSessions(Default::default())
        }),
        needs(Everything, &["admin"], |has| {
            AnyCall::EndSession(ask::end_session(public_part(&has.session)))
        }),
        needs(Everything, &["admin"], |_| {
            AnyCall::ListReplicas(Default::default())
        }),
        needs(Everything, &["admin"], |_| {
            AnyCall::DescribeActivity(Default::default())
        }),
        needs(Everything, &["admin", "read"], |_| {
            AnyCall::Backup(Default::default())
        }),
        needs(Everything, &["admin"], |_| {
            AnyCall::SetLogFilter(Default::default())
        }),
    ]
}

fn rule(who: &str, (table, key_prefix): (&str, &str), allow: &[&str]) -> String {
    format!(
        "[[rule]]\nwho = [{who:?}]\ntable = {table:?}\nkey_prefix = {key_prefix:?}\nallow = {allow:?}\n"
    )
}

impl Needs {
    /// Rules that allow Ann all but one of the verbs; and that one to somebody else, or where the call is not about.
    fn one_missing(&self) -> Vec<String> {
        let elsewhere: &[(&str, &str)] = match self.reach {
            Reach::Keys => &[("default", "other/"), ("other", "")],
            Reach::Everything => &[("default", ""), ("*", PREFIX)],
            Reach::Anywhere | Reach::Nowhere => &[],
        };
        let mut missing = Vec::new();
        for verb in self.verbs {
            let is_missing = |other: &&str| match self.any {
                true => self.verbs.contains(other),
                false => other == verb,
            };
            let others = VERBS.into_iter().filter(|other| !is_missing(other));
            let others: Vec<&str> = others.collect();
            let others = rule("ann", EVERYTHING, &others);
            missing.push(others.clone() + &rule("bob", EVERYTHING, &[*verb]));
            for scope in elsewhere {
                missing.push(others.clone() + &rule("ann", *scope, &[*verb]));
            }
        }
        missing
    }

    /// The rules of which each allows Ann the call, and as little else as may be.
    fn all_there(&self) -> Vec<String> {
        let scope = match self.reach {
            Reach::Keys => ("default", PREFIX),
            Reach::Anywhere => ("other", "other/"),
            Reach::Everything => EVERYTHING,
            Reach::Nowhere => return vec![String::new()],
        };
        match self.any {
            true => {
                let verbs = self.verbs.iter();
                verbs.map(|verb| rule("ann", scope, &[verb])).collect()
            }
            false => vec![rule("ann", scope, self.verbs)],
        }
    }
}

/// How a call is denied.
fn denial(call: &AnyCall) -> Came {
    match call {
        // The other leases of its stream go on; RenewSession says why.
        Carried(Call::KeepAlive(_)) => Came::NothingSaid,
        _ => Came::Refused(Code::PermissionDenied, "NOT_ALLOWED".to_owned()),
    }
}

/// Who may see everything.
struct Operator<'a> {
    token: &'a NewToken,
    client: Client,
    admin: LockAdminClient<Channel>,
}

/// What there is of one client's, as an operator is shown it.
#[derive(Debug, PartialEq)]
struct Shown {
    entries: Vec<String>,
    ended: usize,
    value: GetResponse,
    sessions: Vec<String>,
}

/// What is left of leases, in seconds and nanoseconds.
type Left = Vec<(i64, i32)>;

impl Operator<'_> {
    async fn shown(&mut self, has: &Holdings) -> (Shown, Left) {
        let (mut entries, mut ended, mut left) = (Vec::new(), 0, Vec::new());
        for key in [has.key.clone(), Holdings::key_in_session(&has.key)] {
            let ask = by(self.token, ask::describe(&key));
            let queue = done(self.admin.describe_lock(ask)).await;
            for entry in queue.holders.iter().chain(&queue.waiters) {
                entries.push(entry.name.clone());
                left.push(entry.lease_left.unwrap());
            }
            ended += queue.ended.len();
        }
        let get = by(self.token, ask::get(&has.key));
        let value = done(self.client.get(get)).await;
        let ask = ListSessionsRequest {
            page_size: 1_000,
            ..Default::default()
        };
        let open = done(self.admin.list_sessions(by(self.token, ask))).await;
        let mut sessions = Vec::new();
        for session in open.sessions {
            sessions.push(session.session_id);
            left.push(session.lease_left.unwrap());
        }
        let shown = Shown {
            entries,
            ended,
            value,
            sessions,
        };
        let left = left.iter().map(|left| (left.seconds, left.nanos));
        (shown, left.collect())
    }

    /// The same once a renewal of anything would show.
    async fn shown_later(&mut self, has: &Holdings) -> (Shown, Left) {
        loop {
            let (shown, left) = self.shown(has).await;
            if left.iter().all(|left| *left < (3_599, 980_000_000)) {
                return (shown, left);
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn each_call_needs_its_verbs_where_it_acts_and_nothing_more() {
    let (ann, ops) = (token("ann"), token("ops"));
    let ops_may = rule("ops", EVERYTHING, &VERBS);
    let files = Files::new(&[&ann, &ops], &ops_may);
    let with = |rules: &str| files.replace(&[&ann, &ops], &format!("{rules}{ops_may}"));
    let world = World::with_access(files.access.clone()).await;
    let (mut client, admin) = (world.client().await, world.admin().await);
    let mut callers = Caller::both(&client, &admin, &ann).await;
    let mut operator = Operator {
        token: &ops,
        client: client.clone(),
        admin: admin.clone(),
    };
    let mut number = 0;
    for needs in table() {
        for caller in &mut callers {
            if !caller.makes(&(needs.call)(&Holdings::default())) {
                continue;
            }
            number += 1;
            with(&rule("ann", EVERYTHING, &VERBS));
            let has = Holdings::of(&mut client, &ann, &format!("{PREFIX}{number}")).await;
            let call = (needs.call)(&has);

            let (before, left_before) = operator.shown_later(&has).await;
            for rules in needs.one_missing() {
                with(&rules);
                let came = caller.made(call.clone()).await;
                assert_eq!(came, denial(&call), "{call:?} by\n{rules}");
            }
            let (after, left) = operator.shown(&has).await;
            assert_eq!(after, before, "{call:?}");
            let mut both = left.iter().zip(&left_before);
            assert!(
                both.all(|(left, before)| left <= before),
                "a lease was renewed by {call:?}: {left:?}, before {left_before:?}"
            );

            for rules in needs.all_there() {
                with(&rules);
                let came = caller.made(call.clone()).await;
                assert_eq!(came, Came::Done, "{call:?} by\n{rules}");
            }
        }
    }
}

#[test]
fn each_call_of_the_contract_is_in_the_table() {
    let contract = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
    let mut methods = BTreeSet::new();
    let mut in_frames = BTreeSet::new();
    for file in contract.file.iter().filter(|f| f.package() == "fermata.v1") {
        // RowLockService needs a table with rows: tests/from_other_locks/astyanax.rs has its calls.
        let services = file.service.iter();
        let services = services.filter(|service| service.name() != "RowLockService");
        for method in services.flat_map(|service| &service.method) {
            methods.insert(method.name().to_owned());
        }
        let mut messages = file.message_type.iter();
        let call = messages.find(|message| message.name() == "PipelineCall");
        for field in call.into_iter().flat_map(|call| &call.field) {
            let asks = field.type_name().strip_suffix("Request");
            let method = asks.and_then(|asks| asks.rsplit('.').next());
            in_frames.extend(method.map(str::to_owned));
        }
    }
    assert!(!methods.is_empty() && !in_frames.is_empty());
    let calls = table().into_iter();
    let calls: Vec<AnyCall> = calls
        .map(|needs| (needs.call)(&Holdings::default()))
        .collect();
    let tabled: BTreeSet<String> = calls.iter().map(AnyCall::method).collect();
    assert_eq!(tabled, methods);
    let carried = calls.iter().filter(|call| matches!(call, Carried(_)));
    let carried: BTreeSet<String> = carried.map(AnyCall::method).collect();
    assert_eq!(carried, in_frames);
}
