//! The format of envoyproxy/ratelimit, case by case: which files are valid, which are rejected and why, and which limit
//! a request matches.

#[path = "../common/envoy_rows.rs"]
mod envoy_rows;

use envoy_rows::{POLICY, REQUESTS};
use tollgate_engine::envoy::{self, DescriptorIndex, LookupResult};
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::policy::{Counting, OnStoreFailure};
use tollgate_engine::{Diagnostic, Severity};

use crate::matching;

/// A file with one domain and these descriptors, each on its own line.
fn file(descriptors: &str) -> String {
    format!("domain: edge\ndescriptors:\n{descriptors}")
}

/// What is read: what it is about, the descriptors from line 3 on, and the warnings (`code line:column`).
#[rustfmt::skip]
const READ: &[(&str, &str, &[&str])] = &[
    ("no descriptors", "", &[]),
    ("no limit", "- key: a", &[]),
    ("a limit", "- {key: a, rate_limit: {unit: second, requests_per_unit: 1}}", &[]),
    ("a value", "- {key: a, value: b, rate_limit: {unit: second, requests_per_unit: 1}}", &[]),
    ("units in any case", "- {key: a, rate_limit: {unit: MiNuTe, requests_per_unit: 1}}", &[]),
    ("hours", "- {key: a, rate_limit: {unit: HOUR, requests_per_unit: 1}}", &[]),
    ("days", "- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}", &[]),
    ("weeks", "- {key: a, rate_limit: {unit: week, requests_per_unit: 1}}", &[]),
    ("months", "- {key: a, rate_limit: {unit: month, requests_per_unit: 1}}", &[]),
    ("years", "- {key: a, rate_limit: {unit: year, requests_per_unit: 1}}", &[]),
    ("a limit of 0", "- {key: a, rate_limit: {unit: day, requests_per_unit: 0}}", &[]),
    ("the largest limit", "- {key: a, rate_limit: {unit: day, requests_per_unit: 4294967295}}", &[]),
    ("no count is 0", "- {key: a, rate_limit: {unit: day}}", &["no-requests-per-unit 3:24"]),
    ("unlimited", "- {key: a, rate_limit: {unlimited: true}}", &[]),
    ("not unlimited", "- {key: a, rate_limit: {unlimited: false, unit: day, requests_per_unit: 1}}", &[]),
    ("unlimited with no unit", "- {key: a, rate_limit: {unlimited: true, unit: ''}}", &[]),
    ("no limit at all", "- {key: a, rate_limit: }", &[]),
    ("an empty value is none", "- {key: a, value: ''}", &[]),
    ("the same key, other values", "- {key: a, value: b}\n- {key: a, value: c}\n- {key: a}", &[]),
    ("the same descriptor, elsewhere", "- {key: a, descriptors: [{key: a}]}\n- {key: b, descriptors: [{key: a}]}", &[]),
    ("nested", "- key: a\n  descriptors:\n  - key: b\n    descriptors:\n    - {key: c, rate_limit: {unit: day, requests_per_unit: 1}}", &[]),
    ("a wildcard at the end", "- {key: a, value: b*}", &[]),
    ("a wildcard anywhere", "- {key: a, value: '*b*c'}", &[]),
    ("all values together", "- {key: a, value: b*, share_threshold: true}", &[]),
    ("every flag", "- {key: a, detailed_metric: true, value_to_metric: true, shadow_mode: true, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}", &[]),
    ("a flag that is off", "- {key: a, share_threshold: false, shadow_mode: no}", &[]),
    ("YAML 1.1's yes", "- {key: a, value_to_metric: yes}", &[]),
    ("metadata of any form", "- {key: a, metadata: {rat: [1, two, {3: 4.5}], x: {y: ~}}}", &[]),
    ("a number as text", "- {key: status, value: 404}", &[]),
    ("replaces", "- {key: a, rate_limit: {name: n, unit: day, requests_per_unit: 1}}\n- {key: b, rate_limit: {unlimited: true, replaces: [{name: n}]}}", &[]),
    ("replaces nothing known", "- {key: b, rate_limit: {unlimited: true, replaces: [{name: n}]}}", &["replaces-unknown 3:24"]),
    ("a mode without a limit", "- {key: a, shadow_mode: true}", &["mode-without-limit 3:25"]),
    ("a field in the wrong place", "- {key: a, unit: day}", &["misplaced-field 3:12"]),
    ("a star in a key", "- {key: a*}", &["star-in-key 3:9"]),
    ("merged maps", "- {key: a, rate_limit: &one {unit: day, requests_per_unit: 1}}\n- {key: b, rate_limit: {<<: *one, unit: hour}}", &[]),
    // Ours.
    ("a rate", "- {key: a, rate_limit: {rate: 10/s burst 20}}", &[]),
    ("several rates", "- {key: a, rate_limit: {rate: [10/s, 1000/h], algorithm: sliding-log}}", &[]),
    ("any window", "- {key: a, rate_limit: {rate: 3 per 250ms, algorithm: fixed-window}}", &[]),
    ("an algorithm for their unit", "- {key: a, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: gcra}}", &[]),
    ("a quota", "- {key: a, rate_limit: {quota: 10000/month}}", &[]),
    ("all at once", "- {key: a, rate_limit: {unit: second, requests_per_unit: 5, quota: 10000/month, concurrency: 50}}", &[]),
];

