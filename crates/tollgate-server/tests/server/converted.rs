//! Files of envoyproxy/ratelimit, converted: random ones decide as the originals do, over every protocol.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use prost_reflect::DescriptorPool;
use serde_json::{Value, json};
use tollgate_engine::document::Format;
use tollgate_engine::{Policy, envoy};

use crate::kit::Running;
use crate::rls_client::Grpc;

const KEYS: [&str; 3] = ["a", "b", "c"];
const VALUES: [&str; 3] = ["x", "y", "xy"];
const JSON: &str = "content-type: application/json\r\n";
const METHOD: (&str, &str) = (
    "envoy.service.ratelimit.v3.RateLimitService",
    "ShouldRateLimit",
);

/// A descriptor of a file.
#[derive(Clone, Debug)]
struct Node {
    key: &'static str,
    value: Option<&'static str>,
    limit: Option<(u32, bool)>,
    below: Vec<Node>,
}

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Grpc,
    Json,
    Check,
    /// As facts.
    Resp,
}

/// The entries of a descriptor.
type Entries<'a> = Vec<(&'a str, &'a str)>;

/// A descriptor, and its own hits.
type AskedDescriptor<'a> = (Entries<'a>, Option<u32>);

/// A request: its way, its domain, its descriptors with their hits, and the hits of the whole.
#[derive(Clone, Debug)]
struct Asked {
    way: Way,
    domain: &'static str,
    descriptors: Vec<AskedDescriptor<'static>>,
    hits: u32,
}

fn nodes(depth: u32) -> BoxedStrategy<Vec<Node>> {
    let below = match depth {
        0 => Just(Vec::new()).boxed(),
        _ => nodes(depth - 1),
    };
    let value = select(vec![None, None, Some("x"), Some("y"), Some("x*")]);
    let limit = proptest::option::weighted(0.7, (1_u32..4, proptest::bool::weighted(0.1)));
    let node = (select(KEYS.to_vec()), value, limit, below);
    let node = node.prop_map(|(key, value, limit, below)| Node {
        key,
        value,
        limit,
        below,
    });
    vec(node, 0..4)
        .prop_map(|mut nodes| {
            let mut seen = BTreeSet::new();
            nodes.retain(|node| seen.insert((node.key, node.value)));
            nodes
        })
        .boxed()
}

fn asked() -> impl Strategy<Value = Asked> {
    let entries = vec((select(KEYS.to_vec()), select(VALUES.to_vec())), 1..4);
    let hits = select(vec![None, None, None, None, Some(0), Some(2)]);
    let descriptors = vec((entries, hits), 1..4);
    let way = select(vec![Way::Grpc, Way::Json, Way::Check, Way::Resp]);
    let parts = (
        way,
        select(vec!["one", "two", "else"]),
        descriptors,
        select(vec![0, 0, 1, 2]),
    );
    parts.prop_map(|(way, domain, descriptors, hits)| Asked {
        way,
        domain,
        descriptors,
        hits,
    })
}

fn write(out: &mut String, nodes: &[Node], indent: usize) {
    for node in nodes {
        let pad = " ".repeat(indent);
        *out += &format!("{pad}- key: {}\n", node.key);
        if let Some(value) = node.value {
            *out += &format!("{pad}  value: '{value}'\n");
        }
        if let Some((most, is_shadow)) = node.limit {
            *out += &format!("{pad}  rate_limit: {{unit: hour, requests_per_unit: {most}}}\n");
            if is_shadow {
                *out += &format!("{pad}  shadow_mode: true\n");
            }
        }
        if !node.below.is_empty() {
            *out += &format!("{pad}  descriptors:\n");
            write(out, &node.below, indent + 2);
        }
    }
}

/// The lists of keys that lead to a limit.
fn lists(nodes: &[Node], way: &mut Vec<&'static str>, found: &mut BTreeSet<Vec<&'static str>>) {
    for node in nodes {
        way.push(node.key);
        if node.limit.is_some() {
            found.insert(way.clone());
        }
        lists(&node.below, way, found);
        way.pop();
    }
}

