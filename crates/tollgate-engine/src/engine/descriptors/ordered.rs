//! What operators have ordered of the descriptors of a request.

use super::trees::Met;
use crate::engine::gather::blocked_until;
use crate::engine::orders::{InForce, Limiter};
use crate::envoy::{Lookup, Status};
use crate::facts::{Facts, Unit};
use crate::limits::{Limit, LimitKind};

/// Notes of each descriptor whether it is blocked, and what limits it meets instead of the policy's. One that is
/// bypassed meets none.
#[cold]
pub(super) fn heed<'a>(found: &[Lookup<'_>], met: &mut [Option<Met<'a>>], orders: InForce<'a>) {
    let everything = orders.of_everything();
    for (lookup, own) in found.iter().zip(met) {
        let Some(met) = own else {
            continue;
        };
        let leaf = lookup.counts_as();
        // Orders of trees name a descriptor, and have no patterns that facts could match.
        let no_facts = Facts::new();
        let rulings =
            leaf.map(|leaf| orders.of(Limiter::Leaf(leaf.id), met.key.fingerprint(), &no_facts));
        let rulings = rulings.unwrap_or_default();
        let block = rulings.block;
        let bypass = everything.or(rulings.bypass);
        let acts = block
            .or(bypass)
            .or(rulings.changed.map(|changed| changed.order));
        if let Some(acts) = acts {
            orders.note(acts);
        }
        met.blocked = block.map(|order| blocked_until(order.until, orders.now));
        if let Some(changed) = rulings.changed.filter(|_| lookup.leaf().is_some()) {
            (met.limits, met.is_changed) = (&changed.limits, true);
        }
        if met.blocked.is_none() && bypass.is_some() {
            *own = None;
        }
    }
}

/// What is told of a descriptor, by what was ordered of it.
pub(super) fn told<'p>(mut status: Status<'p>, met: Option<&Met<'_>>) -> Status<'p> {
    let Some(met) = met else {
        return status;
    };
    status.quota_mode &= met.blocked.is_none();
    if let (Some(told), true) = (&mut status.current_limit, met.is_changed)
        && let Some(LimitKind::Rate { rate, .. }) = met.limits.first().map(Limit::kind)
    {
        told.requests_per_unit = u32::try_from(rate.count()).unwrap_or(u32::MAX);
        told.unit = rate.period().and_then(Unit::of);
    }
    status
}
