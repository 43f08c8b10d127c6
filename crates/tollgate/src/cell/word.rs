//! GCRA in one atomic word: lock-free, a denial writes nothing, and the rate can change live.
//!
//! # Memory ordering
//! The TAT is one location, and every admission is a compare-and-swap on it, so coherence alone
//! makes the sum of all admissions exact: its operations are relaxed. The interval and capacity
//! beside it are guarded by a sequence number that is odd while they change:
//!
//! * A reader loads the sequence (acquire), the three words (relaxed), and after an acquire fence
//!   the sequence again. If it read any word of a change in progress, the fence pairs with the
//!   writer's release fence and the second load sees the odd number: it starts again.
//! * A writer stores the odd number, fences (release), stores the words, **moves the TAT** to its new
//!   scale, and stores the even number (release). A check that had read everything before the
//!   change then loses its compare-and-swap and reads again: no charge of the old interval lands on
//!   the new scale. A TAT that is not ahead of now means "nothing spent" whatever its value, so the
//!   writer gives it another one. A TAT that is ahead keeps its value only if its scale stays (the
//!   same interval, or a switch to or from bypass, zero and unlimited, which have no scale), or
//!   if both scales round to it; the late charge then counts as made just before the change. (And
//!   if refunds bring the TAT back to the very value that was read, once, at the old price.)
//! * A check that loses its compare-and-swap to another one has learned the TAT by it, and tries that at once: after an
//!   acquire fence it loads the sequence again. If the TAT is one that a change moved, or was charged after that, the fence
//!   pairs with the writer's release fence (a charge is a read-modify-write, and so continues what the writer's move
//!   released), and the load sees another number. If it sees the same one, the words that it has are those of this TAT.
//! * `burst` is read apart, for the report alone: a decision made during a change may name the
//!   other limit.
//! * The anchor, from which the TAT counts, is one of the words: it moves as in a change (`word/anchor.rs`).
//! * What is held until it is settled is kept beside the words (`word/held.rs`).

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

/// One limit's state on two cache lines of its own: one that charges write, and one that they only read.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct GcraWord {
    terms: WordTerms,
    tat: AtomicU64,
    /// The TAT after what was booked furthest ahead, and when the latest was booked by the clock.
    latest_booking_tat: AtomicU64,
    latest_booking_time: AtomicU64,
    /// Charges that left a TAT up to here aren't given back: something held came back since.
    refund_barrier: AtomicU64,
    /// Boxed, so that all of this fits two cache lines.
    settings: Mutex<Box<WordSettings>>,
}

/// What a charge reads and doesn't write. It has a cache line of its own, so that a thread has these words at hand while the
/// line of the TAT is still at another core, and swaps the TAT as soon as it has come.
#[derive(Debug)]
#[repr(align(64))]
struct WordTerms {
    interval: AtomicU64,
    capacity: AtomicU64,
    burst: AtomicU64,
    /// Odd while the words above change, and the anchor.
    sequence: AtomicU64,
    /// Times are kept from here, in nanoseconds of the clock, so that nine years fit the word.
    anchor: AtomicU64,
    /// Who moves the anchor.
    mover: AnchorOwner,
}

/// What a live change replaces; the words above are compiled from it.
#[derive(Debug)]
struct WordSettings {
    limit: Gcra,
    /// What the TAT counts by: the limit, or the last one that counted tokens.
    counted_by: Gcra,
    mode: Switch,
    /// What was taken as an estimate and is not settled yet.
    holds: OpenHolds<()>,
    /// The latest time seen while something is out.
    latest: LatestTime,
}

/// A consistent reading of the words.
#[derive(Clone, Copy)]
struct WordView {
    pace: GcraParams,
    tat: TatState,
    /// The caller's time, counted as the TAT is: 1 ns at the anchor, so that there is always a TAT before it.
    now: Timestamp,
    /// Which state of the words it is.
    sequence: u64,
}

/// The result of one attempt to charge.
#[derive(Clone, Copy)]
struct WordAttempt {
    outcome: Outcome,
    /// The words as they were read; after a charge, the TAT that it left.
    view: WordView,
    /// How long the request has to wait, in word units: for a denial, until it would pass.
    wait: u64,
}

impl WordAttempt {
    /// Whether it was refused for so long that the clock may have been set back since the TAT was charged.
    #[inline]
    fn exceeds_slack(&self) -> bool {
        self.outcome == Outcome::Denied && self.wait > SLACK
    }
}

/// How often a charge swaps the TAT before it waits for a moment: of two threads, the one that loses has the line then,
/// and succeeds if it doesn't let go of it.
const MAX_ATTEMPTS: usize = 2;

impl GcraWord {
    /// A limit that starts full.
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

    /// Spends all that there is at the anchor.
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

