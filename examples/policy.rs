//! A policy text decides requests: denials, exemptions, tiers, and a reload while requests go on.

use std::error::Error;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Facts, Policy, RequestDecision, render};

const POLICY: &str = "
limits:
- name: writes
  match: {path: /api/**, method: [POST, PUT]}
  key: [user]
  rate: 1/s burst 2
tiers:
  free: {rate: 3/s}
  paid: {rate: 100/s}
tenants: {acme: paid}
default_tier: free
exempt: [{path: /healthz}]
";

fn main() -> Result<(), Box<dyn Error>> {
    // A service uses `Memory::new()`; here the clock stands still, so that the numbers are always the same.
    let clock = Manual::new();
    let memory = Memory::builder().clock(clock.clone());
    let checked = Policy::from_text(POLICY, Format::Yaml)?;
    print!("{}", render::to_text(&checked.warnings, &checked.sources));
    let engine = Engine::new(checked.policy, memory.build())?;

    for (tenant, method, path) in [
        ("small", "POST", "/api/orders"),
        ("small", "GET", "/api/orders"),
        ("acme", "GET", "/api/orders"),
        ("small", "GET", "/healthz"),
    ] {
        println!("{tenant} {method} {path}, five times:");
        show(&engine, &facts(tenant, method, path));
        clock.advance(Duration::from_secs(10));
    }

    // Spent tokens stay spent, and requests in flight go on.
    let stricter = POLICY.replace("free: {rate: 3/s}", "free: {rate: 1/s}");
    engine.reload(Policy::from_text(&stricter, Format::Yaml)?.policy)?;
    println!("small GET /api/orders after a reload:");
    show(&engine, &facts("small", "GET", "/api/orders"));

    // An error has its place and its remedy.
    if let Err(rejected) = Policy::from_text("limits: [{name: all, raet: 5/s}]", Format::Yaml) {
        println!("\n{rejected}");
    }
    Ok(())
}

/// The facts of a request; a service takes them from the request's head.
fn facts<'r>(tenant: &'r str, method: &'r str, path: &'r str) -> Facts<'r> {
    let facts = Facts::new().with("tenant", tenant).with("user", "ada");
    facts.with("method", method).with("path", path)
}

/// Sends five requests, and prints each decision.
fn show(engine: &Engine<Memory<Manual>>, facts: &Facts<'_>) {
    for _ in 0..5 {
        match engine.decide(facts) {
            RequestDecision::Allowed(passed) => println!("  served: {}", passed.decision()),
            RequestDecision::Denied(refused) => {
                println!("  429 by {}: {}", refused.cause(), refused.decision());
            }
        }
    }
}
