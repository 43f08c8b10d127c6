//! The fallbacks that rules, tiers and descriptors have chosen for an unreachable store.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Mutex;

use tollgate::{Decision, Timestamp};
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult, LimitKind};
use tollgate_engine::document::Format;
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::policy::OnStoreFailure;
use tollgate_engine::verdict::Cause;
use tollgate_engine::{Engine, Facts, Policy};

use crate::{Fleet, at_once};

#[test]
fn of_several_rules_closed_wins_and_all_that_are_local_must_pass() {
    let policy = "
limits:
- {name: wide, key: tenant, rate: 10/s}
- {name: narrow, key: user, rate: 2/s}
- {name: quota, match: {paid: yes}, key: tenant, quota: 5/day}
";
    let fleet = Fleet::new(policy, 2);
    fleet.switch(true);
    let free = Facts::new().with("tenant", "acme").with("user", "ada");
    assert_eq!(fleet.passed(&free, 10), 2);
    assert_eq!(fleet.decide(&free).cause(), Cause::Rule("narrow"));
    let other = Facts::new().with("tenant", "acme").with("user", "grace");
    assert_eq!(
        fleet.passed(&other, 10),
        2,
        "what was refused charged nothing"
    );
    let paid = free.with("paid", "yes");
    assert_eq!(fleet.decide(&paid).cause(), Cause::StoreFailure("quota"));
}

/// A request of a tenant of each tier, while the store is unreachable.
fn tiers_without_store(head: &str, own: &str) -> (usize, usize, Option<OnStoreFailure>) {
    let policy = format!(
        "{head}
tiers:
  paid: {{quota: 9/day{own}}}
  free: {{rate: 4/h}}
tenants: {{acme: paid, new: free}}
"
    );
    let fleet = Fleet::new(&policy, 1);
    fleet.switch(true);
    let tenant = |name| Facts::new().with("tenant", name);
    let (paid, free) = (tenant("acme"), tenant("new"));
    let passed = (fleet.passed(&paid, 20), fleet.passed(&free, 20));
    (passed.0, passed.1, fleet.decide(&paid).fallback())
}

#[test]
fn what_the_file_says_of_failures_holds_for_tiers_unless_they_say_their_own() {
    let closed = Some(OnStoreFailure::Closed);
    let local = Some(OnStoreFailure::Local);
    let open = Some(OnStoreFailure::Open);
    assert_eq!(tiers_without_store("", ""), (0, 4, closed));
    assert_eq!(
        tiers_without_store("on_store_failure: local", ""),
        (9, 4, local)
    );
    assert_eq!(
        tiers_without_store("on_store_failure: open", ""),
        (20, 20, open)
    );
    let own = ", on_store_failure: local";
    assert_eq!(
        tiers_without_store("on_store_failure: open", own),
        (9, 20, local)
    );
    let own = ", on_store_failure: inherit";
    assert_eq!(
        tiers_without_store("on_store_failure: open", own),
        (20, 20, open)
    );
}

/// Notes how each check is to be counted, and what is done without a store.
#[derive(Default)]
struct Noting(Mutex<Vec<String>>);

impl Backend for Noting {
    type Error = Infallible;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + 'a {
        let noted = checks.iter().map(|check| {
            let kind = match check.limit.kind() {
                LimitKind::Rate { rate, .. } => rate.to_string(),
                LimitKind::Quota(quota) => quota.to_string(),
                _ => "slots".to_owned(),
            };
            let failure = check.limit.on_store_failure().name();
            format!(
                "{} of {kind}: {}, {failure}",
                check.cost,
                check.limit.counting().name()
            )
        });
        self.0.lock().expect("not poisoned").extend(noted);
        ready(Ok(Answer::new(None, Decision::UNLIMITED)))
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO
    }
}

#[test]
fn each_check_says_how_it_is_counted_and_what_is_done_without_a_store() {
    let limits = "rate: 5/s, quota: 9/day, concurrency: 2";
    let noted = |text: &str, ask: &dyn Fn(&Engine<Noting>)| {
        let policy = Policy::from_text(text, Format::Yaml).unwrap().policy;
        let engine = Engine::new(policy, Noting::default()).unwrap();
        ask(&engine);
        engine.backend().0.lock().unwrap().join("; ")
    };
    let facts = Facts::new().with("tenant", "acme").with("tokens", "3");
    let by_facts = |engine: &Engine<Noting>| {
        let _ = at_once(engine.decide_async(&facts));
    };
    for (words, expect) in [
        ("", ["exact, local", "exact, closed", "exact, local"]),
        (
            ", counting: leased",
            ["leased, local", "exact, closed", "exact, local"],
        ),
        (
            ", counting: local",
            ["local, local", "local, closed", "local, local"],
        ),
        (
            ", on_store_failure: open",
            ["exact, open", "exact, open", "exact, open"],
        ),
    ] {
        let [rate, quota, slots] = expect;
        let rule = format!("limits: [{{name: a, {limits}, cost: 3{words}}}]");
        let expect = format!("3 of 5/s: {rate}; 3 of 9/day: {quota}; 3 of slots: {slots}");
        assert_eq!(noted(&rule, &by_facts), expect);
        let cost = "cost: {fact: tokens}";
        let tier = format!("tiers: {{a: {{{limits}, {cost}{words}}}}}\ndefault_tier: a");
        assert_eq!(noted(&tier, &by_facts), expect);
        let descriptor =
            format!("domain: edge\ndescriptors: [{{key: a, rate_limit: {{{limits}{words}}}}}]");
        let by_descriptor = |engine: &Engine<Noting>| {
            let entries = [Descriptor::new(&[("a", "b")])];
            let _ = at_once(engine.decide_descriptors_async("edge", &entries, 3));
        };
        // A request runs once, and what is left is asked for afterwards.
        let expect = expect.replace("3 of slots", "1 of slots");
        let noted = noted(&descriptor, &by_descriptor);
        assert!(noted.starts_with(&expect), "{noted} for {expect}");
    }
    // A limit that is brought along is kept where the configured one is.
    let text = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 5, \
                quota: 9/day, counting: local}}]";
    let asked = |engine: &Engine<Noting>| {
        let own = Descriptor {
            limit: Some((7, Unit::Day)),
            ..Descriptor::new(&[("a", "b")])
        };
        let _ = at_once(engine.decide_descriptors_async("edge", &[own], 1));
    };
    let noted = noted(text, &asked);
    assert!(noted.starts_with("1 of 7/d: local, local"), "{noted}");
}

