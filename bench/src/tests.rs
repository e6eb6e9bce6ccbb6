//! Short runs against a server in this process, over real sockets.

#[path = "../tests/command/server.rs"]
pub(super) mod server;

use std::time::Duration;

use clap::ValueEnum as _;
use fermata::access::{NewToken, Tokens};
use fermata_client::{ClientOptions, Token};

use self::server::{Running, server, server_of};
use super::args::Plan;
use super::keys::{KeyChoice, Near};
use super::load;
use super::report::Report;
use super::run::Run;
use super::sections::measure;
use super::workload::Form;

/// A short run of four workers.
async fn bench(server: &Running, change: impl FnOnce(&mut Plan)) -> Report {
    let mut plan = plan(vec![server.endpoint.clone()]);
    change(&mut plan);
    measure(&plan).await.unwrap()
}

pub(super) fn plan(endpoints: Vec<String>) -> Plan {
    Plan {
        form: Form::Full,
        endpoints,
        options: ClientOptions::default(),
        workers: vec![4],
        connections: None,
        pipeline: false,
        keys: KeyChoice::One,
        key_count: 10,
        zipf_skew: 1.0,
        near: Near::default(),
        key_prefix: "bench".to_owned(),
        table: String::new(),
        call_within: Duration::from_secs(10),
        ttl: Duration::from_secs(30),
        sessions: 0,
        hold: Duration::ZERO,
        value_bytes: 64,
        span: load::Span {
            // What begins during a warm-up is not counted, and on a slow machine nothing may begin after it.
            warm_up: Duration::ZERO,
            duration: Duration::from_millis(250),
            rate: None,
        },
        disk_probe: None,
        p999_below: None,
        baseline: None,
    }
}

