//! The key that tells one counter of a rule from another: values of facts, which can't be confused.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, LazyLock};

use foldhash::SharedSeed;
use foldhash::fast;
use foldhash::quality::FoldHasher;

use crate::facts::{Facts, head};
use crate::matcher::address::{Address, Family};
use crate::matcher::{Known, Slots};
use crate::policy::KeyPart;

/// Which facts make a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyPlan {
    /// Rules with the same key share it.
    parts: Arc<[Part]>,
}

impl KeyPlan {
    /// This plan, or the same that another rule has.
    pub(crate) fn shared(self, known: &mut HashMap<String, Self, fast::FixedState>) -> Self {
        known
            .entry(format!("{:?}", self.parts))
            .or_insert(self)
            .clone()
    }
}

#[derive(Clone, Debug)]
struct Part {
    fact: Box<str>,
    slot: u32,
    /// How many bits of an address count, if it is one.
    bits: Option<u8>,
}

/// One value of a key.
enum Value<'a> {
    Text(&'a str),
    Address(Address),
}

impl Value<'_> {
    /// Feeds it so that no two lists of values feed the same.
    fn feed(&self, feed: &mut impl FnMut(&[u8])) {
        match self {
            Self::Text(text) => {
                let length = u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes();
                feed(&[0, length[0], length[1], length[2], length[3]]);
                feed(text.as_bytes());
            }
            Self::Address(address) => {
                let family = match address.family() {
                    Family::V4 => 4,
                    Family::V6 => 6,
                };
                feed(&[family]);
                feed(&address.bits().to_be_bytes());
            }
        }
    }
}

impl KeyPlan {
    pub(crate) fn new(parts: &[KeyPart], slots: &mut Slots) -> Self {
        let part = |part: &KeyPart| {
            let (fact, bits) = match part {
                KeyPart::Fact(fact) => (fact, None),
                KeyPart::Network { fact, bits } => (fact, Some(*bits)),
            };
            let slot = slots.number(fact);
            if bits.is_some() {
                slots.wants_address(slot);
            }
            Part {
                fact: fact.as_str().into(),
                slot,
                bits,
            }
        };
        Self {
            parts: parts.iter().map(part).collect(),
        }
    }

    /// The names of the facts that make it.
    pub(crate) fn facts(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| &*part.fact)
    }

    /// The fingerprint of a request's key, or none if it lacks one of the facts.
    #[inline(always)]
    pub(crate) fn fingerprint(
        &self,
        known: &Known<'_, '_>,
        hashers: &KeyHashers,
    ) -> Option<[u64; 2]> {
        let [mut low, mut high] = hashers.start();
        for part in self.parts.iter() {
            let text = known.text(part.slot)?;
            let address = match part.bits {
                Some(bits) => known.address(part.slot).map(|own| own.masked(bits)),
                None => None,
            };
            // The top byte of the first number says what it is, and how it goes on.
            let Some(address) = address else {
                let number = packed(text);
                low.write_u128(number);
                high.write_u128(number);
                if text.len() > PACKED {
                    low.write(text.as_bytes());
                    high.write(text.as_bytes());
                }
                continue;
            };
            let family = u128::from(address.family() == Family::V4);
            for number in [ADDRESS | family, address.bits()] {
                low.write_u128(number);
                high.write_u128(number);
            }
        }
        Some([low.finish(), high.finish()])
    }
}

/// The longest text that fits into a number with its length.
const PACKED: usize = 15;
/// The top byte of the first number of a longer text, and of an address.
const LONG: u128 = 0x80 << 120;
const ADDRESS: u128 = 0x81 << 120;

/// A text in one number, with its length in the top byte; of one that doesn't fit, the length alone.
#[inline]
fn packed(text: &str) -> u128 {
    let length = text.len();
    if length > PACKED {
        return LONG | length as u128;
    }
    // What is beyond eight bytes is the end of the last eight.
    let beyond = match text.as_bytes().last_chunk::<8>() {
        Some(last) if length > 8 => u64::from_le_bytes(*last) >> (8 * (16 - length)),
        _ => 0,
    };
    u128::from(head(text)) | u128::from(beyond) << 64 | (length as u128) << 120
}