#[test]
fn descriptors_get_what_they_have_chosen() {
    let fleet = Fleet::new(
        "domain: edge
on_store_failure: open
descriptors:
- {key: open, rate_limit: {quota: 2/day}}
- {key: closed, rate_limit: {rate: 2/h, on_store_failure: closed}}
- {key: local, rate_limit: {quota: 2/day, on_store_failure: local}}
- {key: shut, quota_mode: true, rate_limit: {rate: 2/h, on_store_failure: closed}}
- {key: near, quota_mode: true, rate_limit: {rate: 2/h, on_store_failure: local}}
",
        1,
    );
    let ask = |keys: &[&str], cost| {
        let entries: Vec<_> = keys.iter().map(|key| [(*key, "")]).collect();
        let descriptors = entries.iter().map(|entry| Descriptor {
            cost: Some(cost),
            ..Descriptor::new(entry)
        });
        let descriptors: Vec<_> = descriptors.collect();
        let deciding = fleet
            .engine
            .decide_descriptors_async("edge", &descriptors, 1);
        let Ok(verdict) = at_once(deciding);
        let refused = verdict.decider.filter(|_| verdict.denied().is_some());
        (
            verdict.fallback,
            refused.map(|number| keys[number].to_owned()),
        )
    };
    let refused = |key: &str| Some(key.to_owned());
    let (open, closed) = (Some(OnStoreFailure::Open), Some(OnStoreFailure::Closed));
    let local = Some(OnStoreFailure::Local);
    assert_eq!(ask(&["closed", "local"], 1), (None, None));
    fleet.switch(true);
    assert_eq!(ask(&["open"], 9), (open, None));
    assert_eq!(ask(&["open", "closed"], 1), (closed, refused("closed")));
    // Who only looks has nobody to ask either.
    assert_eq!(ask(&["closed", "closed"], 0), (closed, refused("closed")));
    // Of two a day the store has let one pass.
    assert_eq!(ask(&["local", "open"], 2), (local, refused("local")));
    assert_eq!(ask(&["local", "open"], 1), (local, None));
    assert_eq!(ask(&["local", "open"], 1), (local, refused("local")));
    // One that is shut is as one that is over: another of its kind is enough.
    assert_eq!(ask(&["shut", "near"], 2), (local, None));
    // Over here for half an hour; there the store may be back in a second.
    assert_eq!(ask(&["shut", "near"], 1), (closed, refused("shut")));
    assert_eq!(ask(&["near"], 1), (local, refused("near")));
    assert_eq!(ask(&["shut"], 1), (closed, refused("shut")));
}

#[test]
fn each_limit_of_a_tier_has_its_own_answer_without_a_store() {
    let tenant = Facts::new().with("tenant", "acme");
    let without_store = |failure: &str| {
        let policy =
            format!("tiers: {{free: {{rate: 4/h, quota: 9/day{failure}}}}}\ndefault_tier: free\n");
        let fleet = Fleet::new(&policy, 1);
        fleet.switch(true);
        let passed = fleet.passed(&tenant, 20);
        let verdict = fleet.decide(&tenant);
        (
            passed,
            verdict.cause() == Cause::StoreFailure("free"),
            verdict.fallback(),
        )
    };
    let (closed, local) = (OnStoreFailure::Closed, OnStoreFailure::Local);
    // The quota denies, and the rate is spared: nothing was charged to it.
    assert_eq!(without_store(""), (0, true, Some(closed)));
    // Without its answer the rate's is left, which is local, not closed.
    let open = ", on_store_failure: {quota: open}";
    assert_eq!(without_store(open), (4, false, Some(local)));
    let both = ", on_store_failure: {quota: local}";
    assert_eq!(without_store(both), (4, false, Some(local)));
    let turned = ", on_store_failure: {rate: open, quota: local}";
    assert_eq!(without_store(turned), (9, false, Some(local)));
    let rate = ", on_store_failure: {rate: closed, quota: local}";
    assert_eq!(without_store(rate), (0, true, Some(closed)));
}
