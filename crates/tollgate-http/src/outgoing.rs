//! The calls that a program makes: each host is asked at a pace of one's own, and no faster than it says.
//!
//! A server that limits tells so: `Retry-After` when it refuses, and in most dialects how much is left before it does
//! ([`Advice`]). A [`Pacer`] takes note of it for each host. While a host wants to be left alone its calls wait; when little is left
//! they are spread over the time until there is more, so that none is refused; after a stop one goes first, and with each that
//! passes they go a little faster. What a server says can only slow a client down, and for no longer than
//! [`longest_stop`](Builder::longest_stop), whatever it says.
//!
//! ```
//! use tollgate::Rate;
//! use tollgate_http::outgoing::Pacer;
//!
//! # let executor = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
//! # executor.block_on(async {
//! let pacer = Pacer::new(Rate::per_second(50).burst(10));
//! let call = pacer.pass("api.example.com").await?;
//! // … send it, and tell what was answered:
//! let fields = [("retry-after", "2")];
//! pacer.answered(&call, 429, |name| {
//!     let own = fields.iter().filter(move |(own, _)| *own == name);
//!     own.map(|(_, value)| value.as_bytes())
//! });
//! // Now nobody asks this host for two seconds.
//! # Ok::<(), tollgate_http::outgoing::Stalled>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tollgate::clock::{Clock, Monotonic, Wall, sleep_until};
use tollgate::{KeyedLimiter, Rate, Refused, Timestamp};

mod advice;
mod builder;
mod host;
mod hosts;
mod items;
mod stalled;

pub use advice::{Advice, Left, Reset};
pub use builder::Builder;
pub use stalled::Stalled;

use host::{Bounds, Line, Next};
use hosts::Hosts;

/// Paces calls, host by host. Share it in an `Arc`.
pub struct Pacer<C: Clock = Monotonic, W: Clock = Wall> {
    /// One's own rate.
    own: KeyedLimiter<Arc<C>>,
    hosts: Hosts<C>,
    bounds: Bounds,
    longest_wait: Duration,
    reset: Reset,
    waiting: AtomicUsize,
    clock: Arc<C>,
    wall: W,
}

/// How long a call may wait, in place of what the pacer says: put it into the extensions of a request.
///
/// ```
/// use std::time::Duration;
/// use tollgate_http::outgoing::Patience;
///
/// let patience = Patience(Duration::from_millis(200));
/// # let _ = patience;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience(pub Duration);

/// A call that may be made now.
#[derive(Clone, Debug)]
pub struct Call {
    host: Box<str>,
    began: Timestamp,
}

/// A place among those that wait; dropping it frees it.
struct Seat<'a>(&'a AtomicUsize);

impl Pacer {
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
    pub fn builder(rate: Rate) -> Builder {
        Builder::new(rate)
    }
}

impl<C: Clock, W: Clock> Pacer<C, W> {
    /// Waits until this host may be asked, as long as a call may wait.
    ///
    /// Dropping the future frees its place. Whoever has a [`Call`] makes it at once, and tells what was
    /// [`answered`](Self::answered).
    ///
    /// # Errors
    /// [`Stalled`] at once, if it would take too long or too many wait.
    pub async fn pass(&self, host: &str) -> Result<Call, Stalled> {
        self.pass_within(host, self.longest_wait).await
    }

    /// The same with another patience.
    ///
    /// # Errors
    /// As [`pass`](Self::pass).
    pub async fn pass_within(&self, host: &str, patience: Duration) -> Result<Call, Stalled> {
        let mut pass = pin!(self.pass_by(host, patience));
        let mut seat = None;
        poll_fn(|context| {
            let passed = pass.as_mut().poll(context);
            if passed.is_ready() || seat.is_some() {
                return passed;
            }
            // Only now it is known that it has to wait. If too many do, dropping what waits frees its place.
            match self.take_seat(host) {
                Ok(own) => seat = Some(own),
                Err(too_many) => return Poll::Ready(Err(too_many)),
            }
            Poll::Pending
        })
        .await
    }

    /// The same, however many wait.
    async fn pass_by(&self, host: &str, patience: Duration) -> Result<Call, Stalled> {
        let deadline = self.clock.now() + patience;
        let too_late = |wait| Stalled::TooLate {
            host: host.into(),
            wait,
            patience,
        };
        loop {
            let now = self.clock.now();
            match self.hosts.get(host).map(|host| host.next(now)) {
                Some(Next::Stopped(until)) if until > deadline => {
                    return Err(too_late(until - now));
                }
                Some(Next::Stopped(until)) => {
                    sleep_until(&self.clock, until).await;
                    continue;
                }
                Some(Next::Paced(line, until)) => {
                    if !self.stand(line, until, deadline).await.map_err(too_late)? {
                        continue;
                    }
                }
                Some(Next::Free) | None => {}
            }
            // One's own limit comes last: what was held up before it can't come out of it all at once.
            let own = self.own.key(host);
            if let Err(refused) = own.acquire().deadline(deadline).await {
                return Err(match refused {
                    Refused::QueueFull(_) => self.too_many(host),
                    other => too_late(other.decision().wait()),
                });
            }
            let began = self.clock.now();
            let told = self.hosts.get(host).map(|host| host.next(began));
            if let Some(Next::Stopped(_)) = told {
                // The host had enough while this one waited.
                own.refund(1);
                continue;
            }
            return Ok(Call {
                host: host.into(),
                began,
            });
        }
    }

    /// Stands in a line, and says whether its turn came: if not, the line is over.
    async fn stand(
        &self,
        line: Line<C>,
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
            Some(Err(refused)) => Err(refused.decision().wait()),
        }
    }

    /// Takes note of what a host answered to a call. `lines` gives all lines of a header field, whose name is in lower
    /// case. Says what was read of it.
    pub fn answered<'a, I: Iterator<Item = &'a [u8]>>(
        &self,
        call: &Call,
        status: u16,
        lines: impl Fn(&'static str) -> I,
    ) -> Advice {
        let unix_now = self.wall.now().as_nanos() / 1_000_000_000;
        let advice = Advice::read(status, unix_now, self.reset, lines);
        let now = self.clock.now();
        let host = if advice.is_refusal || advice.left.is_some() {
            Some(self.hosts.get_or_add(&call.host, now))
        } else {
            // It told nothing, and if it never did there is nothing to take back.
            self.hosts.get(&call.host)
        };
        if let Some(host) = host {
            host.heard((call.began, now), &advice, &self.bounds, &self.clock);
        }
        advice
    }

    /// How many calls wait now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many hosts are remembered for what they told.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    fn take_seat(&self, host: &str) -> Result<Seat<'_>, Stalled> {
        // The count guards no other memory.
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let seat = Seat(&self.waiting);
        if before < self.bounds.max_waiting {
            Ok(seat)
        } else {
            Err(self.too_many(host))
        }
    }

    fn too_many(&self, host: &str) -> Stalled {
        Stalled::TooMany {
            host: host.into(),
            waiting: self.bounds.max_waiting,
        }
    }
}

impl Call {
    /// Who is asked.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<C: Clock, W: Clock> fmt::Debug for Pacer<C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pacer")
            .field("rate", &self.own.rate())
            .field("bounds", &self.bounds)
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}
