//! A bound on the cost of a paid API: a daily quota in Redis that is closed when Redis fails, and a circuit breaker
//! on the API.
//!
//! `cargo run --example cost_guard` starts its own Redis, and stops it to show what happens then.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate_adaptive::breaker::{CircuitBreaker, CircuitState, Thresholds};
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

type BoxError = Box<dyn std::error::Error>;

/// Paid calls never exceed this, even while the quota can't be checked.
const POLICY: &str = "
limits:
- {name: paid-calls, key: account, quota: 6/day, on_store_failure: closed}
";

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallOutcome {
    /// The call was made, and paid for.
    Done,
    /// The call was made and paid for, and failed.
    Failed,
    /// The call wasn't made, as the API is down. Nothing was charged.
    Open,
    /// The call wasn't made, as the quota is spent or can't be checked.
    OverQuota,
}

/// The paid API, which is down at its third and fourth call.
fn paid_api(call: u32) -> Result<&'static str, &'static str> {
    match call {
        3 | 4 => Err("502"),
        _ => Ok("done, for a cent"),
    }
}

/// Makes a call, if both the circuit breaker and the quota allow it.
async fn call(
    engine: &Engine<Redis>,
    breaker: &CircuitBreaker<Manual>,
    made: &mut u32,
) -> Result<CallOutcome, BoxError> {
    // The circuit breaker first: while it is open, nothing is charged.
    let Ok(call) = breaker.try_call() else {
        return Ok(CallOutcome::Open);
    };
    let facts = Facts::new().with("account", "acme");
    if engine.decide_async(&facts).await?.allowed().is_none() {
        return Ok(CallOutcome::OverQuota);
    }
    *made += 1;
    Ok(match paid_api(*made) {
        Ok(_) => {
            call.success();
            CallOutcome::Done
        }
        Err(_) => {
            call.failure();
            CallOutcome::Failed
        }
    })
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    use CallOutcome::{Done, Failed as Down, Open, OverQuota};
    let server = Server::start();
    // A long timeout, as this may run on a busy machine; a service would choose a short one.
    let redis = Redis::builder(server.url().as_str())?.timeout(Duration::from_secs(10));
    let policy = Policy::from_text(POLICY, Format::Yaml)?.policy;
    let engine = Engine::new(policy, redis.build()?)?;
    let terms = Thresholds {
        min_calls: 4,
        failing_percent: 50,
        opens_for: Duration::from_secs(30),
        ..Thresholds::default()
    };
    // A manual clock, so that the program doesn't wait for half a minute.
    let clock = Manual::new();
    let breaker = CircuitBreaker::with_clock(terms, clock.clone())
        .on_event(|event| println!("        {event}"));

    let (mut made, mut came) = (0, Vec::new());
    for number in 1..=9 {
        if number == 7 {
            println!("        half a minute later …");
            clock.advance(Duration::from_secs(30));
        }
        let this = call(&engine, &breaker, &mut made).await?;
        println!("call {number}: {this:?}");
        came.push(this);
    }
    assert_eq!(
        came,
        [Done, Done, Down, Down, Open, Open, Done, Done, OverQuota],
        "two weren't made while the API was down, and weren't charged"
    );
    assert_eq!((made, breaker.state()), (6, CircuitState::Closed));

    drop(server);
    let blind = call(&engine, &breaker, &mut made).await?;
    println!("without Redis: {blind:?}");
    assert_eq!(
        (blind, made),
        (OverQuota, 6),
        "who can't count doesn't spend"
    );
    println!("6 calls were paid for, of a quota of 6");
    Ok(())
}
