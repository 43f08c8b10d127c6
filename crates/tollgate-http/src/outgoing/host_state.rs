//! What hosts have told: not to be asked before a time, or only every so often.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollgate::clock::Clock;
use tollgate::limiter::Switch;
use tollgate::{Limiter, Rate, Timestamp};

use super::advice::{RemainingQuota, ServerAdvice};

/// The pace after a stop of a host that told none, at most: the first call is a trial, and each that passes makes the next
/// come a little sooner, by [`GAIN`] of the pace.
const SLOWEST_START: Duration = Duration::from_secs(1);
/// A tenth: a host that takes ten a second is asked fifteen a second at the most before it says so again.
const GAIN: u32 = 10;
/// A pace as quick as this is none.
const QUICKEST: Duration = Duration::from_millis(1);
/// How long a host is left alone that refuses and doesn't say for how long; twice as long each time.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// How far hosts are believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacingBounds {
    pub(super) longest_stop: Duration,
    /// Percent of a quota below which it is spread over the time that is left.
    pub(super) slow_below: u8,
    pub(super) max_waiting: usize,
}

/// The line of those who are spaced out.
pub(super) type PaceQueue<C> = Arc<Limiter<Arc<C>>>;

/// What a host has told.
#[derive(Debug)]
pub(super) struct HostState<C: Clock> {
    state: Mutex<State<C>>,
}

#[derive(Debug)]
struct State<C: Clock> {
    /// Nobody asks before.
    stopped_until: Timestamp,
    /// When that stop began.
    stopped_at: Timestamp,
    /// How often it refused since it last answered.
    refusals: u32,
    pace: Option<Pace<C>>,
}

#[derive(Debug)]
struct Pace<C: Clock> {
    line: PaceQueue<C>,
    every: Duration,
    /// When what the host told is over.
    until: Timestamp,
}

/// What a call has to do.
#[derive(Debug)]
pub(super) enum NextStep<C: Clock> {
    /// Wait until this time, and look again.
    Stopped(Timestamp),
    /// Stand in this line, or look again at this time.
    Paced(PaceQueue<C>, Timestamp),
    /// Nothing.
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

    /// When the last thing that it told is over; none if it is.
    pub(super) fn forgotten_at(&self, now: Timestamp) -> Option<Timestamp> {
        let mut state = self.lock();
        state.forget(now);
        let pace = state.pace.as_ref().map(|pace| pace.until);
        let stop = (now < state.stopped_until).then_some(state.stopped_until);
        pace.max(stop)
    }

    /// Takes note of the answer to a call that began at this time.
    pub(super) fn record_advice(
        &self,
        began: Timestamp,
        now: Timestamp,
        advice: &ServerAdvice,
        bounds: &PacingBounds,
        clock: &Arc<C>,
    ) {
        let mut state = self.lock();
        // It was under way when another was told to stop, and what it says is older than that.
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
            // There is enough for now, but those who wait mustn't take it all at once.
            Some(left) => state.speed_up(left.spread()),
            None => state.speed_up(Duration::MAX),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        // Each change of it is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a host that refused is left alone.
fn backoff_after(advice: &ServerAdvice, refusals: u32) -> Duration {
    let some = |time: &Duration| !time.is_zero();
    let reset = advice.left.filter(|left| left.remaining == 0);
    let told = advice.retry_after.filter(some);
    let told = told.or(reset.map(|left| left.refill_after).filter(some));
    told.unwrap_or_else(|| {
        let doubled = 1_u32 << refusals.saturating_sub(1).min(16);
        FIRST_BACKOFF * doubled
    })
}

/// Whether so little is left that it has to last.
fn is_low(left: RemainingQuota, percent: u8) -> bool {
    let Some(quota) = left.quota else {
        // Of how many isn't known: what is left of one has to last, and no others.
        return percent > 0 && left.remaining <= 10;
    };
    u128::from(left.remaining) * 100 <= u128::from(quota) * u128::from(percent)
}

/// A line in which one goes at once, and others as often as this.
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
    /// Nobody asks for this long, and then one by one, until it is known how many may.
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
        // Calls that were under way when it began may be answered one by one, and make it no longer than one of them could.
        let latest = self.stopped_at + bounds.longest_stop;
        self.stopped_until = self.stopped_until.max(now + stop).min(latest);
        let every = advice.interval.unwrap_or_else(|| {
            // It was too quick, so twice as slow as it was.
            let before = self.pace.as_ref().map_or(Duration::ZERO, |pace| pace.every);
            let before = if is_late { before } else { before * 2 };
            before.max(stop / 8).min(SLOWEST_START)
        });
        let every = every.min(bounds.longest_stop);
        // Those who stand in the old line look again, and find the stop.
        self.stop_pacing();
        let until = self.stopped_until + bounds.longest_stop;
        self.pace(every, until, || new_queue(every, bounds, clock));
    }

    /// One goes every so often until then.
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

    /// All went well: a little quicker, or as quick as this if that is quicker.
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

    /// Forgets a pace that is over.
    fn forget(&mut self, now: Timestamp) {
        if self.pace.as_ref().is_some_and(|pace| pace.until <= now) {
            self.stop_pacing();
        }
    }

    fn stop_pacing(&mut self) {
        if let Some(pace) = self.pace.take() {
            // Whoever stands in the line goes on, and looks again.
            pace.line.set_switch(Switch::Bypass);
        }
    }
}

impl<C: Clock> Pace<C> {
    fn apply(&self) {
        // Between a millisecond and the longest stop: a rate that can be kept.
        let changed = self.line.set_rate(rate(self.every));
        debug_assert!(changed.is_ok());
    }
}

/// The hosts that told something. If there are too many, the one whose word is over soonest is forgotten.
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

    /// What is known of a host.
    pub(super) fn get(&self, host: &str) -> Option<Arc<HostState<C>>> {
        self.lock().get(host).map(Arc::clone)
    }

    /// What is known of a host, which may be new.
    pub(super) fn get_or_add(&self, host: &str, now: Timestamp) -> Arc<HostState<C>> {
        let mut known = self.lock();
        if let Some(found) = known.get(host) {
            return Arc::clone(found);
        }
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
