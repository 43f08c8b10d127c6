//! Pacing: a leaky bucket as a queue. Whatever the input, the output has an exact rate.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use derive_more::{Display, Error};
use derive_where::derive_where;
use futures_core::Stream;
use pin_project_lite::pin_project;
use tollgate::clock::Monotonic;
use tollgate::wait::{Acquire, AcquireFuture};
use tollgate::{Algorithm, Clock, LimitError, Limiter, Rate, RateDenied, Timestamp};

mod submit;

pub use submit::{SubmittedWork, WorkLost};

/// The queue of a [`WorkPacer`] is full, or the start would be after the deadline. Nothing was queued.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::{PaceDenied, WorkPacer};
/// use tollgate::Rate;
///
/// let pacer = WorkPacer::builder(Rate::per_second(10), 2).clock(Manual::new()).build()?;
/// let waits: Vec<_> = (0..2).map(|_| pacer.submit(|| {})).collect();
/// let denied = pacer.pace().wait_blocking().unwrap_err();
/// assert_eq!(
///     denied.to_string(),
///     "the queue is full: 1 waiting, of a capacity of 2 that includes the latest start; the wait would \
///      be 200ms"
/// );
/// # drop(waits);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PaceDenied {
    /// The queue is full.
    #[display(
        "the queue is full: {waiting} waiting, of a capacity of {capacity} that includes the latest start; the wait \
         would be {turn_in:?}"
    )]
    QueueFull {
        /// The number of waiters.
        waiting: usize,
        /// The capacity of the queue. It includes the latest start until its interval has passed.
        capacity: usize,
        /// How long the wait would be.
        turn_in: Duration,
    },
    /// The wait would exceed the deadline.
    #[display("the deadline is too soon: {waiting} waiting, and the wait would be {turn_in:?}")]
    DeadlineExceeded {
        /// The number of waiters.
        waiting: usize,
        /// How long the wait would be.
        turn_in: Duration,
    },
}

/// Starts work at an exact rate, first in, first out, whatever the input.
///
/// * The first starts immediately, and each of the others one interval after the one before it.
/// * The queue holds at most `capacity`, including an immediate start until its interval has passed. So
///   no wait exceeds capacity ÷ rate ([`longest_wait`](Self::longest_wait)). Anything beyond that is
///   denied immediately, with the length of the queue.
/// * Dropping a wait leaves the queue, and every waiter behind it moves up.
/// * The next interval begins at the due time, not when a timer noticed it: a timer that is late by a
///   millisecond delays one start, but not the rate.
/// * Idle time earns no credit, unless [`slack`](PacerBuilder::slack) is set.
///
/// It uses the queue of a [`Limiter`] whose burst is one. Clones share it.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Rate, clock::Tokio};
/// use tollgate_shape::WorkPacer;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = Tokio::new();
/// let pacer = WorkPacer::builder(Rate::per_second(10), 100).clock(clock).build()?;
/// for mail in 0..10 {
///     let waited = pacer.pace().await?; // 0 s, then 100 ms each
///     println!("sent mail {mail} after {waited:?}");
/// }
/// assert_eq!(pacer.longest_wait(), Duration::from_secs(10));
/// # Ok(())
/// # }
/// ```
#[derive_where(Clone)]
pub struct WorkPacer<C: Clock = Monotonic> {
    shared: Arc<PacerState<C>>,
}

struct PacerState<C: Clock> {
    limiter: Arc<Limiter<C>>,
    clock: C,
    rate: Rate,
    /// The cost of one start, in tokens of the limiter.
    cost: u64,
    capacity: usize,
    /// The longest wait that the capacity allows.
    max_wait: Duration,
    longest: Duration,
}

/// The settings of a [`WorkPacer`]; made by [`WorkPacer::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct PacerBuilder<C = Monotonic> {
    rate: Rate,
    capacity: usize,
    slack: u64,
    clock: C,
}

impl WorkPacer {
    /// Starts work at this rate, with a queue of this capacity. The burst of the rate is ignored.
    ///
    /// # Errors
    /// If the rate is too extreme to be represented.
    pub fn new(rate: Rate, capacity: usize) -> Result<Self, LimitError> {
        Self::builder(rate, capacity).build()
    }

