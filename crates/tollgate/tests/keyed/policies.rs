//! The behaviour at the cap, under each policy.

use std::time::Duration;

use tollgate::{Clock, Outcome, Rate, RateDenied, WhenFull};

use crate::{fill, with_policy};

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn by_default_keys_without_a_slot_share_one_bucket() {
    let (limiter, clock) = with_policy(Rate::per_hour(3), 10, WhenFull::default());
    // The key that found no slot took the first of three.
    let there = fill(&limiter, 0);
    assert!(there >= 10, "{there}");
    let passed = (1_000..2_000).filter(|key| limiter.allow(key)).count();
    assert_eq!(passed, 2);
    let decision = limiter.check("another");
    assert_eq!(decision.outcome, Outcome::Denied);
    assert_eq!(decision.wait_or_max(), HOUR / 3);
    clock.advance(HOUR / 3);
    assert!(limiter.allow("another"));
    assert_eq!(limiter.stats().evicted, 0);
}

#[test]
fn waits_of_keys_without_a_slot_queue_up_in_the_shared_bucket() {
    let (limiter, _) = with_policy(Rate::per_second(1), 10, WhenFull::SharedBucket);
    // The key that found no slot took the only token.
    fill(&limiter, 0);
    let delays: Vec<_> = (1_000..1_005)
        .map(|key| {
            let slot = limiter.key(&key).reserve(1).unwrap();
            let delay = slot.delay();
            slot.keep();
            delay.as_secs()
        })
        .collect();
    assert_eq!(delays, [1, 2, 3, 4, 5]);
    let refused = limiter
        .key("late")
        .acquire()
        .timeout(Duration::from_secs(5));
    assert!(matches!(
        refused.wait_blocking(),
        Err(RateDenied::DeadlineExceeded(_))
    ));
}

#[test]
fn new_keys_can_be_denied() {
    let (limiter, clock) = with_policy(Rate::per_second(2), 10, WhenFull::DenyNew);
    let there = fill(&limiter, 0);
    for key in 1_000..1_100 {
        let decision = limiter.check(&key);
        assert_eq!(decision.outcome, Outcome::Denied);
        assert_eq!(decision.wait_or_max(), Duration::from_millis(500));
        assert!(!limiter.allow(&key));
        // There is nothing that a wait could be charged to.
        assert!(matches!(
            limiter.key(&key).reserve(1),
            Err(RateDenied::QueueFull(_))
        ));
        assert!(limiter.key(&key).acquire().wait_blocking().is_err());
        // A look shows a full bucket: the key has spent nothing.
        assert_eq!(limiter.key(&key).peek().remaining, 2);
    }
    // Those who are there go on.
    assert!((0..there).all(|key| limiter.allow(&key)));
    assert!((0..there).all(|key| !limiter.allow(&key)));
    clock.advance(Duration::from_millis(1_001));
    assert!((1_000..1_010).all(|key| limiter.allow(&key)));
}

#[test]
fn new_keys_can_be_admitted_uncounted() {
    let (limiter, _) = with_policy(Rate::per_hour(2), 10, WhenFull::AdmitNew);
    let there = fill(&limiter, 0);
    for _ in 0..5 {
        let decision = limiter.check_n("new", 2);
        assert_eq!(
            (decision.outcome, decision.remaining),
            (Outcome::Allowed, 2)
        );
        assert_eq!(limiter.check_n("new", 3).outcome, Outcome::Never);
        assert!(limiter.key("new").reserve(1).unwrap().delay().is_zero());
    }
    assert!((0..there).all(|key| limiter.allow(&key) && !limiter.allow(&key)));
}

#[test]
fn evicting_the_nearest_to_idle_lets_a_flood_reset_a_spent_key() {
    let (limiter, clock) = with_policy(Rate::per_hour(10), 100, WhenFull::EvictNearestIdle);
    for key in 0..100 {
        assert!(limiter.key(&("spent", key)).allow_n(10));
        assert!(!limiter.allow(&("spent", key)));
    }
    // Made-up keys that spend more, later, push the spent ones out.
    clock.advance(Duration::from_secs(1));
    for key in 0..2_000 {
        assert!(limiter.key(&("made up", key)).allow_n(10), "{key}");
    }
    let free = (0..100).filter(|key| limiter.allow(&("spent", key)));
    assert!(free.count() > 50);
    let stats = limiter.stats();
    assert!(stats.evicted > 1_000, "{stats:?}");
    assert_eq!(stats.overflowed, 0);
}

#[test]
fn a_blocked_key_is_never_evicted() {
    let (limiter, clock) = with_policy(Rate::per_hour(10), 100, WhenFull::EvictNearestIdle);
    for key in 0..100 {
        limiter.key(&("blocked", key)).block_for(HOUR).unwrap();
    }
    let end = clock.now() + HOUR;
    for key in 0..20_000 {
        clock.advance(Duration::from_millis(100));
        let _ = limiter.allow(&("made up", key));
        let decision = limiter.check(&("blocked", key % 100));
        assert_eq!(decision.wait_or_max(), end - clock.now(), "{key}");
    }
    assert!(limiter.stats().evicted > 0);
}

#[test]
fn an_evicting_table_full_of_blocked_keys_denies_new_ones() {
    let (limiter, _) = with_policy(Rate::per_hour(10), 1, WhenFull::EvictNearestIdle);
    let blocked = (0..).find(|key| limiter.key(key).block_for(HOUR).is_err());
    let blocked = blocked.unwrap();
    assert!(!limiter.allow("new"));
    assert!(limiter.key("new").reserve(1).is_err());
    assert!((0..blocked).all(|key| !limiter.allow(&key)));
    assert_eq!(limiter.stats().evicted, 0);
}

#[test]
fn a_part_of_the_table_is_kept_for_blocks() {
    let (limiter, _) = with_policy(Rate::per_hour(1), 10, WhenFull::DenyNew);
    fill(&limiter, 0);
    let text = limiter.key("new").penalize(1).unwrap_err().to_string();
    assert_eq!(
        text,
        "no slot for a new key: more than the capacity of 10 keys are active; build the limiter \
         with a larger capacity"
    );
    for key in 0..10 {
        limiter.key(&("blocked", key)).block_for(HOUR).unwrap();
    }
    assert!((0..10).all(|key| limiter.key(&("blocked", key)).peek().wait_or_max() == HOUR));
    // It ends too, and then blocking says so.
    let refused = (10..200).find_map(|key| limiter.key(&("blocked", key)).block_for(HOUR).err());
    assert_eq!(refused.unwrap().to_string(), text);
    // A key that is there can always be blocked.
    limiter.key(&0u64).block_for(HOUR).unwrap();
    assert_eq!(limiter.key(&0u64).peek().wait_or_max(), HOUR);
}

#[test]
fn a_blocked_key_is_told_when_it_passes() {
    let (limiter, clock) = with_policy(Rate::per_second(1).burst(20), 10, WhenFull::default());
    assert!(limiter.key("ada").allow_n(20));
    let block = Duration::from_secs(2);
    limiter.key("ada").block_for(block).unwrap();
    // What it owes beyond the block counts, at most doubled.
    let told = limiter.check("ada").wait_or_max();
    assert!(told > block && told < Duration::from_secs(20), "{told:?}");
    clock.advance(told - Duration::from_nanos(1));
    assert!(!limiter.allow("ada"));
    clock.advance(Duration::from_nanos(1));
    assert!(limiter.allow("ada"));
    // One that owes nothing then is told the end of its block.
    limiter.key("bob").block_for(block).unwrap();
    assert_eq!(limiter.check("bob").wait_or_max(), block);
}
