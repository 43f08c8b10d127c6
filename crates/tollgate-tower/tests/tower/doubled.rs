//! Headers that a client sends twice, and bytes that are no text: neither hides a value from a policy.

use std::time::Duration;

use axum::Router;
use tollgate::clock::Manual;
use tollgate::{OnMissingKey, Rate};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::client::Trust;
use tollgate_tower::{
    BlockAfter, ExtraFacts, PolicyLimits, RateLimitLayer, Request as _, RequestHead, keys,
};

use crate::kit::{app, ask, from, per_key};

type Lines<'a> = &'a [(&'a str, &'a [u8])];

fn engine(text: &str) -> Engine<Memory<Manual, Manual>> {
    let memory = Memory::builder().clock(Manual::new()).wall(Manual::new());
    let policy = Policy::from_text(text, Format::Yaml).expect("a policy");
    Engine::new(policy.policy, memory.build()).expect("an engine")
}

/// Decides immediately, and by a layer that takes its time.
fn both_ways(text: &str) -> [Router; 2] {
    [
        app(RateLimitLayer::from_policy(engine(text))),
        app(RateLimitLayer::new(PolicyLimits::new(engine(text)))),
    ]
}

fn with(address: &str, lines: Lines<'_>) -> http::Request<axum::body::Body> {
    let mut request = from(address, "/");
    for (name, value) in lines {
        let name: http::HeaderName = name.parse().expect("a name");
        let value = http::HeaderValue::from_bytes(value).expect("a value");
        request.headers_mut().append(name, value);
    }
    request
}

async fn statuses(app: &Router, lines: Lines<'_>, times: usize) -> Vec<u16> {
    let mut seen = Vec::new();
    for _ in 0..times {
        seen.push(ask(app, with("192.0.2.1", lines)).await.status);
    }
    seen
}

#[tokio::test]
async fn a_key_that_is_sent_twice_passes_no_limit() {
    for app in both_ways("limits: [{name: keys, key: header.x-api-key, rate: 5/h}]") {
        for second in [&b"k"[..], b"other", b"", b"\xff"] {
            let lines: Lines<'_> = &[("x-api-key", b"k"), ("x-api-key", second)];
            assert_eq!(statuses(&app, lines, 50).await, [400; 50], "{second:?}");
        }
        let one: Lines<'_> = &[("x-api-key", b"k")];
        assert_eq!(statuses(&app, one, 6).await, [200, 200, 200, 200, 200, 429]);
    }
    // A layer that authenticated the request knows which one counts.
    for app in both_ways("limits: [{name: keys, key: header.x-api-key, rate: 1/h}]") {
        for status in [200, 429] {
            let mut request = with("192.0.2.1", &[("x-api-key", b"k"), ("x-api-key", b"l")]);
            let known = ExtraFacts::default().with("header.x-api-key", "k");
            request.extensions_mut().insert(known);
            assert_eq!(ask(&app, request).await.status, status);
        }
    }
}

/// Only headers that are lists by their definition may come in several lines where their value is taken: one that is merely named alike is
/// read by a service as its first line, and a second one would be a fresh key each time.
#[tokio::test]
async fn a_header_that_is_named_like_a_list_is_none() {
    let names = [
        "x-forwarded-user",
        "x-forwarded-email",
        "x-forwarded-access-token",
        "accept-token",
    ];
    for name in names {
        let text = format!("limits: [{{name: keys, key: header.{name}, rate: 5/h}}]");
        for app in both_ways(&text) {
            let lines: Lines<'_> = &[(name, b"ada"), (name, b"random")];
            assert_eq!(statuses(&app, lines, 2).await, [400; 2], "{name}");
        }
    }
    for name in ["accept-language", "x-forwarded-for", "via"] {
        let text = format!("limits: [{{name: keys, key: header.{name}, rate: 1/h}}]");
        for app in both_ways(&text) {
            let lines: Lines<'_> = &[(name, b"a"), (name, b"b")];
            assert_eq!(statuses(&app, lines, 2).await, [200, 429], "{name}");
        }
    }
}

