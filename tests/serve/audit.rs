//! The audit log of the real program: who did it, from where, what it was, and what came of it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use fermata::access::NewToken;
use fermata_client::{
    CallError, Client, ClientOptions, CreateError, LockError, LockRequest, SessionRequest, Tls,
    Token,
};
use rcgen::{CertificateParams, DistinguishedName, DnType, Issuer, KeyPair};
use tonic::Code;

use super::certificates::Authority;
use super::secured::{Files, Server, replace, token, until};

const RULES: &str = r#"
[[rule]]
who = ["billing"]
table = "*"
key_prefix = "own/"
allow = ["lock", "read", "write"]

[[rule]]
who = ["ops"]
table = "*"
allow = ["lock", "read", "write", "admin"]
"#;

/// The name of the authority.
const OURS: &str = "ours";

/// What stands in lines about clients over TCP, of these two and of anybody.
const BILLING: &str = r#"identity="billing" from="127.0.0.1:"#;
const OPS: &str = r#"identity="ops" from="127.0.0.1:"#;
const ANYBODY: &str = r#"from="127.0.0.1:"#;

/// Returns once one line of the audit log has all of these words.
async fn audited(server: &Server, words: &[&str]) {
    let is_it = |line: &str| {
        line.contains("fermata::audit") && words.iter().all(|word| line.contains(word))
    };
    let what = format!("a line of the audit log with {words:?}");
    until(&what, || server.log().lines().any(is_it)).await;
}

fn trusting(authority: &Authority) -> ClientOptions {
    ClientOptions {
        tls: Some(Tls::from_files(authority.file(), None).unwrap()),
        ..ClientOptions::default()
    }
}

fn known_by(authority: &Authority, token: &NewToken) -> ClientOptions {
    ClientOptions {
        token: Some(Token::from_text(&token.token).unwrap()),
        ..trusting(authority)
    }
}

fn is_denied<T>(came: Result<T, CallError>) -> bool {
    matches!(came, Err(CallError::Denied(_)))
}

