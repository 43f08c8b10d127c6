//! Computes the response for a request from the decisions on its descriptors: pure functions without state or time.

use std::time::Duration;

use tollgate::{Decision, Outcome};

use super::{CompiledLimit, LookupResult};
use crate::facts::{Descriptor, Unit};
use crate::policy::Mode;

/// The effect of a request's descriptor on its counter.
///
/// ```
/// use tollgate_engine::envoy::{Charge, descriptor_charge};
/// use tollgate_engine::facts::Descriptor;
///
/// let descriptor = Descriptor { cost: Some(7), ..Descriptor::new(&[]) };
/// assert_eq!(descriptor_charge(&descriptor, 1), Charge::Spend(7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Spends this many tokens. 0 peeks.
    Spend(u64),
    /// Refunds this many tokens, whichever request spent them. A refund always passes.
    Refund(u64),
}

/// The charge of a descriptor: its own cost, or else the cost of the request (`hits_addend`), where 0 means 1.
///
/// ```
/// use tollgate_engine::envoy::{Charge, descriptor_charge};
/// use tollgate_engine::facts::Descriptor;
///
/// let descriptor = Descriptor::new(&[("user", "42")]);
/// assert_eq!(descriptor_charge(&descriptor, 0), Charge::Spend(1));
/// assert_eq!(descriptor_charge(&descriptor, 3), Charge::Spend(3));
/// let peek = Descriptor { cost: Some(0), ..descriptor };
/// assert_eq!(descriptor_charge(&peek, 3), Charge::Spend(0));
/// let refund = Descriptor { refund: true, ..descriptor };
/// assert_eq!(descriptor_charge(&refund, 3), Charge::Refund(3));
/// ```
pub fn descriptor_charge(descriptor: &Descriptor<'_>, hits_addend: u32) -> Charge {
    let cost = descriptor.cost.unwrap_or(u64::from(hits_addend.max(1)));
    if descriptor.refund {
        Charge::Refund(cost)
    } else {
        Charge::Spend(cost)
    }
}

/// Drops the limits of a request that other limits of the same request replace. A dropped limit still replaces
/// others. An unlimited one is never dropped.
///
/// ```
/// use tollgate_engine::envoy::{self, DescriptorIndex, LookupResult, remove_replaced_limits};
/// use tollgate_engine::facts::Descriptor;
///
/// let file = "
/// domain: edge
/// descriptors:
/// - {key: all, rate_limit: {name: all, unit: second, requests_per_unit: 5}}
/// - {key: vip, rate_limit: {unlimited: true, replaces: [{name: all}]}}
/// ";
/// let compiled = DescriptorIndex::new(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// let entries = [[("all", "")], [("vip", "")]];
/// let mut found = entries.each_ref().map(|entry| compiled.lookup("edge", &Descriptor::new(entry)));
/// remove_replaced_limits(&mut found);
/// assert!(matches!(found, [LookupResult::Replaced(_), LookupResult::Limited(_)]));
/// ```
pub fn remove_replaced_limits(found: &mut [LookupResult<'_>]) {
    for at in 0..found.len() {
        let LookupResult::Limited(leaf) = found[at] else {
            continue;
        };
        let Some(name) = leaf.limit.name.as_ref().filter(|_| !is_unlimited(leaf)) else {
            continue;
        };
        let mut leaves = found.iter().filter_map(LookupResult::leaf);
        if leaves.any(|other| other.limit.replaces.contains(name)) {
            found[at] = LookupResult::Replaced(leaf);
        }
    }
}

/// Whether a request or a descriptor passes.
///
/// ```
/// use tollgate_engine::envoy::{LookupResult, StatusCode, limit_status};
///
/// assert_eq!(limit_status(LookupResult::NoMatch, &[]).code, StatusCode::Ok);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusCode {
    /// It passes.
    Ok,
    /// It is over the limit.
    OverLimit,
}

/// The status of one descriptor.
///
/// ```
/// use tollgate_engine::envoy::{LookupResult, limit_status};
///
/// let nothing = limit_status(LookupResult::NoMatch, &[]);
/// assert!(nothing.current_limit.is_none() && !nothing.would_deny && !nothing.quota_mode);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitStatus<'p> {
    /// Whether the descriptor passes. It always does if its limit is in shadow mode.
    pub code: StatusCode,
    /// The limit that decided, if any.
    pub current_limit: Option<CurrentLimit<'p>>,
    /// How many requests would pass now: 2³²−1 if the descriptor is unlimited, 0 if no limit decided.
    pub remaining: u32,
    /// The duration until the limit is as fresh as if it were unused.
    pub reset_after: Duration,
    /// Whether a limit in shadow mode would have denied the request.
    pub would_deny: bool,
    /// Whether the limit denies a request only if all other limits in quota mode do.
    pub quota_mode: bool,
}

/// A limit, as a response reports it.
///
/// ```
/// use tollgate::Decision;
/// use tollgate_engine::envoy::{self, DescriptorIndex, limit_status};
/// use tollgate_engine::facts::{Descriptor, Unit};
///
/// let file = "domain: edge\ndescriptors: [{key: a, rate_limit: {name: days, unit: day, requests_per_unit: 5}}]";
/// let compiled = DescriptorIndex::new(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// let found = compiled.lookup("edge", &Descriptor::new(&[("a", "b")]));
/// let current = limit_status(found, &[Decision::UNLIMITED]).current_limit.expect("a limit");
/// assert_eq!((current.requests_per_unit, current.unit, current.name), (5, Some(Unit::Day), Some("days")));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CurrentLimit<'p> {
    /// The number of requests.
    pub requests_per_unit: u32,
    /// The unit, if the period is one of envoyproxy/ratelimit's.
    pub unit: Option<Unit>,
    /// The limit's name.
    pub name: Option<&'p str>,
}