/// Two hashes with secret seeds, so that nobody can make keys that collide.
///
/// All that they multiply by comes from the seeds: were a factor known, a part of a key that makes it
/// zero would take the rest out of the hash.
#[derive(Debug)]
pub(crate) struct KeyHashers {
    both: [(u64, SharedSeed); 2],
    /// What they follow from, so that a snapshot can carry it.
    seeds: [u64; 4],
}

impl KeyHashers {
    pub(crate) fn random() -> Self {
        let random = RandomState::new();
        Self::with_seeds([0, 1, 2, 3].map(|number: u64| random.hash_one(number)))
    }

    /// For tests: always the same.
    pub(crate) fn seeded(seed: u64) -> Self {
        let fixed = fast::FixedState::with_seed(seed);
        Self::with_seeds([0, 1, 2, 3].map(|number: u64| fixed.hash_one(number)))
    }

    pub(crate) fn with_seeds(seeds: [u64; 4]) -> Self {
        let [low_factors, high_factors, low, high] = seeds;
        Self {
            both: [(low, low_factors), (high, high_factors)]
                .map(|(start, factors)| (start, SharedSeed::from_u64(factors))),
            seeds,
        }
    }

    pub(crate) fn seeds(&self) -> [u64; 4] {
        self.seeds
    }

    /// What this build makes of two kinds of keys: another hash makes something else of them.
    pub(crate) fn probes(&self) -> [u64; 4] {
        let long = "a tenant and a route that are longer than a line";
        let [low, high] = self.of_text("tollgate");
        let [fed_low, fed_high] = self.feed(|put| put(long.as_bytes()));
        [low, high, fed_low, fed_high]
    }

    /// The fingerprint of what is fed, piece by piece.
    pub(crate) fn feed(&self, feed: impl FnOnce(&mut dyn FnMut(&[u8]))) -> [u64; 2] {
        let [mut low, mut high] = self.start();
        feed(&mut |piece| {
            low.write(piece);
            high.write(piece);
        });
        [low.finish(), high.finish()]
    }

    /// The fingerprint of a key of one text, of a limit of no policy. [`KeyPlan::fingerprint`] makes another one of
    /// the same text; the two never meet, since a counter is asked about by one of them only.
    #[inline]
    pub(crate) fn of_text(&self, text: &str) -> [u64; 2] {
        self.start().map(|mut hasher| {
            hasher.write_u64(text.len() as u64);
            hasher.write(text.as_bytes());
            hasher.finish()
        })
    }

    #[inline]
    fn start(&self) -> [impl Hasher; 2] {
        let [(low, low_factors), (high, high_factors)] = &self.both;
        [
            FoldHasher::with_seed(*low, low_factors),
            FoldHasher::with_seed(*high, high_factors),
        ]
    }
}

/// The key of a request for one rule: its values, and a fingerprint of them.
///
/// Two of n keys share a 128-bit fingerprint with probability n² / 2¹²⁹. As text it reads
/// `user=42 ip=2001:db8::/64`; [`bytes`](Self::write_bytes) are for stores.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let text = "limits: [{name: networks, key: [ip/64, method], rate: 1/s}]";
/// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new().with("ip", "2001:db8::7").with("method", "GET");
/// let verdict = engine.decide(&facts);
/// let key = verdict.key().expect("a rule decided");
/// assert_eq!(key.to_string(), "ip=2001:db8::/64 method=GET");
/// assert!(!key.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct RequestKey<'a> {
    plan: &'a KeyPlan,
    facts: &'a Facts<'a>,
    fingerprint: [u64; 2],
}

impl<'a> RequestKey<'a> {
    pub(crate) fn new(plan: &'a KeyPlan, facts: &'a Facts<'a>, fingerprint: [u64; 2]) -> Self {
        Self {
            plan,
            facts,
            fingerprint,
        }
    }

