//! CoDel: drops requests of a queue that never gets short, at a growing pace, until it does.

use std::time::Duration;

use tollgate_core::Timestamp;

/// When to shed: when every waiter waited longer than `target` for a whole `interval`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codel {
    pub(super) target: Duration,
    pub(super) interval: Duration,
}

/// How long one client's queue has been standing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StandingQueue {
    /// Shedding may start at this time: one interval after the first waiter that waited too long.
    drops_from: Option<Timestamp>,
    /// The drops since shedding began, and the time of the next.
    dropped: u64,
    next_drop: Timestamp,
}

impl Codel {
    /// Whether to drop the head of a queue that would be served at `due`, after it has waited for
    /// `waited`.
    pub(super) fn should_drop(
        &self,
        standing: &mut StandingQueue,
        due: Timestamp,
        waited: Duration,
        behind: usize,
    ) -> bool {
        if waited < self.target || behind == 0 {
            *standing = StandingQueue::default();
            return false;
        }
        let from = *standing.drops_from.get_or_insert(due + self.interval);
        if due < from || (standing.dropped > 0 && due < standing.next_drop) {
            return false;
        }
        standing.dropped += 1;
        let last = if standing.dropped == 1 {
            due
        } else {
            standing.next_drop
        };
        standing.next_drop = last + self.drop_interval(standing.dropped);
        true
    }

    /// interval / √shed: CoDel's control law, by which drops become more frequent with each interval.
    fn drop_interval(&self, shed: u64) -> Duration {
        // 2¹⁶ · √shed, so that the integer root keeps some fraction bits.
        let root = (u128::from(shed) << 32).isqrt();
        let nanos = (self.interval.as_nanos() << 16) / root.max(1);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_shrinks_with_the_root() {
        let codel = Codel {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
        };
        let pauses = [1, 4, 25, 10_000].map(|shed| codel.drop_interval(shed).as_micros());
        assert_eq!(pauses, [100_000, 50_000, 20_000, 1_000]);
    }
}
