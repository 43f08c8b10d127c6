//! Names of keys in the store.
//!
//! `tollgate:2:5f1c09ab:{tenant=acme}:rule/per-user:0:user=42`
//!
//! | part | |
//! |---|---|
//! | `tollgate` | the prefix, chosen when the client is built |
//! | `2` | the version of what is kept: another version is another key |
//! | `5f1c09ab` | a hash of the algorithm, the period, and whether it is leased: likewise. Of arrival times, of that alone |
//! | `{tenant=acme}` | the hash tag: keys with the same one are on the same node of a cluster |
//! | `rule/per-user:0` | the counter: a rule, or what rules share, and which of its limits |
//! | `user=42` | the key's other values |
//!
//! A counter that was reset has a second key, whose name ends in `#reset`. It has the time of the reset, for as
//! long as a charge from before may be refunded.
//!
//! Every part is escaped, so that no two keys have the same name. Very long values are replaced by their SHA-1.

use std::fmt::Write as _;
use std::time::Duration;

use sha1_smol::Sha1;
use tollgate::{Algorithm, core::WindowAlignment};
use tollgate_engine::backend::{CarryOver, LimitKind};

/// The version of the stored format. Raise it with every change of what a script writes.
const VERSION: u32 = 2;
/// Longer values, in bytes, are replaced by their hash.
const MAX_PLAIN_VALUE_BYTES: usize = 128;

/// How a limit's tokens are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountingMode {
    Exact,
    Leased,
}

/// The prefix of all keys of a limit, up to the hash tag.
pub(crate) fn key_prefix(
    prefix: &str,
    kind: &LimitKind,
    sharing: CountingMode,
    carry_over: CarryOver,
) -> String {
    let mut head = String::new();
    escape(prefix, &mut head);
    let kept = match carry_over {
        // One state, whatever the rate.
        CarryOver::Time => format!("arrival {sharing:?}"),
        _ => state_identity(kind, sharing),
    };
    let hash = Sha1::from(kept).digest().to_string();
    // Writing to a `String` can't fail.
    let _ = write!(head, ":{VERSION}:{}:", &hash[..8]);
    head
}

/// The key of the registry of nodes.
pub(crate) fn node_registry_key(prefix: &str) -> String {
    let mut key = String::new();
    escape(prefix, &mut key);
    // Writing to a `String` can't fail.
    let _ = write!(key, ":{VERSION}:nodes");
    key
}

/// What the state under a key depends on: the algorithm and its period, but not the count or the burst, which
/// may change while the state is kept.
fn state_identity(kind: &LimitKind, sharing: CountingMode) -> String {
    let nanos = |period: Option<Duration>| period.map_or(0, |period| period.as_nanos());
    let what = match kind {
        LimitKind::Rate { rate, algorithm } => {
            let period = nanos(rate.period());
            match algorithm {
                Algorithm::FixedWindow(WindowAlignment::FirstHit) => {
                    format!("window from hit {period}")
                }
                Algorithm::FixedWindow(WindowAlignment::Boundary(boundary)) => {
                    let phase = u128::from(boundary.as_nanos()) % period.max(1);
                    format!("window {period} at {phase}")
                }
                Algorithm::SlidingLog => format!("log {period}"),
                Algorithm::SlidingCounter => format!("counter {period}"),
                other => format!("{other:?} {period}"),
            }
        }
        // A quota's text is the count and the period.
        LimitKind::Quota(quota) => format!("quota {}", quota.with_count(0)),
        LimitKind::Concurrency(_) => "slots".to_owned(),
        other => format!("{other:?}"),
    };
    format!("{what} {sharing:?}")
}