#[test]
fn files_that_are_read() {
    for (about, descriptors, warnings) in READ {
        let decoded = envoy::decode(&[(0, &file(descriptors))]);
        let decoded = decoded.unwrap_or_else(|problems| panic!("{about}: {problems:#?}"));
        let found: Vec<_> = decoded.warnings.iter().map(place).collect();
        assert_eq!(&found, warnings, "{about}");
        assert!(
            decoded
                .warnings
                .iter()
                .all(|one| one.severity == Severity::Warning),
            "{about}"
        );
    }
}

/// What a `rate_limit` beside these flags means.
#[rustfmt::skip]
const MEANT: &[(&str, &str, &str)] = &[
    ("", "unit: second, requests_per_unit: 5", "5/s by FixedWindow"),
    ("", "unit: Minute, requests_per_unit: 5", "5/m by FixedWindow"),
    ("", "unit: hour, requests_per_unit: 1_000", "1000/h by FixedWindow"),
    ("", "unit: day, requests_per_unit: 5", "5/d by FixedWindow"),
    ("", "unit: week, requests_per_unit: 5", "5 per 7d by FixedWindow"),
    ("", "unit: month, requests_per_unit: 5", "5 per 30d by FixedWindow"),
    ("", "unit: year, requests_per_unit: 5", "5 per 365d by FixedWindow"),
    ("", "unit: hour, requests_per_unit: 0", "zero by FixedWindow"),
    ("", "unlimited: true, requests_per_unit: 5", "unlimited by FixedWindow"),
    ("", "unit: day, requests_per_unit: 5, name: n", "5/d by FixedWindow called n"),
    ("shadow_mode: true, ", "unit: day, requests_per_unit: 5", "5/d by FixedWindow, shadow"),
    ("quota_mode: true, ", "unit: day, requests_per_unit: 5", "5/d by FixedWindow, quota mode"),
    ("", "rate: 10/s burst 20", "10/s burst 20 by Gcra"),
    ("", "rate: [10/s, 100/m], algorithm: token-bucket", "10/s and 100/m by TokenBucket"),
    ("", "rate: 7 per 90s, algorithm: fixed-window", "7 per 90s by FixedWindow"),
    ("", "unit: day, requests_per_unit: 5, algorithm: sliding-window", "5/d by SlidingCounter"),
    ("", "quota: 10000/month", "10000/month by FixedWindow"),
    ("", "unit: day, requests_per_unit: 5, concurrency: 3", "5/d and 3 concurrent by FixedWindow"),
    ("", "rate: 5/s, counting: leased", "5/s by Gcra, leased"),
    ("", "unit: day, requests_per_unit: 5, counting: local", "5/d by FixedWindow, local"),
    ("", "quota: 5/day, counting: local", "5/day by FixedWindow, local"),
    ("", "concurrency: 5, counting: local", "5 concurrent by FixedWindow, local"),
    ("", "quota: 5/day, on_store_failure: open", "5/day by FixedWindow, open"),
    ("", "rate: 5/s, on_store_failure: circuit-break", "5/s by Gcra, circuit-break"),
    ("", "quota: 5/day, on_store_failure: inherit", "5/day by FixedWindow"),
];

