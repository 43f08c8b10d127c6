//! The policy of a full table for new keys.

use tollgate_core::LimitError;

/// The policy for a new key when a table has as many active keys as its capacity.
///
/// The keys in the table keep their limits under every policy but [`EvictNearestIdle`](Self::EvictNearestIdle). Not
/// every table supports every policy:
///
/// | | `SharedBucket` | `DenyNew` | `AdmitNew` | `EvictNearestIdle` |
/// |---|---|---|---|---|
/// | [`KeyedLimiter`](crate::KeyedLimiter) | default | yes | yes | yes |
/// | [`StoredKeyLimiter`](crate::StoredKeyLimiter) | default | yes | yes | yes |
/// | [`KeyedConcurrencyLimiter`](crate::KeyedConcurrencyLimiter) | default | yes | no | no |
/// | `QuotaLimiter` | no | default | yes | no |
///
/// The builder of a table that doesn't support the policy returns an error.
///
/// ```
/// use tollgate::{WhenFull, KeyedConcurrencyLimiter};
///
/// let builder = KeyedConcurrencyLimiter::<String>::builder(5, 1_000).at_cap(WhenFull::EvictNearestIdle);
/// assert_eq!(
///     builder.build().unwrap_err().to_string(),
///     "a KeyedConcurrencyLimiter can't treat new keys at its cap as WhenFull::EvictNearestIdle says; \
///      use SharedBucket or DenyNew"
/// );
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// All keys without a slot share one limit, that of a single key. It is the default of rates and concurrency
    /// limits. A flood of new keys can't get more than one key's worth through, and a legitimate new key has a chance.
    /// A [`KeyedLimiter`](crate::KeyedLimiter) has one such limit for each rate.
    #[default]
    SharedBucket,
    /// New keys are denied until a slot is free: the default of quotas.
    DenyNew,
    /// New keys pass without being counted: availability over protection.
    AdmitNew,
    /// The key that will be idle next makes room, although it is active: similar to an LRU cache. In a
    /// [`KeyedLimiter`](crate::KeyedLimiter) it is the next of the eight keys in the new key's cache lines.
    ///
    /// It opens a way around the limit: a client that can invent keys can flush its own spent key out of the table and
    /// start it afresh. Blocked keys are never evicted.
    EvictNearestIdle,
}

impl WhenFull {
    /// The error of a table that doesn't support this policy.
    pub(crate) const fn unsupported_by(
        self,
        limiter: &'static str,
        instead: &'static str,
    ) -> LimitError {
        let policy = match self {
            Self::SharedBucket => "SharedBucket",
            Self::DenyNew => "DenyNew",
            Self::AdmitNew => "AdmitNew",
            Self::EvictNearestIdle => "EvictNearestIdle",
        };
        LimitError::UnsupportedWhenFull {
            policy,
            limiter,
            instead,
        }
    }
}
