use super::*;
use crate::lock::{Key, KeyId, TableName};

const RANDOM: [u8; 32] = [7; 32];

fn token(name: &str, random: u8) -> NewToken {
    NewToken::new(name, [random; 32]).unwrap()
}

fn policy(tokens: &[&NewToken], rules: &str) -> Policy {
    let lines: Vec<&str> = tokens.iter().map(|token| token.line.as_str()).collect();
    Policy {
        tokens: (!tokens.is_empty()).then(|| Arc::new(Tokens::parse(&lines.join("\n")).unwrap())),
        certificates: false,
        rules: (!rules.is_empty()).then(|| Arc::new(Rules::parse(rules).unwrap())),
    }
}

fn caller(certificate: Option<&str>, unix_user: Option<u32>) -> Origin {
    Origin {
        address: None,
        from: "10.0.0.1:5".into(),
        certificate: certificate.map(Into::into),
        unix_user,
        ..Origin::default()
    }
}

fn key(table: &str, key: &str) -> KeyId {
    KeyId {
        table: TableName::parse(table).unwrap(),
        key: Key::parse(key, Key::BYTES_MAX).unwrap(),
    }
}

#[test]
fn a_token_is_known_by_its_hash_alone() {
    let made = NewToken::new("billing", RANDOM).unwrap();
    assert_eq!(made.token, format!("fmt_{}", "07".repeat(32)));
    assert!(made.line.starts_with("billing sha256:"), "{}", made.line);
    assert!(!made.line.contains("0707"), "{}", made.line);
    let known = Tokens::parse(&format!("# who is who\n\n  {}  \n", made.line)).unwrap();
    let (name, hash) = known.find(made.token.as_bytes()).unwrap();
    assert_eq!(&*name, "billing");
    assert!(known.has("billing", &hash) && !known.has("other", &hash));
    for other in ["", "fmt_", &made.token[1..], &made.line, &"x".repeat(5_000)] {
        assert!(known.find(other.as_bytes()).is_none(), "{other}");
    }
    assert_eq!(format!("{known:?}"), "1 tokens");
}

#[test]
fn a_name_may_have_two_tokens_and_a_token_only_one_name() {
    let (old, new) = (token("billing", 1), token("billing", 2));
    let both = Tokens::parse(&format!("{}\n{}", old.line, new.line)).unwrap();
    for token in [&old, &new] {
        assert!(both.find(token.token.as_bytes()).is_some());
    }
    let same = token("other", 1);
    let twice = Tokens::parse(&format!("{}\n{}\n{}", old.line, old.line, same.line));
    assert_eq!(twice.unwrap_err(), TokenError::Twice { line: 3 });
}

#[test]
fn a_line_that_is_no_token_is_named() {
    let good = token("a", 1).line;
    let hash = "0".repeat(63);
    for bad in [
        "billing",
        "billing sha256:",
        "billing sha256:00",
        "billing md5:00",
        &format!("bill/ing sha256:0{hash}"),
        &format!("billing sha256:{hash}g"),
        &format!("sha256:0{hash}"),
    ] {
        let refused = Tokens::parse(&format!("{good}\n{bad}\n"));
        let malformed = TokenError::Malformed { line: 2 };
        assert_eq!(refused.unwrap_err(), malformed, "{bad}");
    }
    let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let refused = Tokens::parse(&format!("{good}\nbilling sha256:{nothing}\n"));
    assert_eq!(refused.unwrap_err(), TokenError::Empty { line: 2 });
    for name in ["", "a b", "a:b", "a=b", "ä", &"x".repeat(65)] {
        assert!(NewToken::new(name, RANDOM).is_none(), "{name}");
    }
}

