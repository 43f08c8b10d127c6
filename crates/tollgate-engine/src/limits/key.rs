//! The key of a rule's counters: which facts make it, and its fingerprint.

use std::collections::HashMap;
use std::hash::Hasher;
use std::iter;
use std::sync::Arc;

use foldhash::fast;

use super::hashers::KeyHashers;
use crate::address::{Address, ClientBits, Family, Network};
use crate::facts::{Facts, IP, name_prefix};
use crate::matcher::{FactIndex, FactValues};
use crate::policy::{KeyPart, Rule};

/// Which facts make a key, and which other facts do for requests that lack one of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyPlan {
    /// Rules with the same key share these parts.
    parts: Arc<[KeyPlanPart]>,
    /// The fallback keys, in order, for requests that lack one of these parts.
    fallbacks: Option<Arc<[Box<[KeyPlanPart]>]>>,
}

impl KeyPlan {
    /// This plan, or an equal one of another rule, to share memory.
    pub(crate) fn shared(self, known: &mut HashMap<String, Self, fast::FixedState>) -> Self {
        known
            .entry(format!("{:?} {:?}", self.parts, self.fallbacks))
            .or_insert(self)
            .clone()
    }
}

#[derive(Clone, Debug)]
pub(super) struct KeyPlanPart {
    pub(super) fact: Box<str>,
    slot: u32,
    /// How many bits of an address identify it, if the fact is an address.
    bits: Option<PartBits>,
}

/// How many bits of an address identify it.
#[derive(Clone, Copy, Debug)]
enum PartBits {
    /// The number in the policy.
    Own(ClientBits),
    /// The number that the caller set in the facts.
    OfFacts,
}

impl KeyPlan {
    pub(crate) fn new(parts: &[KeyPart], slots: &mut FactIndex) -> Self {
        Self {
            parts: parts
                .iter()
                .map(|part| KeyPlanPart::new(part, slots))
                .collect(),
            fallbacks: None,
        }
    }

    /// The plan of all keys of a rule.
    pub(crate) fn of(rule: &Rule, slots: &mut FactIndex) -> Self {
        let mut keys = rule.keys();
        let own = Self::new(keys.next().unwrap_or_default(), slots);
        let fallbacks: Arc<[Box<[KeyPlanPart]>]> = keys
            .map(|key| {
                key.iter()
                    .map(|part| KeyPlanPart::new(part, slots))
                    .collect()
            })
            .collect();
        Self {
            fallbacks: (!fallbacks.is_empty()).then_some(fallbacks),
            ..own
        }
    }

    /// The keys, each a list of parts. One empty list if all requests share a counter.
    fn keys(&self) -> impl Iterator<Item = &[KeyPlanPart]> {
        let fallbacks = self.fallbacks.iter().flat_map(|keys| keys.iter());
        iter::once(&*self.parts).chain(fallbacks.map(|key| &**key))
    }

    /// The names of the facts of each key, in order.
    pub(crate) fn fact_lists(&self) -> impl Iterator<Item = Vec<&str>> {
        self.keys()
            .map(|key| key.iter().map(|part| &*part.fact).collect())
    }

    /// The names of the facts of the first key.
    pub(crate) fn facts(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| &*part.fact)
    }

    /// The names of the facts of all keys, with the bits that count if the fact is an address.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&str, Option<ClientBits>)> {
        let parts = self.keys().flatten();
        parts.map(|part| {
            (
                &*part.fact,
                part.bits.map(|bits| bits.resolve(&Facts::new())),
            )
        })
    }

    /// The names of the facts of the key that a request with these facts has. `None` if it has no key.
    pub(crate) fn facts_for(&self, facts: &Facts<'_>) -> Option<impl Iterator<Item = &str>> {
        let (_, parts) = self.choose_key(facts)?;
        Some(parts.iter().map(|part| &*part.fact))
    }

    /// Whether all requests share one counter.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.fallbacks.is_none()
    }

    /// The first key whose facts are all present, and its number. `None` if the facts lack a part of each key.
    pub(super) fn choose_key(&self, facts: &Facts<'_>) -> Option<(u8, &[KeyPlanPart])> {
        let has_all = |key: &&[KeyPlanPart]| key.iter().all(|part| facts.get(&part.fact).is_some());
        (0..).zip(self.keys()).find(|(_, key)| has_all(key))
    }

    /// The fingerprint of a request's key. `None` if the request lacks a part of each key.
    #[inline(always)]
    pub(crate) fn fingerprint(
        &self,
        known: &FactValues<'_, '_>,
        hashers: &KeyHashers,
    ) -> Option<[u64; 2]> {
        let own = fingerprint(&self.parts, known, hashers.start());
        match &self.fallbacks {
            Some(fallbacks) if own.is_none() => fallback_fingerprint(fallbacks, known, hashers),
            _ => own,
        }
    }

    /// The fingerprint that requests without a key share. No key has it, because no value starts with this number.
    pub(crate) fn missing(hashers: &KeyHashers) -> [u64; 2] {
        hashers.start().map(|mut hasher| {
            hasher.write_u128(MISSING);
            hasher.finish()
        })
    }
}

