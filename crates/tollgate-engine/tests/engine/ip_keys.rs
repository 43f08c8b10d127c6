//! `key: ip` counts clients, not addresses: an IPv6 client has 2^64 of them.

use tollgate::clock::Manual;
use tollgate_engine::Facts;
use tollgate_engine::document::Format;
use tollgate_engine::explain::explain;
use tollgate_engine::overrides::Target;
use tollgate_engine::policy::Policy;

use crate::common::engine;

fn policy(text: &str) -> Policy {
    Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy
}

#[test]
fn all_addresses_of_one_network_of_64_bits_are_one_client() {
    let cases = [
        ("ip", 10),
        ("[ip]", 10),
        ("{first: [user, ip]}", 10),
        ("ip/64", 10),
        ("ip/128", 1_000),
    ];
    for (key, expected) in cases {
        let policy = policy(&format!(
            "limits: [{{name: clients, key: {key}, rate: 10/s}}]"
        ));
        let engine = engine(policy, &Manual::new());
        let passes = |ip: String| {
            let facts = Facts::new().with("ip", &ip);
            engine.decide(&facts).allowed().is_some()
        };
        let one = (0..1_000).filter(|tail| passes(format!("2001:db8::{tail:x}:1")));
        assert_eq!(one.count(), expected, "{key}");
        assert!(passes("2001:db8:0:1::1".to_owned()), "{key}");
        // Those behind a translator are in one network of 64 bits, and are told apart by their IPv4 addresses.
        let four = (0..200).filter(|tail| passes(format!("64:ff9b::198.51.100.{tail}")));
        assert_eq!(four.count(), 200, "{key}");
        let same = (0..20).filter(|_| passes("198.51.100.7".to_owned()));
        assert_eq!(same.count(), 9, "{key}");
    }
}

/// Also if only one address of a network is meant.
#[test]
fn conditions_see_the_whole_address() {
    let text = "
block: [{ip: '2001:db8::bad'}, {ip: '64:ff9b::203.0.113.7'}]
exempt: [{ip: '2001:db8::600d'}]
limits:
- {name: one, match: {ip: '2001:db8::1'}, key: ip, rate: 1/h}
- {name: clients, key: ip, rate: 3/h}
";
    let engine = engine(policy(text), &Manual::new());
    let passes = |ip: &str| {
        let facts = Facts::new().with("ip", ip);
        engine.decide(&facts).allowed().is_some()
    };
    assert!(!passes("2001:db8::bad") && !passes("64:ff9b::203.0.113.7"));
    assert!((0..10).all(|_| passes("2001:db8::600d")));
    assert!(passes("2001:db8::1") && !passes("2001:db8::1"));
    assert!(passes("2001:db8::2") && passes("2001:db8::3") && !passes("2001:db8::2"));
    assert!(passes("203.0.113.7"), "it is another address");
}

/// What `explain`, lookups and lists show for a key is one text, and finds the key.
#[test]
fn a_key_has_one_text_wherever_it_is_shown() {
    let policy = policy("limits: [{name: clients, key: ip, rate: 2/h}]");
    for (ip, text) in [
        ("2001:db8::1", "ip=2001:db8::/64"),
        ("64:ff9b::198.51.100.7", "ip=198.51.100.7"),
        ("::ffff:198.51.100.7", "ip=198.51.100.7"),
        ("198.51.100.7", "ip=198.51.100.7"),
    ] {
        let engine = engine(policy.clone(), &Manual::new()).with_top_keys(8);
        let facts = Facts::new().with("ip", ip);
        for _ in 0..3 {
            let _ = engine.decide(&facts);
        }
        let explained = format!("{:?}", explain(&policy, &facts));
        assert!(explained.contains(text), "{explained}");
        let top = engine.top_keys().expect("it is counted");
        assert_eq!(top.keys[0].key, text);
        for written in [text.to_owned(), format!("ip={ip}")] {
            let target = Target::from_text(None, &written).expect("a key");
            let found = engine.find(&target).expect("a key");
            assert_eq!(found[0].key, text, "{written}");
            assert_eq!(found[0].limits[0].decision.remaining, 0, "{written}");
        }
    }
}
