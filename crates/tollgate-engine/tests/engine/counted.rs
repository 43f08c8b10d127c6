//! Random mixes of requests: every counter of the engine agrees with the callers' answers.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate_engine::document::Format;
use tollgate_engine::engine::{
    DescriptorDecision, DescriptorFindings, DescriptorRequest, MixedDecision,
};
use tollgate_engine::envoy::StatusCode;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::observer::{Event, Observer};
use tollgate_engine::policy::{MatchConditions, Mode, Pattern, Policy};
use tollgate_engine::verdict::{Cause, DecisionDetails, DenyReason, Permits};
use tollgate_engine::{DecideOptions, Facts, RequestDecision};

use crate::common::{TestEngine, engine};

const USERS: [&str; 5] = ["ada", "bob", "eve", "mallory", "root"];
const PATHS: [&str; 4] = ["/", "/write", "/job", "/patient"];
/// How many requests a story has, and how many stories there are.
const STEPS: usize = 120;
const STORIES: u64 = 60;

/// Rules of all sorts, a tree with a limit in shadow, and lists; the rates differ by version.
fn policy(version: u64) -> Policy {
    let writes = 2 + version % 4;
    let rules = format!(
        "limits:
- {{name: all, key: user, rate: 40/m}}
- {{name: writes, match: {{path: /write}}, key: user, rate: {writes}/m}}
- {{name: jobs, match: {{path: /job}}, key: user, concurrency: 2}}
- {{name: patient, match: {{path: /patient}}, key: user, rate: 10/s burst 1, over: wait 500ms}}
- {{name: trial, key: user, rate: 6/m, mode: shadow}}"
    );
    let tree = format!(
        "domain: edge
descriptors:
- {{key: user, rate_limit: {{unit: minute, requests_per_unit: {}}}}}
- {{key: plan, shadow_mode: true, rate_limit: {{unit: minute, requests_per_unit: 3}}}}",
        5 + version % 5
    );
    let read = |text: &str| {
        Policy::from_text(text, Format::Yaml)
            .expect("a policy")
            .policy
    };
    let mut policy = read(&rules);
    policy.domains = read(&tree).domains;
    let entry = |user: &str| MatchConditions {
        conditions: vec![("user".to_owned(), Pattern::Exact(user.to_owned()))],
        ..MatchConditions::default()
    };
    policy.block.push(entry("mallory"));
    policy.exempt.push(entry("root"));
    policy
}

/// What is counted of a limiter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Count {
    allowed: u64,
    near_limit: u64,
    shadow_denied: u64,
    denied: BTreeMap<&'static str, u64>,
}

/// All counts, as callers saw the decisions.
#[derive(Debug, Default)]
struct Seen {
    passed: u64,
    denied: u64,
    limiters: BTreeMap<String, Count>,
    /// Denials of keys by limiter, in force and in shadow.
    top: BTreeMap<(String, bool), u64>,
    /// Events that an observer should have had: of verdicts and descriptors, and of limits in shadow.
    events: u64,
    shadow_events: u64,
}

impl Seen {
    fn of(&mut self, limiter: &str) -> &mut Count {
        self.limiters.entry(limiter.to_owned()).or_default()
    }

    fn deny(&mut self, limiter: &str, reason: DenyReason) {
        *self.of(limiter).denied.entry(reason.name()).or_default() += 1;
    }

    fn add_top(&mut self, limiter: &str, is_shadow: bool) {
        let key = (limiter.to_owned(), is_shadow);
        *self.top.entry(key).or_default() += 1;
    }

    /// A rule denied the request.
    fn denied_by_rule(&mut self, findings: &DecisionDetails<'_>) {
        self.denied += 1;
        self.events += 1;
        let reason = findings.reason().expect("a reason");
        match findings.cause() {
            Cause::Rule(rule) => {
                self.deny(rule, reason);
                self.add_top(rule, false);
            }
            Cause::Block(_) => self.deny("(block)", reason),
            other => panic!("{other}"),
        }
    }

    /// The rules let the request of this path pass.
    fn passed_by_rules(&mut self, findings: &DecisionDetails<'_>, path: &str) {
        self.passed += 1;
        self.events += 1;
        if let Cause::Exempt(_) = findings.cause() {
            self.of("(exempt)").allowed += 1;
            return;
        }
        let own = match path {
            "/write" => Some("writes"),
            "/job" => Some("jobs"),
            "/patient" => Some("patient"),
            _ => None,
        };
        for rule in ["all"].into_iter().chain(own) {
            self.of(rule).allowed += 1;
        }
        match findings.cause() {
            Cause::Rule(rule) if findings.is_near_limit() => self.of(rule).near_limit += 1,
            _ => {}
        }
        let shadows: Vec<_> = findings.shadow_denials().map(|one| one.cause).collect();
        self.shadow_events += shadows.len() as u64;
        match shadows[..] {
            [] => self.of("trial").allowed += 1,
            [Cause::Rule("trial")] => {
                self.of("trial").shadow_denied += 1;
                self.add_top("trial", true);
            }
            _ => panic!("{shadows:?}"),
        }
    }