#[test]
fn limits_mean_what_they_say() {
    for (flags, limit, expected) in MEANT {
        let text = file(&format!("- {{key: a, {flags}rate_limit: {{{limit}}}}}"));
        let domains = envoy::decode(&[(0, &text)]).expect(limit).domains;
        let limit = domains["edge"].descriptors[0]
            .limit
            .as_ref()
            .expect("a limit");
        let mut all: Vec<_> = limit.limits.rates.iter().map(ToString::to_string).collect();
        all.extend(limit.limits.quota.as_ref().map(ToString::to_string));
        all.extend(
            limit
                .limits
                .concurrency
                .map(|most| format!("{most} concurrent")),
        );
        all.extend(limit.limits.unlimited.then(|| "unlimited".to_owned()));
        let algorithm = format!("{:?}", limit.algorithm);
        let algorithm = algorithm.split('(').next().unwrap_or_default();
        let mut found = format!("{} by {algorithm}", all.join(" and "));
        if let Some(name) = &limit.name {
            found = format!("{found} called {name}");
        }
        for (is_set, flag) in [
            (limit.shadow, ", shadow"),
            (limit.quota_mode, ", quota mode"),
            (limit.counting == Counting::Leased, ", leased"),
            (limit.counting == Counting::Local, ", local"),
            (
                limit.on_store_failure.common_mode(&limit.limits) == Some(OnStoreFailure::Open),
                ", open",
            ),
            (
                limit.on_store_failure.common_mode(&limit.limits)
                    == Some(OnStoreFailure::CircuitBreak),
                ", circuit-break",
            ),
        ] {
            found.push_str(if is_set { flag } else { "" });
        }
        assert_eq!(&found, expected, "{text}");
    }
}

