//! Tests of a node whose clock is wrong, of prepared limits, and of many concurrent requests for one lease.

use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use tollgate::quota::Quota;
use tollgate::{Rate, Timestamp};
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult, LimitKind, StandaloneLimit};
use tollgate_engine::document::Format;
use tollgate_engine::{Bounds, Engine, Facts, Policy};
use tollgate_testkit::redis::Server;

use crate::Redis;
use crate::query::StoreOp;

const DAY: Duration = Duration::from_secs(86_400);

/// The store's own time.
fn time(server: &Server) -> Timestamp {
    let reply = server.command(&["TIME"]);
    let [secs, micros] = [0, 1].map(|place: usize| reply.items()[place].integer());
    let number =
        |number: Option<i64>| u64::try_from(number.expect("a number")).expect("after 1970");
    Timestamp::from_secs(number(secs)) + Duration::from_micros(number(micros))
}

#[tokio::test]
async fn a_clock_that_is_wrong_by_months_changes_no_quota() {
    let server = Server::start();
    for quota in [
        Quota::per_hour(3),
        Quota::per_day(3),
        Quota::per_month(3),
        Quota::rolling(3, 30 * DAY).expect("a period"),
    ] {
        for days in [-3650_i64, -90, -1, 1, 90, 3650] {
            server.command(&["FLUSHALL"]);
            let builder = Redis::builder(&server.url()).unwrap();
            let redis = builder
                .timeout(Duration::from_secs(5))
                .node_count(1)
                .build()
                .unwrap();
            let direct = redis.store_client().unwrap();
            // As if this node's clock were behind or ahead by this much.
            direct
                .store_clock_ahead_micros
                .store(days * 86_400_000_000, Ordering::Relaxed);
            let limiter = redis.limiter_with_kind("skewed", LimitKind::Quota(quota.clone()));
            let limiter = limiter.build().unwrap();
            let before = time(&server);
            for number in 0..5 {
                let answer = limiter.check("k").await;
                let what = format!("{quota} by {days} days, {number}");
                assert_eq!(
                    (answer.fallback, answer.denied().is_none()),
                    (None, number < 3),
                    "{what}"
                );
                if let Some((_, end)) = quota.period_at(before)
                    && time(&server) < end
                {
                    // It ends by the store's clock.
                    assert!(answer.decision.reset_after <= end - before, "{what}");
                    assert!(
                        answer.decision.reset_after + DAY / 1000 >= end - before,
                        "{what}"
                    );
                }
            }
            // The calendar was sent again once, if it was for another time.
            assert!(redis.stats().round_trips <= 6, "{quota} by {days} days");
            assert_eq!(redis.stats().foreign_keys, 0);
        }
    }
}

/// A backend that records the address and the version of each prepared limit.
struct Noting(Redis, Mutex<Vec<(usize, u64)>>);

impl Backend for Noting {
    type Error = Infallible;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        each: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + 'a {
        let direct = self.0.store_client().unwrap();
        for check in checks {
            let made = direct.stored(check.limit).unwrap();
            let place = std::ptr::from_ref(made).addr();
            self.1.lock().unwrap().push((place, made.version));
        }
        self.0.ask(checks, each)
    }

    fn now(&self) -> Timestamp {
        Backend::now(&self.0)
    }
}

#[tokio::test]
async fn a_limit_is_made_ready_for_the_store_once() {
    let server = Server::start();
    let redis = Redis::connect(&server.url()).unwrap();
    // They share a counter, and are queried alternately.
    let text = "{tiers: {free: {rate: 5/h}, paid: {rate: 9/h}}, tier_fact: tier}";
    let policy = Policy::from_text(text, Format::Yaml).unwrap().policy;
    let engine = Engine::new(policy, Noting(redis, Mutex::default())).unwrap();
    for tier in ["free", "paid"].repeat(5) {
        let facts = Facts::new().with("tenant", "acme").with("tier", tier);
        drop(engine.decide_async(&facts).await.unwrap());
    }
    let made = engine.backend().1.lock().unwrap();
    let [free, paid, others @ ..] = &made[..] else {
        panic!("ten");
    };
    for pair in others.chunks(2) {
        assert_eq!(pair, [*free, *paid]);
    }
    // A lease or a denial of one says nothing about the other.
    assert!(free.0 != paid.0 && free.1 != paid.1);
}

