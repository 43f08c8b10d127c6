//! The key of one request: its values, as text, as bytes and as a fingerprint.

use std::fmt;
use std::mem;
use std::sync::LazyLock;

use super::key::{KeyPlan, KeyPlanPart};
use crate::address::{Family, Network};
use crate::facts::Facts;
use crate::key_text::{QuotedText, write_pair};

/// The text in place of the key, for requests that lack one and count together.
pub(crate) const MISSING_KEY: &str = "(missing key)";
/// The first byte of a fallback key, and of a missing key. The bytes of a value start with 0, 4 or 6.
const FALLBACK: u8 = 1;
const MISSING: u8 = 2;

/// One value of a key.
enum KeyValue<'a> {
    Text(&'a str),
    Network(Network),
}

impl KeyValue<'_> {
    /// Feeds the value so that no two lists of values feed the same bytes.
    fn feed(&self, feed: &mut impl FnMut(&[u8])) {
        match self {
            Self::Text(text) => {
                let length = u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes();
                feed(&[0, length[0], length[1], length[2], length[3]]);
                feed(text.as_bytes());
            }
            Self::Network(network) => {
                let address = network.first;
                let family = match address.family {
                    Family::V4 => 4,
                    Family::V6 => 6,
                };
                feed(&[family]);
                feed(&address.bits.to_be_bytes());
            }
        }
    }
}

/// The key of a request for one rule: its values, and their fingerprint.
///
/// Two of n keys share a 128-bit fingerprint with probability n² / 2¹²⁹. As text it reads `user=42 ip=2001:db8::/64`,
/// or `(missing key)` for requests without a key that count together. The [bytes](Self::write_bytes) are for stores.
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
#[derive(Clone, Copy, derive_more::Debug)]
#[debug("RequestKey({self})")]
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

    /// A key of which only the fingerprint is known.
    pub(crate) fn unnamed(fingerprint: [u64; 2]) -> Self {
        static NOTHING: LazyLock<(KeyPlan, Facts<'static>)> =
            LazyLock::new(|| (KeyPlan::default(), Facts::new()));
        let (plan, facts) = &*NOTHING;
        Self::new(plan, facts, fingerprint)
    }

    /// Whether the key was made from this set of facts.
    pub(crate) fn has_facts(&self, facts: &Facts<'_>) -> bool {
        std::ptr::eq(
            std::ptr::from_ref(self.facts).cast::<()>(),
            std::ptr::from_ref(facts).cast::<()>(),
        )
    }

    /// A hash of 128 bits, with seeds that this engine alone has.
    pub fn fingerprint(&self) -> [u64; 2] {
        self.fingerprint
    }

    /// Writes its values as bytes, which are the same in every process and differ from those of every other key of
    /// the rule. Each value has its length before it, so that `ab`, `c` isn't `a`, `bc`. A fallback key has its
    /// number before its values.
    pub fn write_bytes(&self, write: &mut impl FnMut(&[u8])) {
        let Some((number, parts)) = self.plan.choose_key(self.facts) else {
            return write(&[MISSING]);
        };
        if number > 0 {
            write(&[FALLBACK, number]);
        }
        for part in parts {
            self.value(part).feed(write);
        }
    }

    /// Calls `show` with the fact's name and the text of each value, which is the same in every process. For requests
    /// that lack a key and count together, it is `(missing key)`, which is no fact's name, with an empty value.
    ///
    /// ```
    /// use tollgate_engine::backend::{RequestKey, StandaloneLimit};
    /// # use tollgate_engine::backend::LimitKind;
    ///
    /// # let limit = StandaloneLimit::new("logins", LimitKind::Concurrency(1))?;
    /// # let facts = StandaloneLimit::facts("ada");
    /// # let key = limit.check(&facts, 1).key;
    /// let mut text = String::new();
    /// key.each(&mut |fact, value| text += &format!("{fact}:{value};"));
    /// assert_eq!(text, "key:ada;");
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn each(&self, show: &mut dyn FnMut(&str, &str)) {
        let _ = self.try_each(|fact, value| {
            show(fact, value);
            Ok(())
        });
    }

    /// As [`each`](Self::each), until `show` fails.
    pub(crate) fn try_each(&self, mut show: impl FnMut(&str, &str) -> fmt::Result) -> fmt::Result {
        let Some((_, parts)) = self.plan.choose_key(self.facts) else {
            return show(MISSING_KEY, "");
        };
        parts.iter().try_for_each(|part| match self.value(part) {
            KeyValue::Text(text) => show(&part.fact, text),
            KeyValue::Network(network) => show(&part.fact, &network.to_string()),
        })
    }

    /// Whether all requests share this key.
    pub fn is_empty(&self) -> bool {
        self.plan.is_empty()
    }

    fn value(&self, part: &KeyPlanPart) -> KeyValue<'_> {
        let text = self.facts.get(&part.fact).unwrap_or_default();
        let network = part.network(self.facts, text);
        network.map_or(KeyValue::Text(text), KeyValue::Network)
    }
}

impl fmt::Display for RequestKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.plan.choose_key(self.facts).is_none() {
            return f.write_str(MISSING_KEY);
        }
        let mut space = "";
        self.try_each(|fact, value| {
            f.write_str(mem::replace(&mut space, " "))?;
            write_pair(f, fact, QuotedText(value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::KeyHashers;
    use crate::matcher::FactIndex;
    use crate::policy::{KeyPart, Limits, Rule};

    #[test]
    fn a_key_reads_as_its_facts() {
        let mut slots = FactIndex::default();
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

    #[test]
    fn a_key_to_fall_back_to_says_which_it_is_and_has_bytes_of_its_own() {
        let part = |fact: &str| KeyPart::Fact(fact.to_owned());
        let rule = Rule {
            key: vec![part("user")],
            fallback_keys: vec![vec![part("ip")]],
            ..Rule::new("a", Limits::default())
        };
        let plan = KeyPlan::of(&rule, &mut FactIndex::default());
        let describe = |facts: &Facts<'_>| {
            let key = RequestKey::new(&plan, facts, [0; 2]);
            let mut bytes = Vec::new();
            key.write_bytes(&mut |piece| bytes.extend_from_slice(piece));
            (key.to_string(), bytes)
        };
        let user = describe(&Facts::new().with("user", "::1").with("ip", "::1"));
        let ip = describe(&Facts::new().with("ip", "::1"));
        let none = describe(&Facts::new().with("tenant", "::1"));
        assert_eq!(
            (&*user.0, &*ip.0, &*none.0),
            ("user=::1", "ip=::/64", "(missing key)")
        );
        assert_eq!(user.1, b"\0\0\0\0\x03::1");
        let mut address = [0; 19];
        (address[0], address[1], address[2]) = (1, 1, 6);
        assert_eq!(ip.1, address);
        assert_eq!(none.1, [2]);
    }
}