impl KeyPlanPart {
    fn new(part: &KeyPart, slots: &mut FactIndex) -> Self {
        let (fact, bits) = match part {
            // An IPv6 client has more addresses than any table has keys. If each address were a key, a client could
            // start a fresh limit at will.
            KeyPart::Fact(fact) if fact == IP => (fact, Some(PartBits::OfFacts)),
            KeyPart::Fact(fact) => (fact, None),
            KeyPart::Network { fact, bits } => (fact, Some(PartBits::Own(ClientBits::both(*bits)))),
        };
        let slot = slots.number(fact);
        if bits.is_some() {
            slots.read_as_address(slot);
        }
        Self {
            fact: fact.as_str().into(),
            slot,
            bits,
        }
    }
}

impl KeyPlanPart {
    /// The network of the client, if the value is an address and only a part of it counts.
    pub(super) fn network(&self, facts: &Facts<'_>, value: &str) -> Option<Network> {
        let bits = self.bits?.resolve(facts);
        Some(Address::parse(value)?.client_network(bits))
    }
}

impl PartBits {
    #[inline]
    const fn resolve(self, facts: &Facts<'_>) -> ClientBits {
        match self {
            Self::Own(bits) => bits,
            Self::OfFacts => facts.client_bits,
        }
    }
}

/// The fingerprint of the first fallback key whose parts the request has. The key's number is hashed first, so that
/// keys with equal values differ.
#[inline(never)]
fn fallback_fingerprint(
    keys: &[Box<[KeyPlanPart]>],
    known: &FactValues<'_, '_>,
    hashers: &KeyHashers,
) -> Option<[u64; 2]> {
    (1..).zip(keys).find_map(|(number, key)| {
        let start = hashers.start().map(|mut hasher| {
            hasher.write_u128(FALLBACK | number);
            hasher
        });
        fingerprint(key, known, start)
    })
}

/// The fingerprint of these parts, after what was hashed before. `None` if the request lacks one.
#[inline(always)]
fn fingerprint(
    parts: &[KeyPlanPart],
    known: &FactValues<'_, '_>,
    [mut low, mut high]: [impl Hasher; 2],
) -> Option<[u64; 2]> {
    for part in parts {
        let text = known.text(part.slot)?;
        let address = match part.bits {
            Some(bits) => known
                .address(part.slot)
                .map(|own| own.client_network(bits.resolve(known.facts)).first),
            None => None,
        };
        // The top byte of the first number states the kind of value, and so how many bytes follow: no two lists of
        // values hash the same bytes.
        let Some(address) = address else {
            let number = pack_text(text);
            low.write_u128(number);
            high.write_u128(number);
            if text.len() > PACKED {
                low.write(text.as_bytes());
                high.write(text.as_bytes());
            }
            continue;
        };
        let family = u128::from(address.family == Family::V4);
        for number in [ADDRESS | family, address.bits] {
            low.write_u128(number);
            high.write_u128(number);
        }
    }
    Some([low.finish(), high.finish()])
}

/// The longest text that fits in one number with its length.
const PACKED: usize = 15;
/// The top byte of the first number for a longer text, and for an address.
const LONG: u128 = 0x80 << 120;
const ADDRESS: u128 = 0x81 << 120;
/// The top byte of the number before a fallback key, and of the number in place of a missing key.
const FALLBACK: u128 = 0x82 << 120;
const MISSING: u128 = 0x83 << 120;