/// Appends text so that no part of it can be taken for a separator: letters, digits and a few other characters
/// as they are, anything else in hexadecimal.
pub(crate) fn escape(text: &str, to: &mut String) {
    if text.len() > MAX_PLAIN_VALUE_BYTES {
        // No escaped text begins with this character.
        let _ = write!(to, "#{}", Sha1::from(text).digest());
        return;
    }
    // Most texts need no escaping.
    if text.bytes().all(is_plain) {
        return to.push_str(text);
    }
    for byte in text.bytes() {
        if is_plain(byte) {
            to.push(char::from(byte))
        } else {
            let _ = write!(to, "%{byte:02X}");
        }
    }
}

/// Whether a byte needs no escaping.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b'@' | b'*')
}

/// The hash slot of a key in a cluster: of its hash tag, if it has one.
pub(crate) fn hash_slot(key: &str) -> u16 {
    let tagged = key.split_once('{');
    let tagged = tagged.and_then(|(_, rest)| rest.split_once('}'));
    let text = tagged.map(|(tag, _)| tag).filter(|tag| !tag.is_empty());
    crc16(text.unwrap_or(key).as_bytes()) % 16384
}

/// CRC-16/XMODEM, the hash of Redis Cluster.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc: u16, _| {
            let carry = crc & 0x8000 != 0;
            (crc << 1) ^ if carry { 0x1021 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(text: &str) -> String {
        let mut to = String::new();
        escape(text, &mut to);
        to
    }

    #[test]
    fn no_part_can_be_taken_for_another() {
        assert_eq!(escaped("user-42@example.com"), "user-42@example.com");
        assert_eq!(escaped("a:b{c}%"), "a%3Ab%7Bc%7D%25");
        assert_eq!(escaped("ü="), "%C3%BC%3D");
        let long = escaped(&"x".repeat(200));
        assert_eq!((long.len(), &long[..1]), (41, "#"));
        assert_ne!(escaped(&"x".repeat(200)), escaped(&"x".repeat(201)));
        assert!(escaped("#").starts_with('%'));
    }

    #[test]
    fn slots_are_those_of_a_cluster() {
        // Expected values from `CLUSTER KEYSLOT`.
        for (key, expect) in [
            ("foo", 12182),
            ("{foo}.bar", 12182),
            ("123456789", 12739),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
        ] {
            assert_eq!(hash_slot(key), expect, "{key}");
        }
    }

    #[test]
    fn another_period_or_algorithm_is_another_key() {
        let rate = |text: &str, algorithm| LimitKind::Rate {
            rate: text.parse().unwrap(),
            algorithm,
        };
        let of = |kind: &LimitKind| key_prefix("t", kind, CountingMode::Exact, CarryOver::Tokens);
        let gcra = rate("10/s", Algorithm::Gcra);
        assert_eq!(of(&gcra), of(&rate("20/s burst 50", Algorithm::Gcra)));
        let others = [
            rate("10/minute", Algorithm::Gcra),
            rate("10/s", Algorithm::TokenBucket),
            rate("10/s", Algorithm::SlidingLog),
            rate("10/s", Algorithm::FixedWindow(WindowAlignment::FirstHit)),
            rate("10/s", Algorithm::FixedWindow(WindowAlignment::default())),
            LimitKind::Concurrency(10),
            LimitKind::Quota("10/day".parse().unwrap()),
            LimitKind::Quota("10/day in Europe/Zurich".parse().unwrap()),
        ];
        let mut heads: Vec<_> = others.iter().map(of).collect();
        heads.extend([
            of(&gcra),
            key_prefix("t", &gcra, CountingMode::Leased, CarryOver::Tokens),
            key_prefix("t", &gcra, CountingMode::Exact, CarryOver::Time),
        ]);
        let count = heads.len();
        heads.sort();
        heads.dedup();
        assert_eq!(heads.len(), count);
        // An arrival time has one key, whatever the period.
        let timed = |text| {
            let kind = rate(text, Algorithm::Gcra);
            key_prefix("t", &kind, CountingMode::Exact, CarryOver::Time)
        };
        assert_eq!(timed("10/s"), timed("3/minute burst 9"));
    }
}
