use std::time::{Duration, UNIX_EPOCH};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Modifier;

use super::super::board::Choice;
use super::super::board::tests::{key, replica, silent, snapshot};
use super::*;

fn board(keys: usize, replicas: u8) -> Board {
    let keys: Vec<_> = (0..keys)
        .map(|at| key(&format!("orders/{at:02}"), "billing", 99 - at as u64, 2))
        .collect();
    let mut activity = vec![replica(1, 40, keys)];
    activity.extend((2..=replicas).map(silent));
    let before = snapshot(10, vec![replica(1, 10, Vec::new())]);
    let choice = Choice {
        limit: 100,
        ..Choice::default()
    };
    Board::new(snapshot(12, activity), Some(&before), &choice)
}

fn view(keys: usize, replicas: u8) -> View {
    let mut view = View::new("http://a:7450", true);
    let now = UNIX_EPOCH + Duration::from_secs(3_661);
    view.notify(board(keys, replicas), now);
    view
}

fn drawn(view: &mut View, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    terminal
}

/// The lines of the screen, without what trails.
fn screen(view: &mut View, width: u16, height: u16) -> Vec<String> {
    let terminal = drawn(view, width, height);
    let cells = terminal.backend().buffer().content();
    let lines = cells.chunks(usize::from(width.max(1)));
    lines
        .map(|line| {
            let line: String = line.iter().map(|cell| cell.symbol()).collect();
            line.trim_end().to_owned()
        })
        .collect()
}

