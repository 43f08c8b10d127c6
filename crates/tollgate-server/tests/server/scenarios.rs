//! One table of requests through every protocol, in memory and on Redis: the answers are the engine's own.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use prost_reflect::DescriptorPool;
use serde_json::{Value, json};
use tollgate::Decision;
use tollgate::clock::Manual;
use tollgate_engine::backend::{Limit, LimitKind, Memory};
use tollgate_engine::document::Format;
use tollgate_engine::verdict::{Cause, DecisionDetails, Permits, RequestDecision};
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_server::Settings;
use tollgate_testkit::redis::{Client, Server};

use crate::kit::{Running, secret};
use crate::rls_client::Grpc;

/// 1 June 2024, noon: where every scenario begins.
const NOON: Duration = Duration::from_secs(1_717_243_200);
/// How often a released permit of a store is polled for.
const TRIES: usize = 10_000;
const SECRET: &str = "sesame";

/// A policy, and its requests in order: `[+time] [xtimes] verb fact=value … [cost n]`.
type Scenario = (&'static str, &'static [&'static str]);

/// The same for every algorithm: a burst, time, more than remains, more than the limit ever has, a peek and a refund.
const RATES: &[&str] = &[
    "x4 check user=ada",
    "check user=bob COST 3",
    "check user=ada COST 3",
    "peek user=ada COST 0",
    "+7s x2 check user=ada COST 2",
    "check user=ada COST 6",
    "check user=ada COST 0",
    "refund user=ada COST 2",
    "peek user=ada COST 0",
    "x3 check user=ada",
    "+31s peek user=bob COST 0",
    "x6 check user=bob",
    "+10m x6 check user=bob",
    "check path=/none",
];

#[rustfmt::skip]
const OTHERS: &[Scenario] = &[
    // Several rules: the tightest is told of, a refusal charges none, and a request without the facts meets none.
    ("limits: [{name: wide, key: user, rate: 10/h}, {name: narrow, match: {path: /narrow}, key: user, rate: 2/h, over: deny}, \
       {name: all, rate: 12/h}]",
     &["x3 check user=1 path=/narrow", "x4 check user=1", "check user=2 path=/narrow COST 2", "x5 check user=2", "check", "+20m x3 check user=1 path=/narrow",
       "refund user=1 path=/narrow COST 1", "peek user=1 path=/narrow COST 0", "peek user=1 path=/narrow COST 3"]),
    // Shadow counts, and never refuses.
    ("limits: [{name: real, key: user, rate: 3/h}, {name: trial, key: user, rate: 1/h, mode: shadow}]",
     &["x5 check user=ada", "peek user=ada COST 0"]),
    // No limit, no request, one that takes another's place, and lists.
    ("exempt: [{path: /healthz}]\nblock: [{user: mallory}]\nlimits: [{name: root, match: {user: root}, unlimited: true, replaces: [all]}, \
       {name: none, match: {path: /none}, rate: zero}, {name: all, key: user, rate: 1/h}]",
     &["x3 check user=root", "x2 check user=ada", "check user=ada path=/healthz", "check user=mallory", "check user=mallory path=/healthz",
       "check user=eve path=/none", "peek user=root COST 0", "peek user=mallory COST 0", "refund user=root"]),
    // Tiers, by who asks and by what they pay for.
    ("tiers: {free: {rate: 2/m, quota: 5/day}, pro: {rate: [20/m, 30/h]}, own: {unlimited: true}}\ntenants: {acme: pro, us: own}\ntier_fact: plan\ndefault_tier: free",
     &["x3 check tenant=new", "x3 check tenant=acme COST 9", "check tenant=us COST 1000", "x2 check tenant=payer plan=pro COST 11",
       "+1m x2 check tenant=new", "+1m x2 check tenant=new", "+12h peek tenant=new COST 0", "check tenant=new"]),
    // What a request costs, by a fact of it or by its own word.
    ("limits: [{name: tokens, key: user, rate: 100/m, cost: {fact: tokens, default: 7}}, {name: calls, key: user, rate: 5/m}]",
     &["check user=ada tokens=40", "check user=ada tokens=60", "check user=ada tokens=101", "check user=ada tokens=x", "refund user=ada tokens=40", "+3s check user=ada tokens=60",
       "check user=ada tokens=0"]),
    // Quotas by the calendar, and in any hour.
    ("limits: [{name: daily, key: user, quota: 3/day}, {name: hourly, key: user, quota: 2 in any 1h}]",
     &["x3 check user=ada", "+61m x2 check user=ada", "refund user=ada COST 1", "peek user=ada COST 0", "+11h x2 check user=ada"]),
    // Slots are held until they are given back.
    ("limits: [{name: jobs, key: user, concurrency: 2}, {name: calls, key: user, rate: 10/h}]",
     &["x3 check user=ada", "check user=bob", "peek user=ada COST 0", "refund user=ada COST 1", "peek user=ada COST 0", "x2 check user=ada"]),
];

const ALGORITHMS: [&str; 6] = [
    "gcra",
    "token-bucket",
    "leaky",
    "fixed-window",
    "sliding-window",
    "sliding-log",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Check,
    Peek,
    Refund,
}

/// One line of a scenario.
struct Step {
    after: Duration,
    times: usize,
    verb: Verb,
    facts: Vec<(&'static str, &'static str)>,
    cost: Option<u64>,
}

impl Step {
    fn read(line: &'static str) -> Self {
        let mut step = Self {
            after: Duration::ZERO,
            times: 1,
            verb: Verb::Check,
            facts: Vec::new(),
            cost: None,
        };
        let mut words = line.split(' ');
        while let Some(word) = words.next() {
            match word {
                "check" => step.verb = Verb::Check,
                "peek" => step.verb = Verb::Peek,
                "refund" => step.verb = Verb::Refund,
                "COST" => step.cost = words.next().and_then(|number| number.parse().ok()),
                _ => {
                    if let Some(fact) = word.split_once('=') {
                        step.facts.push(fact);
                    } else if let Some(time) = word.strip_prefix('+') {
                        step.after = time_of(time);
                    } else {
                        let times = word.strip_prefix('x').and_then(|word| word.parse().ok());
                        step.times = times.unwrap_or_else(|| panic!("{word:?} of {line:?}"));
                    }
                }
            }
        }
        step
    }

    fn facts(&self) -> Facts<'_> {
        let facts = self.facts.iter().copied().collect();
        match self.cost {
            Some(cost) => Facts::with_cost(facts, cost),
            None => facts,
        }
    }
}

fn time_of(text: &str) -> Duration {
    let (number, unit) = text.split_at(text.len() - 1);
    let number: u64 = number.parse().expect("a number");
    Duration::from_secs(match unit {
        "s" => number,
        "m" => number * 60,
        _ => number * 3_600,
    })
}

/// A client's answer.
#[derive(Clone, Debug, Default, PartialEq)]
struct Told {
    allowed: bool,
    rule: Option<String>,
    /// What is known of how much, unless there is no limit.
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after: Option<Duration>,
    reset_after: Option<Duration>,
}

/// The engine's answer, and the number by which Envoy knows its limit.
#[derive(Clone, Debug)]
struct Expected {
    told: Told,
    named: Option<u64>,
}

impl Expected {
    fn of(findings: &DecisionDetails<'_>, allowed: bool) -> Self {
        let decision: &Decision = findings.decision();
        let counted = |count| (!decision.is_unlimited()).then_some(count);
        let time = |time| (time != Duration::MAX).then(|| told(time));
        let kind = findings.limit().map(Limit::kind);
        let rule = match findings.cause() {
            Cause::Rule(name) | Cause::Tier(name) => Some(name.to_owned()),
            _ => None,
        };
        let told = Told {
            allowed,
            rule,
            limit: counted(decision.limit),
            remaining: counted(decision.remaining),
            retry_after: time(decision.wait_or_max()),
            reset_after: time(decision.reset_after),
        };
        let named = kind.and_then(LimitKind::quota).unwrap_or(decision.limit);
        let named = counted(named);
        Self { told, named }
    }

    /// What there is room for in Envoy's answer.
    fn by_envoy(&self) -> Told {
        let is_limited = self.named.is_some();
        let left = self.told.remaining.filter(|_| self.told.allowed);
        Told {
            limit: self.named,
            remaining: is_limited.then_some(left.unwrap_or_default()),
            retry_after: None,
            reset_after: self.told.reset_after.filter(|_| is_limited),
            ..self.told.clone()
        }
    }
}

/// A duration with the resolution of stores: in microseconds, rounded up. In memory, the sliding counter has a finer
/// one.
fn told(time: Duration) -> Duration {
    time + Duration::from_nanos(u64::from(1_000 - time.subsec_nanos() % 1_000) % 1_000)
}

/// Seconds with decimals; none of `null`.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let nanos = format!("{rest:0<9}").parse().ok()?;
    Some(told(Duration::new(whole.parse().ok()?, nanos)))
}

