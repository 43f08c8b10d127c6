//! What becomes of their limits: rules of our own form, and what those can't say.

use crate::policy::Rule;

/// Rules of our own form, and what they don't say.
///
/// ```
/// use tollgate_engine::envoy;
///
/// let file = "
/// domain: edge
/// descriptors:
/// - {key: a, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}
/// ";
/// let converted = envoy::to_rules(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// assert_eq!((converted.rules.len(), converted.unsaid.len()), (1, 1));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// In the order of domains and then of the file.
    pub rules: Vec<Rule>,
    /// What is lost, in the same order.
    pub unsaid: Vec<Unsaid>,
}

/// What becomes of a limit of which something can't be said.
///
/// ```
/// use tollgate_engine::envoy::{self, Loss};
///
/// let file = "
/// domain: edge
/// descriptors:
/// - {key: a, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}
/// - {key: b, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
/// ";
/// let converted = envoy::to_rules(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// let losses: Vec<_> = converted.unsaid.iter().map(|unsaid| unsaid.loss).collect();
/// assert_eq!(losses, [Loss::Told, Loss::Limit]);
/// assert!(Loss::Limit.decides() && !Loss::Told.decides());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// There is no rule for it: it limits nothing any more.
    Limit,
    /// Some requests are decided otherwise.
    Otherwise,
    /// Only what is told of it is less.
    Told,
}

impl Loss {
    /// Whether a request may be decided otherwise than before.
    pub const fn decides(self) -> bool {
        !matches!(self, Self::Told)
    }
}

/// Something that our own form can't say.
///
/// ```
/// use tollgate_engine::envoy;
///
/// let file = "
/// domain: edge
/// descriptors:
/// - {key: a, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}
/// ";
/// let converted = envoy::to_rules(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// let unsaid = &converted.unsaid[0];
/// assert_eq!((unsaid.rule.as_deref(), unsaid.what), (Some("edge/a"), "detailed_metric"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsaid {
    /// The rule that says the rest, if any does.
    pub rule: Option<String>,
    /// The limit it is about, `domain/key=value/key`, or the domain.
    pub limit: String,
    /// What is lost.
    pub what: &'static str,
    /// What that means.
    pub loss: Loss,
}
