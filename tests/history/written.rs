//! Histories as text, one event a line, in whole seconds:
//!
//! ```text
//! a create        #1     0..1   held@10 until:30
//! a put:x         #1@10  2..3   done
//! b create:again  #2     2..4   done
//! b acquire       #2     5..8   held@20 =x
//! b put:y         #2@20  9..?   unknown
//! ```
//!
//! A value `-` is none. An entry may be `other#1` of another key, `#1.2` with a tag, `#` before there is one. A create
//! `:again` is another try of those with this name. `in:s` lives by a session, which `close:s` ends. A call that is
//! `in_order` comes before the later ones of its client, even if it was given up.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::history::{Entry, Event, Learned, Op, Outcome, Value};

/// The histories of a text, each below its title.
pub fn histories(text: &'static str) -> Vec<(&'static str, Vec<Event>)> {
    let history = |paragraph: &'static str| {
        let (title, lines) = paragraph.split_once('\n').unwrap();
        (title, parse(lines))
    };
    text.trim().split("\n\n").map(history).collect()
}

fn parse(text: &str) -> Vec<Event> {
    let lines = text.lines().map(str::trim).enumerate();
    let event =
        |(number, line)| event(number, line).unwrap_or_else(|| panic!("not an event: {line:?}"));
    lines.map(event).collect()
}

fn value(text: &str) -> Value {
    (text != "-").then(|| Bytes::copy_from_slice(text.as_bytes()))
}

fn named(name: &str) -> Uuid {
    let mut bytes = [0; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Uuid::from_bytes(bytes)
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

fn event(number_of_line: usize, line: &str) -> Option<Event> {
    let mut words = line.split_whitespace();
    let client = words.next()?;
    let (op, argument) = match words.next()?.split_once(':') {
        Some((op, argument)) => (op, Some(argument)),
        None => (line.split_whitespace().nth(1)?, None),
    };
    let (key, entry) = words.next()?.split_once('#')?;
    let (entry, grant) = match entry.split_once('@') {
        Some((entry, grant)) => (entry, Some(number(grant)?)),
        None => (entry, None),
    };
    let (seq, tag) = entry.split_once('.').unwrap_or((entry, "0"));
    let tag = number(tag)?.into();
    let (invoked, answered) = words.next()?.split_once("..")?;
    let mut event = Event {
        client: client.into(),
        key: if key.is_empty() { "k" } else { key }.into(),
        op: match op {
            "create" => Op::Create {
                request: named(argument.unwrap_or(&format!("line {number_of_line}"))),
            },
            "acquire" => Op::Acquire,
            "get" => Op::Get,
            "put" => Op::Put(value(argument?)),
            "release" => Op::Release(argument.map(value)),
            "renew" => Op::Renew,
            "force" => Op::Force,
            "close" => Op::CloseSession,
            _ => return None,
        },
        entry: number(seq).map(|seq| Entry { seq, tag }),
        grant,
        session: argument.filter(|_| op == "close").map(Arc::from),
        invoked: Duration::from_secs(number(invoked)?),
        answered: match answered {
            "?" => Duration::MAX,
            answered => Duration::from_secs(number(answered)?),
        },
        outcome: Outcome::Done,
        read: None,
        until: None,
        in_order: false,
    };
    words.try_for_each(|word| came(&mut event, word))?;
    Some(event)
}

fn came(event: &mut Event, word: &str) -> Option<()> {
    let learned = |word| {
        Some(match word {
            "nothing" => Learned::Nothing,
            "over" => Learned::Ended,
            "released" => Learned::Released,
            "superseded" => Learned::Superseded,
            _ => return None,
        })
    };
    match word.split_once([':', '@']) {
        Some(("held", grant)) => event.grant = Some(number(grant)?),
        Some(("until", until)) => event.until = Some(Duration::from_secs(number(until)?)),
        Some(("in", session)) => event.session = Some(session.into()),
        Some(("refused", why)) => event.outcome = Outcome::Refused(learned(why)?),
        Some(("unknown", why)) => event.outcome = Outcome::Unknown(learned(why)?),
        Some(_) => return None,
        None if word == "done" => {}
        None if word == "unknown" => event.outcome = Outcome::Unknown(Learned::Nothing),
        None if word == "refused" => event.outcome = Outcome::Refused(Learned::Nothing),
        None if word == "in_order" => event.in_order = true,
        None => event.read = Some(value(word.strip_prefix('=')?)),
    }
    Some(())
}
