//! The number of nodes that a limit is divided by: the present number, or for a while an earlier and larger
//! one.
//!
//! What the store admits is recorded as far as this node's share has room. A share that grew immediately would
//! have room for usage that was never recorded, so it grows only when all earlier records have expired.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::Timestamp;

use crate::lock::lock;

/// How many earlier numbers are distinguished.
const MAX_EARLIER_COUNTS: usize = 16;

/// The numbers of nodes, present and earlier.
#[derive(Debug)]
pub(super) struct NodeCounts {
    /// How often the number has changed. Every decision reads it (acquire) before it uses a cached divisor.
    changes: AtomicU64,
    known: Mutex<CountHistory>,
}

#[derive(Debug)]
struct CountHistory {
    now: u64,
    /// Earlier, larger numbers with the time when each ended: the numbers fall, the times rise.
    earlier: Vec<(u64, Timestamp)>,
}

/// What a limit is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Divisor {
    pub(super) nodes: u64,
    /// The change after which this was computed.
    change: u64,
    /// The divisor changes at this time, although the number of nodes doesn't.
    until: Option<Timestamp>,
}

impl NodeCounts {
    pub(super) fn single() -> Self {
        Self {
            changes: AtomicU64::new(0),
            known: Mutex::new(CountHistory {
                now: 1,
                earlier: Vec::new(),
            }),
        }
    }

    /// Sets the present number.
    pub(super) fn set(&self, nodes: u64, now: Timestamp) {
        let mut known = lock(&self.known);
        let before = std::mem::replace(&mut known.now, nodes);
        if before == nodes {
            return;
        }
        let at_least = before.max(nodes);
        // An earlier number that isn't larger ended before, so it decides nothing any more.
        known.earlier.retain(|(earlier, _)| *earlier > at_least);
        if before > nodes {
            known.earlier.push((before, now));
        }
        if known.earlier.len() > MAX_EARLIER_COUNTS {
            // Merge the two oldest: the largest number then counts for longer, which grants less.
            let (largest, _) = known.earlier.remove(0);
            known.earlier[0].0 = largest;
        }
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The present number.
    pub(super) fn current(&self) -> u64 {
        lock(&self.known).now
    }

    /// The divisor of a limit whose records last this long.
    pub(super) fn divisor(&self, lasts: Duration, now: Timestamp) -> Divisor {
        let change = self.changes.load(Ordering::Acquire);
        let known = lock(&self.known);
        let counts = |(nodes, over): &(u64, Timestamp)| {
            let until = *over + lasts;
            (now < until).then_some((*nodes, until))
        };
        let earlier = known.earlier.iter().find_map(counts);
        Divisor {
            nodes: earlier.map_or(known.now, |(nodes, _)| nodes),
            change,
            until: earlier.map(|(_, until)| until),
        }
    }

    /// Whether a divisor is still right. The clock is read only if the divisor ends.
    #[inline]
    pub(super) fn is_current(&self, divisor: &Divisor, now: impl FnOnce() -> Timestamp) -> bool {
        divisor.change == self.changes.load(Ordering::Acquire)
            && divisor.until.is_none_or(|until| now() < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    #[test]
    fn the_most_of_the_last_while_count() {
        let (nodes, lasts) = (NodeCounts::single(), Duration::from_secs(10));
        let counted = |now| nodes.divisor(lasts, at(now)).nodes;
        // More nodes count immediately, fewer only after a while.
        for (now, count) in [(0, 8), (1, 4), (2, 6), (3, 2)] {
            nodes.set(count, at(now));
        }
        assert_eq!([3, 10, 11, 12, 13].map(counted), [8, 8, 6, 6, 2]);
        assert_eq!(nodes.current(), 2);
        // Another limit's records expire sooner.
        assert_eq!(nodes.divisor(Duration::ZERO, at(3)).nodes, 2);
        nodes.set(9, at(4));
        assert_eq!([4, 40].map(counted), [9, 9]);
    }

    #[test]
    fn what_was_found_holds_until_the_number_or_the_time_says_otherwise() {
        let (nodes, lasts) = (NodeCounts::single(), Duration::from_secs(10));
        nodes.set(8, at(0));
        let eight = nodes.divisor(lasts, at(0));
        assert!(nodes.is_current(&eight, || unreachable!("it doesn't depend on the time")));
        nodes.set(8, at(1));
        assert!(
            nodes.is_current(&eight, || at(1)),
            "the same again is no change"
        );
        nodes.set(4, at(2));
        assert!(!nodes.is_current(&eight, || at(2)));
        let for_now = nodes.divisor(lasts, at(2));
        assert!(nodes.is_current(&for_now, || at(11)) && !nodes.is_current(&for_now, || at(12)));
    }

    #[test]
    fn ever_fewer_are_remembered_in_bounded_space_and_never_as_too_few() {
        let (nodes, lasts) = (NodeCounts::single(), Duration::from_secs(1_000));
        for now in 0..100 {
            nodes.set(200 - now, at(now));
        }
        assert_eq!(lock(&nodes.known).earlier.len(), MAX_EARLIER_COUNTS);
        for now in [99_u64, 999, 1_050, 1_098] {
            // The number that was in force a thousand seconds before.
            let least = 200 - now.saturating_sub(999).min(99);
            let counted = nodes.divisor(lasts, at(now)).nodes;
            assert!(counted >= least, "{now}: {counted} of {least}");
        }
        assert_eq!(nodes.divisor(lasts, at(1_100)).nodes, 101);
    }
}
