//! envoyproxy/ratelimit's rules, row by row, through gRPC and through `POST /json`: the answers are the engine's own.

#[path = "../../../tollgate-engine/tests/common/envoy_rows.rs"]
mod envoy_rows;

use std::sync::Arc;

use prost_reflect::DescriptorPool;
use serde_json::{Value, json};
use tollgate::clock::Manual;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::engine::DescriptorStatus;
use tollgate_engine::envoy::StatusCode;
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::{Engine, Policy};
use tollgate_http::HeaderDialect;
use tollgate_server::Settings;

use crate::kit::Running;
use crate::rls_client::{Failed, Grpc};

const SERVICE: (&str, &str) = (
    "envoy.service.ratelimit.v3.RateLimitService",
    "ShouldRateLimit",
);

/// The same policy three times: an engine, and a service for each protocol.
struct Three {
    engine: Engine<Memory<Arc<Manual>, Arc<Manual>>>,
    grpc: Running,
    json: Running,
    pool: DescriptorPool,
}

impl Three {
    fn new(policy: &str, change: impl Fn(&mut Settings)) -> Self {
        let clock = Arc::new(Manual::new());
        let memory = Memory::builder()
            .clock(Arc::clone(&clock))
            .wall(clock)
            .build();
        let read = Policy::from_text(policy, Format::Yaml).expect("a policy");
        let set = include_bytes!("../../src/rls/descriptors.bin");
        Self {
            engine: Engine::new(read.policy, memory).expect("an engine"),
            grpc: Running::new(policy, &change),
            json: Running::new(policy, &change),
            pool: DescriptorPool::decode(&set[..]).expect("descriptors"),
        }
    }

    fn by_grpc(&self, question: &Value) -> Result<Value, Failed> {
        Grpc::to(&self.grpc).call_json(&self.pool, SERVICE, &question.to_string())
    }

    fn by_json(&self, question: &Value) -> (u16, Value) {
        let media = "content-type: application/json\r\n";
        let mut client = self.json.http();
        let (status, answer) = client.request("POST", "/json", media, &question.to_string());
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        (status, serde_json::from_str(body).expect("JSON"))
    }

    /// What both protocols answer.
    #[track_caller]
    fn ask(&self, question: &Value) -> Value {
        let (status, by_json) = self.by_json(question);
        let by_grpc = self.by_grpc(question).expect("an answer");
        assert_eq!(by_grpc, by_json, "{question}");
        let code = if status == 200 { "OK" } else { "OVER_LIMIT" };
        assert_eq!(by_json["overallCode"], code, "{question}");
        by_json
    }

    /// Checks that both answer as the engine does; returns the answer.
    #[track_caller]
    fn check(&self, domain: &str, descriptors: &[Descriptor<'_>], hits: Option<u32>) -> Value {
        let mut question = json!({
            "domain": domain,
            "descriptors": descriptors.iter().map(asked).collect::<Vec<_>>(),
        });
        if let Some(hits) = hits {
            question["hitsAddend"] = json!(hits);
        }
        let hits = hits.unwrap_or_default();
        let verdict = self.engine.decide_descriptors(domain, descriptors, hits);
        let answer = self.ask(&question);
        let statuses: Vec<_> = verdict.statuses.iter().map(told).collect();
        assert_eq!(answer["statuses"], json!(statuses), "{question}");
        let overall = verdict.denied().map_or("OK", |_| "OVER_LIMIT");
        assert_eq!(answer["overallCode"], overall, "{question}");
        answer
    }
}

/// A descriptor as this form of JSON has it.
fn asked(descriptor: &Descriptor<'_>) -> Value {
    let entries = descriptor.entries.iter();
    let entries = entries.map(|(key, value)| json!({"key": key, "value": value}));
    let mut asked = json!({ "entries": entries.collect::<Vec<_>>() });
    if let Some(cost) = descriptor.cost {
        asked["hitsAddend"] = json!(cost.to_string());
    }
    if let Some((requests, unit)) = descriptor.limit {
        let unit = unit.name().to_uppercase();
        asked["limit"] = json!({"requestsPerUnit": requests, "unit": unit});
    }
    if descriptor.refund {
        asked["isNegativeHits"] = json!(true);
    }
    asked
}

const fn name_of(code: StatusCode) -> &'static str {
    match code {
        StatusCode::Ok => "OK",
        StatusCode::OverLimit => "OVER_LIMIT",
    }
}

