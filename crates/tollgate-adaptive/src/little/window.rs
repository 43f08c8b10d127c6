//! What the default law gathers of the calls of a window.

use crate::Sample;

/// Sums over the calls of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Window {
    pub(super) count: f64,
    sum: f64,
    squares: f64,
    in_flight: f64,
}

impl Window {
    #[inline]
    pub(super) fn add(&mut self, sample: &Sample) {
        let rtt = sample.nanos();
        self.count += 1.0;
        self.sum += rtt;
        self.squares += rtt * rtt;
        self.in_flight += f64::from(sample.in_flight);
    }

    pub(super) fn mean(&self) -> f64 {
        self.sum / self.count
    }

    pub(super) fn mean_in_flight(&self) -> f64 {
        self.in_flight / self.count
    }

    /// The variance of the mean.
    pub(super) fn doubt(&self) -> f64 {
        let mean = self.mean();
        (self.squares / self.count - mean * mean).max(0.0) / self.count
    }
}