/// What is refused: the descriptors from line 3 on, all errors (`code line:column`), and the help of
/// the first.
#[rustfmt::skip]
const REFUSED: &[(&str, &[&str], &str)] = &[
    ("- {key: a, vaule: b}", &["unknown-field 3:12"], "did you mean \"value\"?"),
    ("- {key: a, ratelimit: {}}", &["unknown-field 3:12"], "did you mean \"rate_limit\"?"),
    ("- {key: a, rate_limit: {unit: day, requestsperunit: 5}}", &["unknown-field 3:36"], "did you mean \"requests_per_unit\"?"),
    ("- {key: a, colour: red}", &["unknown-field 3:12"], "a descriptor has key, value, rate_limit, descriptors, shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold, metadata"),
    ("- {key: a, rate: 10/s}", &["unknown-field 3:12"], "it belongs in rate_limit"),
    ("- {key: a, 0.25: b}", &["name-not-text 3:12"], "names of fields are text; quote it if it is meant"),
    ("- {key: a, 7: b}", &["name-not-text 3:12"], "names of fields are text; quote it if it is meant"),
    ("- a", &["not-a-map 3:3"], "write each item as fields: `- key: …`, or `- name: …` in replaces"),
    ("- [key, a]", &["not-a-map 3:3"], "write each item as fields: `- key: …`, or `- name: …` in replaces"),
    ("- {key: a, descriptors: [b]}", &["not-a-map 3:26"], "write each item as fields: `- key: …`, or `- name: …` in replaces"),
    ("- {key: a, rate_limit: {unlimited: true, replaces: [b]}}", &["not-a-map 3:53"], "write each item as fields: `- key: …`, or `- name: …` in replaces"),
    ("- {key: a, unit: [b]}", &["misplaced-field 3:12", "not-a-map 3:19"], "it belongs in rate_limit"),
    ("- {key: ''}", &["empty-key 3:9"], "say which entry it is for: `key: remote_address`"),
    ("- {value: a}", &["empty-key 3:3"], "say which entry it is for: `key: remote_address`"),
    ("- key:", &["empty-key 3:6"], "say which entry it is for: `key: remote_address`"),
    ("- {key: a, descriptors: [{value: b}]}", &["empty-key 3:26"], "say which entry it is for: `key: remote_address`"),
    ("- {key: a}\n- {key: a}", &["duplicate-descriptor 4:3"], "the first is on line 3; a key and its value are one name, joined by _"),
    ("- {key: a, value: b}\n- {key: a, value: b}", &["duplicate-descriptor 4:3"], "the first is on line 3; a key and its value are one name, joined by _"),
    ("- {key: a, value: b}\n- {key: a_b}", &["duplicate-descriptor 4:3"], "the first is on line 3; a key and its value are one name, joined by _"),
    ("- {key: a}\n- {key: a, value: ''}", &["duplicate-descriptor 4:3"], "the first is on line 3; a key and its value are one name, joined by _"),
    ("- {key: a, rate_limit: {unit: secnod, requests_per_unit: 1}}", &["bad-unit 3:31"], "did you mean \"second\"?"),
    ("- {key: a, rate_limit: {unit: fortnight, requests_per_unit: 1}}", &["bad-unit 3:31"], "use second, minute, hour, day, week, month, year"),
    ("- {key: a, rate_limit: {unit: unknown, requests_per_unit: 1}}", &["bad-unit 3:31"], "use second, minute, hour, day, week, month, year"),
    ("- {key: a, rate_limit: {requests_per_unit: 1}}", &["bad-unit 3:24"], "use second, minute, hour, day, week, month, year"),
    ("- {key: a, rate_limit: {unlimited: true, unit: day}}", &["unlimited-with-limit 3:48"], "leave out one: unlimited or unit"),
    ("- {key: a, rate_limit: {unlimited: true, quota: 5/day}}", &["unlimited-with-limit 3:49"], "leave out one: unlimited or quota"),
    ("- {key: a, rate_limit: {unlimited: true, replaces: [{name: ''}]}}", &["empty-replaces 3:53"], "name the limit that is replaced: `- name: …`"),
    ("- {key: a, rate_limit: {unlimited: true, replaces: [{}]}}", &["empty-replaces 3:53"], "name the limit that is replaced: `- name: …`"),
    ("- {key: a, rate_limit: {name: n, unlimited: true, replaces: [{name: n}]}}", &["self-replaces 3:62"], "name another limit"),
    ("- {key: a, share_threshold: true}", &["share-without-wildcard 3:29"], "all values of one wildcard count together"),
    ("- {key: a, value: b, share_threshold: true}", &["share-without-wildcard 3:39"], "all values of one wildcard count together"),
    ("- {key: a, value: 1.5}", &["wrong-type 3:19"], "quote it if text is meant"),
    ("- {key: a, value: [b]}", &["wrong-type 3:19"], ""),
    ("- {key: a, shadow_mode: maybe}", &["wrong-type 3:25"], ""),
    ("- {key: a, metadata: [b]}", &["wrong-type 3:22"], ""),
    ("- {key: a, rate_limit: 5}", &["wrong-type 3:24"], ""),
    ("- {key: a, rate_limit: {unit: day, requests_per_unit: -1}}", &["wrong-type 3:55"], ""),
    ("- {key: a, rate_limit: {unit: day, requests_per_unit: 4294967296}}", &["wrong-type 3:55"], ""),
    ("- {key: a, rate_limit: {unit: day, requests_per_unit: '5'}}", &["wrong-type 3:55"], ""),
    ("- {key: a, descriptors: {key: b}}", &["wrong-type 3:25"], ""),
    ("- {key: a, rate_limit: {rate: 10/s, unit: day}}", &["rate-and-unit 3:43"], "say it once; several limits are a list of rates"),
    ("- {key: a, rate_limit: {rate: unlimited}}", &["bad-rate 3:31"], "leave it out, or say unlimited: true"),
    ("- {key: a, rate_limit: {rate: 10/fortnight}}", &["bad-rate 3:31"], ""),
    ("- {key: a, rate_limit: {rate: 10/s burst 20, algorithm: fixed-window}}", &["bad-rate 3:31"], "take another rate, or another algorithm"),
    ("- {key: a, rate_limit: {rate: 10/s, algorithm: gcar}}", &["bad-algorithm 3:48"], "did you mean \"gcra\"?"),
    ("- {key: a, rate_limit: {quota: 5/blink}}", &["bad-quota 3:32"], ""),
    ("- {key: a, rate_limit: {concurrency: 0}}", &["bad-concurrency 3:38"], "say how many concurrent requests: `concurrency: 50`"),
    ("- {key: a, rate_limit: {rate: 5/s, counting: leest}}", &["bad-counting 3:46"], "use exact, leased, local"),
    ("- {key: a, rate_limit: {rate: 5/s, counting: [local]}}", &["wrong-type 3:46"], ""),
    ("- {key: a, rate_limit: {unit: day, requests_per_unit: 5, counting: leased}}", &["bad-counting 3:68"], "give it a rate in place of unit, or say exact"),
    ("- {key: a, rate_limit: {quota: 5/day, counting: leased}}", &["bad-counting 3:49"], "give it a rate in place of unit, or say exact"),
    ("- {key: a, rate_limit: {rate: 5/s, on_store_failure: opne}}", &["bad-on-store-failure 3:54"], "did you mean \"open\"?"),
    ("- {key: a, rate_limit: {rate: 5/s, on_store_failure: panic}}", &["bad-on-store-failure 3:54"], "use open, closed, local, circuit-break, inherit"),
    ("- {key: a, rate_limit: {rate: 5/s, on_store_failure: open, counting: local}}", &["bad-on-store-failure 3:54"], "leave out one of them"),
    ("- {key: a, counting: local}", &["unknown-field 3:12"], "it belongs in rate_limit"),
    // All at once, in the order of the file.
    ("- {key: a, vaule: b}\n- c\n- {key: d, rate_limit: {unit: e}}", &["unknown-field 3:12", "not-a-map 4:3", "bad-unit 5:31"], "did you mean \"value\"?"),
];

