//! When a store that fails isn't even asked.
//!
//! What counts is time and share, not a number of failures: a hundred failures are a second's bad luck at a high
//! rate, and a minute's outage at a low one.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tollgate::Timestamp;

/// When rules that circuit-break stop asking a store, and for how long.
///
/// ```
/// use std::time::Duration;
/// use tollgate_engine::backend::Breaker;
///
/// let breaker = Breaker { silent_for: Duration::from_millis(500), ..Breaker::default() };
/// assert_eq!((breaker.failing_percent, breaker.of_calls), (50, 20));
/// assert_eq!(breaker.longest_open, Duration::from_secs(60));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// Once it was asked for so long without an answer: 2 seconds unless said otherwise.
    pub silent_for: Duration,
    /// Or once so many percent of calls failed: 50 unless said otherwise.
    pub failing_percent: u8,
    /// Over this time: 5 seconds unless said otherwise.
    pub failing_over: Duration,
    /// If there were so many calls at least: 20 unless said otherwise.
    pub of_calls: u32,
    /// It isn't asked for so long, and then by one request: a second at first, unless said otherwise, and
    /// twice as long each time that this one fails too.
    pub opens_for: Duration,
    /// But no longer than this: 60 seconds unless said otherwise.
    pub longest_open: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            silent_for: Duration::from_secs(2),
            failing_percent: 50,
            failing_over: Duration::from_secs(5),
            of_calls: 20,
            opens_for: Duration::from_secs(1),
            longest_open: Duration::from_secs(60),
        }
    }
}

/// Whether rules that circuit-break ask a store.
///
/// ```
/// use tollgate_engine::backend::BreakerState;
///
/// assert_eq!(BreakerState::HalfOpen as u8, 1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BreakerState {
    /// It is asked.
    #[default]
    Closed = 0,
    /// The next request asks, alone.
    HalfOpen = 1,
    /// It isn't asked.
    Open = 2,
}

/// Whether the store may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    /// By this one alone.
    Probe,
    Shut,
}

/// A probe's turn to ask, if it is one. All others wait for what comes of it; if it has no need to ask, or
/// is given up, the next one may.
#[derive(Debug)]
pub(super) struct Turn<'a>(Option<&'a Circuit>);

impl Turn<'_> {
    /// The store was asked, and something came of it.
    pub(super) fn is_over(&mut self) {
        self.0 = None;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(circuit) = self.0 {
            circuit.open_until.store(0, Ordering::Relaxed);
        }
    }
}

/// Parts of the time that the share of failures is counted over.
const PARTS: usize = 10;

/// What is known of the store. All is relaxed: a request that sees it late asks once more, or once less.
#[derive(Debug)]
pub(super) struct Circuit {
    breaker: Breaker,
    calls: Calls,
    /// When the first of the failures without an answer between them was; 0 if there is none.
    since: AtomicU64,
    /// And the latest.
    latest: AtomicU64,
    /// It isn't asked before; 0 if the next one may.
    open_until: AtomicU64,
    is_open: AtomicBool,
    /// How often in a row it was opened.
    in_a_row: AtomicU32,
    trips: AtomicU64,
}

impl Circuit {
    pub(super) fn new(breaker: Breaker) -> Self {
        Self {
            breaker,
            calls: Calls::default(),
            since: AtomicU64::new(0),
            latest: AtomicU64::new(0),
            open_until: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
            in_a_row: AtomicU32::new(0),
            trips: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        !self.is_open.load(Ordering::Relaxed)
    }

    pub(super) fn state(&self, now: Timestamp) -> BreakerState {
        let until = self.open_until.load(Ordering::Relaxed);
        if self.is_closed() {
            BreakerState::Closed
        } else if now.as_nanos() < until {
            BreakerState::Open
        } else {
            BreakerState::HalfOpen
        }
    }

    pub(super) fn trips(&self) -> u64 {
        self.trips.load(Ordering::Relaxed)
    }

    /// Whether a request may ask while it is open.
    pub(super) fn ask(&self, now: Timestamp) -> Gate {
        let until = self.open_until.load(Ordering::Relaxed);
        if now.as_nanos() < until {
            return Gate::Shut;
        }
        // One goes first, and the others wait for what comes of it as long again.
        let next = (now + self.stays_open()).as_nanos();
        let relaxed = Ordering::Relaxed;
        let claimed = self
            .open_until
            .compare_exchange(until, next, relaxed, relaxed);
        match claimed {
            Ok(_) => Gate::Probe,
            Err(_) => Gate::Shut,
        }
    }

    /// The turn of a request that was told this.
    pub(super) fn turn(&self, gate: Gate) -> Turn<'_> {
        Turn((gate == Gate::Probe).then_some(self))
    }

