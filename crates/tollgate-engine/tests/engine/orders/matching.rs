//! Overrides by networks and globs, those rejected because they can never match, and the use count of each override.

use std::time::Duration;

use tollgate::Rate;
use tollgate::clock::Manual;
use tollgate_engine::engine::ResetScope;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::overrides::{
    NewOverride, OverrideAction, OverrideError, OverrideFacts, ReplacementLimits, Target,
};
use tollgate_engine::verdict::DenyReason;
use tollgate_engine::{Engine, Facts};
use tollgate_testkit::temp_folder::TempFolder;

use super::{MINUTE, TREE, of, of_ten, order, passes, read};
use crate::common::engine;
use crate::user;

const RULES: &str = "
limits:
- {name: per-user, key: user, rate: 5/h}
- {name: per-net, key: ip/64, rate: 3/h}
- {name: per-ip, key: [ip], match: {path: /login}, rate: 2/h}
";

fn ip(address: &str) -> Facts<'_> {
    Facts::new().with("ip", address)
}

#[test]
fn a_block_of_a_network_is_for_all_of_its_addresses_and_no_others() {
    let engine = engine(read(RULES), &Manual::new());
    order(
        &engine,
        OverrideAction::Block,
        Target::parse_facts(None, [("ip", "198.51.100.0/24")]),
    );
    let verdict = engine.decide(&ip("198.51.100.77")).reason();
    assert_eq!(verdict, Some(DenyReason::Blocked));
    assert!(!passes(&engine, &ip("::ffff:198.51.100.1")));
    assert!(passes(&engine, &ip("198.51.101.1")));
    assert!(passes(&engine, &ip("2001:db8::1")));
    // An address is one, however it is written.
    order(
        &engine,
        OverrideAction::Block,
        Target::parse_facts(None, [("ip", "2001:DB8:0::9")]),
    );
    assert!(!passes(&engine, &ip("2001:db8::9")));
}

#[test]
fn a_block_by_a_glob_is_for_what_the_policy_would_match() {
    let engine = engine(read(RULES), &Manual::new());
    let exports = Target::parse_facts(None, [("path", "/api/export/**")]);
    order(&engine, OverrideAction::Block, exports.clone());
    let path = |path| user("ada").with("path", path);
    assert!(!passes(&engine, &path("/api/export/2026/01.csv")));
    assert!(passes(&engine, &path("/api/exports")));
    assert!(
        engine
            .remove_override_for(&exports, &OverrideAction::Block)
            .is_some()
    );
    assert!(passes(&engine, &path("/api/export/2026/01.csv")));
    // A library's own values are texts, whatever is in them.
    order(
        &engine,
        OverrideAction::Block,
        Target::facts([("user", "*")]),
    );
    assert!(passes(&engine, &user("bob")));
    assert!(!passes(&engine, &user("*")));
    let stars = Target::parse_facts(None, [("user", "***")]);
    let error = engine
        .add_override(of(OverrideAction::Block, stars))
        .expect_err("no glob");
    assert_eq!(
        error.to_string(),
        "the glob \"***\" can't be matched: * is anything but /, ** anything, with at most 16 stars and 255 characters after the first"
    );
}

#[test]
fn overrides_and_bypasses_of_a_rule_take_networks_too() {
    let engine = engine(read(RULES), &Manual::new());
    let login = |address| ip(address).with("path", "/login");
    let network = || Target::parse_facts(Some("per-ip"), [("ip", "203.0.113.0/24")]);
    let more = OverrideAction::Limit(ReplacementLimits {
        rates: vec![Rate::per_hour(1)],
        ..ReplacementLimits::default()
    });
    order(&engine, more, network());
    assert_eq!(of_ten(&engine, &login("203.0.113.1")), 1);
    assert_eq!(of_ten(&engine, &login("203.0.114.1")), 2);
    order(&engine, OverrideAction::Bypass, network());
    // What remains is the network's own rule, by which each IPv4 address counts for itself.
    assert_eq!(of_ten(&engine, &login("203.0.113.2")), 3);
    let state = engine.limiter_states();
    let orders = state.iter().find(|state| state.name == "per-ip");
    assert_eq!(orders.expect("a rule").overrides, 2);
}

