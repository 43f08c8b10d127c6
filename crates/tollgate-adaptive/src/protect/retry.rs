//! Retries: how often, with which backoff, and when not.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use derive_more::{Display, Error};
use tollgate::Rate;
use tollgate::clock::{Clock, Monotonic, sleep_until};

use super::RetryBudget;
use crate::random::{SplitMix64, random_seed};
use crate::undo_guard::UndoGuard;

/// How often a call is tried, and the random backoff in between: by default three tries, with waits of
/// at most 1 s and then 2 s.
///
/// A wait is random between 0 and its maximum ("full jitter"), so that clients that failed together
/// don't return together. If the server sent a `Retry-After`, the wait is never shorter than that.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Rate;
/// use tollgate_adaptive::protect::Backoff;
///
/// let backoff = Backoff::new();
/// // After the first failure, the second, …; the last argument is the random number.
/// assert_eq!(backoff.wait(1, None, 0.5), Some(Duration::from_millis(500)));
/// assert_eq!(backoff.wait(2, None, 0.5), Some(Duration::from_secs(1)));
/// assert_eq!(backoff.wait(3, None, 0.5), None);
///
/// // 2,000 clients of a limit of 100/s need 20 s, or they all come back at the same time.
/// let many = backoff.spread_for(2_000, Rate::per_second(100));
/// let retry_after = Some(Duration::from_secs(5)); // Retry-After
/// assert_eq!(many.wait(1, retry_after, 0.5), Some(Duration::from_secs(15)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    tries: u32,
    first: Duration,
    factor: f64,
    longest: Duration,
    spread: Duration,
}

impl Backoff {
    /// Three tries, 1 s, doubling up to a minute.
    pub const fn new() -> Self {
        Self {
            tries: 3,
            first: Duration::from_secs(1),
            factor: 2.0,
            longest: Duration::from_secs(60),
            spread: Duration::ZERO,
        }
    }

    /// The most tries, the first one included.
    #[must_use]
    pub const fn tries(mut self, tries: u32) -> Self {
        self.tries = tries;
        self
    }

    /// The maximum of the first wait, and of all waits: each is twice the one before.
    #[must_use]
    pub const fn waits(mut self, first: Duration, longest: Duration) -> Self {
        (self.first, self.longest) = (first, longest);
        self
    }

    /// Spreads clients with a `Retry-After` over this duration after it.
    #[must_use]
    pub const fn spread(mut self, over: Duration) -> Self {
        self.spread = over;
        self
    }

    /// Spreads this many clients of one limit over the time that it takes to serve them all.
    #[must_use]
    pub fn spread_for(self, clients: u32, limit: Rate) -> Self {
        let seconds = f64::from(clients) / limit.as_per_second();
        let over = Duration::try_from_secs_f64(seconds).unwrap_or(self.longest);
        self.spread(over)
    }

    /// The wait after this many failures, with the server's `Retry-After` if there was one, and a
    /// random number from 0 to 1; `None` if there is no further try.
    pub fn wait(&self, failures: u32, said: Option<Duration>, chance: f64) -> Option<Duration> {
        if failures == 0 || failures >= self.tries {
            return None;
        }
        // After a thousand doublings every wait is at its maximum, and 0 × ∞ would be NaN.
        let doublings = i32::try_from(failures - 1).unwrap_or(i32::MAX).min(1_000);
        let longest = self.first.as_secs_f64() * self.factor.powi(doublings);
        let longest = Duration::try_from_secs_f64(longest).unwrap_or(self.longest);
        let longest = longest.min(self.longest).max(self.spread);
        // NaN is no reason to hurry.
        let chance = if chance.is_nan() {
            1.0
        } else {
            chance.clamp(0.0, 1.0)
        };
        let wait = Duration::try_from_secs_f64(longest.as_secs_f64() * chance);
        let wait = wait.unwrap_or(longest);
        Some(said.unwrap_or_default().saturating_add(wait))
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new()
    }
}

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAdvice {
    /// It would fail again, or must not be repeated.
    Stop,
    /// It may succeed next time.
    Retry,
    /// The server said when to retry, as by `Retry-After`.
    RetryAfter(Duration),
}

/// Why a call isn't retried.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// Its error isn't retryable.
    #[display("which isn't tried again")]
    Advised,
    /// It was tried as often as allowed.
    #[display("and it isn't tried more often")]
    Tries,
    /// The budget is spent.
    #[display("and the budget of retries is spent")]
    Budget,
    /// The next try would begin after the deadline.
    #[display("and there is no time for another")]
    Deadline,
}

