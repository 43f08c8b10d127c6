//! Notes on limits that need more than a policy: permits over protocols that can't name them, and quotas.

use tollgate_engine::policy::{Mode, Policy, Rule};

use super::check::all_as_rules;

/// The note on permits over Envoy's and Redis' protocols. `None` without concurrency limits.
pub(crate) fn lease_note(policy: &Policy) -> Option<String> {
    let names = first_rule_name(policy, |rule| rule.limits.concurrency.is_some())?;
    Some(format!(
        "slots of {names} that are taken over Envoy's protocol or Redis' are leases: free again by negative \
         hits or TG.REFUND, else when their time is over"
    ))
}

/// The note that Envoy's and Redis' protocols don't report latencies to adaptive limits. `None` without such limits.
pub(crate) fn adaptive_note(policy: &Policy) -> Option<String> {
    let names = first_rule_name(policy, |rule| rule.adaptive.is_some())?;
    Some(format!(
        "{names} adapts to how long requests take, which nobody tells over Envoy's protocol or Redis': such requests only \
         take places, as leases do; over HTTP /v1/permits/release tells it, and so does the middleware"
    ))
}

/// The note that quotas are counted in memory. `None` without quotas.
pub(crate) fn quota_note(policy: &Policy) -> Option<String> {
    let names = first_rule_name(policy, |rule| rule.limits.quota.is_some())?;
    Some(format!("quotas of {names} are kept in memory"))
}

/// The first rule for which `is_such` holds, and the number of further ones.
fn first_rule_name(policy: &Policy, is_such: impl Fn(&Rule) -> bool) -> Option<String> {
    let all = all_as_rules(policy).into_iter().map(|(_, rule)| rule);
    let such = all.filter(|rule| rule.mode != Mode::Off && is_such(rule));
    let names: Vec<_> = such.map(|rule| rule.name).collect();
    let first = names.first()?;
    Some(match names.len() - 1 {
        0 => format!("{first:?}"),
        more => format!("{first:?} and {more} more"),
    })
}
