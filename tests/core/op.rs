//! Commands from chance: aimed at a state that somebody saw, mostly well, now and then badly.

use fermata::lock::{
    Command, Create, Evidence, Fence, Liveness, Mode, ReplicaId, Seq, SessionId, State, Tag,
};
use proptest::prelude::*;
use uuid::Uuid;

/// Which entry is meant.
#[derive(Clone, Copy, Debug)]
pub enum Pick {
    /// The one with so many ahead of it, or the last.
    Live(usize),
    /// The one so far below the next number: over, live or yet to come.
    Below(u64),
}

/// Which replica is named.
#[derive(Clone, Copy, Debug)]
pub enum Who {
    Its,
    Replica(u8),
}

/// Which grant or fence is named.
#[derive(Clone, Copy, Debug)]
pub enum Named {
    Present,
    Missing,
    Off(i8),
}

#[derive(Clone, Copy, Debug)]
pub enum Past {
    None,
    /// So far from the clock that the caller sees.
    Near(i8),
    Last,
}

#[derive(Clone, Copy, Debug)]
pub enum Proof {
    Silent { late: bool },
    SessionEnded { other: bool },
    Unclaimed { home: Who, grant: Named },
    Forced,
}

/// A command before it is aimed.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    Create {
        request: u8,
        /// Which argument differs from what this request says else; 0 for none.
        twist: u8,
        home: u8,
        past: Past,
    },
    Release {
        pick: Pick,
        wrong_tag: bool,
        home: Who,
        grant: Named,
        synced: bool,
        open_write: bool,
    },
    Evict {
        pick: Pick,
        wrong_tag: bool,
        proof: Proof,
    },
    TakeOver {
        pick: Pick,
        from: Who,
        fence: Named,
        old_epoch: bool,
        to: u8,
    },
    Extend {
        pick: Pick,
        home: Who,
        fence: Named,
        past: Past,
    },
}

fn pick() -> impl Strategy<Value = Pick> {
    prop_oneof![
        6 => (0..4_usize).prop_map(Pick::Live),
        1 => (0..8_u64).prop_map(Pick::Below),
    ]
}

fn who() -> impl Strategy<Value = Who> {
    prop_oneof![4 => Just(Who::Its), 1 => (0..3_u8).prop_map(Who::Replica)]
}

fn named() -> impl Strategy<Value = Named> {
    prop_oneof![
        6 => Just(Named::Present),
        1 => Just(Named::Missing),
        1 => (-3..4_i8).prop_map(Named::Off),
    ]
}

fn past() -> impl Strategy<Value = Past> {
    prop_oneof![
        8 => Just(Past::None),
        3 => (-20..20_i8).prop_map(Past::Near),
        1 => Just(Past::Last),
    ]
}

fn proof() -> impl Strategy<Value = Proof> {
    prop_oneof![
        any::<bool>().prop_map(|late| Proof::Silent { late }),
        any::<bool>().prop_map(|other| Proof::SessionEnded { other }),
        (who(), named()).prop_map(|(home, grant)| Proof::Unclaimed { home, grant }),
        Just(Proof::Forced),
    ]
}

fn seldom() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.06)
}

pub fn any_op() -> impl Strategy<Value = Op> {
    let twist = prop_oneof![8 => Just(0_u8), 1 => 1..5_u8];
    let create =
        (0..7_u8, twist, 0..3_u8, past()).prop_map(|(request, twist, home, past)| Op::Create {
            request,
            twist,
            home,
            past,
        });
    let release = (
        pick(),
        seldom(),
        who(),
        named(),
        any::<bool>(),
        prop::bool::weighted(0.2),
    )
        .prop_map(
            |(pick, wrong_tag, home, grant, synced, open_write)| Op::Release {
                pick,
                wrong_tag,
                home,
                grant,
                synced,
                open_write,
            },
        );
    let evict = (pick(), seldom(), proof()).prop_map(|(pick, wrong_tag, proof)| Op::Evict {
        pick,
        wrong_tag,
        proof,
    });
    let take_over = (pick(), who(), named(), seldom(), 0..3_u8).prop_map(
        |(pick, from, fence, old_epoch, to)| Op::TakeOver {
            pick,
            from,
            fence,
            old_epoch,
            to,
        },
    );
    let extend = (Just(Pick::Live(0)), who(), named(), past());
    let extend = prop_oneof![5 => extend, 1 => (pick(), who(), named(), past())].prop_map(
        |(pick, home, fence, past)| Op::Extend {
            pick,
            home,
            fence,
            past,
        },
    );
    prop_oneof![6 => create, 4 => release, 2 => evict, 2 => take_over, 2 => extend]
}

/// How far the clock goes before a step, in microseconds; backwards as well.
pub fn tick() -> impl Strategy<Value = i64> {
    prop_oneof![4 => Just(0_i64), 4 => 1..8_i64, 1 => -20..0_i64, 1 => Just(500_i64)]
}

pub fn later(now_us: u64, tick: i64) -> u64 {
    now_us.saturating_add_signed(tick)
}

pub fn replica(n: u8) -> ReplicaId {
    ReplicaId(Uuid::from_u128(0xa0 + u128::from(n)))
}

