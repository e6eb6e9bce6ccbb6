//! The output of commands: tables for people, JSON for programs.

use std::io::{self, IsTerminal, Write};
use std::ops::RangeInclusive;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::environment::variable;

/// The form of output.
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
    print_text(&format!("{document:#}\n"))
}

/// Prints one JSON document in one line.
pub fn print_json_line(document: &serde_json::Value) -> io::Result<()> {
    print_text(&format!("{document}\n"))
}

/// Prints text.
pub fn print_text(text: &str) -> io::Result<()> {
    print_bytes(text.as_bytes())
}

/// Prints bytes unchanged. Errors name stdout.
pub fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let printed = stdout.write_all(bytes).and_then(|()| stdout.flush());
    printed
        .map_err(|error| io::Error::new(error.kind(), format!("cannot write to stdout: {error}")))
}

/// Writes lines to stderr, in one write. Control characters (of a key, for example) are escaped. Failures of stderr are ignored.
pub fn say(text: &str) {
    let _ = io::stderr().write_all(format!("fermata: {}\n", lines(text)).as_bytes());
}

/// Whether stdout shows colours: it is a terminal, and NO_COLOR is not set.
pub fn colour() -> bool {
    io::stdout().is_terminal() && variable("NO_COLOR").is_none() && moves_cursor()
}

/// Whether the terminal can move its cursor. A terminal without TERM (as of `cron` or an editor) cannot.
pub fn moves_cursor() -> bool {
    is_able(variable("TERM").as_deref())
}

fn is_able(term: Option<&str>) -> bool {
    term.is_some_and(|term| term != "dumb")
}

/// Characters without a shape, or that change the shape of others: with them a key or a label could look like another one. These
/// are Default_Ignorable_Code_Point of Unicode 16, the separators of lines and paragraphs, and the format characters of
/// annotations and hieroglyphs.
const HIDDEN: [RangeInclusive<char>; 18] = [
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{61c}'..='\u{61c}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{3164}'..='\u{3164}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fffb}',
    '\u{13430}'..='\u{1343f}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0000}'..='\u{e0fff}',
];

/// Any text as one line.
pub fn one_line(text: &str) -> String {
    shown(text, |_| false)
}

/// Any text as lines.
pub fn lines(text: &str) -> String {
    shown(text, |c| c == '\n')
}

/// Escapes hidden characters, except those of `keep`.
fn shown(text: &str, keep: impl Fn(char) -> bool) -> String {
    text.chars()
        .flat_map(|c| {
            let is_hidden = c.is_control() || HIDDEN.iter().any(|range| range.contains(&c));
            let hidden = is_hidden && !keep(c);
            let shown = (!hidden).then_some(c);
            let escaped = hidden.then(|| c.escape_default()).into_iter().flatten();
            shown.into_iter().chain(escaped)
        })
        .collect()
}

/// The width of a text of [`one_line`], in columns of a terminal.
pub fn width(text: &str) -> usize {
    text.width()
}

/// The text with blanks up to a width.
pub fn padded(text: &str, to: usize) -> String {
    let missing = to.saturating_sub(width(text));
    format!("{text}{}", " ".repeat(missing))
}

/// The beginning of a line that fits into so many columns of a terminal. Escape sequences take none.
pub fn cut(line: &str, columns: usize) -> &str {
    let (mut used, mut escaped) = (0, false);
    for (at, c) in line.char_indices() {
        escaped |= c == '\u{1b}';
        if !escaped {
            used += c.width().unwrap_or(0);
        }
        escaped &= !c.is_ascii_alphabetic();
        if used > columns {
            return &line[..at];
        }
    }
    line
}

/// The text of a cell of a table: one line, and `-` if it is empty.
pub fn cell(text: &str) -> String {
    match text {
        "" => "-".to_owned(),
        _ => one_line(text),
    }
}

/// Aligned rows, a line each: names to the left, numbers to the right, no trailing blanks.
pub fn aligned<R: AsRef<[String]>>(rows: &[R], is_of_names: impl Fn(usize) -> bool) -> Vec<String> {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let widest = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(at));
        cells.map(|cell| width(cell)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(widest).collect();
    let line = |row: &R| {
        let cells = row.as_ref().iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, to))| match is_of_names(column) {
            true => padded(cell, *to),
            false => format!("{}{cell}", " ".repeat(to.saturating_sub(width(cell)))),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
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
        self.rows
            .push(cells.iter().map(|text| cell(text)).collect());
    }

    /// The whole table as text.
    pub fn render(&self, colour: bool) -> String {
        let mut text = String::new();
        for (number, line) in aligned(&self.rows, |_| true).iter().enumerate() {
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
    fn a_line_is_cut_at_the_width_of_the_terminal() {
        for (line, columns, fits) in [
            ("abc", 3, "abc"),
            ("abcd", 3, "abc"),
            ("订单", 3, "订"),
            ("\u{1b}[1mabcd", 3, "\u{1b}[1mabc"),
        ] {
            assert_eq!(cut(line, columns), fits);
        }
    }

    #[test]
    fn a_label_cannot_play_with_the_terminal() {
        assert_eq!(one_line("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(one_line("pay\u{202e}nac"), "pay\\u{202e}nac");
    }

    #[test]
    fn what_cannot_be_seen_is_shown_as_what_it_is() {
        for hidden in [
            '\u{ad}',
            '\u{61c}',
            '\u{200d}',
            '\u{3164}',
            '\u{fe0f}',
            '\u{e0041}',
        ] {
            let shown = one_line(&format!("a{hidden}b"));
            assert_eq!(shown, format!("a\\u{{{:x}}}b", u32::from(hidden)));
        }
        // What others write is left as it is, accents by themselves too.
        for seen in ["gru\u{308}ße", "订单", "🦀", "הזמנה"] {
            assert_eq!(one_line(seen), seen);
        }
    }

    #[test]
    fn a_wide_character_takes_two_columns_and_an_accent_none() {
        let mut table = Table::new(&["KEY", "OWNER"]);
        table.row(vec!["订单/42".into(), "a".into()]);
        table.row(vec!["gru\u{308}n".into(), "b".into()]);
        table.row(vec!["🦀".into(), "c".into()]);
        assert_eq!(
            table.render(false),
            "KEY      OWNER\n\
             订单/42  a\n\
             gru\u{308}n     b\n\
             🦀       c\n"
        );
    }
}
