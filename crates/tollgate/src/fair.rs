//! `FairLimiter`: one limit that clients share by their weights when it is contended.

use std::fmt;
use std::hash::Hash;

use tollgate_core::{Arithmetic, Decision, Rate};

use crate::clock::{Clock, Monotonic};
use crate::key_table::hasher::KeyHasher;
use crate::wait_queue::{QueuedAcquire, SharedWaitQueue};

mod anchored_bucket;
mod builder;
mod codel;
mod fair_queueing;
#[cfg(test)]
mod tests;

pub use builder::{Builder, Settings};
use fair_queueing::{ClientClaim, FairQueueing, MAX_WEIGHT};

/// One limit that its waiting clients share fairly.
///
/// A [`Limiter`](crate::Limiter) serves whichever request comes first, so a noisy client takes nearly
/// all of it. Here each client has a queue of its own, and the queues are served in turn by weight.
/// Under contention every client gets what it requests up to its fair share, and the others share what
/// a quiet client leaves unused. A client with an empty queue collects no credit and takes no memory.
///
/// A client is anything that can be hashed, and is known by its fingerprint: two of n queued clients
/// share a queue with probability n² / 2⁶⁵. Its weight is 1 unless the call sets another.
///
/// ```
/// use std::sync::Arc;
/// use std::thread;
/// use std::time::Duration;
/// use tollgate::{FairLimiter, Rate, clock::Manual};
///
/// let clock = Manual::new();
/// let limiter = Arc::new(
///     FairLimiter::builder(Rate::every(Duration::from_millis(10)))
///         .clock(clock.clone())
///         .build()?,
/// );
/// assert!(limiter.allow("loud"));
/// let mut start = |client: &'static str, waiting| {
///     let line = Arc::clone(&limiter);
///     let waiter = thread::spawn(move || line.acquire(client).wait_blocking());
///     while limiter.waiters() < waiting {
///         thread::yield_now();
///     }
///     waiter
/// };
/// let loud: Vec<_> = (1..=5).map(|waiting| start("loud", waiting)).collect();
/// let quiet = start("quiet", 6);
/// // The quiet client waits for one request of the noisy one, not for five.
/// for _ in 0..2 {
///     while clock.parked() < limiter.waiters() {
///         thread::yield_now();
///     }
///     clock.advance(Duration::from_millis(10));
/// }
/// assert_eq!(quiet.join().unwrap(), Ok(Duration::from_millis(20)));
/// clock.advance(Duration::from_secs(1));
/// assert!(loud.into_iter().all(|waiter| waiter.join().unwrap().is_ok()));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub struct FairLimiter<C: Clock = Monotonic> {
    queue: SharedWaitQueue<FairQueueing, C>,
    hasher: KeyHasher,
}

impl FairLimiter {
    /// A limit that starts with a full burst, on the default clock.
    ///
    /// # Panics
    /// If GCRA can't represent the rate; [`builder`](Self::builder) returns the error instead.
    pub fn new(rate: Rate) -> Self {
        match Self::builder(rate).build() {
            Ok(limiter) => limiter,
            Err(error) => panic!("{error}"),
        }
    }

    /// A builder for bounds, shedding and the clock.
    pub fn builder(rate: Rate) -> Builder {
        Builder::new(rate)
    }
}

impl<C: Clock> FairLimiter<C> {
    /// Whether one request passes now: a token is available, and no waiter has precedence.
    ///
    /// Only waiters share fairly. Clients that never wait are served in the order in which they come.
    ///
    /// ```
    /// use tollgate::{FairLimiter, Rate, clock::Manual};
    ///
    /// let limiter = FairLimiter::builder(Rate::per_second(2)).clock(Manual::new()).build()?;
    /// assert!(limiter.allow("ada") && limiter.allow("bob") && !limiter.allow("ada"));
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    #[must_use = "a request that isn't allowed mustn't pass"]
    pub fn allow<K: Hash + ?Sized>(&self, client: &K) -> bool {
        self.allow_n(client, 1)
    }

