//! The calls that a program makes: each host is asked at a pace of one's own, and no faster than it says.
//!
//! A server that limits tells so: `Retry-SettlementTiming` when it refuses, and in most dialects how much is left before it does
//! ([`ServerAdvice`]). A [`HostPacer`] takes note of it for each host. While a host wants to be left alone its calls wait; when little is left
//! they are spread over the time until there is more, so that none is refused; after a stop one goes first, and with each that
//! passes they go a little faster. What a server says can only slow a client down, and for no longer than
//! [`longest_stop`](HostPacerBuilder::max_stop), whatever it says.
//!
//! ```
//! use tollgate::Rate;
//! use tollgate_http::outgoing::HostPacer;
//!
//! # let executor = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
//! # executor.block_on(async {
//! let pacer = HostPacer::new(Rate::per_second(50).burst(10));
//! let call = pacer.acquire("api.example.com").await?;
//! // … send it, and tell what was answered:
//! let fields = [("retry-after", "2")];
//! pacer.record_response(&call, 429, |name| {
//!     let own = fields.iter().filter(move |(own, _)| *own == name);
//!     own.map(|(_, value)| value.as_bytes())
//! });
//! // DecideNow nobody asks this host for two seconds.
//! # Ok::<(), tollgate_http::outgoing::PaceError>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use derive_more::{Display, Error};
use tollgate::clock::{Clock, Monotonic, Wall, sleep_until};
use tollgate::{KeyedLimiter, LimitError, Rate, RateDenied, Timestamp};

mod advice;
mod field_items;
mod host_state;

pub use advice::{RemainingQuota, ResetMeaning, ServerAdvice};

use crate::waiter_limit::WaiterLimit;
use host_state::{Hosts, NextStep, PaceQueue, PacingBounds};

/// Paces calls, host by host. Share it in an `Arc`.
#[derive(derive_more::Debug)]
#[debug(
    "Pacer {{ rate: {:?}, bounds: {:?}, waiting: {:?}, .. }}",
    own.rate(),
    settings.bounds,
    self.waiting()
)]
pub struct HostPacer<C: Clock = Monotonic, W: Clock = Wall> {
    /// One's own rate.
    own: KeyedLimiter<Arc<C>>,
    hosts: Hosts<C>,
    settings: HostPacerBuilder,
    waiting: WaiterLimit,
    clock: Arc<C>,
    wall: W,
}

/// How long a call may wait, in place of what the pacer says: put it into the extensions of a request.
///
/// ```
/// use std::time::Duration;
/// use tollgate_http::outgoing::MaxWait;
///
/// let patience = MaxWait(Duration::from_millis(200));
/// # let _ = patience;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxWait(pub Duration);

/// A call that may be made now.
#[derive(Clone, Debug)]
pub struct CallPermit {
    host: Box<str>,
    began: Timestamp,
}

