//! The events of an observer.

use std::sync::{Arc, Mutex};

use crate::common::{engine, policy, rates, rule};
use crate::user;
use tollgate::clock::Manual;
use tollgate_engine::Facts;
use tollgate_engine::document::Format;
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::observer::{Event, Observer, ObserverInterest};
use tollgate_engine::policy::Mode;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Observer for Log {
    fn on_decision(&self, event: &Event<'_>) {
        let Event {
            cause,
            mode,
            decision,
            ..
        } = event;
        let near = if event.near_limit { " near" } else { "" };
        let line = format!("{cause} {mode:?} {:?}{near}", decision.outcome);
        self.0.lock().expect("a log").push(line);
    }
}

#[test]
fn an_observer_is_told_of_every_verdict_and_of_shadows() {
    let log = Log::default();
    let mut shadow = rule("trial", rates(&["zero"]));
    shadow.mode = Mode::Shadow;
    let rules = vec![rule("one", rates(&["1/h"])), shadow];
    let engine = engine(policy(rules), &Manual::new()).with_observer(log.clone());
    let facts = user("1");
    let _ = (
        engine.decide(&facts),
        engine.decide(&facts),
        engine.decide(&Facts::new()),
    );
    assert_eq!(
        *log.0.lock().unwrap(),
        [
            "rule \"one\" Enforce Allowed near",
            "rule \"trial\" Shadow Never",
            "rule \"one\" Enforce Denied",
            "no rule Enforce Allowed",
        ]
    );
}

#[test]
fn an_observer_is_told_of_every_descriptor_that_met_a_limit() {
    let text = "
domain: edge
descriptors:
- {key: user, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: trial, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
";
    let policy = tollgate_engine::Policy::from_text(text, Format::Yaml)
        .unwrap()
        .policy;
    let log = Log::default();
    let engine = engine(policy, &Manual::new()).with_observer(log.clone());
    let ada = Descriptor::new(&[("user", "ada")]);
    let asked = Descriptor {
        limit: Some((0, Unit::Hour)),
        ..Descriptor::new(&[("any", "thing")])
    };
    let trial = Descriptor::new(&[("trial", "")]);
    for descriptors in [&[ada, trial][..], &[ada], &[asked], &[]] {
        let _ = engine.decide_descriptors("edge", descriptors, 1);
    }
    assert_eq!(
        *log.0.lock().unwrap(),
        [
            "descriptor \"edge/user\" Enforce Allowed",
            "descriptor \"edge/trial\" Shadow Never",
            "descriptor \"edge/user\" Enforce Allowed near",
            "a limit that was asked for Enforce Never",
            "no rule Enforce Allowed",
        ]
    );
}

/// The events of an observer that wants denials alone, with the key and the reason.
#[derive(Clone, Default)]
struct Refusals(Arc<Mutex<Vec<String>>>);

impl Observer for Refusals {
    fn on_decision(&self, event: &Event<'_>) {
        let key = event.key.map_or("-".to_owned(), |key| key.to_string());
        let reason = event.reason.map_or("-", |reason| reason.name());
        let line = format!("{} {key} {reason} {:?}", event.cause, event.mode);
        assert_eq!(event.duration, std::time::Duration::ZERO);
        self.0.lock().expect("a log").push(line);
    }

    fn wants(&self) -> ObserverInterest {
        ObserverInterest::Denials
    }
}

#[test]
fn one_who_wants_refusals_is_told_of_no_other_with_key_and_reason() {
    let log = Refusals::default();
    let mut shadow = rule("trial", rates(&["1/h"]));
    shadow.mode = Mode::Shadow;
    let rules = vec![rule("two", rates(&["2/h"])), shadow];
    let engine = engine(policy(rules), &Manual::new()).with_observer(log.clone());
    for _ in 0..3 {
        let _ = engine.decide(&user("7"));
    }
    let _ = engine.decide(&Facts::new());
    let text = "domain: d\ndescriptors: [{key: u, rate_limit: {unit: day, requests_per_unit: 1}}]";
    let checked = tollgate_engine::Policy::from_text(text, Format::Yaml);
    engine.reload(checked.unwrap().policy).unwrap();
    let descriptor = [Descriptor::new(&[("u", "8")])];
    let _ = engine.decide_descriptors("d", &descriptor, 1);
    let _ = engine.decide_descriptors("d", &descriptor, 1);
    assert_eq!(
        *log.0.lock().unwrap(),
        [
            "rule \"trial\" user=7 rate Shadow",
            "rule \"two\" user=7 rate Enforce",
            "descriptor \"d/u\" 00=8 rate Enforce",
        ]
    );
}
