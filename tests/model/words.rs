//! Traces for people: one line an action.

use crate::action::Action;
use crate::committed::{entry, head_seq, home_of, request_of, ts};
use crate::setup::Setup;
use crate::truth::Broken;
use crate::world::{Call, Cell, Intent, SyncPhase, World};

const CLIENTS: [&str; 3] = ["Ann", "Ben", "Cleo"];
const REPLICAS: [&str; 2] = ["R1", "R2"];

fn client(at: usize) -> &'static str {
    CLIENTS[at]
}

fn replica(at: u8) -> &'static str {
    REPLICAS[usize::from(at)]
}

/// What somebody put, or what was there at first.
fn value(setup: &Setup, value: u8) -> String {
    if value == 0 {
        return "the first value".to_owned();
    }
    let (who, put) = setup.put_of(value);
    format!("{}'s put {put}", client(who))
}

fn cell(setup: &Setup, cell: Cell) -> String {
    format!("{} at {}", value(setup, cell.value), cell.ts)
}

/// The lines of a trace, and where it ends.
pub fn trace(setup: &Setup, path: Vec<(World, Option<Action>)>) -> Vec<String> {
    let mut lines = Vec::new();
    for (at, (world, action)) in path.iter().enumerate() {
        let Some(action) = action else { continue };
        let after = path.get(at + 1).map_or(world, |(after, _)| after);
        lines.push(line(setup, world, *action, after));
    }
    if let Some((last, _)) = path.last() {
        lines.push(ending(last));
    }
    lines
}

fn ending(world: &World) -> String {
    match world.truth.broken {
        Some(Broken::Exclusivity) => "so somebody who does not hold the key counts".to_owned(),
        Some(Broken::LatestState) => "so the holder does not read the latest value".to_owned(),
        Some(Broken::Order) => "so somebody was granted the lock before its turn".to_owned(),
        Some(Broken::State(what)) => format!("so {what}"),
        None => "so from here on somebody waits for ever".to_owned(),
    }
}

