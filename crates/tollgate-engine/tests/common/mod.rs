//! Short rules for tests.
#![allow(dead_code, reason = "each test uses some of it")]

use tollgate::Rate;
use tollgate::clock::Manual;
use tollgate_engine::Engine;
use tollgate_engine::backend::Memory;
use tollgate_engine::policy::{
    KeyPart, Limits, MatchConditions, OnStoreFailure, Pattern, Policy, Rule,
};

pub(crate) type TestEngine = Engine<Memory<Manual, Manual>>;

/// A rule for all requests, by user.
pub(crate) fn rule(name: &str, limits: Limits) -> Rule {
    Rule {
        key: vec![KeyPart::Fact("user".to_owned())],
        on_store_failure: OnStoreFailure::Local.into(),
        ..Rule::new(name, limits)
    }
}

pub(crate) fn rates(rates: &[&str]) -> Limits {
    let parse = |rate: &&str| rate.parse::<Rate>().expect("a rate");
    Limits {
        rates: rates.iter().map(parse).collect(),
        ..Limits::default()
    }
}

pub(crate) fn only(fact: &str, text: &str) -> MatchConditions {
    MatchConditions {
        conditions: vec![(fact.to_owned(), Pattern::Exact(text.to_owned()))],
        ..MatchConditions::default()
    }
}

pub(crate) fn policy(rules: Vec<Rule>) -> Policy {
    Policy {
        rules,
        near_limit_percent: 80,
        ..Policy::default()
    }
}

pub(crate) fn engine(policy: Policy, clock: &Manual) -> TestEngine {
    let memory = Memory::builder().capacity(10_000);
    let memory = memory.clock(clock.clone()).wall(clock.clone()).build();
    Engine::new(policy, memory).expect("a policy")
}
