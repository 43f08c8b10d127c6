//! The group `redis`: the cost of a decision with a shared store, on one server that the benchmark starts.

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use tollgate::Rate;
use tollgate_redis::RedisLimiter;

use crate::report::{Line, Report};
use crate::runner::{as_f64, median};
use crate::tail;

mod load;
mod lua;
mod memory;

use load::{Bench, RunTotals};
pub(crate) use lua::TEXT as GCRA_IN_LUA;

/// Keys of requests, chosen at random.
const KEYS: usize = 100_000;
/// Requests in flight where there are many.
const TASKS: usize = 64;
const ROUNDS: usize = 5;
/// Rounds of measurements by the wall clock: short ones, some of which are undisturbed.
const SHORT_ROUNDS: usize = 15;
/// A server's processor time has a resolution of 10 ms: half a percent of this.
const LONG: Duration = Duration::from_secs(2);
const SHORT: Duration = Duration::from_millis(200);

/// Every request of these cases passes: a key gets far less than its burst.
const COUNT: u64 = 1_000;
const BURST: u64 = 1_000;

/// The target for the case of a stopped store, beyond its timeout.
const TIMEOUT: Duration = Duration::from_millis(5);
const LATE: Duration = Duration::from_millis(5);
const STOPPED_EACH: usize = 100;

type Failure = Box<dyn Error>;

pub(crate) fn run(report: &mut Report) {
    for program in ["redis-server", "redis-benchmark"] {
        if let Err(error) = Command::new(program).arg("--version").output() {
            let install = "apt-get install redis-server redis-tools";
            return report.note(format!(
                "not run: can't start {program}: {error}; {install}"
            ));
        }
    }
    if let Err(error) = cases(report) {
        report.note(format!("stopped: {error}"));
    }
}

fn cases(report: &mut Report) -> Result<(), Failure> {
    let bench = Bench::new()?;
    exact(report, &bench)?;
    merged(report, &bench)?;
    leased(report, &bench)?;
    denials(report, &bench)?;
    stopped(report, &bench)?;
    memory::run(report, &bench)?;
    let workers = bench.workers;
    report.note(format!(
        "rounds in turns: {ROUNDS} and the medians of their ratios, but of merged-64 and leased \
         {SHORT_ROUNDS} and the least of each side; {KEYS} random keys at {COUNT}/hour burst \
         {BURST}; the client has {workers} worker threads, one less than cores. exact-cpu: processor time \
         of the server for a decision, {TASKS} tasks against a pipeline of {TASKS}. merged-64: {TASKS} \
         tasks against one. leased: one key at 1M/s burst 1M, one task each; leased-64: {TASKS} tasks each"
    ));
    Ok(())
}

fn rate() -> Rate {
    Rate::per_hour(COUNT).burst(BURST)
}

/// Alternating rounds of two sides: the minimum of each, and their ratio. The server, the client and all other
/// processes share the cores, and interference only adds time.
fn fastest(
    ours: impl FnMut() -> Result<f64, Failure>,
    theirs: impl FnMut() -> Result<f64, Failure>,
) -> Result<(f64, f64, f64), Failure> {
    let rounds = rounds(SHORT_ROUNDS, ours, theirs)?;
    let least = |pick: fn(&(f64, f64)) -> f64| rounds.iter().map(pick).fold(f64::MAX, f64::min);
    let (ours, theirs) = (least(|(ours, _)| *ours), least(|(_, theirs)| *theirs));
    Ok((ours, theirs, ours / theirs))
}

/// Alternating rounds of two sides: the medians of each, and of the rounds' ratios.
fn alternate_rounds(
    ours: impl FnMut() -> Result<f64, Failure>,
    theirs: impl FnMut() -> Result<f64, Failure>,
) -> Result<(f64, f64, f64), Failure> {
    let rounds = rounds(ROUNDS, ours, theirs)?;
    let column =
        |pick: fn(&(f64, f64)) -> f64| -> f64 { median(rounds.iter().map(pick).collect()) };
    Ok((
        column(|(ours, _)| *ours),
        column(|(_, theirs)| *theirs),
        column(|(ours, theirs)| ours / theirs),
    ))
}

