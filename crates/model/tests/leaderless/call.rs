//! Calls of the service, one step at the store at a time.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::future::{pending, poll_fn};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use fermata::clock::{Clock, Ids, Sleep};
use fermata::engine::{CreateCall, EngineError, LiveBy, LockStatus, Mutation};
use fermata::limits::Limits;
use fermata::lock::{Fence, Key, KeyId, LockRef, Mode, Seq, TableName, Tag};
use fermata::protocol::{Leaderless, LeaderlessTables, ProtocolKind, ProtocolOptions};
use fermata::store::{
    CellChange, CellStore, CellSwap, Columns, Currency, StoreError, StoredCell, Swap, Written,
};
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use super::world::Value;

/// The TTL of a lockRef. No other cell lives as long.
pub const TTL: Duration = Duration::from_secs(50);
/// Longer than anybody may choose.
const LATE: Duration = Duration::from_secs(10);

/// The random numbers of first choices are below.
const IDS: u64 = 64;

/// Who makes a call, and where.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Caller {
    pub kind: Kind,
    pub client: usize,
    /// The random number of its contender.
    pub id: u64,
    /// The clock of the replica, in microseconds.
    pub clock_us: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    Music,
    Bakery,
}

/// The lockRef of a client: its number, and its grant once it held the key.
pub type Own = (u64, Option<u64>);

/// A call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    Create,
    Acquire(Own),
    Get(Own, u64),
    Put(Own, u64, Value),
    /// With a last put, or without one.
    Release(Own, u64, Option<Value>),
}

/// A step of a call at the store.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    Read(Columns, Currency),
    Write(Vec<CellChange>, u64),
    Swap(CellSwap),
}

/// What a call is answered by the store.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    Cells(Vec<StoredCell>),
    /// A write is done, or a swap applied.
    Done,
    Conflict,
    Unknown,
}

impl Hash for Reply {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        if let Reply::Cells(cells) = self {
            for cell in cells {
                (&cell.column, &cell.value, cell.timestamp, cell.left).hash(state);
            }
        }
    }
}

/// What a client is answered.
#[derive(Clone, Debug)]
pub enum Answer {
    Held(Own),
    Waiting(Own),
    Value(Value),
    Written,
    Released,
    Failed(EngineError),
}

#[derive(Clone, Debug)]
pub enum Next {
    Asks(Request),
    Ends(Answer),
}

/// A call up to its next step at the store.
pub struct Run {
    caller: Caller,
    pub call: Call,
    /// The replies so far, each with whether the clock was late then.
    replies: Vec<(Reply, bool)>,
    /// The request before.
    before: Option<Request>,
    pub next: Next,
    hash: u64,
}

impl PartialEq for Run {
    fn eq(&self, other: &Run) -> bool {
        self.hash == other.hash
    }
}

impl Hash for Run {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:#?}", self.call, self.next)
    }
}

/// The runs so far, by their hash.
static RUNS: LazyLock<Mutex<HashMap<u64, Arc<Run>>>> = LazyLock::new(Mutex::default);

impl Run {
    pub fn new(caller: Caller, call: Call) -> Arc<Run> {
        Run::known(caller, call, Vec::new(), None, hash_of(&(caller, call)))
    }

    /// Whether this is a flag of this create, which draws another number for each choice.
    pub fn is_of(&self, flag: &str) -> bool {
        let id = flag.rsplit('-').next();
        let id = id.and_then(|id| u64::from_str_radix(id, 16).ok());
        id.is_some_and(|id| id % IDS == self.caller.id)
    }

