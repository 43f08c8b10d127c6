//! The failure modes of limits: what requests get while the store is unreachable.

use super::Limits;

/// What a request gets while the store is unreachable.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::OnStoreFailure;
///
/// let policy = Policy::from_text("limits: [{name: a, rate: 9/s, on_store_failure: open}]", Format::Yaml)?.policy;
/// assert_eq!(policy.rules[0].on_store_failure.rate, OnStoreFailure::Open);
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// The request passes.
    Open,
    /// The request is denied.
    Closed,
    /// A limit in this process alone decides.
    Local,
    /// Like [`Local`](Self::Local). A store that has failed for a while also gets no requests for some time.
    CircuitBreak,
}

impl OnStoreFailure {
    /// The name in policy files.
    ///
    /// ```
    /// use tollgate_engine::policy::OnStoreFailure;
    ///
    /// assert_eq!(OnStoreFailure::CircuitBreak.name(), "circuit-break");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local => "local",
            Self::CircuitBreak => "circuit-break",
        }
    }
}

/// The failure mode for each kind of limit in a rule or tier. A request passes only if all kinds let it pass: one
/// closed limit denies it.
///
/// By default a quota is closed, because spending beyond a total can't be undone. Rates and concurrency limits are
/// local.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::{FailureModes, OnStoreFailure};
///
/// let text = "limits: [{name: a, rate: 9/s, quota: 99/day, on_store_failure: {quota: open}}]";
/// let policy = Policy::from_text(text, Format::Yaml)?.policy;
/// let modes = FailureModes { quota: OnStoreFailure::Open, ..FailureModes::default() };
/// assert_eq!(policy.rules[0].on_store_failure, modes);
/// assert_eq!(modes.rate, OnStoreFailure::Local);
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FailureModes {
    /// The failure mode of rates.
    pub rate: OnStoreFailure,
    /// The failure mode of the quota.
    pub quota: OnStoreFailure,
    /// The failure mode of the concurrency limit.
    pub concurrency: OnStoreFailure,
}

impl Default for FailureModes {
    fn default() -> Self {
        Self {
            quota: OnStoreFailure::Closed,
            ..Self::from(OnStoreFailure::Local)
        }
    }
}

impl From<OnStoreFailure> for FailureModes {
    /// The same mode for all kinds.
    fn from(all: OnStoreFailure) -> Self {
        Self {
            rate: all,
            quota: all,
            concurrency: all,
        }
    }
}

impl FailureModes {
    /// The modes of the kinds that `limits` has, by their names in policy files.
    ///
    /// ```
    /// use tollgate::Rate;
    /// use tollgate_engine::policy::{FailureModes, Limits, OnStoreFailure};
    ///
    /// let limits = Limits { rates: vec![Rate::per_second(5)], quota: Some("5/day".parse()?), ..Limits::default() };
    /// let used: Vec<_> = FailureModes::default().modes_for(&limits).collect();
    /// assert_eq!(used, [("rate", OnStoreFailure::Local), ("quota", OnStoreFailure::Closed)]);
    /// # Ok::<(), tollgate::quota::QuotaError>(())
    /// ```
    pub fn modes_for(
        self,
        limits: &Limits,
    ) -> impl Iterator<Item = (&'static str, OnStoreFailure)> + use<> {
        let has_slots = limits.concurrency.is_some();
        let each = [
            (!limits.rates.is_empty(), "rate", self.rate),
            (limits.quota.is_some(), "quota", self.quota),
            (has_slots, "concurrency", self.concurrency),
        ];
        let used = each.into_iter().filter(|(is_used, ..)| *is_used);
        used.map(|(_, name, mode)| (name, mode))
    }

    /// The mode that all of these limits share, if they do. For a rule without limits, it is the mode of rates.
    ///
    /// ```
    /// use tollgate_engine::policy::{FailureModes, Limits, OnStoreFailure};
    ///
    /// let slots = Limits { concurrency: Some(5), ..Limits::default() };
    /// assert_eq!(FailureModes::default().common_mode(&slots), Some(OnStoreFailure::Local));
    /// ```
    pub fn common_mode(self, limits: &Limits) -> Option<OnStoreFailure> {
        let mut used = self.modes_for(limits).map(|(_, mode)| mode);
        let first = used.next().unwrap_or(self.rate);
        used.all(|mode| mode == first).then_some(first)
    }

    /// Whether any of these limits has the `wanted` mode.
    ///
    /// ```
    /// use tollgate_engine::policy::{FailureModes, Limits, OnStoreFailure};
    ///
    /// let quota = Limits { quota: Some("5/day".parse()?), ..Limits::default() };
    /// assert!(FailureModes::default().has_mode(&quota, OnStoreFailure::Closed));
    /// # Ok::<(), tollgate::quota::QuotaError>(())
    /// ```
    pub fn has_mode(self, limits: &Limits, wanted: OnStoreFailure) -> bool {
        self.modes_for(limits).any(|(_, mode)| mode == wanted)
    }

    /// The modes as text: one word if all are the same, otherwise a word for each kind.
    ///
    /// ```
    /// use tollgate::Rate;
    /// use tollgate_engine::policy::{FailureModes, Limits};
    ///
    /// let limits = Limits { rates: vec![Rate::per_second(5)], quota: Some("5/day".parse()?), ..Limits::default() };
    /// assert_eq!(FailureModes::default().to_text(&limits), "rate local, quota closed");
    /// # Ok::<(), tollgate::quota::QuotaError>(())
    /// ```
    pub fn to_text(self, limits: &Limits) -> String {
        match self.common_mode(limits) {
            Some(one) => one.name().to_owned(),
            None => {
                let each = self.modes_for(limits);
                let each = each.map(|(kind, mode)| format!("{kind} {}", mode.name()));
                each.collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// The modes in the notation of policy files. `None` if they are the default.
    pub(crate) fn policy_text(self, limits: &Limits) -> Option<String> {
        let default = Self::default();
        if self.modes_for(limits).eq(default.modes_for(limits)) {
            return None;
        }
        Some(match self.common_mode(limits) {
            Some(one) => one.name().to_owned(),
            None => {
                let each = self.modes_for(limits);
                let each = each.map(|(kind, mode)| format!("{kind}: {}", mode.name()));
                format!("{{{}}}", each.collect::<Vec<_>>().join(", "))
            }
        })
    }
}
