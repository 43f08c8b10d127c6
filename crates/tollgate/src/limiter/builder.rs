//! The settings of a limiter before it is built.

use std::num::NonZeroUsize;
use std::thread;

use tollgate_core::{Arithmetic, Gcra, LimitError, Rate, Timestamp};

use super::Limiter;
use crate::Algorithm;
use crate::cell::LimitCell;
use crate::cell::locked::LockedLimit;
use crate::cell::striped::Striped;
use crate::cell::word::{AnchorOwner, GcraWord};
use crate::clock::{Clock, ClockChoice, DefaultClock, WithClock};
use crate::sync::Mutex;
use crate::tier::{CompiledLimit, Tier};
use crate::wait_queue::limiter_queue::LimiterQueue;
use crate::wait_queue::waiter_count::WaiterCount;

/// Builds a [`Limiter`]. [`Limiter::builder`] returns it.
///
/// ```
/// use tollgate::{Algorithm, Limiter, Rate, clock::Manual};
///
/// let limiter = Limiter::builder(Rate::per_second(10))
///     .algorithm(Algorithm::TokenBucket)
///     .start_empty()
///     .max_waiters(100)
///     .clock(Manual::new())
///     .build()?;
/// assert!(!limiter.allow());
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub type Builder<C = DefaultClock> = WithClock<LimiterSettings, C>;

/// The settings of a limiter, without its clock.
#[derive(Debug)]
pub struct LimiterSettings {
    rate: Rate,
    algorithm: Algorithm,
    start_empty: bool,
    stripes: Option<usize>,
    max_waiters: usize,
}

impl Builder {
    pub(super) fn new(rate: Rate) -> Self {
        Self::from_settings(LimiterSettings {
            rate,
            algorithm: Algorithm::Gcra,
            start_empty: false,
            stripes: None,
            max_waiters: WaiterCount::DEFAULT_MAX,
        })
    }
}

impl<C> Builder<C> {
    /// The algorithm; [`Algorithm::Gcra`] by default.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.settings.algorithm = algorithm;
        self
    }

    /// Starts with no tokens instead of a full burst.
    pub fn start_empty(mut self) -> Self {
        self.settings.start_empty = true;
        self
    }

    /// Spreads one very hot GCRA limit over a stripe for each core.
    ///
    /// It never admits more than one word would. It may admit a little less near the limit, because a stripe can't use
    /// the tokens that another stripe holds. Striping pays only from about two million requests a second, with a burst
    /// of 16 or more per stripe: a stripe takes a microsecond of tokens at a time, but at most an eighth of its share
    /// of the burst. Below that the limiter uses the plain word. Other algorithms ignore this setting.
    pub fn striped(self) -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.stripes(cores)
    }

    /// Spreads one very hot GCRA limit over this many stripes, rounded up to a power of two.
    pub fn stripes(mut self, stripes: usize) -> Self {
        self.settings.stripes = Some(stripes);
        self
    }

    /// The most requests that may wait at the same time. A further request gets
    /// [`RateDenied::QueueFull`](crate::RateDenied::QueueFull). The default is 65,536.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.settings.max_waiters = most;
        self
    }

    /// Removes the bound on waiters. Only for callers that bound them elsewhere.
    pub fn unbounded_waiters(self) -> Self {
        self.max_waiters(usize::MAX)
    }
}

impl<C: ClockChoice> Builder<C> {
    /// Builds the limiter on the given clock, or on the default clock.
    ///
    /// # Errors
    /// If the algorithm can't represent the rate.
    pub fn build(self) -> Result<Limiter<C::Clock>, LimitError> {
        let WithClock { settings, clock } = self.resolve_clock();
        let now = clock.now();
        let cell = match Tier::new(settings.algorithm, settings.rate)?.0 {
            CompiledLimit::Gcra(limit) => settings.word(*limit, now),
            CompiledLimit::TokenBucket(limit) => settings.locked(*limit, now),
            CompiledLimit::LeakyBucket(limit) => settings.locked(*limit, now),
            CompiledLimit::FixedWindow(limit) => settings.locked(*limit, now),
            CompiledLimit::SlidingLog(limit) => settings.locked(*limit, now),
            CompiledLimit::SlidingCounter(limit) => settings.locked(*limit, now),
        };
        Ok(Limiter {
            cell,
            clock,
            line: LimiterQueue::new(),
            waiting: WaiterCount::new(settings.max_waiters),
        })
    }
}

impl LimiterSettings {
    fn word(&self, limit: Gcra, now: Timestamp) -> LimitCell {
        match self.stripes {
            None => {
                let word = GcraWord::new(limit, now, AnchorOwner::Word);
                if self.start_empty {
                    word.exhaust();
                }
                LimitCell::Word(word)
            }
            Some(stripes) => {
                let striped = Striped::new(limit, now, stripes);
                if self.start_empty {
                    striped.exhaust();
                }
                LimitCell::Striped(Box::new(striped))
            }
        }
    }

    fn locked<A: Arithmetic + 'static>(&self, limit: A, now: Timestamp) -> LimitCell
    where
        LockedLimit<A>: Send,
    {
        let state = if self.start_empty {
            limit.empty(now)
        } else {
            A::State::default()
        };
        let slot = LockedLimit::new(self.algorithm, limit, state);
        LimitCell::Locked(Box::new(Mutex::new(slot)))
    }
}
