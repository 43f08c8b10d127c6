//! Checks that the compiled matcher equals a naive one, on random rules and facts.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::address::Network;

const FACTS: [&str; 4] = ["path", "method", "ip", "user"];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[/ab]{0,6}",
        prop::sample::select(vec![
            "GET",
            "POST",
            "/api",
            "/api/v1",
            "/api/v1/x",
            "10.0.0.1",
            "10.1.2.3",
            "::1",
            "2001:db8::7",
            "::ffff:10.0.0.1",
            "11.0.0.1",
            "é/ö",
        ])
        .prop_map(str::to_owned),
    ]
}

fn network() -> impl Strategy<Value = String> {
    let v4 = (0..4u8, 0..=32u8).prop_map(|(b, bits)| format!("10.{b}.0.0/{bits}"));
    let v6 = (0..=128u8).prop_map(|bits| format!("2001:db8::/{bits}"));
    let mapped = (90..=128u8).prop_map(|bits| format!("::ffff:10.0.0.1/{bits}"));
    prop_oneof![v4, v6, mapped, Just("::1".to_owned())]
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let leaf = prop_oneof![
        4 => text().prop_map(Pattern::Exact),
        2 => text().prop_map(Pattern::Prefix),
        4 => "[/ab*?]{0,7}".prop_map(Pattern::Glob),
        1 => prop::sample::select(vec!["/a.*", "a|b", "(?i)get|post", "", "[0-9.]+"])
            .prop_map(|regex| Pattern::Regex(regex.to_owned())),
        2 => network().prop_map(Pattern::Cidr),
        1 => Just(Pattern::Present),
        1 => Just(Pattern::Absent),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Pattern::OneOf),
            inner.prop_map(|pattern| Pattern::Not(Box::new(pattern))),
        ]
    })
}

fn rules() -> impl Strategy<Value = Vec<MatchConditions>> {
    let condition = (prop::sample::select(FACTS.to_vec()), pattern());
    let rule = prop::collection::vec(condition, 0..4).prop_map(|conditions| MatchConditions {
        conditions: conditions
            .into_iter()
            .map(|(fact, pattern)| (fact.to_owned(), pattern))
            .collect(),
        ..MatchConditions::default()
    });
    prop::collection::vec(rule, 0..40)
}

fn facts() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    prop::collection::vec((prop::sample::select(FACTS.to_vec()), text()), 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_compiled_matcher_equals_the_naive_one(
        rules in rules(),
        requests in prop::collection::vec(facts(), 1..8),
    ) {
        let matcher = Matcher::new(&rules).unwrap();
        for request in requests {
            let facts: Facts<'_> = request.iter().map(|(name, text)| (*name, text.as_str())).collect();
            let naive: Vec<u32> = (0..)
                .zip(&rules)
                .filter(|(_, rule)| naive_holds(rule, &facts))
                .map(|(number, _)| number)
                .collect();
            prop_assert_eq!(matcher.matching(&facts), naive, "{:?}", facts);
            for rule in &rules {
                prop_assert_eq!(explain(rule, &facts).matches(), naive_holds(rule, &facts));
            }
        }
    }
}

/// A rule with a condition on the path for each glob.
fn glob_rules(globs: &[String]) -> Vec<MatchConditions> {
    let rule = |glob: &String| MatchConditions {
        conditions: vec![("path".to_owned(), Pattern::Glob(glob.clone()))],
        ..MatchConditions::default()
    };
    globs.iter().map(rule).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn many_globs_of_one_head_match_as_each_does(
        globs in prop::collection::vec("/(\\*|\\*\\*|\\?|[ab/ö]){0,9}", 2..90),
        long in "[ab/ö]{70}",
        texts in prop::collection::vec("/[ab/öc]{0,12}", 1..6),
    ) {
        // One glob needs several words, so it can't be in a set.
        let globs: Vec<_> = globs.into_iter().chain([format!("/*{long}*")]).collect();
        let rules = glob_rules(&globs);
        let one_of = globs.iter().cloned().map(Pattern::Glob).collect();
        let any = MatchConditions {
            conditions: vec![("path".to_owned(), Pattern::Not(Box::new(Pattern::OneOf(one_of))))],
            ..MatchConditions::default()
        };
        let rules: Vec<_> = rules.into_iter().chain([any]).collect();
        let matcher = Matcher::new(&rules).unwrap();
        for text in texts {
            let facts = Facts::new().with("path", &text);
            let naive: Vec<u32> = (0..)
                .zip(&rules)
                .filter(|(_, rule)| naive_holds(rule, &facts))
                .map(|(number, _)| number)
                .collect();
            prop_assert_eq!(matcher.matching(&facts), naive, "{}", text);
        }
    }
}