fn press(view: &mut View, code: KeyCode) -> Press {
    view.press(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn a_wide_terminal_shows_all_of_it() {
    assert_eq!(
        screen(&mut view(2, 2), 110, 12),
        [
            "fermata locks top  01:01:01 UTC  1 of 2 replicas  http://a:7450",
            "15 grants/s  last minute: 197 grants after 2.0s on average, 5.0s at most  sessions: 3",
            "",
            "KEY        OWNER    WAITERS  HELD  GRANTS/MIN  MEAN WAIT  LONGEST",
            "orders/00  billing  2        -     99          2.0s       5.0s",
            "orders/01  billing  2        -     98          2.0s       5.0s",
            "",
            "",
            "REPLICA   ADDRESS          VERSION  SESSIONS  KEYS  GRANTS/S  READS/S  WRITES/S  LWTS/S  CONFLICTS",
            "00000001  10.0.0.1:7450    0.1.0    3         2     15        150      0.0       15      1",
            "00000002  does not answer  -        -         -     -         -        -         -       -",
            "q quit  p pause  j/k or arrows scroll  ? what the columns tell",
        ]
    );
}

#[test]
fn a_narrow_terminal_shows_what_is_worth_most() {
    assert_eq!(
        screen(&mut view(2, 2), 40, 12)[3..],
        [
            "KEY        WAITERS  HELD  GRANTS/MIN",
            "orders/00  2        -     99",
            "orders/01  2        -     98",
            "",
            "",
            "REPLICA   ADDRESS          GRANTS/S",
            "00000001  10.0.0.1:7450    15",
            "00000002  does not answer  -",
            "q quit  p pause  j/k or arrows scroll  ?",
        ]
    );
}

#[test]
fn no_size_is_too_small_and_none_too_large() {
    for (keys, replicas) in [(0, 1), (1, 1), (90, 9)] {
        for width in [0, 1, 2, 9, 23, 80, 400] {
            for height in [0, 1, 2, 3, 5, 7, 24, 200] {
                let mut view = view(keys, replicas);
                view.fail("gone");
                drawn(&mut view, width, height);
                press(&mut view, KeyCode::End);
                drawn(&mut view, width, height);
                press(&mut view, KeyCode::Char('?'));
                drawn(&mut view, width, height);
            }
        }
    }
}

#[test]
fn the_keys_scroll_and_stop_at_the_ends() {
    let mut view = view(50, 1);
    let first = |view: &mut View| screen(view, 80, 24)[4][..9].to_owned();
    assert_eq!(first(&mut view), "orders/00");
    let footer = |view: &mut View| screen(view, 80, 24)[23].clone();
    assert!(footer(&mut view).starts_with("keys 1-16 of 50  q quit"));
    for (code, expected) in [
        (KeyCode::Up, "orders/00"),
        (KeyCode::Char('j'), "orders/01"),
        (KeyCode::Down, "orders/02"),
        (KeyCode::Char('k'), "orders/01"),
        (KeyCode::PageDown, "orders/17"),
        (KeyCode::End, "orders/34"),
        (KeyCode::Down, "orders/34"),
        (KeyCode::PageUp, "orders/18"),
        (KeyCode::Home, "orders/00"),
    ] {
        assert_eq!(press(&mut view, code), Press::Nothing);
        assert_eq!(first(&mut view), expected, "{code:?}");
    }
    // Fewer keys than before: there is nothing to see below them.
    press(&mut view, KeyCode::End);
    view.notify(board(3, 1), UNIX_EPOCH);
    assert_eq!(first(&mut view), "orders/00");
}

#[test]
fn more_replicas_than_there_is_room_for_are_counted() {
    let shown = screen(&mut view(1, 9), 80, 18);
    assert_eq!(shown[11][..8], *"REPLICA ");
    assert_eq!(shown[15][..8], *"00000004");
    assert_eq!(shown[16], "and 5 more");
}

#[test]
fn a_service_that_does_not_answer_is_told_beside_what_was_known() {
    let mut silent = View::new("http://a:7450", false);
    assert_eq!(screen(&mut silent, 60, 6)[1], "asking http://a:7450");
    silent.fail("refused\u{1b}[2J");
    assert_eq!(
        screen(&mut silent, 60, 6)[2],
        "no answer yet, trying again: refused\\u{1b}[2J"
    );
    let mut lost = view(1, 1);
    lost.fail("refused");
    let shown = screen(&mut lost, 60, 14);
    assert_eq!(shown[2], "no answer since, trying again: refused");
    assert!(shown[5..].iter().any(|line| line.starts_with("orders/00")));
    lost.notify(board(1, 1), UNIX_EPOCH);
    let shown = screen(&mut lost, 60, 14);
    assert_eq!(shown[2], "");
}

#[test]
fn keys_end_it_pause_it_and_explain_it() {
    let mut view = view(1, 1);
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.press(ctrl_c), Press::Interrupt);
    assert_eq!(press(&mut view, KeyCode::Char('c')), Press::Nothing);
    assert_eq!(press(&mut view, KeyCode::Char('q')), Press::Quit);
    assert_eq!(press(&mut view, KeyCode::Esc), Press::Quit);
    press(&mut view, KeyCode::Char('p'));
    assert!(view.paused);
    assert_eq!(screen(&mut view, 80, 24)[2], "paused: p goes on");
    press(&mut view, KeyCode::Char('p'));
    assert!(!view.paused);
    press(&mut view, KeyCode::Char('?'));
    let shown = screen(&mut view, 80, 24);
    assert!(shown.iter().any(|line| line.starts_with("CONFLICTS ")));
    assert!(!shown.iter().any(|line| line.starts_with("orders/00")));
}

#[test]
fn nothing_is_styled_where_no_colour_is_wanted() {
    let mut plain = View::new("http://a:7450", false);
    plain.notify(board(1, 1), UNIX_EPOCH);
    plain.fail("refused");
    let styled = |view: &mut View| {
        let terminal = drawn(view, 80, 24);
        let cells = terminal.backend().buffer().content();
        cells
            .iter()
            .any(|cell| cell.modifier != Modifier::empty() || cell.fg != Color::Reset)
    };
    assert!(!styled(&mut plain));
    assert!(styled(&mut view(1, 1)));
}