/// Costs, tiers and classes are values as well as keys are.
#[tokio::test]
async fn whatever_is_taken_of_a_header_has_one_line() {
    let policies = [
        "limits: [{name: a, rate: 100/h, cost: {fact: header.x-it}}]",
        "limits: [{name: a, key: [ip, header.x-it], rate: 100/h}]",
        "limits: [{name: a, key: {first: [user, header.x-it]}, rate: 100/h}]",
    ];
    for text in policies {
        for app in both_ways(text) {
            let lines: Lines<'_> = &[("x-it", b"1"), ("x-it", b"99")];
            assert_eq!(statuses(&app, lines, 1).await, [400], "{text}");
            assert_eq!(statuses(&app, &lines[..1], 1).await, [200], "{text}");
        }
    }
}

/// Rows: what is blocked or limited holds for any line and for all in one text, what is exempt for each line.
#[tokio::test]
async fn no_line_hides_another() {
    let evil: Lines<'_> = &[("user-agent", b"evil/1")];
    let behind: Lines<'_> = &[("user-agent", b"good"), ("user-agent", b"evil/1")];
    let before: Lines<'_> = &[("user-agent", b"evil/1"), ("user-agent", b"good")];
    let twice: Lines<'_> = &[("user-agent", b"evil/1"), ("user-agent", b"evil/1")];
    let bytes: Lines<'_> = &[("user-agent", b"evil\xff")];
    let many: Lines<'_> = &[
        ("user-agent", b"a"),
        ("user-agent", b"b\xfe"),
        ("user-agent", b""),
        ("user-agent", b"evil"),
    ];
    for app in both_ways(
        "{block: [{header.user-agent: {prefix: evil}}], limits: [{name: a, rate: 999/h}]}",
    ) {
        for lines in [evil, behind, before, twice, bytes, many] {
            assert_eq!(statuses(&app, lines, 2).await, [429, 429], "{lines:?}");
        }
        let good: Lines<'_> = &[("user-agent", b"good"), ("user-agent", b"fine")];
        assert_eq!(statuses(&app, good, 2).await, [200, 200]);
    }
    // As one text.
    for app in
        both_ways("{block: [{header.x-app: {glob: 'a, b*'}}], limits: [{name: a, rate: 999/h}]}")
    {
        let lines: Lines<'_> = &[("x-app", b"a"), ("x-app", b"b")];
        assert_eq!(statuses(&app, lines, 1).await, [429]);
        assert_eq!(statuses(&app, &lines[..1], 1).await, [200]);
    }
    let text =
        "limits: [{name: bots, match: {header.user-agent: {prefix: evil}}, key: ip, rate: 1/h}]";
    for lines in [evil, behind, before, twice, bytes, many] {
        for app in both_ways(text) {
            assert_eq!(statuses(&app, lines, 3).await, [200, 429, 429], "{lines:?}");
        }
    }
    let text =
        "limits: [{name: others, match: {header.user-agent: {not: good}}, key: ip, rate: 1/h}]";
    for lines in [evil, behind, before, twice] {
        for app in both_ways(text) {
            assert_eq!(statuses(&app, lines, 2).await, [200, 429], "{lines:?}");
        }
    }
}

