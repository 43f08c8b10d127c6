//! Overrides against a slow model: fixed windows, which counting predicts fully, requested by facts and by descriptors.

use std::collections::HashMap;
use std::time::Duration;
use tollgate_engine::engine::ResetScope;

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate::{Rate, Timestamp};
use tollgate_engine::document::Format;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::overrides::{NewOverride, OverrideAction, ReplacementLimits, Target};
use tollgate_engine::policy::Policy;

use crate::common::{TestEngine, engine};
use crate::user;

const USERS: [&str; 3] = ["ada", "bob", "eve"];
const WINDOW: u64 = 60;

/// The form of the requests.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Facts,
    Descriptors,
}

/// The target of an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Whom {
    Everything,
    Rule,
    Key(usize),
    /// A user, whatever the rules.
    User(usize),
}

#[derive(Clone, Copy, Debug)]
enum What {
    Block,
    Bypass,
    Limit(u64),
}

#[derive(Clone, Debug)]
enum Step {
    Ask(usize),
    Wait(u64),
    Order(What, Whom, u64),
    Withdraw(usize),
    /// Another limit, or a policy without the rule.
    Reload(Option<u64>),
    Reset(usize),
}

fn whom() -> impl Strategy<Value = Whom> {
    prop_oneof![
        Just(Whom::Everything),
        Just(Whom::Rule),
        (0..USERS.len()).prop_map(Whom::Key),
        (0..USERS.len()).prop_map(Whom::User),
    ]
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        Just(What::Block),
        Just(What::Bypass),
        (1..6_u64).prop_map(What::Limit),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..USERS.len()).prop_map(Step::Ask),
        3 => (1..50_u64).prop_map(Step::Wait),
        4 => (what(), whom(), 1..200_u64).prop_map(|(what, whom, lasts)| Step::Order(what, whom, lasts)),
        1 => (0..5_usize).prop_map(Step::Withdraw),
        1 => proptest::option::weighted(0.7, 1..6_u64).prop_map(Step::Reload),
        1 => (0..USERS.len()).prop_map(Step::Reset),
    ]
}

fn policy(way: Way, limit: Option<u64>) -> Policy {
    let text = match (way, limit) {
        (Way::Facts, Some(limit)) => format!(
            "limits: [{{name: other, key: nothing, rate: 1/s}}, {{name: a, key: user, rate: {limit}/minute, algorithm: fixed-window}}]"
        ),
        (Way::Facts, None) => "limits: [{name: other, key: nothing, rate: 1/s}]".to_owned(),
        (Way::Descriptors, Some(limit)) => format!(
            "{{domain: edge, descriptors: [{{key: other, rate_limit: {{unit: hour, requests_per_unit: 1}}}}, {{key: user, rate_limit: {{unit: minute, requests_per_unit: {limit}}}}}]}}"
        ),
        (Way::Descriptors, None) => {
            "{domain: edge, descriptors: [{key: other, rate_limit: {unit: hour, requests_per_unit: 1}}]}".to_owned()
        }
    };
    let read = Policy::from_text(&text, Format::Yaml);
    read.expect("a policy").policy
}

/// An override in the model.
#[derive(Clone, Copy, Debug)]
struct Ordered {
    what: What,
    whom: Whom,
    until: u64,
}

impl Ordered {
    fn is_like(&self, what: What, whom: Whom) -> bool {
        std::mem::discriminant(&self.what) == std::mem::discriminant(&what) && self.whom == whom
    }
}

/// All that there is to know.
struct Model {
    way: Way,
    now: u64,
    limit: Option<u64>,
    orders: Vec<Ordered>,
    /// By user, the window and what was counted in it.
    counts: HashMap<usize, (u64, u64)>,
}

/// The model's answer: whether it passes, and how long it is blocked.
#[derive(Debug, PartialEq)]
enum Expected {
    Passes,
    Refused,
    Blocked(u64),
}

impl Model {
    fn in_force(&self) -> impl Iterator<Item = &Ordered> {
        let has_rule = self.limit.is_some();
        let now = self.now;
        self.orders.iter().filter(move |order| {
            let is_of_rule = matches!(order.whom, Whom::Rule | Whom::Key(_));
            order.until > now && (has_rule || !is_of_rule)
        })
    }

