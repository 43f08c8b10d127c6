//! The table's own statistics.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{KeyedLimiter, Rate, WhenFull};

#[test]
fn stats_tell_why_keys_left_their_slots() {
    let limiter = KeyedLimiter::builder(Rate::per_second(10), 100)
        .at_cap(WhenFull::DenyNew)
        .clock(Manual::new())
        .build()
        .unwrap();
    (0..100u64).for_each(|key| assert!(limiter.allow(&key)));
    let stats = limiter.stats();
    assert_eq!((stats.expired, stats.reset, stats.evicted), (0, 0, 0));
    // Each new key looked at the eight slots of its two lines, or more where those were full.
    assert!(stats.examined >= 100 * 8, "{}", stats.examined);
    limiter.key(&0u64).reset();
    limiter.key(&1_000u64).reset();
    assert_eq!(limiter.stats().reset, 1);
    // All are idle a second later, and as many others take their slots over, but for some that were
    // empty.
    limiter.clock().advance(Duration::from_secs(1));
    (200..300u64).for_each(|key| assert!(limiter.allow(&key)));
    let taken_over = limiter.stats().expired;
    assert!((30..=100).contains(&taken_over), "{taken_over}");
    assert_eq!(limiter.stats().evicted, 0);
}