/// A status of the engine in the form for clients: zero fields are left out.
fn told(status: &DescriptorStatus) -> Value {
    let mut told = json!({ "code": name_of(status.code) });
    if status.remaining > 0 {
        told["limitRemaining"] = json!(status.remaining);
    }
    if let Some(limit) = &status.current_limit {
        let mut current = json!({});
        if limit.requests_per_unit > 0 {
            current["requestsPerUnit"] = json!(limit.requests_per_unit);
        }
        if let Some(unit) = limit.unit {
            current["unit"] = json!(unit.name().to_uppercase());
        }
        if let Some(name) = &limit.name {
            current["name"] = json!(name);
        }
        told["currentLimit"] = current;
        let after = status.decision.map(|decision| decision.reset_after);
        let after = after.unwrap_or_default().as_secs();
        told["durationUntilReset"] = json!(format!("{after}s"));
    }
    told
}

#[test]
fn requests_come_to_their_limit_through_both_protocols() {
    let three = Three::new(envoy_rows::POLICY, |_| {});
    for (domain, entries, limit) in envoy_rows::REQUESTS {
        // Nothing is taken, so that no row depends on the ones before.
        let peek = [Descriptor {
            cost: Some(0),
            ..Descriptor::new(entries)
        }];
        if domain.is_empty() {
            let question = json!({"descriptors": [asked(&peek[0])]});
            let why = "the domain is empty".to_owned();
            let failed = Failed { code: 3, why };
            assert_eq!(three.by_grpc(&question), Err(failed));
            assert_eq!(three.by_json(&question).0, 400);
            continue;
        }
        let answer = three.check(domain, &peek, None);
        let is_limited = !answer["statuses"][0]["currentLimit"].is_null();
        let is_expected = limit.is_some() && *limit != Some("edge/user=root");
        assert_eq!(is_limited, is_expected, "{domain} {entries:?}");
        if is_limited {
            assert_eq!(
                answer["dynamicMetadata"]["rule"],
                json!(limit),
                "{entries:?}"
            );
        }
    }
}

const POLICY: &str = "
domain: edge
descriptors:
- {key: user, rate_limit: {name: users, unit: day, requests_per_unit: 10}}
- {key: free, rate_limit: {unlimited: true}}
- {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: trial, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: vip, rate_limit: {unit: week, requests_per_unit: 5, replaces: [{name: users}]}}
- {key: pool-a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: pool-b, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: part, value: 's*', share_threshold: true, rate_limit: {unit: month, requests_per_unit: 2}}
";

