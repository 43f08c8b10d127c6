//! What the engine does with each word of a policy.

mod common;

use std::convert::Infallible;
use std::future::{Future, Ready};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{engine, only, policy, rates, rule};
use tollgate::clock::Manual;
use tollgate::{Outcome, Timestamp};
use tollgate_engine::backend::{Answer, Backend, Check, Memory};
use tollgate_engine::document::Format;
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::observer::{Event, Observer};
use tollgate_engine::policy::{Cost, Limits, Mode, Tier};
use tollgate_engine::verdict::Cause;
use tollgate_engine::{Engine, Facts};

fn user(name: &str) -> Facts<'_> {
    Facts::new().with("user", name)
}

fn unlimited() -> Limits {
    Limits {
        unlimited: true,
        ..Limits::default()
    }
}

#[test]
fn exempt_requests_pass_and_blocked_ones_dont_whatever_the_rules_say() {
    let clock = Manual::new();
    let mut all = policy(vec![rule("none", rates(&["zero"]))]);
    all.exempt = vec![only("path", "/healthz")];
    all.block = vec![only("user", "bad"), only("user", "worse")];
    let engine = engine(all.clone(), &clock);
    let exempt = user("good").with("path", "/healthz");
    assert_eq!(engine.decide(&exempt).cause(), Cause::Exempt(0));
    // Blocked is blocked, wherever it knocks.
    let both = user("worse").with("path", "/healthz");
    assert_eq!(engine.decide(&both).cause(), Cause::Block(1));
    let facts = user("worse");
    let blocked = engine.decide(&facts);
    assert_eq!(
        (blocked.refused().is_none(), blocked.cause()),
        (false, Cause::Block(1))
    );
    assert_eq!(blocked.decision().outcome, Outcome::Never);
    assert_eq!(blocked.key().map(|key| key.to_string()), None);

    all.mode = Mode::Shadow;
    engine.reload(all).unwrap();
    let facts = user("worse");
    let told = engine.decide(&facts);
    assert!(told.refused().is_none());
    let told: Vec<_> = told
        .shadow_refusals()
        .map(|one| one.cause.to_string())
        .collect();
    assert_eq!(told, ["block[1]", "rule \"none\""]);
}

#[test]
fn a_rule_doesnt_apply_without_the_facts_of_its_key() {
    let engine = engine(policy(vec![rule("none", rates(&["zero"]))]), &Manual::new());
    let facts = Facts::new();
    let verdict = engine.decide(&facts);
    assert_eq!(
        (verdict.refused().is_none(), verdict.cause()),
        (true, Cause::Nothing)
    );
    assert!(engine.decide(&user("")).refused().is_some());
}

#[test]
fn a_rule_takes_the_place_of_others_unless_it_is_in_shadow() {
    let mut trusted = rule("trusted", unlimited());
    trusted.matches = only("user", "root");
    trusted.replaces = vec!["all".to_owned()];
    let all = rule("all", rates(&["1/h"]));
    let clock = Manual::new();
    let engine = engine(policy(vec![trusted.clone(), all.clone()]), &clock);
    let facts = user("root");
    for _ in 0..3 {
        let verdict = engine.decide(&facts);
        assert_eq!(
            (verdict.refused().is_none(), verdict.cause()),
            (true, Cause::Rule("trusted"))
        );
    }
    assert!(engine.decide(&user("1")).passed().is_some());
    assert!(engine.decide(&user("1")).refused().is_some());

    trusted.mode = Mode::Shadow;
    engine.reload(policy(vec![trusted, all])).unwrap();
    assert!(engine.decide(&facts).passed().is_some());
    assert!(engine.decide(&facts).refused().is_some());
}

#[test]
fn a_rule_in_shadow_counts_by_itself_and_only_what_passes() {
    let mut shadow = rule("trial", rates(&["2/h"]));
    shadow.mode = Mode::Shadow;
    let engine = engine(
        policy(vec![rule("real", rates(&["3/h"])), shadow]),
        &Manual::new(),
    );
    let facts = user("1");
    let refused = |verdict: &tollgate_engine::Verdict<'_>| verdict.shadow_refusals().count();
    let counts: Vec<_> = (0..4)
        .map(|_| {
            let verdict = engine.decide(&facts);
            assert_ne!(verdict.cause(), Cause::Rule("trial"));
            (verdict.refused().is_none(), refused(&verdict))
        })
        .collect();
    assert_eq!(counts, [(true, 0), (true, 0), (true, 1), (false, 0)]);
}

