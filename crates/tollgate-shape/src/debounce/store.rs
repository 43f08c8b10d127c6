//! What one debouncer keeps: when it was called, and the value that is pending.

use std::time::Duration;

use tollgate::Timestamp;

use super::Fired;
use crate::timeline::{Called, Edge, Rang, Timeline, Times};
use crate::work::{Store, Then};

/// Firings that are kept apart: what is due sooner waits, and the latest value wins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spacing {
    interval: Duration,
    not_before: Timestamp,
    /// What that was before the latest firing.
    before: Timestamp,
}

impl Spacing {
    /// Firings at least this far apart.
    pub(crate) const fn new(interval: Duration) -> Self {
        Self {
            interval,
            not_before: Timestamp::ZERO,
            before: Timestamp::ZERO,
        }
    }

    /// The earliest time of the next firing.
    pub(crate) const fn not_before(&self) -> Timestamp {
        self.not_before
    }

    pub(crate) fn fired(&mut self, now: Timestamp) {
        self.before = self.not_before;
        self.not_before = now + self.interval;
    }

    /// The latest firing was put off, and doesn't count yet.
    pub(crate) fn put_off(&mut self) {
        self.not_before = self.before;
    }

    /// The clock was set back: what was `from` is `to` now.
    pub(crate) fn set_back(&mut self, from: Timestamp, to: Timestamp) {
        self.not_before = self.not_before.shifted(from, to);
        self.before = self.before.shifted(from, to);
    }

    /// The next firing is as good as the first.
    pub(crate) const fn reset(self) -> Self {
        Self::new(self.interval)
    }
}

/// What one debouncer keeps.
#[derive(Debug)]
pub struct Single<T> {
    times: Times,
    line: Timeline,
    value: Option<T>,
    spacing: Spacing,
    /// It has fired, and waits for another action to end or for its distance to the last one.
    ready: Option<Fired<T>>,
}

impl<T> Single<T> {
    pub(super) fn new(times: Times) -> Self {
        Self {
            times: times.normal(),
            line: Timeline::new(),
            value: None,
            spacing: Spacing::new(times.spacing),
            ready: None,
        }
    }

    pub(super) fn is_pending(&self) -> bool {
        self.line.timer().is_some() || self.ready.is_some()
    }

    /// Returns the value that was replaced, to be dropped under no lock.
    #[inline]
    pub(super) fn call(&mut self, value: T, now: Timestamp) -> (Option<T>, Then<Fired<T>>) {
        match self.line.call(&self.times, now) {
            Called::Waits => (self.value.replace(value), Then::Nothing),
            Called::Arms => (self.value.replace(value), Then::Look),
            Called::Fires => {
                let replaced = self.value.take();
                let then = self.fire(Fired { value, called: now }, now);
                (replaced, then)
            }
        }
    }

    pub(super) fn flush_now(&mut self, now: Timestamp) -> ((bool, Option<T>), Then<Fired<T>>) {
        if let Some(ready) = self.ready.take() {
            // It fired already, and only waits for its distance, which a flush overrules; what was called since
            // is later.
            let fired = self.over(now).unwrap_or(ready);
            self.line.flush();
            self.spacing = self.spacing.reset();
            self.spacing.fired(now);
            return ((true, None), Then::Fire(fired));
        }
        let was_pending = self.line.flush();
        let fired = if was_pending { self.over(now) } else { None };
        let dropped = self.value.take();
        let then = fired.map_or(Then::Nothing, |fired| {
            self.spacing = self.spacing.reset();
            self.spacing.fired(now);
            Then::Fire(fired)
        });
        ((was_pending, dropped), then)
    }

    pub(super) fn cancel(&mut self) -> (bool, (Option<T>, Option<Fired<T>>)) {
        let was_pending = self.is_pending();
        self.line = Timeline::new();
        (was_pending, (self.value.take(), self.ready.take()))
    }

    /// The wait is over at `now`: what is pending fires, if the trailing edge does.
    fn over(&mut self, now: Timestamp) -> Option<Fired<T>> {
        let value = match self.times.trailing {
            Edge::On => self.value.take()?,
            Edge::Off => return None,
        };
        let called = self.line.called().unwrap_or(now);
        self.line.fire(now);
        Some(Fired { value, called })
    }

    /// Fires now, or as soon as firings are far enough apart.
    fn fire(&mut self, fired: Fired<T>, now: Timestamp) -> Then<Fired<T>> {
        if now < self.spacing.not_before() || self.ready.is_some() {
            self.ready = Some(fired);
            return Then::Look;
        }
        self.spacing.fired(now);
        Then::Fire(fired)
    }
}

impl<T: Send + 'static> Store for Single<T> {
    const NAME: &'static str = "debouncer";

    type Job = Fired<T>;
    type Outcome = ();
    type Rest = (Option<T>, Option<Fired<T>>);

    fn pending(&self) -> usize {
        usize::from(self.is_pending())
    }

    fn due(&self) -> Option<Timestamp> {
        let ready = self.ready.as_ref().map(|_| self.spacing.not_before());
        match (ready, self.line.timer()) {
            (Some(ready), Some(timer)) => Some(ready.min(timer)),
            (ready, timer) => ready.or(timer),
        }
    }

    fn take(&mut self, now: Timestamp) -> Option<Fired<T>> {
        if self.line.timer().is_some_and(|timer| timer <= now)
            && self.line.ring(&self.times, now) == Rang::Over
        {
            let over = self.over(now);
            // A value that isn't fired at this end is gone.
            self.value = None;
            self.ready = over.or_else(|| self.ready.take());
        }
        if now < self.spacing.not_before() {
            return None;
        }
        let fired = self.ready.take()?;
        self.spacing.fired(now);
        Some(fired)
    }

    fn defer(&mut self, job: Fired<T>) {
        self.spacing.put_off();
        self.ready = Some(job);
    }

    fn ended(&mut self, _now: Timestamp, _outcome: Option<()>) {}

    fn set_back(&mut self, from: Timestamp, to: Timestamp) {
        self.line.set_back(from, to);
        self.spacing.set_back(from, to);
    }

    fn flush(&mut self, now: Timestamp) {
        if self.line.flush()
            && let Some(fired) = self.over(now)
        {
            self.ready = Some(fired);
        }
        self.spacing = self.spacing.reset();
    }

    fn clear(&mut self) -> Self::Rest {
        self.cancel().1
    }
}