    /// With one more reply. A poll that shows the same again changes nothing.
    pub fn replied(self: &Arc<Run>, reply: Reply, is_late: bool) -> Arc<Run> {
        let Next::Asks(request) = &self.next else {
            panic!("it has ended: {self:?}");
        };
        let is_same = self.before.as_ref() == Some(request)
            && matches!(request, Request::Read(..))
            && self.replies.last() == Some(&(reply.clone(), is_late));
        let hash = hash_of(&(self.hash, is_late, &reply));
        let mut replies = self.replies.clone();
        replies.push((reply, is_late));
        let before = Some(request.clone());
        let after = Run::known(self.caller, self.call, replies, before, hash);
        match &after.next {
            Next::Asks(again) if is_same && again == request => Arc::clone(self),
            _ => after,
        }
    }

    fn known(
        caller: Caller,
        call: Call,
        replies: Vec<(Reply, bool)>,
        before: Option<Request>,
        hash: u64,
    ) -> Arc<Run> {
        if let Some(run) = RUNS.lock().unwrap().get(&hash) {
            return Arc::clone(run);
        }
        let next = play(caller, call, &replies);
        let run = Arc::new(Run {
            caller,
            call,
            replies,
            before,
            next,
            hash,
        });
        RUNS.lock().unwrap().insert(hash, Arc::clone(&run));
        run
    }
}

