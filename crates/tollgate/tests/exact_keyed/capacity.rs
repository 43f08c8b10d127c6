//! Tables of any capacity, and what a full one costs.

use std::time::Duration;

use tollgate::{Algorithm, Rate, WhenFull};

use crate::verbs::table;

#[test]
fn a_full_table_looks_at_a_key_again_only_after_it_was_charged() {
    for at_cap in [WhenFull::DenyNew, WhenFull::EvictNearestIdle] {
        let limiter = table(Algorithm::LeakyBucket, Rate::per_second(100), 500, at_cap);
        for round in 0..20u64 {
            // All keys are charged, so that none is idle when it first was to be.
            (0..500u64).for_each(|key| assert!(limiter.check_n(&key, 60).is_allowed()));
            limiter.clock().advance(Duration::from_millis(400));
            let before = limiter.stats();
            assert_eq!(before.expired, 0, "{round}");
            for made_up in 0..10 {
                assert_eq!(
                    limiter.allow(&(1_000 + made_up)),
                    at_cap != WhenFull::DenyNew
                );
            }
            let looked = limiter.stats().examined - before.examined;
            assert!(looked <= 500 + 3 * 10, "{at_cap:?} {looked}");
            (1_000..1_010u64).for_each(|key| limiter.key(&key).reset());
            limiter.clock().advance(Duration::from_millis(200));
        }
    }
}

#[test]
fn a_table_of_any_capacity_can_be_built() {
    /// Of a key of one word, at least.
    const LEAST_BYTES: usize = 64;
    for capacity in [0, 1, 2_047, 2_048, 1 << 40, usize::MAX] {
        let limiter = table(
            Algorithm::Gcra,
            Rate::per_hour(1),
            capacity,
            WhenFull::DenyNew,
        );
        assert_eq!(limiter.allow(&1u64), capacity > 0);
        assert_eq!(limiter.capacity(), capacity);
        assert!(
            limiter.memory_bound() / LEAST_BYTES >= capacity.min(1 << 41),
            "{capacity}"
        );
    }
}
