//! Descriptor requests, decided on virtual time by Envoy's rules.

mod bounds;
mod properties;
mod together;

use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::engine::DescriptorDecision;
use tollgate_engine::envoy::StatusCode;
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::{Engine, Policy};

type Entries<'a> = &'a [(&'a str, &'a str)];

struct Edge {
    engine: Engine<Memory<Manual, Manual>>,
    clock: Manual,
}

impl Edge {
    fn new(descriptors: &str) -> Self {
        Self::charging("all-or-none", descriptors)
    }

    fn charging(charging: &str, descriptors: &str) -> Self {
        let text = format!("domain: edge\ncharging: {charging}\ndescriptors:\n{descriptors}");
        let policy = Policy::from_text(&text, Format::Yaml)
            .expect("their form")
            .policy;
        let clock = Manual::new();
        let memory = Memory::builder().capacity(1_000);
        let memory = memory.clock(clock.clone()).wall(clock.clone());
        let engine = Engine::new(policy, memory.build()).expect("a policy that fits");
        Self { engine, clock }
    }

    fn ask(&self, descriptors: &[Entries<'_>], hits: u32) -> DescriptorDecision {
        let descriptors: Vec<_> = descriptors.iter().map(|it| Descriptor::new(it)).collect();
        self.engine.decide_descriptors("edge", &descriptors, hits)
    }

    /// How many of ten requests pass.
    fn passed(&self, descriptors: &[Entries<'_>]) -> usize {
        (0..10)
            .filter(|_| self.ask(descriptors, 0).denied().is_none())
            .count()
    }
}

#[test]
fn each_value_counts_by_itself_in_windows_since_the_epoch() {
    let edge = Edge::new("- {key: user, rate_limit: {unit: minute, requests_per_unit: 3}}\n");
    edge.clock.set(Timestamp::from_secs(59));
    assert_eq!(edge.passed(&[&[("user", "ada")]]), 3);
    assert_eq!(edge.passed(&[&[("user", "bo")]]), 3);
    let refused = edge.ask(&[&[("user", "ada")]], 1);
    assert_eq!(refused.retry_after, Duration::from_secs(1));
    edge.clock.advance(Duration::from_secs(1));
    assert_eq!(edge.passed(&[&[("user", "ada")]]), 3);
}

#[test]
fn what_no_limit_is_for_passes() {
    let edge = Edge::new(
        "- key: path\n  value: /login\n  descriptors:\n  - {key: ip, rate_limit: {unit: day, requests_per_unit: 1}}\n",
    );
    assert_eq!(edge.passed(&[&[("path", "/login")]]), 10);
    assert_eq!(edge.passed(&[&[("path", "/other"), ("ip", "1")]]), 10);
    assert_eq!(edge.passed(&[&[("path", "/login"), ("ip", "1")]]), 1);
    let elsewhere = [Descriptor::new(&[("path", "/login"), ("ip", "1")])];
    assert!(
        edge.engine
            .decide_descriptors("mesh", &elsewhere, 1)
            .denied()
            .is_none()
    );
    let verdict = edge.ask(&[], 1);
    assert!(verdict.denied().is_none() && verdict.statuses.is_empty());
}

#[test]
fn several_descriptors_are_charged_all_or_none() {
    let edge = Edge::new(
        "- {key: user, rate_limit: {unit: day, requests_per_unit: 2}}\n\
         - {key: site, rate_limit: {unit: day, requests_per_unit: 7}}\n",
    );
    let both: [Entries<'_>; 2] = [&[("user", "ada")], &[("site", "x")]];
    assert_eq!(edge.passed(&both), 2);
    let refused = edge.ask(&both, 1);
    let codes: Vec<_> = refused.statuses.iter().map(|status| status.code).collect();
    assert_eq!(codes, [StatusCode::OverLimit, StatusCode::Ok]);
    assert_eq!(refused.statuses[1].decision.map(|it| it.remaining), Some(5));
    // What was refused was charged to nobody.
    assert_eq!(edge.passed(&[&[("site", "x")]]), 5);
}

#[test]
fn a_limit_in_shadow_counts_and_lets_pass() {
    let edge = Edge::new(
        "- {key: user, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}\n",
    );
    let verdicts: Vec<_> = (0..4).map(|_| edge.ask(&[&[("user", "ada")]], 1)).collect();
    assert!(verdicts.iter().all(|verdict| verdict.denied().is_none()));
    let would: Vec<_> = verdicts
        .iter()
        .map(|it| it.statuses[0].would_deny)
        .collect();
    assert_eq!(would, [false, false, true, true]);
}

#[test]
fn quota_mode_refuses_only_when_all_of_its_kind_do() {
    let edge = Edge::new(
        "- {key: a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}\n\
         - {key: b, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}\n",
    );
    assert_eq!(edge.passed(&[&[("a", "")], &[("b", "")]]), 5);
    assert_eq!(edge.passed(&[&[("a", "")]]), 0);
}

#[test]
fn what_is_replaced_neither_counts_nor_refuses() {
    let edge = Edge::new(
        "- {key: all, rate_limit: {name: all, unit: day, requests_per_unit: 1}}\n\
         - {key: vip, rate_limit: {unit: day, requests_per_unit: 4, replaces: [{name: all}]}}\n\
         - {key: free, rate_limit: {unlimited: true}}\n",
    );
    assert_eq!(edge.passed(&[&[("all", "")], &[("vip", "")]]), 4);
    assert_eq!(edge.passed(&[&[("all", "")]]), 1);
    assert_eq!(edge.passed(&[&[("free", "")]]), 10);
}

#[test]
fn values_of_a_wildcard_share_a_counter_if_they_are_to() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 3}";
    let shared = Edge::new(&format!(
        "- {{key: path, value: \"/f/*\", share_threshold: true, {limit}}}\n"
    ));
    assert_eq!(shared.passed(&[&[("path", "/f/a")]]), 3);
    assert_eq!(shared.passed(&[&[("path", "/f/b")]]), 0);
    let apart = Edge::new(&format!("- {{key: path, value: \"/f/*\", {limit}}}\n"));
    assert_eq!(apart.passed(&[&[("path", "/f/a")]]), 3);
    assert_eq!(apart.passed(&[&[("path", "/f/b")]]), 3);
}

#[test]
fn a_cost_is_the_requests_or_the_descriptors_own() {
    let edge = Edge::new("- {key: user, rate_limit: {unit: day, requests_per_unit: 10}}\n");
    let ada: Entries<'_> = &[("user", "ada")];
    assert!(edge.ask(&[ada], 7).denied().is_none());
    assert!(edge.ask(&[ada], 4).denied().is_some());
    let peek = [Descriptor {
        cost: Some(0),
        ..Descriptor::new(ada)
    }];
    let seen = edge.engine.decide_descriptors("edge", &peek, 9);
    assert_eq!(seen.statuses[0].decision.map(|it| it.remaining), Some(3));
    assert!(edge.ask(&[ada], 3).denied().is_none());
}

#[test]
fn a_limit_that_the_proxy_asks_for_by_another_unit_counts_apart() {
    let edge = Edge::new("- {key: user, rate_limit: {unit: day, requests_per_unit: 1}}\n");
    let ada: Entries<'_> = &[("user", "ada")];
    let asked = [Descriptor {
        limit: Some((3, Unit::Hour)),
        ..Descriptor::new(ada)
    }];
    let passed = |domain: &str| {
        let ask = |_: &u32| {
            edge.engine
                .decide_descriptors(domain, &asked, 1)
                .denied()
                .is_none()
        };
        (0..10).filter(ask).count()
    };
    assert_eq!((passed("edge"), passed("edge")), (3, 0));
    // An unknown domain limits nothing, and the policy's own limit is as it was.
    assert_eq!(passed("mesh"), 10);
    assert_eq!(edge.passed(&[ada]), 1);
}

/// As there, where a counter is a list of entries and a window: whoever brings another limit for the
/// same window meets what was counted before.
#[test]
fn a_limit_that_the_proxy_asks_for_by_the_same_unit_counts_with_the_configured_one() {
    let edge = Edge::new(
        "- {key: user, rate_limit: {unit: day, requests_per_unit: 5}}\n\
         - {key: user, value: \"v*\", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}\n\
         - {key: user, value: smooth, rate_limit: {rate: 5/d}}\n",
    );
    let asking = |user: &str, requests: u32, unit: Unit| {
        let entries = [("user", user)];
        let asked = [Descriptor {
            limit: Some((requests, unit)),
            ..Descriptor::new(&entries)
        }];
        let verdict = edge.engine.decide_descriptors("edge", &asked, 1);
        let left = verdict.statuses[0].decision.map(|it| it.remaining);
        (verdict.denied().is_none(), left)
    };
    let configured = |user: &str| edge.ask(&[&[("user", user)]], 1).denied().is_none();
    assert_eq!([(); 3].map(|()| configured("ada")), [true; 3]);
    // Three of ten are spent, then four of four.
    assert_eq!(asking("ada", 10, Unit::Day), (true, Some(6)));
    assert_eq!(asking("ada", 4, Unit::Day), (false, Some(0)));
    assert!(configured("ada"));
    assert!(!configured("ada"));
    assert_eq!(asking("ada", 10, Unit::Day), (true, Some(4)));
    assert!(!configured("ada"));
    // Others, and those by another unit, are apart.
    assert_eq!(asking("bo", 10, Unit::Day), (true, Some(9)));
    assert_eq!(asking("ada", 10, Unit::Hour), (true, Some(9)));
    // What all values share isn't theirs, and another way of counting isn't the same.
    for user in ["vera", "smooth"] {
        assert!(configured(user));
        assert_eq!(asking(user, 10, Unit::Day), (true, Some(9)), "{user}");
    }
    // A new day.
    edge.clock.advance(Duration::from_secs(86_400));
    assert_eq!(asking("ada", 10, Unit::Day), (true, Some(9)));
    assert_eq!(edge.passed(&[&[("user", "ada")]]), 4);
}

#[test]
fn what_is_given_back_can_be_taken_again() {
    let edge = Edge::new(
        "- {key: user, rate_limit: {unit: day, requests_per_unit: 5}}\n\
         - {key: site, rate_limit: {rate: 5/d}}\n",
    );
    for entries in [[("user", "ada")], [("site", "x")]] {
        let back = [Descriptor {
            refund: true,
            cost: Some(2),
            ..Descriptor::new(&entries)
        }];
        assert_eq!(edge.passed(&[&entries]), 5);
        let verdict = edge.engine.decide_descriptors("edge", &back, 1);
        assert!(verdict.denied().is_none());
        assert_eq!(verdict.statuses[0].decision.map(|it| it.remaining), Some(2));
        assert_eq!(edge.passed(&[&entries]), 2);
    }
}

#[test]
fn what_a_request_was_charged_is_all_that_its_refund_gives_back() {
    let edge = Edge::new("- {key: user, rate_limit: {unit: day, requests_per_unit: 5}}\n");
    let entries = [("user", "ada")];
    let ask = |hits| {
        edge.engine
            .decide_descriptors("edge", &[Descriptor::new(&entries)], hits)
    };
    let give_back = |cost| {
        let back = Descriptor {
            refund: true,
            cost: Some(cost),
            ..Descriptor::new(&entries)
        };
        let verdict = edge.engine.decide_descriptors("edge", &[back], 1);
        verdict.statuses[0].decision.map(|it| it.remaining)
    };
    let passed = ask(3);
    let denied = ask(3);
    assert!(passed.denied().is_none() && denied.denied().is_some());
    let charged = [&passed, &denied].map(|verdict| verdict.statuses[0].charged);
    assert_eq!(charged, [3, 0]);
    assert_eq!(give_back(charged[1]), Some(2));
    // The counter has three, whoever gives them back: more than that never comes.
    assert_eq!(give_back(2), Some(4));
    assert_eq!(give_back(2), Some(5));
    assert_eq!(give_back(charged[0]), Some(5));
}
