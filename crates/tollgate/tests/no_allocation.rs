//! A check allocates nothing: asserted by counting the calls to the allocator.

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::{Cached, Manual};
use tollgate::{
    Algorithm, ClassTree, Clock, CompositeLimiter, ConcurrencyLimiter, KeyedConcurrencyLimiter,
    KeyedLimiter, Limit, Limiter, Rate, StoredKeyLimiter,
    core::WindowAlignment,
    tree::{Class, Leaf},
};
use tollgate_testkit::allocation_counter::{CountingAllocator, allocation_count};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn check_allocates_nothing<C: Clock>(name: &str, limiter: &Limiter<C>) {
    let before = allocation_count();
    for cost in [1, 0, 3, 1_000, 1] {
        let _ = limiter.allow();
        let _ = limiter.check_n(cost);
        let _ = limiter.peek();
        if let Ok(slot) = limiter.reserve(cost) {
            slot.cancel();
        }
        let _ = limiter.acquire().timeout(Duration::ZERO).wait_blocking();
    }
    assert_eq!(allocation_count() - before, 0, "{name}");
}

#[test]
fn no_verb_allocates() {
    let rate = Rate::per_second(10);
    check_allocates_nothing("gcra", &Limiter::new(rate));
    check_allocates_nothing("cached", &Limiter::with_clock(rate, Cached::new()));
    let striped = Limiter::builder(Rate::per_second(100_000_000)).striped();
    check_allocates_nothing("striped", &striped.build().unwrap());
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow(WindowAlignment::FirstHit),
        Algorithm::SlidingCounter,
    ] {
        let limiter = Limiter::builder(rate)
            .algorithm(algorithm)
            .clock(Manual::new())
            .build()
            .unwrap();
        check_allocates_nothing(&format!("{algorithm:?}"), &limiter);
    }
}

#[test]
fn a_full_log_allocates_nothing_more() {
    let clock = Manual::new();
    let limiter = Limiter::builder(Rate::per_second(100))
        .algorithm(Algorithm::SlidingLog)
        .clock(clock.clone())
        .build()
        .unwrap();
    let run = |calls: u32| {
        for _ in 0..calls {
            clock.advance(Duration::from_millis(7));
            let _ = limiter.check();
        }
    };
    run(500);
    let before = allocation_count();
    run(500);
    assert_eq!(allocation_count(), before);
}

#[test]
fn no_check_of_a_key_allocates() {
    let limiter = KeyedLimiter::builder(Rate::per_hour(10), 100)
        .clock(Manual::new())
        .build()
        .unwrap();
    let mut decisions = Vec::with_capacity(4);
    let before = allocation_count();
    // New keys, known ones, more than there are slots for, and what operators do.
    for number in 0..1_000u64 {
        let _ = limiter.allow(&("user", number));
        let _ = limiter.check(&number);
        let _ = limiter.check("the same");
        limiter.check_many(&[(number, 1), (number + 1, 2)], &mut decisions);
        limiter.key(&number).refund(1);
        let _ = limiter.key(&number).block_for(Duration::from_secs(1));
        if let Ok(slot) = limiter.key(&number).reserve(1) {
            slot.cancel();
        }
    }
    assert_eq!(allocation_count(), before);
}

#[test]
fn no_permit_allocates_unless_it_has_to_wait() {
    let limiter = ConcurrencyLimiter::new(2);
    let keyed = KeyedConcurrencyLimiter::<u64>::new(2, 100);
    let held = [1, 2].map(|key| keyed.try_acquire(&key).unwrap());
    let before = allocation_count();
    for weight in [1, 0, 2, 3, 1] {
        let permit = limiter.try_acquire_n(weight);
        let _ = limiter.acquire().timeout(Duration::ZERO).wait_blocking();
        limiter.peek();
        drop(permit);
        limiter.acquire().wait_blocking().unwrap().success();
        limiter.set_limit(2);
        // Of a key that has something in flight; another's entry is made.
        drop(keyed.try_acquire(&1));
        let _ = keyed.key(&2).try_acquire_n(weight);
    }
    assert_eq!(allocation_count(), before);
    drop(held);
}

