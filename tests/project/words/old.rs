//! The field's own words. What this project once called by a word of its own may not come back: not in a name, a
//! comment, a text or a document. Each is found as a word, also within `snake_case` and `PascalCase`.

use super::files;

/// A word, or words in this order (over the ends of lines as well), and what to say.
const OLD: &[(&str, &str)] = &[
    ("beat", "heartbeat"),
    ("beats", "heartbeats"),
    ("beating", "sending heartbeats"),
    (
        "sign of life",
        "renewal (of a session or lease), heartbeat (of a replica)",
    ),
    (
        "signs of life",
        "renewals (of a session or lease), heartbeats (of a replica)",
    ),
    ("place", "entry (in a queue), position, location"),
    ("places", "entries (in a queue), positions, locations"),
    ("vouch", "validity, keep valid"),
    ("vouches", "keeps valid"),
    ("vouched", "kept valid"),
    ("cede", "hand over"),
    ("cedes", "hands over"),
    ("ceded", "handed over"),
    ("ceding", "hand-over"),
    ("consent", "hand-over, agreement, agree"),
    ("consents", "hand-overs, agrees"),
    ("consented", "handed over, agreed"),
    ("question", "hand-over request"),
    ("questions", "hand-over requests"),
    ("is over", "has ended, has passed"),
    ("are over", "have ended, have passed"),
    ("was over", "had ended, had passed"),
    ("were over", "had ended, had passed"),
    ("be over", "have ended"),
    ("over already", "already ended"),
    ("already over", "already ended"),
    ("dead", "fenced (of a replica by itself), down, expired"),
    ("die", "fence itself, crash, expire"),
    ("dies", "fences itself, crashes, expires"),
    ("died", "fenced itself, crashed, expired"),
    ("is let in", "is granted the lock"),
    ("are let in", "are granted the lock, are admitted"),
    ("was let in", "was granted the lock"),
    ("were let in", "were granted the lock"),
    ("be let in", "be granted the lock"),
    ("been let in", "been granted the lock"),
    ("lets in", "grants the lock to"),
    ("entrance", "sync phase"),
    ("complaint", "log throttle"),
    ("complaints", "log throttles"),
    ("whereabouts", "status"),
    ("standing", "status"),
    ("where it stands", "its status"),
    ("lockref stands", "status of a lockRef"),
    ("entry stands", "status of an entry"),
    ("bell", "waker"),
    ("bells", "wakers"),
    ("look beside", "re-read beside"),
    ("looks beside", "re-reads beside"),
    ("look again", "re-read"),
    ("looks again", "re-reads"),
    ("came for it", "claimed it"),
    ("comes for it", "claims it"),
    ("come for it", "claim it"),
    ("nobody came for", "nobody claimed"),
    ("nobody comes for", "nobody claims"),
    ("for not coming", "as unclaimed"),
    ("told held", "answered HELD"),
    ("held may be told", "HELD may be answered"),
    ("held is told", "HELD is answered"),
    ("heard of its store", "its store acknowledged a heartbeat"),
    ("wait over", "wait ended"),
    ("hears held", "is answered HELD"),
    ("heard held", "was answered HELD"),
    ("key at rest", "idle key"),
    ("under way", "in flight"),
    (
        "design §",
        "say what it means: no document has such numbers",
    ),
];

/// Where one of them is plain English, or of somebody else.
const PLAIN: &[&str] = &[
    "in place",
    "into place",
    "in one place",
    "in the place of",
    "in its place",
    "in their place",
    "in the first place",
    "the only place",
    "the one place",
    "take place",
    "takes place",
    "took place",
    "take the place of",
    "takes the place of",
    "takes its place",
    "earns its place",
    "its place in the answer",
    "their place in the world",
    "usual places",
    "in many places",
    "in several places",
    "in all places",
    "in question",
    "dead code",
    "dead end",
    "dead letter",
    "standing still",
    "is over a",
    "is over an",
    "is over the",
    "is over one",
    "is over its",
    "are over a",
    "are over the",
    "was over a",
    "was over the",
    "be over a",
    "be over the",
];

/// Names of code, as they are written: in prose most of them are plain English.
const OLD_NAMES: &[(&str, &str)] = &[
    ("About", "Target"),
    ("Around", "Membership"),
    ("Asked", "what is asked: TakeOverRequests, StreamInput"),
    ("Edge", "CallContext"),
    ("GivesUp", "HandOverAnswer"),
    ("Heard", "ObservedTime"),
    ("LetIn", "GrantWaiter"),
    ("Look", "MembershipRead"),
    ("Looked", "ReRead"),
    ("Over", "EndedAs, Ended"),
    ("Placed", "Admitted"),
    ("Rest", "IdleSnapshot"),
    ("SessionOver", "SessionEnded"),
    ("Stands", "StatusFields"),
    ("Subject", "HandOverTarget"),
    ("There", "ForwardOutcome, Remote"),
    ("Told", "what it is: StatusBuilder, Learned"),
    ("Way", "RouteAttempt, Transport, StoreLink"),
    ("is_dead", "is_fenced, is_down"),
    ("is_over", "has_ended"),
    ("let_in", "grant_holder, grant_waiter"),
    ("let_ins", "grant_waiters"),
    ("look_beside", "re_read_beside"),
    ("tell_others", "notify_homes"),
    ("told", "answered, notified, observed"),
    ("untold", "unnotified"),
];

