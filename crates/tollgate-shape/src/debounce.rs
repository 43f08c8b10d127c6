//! Debounce and throttle: of many calls, one fires with the latest value.

use std::sync::{Arc, Weak};
use std::time::Duration;

use derive_where::derive_where;
use tollgate::clock::Monotonic;
use tollgate::{Clock, Timestamp};

use crate::builder::{ShaperBuilder, ShaperHandle};
use crate::runner::{Action, AfterChange, PendingStore, RunnerOwner};
use crate::timeline::{CallEffect, CallTimeline, DebounceTiming, Edge, TimerEffect};

/// The settings of a debounce; [`build`](Self::build) makes a [`Debouncer`], and [`keyed`](Self::keyed)
/// one debounce for each key.
///
/// By default it fires at the trailing edge: once there was no call for `wait`, with the latest value.
/// The rules are those of lodash; tests replay lodash's recorded results.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::{Debounce, Edge};
///
/// let clock = Manual::new();
/// let debouncer = Debounce::new(Duration::from_millis(100))
///     .leading(Edge::On)
///     .clock(clock.clone())
///     .build(|query: String| println!("searching {query}"));
/// debouncer.call("t".into()); // fires immediately
/// debouncer.call("to".into()); // fires after the quiet period
/// assert_eq!(debouncer.stats().fired, 1);
/// clock.advance(Duration::from_millis(100));
/// assert_eq!(debouncer.stats().fired, 2);
/// ```
pub type Debounce<C = Monotonic> = ShaperBuilder<DebounceTiming, C>;

/// A debounce that fires immediately, and then at most once per interval while calls continue.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::Throttle;
///
/// let clock = Manual::new();
/// let progress = Throttle::every(Duration::from_millis(100))
///     .clock(clock.clone())
///     .build(|percent: u32| println!("{percent} %"));
/// for percent in 0..=100 {
///     progress.call(percent); // shows 0, 9, 19 … 99 and 100
///     clock.advance(Duration::from_millis(10));
/// }
/// clock.advance(Duration::from_millis(100));
/// assert_eq!(progress.stats().fired, 12);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Throttle(());

impl Throttle {
    /// At most one firing per interval, the first one immediately and the last value at the end: a
    /// [`Debounce`] whose leading edge is on and whose max wait is its wait.
    pub fn every(interval: Duration) -> Debounce {
        let mut throttle = Debounce::new(interval);
        throttle.settings.leading = Edge::On;
        throttle.settings.max_wait = Some(interval);
        throttle
    }
}

impl Debounce {
    /// Fires once there was no call for `wait`. A zero wait merges only calls of the same instant.
    pub fn new(wait: Duration) -> Self {
        Self::with_settings(DebounceTiming {
            wait,
            max_wait: None,
            leading: Edge::Off,
            trailing: Edge::On,
            spacing: Duration::ZERO,
        })
    }
}

impl<C> Debounce<C> {
    /// Whether the first call after a quiet period fires immediately. Off by default.
    pub fn leading(mut self, edge: Edge) -> Self {
        self.settings.leading = edge;
        self
    }

    /// Whether it fires at the end of the wait, if there was a call that hasn't fired. On by default.
    pub fn trailing(mut self, edge: Edge) -> Self {
        self.settings.trailing = edge;
        self
    }

    /// Fires at the latest this long after the last firing, or after the first call if there was none,
    /// however many calls come. A value below the wait is raised to the wait.
    pub fn max_wait(mut self, most: Duration) -> Self {
        self.settings.max_wait = Some(most);
        self
    }

    /// Spaces firings by at least this interval: debounce, then throttle. An earlier firing waits, and
    /// the latest value wins. For a keyed debounce it spaces all firings, whatever their keys.
    pub fn then_throttle(mut self, interval: Duration) -> Self {
        self.settings.spacing = interval;
        self
    }
}