impl HostPacer {
    /// Each host is asked at this rate, and no faster than it wants.
    ///
    /// # Panics
    /// If the rate can't be kept: [`builder`](Self::builder) has an error in place of that.
    pub fn new(rate: Rate) -> Self {
        match Self::builder(rate).build() {
            Ok(pacer) => pacer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Chooses how long calls wait and how far hosts are believed.
    pub fn builder(rate: Rate) -> HostPacerBuilder {
        HostPacerBuilder::new(rate)
    }
}

impl<C: Clock, W: Clock> HostPacer<C, W> {
    /// Waits until this host may be asked, as long as a call may wait.
    ///
    /// Dropping the future frees its place. Whoever has a [`CallPermit`] makes it at once, and tells what was
    /// [`answered`](Self::answered).
    ///
    /// # Errors
    /// [`PaceError`] at once, if it would take too long or too many wait.
    pub async fn acquire(&self, host: &str) -> Result<CallPermit, PaceError> {
        self.acquire_within(host, self.settings.longest_wait).await
    }

    /// The same with another patience.
    ///
    /// # Errors
    /// As [`pass`](Self::pass).
    pub async fn acquire_within(
        &self,
        host: &str,
        patience: Duration,
    ) -> Result<CallPermit, PaceError> {
        let mut pass = pin!(self.wait_for_turn(host, patience));
        let mut seat = None;
        poll_fn(|context| {
            let passed = pass.as_mut().poll(context);
            if passed.is_ready() || seat.is_some() {
                return passed;
            }
            // Only now it is known that it has to wait. If too many do, dropping what waits frees its place.
            seat = self.waiting.try_acquire();
            match seat {
                Some(_) => Poll::Pending,
                None => Poll::Ready(Err(self.too_many_waiters(host))),
            }
        })
        .await
    }

    /// The same, however many wait.
    async fn wait_for_turn(&self, host: &str, patience: Duration) -> Result<CallPermit, PaceError> {
        let deadline = self.clock.now() + patience;
        let too_late = |wait| PaceError::WaitTooLong {
            host: host.into(),
            wait,
            patience,
        };
        loop {
            let now = self.clock.now();
            match self.hosts.get(host).map(|host| host.next(now)) {
                Some(NextStep::Stopped(until)) if until > deadline => {
                    return Err(too_late(until - now));
                }
                Some(NextStep::Stopped(until)) => {
                    sleep_until(&self.clock, until).await;
                    continue;
                }
                Some(NextStep::Paced(line, until)) => {
                    if !self
                        .wait_in_queue(line, until, deadline)
                        .await
                        .map_err(too_late)?
                    {
                        continue;
                    }
                }
                Some(NextStep::Free) | None => {}
            }
            // One's own limit comes last: what was held up before it can't come out of it all at once.
            let own = self.own.key(host);
            if let Err(refused) = own.acquire().deadline(deadline).await {
                return Err(match refused {
                    RateDenied::QueueFull(_) => self.too_many_waiters(host),
                    other => too_late(other.decision().wait_or_max()),
                });
            }
            let began = self.clock.now();
            let told = self.hosts.get(host).map(|host| host.next(began));
            if let Some(NextStep::Stopped(_)) = told {
                // The host had enough while this one waited.
                own.refund(1);
                continue;
            }
            return Ok(CallPermit {
                host: host.into(),
                began,
            });
        }
    }

    /// Stands in a line, and says whether its turn came: if not, the line is over.
    async fn wait_in_queue(
        &self,
        line: PaceQueue<C>,
        until: Timestamp,
        deadline: Timestamp,
    ) -> Result<bool, Duration> {
        let stood = {
            let mut turn = pin!(line.acquire().deadline(deadline).into_future());
            let mut over = pin!(sleep_until(&self.clock, until));
            poll_fn(|context| {
                if let Poll::Ready(turn) = turn.as_mut().poll(context) {
                    return Poll::Ready(Some(turn));
                }
                over.as_mut().poll(context).map(|()| None)
            })
            .await
        };
        match stood {
            None => Ok(false),
            Some(Ok(_)) => Ok(true),
            Some(Err(_)) if until <= deadline => {
                // It is too long now, and may be short when what was told is over.
                sleep_until(&self.clock, until).await;
                Ok(false)
            }
            Some(Err(refused)) => Err(refused.decision().wait_or_max()),
        }
    }

    /// Takes note of what a host answered to a call. `lines` gives all lines of a header field, whose name is in lower
    /// case. Says what was read of it.
    pub fn record_response<'a, I: Iterator<Item = &'a [u8]>>(
        &self,
        call: &CallPermit,
        status: u16,
        lines: impl Fn(&'static str) -> I,
    ) -> ServerAdvice {
        let unix_now = self.wall.now().as_nanos() / 1_000_000_000;
        let advice = ServerAdvice::read(status, unix_now, self.settings.reset, lines);
        let now = self.clock.now();
        let host = if advice.is_denial || advice.left.is_some() {
            Some(self.hosts.get_or_add(&call.host, now))
        } else {
            // It told nothing, and if it never did there is nothing to take back.
            self.hosts.get(&call.host)
        };
        if let Some(host) = host {
            host.record_advice(call.began, now, &advice, &self.settings.bounds, &self.clock);
        }
        advice
    }

    /// How many calls wait now.
    pub fn waiting(&self) -> usize {
        self.waiting.waiting()
    }

    /// How many hosts are remembered for what they told.
    pub fn max_hosts(&self) -> usize {
        self.hosts.len()
    }

    fn too_many_waiters(&self, host: &str) -> PaceError {
        PaceError::QueueFull {
            host: host.into(),
            waiting: self.settings.bounds.max_waiting,
        }
    }
}

impl CallPermit {
    /// Who is asked.
    pub fn host(&self) -> &str {
        &self.host
    }
}

/// A stop that may be longer than this may as well be for ever.
const DAY: Duration = Duration::from_secs(86_400);

/// Builds a [`HostPacer`]; made by [`HostPacer::builder`].
///
/// ```
/// use std::time::Duration;
/// use tollgate::Rate;
/// use tollgate_http::outgoing::HostPacer;
///
/// let pacer = HostPacer::builder(Rate::per_second(100))
///     .max_wait(Duration::from_secs(5))
///     .max_stop(Duration::from_secs(60))
///     .build()?;
/// # let _ = pacer;
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct HostPacerBuilder {
    rate: Rate,
    hosts: usize,
    longest_wait: Duration,
    reset: ResetMeaning,
    bounds: PacingBounds,
}

impl HostPacerBuilder {
    const fn new(rate: Rate) -> Self {
        Self {
            rate,
            hosts: 1_024,
            longest_wait: Duration::from_secs(30),
            reset: ResetMeaning::Guess,
            bounds: PacingBounds {
                longest_stop: Duration::from_secs(15 * 60),
                slow_below: 25,
                max_waiting: 4_096,
            },
        }
    }

    /// How long a call waits at most, for the host and for one's own rate: 30 seconds unless said otherwise. One that
    /// would take longer fails at once.
    pub const fn max_wait(mut self, longest: Duration) -> Self {
        self.longest_wait = longest;
        self
    }

    /// How long a host can stop its calls by one answer, whatever it says: 15 minutes unless said otherwise, from a
    /// millisecond to a day.
    pub fn max_stop(mut self, longest: Duration) -> Self {
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
    pub const fn max_waiters(mut self, most: usize) -> Self {
        self.bounds.max_waiting = most;
        self
    }

    /// How many hosts are sure to have a rate of their own and to be remembered for what they told: 1,024 unless said
    /// otherwise. Beyond it, those whose word is over soonest are forgotten.
    pub const fn max_hosts(mut self, most: usize) -> Self {
        self.hosts = most;
        self
    }

    /// What the number in `X-RateLimit-ResetMeaning` means.
    pub const fn reset_meaning(mut self, reset: ResetMeaning) -> Self {
        self.reset = reset;
        self
    }

    /// Builds it on the system's clocks.
    ///
    /// # Errors
    /// A rate that can't be kept.
    pub fn build(self) -> Result<HostPacer, LimitError> {
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
    ) -> Result<HostPacer<C, W>, LimitError> {
        let clock = Arc::new(clock);
        let own = KeyedLimiter::builder(self.rate, self.hosts.max(1))
            .max_waiters(self.bounds.max_waiting)
            .clock(Arc::clone(&clock))
            .build()?;
        Ok(HostPacer {
            own,
            hosts: Hosts::new(self.hosts),
            waiting: WaiterLimit::new(self.bounds.max_waiting),
            settings: self,
            clock,
            wall,
        })
    }
}

/// A call that isn't made, because it would have to wait for too long.
///
/// ```
/// use std::time::Duration;
/// use tollgate_http::outgoing::PaceError;
///
/// let stalled = PaceError::WaitTooLong {
///     host: "api.example.com".into(),
///     wait: Duration::from_secs(60),
///     patience: Duration::from_secs(30),
/// };
/// assert_eq!(
///     stalled.to_string(),
///     "api.example.com may be asked in 60s, and a call waits for 30s at most",
/// );
/// ```
#[derive(Clone, Debug, Display, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PaceError {
    /// It would have to wait for longer than it may.
    #[display("{host} may be asked in {wait:?}, and a call waits for {patience:?} at most")]
    WaitTooLong {
        /// Who isn't asked.
        host: Box<str>,
        /// How long it would take.
        wait: Duration,
        /// How long it may.
        patience: Duration,
    },
    /// As many as may wait do.
    #[display("{host} isn't asked: {waiting} calls wait already, as many as may (max_waiting)")]
    QueueFull {
        /// Who isn't asked.
        host: Box<str>,
        /// How many wait.
        waiting: usize,
    },
}

impl PaceError {
    /// How long the host, or one's own rate, has no place; none if too many wait.
    pub const fn wait(&self) -> Option<Duration> {
        match self {
            Self::WaitTooLong { wait, .. } => Some(*wait),
            Self::QueueFull { .. } => None,
        }
    }
}