/// Of a request: what it costs, its descriptors (`key=value`, then `hits=n`, `back`, `limit=n/unit`), and what is said
/// of each. The state of one row is that of the row before.
type Row = (
    Option<u32>,
    &'static [&'static str],
    &'static [&'static str],
);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    // What a request costs: nothing said and zero are one.
    (None, &["user=ada"], &["OK 9"]),
    (Some(0), &["user=ada"], &["OK 8"]),
    (Some(3), &["user=ada"], &["OK 5"]),
    // A descriptor's own cost comes before the request's, and zero only looks.
    (Some(7), &["user=ada hits=2"], &["OK 3"]),
    (Some(7), &["user=ada hits=0"], &["OK 3"]),
    (Some(7), &["user=ada hits=1", "user=bob"], &["OK 2", "OK 3"]),
    // All or nothing: what is refused takes nothing of the others.
    (Some(3), &["user=ada", "user=bob"], &["OVER_LIMIT 0", "OK 3"]),
    (None, &["user=ada hits=0", "user=bob hits=0"], &["OK 2", "OK 3"]),
    // Hits are given back, and never more than were taken.
    (None, &["user=ada hits=5 back"], &["OK 7"]),
    (None, &["user=ada hits=100 back"], &["OK 10"]),
    (None, &["user=ada"], &["OK 9"]),
    (None, &["user=ada back"], &["OK 10"]),
    // A limit of the request's own, by another unit apart and by the same together.
    (Some(2), &["user=eve limit=3/hour"], &["OK 1"]),
    (Some(2), &["user=eve limit=3/hour"], &["OVER_LIMIT 0"]),
    (None, &["user=eve"], &["OK 9"]),
    (None, &["user=eve limit=20/day"], &["OK 18"]),
    (None, &["nobody=eve limit=1/year"], &["OK 0"]),
    (None, &["nobody=eve limit=1/year"], &["OVER_LIMIT 0"]),
    (None, &["nobody=eve"], &["OK 0"]),
    // No limit, none at all, and nothing.
    (Some(1_000), &["free=x"], &["OK 4294967295"]),
    (None, &["none=x"], &["OVER_LIMIT 0"]),
    // Shadow counts, and lets pass.
    (None, &["trial=x"], &["OK 0"]),
    (None, &["trial=x"], &["OK 0"]),
    // What is replaced neither counts nor refuses.
    (Some(5), &["user=dan", "vip=dan"], &["OK 0", "OK 0"]),
    (None, &["user=dan"], &["OK 9"]),
    (None, &["user=dan", "vip=dan"], &["OK 0", "OVER_LIMIT 0"]),
    // Quotas refuse together.
    (None, &["pool-a=x", "pool-b=x"], &["OK 0", "OK 1"]),
    (None, &["pool-a=x", "pool-b=x"], &["OVER_LIMIT 0", "OK 0"]),
    (None, &["pool-a=x", "pool-b=x"], &["OVER_LIMIT 0", "OVER_LIMIT 0"]),
    (None, &["pool-a=x"], &["OVER_LIMIT 0"]),
    // All values of a wildcard share.
    (None, &["part=s1"], &["OK 1"]),
    (None, &["part=s2"], &["OK 0"]),
    (None, &["part=s3"], &["OVER_LIMIT 0"]),
    (None, &["part=t"], &["OK 0"]),
];

/// The entry of a row's descriptor.
fn entry(text: &str) -> [(&str, &str); 1] {
    let entry = text.split(' ').next().and_then(|word| word.split_once('='));
    [entry.expect("key=value")]
}

/// A row's descriptor, with its entry.
fn descriptor<'a>(entry: &'a [(&'a str, &'a str); 1], text: &str) -> Descriptor<'a> {
    let mut descriptor = Descriptor::new(entry);
    for word in text.split(' ').skip(1) {
        match word.split_once('=') {
            Some(("hits", hits)) => descriptor.cost = hits.parse().ok(),
            Some(("limit", limit)) => {
                let (requests, unit) = limit.split_once('/').expect("n/unit");
                let units = [Unit::Hour, Unit::Day, Unit::Year];
                let unit = units.into_iter().find(|own| own.name() == unit);
                let requests = requests.parse().expect("a number");
                descriptor.limit = Some((requests, unit.expect("a unit")));
            }
            _ => descriptor.refund = word == "back",
        }
    }
    descriptor
}

