//! Why a charge to a quota was denied, and the receipt of one that was made.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Decision, Outcome};

use super::Quota;

/// Why a charge was denied; nothing was charged. The text begins with "quota:", that of a rate limit
/// with "rate limit:".
///
/// ```
/// use tollgate::{Quota, QuotaLimiter, Timestamp, clock::Manual};
///
/// let june = Timestamp::from_secs(1_717_200_000);
/// let limiter = QuotaLimiter::builder(Quota::per_month(2), 1_000_000).clock(Manual::starting_at(june)).build()?;
/// limiter.charge("tenant", 2)?;
/// let denied = limiter.charge("tenant", 1).unwrap_err();
/// assert_eq!(denied.to_string(), "quota: 2/month is used up; resets in 30d");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaDenied {
    /// The quota has fewer units remaining than the cost.
    Exhausted {
        /// The quota that denied.
        quota: Quota,
        /// The quota's decision.
        decision: Decision,
    },
    /// The cost is above the quota, so no retry can succeed.
    ExceedsQuota {
        /// The quota that denied.
        quota: Quota,
        /// The quota's decision.
        decision: Decision,
    },
    /// The key is new, and the table is full.
    TooManyKeys {
        /// The most keys that the table holds.
        capacity: usize,
        /// When to try again.
        decision: Decision,
    },
    /// The bound on units that are granted but not saved is reached.
    TooMuchUnsaved {
        /// The bound.
        max_unsaved: u64,
        /// When to try again.
        decision: Decision,
    },
    /// The key's next block can't be saved ahead, because the file fails.
    ClaimNotSaved {
        /// When to try again.
        decision: Decision,
    },
    /// This process was forked from the one that opened the file. Only the parent process may grant
    /// units.
    Forked {
        /// Never: no retry can succeed.
        decision: Decision,
    },
    /// The key is too long.
    KeyTooLong {
        /// The length of the key in bytes.
        bytes: usize,
        /// Never: no retry can succeed.
        decision: Decision,
    },
}

impl QuotaDenied {
    /// The most bytes of a key.
    pub const MAX_KEY_BYTES: usize = 1024;

    pub(super) fn used_up(quota: Quota, decision: Decision) -> Self {
        match decision.outcome {
            Outcome::Never => Self::ExceedsQuota { quota, decision },
            Outcome::Allowed | Outcome::Denied => Self::Exhausted { quota, decision },
        }
    }

    /// The decision when no retry can succeed.
    const NEVER_DECISION: Decision =
        Decision::new(Outcome::Never, 0, 0, Duration::MAX, Duration::ZERO);

    pub(super) const FORKED: Self = Self::Forked {
        decision: Self::NEVER_DECISION,
    };

    pub(super) fn key_too_long(bytes: usize) -> Self {
        let decision = Self::NEVER_DECISION;
        Self::KeyTooLong { bytes, decision }
    }

    /// The decision of the quota: remaining, `retry_after`, `reset_after`.
    pub const fn decision(&self) -> &Decision {
        match self {
            Self::Exhausted { decision, .. }
            | Self::ExceedsQuota { decision, .. }
            | Self::TooManyKeys { decision, .. }
            | Self::TooMuchUnsaved { decision, .. }
            | Self::ClaimNotSaved { decision }
            | Self::Forked { decision }
            | Self::KeyTooLong { decision, .. } => decision,
        }
    }
}

impl fmt::Display for QuotaDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wait = RoundedDuration(self.decision().wait_or_max());
        match self {
            Self::Exhausted { quota, decision } if decision.remaining == 0 => {
                write!(f, "quota: {quota} is used up; resets in {wait}")
            }
            Self::Exhausted { quota, decision } => write!(
                f,
                "quota: {quota} has only {} left; enough in {wait}",
                decision.remaining
            ),
            Self::ExceedsQuota { quota, .. } => {
                write!(f, "quota: the cost is above {quota}, so it never fits")
            }
            Self::TooManyKeys { capacity, .. } => write!(
                f,
                "quota: no room for a new key, {capacity} are counted; retry in {wait}"
            ),
            Self::TooMuchUnsaved { max_unsaved, .. } => write!(
                f,
                "quota: {max_unsaved} units are granted but not saved yet; retry in {wait}"
            ),
            Self::ClaimNotSaved { .. } => write!(
                f,
                "quota: the store fails, and no more can be saved ahead; retry in {wait}"
            ),
            Self::Forked { .. } => f.write_str(
                "quota: this process was forked from the one that opened the store, which alone grants \
                 from it; open a store after the fork",
            ),
            Self::KeyTooLong { bytes, .. } => write!(
                f,
                "quota: a key of {bytes} bytes is longer than the {} that keys may have",
                Self::MAX_KEY_BYTES
            ),
        }
    }
}

impl std::error::Error for QuotaDenied {}

/// A charge that was made. It can be refunded once, if the request didn't happen; dropping it keeps the
/// charge.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "refund it if the request didn't happen; dropping it keeps the charge"]
pub struct Receipt {
    pub(super) decision: Decision,
    /// The id of the key's entry at the time of the charge. A reset changes it.
    pub(super) id: u64,
    /// The time of the charge, which determines the lot in which it was counted.
    pub(super) at: u64,
    pub(super) cost: u64,
}

impl Receipt {
    /// The quota's decision at the time of the charge.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }
}

/// A wait in a readable format: its two largest units, rounded up.
struct RoundedDuration(Duration);

impl fmt::Display for RoundedDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let seconds = seconds.saturating_add(u64::from(self.0.subsec_nanos() > 0));
        let (large, length, small, parts) = match seconds {
            86_400.. => ("d", 86_400, "h", 3_600),
            3_600.. => ("h", 3_600, "m", 60),
            60.. => ("m", 60, "s", 1),
            _ => return write!(f, "{seconds}s"),
        };
        let rounded = seconds.div_ceil(parts).saturating_mul(parts);
        let (whole, rest) = (rounded / length, rounded % length / parts);
        if rest == 0 {
            write!(f, "{whole}{large}")
        } else {
            write!(f, "{whole}{large} {rest}{small}")
        }
    }
}
