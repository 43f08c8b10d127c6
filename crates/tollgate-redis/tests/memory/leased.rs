//! Leased limits without a store.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate::quota::Quota;
use tollgate::{Algorithm, Clock, Rate};
use tollgate_engine::backend::LimitKind;
use tollgate_engine::policy::{Counting, OnStoreFailure};
use tollgate_redis::{FailureKind, Fault, Redis, StoreLimitError};
use tollgate_testkit::traffic::Random;

#[tokio::test]
async fn a_tenth_is_leased_for_a_second_and_spent_without_asking() {
    let clock = Manual::new();
    let redis = Redis::in_memory(clock.clone());
    let limiter = redis.limiter("calls", Rate::per_hour(100)).leased();
    let limiter = limiter
        .on_store_failure(OnStoreFailure::Closed)
        .build()
        .unwrap();
    let store = redis.fake_store().unwrap();
    assert_eq!(redis.stats().leased_tokens, 0);
    let answer = limiter.check("k").await;
    assert_eq!(
        (
            answer.denied().is_none(),
            answer.decision.remaining,
            redis.stats().leased_tokens
        ),
        (true, 10, 10)
    );
    assert_eq!(redis.stats().queries, 1);
    for left in (5..10).rev() {
        assert_eq!(limiter.check("k").await.decision.remaining, left);
    }
    assert_eq!(redis.stats().queries, 1);
    // More is taken ahead when a quarter is left, or half of its life.
    for left in [4, 3, 10] {
        assert_eq!(limiter.check("k").await.decision.remaining, left);
    }
    clock.advance(Duration::from_millis(500));
    assert_eq!(limiter.check("k").await.decision.remaining, 10);
    assert_eq!(
        (redis.stats().queries, redis.stats().leased_tokens),
        (3, 10)
    );

    // It goes on for a moment while the store is down …
    store.inject_fault(Fault::Down);
    for left in (0..10).rev() {
        let answer = limiter.check("k").await;
        assert_eq!((answer.fallback, answer.decision.remaining), (None, left));
    }
    assert_eq!(
        limiter.check("k").await.fallback,
        Some(OnStoreFailure::Closed)
    );
    // … which what is held doesn't hide.
    store.clear_fault();
    assert!(limiter.check("k").await.fallback.is_none() && redis.stats().leased_tokens == 10);
    store.inject_fault(Fault::Down);
    clock.advance(Duration::from_millis(999));
    assert_eq!(limiter.check("k").await.fallback, None);
    clock.advance(Duration::from_millis(1));
    assert_eq!(redis.stats().leased_tokens, 0);
    assert_eq!(
        limiter.check("k").await.fallback,
        Some(OnStoreFailure::Closed)
    );

    store.clear_fault();
    assert!(limiter.check("k").await.allowed().is_some());
    redis.close().await;
    assert_eq!(redis.stats().leased_tokens, 0);
    // 23 have passed; what was held and not spent was nobody's.
    let mut passed = 23;
    while limiter.check("k").await.allowed().is_some() {
        passed += 1;
    }
    assert_eq!(passed, 100);
}

#[tokio::test]
async fn what_a_store_would_not_take_isnt_taken_without_one() {
    let redis = Redis::in_memory(Manual::new());
    let quota = LimitKind::Quota(Quota::per_day(9));
    let error = redis
        .limiter_with_kind("quota", quota)
        .leased()
        .build()
        .unwrap_err();
    assert!(
        matches!(
            error,
            StoreLimitError::UnsupportedAlgorithm {
                what: "a lease",
                ..
            }
        ),
        "{error}"
    );
    let leased = redis
        .limiter("leased", Rate::per_hour(100))
        .leased()
        .build()
        .unwrap();
    let error = leased.allow_at_most("k", 1).await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::Limit);
    // It wasn't asked, so nothing has failed.
    assert_eq!(redis.stats().failures, []);
}