#[test]
fn who_calls_is_said_by_its_token_then_its_certificate_then_its_socket() {
    let made = token("billing", 1);
    let by_token = policy(&[&made], "");
    let login = |policy: &Policy, caller: &Origin, token: Option<&str>| {
        let login = policy.login(Some(caller), token.map(str::as_bytes));
        login.map(|login| login.identity.to_string())
    };
    let known = Ok("billing".to_owned());
    let remote = caller(None, None);
    assert_eq!(login(&by_token, &remote, Some(&made.token)), known);
    assert_eq!(login(&by_token, &remote, None), Err(LoginRefused::Missing));
    let unknown = Err(LoginRefused::UnknownToken);
    assert_eq!(login(&by_token, &remote, Some("x")), unknown);

    // A certificate counts only where one is asked for; a wrong token is no login, whatever else there is.
    let certified = caller(Some("CN=worker"), None);
    let missing = Err(LoginRefused::Missing);
    assert_eq!(login(&by_token, &certified, None), missing);
    let by_both = Policy {
        certificates: true,
        ..policy(&[&made], "")
    };
    let worker = Ok("CN=worker".to_owned());
    assert_eq!(login(&by_both, &certified, None), worker);
    assert_eq!(login(&by_both, &certified, Some(&made.token)), known);
    assert_eq!(login(&by_both, &certified, Some("x")), unknown);

    let unnamed = Origin {
        is_unnamed: true,
        ..caller(None, None)
    };
    let refused = Err(LoginRefused::Unnamed);
    assert_eq!(login(&by_both, &unnamed, None), refused);
    assert_eq!(login(&by_both, &unnamed, Some(&made.token)), known);
    assert_eq!(login(&by_token, &unnamed, None), missing);

    let local = caller(None, Some(1000));
    assert_eq!(login(&by_token, &local, None), Ok("unix:1000".to_owned()));
    assert_eq!(login(&by_token, &local, Some(&made.token)), known);

    // Where nobody is asked, a token counts for nothing, and nobody is refused.
    let open = Policy::default();
    assert_eq!(login(&open, &remote, Some("x")), Ok(String::new()));
    assert_eq!(login(&open, &certified, None), Ok(String::new()));
    assert_eq!(login(&open, &local, None), Ok(String::new()));
    assert_eq!(open.login(None, None).unwrap().from.len(), 0);
}

#[test]
fn a_login_ends_with_its_token() {
    let (old, new) = (token("billing", 1), token("billing", 2));
    let both = policy(&[&old, &new], "");
    let login = both.login(None, Some(old.token.as_bytes())).unwrap();
    assert_eq!(both.still_knows(&login), Ok(()));
    // The same hash under another name is another one's.
    for others in [new, token("other", 1)] {
        let known = policy(&[&others], "").still_knows(&login);
        assert_eq!(known, Err(LoginRefused::UnknownToken));
    }
    assert!(!format!("{login:?}").contains("01"), "{login:?}");
}

const RULES: &str = r#"
[[rule]]
who = ["billing", "spiffe://acme/billing/*"]
table = "orders"
key_prefix = "eu/"
allow = ["lock", "write"]

[[rule]]
who = ["*"]
table = "orders"
allow = ["read"]

[[rule]]
who = ["ops"]
table = "*"
allow = ["admin"]
"#;

#[test]
fn what_no_rule_allows_is_denied() {
    let rules = Rules::parse(RULES).unwrap();
    let allowed = |who: &str, verbs: Verbs, id: &KeyId| rules.allow(who, verbs, Scope::Key(id));
    let (eu, us, other) = (
        key("orders", "eu/1"),
        key("orders", "us/1"),
        key("default", "eu/1"),
    );
    let writes = Verbs::from(Verb::Lock).and(true, Verb::Write);
    for who in ["billing", "spiffe://acme/billing/7"] {
        assert!(allowed(who, writes, &eu));
        // One verb by one rule, the other one by another.
        assert!(allowed(who, writes.and(true, Verb::Read), &eu));
        assert!(!allowed(who, writes, &us) && !allowed(who, writes, &other));
        assert!(allowed(who, Verb::Read.into(), &us));
        assert!(!allowed(who, Verb::Admin.into(), &eu));
        assert!(rules.allow(who, Verb::Lock.into(), Scope::Own));
        assert!(!rules.allow(who, Verb::Admin.into(), Scope::Everything));
    }
    let evil = "spiffe://evil/acme/billing/7";
    for who in ["", "billing2", "spiffe://acme/bill", evil] {
        assert!(!allowed(who, Verb::Lock.into(), &eu), "{who}");
        assert!(allowed(who, Verb::Read.into(), &eu));
        assert!(!rules.allow(who, Verb::Lock.into(), Scope::Own));
    }
    assert!(allowed("ops", Verb::Admin.into(), &other));
    assert!(rules.allow("ops", Verb::Admin.into(), Scope::Everything));
    assert!(!allowed("ops", Verb::Lock.into(), &other));
    // No rules at all deny everything, and no file of rules nothing.
    let none = Rules::parse("").unwrap();
    assert!(!none.allow("ops", Verb::Read.into(), Scope::Key(&eu)));
    assert!(Policy::default().allows("", writes, Scope::Everything));
}

