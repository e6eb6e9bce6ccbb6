//! The console: its API has the rights of its callers, and its page works in a browser.

mod page;
mod webdriver;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata::access::NewToken;
use fermata_proto::CreateLockRefRequest;
use fermata_proto::lock_service_client::LockServiceClient;
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::Request;

use super::certificates::Authority;
use super::metrics::{Answer, get};
use super::process::Serve;
use super::secured::token;

const RULES: &str = r#"
[[rule]]
who = ["ops"]
table = "*"
allow = ["lock", "read", "write", "admin"]

[[rule]]
who = ["worker"]
table = "*"
allow = ["lock"]
"#;

/// A server with logins, and the tokens of an operator and of a worker.
pub struct Secured {
    pub serve: Serve,
    pub ops: NewToken,
    pub worker: NewToken,
    _files: TempDir,
}

impl Secured {
    pub fn start() -> Secured {
        let (ops, worker) = (token("ops"), token("worker"));
        let files = TempDir::new().unwrap();
        let written = |name: &str, text: &str| {
            let path = files.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let tokens = written("tokens", &format!("{}\n{}\n", ops.line, worker.line));
        let rules = written("rules", RULES);
        let serve = Serve::with(&[
            ("HTTP__LISTEN", "127.0.0.1:0"),
            ("AUTH__TOKENS_FILE", &tokens),
            ("AUTH__RULES_FILE", &rules),
        ]);
        Secured {
            serve,
            ops,
            worker,
            _files: files,
        }
    }
}

/// Waits for the lock of a key as this client. Returns the lockRef.
pub async fn queue(serve: &Serve, token: Option<&NewToken>, key: &str, owner: &str) -> String {
    let mut client = LockServiceClient::new(serve.channel());
    let mut create = Request::new(CreateLockRefRequest {
        key: key.to_owned(),
        owner: owner.to_owned(),
        ttl: Some(Duration::from_secs(300).try_into().unwrap()),
        ..Default::default()
    });
    if let Some(token) = token {
        let bearer = format!("Bearer {}", token.token).parse().unwrap();
        create.metadata_mut().insert("authorization", bearer);
    }
    let created = client.create_lock_ref(create).await.unwrap();
    created.into_inner().lock_ref
}

/// Sends a request over HTTP, and reads the answer.
fn post(port: u16, method: &str, headers: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST /api/fermata.v1.LockAdmin/{method} HTTP/1.1\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    Answer::parse(&text)
}

const OURS: &str = "Host: localhost\r\nContent-Type: application/json\r\n";

/// Calls a method as the page does: the status, and the answer.
fn call(serve: &Serve, token: &str, method: &str, request: &Json) -> (u16, Json) {
    let login = match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    };
    let headers = format!("{OURS}{login}");
    let answer = post(serve.http_port, method, &headers, &request.to_string());
    let shown = serde_json::from_str(&answer.body);
    (
        answer.status,
        shown.unwrap_or_else(|_| panic!("{}", answer.body)),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_the_console_has_the_rights_of_its_login() {
    let secured = Secured::start();
    let serve = &secured.serve;
    queue(serve, Some(&secured.worker), "k", "of worker").await;
    let describe = json!({"key": "k"});
    let described = || call(serve, &secured.ops.token, "DescribeLock", &describe);
    let force = json!({"name": "default/k#1", "reason": "a test", "forcedBy": "ann"});

    for (token, reason) in [("", "LOGIN_REQUIRED"), ("wrong", "LOGIN_REQUIRED")] {
        let (status, refused) = call(serve, token, "ForceRelease", &force);
        assert_eq!(
            (status, &refused["code"]),
            (401, &json!("Unauthenticated")),
            "{refused}"
        );
        assert!(!refused["message"].as_str().unwrap().is_empty(), "{reason}");
    }
    let (status, denied) = call(serve, &secured.worker.token, "ForceRelease", &force);
    assert_eq!(status, 403, "{denied}");
    assert_eq!(denied["code"], "PermissionDenied");
    let (status, denied) = call(serve, &secured.worker.token, "ListSessions", &json!({}));
    assert_eq!(status, 403, "{denied}");
    // Nothing has changed, and a waiter may see the holder.
    let (status, seen) = call(serve, &secured.worker.token, "DescribeLock", &describe);
    assert_eq!(status, 200);
    assert_eq!(seen["holders"][0]["identity"], "worker");
    assert_eq!(described().1["holders"][0]["owner"], "of worker");

    let (status, ended) = call(serve, &secured.ops.token, "ForceRelease", &force);
    assert_eq!((status, ended), (200, json!({"wasHolder": true})));
    let (_, after) = described();
    assert_eq!(after["holders"], Json::Null, "{after}");
    assert_eq!(after["ended"][0]["detail"], "a test");
    // What is wrong in a request is said as it is over gRPC.
    let (status, wrong) = call(
        serve,
        &secured.ops.token,
        "ForceRelease",
        &json!({"name": "default/k#1"}),
    );
    assert_eq!(
        (status, &wrong["reason"]),
        (400, &json!("MISSING")),
        "{wrong}"
    );
    // They count as any other call.
    let metrics = get(serve.http_port, "/metrics", "").body;
    let series = "method=\"ForceRelease\",reason=\"OK\"} 1";
    assert!(metrics.contains(series), "{metrics}");
}

#[test]
fn no_stranger_s_page_calls_the_api() {
    let serve = Serve::with(&[("HTTP__LISTEN", "127.0.0.1:0")]);
    let json = "Content-Type: application/json\r\n";
    let local = "Host: 127.0.0.1:7452\r\n";
    for (status, headers) in [
        (200, format!("{local}{json}")),
        (200, format!("{local}{json}Sec-Fetch-Site: same-origin\r\n")),
        (415, format!("{local}Content-Type: text/plain\r\n")),
        (403, format!("{local}{json}Sec-Fetch-Site: cross-site\r\n")),
        (403, format!("Host: stranger.example\r\n{json}")),
    ] {
        let answer = post(serve.http_port, "ListTables", &headers, "{}");
        assert_eq!(answer.status, status, "{headers}: {}", answer.body);
        assert!(
            !answer.headers.contains("access-control"),
            "{}",
            answer.headers
        );
    }
    // What the page has no use for.
    let headers = format!("{local}{json}");
    assert_eq!(post(serve.http_port, "Backup", &headers, "{}").status, 501);
    let long = format!("{{\"pageToken\": \"{}\"}}", "x".repeat(20_000));
    assert_eq!(
        post(serve.http_port, "ListTables", &headers, &long).status,
        413
    );
}

#[test]
fn the_page_is_in_the_binary_and_loads_nothing_from_elsewhere() {
    let serve = Serve::with(&[("HTTP__LISTEN", "127.0.0.1:0")]);
    for (path, kind) in [
        ("/", "text/html"),
        ("/console/console.css", "text/css"),
        ("/console/console.js", "text/javascript"),
        ("/console/icon.svg", "image/svg+xml"),
        ("/api/replica", "application/json"),
    ] {
        let answer = get(serve.http_port, path, "");
        assert_eq!(answer.status, 200, "{path}");
        for header in [
            &format!("content-type: {kind}"),
            "content-security-policy: default-src 'none'; script-src 'self'; ",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(
                answer.headers.contains(header),
                "{path}: {header}: {}",
                answer.headers
            );
        }
        let outside = ["http://", "https://"].map(|scheme| answer.body.matches(scheme).count());
        // The name of SVG, and no more.
        let names = answer.body.matches("http://www.w3.org/2000/svg").count();
        let comments = answer.body.matches("over https:// with").count();
        assert_eq!(outside, [names, comments], "{path}");
    }
    assert_eq!(get(serve.http_port, "/console/mod.rs", "").status, 404);

    let off = Serve::with(&[("HTTP__LISTEN", "127.0.0.1:0"), ("HTTP__CONSOLE", "false")]);
    for path in ["/", "/console/console.js", "/api/replica"] {
        assert_eq!(get(off.http_port, path, "").status, 404, "{path}");
    }
    assert_eq!(post(off.http_port, "ListTables", OURS, "{}").status, 404);
    assert_eq!(get(off.http_port, "/metrics", "").status, 200);
}

/// Sends a request over TLS, with the certificate of a client if there is one.
async fn ask_by_tls(port: u16, request: &str, ca: &Path, own: Option<(&Path, &Path)>) -> Answer {
    let builder = rustls::ClientConfig::builder_with_provider(fermata_tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(fermata_tls::authorities(ca).unwrap());
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                fermata_tls::certificates(certificate).unwrap(),
                fermata_tls::key(key).unwrap(),
            )
            .unwrap(),
    };
    let connection = tokio::net::TcpStream::connect(("127.0.0.1", port))
        .await
        .unwrap();
    let name = "127.0.0.1".try_into().unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, connection).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    let read = stream.read_to_string(&mut text).await;
    assert!(read.is_ok() || !text.is_empty(), "{read:?}");
    Answer::parse(&text)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_port_speaks_tls_with_the_certificate_of_the_server_and_plain_with_scrapers() {
    let authority = Authority::named("ours");
    let issued = authority.issue("server", Some("127.0.0.1"));
    let own = authority.issue("worker", None);
    let ca = authority.file();
    let serve = Serve::with(&[
        ("HTTP__LISTEN", "127.0.0.1:0"),
        ("TLS__CERT_FILE", issued.certificate_file.to_str().unwrap()),
        ("TLS__KEY_FILE", issued.key_file.to_str().unwrap()),
        ("TLS__CLIENT_CA_FILE", ca.to_str().unwrap()),
    ]);
    assert_eq!(get(serve.http_port, "/metrics", "").status, 200);
    let own = (own.certificate_file.as_path(), own.key_file.as_path());
    let page = "GET /api/replica HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    let call = format!(
        "POST /api/fermata.v1.LockAdmin/ListTables HTTP/1.1\r\n{OURS}Content-Length: 2\r\n\r\n{{}}"
    );
    for (own, login, identity, status) in [
        (None, "no certificate", Json::Null, 401),
        (Some(own), "certificate", json!("CN=worker"), 200),
    ] {
        let answer = ask_by_tls(serve.http_port, page, &ca, own).await;
        let shown: Json = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(
            (&shown["login"], &shown["identity"]),
            (&json!(login), &identity)
        );
        let answer = ask_by_tls(serve.http_port, &call, &ca, own).await;
        assert_eq!(answer.status, status, "{}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_console_of_a_server_without_its_store_says_so() {
    let waiting = Serve::with(&[
        ("HTTP__LISTEN", "127.0.0.1:0"),
        ("STORE__KIND", "cassandra"),
        ("STORE__CASSANDRA__CONTACT_POINTS", "127.0.0.1:1"),
    ]);
    let begun = Instant::now();
    loop {
        let (status, answer) = call(&waiting, "", "ListReplicas", &json!({}));
        assert_eq!(status, 503, "{answer}");
        if answer["message"]
            .as_str()
            .unwrap()
            .contains("waits for Cassandra")
        {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{answer}");
    }
}