    /// As [`new`](Self::new), with more settings.
    pub fn builder(rate: Rate, capacity: usize) -> PacerBuilder {
        PacerBuilder {
            rate,
            capacity,
            slack: 0,
            clock: Monotonic::new(),
        }
    }
}

impl<C> PacerBuilder<C> {
    /// Credit for idle time: up to this many may start immediately after the pacer was idle for as many
    /// intervals. Credit is earned from when it is built.
    pub fn slack(mut self, most: u64) -> Self {
        self.slack = most;
        self
    }

    /// Uses this clock instead of the default one.
    pub fn clock<D: Clock>(self, clock: D) -> PacerBuilder<D> {
        PacerBuilder {
            rate: self.rate,
            capacity: self.capacity,
            slack: self.slack,
            clock,
        }
    }
}

impl<C: Clock + Clone> PacerBuilder<C> {
    /// Builds the pacer.
    ///
    /// # Errors
    /// If the rate is too extreme to be represented.
    pub fn build(self) -> Result<WorkPacer<C>, LimitError> {
        let capacity = self.capacity.max(1);
        let rate = self.rate;
        let (fine, cost) = finer_rate(rate, self.slack);
        let limiter = Limiter::builder(fine)
            .algorithm(Algorithm::TokenBucket)
            .unbounded_waiters()
            .clock(self.clock.clone())
            .build()?;
        if self.slack > 0 {
            // Take the initial burst: time before the pacer existed earns no credit.
            let _spent = limiter.check_n(self.slack.saturating_mul(cost));
        }
        let longest = intervals_duration(rate, capacity);
        // Two nanoseconds more, because the queue adds two durations that are rounded up to whole
        // nanoseconds.
        let most = intervals_duration(rate, capacity - 1).saturating_add(Duration::from_nanos(2));
        Ok(WorkPacer {
            shared: Arc::new(PacerState {
                limiter: Arc::new(limiter),
                clock: self.clock,
                rate,
                cost,
                capacity,
                max_wait: most.min(longest),
                longest,
            }),
        })
    }
}

/// A rate in smaller tokens of which a start costs several, and that cost.
///
/// Starts are at whole nanoseconds. If an interval isn't a whole number of them, a bucket for exactly
/// one start would be full for the rest of each interval, and the rate lower by as much. So the bucket
/// holds a nanosecond more.
fn finer_rate(rate: Rate, slack: u64) -> (Rate, u64) {
    let turns = slack.saturating_add(1);
    let plain = (rate.burst(turns), 1);
    let Some(period) = rate.period().filter(|_| rate.count() > 0) else {
        return plain;
    };
    let (nanos, count) = (period.as_nanos(), u128::from(rate.count()));
    if nanos.is_multiple_of(count) {
        return plain;
    }
    let finer = [16, 12, 8, 4].into_iter().find_map(|shift| {
        let cost = 1u64 << shift;
        let tokens = rate.count().checked_mul(cost)?;
        // The tokens that come in a nanosecond.
        let more = u64::try_from(u128::from(tokens).div_ceil(nanos)).ok()?;
        let burst = turns.checked_mul(cost)?.checked_add(more)?;
        let rate = Rate::new(tokens, period).burst(burst);
        let takes = Algorithm::TokenBucket.check_rate(rate).is_ok();
        takes.then_some((rate, cost))
    });
    finer.unwrap_or(plain)
}

