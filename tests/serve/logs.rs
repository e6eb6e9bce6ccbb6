//! The log as JSON: one stream with all that a server says, and a filter that operators change while it runs.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use fermata_proto::SetLogFilterRequest;
use fermata_proto::lock_admin_client::LockAdminClient;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tonic::Code;

use super::process::{Ends, client};

struct Logged {
    child: Ends,
    lines: BufReader<ChildStderr>,
}

impl Logged {
    fn start(data: &Path) -> Logged {
        let mut child: Child = Command::new(env!("CARGO_BIN_EXE_fermata"))
            .args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json"])
            .arg("--data-dir")
            .arg(data)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        Logged {
            child: Ends(child),
            lines,
        }
    }

    /// The next event whose message begins so.
    fn event(&mut self, begins: &str) -> Value {
        loop {
            let mut line = String::new();
            assert!(
                self.lines.read_line(&mut line).unwrap() > 0,
                "no {begins:?}"
            );
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["message"].as_str().unwrap().starts_with(begins) {
                return event;
            }
        }
    }

    /// Stops it; what it wrote to stdout.
    fn stop(mut self) -> String {
        let pid = i32::try_from(self.child.0.id()).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        let mut printed = String::new();
        let stdout = self.child.0.stdout.as_mut().unwrap();
        stdout.read_to_string(&mut printed).unwrap();
        printed
    }
}

#[test]
fn what_a_server_says_first_are_events_of_its_log() {
    let data = tempfile::tempdir().unwrap();
    for store in ["embedded store, new", "embedded store"] {
        let mut logged = Logged::start(data.path());
        let starting = logged.event("starting");
        assert_eq!(starting["version"], env!("CARGO_PKG_VERSION"));
        assert!(starting["commit"].is_string());
        let listening = logged.event("listening");
        assert!(
            listening["address"]
                .as_str()
                .unwrap()
                .starts_with("127.0.0.1:")
        );
        let serving = logged.event("serving data in ");
        let said = serving["message"].as_str().unwrap();
        assert!(said.ends_with(&format!("({store})")), "{said}");
        assert!(said.contains(data.path().to_str().unwrap()), "{said}");
        assert_eq!(logged.stop(), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_changes_the_logged_events_of_a_replica() {
    let data = tempfile::tempdir().unwrap();
    let mut logged = Logged::start(data.path());
    let listening = logged.event("listening");
    let endpoint = format!("http://{}", listening["address"].as_str().unwrap());
    let replica = logged.event("serving")["replica"]
        .as_str()
        .unwrap()
        .to_owned();
    let channel = tonic::transport::Endpoint::from_shared(endpoint.clone()).unwrap();
    let mut admin = LockAdminClient::new(channel.connect_lazy());
    let set = |filter: &str| SetLogFilterRequest {
        filter: filter.to_owned(),
    };
    let was = admin.set_log_filter(set("fermata::rpc=debug")).await;
    let was = was.unwrap().into_inner();
    assert_eq!(was.replica, replica);
    assert_eq!(was.previous, "info,scylla=warn,h2=error");
    assert_eq!(
        logged.event("the filter of the log changed")["filter"],
        "fermata::rpc=debug"
    );
    // An event that was not logged before.
    let _ = client(&endpoint)
        .close_session(fermata_proto::CloseSessionRequest::default())
        .await;
    logged.event("answered");
    for wrong in [
        "fermata=loud".to_owned(),
        String::new(),
        "inof".to_owned(),
        "x".repeat(2_000),
    ] {
        let refused = admin.set_log_filter(set(&wrong)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(
            refused.message().contains("filter"),
            "{}",
            refused.message()
        );
    }
    let now = admin
        .set_log_filter(set("info"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(now.previous, "fermata::rpc=debug,fermata::audit=info");
}