fn phases(report: &Report) -> Vec<&'static str> {
    let run = report.runs.last().unwrap();
    run.phases.iter().map(|row| row.phase).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sections_in_both_forms_and_on_all_keys_increment_exactly() {
    let server = server().await;
    for keys in KeyChoice::value_variants().iter().copied() {
        for form in [Form::Full, Form::Short] {
            let report = bench(&server, |plan| {
                plan.keys = keys;
                plan.form = form;
                if keys == KeyChoice::New {
                    plan.key_count = 20_000;
                }
            })
            .await;
            assert!(report.clean, "{report:?}");
            let run = &report.runs[0];
            let check = run.counter_check.as_ref().unwrap();
            assert!(run.sections > 0 && check.acknowledged >= run.sections);
            assert_eq!(check.stored, check.acknowledged);
            let waited = phases(&report).contains(&"acquire");
            match (keys, form) {
                (KeyChoice::One, _) => assert!(waited),
                (KeyChoice::Own, _) => assert!(!waited),
                (KeyChoice::New, _) => {
                    assert!(!waited);
                    assert_eq!(check.keys, check.acknowledged);
                }
                (KeyChoice::Zipf | KeyChoice::Near, _) => {}
            }
            assert_eq!(phases(&report).contains(&"put"), form == Form::Full);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_keys_that_are_used_up_are_an_error() {
    let server = server().await;
    let report = bench(&server, |plan| {
        plan.keys = KeyChoice::New;
        plan.key_count = 3;
    })
    .await;
    let run = &report.runs[0];
    assert!(!report.clean && run.errors > 0, "{report:?}");
    assert_eq!(run.sections, 3);
    let code = &run.errors_by_code[0];
    assert!(code.message.contains("--key-count"), "{code:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_knows_its_clients_is_measured_with_a_token() {
    let new = NewToken::new("billing", [7; 32]).unwrap();
    let server = server_of(Some(Tokens::parse(&new.line).unwrap())).await;
    for (pipeline, sessions) in [(true, 0), (false, 2)] {
        let report = bench(&server, |plan| {
            plan.options.token = Some(Token::from_text(&new.token).unwrap());
            plan.pipeline = pipeline;
            plan.sessions = sessions;
        })
        .await;
        assert!(report.clean, "{report:?}");
    }
    let report = bench(&server, |plan| plan.form = Form::Lock).await;
    let errors = &report.runs[0].errors_by_code;
    assert_eq!(errors[0].code, "UNAUTHENTICATED", "{errors:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sections_over_a_pipeline_are_sections() {
    let server = server().await;
    let report = bench(&server, |plan| plan.pipeline = true).await;
    assert!(report.clean, "{report:?}");
    assert!(report.runs[0].sections > 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_alone_write_nothing_and_runs_follow_each_other() {
    let server = server().await;
    let report = bench(&server, |plan| {
        plan.form = Form::Lock;
        plan.workers = vec![1, 2];
    })
    .await;
    assert!(report.clean, "{report:?}");
    assert_eq!(report.runs.len(), 2);
    assert!(report.runs.iter().all(|run| run.sections > 0));
    assert!(report.runs.iter().all(|run| run.counter_check.is_none()));
    assert_eq!(phases(&report).last(), Some(&"section"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_a_rate_that_is_too_high_sections_count_from_when_they_were_due_or_as_not_begun() {
    let server = server().await;
    let report = bench(&server, |plan| {
        plan.keys = KeyChoice::Own;
        plan.hold = Duration::from_millis(100);
        plan.span.rate = Some(1_000.0);
    })
    .await;
    let run = &report.runs[0];
    assert_eq!(
        (run.rate, report.settings.load_loop),
        (Some(1_000.0), "open")
    );
    // Of 250 that were due four workers began no more than four every 100 ms.
    assert_eq!(run.sections + run.not_begun, 250);
    assert!(run.sections <= 12, "{run:?}");
    // The ones of the second turn were due by 8 ms, and began at 100 ms.
    let section = run.phases.iter().find(|row| row.phase == "section");
    assert!(section.is_some_and(|row| row.max_us > 190_000), "{run:?}");
    assert!(!run.is_in_time(Duration::from_secs(60)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_section_that_is_due_just_before_the_end_is_begun_though_timers_are_late() {
    let server = server().await;
    let report = bench(&server, |plan| {
        plan.keys = KeyChoice::Own;
        plan.form = Form::Lock;
        plan.span.warm_up = Duration::from_millis(100);
        plan.span.duration = Duration::from_millis(150);
        // The second one is due 0.3 ms before the end, and its worker is free since the beginning.
        plan.span.rate = Some(1.0 / 0.2497);
    })
    .await;
    let run = &report.runs[0];
    assert_eq!((run.sections, run.not_begun), (1, 0), "{run:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_highest_rate_is_looked_for_until_it_is_found_or_none_is_low_enough() {
    let server = server().await;
    for (bound, is_found) in [(10_000, true), (50, false)] {
        let report = bench(&server, |plan| {
            plan.keys = KeyChoice::Own;
            plan.hold = Duration::from_millis(100);
            plan.span.rate = Some(8.0);
            plan.p999_below = Some(Duration::from_millis(bound));
        })
        .await;
        assert_eq!(report.clean, is_found, "{report:?}");
        assert!(report.runs.len() > 1, "{report:?}");
        let [found] = report.highest_rates.as_slice() else {
            panic!("{:?}", report.highest_rates)
        };
        assert_eq!((found.workers, found.rate.is_some()), (4, is_found));
        let served = |run: &&Run| run.is_in_time(Duration::from_millis(bound));
        let most = report.runs.iter().filter(served);
        let most = most.filter_map(|run| run.rate).reduce(f64::max);
        assert_eq!(found.rate, most);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_counted_and_make_a_run_unclean() {
    let server = server().await;
    let report = bench(&server, |plan| plan.table = "none".to_owned()).await;
    assert!(!report.clean);
    let run = &report.runs[0];
    assert_eq!((run.sections, run.phases.len()), (0, 0));
    let [errors] = run.errors_by_code.as_slice() else {
        panic!("{:?}", run.errors_by_code)
    };
    assert_eq!((errors.phase, errors.code), ("create", "NOT_FOUND"));
    assert!(errors.count >= 4 && errors.message.contains("none"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_renewed_beside_the_sections_and_one_that_is_lost_is_an_error() {
    let server = server().await;
    let report = bench(&server, |plan| {
        plan.keys = KeyChoice::Own;
        plan.sessions = 3;
        plan.ttl = Duration::from_secs(1);
        plan.span.duration = Duration::from_millis(800);
    })
    .await;
    assert!(report.clean, "{report:?}");
    let renewals = report.runs[0]
        .phases
        .iter()
        .find(|row| row.phase == "renew");
    // Each a second time within two thirds of its TTL, and for the last time untimed.
    assert!(renewals.is_some_and(|row| row.count >= 3), "{report:?}");
    // A TTL that no server takes.
    let report = bench(&server, |plan| {
        plan.sessions = 1;
        plan.ttl = Duration::from_secs(1_000_000);
    })
    .await;
    assert!(!report.clean);
    let errors = &report.runs[0].errors_by_code;
    assert!(errors.iter().any(|row| row.phase == "renew"), "{errors:?}");
}
