//! A node that admits nobody without a password and a certificate.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fermata::key::KeyState;
use fermata::store::cassandra::schema::{self, Replication, Schema};
use fermata::store::cassandra::{
    CassandraError, CassandraOptions, CassandraStore, CassandraTls, ClientCertificate, Credentials,
    Keyspace,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::OnceCell;

use super::World;
use super::command;
use super::support::{self, Lone};
use crate::certificates::Authority;
use crate::world::{apply, id, table, with_entry};

/// A certificate and its key in one file, as Cassandra reads them.
fn in_one_file(files: &ClientCertificate) -> PathBuf {
    let text = |path: &Path| std::fs::read_to_string(path).unwrap();
    let both = text(&files.key_file) + &text(&files.certificate_file);
    let path = files.certificate_file.with_extension("both.pem");
    std::fs::write(&path, both).unwrap();
    path
}

/// The node; the authority that it knows, and one with the same name.
struct Guarded {
    node: Lone,
    authority: Authority,
    stranger: Authority,
    client: ClientCertificate,
}

impl Guarded {
    /// One for all tests of this program. `None` where Cassandra is left out.
    async fn node() -> Option<&'static Guarded> {
        static NODE: OnceCell<Option<Guarded>> = OnceCell::const_new();
        NODE.get_or_init(Guarded::start).await.as_ref()
    }

    async fn start() -> Option<Guarded> {
        let (authority, stranger) = (Authority::named("one"), Authority::named("one"));
        let client = authority.issue("client", None);
        let own = authority.issue("node", Some(&Lone::address()));
        let encryption = format!(
            "{{enabled: true, optional: false, require_client_auth: true, keystore: '{}', truststore: '{}', \
             ssl_context_factory: {{class_name: org.apache.cassandra.security.PEMBasedSslContextFactory}}}}",
            in_one_file(&own).display(),
            authority.file().display(),
        );
        let settings = [
            ("client_encryption_options", encryption),
            ("authenticator", "PasswordAuthenticator".to_owned()),
            ("paxos_variant", "v1".to_owned()),
        ];
        let starting = tokio::task::spawn_blocking(move || support::for_tests::lone(&settings));
        let guarded = Guarded {
            node: starting.await.unwrap()?,
            authority,
            stranger,
            client,
        };
        // The user is made a while after the node listens.
        let until = Instant::now() + Duration::from_secs(120);
        while let Err(error) = guarded.apply(&guarded.options()).await {
            assert!(Instant::now() < until, "{error}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Some(guarded)
    }

    /// Of one who may.
    fn options(&self) -> CassandraOptions {
        let keyspace = Keyspace::parse("guarded").unwrap();
        CassandraOptions {
            credentials: Some(Credentials {
                user: "cassandra".to_owned(),
                password: "cassandra".to_owned(),
            }),
            tls: Some(CassandraTls {
                ca_file: self.authority.file(),
                client: Some(self.client.clone()),
                verify_host: true,
            }),
            ..super::driver::options(vec![self.node.contact_point()], keyspace)
        }
    }

    fn tls(&self) -> CassandraTls {
        self.options().tls.unwrap()
    }

    /// `fermata schema` with the flags, the file and the variable that granted it the lock.
    fn command(&self, words: &[&str], ca_file: &Path) -> Command {
        let options = self.options();
        let mut command = command::schema(words);
        command.args(["--keyspace", "by_command", "--user", "cassandra"]);
        command.arg("--tls-ca").arg(ca_file);
        command
            .arg("--tls-certificate")
            .arg(&self.client.certificate_file);
        command.env("FERMATA_CASSANDRA_PASSWORD", "cassandra");
        command.env(
            "FERMATA_CFG_STORE__CASSANDRA__CONTACT_POINTS",
            options.contact_points.join(","),
        );
        let file = self.authority.file().with_file_name("fermata.toml");
        let key = self.client.key_file.display();
        let text = format!("[store.cassandra.tls]\nkey_file = '{key}'\n[tables.orders]\n");
        std::fs::write(&file, text).unwrap();
        command.arg("--config").arg(file);
        command
    }

    async fn apply(&self, options: &CassandraOptions) -> Result<(), CassandraError> {
        let schema = Schema {
            keyspace: options.keyspace.clone(),
            replication: Some(Replication::Simple(1)),
            tables: vec![table("default")],
            cell_tables: Vec::new(),
            row_tables: fermata::store::cassandra::RowTables::new(),
        };
        schema::apply(options, &schema, &|_| {}).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_reach_it_by_flags_variables_and_a_file_and_tell_what_could_be_better() {
    let Some(guarded) = Guarded::node().await else {
        return;
    };
    let ca_file = guarded.authority.file();
    let stranger = guarded.stranger.file();
    let run = async |words: &[&str], ca_file: &Path| {
        let output = guarded.command(words, ca_file).output().await.unwrap();
        command::ended(&output)
    };
    let (code, _, answered) = run(&["apply"], &stranger).await;
    assert_eq!(code, Some(69), "{answered}");
    assert!(
        answered.contains("not signed by the configured CA"),
        "{answered}"
    );

    let (code, _, answered) = run(&["apply", "--replication", "datacenter1=1"], &ca_file).await;
    assert_eq!(code, Some(0), "{answered}");
    assert!(answered.contains("\"lock_orders\""), "{answered}");

    let (code, found, answered) = run(&["check"], &ca_file).await;
    assert_eq!(code, Some(0), "{found}{answered}");
    for words in [
        "advice: copies of each key: 1;",
        "add nodes, and replicate to 3 of them",
        "have paxos_variant: v1",
    ] {
        assert!(found.contains(words), "no {words:?} in {found}");
    }
}

/// Refused in these words.
#[track_caller]
fn says(opened: Result<CassandraStore, CassandraError>, words: &str) {
    match opened {
        Err(CassandraError::Refused(what)) => assert!(what.contains(words), "{what}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was admitted, not refused for {words:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_a_certificate_and_a_password_is_admitted_and_nobody_else() {
    let Some(guarded) = Guarded::node().await else {
        return;
    };
    let store = CassandraStore::open(guarded.options()).await.unwrap();
    let none = KeyState::default();
    apply(&store, &id("k"), &none, &with_entry(&none, 1)).await;

    let mut options = guarded.options();
    options.credentials.as_mut().unwrap().password = "guessed".to_owned();
    let applied = guarded.apply(&options).await;
    assert!(matches!(applied, Err(CassandraError::Refused(_))));
    let opened = CassandraStore::open(options.clone()).await;
    let shown = opened.as_ref().err().map(ToString::to_string);
    assert!(!shown.unwrap().contains("guessed"));
    says(opened, "password are incorrect");
    options.credentials = None;
    says(CassandraStore::open(options).await, "a user and a password");

    for client in [None, Some(guarded.stranger.issue("client", None))] {
        let tls = CassandraTls {
            client,
            ..guarded.tls()
        };
        let options = CassandraOptions {
            tls: Some(tls),
            ..guarded.options()
        };
        match CassandraStore::open(options).await.map(drop) {
            // With TLS 1.3 the node refuses after the handshake: what it says may be lost with the connection.
            Err(CassandraError::Refused(what) | CassandraError::Unreachable(what)) => {
                assert!(what.contains("our certificate"), "{what}");
            }
            other => panic!("{other:?}"),
        }
    }
    let options = CassandraOptions {
        tls: None,
        ..guarded.options()
    };
    match CassandraStore::open(options).await.map(drop) {
        Err(CassandraError::Unreachable(what)) => assert!(what.contains("requires TLS"), "{what}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_another_authority_knows_is_not_trusted() {
    let Some(guarded) = Guarded::node().await else {
        return;
    };
    let other = Authority::named("another authority");
    for stranger in [&guarded.stranger, &other] {
        for verify_host in [true, false] {
            let tls = CassandraTls {
                ca_file: stranger.file(),
                verify_host,
                ..guarded.tls()
            };
            let options = CassandraOptions {
                tls: Some(tls),
                ..guarded.options()
            };
            says(
                CassandraStore::open(options).await,
                "not signed by the configured CA",
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_encrypt_is_not_spoken_to() {
    let Some(world) = World::empty().await else {
        return;
    };
    let authority = Authority::named("some");
    let options = CassandraOptions {
        tls: Some(CassandraTls {
            ca_file: authority.file(),
            client: None,
            verify_host: true,
        }),
        ..world.options()
    };
    says(CassandraStore::open(options).await, "does not speak TLS");
}

/// Another address of the node, which its certificate does not name. (A driver takes it that all nodes listen at
/// the same port.)
async fn other_address(of: String) -> String {
    let listener = TcpListener::bind("127.0.0.5:9042").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let of = of.clone();
            tokio::spawn(async move {
                let mut node = TcpStream::connect(of).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut node).await;
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_for_another_address_counts_only_where_addresses_are_not_checked() {
    let Some(guarded) = Guarded::node().await else {
        return;
    };
    let elsewhere = other_address(guarded.node.contact_point()).await;
    let opened = async |verify_host| {
        let options = CassandraOptions {
            contact_points: vec![elsewhere.clone()],
            tls: Some(CassandraTls {
                verify_host,
                ..guarded.tls()
            }),
            ..guarded.options()
        };
        CassandraStore::open(options).await
    };
    says(opened(true).await, "does not name the address");
    opened(false).await.unwrap();
}
