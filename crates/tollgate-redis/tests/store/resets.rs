//! A reset on a store affects all processes: their cached denials, and their leases from before it.

use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_engine::document::Format;
use tollgate_engine::engine::ResetScope;
use tollgate_engine::overrides::Target;
use tollgate_engine::verdict::Permits;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

const SECOND: Duration = Duration::from_secs(1);
/// For how long a remembered denial is repeated without asking.
const REPEATED: Duration = SECOND;

/// A process of a fleet, on a clock that all of them share.
fn process(server: &Server, clock: &Manual, text: &str) -> Engine<Redis> {
    let builder = Redis::builder(&server.url()).expect("a server's own URL");
    let builder = builder.timeout(Duration::from_secs(5)).node_count(1);
    let redis = builder.clock(clock.clone()).build().expect("a runtime");
    let policy = Policy::from_text(text, Format::Yaml).expect("a policy");
    Engine::new(policy.policy, redis).expect("a policy")
}

fn clock() -> Manual {
    Manual::starting_at(Timestamp::from_secs(1_000_000))
}

async fn passes(engine: &Engine<Redis>, facts: &Facts<'_>) -> bool {
    let Ok(verdict) = engine.decide_async(facts).await;
    assert_eq!(verdict.fallback(), None);
    verdict.allowed().is_some()
}

async fn reset(engine: &Engine<Redis>, user: &str) {
    let target = Target::key("a", [("user", user)]);
    let Ok(reset) = engine
        .reset_async(&target, ResetScope::RatesAndQuotas)
        .await;
    reset.expect("a key");
}

/// Limits of one, by every algorithm whose denials are remembered, and by those whose aren't.
const LIMITS: [&str; 7] = [
    "rate: 1/h",
    "rate: 1/h, algorithm: token-bucket",
    "rate: 1/h, algorithm: leaky",
    "rate: 1/h, algorithm: fixed-window",
    "rate: 1/h, algorithm: sliding-log",
    "rate: 1/h, algorithm: sliding-window",
    "quota: 1/day",
];

#[tokio::test]
async fn a_reset_reaches_the_denials_that_other_processes_remember_within_a_second() {
    let server = Server::start();
    for limit in LIMITS {
        server.command(&["FLUSHALL"]);
        let clock = clock();
        let text = format!("limits: [{{name: a, key: user, {limit}}}]");
        let (here, there) = (
            process(&server, &clock, &text),
            process(&server, &clock, &text),
        );
        let ada = Facts::new().with("user", "ada");
        assert!(passes(&here, &ada).await, "{limit}");
        for engine in [&here, &there, &there] {
            assert!(!passes(engine, &ada).await, "{limit}");
        }
        reset(&here, "ada").await;
        // A lookup asks the store, whatever is remembered.
        let Ok(peeked) = there.peek_async(&ada).await;
        assert!(peeked.decision().is_allowed(), "{limit}: {peeked:?}");
        let Ok(found) = there.find_async(&Target::key("a", [("user", "ada")])).await;
        let found = found.expect("a key").remove(0);
        assert_eq!(found.limits[0].decision.remaining, 1, "{limit}");
        clock.advance(REPEATED);
        assert!(passes(&there, &ada).await, "{limit}: a second later");
        assert!(!passes(&here, &ada).await, "{limit}: it was for both");
    }
}

#[tokio::test]
async fn a_remembered_denial_is_asked_about_once_a_second() {
    let server = Server::start();
    let clock = clock();
    let engine = process(&server, &clock, "limits: [{name: a, key: user, rate: 1/h}]");
    let ada = Facts::new().with("user", "ada");
    assert!(passes(&engine, &ada).await);
    let asked = || engine.backend().stats().queries;
    let before = asked();
    for _ in 0..5 {
        for _ in 0..10 {
            assert!(!passes(&engine, &ada).await);
        }
        clock.advance(REPEATED);
    }
    assert_eq!(asked() - before, 5);
    assert_eq!(engine.backend().stats().repeated_denials, 45);
}

/// Limits of a hundred whose costs are estimates, by everything that isn't leased for that.
const HELD: [&str; 5] = [
    "rate: 100/d, algorithm: fixed-window",
    "rate: 100/d, algorithm: sliding-window",
    "rate: 100/d, algorithm: sliding-log",
    "quota: 100/month",
    "quota: 100 in any 30d",
];

async fn hold(engine: &Engine<Redis>, cost: u64) -> Permits {
    let cost = cost.to_string();
    let facts = Facts::new().with("user", "ada").with("max", &cost);
    let Ok(verdict) = engine.decide_async(&facts).await;
    let passed = verdict.allowed().expect("room");
    passed.into_permits()
}

async fn left(engine: &Engine<Redis>) -> u64 {
    // What was given back is told to the store by a task of its own, which has its turn first.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let facts = Facts::new().with("user", "ada").with("max", "0");
    let Ok(findings) = engine.peek_async(&facts).await;
    findings.decision().remaining
}

/// A process of a fleet that is on a store, or all of it in memory.
#[derive(Clone, Copy, Debug)]
enum Place {
    Store,
    Memory,
}

#[tokio::test]
async fn what_is_held_from_before_a_reset_gives_nothing_back_after_it() {
    let server = Server::start();
    for (limit, place) in HELD
        .into_iter()
        .flat_map(|limit| [(limit, Place::Store), (limit, Place::Memory)])
    {
        for later in [Duration::ZERO, SECOND] {
            server.command(&["FLUSHALL"]);
            let clock = clock();
            let cost = "cost: {fact: max, settle_within: 600s}";
            let text = format!("limits: [{{name: a, key: user, {limit}, {cost}}}]");
            let (here, other) = match place {
                Place::Store => {
                    let other = process(&server, &clock, &text);
                    (process(&server, &clock, &text), Some(other))
                }
                // In memory there is one process.
                Place::Memory => {
                    let redis = Redis::in_memory(clock.clone());
                    let policy = Policy::from_text(&text, Format::Yaml).expect("a policy");
                    let engine = Engine::new(policy.policy, redis);
                    (engine.expect("a policy"), None)
                }
            };
            let there = other.as_ref().unwrap_or(&here);
            let what = format!("{limit}, {place:?}, {later:?} between");
            let before = hold(&here, 60).await;
            assert_eq!(left(&here).await, 40, "{what}");
            clock.advance(later);
            reset(there, "ada").await;
            assert_eq!(left(&here).await, 100, "{what}");
            clock.advance(later);
            let mut after = hold(there, 50).await;
            clock.advance(later);
            before.cancel();
            assert_eq!(left(&here).await, 50, "{what}: it was others' by then");
            // What was held after it is given back as ever.
            after.settle(20);
            assert_eq!(left(there).await, 80, "{what}");
            let last = hold(&here, 10).await;
            assert_eq!(left(&here).await, 70, "{what}");
            reset(&here, "ada").await;
            let again = hold(&here, 30).await;
            last.cancel();
            assert_eq!(left(&here).await, 70, "{what}: after another");
            again.cancel();
            assert_eq!(left(&here).await, 100, "{what}");
        }
    }
}
