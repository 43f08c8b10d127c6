//! Log throttling: a layer of tracing-subscriber that limits the events of each place in the source.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use derive_where::derive_where;
use foldhash::fast::RandomState;
use tollgate::clock::{Monotonic, sleep_until};
use tollgate::{Clock, LimitError, Limiter, Rate, Timestamp};
use tracing::dispatcher::WeakDispatch;
use tracing::field::{Field, Visit};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber, debug, error, info, trace, warn};
use tracing_subscriber::layer::{Context, Filter, Layer};

mod table;

use crate::executor;
use table::CallsiteTable;

/// The default number of separately limited places (or places with their fields).
const DEFAULT_CALLSITES: usize = 1024;
/// The default interval of summaries.
const DEFAULT_SUMMARY_INTERVAL: Duration = Duration::from_secs(10);

/// Limits the events of each place in the source, so that a failing dependency can't fill a disk.
///
/// Each place may log at a rate, with a burst. Events beyond that are suppressed, and after an interval
/// one line reports them: `suppressed 12,431 similar events in 10 s`, at the level of the suppressed
/// events, with their `place`. While nothing is suppressed, no thread and no timer runs.
///
/// As a layer it suppresses for all layers; as a filter (`fmt::layer().with_filter(throttle)`) for that
/// one, and its summaries go to the default subscriber. Memory is bounded: beyond
/// [`places`](LogThrottleBuilder::places), all others share one limit.
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
#[derive_where(Clone)]
pub struct LogThrottle<C: Clock = Monotonic> {
    shared: Arc<ThrottleState<C>>,
}

struct ThrottleState<C: Clock> {
    clock: C,
    table: CallsiteTable<C>,
    fields: KeyFields,
    /// The interval of summaries.
    summary_interval: Duration,
    /// Whether a summary is scheduled.
    has_summary_scheduled: AtomicBool,
    /// Where summaries go: a layer gets its subscriber. A filter doesn't, and uses the default one.
    dispatch: OnceLock<WeakDispatch>,
}

/// The settings of a [`LogThrottle`]; made by [`LogThrottle::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct LogThrottleBuilder<C = Monotonic> {
    rate: Rate,
    places: usize,
    summary_interval: Duration,
    fields: Vec<&'static str>,
    clock: C,
}

impl LogThrottle {
    /// Each place in the source may log at this rate.
    ///
    /// # Errors
    /// If the rate can't be represented.
    pub fn new(rate: Rate) -> Result<Self, LimitError> {
        Self::builder(rate).build()
    }

    /// As [`new`](Self::new), with more settings.
    pub fn builder(rate: Rate) -> LogThrottleBuilder {
        LogThrottleBuilder {
            rate,
            places: DEFAULT_CALLSITES,
            summary_interval: DEFAULT_SUMMARY_INTERVAL,
            fields: Vec::new(),
            clock: Monotonic::new(),
        }
    }
}

impl<C> LogThrottleBuilder<C> {
    /// Limits events of one place separately for each combination of these fields' values: by `tenant`,
    /// for example.
    pub fn by_fields(mut self, names: impl IntoIterator<Item = &'static str>) -> Self {
        self.fields.extend(names);
        self
    }

    /// The number of separately limited places, about 300 bytes each; 1,024 by default.
    pub fn places(mut self, most: usize) -> Self {
        self.places = most.max(1);
        self
    }

    /// The interval of summaries; ten seconds by default.
    pub fn summary_every(mut self, every: Duration) -> Self {
        self.summary_interval = every.max(Duration::from_millis(1));
        self
    }

    /// Uses this clock instead of the default one.
    pub fn clock<D: Clock>(self, clock: D) -> LogThrottleBuilder<D> {
        LogThrottleBuilder {
            rate: self.rate,
            places: self.places,
            summary_interval: self.summary_interval,
            fields: self.fields,
            clock,
        }
    }
}

impl<C: Clock + Clone + 'static> LogThrottleBuilder<C> {
    /// Builds the layer.
    ///
    /// # Errors
    /// If the rate can't be represented.
    pub fn build(self) -> Result<LogThrottle<C>, LimitError> {
        let (rate, clock) = (self.rate, self.clock.clone());
        let make = || Limiter::builder(rate).clock(clock.clone()).build();
        Ok(LogThrottle {
            shared: Arc::new(ThrottleState {
                table: CallsiteTable::new(self.places, make)?,
                fields: KeyFields {
                    names: self.fields,
                    hasher: RandomState::default(),
                },
                summary_interval: self.summary_interval,
                has_summary_scheduled: AtomicBool::new(false),
                dispatch: OnceLock::new(),
                clock: self.clock,
            }),
        })
    }
}

impl<C: Clock + Clone + 'static> LogThrottle<C> {
    /// The number of suppressed events so far.
    pub fn suppressed(&self) -> u64 {
        self.shared.table.suppressed()
    }

    #[inline]
    fn allows(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        if is_summary(metadata) {
            return true;
        }
        let shared = &self.shared;
        let key = shared.fields.key(event);
        let place = shared.table.place(key, metadata);
        if place.allow() {
            return true;
        }
        if place.suppress() {
            ThrottleState::schedule_summary(shared);
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
        // In a second subscriber too, it still logs its summaries to the first.
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

impl<C: Clock> fmt::Debug for LogThrottle<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogThrottle")
            .field("suppressed", &self.shared.table.suppressed())
            .finish_non_exhaustive()
    }
}

