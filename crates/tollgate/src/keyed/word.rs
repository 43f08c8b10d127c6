//! What a key's word says: a TAT, or a time until which the key is blocked.

use tollgate_core::{Outcome, Pace, Tat, Timestamp, units};

/// The slot is being taken over or moved; nobody may charge it.
pub(crate) const BUSY: u64 = u64::MAX;
/// Set: the word is a block, whatever the rate: the nanosecond that it ends at, and in the six bits
/// above which power of two, in nanoseconds, the key has to pay off after it; none if they are 0.
const BLOCKED: u64 = 1 << 63;
const NANO_BITS: u32 = 57;
const LAST_NANO: u64 = (1 << NANO_BITS) - 1;

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
    /// When it was asked, as these words count it.
    pub(crate) now: Timestamp,
    /// Whether the charge was made, now or to act after the wait. Judging alone makes none.
    pub(crate) taken: bool,
    /// Whether it was refused at a faster rate than the word counts by. Then the word is to count by that rate
    /// from now on; `before` has the debt at that rate.
    pub(crate) takes_over: bool,
}

impl KeyWord {
    /// A key never seen.
    pub(crate) const NEW: Self = Self(0);
    /// The last time that a word holds.
    pub(crate) const LAST: u64 = units::from_nanos(LAST_NANO);

    /// A block until then. What the key had spent before is not forgiven: if that would be paid off
    /// only after the block, the rest is kept, rounded up.
    pub(crate) fn blocked(until: u64, idle_at: u64) -> Self {
        let nanos = units::to_nanos(until).min(LAST_NANO);
        let owed = idle_at
            .min(Self::LAST)
            .saturating_sub(units::from_nanos(nanos));
        let power = match units::to_nanos(owed) {
            0 => 0,
            owed => u64::from(owed.next_power_of_two().trailing_zeros().max(1)),
        };
        Self(BLOCKED | power << NANO_BITS | nanos)
    }

    /// Whether the word is a block, even if that is over.
    #[inline]
    pub(crate) fn is_blocked(self) -> bool {
        self.0 & BLOCKED != 0
    }

    /// Whether the key is blocked at this time.
    #[inline]
    pub(crate) fn is_blocked_at(self, now: u64) -> bool {
        self.is_blocked() && self.until() > now
    }

    /// When the block ends, in word units.
    pub(crate) fn until(self) -> u64 {
        units::from_nanos(self.0 & LAST_NANO)
    }

    /// The word without a block that is over.
    #[inline]
    pub(crate) fn at(self, now: u64) -> Self {
        if !self.is_blocked() || self.is_blocked_at(now) {
            return self;
        }
        match self.idle_at() {
            idle if idle > self.until() => Self(idle),
            _ => Self::NEW,
        }
    }

    /// The same word counted from so many units later; times before that become zero. A block without end stays
    /// as it is.
    pub(crate) fn moved(self, by: u64) -> Self {
        if self.is_endless() {
            return self;
        }
        self.at(by).with_times(|time| time.saturating_sub(by))
    }

    /// Whether it is a block that no time ends.
    pub(crate) fn is_endless(self) -> bool {
        self.is_blocked() && self.until() == Self::LAST
    }

    /// The same word with its times changed.
    pub(crate) fn with_times(self, change: impl Fn(u64) -> u64) -> Self {
        if self.is_blocked() {
            Self::blocked(change(self.until()), change(self.idle_at()))
        } else {
            // Below the flag.
            Self(change(self.0).min(Self::LAST))
        }
    }

    /// The same word with its TAT changed; for a key that isn't blocked.
    pub(crate) fn changed(self, change: impl FnOnce(Tat) -> Tat) -> Self {
        Self(change(Tat::from_word(self.0)).to_word())
    }

    /// When the key is as one never seen, in word units.
    #[inline]
    pub(crate) fn idle_at(self) -> u64 {
        if !self.is_blocked() {
            return self.0;
        }
        let owed = match self.0 >> NANO_BITS & 63 {
            0 => 0,
            power => 1 << power,
        };
        units::from_nanos(((self.0 & LAST_NANO) + owed).min(LAST_NANO))
    }

    /// How long a cost waits for the end of a block, and then for what the key owes beyond it.
    #[cold]
    #[inline(never)]
    fn wait_of_a_block(self, pace: Pace, now: u64, cost: u64) -> u64 {
        let ends = Timestamp::from_nanos(self.0 & LAST_NANO);
        let owed = Tat::from_word(self.idle_at());
        let behind = pace.plan(owed, ends, cost).map_or(0, |(_, wait)| wait);
        (self.until() - now).saturating_add(behind)
    }