fn rounds(
    count: usize,
    mut ours: impl FnMut() -> Result<f64, Failure>,
    mut theirs: impl FnMut() -> Result<f64, Failure>,
) -> Result<Vec<(f64, f64)>, Failure> {
    let mut rounds = Vec::new();
    for round in 0..count {
        rounds.push(if round % 2 == 0 {
            let ours = ours()?;
            (ours, theirs()?)
        } else {
            let theirs = theirs()?;
            (ours()?, theirs)
        });
    }
    Ok(rounds)
}

fn add(report: &mut Report, case: &str, peer: &'static str, numbers: (f64, f64, f64), most: f64) {
    let (ours, theirs, ratio) = numbers;
    let line = Line::new(case, peer, (ours, theirs, "ns"), ratio);
    report.add(line.target(Some(most)));
}

/// The server's part of an exact decision, against a handwritten script.
fn exact(report: &mut Report, bench: &Bench) -> Result<(), Failure> {
    let redis = bench.connect(|builder| builder)?;
    let limiter = redis.limiter("exact", rate()).build()?.into();
    let script = lua::Script::new(bench)?;
    bench.warm_keys(&limiter, KEYS);
    let calls = script.calls_for(LONG)?;
    let numbers = alternate_rounds(
        || Ok(passed(bench.run_decisions(&limiter, KEYS, TASKS, LONG))?.server),
        || script.run(calls),
    )?;
    add(report, "exact-cpu", "lua", numbers, 1.15);
    Ok(())
}

/// The gain of merging: many concurrent requests against one.
fn merged(report: &mut Report, bench: &Bench) -> Result<(), Failure> {
    let redis = bench.connect(|builder| builder)?;
    let limiter = redis.limiter("exact", rate()).build()?.into();
    let before = redis.stats();
    let numbers = fastest(
        || Ok(passed(bench.run_decisions(&limiter, KEYS, TASKS, SHORT))?.wall),
        || Ok(passed(bench.run_decisions(&limiter, KEYS, 1, SHORT))?.wall),
    )?;
    let stats = redis.stats();
    add(report, "merged-64", "one-at-a-time", numbers, 0.2);
    let questions = as_f64(stats.queries - before.queries);
    let trips = as_f64(stats.round_trips - before.round_trips);
    report.note(format!(
        "merged-64 and its peer: {:.1} decisions a round trip",
        questions / trips
    ));
    Ok(())
}

/// A node that spends leased tokens, against one that queries the store for each request.
fn leased(report: &mut Report, bench: &Bench) -> Result<(), Failure> {
    let redis = bench.connect(|builder| builder)?;
    let rate = Rate::per_second(1_000_000).burst(1_000_000);
    let leased = redis.limiter("million", rate).leased().build()?.into();
    let exact = redis.limiter("million-exact", rate).build()?.into();
    bench.run_decisions(&leased, 1, 1, SHORT);
    let (mut decisions, mut trips) = (0, 0);
    for (case, tasks) in [("leased", 1), ("leased-64", TASKS)] {
        let numbers = fastest(
            || {
                let before = redis.stats().round_trips;
                let ran = bench.run_decisions(&leased, 1, tasks, SHORT);
                decisions += ran.decisions;
                trips += redis.stats().round_trips - before;
                Ok(ran.wall)
            },
            || Ok(bench.run_decisions(&exact, 1, tasks, SHORT).wall),
        )?;
        add(report, case, "exact", numbers, 0.02);
    }
    let each = as_f64(trips) / as_f64(decisions) * 1000.0;
    let numbers = (each, 1.0, "trips/1000");
    report.add(Line::new("leased-round-trips", "target", numbers, each).target(Some(1.0)));
    let mut p99s = Vec::new();
    for _ in 0..ROUNDS {
        let times = bench.decision_times(&leased, 1, 500_000);
        p99s.push(tail::percentile_at(&times, 0.99) / 1e3);
    }
    let p99 = median(p99s);
    report.add(Line::new("leased-p99", "target", (p99, 10.0, "us"), p99 / 10.0).target(Some(1.0)));
    Ok(())
}

