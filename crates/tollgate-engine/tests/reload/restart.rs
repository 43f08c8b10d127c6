//! Quotas in a file: tokens spent before a restart are spent after it, in rules and tiers, by one engine at a time.

use std::path::Path;

use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate::quota::FileError;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_testkit::temp_folder::TempFolder;

use super::TestEngine;

const POLICY: &str = "\
limits: [{name: monthly, key: user, quota: 10/month}, {name: pace, rate: 1000/s}]
tiers: {free: {quota: 7/day}}
default_tier: free
";

fn parse(text: &str) -> Policy {
    Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy
}

fn clock() -> Manual {
    Manual::starting_at(Timestamp::from_secs(1_717_243_200)) // 1 June 2024
}

fn open(path: &Path, clock: &Manual) -> Result<Memory<Manual, Manual>, FileError> {
    let memory = Memory::builder().capacity(10_000);
    memory
        .clock(clock.clone())
        .wall(clock.clone())
        .quota_file(path)
}

fn start(path: &Path, clock: &Manual) -> TestEngine {
    Engine::new(parse(POLICY), open(path, clock).expect("a file")).expect("a policy")
}

/// How many of so many requests pass.
fn passed(engine: &TestEngine, fact: &str, value: &str, tries: usize) -> usize {
    let facts = Facts::new().with(fact, value);
    (0..tries)
        .filter(|_| engine.decide(&facts).allowed().is_some())
        .count()
}

#[test]
fn what_is_spent_before_a_restart_is_spent_after_it() {
    let (scratch, clock) = (TempFolder::new("memory-restart"), clock());
    let path = scratch.path("quotas");
    let engine = start(&path, &clock);
    assert_eq!(passed(&engine, "user", "ada", 6), 6);
    assert_eq!(passed(&engine, "tenant", "acme", 3), 3);
    drop(engine);

    let engine = start(&path, &clock);
    assert_eq!(engine.backend().quota_stats().keys, 2);
    assert_eq!(passed(&engine, "user", "ada", 9), 4);
    assert_eq!(passed(&engine, "user", "eve", 99), 10);
    assert_eq!(passed(&engine, "tenant", "acme", 9), 4);
    engine.backend().flush_quotas().expect("written");
    assert_eq!(engine.backend().quota_stats().unsaved, 0);
    // A period ends while nothing runs, too.
    drop(engine);
    clock.advance(std::time::Duration::from_secs(86_400));
    let engine = start(&path, &clock);
    assert_eq!(passed(&engine, "user", "ada", 9), 0);
    assert_eq!(passed(&engine, "tenant", "acme", 9), 7);
}

#[test]
fn a_reload_keeps_the_counts_of_a_file_and_so_does_the_restart_after_it() {
    let (scratch, clock) = (TempFolder::new("memory-reload"), clock());
    let path = scratch.path("quotas");
    let engine = start(&path, &clock);
    assert_eq!(passed(&engine, "user", "ada", 6), 6);
    // Other rules come before it, and it allows more.
    let changed = "limits: [{name: first, key: user, quota: 99/day}, {name: monthly, key: user, quota: 12/month}]";
    engine.reload(parse(changed)).expect("a policy");
    assert_eq!(passed(&engine, "user", "ada", 4), 4);
    drop(engine);
    let engine = start(&path, &clock);
    assert_eq!(passed(&engine, "user", "ada", 9), 0);
    engine.reload(parse(changed)).expect("a policy");
    assert_eq!(passed(&engine, "user", "ada", 9), 2);
}

#[test]
fn two_engines_on_one_file_are_told_so() {
    let (scratch, clock) = (TempFolder::new("memory-two"), clock());
    let path = scratch.path("quotas");
    let first = start(&path, &clock);
    let refused = open(&path, &clock).expect_err("it is in use");
    assert!(matches!(refused, FileError::Locked { .. }), "{refused:?}");
    assert_eq!(
        refused.to_string(),
        format!(
            "quota store {} is in use by another limiter; give each process a file of its own",
            path.display()
        )
    );
    drop(first);
    assert!(open(&path, &clock).is_ok());
}

#[test]
fn without_a_file_a_restart_forgets() {
    let clock = clock();
    let start = || super::engine(parse(POLICY), &clock);
    assert_eq!(passed(&start(), "user", "ada", 99), 10);
    assert_eq!(passed(&start(), "user", "ada", 99), 10);
}
