//! A live change of a word's rate, and the switch to bypass: see "Memory ordering" in `word.rs`.

use tollgate_core::{Arithmetic, Gcra, GcraParams, LimitError, Rate, TatState, Timestamp, units};

use super::anchor::BEFORE_ANY_TIME;
use super::{GcraWord, NEAR_NANOS, WordSettings};
use crate::cell::switch::Switch;
use crate::sync::{Ordering, fence};

/// How far the clock stepped back.
enum ClockStep {
    /// By this much, in word units; 0 if no step is visible.
    By(u64),
    /// The TAT is further ahead than any charge can have left it, and the size of the step is unknown.
    Unknown,
}

impl GcraWord {
    pub(crate) fn change_rate(
        &self,
        at: Timestamp,
        change: impl Fn(Rate) -> Rate,
    ) -> Result<Gcra, LimitError> {
        if at >= self.anchor() {
            self.keep_near(at);
        }
        let mut settings = self.settings();
        let limit = Gcra::new(change(settings.limit.rate()))?;
        self.extend_anchor_back(at);
        let anchor = self.anchor();
        let asked = at.clamp(anchor, anchor.plus_nanos(NEAR_NANOS - 1));
        self.expire_holds_locked(&mut settings, at);
        settings.limit = limit;
        let now = self.time_since_anchor(asked);
        let (old, new) = (settings.counted_by.params(), limit.params());
        if new.is_counting() {
            settings.counted_by = limit;
            settings.latest.extend_reach(&limit);
            self.apply_settings(&settings, now, |tat| {
                match self.clock_step_of(tat, &old, asked) {
                    // The spent part is unknown, so the remaining time stays, up to an empty bucket.
                    ClockStep::Unknown => new.migrated_tat(tat, &GcraParams::UNLIMITED, now),
                    ClockStep::By(step) => {
                        let spent = TatState::from_word(tat.to_word().saturating_sub(step));
                        new.migrated_tat(spent, &old, now)
                    }
                }
            });
            let tat = TatState::from_word(self.tat.load(Ordering::Relaxed));
            if tat.to_word() > units::from_time(now).saturating_add(new.capacity) {
                self.note_booking(tat, asked);
            }
        } else {
            // A rate that counts no tokens leaves the debt unchanged, for the next rate that counts.
            self.apply_settings(&settings, now, |tat| tat);
        }
        Ok(limit)
    }

    pub(crate) fn set_switch(&self, now: Timestamp, mode: Switch) {
        self.keep_near(now);
        let mut settings = self.settings();
        settings.mode = mode;
        let now = self.time_since_anchor(now);
        self.apply_settings(&settings, now, |tat| tat);
    }

    /// Publishes changed settings and moves the TAT to its new scale. The caller holds the lock.
    fn apply_settings(
        &self,
        settings: &WordSettings,
        now: Timestamp,
        rescale: impl Fn(TatState) -> TatState,
    ) {
        let (pace, burst) = match settings.mode {
            Switch::Enforce => (settings.limit.params(), settings.limit.limit()),
            Switch::Bypass => (GcraParams::UNLIMITED, u64::MAX),
        };
        let before = self.terms.sequence.load(Ordering::Relaxed);
        self.terms.sequence.store(before + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.terms.interval.store(pace.interval, Ordering::Relaxed);
        self.terms.capacity.store(pace.capacity, Ordering::Relaxed);
        self.terms.burst.store(burst, Ordering::Relaxed);
        self.move_tat(now, rescale);
        self.terms.sequence.store(before + 2, Ordering::Release);
    }

    /// How far the clock stepped back since the TAT was charged, as far as that is visible. The step isn't spent
    /// tokens: a rate that is a hundred times slower must not turn five seconds into five hundred tokens.
    fn clock_step_of(&self, tat: TatState, pace: &GcraParams, now: Timestamp) -> ClockStep {
        let ahead = tat
            .to_word()
            .saturating_sub(units::from_time(self.time_since_anchor(now)));
        if ahead <= pace.capacity {
            return ClockStep::By(0);
        }
        if tat.to_word() <= self.latest_booking_tat.load(Ordering::Relaxed) {
            let booked_at = self.latest_booking_time.load(Ordering::Relaxed);
            return ClockStep::By(units::from_nanos(booked_at.saturating_sub(now.as_nanos())));
        }
        ClockStep::Unknown
    }

    /// Rescales the TAT, and gives it a value that it didn't have before. The sequence must be odd meanwhile.
    pub(super) fn move_tat(&self, now: Timestamp, rescale: impl Fn(TatState) -> TatState) {
        let mut tat = TatState::from_word(self.tat.load(Ordering::Relaxed));
        loop {
            let mut to = rescale(tat);
            if to == tat && to.to_word() <= units::from_time(now) {
                // All TATs that are not ahead of now mean the same, so another one is equivalent. It mustn't be later,
                // or a clock that steps back would find tokens spent. A TAT below a nanosecond is before every time.
                let another = to.to_word().checked_sub(1);
                to = TatState::from_word(another.unwrap_or(BEFORE_ANY_TIME));
            }
            match self.swap_tat(tat, to) {
                Ok(()) => break,
                Err(other) => tat = other,
            }
        }
    }
}
