//! The two tables of `locks top`, as text in cells; and which of their columns fit a width.

use std::time::Duration;

use fermata_command::Span;
use fermata_command::output::{Table, cell, padded, width as columns_of};

use super::board::{Board, Rates};
use crate::cli::locks::IDENTITY;

/// A key or a label takes no more than this where the others need the room.
const LONG_MAX: usize = 40;
/// Between columns.
pub const GAP: usize = 2;

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub title: &'static str,
    /// Where the width does not do for all of them, the highest goes first; those with 0 stay.
    leaves: u8,
    /// What it tells, for `?`.
    pub means: &'static str,
}

const fn column(title: &'static str, leaves: u8, means: &'static str) -> Column {
    Column {
        title,
        leaves,
        means,
    }
}

const TABLE: &str = "TABLE";

/// [`TABLE`] only where a key is not of the default one, [`IDENTITY`] only where a holder has one.
const KEYS: [Column; 9] = [
    column(TABLE, 4, "the table of the key"),
    column("KEY", 0, "waited for, or changed hands in the last minute"),
    column(
        "OWNER",
        2,
        "the label of the latest holder; +1: another replica says another",
    ),
    column(IDENTITY, 3, "who that is, as far as the server knows"),
    column("WAITERS", 0, "how many wait behind the holder"),
    column(
        "HELD",
        1,
        "for how long the holder has had it while they wait",
    ),
    column(
        "GRANTS/MIN",
        0,
        "how often it was granted in the last minute",
    ),
    column("MEAN WAIT", 5, "from entry to grant, of those grants"),
    column("LONGEST", 6, "the longest of these waits"),
];

const REPLICAS: [Column; 10] = [
    column("REPLICA", 0, "the start of its UUID"),
    column("ADDRESS", 1, "where it serves"),
    column("VERSION", 8, "its version"),
    column("SESSIONS", 3, "open ones that it keeps"),
    column("KEYS", 4, "held, waited for, or just used"),
    column("GRANTS/S", 0, "since the answer before"),
    column("READS/S", 6, "asked of Cassandra, since the answer before"),
    column("WRITES/S", 7, "plain ones, likewise"),
    column("LWTS/S", 5, "lightweight transactions, likewise"),
    column(
        "CONFLICTS",
        9,
        "changes that met another's, since its start",
    ),
];

/// One table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sheet {
    pub columns: Vec<Column>,
    /// As many cells as columns; shown as one line each.
    pub rows: Vec<Vec<String>>,
}

