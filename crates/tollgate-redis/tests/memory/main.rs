//! The fake store behaves like a real one: the same steps, the same answers.

#[path = "../common/mod.rs"]
mod common;
mod failing;
mod leased;

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::quota::Quota;
use tollgate::{Algorithm, Decision, Rate, Timestamp, core::WindowAlignment};
use tollgate_engine::backend::LimitKind;
use tollgate_redis::{Fault, Redis, RedisLimiter};
use tollgate_testkit::redis::Server;

/// 1 June 2024, noon.
const NOON: Timestamp = Timestamp::from_secs(1_717_243_200);

/// One answer, as far as it must be equal in both.
#[derive(Debug, PartialEq)]
enum Seen {
    Decision(Decision),
    Taken(u64),
    Paced(Option<Duration>),
}

impl From<Decision> for Seen {
    /// The store's clock shows microseconds: waits are rounded up to them.
    fn from(decision: Decision) -> Self {
        let rounded = |wait: Duration| match wait {
            Duration::MAX => wait,
            wait => Duration::from_micros(
                u64::try_from(wait.as_nanos().div_ceil(1_000)).expect("a wait of a test"),
            ),
        };
        let Decision {
            outcome,
            limit,
            remaining,
            ..
        } = decision;
        let (retry, reset) = (decision.wait_or_max(), decision.reset_after);
        Self::Decision(Decision::new(
            outcome,
            limit,
            remaining,
            rounded(retry),
            rounded(reset),
        ))
    }
}

async fn steps(limiter: &RedisLimiter, clock: &Manual, paced: bool) -> Vec<Seen> {
    let mut seen = Vec::new();
    let store = "both can be asked";
    for round in 0..4 {
        for cost in [1, 0, 3, 4, 2, 100] {
            seen.push(limiter.check_n("ada", cost).await.decision.into());
        }
        seen.push(limiter.peek("ada").await.expect(store).into());
        seen.push(Seen::Taken(
            limiter.allow_at_most("ada", 5).await.expect(store),
        ));
        limiter.refund("ada", 2).await.expect(store);
        seen.push(limiter.peek("ada").await.expect(store).into());
        let at = tollgate::Clock::now(clock);
        let decided = limiter.check_at(at, "grace", 2).await.expect(store);
        seen.push(decided.into());
        if round == 2 {
            limiter.reset("ada").await.expect(store);
        }
        clock.advance(Duration::from_millis(1_500));
    }
    if paced {
        for _ in 0..4 {
            let wait = limiter.reserve("paced", 3, Duration::from_secs(2)).await;
            seen.push(Seen::Paced(wait.expect(store)));
        }
    }
    seen
}

#[tokio::test]
async fn memory_and_store_answer_alike() {
    let server = Server::start();
    let rate = |algorithm| LimitKind::Rate {
        rate: Rate::per_second(4),
        algorithm,
    };
    for (kind, paced) in [
        (rate(Algorithm::Gcra), true),
        (rate(Algorithm::TokenBucket), true),
        (rate(Algorithm::LeakyBucket), true),
        (
            rate(Algorithm::FixedWindow(WindowAlignment::default())),
            false,
        ),
        (
            rate(Algorithm::FixedWindow(WindowAlignment::FirstHit)),
            false,
        ),
        (rate(Algorithm::SlidingLog), false),
        (rate(Algorithm::SlidingCounter), false),
        (LimitKind::Quota(Quota::per_day(9)), false),
        (
            LimitKind::Quota(Quota::rolling(9, Duration::from_secs(60)).expect("a period")),
            false,
        ),
    ] {
        let clocks = [Manual::starting_at(NOON), Manual::starting_at(NOON)];
        let builder = Redis::builder(&server.url())
            .unwrap()
            .clock(clocks[0].clone());
        let store = builder
            .timeout(Duration::from_secs(5))
            .node_count(1)
            .build()
            .unwrap();
        let memory = Redis::in_memory(clocks[1].clone());
        let limiter = |redis: &Redis| {
            redis
                .limiter_with_kind("alike", kind.clone())
                .build()
                .unwrap()
        };
        let by_store = steps(&limiter(&store), &clocks[0], paced).await;
        let by_memory = steps(&limiter(&memory), &clocks[1], paced).await;
        for (step, (store, memory)) in by_store.iter().zip(&by_memory).enumerate() {
            assert_eq!(store, memory, "{kind:?}, step {step}");
        }
    }
}

#[tokio::test]
async fn slots_without_a_store_are_given_back_too() {
    let redis = Redis::in_memory(Manual::new());
    let limiter = redis
        .limiter_with_kind("jobs", LimitKind::Concurrency(1))
        .build()
        .unwrap();
    let held = limiter.check("k").await;
    assert!(held.denied().is_none() && limiter.check("k").await.denied().is_some());
    drop(held);
    assert!(limiter.check("k").await.allowed().is_some());
    assert_eq!(redis.stats().queries, 3);
    assert_eq!(redis.stats().fallback, Default::default());
}

#[tokio::test]
async fn slots_that_a_store_gave_count_while_it_is_away() {
    let redis = Redis::in_memory(Manual::new());
    let limiter = redis.limiter_with_kind("jobs", LimitKind::Concurrency(3));
    let limiter = limiter.build().expect("a limit");
    let held = limiter.check("k").await;
    let store = redis.fake_store().expect("a store in memory");
    store.inject_fault(Fault::Down);
    let others = [
        limiter.check("k").await,
        limiter.check("k").await,
        limiter.check("k").await,
    ];
    assert_eq!(
        others.each_ref().map(|other| other.denied().is_none()),
        [true, true, false]
    );
    drop(held);
    assert!(limiter.check("k").await.allowed().is_some());
}
