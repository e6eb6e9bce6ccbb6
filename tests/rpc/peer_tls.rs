//! TLS between replicas: who is admitted, who is not, and what both sides say of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata::engine::Peer;
use fermata::rpc::calls::CreateLockRef;
use fermata::rpc::peer::{ForwardOutcome, PeerClient};
use fermata::server::{PeerTls, PeerTlsFiles};
use fermata_proto::CreateLockRefResponse;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::ask;
use crate::certificates::Authority;
use crate::logs::Log;
use crate::peers::{Called, answered, client, forward};

const HOST: &str = "127.0.0.1";

/// With a certificate of `issuer` for `host`, trusting `trusted`.
fn tls(trusted: &Authority, issuer: &Authority, host: &str) -> PeerTls {
    let own = issuer.issue(host, Some(host));
    PeerTls::read(&PeerTlsFiles {
        ca_file: trusted.file(),
        cert_file: own.certificate_file,
        key_file: own.key_file,
    })
    .unwrap()
}

fn encrypted(trusted: &Authority, issuer: &Authority, host: &str) -> PeerClient {
    client().with_tls(tls(trusted, issuer, host))
}

async fn create(client: &PeerClient, to: &Peer) -> ForwardOutcome<CreateLockRefResponse> {
    forward::<CreateLockRef>(client, to, ask::create("a"), 5_000).await
}

/// Until a warning has all of these words.
async fn logged(log: &Log, words: &[&str]) {
    let until = Instant::now() + Duration::from_secs(20);
    let is_it = |line: &str| line.contains("WARN") && words.iter().all(|word| line.contains(word));
    while !log.text().lines().any(is_it) {
        assert!(Instant::now() < until, "{words:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn replicas_with_certificates_of_one_authority_call_each_other() {
    let ours = Authority::named("one");
    for host in [HOST, "localhost"] {
        let mut called = Called::by(encrypted(&ours, &ours, host)).await;
        called.peer.peer_address = called.peer.peer_address.replace(HOST, host);
        let caller = encrypted(&ours, &ours, "elsewhere.example");
        let created = answered(create(&caller, &called.peer).await);
        assert!(created.lock_ref.contains('@'));
        assert_eq!(called.engine.counts().swaps, 1, "{host}");
    }
}

#[tokio::test]
async fn whoever_has_no_right_certificate_is_refused_and_both_sides_say_why() {
    let log = Log::shared();
    let (ours, other) = (Authority::named("one"), Authority::named("one"));
    let right = || encrypted(&ours, &ours, HOST);
    for (caller, called, said_by_caller, said_by_called) in [
        (
            encrypted(&ours, &other, HOST),
            right(),
            "the replica refused our certificate",
            "the caller's certificate is not signed by the configured CA",
        ),
        (
            right(),
            encrypted(&ours, &other, HOST),
            "the replica's certificate is not signed by the configured CA",
            "the caller refused our certificate",
        ),
        (
            right(),
            encrypted(&ours, &ours, "127.0.0.9"),
            "the replica's certificate does not name the address of the connection",
            "the caller refused our certificate",
        ),
    ] {
        let called = Called::by(called).await;
        let there = create(&caller, &called.peer).await;
        let ForwardOutcome::NotAsked(why) = &there else {
            panic!("{said_by_caller}: {there:?}");
        };
        assert!(why.contains(said_by_caller), "{why}");
        let address = called.peer.peer_address.as_str();
        logged(log, &["another replica", address, said_by_caller]).await;
        logged(log, &["was refused", address, said_by_called]).await;
        assert_eq!(called.engine.counts().swaps, 0);
    }
}

#[tokio::test]
async fn a_caller_without_a_certificate_is_refused() {
    let log = Log::shared();
    let ours = Authority::named("one");
    let called = Called::by(encrypted(&ours, &ours, HOST)).await;
    let mut roots = RootCertStore::empty();
    let trusted = CertificateDer::from_pem_file(ours.file()).unwrap();
    roots.add(trusted).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let plain = TcpStream::connect(&called.peer.peer_address).await.unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let host = HOST.try_into().unwrap();
    let mut io = connector.connect(host, plain).await.unwrap();
    let answered = io.read_u8().await.unwrap_err().to_string();
    assert!(answered.contains("CertificateRequired"), "{answered}");
    let address = called.peer.peer_address.as_str();
    logged(log, &[address, "the caller shows no certificate"]).await;
}

#[tokio::test]
async fn replicas_with_and_without_tls_part_and_both_sides_say_why() {
    let log = Log::shared();
    let ours = Authority::named("one");
    let called = Called::by(encrypted(&ours, &ours, HOST)).await;
    let address = called.peer.peer_address.as_str();
    let plain = client();
    let there = create(&plain, &called.peer).await;
    let is_undone = matches!(
        there,
        ForwardOutcome::Unknown(_) | ForwardOutcome::NotAsked(_)
    );
    assert!(is_undone, "{there:?}");
    let why = "the replica speaks TLS, but peers.tls is not set here";
    logged(log, &["another replica", address, why]).await;
    logged(log, &["was refused", address, "does not speak TLS"]).await;
    let there = create(&plain, &called.peer).await;
    // Not at once again.
    assert!(matches!(there, ForwardOutcome::NotAsked(_)), "{there:?}");
    assert_eq!(called.engine.counts().swaps, 0);

    let called = Called::by(client()).await;
    let address = called.peer.peer_address.as_str();
    let there = create(&encrypted(&ours, &ours, HOST), &called.peer).await;
    assert!(matches!(there, ForwardOutcome::NotAsked(_)), "{there:?}");
    logged(log, &["another replica", address, "does not speak TLS"]).await;
    assert_eq!(called.engine.counts().swaps, 0);
}

#[tokio::test]
async fn a_handshake_that_never_ends_holds_up_nobody() {
    let ours = Authority::named("one");
    let called = Called::by(encrypted(&ours, &ours, HOST)).await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        let mut io = TcpStream::connect(&called.peer.peer_address).await.unwrap();
        // A record of TLS that is never sent in whole.
        io.write_all(&[0x16, 0x03, 0x01, 0x10, 0x00, 0x01])
            .await
            .unwrap();
        silent.push(io);
    }
    answered(create(&encrypted(&ours, &ours, HOST), &called.peer).await);
    // They were not turned away meanwhile: that is what was survived.
    for io in &silent {
        let mut byte = [0];
        let heard = io.try_read(&mut byte).unwrap_err();
        assert_eq!(heard.kind(), std::io::ErrorKind::WouldBlock);
    }
}
