use super::*;

fn ended(seq: u64) -> EndedEntry {
    EndedEntry {
        seq: Seq(seq),
        tag: tag(seq),
        reason: EndReason::Expired,
    }
}

fn tag(seq: u64) -> Tag {
    Tag::of(Uuid::from_u128(seq.into()))
}

fn entry(seq: u64) -> Arc<Entry> {
    Arc::new(Entry {
        seq: Seq(seq),
        mode: Mode::Exclusive,
        request_id: Uuid::from_u128(seq.into()),
        liveness: Liveness::Own { ttl_ms: 1_000 },
        epoch: 0,
        home: ReplicaId(Uuid::from_u128(0xa)),
        identity: "".into(),
        owner: "".into(),
        created_at_ms: 0,
    })
}

/// Entries 1 to 8 were given out; 5 holds the key, 7 waits; 2 and 6 expired, the rest was released.
fn state() -> State {
    State {
        version: 12,
        next: Seq(9),
        head: Seq(5),
        grant: Fence(100),
        fence: Fence(116),
        width: 16,
        unsynced: true,
        entries: [entry(5), entry(7)].into(),
        ended: Ended {
            entries: [ended(2), ended(6)].into(),
            complete_from: Seq(2),
        },
    }
}

fn lookup(seq: u64) -> Lookup {
    state().lookup(Seq(seq), tag(seq))
}

#[test]
fn an_entry_is_live_ended_or_never_was() {
    assert_eq!(lookup(5), Lookup::Live(0));
    assert_eq!(lookup(7), Lookup::Live(1));
    assert_eq!(lookup(3), Lookup::Ended(EndedAs::Released));
    assert_eq!(lookup(8), Lookup::Ended(EndedAs::Released));
    assert_eq!(lookup(6), Lookup::Ended(EndedAs::Lost(EndReason::Expired)));
    assert_eq!(lookup(1), Lookup::Ended(EndedAs::NoLongerKept));
    assert_eq!(lookup(9), Lookup::NeverIssued);
    assert_eq!(lookup(0), Lookup::NeverIssued);
    assert_eq!(lookup(u64::MAX), Lookup::NeverIssued);
}

#[test]
fn a_tag_that_does_not_belong_to_the_entry_finds_nothing() {
    assert_eq!(state().lookup(Seq(5), tag(7)), Lookup::NeverIssued);
    assert_eq!(state().lookup(Seq(6), tag(7)), Lookup::NeverIssued);
}

#[test]
fn positions_count_the_entries_ahead() {
    let state = state();
    assert_eq!(state.position(Seq(5)), Some(0));
    assert_eq!(state.position(Seq(7)), Some(1));
    assert_eq!(state.position(Seq(6)), None);
    assert_eq!(state.entry(Seq(7)), Some(&entry(7)));
    assert_eq!(state.holder(), Some(&entry(5)));
}

#[test]
fn what_is_forgotten_of_the_ends_is_never_taken_for_a_clean_release() {
    let mut ended = Ended {
        entries: VecDeque::new(),
        complete_from: Seq::FIRST,
    };
    for (seq, complete_from) in [(4, 1), (2, 1), (9, 5), (7, 5), (8, 10)] {
        ended.push(self::ended(seq), 2);
        assert_eq!(ended.complete_from, Seq(complete_from), "after {seq}");
    }
    assert_eq!(ended.entries, [self::ended(7), self::ended(8)]);
}

#[test]
fn with_no_room_for_ends_the_list_is_complete_after_the_last_one() {
    let mut ended = state().ended;
    ended.push(self::ended(8), 0);
    assert!(ended.entries.is_empty());
    assert_eq!(ended.complete_from, Seq(9));
}

#[test]
fn a_state_that_holds_together_passes_the_check() {
    assert_eq!(State::default().check(), Ok(()));
    assert_eq!(state().check(), Ok(()));
}

#[test]
fn a_damaged_state_is_told_by_what_is_wrong_with_it() {
    let check = |damage: fn(&mut State)| {
        let mut state = state();
        damage(&mut state);
        state.check().err().unwrap_or("nothing")
    };
    let found = [
        check(|s| s.next = Seq(0)),
        check(|s| s.next = Seq(Seq::LAST.0 + 2)),
        check(|s| s.fence = Fence(Fence::MAX)),
        check(|s| s.fence = Fence(u64::MAX)),
        check(|s| s.head = Seq(4)),
        check(|s| s.entries.clear()),
        check(|s| s.entries.push_back(entry(7))),
        check(|s| s.next = Seq(7)),
        check(|s| {
            s.entries.clear();
            s.head = s.next;
        }),
        check(|s| s.grant = Fence(117)),
        check(|s| s.ended.entries.push_back(ended(9))),
        check(|s| s.ended.entries.push_back(ended(0))),
        check(|s| s.ended.entries.push_back(ended(7))),
        check(|s| s.ended.complete_from = Seq(10)),
        check(|s| s.ended.complete_from = Seq(0)),
    ];
    let expected = [
        "next is out of range",
        "next is out of range",
        "fence is out of range",
        "fence is out of range",
        "head is not the first live entry",
        "head is not the first live entry",
        "entries are out of order",
        "an entry is not below next",
        "a grant without a holder",
        "grant is above fence",
        "an ended entry was never given out",
        "an ended entry was never given out",
        "an ended entry is live",
        "the list of ends is complete from an entry out of range",
        "the list of ends is complete from an entry out of range",
    ];
    assert_eq!(found, expected);
}