/// Counts the steps of a decision. A step covers 64 positions of one or several patterns.
#[test]
fn a_hundred_globs_take_little_longer_than_one() {
    let steps = |count: usize, one_rule: bool, path: &str| {
        let globs: Vec<_> = (0..count).map(|n| format!("/api/**/x{n}/*/y*z")).collect();
        let rules = if one_rule {
            vec![MatchConditions {
                conditions: vec![(
                    "path".to_owned(),
                    Pattern::OneOf(globs.into_iter().map(Pattern::Glob).collect()),
                )],
                ..MatchConditions::default()
            }]
        } else {
            glob_rules(&globs)
        };
        let matcher = Matcher::new(&rules).unwrap();
        let before = glob::STEPS.get();
        assert!(
            matcher
                .matching(&Facts::new().with("path", path))
                .is_empty()
        );
        glob::STEPS.get() - before
    };
    for length in [1_000, 8_000] {
        let path = format!("/api/{}z", "x/".repeat(length / 2));
        let of_one = steps(1, false, &path);
        assert!(of_one >= length);
        for one_rule in [false, true] {
            let of_all = steps(100, one_rule, &path);
            assert!(of_all <= 26 * of_one, "{of_all} for {of_one}");
        }
    }
}

#[test]
fn rules_by_more_facts_than_are_kept_in_place_match_all_the_same() {
    let names: Vec<_> = (0..100).map(|number| format!("header.x{number}")).collect();
    let rule = |name: &String| MatchConditions {
        conditions: vec![(name.clone(), Pattern::Exact("1".to_owned()))],
        ..MatchConditions::default()
    };
    let rules: Vec<_> = names.iter().map(rule).collect();
    let matcher = Matcher::new(&rules).unwrap();
    let facts = Facts::new().with("header.x3", "1").with("header.x97", "1");
    assert_eq!(matcher.matching(&facts), [3, 97]);
    let all: Facts<'_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    assert_eq!(matcher.matching(&all), (0..100).collect::<Vec<_>>());
}

#[test]
fn a_request_looks_at_few_of_ten_thousand_rules() {
    let rule = |number: u32| MatchConditions {
        conditions: vec![
            ("method".to_owned(), Pattern::Exact("GET".to_owned())),
            (
                "path".to_owned(),
                Pattern::Glob(format!("/service-{number}/**")),
            ),
        ],
        ..MatchConditions::default()
    };
    let rules: Vec<_> = (0..10_000).map(rule).collect();
    let matcher = Matcher::new(&rules).unwrap();
    let facts = Facts::new()
        .with("method", "GET")
        .with("path", "/service-777/x");
    let known = matcher.slots.look_up(&facts);
    let mut candidates = Numbers::new();
    matcher.index.candidates(&known, &mut candidates);
    assert_eq!(candidates.as_slice(), [777]);
}

#[test]
fn patterns_that_cant_be_read_are_named() {
    let error = |pattern| {
        let rule = MatchConditions {
            conditions: vec![("ip".to_owned(), pattern)],
            ..MatchConditions::default()
        };
        Matcher::new(&[rule]).unwrap_err().to_string()
    };
    assert_eq!(
        error(Pattern::Cidr("10.0.0.0/33".to_owned())),
        "pattern \"10.0.0.0/33\": expected an address, or a network such as 10.0.0.0/8 or \
         2001:db8::/32"
    );
    assert!(error(Pattern::Regex("(".to_owned())).starts_with("pattern \"(\": regex parse error"));
}