impl<C: Clock + Clone + 'static> Debounce<C> {
    /// Builds a debouncer with this action.
    pub fn build<T, F>(self, action: F) -> Debouncer<T, C>
    where
        T: Send + 'static,
        F: Fn(T) + Send + Sync + 'static,
    {
        self.build_timed(move |value, _| action(value))
    }

    /// Builds a debouncer whose action also gets the time of the latest call, on the debouncer's clock.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Timestamp;
    /// use tollgate::clock::Manual;
    /// use tollgate_shape::Debounce;
    ///
    /// let clock = Manual::starting_at(Timestamp::from_secs(7));
    /// let debouncer = Debounce::new(Duration::from_secs(1))
    ///     .clock(clock.clone())
    ///     .build_timed(|_: &str, called| assert_eq!(called, Timestamp::from_secs(7)));
    /// debouncer.call("now");
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!((debouncer.stats().fired, debouncer.stats().panicked), (1, 0));
    /// ```
    pub fn build_timed<T, F>(self, action: F) -> Debouncer<T, C>
    where
        T: Send + 'static,
        F: Fn(T, Timestamp) + Send + Sync + 'static,
    {
        let action = move |fired: Firing<T>| action(fired.value, fired.called);
        self.start(SingleStore::new, Action::Sync(Box::new(action)))
    }

    /// Builds a debouncer with an async action, which runs where the driver does.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::clock::Manual;
    /// use tollgate_shape::Debounce;
    ///
    /// let clock = Manual::new();
    /// let debouncer = Debounce::new(Duration::from_millis(100))
    ///     .clock(clock.clone())
    ///     .build_async(|path: &'static str| async move { println!("built {path}") });
    /// debouncer.call("src");
    /// clock.advance(Duration::from_millis(100));
    /// assert_eq!(debouncer.stats().fired, 1);
    /// ```
    pub fn build_async<T, F, R>(self, action: F) -> Debouncer<T, C>
    where
        T: Send + 'static,
        F: Fn(T) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.build_async_timed(move |value, _| action(value))
    }

    /// Builds a debouncer with an async action that also gets the time of the latest call.
    pub fn build_async_timed<T, F, R>(self, action: F) -> Debouncer<T, C>
    where
        T: Send + 'static,
        F: Fn(T, Timestamp) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let action = move |fired: Firing<T>| Box::pin(action(fired.value, fired.called)) as _;
        self.start(SingleStore::new, Action::Async(Box::new(action)))
    }
}

/// Merges calls until a quiet period, and then fires once with the latest value. Made by [`Debounce`].
///
/// Clones share it. When the last one is dropped it is stopped, and what is pending is discarded unless
/// [`flush_on_drop`](Debounce::flush_on_drop) was set.
///
/// * Actions of one debouncer never run concurrently: an action that becomes due while another runs
///   starts when that has ended, with the latest value.
/// * A sync action of a leading edge, or of [`flush`](Self::flush), runs on the calling thread. All
///   others run where the driver does: as a task of the tokio runtime in which it was built (feature
///   `tokio`), or on a few threads of this crate. With [`clock::Manual`](tollgate::clock::Manual) they
///   run inside of `advance`.
/// * An action may call, flush, cancel or stop its debouncer. It needs a handle for that, and a clone
///   would keep the debouncer alive for ever: give it a [`WeakDebouncer`].
/// * An action that panics is caught, logged and counted.
/// * Values that never fire may be dropped under its lock, so the `Drop` of a value must not call it.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::Debounce;
///
/// let (clock, (saved, saves)) = (Manual::new(), mpsc::channel());
/// let save = Debounce::new(Duration::from_millis(100))
///     .max_wait(Duration::from_millis(200))
///     .clock(clock.clone())
///     .build(move |text: &str| drop(saved.send(text)));
/// for text in ["t", "to", "tol", "toll"] {
///     save.call(text);
///     clock.advance(Duration::from_millis(80));
/// }
/// clock.advance(Duration::from_secs(1));
/// // After 200 ms at the latest, and after the quiet period.
/// assert_eq!(saves.try_iter().collect::<Vec<_>>(), ["tol", "toll"]);
/// ```
pub type Debouncer<T, C = Monotonic> = ShaperHandle<SingleStore<T>, C>;

/// A handle that doesn't keep its [`Debouncer`] alive, for the action itself.
///
/// ```
/// use std::sync::OnceLock;
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::{Debounce, WeakDebouncer};
///
/// static AGAIN: OnceLock<WeakDebouncer<u32, Manual>> = OnceLock::new();
///
/// let clock = Manual::new();
/// let countdown = Debounce::new(Duration::from_secs(1)).clock(clock.clone()).build(|left: u32| {
///     if let (Some(left), Some(again)) = (left.checked_sub(1), AGAIN.get().and_then(WeakDebouncer::upgrade)) {
///         again.call(left);
///     }
/// });
/// AGAIN.get_or_init(|| countdown.downgrade());
/// countdown.call(2);
/// for _ in 0..5 {
///     clock.advance(Duration::from_secs(1));
/// }
/// assert_eq!(countdown.stats().fired, 3);
/// ```
#[derive(derive_more::Debug)]
#[debug("WeakDebouncer {{ .. }}")]
#[derive_where(Clone)]
pub struct WeakDebouncer<T: Send + 'static, C: Clock = Monotonic> {
    handle: Weak<RunnerOwner<SingleStore<T>, C>>,
}

