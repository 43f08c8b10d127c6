//! The explanation of a request agrees with the engine's decision.

mod common;

use std::convert::Infallible;
use std::future::ready;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use common::{only, policy, rates, rule};
use proptest::prelude::*;
use tollgate::{Decision, Timestamp};
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult};
use tollgate_engine::explain::{RuleStatus, explain};
use tollgate_engine::policy::{KeyPart, MatchConditions, Mode, Policy, Rule, Tier};
use tollgate_engine::verdict::Cause;
use tollgate_engine::{Engine, Facts};

/// Allows everything, and records which counter was charged by which key.
#[derive(Default)]
struct Noting(Mutex<Vec<(String, String)>>);

impl Backend for Noting {
    type Error = Infallible;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + 'a {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for check in checks {
            let counter = check.limit.counter().name.clone();
            noted.push((counter, check.key.to_string()));
        }
        ready(Ok(Answer::new(None, Decision::UNLIMITED)))
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO
    }
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![4 => Just(Mode::Enforce), 2 => Just(Mode::Shadow), 1 => Just(Mode::Off)]
}

fn matches() -> impl Strategy<Value = MatchConditions> {
    prop_oneof![
        2 => Just(MatchConditions::default()),
        3 => ("[xy]", "[ab]").prop_map(|(fact, text)| only(&fact, &text)),
    ]
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let key = prop::sample::subsequence(vec!["user", "ip", "tenant"], 0..3);
    let one = (
        matches(),
        key,
        mode(),
        prop::collection::vec(0..6usize, 0..3),
    );
    prop::collection::vec(one, 0..6).prop_map(|drafts| {
        let rules = drafts.into_iter().enumerate();
        let rules = rules.map(|(number, (matches, key, mode, replaces))| Rule {
            matches,
            key: key
                .iter()
                .map(|fact| KeyPart::Fact((*fact).to_owned()))
                .collect(),
            mode,
            // Only of those before it, so that none go in a circle.
            replaces: replaces
                .into_iter()
                .filter(|replaced| *replaced < number)
                .map(|replaced| format!("r{replaced}"))
                .collect(),
            ..rule(&format!("r{number}"), rates(&["1/s"]))
        });
        rules.collect()
    })
}

fn a_policy() -> impl Strategy<Value = Policy> {
    let listed = || {
        let entry = ("[xy]", "[abc]").prop_map(|(fact, text)| only(&fact, &text));
        prop::collection::vec(entry, 0..2)
    };
    let tiers = (any::<bool>(), any::<bool>(), any::<bool>());
    (rules(), listed(), listed(), mode(), tiers).prop_map(
        |(rules, block, exempt, mode, (tenant, fact, default))| Policy {
            block,
            exempt,
            mode,
            tiers: ["low", "high"]
                .map(|name| (name.to_owned(), Tier::new(rates(&["5/s"]))))
                .into(),
            tenants: tenant
                .then(|| ("a".to_owned(), "high".to_owned()))
                .into_iter()
                .collect(),
            tier_fact: fact.then(|| "x".to_owned()),
            default_tier: default.then(|| "low".to_owned()),
            ..policy(rules)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_said_to_apply_is_what_is_asked(
        policy in a_policy(),
        known in prop::collection::vec(
            (prop::sample::select(vec!["x", "y", "user", "ip", "tenant"]), prop::sample::select(vec!["a", "b", "low"])),
            0..6,
        ),
    ) {
        let facts: Facts<'_> = known.into_iter().collect();
        let engine = Engine::new(policy.clone(), Noting::default()).unwrap();
        let verdict = match pin!(engine.decide_async(&facts)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(verdict) => verdict.unwrap(),
            Poll::Pending => panic!("it never waits"),
        };
        let mut asked = engine.backend().0.lock().unwrap().clone();
        asked.sort();
        let entries = explain(&policy, &facts);
        let mut said: Vec<_> = entries
            .iter()
            .filter_map(|entry| match (&entry.standing, entry.cause) {
                (RuleStatus::Applies { key, .. }, Cause::Rule(name)) => Some((format!("rule/{name}"), key.clone())),
                (RuleStatus::Applies { key, .. }, Cause::Tier(_)) => Some(("tier".to_owned(), key.clone())),
                _ => None,
            })
            .collect();
        said.sort();
        prop_assert_eq!(asked, said);
        let settles = |entry: &&tollgate_engine::explain::Entry<'_>| {
            let bites = match entry.cause {
                Cause::Block(_) => entry.mode == Mode::Enforce,
                Cause::Exempt(_) => true,
                _ => false,
            };
            entry.standing.applies() && bites
        };
        if let Some(entry) = entries.iter().find(settles) {
            prop_assert_eq!(verdict.cause(), entry.cause);
        }
    }
}