fn question(domain: &str, descriptors: &[AskedDescriptor<'_>], hits: u32) -> Value {
    let each = descriptors.iter().map(|(entries, hits)| {
        let entries = entries
            .iter()
            .map(|(key, value)| json!({"key": key, "value": value}));
        match hits {
            Some(hits) => {
                json!({"entries": entries.collect::<Vec<_>>(), "hitsAddend": hits.to_string()})
            }
            None => json!({"entries": entries.collect::<Vec<_>>()}),
        }
    });
    json!({"domain": domain, "descriptors": each.collect::<Vec<_>>(), "hitsAddend": hits})
}

struct Service {
    running: Running,
    pool: DescriptorPool,
}

impl Service {
    fn new(policy: Policy) -> Self {
        let set = include_bytes!("../../src/rls/descriptors.bin");
        Self {
            running: Running::by(policy, |_| {}),
            pool: DescriptorPool::decode(&set[..]).expect("descriptors"),
        }
    }

    /// Whether a request is allowed, sent in this way.
    fn passes(&self, way: Way, question: &Value) -> bool {
        let post = |path: &str, text: &Value| {
            let (status, answer) =
                self.running
                    .http()
                    .request("POST", path, JSON, &text.to_string());
            assert!(matches!(status, 200 | 429), "{answer}");
            status == 200
        };
        match way {
            Way::Grpc | Way::Resp => {
                let answer =
                    Grpc::to(&self.running).call_json(&self.pool, METHOD, &question.to_string());
                answer.expect("an answer")["overallCode"] == "OK"
            }
            Way::Json => post("/json", question),
            Way::Check => {
                let mut text =
                    json!({"domain": question["domain"], "descriptors": question["descriptors"]});
                if question["hitsAddend"] != 0 {
                    text["cost"] = question["hitsAddend"].clone();
                }
                post("/v1/check", &text)
            }
        }
    }

    /// Whether facts are allowed, sent over RESP.
    fn lets_facts_pass(&self, domain: &str, facts: &[(&str, &str)]) -> bool {
        let mut command = format!("TG.CHECK domain={domain}");
        for (name, value) in facts {
            command += &format!(" {name}={value}");
        }
        let answer = self.running.resp().ask(&format!("{command}\r\n"), 22);
        answer.ends_with(":1\r\n")
    }
}

/// A request of facts, and the descriptors that stand for it: each list of keys that the domain has and that is known.
fn as_facts(
    asked: &Asked,
    trees: &[(&str, Vec<Node>)],
) -> (Entries<'static>, Vec<AskedDescriptor<'static>>) {
    let mut facts: Vec<(&str, &str)> = Vec::new();
    for (key, value) in asked.descriptors.iter().flat_map(|(entries, _)| entries) {
        if !facts.iter().any(|(known, _)| known == key) {
            facts.push((key, value));
        }
    }
    let mut keys = BTreeSet::new();
    for (_, nodes) in trees.iter().filter(|(domain, _)| *domain == asked.domain) {
        lists(nodes, &mut Vec::new(), &mut keys);
    }
    let value = |key: &'static str| facts.iter().find(|(known, _)| *known == key).copied();
    let known = keys
        .into_iter()
        .filter_map(|list| list.into_iter().map(value).collect::<Option<Vec<_>>>());
    (
        facts.clone(),
        known.map(|entries| (entries, None)).collect(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn converted_files_decide_as_the_originals(
        one in nodes(2),
        two in proptest::option::of(nodes(1)),
        requests in vec(asked(), 1..24),
    ) {
        let mut trees = vec![("one", one)];
        trees.extend(two.map(|two| ("two", two)));
        let mut file = String::new();
        for (domain, nodes) in &trees {
            file += &format!("---\ndomain: {domain}\ndescriptors:\n");
            write(&mut file, nodes, 0);
            if nodes.is_empty() {
                file += "- {key: unused}\n";
            }
        }
        let theirs = Policy::from_text(&file, Format::Yaml).map_err(|it| TestCaseError::fail(format!("{it}\n{file}")))?.policy;
        let converted = envoy::convert_to_rules(&theirs.domains);
        // What is lost is named, and `tollgate convert` ends with 3 for it.
        prop_assume!(!converted.rules.is_empty() && converted.losses.iter().all(|one| !one.loss.affects_decisions()));
        let text = envoy::convert_to_yaml(&theirs).expect("a policy");
        let ours = Policy::from_text(&text, Format::Yaml).expect("our form").policy;
        let (theirs, ours) = (Service::new(theirs), Service::new(ours));
        for request in &requests {
            let (expected, found) = if request.way == Way::Resp {
                let (facts, descriptors) = as_facts(request, &trees);
                let expected = descriptors.is_empty()
                    || theirs.passes(Way::Resp, &question(request.domain, &descriptors, 0));
                (expected, ours.lets_facts_pass(request.domain, &facts))
            } else {
                let question = question(request.domain, &request.descriptors, request.hits);
                (theirs.passes(request.way, &question), ours.passes(request.way, &question))
            };
            prop_assert_eq!(found, expected, "{:?} of {:#?}\n{}\n{}", request, requests, file, text);
        }
    }
}

#[test]
fn a_folder_of_two_domains_limits_once_converted() {
    let file = "domain: a\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 5}}]\n---\ndomain: b\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 2}}]\n";
    let theirs = Policy::from_text(file, Format::Yaml)
        .expect("a file")
        .policy;
    let text = envoy::convert_to_yaml(&theirs).expect("a policy");
    for way in [Way::Grpc, Way::Json, Way::Check] {
        let ours = Service::new(
            Policy::from_text(&text, Format::Yaml)
                .expect("our form")
                .policy,
        );
        for (domain, most) in [("a", 5), ("b", 2)] {
            // An entry called domain changes nothing.
            let entries = vec![("user", "ada")];
            let liar = vec![("domain", "else"), ("descriptor", "user"), ("user", "ada")];
            let asked = question(domain, &[(entries, None), (liar, Some(0))], 0);
            let passed = (0..7).filter(|_| ours.passes(way, &asked)).count();
            assert_eq!(passed, most, "{domain} by {way:?}");
        }
    }
}

#[test]
fn two_descriptors_meet_no_limit_that_is_for_one_of_both_keys() {
    let file = "domain: edge\ndescriptors: [{key: path, value: /login, descriptors: [{key: remote_address, rate_limit: {unit: hour, requests_per_unit: 1}}]}]";
    let theirs = Policy::from_text(file, Format::Yaml)
        .expect("a file")
        .policy;
    let text = envoy::convert_to_yaml(&theirs).expect("a policy");
    let ours = Service::new(
        Policy::from_text(&text, Format::Yaml)
            .expect("our form")
            .policy,
    );
    let apart = [
        (vec![("path", "/login")], None),
        (vec![("remote_address", "10.0.0.1")], None),
    ];
    let together = [(
        vec![("path", "/login"), ("remote_address", "10.0.0.1")],
        None,
    )];
    let passes = |descriptors: &[_]| ours.passes(Way::Grpc, &question("edge", descriptors, 0));
    assert!((0..5).all(|_| passes(&apart)));
    assert_eq!(
        [passes(&together), passes(&together), passes(&apart)],
        [true, false, true]
    );
}
