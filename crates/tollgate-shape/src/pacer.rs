//! Pacing: a leaky bucket as a queue. Whatever arrives, it leaves at an exact rate.

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

/// The queue of a [`WorkPacer`] is full, or its turn would come too late. Nothing was queued.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::{PaceDenied, WorkPacer};
/// use tollgate::Rate;
///
/// let pacer = WorkPacer::builder(Rate::per_second(10), 2).clock(Manual::new()).build()?;
/// let waits: Vec<_> = (0..2).map(|_| pacer.submit(|| {})).collect();
/// let refused = pacer.pace().wait_blocking().unwrap_err();
/// assert_eq!(
///     refused.to_string(),
///     "the queue is full: 1 wait, of a capacity of 2 with the one that has just left; its turn would \
///      come in 200ms"
/// );
/// # drop(waits);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PaceDenied {
    /// As many as may be are in the queue.
    #[display(
        "the queue is full: {waiting} wait, of a capacity of {capacity} with the one that has just left; its turn \
         would come in {turn_in:?}"
    )]
    QueueFull {
        /// How many wait.
        waiting: usize,
        /// How many may be in the queue, with the one that left last until its interval is over.
        capacity: usize,
        /// When its turn would come.
        turn_in: Duration,
    },
    /// It would take longer than the deadline allows.
    #[display("the deadline is too soon: {waiting} wait, and its turn would come in {turn_in:?}")]
    DeadlineExceeded {
        /// How many wait.
        waiting: usize,
        /// When its turn would come.
        turn_in: Duration,
    },
}

/// Lets things go one by one at an exact rate, first come first served, whatever arrives.
///
/// * The first leaves at once, and each of the others one interval after the one before it.
/// * At most `capacity` are in the queue, where one that leaves at once counts until its interval is over. So none waits longer
///   than capacity ÷ rate ([`longest_wait`](Self::longest_wait)). What doesn't fit is refused at once, with the length of the queue.
/// * A wait that is dropped frees its place, and everybody behind it moves up.
/// * Turns are counted from when they came, not from when a timer noticed: a timer that is late by a millisecond delays one
///   turn, and not the rate.
/// * Idle time earns nothing, unless [`slack`](PacerBuilder::slack) says otherwise.
///
/// It is the line of a [`Limiter`] whose burst is one. Clones share it.
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
    /// What a turn costs, in tokens of the limiter.
    cost: u64,
    capacity: usize,
    /// How long the last one that fits waits.
    max_wait: Duration,
    longest: Duration,
}

/// What can be chosen about a [`WorkPacer`]; made by [`WorkPacer::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct PacerBuilder<C = Monotonic> {
    rate: Rate,
    capacity: usize,
    slack: u64,
    clock: C,
}

impl WorkPacer {
    /// Lets go at this rate, with a queue of this capacity. The burst of the rate isn't looked at.
    ///
    /// # Errors
    /// If the rate is too extreme to be counted by.
    pub fn new(rate: Rate, capacity: usize) -> Result<Self, LimitError> {
        Self::builder(rate, capacity).build()
    }

    /// As [`new`](Self::new), with more choices.
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
    /// Credit for idle time: up to this many may leave at once after the pacer was idle for as many intervals. Credit is
    /// earned from when it is built.
    pub fn slack(mut self, most: u64) -> Self {
        self.slack = most;
        self
    }

    /// Reads this clock instead of the default one.
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
    /// The pacer.
    ///
    /// # Errors
    /// If the rate is too extreme to be counted by.
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
            // Nothing was idle before there was a pacer.
            let _spent = limiter.check_n(self.slack.saturating_mul(cost));
        }
        let longest = intervals_duration(rate, capacity);
        // The line adds two lengths that are rounded up to whole nanoseconds.
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

/// The rate in tokens of which a turn costs several, and how many.
///
/// A turn comes at a whole nanosecond. Where an interval isn't a whole number of them, a bucket that holds one turn would be full
/// for the rest of each, and the rate lost by as much. So it holds a nanosecond more.
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
        // What comes in a nanosecond.
        let more = u64::try_from(u128::from(tokens).div_ceil(nanos)).ok()?;
        let burst = turns.checked_mul(cost)?.checked_add(more)?;
        let rate = Rate::new(tokens, period).burst(burst);
        let takes = Algorithm::TokenBucket.check_rate(rate).is_ok();
        takes.then_some((rate, cost))
    });
    finer.unwrap_or(plain)
}

/// How long so many intervals take, to the next nanosecond.
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
    /// Waits for its turn: await it, or call [`wait_blocking`](PaceWait::wait_blocking).
    pub fn pace(&self) -> PaceWait<C> {
        PaceWait {
            shared: Arc::clone(&self.shared),
            deadline: None,
        }
    }

    /// How many wait for their turn.
    pub fn waiters(&self) -> usize {
        self.shared.limiter.waiters()
    }

    /// How many may be in the queue.
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// The longest that anything waits: capacity ÷ rate.
    pub fn longest_wait(&self) -> Duration {
        self.shared.longest
    }

    /// At which rate it lets go.
    pub fn rate(&self) -> Rate {
        self.shared.rate
    }

    /// The clock that it reads.
    pub fn clock(&self) -> &C {
        &self.shared.clock
    }
}

impl<C: Clock> PacerState<C> {
    /// A place in the queue, from when the wait begins, and whose patience bounds that, given the caller's deadline.
    fn acquire(&self, own: Option<Timestamp>) -> (Acquire<Arc<Limiter<C>>>, DeadlineSource) {
        let queue = self.clock.now() + self.max_wait;
        let (until, patience) = match own {
            Some(own) if own < queue => (own, DeadlineSource::Caller),
            _ => (queue, DeadlineSource::Capacity),
        };
        let acquire = self.limiter.acquire_owned_n(self.cost);
        (acquire.deadline(until), patience)
    }

    /// What a refusal of the limit means for one whose own deadline is this.
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

/// Whose patience ends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeadlineSource {
    /// The caller's.
    Caller,
    /// The bound of the queue.
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

/// A request to wait for its turn: await it, or call [`wait_blocking`](Self::wait_blocking). The result is how long it
/// took.
///
/// It takes its place when the wait begins. Dropping the future frees the place.
#[must_use = "nothing is waited for until this is awaited, or `wait_blocking` is called"]
#[derive(derive_more::Debug)]
pub struct PaceWait<C: Clock> {
    #[debug(skip)]
    shared: Arc<PacerState<C>>,
    deadline: Option<Timestamp>,
}

impl<C: Clock> PaceWait<C> {
    /// Fails at once if its turn would come after this time on the pacer's clock.
    pub const fn deadline(mut self, deadline: Timestamp) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Fails at once if its turn would take longer than this to come.
    pub fn timeout(self, timeout: Duration) -> Self {
        let deadline = self.shared.clock.now() + timeout;
        self.deadline(deadline)
    }

    /// Blocks the thread until its turn has come; returns how long that took.
    ///
    /// # Errors
    /// [`PaceDenied`] at once, if the queue is full or its turn would come too late.
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
    /// The future that [`PaceWait`] turns into. Dropping it frees the place in the queue.
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
        // An item that waits for its turn.
        item: Option<S::Item>,
        #[pin]
        turn: Option<AcquireFuture<Arc<Limiter<C>>>>,
    }
}

impl<C: Clock> WorkPacer<C> {
    /// Hands on the items of a stream at this pacer's rate. Each takes its place in the queue when it comes, and is
    /// never refused: the next one isn't asked for before this one has left, so a stream takes one place.
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
            // Without a deadline, and with room for everybody, it can't be refused.
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