#[tokio::test]
async fn what_is_exempt_is_exempt_by_each_line() {
    let text =
        "{exempt: [{header.x-app: {prefix: good}}], limits: [{name: all, key: ip, rate: 1/h}]}";
    let rows: [(Lines<'_>, [u16; 3]); 6] = [
        (&[("x-app", b"good")], [200; 3]),
        (&[("x-app", b"good"), ("x-app", b"good")], [200; 3]),
        (&[("x-app", b"good/1"), ("x-app", b"good/2")], [200; 3]),
        (&[("x-app", b"good"), ("x-app", b"other")], [200, 429, 429]),
        (&[("x-app", b"other"), ("x-app", b"good")], [200, 429, 429]),
        (
            &[("x-app", b"good"), ("x-app", b"\xffgood")],
            [200, 429, 429],
        ),
    ];
    for (lines, expected) in rows {
        for app in both_ways(text) {
            assert_eq!(statuses(&app, lines, 3).await, expected, "{lines:?}");
        }
    }
    // A rule with more room takes the place of another for its own lines alone.
    let text = "limits: [{name: free, key: ip, rate: 1/h}, \
                {name: gold, match: {header.x-plan: gold}, key: ip, rate: 100/h, replaces: [free]}]";
    let rows: [(Lines<'_>, [u16; 2]); 4] = [
        (&[("x-plan", b"gold")], [200, 200]),
        (&[("x-plan", b"free")], [200, 429]),
        (&[("x-plan", b"free"), ("x-plan", b"gold")], [200, 429]),
        (&[("x-plan", b"gold"), ("x-plan", b"free")], [200, 429]),
    ];
    for (lines, expected) in rows {
        for app in both_ways(text) {
            assert_eq!(statuses(&app, lines, 2).await, expected, "{lines:?}");
        }
    }
}

/// Every combination of two doubled headers is looked at, and too many are denied.
#[tokio::test]
async fn conditions_on_two_headers_see_all_combinations() {
    let text = "{block: [{header.x-a: evil, header.x-b: evil}], limits: [{name: a, rate: 999/h}]}";
    for app in both_ways(text) {
        for place in 0..4 {
            let value = |own: bool| if own { &b"evil"[..] } else { b"good" };
            let lines: Lines<'_> = &[
                ("x-a", value(place & 1 == 0)),
                ("x-a", value(place & 1 == 1)),
                ("x-b", value(place & 2 == 0)),
                ("x-b", value(place & 2 == 2)),
            ];
            assert_eq!(statuses(&app, lines, 1).await, [429], "{lines:?}");
        }
        let half: Lines<'_> = &[("x-a", b"evil"), ("x-b", b"x"), ("x-b", b"y")];
        assert_eq!(statuses(&app, half, 1).await, [200]);
        let texts: Vec<_> = (0..10).map(|number| number.to_string()).collect();
        let many: Vec<_> = ["x-a", "x-b"]
            .into_iter()
            .flat_map(|name| texts.iter().map(move |text| (name, text.as_bytes())))
            .collect();
        assert_eq!(statuses(&app, &many, 1).await, [400]);
    }
}

#[tokio::test]
async fn hosts_and_api_keys_hide_nothing_either() {
    let text =
        "{block: [{host: evil.example}, {api_key: leaked}], limits: [{name: a, rate: 999/h}]}";
    let rows: [(Lines<'_>, u16); 7] = [
        (&[("host", b"good.example")], 200),
        (&[("host", b"EVIL.example.:80")], 429),
        (&[("host", b"good.example"), ("host", b"evil.example")], 429),
        (&[("host", b"good\xff"), ("host", b"evil.example")], 429),
        (&[("x-api-key", b"fine")], 200),
        (&[("x-api-key", b"fine"), ("x-api-key", b"leaked")], 429),
        (
            &[("x-api-key", b"fine"), ("authorization", b"apikey leaked")],
            429,
        ),
    ];
    for app in both_ways(text) {
        for (lines, status) in rows {
            assert_eq!(statuses(&app, lines, 1).await, [status], "{lines:?}");
        }
        // What the target says and what a line says are both looked at.
        let mut request = with("192.0.2.1", &[("host", b"evil.example")]);
        *request.uri_mut() = "http://good.example/".parse().expect("a target");
        assert_eq!(ask(&app, request).await.status, 429);
    }
    for app in both_ways("limits: [{name: hosts, key: host, rate: 1/h}]") {
        for (lines, status) in [
            (&[("host", &b"a\xff"[..])][..], 200),
            (&[("host", b"a\xff")], 429),
            (&[("host", b"a\xfe")], 200),
            (&[("host", b"b"), ("host", b"c")], 400),
            (&[("host", b"b"), ("host", b"B:80")], 200),
        ] {
            assert_eq!(statuses(&app, lines, 1).await, [status], "{lines:?}");
        }
    }
    for app in both_ways("limits: [{name: keys, key: api_key, rate: 1/h}]") {
        let lines: Lines<'_> = &[("x-api-key", b"k"), ("x-api-key", b"k")];
        assert_eq!(statuses(&app, lines, 1).await, [400]);
        let lines: Lines<'_> = &[("x-api-key", b"k"), ("apikey", b"k")];
        assert_eq!(statuses(&app, lines, 2).await, [200, 429]);
    }
}

/// Whatever is chosen for requests without a key: one that is there twice isn't missing.
#[tokio::test]
async fn a_doubled_key_is_denied_where_those_without_one_pass() {
    let header = || keys::Header::new("x-api-key");
    for choice in [
        OnMissingKey::Pass,
        OnMissingKey::OneCounter,
        OnMissingKey::Deny,
    ] {
        let (limits, _) = per_key(Rate::per_hour(5), header());
        let app = app(RateLimitLayer::new(limits.on_missing_key(choice)));
        for second in [&b"k"[..], b"other", b"", b"\xff"] {
            let lines: Lines<'_> = &[("x-api-key", b"k"), ("x-api-key", second)];
            assert_eq!(statuses(&app, lines, 10).await, [400; 10], "{choice:?}");
        }
    }
    let two: Lines<'_> = &[
        ("authorization", b"Bearer a"),
        ("authorization", b"Bearer b"),
    ];
    let (limits, _) = per_key(Rate::per_hour(5), keys::Bearer);
    let limits = limits.on_missing_key(OnMissingKey::Pass);
    assert_eq!(
        statuses(&app(RateLimitLayer::new(limits)), two, 2).await,
        [401, 401]
    );
    // Nor is it another key's turn.
    let either = keys::first_of((keys::Bearer, header(), keys::ClientAddress::new()));
    let (limits, _) = per_key(Rate::per_hour(5), either);
    let limited = app(RateLimitLayer::new(
        limits.on_missing_key(OnMissingKey::Pass),
    ));
    let doubled: Lines<'_> = &[("x-api-key", b"k"), ("x-api-key", b"l")];
    assert_eq!(statuses(&limited, doubled, 3).await, [400; 3]);
    assert_eq!(statuses(&limited, two, 3).await, [401; 3]);
    assert_eq!(statuses(&limited, &[], 1).await, [200]);
    let (limits, _) = per_key(Rate::per_hour(5), (keys::ClientAddress::new(), header()));
    let limited = app(RateLimitLayer::new(
        limits.on_missing_key(OnMissingKey::Pass),
    ));
    assert_eq!(statuses(&limited, doubled, 3).await, [400; 3]);
    // Whoever is blocked by its key doesn't hide behind a second one.
    let one = std::num::NonZero::new(1).expect("more than zero");
    let block = BlockAfter::after(one, Duration::from_secs(60)).lasting(Duration::from_secs(3_600));
    let other = per_key(Rate::per_hour(100), keys::ClientAddress::new()).0;
    let layer = RateLimitLayer::new(other).configure(|guard| {
        let guard = guard.cost(|head: &RequestHead| if head.path() == "/" { 1 } else { 1_000 });
        guard.block(block, header()).expect("times")
    });
    let limited = app(layer);
    let mut large = with("192.0.2.1", &doubled[..1]);
    *large.uri_mut() = "/users/1".parse().expect("a path");
    assert_eq!(ask(&limited, large).await.status, 429);
    assert_eq!(
        statuses(&limited, &doubled[..1], 1).await,
        [429],
        "it is blocked"
    );
    assert_eq!(statuses(&limited, doubled, 3).await, [400; 3]);
}

/// A page of a sibling domain can give a browser a second cookie of a name, and nobody is locked out by that; nor is it a fresh limit.
#[tokio::test]
async fn a_second_cookie_locks_nobody_out_and_is_no_fresh_limit() {
    for choice in [OnMissingKey::Deny, OnMissingKey::Pass] {
        let (limits, _) = per_key(Rate::per_hour(2), keys::Cookie::new("sid"));
        let app = app(RateLimitLayer::new(limits.on_missing_key(choice)));
        let ask = async |address: &str, cookie: &str| {
            ask(&app, with(address, &[("cookie", cookie.as_bytes())]))
                .await
                .status
        };
        // Each client that has two counts by where it comes from.
        for client in ["192.0.2.1", "192.0.2.2", "[2001:db8::1]"] {
            let mut seen = Vec::new();
            for number in 0..4 {
                seen.push(ask(client, &format!("sid=ada; sid=evil{number}")).await);
            }
            assert_eq!(seen, [200, 200, 429, 429], "{client}");
        }
        assert_eq!(ask("192.0.2.1", "sid=x; a=1; sid=y").await, 429);
        // Other clients, and that one without the second cookie, have limits of their own.
        assert_eq!(ask("192.0.2.1", "sid=ada").await, 200);
        assert_eq!(ask("192.0.2.3", "sid=ada; sid=\"%61da\"; sid=").await, 200);
        assert_eq!(
            ask("192.0.2.4", "sid=ada").await,
            429,
            "the same value is one"
        );
        let none = if choice == OnMissingKey::Deny {
            400
        } else {
            200
        };
        assert_eq!(ask("192.0.2.1", "sid=; sid=").await, none);
    }
    // In lines of their own, as HTTP/2 has them, and behind a proxy.
    let trust = Trust::proxies(["10.0.0.0/8".parse().expect("a network")]);
    let address = keys::ClientAddress::new().trust(trust);
    let key = keys::Cookie::new("sid").ambiguous_by(address);
    let (limits, _) = per_key(Rate::per_hour(1), key);
    let app = app(RateLimitLayer::new(limits));
    for (client, status) in [
        ("198.51.100.1", 200),
        ("198.51.100.2", 200),
        ("198.51.100.1", 429),
    ] {
        let lines: Lines<'_> = &[
            ("cookie", b"sid=ada"),
            ("cookie", b"sid=bob"),
            ("x-forwarded-for", client.as_bytes()),
        ];
        assert_eq!(ask(&app, with("10.0.0.1", lines)).await.status, status);
    }
}