    /// The store was asked and answered.
    #[inline]
    pub(super) fn answered(&self, now: Timestamp) {
        self.calls.count(now, self.breaker.failing_over, 0);
        if self.since.load(Ordering::Relaxed) != 0 {
            self.since.store(0, Ordering::Relaxed);
        }
    }

    /// The store works. Returns whether that closed the circuit.
    pub(super) fn closes(&self) -> bool {
        self.since.store(0, Ordering::Relaxed);
        let was_open = self.is_open.swap(false, Ordering::Relaxed);
        if was_open {
            self.in_a_row.store(0, Ordering::Relaxed);
            self.calls.forget();
        }
        was_open
    }

    /// The store was asked and gave no answer. Returns for how long it isn't asked, if that begins now: not if it was a
    /// probe, which only prolongs it.
    pub(super) fn fails(&self, now: Timestamp, gate: Gate) -> Option<Duration> {
        let over = self.breaker.failing_over;
        self.calls.count(now, over, 1);
        let is_open = self.is_open.load(Ordering::Relaxed);
        if is_open && gate != Gate::Probe {
            // Others that ask don't prolong it.
            return None;
        }
        if !is_open && !self.is_silent(now) && !self.calls.are_failing(now, &self.breaker) {
            return None;
        }
        if !is_open && self.is_open.swap(true, Ordering::Relaxed) {
            return None;
        }
        self.in_a_row.fetch_add(1, Ordering::Relaxed);
        let stays = self.stays_open();
        let until = (now + stays).as_nanos().max(1);
        self.open_until.store(until, Ordering::Relaxed);
        self.trips.fetch_add(u64::from(!is_open), Ordering::Relaxed);
        (!is_open).then_some(stays)
    }

    /// Whether it was asked for long enough without an answer. A pause without requests says nothing.
    fn is_silent(&self, now: Timestamp) -> bool {
        let nanos = now.as_nanos().max(1);
        let latest = self.latest.swap(nanos, Ordering::Relaxed);
        let pause = u128::from(nanos.saturating_sub(latest));
        let since = self.since.load(Ordering::Relaxed);
        if since == 0 || pause > self.breaker.silent_for.as_nanos() {
            self.since.store(nanos, Ordering::Relaxed);
            return self.breaker.silent_for.is_zero();
        }
        u128::from(nanos.saturating_sub(since)) >= self.breaker.silent_for.as_nanos()
    }

    fn stays_open(&self) -> Duration {
        let times = self
            .in_a_row
            .load(Ordering::Relaxed)
            .saturating_sub(1)
            .min(30);
        let Breaker {
            opens_for,
            longest_open,
            ..
        } = self.breaker;
        opens_for
            .saturating_mul(1 << times)
            .min(longest_open.max(opens_for))
    }
}

/// Calls and failures of the last while, in a word for each of its parts: the part's number, 24 bits; calls, 20;
/// failures, 20.
#[derive(Debug, Default)]
struct Calls([AtomicU64; PARTS]);

const COUNT_BITS: u32 = 20;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

impl Calls {
    fn number(now: Timestamp, over: Duration) -> u64 {
        let parts = u128::try_from(PARTS).unwrap_or(1);
        let width = u64::try_from(over.as_nanos() / parts).unwrap_or(u64::MAX);
        (now.as_nanos() / width.max(1)) & 0xFF_FFFF
    }

    /// Counts a call and so many failures.
    #[inline]
    fn count(&self, now: Timestamp, over: Duration, failures: u64) {
        let number = Self::number(now, over);
        let place = usize::try_from(number).unwrap_or(0) % PARTS;
        let relaxed = Ordering::Relaxed;
        let _ = self.0[place].fetch_update(relaxed, relaxed, |word| {
            let (calls, failed) = if word >> (2 * COUNT_BITS) == number {
                ((word >> COUNT_BITS) & COUNT, word & COUNT)
            } else {
                (0, 0)
            };
            if calls == COUNT {
                // As many as there can be: the share stays as it is.
                return None;
            }
            let counts = (calls + 1) << COUNT_BITS | (failed + failures).min(COUNT);
            Some(number << (2 * COUNT_BITS) | counts)
        });
    }

    fn are_failing(&self, now: Timestamp, breaker: &Breaker) -> bool {
        let number = Self::number(now, breaker.failing_over);
        let parts = u64::try_from(PARTS).unwrap_or(1);
        let (mut calls, mut failed) = (0, 0);
        for word in &self.0 {
            let word = word.load(Ordering::Relaxed);
            if number.wrapping_sub(word >> (2 * COUNT_BITS)) & 0xFF_FFFF < parts {
                calls += (word >> COUNT_BITS) & COUNT;
                failed += word & COUNT;
            }
        }
        calls >= u64::from(breaker.of_calls)
            && failed * 100 >= calls * u64::from(breaker.failing_percent)
    }

