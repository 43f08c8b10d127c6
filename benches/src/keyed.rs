//! The group `keyed`: the time and the memory of a check of one key among many. Each case and peer runs in a
//! process of its own, started from this program.

use std::io::{self, Write};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::report::{Line, Report};
use crate::runner::{MIN_CLEAN_ROUNDS, Measure, Peer, ROUNDS, Sample, compare, median};
use crate::two_threads::ThreadPair;

mod gates;
mod growth;
mod keys;

use gates::{KeyedGate, KeyedLoad, RecountedLimiter, WarmedUp, alone, batches, filled};
use growth::Growth;
use keys::Keys;

/// The first argument of a process that runs one case.
const CHILD: &str = "--keyed-case";
const PEERS: [&str; 2] = ["governor", "governor-ahash"];
/// Every timed case, with the target for its ratio to governor with ahash.
const CASES: [(&str, f64); 7] = [
    ("hot-1k-1t", 0.9),
    ("hot-1k-2t", 0.5),
    ("uniform-1m-1t", 0.4),
    ("uniform-1m-2t", 0.4),
    ("uniform-1m-deny-1t", 0.4),
    ("zipf-1m-1t", 0.45),
    ("batch16-1m-1t", 0.2),
];
const COUNTER: &str = "counter-1t";
const GROWTH: &str = "growth-10m";
const FLOOD: &str = "worst-check-in-a-flood";
/// The target for the counters of one check, in nanoseconds.
const COUNTER_NANOS: f64 = 3.0;
/// How often our table grows to ten million keys.
const GROWTHS: usize = 3;

const HOT: u64 = 1_000;
const MANY: u64 = 1_000_000;

/// The measurements of one case's process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Measurement {
    ours: f64,
    theirs: f64,
    ratio: f64,
    disturbed: usize,
}

pub(crate) fn run(report: &mut Report) {
    for (case, target) in CASES {
        for peer in PEERS {
            let Some(found) = in_a_process::<Measurement>(report, case, peer) else {
                continue;
            };
            let target = (peer == "governor-ahash").then_some(target);
            report.add(line(case, peer, found).target(target));
        }
    }
    if let Some(found) = in_a_process::<Measurement>(report, COUNTER, "target") {
        report.add(line(COUNTER, "target", found).target(Some(1.0)));
    }
    growths(report);
    let floods: Vec<f64> = (0..GROWTHS)
        .filter_map(|_| in_a_process(report, FLOOD, "ours"))
        .collect();
    if !floods.is_empty() {
        let slowest = median(floods);
        let target = 1000.0;
        let line = Line::new(FLOOD, "target", (slowest, target, "us"), slowest / target);
        report.add(line.target(Some(1.0)));
    }
    report.note(format!(
        "medians of {MIN_CLEAN_ROUNDS} to {ROUNDS} rounds that ran ours next to the peer, without a context \
         switch but for those marked *, each side warmed up before; ns for one call on one thread, the copying of a 16-byte key \
         included; each case and peer in a process of its own"
    ));
    report.note(format!(
        "bytes: growth of the resident set; worst insert: every insert timed, less what its thread \
         waited for a core; ours the median of {GROWTHS} processes"
    ));
}

fn line(case: &str, peer: &'static str, found: Measurement) -> Line {
    let mut line = Line::new(case, peer, (found.ours, found.theirs, "ns"), found.ratio);
    line.disturbed = found.disturbed;
    line
}

/// A case, its unit, its target, and how to read it.
type Promise = (&'static str, &'static str, f64, fn(&Growth) -> f64);

/// Memory and the slowest insert, against the target and against each peer.
fn growths(report: &mut Report) {
    let ours: Vec<Growth> = (0..GROWTHS)
        .filter_map(|_| in_a_process(report, GROWTH, "ours"))
        .collect();
    let theirs = PEERS.map(|peer| (peer, in_a_process::<Growth>(report, GROWTH, peer)));
    let cases: [Promise; 3] = [
        ("bytes-per-key-10m", "B", 24.0, |growth| growth.bytes),
        ("bytes-per-key-worst-1m-to-10m", "B", 26.0, |growth| {
            growth.most_bytes
        }),
        ("worst-insert-10m", "us", 1000.0, |growth| growth.slowest),
    ];
    for (case, unit, target, pick) in cases {
        let our = median(ours.iter().map(pick).collect());
        let promised = Line::new(case, "target", (our, target, unit), our / target);
        report.add(promised.target(Some(1.0)));
        for (peer, their) in &theirs {
            if let Some(their) = their.as_ref().map(pick) {
                report.add(Line::new(case, peer, (our, their, unit), our / their));
            }
        }
    }
}

/// Runs one case in a process of its own; a failure becomes a note.
fn in_a_process<T: DeserializeOwned>(report: &mut Report, case: &str, peer: &str) -> Option<T> {
    let found = start(case, peer).and_then(|text| Ok(serde_json::from_slice(&text)?));
    found
        .map_err(|error| report.note(format!("{case} against {peer} failed: {error}")))
        .ok()
}

fn start(case: &str, peer: &str) -> io::Result<Vec<u8>> {
    let program = std::env::current_exe()?;
    let output = Command::new(program).args([CHILD, case, peer]).output()?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(errors.trim().to_owned()))
}