/// Packs a text in one number, with its length in the top byte. For a text that doesn't fit, only the length.
#[inline]
fn pack_text(text: &str) -> u128 {
    let length = text.len();
    if length > PACKED {
        return LONG | length as u128;
    }
    // The bytes after the first eight are the end of the last eight.
    let beyond = match text.as_bytes().last_chunk::<8>() {
        Some(last) if length > 8 => u64::from_le_bytes(*last) >> (8 * (16 - length)),
        _ => 0,
    };
    u128::from(name_prefix(text)) | u128::from(beyond) << 64 | (length as u128) << 120
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(parts: &[KeyPart], facts: &Facts<'_>, hashers: &KeyHashers) -> [u64; 2] {
        let mut slots = FactIndex::default();
        let plan = KeyPlan::new(parts, &mut slots);
        let known = slots.look_up(facts);
        plan.fingerprint(&known, hashers).unwrap()
    }

    #[test]
    fn values_that_run_together_are_different_keys() {
        let hashers = KeyHashers::random();
        let parts = ["a", "b"].map(|fact| KeyPart::Fact(fact.to_owned()));
        let of = |a, b| fingerprint(&parts, &Facts::new().with("a", a).with("b", b), &hashers);
        assert_ne!(of("ab", "c"), of("a", "bc"));
        assert_ne!(of("", "x"), of("x", ""));
        assert_eq!(of("a", "b"), of("a", "b"));
    }

    #[test]
    fn texts_of_every_length_are_different_keys() {
        let mut numbers = std::collections::HashSet::new();
        for length in 0..=PACKED {
            for place in 0..length {
                let mut text = vec![b'a'; length];
                for byte in [b'b', 0, b'~'] {
                    text[place] = byte;
                    assert!(numbers.insert(pack_text(str::from_utf8(&text).unwrap())));
                }
            }
            assert!(numbers.insert(pack_text(&"a".repeat(length))));
        }
        let hashers = KeyHashers::random();
        let parts = [KeyPart::Fact("a".to_owned())];
        let of = |a: &str| fingerprint(&parts, &Facts::new().with("a", a), &hashers);
        let texts = (0..64).map(|length| of(&"a".repeat(length)));
        let ends = (1..64).map(|length| of(&format!("{}b", "a".repeat(length - 1))));
        let prints: std::collections::HashSet<_> = texts.chain(ends).collect();
        assert_eq!(prints.len(), 127);
    }

    #[test]
    fn addresses_of_one_network_are_one_key() {
        let hashers = KeyHashers::random();
        let parts = [KeyPart::Network {
            fact: "ip".to_owned(),
            bits: 64,
        }];
        let of = |ip| fingerprint(&parts, &Facts::new().with("ip", ip), &hashers);
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert_ne!(of("not an address"), of("nor this"));
    }

    #[test]
    fn an_ip_is_the_network_of_its_client_unless_the_key_says_otherwise() {
        let hashers = KeyHashers::random();
        let parts = [KeyPart::Fact("ip".to_owned())];
        let of = |ip| fingerprint(&parts, &Facts::new().with("ip", ip), &hashers);
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("64:ff9b::203.0.113.7"), of("203.0.113.7"));
        assert_ne!(of("64:ff9b::203.0.113.7"), of("64:ff9b::203.0.113.8"));
        // The caller may set how many bits of an address identify a client.
        let by = |ip, v4, v6| {
            let facts = Facts::new().with("ip", ip).with_client_prefixes(v4, v6);
            fingerprint(&parts, &facts, &hashers)
        };
        assert_eq!(by("2001:db8::1", 32, 56), by("2001:db8:0:ff::1", 32, 56));
        assert_ne!(by("2001:db8::1", 32, 56), by("2001:db8:0:100::1", 32, 56));
        assert_ne!(by("2001:db8::1", 32, 128), by("2001:db8::2", 32, 128));
        assert_eq!(by("203.0.113.7", 24, 64), by("203.0.113.8", 24, 64));
        // Any other fact is compared as text.
        let parts = [KeyPart::Fact("peer".to_owned())];
        let of = |ip| fingerprint(&parts, &Facts::new().with("peer", ip), &hashers);
        assert_ne!(of("2001:db8::1"), of("2001:db8::2"));
    }

    #[test]
    fn each_key_to_fall_back_to_has_fingerprints_of_its_own() {
        let hashers = KeyHashers::random();
        let part = |fact: &str| KeyPart::Fact(fact.to_owned());
        let rule = Rule {
            key: vec![part("user")],
            fallback_keys: vec![vec![part("account")], vec![part("tenant"), part("ip")]],
            ..Rule::new("a", crate::policy::Limits::default())
        };
        let mut slots = FactIndex::default();
        let plan = KeyPlan::of(&rule, &mut slots);
        let of = |facts: &[(&'static str, &'static str)]| {
            let facts: Facts<'_> = facts.iter().copied().collect();
            plan.fingerprint(&slots.look_up(&facts), &hashers)
        };
        let user = of(&[("user", "42")]);
        assert_ne!(user, of(&[("account", "42")]));
        // If the first key is complete, it alone counts, and its fingerprint is the same as without fallbacks.
        assert_eq!(
            user,
            of(&[("account", "7"), ("user", "42"), ("ip", "1.2.3.4")])
        );
        assert_eq!(
            user,
            Some(fingerprint(
                &rule.key,
                &Facts::new().with("user", "42"),
                &hashers
            ))
        );
        assert_ne!(
            of(&[("tenant", "42"), ("ip", "")]),
            of(&[("account", "42")])
        );
        // A key of several parts is missing if one part is.
        assert_eq!(of(&[("tenant", "42")]), None);
        assert_eq!(of(&[]), None);
        let missing = KeyPlan::missing(&hashers);
        assert!(user.is_some_and(|user| user != missing));
        assert_ne!(missing, fingerprint(&[], &Facts::new(), &hashers));
    }
}