impl<T: Send + 'static, C: Clock> Debouncer<T, C> {
    /// Calls it with a value, which replaces the pending one. A stopped debouncer drops the value.
    #[inline]
    pub fn call(&self, value: T) {
        // The replaced value is dropped after the lock is released.
        let replaced = self.0.change(|store, now| store.call(value, now));
        drop(replaced);
    }

    /// Fires what is pending now instead of later. Returns whether a wait was in progress.
    ///
    /// A sync action has ended when this returns, unless another one was running. An async one has at
    /// most been started.
    pub fn flush(&self) -> bool {
        let flushed = self.0.change(SingleStore::flush_now);
        flushed.is_some_and(|(was_pending, _dropped)| was_pending)
    }

    /// Discards what is pending and the time of the calls: the next call begins anew. Returns whether a
    /// wait was in progress.
    pub fn cancel(&self) -> bool {
        let cancelled = self
            .0
            .change(|store, _| (store.cancel(), AfterChange::None));
        cancelled.is_some_and(|(was_pending, _dropped)| was_pending)
    }

    /// Whether a wait is in progress: the next call is merged with those before it. The latest value
    /// fires at the end of the wait, if the trailing edge is on and it hasn't fired already.
    pub fn pending(&self) -> bool {
        self.0.read(SingleStore::is_pending)
    }

    /// A handle that doesn't keep it alive.
    pub fn downgrade(&self) -> WeakDebouncer<T, C> {
        WeakDebouncer {
            handle: Arc::downgrade(&self.0),
        }
    }
}

impl<T: Send + 'static, C: Clock> WeakDebouncer<T, C> {
    /// The debouncer, unless all its handles were dropped.
    pub fn upgrade(&self) -> Option<Debouncer<T, C>> {
        self.handle.upgrade().map(ShaperHandle)
    }
}

/// A value that fires, and the time of its latest call.
#[derive(Debug)]
pub struct Firing<T> {
    pub(crate) value: T,
    pub(crate) called: Timestamp,
}

/// The minimum interval of firings: an earlier firing waits, and the latest value wins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FiringSpacing {
    interval: Duration,
    not_before: Timestamp,
    /// The value of `not_before` before the latest firing.
    previous_not_before: Timestamp,
}

impl FiringSpacing {
    /// Firings at least this far apart.
    pub(crate) const fn new(interval: Duration) -> Self {
        Self {
            interval,
            not_before: Timestamp::ZERO,
            previous_not_before: Timestamp::ZERO,
        }
    }

    /// The earliest time of the next firing.
    pub(crate) const fn not_before(&self) -> Timestamp {
        self.not_before
    }

    pub(crate) fn record_firing(&mut self, now: Timestamp) {
        self.previous_not_before = self.not_before;
        self.not_before = now + self.interval;
    }

    /// The latest firing was deferred, and doesn't count yet.
    pub(crate) fn undo_firing(&mut self) {
        self.not_before = self.previous_not_before;
    }

    /// Follows a clock that was set back: the time `from` is `to` now.
    pub(crate) fn set_back(&mut self, from: Timestamp, to: Timestamp) {
        self.not_before = self.not_before.shifted(from, to);
        self.previous_not_before = self.previous_not_before.shifted(from, to);
    }

    /// Fires regardless of the spacing.
    pub(crate) fn fire_now<J>(&mut self, job: Option<J>, now: Timestamp) -> AfterChange<J> {
        let Some(job) = job else {
            return AfterChange::None;
        };
        *self = self.reset();
        self.record_firing(now);
        AfterChange::Fire(job)
    }

    /// Resets the spacing: the next firing is like the first.
    pub(crate) const fn reset(self) -> Self {
        Self::new(self.interval)
    }
}

/// The state of one debouncer.
#[derive(Debug)]
pub struct SingleStore<T> {
    times: DebounceTiming,
    timeline: CallTimeline,
    value: Option<T>,
    spacing: FiringSpacing,
    /// A firing that waits for another action to end, or for the spacing.
    waiting_firing: Option<Firing<T>>,
}

impl<T> SingleStore<T> {
    fn new(times: DebounceTiming) -> Self {
        Self {
            times: times.normalized(),
            timeline: CallTimeline::new(),
            value: None,
            spacing: FiringSpacing::new(times.spacing),
            waiting_firing: None,
        }
    }