    /// The trees decided so.
    fn by_trees(&mut self, findings: &DescriptorFindings, is_allowed: bool) {
        for (number, status) in findings.statuses.iter().enumerate() {
            let (Some(limit), Some(decision)) = (&status.limit, status.decision) else {
                continue;
            };
            self.events += 1;
            if decision.is_allowed() {
                if is_allowed || status.charged > 0 {
                    self.of(limit).allowed += 1;
                }
            } else if status.would_deny {
                self.of(limit).shadow_denied += 1;
                self.add_top(limit, true);
            } else if findings.decider == Some(number) {
                assert_eq!(status.code, StatusCode::OverLimit);
                self.deny(limit, findings.reason.expect("a reason"));
                self.add_top(limit, false);
            }
        }
    }
}

/// Counts events.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<(u64, u64)>>);

impl Observer for Events {
    fn on_decision(&self, event: &Event<'_>) {
        let mut counts = self.0.lock().expect("the counts");
        // A descriptor in shadow has an event of its own, as one in force has.
        let is_rule = matches!(event.cause, Cause::Rule(_));
        if event.mode == Mode::Shadow && is_rule {
            counts.1 += 1;
        } else {
            counts.0 += 1;
        }
    }
}

/// A fixed sequence of numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % end
    }
}

/// A request that waits for its turn, and its path.
type Waiting<'e> = (
    Pin<Box<dyn Future<Output = RequestDecision<'e>> + 'e>>,
    &'static str,
);

/// A story under way.
struct Story<'e> {
    engine: &'e TestEngine,
    numbers: Numbers,
    seen: Seen,
    held: Vec<Permits>,
    waiting: Vec<Waiting<'e>>,
}

