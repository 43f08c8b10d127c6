//! Envoy's answer when no decision can be made, and the start warning about it.

use std::str::FromStr;

use tollgate_engine::Policy;
use tollgate_engine::policy::{Counting, DescriptorRule, FailureModes, Limits, OnStoreFailure};

/// Envoy's answer when the store is unreachable and the limit's fallback is closed.
///
/// ```
/// use tollgate_server::RlsFailureMode;
///
/// assert_eq!("deny".parse(), Ok(RlsFailureMode::Deny));
/// let error = "open".parse::<RlsFailureMode>().unwrap_err();
/// assert_eq!(error.to_string(), "no answer \"open\": it is error or deny");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RlsFailureMode {
    /// An error of gRPC: Envoy's own `failure_mode_deny` decides.
    #[default]
    Error,
    /// `OVER_LIMIT`; the metadata names the limit as `store_failure`.
    Deny,
}

/// The error for an unknown mode: see [`RlsFailureMode`].
#[derive(Clone, Debug, derive_more::Display, derive_more::Error, PartialEq, Eq)]
#[display("no answer {_0:?}: it is error or deny")]
pub struct UnknownRlsFailureMode(#[error(not(source))] String);

impl RlsFailureMode {
    /// The mode's name on the command line.
    ///
    /// ```
    /// assert_eq!(tollgate_server::RlsFailureMode::default().name(), "error");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Deny => "deny",
        }
    }

    /// A warning for operators who start a service on a store: which limits are closed while it is unreachable. `None`
    /// if no limit is.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::document::Format;
    /// use tollgate_server::RlsFailureMode;
    ///
    /// let policy = Policy::from_text("limits: [{name: monthly, key: user, quota: 5/month}]", Format::Yaml)?.policy;
    /// let warning = RlsFailureMode::Error.warning(&policy).expect("a quota is closed");
    /// assert!(warning.contains("\"monthly\""), "{warning}");
    /// assert_eq!(RlsFailureMode::Error.warning(&Policy::default()), None);
    /// # Ok::<(), tollgate_engine::LoadError>(())
    /// ```
    pub fn warning(self, policy: &Policy) -> Option<String> {
        let closed = closed(policy);
        let first = closed.first()?;
        let others = match closed.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let told = match self {
            Self::Error => {
                "Envoy gets an error, so that its failure_mode_deny decides (false lets requests pass); --rls-closed deny denies them"
            }
            Self::Deny => {
                "Envoy gets OVER_LIMIT, whatever its failure_mode_deny says; --rls-closed error leaves it to that"
            }
        };
        Some(format!(
            "while the store can't be asked, nothing passes {first:?}{others}: {told}"
        ))
    }
}

/// The limits that deny all requests while the store is unreachable.
fn closed(policy: &Policy) -> Vec<String> {
    let is_closed = |failure: FailureModes, limits: &Limits, counting: Counting| {
        failure.has_mode(limits, OnStoreFailure::Closed) && counting != Counting::Local
    };
    let rules = policy.rules.iter();
    let rules = rules.filter(|rule| is_closed(rule.on_store_failure, &rule.limits, rule.counting));
    let mut names: Vec<_> = rules.map(|rule| rule.name.clone()).collect();
    let tiers = policy.tiers.iter();
    let tiers =
        tiers.filter(|(_, tier)| is_closed(tier.on_store_failure, &tier.limits, tier.counting));
    names.extend(tiers.map(|(name, _)| name.clone()));
    for (domain, tree) in &policy.domains {
        closed_below(domain, &tree.descriptors, &is_closed, &mut names);
    }
    names
}

fn closed_below(
    path: &str,
    rules: &[DescriptorRule],
    is_closed: &impl Fn(FailureModes, &Limits, Counting) -> bool,
    names: &mut Vec<String>,
) {
    for rule in rules {
        let path = step(path, rule);
        closed_below(&path, &rule.descriptors, is_closed, names);
        let limit = rule.limit.as_ref();
        if limit
            .is_some_and(|limit| is_closed(limit.on_store_failure, &limit.limits, limit.counting))
        {
            names.push(path);
        }
    }
}

/// The path of a descriptor below another.
fn step(path: &str, rule: &DescriptorRule) -> String {
    match &rule.value {
        Some(value) => format!("{path}/{}={value}", rule.key),
        None => format!("{path}/{}", rule.key),
    }
}

impl FromStr for RlsFailureMode {
    type Err = UnknownRlsFailureMode;

    fn from_str(name: &str) -> Result<Self, UnknownRlsFailureMode> {
        let mut all = [Self::Error, Self::Deny].into_iter();
        let found = all.find(|one| one.name() == name);
        found.ok_or_else(|| UnknownRlsFailureMode(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use tollgate_engine::document::Format;

    use super::*;

    fn names(text: &str) -> Vec<String> {
        let policy = Policy::from_text(text, Format::Yaml).expect("a policy");
        closed(&policy.policy)
    }

    #[test]
    fn limits_that_are_closed_are_found_wherever_they_are() {
        let rules = "limits:
- {name: quota, quota: 5/day}
- {name: rate, rate: 5/s}
- {name: said, rate: 5/s, on_store_failure: closed}
- {name: here, quota: 5/day, counting: local}
- {name: open, quota: 5/day, on_store_failure: open}
";
        assert_eq!(names(rules), ["quota", "said"]);
        let tree = "domain: edge
descriptors:
- key: a
  value: b
  descriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 5, on_store_failure: closed}}]
- {key: d, rate_limit: {unit: day, requests_per_unit: 5}}
";
        assert_eq!(names(tree), ["edge/a=b/c"]);
    }
}
