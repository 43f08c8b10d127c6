//! Aggregates the samples of a window into one, for an algorithm that shouldn't follow every single
//! call.

use std::time::Duration;

use tollgate::Timestamp;

use super::law::ParameterRange;
use super::{AlgorithmError, Bounds, ChangeReason, LimitAlgorithm, Sample};

/// Collects samples over a window of time and passes one sample for all of them to the algorithm.
///
/// Identical to Netflix's `WindowedLimit`, to the bit: a window lasts twice its fastest call, within
/// bounds; with too few samples it is discarded. Its sample has the mean latency or a percentile, the
/// most in flight, and counts as dropped if any call was.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Timestamp;
/// use tollgate_adaptive::{Aimd, Bounds, LimitAlgorithm, Sample, Windowed};
///
/// let mut algorithm = Windowed::new(Aimd::netflix(Bounds::new(1.0, 100.0)?));
/// for millis in 0..2_500 {
///     let sample = Sample::new(Duration::from_millis(2), 20);
///     algorithm.observe(&sample.at(Timestamp::from_millis(millis)));
/// }
/// assert_eq!(algorithm.limit(), 22.0, "two windows of a second, the first of one sample");
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Windowed<L> {
    law: L,
    shortest: Duration,
    longest: Duration,
    size: usize,
    threshold: Duration,
    tracked: LatencyStatistic,
    window_end: Timestamp,
    window: WindowSamples,
}

/// Calls may end in another order than they are reported. A larger backward step than this means that
/// the clock was set back.
const CLOCK_SLACK: Duration = Duration::from_secs(60);

/// The statistic of a window's latencies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LatencyStatistic {
    Mean,
    Percentile { part: f64, capacity: usize },
}

#[derive(Clone, Debug, Default, PartialEq)]
struct WindowSamples {
    count: usize,
    sum: u128,
    quickest: Option<Duration>,
    most_in_flight: u32,
    has_drops: bool,
    /// Only for a percentile; allocated in advance, so that no sample allocates.
    latencies: Vec<Duration>,
}

impl<L> Windowed<L> {
    /// Windows of a second with at least ten samples, by their mean; calls below 100 µs are ignored.
    pub fn new(law: L) -> Self {
        Self {
            law,
            shortest: Duration::from_secs(1),
            longest: Duration::from_secs(1),
            size: 10,
            threshold: Duration::from_micros(100),
            tracked: LatencyStatistic::Mean,
            window_end: Timestamp::ZERO,
            window: WindowSamples::default(),
        }
    }

    /// The duration of a window: twice its fastest call, within these bounds.
    #[must_use]
    pub fn lasting(mut self, shortest: Duration, longest: Duration) -> Self {
        (self.shortest, self.longest) = (shortest, longest);
        self
    }

    /// A window counts if it has this many samples.
    #[must_use]
    pub fn samples(mut self, least: usize) -> Self {
        self.size = least;
        self
    }

    /// Ignores calls that take less time.
    #[must_use]
    pub fn ignore_below(mut self, threshold: Duration) -> Self {
        self.threshold = threshold;
        self
    }

    /// Uses this percentile of the window's first `capacity` samples, such as 0.9 of 1,000.
    ///
    /// # Errors
    /// Unless it is above 0 and at most 1.
    pub fn percentile(mut self, part: f64, capacity: usize) -> Result<Self, AlgorithmError> {
        let part = ParameterRange::FRACTION.check("a percentile", part)?;
        self.tracked = LatencyStatistic::Percentile { part, capacity };
        self.window.latencies.reserve_exact(capacity);
        Ok(self)
    }

    /// The wrapped algorithm.
    pub fn law(&self) -> &L {
        &self.law
    }

    /// The wrapped algorithm, mutably.
    pub fn law_mut(&mut self) -> &mut L {
        &mut self.law
    }
}

impl WindowSamples {
    fn add(&mut self, sample: &Sample, tracked: LatencyStatistic) {
        self.count += 1;
        self.sum += sample.rtt.as_nanos();
        self.quickest = Some(
            self.quickest
                .map_or(sample.rtt, |least| least.min(sample.rtt)),
        );
        self.most_in_flight = self.most_in_flight.max(sample.in_flight);
        self.has_drops |= sample.is_dropped();
        if let LatencyStatistic::Percentile { capacity, .. } = tracked
            && self.latencies.len() < capacity
        {
            self.latencies.push(sample.rtt);
        }
    }

    fn summarize(&mut self, tracked: LatencyStatistic) -> Duration {
        let mean = self.sum / (self.count as u128).max(1);
        let mean = Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX));
        match tracked {
            LatencyStatistic::Mean => mean,
            LatencyStatistic::Percentile { part, .. } => {
                self.latencies.sort_unstable();
                let rank = percentile_rank(self.latencies.len(), part);
                self.latencies.get(rank).copied().unwrap_or(mean)
            }
        }
    }

    fn clear(&mut self) {
        let mut each = std::mem::take(&mut self.latencies);
        each.clear();
        *self = Self {
            latencies: each,
            ..Self::default()
        };
    }
}

/// The index of the percentile among this many sorted numbers, halves rounded up.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a window has few samples, and the cast saturates"
)]
fn percentile_rank(count: usize, part: f64) -> usize {
    ((count as f64 * part + 0.5).floor() as usize).saturating_sub(1)
}

impl<L: LimitAlgorithm> LimitAlgorithm for Windowed<L> {
    fn bounds(&self) -> Bounds {
        self.law.bounds()
    }

    fn limit(&self) -> f64 {
        self.law.limit()
    }

    fn set_limit(&mut self, limit: f64) {
        self.law.set_limit(limit);
    }

    fn step(&mut self, sample: &Sample) -> Option<ChangeReason> {
        if sample.rtt < self.threshold {
            return None;
        }
        self.window.add(sample, self.tracked);
        let end = sample.ended();
        // The clock was set back, and that time would come again only much later.
        if self.window_end > end + self.longest + CLOCK_SLACK {
            self.window_end = end + self.longest;
        }
        if end <= self.window_end {
            return None;
        }
        let twice = self.window.quickest.unwrap_or_default().saturating_mul(2);
        self.window_end = end + twice.max(self.shortest).min(self.longest);
        let reason = if self.window.count >= self.size {
            let whole = Sample {
                started: sample.started,
                rtt: self.window.summarize(self.tracked),
                in_flight: self.window.most_in_flight,
                ending: if self.window.has_drops {
                    tollgate::concurrency::PermitOutcome::Dropped
                } else {
                    sample.ending
                },
            };
            self.law.step(&whole)
        } else {
            None
        };
        self.window.clear();
        reason
    }
}
