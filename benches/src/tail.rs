//! The latency of slow calls: each call timed by itself, ours and governor's alternately.

use std::hint::black_box;

use crate::peers::{self, Gate, Load};
use crate::report::{Line, Report};
use crate::runner::{RERUNS, ROUNDS, as_count, as_f64, median};
use crate::timing;

/// Calls in a round: 51 rounds give 510,000 of each, and a round takes less than a millisecond.
const CALLS: usize = 10_000;

/// The unit of each line names its percentile.
const PERCENTILES: [(&str, f64); 3] = [("ns-p50", 0.5), ("ns-p99", 0.99), ("ns-p99.9", 0.999)];

/// Adds a line for each percentile. Both sides include one read of the counter, which timing a call needs.
pub(crate) fn run(report: &mut Report) {
    let clock = quanta::Clock::new();
    let ours = peers::tollgate_gate(Load::ADMIT);
    let theirs = peers::governor(Load::ADMIT);
    let mut rounds: Vec<[(f64, f64); 3]> = Vec::new();
    let (mut reruns, mut disturbed) = (0, 0);
    while rounds.len() < ROUNDS {
        let before = timing::context_switches();
        let (our_times, their_times) = if rounds.len().is_multiple_of(2) {
            let ours = times(&clock, &ours);
            (ours, times(&clock, &theirs))
        } else {
            let theirs = times(&clock, &theirs);
            (times(&clock, &ours), theirs)
        };
        let switched = timing::context_switches() != before;
        if switched && reruns < RERUNS * ROUNDS {
            reruns += 1;
            continue;
        }
        disturbed += usize::from(switched);
        rounds.push(PERCENTILES.map(|(_, share)| {
            (
                percentile_at(&our_times, share),
                percentile_at(&their_times, share),
            )
        }));
    }
    for (index, (unit, _)) in PERCENTILES.into_iter().enumerate() {
        let column = |pick: fn((f64, f64)) -> f64| {
            median(rounds.iter().map(|round| pick(round[index])).collect())
        };
        let ours = column(|(ours, _)| ours);
        let theirs = column(|(_, theirs)| theirs);
        let ratio = column(|(ours, theirs)| ours / theirs);
        let mut line = Line::new("tail", "governor", (ours, theirs, unit), ratio);
        line.disturbed = disturbed;
        report.add(line);
    }
}

/// The nanoseconds of each call, shortest first.
fn times(clock: &quanta::Clock, gate: &impl Gate) -> Vec<u64> {
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let start = clock.raw();
        black_box(gate.allow());
        times.push(clock.delta_as_nanos(start, clock.raw()));
    }
    times.sort_unstable();
    times
}

pub(crate) fn percentile_at(sorted: &[u64], share: f64) -> f64 {
    let last = as_f64(sorted.len() as u64 - 1);
    let index = usize::try_from(as_count(last * share)).unwrap_or(usize::MAX);
    as_f64(sorted[index])
}
