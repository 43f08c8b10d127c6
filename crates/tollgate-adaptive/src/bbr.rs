//! Inspired by BBR: the delivered rate, times the least latency.

use tollgate::Timestamp;

use super::law::keeps_limit_in;
use super::{Bounds, ChangeReason, LimitAlgorithm, Sample};

/// The highest delivered rate of the last few rounds, times the fastest call: the number in flight
/// without a queue.
///
/// It needs no sign of overload, and finds the number of servers if calls take an even time. If
/// durations differ by nature, the fastest call is much faster than most, and the limit becomes too
/// low: [`Little`](super::Little) is the same idea with means.
///
/// A round is a window of samples. One in eight has 1.25 times the limit, to see whether more is
/// delivered then, and the next 0.75 times, to drain the queue. After 10 s without a faster call, the
/// limit falls to the minimum for a round, and the fastest call is measured anew.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Timestamp;
/// use tollgate_adaptive::{Bbr, Bounds, LimitAlgorithm, Sample};
///
/// // 800 calls a second complete, and the fastest take 10 ms: 8 are in service.
/// let mut algorithm = Bbr::new(Bounds::new(1.0, 200.0)?).initial(20.0);
/// for number in 0..=50 {
///     let sample = Sample::new(Duration::from_millis(10), 20);
///     algorithm.observe(&sample.at(Timestamp::from_micros(1_250 * number)));
/// }
/// // 0.75 of that after the first round, and two more.
/// assert!((algorithm.limit() - 8.0).abs() < 0.01, "{}", algorithm.limit());
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bbr {
    bounds: Bounds,
    limit: f64,
    samples: u32,
    /// Deliveries per nanosecond in each of the last rounds.
    rates: [f64; ROUNDS],
    round: usize,
    quickest: f64,
    quickest_at: Timestamp,
    round_start: Option<Timestamp>,
    round_samples: u32,
    is_probing: bool,
}

const ROUNDS: usize = 8;
const GAINS: [f64; ROUNDS] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// After this duration the fastest call is measured anew.
const MIN_LATENCY_LIFETIME: std::time::Duration = std::time::Duration::from_secs(10);

impl Bbr {
    /// Begins at the minimum, in rounds of 50 samples.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            limit: bounds.min(),
            samples: 50,
            rates: [0.0; ROUNDS],
            round: 0,
            quickest: f64::INFINITY,
            quickest_at: Timestamp::ZERO,
            round_start: None,
            round_samples: 0,
            is_probing: false,
        }
    }

    /// The samples of a round: 50 by default.
    #[must_use]
    pub fn samples(mut self, samples: u32) -> Self {
        self.samples = samples.max(2);
        self
    }

    /// Ends a round and sets the limit by what it delivered.
    fn end_round(&mut self, now: Timestamp, rate: f64) -> ChangeReason {
        if self.is_probing {
            self.is_probing = false;
        } else {
            self.rates[self.round % ROUNDS] = rate;
        }
        self.round += 1;
        if now - self.quickest_at >= MIN_LATENCY_LIFETIME {
            (self.quickest, self.quickest_at) = (f64::INFINITY, now);
            self.is_probing = true;
            self.limit = self.bounds.min();
            return ChangeReason::Probing;
        }
        let best = self.rates.iter().copied().fold(0.0, f64::max);
        let wanted = best * self.quickest * GAINS[self.round % ROUNDS];
        // Two more, because otherwise a small limit would never deliver more than it does.
        let wanted = self.bounds.clamp(wanted + 2.0);
        let reason = if wanted > self.limit {
            ChangeReason::Room
        } else {
            ChangeReason::Queueing
        };
        self.limit = wanted;
        reason
    }
}

impl LimitAlgorithm for Bbr {
    keeps_limit_in!(limit);

    #[expect(
        clippy::cast_precision_loss,
        reason = "a round lasts less than 2^53 ns"
    )]
    fn step(&mut self, sample: &Sample) -> Option<ChangeReason> {
        let now = sample.ended();
        if self.round_start.is_some_and(|began| now < began) {
            // The clock was set back, and those times would come again only much later: begin a new
            // round.
            (self.round_start, self.round_samples) = (Some(now), 0);
            self.quickest_at = self.quickest_at.min(now);
        }
        if sample.nanos() < self.quickest && !sample.is_dropped() {
            (self.quickest, self.quickest_at) = (sample.nanos(), now);
        }
        let Some(began) = self.round_start else {
            self.round_start = Some(now);
            return None;
        };
        self.round_samples += u32::from(!sample.is_dropped());
        let took = now.nanos_since(began);
        if self.round_samples < self.samples || took == 0 || !self.quickest.is_finite() {
            return None;
        }
        let rate = f64::from(self.round_samples) / took as f64;
        (self.round_start, self.round_samples) = (Some(now), 0);
        if f64::from(sample.in_flight) * 2.0 < self.limit && !self.is_probing {
            // The limit isn't the bottleneck, so the delivered rate shows little about it.
            return None;
        }
        let before = self.limit;
        let reason = self.end_round(now, rate);
        (self.limit.to_bits() != before.to_bits()).then_some(reason)
    }
}