/// The names of the key fields, with a random seed so that nobody can choose values with equal hashes.
#[derive(Debug)]
struct KeyFields {
    names: Vec<&'static str>,
    hasher: RandomState,
}

impl KeyFields {
    /// A hash of an event's place and its key fields; never zero.
    #[inline]
    fn key(&self, event: &Event<'_>) -> u64 {
        // A callsite is static, so the address of its metadata identifies it.
        let place = std::ptr::from_ref(event.metadata()).addr() as u64;
        if self.names.is_empty() {
            return place.max(1);
        }
        let mut values = FieldHasher {
            names: &self.names,
            hash: self.hasher.build_hasher(),
        };
        values.hash.write_u64(place);
        event.record(&mut values);
        values.hash.finish().max(1)
    }
}

struct FieldHasher<'a, H> {
    names: &'a [&'static str],
    hash: H,
}

impl<H: Hasher> FieldHasher<'_, H> {
    /// Hashes the index of a key field; returns false for other fields.
    fn is_key_field(&mut self, field: &Field) -> bool {
        let counts = self.names.contains(&field.name());
        if counts {
            self.hash.write_usize(field.index());
        }
        counts
    }
}

impl<H: Hasher> Visit for FieldHasher<'_, H> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.is_key_field(field) {
            // Written into the hash without a string in between. The writer accepts anything, so it
            // can't fail.
            let _ = fmt::write(&mut HashWriter(&mut self.hash), format_args!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if self.is_key_field(field) {
            self.hash.write(value.as_bytes());
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if self.is_key_field(field) {
            self.hash.write_u64(value);
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        if self.is_key_field(field) {
            self.hash.write_i64(value);
        }
    }
}

struct HashWriter<'a, H>(&'a mut H);

impl<H: Hasher> fmt::Write for HashWriter<'_, H> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// The target of summaries, so that they can be recognized and aren't suppressed themselves.
const TARGET: &str = "tollgate::suppressed";

#[inline]
fn is_summary(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    // The length alone rules out most targets.
    target.len() == TARGET.len() && target == TARGET
}

impl<C: Clock + Clone + 'static> ThrottleState<C> {
    /// Schedules a summary, unless one is scheduled already.
    #[cold]
    fn schedule_summary(shared: &Arc<Self>) {
        if shared.has_summary_scheduled.swap(true, Ordering::AcqRel) {
            return;
        }
        let (clock, every) = (shared.clock.clone(), shared.summary_interval);
        let began = clock.now();
        let due = SummaryTimer {
            shared: Arc::downgrade(shared),
            began,
        };
        let sleep = sleep_until(clock.clone(), began + every);
        executor::spawn(&clock, async move {
            sleep.await;
            drop(due);
        });
    }
}

/// A scheduled summary. It is written when this is dropped: when it is due, or earlier if the runtime
/// in which it waits shuts down, because otherwise it would be lost.
struct SummaryTimer<C: Clock + Clone + 'static> {
    /// Weak, because without the layer there is nowhere to log.
    shared: Weak<ThrottleState<C>>,
    began: Timestamp,
}

impl<C: Clock + Clone + 'static> Drop for SummaryTimer<C> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let lasted = shared.clock.now() - self.began;
            emit_summary(&shared, lasted.min(shared.summary_interval));
        }
    }
}

fn emit_summary<C: Clock + Clone + 'static>(shared: &ThrottleState<C>, every: Duration) {
    // Before the counts are taken: later suppressions schedule the next summary.
    shared.has_summary_scheduled.store(false, Ordering::Release);
    match shared.dispatch.get().map(WeakDispatch::upgrade) {
        Some(Some(dispatch)) => {
            tracing::dispatcher::with_default(&dispatch, || emit_counts(shared, every))
        }
        // Its subscriber was dropped, so there is nowhere to log.
        Some(None) => {}
        None => emit_counts(shared, every),
    }
}

fn emit_counts<C: Clock>(shared: &ThrottleState<C>, every: Duration) {
    shared
        .table
        .drain_suppressed(|place, count| match place.metadata() {
            Some(metadata) => emit_callsite(metadata, count, every),
            None => warn!(
                target: TARGET,
                suppressed = count,
                "suppressed {} events of many places in {} s",
                group_thousands(count),
                round_to_millis(every)
            ),
        });
}

fn emit_callsite(metadata: &Metadata<'_>, count: u64, every: Duration) {
    let (many, seconds) = (group_thousands(count), round_to_millis(every));
    let (file, line) = (metadata.file().unwrap_or("?"), metadata.line().unwrap_or(0));
    let place = format_args!("{} at {file}:{line}", metadata.target());
    macro_rules! say {
        ($level:ident) => {
            $level!(
                target: TARGET,
                suppressed = count,
                %place,
                "suppressed {many} similar events in {seconds} s"
            )
        };
    }
    match *metadata.level() {
        Level::ERROR => say!(error),
        Level::WARN => say!(warn),
        Level::INFO => say!(info),
        Level::DEBUG => say!(debug),
        Level::TRACE => say!(trace),
    }
}

fn round_to_millis(every: Duration) -> f64 {
    (every.as_secs_f64() * 1000.0).round() / 1000.0
}

/// A number with separators: 12,431.
fn group_thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (count, expect) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (12_431, "12,431"),
            (1_000_000, "1,000,000"),
        ] {
            assert_eq!(group_thousands(count), expect);
        }
    }
}
