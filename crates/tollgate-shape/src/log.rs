//! Log throttling: a layer of tracing-subscriber that limits events of each place in the source.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tollgate::clock::Monotonic;
use tollgate::{Clock, LimitError, Limiter, Rate};
use tracing::dispatcher::WeakDispatch;
use tracing::{Dispatch, Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter, Layer};

mod fields;
mod summary;
mod table;

use fields::Fields;
use summary::Summaries;
use table::Table;

/// How many places in the source, or places with their fields, are limited apart.
const PLACES: usize = 1024;
/// How long events are counted before a summary says how many were suppressed.
const EVERY: Duration = Duration::from_secs(10);

/// Limits events of each place in the source, so that a dependency that fails can't fill a disk.
///
/// Each place may log at a rate, with a burst. What is beyond that is suppressed, and once in a while one line tells how
/// much: `suppressed 12,431 similar events in 10 s`, at the level of what was suppressed, with its `place`. A place that is silent
/// costs nothing: no thread and no timer runs while nothing is suppressed.
///
/// As a layer it suppresses for all layers; as a filter (`fmt::layer().with_filter(throttle)`) for that one, and its summaries go to the
/// default subscriber.
/// Memory is bounded: beyond [`places`](LogThrottleBuilder::places) all others share one limit.
///
/// ```
/// use tollgate::Rate;
/// use tollgate_shape::LogThrottle;
/// use tracing_subscriber::prelude::*;
///
/// let throttle = LogThrottle::new(Rate::per_second(10).burst(100))?;
/// let subscriber = tracing_subscriber::registry()
///     .with(throttle.clone())
///     .with(tracing_subscriber::fmt::layer().with_writer(std::io::sink));
/// tracing::subscriber::with_default(subscriber, || {
///     for attempt in 0..1_000 {
///         tracing::warn!(attempt, "can't reach the database"); // 100 lines, and a summary
///     }
/// });
/// assert!(throttle.suppressed() >= 890);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub struct LogThrottle<C: Clock = Monotonic> {
    shared: Arc<Shared<C>>,
}

struct Shared<C: Clock> {
    clock: C,
    table: Table<C>,
    fields: Fields,
    summaries: Summaries,
    /// Where summaries go: a layer is told which subscriber it is part of. A filter isn't, and tells the default one.
    dispatch: OnceLock<WeakDispatch>,
}

/// What can be chosen about a [`LogThrottle`]; made by [`LogThrottle::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct LogThrottleBuilder<C = Monotonic> {
    rate: Rate,
    places: usize,
    every: Duration,
    fields: Vec<&'static str>,
    clock: C,
}

impl LogThrottle {
    /// Each place in the source may log at this rate.
    ///
    /// # Errors
    /// If the rate can't be counted by.
    pub fn new(rate: Rate) -> Result<Self, LimitError> {
        Self::builder(rate).build()
    }

    /// As [`new`](Self::new), with more choices.
    pub fn builder(rate: Rate) -> LogThrottleBuilder {
        LogThrottleBuilder {
            rate,
            places: PLACES,
            every: EVERY,
            fields: Vec::new(),
            clock: Monotonic::new(),
        }
    }
}

impl<C> LogThrottleBuilder<C> {
    /// Events of one place are limited apart if these fields differ: by `tenant`, say.
    pub fn by_fields(mut self, names: impl IntoIterator<Item = &'static str>) -> Self {
        self.fields.extend(names);
        self
    }

    /// So many places are limited apart, about 300 bytes each; 1,024 unless this says otherwise.
    pub fn places(mut self, most: usize) -> Self {
        self.places = most.max(1);
        self
    }

    /// A summary tells of so much time; ten seconds unless this says otherwise.
    pub fn summary_every(mut self, every: Duration) -> Self {
        self.every = every.max(Duration::from_millis(1));
        self
    }

    /// Reads this clock instead of the default one.
    pub fn clock<D: Clock>(self, clock: D) -> LogThrottleBuilder<D> {
        LogThrottleBuilder {
            rate: self.rate,
            places: self.places,
            every: self.every,
            fields: self.fields,
            clock,
        }
    }
}

impl<C: Clock + Clone + 'static> LogThrottleBuilder<C> {
    /// The layer.
    ///
    /// # Errors
    /// If the rate can't be counted by.
    pub fn build(self) -> Result<LogThrottle<C>, LimitError> {
        let (rate, clock) = (self.rate, self.clock.clone());
        let make = || Limiter::builder(rate).clock(clock.clone()).build();
        Ok(LogThrottle {
            shared: Arc::new(Shared {
                table: Table::new(self.places, make)?,
                fields: Fields::new(self.fields),
                summaries: Summaries::new(self.every),
                dispatch: OnceLock::new(),
                clock: self.clock,
            }),
        })
    }
}

impl<C: Clock + Clone + 'static> LogThrottle<C> {
    /// How many events were suppressed so far.
    pub fn suppressed(&self) -> u64 {
        self.shared.table.suppressed()
    }

    #[inline]
    fn allows(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        if summary::is_summary(metadata) {
            return true;
        }
        let shared = &self.shared;
        let key = shared.fields.key(event);
        let place = shared.table.place(key, metadata);
        if place.allow() {
            return true;
        }
        if place.suppress() {
            Shared::begin_summary(shared);
        }
        false
    }
}

impl<C, S> Layer<S> for LogThrottle<C>
where
    C: Clock + Clone + 'static,
    S: Subscriber,
{
    fn on_register_dispatch(&self, subscriber: &Dispatch) {
        // Put into a second subscriber, it goes on to tell the first.
        let _ = self.shared.dispatch.set(subscriber.downgrade());
    }

    #[inline]
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        self.allows(event)
    }
}

impl<C, S> Filter<S> for LogThrottle<C>
where
    C: Clock + Clone + 'static,
{
    fn enabled(&self, _metadata: &Metadata<'_>, _context: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _context: &Context<'_, S>) -> bool {
        self.allows(event)
    }
}

impl<C: Clock> Clone for LogThrottle<C> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<C: Clock> fmt::Debug for LogThrottle<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogThrottle")
            .field("suppressed", &self.shared.table.suppressed())
            .finish_non_exhaustive()
    }
}
