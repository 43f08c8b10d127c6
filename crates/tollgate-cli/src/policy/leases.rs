//! What is to be known of slots where callers have no names for them.

use tollgate_engine::envoy;
use tollgate_engine::policy::{Limits, Mode, Policy};

/// What Envoy's and Redis' protocols make of slots; none if the policy has none.
pub(crate) fn leases(policy: &Policy) -> Option<String> {
    let has_slots = |limits: &Limits| limits.concurrency.is_some();
    let rules = policy.rules.iter();
    let rules = rules.filter(|rule| rule.mode != Mode::Off && has_slots(&rule.limits));
    let mut names: Vec<_> = rules.map(|rule| rule.name.clone()).collect();
    let tiers = policy.tiers.iter();
    names.extend(
        tiers
            .filter(|(_, tier)| has_slots(&tier.limits))
            .map(|(name, _)| name.clone()),
    );
    let trees = envoy::Compiled::new(&policy.domains);
    let leaves = trees.leaves().iter();
    names.extend(
        leaves
            .filter(|leaf| has_slots(&leaf.limit.limits))
            .map(ToString::to_string),
    );
    let first = names.first()?;
    let others = match names.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "slots of {first:?}{others} that are taken over Envoy's protocol or Redis' are leases: free again by negative \
         hits or TG.REFUND, else when their time is over"
    ))
}
