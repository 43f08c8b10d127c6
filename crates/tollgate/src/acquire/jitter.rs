//! Random delays that need no quality, only that threads differ.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A random duration from zero up to and including `most`.
pub(super) fn up_to(most: Duration) -> Duration {
    let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    if most == 0 {
        return Duration::ZERO;
    }
    Duration::from_nanos(match most.checked_add(1) {
        Some(bound) => random() % bound,
        None => random(),
    })
}

/// The next number of this thread's own sequence (splitmix64).
fn random() -> u64 {
    thread_local! {
        static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0));
    }
    STATE.with(|state| {
        let next = state.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        state.set(next);
        let mixed = (next ^ (next >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_within_its_bound_and_reaches_both_ends() {
        let drawn: Vec<u128> = (0..200)
            .map(|_| up_to(Duration::from_nanos(3)).as_nanos())
            .collect();
        for expect in 0..=3 {
            assert!(drawn.contains(&expect), "{expect}");
        }
        assert!(drawn.iter().all(|nanos| *nanos <= 3));
        assert_eq!(up_to(Duration::ZERO), Duration::ZERO);
    }
}