    /// A key of which no more is known than this.
    pub(crate) fn unnamed(fingerprint: [u64; 2]) -> Self {
        static NOTHING: LazyLock<(KeyPlan, Facts<'static>)> =
            LazyLock::new(|| (KeyPlan::default(), Facts::new()));
        let (plan, facts) = &*NOTHING;
        Self::new(plan, facts, fingerprint)
    }

    /// A hash of 128 bits, by seeds that this engine alone has.
    pub fn fingerprint(&self) -> [u64; 2] {
        self.fingerprint
    }

    /// Its values, the same for the same key in every process, and others for every other key of the
    /// rule: each with its length, so that `ab`, `c` is not `a`, `bc`.
    pub fn write_bytes(&self, write: &mut impl FnMut(&[u8])) {
        for part in self.plan.parts.iter() {
            self.value(part).feed(write);
        }
    }

    /// Shows each of its values to `show`, with the name of its fact, as text that is the same in every
    /// process.
    ///
    /// ```
    /// use tollgate_engine::backend::{RequestKey, SoleLimit};
    /// # use tollgate_engine::backend::LimitKind;
    ///
    /// # let limit = SoleLimit::new("logins", LimitKind::Concurrency(1))?;
    /// # let facts = SoleLimit::facts("ada");
    /// # let key = limit.check(&facts, 1).key;
    /// let mut text = String::new();
    /// key.each(&mut |fact, value| text += &format!("{fact}:{value};"));
    /// assert_eq!(text, "key:ada;");
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn each(&self, show: &mut dyn FnMut(&str, &str)) {
        for part in self.plan.parts.iter() {
            match self.value(part) {
                Value::Text(text) => show(&part.fact, text),
                Value::Address(address) => {
                    show(&part.fact, &Network(address, part.bits).to_string());
                }
            }
        }
    }

    /// Whether all requests share it.
    pub fn is_empty(&self) -> bool {
        self.plan.parts.is_empty()
    }

    fn value(&self, part: &Part) -> Value<'_> {
        let text = self.facts.get(&part.fact).unwrap_or_default();
        let address = part
            .bits
            .and_then(|bits| Some(Address::parse(text)?.masked(bits)));
        address.map_or(Value::Text(text), Value::Address)
    }
}

impl fmt::Display for RequestKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut space, mut result) = ("", Ok(()));
        self.each(&mut |fact, value| {
            if result.is_ok() {
                result = write!(f, "{space}{fact}={value}");
            }
            space = " ";
        });
        result
    }
}

/// An address of which only the leading bits count.
struct Network(Address, Option<u8>);

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(address, length) = self;
        let bits = address.bits();
        let v4 = u32::try_from(bits >> 96).map(Ipv4Addr::from_bits);
        let (whole, ip) = match (address.family(), v4) {
            (Family::V4, Ok(v4)) => (32, IpAddr::V4(v4)),
            _ => (128, IpAddr::V6(Ipv6Addr::from_bits(bits))),
        };
        match length.unwrap_or(whole).min(whole) {
            length if length == whole => write!(f, "{ip}"),
            length => write!(f, "{ip}/{length}"),
        }
    }
}

impl fmt::Debug for RequestKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(parts: &[KeyPart], facts: &Facts<'_>, hashers: &KeyHashers) -> [u64; 2] {
        let mut slots = Slots::default();
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
                    assert!(numbers.insert(packed(str::from_utf8(&text).unwrap())));
                }
            }
            assert!(numbers.insert(packed(&"a".repeat(length))));
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
    fn a_key_reads_as_its_facts() {
        let mut slots = Slots::default();
        let parts = [
            KeyPart::Fact("user".to_owned()),
            KeyPart::Network {
                fact: "ip".to_owned(),
                bits: 64,
            },
        ];
        let plan = KeyPlan::new(&parts, &mut slots);
        for (ip, expect) in [
            ("2001:db8::1", "user=42 ip=2001:db8::/64"),
            ("10.0.0.1", "user=42 ip=10.0.0.1"),
        ] {
            let facts = Facts::new().with("user", "42").with("ip", ip);
            assert_eq!(RequestKey::new(&plan, &facts, [0; 2]).to_string(), expect);
        }
        let facts = Facts::new().with("user", "42");
        let known = slots.look_up(&facts);
        assert_eq!(plan.fingerprint(&known, &KeyHashers::random()), None);
    }
}