#[test]
fn what_no_request_can_have_is_refused() {
    let engine = engine(read(RULES), &Manual::new());
    let refused = |facts: &[(&str, &str)]| {
        let target = Target::parse_facts(None, facts.iter().copied());
        engine
            .add_override(of(OverrideAction::Block, target))
            .map(|made| made.id)
            .map_err(|why| why.to_string())
    };
    for (facts, expect) in [
        (
            &[("usr", "bot")][..],
            "no rule of the policy names the fact \"usr\": did you mean \"user\"?",
        ),
        (
            &[("remote_address", "10.0.0.0/8")],
            "no rule of the policy names the fact \"remote_address\": did you mean \"ip\"?",
        ),
        (
            &[("device", "d-1")],
            "no rule of the policy names the fact \"device\": if requests have it all the same, say so by --any-fact (\"any_fact\": true)",
        ),
        (
            &[("ip", "198.51.100.0/33")],
            "ip=198.51.100.0/33 is no address and no network: write ip=203.0.113.7 or ip=203.0.113.0/24",
        ),
        (
            &[("ip", "198.51.100")],
            "ip=198.51.100 is no address and no network: write ip=203.0.113.7 or ip=203.0.113.0/24",
        ),
        (
            &[("ip", "localhost")],
            "ip=localhost is no address and no network: write ip=203.0.113.7 or ip=203.0.113.0/24",
        ),
        (
            &[("method", "post")],
            "no request has the method \"post\": methods are in capitals: write POST; if requests have it all the same, say so by --any-fact (\"any_fact\": true)",
        ),
        (
            &[("path", "api/x")],
            "no request has the path \"api/x\": paths begin with /: write \"/api/x\"; if requests have it all the same, say so by --any-fact (\"any_fact\": true)",
        ),
        (
            &[("path", "^/api/.*")],
            "\"^/api/.*\" looks like a regular expression, but is compared as a glob: write a glob, where * is anything but / and ** anything; if requests have it all the same, say so by --any-fact (\"any_fact\": true)",
        ),
        (
            &[("host", "Example.COM")],
            "no request has the host \"Example.COM\": hosts are in lower case: write \"example.com\"; if requests have it all the same, say so by --any-fact (\"any_fact\": true)",
        ),
    ] {
        assert_eq!(refused(facts), Err(expect.to_owned()), "{facts:?}");
        let target = Target::parse_facts(None, facts.iter().copied());
        let meant = of(OverrideAction::Block, target).naming(OverrideFacts::Any);
        let is_address = facts[0].0 == "ip" && facts[0].1.starts_with("198");
        assert_eq!(engine.add_override(meant).is_ok(), !is_address, "{facts:?}");
    }
    let last = engine.overrides().len() as u64;
    for fine in ["header.x-bot", "host", "path"]
        .into_iter()
        .zip(["1", "a.example:80", "/v?/x*"])
    {
        assert!(refused(&[fine]).is_ok_and(|id| id > last), "{fine:?}");
    }
    let device = Target::facts([("device", "d-1")]);
    let any = NewOverride::new(OverrideAction::Block, device, MINUTE).naming(OverrideFacts::Any);
    engine.add_override(any).expect("it is meant");
    assert!(!passes(&engine, &Facts::new().with("device", "d-1")));
}

#[test]
fn a_policy_of_trees_takes_no_orders_by_facts_and_no_networks() {
    let engine = engine(read(TREE), &Manual::new());
    let by_facts = of(OverrideAction::Block, Target::facts([("user", "ada")]));
    assert_eq!(engine.add_override(by_facts), Err(OverrideError::OnlyTrees));
    let network = Target::descriptor("edge", [("user", "10.0.0.0/8")]);
    let error = engine
        .add_override(of(OverrideAction::Block, network))
        .expect_err("a network");
    assert_eq!(
        error.to_string(),
        "values of a descriptor are compared as they are, and user=10.0.0.0/8 is a network: name one address, or block the network by a rule or in the policy"
    );
    // What a list shows of a limit of a tree: its name, and the key.
    let shown = Target::from_text(Some("edge/user"), "user=ada").expect("a key");
    order(&engine, OverrideAction::Block, shown.clone());
    let ada = [Descriptor::new(&[("user", "ada")])];
    assert!(
        engine
            .decide_descriptors("edge", &ada, 1)
            .denied()
            .is_some()
    );
    let found = engine.find(&shown).expect("a key").remove(0);
    assert_eq!(
        (found.rule.as_str(), found.key.as_str()),
        ("edge/user", "user=ada")
    );
    assert_eq!((found.orders.len(), found.orders[0].used_count), (1, 1));
}

