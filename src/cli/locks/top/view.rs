//! What the live view shows, and how it is drawn. It knows no clock and no terminal: a frame to draw on is given to it.

use std::time::SystemTime;

use fermata_command::output::one_line;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, Wrap};

use super::board::Board;
use super::sheet::{GAP, Sheet, meanings, per_second, waited};

const KEYS_HELP: &str = "q quit  p pause  j/k or arrows scroll  ? what the columns tell";

/// What a key asks of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Press {
    /// To go on.
    Nothing,
    /// To end.
    Quit,
    /// To end as by SIGINT: while the view is there the terminal sends none.
    Interrupt,
}

/// What is shown.
#[derive(Debug)]
pub struct View {
    endpoint: String,
    colour: bool,
    board: Board,
    /// When the board came; nothing before the first one.
    answered: Option<String>,
    /// Why there is no later one.
    error: Option<String>,
    pub paused: bool,
    help: bool,
    /// So many keys are above the first that is shown.
    above: usize,
    /// So many were shown last.
    shown: usize,
}

impl View {
    pub fn new(endpoint: &str, colour: bool) -> View {
        View {
            endpoint: one_line(endpoint),
            colour,
            board: Board::default(),
            answered: None,
            error: None,
            paused: false,
            help: false,
            above: 0,
            shown: 0,
        }
    }

    /// An answer came.
    pub fn notify(&mut self, board: Board, now: SystemTime) {
        self.board = board;
        self.answered = Some(time_of_day(now));
        self.error = None;
    }

    /// No answer came.
    pub fn fail(&mut self, why: &str) {
        self.error = Some(one_line(why));
    }

