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

/// One limit shared fairly by the clients that wait for it.
///
/// A [`Limiter`](crate::Limiter) serves requests in the order in which they come, so a busy client takes nearly all of
/// it. Here each client has a queue of its own, and the queues are served by weight (weighted fair queueing). Under
/// contention every client gets up to its fair share, and the others share what idle clients leave. A client with no
/// waiting request collects no credit and takes no memory.
///
/// A client is any value that can be hashed; its fingerprint identifies it. Two of n waiting clients share a queue with
/// probability n² / 2⁶⁵. The weight is 1 by default; each call can set another.
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
/// // The quiet client has one turn with the loud one before it, not five.
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

    /// Sets bounds, load shedding and the clock.
    pub fn builder(rate: Rate) -> Builder {
        Builder::new(rate)
    }
}

impl<C: Clock> FairLimiter<C> {
    /// Whether one request passes now: a token is available, and no waiter has precedence.
    ///
    /// Fairness applies among waiters. Clients that only use this method are served in the order in which they come.
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

    /// Decides a request of this cost. When it is denied, `retry_after` is the latest time at which it would pass if it
    /// joined the queue now and no request came after it. Computing that visits every waiting client.
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

    /// Waits for one token, in the client's queue.
    pub fn acquire<K: Hash + ?Sized>(&self, client: &K) -> QueuedAcquire<'_, FairQueueing, C> {
        self.acquire_n(client, 1)
    }

    /// Waits for this many tokens, in the client's queue.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{FairLimiter, Rate, RateDenied, clock::Manual};
    ///
    /// let limiter = FairLimiter::builder(Rate::per_second(10)).clock(Manual::new()).build()?;
    /// assert_eq!(limiter.acquire_n("ada", 10).wait_blocking(), Ok(Duration::ZERO));
    /// // Five more take half a second, so less patience fails at once.
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

    /// The number of waiting requests.
    pub fn waiters(&self) -> usize {
        self.queue.read(|queue| queue.waiting())
    }

    /// The number of this client's waiting requests.
    pub fn waiters_of<K: Hash + ?Sized>(&self, client: &K) -> usize {
        let client = self.hasher.fingerprint(client);
        self.queue
            .read(|queue| queue.waiting_of(queue.discipline().client_slot(client)))
    }

    /// The number of clients with a waiting request. Only those take memory.
    pub fn clients(&self) -> usize {
        self.queue.read(|queue| queue.discipline().clients())
    }

    /// The shared rate.
    pub fn rate(&self) -> Rate {
        self.queue.read(|queue| queue.discipline().limit().rate())
    }

    /// The clock that the limiter reads.
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
    /// Sets the client's weight for all its waiting requests, from this request on. A client of weight 3 gets three
    /// times as much as a client of weight 1, when both want more. The weight is 1 to 65,536; other numbers are
    /// clamped.
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
