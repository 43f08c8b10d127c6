//! One query to a backend: may this key take this cost from this limit?

use super::kind::LimitKind;
use super::limit::Limit;
use super::request_key::RequestKey;

/// One query to a backend: may this key take this cost from this limit?
///
/// ```
/// use tollgate::{Algorithm, Rate};
/// use tollgate_engine::backend::{LimitKind, StandaloneLimit};
///
/// let kind = LimitKind::Rate { rate: Rate::per_second(5), algorithm: Algorithm::Gcra };
/// let (limit, facts) = (StandaloneLimit::new("logins", kind)?, StandaloneLimit::facts("ada"));
/// let check = limit.check(&facts, 2);
/// assert_eq!(format!("{} of {} for {}", check.cost, check.limit.kind(), check.key), "2 of 5/s for key=ada");
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// The limit.
    pub limit: &'a Limit,
    /// The key whose counter is charged.
    pub key: RequestKey<'a>,
    /// The cost.
    pub cost: u64,
}

impl<'a> Check<'a> {
    /// A check for a key of which only the fingerprint is known. Rates and concurrency limits in memory need no more;
    /// quotas are kept by the key itself.
    pub fn by_fingerprint(limit: &'a Limit, fingerprint: [u64; 2], cost: u64) -> Self {
        let key = RequestKey::unnamed(fingerprint);
        Self { limit, key, cost }
    }

    /// How much the check takes from its limit: one permit from a concurrency limit, whatever the cost.
    pub(crate) fn units(&self) -> u64 {
        match self.limit.kind() {
            LimitKind::Concurrency(_) | LimitKind::Adaptive(_) => 1,
            _ => self.cost,
        }
    }
}