    /// Decides a cost under this pace.
    #[inline(always)]
    pub(crate) fn judge(self, pace: Pace, now: Timestamp, cost: u64) -> Judged {
        let judged = |outcome, after, wait| Judged {
            outcome,
            before: self,
            after,
            wait,
            now,
            taken: false,
            takes_over: false,
        };
        let local = units::of(now);
        let key = self.at(local);
        if key.is_blocked() {
            return judged(
                Outcome::Denied,
                self,
                self.wait_of_a_block(pace, local, cost),
            );
        }
        match pace.plan(Tat::from_word(key.0), now, cost) {
            // A TAT that reaches into the flag is years ahead, further than anybody waits: it reads as a
            // block, and is not stored.
            Some((after, wait)) if wait > 0 || after.to_word() < BLOCKED => {
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

/// A word that counts by another interval than the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Foreign {
    pub(crate) word: KeyWord,
    /// The interval that it counts by: zero if that isn't known.
    pub(crate) interval: u64,
}

impl Foreign {
    /// Decides a cost at another pace. All tokens that are owed stay owed. If a faster pace refuses it, the
    /// debt is to drain at that pace from now on.
    pub(crate) fn judge(self, pace: Pace, now: Timestamp, cost: u64) -> Judged {
        let word = self.word.at(units::of(now));
        if word.is_blocked() {
            return word.judge(pace, now, cost);
        }
        if !pace.counts() {
            // A pace that counts no tokens ignores what is owed at others.
            return KeyWord::NEW.judge(pace, now, cost);
        }
        let owed = pace.carried_over(Tat::from_word(word.0), &self.pace(pace), now);
        let judged = KeyWord(owed.to_word()).judge(pace, now, cost);
        let refused = judged.outcome == Outcome::Denied && cost > 0;
        Judged {
            takes_over: refused && pace.interval < self.interval,
            ..judged
        }
    }

    /// What a request that wasn't charged is told, so that the wait comes true: a refusal at a slower pace than
    /// the word counts by stores nothing, and the debt goes on to drain at the faster one.
    pub(crate) fn told(self, judged: Judged, pace: Pace, now: Timestamp, cost: u64) -> Judged {
        let (word, old) = (self.word.at(units::of(now)), self.pace(pace));
        let slower = pace.counts() && pace.interval > old.interval;
        if judged.outcome == Outcome::Allowed || word.is_blocked() || !slower {
            return judged;
        }
        let tat = Tat::from_word(word.0);
        let wait = match judged.outcome {
            Outcome::Denied => pace.wait_beside(tat, &old, now, cost),
            _ => judged.wait,
        };
        Judged {
            before: KeyWord(pace.seen_beside(tat, &old, now).to_word()),
            wait,
            ..judged
        }
    }

    /// The pace that it counts by, without a bucket. If that isn't known, the caller's.
    const fn pace(self, asking: Pace) -> Pace {
        self.pace_with(asking, 0)
    }

    /// The pace that it counts by, or else the caller's, with a bucket of this many tokens.
    pub(crate) const fn pace_with(self, asking: Pace, burst: u64) -> Pace {
        let interval = match self.interval {
            0 => asking.interval,
            known => known,
        };
        Pace {
            interval,
            capacity: interval.saturating_mul(burst),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Any time that a table counts.
    fn time() -> impl Strategy<Value = u64> {
        (0..64u32, any::<u64>()).prop_map(|(shift, bits)| (bits >> shift).min(KeyWord::LAST))
    }

    proptest! {
        #[test]
        fn a_block_ends_when_it_should_and_forgives_nothing(until in time(), idle in time()) {
            let word = KeyWord::blocked(until, idle);
            prop_assert!(word.is_blocked() && word.0 != BUSY);
            let end = units::from_nanos(units::to_nanos(until).min(LAST_NANO));
            prop_assert_eq!(word.until(), end);
            prop_assert!(word.is_blocked_at(end.saturating_sub(1)) || end == 0);
            prop_assert!(!word.is_blocked_at(end));
            // What is owed after it is kept, and at most doubled.
            let owed = idle.saturating_sub(end);
            let kept = word.idle_at() - end;
            prop_assert!(kept >= owed.min(KeyWord::LAST - end), "{} of {}", kept, owed);
            prop_assert!(kept <= owed.saturating_mul(2).max(2 * units::PER_NANO) && (owed > 0 || kept == 0));
            let after = word.at(end);
            prop_assert!(!after.is_blocked());
            prop_assert_eq!(after.0, if kept == 0 { 0 } else { word.idle_at() });
        }
    }
}
