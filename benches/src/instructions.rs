//! The group `instructions`: the instructions of a decision, counted by callgrind. Counts repeat within a
//! percent, whatever else the machine does, so they can compare two versions of the code.
//!
//! A process of its own, started from this program, runs each case for a few calls and for many. The difference
//! of the two counts is that of the calls alone.

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use tollgate::clock::Manual;
use tollgate::{KeyedLimiter, Limiter, Rate};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_testkit::temp_folder::TempFolder;

use crate::report::{Line, Report};
use crate::runner::as_f64;
use crate::{server, timing};

/// The first argument of a process that runs one case.
const CHILD: &str = "--instructions-case";
const FEW: u64 = 2_000;
/// So many that tables with a random layout before the first call make no difference.
const MANY: u64 = 102_000;
/// Calls of the service over one connection, one after the other.
const FEW_REQUESTS: u64 = 500;
const MANY_REQUESTS: u64 = 2_500;
const KEYS: u64 = 1_000;

/// Every case, and the case that its count is divided by.
const CASES: [(&str, &str); 4] = [
    ("check", "governor"),
    ("keyed-allow", "governor-keyed"),
    ("decide-3-rules", "keyed-allow"),
    ("decide-descriptors", "keyed-allow"),
];
const POLICY: &str = "limits:
  - {name: per-user, key: user, rate: 1000000/s burst 1000000}
  - {name: per-tenant, key: tenant, rate: 1000000/s burst 1000000}
  - {name: per-address, key: address, rate: 1000000/s burst 1000000}
";
const TREES: &str = "domain: edge
descriptors: [{key: user, rate_limit: {unit: second, requests_per_unit: 1000000}}]
";

type Failure = Box<dyn Error>;

pub(crate) fn run(report: &mut Report) {
    for (case, peer) in CASES {
        match (slope(case), slope(peer)) {
            (Ok(ours), Ok(theirs)) => {
                report.add(Line::new(
                    case,
                    peer,
                    (ours, theirs, "instr"),
                    ours / theirs,
                ));
            }
            (Err(error), _) | (_, Err(error)) => return report.note(format!("{case}: {error}")),
        }
    }
    match (rls_request(), slope("decide-descriptors")) {
        (Ok(ours), Ok(theirs)) => {
            let values = (ours, theirs, "instr");
            report.add(Line::new(
                "rls-request",
                "decide-descriptors",
                values,
                ours / theirs,
            ));
        }
        (Err(error), _) | (_, Err(error)) => report.note(format!("rls-request: {error}")),
    }
    report.note(format!(
        "instructions by callgrind, of {} calls more on a clock that stands still, {KEYS} keys in turns; rls-request: of the \
         whole service, in memory, for {} more requests over one connection, one after the other",
        MANY - FEW,
        MANY_REQUESTS - FEW_REQUESTS
    ));
}