fn hash_of(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

pub fn key() -> KeyId {
    KeyId {
        table: TableName::parse("t").unwrap(),
        key: Key::parse("k", 8).unwrap(),
    }
}

pub fn tag_of(client: usize) -> Tag {
    Tag::from_bits(1 + client as u128)
}

thread_local! {
    /// Its time stands still, and is moved on where a call sleeps.
    static RUNTIME: Runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
}

/// Runs a call with these replies, up to the request after them or to its end.
fn play(caller: Caller, call: Call, replies: &[(Reply, bool)]) -> Next {
    let script = Arc::new(Script {
        caller,
        replies: Mutex::new(replies.iter().cloned().collect()),
        asked: Mutex::new(None),
        late: AtomicU64::new(0),
        ids: AtomicU64::new(0),
    });
    let id = key();
    let kind = match caller.kind {
        Kind::Music => ProtocolKind::Music,
        Kind::Bakery => ProtocolKind::Bakery,
    };
    let options = ProtocolOptions {
        kind,
        allow_unfenced: false,
        lock_prefix: String::new(),
    };
    let tables = LeaderlessTables::new(
        BTreeMap::from([(id.table.clone(), options)]),
        Limits::default(),
        script.clone(),
        script.clone(),
    );
    tables.begin(script.clone());
    let table = tables.of(&id.table).unwrap();
    let mut running = Box::pin(make(&**table, caller, call));
    RUNTIME.with(|runtime| {
        runtime.block_on(poll_fn(|context| {
            if let Poll::Ready(answer) = running.as_mut().poll(context) {
                return Poll::Ready(Next::Ends(answer));
            }
            match script.asked.lock().unwrap().take() {
                Some(request) => Poll::Ready(Next::Asks(request)),
                None => Poll::Pending,
            }
        }))
    })
}

/// Makes a call.
async fn make(table: &dyn Leaderless, caller: Caller, call: Call) -> Answer {
    let answer = try_make(table, caller, call).await;
    answer.unwrap_or_else(Answer::Failed)
}

async fn try_make(
    table: &dyn Leaderless,
    caller: Caller,
    call: Call,
) -> Result<Answer, EngineError> {
    let id = key();
    let tag = tag_of(caller.client);
    let lock_ref = |(seq, grant): Own| LockRef {
        table: id.table.clone(),
        key: id.key.clone(),
        seq: Seq(seq),
        tag,
        grant: grant.map(Fence),
    };
    Ok(match call {
        Call::Create => {
            let create = CreateCall {
                id: id.clone(),
                tag,
                live_by: LiveBy::Ttl(u32::try_from(TTL.as_millis()).unwrap()),
                mode: Mode::Exclusive,
                owner: String::new(),
                identity: String::new(),
                share_of: "".into(),
                read_value: false,
                waited: Duration::ZERO,
            };
            let created = table.create(create).await?;
            status(&created.lock_ref, &created.status)
        }
        Call::Acquire(own) => {
            let acquired = table.acquire(&lock_ref(own), Duration::ZERO, false).await?;
            status(&acquired.lock_ref, &acquired.status)
        }
        Call::Get(own, call_no) => {
            let read = table.critical_get(&lock_ref(own), call_no).await?;
            let bytes = read.value.bytes;
            Answer::Value(bytes.and_then(|bytes| bytes.first().copied()).unwrap_or(0))
        }
        Call::Put(own, call_no, value) => {
            let put = put_of(value);
            table.critical_write(&lock_ref(own), put, call_no).await?;
            Answer::Written
        }
        Call::Release(own, call_no, value) => {
            let put = value.map(put_of);
            table.release(&lock_ref(own), put, call_no).await?;
            Answer::Released
        }
    })
}

fn put_of(value: Value) -> Mutation {
    Mutation::Put(Bytes::copy_from_slice(&[value]))
}

fn status(lock_ref: &LockRef, status: &LockStatus) -> Answer {
    let own = (lock_ref.seq.0, lock_ref.grant.map(|grant| grant.0));
    match status {
        LockStatus::Held { .. } => Answer::Held(own),
        LockStatus::Waiting { .. } => Answer::Waiting(own),
    }
}

/// The store, clock and ids of one run.
struct Script {
    caller: Caller,
    replies: Mutex<VecDeque<(Reply, bool)>>,
    asked: Mutex<Option<Request>>,
    /// How often the clock was late.
    late: AtomicU64,
    ids: AtomicU64,
}

impl Script {
    async fn ask(&self, request: Request) -> Reply {
        let reply = self.replies.lock().unwrap().pop_front();
        if let Some((reply, is_late)) = reply {
            self.late.fetch_add(is_late.into(), Ordering::Relaxed);
            return reply;
        }
        *self.asked.lock().unwrap() = Some(request);
        pending().await
    }
}

fn fault() -> StoreError {
    StoreError::Unavailable("late".to_owned())
}

#[async_trait]
impl CellStore for Script {
    async fn read_cells(
        &self,
        _id: &KeyId,
        columns: &Columns,
        currency: Currency,
    ) -> Result<Vec<StoredCell>, StoreError> {
        match self.ask(Request::Read(columns.clone(), currency)).await {
            Reply::Cells(cells) => Ok(cells),
            other => panic!("no cells: {other:?}"),
        }
    }

    async fn write_cells(&self, _id: &KeyId, changes: &[CellChange], timestamp: u64) -> Written {
        match self.ask(Request::Write(changes.to_vec(), timestamp)).await {
            Reply::Done => Written::Done,
            _ => Written::Unknown(fault()),
        }
    }

    async fn swap_cells(&self, _id: &KeyId, swap: &CellSwap) -> Swap<Bytes> {
        match self.ask(Request::Swap(swap.clone())).await {
            Reply::Done => Swap::Applied,
            Reply::Conflict => Swap::Conflict(None),
            _ => Swap::Unknown(fault()),
        }
    }

    async fn list_partitions(
        &self,
        _table: &TableName,
        _prefix: &str,
        _after: Option<&Key>,
        _limit: usize,
    ) -> Result<Vec<Key>, StoreError> {
        Ok(Vec::new())
    }
}

impl Clock for Script {
    fn boot(&self) -> Duration {
        LATE * u32::try_from(self.late.load(Ordering::Relaxed)).unwrap()
    }

    fn wall_us(&self) -> u64 {
        self.caller.clock_us
    }

    fn sleep(&self, span: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(span))
    }
}

impl Ids for Script {
    fn uuid(&self) -> Uuid {
        Uuid::nil()
    }

    /// Another one for each try.
    fn below(&self, bound: u64) -> u64 {
        let tries = self.ids.fetch_add(1, Ordering::Relaxed);
        (self.caller.id + IDS * tries) % bound
    }
}
