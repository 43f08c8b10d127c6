//! Sliding log: every admitted hit is remembered, so "at most n in any window" holds exactly.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::algorithm::{Charge, Mark, Since, sealed};
use crate::fixed_window::Span;
use crate::{Algorithm, LimitError, Rate, Timestamp};

/// At most `count` in any trailing window `(t − period, t]`.
///
/// The log holds one entry for each instant with a hit, at most `count` of them; a hit exactly
/// one period old no longer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    span: Span,
}

/// The state of a [`SlidingLog`]: the hits still in the window, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    entries: VecDeque<Entry>,
    /// The sum of all weights.
    total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: Timestamp,
    weight: u64,
}

impl Log {
    /// How many instants with a hit are stored.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn newest(&self) -> Timestamp {
        self.entries
            .back()
            .map_or(Timestamp::ZERO, |entry| entry.at)
    }
}

impl SlidingLog {
    /// How many entries, oldest first, lie outside the window at `now`, and their weight.
    fn expired(&self, log: &Log, now: Timestamp) -> (usize, u64) {
        let mut weight = 0;
        let mut count = 0;
        for entry in &log.entries {
            if entry.at.plus_nanos(self.span.nanos) > now {
                break;
            }
            weight += entry.weight;
            count += 1;
        }
        (count, weight)
    }
}

impl sealed::Sealed for SlidingLog {}

impl Algorithm for SlidingLog {
    type State = Log;
    const BY_DEBT: bool = false;

    fn new(rate: Rate) -> Result<Self, LimitError> {
        Ok(Self {
            span: Span::exactly(rate, "sliding log")?,
        })
    }

    fn rate(&self) -> Rate {
        self.span.rate
    }

    fn earliest(&self, log: &Log, now: Timestamp, cost: u64) -> Option<Timestamp> {
        if self.span.rate.is_unlimited() {
            return Some(now);
        }
        if cost > self.span.limit {
            return None;
        }
        let (expired, gone) = self.expired(log, now.max(log.newest()));
        let mut used = log.total - gone;
        let mut at = now;
        for entry in log.entries.iter().skip(expired) {
            if used.saturating_add(cost) <= self.span.limit || cost == 0 {
                break;
            }
            used -= entry.weight;
            at = entry.at.plus_nanos(self.span.nanos);
        }
        Some(at)
    }

    fn charge(&self, log: &mut Log, now: Timestamp, at: Timestamp, cost: u64) -> Charge {
        if self.span.rate.is_unlimited() || cost == 0 {
            let mark = Mark::Nothing;
            return Charge { at, cost, mark };
        }
        // What is booked ahead must not push out hits that still count until then.
        let reached = if at > now { now } else { now.max(log.newest()) };
        let (expired, gone) = self.expired(log, reached);
        log.entries.drain(..expired);
        log.total -= gone;
        log.total = log.total.saturating_add(cost);
        let at = at.max(log.newest());
        match log.entries.back_mut() {
            Some(newest) if newest.at == at => newest.weight = newest.weight.saturating_add(cost),
            _ => log.entries.push_back(Entry { at, weight: cost }),
        }
        let mark = Mark::Entry;
        Charge { at, cost, mark }
    }

    fn remaining(&self, log: &Log, now: Timestamp) -> u64 {
        if self.span.rate.is_unlimited() {
            return u64::MAX;
        }
        let (_, gone) = self.expired(log, now.max(log.newest()));
        self.span.limit.saturating_sub(log.total - gone)
    }

    fn idle_at(&self, log: &Log) -> Timestamp {
        if log.is_empty() || self.span.rate.is_unlimited() {
            return Timestamp::ZERO;
        }
        log.newest().plus_nanos(self.span.nanos)
    }

    /// Takes the hit out of the entry that it was logged in, if that is still there.
    fn give_back(&self, log: &mut Log, _now: Timestamp, charge: &Charge, _since: Since) {
        if charge.mark != Mark::Entry {
            return;
        }
        let Ok(index) = log
            .entries
            .binary_search_by_key(&charge.at, |entry| entry.at)
        else {
            return;
        };
        let entry = &mut log.entries[index];
        let returned = entry.weight.min(charge.cost);
        entry.weight -= returned;
        log.total -= returned;
        if entry.weight == 0 {
            log.entries.remove(index);
        }
    }

    /// Keeps every hit; the new window and count judge them from now on.
    fn adopt(&self, _log: &mut Log, _old: &Self, _now: Timestamp) {}

    fn empty(&self, now: Timestamp) -> Log {
        let mut log = Log::default();
        if self.span.limit > 0 && !self.span.rate.is_unlimited() {
            self.charge(&mut log, now, now, self.span.limit);
        }
        log
    }

    /// A log books at most one window ahead, which bounds it to twice its count.
    fn horizon(&self) -> Duration {
        Duration::from_nanos(self.span.nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_never_holds_more_than_its_count() {
        let limit = SlidingLog::new(Rate::per_second(5)).unwrap();
        let mut log = Log::default();
        for micros in 0..5_000_000 / 7 {
            limit.decide(&mut log, Timestamp::from_micros(micros * 7), 1 + micros % 3);
            assert!(log.len() <= 5);
        }
    }

    #[test]
    fn hits_at_one_instant_count_separately() {
        let limit = SlidingLog::new(Rate::per_second(3)).unwrap();
        let mut log = Log::default();
        let now = Timestamp::from_secs(9);
        for expect in [true, true, true, false] {
            assert_eq!(limit.decide(&mut log, now, 1).is_allowed(), expect);
        }
        assert_eq!(log.len(), 1);
    }
}
