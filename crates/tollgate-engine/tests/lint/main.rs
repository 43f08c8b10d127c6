//! Each warning where it belongs, and not where it doesn't.

mod more_slips;
mod never_applies;
mod slips;

use tollgate_engine::document::Format;
use tollgate_engine::{Code, Policy, lint};

/// The codes of all warnings of a policy in YAML.
fn codes(text: &str) -> Vec<Code> {
    match Policy::from_text(text, Format::Yaml) {
        Ok(checked) => checked.warnings.iter().map(|found| found.code).collect(),
        Err(rejected) => panic!("{text}\n{rejected}"),
    }
}

/// The first text has this warning and no other; the second is nearly the same and has none.
fn check(code: Code, cases: &[(&str, &str)]) {
    for (warns, silent) in cases {
        assert_eq!(codes(warns), [code], "{warns}");
        assert_eq!(codes(silent), [], "{silent}");
    }
}

#[test]
fn a_rule_that_is_never_reached() {
    check(
        lint::NEVER_REACHED,
        &[
            (
                "exempt: [{path: '/health/**'}]\n\
                 limits: [{name: a, match: {path: /health/live}, rate: 10/s}]",
                "exempt: [{path: '/health/*'}]\n\
                 limits: [{name: a, match: {path: /health/a/b}, rate: 10/s}]",
            ),
            (
                "block: [{ip: 10.0.0.0/8}]\n\
                 limits: [{name: a, match: {ip: 10.1.0.0/16}, rate: 10/s}]",
                "block: [{ip: 10.1.0.0/16}]\n\
                 limits: [{name: a, match: {ip: 10.0.0.0/8}, rate: 10/s}]",
            ),
            (
                "limits: [{name: a, match: {user: {present: false}}, key: user, rate: 10/s}]",
                "limits: [{name: a, match: {user: {present: false}}, key: ip, rate: 10/s}]",
            ),
            (
                "limits:\n\
                 - {name: a, match: {path: /x, user: '1'}, key: user, rate: 10/s}\n\
                 - {name: b, match: {path: /x}, key: user, rate: 20/s, replaces: a}",
                // It is for fewer requests, or for those with a tenant only.
                "limits:\n\
                 - {name: a, match: {path: /x}, key: user, rate: 10/s}\n\
                 - {name: b, match: {path: /x, user: '1'}, key: user, rate: 20/s, replaces: a}\n\
                 - {name: c, match: {path: /x}, key: tenant, rate: 20/s, replaces: a}",
            ),
        ],
    );
}

#[test]
fn a_tier_that_nobody_is_in() {
    let tiers = "tiers: {free: {rate: 1/s}, pro: {rate: 9/s}}\ntenants: {acme: free}\n";
    let named = format!("{tiers}default_tier: free\n");
    let cases = [
        named.clone(),
        format!("{tiers}default_tier: pro"),
        format!("{named}tier_fact: plan"),
        named.replace("acme: free", "acme: free, umbrella: pro"),
    ];
    for silent in &cases[1..] {
        check(lint::UNUSED_TIER, &[(&cases[0], silent)]);
    }
}

#[test]
fn a_burst_below_one() {
    check(
        lint::BURST_BELOW_ONE,
        &[
            (
                "limits: [{name: a, rate: 10/s burst 0}]",
                "limits: [{name: a, rate: 1/s burst 1}]",
            ),
            (
                "limits: [{name: a, rate: zero}]",
                "limits: [{name: a, algorithm: token-bucket, rate: zero burst 5}]",
            ),
            (
                "limits: [{name: a, rate: 0/s burst 5}]",
                "limits: [{name: a, algorithm: token-bucket, rate: 0/s burst 5}]",
            ),
            (
                "tiers: {free: {rate: 0/s}}\ndefault_tier: free",
                "tiers: {free: {rate: 1/s}}\ndefault_tier: free",
            ),
        ],
    );
}