/// The cost of a denial, by the server and by the client, against an admission.
fn denials(report: &mut Report, bench: &Bench) -> Result<(), Failure> {
    let far = bench.connect(|builder| builder.deny_cache(0))?;
    let near = bench.connect(|builder| builder)?;
    let once = Rate::per_hour(1);
    let admits = far.limiter("exact", rate()).build()?.into();
    let refuses = far.limiter("once", once).build()?.into();
    let repeats = near.limiter("once", once).build()?.into();
    bench.warm_keys(&refuses, KEYS);
    // As many as are remembered.
    let few = 1_000;
    bench.warm_keys(&repeats, few);
    for (case, limiter, keys) in [("refusal", &refuses, KEYS), ("refusal-near", &repeats, few)] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let ran: RunTotals = bench.run_decisions(limiter, keys, TASKS, LONG / 2);
            if ran.admitted > 0 {
                return Err(format!("{} of {case} were admitted", ran.admitted).into());
            }
            ours.push(ran);
            theirs.push(passed(bench.run_decisions(&admits, KEYS, TASKS, LONG / 2))?);
        }
        for (what, pick) in [
            ("server-cpu", (|ran| ran.server) as fn(&RunTotals) -> f64),
            ("client-cpu", |ran| ran.client),
            ("time", |ran| ran.wall),
        ] {
            let column = |of: &[RunTotals]| median(of.iter().map(pick).collect());
            let ratios = ours
                .iter()
                .zip(&theirs)
                .map(|(ours, theirs)| pick(ours) / pick(theirs));
            let numbers = (column(&ours), column(&theirs), median(ratios.collect()));
            add(report, &format!("{case}-{what}"), "admission", numbers, 1.0);
        }
    }
    Ok(())
}

/// How long a decision takes while the store is suspended.
fn stopped(report: &mut Report, bench: &Bench) -> Result<(), Failure> {
    let redis = bench.connect(|builder| builder.timeout(TIMEOUT))?;
    let limiter = redis.limiter("stopped", rate()).build()?.into();
    bench.warm_keys(&limiter, 1);
    bench.server.pause();
    // A stall of this machine delays all tasks, and by itself affects more than one request in a thousand.
    let p999s = (0..ROUNDS).map(|_| {
        let times = bench.decision_times(&limiter, TASKS, STOPPED_EACH);
        tail::percentile_at(&times, 0.999) / 1e6
    });
    let p999s: Vec<f64> = p999s.collect();
    bench.server.resume();
    let most = (TIMEOUT + LATE).as_secs_f64() * 1e3;
    let worst = p999s.iter().copied().fold(0.0, f64::max);
    let p999 = median(p999s);
    let numbers = (p999, most, "ms");
    report.add(Line::new("stopped-p99.9", "target", numbers, p999 / most).target(Some(1.0)));
    report.note(format!(
        "stopped-p99.9: {TASKS} tasks, {STOPPED_EACH} decisions each, judged locally after the timeout of \
         {TIMEOUT:?}; the median of {ROUNDS} rounds, of which the worst had {worst:.1} ms"
    ));
    Ok(())
}

/// A run in which all requests passed; otherwise it measured something else.
fn passed(ran: RunTotals) -> Result<RunTotals, Failure> {
    match ran.decisions - ran.admitted {
        0 => Ok(ran),
        refused => Err(format!("{refused} of {} were refused", ran.decisions).into()),
    }
}

type Limiter = std::sync::Arc<RedisLimiter>;
