//! What is to be known of limits that need more than a policy: slots where callers have no names for them, and quotas.

use tollgate_engine::envoy;
use tollgate_engine::policy::{Limits, Mode, Policy, Rule};

/// What Envoy's and Redis' protocols make of slots; none if the policy has none.
pub(crate) fn leases(policy: &Policy) -> Option<String> {
    let names = named(policy, |limits| limits.concurrency.is_some(), |_| false)?;
    Some(format!(
        "slots of {names} that are taken over Envoy's protocol or Redis' are leases: free again by negative \
         hits or TG.REFUND, else when their time is over"
    ))
}

/// What Envoy's and Redis' protocols tell limits that adapt, which is nothing; none if the policy has none.
pub(crate) fn untold(policy: &Policy) -> Option<String> {
    let names = named(policy, |_| false, |rule| rule.adaptive.is_some())?;
    Some(format!(
        "{names} adapts to how long requests take, which nobody tells over Envoy's protocol or Redis': such requests only \
         take places, as leases do; over HTTP /v1/permits/release tells it, and so does the middleware"
    ))
}

/// That quotas are kept in memory; none if the policy has none.
pub(crate) fn quotas(policy: &Policy) -> Option<String> {
    let names = named(policy, |limits| limits.quota.is_some(), |_| false)?;
    Some(format!("quotas of {names} are kept in memory"))
}

/// The first of the limits that are such, and how many more there are.
fn named(
    policy: &Policy,
    is_such: impl Fn(&Limits) -> bool,
    is_rule: impl Fn(&Rule) -> bool,
) -> Option<String> {
    let rules = policy.rules.iter().filter(|rule| rule.mode != Mode::Off);
    let rules = rules.filter(|rule| is_such(&rule.limits) || is_rule(rule));
    let mut names: Vec<_> = rules.map(|rule| rule.name.clone()).collect();
    let tiers = policy.tiers.iter();
    names.extend(
        tiers
            .filter(|(_, tier)| is_such(&tier.limits))
            .map(|(name, _)| name.clone()),
    );
    let trees = envoy::Compiled::new(&policy.domains);
    let leaves = trees.leaves().iter();
    names.extend(
        leaves
            .filter(|leaf| is_such(&leaf.limit.limits))
            .map(ToString::to_string),
    );
    let first = names.first()?;
    Some(match names.len() - 1 {
        0 => format!("{first:?}"),
        more => format!("{first:?} and {more} more"),
    })
}