#[test]
fn a_limit_above_another_that_always_refuses_first() {
    check(
        lint::NEVER_DECIDES,
        &[
            (
                "limits: [{name: a, key: user, rate: [10/s burst 20, 100/s burst 200]}]",
                "limits: [{name: a, key: user, rate: [10/s burst 20, 1000/h]}]",
            ),
            (
                "limits: [{name: a, key: user, rate: 10/s, quota: 1000000/day}]",
                "limits: [{name: a, key: user, rate: 10/s, quota: 100000/day}]",
            ),
            (
                "limits:\n\
                 - {name: all, key: tenant, rate: 100/s}\n\
                 - {name: api, match: {path: /api}, key: [tenant, user], rate: 200/s}",
                "limits:\n\
                 - {name: all, key: tenant, rate: 100/s}\n\
                 - {name: api, match: {path: /api}, key: [tenant, user], rate: 50/s}",
            ),
            (
                "limits:\n\
                 - {name: all, rate: 100/s}\n\
                 - {name: api, match: {path: /api}, rate: 100/s}",
                // Shadows never refuse; what is replaced doesn't apply; tokens aren't requests; and
                // another key is another counter.
                "limits:\n\
                 - {name: a, rate: 100/s, mode: shadow}\n\
                 - {name: b, match: {host: x}, rate: 100/s}\n\
                 - {name: api, match: {path: /api}, rate: 100/s, replaces: b}\n\
                 - {name: tokens, match: {path: /api}, rate: 500/s, cost: {fact: tokens}}\n\
                 - {name: users, key: user, match: {path: /y}, rate: 100/s}\n\
                 - {name: any, match: {path: /y}, key: method, rate: 100/s}",
            ),
            (
                "tiers: {free: {rate: [10/s, 10/s burst 20]}}\ndefault_tier: free",
                "tiers: {free: {rate: [10/s, 100/m burst 100]}}\ndefault_tier: free",
            ),
        ],
    );
}

#[test]
fn a_key_that_anyone_can_set() {
    check(
        lint::KEY_ANYONE_CAN_SET,
        &[
            (
                "limits: [{name: a, key: header.x-forwarded-for, rate: 10/s}]",
                "limits: [{name: a, key: api_key, rate: 10/s}]",
            ),
            (
                "limits: [{name: a, key: [ip, header.user-agent], rate: 10/s}]",
                "limits: [{name: a, key: header.Authorization, rate: 10/s}]",
            ),
            (
                "limits: [{name: a, key: [user, header.x-plan], rate: 10/s}]",
                "limits: [{name: a, match: {header.x-plan: [a, b]}, key: [user, header.x-plan], \
                 rate: 10/s}]",
            ),
        ],
    );
}

#[test]
fn an_address_alone_with_a_low_rate() {
    check(
        lint::ADDRESS_ALONE,
        &[
            (
                "limits: [{name: a, key: ip, rate: 30/m}]",
                "limits: [{name: a, key: ip, rate: 60/m}]",
            ),
            (
                "limits: [{name: a, key: ip/64, rate: 5/m}]",
                "limits: [{name: a, key: [ip/64, user], rate: 5/m}]",
            ),
        ],
    );
}

#[test]
fn a_counter_for_each_route_and_key() {
    check(
        lint::ROUTE_TIMES_KEY,
        &[
            (
                "limits: [{name: a, key: [route, user], rate: 10/s}]",
                "limits: [{name: a, match: {route: [/a, /b]}, key: [route, user], rate: 10/s}]",
            ),
            (
                "limits: [{name: a, key: path, rate: 10/s}]",
                "limits: [{name: a, key: route, rate: 10/s}]",
            ),
            (
                "limits: [{name: a, match: {path: '/a/**'}, key: [user, path], rate: 10/s}]",
                "limits: [{name: a, match: {path: '/a/**'}, key: [user, method], rate: 10/s}]",
            ),
        ],
    );
}

#[test]
fn a_burst_that_fits_the_rate_badly() {
    check(
        lint::BURST_RATIO,
        &[
            (
                "limits: [{name: a, rate: 10/s burst 9}]",
                "limits: [{name: a, rate: 10/s burst 10}]",
            ),
            (
                "limits: [{name: a, rate: 10/s burst 1}]",
                // They wait, and are spread by it.
                "limits: [{name: a, rate: 10/s burst 1, over: wait 1s}]",
            ),
            (
                "limits: [{name: a, rate: 10/s burst 51}]",
                "limits: [{name: a, rate: 10/s burst 50}]",
            ),
            (
                "limits: [{name: a, rate: 1 per 100ms burst 51}]",
                "limits: [{name: a, rate: 1 per 100ms burst 20}]",
            ),
            (
                "tiers: {free: {rate: 10/s burst 100}}\ndefault_tier: free",
                "tiers: {free: {rate: 10/s}}\ndefault_tier: free",
            ),
            // A window has no burst to choose.
            (
                "tiers: {free: {rate: 5 per 250ms}}\ndefault_tier: free",
                "tiers: {free: {rate: 5 per 250ms, algorithm: sliding-log}}\ndefault_tier: free",
            ),
        ],
    );
}