/// The duration of this many intervals, to the next nanosecond.
fn intervals_duration(rate: Rate, many: usize) -> Duration {
    let Some(period) = rate.period().filter(|_| rate.count() > 0) else {
        return Duration::MAX;
    };
    let many = u128::try_from(many).unwrap_or(u128::MAX);
    let nanos = period.as_nanos().saturating_mul(many);
    let nanos = nanos.div_ceil(u128::from(rate.count()));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl<C: Clock> WorkPacer<C> {
    /// Waits in the queue: await it, or call [`wait_blocking`](PaceWait::wait_blocking).
    pub fn pace(&self) -> PaceWait<C> {
        PaceWait {
            shared: Arc::clone(&self.shared),
            deadline: None,
        }
    }

    /// The number of waiters.
    pub fn waiters(&self) -> usize {
        self.shared.limiter.waiters()
    }

    /// The capacity of the queue.
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// The longest possible wait: capacity ÷ rate.
    pub fn longest_wait(&self) -> Duration {
        self.shared.longest
    }

    /// The rate of starts.
    pub fn rate(&self) -> Rate {
        self.shared.rate
    }

    /// The pacer's clock.
    pub fn clock(&self) -> &C {
        &self.shared.clock
    }
}

impl<C: Clock> PacerState<C> {
    /// A wait in the queue, and whether the caller's deadline or the queue's capacity bounds it.
    fn acquire(&self, own: Option<Timestamp>) -> (Acquire<Arc<Limiter<C>>>, DeadlineSource) {
        let queue = self.clock.now() + self.max_wait;
        let (until, patience) = match own {
            Some(own) if own < queue => (own, DeadlineSource::Caller),
            _ => (queue, DeadlineSource::Capacity),
        };
        let acquire = self.limiter.acquire_owned_n(self.cost);
        (acquire.deadline(until), patience)
    }

    /// Converts a denial by the limit for a wait with this bound.
    fn to_denied(&self, refused: &RateDenied, own: DeadlineSource) -> PaceDenied {
        let turn_in = refused.decision().wait_or_max();
        let waiting = self.limiter.waiters();
        match own {
            DeadlineSource::Caller if turn_in <= self.max_wait => {
                PaceDenied::DeadlineExceeded { waiting, turn_in }
            }
            DeadlineSource::Caller | DeadlineSource::Capacity => PaceDenied::QueueFull {
                waiting,
                capacity: self.capacity,
                turn_in,
            },
        }
    }
}

/// The tighter bound of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeadlineSource {
    /// The caller's deadline.
    Caller,
    /// The capacity of the queue.
    Capacity,
}

impl<C: Clock> fmt::Debug for WorkPacer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pacer")
            .field("rate", &self.rate())
            .field("capacity", &self.capacity())
            .field("waiting", &self.waiters())
            .finish()
    }
}

/// A wait in the queue of a [`WorkPacer`]: await it, or call [`wait_blocking`](Self::wait_blocking).
/// The result is how long it took.
///
/// It joins the queue when the wait begins. Dropping the future leaves the queue.
#[must_use = "no wait begins until this is awaited, or `wait_blocking` is called"]
#[derive(derive_more::Debug)]
pub struct PaceWait<C: Clock> {
    #[debug(skip)]
    shared: Arc<PacerState<C>>,
    deadline: Option<Timestamp>,
}

impl<C: Clock> PaceWait<C> {
    /// Fails immediately if the start would be after this time on the pacer's clock.
    pub const fn deadline(mut self, deadline: Timestamp) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Fails immediately if the wait would take longer than this.
    pub fn timeout(self, timeout: Duration) -> Self {
        let deadline = self.shared.clock.now() + timeout;
        self.deadline(deadline)
    }

    /// Blocks the thread until the work may start; returns how long that took.
    ///
    /// # Errors
    /// [`PaceDenied`] immediately, if the queue is full or the start would be after the deadline.
    pub fn wait_blocking(self) -> Result<Duration, PaceDenied> {
        let (acquire, patience) = self.shared.acquire(self.deadline);
        let waited = acquire.wait_blocking();
        waited.map_err(|refused| self.shared.to_denied(&refused, patience))
    }
}

impl<C: Clock> IntoFuture for PaceWait<C> {
    type Output = Result<Duration, PaceDenied>;
    type IntoFuture = PaceFuture<C>;

    fn into_future(self) -> PaceFuture<C> {
        PaceFuture {
            start: Some(self.deadline),
            patience: DeadlineSource::Capacity,
            shared: self.shared,
            turn: None,
        }
    }
}