/// Every verb of a tree, and refunds immediately and after another charge.
fn no_verb_of_a_tree_allocates(tree: &ClassTree<Manual>, leaf: Leaf) {
    let before = allocation_count();
    for cost in [1, 0, 5, 40, 1_000, 1] {
        let _ = tree.allow_n(leaf, cost);
        tree.check_n(leaf, cost);
        tree.peek(leaf, cost);
        tree.peek_with_demand(leaf, cost);
        tree.would_allow(leaf, cost);
        if let Ok(receipt) = tree.charge(leaf, cost) {
            tree.refund(receipt);
        }
        let kept = tree.charge(leaf, 1);
        let _ = tree.allow(leaf);
        if let Ok(receipt) = kept {
            tree.refund(receipt);
        }
        tree.clock().advance(Duration::from_millis(170));
    }
    assert_eq!(allocation_count(), before);
}

#[test]
fn no_decision_of_a_tree_allocates_however_deep_it_is() {
    let tree = ClassTree::builder(Rate::per_second(100))
        .clock(Manual::new())
        .build()
        .unwrap();
    let class = Class::new(Rate::per_second(3)).ceiling(Rate::per_second(90));
    let mut branch = tree.root();
    for level in 1..=6 {
        let leaf = tree.add_leaf("leaf", branch, class).unwrap();
        no_verb_of_a_tree_allocates(&tree, leaf);
        let users = tree.add_leaves("user", branch, class, 2).unwrap();
        // A leaf that the key has already; a new one is made.
        let user = tree.leaf(users, "alice");
        let _ = tree.allow(user);
        no_verb_of_a_tree_allocates(&tree, user);
        branch = tree.add_branch(&level.to_string(), branch, class).unwrap();
    }
    // Eight levels, the most there are.
    let leaf = tree.add_leaf("leaf", branch, class).unwrap();
    no_verb_of_a_tree_allocates(&tree, leaf);
}

#[test]
fn no_stack_allocates_to_allow_refuse_or_give_back() {
    let clock = Manual::new();
    let rate = Rate::per_second(10);
    let keyed = KeyedLimiter::builder(rate, 100)
        .clock(clock.clone())
        .build()
        .unwrap();
    let shared = |algorithm| {
        let builder = Limiter::builder(rate).algorithm(algorithm);
        builder.clock(clock.clone()).build().unwrap()
    };
    let (word, bucket) = (shared(Algorithm::Gcra), shared(Algorithm::TokenBucket));
    let slots = Arc::new(ConcurrencyLimiter::new(2));
    let stack = CompositeLimiter::new();
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow(WindowAlignment::FirstHit),
        Algorithm::SlidingCounter,
    ] {
        let exact = StoredKeyLimiter::<u64>::builder(rate, 100)
            .algorithm(algorithm)
            .clock(clock.clone())
            .build()
            .unwrap();
        let key = exact.key(&1);
        // Its entry is made.
        let _ = exact.check(&1);
        let levels = [
            Limit::new("user", &keyed.key("ada")),
            Limit::new("tenant", &key),
            Limit::new("route", &bucket),
            Limit::new("service", &word),
            Limit::new("slots", &slots),
        ];
        // The same slots again: the second is refused when it is charged.
        let [_, exact, quota, _, slots] = levels.clone();
        let loses = [exact, quota, slots.clone().cost(2), slots];
        let before = allocation_count();
        let mut allowed = 0;
        for _ in 0..40 {
            clock.advance(Duration::from_millis(40));
            let pass = stack.allow(&levels);
            allowed += u32::from(pass.is_some());
            drop(pass);
            assert!(stack.allow(&loses).is_none());
            let verdict = stack.check(&levels);
            assert!(stack.peek(&levels).decision().limit > 0);
            drop(verdict);
        }
        assert_eq!(allocation_count(), before, "{algorithm:?}");
        assert!((1..40).contains(&allowed), "{algorithm:?} {allowed}");
    }
    assert!(stack.lost_races() > 0);
}
