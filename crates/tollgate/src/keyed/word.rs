//! What a key's word says: a TAT, or a time until which the key is blocked.

use tollgate_core::{Outcome, Pace, Tat, Timestamp};

/// The slot is being taken over or moved; nobody may charge it.
pub(crate) const BUSY: u64 = u64::MAX;
/// Set: the rest of the word is the time until which the key is blocked, whatever the rate.
const BLOCKED: u64 = 1 << 63;

/// A word that is not [`BUSY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyWord(pub(crate) u64);

/// What one charge would do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judged {
    pub(crate) outcome: Outcome,
    /// The word as it was.
    pub(crate) before: KeyWord,
    /// The word after the charge, if it is made.
    pub(crate) after: KeyWord,
    /// How long it has to wait, in word units.
    pub(crate) wait: u64,
    /// Whether the charge was made, now or to act after the wait. Judging alone makes none.
    pub(crate) taken: bool,
}

impl KeyWord {
    /// A key never seen.
    pub(crate) const NEW: Self = Self(0);

    pub(crate) fn blocked_until(until: u64) -> Self {
        Self(BLOCKED | until.min(BLOCKED - 2))
    }

    #[inline]
    pub(crate) fn is_blocked(self) -> bool {
        self.0 & BLOCKED != 0
    }

    /// When the key is as one never seen, in word units.
    #[inline]
    pub(crate) fn idle_at(self) -> u64 {
        self.0 & !BLOCKED
    }

    /// The TAT under this pace: at most an empty bucket and the longest booking ahead, so that a
    /// key that got a faster rate isn't held back by what the slower one made of its debt.
    #[inline(always)]
    pub(crate) fn tat(self, pace: Pace, now: u64, longest_wait: u64) -> Tat {
        Tat::from_word(self.0.min(Self::farthest(pace, now, longest_wait)))
    }

    /// The latest TAT that charges under this pace lead to.
    #[inline(always)]
    pub(crate) fn farthest(pace: Pace, now: u64, longest_wait: u64) -> u64 {
        now.saturating_add(pace.capacity)
            .saturating_add(longest_wait)
    }

    /// Decides a cost under this pace.
    #[inline(always)]
    pub(crate) fn judge(self, pace: Pace, now: Timestamp, cost: u64, longest_wait: u64) -> Judged {
        let judged = |outcome, after, wait| Judged {
            outcome,
            before: self,
            after,
            wait,
            taken: false,
        };
        let local = units(now);
        let mut key = self;
        if self.is_blocked() {
            if self.idle_at() > local {
                return judged(Outcome::Denied, self, self.idle_at() - local);
            }
            key = Self::NEW;
        }
        match pace.plan(key.tat(pace, local, longest_wait), now, cost) {
            // A TAT may not reach into the flag.
            Some((after, wait)) if after.to_word() < BLOCKED => {
                let outcome = if wait == 0 {
                    Outcome::Allowed
                } else {
                    Outcome::Denied
                };
                judged(outcome, Self(after.to_word()), wait)
            }
            _ => judged(Outcome::Never, self, 0),
        }
    }
}

/// A time in word units.
#[inline]
pub(crate) fn units(now: Timestamp) -> u64 {
    Pace::UNLIMITED.empty(now).to_word()
}
