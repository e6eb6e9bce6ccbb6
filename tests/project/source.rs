//! Reads Rust source as far as these tests need it: which modules a file names, and which types it declares.

use std::collections::BTreeSet;

/// The source without comments, without what is in strings, and without inline test modules.
pub fn code_only(source: &str) -> String {
    without_test_modules(&without_comments_and_strings(source))
}

fn without_comments_and_strings(source: &str) -> String {
    let bytes: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        at += match rest {
            ['/', '/', ..] => rest.iter().take_while(|c| **c != '\n').count(),
            ['/', '*', ..] => block_comment(rest),
            ['r', '"', ..] | ['r', '#', '"' | '#', ..] if !ends_in_name(&code) => raw_string(rest),
            ['"', ..] => string(rest),
            ['\'', '\\', ..] => {
                2 + rest[2..].iter().skip(1).take_while(|c| **c != '\'').count() + 2
            }
            ['\'', _, '\'', ..] => 3,
            [c, ..] => {
                code.push(*c);
                1
            }
            [] => break,
        };
    }
    code
}

fn ends_in_name(code: &str) -> bool {
    code.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] if depth == 1 => return at + 2,
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    at
}

fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

fn raw_string(rest: &[char]) -> usize {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    let mut at = 2 + hashes;
    while at < rest.len() {
        let closed = rest[at] == '"' && rest[at + 1..].iter().take(hashes).all(|c| *c == '#');
        at += 1;
        if closed {
            return at + hashes;
        }
    }
    at
}

/// Cuts `#[cfg(test)] mod name { … }` out.
fn without_test_modules(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some((before, after)) = rest.split_once("#[cfg(test)]") {
        kept.push_str(before);
        let body = after.trim_start();
        let opens = body.find(['{', ';']).unwrap_or(0);
        rest = if body.starts_with("mod ") && body[opens..].starts_with('{') {
            &body[opens + block(&body[opens..])..]
        } else {
            after
        };
    }
    kept + rest
}

/// The length of the block that the text begins with.
fn block(text: &str) -> usize {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// The paths inside this crate that the code names, as `room` or `room::part`, however they are
/// written, and the other crates of ours. `module` is where the code stands: `["rpc", "status"]`.
pub fn named(code: &str, module: &[&str]) -> BTreeSet<String> {
    named_to(2, code, module)
}

/// The same, so many names deep.
pub fn named_to(depth: usize, code: &str, module: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let tokens = tokens(code);
    let mut at = 0;
    while at < tokens.len() {
        let begins = at == 0 || tokens[at - 1] != "::";
        if tokens[at].starts_with("fermata_") {
            found.insert(tokens[at].clone());
        }
        let base = match tokens[at].as_str() {
            "crate" if begins => Some(Vec::new()),
            "super" if begins => {
                let up = module.len().saturating_sub(1);
                Some(module[..up].iter().map(|s| (*s).to_owned()).collect())
            }
            _ => None,
        };
        at = match base {
            Some(base) => follow(depth, &tokens, at + 1, base, &mut found),
            None => at + 1,
        };
    }
    found
}

/// Adds the paths that go on at `at`, so many names deep, and says where they end.
fn follow(
    depth: usize,
    tokens: &[String],
    mut at: usize,
    mut path: Vec<String>,
    found: &mut BTreeSet<String>,
) -> usize {
    while tokens.get(at).is_some_and(|t| t == "::") {
        at += 1;
        match tokens.get(at).map(String::as_str) {
            Some("{") => {
                at += 1;
                while tokens.get(at).is_some_and(|t| t != "}") {
                    if tokens[at] == "," {
                        at += 1;
                        continue;
                    }
                    let inner = entered(&path, &tokens[at]);
                    at = follow(depth, tokens, at + 1, inner, found);
                    // `as name`
                    while tokens.get(at).is_some_and(|t| t != "," && t != "}") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            Some(name) if name.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                path = entered(&path, name);
                at += 1;
            }
            _ => break,
        }
    }
    path.truncate(depth);
    if !path.is_empty() {
        found.insert(path.join("::"));
    }
    at
}

fn entered(path: &[String], name: &str) -> Vec<String> {
    match name {
        "super" => path[..path.len().saturating_sub(1)].to_vec(),
        _ => [path, &[name.to_owned()]].concat(),
    }
}

fn tokens(code: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut chars = code.chars().peekable();
    while let Some(c) = chars.next() {
        if c.is_whitespace() {
            continue;
        }
        let mut token = c.to_string();
        if c.is_alphanumeric() || c == '_' {
            while let Some(more) = chars.next_if(|c| c.is_alphanumeric() || *c == '_') {
                token.push(more);
            }
        } else if c == ':' && chars.next_if_eq(&':').is_some() {
            token.push(':');
        }
        tokens.push(token);
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(code: &str, module: &[&str]) -> Vec<String> {
        named(&code_only(code), module).into_iter().collect()
    }

    #[test]
    fn every_spelling_of_a_path_is_seen() {
        for (code, expected) in [
            ("use crate::lock::Key;", vec!["lock::Key"]),
            (
                "use crate::{lock::{Key, Seq}, engine};",
                vec!["engine", "lock::Key", "lock::Seq"],
            ),
            (
                "use crate::lock as l; fn f(x: crate::store::Cell) {}",
                vec!["lock", "store::Cell"],
            ),
            (
                "pub(crate) fn f() { crate :: engine :: run() }",
                vec!["engine::run"],
            ),
            ("use super::super::engine::Engine;", vec!["engine::Engine"]),
            ("use super::parse;", vec!["rpc::parse"]),
            ("use super::{super::lock, page};", vec!["lock", "rpc::page"]),
        ] {
            assert_eq!(names(code, &["rpc", "status"]), expected, "{code}");
        }
    }

    #[test]
    fn comments_strings_and_tests_name_nothing() {
        let code = r##"
            //! See [`crate::engine`].
            /* crate::a /* crate::b */ crate::c */
            const A: &str = "crate::store // \" crate::d";
            const B: &str = r#"crate::e " "#;
            const C: [char; 3] = ['"', '\'', '\u{7f}'];
            fn f<'a>(x: &'a str) -> crate::lock::Key {}
            #[cfg(test)]
            mod tests { fn g() { crate::store::open(); if x {} } }
            #[cfg(test)]
            mod other;
        "##;
        assert_eq!(names(code, &["rpc"]), ["lock::Key"]);
    }
}