/// The status of a descriptor, from its lookup result and the decisions of its limits: a decision for each rate, then
/// for the quota, then for the concurrency limit. All of them must have allowed the request.
///
/// The status reports the tightest of them: of denials, the one with the longest wait; of allowances, the one with
/// the least remaining.
///
/// ```
/// use tollgate::Decision;
/// use tollgate_engine::envoy::{LookupResult, StatusCode, limit_status};
/// use tollgate_engine::facts::Unit;
///
/// let nothing = limit_status(LookupResult::NoMatch, &[]);
/// assert_eq!((nothing.code, nothing.current_limit), (StatusCode::Ok, None));
/// let asked = LookupResult::Requested { requests: 5, unit: Unit::Week, counts_as: None };
/// let current = limit_status(asked, &[Decision::UNLIMITED]).current_limit.expect("what was asked for");
/// assert_eq!((current.requests_per_unit, current.unit), (5, Some(Unit::Week)));
/// ```
pub fn limit_status<'p>(lookup: LookupResult<'p>, decisions: &[Decision]) -> LimitStatus<'p> {
    let open = LimitStatus {
        code: StatusCode::Ok,
        current_limit: None,
        remaining: 0,
        reset_after: Duration::ZERO,
        would_deny: false,
        quota_mode: false,
    };
    let (leaf, tight) = match lookup {
        LookupResult::NoMatch | LookupResult::Replaced(_) => return open,
        LookupResult::Limited(leaf) if is_unlimited(leaf) => {
            return LimitStatus {
                remaining: u32::MAX,
                ..open
            };
        }
        LookupResult::Limited(leaf) => (Some(leaf), tightest_decision(decisions)),
        LookupResult::Requested { .. } => (None, tightest_decision(decisions)),
    };
    let current_limit = match lookup {
        LookupResult::Requested { requests, unit, .. } => Some(CurrentLimit {
            requests_per_unit: requests,
            unit: Some(unit),
            name: None,
        }),
        _ => leaf.map(|leaf| current_limit(leaf, tight)),
    };
    let Some((_, decision)) = tight else {
        return LimitStatus {
            current_limit,
            ..open
        };
    };
    let is_over = !decision.is_allowed();
    let is_shadow = leaf.is_some_and(|leaf| leaf.limit.shadow);
    LimitStatus {
        code: status_code(is_over && !is_shadow),
        current_limit,
        remaining: saturate_to_u32(if is_over { 0 } else { decision.remaining }),
        reset_after: decision.reset_after,
        would_deny: is_over && is_shadow,
        quota_mode: leaf.is_some_and(|leaf| leaf.limit.quota_mode),
    }
}

/// The status of a request. It is over the limit if a limit outside quota mode denies it, or if there are limits in
/// quota mode and all of them deny it. In the global shadow mode every request passes.
///
/// ```
/// use tollgate_engine::envoy::{LookupResult, StatusCode, overall_code, limit_status};
/// use tollgate_engine::policy::Mode;
///
/// assert_eq!(overall_code(&[limit_status(LookupResult::NoMatch, &[])], Mode::Enforce), StatusCode::Ok);
/// ```
pub fn overall_code(statuses: &[LimitStatus<'_>], mode: Mode) -> StatusCode {
    let over = |status: &LimitStatus<'_>| status.code == StatusCode::OverLimit;
    let mut in_quota_mode = statuses
        .iter()
        .filter(|status| status.quota_mode)
        .peekable();
    let all_quotas = in_quota_mode.peek().is_some() && in_quota_mode.all(over);
    let any_alone = statuses
        .iter()
        .any(|status| !status.quota_mode && over(status));
    status_code(mode == Mode::Enforce && (any_alone || all_quotas))
}

const fn status_code(is_over: bool) -> StatusCode {
    if is_over {
        StatusCode::OverLimit
    } else {
        StatusCode::Ok
    }
}

const fn is_unlimited(leaf: &CompiledLimit) -> bool {
    leaf.limit.limits.unlimited
}

fn tightest_decision(decisions: &[Decision]) -> Option<(usize, &Decision)> {
    let decisions = decisions.iter().enumerate();
    // Denials sort before allowances. Among allowances no wait differs, so the remaining tokens decide.
    decisions.min_by_key(|(_, decision)| {
        let refused = decision.outcome != Outcome::Allowed;
        (
            !refused,
            std::cmp::Reverse(decision.wait_or_max()),
            decision.remaining,
        )
    })
}

fn current_limit<'p>(
    leaf: &'p CompiledLimit,
    tight: Option<(usize, &Decision)>,
) -> CurrentLimit<'p> {
    let limit = &leaf.limit;
    let at = tight.map_or(0, |(at, _)| at);
    let rate = limit.limits.rates.get(at);
    let requests = match (rate, tight) {
        (Some(rate), _) => rate.count(),
        (None, Some((_, decision))) => decision.limit,
        (None, None) => 0,
    };
    let unit = rate.and_then(|rate| limit.unit.or_else(|| Unit::of(rate.period()?)));
    CurrentLimit {
        requests_per_unit: saturate_to_u32(requests),
        unit,
        name: limit.name.as_deref(),
    }
}

fn saturate_to_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