pin_project! {
    /// The future that [`PaceWait`] turns into. Dropping it leaves the queue.
    #[must_use = "futures do nothing unless awaited"]
    #[derive(derive_more::Debug)]
    #[debug("Pacing {{ .. }}")]
    pub struct PaceFuture<C: Clock> {
        // The caller's deadline, until the wait has begun.
        start: Option<Option<Timestamp>>,
        patience: DeadlineSource,
        shared: Arc<PacerState<C>>,
        #[pin]
        turn: Option<AcquireFuture<Arc<Limiter<C>>>>,
    }
}

impl<C: Clock> Future for PaceFuture<C> {
    type Output = Result<Duration, PaceDenied>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(own) = this.start.take() {
            let (acquire, patience) = this.shared.acquire(own);
            *this.patience = patience;
            this.turn.set(Some(acquire.into_future()));
        }
        let Some(turn) = this.turn.as_pin_mut() else {
            panic!("`Pacing` was polled after it had ended");
        };
        let (shared, patience) = (this.shared, *this.patience);
        turn.poll(context)
            .map_err(|refused| shared.to_denied(&refused, patience))
    }
}

pin_project! {
    /// A stream whose items come at the rate of a [`WorkPacer`]; made by [`WorkPacer::stream`].
    #[must_use = "streams do nothing unless polled"]
    #[derive(derive_more::Debug)]
    #[debug("Paced {{ .. }}")]
    pub struct PacedStream<S: Stream, C: Clock> {
        #[pin]
        stream: S,
        pacer: WorkPacer<C>,
        // The item that waits.
        item: Option<S::Item>,
        #[pin]
        turn: Option<AcquireFuture<Arc<Limiter<C>>>>,
    }
}

impl<C: Clock> WorkPacer<C> {
    /// Forwards the items of a stream at this pacer's rate. Each item joins the queue when it comes,
    /// and is never denied. The next item is polled only after this one has left, so a stream has at
    /// most one waiter.
    ///
    /// ```
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    /// use std::time::Duration;
    /// use futures_core::Stream;
    /// use tollgate::{Rate, clock::Manual};
    /// use tollgate_shape::WorkPacer;
    ///
    /// struct Numbers(u32);
    ///
    /// impl Stream for Numbers {
    ///     type Item = u32;
    ///
    ///     fn poll_next(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
    ///         self.0 += 1;
    ///         Poll::Ready(Some(self.0))
    ///     }
    /// }
    ///
    /// let clock = Manual::new();
    /// let pacer = WorkPacer::builder(Rate::per_second(10), 1).clock(clock.clone()).build()?;
    /// let mut paced = pin!(pacer.stream(Numbers(0)));
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert_eq!(paced.as_mut().poll_next(&mut context), Poll::Ready(Some(1)));
    /// assert_eq!(paced.as_mut().poll_next(&mut context), Poll::Pending);
    /// clock.advance(Duration::from_millis(100));
    /// assert_eq!(paced.as_mut().poll_next(&mut context), Poll::Ready(Some(2)));
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn stream<S: Stream>(&self, stream: S) -> PacedStream<S, C> {
        PacedStream {
            stream,
            pacer: self.clone(),
            item: None,
            turn: None,
        }
    }
}

impl<S: Stream, C: Clock> Stream for PacedStream<S, C> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let mut this = self.project();
        if this.item.is_none() {
            let Some(item) = ready!(this.stream.poll_next(context)) else {
                return Poll::Ready(None);
            };
            *this.item = Some(item);
            let shared = &this.pacer.shared;
            let acquire = shared.limiter.acquire_owned_n(shared.cost);
            this.turn.set(Some(acquire.into_future()));
        }
        if let Some(turn) = this.turn.as_mut().as_pin_mut() {
            // A wait without a deadline, and with room for every waiter, can't be denied.
            let _waited = ready!(turn.poll(context));
            this.turn.set(None);
        }
        Poll::Ready(this.item.take())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let held = usize::from(self.item.is_some());
        let (least, most) = self.stream.size_hint();
        let most = most.and_then(|most| most.checked_add(held));
        (least.saturating_add(held), most)
    }
}
