//! What a table does with a new key when it is full.

use tollgate_core::LimitError;

/// What happens to a new key when a table has as many active keys as its capacity says.
///
/// Keys that are there keep their limits, whatever the policy, except under
/// [`EvictNearestIdle`](Self::EvictNearestIdle). Which of them a table can do:
///
/// | | `ShareOne` | `DenyNew` | `AdmitNew` | `EvictNearestIdle` |
/// |---|---|---|---|---|
/// | [`KeyedLimiter`](crate::KeyedLimiter) | default | yes | yes | yes |
/// | [`StoredKeyLimiter`](crate::StoredKeyLimiter) | default | yes | yes | yes |
/// | [`KeyedConcurrencyLimiter`](crate::KeyedConcurrencyLimiter) | default | yes | no | no |
/// | `QuotaLimiter` | no | default | yes | no |
///
/// A builder that is told what its table can't do returns an error.
///
/// ```
/// use tollgate::{WhenFull, KeyedConcurrencyLimiter};
///
/// let builder = KeyedConcurrencyLimiter::<String>::builder(5, 1_000).at_cap(WhenFull::EvictNearestIdle);
/// assert_eq!(
///     builder.build().unwrap_err().to_string(),
///     "a KeyedConcurrencyLimiter can't treat new keys at its cap as WhenFull::EvictNearestIdle says; \
///      use ShareOne or DenyNew"
/// );
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// All keys without a slot share one limit, that of all keys: the default of rates and slots. A flood of
    /// new keys can't get more than one key's worth through, and a rightful new key has a chance. A
    /// [`KeyedLimiter`](crate::KeyedLimiter) has one for each rate that they are asked at.
    #[default]
    SharedBucket,
    /// New keys are denied until a slot is free: the default of quotas.
    DenyNew,
    /// New keys pass without being counted: availability over protection.
    AdmitNew,
    /// The key that is idle next makes room, though it is active: for those who expect an LRU. In a
    /// [`KeyedLimiter`](crate::KeyedLimiter) that is the next of the eight that stand in the new key's way.
    ///
    /// This is a way around the limit: whoever can make up new keys can flush its own spent key out
    /// of the table and start it afresh. Blocked keys are never evicted.
    EvictNearestIdle,
}

impl WhenFull {
    /// The error of a table that can't do this.
    pub(crate) const fn unsupported_by(
        self,
        limiter: &'static str,
        instead: &'static str,
    ) -> LimitError {
        let policy = match self {
            Self::SharedBucket => "ShareOne",
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
