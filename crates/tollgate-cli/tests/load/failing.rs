//! A store that is unreachable, can't decide or fails: the decisions, and the report.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tollgate_testkit::redis::{Reply, Server};

use crate::{FAILED, PATIENT, check_sums, command, count, json, parse, run, stderr, text};

#[test]
fn without_a_store_decisions_are_the_chosen_ones() {
    // Port 1 belongs to a service that nobody runs.
    let arguments = ["--backend", "redis://127.0.0.1:1", "--duration", "300ms"];
    let with = |choice| {
        let rate = ["--rate", "100/h", "--nodes", "4"];
        let choice = ["--on-failure", choice];
        let report = json(&[&arguments[..], &rate, &choice, &PATIENT].concat());
        check_sums(&report);
        let of = |field| count(&report, field);
        assert_eq!((of("admitted"), of("denied")), (0, 0), "{report}");
        assert_eq!(report["admitted_latency_ns"], Value::Null);
        assert_eq!(report["on_failure"], choice[1]);
        assert!(of("errors") > 0, "{report}");
        let [failure] = &report["failures"].as_array().expect("a list")[..] else {
            panic!("one kind: {report}");
        };
        assert_eq!(failure["kind"], "refused", "{report}");
        assert_eq!(failure["is_going_on"], true, "{report}");
        let first = failure["first"].as_str().expect("a text");
        assert!(
            first.starts_with("the store can't be reached: "),
            "{report}"
        );
        let [began, lasted] = ["began_s", "lasted_s"].map(|field| failure[field].as_f64().unwrap());
        assert!(
            began + lasted <= report["elapsed_s"].as_f64().unwrap(),
            "{report}"
        );
        (of("fallback_admitted"), of("fallback_denied"))
    };
    assert!(matches!(with("open"), (1.., 0)));
    assert!(matches!(with("closed"), (0, 1..)));
    // The limit divided by the nodes, times two.
    assert!(matches!(with("local"), (50, 1..)));
    assert!(matches!(with("circuit-break"), (50, 1..)));
}

#[test]
fn a_store_that_is_not_there_is_an_error_unless_something_was_chosen() {
    let error = stderr(&["--backend", "redis://ada:secret@127.0.0.1:1"], FAILED);
    assert!(
        error.starts_with("error: redis://127.0.0.1:1/0: the store can't be reached: "),
        "{error}"
    );
    let advice = "; start it, or say with --on-failure what decisions are to get without it\n";
    assert!(error.ends_with(advice), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn nobody_is_told_to_start_what_is_not_there_by_its_url() {
    let error = stderr(&["--backend", "redis+unix:///no/such/socket"], FAILED);
    let advice =
        "; correct --backend, or say with --on-failure what decisions are to get without it\n";
    assert!(
        error.ends_with(advice) && !error.contains("start it"),
        "{error}"
    );
}

/// A server that can't write, and how that is called.
fn unable(why: &str) -> Server {
    let server = Server::start();
    match why {
        // Its master is nowhere.
        "read-only" => drop(server.command(&["REPLICAOF", "127.0.0.1", "1"])),
        "out-of-memory" => drop(server.command(&["CONFIG", "SET", "maxmemory", "1"])),
        _ => {
            json(
                &[
                    &["--backend", &server.url(), "--duration", "1ms"][..],
                    &PATIENT,
                ]
                .concat(),
            );
            let Reply::Array(keys) = server.command(&["KEYS", "*"]) else {
                panic!("keys are a list");
            };
            for key in keys {
                let key = key.text().expect("a key is a text");
                server.command(&["DEL", &key]);
                server.command(&["LPUSH", &key, "another's"]);
            }
        }
    }
    server
}

#[test]
fn a_store_that_decides_nothing_is_an_error_by_its_kind_after_the_report() {
    for why in ["read-only", "out-of-memory", "foreign"] {
        let server = unable(why);
        let url = server.url();
        let arguments = ["--backend", &url, "--duration", "100ms", "--json"];
        let output = run(&[&arguments[..], &PATIENT].concat());
        let complaint = text(output.stderr);
        assert_eq!(output.status.code(), Some(FAILED), "{why}: {complaint}");
        let expected = format!("error: {url}: the store decided nothing: {why}, ");
        assert!(complaint.starts_with(&expected), "{complaint}");
        let report = parse(&text(output.stdout));
        check_sums(&report);
        assert_eq!(report["failures"][0]["kind"], why);
        // Who said what decisions are to get without it wanted to see that, if it can be over.
        let output = run(&[&arguments[..], &PATIENT, &["--on-failure", "open"]].concat());
        let code = if why == "foreign" { FAILED } else { 0 };
        assert_eq!(output.status.code(), Some(code), "{why}");
    }
}

#[test]
fn a_store_that_takes_no_such_login_or_speaks_no_tls_is_told_before_the_load() {
    let server = Server::builder().password("sesame").start();
    let place = format!("127.0.0.1:{}", server.port());
    for (url, why) in [
        (
            format!("redis://:barley@{place}"),
            "the store answered with an error: wrong user or password; correct them in its URL, as \
             user:password@ before the host, with %40 for @ and the like",
        ),
        (
            format!("redis://{place}"),
            "the store answered with an error: it wants a password; write it into its URL, as \
             :password@ or user:password@ before the host",
        ),
        (
            format!("rediss://:sesame@{place}"),
            "the store can't be reached: it speaks no TLS on this port; write redis instead of \
             rediss into its URL, or the port on which it does",
        ),
    ] {
        let scheme = url.split("://").next().unwrap_or_default();
        let expected = format!("error: {scheme}://{place}/0: {why}\n");
        assert_eq!(stderr(&["--backend", &url], FAILED), expected);
        // Whatever is chosen for when it is away: it isn't.
        let chosen = ["--backend", &url, "--on-failure", "open"];
        assert_eq!(stderr(&chosen, FAILED), expected);
    }
}

#[test]
fn a_store_that_goes_away_is_counted_and_no_error() {
    let server = Server::start();
    let url = server.url();
    let arguments = ["--backend", &url, "--duration", "3s", "--json"];
    // A refusal that is known here needs no store: each decision is to ask.
    let limit = [
        "--rate",
        "1000000/s",
        "--on-failure",
        "open",
        "--tasks",
        "4",
    ];
    let mut command = command(&[&arguments[..], &limit].concat());
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let asked = || server.command_calls("evalsha") + server.command_calls("eval") > 50;
    tollgate_testkit::redis::wait_until(Duration::from_secs(20), "some questions", asked);
    server.kill();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let report = parse(&text(output.stdout));
    check_sums(&report);
    assert!(count(&report, "admitted") > 0, "{report}");
    assert!(count(&report, "fallback_admitted") > 0, "{report}");
    assert!(count(&report, "errors") > 0, "{report}");
    assert_eq!(count(&report, "denied"), 0, "{report}");
    let failures = report["failures"].as_array().expect("a list");
    let is_refused = |failure: &Value| failure["kind"] == "refused";
    assert!(failures.iter().any(is_refused), "{report}");
}
