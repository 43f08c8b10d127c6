//! The holds of a word, until they are settled: outstanding tokens don't drain.
//!
//! Before every step the TAT is raised to at least the outstanding tokens. So available and outstanding tokens together
//! never exceed the burst, and no refunded token was granted to another request meanwhile. A check that knows nothing
//! of holds is right too, if the word was raised for its time before: a hold adds as much to the TAT as to the
//! outstanding tokens, and a settlement takes no more from the TAT. So while tokens are outstanding, the limiter's
//! mark, which a check reads anyway, makes callers raise the word first. Otherwise holds cost nothing.
//!
//! # Memory ordering
//! The TAT changes by compare-and-swap only, beside checks that haven't seen the mark. `refund_barrier` is stored
//! before the TAT falls (release), and read after the TAT was (acquire, by the fence of a snapshot): a thread that sees
//! a TAT built on the lowered one also sees the barrier.

use std::time::Duration;

use tollgate_core::{Arithmetic, BookingError, GcraParams, Outcome, TatState, Timestamp};

use super::super::{ChargeTicket, Outstanding};
use super::{GcraWord, WordSettings, WordView};
use crate::cell::switch::Switch;
use crate::holds::HoldId;
use crate::sync::Ordering;

/// The most outstanding tokens, in word units: two years, so that the word can represent them.
const MAX_OUTSTANDING: u64 = 1 << 62;

impl GcraWord {
    /// Takes an estimate, to be settled by `until`. The caller must prevent concurrent holds, settlements and changes
    /// of the rate.
    pub(crate) fn hold(
        &self,
        now: Timestamp,
        cost: u64,
        until: Timestamp,
    ) -> Result<ChargeTicket, BookingError> {
        self.reserve_with_holds(now, cost, Duration::ZERO)?;
        let mut settings = self.settings();
        // A request that isn't counted has no outstanding tokens.
        let counts = settings.mode == Switch::Enforce && settings.limit.is_counting();
        if cost == 0 || !counts {
            return Ok(ChargeTicket::Free(now));
        }
        Ok(ChargeTicket::Held {
            id: settings.holds.open((), cost, until),
            is_shared: false,
        })
    }

    /// Ends a hold of which `spent` tokens were spent: unspent tokens are refunded, and tokens beyond the estimate are
    /// owed, up to a full bucket. It does nothing if the hold has expired: then all of it counts as spent.
    pub(crate) fn settle(&self, now: Timestamp, id: HoldId, spent: u64) {
        self.keep_near(now);
        let settings = &mut *self.settings();
        self.expire_holds_locked(settings, now);
        let Some((cost, ())) = settings.holds.close(id) else {
            return;
        };
        let (limit, local) = (settings.counted_by, self.time_since_anchor(now));
        if spent < cost {
            self.update_tat(|tat| {
                // Other charges may bring the TAT back to the value that an earlier charge left. That charge must not
                // be cancelled then, so the barrier excludes it.
                self.refund_barrier
                    .fetch_max(tat.to_word(), Ordering::Relaxed);
                limit.refund(tat, local, cost - spent);
            });
        } else if spent > cost {
            let tat = self.update_tat(|tat| limit.charge_overrun(tat, local, spent - cost));
            self.note_booking(tat, now);
        }
    }

    /// Advances the holds to this time, and returns whether any token is outstanding.
    pub(crate) fn expire_holds(&self, now: Timestamp) -> bool {
        self.keep_near(now);
        let settings = &mut *self.settings();
        self.expire_holds_locked(settings, now);
        !settings.holds.is_empty()
    }

    /// Whether any token was outstanding at the latest request.
    pub(crate) fn is_held(&self) -> bool {
        !self.settings().holds.is_empty()
    }

