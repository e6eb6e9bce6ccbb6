use uuid::Uuid;

use super::*;
use crate::lock::{Key, TableName};
use crate::session::Observer;
use crate::store::SessionRow;

const TTL: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(2);

fn at(seconds: u64) -> Observed {
    Observer::new(Duration::MAX)
        .observe(Duration::ZERO)
        .plus(s(seconds))
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn session() -> SessionId {
    SessionId(Uuid::from_u128(7))
}

fn row(replica: u128, epoch: u32) -> SessionRow {
    SessionRow {
        id: session(),
        ttl_ms: 10_000,
        disconnect_grace_ms: 2_000,
        replica: ReplicaId(Uuid::from_u128(replica)),
        epoch,
        open: true,
        identity: String::new(),
        owner: String::new(),
        created_at_ms: 0,
    }
}

fn key() -> Arc<KeyId> {
    Arc::new(KeyId {
        table: TableName::default_table(),
        key: Key::parse("k", 9).unwrap(),
    })
}

fn table() -> SessionTable {
    SessionTable::new(2, 2)
}

fn keep(table: &SessionTable, row: SessionRow, now: Observed) -> bool {
    let reserved = table.reserve("");
    reserved.is_ok_and(|reserved| table.keep(&row, now, reserved))
}

fn renewed(valid_for: Duration) -> Renewed {
    Renewed {
        ttl: TTL,
        disconnect_grace: None,
        valid_for,
        durable: false,
    }
}

#[test]
fn a_kept_session_expires_once_nothing_renewed_it_for_its_ttl() {
    let table = table();
    assert!(keep(&table, row(1, 1), at(0)));
    assert_eq!(table.expire(at(9), 9), []);
    table.renew(session(), at(9), false).unwrap();
    assert_eq!(table.expire(at(10), 9), []);
    assert_eq!(table.expire(at(19), 9), [(session(), true)]);
    let ended = table.renew(session(), at(19), false);
    assert_eq!(ended, Err(NotRenewed::Ending));
    // Kept again by a late swap it stays ended.
    assert!(keep(&table, row(1, 2), at(19)));
    table.note_closed(session());
    let ended = table.renew(session(), at(19), false);
    assert_eq!(ended, Err(NotRenewed::Ended));
    assert_eq!(
        table.attach(session(), &key(), Seq(1), s(19)),
        Attached::Ended
    );
}

#[test]
fn one_that_was_ended_before_does_not_expire_and_is_still_to_be_closed() {
    let table = table();
    keep(&table, row(1, 1), at(0));
    assert!(table.end(session()));
    assert_eq!(table.expire(at(9), 9), []);
    assert_eq!(table.expire(at(10), 9), [(session(), false)]);
}

/// Its row is open still, so another replica may become its keeper, with a whole TTL.
#[test]
fn nobody_is_told_that_a_session_ended_before_its_row_says_so() {
    let table = table();
    keep(&table, row(1, 1), at(0));
    assert_eq!(table.expire(at(10), 9), [(session(), true)]);
    assert_eq!(
        table.renew(session(), at(10), false),
        Err(NotRenewed::Ending)
    );
    assert_eq!(table.begin_create(session(), s(10)), Err(NoRoom::Ending));
    assert_eq!(table.attach(session(), &key(), Seq(1), s(10)), Attached::Ok);
    let closing = table.begin_close(session());
    assert!(closing.is_some());
    assert!(table.begin_close(session()).is_none(), "one at a time");
    drop(closing);
    assert!(table.begin_close(session()).is_some());
    // Nobody else gives it a new TTL.
    assert!(table.begin_give(&row(2, 2), at(10), s(10)).is_none());
    table.note_closed(session());
    assert!(table.begin_close(session()).is_none());
    assert_eq!(
        table.renew(session(), at(10), false),
        Err(NotRenewed::Ended)
    );
}

/// The answer to the swap of that row came late.
#[test]
fn a_session_that_went_on_to_another_keeper_is_not_kept_by_a_row_before() {
    for is_known in [true, false] {
        let table = table();
        assert!(keep(&table, row(1, 6), at(0)));
        let giving = table.begin_give(&row(2, 7), at(0), s(100)).unwrap();
        // Nothing lives by it here, and what came of that change may not be known.
        table.due(s(101), &BTreeSet::new());
        match is_known {
            true => giving.done(),
            false => drop(giving),
        }
        assert!(!keep(&table, row(1, 6), at(101)));
        assert!(keep(&table, row(1, 8), at(101)));
        // What was read before that changes nothing.
        table.moved(&row(2, 7), s(102));
        assert!(table.is_kept(session()));
    }
}

#[test]
fn room_is_one_sessions_until_it_is_kept_or_given_up() {
    let table = SessionTable::new(1, 1);
    let reserved = table.reserve("").unwrap();
    assert!(table.reserve("").is_err());
    drop(reserved);
    assert!(keep(&table, row(1, 1), at(0)));
    assert!(table.reserve("").is_err() && table.reserve_open("").is_err());
    // One that nobody else can keep.
    let own = SessionRow {
        id: SessionId(Uuid::from_u128(8)),
        ..row(1, 1)
    };
    assert!(table.keep(&own, at(0), table.reserve_own("")));
    assert_eq!(table.count(), 2);
}

/// Of sessions that an earlier process or another replica kept.
#[test]
fn what_is_open_already_counts_for_whom_it_is_and_is_not_refused_for_its_share() {
    let table = SessionTable::new(100, 1);
    let of = |number: u128| SessionRow {
        id: SessionId(Uuid::from_u128(1_000 + number)),
        ..row(1, 1)
    };
    for number in 0..50 {
        assert!(table.keep(&of(number), at(0), table.reserve_own("one")));
    }
    for number in 50..95 {
        let reserved = table.reserve_open("one").unwrap();
        assert!(table.keep(&of(number), at(0), reserved));
    }
    assert_eq!(table.reserve("one").err(), Some(NoShare::ShareUsed));
    let all: Vec<_> = (0..5).map(|_| table.reserve_open("one").unwrap()).collect();
    assert_eq!(table.reserve_open("one").err(), Some(NoShare::Full));
    drop(all);
    assert!(table.reserve("other").is_ok());
    assert_eq!(table.inner().shares.len(), 1);
    // What another replica took does not count any more.
    for number in 0..50 {
        let taken = SessionRow {
            epoch: 2,
            replica: row(2, 2).replica,
            ..of(number)
        };
        table.moved(&taken, s(1));
    }
    assert!(table.reserve("one").is_ok());
}

#[test]
fn no_more_sessions_are_kept_and_no_more_entries_live_by_one_than_may() {
    let table = SessionTable::new(1, 1);
    assert!(keep(&table, row(1, 1), at(0)));
    let other = SessionRow {
        id: SessionId(Uuid::from_u128(8)),
        ..row(1, 1)
    };
    assert!(!keep(&table, other, at(0)));
    table.begin_create(session(), s(0)).unwrap();
    assert_eq!(table.begin_create(session(), s(0)), Err(NoRoom::Full));
    table.end_create(session());
    table.attach(session(), &key(), Seq(1), s(0));
    assert_eq!(table.begin_create(session(), s(0)), Err(NoRoom::Full));
    table.detach(session(), &key(), Seq(1));
    table.end(session());
    table.note_closed(session());
    assert_eq!(table.begin_create(session(), s(0)), Err(NoRoom::Ended));
}

#[test]
fn what_a_keeper_said_is_enough_while_two_thirds_of_it_are_left() {
    let table = table();
    assert_eq!(
        table.attach(session(), &key(), Seq(1), s(0)),
        Attached::Unknown
    );
    table.read(&row(2, 1), s(0));
    assert_eq!(table.attach(session(), &key(), Seq(2), s(0)), Attached::Ok);
    table.heard(session(), renewed(s(90)), s(100));
    // A tenth more than what passed here may have passed at the keeper.
    let said = table.said(session(), s(109)).unwrap();
    assert_eq!((said.renewed.valid_for, said.is_fresh), (s(80), true));
    let said = table.said(session(), s(136)).unwrap();
    assert_eq!((said.renewed.valid_for, said.is_fresh), (s(50), false));
    assert!(table.said(session(), s(181)).is_none());
    // What another keeper says is asked anew.
    table.heard(session(), renewed(s(9)), s(100));
    table.read(&row(3, 2), s(101));
    assert!(table.said(session(), s(101)).is_none());
    // An older row changes nothing.
    table.read(&row(2, 1), s(101));
    assert_eq!(table.keeper(session()).unwrap().epoch, 2);
}

#[test]
fn a_renewal_is_passed_on_every_third_of_the_ttl_and_read_again_where_it_is_used() {
    let table = table();
    table.attach(session(), &key(), Seq(1), s(0));
    table.read(&row(2, 1), s(0));
    assert!(table.is_due(session(), s(0)));
    assert!(!table.is_due(session(), s(3)));
    assert!(table.is_due(session(), s(4)));
    let down = |replica| BTreeSet::from([row(replica, 1).replica]);
    let due = |boot| table.due(boot, &down(9)).pop().unwrap();
    assert!(table.due(s(5), &down(9)).is_empty());
    assert!(table.due(s(5), &down(2)).pop().unwrap().read);
    assert!(due(s(10)).read);
    table.ended_elsewhere(session(), s(10));
    assert!(due(s(10)).ended);
}

#[test]
fn a_session_that_is_taken_over_keeps_what_lives_by_it() {
    let table = table();
    table.attach(session(), &key(), Seq(1), s(0));
    table.read(&row(2, 1), s(0));
    assert!(keep(&table, row(1, 2), at(5)));
    assert_eq!(table.keys_of(session()), [key()]);
    // And it may go elsewhere again.
    table.moved(&row(3, 3), s(100));
    assert_eq!((table.count(), table.entries_of(session())), (0, 1));
    assert_eq!(table.expire(at(999), 9), []);
    assert_eq!(table.keeper(session()).unwrap().replica, row(3, 3).replica);
}

#[test]
fn a_session_is_forgotten_once_its_row_is_closed_and_nothing_lives_by_it() {
    let table = table();
    keep(&table, row(1, 1), at(0));
    table.attach(session(), &key(), Seq(1), s(0));
    assert!(table.end(session()));
    table.note_closed(session());
    assert_eq!(table.remove_if_done(session()), RowOfDone::Stays);
    table.detach(session(), &key(), Seq(1));
    assert!(table.emptied(session()).is_none());
    assert_eq!(table.remove_if_done(session()), RowOfDone::Goes);
    assert_eq!(
        table.renew(session(), at(1), false),
        Err(NotRenewed::NotKept)
    );
}

#[test]
fn only_the_row_of_a_session_from_before_waits_for_what_was_not_taken_over() {
    let table = table();
    keep(&table, row(1, 1), at(0));
    table.note_inherited(session());
    table.end(session());
    table.note_closed(session());
    assert_eq!(
        table.remove_if_done(session()),
        RowOfDone::GoesOnceRecovered
    );
    assert_eq!(table.remove_if_done(session()), RowOfDone::Stays);
}

#[test]
fn a_session_that_a_create_used_to_its_end_is_forgotten_after_it() {
    let table = table();
    keep(&table, row(1, 1), at(0));
    table.begin_create(session(), s(0)).unwrap();
    table.end(session());
    table.note_closed(session());
    assert_eq!(table.remove_if_done(session()), RowOfDone::Stays);
    assert_eq!(table.take_done(), BTreeSet::new());
    table.end_create(session());
    assert_eq!(table.take_done(), BTreeSet::from([session()]));
    assert_eq!(table.remove_if_done(session()), RowOfDone::Goes);
    assert_eq!(table.count(), 0);
}

#[test]
fn a_session_that_is_given_away_is_as_valid_as_its_lease_was_until_its_next_keeper_is_asked() {
    let table = table();
    assert!(keep(&table, row(1, 1), at(0)));
    table.attach(session(), &key(), Seq(1), s(100));
    table.renew(session(), at(2), false).unwrap();
    let giving = table.begin_give(&row(2, 2), at(5), s(105)).unwrap();
    assert_eq!(
        table.renew(session(), at(5), false),
        Err(NotRenewed::NotKept)
    );
    // Seven of its ten seconds are left, of which its grace may be told.
    let said = table.said(session(), s(105)).unwrap();
    assert_eq!((said.renewed.valid_for, said.is_fresh), (GRACE, true));
    assert!(table.said(session(), s(107)).is_none());
    // Nobody is asked while the row may still say otherwise.
    assert!(!table.is_due(session(), s(106)));
    // Where it was not given, its row says who keeps it.
    drop(giving);
    assert!(table.said(session(), s(106)).is_none());
    assert_eq!(table.keeper(session()), None);
}

#[test]
fn those_that_were_heard_of_last_come_first_where_all_are_given_away() {
    let table = table();
    let other = SessionId(Uuid::from_u128(77));
    assert!(keep(&table, row(1, 1), at(0)));
    let row_of_other = SessionRow {
        id: other,
        ..row(1, 1)
    };
    assert!(keep(&table, row_of_other, at(1)));
    assert_eq!(table.kept(), [other, session()]);
    table.renew(session(), at(2), false).unwrap();
    assert_eq!(table.kept(), [session(), other]);
    assert!(table.end(other));
    assert_eq!(table.kept(), [session()]);
}