/// What passes of a store that flaps, whatever each request is decided by: never more than the limit in any window, and
/// the part of a token that a level is told by.
async fn flaps(
    algorithm: Algorithm,
    counting: Counting,
    steps: &[(u64, u8, u64)],
) -> Result<(), String> {
    let clock = Manual::new();
    let redis = Redis::in_memory(clock.clone());
    let store = redis.fake_store().expect("it is in memory");
    let rate = Rate::per_second(20).burst(60);
    let limiter = redis.limiter_with_kind("calls", LimitKind::Rate { rate, algorithm });
    let limiter = match counting {
        Counting::Leased => limiter.leased(),
        _ => limiter,
    };
    let limiter = limiter.build().expect("a limit");
    let mut passed: Vec<(u64, u64)> = Vec::new();
    for (pause, fate, cost) in steps {
        clock.advance(Duration::from_millis(*pause));
        match fate {
            0..2 => store.inject_fault(Fault::Down),
            2 => store.inject_fault(Fault::ReadOnly),
            3..6 => store.clear_fault(),
            _ => {}
        }
        let at = clock.now().as_nanos() / 1_000_000;
        if limiter.check_n("k", *cost).await.allowed().is_some() {
            passed.push((at, *cost));
        }
    }
    for (number, (from, _)) in passed.iter().enumerate() {
        let mut sum = 0;
        for (at, cost) in &passed[number..] {
            sum += cost;
            let may = 61_000 + 20 * (at - from);
            if sum * 1000 > may {
                return Err(format!(
                    "{counting:?} {algorithm:?}: {sum} from {from} to {at} ms"
                ));
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_store_that_flaps_admits_no_more_than_one_that_works() {
    let mut random = Random::new(7);
    for _ in 0..400 {
        let step = |random: &mut Random| {
            let fate = u8::try_from(random.below(10)).unwrap();
            (random.below(120), fate, 1 + random.below(6))
        };
        let steps: Vec<_> = (0..150).map(|_| step(&mut random)).collect();
        for algorithm in [
            Algorithm::Gcra,
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket,
        ] {
            for counting in [Counting::Leased, Counting::Exact] {
                let flapped = flaps(algorithm, counting, &steps).await;
                assert_eq!(flapped, Ok(()));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens to the store, what it lets pass stays within the limit in every window, and what it
    /// lets pass is all that there is once it works.
    #[test]
    fn leased_without_a_store_is_never_more_than_the_limit(
        steps in prop::collection::vec((0..400_u64, 0..8_u8, 1..12_u64), 1..200),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let clock = Manual::new();
            let redis = Redis::in_memory(clock.clone());
            let store = redis.fake_store().unwrap();
            let limiter = redis.limiter("calls", Rate::per_second(20).burst(60)).leased();
            let limiter = limiter.on_store_failure(OnStoreFailure::Closed).build().unwrap();
            let mut passed: Vec<(u64, u64)> = Vec::new();
            for (pause, fate, cost) in steps {
                clock.advance(Duration::from_millis(pause));
                match fate {
                    0 => store.inject_fault(Fault::Down),
                    1 => store.inject_fault(Fault::ReadOnly),
                    2..4 => store.clear_fault(),
                    _ => {}
                }
                let at = clock.now().as_nanos() / 1_000_000;
                let answer = limiter.check_n("k", cost).await;
                if answer.denied().is_none() {
                    prop_assert_eq!(answer.fallback, None);
                    passed.push((at, cost));
                }
                prop_assert!(redis.stats().leased_tokens <= 6);
            }
            for (number, (from, _)) in passed.iter().enumerate() {
                let mut sum = 0;
                for (at, cost) in &passed[number..] {
                    sum += cost;
                    prop_assert!(sum * 1000 <= 60_000 + 20 * (at - from), "{:?}", passed);
                }
            }
            store.clear_fault();
            clock.advance(Duration::from_secs(3));
            prop_assert!(limiter.check_n("k", 60).await.allowed().is_some());
            Ok(())
        })?;
    }
}
