//! A simulation: sources of requests on virtual time, and the permits that each got.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of a simulation are positive and short"
)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tollgate::clock::Manual;
use tollgate::{ClassTree, Rate, Timestamp, tree::Leaf};
use tollgate_testkit::traffic::Random;

pub(crate) type Manually = ClassTree<Manual>;

/// How the requests of a source are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrivals {
    Constant,
    Poisson,
}

pub(crate) const BOTH: [Arrivals; 2] = [Arrivals::Constant, Arrivals::Poisson];

/// Requests for some leaves in turn, so many a second in all.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    leaves: Vec<Leaf>,
    per_second: f64,
    /// When it is there, in seconds.
    from: f64,
    until: f64,
}

impl Source {
    pub(crate) fn new(leaf: Leaf, per_second: u32) -> Self {
        Self::over(vec![leaf], per_second)
    }

    pub(crate) fn over(leaves: Vec<Leaf>, per_second: u32) -> Self {
        Self {
            leaves,
            per_second: f64::from(per_second),
            from: 0.0,
            until: f64::INFINITY,
        }
    }

    pub(crate) fn between(mut self, from: f64, until: f64) -> Self {
        (self.from, self.until) = (from, until);
        self
    }

    fn gap(&self, arrivals: Arrivals, random: &mut Random) -> f64 {
        match arrivals {
            Arrivals::Constant => 1.0 / self.per_second,
            Arrivals::Poisson => {
                let unit = (random.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64;
                -unit.ln() / self.per_second
            }
        }
    }
}

/// Who passed, when.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// Time and source of every request that passed.
    pub(crate) passed: Vec<(Timestamp, usize)>,
}

impl Run {
    /// What a source got a second between two times.
    pub(crate) fn rate(&self, source: usize, from: f64, until: f64) -> f64 {
        let inside = |at: Timestamp| (from..until).contains(&at.as_secs_f64());
        let passed = self
            .passed
            .iter()
            .filter(|(at, who)| *who == source && inside(*at));
        passed.count() as f64 / (until - from)
    }

    /// Whether, among these sources, more than the burst and the rate passed in any window.
    pub(crate) fn keeps(&self, rate: Rate, sources: &[usize]) -> bool {
        let nanos = rate.period().expect("a finite rate").as_nanos();
        let times = self.passed.iter().filter(|(_, who)| sources.contains(who));
        stays_within(
            rate.count(),
            nanos,
            rate.burst_size(),
            times.map(|(at, _)| (*at, 1)),
        )
    }
}

/// Law 2 by a meter that is not the library's: the level after each hit is at most the burst.
pub(crate) fn stays_within(
    count: u64,
    period: u128,
    burst: u64,
    hits: impl Iterator<Item = (Timestamp, u64)>,
) -> bool {
    let (mut level, mut last) = (0u128, Timestamp::ZERO);
    for (at, cost) in hits {
        level = level.saturating_sub(u128::from(at.nanos_since(last)) * u128::from(count));
        last = last.max(at);
        level += u128::from(cost) * period;
        if level > u128::from(burst) * period {
            return false;
        }
    }
    true
}

/// Runs the sources against the tree for so many seconds.
pub(crate) fn run(tree: &Manually, arrivals: Arrivals, sources: &[Source], seconds: f64) -> Run {
    let mut random = Random::new(42);
    let mut run = Run::default();
    let mut next = BinaryHeap::new();
    let nanos = |seconds: f64| (seconds * 1e9) as u64;
    for (number, source) in sources.iter().enumerate() {
        // Constant sources don't start at the same moment.
        let start = source.from + source.gap(arrivals, &mut random) * (number as f64 * 0.37 % 1.0);
        next.push(Reverse((nanos(start), number, 0)));
    }
    while let Some(Reverse((at, number, turn))) = next.pop() {
        let source = &sources[number];
        let seconds_in = at as f64 / 1e9;
        if seconds_in >= seconds || seconds_in >= source.until {
            continue;
        }
        let leaf = source.leaves[turn % source.leaves.len()];
        let now = Timestamp::from_nanos(at);
        if tree.allow_at(now, leaf, 1) {
            run.passed.push((now, number));
        }
        let gap = nanos(source.gap(arrivals, &mut random)).max(1);
        next.push(Reverse((at + gap, number, turn + 1)));
    }
    run
}

/// Asserts what each source got a second, within 2 %.
#[track_caller]
pub(crate) fn expect(run: &Run, from: f64, until: f64, rates: &[f64]) {
    for (source, expected) in rates.iter().enumerate() {
        let got = run.rate(source, from, until);
        assert!(
            (got - expected).abs() <= expected * 0.02 + 1.0,
            "source {source}: {got} a second instead of {expected}; all: {:?}",
            (0..rates.len())
                .map(|s| run.rate(s, from, until))
                .collect::<Vec<_>>()
        );
    }
}
