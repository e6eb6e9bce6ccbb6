//! What commands print: tables for people, JSON for programs.

use std::io::{self, IsTerminal, Write};
use std::ops::RangeInclusive;

/// How to print.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON document; fields as in the protobuf contract (snake_case).
    Json,
}

/// Prints one JSON document.
pub fn print_json(document: &serde_json::Value) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    serde_json::to_writer_pretty(&mut stdout, document)?;
    writeln!(stdout)?;
    stdout.flush()
}

/// Prints one JSON document in a line of its own, one of several.
pub fn print_json_line(document: &serde_json::Value) -> io::Result<()> {
    print_text(&format!("{document}\n"))
}

/// Prints text.
pub fn print_text(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Whether stdout takes colours: it is a terminal, and the user did not say otherwise.
pub fn colour() -> bool {
    io::stdout().is_terminal()
        && crate::remote::variable("NO_COLOR").is_none()
        && crate::remote::variable("TERM").as_deref() != Some("dumb")
}

/// Characters without a shape of their own that change how others are shown: a key or a label with them
/// could look like another one.
const REORDERING: [RangeInclusive<char>; 5] = [
    '\u{200b}'..='\u{200b}',
    '\u{200e}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{2069}',
    '\u{feff}'..='\u{feff}',
];

/// Text that is shown as one line, whatever is in it.
pub fn one_line(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let hidden = c.is_control() || REORDERING.iter().any(|range| range.contains(&c));
            let shown = (!hidden).then_some(c);
            let escaped = hidden.then(|| c.escape_default()).into_iter().flatten();
            shown.into_iter().chain(escaped)
        })
        .collect()
}

/// Aligned columns under a header.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: &[&str]) -> Table {
        Table {
            rows: vec![columns.iter().map(|&column| column.to_owned()).collect()],
        }
    }

    /// Adds a row. An empty cell is shown as `-`.
    pub fn row(&mut self, cells: Vec<String>) {
        let shown = cells.into_iter().map(|cell| match cell.as_str() {
            "" => "-".to_owned(),
            _ => one_line(&cell),
        });
        self.rows.push(shown.collect());
    }

    /// The whole table as text.
    pub fn render(&self, colour: bool) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                line.push_str(cell);
                let missing = width.saturating_sub(cell.chars().count());
                line.extend(std::iter::repeat_n(' ', missing));
            }
            let line = line.trim_end();
            if number == 0 && colour {
                text.push_str(&format!("\u{1b}[1m{line}\u{1b}[0m\n"));
            } else {
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_nothing_trails() {
        let mut table = Table::new(&["KEY", "OWNER", "WAITERS"]);
        table.row(vec!["a".into(), "billing".into(), "2".into()]);
        table.row(vec!["grüße".into(), String::new(), "10".into()]);
        assert_eq!(
            table.render(false),
            "KEY    OWNER    WAITERS\n\
             a      billing  2\n\
             grüße  -        10\n"
        );
    }

    #[test]
    fn colour_is_only_where_it_is_asked_for() {
        let table = Table::new(&["KEY"]);
        assert_eq!(table.render(false), "KEY\n");
        assert_eq!(table.render(true), "\u{1b}[1mKEY\u{1b}[0m\n");
    }

    #[test]
    fn a_label_cannot_play_with_the_terminal() {
        assert_eq!(one_line("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(one_line("pay\u{202e}nac"), "pay\\u{202e}nac");
    }
}
