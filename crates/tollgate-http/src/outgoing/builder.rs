//! What can be chosen of a pacer.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tollgate::clock::{Clock, Monotonic, Wall};
use tollgate::{KeyedLimiter, LimitError, Rate};

use super::Pacer;
use super::advice::Reset;
use super::host::Bounds;
use super::hosts::Hosts;

/// Hosts that are remembered for what they told, and that are sure of a rate of their own.
const HOSTS: usize = 1_024;
const MAX_WAITING: usize = 4_096;
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const LONGEST_STOP: Duration = Duration::from_secs(15 * 60);
const SLOW_BELOW: u8 = 25;
/// A stop that may be longer than this may as well be for ever.
const DAY: Duration = Duration::from_secs(86_400);

/// Builds a [`Pacer`]; made by [`Pacer::builder`].
///
/// ```
/// use std::time::Duration;
/// use tollgate::Rate;
/// use tollgate_http::outgoing::Pacer;
///
/// let pacer = Pacer::builder(Rate::per_second(100))
///     .longest_wait(Duration::from_secs(5))
///     .longest_stop(Duration::from_secs(60))
///     .build()?;
/// # let _ = pacer;
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    rate: Rate,
    hosts: usize,
    longest_wait: Duration,
    reset: Reset,
    bounds: Bounds,
}

impl Builder {
    pub(super) const fn new(rate: Rate) -> Self {
        Self {
            rate,
            hosts: HOSTS,
            longest_wait: LONGEST_WAIT,
            reset: Reset::Guess,
            bounds: Bounds {
                longest_stop: LONGEST_STOP,
                slow_below: SLOW_BELOW,
                max_waiting: MAX_WAITING,
            },
        }
    }

    /// How long a call waits at most, for the host and for one's own rate: 30 seconds unless said otherwise. One that
    /// would take longer fails at once.
    pub const fn longest_wait(mut self, longest: Duration) -> Self {
        self.longest_wait = longest;
        self
    }

    /// How long a host can stop its calls by one answer, whatever it says: 15 minutes unless said otherwise, from a
    /// millisecond to a day.
    pub fn longest_stop(mut self, longest: Duration) -> Self {
        self.bounds.longest_stop = longest.clamp(Duration::from_millis(1), DAY);
        self
    }

    /// Calls are spread over the time that is left once no more than this percentage of a host's quota is: 25 unless said
    /// otherwise, 0 for never (they stop when nothing is left), 100 for always.
    pub const fn slow_below(mut self, percent: u8) -> Self {
        self.bounds.slow_below = percent;
        self
    }

    /// How many calls may wait at once, for all hosts together: 4,096 unless said otherwise. A call that needn't wait isn't one of
    /// them: with 0, calls pass for as long as none would have to wait.
    pub const fn max_waiting(mut self, most: usize) -> Self {
        self.bounds.max_waiting = most;
        self
    }

    /// How many hosts are sure to have a rate of their own and to be remembered for what they told: 1,024 unless said
    /// otherwise. Beyond it, those whose word is over soonest are forgotten.
    pub const fn hosts(mut self, most: usize) -> Self {
        self.hosts = most;
        self
    }

    /// What the number in `X-RateLimit-Reset` means.
    pub const fn reset(mut self, reset: Reset) -> Self {
        self.reset = reset;
        self
    }

    /// Builds it on the system's clocks.
    ///
    /// # Errors
    /// A rate that can't be kept.
    pub fn build(self) -> Result<Pacer, LimitError> {
        self.build_on(Monotonic::new(), Wall)
    }

    /// Builds it on other clocks: one to wait by, and one that shows the time since 1970.
    ///
    /// # Errors
    /// A rate that can't be kept.
    pub fn build_on<C: Clock, W: Clock>(
        self,
        clock: C,
        wall: W,
    ) -> Result<Pacer<C, W>, LimitError> {
        let clock = Arc::new(clock);
        let own = KeyedLimiter::builder(self.rate, self.hosts.max(1))
            .max_waiters(self.bounds.max_waiting)
            .clock(Arc::clone(&clock))
            .build()?;
        Ok(Pacer {
            own,
            hosts: Hosts::new(self.hosts),
            bounds: self.bounds,
            longest_wait: self.longest_wait,
            reset: self.reset,
            waiting: AtomicUsize::new(0),
            clock,
            wall,
        })
    }
}
