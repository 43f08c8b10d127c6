//! Pacing of outgoing calls: each host is called at a rate of yours, and never faster than the host allows.
//!
//! Servers report their limits: `Retry-After` in a denial, and in most dialects the remaining quota before that
//! ([`ServerAdvice`]). A [`HostPacer`] records this advice for each host:
//!
//! * While a host asks for a stop, its calls wait.
//! * When little quota remains, calls are spread over the time until the quota is back, so that none is denied.
//! * After a stop, one call goes first. Each call that passes lets the next ones go a little faster.
//!
//! Advice can only slow a client down, and for no longer than [`max_stop`](HostPacerBuilder::max_stop), whatever the
//! server sends.
//!
//! ```
//! use tollgate::Rate;
//! use tollgate_http::outgoing::HostPacer;
//!
//! # let executor = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
//! # executor.block_on(async {
//! let pacer = HostPacer::new(Rate::per_second(50).burst(10));
//! let call = pacer.acquire("api.example.com").await?;
//! // … send the call, and record the response:
//! let fields = [("retry-after", "2")];
//! pacer.record_response(&call, 429, |name| {
//!     let own = fields.iter().filter(move |(own, _)| *own == name);
//!     own.map(|(_, value)| value.as_bytes())
//! });
//! // No call to this host passes for two seconds.
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
    /// The configured rate of each host.
    own: KeyedLimiter<Arc<C>>,
    hosts: Hosts<C>,
    settings: HostPacerBuilder,
    waiting: WaiterLimit,
    clock: Arc<C>,
    wall: W,
}

/// How long a call may wait, instead of the pacer's own maximum. Put it into the extensions of a request.
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

/// The permit for a call that may be made now.
#[derive(Clone, Debug)]
pub struct CallPermit {
    host: Box<str>,
    began: Timestamp,
}

impl HostPacer {
    /// Calls each host at this rate, and never faster than the host allows.
    ///
    /// # Panics
    /// If the rate is invalid. [`builder`](Self::builder) returns an error instead.
    pub fn new(rate: Rate) -> Self {
        match Self::builder(rate).build() {
            Ok(pacer) => pacer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Configures how long calls wait and how far the advice of hosts is followed.
    pub fn builder(rate: Rate) -> HostPacerBuilder {
        HostPacerBuilder::new(rate)
    }
}

impl<C: Clock, W: Clock> HostPacer<C, W> {
    /// Waits until this host may be called, up to the maximum wait.
    ///
    /// Dropping the future leaves the queue. With the [`CallPermit`], make the call immediately, and report the
    /// response to [`record_response`](Self::record_response).
    ///
    /// # Errors
    /// [`PaceError`], immediately, if the wait would be too long or too many calls wait.
    pub async fn acquire(&self, host: &str) -> Result<CallPermit, PaceError> {
        self.acquire_within(host, self.settings.longest_wait).await
    }

    /// Like [`acquire`](Self::acquire), with another maximum wait.
    ///
    /// # Errors
    /// As of [`acquire`](Self::acquire).
    pub async fn acquire_within(
        &self,
        host: &str,
        patience: Duration,
    ) -> Result<CallPermit, PaceError> {
        let mut wait = pin!(self.wait_for_turn(host, patience));
        let mut waiter_permit = None;
        poll_fn(|context| {
            let call = wait.as_mut().poll(context);
            if call.is_ready() || waiter_permit.is_some() {
                return call;
            }
            // Pending on the first poll: the call has to wait, so it needs a waiter permit. Without one, dropping the
            // inner future leaves the queue.
            waiter_permit = self.waiting.try_acquire();
            match waiter_permit {
                Some(_) => Poll::Pending,
                None => Poll::Ready(Err(self.too_many_waiters(host))),
            }
        })
        .await
    }

    /// Waits without a bound on the number of waiters.
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
            // The configured rate comes last. If it came first, calls that wait for the host after it would all be
            // released in one burst.
            let own = self.own.key(host);
            if let Err(refused) = own.acquire().deadline(deadline).await {
                return Err(match refused {
                    RateDenied::QueueFull(_) => self.too_many_waiters(host),
                    other => too_late(other.decision().wait_or_max()),
                });
            }
            let began = self.clock.now();
            let next_step = self.hosts.get(host).map(|host| host.next(began));
            if let Some(NextStep::Stopped(_)) = next_step {
                // The host asked for a stop while this call waited.
                own.refund(1);
                continue;
            }
            return Ok(CallPermit {
                host: host.into(),
                began,
            });
        }
    }