/// What is not ours to name: lock files, licences, what a fuzzer made, and settings of Cassandra.
fn is_foreign(path: &str) -> bool {
    path.ends_with("Cargo.lock")
        || path.starts_with("LICENSE")
        || path.starts_with("tests/fuzz/corpus/")
        || path.starts_with("tests/project/words")
        || path.ends_with("cassandra.yaml")
        || path.ends_with(".xml")
        || path.ends_with(".binpb")
}

#[test]
fn old_words_do_not_come_back() {
    let mut found = Vec::new();
    for path in files::all().iter().filter(|path| !is_foreign(path)) {
        let Ok(text) = std::fs::read_to_string(files::root().join(path)) else {
            continue;
        };
        for (line, word, better) in old_words(&text, path.ends_with(".rs")) {
            found.push(format!("{path}:{line}: {word:?}: say {better}"));
        }
        for (line, word, better) in old_words(&path.replace('/', " "), false) {
            found.push(format!("{path} (its name, {line}): {word:?}: say {better}"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// All that are found: the line, the word, and what to say.
fn old_words(text: &str, is_rust: bool) -> Vec<(usize, &'static str, &'static str)> {
    let words = words(text);
    let at = |phrase: &str, from: usize| {
        let mut wanted = phrase.split(' ').zip(words.get(from..).unwrap_or_default());
        let count = phrase.split(' ').count();
        from + count <= words.len() && wanted.all(|(wanted, (_, word))| wanted == word)
    };
    let mut plain = vec![false; words.len()];
    for from in 0..words.len() {
        for phrase in PLAIN.iter().filter(|phrase| at(phrase, from)) {
            plain[from..from + phrase.split(' ').count()].fill(true);
        }
    }
    let mut found = Vec::new();
    for (from, (line, _)) in words.iter().enumerate() {
        for (phrase, better) in OLD.iter().filter(|(phrase, _)| at(phrase, from)) {
            let to = from + phrase.split(' ').count();
            if plain[from..to].contains(&false) {
                found.push((*line, *phrase, *better));
            }
        }
    }
    if is_rust {
        for (line, name) in names(text) {
            let old = OLD_NAMES.iter().find(|(old, _)| *old == name);
            found.extend(old.map(|(old, better)| (line, *old, *better)));
        }
    }
    found
}

/// Words in lower case with their lines, names taken apart; `§` is one as well.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut word = String::new();
        let mut before = ' ';
        for c in line.chars().chain([' ']) {
            let begins = c.is_uppercase() && !before.is_uppercase();
            if (!c.is_alphanumeric() || begins) && !word.is_empty() {
                words.push((number, std::mem::take(&mut word)));
            }
            if c.is_alphanumeric() {
                word.extend(c.to_lowercase());
            } else if c == '§' {
                words.push((number, "§".to_owned()));
            }
            before = c;
        }
    }
    words
}

/// The names in code, without comments and texts. (A text over several lines is told by the `\` before it.)
fn names(text: &str) -> Vec<(usize, &str)> {
    let mut names = Vec::new();
    let mut in_text = false;
    for (number, line) in (1..).zip(text.lines()) {
        let code = match line.trim_start().starts_with("//") {
            true => "",
            false => line,
        };
        for (part, piece) in code.split('"').enumerate() {
            let is_code = (part % 2 == 0) != in_text;
            let (piece, comment) = match piece.split_once(" // ") {
                Some((piece, _)) if is_code => (piece, true),
                _ => (piece, false),
            };
            if is_code {
                let is_name = |c: char| c.is_alphanumeric() || c == '_';
                let found = piece.split(|c| !is_name(c)).filter(|name| !name.is_empty());
                names.extend(found.map(|name| (number, name)));
            }
            if comment {
                break;
            }
        }
        in_text = line.ends_with('\\');
    }
    names
}

#[test]
fn an_old_word_is_found_in_names_comments_texts_and_over_lines() {
    let found = |text: &str| -> Vec<usize> {
        let found = old_words(text, true);
        found.iter().map(|(line, ..)| *line).collect()
    };
    for bad in [
        "struct PlaceId;",
        "let places_max = 3;",
        "fn a_place_is_found() {}",
        "/// It is over, and",
        "\"no consent\"",
        "const BEATS_PER_TTL: u32 = 5;",
        "fn is_dead() {}",
        "(design §6)",
    ] {
        assert!(found(bad).contains(&1), "{bad}");
    }
    assert_eq!(found("\n/// a sign\n/// of life"), [2]);
    assert_eq!(found("\"one\" + About::Place"), [1, 1]);
    for good in [
        "block_in_place(work)",
        "/// Rules stay in one place. It is over a second old.",
        "replace, heartbeat, deadline, take_over, taken over, displaced",
        "/// There is one. Look at it; it was told so.",
        "let text = \"About there\"; // There",
    ] {
        assert_eq!(found(good), [0; 0], "{good}");
    }
}