/// Runs one case if the arguments name it.
pub(crate) fn child(mut arguments: impl Iterator<Item = String>) -> Option<ExitCode> {
    if arguments.next()? != CHILD {
        return None;
    }
    let (case, calls) = (arguments.next()?, arguments.next()?.parse().ok()?);
    Some(match call(&case, calls) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

/// Instructions of one call in a case.
fn slope(case: &str) -> Result<f64, Failure> {
    let program = std::env::current_exe()?;
    let count = |calls: u64| {
        counted(|callgrind| {
            let calls = calls.to_string();
            let arguments = [CHILD, case, &calls];
            let status = callgrind.arg(&program).args(arguments).status()?;
            let ended = status.success().then_some(());
            ended.ok_or_else(|| format!("the process of {case:?} ended with {status}").into())
        })
    };
    Ok((count(MANY)? - count(FEW)?) / as_f64(MANY - FEW))
}

/// Instructions of the service for one request of Envoy's protocol.
fn rls_request() -> Result<f64, Failure> {
    let program = server::command()?;
    let count = |requests: u64| {
        counted(|callgrind| {
            let folder = TempFolder::new(&format!("bench-instructions-{requests}"));
            let (policy, ready) = (folder.path("policy.yaml"), folder.path("ready"));
            fs::write(&policy, POLICY)?;
            callgrind.arg(&program).arg("serve").arg(&policy);
            callgrind.args(["--http", "off", "--resp", "off", "--admin", "off"]);
            callgrind.args(["--grpc", "127.0.0.1:0", "--ready-file"]);
            let mut service = callgrind.arg(&ready).spawn()?;
            let sent = wait_for_address(&ready)
                .and_then(|address| server::send_rls_requests(address, requests));
            stop(&mut service)?;
            sent
        })
    };
    Ok((count(MANY_REQUESTS)? - count(FEW_REQUESTS)?) / as_f64(MANY_REQUESTS - FEW_REQUESTS))
}

/// Instructions of the program that `run` adds to this command.
fn counted(run: impl FnOnce(&mut Command) -> Result<(), Failure>) -> Result<f64, Failure> {
    let folder = TempFolder::new("bench-callgrind");
    let file = folder.path("counts");
    let mut callgrind = Command::new("valgrind");
    callgrind
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    run(&mut callgrind)?;
    let counts = fs::read_to_string(file)?;
    let total = counts
        .lines()
        .find_map(|line| line.strip_prefix("totals: "));
    let total = total.ok_or("callgrind wrote no line `totals:`")?;
    Ok(total.trim().parse()?)
}

/// The address of the service's gRPC listener, once the service has written it to the file.
fn wait_for_address(ready: &Path) -> Result<SocketAddr, Failure> {
    for _ in 0..6_000 {
        if let Ok(text) = fs::read_to_string(ready) {
            let addresses: serde_json::Value = serde_json::from_str(&text)?;
            let address = addresses["grpc"].as_str().ok_or("no address of gRPC")?;
            return Ok(address.parse()?);
        }
        timing::sleep(Duration::from_millis(10));
    }
    Err("tollgate serve didn't get ready in a minute".into())
}

/// Ends the service with the signal that operators use.
fn stop(service: &mut Child) -> Result<(), Failure> {
    Command::new("kill")
        .arg(service.id().to_string())
        .status()?;
    service.wait()?;
    Ok(())
}

/// Makes this many calls of a case.
fn call(case: &str, calls: u64) -> Result<(), Failure> {
    let rate = Rate::per_second(1_000_000).burst(1_000_000);
    let million = NonZero::new(1_000_000).ok_or("not zero")?;
    let quota = || Quota::per_second(million).allow_burst(million);
    let keys: Vec<String> = (0..KEYS).map(|key| format!("user-{key}")).collect();
    let keys = keys.iter().cycle().map(String::as_str);
    let keys = keys.take(usize::try_from(calls)?);
    match case {
        "check" => {
            let limiter = Limiter::with_clock(rate, Manual::new());
            keys.for_each(|_| {
                let _ = black_box(limiter.check());
            });
        }
        "governor" => {
            let limiter = RateLimiter::direct_with_clock(quota(), FakeRelativeClock::default());
            keys.for_each(|_| {
                let _ = black_box(limiter.check());
            });
        }
        "keyed-allow" => {
            let limiter = KeyedLimiter::builder(rate, 100_000)
                .clock(Manual::new())
                .build()?;
            keys.for_each(|key| {
                black_box(limiter.allow(key));
            });
        }
        "governor-keyed" => {
            let clock = FakeRelativeClock::default();
            let limiter = RateLimiter::hashmap_with_clock(quota(), clock);
            keys.for_each(|key| {
                let _ = black_box(limiter.check_key(&key));
            });
        }
        "decide-3-rules" => {
            let engine = engine(POLICY)?;
            keys.for_each(|key| {
                let facts = Facts::new().with("user", key).with("tenant", "acme");
                let facts = facts.with("address", "127.0.0.1");
                black_box(engine.decide(&facts).allowed().is_some());
            });
        }
        "decide-descriptors" => {
            let engine = engine(TREES)?;
            keys.for_each(|key| {
                let entries = [("user", key)];
                let descriptors = [Descriptor::new(&entries)];
                let _ = black_box(engine.decide_descriptors("edge", &descriptors, 1));
            });
        }
        _ => return Err(format!("no case {case:?}").into()),
    }
    Ok(())
}

fn engine(policy: &str) -> Result<Engine<Memory<Manual, Manual>>, Failure> {
    let memory = Memory::builder().clock(Manual::new()).wall(Manual::new());
    let policy = Policy::from_text(policy, Format::Yaml)?.policy;
    Ok(Engine::new(policy, memory.build())?.with_seed(1))
}