fn polled<T>(future: &mut Pin<Box<dyn Future<Output = T> + '_>>) -> Option<T> {
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

impl<'e> Story<'e> {
    fn note(&mut self, verdict: RequestDecision<'_>, path: &str) {
        match verdict {
            RequestDecision::Allowed(passed) => {
                self.seen.passed_by_rules(&passed, path);
                self.held.push(passed.into_permits());
            }
            RequestDecision::Denied(denied) => self.seen.denied_by_rule(&denied),
        }
    }

    fn poll_waiting(&mut self) {
        for (mut future, path) in std::mem::take(&mut self.waiting) {
            match polled(&mut future) {
                Some(verdict) => self.note(verdict, path),
                None => self.waiting.push((future, path)),
            }
        }
    }

    /// Nobody waits for one of the requests in the queue any more, or a request ends.
    fn leave(&mut self) {
        if !self.waiting.is_empty() && self.numbers.below(3) == 0 {
            let number = self.numbers.below(self.waiting.len());
            drop(self.waiting.swap_remove(number));
        }
        if !self.held.is_empty() && self.numbers.below(2) == 0 {
            let number = self.numbers.below(self.held.len());
            let permits = self.held.swap_remove(number);
            match self.numbers.below(2) {
                0 => permits.cancel(),
                _ => drop(permits),
            }
        }
    }

    fn step(&mut self, facts: &'e Facts<'e>, (user, path): (&'static str, &'static str)) {
        let engine = self.engine;
        let plan = if self.numbers.below(2) == 0 {
            "free"
        } else {
            "paid"
        };
        let entries = [[("user", user)], [("plan", plan)], [("other", user)]];
        let first = self.numbers.below(3);
        let last = first + 1 + self.numbers.below(3 - first);
        let descriptors: Vec<_> = entries[first..last]
            .iter()
            .map(|one| Descriptor::new(one))
            .collect();
        let request = DescriptorRequest {
            domain: "edge",
            descriptors: &descriptors,
            hits_addend: 1,
        };
        match self.numbers.below(8) {
            0 | 1 => self.note(engine.decide(facts), path),
            2 => self.note(engine.decide_listing_limits(facts), path),
            3 | 4 => {
                let deciding = Box::pin(async {
                    let Ok(verdict) = engine.decide_async(facts).await;
                    verdict
                });
                self.waiting.push((deciding, path));
                self.poll_waiting();
            }
            5 => match engine.decide_descriptors("edge", &descriptors, 1) {
                DescriptorDecision::Allowed(passed) => {
                    self.seen.passed += 1;
                    self.seen.by_trees(&passed, true);
                    self.nothing_matched(&passed);
                }
                DescriptorDecision::Denied(findings) => {
                    self.seen.denied += 1;
                    self.seen.by_trees(&findings, false);
                }
            },
            6 => {
                let on = DecideOptions::new().without_waiting();
                let mut deciding: Pin<Box<dyn Future<Output = _> + '_>> =
                    Box::pin(engine.decide_with_descriptors(on, facts, request));
                let verdict = polled(&mut deciding).expect("it never waits");
                let Ok(verdict) = verdict;
                self.note_combined(verdict.expect("a verdict"), path);
            }
            _ => {
                // These decide nothing, so nothing counts them.
                let _ = engine.peek(facts);
                let _ = engine.remaining(facts);
                let mut refund: Pin<Box<dyn Future<Output = _> + '_>> =
                    Box::pin(engine.refund_async(facts));
                let Ok(_) = polled(&mut refund).expect("memory answers");
            }
        }
    }

    /// A request of descriptors that met no limit is counted as that.
    fn nothing_matched(&mut self, findings: &DescriptorFindings) {
        if findings.statuses.iter().all(|one| one.limit.is_none()) {
            self.seen.of("(none)").allowed += 1;
            self.seen.events += 1;
        }
    }

    fn note_combined(&mut self, verdict: MixedDecision<'_>, path: &str) {
        match verdict {
            MixedDecision::Passed(passed, findings) => {
                self.seen.passed_by_rules(&passed, path);
                self.seen.by_trees(&findings, true);
                self.held.push(passed.into_permits());
            }
            MixedDecision::DeniedByRule(denied) => self.seen.denied_by_rule(&denied),
            MixedDecision::DeniedByDescriptor(findings) => {
                self.seen.denied += 1;
                self.seen.by_trees(&findings, false);
            }
        }
    }
}

/// Compares all counts of an engine with what callers saw.
fn compare(engine: &TestEngine, events: &Events, seen: &Seen, seed: u64) {
    let requests = engine.requests();
    assert_eq!(
        (requests.passed, requests.denied),
        (seen.passed, seen.denied),
        "seed {seed}"
    );
    for tally in engine.counters() {
        let reasons = DenyReason::ALL.into_iter();
        let denied = reasons.map(|reason| (reason.name(), tally.denied(reason)));
        let is_shadow = ["trial", "edge/user", "edge/plan"].contains(&&*tally.limiter);
        let count = Count {
            allowed: tally.allowed,
            // A limit in shadow and one of a tree are near by themselves, which no verdict tells.
            near_limit: if is_shadow { 0 } else { tally.near_limit },
            shadow_denied: tally.shadow_denied,
            denied: denied.filter(|(_, count)| *count > 0).collect(),
        };
        let expected = seen
            .limiters
            .get(&*tally.limiter)
            .cloned()
            .unwrap_or_default();
        assert_eq!(count, expected, "seed {seed}: {}", tally.limiter);
    }
    let mut top = BTreeMap::new();
    for key in engine.top_keys().expect("counted").keys {
        *top.entry((key.limiter, key.is_shadow)).or_default() += key.denied;
    }
    assert_eq!(top, seen.top, "seed {seed}");
    let events = *events.0.lock().expect("the counts");
    assert_eq!(events, (seen.events, seen.shadow_events), "seed {seed}");
}

#[test]
fn every_count_is_what_callers_saw() {
    let facts: Vec<_> = USERS
        .into_iter()
        .flat_map(|user| PATHS.map(|path| (user, path)))
        .map(|(user, path)| {
            (
                Facts::new().with("user", user).with("path", path),
                (user, path),
            )
        })
        .collect();
    let (mut denied, mut passed) = (0, 0);
    for seed in 0..STORIES {
        let (clock, events) = (Manual::new(), Events::default());
        let engine = engine(policy(seed), &clock).with_observer(events.clone());
        let engine = engine.with_counters(100).with_top_keys(100);
        let mut story = Story {
            engine: &engine,
            numbers: Numbers(seed),
            seen: Seen::default(),
            held: Vec::new(),
            waiting: Vec::new(),
        };
        for _ in 0..STEPS {
            let millis = story.numbers.below(400) as u64;
            clock.advance(Duration::from_millis(millis));
            story.poll_waiting();
            story.leave();
            if story.numbers.below(20) == 0 {
                let version = story.numbers.below(100) as u64;
                engine.reload(policy(version)).expect("a policy");
            }
            let (facts, whose) = &facts[story.numbers.below(facts.len())];
            story.step(facts, *whose);
        }
        // Those that still wait are cancelled, and were never decided.
        story.waiting.clear();
        compare(&engine, &events, &story.seen, seed);
        (denied, passed) = (denied + story.seen.denied, passed + story.seen.passed);
    }
    assert!(denied > 500 && passed > 2_000, "{denied} {passed}");
}