    fn ask(&mut self, user: usize) -> Expected {
        let is_own = |order: &&Ordered| match order.whom {
            Whom::Everything | Whom::Rule => true,
            Whom::Key(own) | Whom::User(own) => own == user,
        };
        let own = || self.in_force().filter(is_own);
        let blocks = own().filter(|order| matches!(order.what, What::Block));
        if let Some(until) = blocks.map(|order| order.until).max() {
            return Expected::Blocked(until - self.now);
        }
        let Some(limit) = self.limit else {
            return Expected::Passes;
        };
        if own().any(|order| matches!(order.what, What::Bypass)) {
            return Expected::Passes;
        }
        let other = |whom: Whom| {
            own().find_map(|order| match order.what {
                What::Limit(limit) if order.whom == whom => Some(limit),
                _ => None,
            })
        };
        let limit = other(Whom::Key(user))
            .or(other(Whom::Rule))
            .unwrap_or(limit);
        let window = self.now / WINDOW;
        let count = self.counts.entry(user).or_insert((window, 0));
        if count.0 != window {
            *count = (window, 0);
        }
        if count.1 >= limit {
            return Expected::Refused;
        }
        count.1 += 1;
        Expected::Passes
    }

    /// Whether such an override is valid.
    fn takes(&self, what: What, whom: Whom) -> bool {
        match (what, whom) {
            (What::Block, Whom::Everything)
            | (What::Limit(_), Whom::Everything | Whom::User(_)) => false,
            (_, Whom::Everything) => true,
            (_, Whom::User(_)) => true,
            (_, Whom::Rule | Whom::Key(_)) => self.limit.is_some(),
        }
    }
}

fn target(way: Way, whom: Whom) -> Target {
    match (way, whom) {
        (_, Whom::Everything) => Target::all_requests(),
        (Way::Facts, Whom::Rule) => Target::rule("a"),
        (Way::Facts, Whom::Key(user)) => Target::key("a", [("user", USERS[user])]),
        (Way::Descriptors, Whom::Rule) => Target::rule("edge/user"),
        (Way::Descriptors, Whom::Key(user)) => Target::descriptor("edge", [("user", USERS[user])]),
        (_, Whom::User(user)) => Target::facts([("user", USERS[user])]),
    }
}

fn ask(engine: &TestEngine, way: Way, number: usize) -> Expected {
    let name = USERS[number];
    let (passes, reason, retry_after) = match way {
        Way::Facts => {
            let facts = user(name);
            let verdict = engine.decide(&facts);
            let told = (verdict.reason(), verdict.decision().wait_or_max());
            (
                verdict.denied().is_none(),
                told.0.map(|reason| reason.name()),
                told.1,
            )
        }
        Way::Descriptors => {
            let entries = [("user", name)];
            let verdict = engine.decide_descriptors("edge", &[Descriptor::new(&entries)], 1);
            // What is blocked has no room at all.
            let decision = verdict.statuses[0].decision;
            let is_blocked = decision.is_some_and(|said| said.limit == 0);
            let reason = is_blocked.then_some("blocked");
            (verdict.denied().is_none(), reason, verdict.retry_after)
        }
    };
    match (passes, reason) {
        (true, _) => Expected::Passes,
        (false, Some("blocked")) => Expected::Blocked(retry_after.as_secs()),
        (false, _) => Expected::Refused,
    }
}

fn act(what: What) -> OverrideAction {
    match what {
        What::Block => OverrideAction::Block,
        What::Bypass => OverrideAction::Bypass,
        What::Limit(limit) => OverrideAction::Limit(ReplacementLimits {
            rates: vec![Rate::per_minute(limit)],
            ..ReplacementLimits::default()
        }),
    }
}