#[test]
fn all_or_none_a_refusal_by_one_rule_charges_no_other() {
    let wide = rule("wide", rates(&["10/h"]));
    let mut narrow = rule("narrow", rates(&["1/h"]));
    narrow.matches = only("path", "/narrow");
    let engine = engine(policy(vec![wide, narrow]), &Manual::new());
    let both = user("1").with("path", "/narrow");
    assert!(engine.decide(&both).passed().is_some());
    for _ in 0..5 {
        let verdict = engine.decide(&both);
        assert_eq!(
            (verdict.refused().is_none(), verdict.cause()),
            (false, Cause::Rule("narrow"))
        );
    }
    assert_eq!(engine.decide(&user("1")).decision().remaining, 8);
}

#[test]
fn rules_that_share_a_counter_count_together_and_once_a_request() {
    let shared = |name: &str, path: &str| {
        let mut own = rule(name, rates(&["4/h"]));
        own.matches = only("path", path);
        own.shared = Some("both".to_owned());
        own
    };
    let rules = vec![shared("a", "/a"), shared("b", "/b"), shared("a too", "/a")];
    let engine = engine(policy(rules), &Manual::new());
    let (a, b) = (user("1").with("path", "/a"), user("1").with("path", "/b"));
    assert_eq!(engine.decide(&a).decision().remaining, 3);
    assert_eq!(engine.decide(&b).decision().remaining, 2);
    assert_eq!(engine.decide(&a).decision().remaining, 1);
}

#[test]
fn a_counter_that_rules_share_is_charged_the_highest_cost_whatever_their_order_and_mode() {
    let shared = |name: &str, cost: u64, mode: Mode| {
        let mut own = rule(name, rates(&["9/h"]));
        own.limits.concurrency = Some(1);
        own.shared = Some("both".to_owned());
        own.cost.default = cost;
        own.mode = mode;
        own
    };
    let (one, three) = ((1, Mode::Enforce), (3, Mode::Enforce));
    let (tried, both_tried) = ((1, Mode::Shadow), (3, Mode::Shadow));
    for (first, second, left) in [
        (one, three, 6),
        (three, one, 6),
        (three, tried, 6),
        (tried, three, 6),
        (one, both_tried, 8),
        (both_tried, tried, 6),
        (tried, both_tried, 6),
    ] {
        let rules = vec![
            shared("a", first.0, first.1),
            shared("b", second.0, second.1),
        ];
        let engine = engine(policy(rules), &Manual::new());
        let facts = user("1");
        let verdict = engine.decide(&facts);
        assert_eq!(verdict.shadow_refusals().count(), 0, "{first:?} {second:?}");
        drop(verdict);
        // One that looks tells what is left.
        let mut look = shared("look", 0, Mode::Enforce);
        look.limits.concurrency = None;
        engine.reload(policy(vec![look])).unwrap();
        let left_now = engine.decide(&facts).decision().remaining;
        assert_eq!(left_now, left, "{first:?} {second:?}");
    }
}

#[test]
fn a_cost_comes_from_its_fact_if_that_is_a_number() {
    let mut tokens = rule("tokens", rates(&["100/h"]));
    tokens.cost = Cost {
        fact: Some("tokens".to_owned()),
        default: 2,
        settle: None,
    };
    let engine = engine(policy(vec![tokens]), &Manual::new());
    let left = |tokens| {
        engine
            .decide(&user("1").with("tokens", tokens))
            .decision()
            .remaining
    };
    assert_eq!(left("30"), 70);
    assert_eq!(left("many"), 68);
    assert_eq!(left("0"), 68);
    assert_eq!(engine.decide(&user("1")).decision().remaining, 66);
    // Also if no number is as large.
    for tokens in ["101", "18446744073709551615", "99999999999999999999999"] {
        let facts = user("1").with("tokens", tokens);
        assert_eq!(engine.decide(&facts).decision().outcome, Outcome::Never);
    }
}