/// Runs one case if the arguments name it, and prints the measurements.
pub(crate) fn child(mut arguments: impl Iterator<Item = String>) -> Option<ExitCode> {
    if arguments.next()? != CHILD {
        return None;
    }
    let (case, peer) = (arguments.next()?, arguments.next()?);
    let found = if case == GROWTH {
        growth::run(&peer).map(|growth| serde_json::to_string(&growth))
    } else if case == FLOOD {
        Some(serde_json::to_string(&growth::flood_table()))
    } else {
        measured(&case, &peer).map(|found| serde_json::to_string(&found))
    };
    let Some(Ok(text)) = found else {
        let _ = writeln!(io::stderr(), "error: no case {case:?} against {peer:?}");
        return Some(ExitCode::FAILURE);
    };
    let written = writeln!(io::stdout(), "{text}");
    Some(written.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}

fn measured(case: &str, peer: &str) -> Option<Measurement> {
    match (case, peer) {
        (COUNTER, _) => Some(counter()),
        ("uniform-1m-deny-1t", "governor") => {
            Some(compare_with_peers(case, gates::governor(KeyedLoad::DENY)))
        }
        ("uniform-1m-deny-1t", _) => Some(compare_with_peers(
            case,
            gates::governor_ahash(KeyedLoad::DENY),
        )),
        (_, "governor") => Some(compare_with_peers(case, gates::governor(KeyedLoad::ADMIT))),
        (_, "governor-ahash") => Some(compare_with_peers(
            case,
            gates::governor_ahash(KeyedLoad::ADMIT),
        )),
        _ => None,
    }
}

/// One case against one peer.
fn compare_with_peers(case: &str, theirs: impl KeyedGate) -> Measurement {
    let keys = || Keys::uniform(MANY);
    match case {
        "hot-1k-1t" => one_thread(KeyedLoad::ADMIT, &Keys::uniform(HOT), HOT, theirs),
        "hot-1k-2t" => two_threads(Keys::uniform(HOT), HOT, theirs),
        "uniform-1m-2t" => two_threads(keys(), MANY, theirs),
        "uniform-1m-deny-1t" => one_thread(KeyedLoad::DENY, &keys(), MANY, theirs),
        "zipf-1m-1t" => one_thread(KeyedLoad::ADMIT, &Keys::zipf(MANY), MANY, theirs),
        "batch16-1m-1t" => {
            let keys = keys();
            let ours = filled(gates::tollgate_gate(KeyedLoad::ADMIT, MANY), MANY);
            let theirs = filled(theirs, MANY);
            settled_rounds(batches(ours, &keys), alone(theirs, &keys, true))
        }
        _ => one_thread(KeyedLoad::ADMIT, &keys(), MANY, theirs),
    }
}

fn one_thread(load: KeyedLoad, keys: &Keys, count: u64, theirs: impl KeyedGate) -> Measurement {
    let ours = filled(gates::tollgate_gate(load, count), count);
    let theirs = filled(theirs, count);
    let pass = load == KeyedLoad::ADMIT;
    settled_rounds(alone(ours, keys, pass), alone(theirs, keys, pass))
}

fn two_threads(keys: Keys, count: u64, theirs: impl KeyedGate) -> Measurement {
    let (crew, keys) = (ThreadPair::new(), Arc::new(keys));
    let ours = filled(gates::tollgate_gate(KeyedLoad::ADMIT, count), count);
    let theirs = filled(theirs, count);
    settled_rounds(
        crew.both_fixed(gates::CALLS, gates::work(ours, Arc::clone(&keys))),
        crew.both_fixed(gates::CALLS, gates::work(theirs, keys)),
    )
}

fn settled_rounds(ours: impl Measure, theirs: impl Measure) -> Measurement {
    let mut report = Report::new(false);
    let mut peers = [Peer::new("", WarmedUp(theirs))];
    compare(&mut report, "", &mut WarmedUp(ours), &mut peers);
    let lines = report.into_lines();
    let line = lines.first().expect("one line for one peer");
    Measurement {
        ours: line.ours,
        theirs: line.theirs,
        ratio: line.ratio,
        disturbed: line.disturbed,
    }
}

/// The cost of the counters: the same loop with one more of them, on hot keys.
fn counter() -> Measurement {
    let keys = Keys::uniform(HOT);
    let with = filled(
        RecountedLimiter::new(gates::tollgate_gate(KeyedLoad::ADMIT, HOT)),
        HOT,
    );
    let without = filled(gates::tollgate_gate(KeyedLoad::ADMIT, HOT), HOT);
    let (mut with, mut without) = (alone(with, &keys, true), alone(without, &keys, true));
    let mut differences = Vec::new();
    for _ in 0..ROUNDS * 4 {
        let (one, other): (Sample, Sample) = (with.sample(), without.sample());
        if !one.switched && !other.switched {
            differences.push(one.nanos - other.nanos);
        }
    }
    let difference = median(differences);
    Measurement {
        ours: difference,
        theirs: COUNTER_NANOS,
        ratio: difference / COUNTER_NANOS,
        disturbed: 0,
    }
}