#[test]
fn a_listing_needs_all_of_what_it_may_show() {
    let rules = r#"
        [[rule]]
        who = ["a"]
        table = "orders"
        key_prefix = "eu/"
        allow = ["admin"]
    "#;
    let rules = Rules::parse(rules).unwrap();
    let orders = TableName::parse("orders").unwrap();
    let may = |prefix| rules.allow("a", Verb::Admin.into(), Scope::Prefix(&orders, prefix));
    assert!(may("eu/") && may("eu/1"));
    assert!(!may("") && !may("eu") && !may("us/"));
    assert!(!rules.allow("a", Verb::Admin.into(), Scope::Everything));
}

#[test]
fn rules_that_cannot_be_meant_are_refused_by_their_number() {
    let rule = |who: &str, table: &str, allow: &str| {
        format!("[[rule]]\nwho = {who}\ntable = \"{table}\"\nallow = {allow}\n")
    };
    let a = "[\"a\"]";
    let lock = "[\"lock\"]";
    let good = rule(a, "t", lock);
    for (bad, why) in [
        (rule("[]", "t", lock), "rule 2: who must not be empty"),
        (rule("[\"\"]", "t", lock), "must not be empty"),
        (rule("[\"a*b\"]", "t", lock), "at the end only"),
        (rule(a, "", lock), "rule 2: table"),
        (rule(a, "t", "[]"), "allow must not be empty"),
        (rule(a, "t", "[\"own\"]"), "unknown variant `own`"),
        (format!("{good}deny = []\n"), "unknown field `deny`"),
        (format!("{good}key_prefix = \"a\\u0007\"\n"), "key_prefix"),
        ("rules = 1".to_owned(), "rules"),
    ] {
        let refused = Rules::parse(&format!("{good}{bad}"))
            .unwrap_err()
            .to_string();
        assert!(refused.contains(why), "{bad}: {refused}");
    }
}

#[test]
fn a_file_that_cannot_be_used_is_named() {
    let directory = tempfile::TempDir::new().unwrap();
    let [tokens, rules, large] =
        ["tokens", "rules", "large"].map(|name| directory.path().join(name));
    std::fs::write(&tokens, token("a", 1).line).unwrap();
    std::fs::write(&rules, "nonsense").unwrap();
    std::fs::write(&large, " ".repeat(1024 * 1024 + 1)).unwrap();
    let read = |tokens: Option<&PathBuf>, rules: Option<&PathBuf>| {
        let files = AccessFiles {
            tokens: tokens.cloned(),
            rules: rules.cloned(),
        };
        files.read(false).map_err(|error| error.to_string())
    };
    assert!(read(Some(&tokens), None).unwrap().needs_login());
    assert!(!read(None, None).unwrap().needs_login());
    let none = directory.path().join("none");
    let folder = directory.path().to_path_buf();
    for (tokens, rules, words) in [
        (Some(&tokens), Some(&rules), "rules: "),
        (Some(&rules), None, "rules: line 1 is not NAME"),
        (Some(&large), None, "large: it has more than 1048576 bytes"),
        (Some(&none), None, "none: No such file"),
        (Some(&folder), None, "it is not a regular file"),
    ] {
        let refused = read(tokens, rules).unwrap_err();
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn what_can_hardly_be_meant_by_a_rule_is_pointed_at() {
    let rule =
        "[[rule]]\nwho = [\"a\"]\ntable = \"orders\"\nkey_prefix = \"own/*\"\nallow = [\"lock\"]\n";
    let doubts = |rules: &str| {
        let rules = Rules::parse(rules).unwrap();
        rules.doubts(&[TableName::default_table()])
    };
    let found = doubts(rule);
    assert!(
        found.len() == 2
            && found[0].contains("rule 1: there is no table \"orders\"")
            && found[1].contains("'*' is an ordinary character"),
        "{found:?}"
    );
    let meant = rule.replace("orders", "default").replace('*', "");
    assert_eq!(doubts(&meant), [""; 0]);
    assert!(doubts("")[0].contains("nobody may do anything"));
}