    /// Whether a request of this cost passes now; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    pub fn allow_n<K: Hash + ?Sized>(&self, client: &K, cost: u64) -> bool {
        self.queue.allow(&self.client_claim(client), cost)
    }

    /// Decides one request as [`allow`](Self::allow) does, and returns how long it would have to wait.
    pub fn check<K: Hash + ?Sized>(&self, client: &K) -> Decision {
        self.check_n(client, 1)
    }

    /// Decides a request of this cost. When it is denied, `retry_after` is the longest wait if it
    /// joined the queue now and no further request came. Computing that visits every queued client.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{FairLimiter, Rate, clock::Manual};
    ///
    /// let limiter = FairLimiter::builder(Rate::per_second(10)).clock(Manual::new()).build()?;
    /// assert_eq!(limiter.check_n("ada", 9).remaining, 1);
    /// assert_eq!(limiter.check_n("bob", 3).wait_or_max(), Duration::from_millis(200));
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn check_n<K: Hash + ?Sized>(&self, client: &K, cost: u64) -> Decision {
        self.queue.check(&self.client_claim(client), cost)
    }

    /// Waits for one token in the client's queue.
    pub fn acquire<K: Hash + ?Sized>(&self, client: &K) -> QueuedAcquire<'_, FairQueueing, C> {
        self.acquire_n(client, 1)
    }

    /// Waits for this many tokens in the client's queue.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{FairLimiter, Rate, RateDenied, clock::Manual};
    ///
    /// let limiter = FairLimiter::builder(Rate::per_second(10)).clock(Manual::new()).build()?;
    /// assert_eq!(limiter.acquire_n("ada", 10).wait_blocking(), Ok(Duration::ZERO));
    /// // Five more take half a second, so a shorter timeout fails immediately.
    /// let patience = Duration::from_millis(400);
    /// let denied = limiter.acquire_n("ada", 5).timeout(patience).wait_blocking().unwrap_err();
    /// assert!(matches!(denied, RateDenied::DeadlineExceeded(_)));
    /// assert_eq!(denied.decision().wait_or_max(), Duration::from_millis(500));
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn acquire_n<K: Hash + ?Sized>(
        &self,
        client: &K,
        cost: u64,
    ) -> QueuedAcquire<'_, FairQueueing, C> {
        QueuedAcquire::new(&self.queue, self.client_claim(client), cost)
    }

    /// The number of waiters.
    pub fn waiters(&self) -> usize {
        self.queue.read(|queue| queue.waiting())
    }

    /// The number of this client's waiters.
    pub fn waiters_of<K: Hash + ?Sized>(&self, client: &K) -> usize {
        let client = self.hasher.fingerprint(client);
        self.queue
            .read(|queue| queue.waiting_of(queue.discipline().client_slot(client)))
    }

    /// The number of clients with waiters; only these take memory.
    pub fn clients(&self) -> usize {
        self.queue.read(|queue| queue.discipline().clients())
    }

    /// The shared rate.
    pub fn rate(&self) -> Rate {
        self.queue.read(|queue| queue.discipline().limit().rate())
    }

    /// The limiter's clock.
    pub const fn clock(&self) -> &C {
        self.queue.clock()
    }

    fn client_claim<K: Hash + ?Sized>(&self, client: &K) -> ClientClaim {
        ClientClaim {
            client: self.hasher.fingerprint(client),
            weight: 1,
        }
    }
}

impl<C: Clock> QueuedAcquire<'_, FairQueueing, C> {
    /// Sets the client's weight from this request on, for all its waiters. A client of weight 3 gets
    /// three times as much as one of weight 1 when both want more. Weights are clamped to 1 to 65,536.
    pub fn weight(mut self, weight: u32) -> Self {
        self.client.weight = weight.clamp(1, MAX_WEIGHT);
        self
    }
}

impl<C: Clock> fmt::Debug for FairLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairLimiter")
            .field("rate", &self.rate())
            .field("clients", &self.clients())
            .field("waiters", &self.waiters())
            .finish_non_exhaustive()
    }
}