    /// A key was pressed.
    pub fn press(&mut self, key: KeyEvent) -> Press {
        if key.kind == KeyEventKind::Release {
            return Press::Nothing;
        }
        let page = self.shown.max(1);
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Press::Interrupt;
            }
            KeyCode::Char('q') | KeyCode::Esc => return Press::Quit,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('?') => self.help = !self.help,
            KeyCode::Char('j') | KeyCode::Down => self.above = self.above.saturating_add(1),
            KeyCode::Char('k') | KeyCode::Up => self.above = self.above.saturating_sub(1),
            KeyCode::PageDown => self.above = self.above.saturating_add(page),
            KeyCode::PageUp => self.above = self.above.saturating_sub(page),
            KeyCode::Home => self.above = 0,
            KeyCode::End => self.above = usize::MAX,
            _ => {}
        }
        Press::Nothing
    }

    /// Draws it, whatever the size.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let notice = if self.error.is_some() { 3 } else { 1 };
        let replicas = Sheet::replicas(&self.board);
        // Each line of them, as long as they leave most of the height to the keys.
        let lines = u16::try_from(replicas.rows.len()).unwrap_or(u16::MAX);
        let lines = lines.saturating_add(1).min(area.height / 3);
        // What the columns tell takes all the lines that a terminal of 24 has for it.
        let (gap, lines) = if self.help { (0, 0) } else { (1, lines) };
        let [header, said, keys, _, below, footer] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(notice),
            Constraint::Fill(1),
            Constraint::Length(gap),
            Constraint::Length(lines),
            Constraint::Length(1),
        ])
        .areas(area);
        frame.render_widget(Paragraph::new(self.header()), header);
        frame.render_widget(self.notice(), said);
        if self.help {
            let lines: Vec<Line<'_>> = meanings().into_iter().map(Line::raw).collect();
            frame.render_widget(Paragraph::new(lines), keys);
        } else {
            self.draw_keys(frame, keys);
            self.draw_replicas(frame, &replicas, below);
        }
        frame.render_widget(Line::raw(self.footer()), footer);
    }

    fn header(&self) -> Vec<Line<'_>> {
        let Some(answered) = &self.answered else {
            return vec![
                Line::styled("fermata locks top", self.bold()),
                Line::raw(format!("asking {}", self.endpoint)),
            ];
        };
        let first = format!(
            "fermata locks top  {answered}  {} of {} replicas  {}",
            self.board.answered(),
            self.board.replicas.len(),
            self.endpoint
        );
        vec![
            Line::styled(first, self.bold()),
            Line::raw(summary(&self.board)),
        ]
    }

    fn notice(&self) -> Paragraph<'_> {
        let (text, colour) = match (&self.error, &self.answered) {
            (Some(why), Some(_)) => (format!("no answer since, trying again: {why}"), Color::Red),
            (Some(why), None) => (format!("no answer yet, trying again: {why}"), Color::Red),
            (None, _) if self.paused => ("paused: p goes on".to_owned(), Color::Yellow),
            (None, _) => return Paragraph::default(),
        };
        let style = match self.colour {
            true => Style::new().fg(colour),
            false => Style::new(),
        };
        Paragraph::new(Line::styled(text, style)).wrap(Wrap { trim: true })
    }

    fn draw_keys(&mut self, frame: &mut Frame<'_>, area: Rect) {
        if self.answered.is_none() {
            return;
        }
        if self.board.keys.is_empty() {
            let none = "nobody waits for such a key, and none changed hands in the last minute";
            frame.render_widget(Line::raw(none), area);
            return;
        }
        self.shown = usize::from(area.height).saturating_sub(1);
        let most = self.board.keys.len().saturating_sub(self.shown);
        self.above = self.above.min(most);
        let sheet = Sheet::keys(&self.board);
        let rows = sheet.rows.iter().skip(self.above).take(self.shown);
        frame.render_widget(self.table(&sheet, rows, area.width), area);
    }

    fn draw_replicas(&self, frame: &mut Frame<'_>, sheet: &Sheet, area: Rect) {
        let room = usize::from(area.height).saturating_sub(1);
        let hidden = match sheet.rows.len() > room {
            true => sheet.rows.len() - room.saturating_sub(1),
            false => 0,
        };
        let rows = sheet.rows.iter().take(sheet.rows.len() - hidden);
        frame.render_widget(self.table(sheet, rows, area.width), area);
        if hidden > 0 && room > 0 {
            let last = Rect {
                y: area.bottom().saturating_sub(1),
                height: 1,
                ..area
            };
            frame.render_widget(Line::raw(format!("and {hidden} more")), last);
        }
    }

    fn table<'a>(
        &self,
        sheet: &'a Sheet,
        rows: impl Iterator<Item = &'a Vec<String>>,
        width: u16,
    ) -> Table<'a> {
        let columns = sheet.fitting(usize::from(width));
        let cells = |row: &'a [String]| -> Row<'a> {
            columns.iter().map(|(at, _)| row[*at].as_str()).collect()
        };
        let titles: Row<'a> = columns
            .iter()
            .map(|(at, _)| sheet.columns[*at].title)
            .collect();
        let rows: Vec<Row<'a>> = rows.map(|row| cells(row)).collect();
        let wide = |wide: usize| u16::try_from(wide).unwrap_or(u16::MAX);
        let widths = columns.iter().map(|(_, of)| Constraint::Length(wide(*of)));
        Table::new(rows, widths)
            .header(titles.style(self.bold()))
            .column_spacing(GAP as u16)
    }

    fn footer(&self) -> String {
        let all = self.board.keys.len();
        match self.help || self.shown >= all {
            true => KEYS_HELP.to_owned(),
            false => {
                let last = self.above.saturating_add(self.shown).min(all);
                let first = self.above.saturating_add(1);
                format!("keys {first}-{last} of {all}  {KEYS_HELP}")
            }
        }
    }

    fn bold(&self) -> Style {
        match self.colour {
            true => Style::new().bold(),
            false => Style::new(),
        }
    }
}

/// The service in one line.
pub fn summary(board: &Board) -> String {
    let rate = match per_second(board.grants_per_second) {
        none if none.is_empty() => String::new(),
        rate => format!("{rate} grants/s  "),
    };
    let waits = match (board.waits.mean(), board.waits.longest) {
        (Some(mean), longest) => format!(
            " after {} on average, {} at most",
            waited(Some(mean)),
            waited(longest)
        ),
        (None, _) => String::new(),
    };
    format!(
        "{rate}last minute: {} grants{waits}  sessions: {}",
        board.waits.count, board.sessions
    )
}

/// UTC, so that it can be laid beside the logs of any replica.
pub fn time_of_day(now: SystemTime) -> String {
    let time = prost_types::Timestamp::from(now).to_string();
    let (_, time) = time.split_once('T').unwrap_or_default();
    format!("{} UTC", time.get(..8).unwrap_or_default())
}

#[cfg(test)]
#[path = "view_test.rs"]
mod tests;