fn play(way: Way, steps: &[Step]) {
    let clock = Manual::starting_at(Timestamp::from_secs(6_000));
    let engine = engine(policy(way, Some(3)), &clock);
    let mut model = Model {
        way,
        now: 6_000,
        limit: Some(3),
        orders: Vec::new(),
        counts: HashMap::new(),
    };
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Ask(user) => {
                let said = ask(&engine, way, *user);
                assert_eq!(said, model.ask(*user), "step {number} of {steps:?}");
            }
            Step::Wait(seconds) => {
                clock.advance(Duration::from_secs(*seconds));
                model.now += seconds;
            }
            Step::Order(what, whom, lasts) => {
                // Descriptors have no facts.
                if way == Way::Descriptors && matches!(whom, Whom::User(_)) {
                    continue;
                }
                let lasting = Duration::from_secs(*lasts);
                let order = NewOverride::new(act(*what), target(way, *whom), lasting);
                let made = engine.add_override(order);
                assert_eq!(
                    made.is_ok(),
                    model.takes(*what, *whom),
                    "{made:?}, step {number} of {steps:?}"
                );
                if made.is_ok() {
                    model.orders.retain(|other| !other.is_like(*what, *whom));
                    let until = model.now + lasts;
                    model.orders.push(Ordered {
                        what: *what,
                        whom: *whom,
                        until,
                    });
                }
            }
            Step::Withdraw(place) => {
                model.orders.retain(|order| order.until > model.now);
                let listed = engine.overrides();
                assert_eq!(
                    listed.len(),
                    model.orders.len(),
                    "step {number} of {steps:?}"
                );
                if let Some(order) = listed.get(*place) {
                    engine.remove_override(order.id).expect("it is listed");
                    model.orders.remove(*place);
                }
            }
            Step::Reload(limit) => {
                // What a rule has counted is kept while it is gone.
                engine.reload(policy(way, *limit)).expect("a policy");
                model.limit = *limit;
            }
            Step::Reset(user) => {
                let reset =
                    engine.reset(&target(way, Whom::Key(*user)), ResetScope::RatesAndQuotas);
                assert_eq!(reset.is_ok(), model.limit.is_some());
                if reset.is_ok() {
                    model.counts.remove(user);
                }
            }
        }
    }
    // Everything ends.
    clock.advance(Duration::from_secs(200));
    model.now += 200;
    model.orders.clear();
    for user in (0..USERS.len()).cycle().take(20) {
        assert_eq!(
            ask(&engine, model.way, user),
            model.ask(user),
            "in the end of {steps:?}"
        );
    }
    assert!(engine.overrides().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn decisions_by_facts_are_those_of_the_model(steps in prop::collection::vec(step(), 1..80)) {
        play(Way::Facts, &steps);
    }

    #[test]
    fn decisions_by_descriptors_are_those_of_the_model(steps in prop::collection::vec(step(), 1..80)) {
        play(Way::Descriptors, &steps);
    }
}

/// By GCRA no window sees more than the largest burst and the fastest rate of all that was in force in it, and what was
/// bypassed.
#[derive(Clone, Debug)]
enum Pace {
    Ask,
    Wait(u64),
    Override(u64, u64),
    Bypass(u64),
    Reload(u64),
}

fn pace() -> impl Strategy<Value = Pace> {
    prop_oneof![
        10 => Just(Pace::Ask),
        5 => (1..400_u64).prop_map(Pace::Wait),
        2 => (1..12_u64, 100..3_000_u64).prop_map(|(rate, lasts)| Pace::Override(rate, lasts)),
        1 => (100..500_u64).prop_map(Pace::Bypass),
        1 => (1..12_u64).prop_map(Pace::Reload),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_window_of_gcra_sees_more_than_the_fastest_that_was_ordered(steps in prop::collection::vec(pace(), 1..150)) {
        let read = |rate: u64| {
            let text = format!("limits: [{{name: a, key: user, rate: {rate}/s}}]");
            Policy::from_text(&text, Format::Yaml).expect("a policy").policy
        };
        let clock = Manual::starting_at(Timestamp::from_secs(100));
        let engine = engine(read(4), &clock);
        let (mut now, mut fastest, mut bypassed) = (0, 4, 0);
        let mut passed: Vec<u64> = Vec::new();
        let ada = Target::key("a", [("user", "ada")]);
        for step in &steps {
            match step {
                Pace::Ask => {
                    let facts = user("ada");
                    let verdict = engine.decide(&facts);
                    if now < bypassed {
                        prop_assert!(verdict.denied().is_none());
                    } else if verdict.denied().is_none() {
                        passed.push(now);
                    }
                }
                Pace::Wait(millis) => {
                    clock.advance(Duration::from_millis(*millis));
                    now += millis;
                }
                Pace::Override(rate, lasts) => {
                    let other = ReplacementLimits { rates: vec![Rate::per_second(*rate)], ..ReplacementLimits::default() };
                    let lasts = Duration::from_millis(*lasts);
                    engine.add_override(NewOverride::new(OverrideAction::Limit(other), ada.clone(), lasts)).expect("an order");
                    fastest = fastest.max(*rate);
                }
                Pace::Bypass(lasts) => {
                    let order = NewOverride::new(OverrideAction::Bypass, ada.clone(), Duration::from_millis(*lasts));
                    engine.add_override(order).expect("an order");
                    bypassed = now + lasts;
                }
                Pace::Reload(rate) => {
                    engine.reload(read(*rate)).expect("a policy");
                    fastest = fastest.max(*rate);
                }
            }
        }
        for (first, from) in passed.iter().enumerate() {
            for (last, until) in passed.iter().enumerate().skip(first) {
                let most = fastest + (until - from) * fastest / 1_000 + 1;
                prop_assert!((last - first + 1) as u64 <= most, "{} in {} ms of {fastest}/s", last - first + 1, until - from);
            }
        }
    }
}
