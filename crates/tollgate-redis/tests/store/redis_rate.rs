//! Observed answers of redis_rate's own scripts, compared with ours at the recorded times.
//!
//! A sequence is followed until the first step after which the two are known to differ: time that went back, or a
//! partial take, which there swallows the fraction of a token as well.

use std::time::Duration;

use futures_util::future::join_all;
use serde::Deserialize;
use tollgate::clock::Manual;
use tollgate::{Outcome, Rate, Timestamp};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;
use tollgate_testkit::test_vectors;

/// So far apart, in nanoseconds, two durations may be: the peer's clock is a double, and ours rounds up to
/// microseconds.
const TOLERANCE: u128 = 2_000;

#[derive(Deserialize)]
struct Sequence {
    id: u64,
    rate: u64,
    burst: u64,
    period_s: f64,
    exact_allowed_agrees: bool,
    ops: Vec<Op>,
}

#[derive(Debug, Deserialize)]
struct Op {
    op: String,
    t_us: u64,
    #[serde(default)]
    n: u64,
    #[serde(default)]
    allowed: u64,
    #[serde(default)]
    remaining: u64,
    exact_remaining: Option<u64>,
    #[serde(default)]
    retry_after_ns: i64,
    #[serde(default)]
    reset_after_ns: i64,
}

fn near(ours: Duration, theirs: i64) -> bool {
    let theirs = u128::try_from(theirs.max(0)).unwrap_or(0);
    ours.as_nanos().abs_diff(theirs) <= TOLERANCE
}

/// Follows one sequence; returns how many steps were compared.
async fn follow(server: &Server, sequence: &Sequence) -> usize {
    let clock = Manual::new();
    let builder = Redis::builder(&server.url()).expect("a server's own URL");
    let redis = builder.timeout(Duration::from_secs(20)).deny_cache(0);
    let redis = redis
        .clock(clock.clone())
        .node_count(1)
        .build()
        .expect("a runtime");
    let period = Duration::from_secs_f64(sequence.period_s);
    let rate = Rate::new(sequence.rate, period).burst(sequence.burst);
    let name = format!("sequence {}", sequence.id);
    let limiter = redis.limiter(&name, rate).build().expect("a rate");
    let (mut latest, mut compared) = (0, 0);
    for op in &sequence.ops {
        if op.t_us < latest {
            break;
        }
        latest = op.t_us;
        clock.advance(Timestamp::from_micros(op.t_us) - tollgate::Clock::now(&clock));
        let at = format!("{name}: {op:?}");
        let passed = op.retry_after_ns == -1;
        match op.op.as_str() {
            "reset" => limiter.reset("k").await.expect("a store"),
            "allow_at_most" => {
                let taken = limiter.allow_at_most("k", op.n).await.expect("a store");
                assert_eq!(taken, op.allowed, "{at}");
                if taken < op.n {
                    compared += 1;
                    break;
                }
            }
            _ => {
                let ours = limiter.check_n("k", op.n).await.decision;
                assert_eq!(ours.is_allowed(), passed, "{at}: {ours:?}");
                if passed {
                    let remaining = op.exact_remaining.unwrap_or(op.remaining);
                    assert_eq!(ours.remaining, remaining, "{at}");
                } else if ours.outcome == Outcome::Denied {
                    // For a cost that can never pass it names a time all the same.
                    assert!(
                        near(ours.wait_or_max(), op.retry_after_ns),
                        "{at}: {ours:?}"
                    );
                }
                assert!(near(ours.reset_after, op.reset_after_ns), "{at}: {ours:?}");
            }
        }
        compared += 1;
    }
    compared
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_rate_answered_is_what_the_scripts_answer() {
    let server = Server::start();
    let sequences: Vec<Sequence> =
        test_vectors::load_vectors("redis_rate").expect("recorded sequences");
    // Where its doubles decide as exact arithmetic does.
    let exact: Vec<_> = (sequences.iter())
        .filter(|sequence| sequence.exact_allowed_agrees)
        .collect();
    let (mut compared, mut all) = (0, 0);
    for some in exact.chunks(16) {
        let followed = some.iter().map(|sequence| follow(&server, sequence));
        compared += join_all(followed).await.into_iter().sum::<usize>();
        all += some
            .iter()
            .map(|sequence| sequence.ops.len())
            .sum::<usize>();
    }
    assert!(
        compared * 10 > all * 6,
        "{compared} of {all} steps were compared"
    );
}
