//! The report, as text and as JSON, also of an interrupted run.

#[cfg(target_os = "linux")]
use std::process::{Command, Stdio};

use serde_json::Value;
use tollgate_testkit::redis::Server;

use crate::{PATIENT, json, stdout};
#[cfg(target_os = "linux")]
use crate::{command, text};

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
        let date: Result<tollgate_cli::policy::Moment, _> = text.parse();
        date.expect("RFC 3339")
    };
    let (started, ended) = (date("started_at"), date("ended_at"));
    assert!(started < ended, "{report}");
    assert!(started.to_string().as_str() > "2026", "{report}");
    assert_eq!(report["interrupted"], Value::Bool(false));
}
