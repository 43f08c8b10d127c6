//! GCRA in one atomic word: lock-free, a denial writes nothing, and the rate can change live.
//!
//! # Memory ordering
//! The TAT is one location, and every admission is a compare-and-swap on it, so coherence alone makes the sum of all
//! admissions exact: its operations are relaxed. A sequence number that is odd during a change guards the interval and
//! the capacity beside it:
//!
//! * A reader loads the sequence (acquire), the three words (relaxed), and after an acquire fence the sequence again.
//!   If it read any word of a change in progress, the fence pairs with the writer's release fence and the second load
//!   sees the odd number: the reader starts again.
//! * A writer stores the odd number, fences (release), stores the words, **moves the TAT** to its new scale, and stores
//!   the even number (release). A check that had read everything before the change then loses its compare-and-swap and
//!   reads again: no charge of the old interval lands on the new scale. A TAT that is not ahead of now means "nothing
//!   spent" whatever its value, so the writer gives it another value. A TAT that is ahead keeps its value only if its
//!   scale stays (the same interval, or a switch to or from bypass, zero and unlimited, which have no scale), or if
//!   both scales round to it; the late charge then counts as made just before the change. (Refunds may also bring the
//!   TAT back to the very value that was read; then one charge is made at the old price.)
//! * A check that loses its compare-and-swap to another check learns the TAT by it, and tries that immediately: after
//!   an acquire fence it loads the sequence again. If a change moved the TAT, or it was charged after that, the fence
//!   pairs with the writer's release fence (a charge is a read-modify-write, so it continues the release sequence of
//!   the writer's move), and the load sees another number. If it sees the same number, the words that it has are those
//!   of this TAT.
//! * `burst` is read separately, for reports only: a decision made during a change may name the other limit.
//! * The anchor, from which the TAT counts, is one of the words: it moves as in a change (`word/anchor.rs`).
//! * Holds are stored beside the words until they are settled (`word/holds.rs`).

use std::time::Duration;

use tollgate_core::{
    Arithmetic, BookingError, Decision, Gcra, GcraParams, Outcome, Rate, TatState, Timestamp, units,
};

use super::{CancelScope, ChargeTicket, Outstanding};
use crate::cell::switch::Switch;
use crate::clock_steps::LatestTime;
use crate::holds::OpenHolds;
use crate::sync::{AtomicU64, Backoff, Mutex, MutexGuard, Ordering, fence, ignore_poison};

mod anchor;
mod change;
mod holds;

pub(crate) use anchor::AnchorOwner;
use anchor::{NEAR_NANOS, SLACK};

/// The state of one limit on two cache lines of its own: charges write one of them, and only read the other.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct GcraWord {
    terms: WordTerms,
    tat: AtomicU64,
    /// The TAT after the booking furthest ahead, and the clock's time of the latest booking.
    latest_booking_tat: AtomicU64,
    latest_booking_time: AtomicU64,
    /// A charge that left a TAT up to here can't be cancelled, because a hold was refunded since.
    refund_barrier: AtomicU64,
    /// Boxed, so that the whole struct fits two cache lines.
    settings: Mutex<Box<WordSettings>>,
}

/// The words that a charge reads and doesn't write. They have a cache line of their own, so that a thread has them
/// while another core has the line of the TAT, and can swap the TAT as soon as that line arrives.
#[derive(Debug)]
#[repr(align(64))]
struct WordTerms {
    interval: AtomicU64,
    capacity: AtomicU64,
    burst: AtomicU64,
    /// Odd while the words above, or the anchor, change.
    sequence: AtomicU64,
    /// The TAT counts from here, in nanoseconds of the clock, so that nine years fit the word.
    anchor: AtomicU64,
    /// The owner of the anchor, which moves it.
    mover: AnchorOwner,
}

/// The settings that a live change replaces. The words above are compiled from them.
#[derive(Debug)]
struct WordSettings {
    limit: Gcra,
    /// The limit under which the TAT counts: the limit in force, or the last one that counted tokens.
    counted_by: Gcra,
    mode: Switch,
    /// The estimates that are not settled yet.
    holds: OpenHolds<()>,
    /// The latest time of a request while tokens are outstanding.
    latest: LatestTime,
}

