//! Short runs against a server in this process, over real sockets.

#[path = "../tests/command/server.rs"]
pub(super) mod server;

use clap::{Parser as _, ValueEnum as _};
use fermata::access::{NewToken, Tokens};
use fermata_client::Token;

use self::server::{Running, server, server_of};
use super::args::{Args, Benchmark};
use super::interrupt::Interrupt;
use super::keys::KeyChoice;
use super::plan::Plan;
use super::plan::tests::plan;
use super::report::Report;
use super::sections::measure;
use super::{handover, idle};

/// A short run of four workers on one key.
async fn bench(server: &Running, options: &str) -> Report {
    measure(&planned(server, options), Interrupt::listen())
        .await
        .unwrap()
}

/// Without a warm-up: its sections are not counted, and on a slow machine none may begin after it.
fn planned(server: &Running, options: &str) -> Plan {
    let mut words = options.split_whitespace();
    let command = words.next().unwrap();
    let mut line = format!("{command} --endpoint {}", server.endpoint);
    for (option, value) in [
        ("--workers", "4"),
        ("--keys", "one"),
        ("--warm-up", "0s"),
        ("--duration", "250ms"),
    ] {
        if !options.contains(option) {
            line += &format!(" {option} {value}");
        }
    }
    plan(&(line + " " + &words.collect::<Vec<_>>().join(" "))).unwrap()
}

fn phases(report: &Report) -> Vec<&'static str> {
    let run = report.runs.last().unwrap();
    run.phases.iter().map(|row| row.phase).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sections_in_both_forms_and_on_all_keys_increment_exactly() {
    let server = server().await;
    for keys in KeyChoice::value_variants().iter().copied() {
        for form in ["", "--short"] {
            let options = format!("section {form} --keys {} --key-count 20000", keys.name());
            let report = bench(&server, &options).await;
            assert!(report.clean, "{report:?}");
            let run = &report.runs[0];
            let check = run.counter_check.as_ref().unwrap();
            assert!(run.sections > 0 && check.acknowledged >= run.sections);
            assert_eq!(check.stored, check.acknowledged);
            let waited = phases(&report).contains(&"acquire");
            match keys {
                KeyChoice::One => assert!(waited),
                KeyChoice::Own => assert!(!waited),
                KeyChoice::New => {
                    assert!(!waited);
                    assert_eq!(check.keys, check.acknowledged);
                }
                KeyChoice::Near => {}
            }
            assert_eq!(phases(&report).contains(&"put"), form.is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_knows_its_clients_is_measured_with_a_token() {
    let new = NewToken::new("billing", [7; 32]).unwrap();
    let server = server_of(Some(Tokens::parse(&new.line).unwrap())).await;
    for options in ["section --pipeline", "section --sessions 2"] {
        let mut plan = planned(&server, options);
        plan.options.token = Some(Token::from_text(&new.token).unwrap());
        let report = measure(&plan, Interrupt::listen()).await.unwrap();
        assert!(report.clean && report.runs[0].sections > 0, "{report:?}");
    }
    let report = bench(&server, "lock").await;
    let errors = &report.runs[0].errors_by_code;
    assert_eq!(errors[0].code, "UNAUTHENTICATED", "{errors:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_alone_write_nothing_and_runs_follow_each_other() {
    let server = server().await;
    let report = bench(&server, "lock --workers 1,2").await;
    assert!(report.clean, "{report:?}");
    assert_eq!(report.runs.len(), 2);
    assert!(report.runs.iter().all(|run| run.sections > 0));
    assert!(report.runs.iter().all(|run| run.counter_check.is_none()));
    assert_eq!(phases(&report).last(), Some(&"section"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_a_rate_that_is_too_high_sections_count_from_when_they_were_due_or_as_not_begun() {
    let server = server().await;
    let report = bench(&server, "section --keys own --hold 100ms --rate 1000").await;
    let run = &report.runs[0];
    assert_eq!(run.rate, Some(1_000.0));
    // Of 250 that were due four workers began no more than four every 100 ms.
    assert_eq!(run.sections + run.not_begun, 250);
    assert!(run.sections <= 12, "{run:?}");
    // The ones of the second turn were due by 8 ms, and began at 100 ms.
    let section = run.phases.iter().find(|row| row.phase == "section");
    assert!(section.is_some_and(|row| row.max_us > 190_000), "{run:?}");
    assert!(!report.clean);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_counted_and_make_a_run_unclean() {
    let server = server().await;
    let report = bench(&server, "section --table none").await;
    assert!(!report.clean);
    let run = &report.runs[0];
    assert_eq!((run.sections, run.phases.len()), (0, 0));
    let [errors] = run.errors_by_code.as_slice() else {
        panic!("{:?}", run.errors_by_code)
    };
    assert_eq!(
        (errors.phase, errors.code.as_str()),
        ("create", "NOT_FOUND")
    );
    assert!(errors.count >= 4 && errors.message.contains("none"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_renewed_beside_the_sections_and_a_lost_session_is_an_error() {
    let server = server().await;
    let options = "section --keys own --sessions 3 --ttl 1s --duration 800ms";
    let report = bench(&server, options).await;
    assert!(report.clean, "{report:?}");
    let renewals = report.runs[0]
        .phases
        .iter()
        .find(|row| row.phase == "renew");
    // Each a second time within two thirds of its TTL, and for the last time untimed.
    assert!(renewals.is_some_and(|row| row.count >= 3), "{report:?}");
    // A TTL that no server takes.
    let report = bench(&server, "section --sessions 1 --ttl 300h").await;
    assert!(!report.clean);
    let errors = &report.runs[0].errors_by_code;
    assert!(errors.iter().any(|row| row.phase == "renew"), "{errors:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_handed_over_on_one_replica_and_idle_locks_are_held() {
    let server = server().await;
    let parse = |line: &str| {
        let line = format!("bench {line} --endpoint {}", server.endpoint);
        Args::try_parse_from(line.split(' ')).unwrap().benchmark
    };
    let Benchmark::Handover(args) = parse("handover --rounds 2 --pause 5ms") else {
        panic!("another benchmark")
    };
    let report = handover::measure(&args).await.unwrap();
    assert_eq!((report.same_replica.count, report.change.count), (2, 2));
    for guards in ["", " --guards"] {
        let line = format!("idle{guards} --locks 20 --sessions 3 --warm-up 0s --duration 100ms");
        let Benchmark::Idle(args) = parse(&line) else {
            panic!("another benchmark")
        };
        let mut sessions = Vec::new();
        let report = idle::measure(&args, &mut sessions).await.unwrap();
        assert_eq!(sessions.len(), 3);
        assert!(report.bytes_per_lock >= 0.0);
    }
}