    /// As [`reserve`](Self::reserve), while tokens are outstanding. They come back at an unknown time, so no
    /// reservation relies on them.
    pub(super) fn reserve_with_holds(
        &self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<ChargeTicket, BookingError> {
        self.expire_holds(now);
        let can_promise = {
            let settings = self.settings();
            let out = settings.holds.held_tokens();
            out == 0 || settings.limit.can_promise(cost, out)
        };
        if can_promise {
            return self.reserve(now, cost, patience, Outstanding::NoneHeld);
        }
        let reserved = self.reserve(now, cost, Duration::ZERO, Outstanding::NoneHeld);
        reserved.map_err(|unbooked| {
            let decision = unbooked.decision();
            let in_time = decision.wait_or_max() <= patience && !patience.is_zero();
            match decision.outcome {
                Outcome::Denied if in_time => BookingError::TooFarAhead(decision),
                _ => unbooked,
            }
        })
    }

    /// The words as they would be at this time.
    pub(super) fn view_with_holds(&self, now: Timestamp) -> WordView {
        // All of them but the TAT change only under this lock.
        let settings = self.settings();
        let mut tat = TatState::from_word(self.tat.load(Ordering::Relaxed));
        self.for_each_outstanding(&settings, now, |at, out| {
            settings.counted_by.keep_outstanding(&mut tat, at, out);
        });
        WordView {
            pace: GcraParams {
                interval: self.terms.interval.load(Ordering::Relaxed),
                capacity: self.terms.capacity.load(Ordering::Relaxed),
            },
            tat,
            now: self.time_since_anchor(now),
            sequence: self.terms.sequence.load(Ordering::Relaxed),
        }
    }

    /// Raises the TAT to the outstanding tokens, and removes expired holds. The caller holds the lock.
    pub(super) fn expire_holds_locked(&self, settings: &mut WordSettings, now: Timestamp) {
        if settings.holds.is_empty() {
            return;
        }
        if let Some(from) = settings.latest.detect_set_back(now) {
            settings.holds.remove_expired(from);
            settings.holds.follow_clock_change(from, now);
        }
        settings.latest.advance_to(now);
        let limit = settings.counted_by;
        self.for_each_outstanding(settings, now, |at, out| {
            let tat = self.update_tat(|tat| limit.keep_outstanding(tat, at, out));
            if out > limit.limit() {
                // The debt exceeds a full bucket because the bucket became smaller, not because a clock was ahead.
                self.note_booking(tat, now);
            }
        });
        settings.holds.remove_expired(now);
    }

    fn for_each_outstanding(
        &self,
        settings: &WordSettings,
        now: Timestamp,
        mut keep_out: impl FnMut(Timestamp, u64),
    ) {
        let most = MAX_OUTSTANDING / settings.counted_by.interval_units().max(1);
        for (at, out) in settings.holds.held_until(now) {
            keep_out(self.time_since_anchor(at), out.min(most));
        }
    }

    /// Changes the TAT while other threads may charge it; returns the new TAT.
    fn update_tat(&self, change: impl Fn(&mut TatState)) -> TatState {
        let mut seen = self.tat.load(Ordering::Relaxed);
        loop {
            let mut tat = TatState::from_word(seen);
            change(&mut tat);
            let to = tat.to_word();
            if to == seen {
                return tat;
            }
            match self
                .tat
                .compare_exchange_weak(seen, to, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return tat,
                Err(other) => seen = other,
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use tollgate_core::{Gcra, Rate};

    use super::super::AnchorOwner;
    use super::*;
    use crate::cell::CancelScope;

    /// Without the barrier, nine remain where three of ten were just taken: twelve at one instant.
    #[test]
    fn what_was_charged_beside_a_hold_is_not_given_back_by_what_others_took_since() {
        let at = Timestamp::from_secs;
        let limit = Gcra::new(Rate::per_second(1).burst(10)).expect("a rate that fits");
        let word = GcraWord::new(limit, at(0), AnchorOwner::Word);
        let Ok(ChargeTicket::Held { id, .. }) = word.hold(at(0), 3, at(60)) else {
            panic!("a full bucket");
        };
        let charged = word
            .reserve(at(0), 5, Duration::ZERO, Outstanding::NoneHeld)
            .expect("seven left");
        word.settle(at(2), id, 0);
        assert_eq!(word.peek(at(2), 0, Outstanding::NoneHeld).remaining, 7);
        // As many as came back, so that the TAT is where the first charge had left it.
        let later = word
            .reserve(at(2), 3, Duration::ZERO, Outstanding::NoneHeld)
            .expect("seven left");
        word.cancel(at(2), &charged, CancelScope::Unused);
        assert_eq!(word.peek(at(2), 0, Outstanding::NoneHeld).remaining, 4);
        // The later charge can't be cancelled either, because it looks the same. Beyond the barrier all is as before.
        word.cancel(at(2), &later, CancelScope::Unused);
        assert_eq!(word.peek(at(2), 0, Outstanding::NoneHeld).remaining, 4);
        let beyond = word
            .reserve(at(2), 1, Duration::ZERO, Outstanding::NoneHeld)
            .expect("four left");
        word.cancel(at(2), &beyond, CancelScope::Unused);
        assert_eq!(word.peek(at(2), 0, Outstanding::NoneHeld).remaining, 4);
    }

    #[test]
    fn a_hold_that_is_settled_gives_back_though_the_word_counts_from_elsewhere_by_then() {
        let at = Timestamp::from_secs;
        let year = 365 * 86_400;
        let limit = Gcra::new(Rate::per_second(1).burst(10)).expect("a rate that fits");
        for now in [at(5 * year + 7), at(50 * year)] {
            let word = GcraWord::new(limit, at(7), AnchorOwner::Word);
            let Ok(ChargeTicket::Held { id, .. }) = word.hold(at(7), 6, at(90 * year)) else {
                panic!("a full bucket");
            };
            assert!(word.expire_holds(now));
            assert_eq!(word.peek(now, 0, Outstanding::SomeHeld).remaining, 4);
            word.settle(now, id, 2);
            assert_eq!(word.peek(now, 0, Outstanding::NoneHeld).remaining, 8);
            assert!(!word.expire_holds(now));
        }
    }
}