#[test]
fn a_tenant_is_limited_by_its_tier_and_takes_along_what_it_spent() {
    let tier = |rate: &str, concurrency| {
        Tier::new(Limits {
            concurrency: Some(concurrency),
            ..rates(&[rate])
        })
    };
    let mut all = policy(Vec::new());
    all.tiers.insert("free".to_owned(), tier("2/h", 9));
    all.tiers.insert("paid".to_owned(), tier("100/h", 1));
    all.tenants.insert("acme".to_owned(), "paid".to_owned());
    all.tier_fact = Some("tier".to_owned());
    all.default_tier = Some("free".to_owned());
    let clock = Manual::new();
    let engine = engine(all.clone(), &clock);
    let tenant = |name| Facts::new().with("tenant", name);
    let (acme, new, claims) = (
        tenant("acme"),
        tenant("new"),
        tenant("claims").with("tier", "paid"),
    );
    let running = engine.decide(&acme);
    assert_eq!(running.cause(), Cause::Tier("paid"));
    let second = engine.decide(&acme);
    assert_eq!(
        (second.refused().is_none(), second.decision().limit),
        (false, 1)
    );
    drop(running);
    assert!(engine.decide(&claims).passed().is_some());
    assert!(engine.decide(&new).passed().is_some() && engine.decide(&new).passed().is_some());
    assert_eq!(engine.decide(&new).cause(), Cause::Tier("free"));
    assert!(engine.decide(&Facts::new()).passed().is_some());
    // Two are spent of a hundred, and the third counts in both tiers.
    let upgraded = tenant("new").with("tier", "paid");
    assert!(engine.decide(&upgraded).passed().is_some());
    let refused = engine.decide(&new);
    assert_eq!(refused.cause(), Cause::Tier("free"));
    assert_eq!(refused.decision().retry_after, Duration::from_secs(72));

    all.tenants.insert("b".to_owned(), "gold".to_owned());
    let error = engine.reload(all).unwrap_err().to_string();
    let expect = "there is no tier \"gold\"; add it to tiers, or name one that is there";
    assert_eq!(error, expect);
}

#[test]
fn near_is_from_the_part_that_the_policy_says() {
    let engine = engine(policy(vec![rule("ten", rates(&["10/h"]))]), &Manual::new());
    let facts = user("1");
    let near: Vec<_> = (0..11)
        .map(|_| engine.decide(&facts).is_near_limit())
        .collect();
    let expect: Vec<_> = (1..12).map(|used| (8..=10).contains(&used)).collect();
    assert_eq!(near, expect);
}

/// Counts how often it is asked.
struct Asked {
    memory: Memory<Manual, Manual>,
    times: AtomicU64,
}

impl Backend for Asked {
    type Error = Infallible;
    type Asking<'a> = Ready<Result<Answer, Infallible>>;

    fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.memory.check(checks)
    }

    fn now(&self) -> Timestamp {
        self.memory.now()
    }
}

fn awaited<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("memory never waits"),
    }
}