/// The engine's own answer; `None` for refunds.
fn by_engine(policy: &str, steps: &[Step]) -> Vec<Option<Expected>> {
    let clock = Arc::new(Manual::new());
    clock.advance(NOON);
    let memory = Memory::builder()
        .clock(Arc::clone(&clock))
        .wall(Arc::clone(&clock));
    let policy = Policy::from_text(policy, Format::Yaml)
        .expect("a policy")
        .policy;
    let engine = Engine::new(policy, memory.build()).expect("an engine");
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    let mut held: Vec<(&[_], Permits)> = Vec::new();
    let mut answers = Vec::new();
    for step in steps {
        clock.advance(step.after);
        let facts = step.facts();
        for _ in 0..step.times {
            answers.push(match step.verb {
                Verb::Check => {
                    let verdict = engine.decide(&facts);
                    let answer = Expected::of(&verdict, verdict.denied().is_none());
                    if let RequestDecision::Allowed(passed) = verdict {
                        held.push((&step.facts, passed.into_permits()));
                    }
                    Some(answer)
                }
                Verb::Peek => {
                    let findings = engine.peek(&facts);
                    Some(Expected::of(&findings, findings.decision().is_allowed()))
                }
                Verb::Refund => {
                    let oldest = held.iter().position(|(facts, permits)| {
                        *facts == step.facts.as_slice() && !permits.is_empty()
                    });
                    oldest.map(|place| held.remove(place));
                    let Ok(_) = runtime.block_on(engine.refund_async(&facts));
                    None
                }
            });
        }
    }
    answers
}