fn line(setup: &Setup, world: &World, action: Action, after: &World) -> String {
    let who = |at: u8| client(usize::from(at));
    let call = |at: u8| world.calls[usize::from(at)].value;
    let owner = |by: u8, seq: u8| {
        let view = world.replicas[usize::from(by)].view.as_ref();
        let entry = view.and_then(|state| entry(state, seq));
        entry.map_or("nobody", |e| client(setup.client_of(request_of(e))))
    };
    match action {
        Action::Create { client, at } => {
            format!("{} asks {} for an entry", who(client), replica(at))
        }
        Action::Held { client, by } => {
            let grant = after.clients[usize::from(client)].grant;
            format!(
                "{} grants {} the lock with grant {grant}",
                replica(by),
                who(client)
            )
        }
        Action::GetBegins { client, by, node } => format!(
            "{} reads through {}: a first node answers {}",
            who(client),
            replica(by),
            cell(setup, world.nodes[usize::from(node)])
        ),
        Action::GetEnds { client, node } => {
            let second = world.nodes[usize::from(node)];
            let read = match world.clients[usize::from(client)].call {
                Call::Get { first, .. } => first.cell.newer(second),
                Call::None | Call::Put => second,
            };
            format!(
                "a second node answers {}: {} reads {}",
                cell(setup, second),
                who(client),
                value(setup, read.value)
            )
        }
        Action::Put { client } => {
            let put = after.clients[usize::from(client)].puts;
            format!("{} sends put {put}", who(client))
        }
        Action::PutArrives { call: at, at: by } => {
            let cells = after.writes.iter().map(|w| w.cell);
            let begun = cells.filter(|c| c.value == call(at)).max_by_key(|c| c.ts);
            let taken = after.writes.len() > world.writes.len();
            match begun.filter(|_| taken) {
                Some(begun) => format!("{} takes {}", replica(by), cell(setup, begun)),
                None => format!("{} refuses {}", replica(by), value(setup, call(at))),
            }
        }
        Action::PutRefused { call: at } => {
            format!("{} finds no home that takes it", value(setup, call(at)))
        }
        Action::HandOverAnswer { client } => format!("{} gives its put up", who(client)),
        Action::Releases { client, at } => {
            format!("{} asks {} to release its entry", who(client), replica(at))
        }
        Action::LearnsEnd { client } => format!("{} learns that its entry has ended", who(client)),
        Action::ClientCrashes { client } => format!("{} crashes", who(client)),
        Action::ReRead { by } => format!("{} looks: {}", replica(by), state(setup, after)),
        Action::Send { by } => {
            let (sent, swap) = (replica(by), &after.replicas[usize::from(by)].swap);
            match swap {
                Some(swap) => format!("{sent} sends a swap: {}", batch(setup, &swap.batch)),
                None => format!("{sent} finds nothing left to swap"),
            }
        }
        Action::SwapEnds { by } => {
            let applied = after.stored != world.stored;
            let outcome = if applied { "applied" } else { "a conflict" };
            format!(
                "{}'s swap ends, {outcome}: {}",
                replica(by),
                state(setup, after)
            )
        }
        Action::SwapUnknown { by } => {
            format!("what became of {}'s swap is not known to it", replica(by))
        }
        Action::Lands { swap } => format!(
            "a swap of {} whose outcome was unknown takes effect: {}",
            replica(world.open[usize::from(swap)].by),
            state(setup, after)
        ),
        Action::SyncBegins { by, node } => format!(
            "{} reads to sync: a first node answers {}",
            replica(by),
            cell(setup, world.nodes[usize::from(node)])
        ),
        Action::SyncReads { by, node } => {
            let holding = after.replicas[usize::from(by)].holding.as_ref();
            let rewrites = match holding.map(|h| h.sync_phase) {
                Some(SyncPhase::Writing(rewrite)) => cell(setup, rewrite),
                _ => "nothing".to_owned(),
            };
            format!(
                "a second node answers {}: {} rewrites {rewrites}",
                cell(setup, world.nodes[usize::from(node)]),
                replica(by)
            )
        }
        Action::Extend { by } => format!("{} has no timestamp left for a put", replica(by)),
        Action::Promises { from, seq } => format!(
            "{} is asked for {}'s entry, and gives it up",
            replica(from),
            owner(from, seq)
        ),
        Action::HandOverArrives => match world.hand_over {
            Some((to, _)) => format!("{} learns that it may have it", replica(to)),
            None => "nothing".to_owned(),
        },
        Action::TakesOver { by, seq } => {
            format!(
                "{} wants to take {}'s entry over",
                replica(by),
                owner(by, seq)
            )
        }
        Action::TakesAnew { by } => {
            format!("{} wants the entry back that it gave up", replica(by))
        }
        Action::ServesAgain { by } => {
            format!("{} serves the holder by what the state says", replica(by))
        }
        Action::Evicts { by, seq } => {
            format!("{} takes {} for down", replica(by), owner(by, seq))
        }
        Action::Crash { replica: at } => format!("{} crashes", replica(at)),
        Action::Forgets { replica: at } => format!("{} loses its memory of the key", replica(at)),
        Action::LosesHint { to } => format!("a hint to {} gets lost", replica(to)),
        Action::Arrives { write, node } => format!(
            "{} arrives at a node that has {}",
            cell(setup, world.writes[usize::from(write)].cell),
            cell(setup, world.nodes[usize::from(node)])
        ),
        Action::Acknowledged { write } => {
            let write = &world.writes[usize::from(write)];
            let answered = if write.sync {
                ", and is synced".to_owned()
            } else {
                answer(setup, world, write.cell.value)
            };
            format!(
                "{} learns that a majority has {}{answered}",
                replica(write.by),
                cell(setup, write.cell)
            )
        }
        Action::WriteUnknown { write } => {
            let write = &world.writes[usize::from(write)];
            format!(
                "{} does not learn what became of {}",
                replica(write.by),
                cell(setup, write.cell)
            )
        }
    }
}

/// Who is notified of a write.
fn answer(setup: &Setup, world: &World, written: u8) -> String {
    let waits = |at: &usize| world.open_put(setup, *at) == Some(written);
    match (0..world.clients.len()).find(waits) {
        Some(at) => format!(", and tells {}", client(at)),
        None => String::new(),
    }
}

fn batch(setup: &Setup, batch: &[Intent]) -> String {
    let whose = |request: u8| client(setup.client_of(request));
    let one = |intent: &Intent| match *intent {
        Intent::Create { request, .. } => format!("create an entry for {}", whose(request)),
        Intent::Release { request, words, .. } => {
            let open = if words.open_write {
                ", a write open"
            } else {
                ""
            };
            format!("release {}{open}", whose(request))
        }
        Intent::Evict { request, .. } => format!("evict {}", whose(request)),
        Intent::TakeOver { seq, .. } => format!("take entry {seq} over"),
        Intent::Extend { .. } => "extend the fence".to_owned(),
    };
    batch.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// What is committed, in a few words.
fn state(setup: &Setup, world: &World) -> String {
    let stored = &world.stored;
    let Some(holder) = stored.holder() else {
        let unsynced = if stored.unsynced { ", unsynced" } else { "" };
        return format!("nobody holds the key{unsynced}");
    };
    let waiting = stored.entries.len() - 1;
    debug_assert!(head_seq(stored).is_some());
    format!(
        "{} holds the key at {} with grant {}{}{}",
        client(setup.client_of(request_of(holder))),
        replica(home_of(holder)),
        ts(stored.grant),
        if stored.unsynced { ", unsynced" } else { "" },
        if waiting > 0 {
            format!(", {waiting} waiting")
        } else {
            String::new()
        }
    )
}