#[tokio::test]
async fn nobody_is_refused_because_others_were_faster() {
    let server = Server::start();
    let builder = Redis::builder(&server.url()).unwrap();
    let redis = builder.timeout(Duration::from_secs(5)).build().unwrap();
    let limiter = redis.limiter("hot", Rate::per_second(1_000_000)).leased();
    let limiter = limiter.build().unwrap();
    for round in 0..50 {
        let key = format!("k{}", round % 7);
        // All requests arrive while the first one queries the store for its own cost.
        let all = join_all((0..32).map(|_| limiter.try_check(&key, 1))).await;
        let passed = all
            .iter()
            .filter(|answer| matches!(answer, Ok(answer) if answer.denied().is_none()));
        assert_eq!(passed.count(), 32, "round {round}");
    }
}

#[tokio::test]
async fn what_came_for_one_who_has_gone_is_left_to_others() {
    let server = Server::start();
    let builder = Redis::builder(&server.url()).unwrap();
    let redis = builder.timeout(Duration::from_secs(5)).build().unwrap();
    let limiter = redis.limiter("hot", Rate::per_hour(1_000)).leased();
    let limiter = limiter.build().unwrap();
    let mut asking = Box::pin(limiter.try_check("k", 700));
    let polled = asking
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    drop(asking);
    let left = async {
        while redis.stats().leased_tokens < 700 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), left)
        .await
        .unwrap();
    assert!(
        limiter
            .try_check("k", 700)
            .await
            .unwrap()
            .allowed()
            .is_some()
    );
    assert!(
        limiter
            .try_check("k", 700)
            .await
            .unwrap()
            .denied()
            .is_some()
    );
}

#[tokio::test]
async fn a_request_of_very_many_limits_goes_in_calls_of_a_bounded_size() {
    let server = Server::start();
    let builder = Redis::builder(&server.url()).expect("a URL");
    let redis = builder.timeout(Duration::from_secs(20)).node_count(1);
    let redis = redis.build().expect("a client");
    let limits: String = (0..300)
        .map(|number| {
            format!(
                "- {{name: r{number}, rate: {}/h}}\n",
                if number == 299 { 2 } else { 5 }
            )
        })
        .collect();
    let policy = Policy::from_text(&format!("limits:\n{limits}"), Format::Yaml);
    let engine = Engine::new(policy.expect("a policy").policy, redis.clone());
    let bounds = Bounds {
        max_checks: 300,
        ..Bounds::default()
    };
    let engine = engine.expect("a policy").with_bounds(bounds);
    let before = redis.stats().round_trips;
    let facts = Facts::new();
    let mut passed = 0;
    for _ in 0..3 {
        let verdict = engine.decide_async(&facts).await.expect("an answer");
        assert_eq!(verdict.fallback(), None);
        passed += u64::from(verdict.denied().is_none());
    }
    assert_eq!(passed, 2);
    // Calls of 128, 128 and 44 queries, and those of refunds.
    let calls = redis.stats().round_trips - before;
    assert!(calls >= 9, "{calls} calls");
}

/// The thread cache of glibc's allocator ends at 1,032 bytes. A larger future costs a decision some hundred
/// nanoseconds more.
#[tokio::test]
async fn a_decision_is_small_enough_to_be_had_at_once_from_the_allocator() {
    let redis = Redis::connect("redis://127.0.0.1:1").unwrap();
    let limiter = redis.limiter("small", Rate::per_second(1)).build().unwrap();
    let (limit, facts) = (limiter.limit(), StandaloneLimit::facts("k"));
    let checks = [limit.check(&facts, 1)];
    let direct = redis.store_client().unwrap();
    let question = direct.build_query(&checks[0], StoreOp::Decide, 0).unwrap();
    let sizes = [
        size_of_val(&limiter.ask("k", 1)),
        size_of_val(&direct.execute_single_query(&checks, question)),
    ];
    assert!(sizes.iter().all(|size| *size <= 1_032), "{sizes:?} bytes");
}
