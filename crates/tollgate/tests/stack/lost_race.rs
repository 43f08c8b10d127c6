//! A request that loses a race after it was charged in part: all of it is refunded, whichever way it was charged. The
//! same limit twice in a request forces the loss: it has room for each, and not for both.

use std::sync::Arc;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, CompositeLimiter, ConcurrencyLimiter, KeyedLimiter, Limit, Limiter, Rate,
};

fn limiter(clock: &Manual, burst: u64, algorithm: Algorithm) -> Limiter<Manual> {
    Limiter::builder(Rate::per_hour(burst))
        .algorithm(algorithm)
        .clock(clock.clone())
        .build()
        .expect("a rate that the algorithm can represent")
}

#[test]
fn keys_and_words_get_back_what_was_charged() {
    let clock = Manual::new();
    let users = KeyedLimiter::builder(Rate::per_hour(9), 100)
        .clock(clock.clone())
        .build()
        .unwrap();
    let shared = limiter(&clock, 5, Algorithm::Gcra);
    let stack = CompositeLimiter::new();
    // A key that is there already, and one that is new.
    assert!(users.allow("ada"));
    for (user, left) in [("ada", 8), ("bob", 9)] {
        let levels = [
            Limit::new("once", &shared).cost(3),
            Limit::new("user", &users.key(user)).cost(4),
            Limit::new("twice", &shared).cost(3),
        ];
        assert!(stack.allow(&levels).is_none());
        let verdict = stack.check(&levels);
        assert_eq!(verdict.denial().unwrap().name, "twice");
        assert_eq!(users.key(user).peek().remaining, left);
        assert_eq!(shared.peek().remaining, 5);
    }
    assert_eq!(stack.lost_races(), 4);
}

#[test]
fn locked_limits_and_slots_after_words_get_it_all_back() {
    let clock = Manual::new();
    let word = limiter(&clock, 5, Algorithm::Gcra);
    let bucket = limiter(&clock, 5, Algorithm::TokenBucket);
    let slots = Arc::new(ConcurrencyLimiter::builder(3).clock(clock).build());
    let stack = CompositeLimiter::new();
    let levels = [
        Limit::new("slots", &slots).cost(2),
        Limit::new("word", &word).cost(5),
        Limit::new("bucket", &bucket).cost(5),
        Limit::new("slots again", &slots).cost(2),
    ];
    assert!(stack.allow(&levels).is_none());
    assert_eq!(stack.lost_races(), 1);
    assert_eq!(slots.available(), 3);
    assert_eq!(word.peek().remaining, 5);
    assert_eq!(bucket.peek().remaining, 5);
    let pass = stack
        .allow(&levels[..3])
        .expect("room for all but the last");
    assert_eq!((slots.available(), word.peek().remaining), (1, 0));
    drop(pass);
    assert_eq!((slots.available(), bucket.peek().remaining), (3, 0));
}

#[test]
fn more_levels_than_most_requests_have_are_all_charged_or_none() {
    let clock = Manual::new();
    let limits: Vec<_> = (0..20)
        .map(|_| limiter(&clock, 5, Algorithm::Gcra))
        .collect();
    let stack = CompositeLimiter::new();
    let mut levels: Vec<_> = limits.iter().map(|it| Limit::new("word", it)).collect();
    assert!(stack.allow(&levels).is_some());
    assert!(limits.iter().all(|it| it.peek().remaining == 4));
    levels.extend([Limit::new("first again", &limits[0]).cost(4)]);
    assert!(stack.allow(&levels).is_none());
    assert!(limits.iter().all(|it| it.peek().remaining == 4));
    assert_eq!(stack.lost_races(), 1);
}

#[test]
fn an_unlimited_level_and_a_cost_of_nothing_charge_nothing() {
    let clock = Manual::new();
    let open = Limiter::with_clock(Rate::unlimited(), clock.clone());
    let shared = limiter(&clock, 5, Algorithm::Gcra);
    let stack = CompositeLimiter::new();
    let levels = [
        Limit::new("open", &open).cost(100),
        Limit::new("peek", &shared).cost(0),
        Limit::new("shared", &shared).cost(3),
        Limit::new("twice", &shared).cost(3),
    ];
    assert!(stack.allow(&levels).is_none());
    assert_eq!(shared.peek().remaining, 5);
    assert!(stack.allow(&levels[..3]).is_some());
    assert_eq!(shared.peek().remaining, 2);
}
