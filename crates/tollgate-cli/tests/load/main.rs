//! `tollgate load` for its users: the built binary, against memory and real servers.

mod arguments;
mod failing;
mod report;

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tollgate::Clock;
use tollgate::clock::Monotonic;
use tollgate_testkit::redis::{Cluster, Server};

/// The exit codes of arguments that make no sense, and of a store that isn't there.
const USAGE: i32 = 2;
const FAILED: i32 = 1;
/// These tests are about counts: a busy machine may take its time to answer.
const PATIENT: [&str; 2] = ["--timeout", "20s"];

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("load").args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    let output = command(arguments).output();
    output.expect("the binary was built with the tests")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("all output is UTF-8")
}

/// The standard output of a run that succeeds with an empty standard error.
fn stdout(arguments: &[&str]) -> String {
    let output = run(arguments);
    let complaints = text(output.stderr);
    let ended = (output.status.code(), complaints.as_str());
    assert_eq!(ended, (Some(0), ""), "{arguments:?}");
    text(output.stdout)
}

/// Standard error of a run that fails with this code and prints nothing else.
fn stderr(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    assert_eq!(output.stdout, b"", "{arguments:?}");
    text(output.stderr)
}

fn parse(text: &str) -> Value {
    assert_eq!(text.lines().count(), 1, "one object on one line");
    serde_json::from_str(text).expect("it is JSON")
}

fn json(arguments: &[&str]) -> Value {
    parse(&stdout(&[&["--json"], arguments].concat()))
}

fn count(report: &Value, field: &str) -> u64 {
    let count = report[field].as_u64();
    count.unwrap_or_else(|| panic!("{field} of {report}"))
}

/// The parts add up, and times are in order.
fn check_sums(report: &Value) {
    let of = |field| count(report, field);
    let sum = of("admitted") + of("denied") + of("fallback_decisions");
    assert_eq!(of("decisions"), sum, "{report}");
    let fallback = of("fallback_admitted") + of("fallback_denied");
    assert_eq!(of("fallback_decisions"), fallback, "{report}");
    let failures = report["failures"].as_array().expect("a list");
    let kinds: u64 = failures.iter().map(|failure| count(failure, "count")).sum();
    assert_eq!(of("errors"), kinds, "{report}");
    let latency = &report["latency_ns"];
    let times = ["p50", "p99", "p999", "max"].map(|name| count(latency, name));
    assert!(times.is_sorted() && times[0] > 0, "{report}");
}

/// No more was admitted in the time of the run than the limit allows, in whole units.
fn check_bound(report: &Value, (burst, per_second): (u64, u64)) {
    let elapsed = report["elapsed_s"].as_f64().expect("seconds");
    let elapsed = Duration::from_secs_f64(elapsed);
    let units = u128::from(count(report, "admitted") * count(report, "cost"));
    // A microsecond more: the store's clock shows no less than that.
    let refill = u128::from(per_second) * (elapsed.as_nanos() + 1_000) / 1_000_000_000;
    let most = (u128::from(burst) + refill) * u128::from(count(report, "keys"));
    assert!(units <= most, "{units} of {most}: {report}");
}

#[test]
fn memory_keeps_the_limit_and_has_no_store_to_speak_of() {
    let report = json(&["--rate", "1000/s", "--duration", "300ms", "--tasks", "4"]);
    check_sums(&report);
    check_bound(&report, (1_000, 1_000));
    assert!(count(&report, "admitted") >= 1_000, "{report}");
    assert_eq!(report["backend"], "memory");
    assert_eq!(report["rate"], "1000/s burst 1000");
    for field in ["round_trips", "near_hits", "on_failure"] {
        assert_eq!(report[field], Value::Null, "{field}");
    }
    assert_eq!(report["failures"], Value::Array(Vec::new()));
}

#[test]
fn each_key_has_a_limit_of_its_own() {
    let arguments = ["--rate", "10/h", "--keys", "50", "--duration", "300ms"];
    for algorithm in [
        "gcra",
        "token-bucket",
        "leaky",
        "fixed-window",
        "sliding-window",
        "sliding-log",
    ] {
        let report = json(&[&arguments[..], &["--algorithm", algorithm]].concat());
        assert_eq!(count(&report, "admitted"), 500, "{report}");
        assert_eq!(report["algorithm"], algorithm);
    }
}

#[test]
fn a_store_keeps_the_limit_in_both_modes() {
    let server = Server::start();
    let url = server.url();
    for mode in ["exact", "leased"] {
        let arguments = ["--backend", &url, "--mode", mode, "--duration", "300ms"];
        let limit = ["--rate", "2000/s burst 300", "--cost", "3", "--keys", "2"];
        let report = json(&[&arguments[..], &limit, &PATIENT].concat());
        check_sums(&report);
        check_bound(&report, (300, 2_000));
        assert!(count(&report, "admitted") >= 2 * 100, "{report}");
        assert_eq!(count(&report, "fallback_decisions"), 0, "{report}");
        assert_eq!(count(&report, "errors"), 0, "{report}");
        assert!(count(&report, "round_trips") > 0, "{report}");
        assert_eq!(count(&report, "connects"), 1, "{report}");
        assert_eq!(report["mode"], mode);
    }
}

#[test]
fn a_lease_needs_few_round_trips() {
    let server = Server::start();
    let arguments = ["--backend", &server.url(), "--mode", "leased"];
    let limit = ["--rate", "1000000/s", "--duration", "300ms"];
    let report = json(&[&arguments[..], &limit, &PATIENT].concat());
    let per_thousand = report["round_trips_per_1000"].as_f64().unwrap();
    assert!(per_thousand < 100.0, "{report}");
}

#[test]
fn several_at_once_stay_within_the_limit_together() {
    let server = Server::start();
    let clock = Monotonic::new();
    for mode in ["exact", "leased"] {
        let url = server.url();
        let arguments = ["--backend", &url, "--mode", mode, "--json"];
        let limit = ["--rate", "1000/s burst 200", "--duration", "300ms"];
        let arguments = [&arguments[..], &limit, &PATIENT, &["--tasks", "4"]].concat();
        let began = clock.now();
        let start = |_| -> Child {
            let mut command = command(&arguments);
            command.stdout(Stdio::piped());
            command.spawn().expect("the binary was built")
        };
        let all: Vec<Child> = (0..3).map(start).collect();
        let mut admitted = 0;
        for one in all {
            let output = one.wait_with_output().unwrap();
            let report = parse(&text(output.stdout));
            check_bound(&report, (200, 1_000));
            admitted += count(&report, "admitted");
        }
        let elapsed = (clock.now() - began).as_micros() + 1;
        let most = 200 + elapsed / 1_000;
        assert!(u128::from(admitted) <= most, "{mode}: {admitted} of {most}");
        assert!(admitted >= 200, "{mode}: {admitted}");
    }
}

#[test]
fn a_cluster_is_driven_by_its_url() {
    let cluster = Cluster::start();
    let arguments = ["--backend", &cluster.url(), "--keys", "20"];
    let limit = ["--rate", "5/h", "--duration", "1s"];
    let report = json(&[&arguments[..], &limit, &PATIENT].concat());
    check_sums(&report);
    assert_eq!(count(&report, "admitted"), 100, "{report}");
}