    fn forget(&self) {
        for word in &self.0 {
            word.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + millis)
    }

    /// Asks every so many milliseconds from a time on; returns when the circuit opened, and for how long.
    fn opens(
        circuit: &Circuit,
        from: u64,
        every: u64,
        until: u64,
        answers: impl Fn(u64) -> bool,
    ) -> Option<(u64, Duration)> {
        (from..until)
            .step_by(usize::try_from(every).unwrap())
            .enumerate()
            .find_map(|(number, millis)| {
                if answers(u64::try_from(number).unwrap()) {
                    circuit.answered(at(millis));
                    None
                } else {
                    circuit
                        .fails(at(millis), Gate::Open)
                        .map(|stays| (millis, stays))
                }
            })
    }

    #[test]
    fn silence_for_two_seconds_opens_it_whatever_the_traffic() {
        let second = Duration::from_secs(1);
        let slow = Circuit::new(Breaker::default());
        // Too few calls for a share.
        assert_eq!(
            opens(&slow, 0, 500, 9_000, |_| false),
            Some((2_000, second))
        );
        // A pause says nothing: once asked, an hour later once more.
        let rare = Circuit::new(Breaker::default());
        assert_eq!(opens(&rare, 0, 3_600_000, 20 * 3_600_000, |_| false), None);
        // An answer now and then keeps it closed while most are answered.
        let flaky = Circuit::new(Breaker::default());
        assert_eq!(opens(&flaky, 0, 10, 60_000, |number| number % 5 < 3), None);
    }

    #[test]
    fn half_of_the_calls_open_it_and_a_burst_of_failures_does_not() {
        let busy = Circuit::new(Breaker::default());
        for millis in 0..4_000 {
            busy.answered(at(millis));
        }
        // 200 ms of failures at 1,000 a second: a hiccup.
        assert_eq!(opens(&busy, 4_000, 1, 4_200, |_| false), None);
        for millis in 4_200..8_000 {
            busy.answered(at(millis));
        }
        // Half of them for seconds: it opens once they are half of what was asked in five.
        let (when, _) = opens(&busy, 8_000, 1, 20_000, |number| number % 10 < 4).unwrap();
        assert!((11_000..13_500).contains(&when), "{when}");
        // At 20 calls and no sooner.
        let young = Circuit::new(Breaker::default());
        assert_eq!(
            opens(&young, 0, 10, 1_000, |number| number % 2 == 0)
                .unwrap()
                .0,
            190
        );
    }

    #[test]
    fn it_stays_open_twice_as_long_each_time_and_a_minute_at_most() {
        let circuit = Circuit::new(Breaker::default());
        let (mut now, mut stays) = opens(&circuit, 0, 100, 9_000, |_| false).unwrap();
        let mut seen = vec![stays.as_secs()];
        for _ in 0..7 {
            let end = now + u64::try_from(stays.as_millis()).unwrap();
            assert_eq!(circuit.state(at(end - 1)), BreakerState::Open);
            assert_eq!(circuit.ask(at(end - 1)), Gate::Shut);
            assert_eq!(circuit.state(at(end)), BreakerState::HalfOpen);
            assert_eq!(circuit.ask(at(end)), Gate::Probe);
            assert_eq!(circuit.ask(at(end)), Gate::Shut);
            // What others ask of it doesn't prolong it.
            assert_eq!(circuit.fails(at(end), Gate::Open), None);
            assert_eq!(circuit.fails(at(end), Gate::Probe), None);
            stays = circuit.stays_open();
            now = end;
            seen.push(stays.as_secs());
        }
        assert_eq!(seen, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(circuit.closes() && circuit.is_closed());
        assert_eq!(circuit.state(at(now)), BreakerState::Closed);
        // What was before is forgotten: it takes two seconds again, and opens for one.
        let again = opens(&circuit, 1_000_000, 200, 1_009_000, |_| false);
        assert_eq!(again, Some((1_002_000, Duration::from_secs(1))));
    }

    #[test]
    fn a_probe_that_is_given_up_leaves_its_turn_to_the_next() {
        let circuit = Circuit::new(Breaker::default());
        opens(&circuit, 0, 100, 9_000, |_| false).unwrap();
        let gate = circuit.ask(at(5_000));
        assert_eq!(gate, Gate::Probe);
        drop(circuit.turn(gate));
        assert_eq!(circuit.ask(at(5_000)), Gate::Probe);
    }
}
