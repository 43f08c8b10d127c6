//! A displayed key finds that key again: in a lookup, a reset and a block.

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate_engine::Facts;
use tollgate_engine::document::Format;
use tollgate_engine::engine::ResetScope;
use tollgate_engine::overrides::{
    KeyTextError, NewOverride, OverrideAction, OverrideError, Target,
};
use tollgate_engine::policy::Policy;
use tollgate_engine::verdict::DenyReason;

use crate::common::engine;

const POLICY: &str = "
limits:
- {name: per-user, key: user, rate: 2/h}
- {name: per-net, key: [ip/48], rate: 2/h}
- {name: compound, key: [ip/64, user, header.x-plan], rate: 2/h}
default_tier: free
tenants: {acme: gold}
tiers:
  free: {rate: 2/h}
  gold: {rate: 2/h}
";

/// Any value but one that reads as a network: of a key that is a network, both look alike.
fn value() -> impl Strategy<Value = String> {
    let any = prop_oneof![
        "[a-z0-9@./:-]{1,12}",
        "[ -~]{0,12}",
        "\\PC{1,6}",
        Just("a b=c \"d\\".to_owned()),
        Just(String::new()),
        Just("tab\tand\u{7}bell\n".to_owned()),
        Just("…".to_owned()),
        Just("*".to_owned()),
    ];
    any.prop_filter("a network", |text| {
        !matches!(
            tollgate_engine::overrides::FactPattern::of(text.as_str()),
            tollgate_engine::overrides::FactPattern::Network(_)
        )
    })
}

fn address() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<u32>().prop_map(|bits| std::net::Ipv4Addr::from_bits(bits).to_string()),
        any::<u128>().prop_map(|bits| std::net::Ipv6Addr::from_bits(bits).to_string()),
        (any::<u32>(), 0_u32..4)
            .prop_map(|(bits, tail)| format!("2001:db8:{:x}::{tail}", bits % 3)),
        // What a translator makes of IPv4, and what is nearly that.
        any::<u32>().prop_map(|bits| format!("64:ff9b::{}", std::net::Ipv4Addr::from_bits(bits))),
        any::<u64>().prop_map(|bits| format!("64:ff9b::{:x}:0:{:x}", bits & 1, bits >> 48)),
        Just("unknown".to_owned()),
    ]
}

proptest! {
    #[test]
    fn what_top_shows_finds_the_key(
        user in value(),
        plan in value(),
        ip in address(),
        tenant in "[a-z]{1,4}|acme|big corp",
        network in "ip/48|ip|ip/128|ip/24",
    ) {
        let text = POLICY.replace("ip/48", &network);
        let policy = Policy::from_text(&text, Format::Yaml).expect("a policy").policy;
        let engine = engine(policy, &Manual::new()).with_top_keys(64);
        let sets = [
            Facts::new().with("user", &user),
            Facts::new().with("ip", &ip),
            Facts::new().with("user", &user).with("ip", &ip).with("header.x-plan", &plan),
            Facts::new().with("tenant", &tenant),
        ];
        for facts in &sets {
            for _ in 0..8 {
                let _ = engine.decide(facts);
            }
        }
        let top = engine.top_keys().expect("it is counted");
        prop_assert!(top.keys.len() >= 3);
        for key in top.keys {
            if key.key.ends_with('…') {
                prop_assert_eq!(Target::from_text(None, &key.key), Err(KeyTextError::Cut));
                continue;
            }
            let target = Target::from_text(Some(&key.limiter), &key.key).expect("a key");
            let found = engine.find(&target).expect("a key");
            prop_assert_eq!((&found[0].rule, &found[0].key), (&key.limiter, &key.key));
            let limit = &found[0].limits[0];
            prop_assert!(!limit.decision.is_allowed(), "{} has {} left", key.key, limit.decision.remaining);
            let shown = engine.add_override(NewOverride::new(OverrideAction::Block, target.clone(), std::time::Duration::from_secs(60)));
            let shown = shown.expect("an order");
            // What the list of orders shows is read again, too.
            let again = Target::from_text(target.rule_name(), &shown.target.target_key().to_string());
            prop_assert_eq!(again, Ok(shown.target.clone()));
            let blocked = sets.iter().any(|facts| {
                let peeked = engine.peek(facts);
                peeked.reason() == Some(DenyReason::Blocked)
            });
            prop_assert!(blocked, "{} isn't blocked", key.key);
            engine.remove_override(shown.id).expect("it is there");
            engine.reset(&target, ResetScope::Rates).expect("a key");
            let left = engine.find(&target).expect("a key")[0].limits[0].decision.remaining;
            prop_assert_eq!(left, 2);
        }
    }
}

#[test]
fn a_network_that_is_many_keys_is_no_key() {
    let policy = Policy::from_text(POLICY, Format::Yaml)
        .expect("a policy")
        .policy;
    let engine = engine(policy, &Manual::new());
    let of = |text: &str| engine.find(&Target::from_text(None, text).expect("a key"));
    let many = of("ip=2001:db8::/32").map(|found| found.len());
    assert_eq!(
        many,
        Err(OverrideError::ManyKeys {
            rule: "per-net".to_owned(),
            fact: "ip".to_owned(),
            value: "2001:db8::/32".to_owned(),
        })
    );
    assert_eq!(
        many.expect_err("many").to_string(),
        "ip=2001:db8::/32 is many keys of \"per-net\": name one of them"
    );
    let one = of("ip=2001:db8::/64").expect("all of it is one key");
    assert_eq!((one.len(), one[0].key.as_str()), (1, "ip=2001:db8::/48"));
}
