//! A guard on what a paid API costs: a daily quota in Redis that is closed when Redis fails, and a breaker on the API.
//!
//! `cargo run --example cost_guard`; it starts a Redis of its own, and stops it to show what happens then.

use std::time::Duration;

use tollgate::breaker::{Breaker, Thresholds};
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

type Failed = Box<dyn std::error::Error>;

/// What is paid for never exceeds this, also while nobody can count.
const POLICY: &str = "
limits:
- {name: paid-calls, key: account, quota: 5/day, on_store_failure: closed}
";

/// The API of somebody else: down from the fourth call on.
fn paid_api(call: u32) -> Result<&'static str, &'static str> {
    if call < 4 {
        Ok("done, for a cent")
    } else {
        Err("502")
    }
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let server = Server::start();
    let redis = Redis::builder(server.url().as_str())?.build()?;
    let policy = Policy::from_text(POLICY, Format::Yaml)?.policy;
    let engine = Engine::new(policy, redis.clone())?;
    let terms = Thresholds {
        min_calls: 2,
        opens_for: Duration::from_secs(30),
        ..Thresholds::default()
    };
    let breaker = Breaker::builder(terms)
        .on_event(|event| println!("  {event}"))
        .build();
    let facts = Facts::new().with("account", "acme");

    for call in 1..=8 {
        // The breaker first: while it is open nothing is charged.
        let Ok(open) = breaker.try_call() else {
            println!("call {call}: not made, the API is down; nothing was charged");
            continue;
        };
        let verdict = engine.decide_async(&facts).await?;
        if verdict.passed().is_none() {
            println!("call {call}: not made, the quota of the day is spent");
            continue;
        }
        match paid_api(call) {
            Ok(answer) => {
                println!("call {call}: {answer}");
                open.success();
            }
            Err(error) => {
                println!("call {call}: {error}");
                open.failure();
            }
        }
    }
    drop(server);
    let verdict = engine.decide_async(&facts).await?;
    let passed = verdict.passed().is_some();
    println!("without Redis nothing is spent: passed {passed}");
    Ok(())
}