    // The rare cases, a lost race or a time far from the anchor, are kept out of line, so that other checks
    // stay short.

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

    /// A decision made as of the anchor, told to a caller whose time is before it: its clock stepped back to
    /// before the limiter was made.
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

    /// Decides without charging; with what is out by then, if anything is.
    pub(crate) fn peek(&self, now: Timestamp, cost: u64, out: Outstanding) -> Decision {
        let tried = match out {
            Outstanding::NoneHeld => self.evaluate(now, cost),
            Outstanding::SomeHeld => {
                // Follows a clock that was set, if it was.
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

    /// What an attempt to charge would result in.
    #[inline]
    fn evaluate(&self, now: Timestamp, cost: u64) -> WordAttempt {
        let judged = evaluate_view(self.view(now), cost);
        if judged.wait > SLACK && self.follow_clock_back(now) {
            return self.evaluate_again(now, cost);
        }
        judged
    }

    /// Charges a cost that passes now: the pace that it was charged at, and the TAT then. None if it
    /// was refused, or another thread came between.
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
        // A time before the anchor was judged as the anchor.
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

    /// Gives back what nothing was built on: only while the TAT is still what the charge left.
    pub(crate) fn cancel(&self, now: Timestamp, ticket: &ChargeTicket, undo: CancelScope) -> bool {
        let ChargeTicket::Charged(charge) = ticket else {
            return matches!(ticket, ChargeTicket::Free(_));
        };
        let WordView { tat, now, .. } = self.view(now);
        if tat.to_word() <= self.refund_barrier.load(Ordering::Relaxed) {
            return false;
        }
        // A lost race means that somebody built on it: nothing more to do.
        let before = undo.cancel_tat(tat, now, charge);
        before.is_some_and(|before| self.restore_tat(tat.to_word(), before.to_word()))
    }

    /// How long so many tokens take.
    pub(crate) fn drain_time(&self, tokens: u128) -> Duration {
        // Both words change under this lock.
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

    /// The pace in force, for a holder that hands out intervals of the TAT line.
    #[inline]
    pub(crate) fn interval(&self) -> u64 {
        self.terms.interval.load(Ordering::Relaxed)
    }

    /// Takes `cost` tokens at once, as an interval of the TAT line: where it ends.
    pub(crate) fn take_lease(&self, now: Timestamp, cost: u64) -> Option<TatState> {
        let tried = self.charge_or_deny(now, cost, 0);
        (tried.outcome == Outcome::Allowed).then_some(tried.view.tat)
    }

    /// Whether `cost` would pass at once if the TAT, which must now be `end`, fell to `start`.
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

    /// Takes back the interval `[start, end)` if nothing was built on it.
    pub(crate) fn restore_tat(&self, end: u64, start: u64) -> bool {
        self.tat
            .compare_exchange(end, start, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// The decision that reads like `outcome` with the words as they stand.
    pub(crate) fn describe_outcome(&self, now: Timestamp, outcome: Outcome) -> Decision {
        let view = self.view(now);
        let tried = WordAttempt {
            outcome,
            view,
            wait: 0,
        };
        self.decision_of(tried)
    }

    /// Charges `cost` if it has to wait at most `patience` nanoseconds.
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

    /// As [`take`](Self::take), unless other threads move the TAT first, or change the words.
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

    /// As [`attempt`](Self::attempt), but a wait of which it has to be found out first whether the clock was set back is
    /// left to [`take`](Self::take): that is rare, and out of line.
    #[inline]
    fn attempt_near(&self, now: Timestamp, cost: u64) -> Option<WordAttempt> {
        let tried = self.attempt(now, cost, 0)?;
        (!tried.exceeds_slack()).then_some(tried)
    }

    /// The same words with the TAT that another thread has left, unless they have changed since they were read.
    #[inline]
    fn view_after_loss(&self, view: WordView, tat: TatState) -> Option<WordView> {
        fence(Ordering::Acquire);
        let sequence = self.terms.sequence.load(Ordering::Relaxed);
        (sequence == view.sequence).then_some(WordView { tat, ..view })
    }

    /// Reads the words together, again if they changed meanwhile.
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

    /// Reads the words, unless they change at this moment, or the time is before the anchor, or far after it.
    #[inline]
    fn read_view(&self, now: Timestamp) -> Option<WordView> {
        let before = self.terms.sequence.load(Ordering::Acquire);
        // One comparison tells both a time before the anchor, which wraps, and one far after it.
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

/// What an attempt to charge would result in, by these words.
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

/// As `Duration::from_nanos`, without its division for what is shorter than a second.
#[inline]
fn fast_duration(nanos: u64) -> Duration {
    match u32::try_from(nanos) {
        Ok(nanos) if nanos < 1_000_000_000 => Duration::new(0, nanos),
        _ => Duration::from_nanos(nanos),
    }
}