/// A certificate that says not who it is of, though the authority signed it; and its key.
fn nameless(authority: &Authority, files: &Files) -> (PathBuf, PathBuf) {
    // As the authority was made: what it signs names it.
    let mut ours = CertificateParams::new([]).unwrap();
    ours.distinguished_name.push(DnType::CommonName, OURS);
    let key = fs::read_to_string(authority.file().with_extension("key")).unwrap();
    let issuer = Issuer::new(ours, KeyPair::from_pem(&key).unwrap());

    let mut params = CertificateParams::new([]).unwrap();
    params.distinguished_name = DistinguishedName::new();
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let (certificate_file, key_file) = (files.path("nameless"), files.path("nameless-key"));
    fs::write(&certificate_file, certificate.pem()).unwrap();
    fs::write(&key_file, key.serialize_pem()).unwrap();
    (certificate_file, key_file)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_log_says_who_did_what_from_where_and_what_came_of_it() {
    let authority = Authority::named(OURS);
    let (billing, ops, stranger) = (token("billing"), token("ops"), token("stranger"));
    let server = Server::start(Files::new(&authority, &[&billing, &ops], RULES));
    let client = |options| Client::connect_with([&server.endpoint], options).unwrap();
    let by_billing = client(known_by(&authority, &billing));
    let by_ops = client(known_by(&authority, &ops));

    // An entry that is ended by force, and again.
    let held = by_billing.lock(LockRequest::new("own/held")).await.unwrap();
    for (reason, came) in [("stuck", "ended"), ("stuck still", "had ended before")] {
        let name = held.lock_ref();
        let forced = by_ops.force_release(&name, reason, "ann").await.unwrap();
        assert_eq!(forced.already_released, came == "had ended before");
        let reason = format!("reason={reason:?}");
        let came = format!("came={came:?}");
        let entry = "entry=default/own/held#1 ";
        let by = r#"by="ann""#;
        audited(
            &server,
            &["an end by force", OPS, entry, by, &reason, &came],
        )
        .await;
    }

    // A session of somebody else, by who may end it, and by who may not.
    let ended = by_billing.open_session(SessionRequest::new()).await;
    let ended = ended.unwrap();
    let had_ended = by_ops.end_session(ended.id(), "gone", "ann").await.unwrap();
    assert!(!had_ended);
    let session = format!("session={} ", ended.id());
    let (by, reason, came) = (r#"by="ann""#, r#"reason="gone""#, r#"came="ended""#);
    audited(
        &server,
        &["an end by force", OPS, &session, by, reason, came],
    )
    .await;
    let kept = by_ops.open_session(SessionRequest::new()).await.unwrap();
    assert!(is_denied(
        by_billing.end_session(kept.id(), "mine", "bob").await
    ));
    let why = "no rule allows billing to admin on everything";
    audited(&server, &["a call was denied", BILLING, why]).await;

    // Keys that no rule gives to who asks.
    let locked = by_billing.lock(LockRequest::new("others/locked")).await;
    assert!(
        matches!(locked, Err(LockError::Create(CreateError::Denied(_)))),
        "it is not denied"
    );
    let why = "no rule allows billing to lock on the key";
    audited(
        &server,
        &["a call was denied", BILLING, why, "others/locked"],
    )
    .await;
    // What lets somebody else act there is of no use either.
    let watched = by_ops.lock(LockRequest::new("others/watched"));
    let watched = watched.await.unwrap();
    let options = known_by(&authority, &billing);
    let refused = server.watch(&options, watched.lock_ref()).await;
    let refused = refused.map(drop).unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let method = r#"method="WatchLock""#;
    audited(
        &server,
        &["a call was denied", BILLING, why, "others/watched", method],
    )
    .await;

    // Nobody whom the server knows: each by a call of its own, which is named by its path.
    let refused = "a login was refused";
    let unknown = client(known_by(&authority, &stranger));
    assert!(is_denied(unknown.list_tables().await));
    let path = r#"path="/fermata.v1.LockAdmin/ListTables""#;
    let why = "the token is unknown to this server";
    audited(&server, &[refused, ANYBODY, path, why]).await;
    let nobody = client(trusting(&authority));
    assert!(is_denied(nobody.list_replicas().await));
    let path = r#"path="/fermata.v1.LockAdmin/ListReplicas""#;
    let why = "this server requires a login";
    audited(&server, &[refused, ANYBODY, path, why]).await;
    let own = nameless(&authority, &server.files);
    let unnamed = client(ClientOptions {
        tls: Some(Tls::from_files(authority.file(), Some(own)).unwrap()),
        ..ClientOptions::default()
    });
    let denied = unnamed.list_sessions(1).await.unwrap_err();
    let why = "the client certificate is trusted, but names no identity";
    assert!(denied.to_string().contains(why), "{denied}");
    let refused = "a client certificate was not accepted as a login";
    let why = "it names nobody: it has no subject and no SPIFFE id";
    audited(&server, &[refused, ANYBODY, why]).await;

    // Whoever has a backup has every value.
    let token_file = server.files.path("ops");
    replace(&token_file, &ops.token);
    let mut command = Command::new(env!("CARGO_BIN_EXE_fermata"));
    command.args(["--endpoint", &server.endpoint]);
    command.arg("--ca").arg(authority.file());
    command.arg("--token-file").arg(&token_file);
    command.arg("backup").arg(server.files.path("backup"));
    let backed_up = command.output().unwrap();
    assert!(backed_up.status.success(), "{backed_up:?}");
    audited(&server, &["a backup was begun", OPS]).await;
    let came = r#"came="whole""#;
    audited(&server, &["a backup ended", OPS, came]).await;

    // On a Unix socket it is a process that calls: this one.
    let socket = format!("unix:{}", server.files.path("socket").display());
    let by_socket = Client::connect([&socket]).unwrap();
    let user = format!("unix:{}", nix::unistd::getuid());
    assert!(is_denied(by_socket.get("", "others/read").await));
    let from = format!("from=\"unix, process {}\"", std::process::id());
    let identity = format!("identity={user:?}");
    let why = format!("no rule allows {user} to read on the key");
    audited(
        &server,
        &["a call was denied", &identity, &from, &why, "others/read"],
    )
    .await;

    // Of what lets a client act nothing is in it.
    let log = server.log();
    for token in [&billing, &ops, &stranger] {
        assert!(!log.contains(&token.token), "the token of {}", token.line);
    }
    for lock_ref in [held.lock_ref(), watched.lock_ref()] {
        assert!(!log.contains(&lock_ref), "{lock_ref}");
    }
}
