//! The text of `locks top`: a line about the service, a table of keys, a table of replicas.

use std::time::{Duration, SystemTime};

use fermata_command::Span;
use fermata_command::output::Table;

use super::board::{Board, BoardKey, BoardReplica, Rates};
use crate::cli::cells::{IDENTITY, TABLE, table_of};

/// The whole text.
pub fn text(board: &Board, now: SystemTime, colour: bool) -> String {
    format!(
        "{}  {} of {} replicas  {}\n\n{}\n{}",
        time_of_day(now),
        board.answered(),
        board.replicas.len(),
        summary(board),
        keys(board).render(colour),
        replicas(board).render(colour)
    )
}

fn keys(board: &Board) -> Table {
    let columns = [
        TABLE,
        "KEY",
        "OWNER",
        IDENTITY,
        "WAITERS",
        "HELD",
        "GRANTS/MIN",
        "MEAN WAIT",
        "LONGEST",
    ];
    let shows_tables = board.keys.iter().any(|key| key.table != "default");
    let row = |key: &BoardKey| {
        let table = if shows_tables { &*key.table } else { "" };
        vec![
            table.to_owned(),
            key.key.clone(),
            key.owner.clone(),
            key.identity.clone(),
            key.waiters.to_string(),
            waited(key.held_for),
            key.waits.count.to_string(),
            waited(key.waits.mean()),
            waited(key.waits.longest),
        ]
    };
    table_of(&columns, board.keys.iter().map(row).collect())
}

fn replicas(board: &Board) -> Table {
    let columns = [
        "REPLICA",
        "ADDRESS",
        "VERSION",
        "SESSIONS",
        "KEYS",
        "GRANTS/S",
        "READS/S",
        "WRITES/S",
        "LWTS/S",
        "CONFLICTS",
    ];
    let row = |replica: &BoardReplica| {
        let Some(activity) = &replica.activity else {
            let mut cells = vec![String::new(); columns.len()];
            cells[0].clone_from(&replica.short);
            cells[1] = "does not answer".to_owned();
            return cells;
        };
        let rate = |of: fn(&Rates) -> f64| per_second(activity.rates.as_ref().map(of));
        vec![
            replica.short.clone(),
            activity.address.clone(),
            activity.version.clone(),
            activity.sessions.to_string(),
            activity.keys.to_string(),
            rate(|rates| rates.grants),
            rate(|rates| rates.reads),
            rate(|rates| rates.writes),
            rate(|rates| rates.transactions),
            activity.conflicts.to_string(),
        ]
    };
    table_of(&columns, board.replicas.iter().map(row).collect())
}

/// The service in one line.
fn summary(board: &Board) -> String {
    let rate = match per_second(board.grants_per_second) {
        none if none.is_empty() => String::new(),
        rate => format!("{rate} grants/s  "),
    };
    let waits = match board.waits.mean() {
        Some(mean) => format!(
            " after {} on average, {} at most",
            waited(Some(mean)),
            waited(board.waits.longest)
        ),
        None => String::new(),
    };
    format!(
        "{rate}last minute: {} grants{waits}  sessions: {}",
        board.waits.count, board.sessions
    )
}

/// In UTC, as in the logs of all replicas.
fn time_of_day(now: SystemTime) -> String {
    let time = prost_types::Timestamp::from(now).to_string();
    let (_, time) = time.split_once('T').unwrap_or_default();
    format!("{} UTC", time.get(..8).unwrap_or_default())
}

fn per_second(rate: Option<f64>) -> String {
    match rate {
        None => String::new(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

/// The length of a wait.
fn waited(span: Option<Duration>) -> String {
    match span {
        None => String::new(),
        Some(span) if span < Duration::from_secs(1) => format!("{}ms", span.as_millis()),
        Some(span) if span < Duration::from_secs(10) => format!("{:.1}s", span.as_secs_f64()),
        Some(span) => Span::from_secs(span.as_secs()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::super::board::Choice;
    use super::super::board::tests::{key, replica, silent, snapshot};
    use super::*;

    fn board(keys: Vec<fermata_proto::KeyActivity>) -> Board {
        let before = snapshot(10, vec![replica(1, 10, Vec::new())]);
        let now = snapshot(12, vec![replica(1, 40, keys), silent(2)]);
        let choice = Choice {
            limit: 9,
            ..Choice::default()
        };
        Board::new(now, Some(&before), &choice)
    }

    #[test]
    fn the_text_has_the_service_the_keys_and_the_replicas() {
        let stuck = fermata_proto::KeyActivity {
            held_for: Some(prost_types::Duration {
                seconds: 77,
                nanos: 0,
            }),
            ..key("c", "stuck", 0, 3)
        };
        let board = board(vec![key("b", "billing", 7, 2), key("a", "", 1, 0), stuck]);
        let noon = UNIX_EPOCH + Duration::from_secs(12 * 3600);
        assert_eq!(
            text(&board, noon, false),
            "12:00:00 UTC  1 of 2 replicas  15 grants/s  last minute: 8 grants after 2.0s on average, 5.0s at most  sessions: 3\n\
             \n\
             KEY  OWNER    WAITERS  HELD   GRANTS/MIN  MEAN WAIT  LONGEST\n\
             c    stuck    3        1m17s  0           -          5.0s\n\
             b    billing  2        -      7           2.0s       5.0s\n\
             a    -        0        -      1           2.0s       5.0s\n\
             \n\
             REPLICA   ADDRESS          VERSION  SESSIONS  KEYS  GRANTS/S  READS/S  WRITES/S  LWTS/S  CONFLICTS\n\
             00000001  10.0.0.1:7450    0.1.0    3         3     15        150      0.0       15      1\n\
             00000002  does not answer  -        -         -     -         -        -         -       -\n"
        );
    }

    #[test]
    fn the_identity_of_a_holder_has_a_column() {
        let mut known = key("a", "x", 1, 0);
        known.identity = "mallory".to_owned();
        let shown = keys(&board(vec![known])).render(false);
        assert!(shown.contains("mallory"), "{shown}");
    }

    #[test]
    fn spans_and_rates_are_as_exact_as_a_person_needs() {
        let ms = |ms| waited(Some(Duration::from_millis(ms)));
        assert_eq!(
            [ms(0), ms(250), ms(1_250), ms(14_900), ms(90_000)],
            ["0ms", "250ms", "1.2s", "14s", "1m30s"]
        );
        let rates = [None, Some(0.04), Some(9.94), Some(9.96), Some(1234.4)];
        assert_eq!(rates.map(per_second), ["", "0.0", "9.9", "10", "1234"]);
    }
}
