//! The advice of each host: no calls before a time, or calls at an interval.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollgate::clock::Clock;
use tollgate::limiter::Switch;
use tollgate::{Limiter, Rate, Timestamp};

use super::advice::{RemainingQuota, ServerAdvice};

/// The longest interval after a stop of a host that stated none. The first call is a trial, and each call that passes
/// shortens the interval by a [`GAIN`]th.
const SLOWEST_START: Duration = Duration::from_secs(1);
/// An interval shrinks by a tenth for each call. A host that takes ten calls a second gets at most fifteen a second
/// before its next denial.
const GAIN: u32 = 10;
/// At this interval a host isn't paced any more.
const QUICKEST: Duration = Duration::from_millis(1);
/// The first stop after a denial without a time; it doubles with each further denial.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// How far the advice of hosts is followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacingBounds {
    pub(super) longest_stop: Duration,
    /// The percentage of a quota at which calls are spread over the remaining time.
    pub(super) slow_below: u8,
    pub(super) max_waiting: usize,
}

/// The queue in which calls to a paced host wait.
pub(super) type PaceQueue<C> = Arc<Limiter<Arc<C>>>;

/// The advice of a host.
#[derive(Debug)]
pub(super) struct HostState<C: Clock> {
    state: Mutex<State<C>>,
}

#[derive(Debug)]
struct State<C: Clock> {
    /// No call is made before this time.
    stopped_until: Timestamp,
    /// When the stop began.
    stopped_at: Timestamp,
    /// Denials since the last successful call.
    refusals: u32,
    pace: Option<Pace<C>>,
}

#[derive(Debug)]
struct Pace<C: Clock> {
    line: PaceQueue<C>,
    every: Duration,
    /// When the advice expires.
    until: Timestamp,
}

/// What a call has to do next.
#[derive(Debug)]
pub(super) enum NextStep<C: Clock> {
    /// Wait until this time, then read the state again.
    Stopped(Timestamp),
    /// Wait in this queue. At this time the queue expires: then read the state again.
    Paced(PaceQueue<C>, Timestamp),
    /// Nothing: the call may be made.
    Free,
}