#[test]
fn open_where_that_is_dangerous() {
    check(
        lint::OPEN_ON_FAILURE,
        &[
            (
                "limits: [{name: a, match: {path: /api/login}, rate: 5/s, on_store_failure: open}]",
                "limits: [{name: a, match: {path: /api/login}, rate: 5/s, on_store_failure: local}]",
            ),
            (
                "limits: [{name: Sign-In, rate: 5/s, on_store_failure: open}]",
                // Neither an author nor what isn't a login is one.
                "limits: [{name: a, match: {path: [/author/x, {not: /login}]}, rate: 5/s, \
                 on_store_failure: open}]",
            ),
            (
                "on_store_failure: open\nlimits: [{name: a, quota: 5/day}]",
                "limits: [{name: a, quota: 5/day}]",
            ),
            // What is counted in this process goes on counting.
            (
                "on_store_failure: open\nlimits: [{name: login, rate: 5/s, counting: exact}]",
                "on_store_failure: open\nlimits: [{name: login, rate: 5/s, counting: local}]",
            ),
            (
                "on_store_failure: open\ntiers: {free: {quota: 5/day}}\ndefault_tier: free",
                "on_store_failure: open\ntiers: {free: {quota: 5/day, counting: local}}\n\
                 default_tier: free",
            ),
            (
                "tiers: {free: {quota: 5/day, on_store_failure: open}}\ndefault_tier: free",
                "tiers: {free: {rate: 5/s, on_store_failure: open}}\ndefault_tier: free",
            ),
            (
                "domain: edge\non_store_failure: open\n\
                 descriptors: [{key: tenant, rate_limit: {quota: 5/day}}]",
                "domain: edge\n\
                 descriptors: [{key: tenant, rate_limit: {quota: 5/day, on_store_failure: local}}]",
            ),
            (
                "domain: edge\ndescriptors: [{key: path, value: /login, rate_limit: \
                 {rate: 5/s, on_store_failure: open}}]",
                "domain: edge\ndescriptors: [{key: path, value: /blog, rate_limit: \
                 {rate: 5/s, on_store_failure: open}}]",
            ),
        ],
    );
}

#[test]
fn two_enforced_limits_with_the_same_key_and_match() {
    let second = "match: {path: /a, method: GET}, key: [user, ip], rate: 600/m";
    let text = |second: &str| {
        format!(
            "limits:\n\
             - {{name: a, match: {{method: GET, path: /a}}, key: [ip, user], rate: 20/s}}\n\
             - {{name: b, {second}}}"
        )
    };
    for silent in [
        format!("{second}, mode: shadow"),
        second.replace("ip]", "ip, host]"),
        second.replace("GET", "PUT"),
        format!("{second}, cost: {{fact: bytes}}"),
    ] {
        check(lint::SAME_KEY_AND_MATCH, &[(&text(second), &text(&silent))]);
    }
    // One that replaces the other is another thing to say.
    let replacing = text(&format!("{second}, replaces: a"));
    assert_eq!(codes(&replacing), [lint::NEVER_REACHED]);
}

#[test]
fn what_is_off_is_not_judged() {
    let text = "limits: [{name: a, key: header.x, rate: 10/s burst 0, mode: off}]";
    assert_eq!(codes(text), []);
}

#[test]
fn every_warning_says_what_to_do_and_points_at_it() {
    let text = "limits:\n- name: login\n  key: ip\n  rate: [5/m, 3/m burst 60]\n";
    let checked = Policy::from_text(text, Format::Yaml).unwrap();
    let shown = tollgate_engine::render::to_text(&checked.warnings, &checked.sources);
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!("warnings", shown);
    });
    assert!(checked.warnings.iter().all(|found| found.help.is_some()));
    // A policy without its files is judged as well, at the rule.
    let codes = |list: &[tollgate_engine::Diagnostic]| -> Vec<Code> {
        list.iter().map(|found| found.code).collect()
    };
    let mut bare = codes(&lint::lint(&checked.policy));
    let mut placed = codes(&checked.warnings);
    bare.sort();
    placed.sort();
    assert_eq!(bare, placed);
}

#[test]
fn ten_thousand_rules_are_judged_soon() {
    let mut text = String::from("exempt: [{path: '/health/**'}]\nlimits:\n");
    for number in 0..10_000 {
        text.push_str(&format!(
            "- {{name: r{number}, match: {{path: \"/a{number}/**\", method: [GET, PUT]}}, key: user, \
             rate: 10/s}}\n"
        ));
    }
    assert_eq!(codes(&text), []);
    text.push_str("- {name: all, key: user, rate: 5/s}\n");
    let found = codes(&text);
    // The one rule without conditions makes all others pointless; a thousand are told.
    assert_eq!(found.len(), 1_000);
    assert!(found.iter().all(|code| *code == lint::NEVER_DECIDES));
}

#[test]
fn limits_of_descriptors_are_looked_at_one_by_one() {
    let text = "
domain: edge
descriptors:
- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: remote_address, value: 10.0.0.1, rate_limit: {unit: minute, requests_per_unit: 0}}
- {key: user, rate_limit: {rate: [10/s burst 100, 1000/s burst 1000]}}
- {key: tenant, rate_limit: {unit: minute, requests_per_unit: 5}}
";
    let checked = Policy::from_text(text, Format::Yaml).expect("their form");
    let found: Vec<_> = checked
        .warnings
        .iter()
        .map(|warning| (warning.code, warning.span.start.line))
        .collect();
    let expect = [
        (lint::ADDRESS_ALONE, 4),
        (lint::BURST_RATIO, 6),
        (lint::NEVER_DECIDES, 6),
    ];
    assert_eq!(found, expect);
}

