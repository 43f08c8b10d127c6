//! A node whose own clock is wrong.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::quota::Quota;
use tollgate_engine::backend::LimitKind;
use tollgate_testkit::redis::Server;

use crate::Redis;

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
        Quota::rolling(3, 30 * DAY),
    ] {
        for days in [-3650_i64, -90, -1, 1, 90, 3650] {
            server.command(&["FLUSHALL"]);
            let builder = Redis::builder(&server.url()).unwrap();
            let redis = builder
                .timeout(Duration::from_secs(5))
                .nodes(1)
                .build()
                .unwrap();
            let direct = redis.direct().unwrap();
            // As if this node's clock were behind or ahead by so much.
            direct.ahead.store(days * 86_400_000_000, Ordering::Relaxed);
            let limiter = redis.limiter_of("skewed", LimitKind::Quota(quota.clone()));
            let limiter = limiter.build().unwrap();
            let before = time(&server);
            for number in 0..5 {
                let answer = limiter.check("k").await;
                let what = format!("{quota} by {days} days, {number}");
                assert_eq!(
                    (answer.fallback, answer.allowed),
                    (None, number < 3),
                    "{what}"
                );
                if let Some((_, end)) = quota.period_at(before)
                    && time(&server) < end
                {
                    // It ends when it does by the store's clock.
                    assert!(answer.decision.reset_after <= end - before, "{what}");
                    assert!(
                        answer.decision.reset_after + DAY / 1000 >= end - before,
                        "{what}"
                    );
                }
            }
            // The calendar was told anew once, if it was of another time at all.
            assert!(redis.stats().round_trips <= 6, "{quota} by {days} days");
            assert_eq!(redis.stats().strange_keys, 0);
        }
    }
}
