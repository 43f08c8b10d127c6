//! What tells one counter of a rule from another: facts of a request, and what there is where those are missing.

use tollgate::OnMissingKey;

use super::Rule;

/// A fact that is part of a key.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::KeyPart;
///
/// let policy = Policy::from_text("limits: [{name: a, key: [user, ip/64], rate: 5/s}]", Format::Yaml)?.policy;
/// let network = KeyPart::Network { fact: "ip".to_owned(), bits: 64 };
/// assert_eq!(policy.rules[0].key, [KeyPart::Fact("user".to_owned()), network]);
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The fact as it is. Of `ip` it is the network of the client: 64 bits of an IPv6 address, unless who fills in the facts says
    /// [otherwise](crate::Facts::counting_clients_by).
    Fact(String),
    /// The network that an address is in: so many bits of it (`ip/64`). An IPv4 address counts as
    /// itself unless the bits are 32 or fewer.
    Network {
        /// The fact that holds the address.
        fact: String,
        /// How many leading bits count.
        bits: u8,
    },
}

impl KeyPart {
    /// The fact that it takes its value from.
    ///
    /// ```
    /// use tollgate_engine::policy::KeyPart;
    ///
    /// let network = KeyPart::Network { fact: "ip".to_owned(), bits: 64 };
    /// assert_eq!(network.fact(), "ip");
    /// ```
    pub fn fact(&self) -> &str {
        match self {
            Self::Fact(fact) | Self::Network { fact, .. } => fact,
        }
    }
}

impl Rule {
    /// Its key and the keys to fall back to, in their order: none if it has one counter for all.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::document::Format;
    ///
    /// let text = "limits: [{name: a, key: {first: [[tenant, user], ip]}, rate: 5/s}]";
    /// let policy = Policy::from_text(text, Format::Yaml)?.policy;
    /// let keys: Vec<usize> = policy.rules[0].keys().map(<[_]>::len).collect();
    /// assert_eq!(keys, [2, 1]);
    /// # Ok::<(), tollgate_engine::Rejected>(())
    /// ```
    pub fn keys(&self) -> impl Iterator<Item = &[KeyPart]> {
        let own = Some(self.key.as_slice()).filter(|key| !key.is_empty());
        let fallbacks = self.fallback_keys.iter().map(Vec::as_slice);
        own.into_iter().chain(fallbacks)
    }

    /// The facts that its keys take their values from; one that several keys have is listed for each of them.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::document::Format;
    ///
    /// let text = "limits: [{name: a, key: {first: [user, ip/64]}, rate: 5/s}]";
    /// let policy = Policy::from_text(text, Format::Yaml)?.policy;
    /// assert_eq!(policy.rules[0].key_facts().collect::<Vec<_>>(), ["user", "ip"]);
    /// # Ok::<(), tollgate_engine::Rejected>(())
    /// ```
    pub fn key_facts(&self) -> impl Iterator<Item = &str> {
        self.keys().flatten().map(KeyPart::fact)
    }

    /// Whether it applies only to requests that have one of its keys.
    pub(crate) fn needs_its_key(&self) -> bool {
        matches!(self.on_missing_key, None | Some(OnMissingKey::Pass))
    }
}
