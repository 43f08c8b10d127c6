//! Alternating measurements: in every round, our limiter runs next to each peer, and the result is the median
//! of the rounds' own ratios. So whatever slows the machine down slows both sides of a ratio.

use std::time::Duration;

use crate::report::{Line, Report};
use crate::timing::{self, Stopwatch};

/// Rounds for each case and peer.
pub(crate) const ROUNDS: usize = 51;
/// With this many undisturbed rounds a result needs no disturbed ones.
pub(crate) const MIN_CLEAN_ROUNDS: usize = 15;
/// How often a round is run again because a thread lost its core.
pub(crate) const RERUNS: usize = 5;
/// How long one measurement takes: short, so that most see no context switch.
pub(crate) const SAMPLE: Duration = Duration::from_micros(400);

/// The result of one measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// For each call on one thread.
    pub(crate) nanos: f64,
    /// Whether a measuring thread lost its core during the measurement.
    pub(crate) switched: bool,
}

/// Something that can be measured repeatedly.
pub(crate) trait Measure {
    fn sample(&mut self) -> Sample;
}

/// Another limiter, or another way to do the same.
pub(crate) struct Peer<'a> {
    pub(crate) name: &'static str,
    pub(crate) measure: Box<dyn Measure + 'a>,
    /// The ratio that ours has to stay below.
    pub(crate) target: Option<f64>,
}

impl<'a> Peer<'a> {
    pub(crate) fn new(name: &'static str, measure: impl Measure + 'a) -> Self {
        Self {
            name,
            measure: Box::new(measure),
            target: None,
        }
    }

    pub(crate) fn target(mut self, target: f64) -> Self {
        self.target = Some(target);
        self
    }
}

/// A loop of calls on the calling thread.
pub(crate) struct OneThread<'a> {
    run: Box<dyn FnMut(u64) + 'a>,
    calls: u64,
}

impl<'a> OneThread<'a> {
    /// `run` makes as many calls as its argument.
    pub(crate) fn new(mut run: impl FnMut(u64) + 'a) -> Self {
        let calls = calls_for_a_sample(|calls| {
            let watch = Stopwatch::start();
            run(calls);
            watch.nanos()
        });
        Self::fixed(calls, run)
    }

    /// Like [`new`](Self::new), with a fixed number of calls.
    pub(crate) fn fixed(calls: u64, run: impl FnMut(u64) + 'a) -> Self {
        Self {
            run: Box::new(run),
            calls,
        }
    }
}

impl Measure for OneThread<'_> {
    fn sample(&mut self) -> Sample {
        let before = timing::context_switches();
        let watch = Stopwatch::start();
        (self.run)(self.calls);
        let nanos = watch.nanos();
        Sample {
            nanos: nanos / as_f64(self.calls),
            switched: timing::context_switches() != before,
        }
    }
}

/// Finds how many calls take about [`SAMPLE`]; the number is then fixed for all rounds.
pub(crate) fn calls_for_a_sample(mut nanos_for: impl FnMut(u64) -> f64) -> u64 {
    let wanted = SAMPLE.as_secs_f64() * 1e9;
    let mut calls = 256;
    loop {
        let nanos = nanos_for(calls);
        if nanos >= wanted / 4.0 {
            let scaled = as_f64(calls) * wanted / nanos;
            return as_count(scaled).max(256);
        }
        calls *= 2;
    }
}

/// Measures a case alternately with all its peers, and adds a line for each.
pub(crate) fn compare(
    report: &mut Report,
    case: &str,
    ours: &mut dyn Measure,
    peers: &mut [Peer<'_>],
) {
    let mut results: Vec<Rounds> = peers.iter().map(|_| Rounds::default()).collect();
    for round in 0..ROUNDS {
        for (peer, result) in peers.iter_mut().zip(&mut results) {
            result.add_round(round % 2 == 0, ours, peer.measure.as_mut());
        }
    }
    for (peer, result) in peers.iter().zip(results) {
        let (rounds, disturbed) = result.settled();
        let column = |pick: fn(&Round) -> f64| median(rounds.iter().map(pick).collect());
        let numbers = (
            column(|round| round.ours),
            column(|round| round.theirs),
            "ns",
        );
        let ratio = column(|round| round.ours / round.theirs);
        let mut line = Line::new(case, peer.name, numbers, ratio).target(peer.target);
        line.disturbed = disturbed;
        report.add(line);
    }
}

/// Nanoseconds for each call, measured next to each other.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Round {
    ours: f64,
    theirs: f64,
}

#[derive(Default)]
struct Rounds {
    clean: Vec<Round>,
    disturbed: Vec<Round>,
}

impl Rounds {
    /// Runs a round, and repeats it if a thread lost its core.
    fn add_round(&mut self, ours_first: bool, ours: &mut dyn Measure, theirs: &mut dyn Measure) {
        let mut run = || {
            let (ours, theirs) = if ours_first {
                let ours = ours.sample();
                (ours, theirs.sample())
            } else {
                let theirs = theirs.sample();
                (ours.sample(), theirs)
            };
            let round = Round {
                ours: ours.nanos,
                theirs: theirs.nanos,
            };
            (round, ours.switched || theirs.switched)
        };
        let (mut round, mut switched) = run();
        for _ in 0..RERUNS {
            if !switched {
                break;
            }
            (round, switched) = run();
        }
        if switched {
            self.disturbed.push(round);
        } else {
            self.clean.push(round);
        }
    }

    /// The rounds that count, and how many of them were disturbed: 0 if enough were undisturbed.
    fn settled(mut self) -> (Vec<Round>, usize) {
        let missing = MIN_CLEAN_ROUNDS.saturating_sub(self.clean.len());
        self.disturbed.truncate(missing);
        let disturbed = self.disturbed.len();
        self.clean.append(&mut self.disturbed);
        (self.clean, disturbed)
    }
}

/// The middle value; of an even number the upper of the two.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts in a benchmark stay far below 2^53"
)]
pub(crate) fn as_f64(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float saturates, and a count of calls needs no fraction"
)]
pub(crate) fn as_count(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Script(Vec<Sample>);

    impl Measure for Script {
        fn sample(&mut self) -> Sample {
            self.0.remove(0)
        }
    }

    fn script(samples: &[(f64, bool)]) -> Script {
        let sample = |&(nanos, switched)| Sample { nanos, switched };
        Script(samples.iter().map(sample).collect())
    }

    #[test]
    fn a_round_with_a_switch_on_either_side_runs_again() {
        let mut ours = script(&[(1.0, true), (2.0, false), (3.0, false)]);
        let mut theirs = script(&[(4.0, false), (5.0, true), (6.0, false)]);
        let mut rounds = Rounds::default();
        rounds.add_round(true, &mut ours, &mut theirs);
        let expect = Round {
            ours: 3.0,
            theirs: 6.0,
        };
        assert_eq!(rounds.settled(), (vec![expect], 0));
    }

    #[test]
    fn disturbed_rounds_count_only_while_there_are_too_few_others() {
        let round = Round {
            ours: 1.0,
            theirs: 1.0,
        };
        for (clean, disturbed, expect) in [(51, 0, (51, 0)), (20, 31, (20, 0)), (5, 46, (15, 10))] {
            let rounds = Rounds {
                clean: vec![round; clean],
                disturbed: vec![round; disturbed],
            };
            let (kept, disturbed) = rounds.settled();
            assert_eq!((kept.len(), disturbed), expect);
        }
    }

    #[test]
    fn the_median_is_the_middle_value() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
