//! `tollgate load` as its users meet it: the built binary, against memory and real servers.

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tollgate::Clock;
use tollgate::clock::Monotonic;
use tollgate_testkit::redis::{Cluster, Reply, Server};

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

/// Standard output of a run that succeeds and says nothing on standard error.
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
    tollgate_testkit::redis::until(Duration::from_secs(20), "some questions", asked);
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

#[test]
fn the_text_says_of_every_error_what_sort_it_is() {
    let arguments = ["--backend", "redis://127.0.0.1:1", "--duration", "300ms"];
    let report = stdout(&[&arguments[..], &["--on-failure", "open"], &PATIENT].concat());
    let lines: Vec<_> = report.lines().collect();
    let errors = lines.iter().position(|line| line.starts_with("errors "));
    let errors = errors.expect("a line of errors");
    let number = |line: &str, place: usize| line.split_whitespace().nth(place).map(str::to_owned);
    let told = lines[errors + 1];
    assert!(told.starts_with("  refused "), "{report}");
    assert_eq!(number(told, 1), number(lines[errors], 1), "{report}");
    assert!(
        told.contains("s to the end: the store can't be reached: "),
        "{report}"
    );
    // Both numbers end in the same column.
    let end = |line: &str, number: &str| line.find(number).map(|at| at + number.len());
    let count = number(told, 1).expect("a count");
    assert_eq!(end(told, &count), end(lines[errors], &count), "{report}");
}

#[test]
fn the_text_says_what_people_size_by() {
    let server = Server::start();
    let arguments = ["--backend", &server.url(), "--duration", "300ms"];
    let report = stdout(&[&arguments[..], &PATIENT].concat());
    for label in [
        "limit      1000/s burst 1000, gcra, 1 key\n",
        "backend    redis://127.0.0.1:",
        "load       32 tasks for 0.",
        "decisions ",
        "admitted ",
        "denied ",
        "fallback ",
        "errors ",
        "round trips ",
        " per 1,000 decisions\n",
        "latency    p50 ",
        "admitted   p50 ",
        "  p99 ",
        "  p99.9 ",
        "  max ",
    ] {
        assert!(report.contains(label), "{label:?} in\n{report}");
    }
}

#[test]
fn arguments_that_make_no_sense_are_told() {
    for (arguments, expected) in [
        (
            &["--backend", "memcached://x"][..],
            "error: --backend: \"memcached://x\": \"memcached\" is none of redis://, rediss://, \
             redis+unix://, redis+sentinel:// or redis+cluster://; or write memory\n",
        ),
        (
            &["--rate", "0/s"],
            "error: the rate \"zero\" lets nothing pass; choose another --rate\n",
        ),
        (
            &["--cost", "2000"],
            "error: a decision that costs 2000 never passes \"1000/s\", whose burst is 1000; lower \
             --cost, or write \"1000/s burst 2000\"\n",
        ),
        (
            &[
                "--backend",
                "redis://127.0.0.1:1",
                "--mode",
                "leased",
                "--algorithm",
                "sliding-log",
            ],
            "error: sliding-log has no tokens to lease; use gcra, token-bucket or leaky, or --mode \
             exact\n",
        ),
    ] {
        assert_eq!(stderr(arguments, USAGE), expected);
    }
    for (arguments, expected) in [
        (
            &["--duration", "5"][..],
            "invalid value '5' for '--duration <TIME>': \"5\" is no length of time; write it as 10ms, \
             2.5s, 1h30m or 7d",
        ),
        (
            &["--duration", "0s"],
            "it has to take some time, such as 300ms, 5s or 1m",
        ),
        (&["--keys", "0"], "0 is not in 1..=1000000"),
        (&["--tasks", "5000"], "5000 is not in 1..=4096"),
        (&["--mode", "guess"], "[possible values: exact, leased]"),
        (&["--rate", "fast"], "invalid rate \"fast\""),
    ] {
        let error = stderr(arguments, USAGE);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_stock_that_is_had_once_can_be_driven() {
    let stock = ["--rate", "zero burst 5", "--algorithm", "token-bucket"];
    let report = json(&[&stock[..], &["--duration", "10ms"]].concat());
    assert_eq!(count(&report, "admitted"), 5, "{report}");
    let error = stderr(&stock[..2], USAGE);
    assert!(error.contains("lets nothing pass"), "{error}");
}

#[test]
fn what_is_suggested_for_a_cost_above_the_burst_can_be_written() {
    for (rate, cost, algorithm, instead) in [
        ("1/s burst 0", "1", "gcra", "1/s"),
        ("10/s burst 5", "7", "token-bucket", "10/s burst 7"),
        ("10/s", "20", "fixed-window", "20/s"),
        ("10/s", "20", "sliding-log", "20/s"),
    ] {
        let words = |rate: &'static str| ["--rate", rate, "--cost", cost, "--algorithm", algorithm];
        let output = run(&words(rate));
        let complaint = text(output.stderr);
        assert_eq!(output.status.code(), Some(USAGE), "{complaint}");
        assert!(
            complaint.ends_with(&format!("write \"{instead}\"\n")),
            "{complaint}"
        );
        let again = [&words(instead)[..], &["--duration", "1ms", "--json"]].concat();
        stdout(&again);
    }
}

/// Whether a process listens for Ctrl-C.
#[cfg(target_os = "linux")]
fn hears_interrupts(process: u32) -> bool {
    const SIGINT: u64 = 2;
    let about = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = about.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (SIGINT - 1)) != 0)
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_that_is_interrupted_still_has_a_report() {
    for (format, told) in [
        (&["--json"][..], "\"interrupted\":true"),
        (&[], "cost 1, ended by Ctrl-C\n"),
    ] {
        let mut run = command(&[&["--duration", "10m", "--tasks", "2"][..], format].concat());
        let run = run.stdout(Stdio::piped()).spawn().expect("it starts");
        while !hears_interrupts(run.id()) {
            std::thread::yield_now();
        }
        let mut kill = Command::new("kill");
        kill.args(["-INT", &run.id().to_string()]);
        assert!(kill.status().expect("a program of every system").success());
        let output = run.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0));
        let report = text(output.stdout);
        assert!(report.contains(told), "{report}");
    }
}

#[test]
fn a_report_has_the_dates_of_the_run() {
    let report = json(&["--duration", "5ms"]);
    let date = |field: &str| {
        let text = report[field].as_str().expect("a date");
        let date: Result<tollgate_cli::policy::Date, _> = text.parse();
        date.expect("RFC 3339")
    };
    let (started, ended) = (date("started_at"), date("ended_at"));
    assert!(started < ended, "{report}");
    assert!(started.to_string().as_str() > "2026", "{report}");
    assert_eq!(report["interrupted"], Value::Bool(false));
}