/// A way to ask a service.
type Ask = fn(&Running, &Step) -> Option<Told>;

fn by_http(running: &Running, step: &Step) -> Option<Told> {
    let facts: serde_json::Map<_, _> = step
        .facts
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    let mut asked = json!({ "facts": facts });
    if let Some(cost) = step.cost {
        asked["cost"] = json!(cost);
    }
    let path = match step.verb {
        Verb::Check => "/v1/check",
        Verb::Peek => "/v1/peek",
        Verb::Refund => "/v1/refund",
    };
    let fields = format!("content-type: application/json\r\nauthorization: Bearer {SECRET}\r\n");
    let (status, answer) = running
        .http()
        .request("POST", path, &fields, &asked.to_string());
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    if step.verb == Verb::Refund {
        assert_eq!((status, body), (200, "{}"));
        return None;
    }
    // Numbers are read as they are written: none is a float.
    let field = |name: &str| {
        let (_, rest) = body.split_once(&format!("\"{name}\":")).expect(name);
        rest.split([',', '}']).next().unwrap_or_default()
    };
    let allowed = field("allowed") == "true";
    let is_refusal = step.verb == Verb::Check && !allowed;
    assert_eq!(status, if is_refusal { 429 } else { 200 }, "{answer}");
    let rule = field("rule");
    Some(Told {
        allowed,
        rule: (rule != "null").then(|| rule.trim_matches('"').to_owned()),
        limit: field("limit").parse().ok(),
        remaining: field("remaining").parse().ok(),
        retry_after: seconds(field("retry_after")),
        reset_after: seconds(field("reset_after")),
    })
}

fn by_resp(running: &Running, step: &Step) -> Option<Told> {
    let mut client = Client::tcp(running.resp_address()).expect("a connection");
    let name = match step.verb {
        Verb::Check => "TG.CHECK",
        Verb::Peek => "TG.PEEK",
        Verb::Refund => {
            assert_eq!(client.command(&["AUTH", SECRET]).expect("trust"), "OK");
            "TG.REFUND"
        }
    };
    let facts = step.facts.iter();
    let mut words = vec![name.to_owned()];
    words.extend(facts.map(|(name, value)| format!("{name}={value}")));
    if let Some(cost) = step.cost {
        words.extend(["COST".to_owned(), cost.to_string()]);
    }
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let answer = client.command(&words).expect("an answer");
    if step.verb == Verb::Refund {
        assert_eq!(answer, "OK");
        return None;
    }
    let field = |name: &str| {
        let pairs = answer.items().chunks(2);
        let mut found = pairs.filter(|pair| pair[0] == name);
        found.next().unwrap_or_else(|| panic!("{name}: {answer}"))[1].text()
    };
    let number = |name| field(name).map(|text| text.parse().expect("a number"));
    Some(Told {
        allowed: field("allowed").as_deref() == Some("1"),
        rule: field("rule"),
        limit: number("limit"),
        remaining: number("remaining"),
        retry_after: field("retry_after").and_then(|text| seconds(&text)),
        reset_after: field("reset_after").and_then(|text| seconds(&text)),
    })
}