#[test]
fn files_that_are_refused() {
    for (descriptors, expected, help) in REFUSED {
        let decoded = envoy::decode(&[(0, &file(descriptors))]);
        let problems = decoded.expect_err(descriptors);
        let found: Vec<_> = problems.iter().map(place).collect();
        assert_eq!(&found, expected, "{descriptors}");
        assert_eq!(
            problems[0].help.as_deref().unwrap_or(""),
            *help,
            "{descriptors}"
        );
    }
}

/// `code line:column`
fn place(problem: &Diagnostic) -> String {
    let start = problem.span.start;
    format!("{} {}:{}", problem.code, start.line, start.column)
}

/// Whole files: their texts, and the errors (`code file/line:column`) or the domains.
type File = (&'static [&'static str], Result<Names, Names>);
type Names = &'static [&'static str];

#[rustfmt::skip]
const FILES: &[File] = &[
    (&["domain: a", "domain: b"], Ok(&["a", "b"])),
    (&["domain: a\n---\ndomain: b\n"], Ok(&["a", "b"])),
    (&["# first\n---\ndomain: a\n...\n--- # second\ndomain: b\n"], Ok(&["a", "b"])),
    (&["%YAML 1.2\n---\n{domain: a}\n"], Ok(&["a"])),
    (&["domain: a", "domain: a"], Err(&["duplicate-domain 1/1:9"])),
    (&["domain: a\n---\ndomain: a\n"], Err(&["duplicate-domain 0/3:9"])),
    (&["domain: a\n---\ndomain: b\ndescriptors: [c]\n"], Err(&["not-a-map 0/4:15"])),
    (&["domain: a\n---\ndomain: [\n"], Err(&["syntax 0/3:9"])),
    (&["domain: ''"], Err(&["empty-domain 0/1:1"])),
    (&["descriptors: []"], Err(&["empty-domain 0/1:1"])),
    (&[""], Err(&["empty-domain 0/0:0"])),
    (&["domain: 1.5"], Err(&["wrong-type 0/1:9"])),
    (&["- domain: a"], Err(&["wrong-type 0/1:1"])),
    (&["domian: a"], Err(&["unknown-field 0/1:1", "empty-domain 0/1:1"])),
    (&["domain: a\ndomain: b"], Err(&["duplicate-field 0/2:1"])),
    (&["domain: a\ncharging: each"], Ok(&["a"])),
    (&["domain: a\ncharging: eech"], Err(&["bad-charging 0/2:11"])),
    (&["domain: a\ncharging: [each]"], Err(&["wrong-type 0/2:11"])),
    (&["domain: a\ndescriptors: [{key: b, charging: each}]"], Err(&["unknown-field 0/2:24"])),
    (&["domain: a\nkey: [1]", "domain: ''"], Err(&["misplaced-field 0/2:1", "not-a-map 0/2:7", "empty-domain 1/1:1"])),
];