#[test]
fn each_order_tells_how_often_it_acted_and_when_last_also_after_a_restart() {
    let (clock, folder) = (Manual::new(), TempFolder::new("orders-acted"));
    let before = engine(read(RULES), &clock);
    let block = order(
        &before,
        OverrideAction::Block,
        Target::key("per-user", [("user", "eve")]),
    );
    let bypass = order(
        &before,
        OverrideAction::Bypass,
        Target::parse_facts(None, [("user", "svc-*")]),
    );
    let idle = order(
        &before,
        OverrideAction::Block,
        Target::facts([("user", "nobody")]),
    );
    assert_eq!((block.used_count, block.last_used_at), (0, None));
    of_ten(&before, &user("eve"));
    clock.advance(Duration::from_secs(5));
    let last = before.overrides()[0].made_at + Duration::from_secs(5);
    assert!(!passes(&before, &user("eve")));
    assert_eq!(of_ten(&before, &user("svc-mail")), 10);
    // A look is no request.
    let _ = before.peek(&user("eve"));
    let acted = |engine: &super::TestEngine| {
        let orders = engine.overrides().into_iter();
        orders
            .map(|order| (order.id, order.used_count, order.last_used_at))
            .collect::<Vec<_>>()
    };
    let expect = [
        (block.id, 11, Some(last)),
        (bypass.id, 10, Some(last)),
        (idle.id, 0, None),
    ];
    assert_eq!(acted(&before), expect);
    let path = folder.path("state");
    let mut file = super::SnapshotWriter::create(&path, b"teststst", 1).expect("a file");
    before.save(&mut file).expect("written");
    file.finish().expect("written");
    let mut file = super::SnapshotReader::open(&path, b"teststst", 1).expect("a file");
    let memory = super::Memory::builder()
        .clock(clock.clone())
        .wall(clock.clone());
    let resume = tollgate_engine::RestoreOptions::default();
    let (after, _) = Engine::restore(read(RULES), memory, resume, &mut file).expect("restored");
    assert_eq!(acted(&after), expect);
    assert_eq!(of_ten(&after, &user("svc-web")), 10);
    assert_eq!(acted(&after)[1].1, 20);
}

#[test]
fn a_reset_leaves_quotas_alone_unless_they_are_meant() {
    let text = "limits: [{name: a, key: user, rate: 4/h, quota: 6/day}]";
    let engine = engine(read(text), &Manual::new());
    let (ada, key) = (user("ada"), Target::key("a", [("user", "ada")]));
    assert_eq!(of_ten(&engine, &ada), 4);
    let reset = engine.reset(&key, ResetScope::Rates).expect("a key");
    let shown = |kinds: &[tollgate_engine::backend::LimitKind]| {
        kinds.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let first = &reset.rules[0];
    assert_eq!(
        (shown(&first.reset), shown(&first.kept)),
        (vec!["4/h".into()], vec!["6/day".into()])
    );
    assert_eq!(of_ten(&engine, &ada), 2);
    let reset = engine
        .reset(&key, ResetScope::RatesAndQuotas)
        .expect("a key");
    assert_eq!(
        (
            shown(&reset.rules[0].reset).len(),
            reset.rules[0].kept.len()
        ),
        (2, 0)
    );
    assert_eq!(of_ten(&engine, &ada), 4);
}

#[test]
fn both_rates_of_a_rule_are_raised_by_one_override() {
    let text = "limits: [{name: a, key: user, rate: [2/s, 3/h]}]";
    let engine = engine(read(text), &Manual::new());
    let both = |rates: Vec<Rate>| {
        OverrideAction::Limit(ReplacementLimits {
            rates,
            ..ReplacementLimits::default()
        })
    };
    let raised = both(vec![Rate::per_hour(6), Rate::per_second(8)]);
    order(&engine, raised, Target::rule("a"));
    assert_eq!(of_ten(&engine, &user("ada")), 6);
    let twice = both(vec![Rate::per_hour(6), Rate::per_hour(8)]);
    let error = engine
        .add_override(of(twice, Target::rule("a")))
        .expect_err("two of one period");
    assert_eq!(
        error.to_string(),
        "\"a\" can't have that limit: two rates stand in for 3/h"
    );
}