#[test]
fn facts_whose_names_begin_alike_and_are_as_long_are_told_apart() {
    let rule = |fact: &str| MatchConditions {
        conditions: vec![(fact.to_owned(), Pattern::Exact("yes".to_owned()))],
        ..MatchConditions::default()
    };
    let names = [
        "header.x-a",
        "header.x-b",
        "header.x-c",
        "a",
        "ab",
        "abc",
        "",
    ];
    let matcher = Matcher::new(&names.map(rule)).unwrap();
    for (number, name) in (0..).zip(names) {
        let mut facts = Facts::new();
        for other in names {
            facts.set(other, "no");
        }
        facts.set(name, "yes");
        assert_eq!(matcher.matching(&facts), [number], "{name:?}");
        assert_eq!(facts.iter().count(), names.len());
    }
}

/// Whether a rule applies to these facts, directly from the documentation: slow and obvious.
fn naive_holds(rule: &MatchConditions, facts: &Facts<'_>) -> bool {
    let mut conditions = rule.conditions.iter();
    conditions.all(|(fact, pattern)| pattern_holds(pattern, facts.get(fact)))
}

pub(super) fn pattern_holds(pattern: &Pattern, text: Option<&str>) -> bool {
    match pattern {
        Pattern::Not(pattern) => !pattern_holds(pattern, text),
        Pattern::OneOf(patterns) => patterns.iter().any(|one| pattern_holds(one, text)),
        Pattern::Present => text.is_some(),
        Pattern::Absent => text.is_none(),
        Pattern::Exact(exact) => text == Some(exact.as_str()),
        Pattern::Prefix(prefix) => text.is_some_and(|text| text.starts_with(prefix.as_str())),
        Pattern::Glob(glob) => text.is_some_and(|text| {
            let (glob, text): (Vec<_>, Vec<_>) = (glob.chars().collect(), text.chars().collect());
            glob_holds(&glob, &text)
        }),
        Pattern::Regex(regex) => text.is_some_and(|text| {
            let whole = RegexCache::default().add(regex);
            whole.is_ok_and(|whole| whole.is_match(text))
        }),
        Pattern::Cidr(network) => text.is_some_and(|text| network_holds(network, text)),
    }
}

/// Tries every way to match the glob.
fn glob_holds(glob: &[char], text: &[char]) -> bool {
    match glob {
        [] => text.is_empty(),
        ['*', '*', rest @ ..] => (0..=text.len()).any(|taken| glob_holds(rest, &text[taken..])),
        ['*', rest @ ..] => (0..=text.len())
            .take_while(|taken| !text[..*taken].contains(&'/'))
            .any(|taken| glob_holds(rest, &text[taken..])),
        ['?', rest @ ..] => {
            matches!(text, [first, ..] if *first != '/') && glob_holds(rest, &text[1..])
        }
        [own, rest @ ..] => text.first() == Some(own) && glob_holds(rest, &text[1..]),
    }
}

/// Compares bit by bit.
fn network_holds(network: &str, text: &str) -> bool {
    let (Ok(address), Some(_)) = (text.parse::<IpAddr>(), Network::parse(network)) else {
        return false;
    };
    let (start, length) = match network.split_once('/') {
        Some((start, length)) => (start, length.parse::<usize>().ok()),
        None => (network, None),
    };
    let Ok(start) = start.parse::<IpAddr>() else {
        return false;
    };
    let bits = |address: IpAddr| -> Vec<u8> {
        let bytes = match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let bit = |byte: u8, place: u32| byte >> (7 - place) & 1;
        let bits = bytes.iter();
        bits.flat_map(|byte| (0..8).map(move |place| bit(*byte, place)))
            .collect()
    };
    let mut length = length.unwrap_or_else(|| bits(start).len());
    let mut start = start;
    if start.is_ipv6() && start.to_canonical().is_ipv4() && length >= 96 {
        (start, length) = (start.to_canonical(), length - 96);
    }
    let address = address.to_canonical();
    address.is_ipv4() == start.is_ipv4() && bits(address)[..length] == bits(start)[..length]
}