/// A consistent snapshot of the words.
#[derive(Clone, Copy)]
struct WordView {
    pace: GcraParams,
    tat: TatState,
    /// The caller's time, counted as the TAT is: the anchor is 1 ns, so that there is always a TAT before it.
    now: Timestamp,
    /// The version of the words.
    sequence: u64,
}

/// The result of one attempt to charge.
#[derive(Clone, Copy)]
struct WordAttempt {
    outcome: Outcome,
    /// The words that were read; after a charge, with the new TAT.
    view: WordView,
    /// The wait of the request, in word units; for a denial, until it would pass.
    wait: u64,
}

impl WordAttempt {
    /// Whether the wait is so long that the clock may have been set back since the TAT was charged.
    #[inline]
    fn exceeds_slack(&self) -> bool {
        self.outcome == Outcome::Denied && self.wait > SLACK
    }
}

/// How often a charge swaps the TAT before it pauses. Of two threads, the one that loses has the cache line then, and
/// succeeds if it tries again without delay.
const MAX_ATTEMPTS: usize = 2;

impl GcraWord {
    /// A limit that starts with a full burst.
    pub(crate) fn new(limit: Gcra, anchor: Timestamp, mover: AnchorOwner) -> Self {
        let pace = limit.params();
        Self {
            terms: WordTerms {
                interval: AtomicU64::new(pace.interval),
                capacity: AtomicU64::new(pace.capacity),
                burst: AtomicU64::new(limit.limit()),
                sequence: AtomicU64::new(0),
                anchor: AtomicU64::new(anchor.as_nanos()),
                mover,
            },
            tat: AtomicU64::new(TatState::default().to_word()),
            latest_booking_tat: AtomicU64::new(0),
            latest_booking_time: AtomicU64::new(0),
            refund_barrier: AtomicU64::new(0),
            settings: Mutex::new(Box::new(WordSettings {
                limit,
                counted_by: limit,
                mode: Switch::Enforce,
                holds: OpenHolds::default(),
                latest: LatestTime::new(&limit),
            })),
        }
    }

