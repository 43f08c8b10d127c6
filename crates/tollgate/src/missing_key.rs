//! What happens to a request that lacks the key it should be limited by.

use std::fmt;

/// What happens to a request that lacks the key it should be limited by: one choice for rules of a policy
/// (`on_missing_key`) and for middleware.
///
/// Another key to fall back to isn't part of this choice: a list of keys (`key: {first: [user, ip]}`, `keys::first`) names it, and
/// this applies to requests that have none of them.
///
/// ```
/// use tollgate::OnMissingKey;
///
/// assert_eq!(OnMissingKey::ALL.map(OnMissingKey::name), ["pass", "deny", "one_counter"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnMissingKey {
    /// It passes: the limit doesn't apply to it.
    Pass,
    /// It is denied.
    Deny,
    /// All requests without a key share one counter.
    OneCounter,
}

impl OnMissingKey {
    /// Every choice.
    pub const ALL: [Self; 3] = [Self::Pass, Self::Deny, Self::OneCounter];

    /// The word for it in a policy.
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