#[test]
fn every_rule_of_theirs_answers_alike_through_both_protocols() {
    let three = Three::new(POLICY, |_| {});
    let mut wrong = Vec::new();
    for (row, (hits, texts, expected)) in ROWS.iter().enumerate() {
        let entries: Vec<_> = texts.iter().map(|text| entry(text)).collect();
        let descriptors = entries.iter().zip(*texts);
        let descriptors: Vec<_> = descriptors
            .map(|(entry, text)| descriptor(entry, text))
            .collect();
        let answer = three.check("edge", &descriptors, *hits);
        let statuses = answer["statuses"].as_array().expect("a list").iter();
        let short = |status: &Value| {
            let left = status["limitRemaining"].as_u64().unwrap_or_default();
            format!("{} {left}", status["code"].as_str().unwrap_or_default())
        };
        let found: Vec<_> = statuses.map(short).collect();
        if found != *expected {
            wrong.push(format!(
                "row {row}: {hits:?} {texts:?}: {found:?}, not {expected:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn header_fields_are_added_in_the_dialects_that_are_chosen() {
    let question = json!({"domain": "edge", "descriptors": [
        {"entries": [{"key": "free", "value": "x"}]},
        {"entries": [{"key": "user", "value": "ada"}]},
    ]});
    let none = Three::new(POLICY, |_| {});
    assert!(none.ask(&question)["responseHeadersToAdd"].is_null());
    let some = Three::new(POLICY, |settings| {
        settings.rls_headers = vec![HeaderDialect::Draft6, HeaderDialect::Draft8];
    });
    let field = |key: &str, value: &str| json!({"key": key, "value": value});
    assert_eq!(
        some.ask(&question)["responseHeadersToAdd"],
        json!([
            field("ratelimit-limit", "10"),
            field("ratelimit-remaining", "9"),
            field("ratelimit-reset", "86400"),
            field("ratelimit-policy", "10;w=86400"),
            field("ratelimit-policy", "\"users\";q=10;w=86400"),
            field("ratelimit", "\"users\";r=9;t=86400"),
        ])
    );
    // A rule of our own form, and one that refuses.
    let rules = Three::new(
        "limits: [{name: per-user, key: user, rate: 1/min}]",
        |settings| {
            settings.rls_headers = vec![HeaderDialect::Draft3];
        },
    );
    let left = [("OK", "0"), ("OVER_LIMIT", "0")];
    for (code, left) in left {
        let answer = rules.ask(&question);
        assert_eq!(answer["overallCode"], code);
        let told = match code {
            "OK" => json!({"rule": "per-user"}),
            _ => json!({"rule": "per-user", "reason": "rate", "limited_by": "1/m"}),
        };
        assert_eq!(answer["dynamicMetadata"], told);
        let mut fields = vec![
            field("x-ratelimit-limit", "1, 1;w=60"),
            field("x-ratelimit-remaining", left),
            field("x-ratelimit-reset", "60"),
        ];
        // Envoy's 429 says when to come again.
        if code == "OVER_LIMIT" {
            fields.push(field("retry-after", "60"));
        }
        assert_eq!(answer["responseHeadersToAdd"], json!(fields));
    }
    // All limits that were met, the most urgent first.
    let several = Three::new(
        "limits: [{name: per-user, key: user, rate: 9/min, concurrency: 2}, {name: all, rate: 5/min}]",
        |settings| {
            settings.rls_headers = vec![HeaderDialect::Draft8];
        },
    );
    assert_eq!(
        several.ask(&question)["responseHeadersToAdd"][1],
        field(
            "ratelimit",
            "\"all\";r=4;t=12, \"per-user:9/m\";r=8;t=7, \"per-user:concurrency\";r=1"
        )
    );
}

#[test]
fn slots_are_lent_given_back_and_only_looked_at() {
    let forms = [
        "limits: [{name: jobs, key: job, concurrency: 1}]",
        "domain: edge\ndescriptors: [{key: job, rate_limit: {concurrency: 1}}]",
    ];
    for policy in forms {
        let three = Three::new(policy, |_| {});
        let ask = |more: Value| {
            let mut descriptor = json!({"entries": [{"key": "job", "value": "x"}]});
            for (name, value) in more.as_object().expect("fields") {
                descriptor[name] = value.clone();
            }
            let question = json!({"domain": "edge", "descriptors": [descriptor]});
            three.ask(&question)["overallCode"].clone()
        };
        let (look, back) = (json!({"hitsAddend": "0"}), json!({"isNegativeHits": true}));
        assert_eq!(ask(look.clone()), "OK", "{policy}");
        assert_eq!(ask(json!({})), "OK", "looking takes nothing: {policy}");
        assert_eq!(ask(json!({})), "OVER_LIMIT", "{policy}");
        assert_eq!(ask(look.clone()), "OVER_LIMIT", "{policy}");
        assert_eq!(ask(back.clone()), "OK", "{policy}");
        assert_eq!(ask(json!({})), "OK", "it was given back: {policy}");
        assert_eq!(ask(json!({})), "OVER_LIMIT", "{policy}");
    }
}