#[test]
fn a_window_has_no_burst_to_choose() {
    for algorithm in ["fixed-window", "sliding-log", "sliding-window"] {
        let text = format!("limits: [{{name: a, rate: 5 per 250ms, algorithm: {algorithm}}}]");
        assert_eq!(codes(&text), [], "{algorithm}");
    }
    let bucket = "limits: [{name: a, rate: 5 per 250ms, algorithm: token-bucket}]";
    assert_eq!(codes(bucket), [lint::BURST_RATIO]);
}

#[test]
fn a_counter_that_others_share_may_decide_first() {
    // The hits on /b count for "a" too, and "all" doesn't see them.
    let shared = "limits:
- {name: all, match: {path: [/a, /c]}, key: user, rate: 10/s}
- {name: a, match: {path: /a}, key: user, rate: 20/s, shared: both}
- {name: b, match: {path: /b}, key: user, rate: 20/s, shared: both}
";
    assert_eq!(codes(shared), []);
    let alone = shared.replace(", shared: both", "");
    assert_eq!(codes(&alone), [lint::NEVER_DECIDES]);
    // What another shares sees more than what it covers, and still always refuses first.
    let outer = "limits:
- {name: all, match: {path: [/a, /c]}, key: user, rate: 10/s, shared: both}
- {name: b, match: {path: /b}, key: user, rate: 10/s, shared: both}
- {name: a, match: {path: /a}, key: user, rate: 20/s}
";
    assert_eq!(codes(outer), [lint::NEVER_DECIDES]);
}

#[test]
fn networks_cover_what_the_matcher_finds_in_them() {
    let limit = |ip: &str| format!("limits: [{{name: a, match: {{ip: '{ip}'}}, rate: 10/s}}]");
    for (exempt, ip, reached) in [
        ("::/0", "::ffff:10.0.0.0/104", true),
        ("::/0", "10.0.0.0/8", true),
        ("::/90", "::ffff:10.0.0.1", true),
        ("::ffff:0.0.0.0/96", "10.0.0.0/8", false),
        ("10.0.0.0/8", "::ffff:10.1.0.0/112", false),
        ("::/0", "2001:db8::/32", false),
        ("::fffe:0:0/95", "::ffff:10.0.0.0/104", true),
    ] {
        let text = format!("exempt: [{{ip: '{exempt}'}}]\n{}", limit(ip));
        let expect = if reached {
            &[][..]
        } else {
            &[lint::NEVER_REACHED]
        };
        assert_eq!(codes(&text), expect, "{exempt} {ip}");
    }
}

#[test]
fn a_limit_that_adapts_where_nobody_tells_it_anything() {
    check(
        lint::ADAPTIVE_UNTOLD,
        &[
            (
                "limits: [{name: a, match: {destination_cluster: api}, concurrency: {adaptive: little, max: 9}}]",
                "limits: [{name: a, match: {destination_cluster: api}, concurrency: 9}]",
            ),
            (
                "limits: [{name: a, key: generic_key, rate: 9/s, concurrency: {adaptive: little, max: 9}}]",
                "limits: [{name: a, key: user, rate: 9/s, concurrency: {adaptive: little, max: 9}}]",
            ),
        ],
    );
}

#[test]
fn a_limit_that_adapts_beside_descriptors() {
    let text = "limits: [{name: a, concurrency: {adaptive: little, max: 9}}]";
    let mut policy = Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy;
    assert_eq!(lint::lint(&policy), []);
    let domain = tollgate_engine::policy::Domain::default();
    policy.domains.insert("edge".to_owned(), domain);
    let warnings = lint::lint(&policy);
    let codes: Vec<_> = warnings.iter().map(|found| found.code).collect();
    assert_eq!(codes, [lint::ADAPTIVE_UNTOLD]);
}

#[test]
fn a_key_that_splits_nothing_of_a_limit_that_adapts() {
    check(
        lint::ADAPTIVE_BY_KEY,
        &[(
            "limits: [{name: a, key: user, concurrency: {adaptive: little, max: 9}}]",
            "limits: [{name: a, key: user, rate: 9/s, concurrency: {adaptive: little, max: 9}}]",
        )],
    );
}

#[test]
fn a_class_that_anyone_can_choose() {
    check(
        lint::SHED_ANYONE_CAN_SET,
        &[(
            "limits: [{name: a, concurrency: 9, shed: header.x-priority}]",
            "limits: [{name: a, concurrency: 9, shed: priority}]",
        )],
    );
}
