//! What can be chosen about a limiter before it is built.

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

/// Builds a [`Limiter`]; made by [`Limiter::builder`].
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

/// What is chosen of a limiter before it is built, but for its clock.
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
    /// How it counts: [`Algorithm::Gcra`] unless said otherwise.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.settings.algorithm = algorithm;
        self
    }

    /// Starts with nothing to give instead of a full burst.
    pub fn start_empty(mut self) -> Self {
        self.settings.start_empty = true;
        self
    }

    /// Spreads one very hot GCRA limit over a stripe for each core.
    ///
    /// It never admits more than one word would, and may admit a little less near the limit,
    /// where what one stripe holds is out of reach for another. It pays only from about two million
    /// a second with a burst of 16 a stripe or more: a stripe takes a microsecond of tokens at a
    /// time, an eighth of its share of the burst at most. Below that it is the plain word, and other
    /// algorithms ignore it.
    pub fn striped(self) -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.stripes(cores)
    }

    /// Spreads one very hot GCRA limit over this many stripes, rounded up to a power of two.
    pub fn stripes(mut self, stripes: usize) -> Self {
        self.settings.stripes = Some(stripes);
        self
    }

    /// How many may wait at once; one more gets [`RateDenied::QueueFull`](crate::Denied::QueueFull).
    /// The default is 65,536.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.settings.max_waiters = most;
        self
    }

    /// Lets any number wait. Only for callers that are bounded elsewhere.
    pub fn unbounded_waiters(self) -> Self {
        self.max_waiters(usize::MAX)
    }
}

impl<C: ClockChoice> Builder<C> {
    /// Builds it on the clock that was given, or the default one.
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
