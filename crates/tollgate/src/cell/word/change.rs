//! A live change of a word's rate, and the switch that lets everything pass: see "Memory ordering" in `word.rs`.

use tollgate_core::{Arithmetic, Gcra, LimitError, Pace, Rate, Tat, Timestamp, units};

use super::{Settings, Word};
use crate::limiter::Switch;
use crate::sync::{Ordering, fence};

impl Word {
    pub(crate) fn change_rate(
        &self,
        at: Timestamp,
        change: impl Fn(Rate) -> Rate,
    ) -> Result<Gcra, LimitError> {
        let asked = self.keep_near(at);
        let mut settings = self.settings();
        let limit = Gcra::new(change(settings.limit.rate()))?;
        self.let_pass(&mut settings, at);
        settings.limit = limit;
        let now = self.local(asked);
        let (old, new) = (settings.counted_by.pace(), limit.pace());
        if new.counts() {
            settings.counted_by = limit;
            settings.latest.keep(&limit);
            self.change(&settings, now, |tat| new.carried_over(tat, &old, now));
            let tat = Tat::from_word(self.tat.load(Ordering::Relaxed));
            self.note_booking(tat, asked);
        } else {
            // A rate that counts no tokens leaves the debt as it is, for the next rate that counts.
            self.change(&settings, now, |tat| tat);
        }
        Ok(limit)
    }

    pub(crate) fn set_mode(&self, now: Timestamp, mode: Switch) {
        self.keep_near(now);
        let mut settings = self.settings();
        settings.mode = mode;
        let now = self.local(now);
        self.change(&settings, now, |tat| tat);
    }

    /// Publishes changed settings and moves the TAT to its new scale. The caller holds the lock.
    fn change(&self, settings: &Settings, now: Timestamp, rescale: impl Fn(Tat) -> Tat) {
        let (pace, burst) = match settings.mode {
            Switch::Enforce => (settings.limit.pace(), settings.limit.limit()),
            Switch::Bypass => (Pace::UNLIMITED, u64::MAX),
        };
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(before + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.interval.store(pace.interval, Ordering::Relaxed);
        self.capacity.store(pace.capacity, Ordering::Relaxed);
        self.burst.store(burst, Ordering::Relaxed);
        self.move_tat(now, rescale);
        self.sequence.store(before + 2, Ordering::Release);
    }

    /// Rescales the TAT, and gives it a value that it didn't have before. The sequence is odd meanwhile.
    pub(super) fn move_tat(&self, now: Timestamp, rescale: impl Fn(Tat) -> Tat) {
        let mut tat = Tat::from_word(self.tat.load(Ordering::Relaxed));
        loop {
            let mut to = rescale(tat);
            if to == tat && to.to_word() <= units::of(now) {
                // All TATs that are not ahead of now mean the same, so another one is as good.
                to = Tat::from_word(units::of(now) - u64::from(to.to_word() == units::of(now)));
            }
            if self.swap(tat, to) {
                break;
            }
            tat = Tat::from_word(self.tat.load(Ordering::Relaxed));
        }
    }
}