fn create(request: u8, twist: u8, home: u8, past: Option<u64>) -> Create {
    let id = u128::from(request);
    let session = SessionId(Uuid::from_u128(0x5e50 + id % 2));
    let liveness = match (request % 3, twist) {
        (0, 4) => Liveness::Session(session),
        (0, 1) => Liveness::Own { ttl_ms: 999 },
        (0, _) => Liveness::Own { ttl_ms: 1_000 },
        (_, 4) => Liveness::Own { ttl_ms: 1_000 },
        (_, 1) => Liveness::Session(SessionId(Uuid::from_u128(0xbad))),
        _ => Liveness::Session(session),
    };
    Create {
        request_id: Uuid::from_u128(id),
        mode: Mode::Exclusive,
        liveness,
        home: replica(home),
        identity: if twist == 2 { "mallory" } else { "alice" }.into(),
        owner: if twist == 3 { "job 8" } else { "job 7" }.into(),
        created_at_ms: home.into(),
        past,
    }
}

/// What is named of an entry as somebody saw it.
struct Target {
    seq: Seq,
    tag: Tag,
    home: ReplicaId,
    epoch: u32,
    liveness: Liveness,
}

impl Target {
    fn of(pick: Pick, view: &State) -> Target {
        let live = match pick {
            Pick::Live(at) => view.entries.get(at).or(view.entries.back()),
            Pick::Below(by) => view.entry(Seq(view.next.0.saturating_sub(by))),
        };
        if let Some(entry) = live {
            return Target {
                seq: entry.seq,
                tag: entry.tag(),
                home: entry.home,
                epoch: entry.epoch,
                liveness: entry.liveness,
            };
        }
        let seq = match pick {
            Pick::Live(at) => Seq(view.next.0.saturating_sub(at as u64)),
            Pick::Below(by) => Seq(view.next.0.saturating_sub(by)),
        };
        let ended = view.ended.entries.iter().find(|e| e.seq == seq);
        Target {
            seq,
            tag: ended.map_or(Tag::of(Uuid::nil()), |e| e.tag),
            home: replica(0),
            epoch: 0,
            liveness: Liveness::Own { ttl_ms: 1_000 },
        }
    }

    fn named(&self, who: Who) -> ReplicaId {
        match who {
            Who::Its => self.home,
            Who::Replica(n) => replica(n),
        }
    }

    fn tag(&self, wrong: bool) -> Tag {
        if wrong {
            Tag::of(Uuid::from_u128(0xbad))
        } else {
            self.tag
        }
    }
}

fn past_of(past: Past, now_us: u64) -> Option<u64> {
    match past {
        Past::None => None,
        Past::Near(by) => Some(now_us.saturating_add_signed(by.into())),
        Past::Last => Some(u64::MAX),
    }
}

fn fence_of(named: Named, present: Fence) -> Option<Fence> {
    match named {
        Named::Present => Some(present),
        Named::Missing => None,
        Named::Off(by) => Some(Fence(present.0.saturating_add_signed(by.into()))),
    }
}

impl Op {
    /// The command of somebody who saw this state.
    pub fn aim(&self, view: &State, now_us: u64) -> Command {
        match *self {
            Op::Create {
                request,
                twist,
                home,
                past,
            } => Command::Create(create(request, twist, home, past_of(past, now_us))),
            Op::Release {
                pick,
                wrong_tag,
                home,
                grant,
                synced,
                open_write,
            } => {
                let target = Target::of(pick, view);
                Command::Release {
                    seq: target.seq,
                    tag: target.tag(wrong_tag),
                    home: target.named(home),
                    grant: fence_of(grant, view.grant),
                    synced,
                    open_write,
                }
            }
            Op::Evict {
                pick,
                wrong_tag,
                proof,
            } => {
                let target = Target::of(pick, view);
                Command::Evict {
                    seq: target.seq,
                    tag: target.tag(wrong_tag),
                    evidence: evidence(proof, &target, view),
                }
            }
            Op::TakeOver {
                pick,
                from,
                fence,
                old_epoch,
                to,
            } => {
                let target = Target::of(pick, view);
                let holds = view.holder().is_some_and(|e| e.seq == target.seq);
                let present = if holds { view.fence } else { Fence::NONE };
                Command::TakeOver {
                    seq: target.seq,
                    from_home: target.named(from),
                    from_fence: fence_of(fence, present).unwrap_or(Fence::NONE),
                    from_epoch: target.epoch.saturating_sub(old_epoch.into()),
                    to_home: replica(to),
                }
            }
            Op::Extend {
                pick,
                home,
                fence,
                past,
            } => {
                let target = Target::of(pick, view);
                Command::Extend {
                    seq: target.seq,
                    home: target.named(home),
                    fence: fence_of(fence, view.fence).unwrap_or(view.grant),
                    past: past_of(past, now_us),
                }
            }
        }
    }
}

fn evidence(proof: Proof, target: &Target, view: &State) -> Evidence {
    match proof {
        Proof::Silent { late } => Evidence::Silent {
            epoch: target.epoch.saturating_sub(late.into()),
        },
        Proof::SessionEnded { other } => match target.liveness {
            Liveness::Session(session) if !other => Evidence::SessionEnded(session),
            _ => Evidence::SessionEnded(SessionId(Uuid::from_u128(0x5e50))),
        },
        Proof::Unclaimed { home, grant } => Evidence::Unclaimed {
            home: target.named(home),
            grant: fence_of(grant, view.grant).unwrap_or(Fence::NONE),
        },
        Proof::Forced => Evidence::Forced {
            by: "root".into(),
            why: "stuck".into(),
        },
    }
}