impl<C: Clock> HostState<C> {
    pub(super) const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                stopped_until: Timestamp::ZERO,
                stopped_at: Timestamp::ZERO,
                refusals: 0,
                pace: None,
            }),
        }
    }

    pub(super) fn next(&self, now: Timestamp) -> NextStep<C> {
        let mut state = self.lock();
        if now < state.stopped_until {
            return NextStep::Stopped(state.stopped_until);
        }
        state.forget(now);
        match &state.pace {
            Some(pace) => NextStep::Paced(Arc::clone(&pace.line), pace.until),
            None => NextStep::Free,
        }
    }

    /// When all advice of the host has expired; none if it has expired already.
    pub(super) fn forgotten_at(&self, now: Timestamp) -> Option<Timestamp> {
        let mut state = self.lock();
        state.forget(now);
        let pace = state.pace.as_ref().map(|pace| pace.until);
        let stop = (now < state.stopped_until).then_some(state.stopped_until);
        pace.max(stop)
    }

    /// Records the response to a call that began at this time.
    pub(super) fn record_advice(
        &self,
        began: Timestamp,
        now: Timestamp,
        advice: &ServerAdvice,
        bounds: &PacingBounds,
        clock: &Arc<C>,
    ) {
        let mut state = self.lock();
        // The call was in flight when another call was denied, so its response is older than the stop.
        let is_late = began < state.stopped_until;
        if advice.is_denial {
            state.refusals = state.refusals.saturating_add(u32::from(!is_late));
            let stop = backoff_after(advice, state.refusals).min(bounds.longest_stop);
            state.stop_calls(now, stop, advice, bounds, clock);
            return;
        }
        if is_late {
            return;
        }
        state.refusals = 0;
        match advice.left {
            Some(left) if left.remaining == 0 => {
                let stop = left.refill_after.min(bounds.longest_stop);
                state.stop_calls(now, stop, advice, bounds, clock);
            }
            Some(left) if is_low(left, bounds.slow_below) => {
                let every = left.spread().min(bounds.longest_stop);
                let until = now + bounds.longest_stop;
                state.pace(every, until, || new_queue(every, bounds, clock));
            }
            // The quota is large enough now, but waiting calls must not take it in one burst.
            Some(left) => state.speed_up(left.spread()),
            None => state.speed_up(Duration::MAX),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        // No panic can leave a change half done, so a poisoned state is still valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The length of the stop after a denial.
fn backoff_after(advice: &ServerAdvice, refusals: u32) -> Duration {
    let some = |time: &Duration| !time.is_zero();
    let reset = advice.left.filter(|left| left.remaining == 0);
    let stated = advice.retry_after.filter(some);
    let stated = stated.or(reset.map(|left| left.refill_after).filter(some));
    stated.unwrap_or_else(|| {
        // At most 2^16 s, 18 hours: the bound keeps the shift from overflowing. `longest_stop` cuts the result.
        let doubled = 1_u32 << refusals.saturating_sub(1).min(16);
        FIRST_BACKOFF * doubled
    })
}

/// Whether the remaining quota is so low that calls have to be spread.
fn is_low(left: RemainingQuota, percent: u8) -> bool {
    let Some(quota) = left.quota else {
        // The whole quota is unknown, so there is no percentage: a few remaining calls count as low.
        return percent > 0 && left.remaining <= 10;
    };
    u128::from(left.remaining) * 100 <= u128::from(quota) * u128::from(percent)
}

/// A queue that lets the first call pass immediately, and the next ones at this interval.
fn new_queue<C: Clock>(
    every: Duration,
    bounds: &PacingBounds,
    clock: &Arc<C>,
) -> Option<PaceQueue<C>> {
    let line = Limiter::builder(rate(every)).max_waiters(bounds.max_waiting);
    line.clock(Arc::clone(clock)).build().ok().map(Arc::new)
}

fn rate(every: Duration) -> Rate {
    Rate::every(every.max(QUICKEST)).burst(1)
}

impl<C: Clock> State<C> {
    /// Stops calls for this long. Then paces them, until the host's limit is known.
    fn stop_calls(
        &mut self,
        now: Timestamp,
        stop: Duration,
        advice: &ServerAdvice,
        bounds: &PacingBounds,
        clock: &Arc<C>,
    ) {
        if stop.is_zero() {
            return;
        }
        let is_late = now < self.stopped_until;
        if !is_late {
            self.stopped_at = now;
        }
        // Calls in flight may be denied one after another. Together they can't extend the stop beyond the longest
        // stop of one denial.
        let latest = self.stopped_at + bounds.longest_stop;
        self.stopped_until = self.stopped_until.max(now + stop).min(latest);
        let every = advice.interval.unwrap_or_else(|| {
            // The host denied calls at this interval, so double it.
            let before = self.pace.as_ref().map_or(Duration::ZERO, |pace| pace.every);
            let before = if is_late { before } else { before * 2 };
            before.max(stop / 8).min(SLOWEST_START)
        });
        let every = every.min(bounds.longest_stop);
        // Wakes the calls in the old queue: they read the state again, and find the stop.
        self.stop_pacing();
        let until = self.stopped_until + bounds.longest_stop;
        self.pace(every, until, || new_queue(every, bounds, clock));
    }

    /// Lets calls pass at this interval until then.
    fn pace(
        &mut self,
        every: Duration,
        until: Timestamp,
        line: impl FnOnce() -> Option<PaceQueue<C>>,
    ) {
        if let Some(pace) = &mut self.pace {
            (pace.every, pace.until) = (every, until);
            pace.apply();
        } else if every > QUICKEST {
            self.pace = line().map(|line| Pace { line, every, until });
        }
    }

    /// A call passed: shortens the interval by a [`GAIN`]th, and at least to `enough`.
    fn speed_up(&mut self, enough: Duration) {
        if let Some(pace) = &mut self.pace {
            pace.every = (pace.every - pace.every / GAIN).min(enough);
            if pace.every > QUICKEST {
                pace.apply();
            } else {
                self.stop_pacing();
            }
        }
    }

    /// Forgets an expired pace.
    fn forget(&mut self, now: Timestamp) {
        if self.pace.as_ref().is_some_and(|pace| pace.until <= now) {
            self.stop_pacing();
        }
    }

    fn stop_pacing(&mut self) {
        if let Some(pace) = self.pace.take() {
            // Releases the calls in the queue; they read the state again.
            pace.line.set_switch(Switch::Bypass);
        }
    }
}

impl<C: Clock> Pace<C> {
    fn apply(&self) {
        // The interval is between a millisecond and the longest stop, so the rate is always valid.
        let changed = self.line.set_rate(rate(self.every));
        debug_assert!(changed.is_ok());
    }
}

/// The hosts with advice. If there are too many, the host whose advice expires first is forgotten.
#[derive(Debug)]
pub(super) struct Hosts<C: Clock> {
    known: Mutex<HashMap<Box<str>, Arc<HostState<C>>>>,
    most: usize,
}

impl<C: Clock> Hosts<C> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            known: Mutex::default(),
            most: most.max(1),
        }
    }

    /// The state of a host that has advice.
    pub(super) fn get(&self, host: &str) -> Option<Arc<HostState<C>>> {
        self.lock().get(host).map(Arc::clone)
    }

    /// The state of a host, which is added if it is new.
    pub(super) fn get_or_add(&self, host: &str, now: Timestamp) -> Arc<HostState<C>> {
        let mut known = self.lock();
        if let Some(found) = known.get(host) {
            return Arc::clone(found);
        }
        // Scans all hosts under the lock, but only for a new host while the table is full.
        if known.len() >= self.most {
            known.retain(|_, host| host.forgotten_at(now).is_some());
        }
        if known.len() >= self.most {
            let soonest = known.iter().min_by_key(|(_, host)| host.forgotten_at(now));
            let soonest = soonest.map(|(name, _)| name.clone());
            soonest.and_then(|name| known.remove(&name));
        }
        let new = Arc::new(HostState::new());
        known.insert(host.into(), Arc::clone(&new));
        new
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<HostState<C>>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