#[test]
fn a_remembered_refusal_holds_until_time_or_a_new_policy_ends_it() {
    let clock = Manual::starting_at(Timestamp::from_secs(1));
    let memory = Memory::builder().clock(clock.clone()).wall(clock.clone());
    let backend = Asked {
        memory: memory.keys(100).build(),
        times: AtomicU64::new(0),
    };
    let hourly = policy(vec![rule("one", rates(&["1/h"]))]);
    let engine = Engine::new(hourly, backend).unwrap().with_deny_cache(16);
    let facts = user("1");
    let decide = || awaited(engine.decide_async(&facts)).unwrap();
    let asked = || engine.backend().times.load(Ordering::Relaxed);
    assert!(decide().passed().is_some());
    for _ in 0..3 {
        let verdict = decide();
        assert_eq!(
            (verdict.refused().is_none(), verdict.cause()),
            (false, Cause::Rule("one"))
        );
        clock.advance(Duration::from_secs(60));
    }
    let left = Duration::from_secs(3_600 - 180);
    assert_eq!(decide().decision().retry_after, left);
    assert_eq!(
        asked(),
        2,
        "one passed, one was refused, the others were known"
    );
    assert!(
        awaited(engine.decide_async(&user("2")))
            .unwrap()
            .passed()
            .is_some()
    );
    assert_eq!(asked(), 3);

    engine
        .reload(policy(vec![rule("one", rates(&["100/h"]))]))
        .unwrap();
    // What is left of the one, and this one, of a hundred.
    assert_eq!(decide().decision().remaining, 98);
    assert_eq!(asked(), 4, "another policy, another question");
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Observer for Log {
    fn decided(&self, event: &Event<'_>) {
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

#[test]
fn a_backend_may_be_awaited() {
    let engine = engine(policy(vec![rule("one", rates(&["1/h"]))]), &Manual::new());
    let facts = user("1");
    let outcomes = [(); 2].map(|()| {
        awaited(engine.decide_async(&facts))
            .unwrap()
            .passed()
            .is_some()
    });
    assert_eq!(outcomes, [true, false]);
}

#[test]
fn a_policy_that_is_off_does_nothing() {
    let mut off = policy(vec![rule("none", rates(&["zero"]))]);
    off.block = vec![only("user", "1")];
    off.mode = Mode::Off;
    let engine = engine(off, &Manual::new());
    assert!(engine.decide(&user("1")).passed().is_some());
}

#[test]
fn what_is_forgotten_counts_no_more_and_refusals_neither() {
    let mut window = rule("window", rates(&["1/h"]));
    window.algorithm = tollgate::Algorithm::SlidingLog;
    let total = Limits {
        quota: Some(tollgate::Quota::per_day(1)),
        ..Limits::default()
    };
    let rules = vec![rule("one", rates(&["1/h"])), window, rule("total", total)];
    let engine = engine(policy(rules), &Manual::new()).with_deny_cache(16);
    let (facts, other) = (user("1"), user("2"));
    for facts in [&facts, &other] {
        assert!(engine.decide(facts).passed().is_some());
        assert!(engine.decide(facts).refused().is_some());
    }
    engine.forget(&facts);
    assert!(engine.decide(&facts).passed().is_some());
    assert!(engine.decide(&other).refused().is_some());
}

#[test]
fn of_several_limits_that_refuse_the_one_that_takes_longest_is_told() {
    let clock = Manual::new();
    let narrow = rule("second", rates(&["1/s"]));
    let engine = engine(policy(vec![narrow, rule("hour", rates(&["2/h"]))]), &clock);
    let facts = user("1");
    for _ in 0..2 {
        assert!(engine.decide(&facts).passed().is_some());
        clock.advance(Duration::from_secs(1));
    }
    clock.set(Timestamp::from_millis(1_500));
    let refused = engine.decide(&facts);
    assert_eq!(refused.cause(), Cause::Rule("hour"));
    assert_eq!(
        refused.decision().retry_after,
        Duration::from_millis(1_800_000 - 1_500)
    );
}

/// A backend whose answers take a second to come back.
struct Far(Memory<Manual, Manual>, Manual);

impl Backend for Far {
    type Error = Infallible;
    type Asking<'a> = Ready<Result<Answer, Infallible>>;

    fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
        let answer = self.0.answer(checks);
        self.1.advance(Duration::from_secs(1));
        std::future::ready(Ok(answer))
    }

    fn now(&self) -> Timestamp {
        Backend::now(&self.0)
    }
}

#[test]
fn a_remembered_refusal_ends_when_it_was_to_however_long_the_answer_took() {
    let clock = Manual::starting_at(Timestamp::from_secs(1));
    let memory = Memory::builder().clock(clock.clone()).wall(clock.clone());
    let far = Far(memory.keys(100).build(), clock.clone());
    let slow = policy(vec![rule("one", rates(&["1/10s"]))]);
    let engine = Engine::new(slow, far).unwrap().with_deny_cache(16);
    let facts = user("1");
    let decide = || awaited(engine.decide_async(&facts)).unwrap();
    assert!(decide().passed().is_some());
    assert_eq!(decide().decision().retry_after, Duration::from_secs(9));
    // It was said a second ago.
    assert_eq!(decide().decision().retry_after, Duration::from_secs(8));
    clock.advance(Duration::from_secs(8));
    assert!(decide().passed().is_some());
}