    /// Waits in the queue of a paced host. `false`: the pacing has expired, so the host's state has to be read again.
    async fn wait_in_queue(
        &self,
        queue: PaceQueue<C>,
        until: Timestamp,
        deadline: Timestamp,
    ) -> Result<bool, Duration> {
        let acquired = {
            let mut permit = pin!(queue.acquire().deadline(deadline).into_future());
            // The pace expires at this time even if no other call notices it, so the wait has to end then.
            let mut expired = pin!(sleep_until(&self.clock, until));
            poll_fn(|context| {
                if let Poll::Ready(result) = permit.as_mut().poll(context) {
                    return Poll::Ready(Some(result));
                }
                expired.as_mut().poll(context).map(|()| None)
            })
            .await
        };
        match acquired {
            None => Ok(false),
            Some(Ok(_)) => Ok(true),
            Some(Err(_)) if until <= deadline => {
                // The queue is too long now, but the pacing expires before the deadline.
                sleep_until(&self.clock, until).await;
                Ok(false)
            }
            Some(Err(refused)) => Err(refused.decision().wait_or_max()),
        }
    }

    /// Records the response of a host. `lines` returns all values of a header field, whose name is in lower case.
    /// Returns the advice that was read.
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
            // The response has no advice. A host without a record needs none, as there is nothing to relax.
            self.hosts.get(&call.host)
        };
        if let Some(host) = host {
            host.record_advice(call.began, now, &advice, &self.settings.bounds, &self.clock);
        }
        advice
    }

    /// The number of calls that wait now.
    pub fn waiting(&self) -> usize {
        self.waiting.waiting()
    }

    /// The number of hosts whose advice is remembered.
    pub fn host_count(&self) -> usize {
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
    /// The host to call.
    pub fn host(&self) -> &str {
        &self.host
    }
}

/// The longest stop: a longer one would be no different from a stop for ever.
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

    /// The longest wait of a call, for the host and for the configured rate: 30 seconds by default. A call that would
    /// wait longer fails immediately.
    pub const fn max_wait(mut self, longest: Duration) -> Self {
        self.longest_wait = longest;
        self
    }

    /// The longest stop that one response can cause, whatever it says: 15 minutes by default, from a millisecond to a
    /// day.
    pub fn max_stop(mut self, longest: Duration) -> Self {
        self.bounds.longest_stop = longest.clamp(Duration::from_millis(1), DAY);
        self
    }

    /// The percentage of a host's quota at which calls are spread over the remaining time: 25 by default. With 0 they
    /// are never spread and stop when nothing remains; with 100 they always are.
    pub const fn slow_below(mut self, percent: u8) -> Self {
        self.bounds.slow_below = percent;
        self
    }

    /// The most calls that wait at the same time, for all hosts together: 4,096 by default. A call that doesn't have
    /// to wait isn't counted, so with 0 calls still pass as long as none has to wait.
    pub const fn max_waiters(mut self, most: usize) -> Self {
        self.bounds.max_waiting = most;
        self
    }

    /// The number of hosts that are sure to have their own rate and to have their advice remembered: 1,024 by
    /// default. Beyond it, the hosts whose advice expires first are forgotten.
    pub const fn max_hosts(mut self, most: usize) -> Self {
        self.hosts = most;
        self
    }

    /// The meaning of the number in `X-RateLimit-Reset`.
    pub const fn reset_meaning(mut self, reset: ResetMeaning) -> Self {
        self.reset = reset;
        self
    }

    /// Builds the pacer on the system's clocks.
    ///
    /// # Errors
    /// If the rate is invalid.
    pub fn build(self) -> Result<HostPacer, LimitError> {
        self.build_on(Monotonic::new(), Wall)
    }

    /// Builds the pacer on other clocks: `clock` for waits, `wall` for the time since 1970.
    ///
    /// # Errors
    /// If the rate is invalid.
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

/// The error for a call that isn't made, because it would wait too long or too many calls wait.
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
    /// The call would have to wait longer than its maximum.
    #[display("{host} may be asked in {wait:?}, and a call waits for {patience:?} at most")]
    WaitTooLong {
        /// The host that isn't called.
        host: Box<str>,
        /// How long the call would wait.
        wait: Duration,
        /// The longest wait of the call.
        patience: Duration,
    },
    /// The maximum number of calls wait already.
    #[display("{host} isn't asked: {waiting} calls wait already, as many as may (max_waiting)")]
    QueueFull {
        /// The host that isn't called.
        host: Box<str>,
        /// The number of waiting calls.
        waiting: usize,
    },
}

impl PaceError {
    /// How long until the host or the configured rate allows the call; none if too many calls wait.
    pub const fn wait(&self) -> Option<Duration> {
        match self {
            Self::WaitTooLong { wait, .. } => Some(*wait),
            Self::QueueFull { .. } => None,
        }
    }
}
