//! Random delays: they need no good randomness, only that threads differ.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A random duration from zero up to and including `most`.
pub(super) fn random_up_to(most: Duration) -> Duration {
    // std seeds a thread's first state from the system, and gives each later one other keys.
    let random = u128::from(RandomState::new().hash_one(0));
    let nanos = random % most.as_nanos().saturating_add(1);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_within_its_bound_and_reaches_both_ends() {
        let drawn: Vec<u128> = (0..200)
            .map(|_| random_up_to(Duration::from_nanos(3)).as_nanos())
            .collect();
        for expect in 0..=3 {
            assert!(drawn.contains(&expect), "{expect}");
        }
        assert!(drawn.iter().all(|nanos| *nanos <= 3));
        assert_eq!(random_up_to(Duration::ZERO), Duration::ZERO);
    }
}
