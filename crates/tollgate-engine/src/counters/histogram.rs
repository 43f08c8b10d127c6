//! How long things took, by ranges that are chosen once.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tollgate::striped_counters::StripedCounters;

/// The most ranges.
const MAX_BUCKETS: usize = 24;

/// Counts durations by ranges, on the calling thread's own lines.
///
/// ```
/// use std::time::Duration;
/// use tollgate_engine::counters::Histogram;
///
/// static BUCKET_ENDS: [u64; 2] = [1_000_000, 10_000_000];
/// let histogram = Histogram::new(&BUCKET_ENDS);
/// histogram.add(Duration::from_millis(1));
/// histogram.add(Duration::from_millis(50));
/// assert_eq!(histogram.counts(), [1, 0, 1]);
/// assert_eq!(histogram.sum(), Duration::from_millis(51));
/// ```
#[derive(Debug)]
pub struct Histogram {
    up_to: &'static [u64],
    /// The sum in nanoseconds, then how many fell into each range.
    counts: StripedCounters<[AtomicU64; MAX_BUCKETS + 1]>,
}

impl Histogram {
    /// Ranges that end at these nanoseconds each, which grow, and one beyond: at most 23 of them, as no more is told.
    pub fn new(up_to: &'static [u64]) -> Self {
        Self {
            up_to: &up_to[..up_to.len().min(MAX_BUCKETS - 1)],
            counts: StripedCounters::with_few_stripes(|| {
                [const { AtomicU64::new(0) }; MAX_BUCKETS + 1]
            }),
        }
    }

    /// Counts one.
    #[inline]
    pub fn add(&self, took: Duration) {
        self.add_many(took, 1);
    }

    /// Counts so many that took so long each.
    #[inline]
    pub fn add_many(&self, took: Duration, count: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let range = self.up_to.iter().position(|end| nanos <= *end);
        let range = 1 + range.unwrap_or(self.up_to.len());
        self.counts.add(|own| &own[0], nanos.saturating_mul(count));
        self.counts.add(|own| &own[range], count);
    }

    /// Where the ranges end, in nanoseconds; the last has no end.
    pub const fn up_to(&self) -> &'static [u64] {
        self.up_to
    }

    /// How many fell into each range.
    pub fn counts(&self) -> Vec<u64> {
        let ranges = 1..=self.up_to.len() + 1;
        ranges
            .map(|range| self.counts.sum(|own| &own[range]))
            .collect()
    }

    /// How long all took together.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.counts.sum(|own| &own[0]))
    }
}