    /// Spends all tokens, as of the anchor.
    pub(crate) fn exhaust(&self) {
        let view = self.view(self.anchor());
        let empty = view.pace.empty(view.now);
        self.tat.store(empty.to_word(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn allow(&self, now: Timestamp, cost: u64) -> bool {
        match self.attempt_near(now, cost) {
            Some(tried) => tried.outcome == Outcome::Allowed,
            None => self.allow_after_loss(now, cost),
        }
    }

    #[inline]
    pub(crate) fn check(&self, now: Timestamp, cost: u64) -> Decision {
        match self.attempt_near(now, cost) {
            Some(tried) => self.decision_of(tried),
            None => self.check_after_loss(now, cost),
        }
    }

    // The rare cases, a lost race or a time far from the anchor, are never inlined, so that other checks stay short.

    #[cold]
    #[inline(never)]
    fn allow_after_loss(&self, now: Timestamp, cost: u64) -> bool {
        self.charge_or_deny(now, cost, 0).outcome == Outcome::Allowed
    }

    #[cold]
    #[inline(never)]
    fn check_after_loss(&self, now: Timestamp, cost: u64) -> Decision {
        let tried = self.charge_or_deny(now, cost, 0);
        self.adjust_for_anchor(self.decision_of(tried), now)
    }

    /// Adjusts a decision that was made as of the anchor for a caller whose time is before it: the clock stepped back
    /// to before the limiter was made.
    fn adjust_for_anchor(&self, mut decision: Decision, now: Timestamp) -> Decision {
        let early = self.anchor() - now;
        if decision.outcome == Outcome::Denied {
            decision.set_wait(decision.wait_or_max().saturating_add(early));
        }
        if !decision.reset_after.is_zero() {
            decision.reset_after += early;
        }
        decision
    }

    /// Decides without charging, with the tokens that will be outstanding then.
    pub(crate) fn peek(&self, now: Timestamp, cost: u64, out: Outstanding) -> Decision {
        let tried = match out {
            Outstanding::NoneHeld => self.evaluate(now, cost),
            Outstanding::SomeHeld => {
                // Follows a clock that was set back.
                self.evaluate(self.keep_near(now), cost);
                evaluate_view(self.view_with_holds(now), cost)
            }
        };
        self.adjust_for_anchor(self.decision_of(tried), now)
    }

    /// Whether a cost would pass, without charging it.
    #[inline]
    pub(crate) fn would_pass(&self, now: Timestamp, cost: u64) -> bool {
        self.evaluate(now, cost).outcome == Outcome::Allowed
    }

    /// The result that an attempt to charge would have.
    #[inline]
    fn evaluate(&self, now: Timestamp, cost: u64) -> WordAttempt {
        let judged = evaluate_view(self.view(now), cost);
        if judged.wait > SLACK && self.follow_clock_back(now) {
            return self.evaluate_again(now, cost);
        }
        judged
    }

    /// Charges a cost that passes now; returns the rate of the charge and the TAT afterwards. `None` if the cost was
    /// denied, or another thread came between.
    #[inline]
    pub(crate) fn charge(&self, now: Timestamp, cost: u64) -> Option<(GcraParams, TatState)> {
        let tried = self.attempt_near(now, cost)?;
        let WordView { pace, tat, .. } = tried.view;
        (tried.outcome == Outcome::Allowed).then_some((pace, tat))
    }

    pub(crate) fn reserve(
        &self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
        out: Outstanding,
    ) -> Result<ChargeTicket, BookingError> {
        if out == Outstanding::SomeHeld {
            return self.reserve_with_holds(now, cost, patience);
        }
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let tried = self.charge_or_deny(now, cost, patience);
        if tried.outcome != Outcome::Allowed {
            let decision = self.decision_of(tried);
            return Err(BookingError::Denied(self.adjust_for_anchor(decision, now)));
        }
        let WordView { pace, tat, .. } = tried.view;
        // A time before the anchor was decided as the anchor.
        let reached = now.max(self.anchor());
        let at = match GcraParams::wait_nanos(tried.wait) {
            0 => now,
            wait => {
                self.note_booking(tat, reached);
                reached.plus_nanos(wait)
            }
        };
        Ok(ChargeTicket::Charged(pace.charge_receipt(tat, at, cost)))
    }

    /// Cancels a charge that no later charge relies on: only while the TAT is still the one that the charge left.
    pub(crate) fn cancel(&self, now: Timestamp, ticket: &ChargeTicket, undo: CancelScope) -> bool {
        let ChargeTicket::Charged(charge) = ticket else {
            return matches!(ticket, ChargeTicket::Free(_));
        };
        let WordView { tat, now, .. } = self.view(now);
        if tat.to_word() <= self.refund_barrier.load(Ordering::Relaxed) {
            return false;
        }
        // After a lost race another charge relies on this one, so nothing can be refunded.
        let before = undo.cancel_tat(tat, now, charge);
        before.is_some_and(|before| self.restore_tat(tat.to_word(), before.to_word()))
    }

    /// How long this many tokens take to drain.
    pub(crate) fn drain_time(&self, tokens: u128) -> Duration {
        // Both words change only under this lock.
        let _unchanged = self.settings();
        let pace = GcraParams {
            interval: self.terms.interval.load(Ordering::Relaxed),
            capacity: self.terms.capacity.load(Ordering::Relaxed),
        };
        pace.refill_time(tokens)
    }

    pub(crate) fn tokens(&self, now: Timestamp, out: Outstanding) -> f64 {
        let view = match out {
            Outstanding::NoneHeld => self.view(now),
            Outstanding::SomeHeld => self.view_with_holds(now),
        };
        view.pace.tokens(view.tat, view.now)
    }

    pub(crate) fn limit(&self) -> Gcra {
        self.settings().limit
    }

    pub(crate) fn rate(&self) -> Rate {
        self.limit().rate()
    }

    pub(crate) fn switch(&self) -> Switch {
        self.settings().mode
    }

    /// The interval in force, for the stripes that lease intervals of TATs.
    #[inline]
    pub(crate) fn interval(&self) -> u64 {
        self.terms.interval.load(Ordering::Relaxed)
    }

    /// Takes `cost` tokens that pass now, as an interval of TATs; returns its end.
    pub(crate) fn take_lease(&self, now: Timestamp, cost: u64) -> Option<TatState> {
        let tried = self.charge_or_deny(now, cost, 0);
        (tried.outcome == Outcome::Allowed).then_some(tried.view.tat)
    }

    /// Whether `cost` would pass now if the TAT, which must now be `end`, fell to `start`.
    pub(crate) fn would_pass_after_return(
        &self,
        now: Timestamp,
        cost: u64,
        start: u64,
        end: u64,
    ) -> bool {
        let view = self.view(now);
        let plan = view.pace.plan(TatState::from_word(start), view.now, cost);
        view.tat.to_word() == end && plan.is_some_and(|(_, wait)| wait == 0)
    }

    /// Takes back the interval `[start, end)` if no later charge relies on it.
    pub(crate) fn restore_tat(&self, end: u64, start: u64) -> bool {
        self.tat
            .compare_exchange(end, start, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// The decision for `outcome`, with the present words.
    pub(crate) fn describe_outcome(&self, now: Timestamp, outcome: Outcome) -> Decision {
        let view = self.view(now);
        let tried = WordAttempt {
            outcome,
            view,
            wait: 0,
        };
        self.decision_of(tried)
    }

    /// Charges `cost` if its wait is at most `patience` nanoseconds.
    #[inline(always)]
    fn charge_or_deny(&self, now: Timestamp, cost: u64, patience: u64) -> WordAttempt {
        let mut backoff = Backoff::default();
        loop {
            match self.attempt(self.keep_near(now), cost, patience) {
                Some(tried) if tried.exceeds_slack() && self.follow_clock_back(now) => {}
                Some(tried) => return tried,
                None => backoff.back_off(),
            }
        }
    }

    /// As [`charge_or_deny`](Self::charge_or_deny), but `None` if other threads move the TAT first, or change the
    /// words.
    #[inline(always)]
    fn attempt(&self, now: Timestamp, cost: u64, patience: u64) -> Option<WordAttempt> {
        let mut view = self.read_view(now)?;
        for _ in 0..MAX_ATTEMPTS {
            let tried = |outcome, tat, wait| WordAttempt {
                outcome,
                view: WordView { tat, ..view },
                wait,
            };
            let Some((after, wait)) = view.pace.plan(view.tat, view.now, cost) else {
                return Some(tried(Outcome::Never, view.tat, 0));
            };
            if wait > 0 && GcraParams::wait_nanos(wait) > patience {
                return Some(tried(Outcome::Denied, view.tat, wait));
            }
            // A cost of 0 and an unlimited rate charge nothing, so they write nothing.
            if cost == 0 || view.pace.interval == 0 {
                return Some(tried(Outcome::Allowed, view.tat, wait));
            }
            match self.swap_tat(view.tat, after) {
                Ok(()) => return Some(tried(Outcome::Allowed, after, wait)),
                Err(other) => view = self.view_after_loss(view, other)?,
            }
        }
        None
    }

    /// As [`attempt`](Self::attempt), but `None` for a wait so long that the clock may have been set back.
    /// [`charge_or_deny`](Self::charge_or_deny) handles that rare case, and isn't inlined.
    #[inline]
    fn attempt_near(&self, now: Timestamp, cost: u64) -> Option<WordAttempt> {
        let tried = self.attempt(now, cost, 0)?;
        (!tried.exceeds_slack()).then_some(tried)
    }

    /// The same words with the TAT that another thread left, unless the words have changed since they were read.
    #[inline]
    fn view_after_loss(&self, view: WordView, tat: TatState) -> Option<WordView> {
        fence(Ordering::Acquire);
        let sequence = self.terms.sequence.load(Ordering::Relaxed);
        (sequence == view.sequence).then_some(WordView { tat, ..view })
    }

    /// Reads the words together, and repeats that if they changed meanwhile.
    #[inline]
    fn view(&self, now: Timestamp) -> WordView {
        match self.read_view(now) {
            Some(view) => view,
            None => self.view_after_change(now),
        }
    }

    #[cold]
    #[inline(never)]
    fn view_after_change(&self, now: Timestamp) -> WordView {
        let mut backoff = Backoff::default();
        loop {
            if let Some(view) = self.read_view(self.keep_near(now)) {
                return view;
            }
            backoff.back_off();
        }
    }

    /// Reads the words; `None` if they are changing, or if the time is before the anchor, or far after it.
    #[inline]
    fn read_view(&self, now: Timestamp) -> Option<WordView> {
        let before = self.terms.sequence.load(Ordering::Acquire);
        // One comparison excludes a time before the anchor, which wraps, and a time far after it.
        let nanos = now
            .as_nanos()
            .wrapping_sub(self.terms.anchor.load(Ordering::Relaxed));
        if nanos >= NEAR_NANOS {
            return None;
        }
        let view = WordView {
            pace: GcraParams {
                interval: self.terms.interval.load(Ordering::Relaxed),
                capacity: self.terms.capacity.load(Ordering::Relaxed),
            },
            tat: TatState::from_word(self.tat.load(Ordering::Relaxed)),
            now: Timestamp::from_nanos(nanos + 1),
            sequence: before,
        };
        fence(Ordering::Acquire);
        let after = self.terms.sequence.load(Ordering::Relaxed);
        (before == after && before & 1 == 0).then_some(view)
    }

    #[inline]
    fn swap_tat(&self, from: TatState, to: TatState) -> Result<(), TatState> {
        let (from, to, relaxed) = (from.to_word(), to.to_word(), Ordering::Relaxed);
        let swapped = self.tat.compare_exchange_weak(from, to, relaxed, relaxed);
        swapped.map(drop).map_err(TatState::from_word)
    }

    fn settings(&self) -> MutexGuard<'_, Box<WordSettings>> {
        ignore_poison(self.settings.lock())
    }

    #[inline]
    fn decision_of(&self, tried: WordAttempt) -> Decision {
        let limit = self.terms.burst.load(Ordering::Relaxed);
        let WordView { pace, tat, now, .. } = tried.view;
        if pace.interval == 0 {
            let none = Duration::ZERO;
            return Decision::new(tried.outcome, limit, u64::MAX, none, none);
        }
        let retry_after = match tried.outcome {
            Outcome::Allowed => Duration::ZERO,
            Outcome::Denied => fast_duration(GcraParams::wait_nanos(tried.wait)),
            Outcome::Never => Duration::MAX,
        };
        // The limit is idle again once time has reached the TAT.
        let ahead = tat.to_word().saturating_sub(units::from_time(now));
        let reset_after = fast_duration(GcraParams::wait_nanos(ahead));
        let remaining = pace.remaining(tat, now);
        Decision::new(tried.outcome, limit, remaining, retry_after, reset_after)
    }
}

/// The result of an attempt to charge, by these words.
#[inline]
fn evaluate_view(view: WordView, cost: u64) -> WordAttempt {
    let (outcome, wait) = match view.pace.plan(view.tat, view.now, cost) {
        None => (Outcome::Never, 0),
        Some((_, 0)) => (Outcome::Allowed, 0),
        Some((_, wait)) => (Outcome::Denied, wait),
    };
    WordAttempt {
        outcome,
        view,
        wait,
    }
}

/// As `Duration::from_nanos`, without its division for durations below a second.
#[inline]
fn fast_duration(nanos: u64) -> Duration {
    match u32::try_from(nanos) {
        Ok(nanos) if nanos < 1_000_000_000 => Duration::new(0, nanos),
        _ => Duration::from_nanos(nanos),
    }
}