impl Sheet {
    fn new(columns: &[Column]) -> Sheet {
        Sheet {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    fn row(&mut self, cells: Vec<String>) {
        self.rows
            .push(cells.iter().map(|text| cell(text)).collect());
    }

    /// The busiest keys.
    pub fn keys(board: &Board) -> Sheet {
        let tables = board.keys.iter().any(|key| key.table != "default");
        let identities = board.keys.iter().any(|key| !key.identity.is_empty());
        let is_shown = |column: &Column| match column.title {
            TABLE => tables,
            IDENTITY => identities,
            _ => true,
        };
        let columns: Vec<Column> = KEYS.into_iter().filter(is_shown).collect();
        let mut sheet = Sheet::new(&columns);
        for key in &board.keys {
            let owner = match key.other_owners {
                0 => key.owner.clone(),
                others => format!("{} +{others}", key.owner),
            };
            let cells = [
                key.table.clone(),
                key.key.clone(),
                owner,
                key.identity.clone(),
                key.waiters.to_string(),
                waited(key.held_for),
                key.waits.count.to_string(),
                waited(key.waits.mean()),
                waited(key.waits.longest),
            ];
            let shown = KEYS.iter().zip(cells);
            let shown = shown.filter(|(column, _)| is_shown(column));
            sheet.row(shown.map(|(_, cell)| cell).collect());
        }
        sheet
    }

    /// The replicas.
    pub fn replicas(board: &Board) -> Sheet {
        let mut sheet = Sheet::new(&REPLICAS);
        for replica in &board.replicas {
            let Some(activity) = &replica.activity else {
                let mut cells = vec![String::new(); REPLICAS.len()];
                cells[0].clone_from(&replica.short);
                cells[1] = "does not answer".to_owned();
                sheet.row(cells);
                continue;
            };
            let rate = |of: fn(&Rates) -> f64| activity.rates.as_ref().map(of);
            sheet.row(vec![
                replica.short.clone(),
                activity.address.clone(),
                activity.version.clone(),
                activity.sessions.to_string(),
                activity.keys.to_string(),
                per_second(rate(|rates| rates.grants)),
                per_second(rate(|rates| rates.reads)),
                per_second(rate(|rates| rates.writes)),
                per_second(rate(|rates| rates.transactions)),
                activity.conflicts.to_string(),
            ]);
        }
        sheet
    }

    /// As plain text.
    pub fn text(&self) -> String {
        let titles: Vec<&str> = self.columns.iter().map(|column| column.title).collect();
        let mut table = Table::new(&titles);
        for row in &self.rows {
            table.row(row.clone());
        }
        table.render(false)
    }

    /// The columns that fit this width, by their number, each with its own width. What stays though it does not fit is
    /// cut where it is drawn.
    pub fn fitting(&self, width: usize) -> Vec<(usize, usize)> {
        let wide = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            let widest = cells.map(|cell| columns_of(cell)).max();
            let title = self.columns[at].title.len();
            widest.unwrap_or(0).min(LONG_MAX).max(title)
        };
        let mut kept: Vec<(usize, usize)> =
            (0..self.columns.len()).map(|at| (at, wide(at))).collect();
        let total = |kept: &[(usize, usize)]| -> usize {
            let widths: usize = kept.iter().map(|(_, wide)| wide).sum();
            widths + GAP * kept.len().saturating_sub(1)
        };
        while total(&kept) > width {
            let leaves = |(at, _): &(usize, usize)| self.columns[*at].leaves;
            let first = kept.iter().max_by_key(|column| leaves(column)).copied();
            match first.filter(|column| leaves(column) > 0) {
                Some(first) => kept.retain(|column| *column != first),
                None => break,
            }
        }
        // The first one gives way before others are cut off, and takes what is left where it had to be cut.
        let others = total(&kept).saturating_sub(kept.first().map_or(0, |(_, wide)| *wide));
        if let Some((at, first)) = kept.first_mut() {
            let whole = self.rows.iter().map(|row| columns_of(&row[*at]));
            let whole = whole.max().unwrap_or(0).max(*first);
            *first = whole.min(width.saturating_sub(others)).max(1);
        }
        kept
    }
}

/// What the columns of both tables tell.
pub fn meanings() -> Vec<String> {
    let lines = |columns: &[Column]| -> Vec<String> {
        let line = |column: &Column| format!("{} {}", padded(column.title, 11), column.means);
        columns.iter().map(line).collect()
    };
    let mut all = lines(&KEYS);
    all.push(String::new());
    all.extend(lines(&REPLICAS));
    all
}

/// A rate.
pub fn per_second(rate: Option<f64>) -> String {
    match rate {
        None => String::new(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

/// How long somebody waited.
pub fn waited(span: Option<Duration>) -> String {
    match span {
        None => String::new(),
        Some(span) if span < Duration::from_secs(1) => format!("{}ms", span.as_millis()),
        Some(span) if span < Duration::from_secs(10) => format!("{:.1}s", span.as_secs_f64()),
        Some(span) => Span::from_secs(span.as_secs()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::board::tests::{key, replica, silent, snapshot};
    use super::super::board::{Board, Choice};
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

    fn titles(sheet: &Sheet, width: usize) -> Vec<&'static str> {
        let fitting = sheet.fitting(width);
        fitting
            .iter()
            .map(|(at, _)| sheet.columns[*at].title)
            .collect()
    }

    #[test]
    fn the_tables_tell_what_the_board_has() {
        let stuck = fermata_proto::KeyActivity {
            held_for: Some(prost_types::Duration {
                seconds: 77,
                nanos: 0,
            }),
            ..key("c", "stuck", 0, 3)
        };
        let board = board(vec![key("b", "billing", 7, 2), key("a", "", 1, 0), stuck]);
        assert_eq!(
            Sheet::keys(&board).text(),
            "KEY  OWNER    WAITERS  HELD   GRANTS/MIN  MEAN WAIT  LONGEST\n\
             c    stuck    3        1m17s  0           -          5.0s\n\
             b    billing  2        -      7           2.0s       5.0s\n\
             a    -        0        -      1           2.0s       5.0s\n"
        );
        assert_eq!(
            Sheet::replicas(&board).text(),
            "REPLICA   ADDRESS          VERSION  SESSIONS  KEYS  GRANTS/S  READS/S  WRITES/S  LWTS/S  CONFLICTS\n\
             00000001  10.0.0.1:7450    0.1.0    3         3     15        150      0.0       15      1\n\
             00000002  does not answer  -        -         -     -         -        -         -       -\n"
        );
    }

    #[test]
    fn the_table_is_told_where_there_are_others_than_the_default_one() {
        let mut other = key("a", "x", 1, 0);
        other.table = "orders".to_owned();
        let sheet = Sheet::keys(&board(vec![other]));
        assert!(sheet.text().starts_with("TABLE   KEY"), "{}", sheet.text());
    }

    #[test]
    fn who_holds_a_key_is_shown_beside_the_label_where_anybody_has_an_identity() {
        let known = fermata_proto::KeyActivity {
            identity: "mallory".to_owned(),
            ..key("b", "billing", 7, 2)
        };
        assert_eq!(
            Sheet::keys(&board(vec![known, key("a", "", 1, 0)])).text(),
            "KEY  OWNER    IDENTITY  WAITERS  HELD  GRANTS/MIN  MEAN WAIT  LONGEST\n\
             b    billing  mallory   2        -     7           2.0s       5.0s\n\
             a    -        -         0        -     1           2.0s       5.0s\n"
        );
    }

    #[test]
    fn a_cell_cannot_play_with_the_terminal() {
        let sheet = Sheet::keys(&board(vec![key("a\u{1b}[2J", "pay\u{202e}nac", 1, 0)]));
        assert_eq!(sheet.rows[0][0], "a\\u{1b}[2J");
        assert_eq!(sheet.rows[0][1], "pay\\u{202e}nac");
    }

    #[test]
    fn columns_leave_by_their_worth_and_those_that_stay_give_way() {
        let sheet = Sheet::keys(&board(vec![key("orders/42", "billing", 7, 2)]));
        assert_eq!(titles(&sheet, 200).len(), 7);
        assert_eq!(
            titles(&sheet, 49),
            ["KEY", "OWNER", "WAITERS", "HELD", "GRANTS/MIN"]
        );
        assert_eq!(titles(&sheet, 40), ["KEY", "WAITERS", "HELD", "GRANTS/MIN"]);
        assert_eq!(titles(&sheet, 31), ["KEY", "WAITERS", "GRANTS/MIN"]);
        for width in 0..120 {
            let fitting = sheet.fitting(width);
            let used: usize = fitting.iter().map(|(_, wide)| wide + GAP).sum();
            // One cell of the key, the two numbers with their gaps.
            assert!(used - GAP <= width.max(22), "{width}: {fitting:?}");
        }
    }

    #[test]
    fn a_long_key_takes_what_is_left() {
        let sheet = Sheet::keys(&board(vec![key(&"k".repeat(500), "billing", 7, 2)]));
        let key_in = |width| sheet.fitting(width)[0].1;
        assert_eq!((key_in(600), key_in(100)), (500, 44));
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
