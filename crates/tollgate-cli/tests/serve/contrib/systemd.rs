//! The unit: systemd loads it without a warning, its sandbox is tight, and the service runs within it.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use tollgate_testkit::external_programs::find_program;
use tollgate_testkit::redis::wait_until;
use tollgate_testkit::temp_folder::TempFolder;

use super::{contrib, drain_seconds, lines, run, seconds, setting, settings, text};
use crate::kit::{ANY, LONG, Service};

const UNIT: &str = "tollgate.service";
const INSTALL: &str = "apt-get install systemd";

/// What systemd calls exposure, in tenths: from 0, nothing can be reached, to 100.
const MOST_EXPOSED: &str = "15";

/// All values of a field, in their order.
fn values<'t>(unit: &'t str, field: &str) -> Vec<&'t str> {
    lines(unit)
        .filter_map(|line| line.strip_prefix(field)?.strip_prefix('='))
        .collect()
}

fn systemd_analyze() -> Command {
    Command::new(find_program("systemd-analyze", INSTALL))
}

/// systemd's messages about a unit whose program is the one that was built here.
fn verify(unit: &str) -> (bool, String) {
    let scratch = TempFolder::new("unit");
    let here = unit.replace("/usr/local/bin/tollgate", env!("CARGO_BIN_EXE_tollgate"));
    fs::write(scratch.path(UNIT), here).expect("a file");
    let mut command = systemd_analyze();
    command.args(["verify", "--man=no", "--recursive-errors=no"]);
    let (is_content, said) = run(command.arg(scratch.path(UNIT)));
    // Other units of the machine may be as they like.
    let ours: String = said
        .lines()
        .filter(|line| line.contains(UNIT))
        .fold(String::new(), |all, line| all + line + "\n");
    (is_content, ours)
}

#[test]
fn systemd_reads_the_unit_without_a_warning() {
    assert_eq!(verify(&text(UNIT)), (true, String::new()));
}

#[test]
fn systemd_would_tell_of_a_misspelt_field() {
    let (_, said) = verify(&text(UNIT).replace("ProtectSystem=", "ProtectSytem="));
    assert!(said.contains("ProtectSytem"), "{said}");
}

#[test]
fn the_unit_leaves_little_open() {
    let mut command = systemd_analyze();
    command.args([
        "security",
        "--offline=true",
        "--no-pager",
        "--threshold",
        MOST_EXPOSED,
    ]);
    let (is_content, said) = run(command.arg(contrib(UNIT)));
    assert!(is_content, "{said}");
}

#[test]
fn the_unit_starts_the_service_with_settings_that_there_are() {
    let unit = text(UNIT);
    let [start] = values(&unit, "ExecStart")[..] else {
        panic!("one program");
    };
    let own = contrib("settings.yaml");
    let arguments: Vec<_> = start
        .split(' ')
        .map(|word| word.replace("/etc/tollgate/settings.yaml", own.to_str().expect("text")))
        .collect();
    assert_eq!(arguments[0], "/usr/local/bin/tollgate");
    let settings = settings(&arguments[1..], &[]);
    let [timeout] = values(&unit, "TimeoutStopSec")[..] else {
        panic!("one time");
    };
    assert!(seconds(timeout) > drain_seconds(&settings), "{timeout}");
    let [state] = values(&unit, "StateDirectory")[..] else {
        panic!("one folder");
    };
    assert_eq!(setting(&settings, "state"), format!("/var/lib/{state}"));
}

/// The calls of the system that a unit of this filter may make.
fn allowed(filters: &[&str]) -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for filter in filters {
        let (is_taken_away, groups) = match filter.strip_prefix('~') {
            Some(groups) => (true, groups),
            None => (false, *filter),
        };
        for group in groups.split(' ') {
            let calls = calls(group);
            assert!(!calls.is_empty(), "{group}");
            if is_taken_away {
                allowed.retain(|call| !calls.contains(call));
            } else {
                allowed.extend(calls);
            }
        }
    }
    // Every filter of systemd has these.
    allowed.extend(calls("@default"));
    allowed
}

/// The calls of a group, and of those in it.
fn calls(group: &str) -> BTreeSet<String> {
    let (is_content, said) = run(systemd_analyze().args(["syscall-filter", "--no-pager", group]));
    assert!(is_content, "{said}");
    let mut all = BTreeSet::new();
    for name in lines(&said).filter(|line| *line != group) {
        if name.starts_with('@') {
            all.extend(calls(name));
        } else {
            all.insert(name.to_owned());
        }
    }
    all
}

#[test]
fn the_service_makes_no_call_that_the_unit_forbids() {
    let strace = find_program("strace", "apt-get install strace");
    let scratch = TempFolder::new("calls");
    let trace = scratch.path("trace");
    let state = scratch.path("state");
    let options = [&ANY[..], &["--state", state.to_str().expect("text")]].concat();
    let service = Service::with(&options, |command| {
        let mut traced = Command::new(&strace);
        // Its own child, so that signals go to the service (-D), with all threads (-f).
        traced.args(["-D", "-f", "-qq", "-o"]).arg(&trace);
        traced.arg(command.get_program()).args(command.get_args());
        *command = traced;
        command.stdout(Stdio::null()).stderr(Stdio::null());
    });
    let answer = service.post("/v1/check", r#"{"facts": {"user": "ada"}}"#);
    assert_eq!(answer.0, 200, "{answer:?}");
    assert_eq!(service.end("TERM").code(), Some(0));
    let read = || fs::read_to_string(&trace).unwrap_or_default();
    wait_until(LONG, "the end of the trace", || {
        read().contains("exit_group(0")
    });
    let trace = read();
    // `4711  openat(AT_FDCWD, …`, or of a call that another was seen within `4711  <... openat resumed>…`.
    let made: BTreeSet<_> = trace
        .lines()
        .filter_map(|line| line.split_once(' ')?.1.trim_start().split_once('('))
        .map(|(call, _)| call.to_owned())
        .filter(|call| {
            call.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        })
        .collect();
    assert!(
        made.contains("accept4") && made.contains("epoll_wait"),
        "{made:?}"
    );
    let unit = text(UNIT);
    let allowed = allowed(&values(&unit, "SystemCallFilter"));
    let forbidden: Vec<_> = made.difference(&allowed).collect();
    assert!(forbidden.is_empty(), "{forbidden:?}");
}