/// `key: ip` counts clients: an IPv6 client has 2^64 addresses.
#[tokio::test]
async fn an_ipv6_client_has_one_limit_and_the_layer_may_say_how_large_it_is() {
    let text = "{block: [{ip: '2001:db8::bad'}], limits: [{name: clients, key: ip, rate: 10/s}]}";
    let by = |address| {
        RateLimitLayer::new(PolicyLimits::in_memory(engine(text)).client_address(address))
    };
    let rows = [
        (RateLimitLayer::from_policy(engine(text)), 10, 40),
        (by(keys::ClientAddress::new().ipv6_bits(56)), 10, 10),
        (by(keys::ClientAddress::new().ipv6_bits(128)), 100, 40),
    ];
    for (layer, within, across) in rows {
        let app = app(layer);
        let mut passed = [0, 0];
        for tail in 0..100 {
            let address = format!("[2001:db8::{tail:x}]");
            passed[0] += u32::from(ask(&app, from(&address, "/")).await.status == 200);
        }
        for net in 0..4 {
            for tail in 0..10 {
                let address = format!("[2001:db8:0:1{net:02x}::{tail:x}]");
                passed[1] += u32::from(ask(&app, from(&address, "/")).await.status == 200);
            }
        }
        assert_eq!(passed, [within, across]);
        assert_eq!(ask(&app, from("[2001:db8::bad]", "/")).await.status, 429);
        // Those behind a translator are told apart by their IPv4 addresses.
        for tail in 0..50 {
            let address = format!("[64:ff9b::198.51.100.{tail}]");
            assert_eq!(ask(&app, from(&address, "/")).await.status, 200);
        }
    }
    let (limits, _) = per_key(Rate::per_hour(1), keys::ClientAddress::new());
    let app = app(RateLimitLayer::new(limits));
    for (address, status) in [
        ("[64:ff9b::198.51.100.1]", 200),
        ("[64:ff9b::198.51.100.2]", 200),
        ("198.51.100.1", 429),
    ] {
        assert_eq!(
            ask(&app, from(address, "/")).await.status,
            status,
            "{address}"
        );
    }
}
