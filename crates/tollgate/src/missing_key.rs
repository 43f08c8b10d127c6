//! The policy for a request that lacks the key of its limit.

use std::fmt;

/// The policy for a request that lacks the key of its limit. Rules of a policy (`on_missing_key`) and middleware share
/// it.
///
/// A fallback to another key is no part of it: a list of keys (`key: {first: [user, ip]}`, `keys::first`) names the
/// fallback, and this policy applies to requests that have none of the keys.
///
/// ```
/// use tollgate::OnMissingKey;
///
/// assert_eq!(OnMissingKey::ALL.map(OnMissingKey::name), ["pass", "deny", "one_counter"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnMissingKey {
    /// The request passes: the limit doesn't apply to it.
    Pass,
    /// The request is denied.
    Deny,
    /// All requests without a key share one counter.
    OneCounter,
}

impl OnMissingKey {
    /// Every choice.
    pub const ALL: [Self; 3] = [Self::Pass, Self::Deny, Self::OneCounter];

    /// The word for this choice in a policy file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Deny => "deny",
            Self::OneCounter => "one_counter",
        }
    }
}

impl fmt::Display for OnMissingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