    fn is_pending(&self) -> bool {
        self.timeline.timer().is_some() || self.waiting_firing.is_some()
    }

    /// Returns the value that was replaced, to be dropped after the lock is released.
    #[inline]
    fn call(&mut self, value: T, now: Timestamp) -> (Option<T>, AfterChange<Firing<T>>) {
        match self.timeline.call(&self.times, now) {
            CallEffect::Waiting => (self.value.replace(value), AfterChange::None),
            CallEffect::TimerSet => (self.value.replace(value), AfterChange::WakeDriver),
            CallEffect::Fire => {
                let replaced = self.value.take();
                let then = self.fire_or_defer(Firing { value, called: now }, now);
                (replaced, then)
            }
        }
    }

    fn flush_now(&mut self, now: Timestamp) -> ((bool, Option<T>), AfterChange<Firing<T>>) {
        let ready = self.waiting_firing.take();
        let was_pending = self.timeline.flush() || ready.is_some();
        // A deferred firing only waits for its spacing, which a flush overrides; a pending value is
        // later.
        let fired = if was_pending {
            self.end_wait(now).or(ready)
        } else {
            None
        };
        let dropped = self.value.take();
        ((was_pending, dropped), self.spacing.fire_now(fired, now))
    }

    fn cancel(&mut self) -> (bool, (Option<T>, Option<Firing<T>>)) {
        let was_pending = self.is_pending();
        self.timeline = CallTimeline::new();
        (was_pending, (self.value.take(), self.waiting_firing.take()))
    }

    /// Ends the wait at `now`: what is pending fires, if the trailing edge is on.
    fn end_wait(&mut self, now: Timestamp) -> Option<Firing<T>> {
        let value = match self.times.trailing {
            Edge::On => self.value.take()?,
            Edge::Off => return None,
        };
        let called = self.timeline.called().unwrap_or(now);
        self.timeline.fire(now);
        Some(Firing { value, called })
    }

    /// Fires now, or as soon as the spacing allows.
    fn fire_or_defer(&mut self, fired: Firing<T>, now: Timestamp) -> AfterChange<Firing<T>> {
        if now < self.spacing.not_before() || self.waiting_firing.is_some() {
            self.waiting_firing = Some(fired);
            return AfterChange::WakeDriver;
        }
        self.spacing.record_firing(now);
        AfterChange::Fire(fired)
    }
}

impl<T: Send + 'static> PendingStore for SingleStore<T> {
    const NAME: &'static str = "debouncer";

    type Job = Firing<T>;
    type Outcome = ();
    type Remaining = (Option<T>, Option<Firing<T>>);

    fn pending(&self) -> usize {
        usize::from(self.is_pending())
    }

    fn due(&self) -> Option<Timestamp> {
        let ready = self
            .waiting_firing
            .as_ref()
            .map(|_| self.spacing.not_before());
        match (ready, self.timeline.timer()) {
            (Some(ready), Some(timer)) => Some(ready.min(timer)),
            (ready, timer) => ready.or(timer),
        }
    }

    fn take(&mut self, now: Timestamp) -> Option<Firing<T>> {
        if self.timeline.timer().is_some_and(|timer| timer <= now)
            && self.timeline.on_timer(&self.times, now) == TimerEffect::Expired
        {
            let over = self.end_wait(now);
            // A value that doesn't fire at this edge is discarded.
            self.value = None;
            self.waiting_firing = over.or_else(|| self.waiting_firing.take());
        }
        if now < self.spacing.not_before() {
            return None;
        }
        let fired = self.waiting_firing.take()?;
        self.spacing.record_firing(now);
        Some(fired)
    }

    fn defer(&mut self, job: Firing<T>) {
        self.spacing.undo_firing();
        self.waiting_firing = Some(job);
    }

    fn ended(&mut self, _now: Timestamp, _outcome: Option<()>) {}

    fn follow_clock_back(&mut self, from: Timestamp, to: Timestamp) {
        self.timeline.set_back(from, to);
        self.spacing.set_back(from, to);
    }

    fn flush(&mut self, now: Timestamp) {
        if self.timeline.flush()
            && let Some(fired) = self.end_wait(now)
        {
            self.waiting_firing = Some(fired);
        }
        self.spacing = self.spacing.reset();
    }

    fn clear(&mut self) -> Self::Remaining {
        self.cancel().1
    }
}