/// The last error of a call that isn't retried, and why.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
#[display("{error} (try {tries}, {why})")]
#[non_exhaustive]
pub struct RetriesExhausted<E> {
    /// The last error.
    pub error: E,
    /// The number of tries.
    pub tries: u32,
    /// Why there was no further try.
    pub why: StopReason,
}

/// Retries calls that failed with retryable errors.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tollgate_adaptive::protect::{RetryAdvice, Backoff, RetryBudget, Retry};
///
/// # async fn fetch() -> Result<(), u16> { Ok(()) }
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let retry = Retry::new(Backoff::new()).budget(Arc::new(RetryBudget::percent(10)));
/// retry
///     .within(Duration::from_secs(10))
///     .call(fetch, |status| match status {
///         429 | 503 => RetryAdvice::RetryAfter(Duration::from_secs(1)),
///         500 | 502 | 504 => RetryAdvice::Retry,
///         _ => RetryAdvice::Stop,
///     })
///     .await
///     .map_err(|gave_up| format!("status {} after {} tries", gave_up.error, gave_up.tries))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Retry<C: Clock = Monotonic> {
    backoff: Backoff,
    budget: Option<Arc<RetryBudget>>,
    within: Option<Duration>,
    clock: C,
    seed: AtomicU64,
}

impl Retry {
    /// With this backoff, on the default clock.
    pub fn new(backoff: Backoff) -> Self {
        Self::with_clock(backoff, Monotonic::new())
    }
}

impl<C: Clock> Retry<C> {
    /// With this backoff, on this clock.
    pub fn with_clock(backoff: Backoff, clock: C) -> Self {
        Self {
            backoff,
            budget: None,
            within: None,
            clock,
            seed: AtomicU64::new(random_seed()),
        }
    }

    /// Retries only while this budget allows it.
    #[must_use]
    pub fn budget(mut self, budget: Arc<RetryBudget>) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Begins no try later than this long after the first.
    #[must_use]
    pub fn within(mut self, within: Duration) -> Self {
        self.within = Some(within);
        self
    }

    /// Seeds the random waits, so that each run has the same. By default each process has its own seed,
    /// so that a fleet that failed together doesn't return together.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        self.seed.store(seed, Ordering::Relaxed);
        self
    }

    /// Calls until it succeeds or there is no further try. Dropping the future stops the retries, even
    /// during a wait; then the budget gets back what the next try would have taken.
    ///
    /// # Errors
    /// [`RetriesExhausted`]: the last error, and why it was the last.
    pub async fn call<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        mut call: impl FnMut() -> F,
        advise: impl Fn(&E) -> RetryAdvice,
    ) -> Result<T, RetriesExhausted<E>> {
        let started = self.clock.now();
        if let Some(budget) = &self.budget {
            budget.called();
        }
        let mut tries = 1;
        loop {
            let error = match call().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let now = self.clock.now();
            let (wait, taken) = match self.plan_retry(tries, advise(&error), now - started) {
                Ok(next) => next,
                Err(why) => return Err(RetriesExhausted { error, tries, why }),
            };
            // The error may hold a resource, such as a response's connection or a permit. Release it
            // before the wait.
            drop(error);
            sleep_until(&self.clock, now + wait).await;
            if let Some(taken) = taken {
                taken.disarm();
            }
            tries += 1;
        }
    }

    /// The wait after this many failures, if there is a further try, and what that takes of the budget.
    fn plan_retry(
        &self,
        tries: u32,
        advice: RetryAdvice,
        passed: Duration,
    ) -> Result<(Duration, Option<UndoGuard<&RetryBudget>>), StopReason> {
        let said = match advice {
            RetryAdvice::Stop => return Err(StopReason::Advised),
            RetryAdvice::Retry => None,
            RetryAdvice::RetryAfter(said) => Some(said),
        };
        let chance = SplitMix64::new(self.seed.fetch_add(1, Ordering::Relaxed)).next_fraction();
        let wait = self
            .backoff
            .wait(tries, said, chance)
            .ok_or(StopReason::Tries)?;
        if self
            .within
            .is_some_and(|within| passed.saturating_add(wait) > within)
        {
            return Err(StopReason::Deadline);
        }
        let taken = match &self.budget {
            Some(budget) => Some(budget.take_retry().ok_or(StopReason::Budget)?),
            None => None,
        };
        Ok((wait, taken))
    }
}
