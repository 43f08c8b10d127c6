//! A rule that is enforced for a part of its keys: the choice depends on the keys' names alone.

use std::sync::{Arc, Mutex};

use tollgate::clock::Manual;
use tollgate_engine::document::Format;
use tollgate_engine::explain::explain;
use tollgate_engine::observer::{Event, Observer};
use tollgate_engine::policy::{Mode, Policy};
use tollgate_engine::{Facts, RequestDecision};

use super::common::{TestEngine, engine};

fn policy(percent: u8) -> Policy {
    let text =
        format!("limits: [{{name: new, key: user, rate: 1/h, mode: {{enforce: {percent}%}}}}]");
    Policy::from_text(&text, Format::Yaml)
        .expect("a policy")
        .policy
}

/// Whether the second request of each of a thousand users is denied.
fn refused(engine: &TestEngine) -> Vec<bool> {
    let users = (0..1_000).map(|user| user.to_string());
    let refused = users.map(|user| {
        let facts = Facts::new().with("user", &user);
        drop(engine.decide(&facts));
        engine.decide(&facts).denied().is_some()
    });
    refused.collect()
}

#[test]
fn a_part_of_the_keys_is_refused_and_grows_without_giving_any_back() {
    let mut before = vec![false; 1_000];
    for percent in [1, 10, 20, 50, 90, 99, 100] {
        let now = refused(&engine(policy(percent), &Manual::new()));
        let count = now.iter().filter(|refused| **refused).count();
        let expected = usize::from(percent) * 10;
        // Five standard deviations of a fair draw, and then some.
        assert!(count.abs_diff(expected) <= 80, "{count} at {percent} %");
        let given_back = before
            .iter()
            .zip(&now)
            .filter(|(before, now)| **before && !**now);
        assert_eq!(given_back.count(), 0, "at {percent} %");
        before = now;
    }
    assert!(before.iter().all(|refused| *refused));
}

#[test]
fn the_same_keys_are_chosen_by_every_process_whatever_its_seeds() {
    // Each engine has seeds of its own.
    let first = refused(&engine(policy(30), &Manual::new()));
    assert_eq!(refused(&engine(policy(30), &Manual::new())), first);
    // It is a promise to fleets whose nodes have other versions of this library, too.
    let chosen = first.iter().enumerate().filter(|(_, refused)| **refused);
    let chosen: Vec<_> = chosen.map(|(user, _)| user).take(6).collect();
    assert_eq!(chosen, CHOSEN);
}

/// The first users of whom a rule "new" is enforced at 30 %.
const CHOSEN: [usize; 6] = [1, 3, 5, 8, 9, 10];

#[test]
fn another_rule_chooses_others() {
    let text = "
limits:
- {name: one, key: user, rate: 1/h, mode: {enforce: 50%}}
- {name: two, key: user, rate: 1/h, mode: {enforce: 50%}}
";
    let policy = Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy;
    let alike = (0..1_000).filter(|user: &u32| {
        let user = user.to_string();
        let facts = Facts::new().with("user", &user);
        let entries = explain(&policy, &facts);
        entries[0].mode == entries[1].mode
    });
    let alike = alike.count();
    assert!((400..600).contains(&alike), "{alike}");
}

/// The events of an observer: the mode, the share, and whether the request passes.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<(Mode, u8, bool)>>>);

impl Observer for Told {
    fn on_decision(&self, event: &Event<'_>) {
        let told = (
            event.mode,
            event.enforced_percent,
            event.decision.is_allowed(),
        );
        self.0.lock().expect("not poisoned").push(told);
    }
}

#[test]
fn verdicts_observers_and_explanations_tell_both_parts_apart() {
    let told = Told::default();
    let engine = engine(policy(50), &Manual::new()).with_observer(told.clone());
    let (mut enforced, mut shadowed) = (0, 0);
    for user in 0..40 {
        let user = user.to_string();
        let facts = Facts::new().with("user", &user);
        drop(engine.decide(&facts));
        told.0.lock().expect("not poisoned").clear();
        let explained = &explain(&engine.policy(), &facts)[0].mode.to_owned();
        assert_eq!(explain(&engine.policy(), &facts)[0].enforced_percent, 50);
        let left = engine.remaining(&facts);
        match engine.decide(&facts) {
            RequestDecision::Denied(refused) => {
                enforced += 1;
                assert_eq!(
                    (refused.mode(), refused.enforced_percent()),
                    (Mode::Enforce, 50)
                );
                assert_eq!((*explained, left[0].mode), (Mode::Enforce, Mode::Enforce));
                assert_eq!(
                    *told.0.lock().expect("not poisoned"),
                    [(Mode::Enforce, 50, false)]
                );
            }
            RequestDecision::Allowed(passed) => {
                shadowed += 1;
                let refusal = passed
                    .shadow_denials()
                    .next()
                    .expect("the second in an hour");
                assert_eq!(refusal.enforced_percent, 50);
                assert_eq!((*explained, left[0].mode), (Mode::Shadow, Mode::Shadow));
                let shadow = told.0.lock().expect("not poisoned").pop();
                assert_eq!(shadow, Some((Mode::Shadow, 50, false)));
            }
        }
    }
    assert!(enforced > 5 && shadowed > 5, "{enforced} and {shadowed}");
}

#[test]
fn a_rule_takes_the_place_of_others_only_where_it_is_enforced() {
    let text = "
limits:
- {name: old, key: user, rate: 1/h}
- {name: new, key: user, rate: 5/h, mode: {enforce: 50%}, replaces: old}
";
    let checked = Policy::from_text(text, Format::Yaml).expect("a policy");
    assert_eq!(checked.warnings, [], "the old one is reached");
    let policy = checked.policy;
    let engine = engine(policy.clone(), &Manual::new());
    for user in 0..40 {
        let user = user.to_string();
        let facts = Facts::new().with("user", &user);
        let expected = match explain(&policy, &facts)[1].mode {
            Mode::Enforce => 5,
            _ => 1,
        };
        let passed = (0..9).filter(|_| engine.decide(&facts).allowed().is_some());
        assert_eq!(passed.count(), expected, "user {user}");
    }
}

#[test]
fn a_policy_in_shadow_enforces_no_part() {
    let policy = Policy {
        mode: Mode::Shadow,
        ..policy(99)
    };
    let engine = engine(policy, &Manual::new());
    assert!(refused(&engine).iter().all(|refused| !refused));
}