#[test]
fn whole_files() {
    for (texts, expected) in FILES {
        let files: Vec<_> = (0..).zip(texts.iter().copied()).collect();
        let found = match envoy::decode(&files) {
            Ok(decoded) => Ok(decoded.domains.into_keys().collect::<Vec<_>>()),
            Err(problems) => {
                let place = |problem: &Diagnostic| {
                    let (file, start) = (problem.span.file, problem.span.start);
                    format!("{} {file}/{}:{}", problem.code, start.line, start.column)
                };
                Err(problems.iter().map(place).collect::<Vec<_>>())
            }
        };
        match (&found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{texts:?}"),
            (Err(found), Err(expected)) => assert_eq!(found, expected, "{texts:?}"),
            _ => panic!("{texts:?}: {found:?}"),
        }
    }
}

#[test]
fn own_fields_come_before_those_that_are_merged_in() {
    let text = file(
        "- &one {key: a, value: x, rate_limit: {unit: day, requests_per_unit: 1}}
- &two {<<: *one, key: b}
- {value: y, <<: [*two, *one]}
",
    );
    let tree = &envoy::decode(&[(0, &text)]).expect("merged maps").domains["edge"].descriptors;
    let found: Vec<_> = tree
        .iter()
        .map(|rule| {
            (
                rule.key.as_str(),
                rule.value.as_deref(),
                rule.limit.is_some(),
            )
        })
        .collect();
    let (x, y) = (Some("x"), Some("y"));
    assert_eq!(found, [("a", x, true), ("b", x, true), ("b", y, true)]);
}

#[test]
fn no_more_problems_are_told_than_people_read() {
    let item = |number: u32| format!("- {{key: k{number}, shadow_mode: true, rat: 1}}\n");
    let text = file(&(0..1_500).map(item).collect::<String>());
    let problems = envoy::decode(&[(0, &text)]).expect_err("unknown fields");
    assert_eq!(problems.len(), 1_001);
    assert!(problems.iter().all(|one| one.severity == Severity::Error));
    assert_eq!(problems[1_000].message, "500 more are not shown");
}

#[test]
fn a_document_in_the_middle_knows_its_lines() {
    let text =
        "domain: a\n---\ndomain: b\ndescriptors:\n- key: c\n  rate_limit: {unlimited: true}\n";
    let decoded = envoy::decode(&[(7, text)]).expect("two domains");
    let rule = &decoded.domains["b"].descriptors[0];
    assert_eq!((rule.span.file, rule.span.start.line), (7, 5));
    assert_eq!(rule.limit.as_ref().expect("a limit").span.start.line, 6);
}

#[test]
fn requests_come_to_their_limit() {
    let domains = envoy::decode(&[(0, POLICY)]).expect("a policy").domains;
    let compiled = DescriptorIndex::new(&domains);
    for (domain, entries, expected) in REQUESTS {
        let found = compiled.lookup(domain, &Descriptor::new(entries)).leaf();
        let found = found.map(ToString::to_string);
        assert_eq!(found.as_deref(), *expected, "{domain} {entries:?}");
        let naive = matching::find(&domains, domain, entries);
        assert_eq!(naive.is_some(), expected.is_some(), "{domain} {entries:?}");
    }
}

#[test]
fn a_limit_in_the_request_skips_the_lookup_but_not_the_domain() {
    let domains = envoy::decode(&[(0, POLICY)]).expect("a policy").domains;
    let compiled = DescriptorIndex::new(&domains);
    let asked = LookupResult::Requested {
        requests: 3,
        unit: Unit::Hour,
        counts_as: None,
    };
    for (domain, entries, expected) in [
        ("edge", &[("user", "root")][..], asked),
        ("edge", &[("nobody", "42")], asked),
        (
            "edge",
            &[("path", "/login"), ("deeper", "x"), ("still", "y")],
            asked,
        ),
        ("unknown", &[("user", "root")], LookupResult::NoMatch),
    ] {
        let descriptor = Descriptor {
            limit: Some((3, Unit::Hour)),
            ..Descriptor::new(entries)
        };
        assert_eq!(
            compiled.lookup(domain, &descriptor),
            expected,
            "{domain} {entries:?}"
        );
    }
}

#[test]
fn a_carriage_return_alone_ends_a_line_of_the_documents_before_too() {
    let text = "domain: a\rdescriptors: []\n---\ndomain: b\nwrong: 1\n";
    let problems = envoy::decode(&[(0, text)]).expect_err("an unknown field");
    assert_eq!(problems[0].span.start.line, 5);
}