fn by_rls(running: &Running, step: &Step) -> Option<Told> {
    static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
        let set = include_bytes!("../../src/rls/descriptors.bin");
        DescriptorPool::decode(&set[..]).expect("descriptors")
    });
    let entries = step.facts.iter();
    let entries = entries.map(|(key, value)| json!({"key": key, "value": value}));
    let mut descriptor = json!({ "entries": entries.collect::<Vec<_>>() });
    if let Some(cost) = step.cost {
        descriptor["hitsAddend"] = json!(cost.to_string());
    }
    if step.verb == Verb::Refund {
        descriptor["isNegativeHits"] = json!(true);
    }
    let question = json!({"domain": "any", "descriptors": [descriptor]}).to_string();
    let service = "envoy.service.ratelimit.v3.RateLimitService";
    let answer = Grpc::to(running).call_json(&POOL, (service, "ShouldRateLimit"), &question);
    let answer = answer.expect("an answer");
    if step.verb == Verb::Refund {
        assert_eq!(answer["overallCode"], "OK");
        return None;
    }
    let status = &answer["statuses"][0];
    assert_eq!(status["code"], answer["overallCode"]);
    let limit = status["currentLimit"].as_object();
    // What is zero is left out.
    let count = |value: &Value| value.as_u64().unwrap_or_default();
    let reset = status["durationUntilReset"].as_str();
    Some(Told {
        allowed: answer["overallCode"] == "OK",
        rule: answer["dynamicMetadata"]["rule"]
            .as_str()
            .map(str::to_owned),
        limit: limit.map(|_| count(&status["currentLimit"]["requestsPerUnit"])),
        remaining: limit.map(|_| count(&status["limitRemaining"])),
        retry_after: None,
        reset_after: reset.and_then(|text| seconds(text.trim_end_matches('s'))),
    })
}

/// Runs a scenario on a service, and returns the differences from the engine's own answers.
fn differs(
    running: &Running,
    (protocol, ask): (&str, Ask),
    (lines, steps): (&[&str], &[Step]),
    expected: &[Option<Expected>],
) -> Vec<String> {
    running.clock.advance(NOON);
    let mut expected = expected.iter();
    let mut wrong = Vec::new();
    let mut before = Verb::Check;
    for (line, step) in lines.iter().zip(steps) {
        running.clock.advance(step.after);
        for _ in 0..step.times {
            let expected = expected.next().expect("an answer of the engine's");
            let expected = expected.as_ref().map(|expected| match protocol {
                "rls" => expected.by_envoy(),
                _ => expected.told.clone(),
            });
            // Envoy has no word for a look at more than nothing.
            if protocol == "rls" && step.verb == Verb::Peek && step.cost != Some(0) {
                continue;
            }
            let mut answer = ask(running, step);
            // A slot that was given back is free once the store knows it.
            if (before, step.verb) == (Verb::Refund, Verb::Peek) {
                let mut again = (0..TRIES).map(|_| ask(running, step));
                answer = again.find(|answer| *answer == expected).unwrap_or(answer);
            }
            if answer != expected {
                wrong.push(format!("{protocol}: {line}: {answer:?}, not {expected:?}"));
            }
            before = step.verb;
        }
    }
    wrong
}

fn compare(scenarios: &[(String, &[&'static str])]) {
    let secrets = |settings: &mut Settings| {
        settings.resp_operator_password = Some(secret(SECRET));
        settings.http_operator_token = Some(secret(SECRET));
        // The clock of the holds is the machine's.
        settings.bounds.reservation_timeout = Duration::from_secs(3_600);
    };
    let store = Server::start();
    let mut wrong = Vec::new();
    for (policy, lines) in scenarios {
        let steps: Vec<_> = lines.iter().map(|line| Step::read(line)).collect();
        let expected = by_engine(policy, &steps);
        let answers = || expected.iter().flatten();
        assert!(answers().any(|one| !one.told.allowed), "refuses: {policy}");
        assert!(answers().any(|one| one.told.allowed), "admits: {policy}");
        let protocols: [(&str, Ask); 3] = [("http", by_http), ("resp", by_resp), ("rls", by_rls)];
        for protocol in protocols {
            let here = Running::new(policy, secrets);
            store.command(&["FLUSHALL"]);
            let there = Running::on_store_in_time(policy, &store.url(), secrets);
            for (place, running) in [("memory", here), ("redis", there)] {
                let found = differs(&running, protocol, (lines, &steps), &expected);
                wrong.extend(found.iter().map(|one| format!("{policy}\n{place}, {one}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_algorithm_answers_alike_by_every_protocol_and_backend() {
    compare(&ALGORITHMS.map(|algorithm| {
        let policy = format!("limits: [{{name: a, key: user, algorithm: {algorithm}, rate: 5/m}}]");
        (policy, RATES)
    }));
}

#[test]
fn every_word_of_a_policy_answers_alike_by_every_protocol_and_backend() {
    let scenarios = OTHERS.iter();
    let scenarios = scenarios.map(|(policy, lines)| ((*policy).to_owned(), *lines));
    compare(&scenarios.collect::<Vec<_>>());
}
