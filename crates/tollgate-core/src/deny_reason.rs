//! The reason of a denial, as one word: the same list for decisions, headers, metrics and logs.

use core::fmt;

/// The reason of a denial. Decisions, headers, metrics and logs all use [`name`](Self::name).
///
/// ```
/// use tollgate_core::DenyReason;
///
/// let names = DenyReason::ALL.map(DenyReason::name);
/// assert_eq!(names[..4], ["rate", "quota", "concurrency", "too_large"]);
/// assert_eq!(names[4..], ["blocked", "missing_key", "queue_full", "shed", "store"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenyReason {
    /// Too many requests in a short time.
    Rate,
    /// The quota of a longer period is used up.
    Quota,
    /// Too many concurrent requests.
    Concurrency,
    /// The request costs more than the limit can ever hold, or is larger than the bounds allow.
    TooLarge,
    /// A deny list, a `block` of the policy or an operator's override blocks the request.
    Blocked,
    /// The request lacks the key of the limit, and the rule denies such requests.
    MissingKey,
    /// The request may wait for the limit, but the wait queue is full.
    QueueFull,
    /// The server is overloaded: an adaptive limit, or the share of this priority class, is used up.
    Shed,
    /// The store is unreachable, and the rule denies requests until it answers again.
    Store,
}

impl DenyReason {
    /// Every reason, ordered by its number.
    pub const ALL: [Self; 9] = [
        Self::Rate,
        Self::Quota,
        Self::Concurrency,
        Self::TooLarge,
        Self::Blocked,
        Self::MissingKey,
        Self::QueueFull,
        Self::Shed,
        Self::Store,
    ];

    /// The reason as one word in snake case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Quota => "quota",
            Self::Concurrency => "concurrency",
            Self::TooLarge => "too_large",
            Self::Blocked => "blocked",
            Self::MissingKey => "missing_key",
            Self::QueueFull => "queue_full",
            Self::Shed => "shed",
            Self::Store => "store",
        }
    }
}

impl fmt::Display for DenyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_listed_by_their_number() {
        for (number, reason) in DenyReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
    }
}
