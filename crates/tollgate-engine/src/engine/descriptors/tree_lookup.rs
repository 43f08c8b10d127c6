//! What the descriptors of a request meet: limits of the trees, those that they bring along, and overrides of operators.

use std::slice;

use super::DescriptorRequest;
use super::trees::{Met, RequestedLimit, fingerprint};
use crate::engine::orders::{Held, Limiter, OverrideRef};
use crate::engine::request_match::blocked_until;
use crate::engine::rules::Rules;
use crate::envoy::{self, Lookup};
use crate::facts::Facts;
use crate::limits::KeyHashers;

/// What trees need of a request.
#[derive(Clone, Copy)]
pub(in crate::engine) struct TreeInput<'a> {
    pub(in crate::engine) rules: &'a Rules,
    pub(in crate::engine) hashers: &'a KeyHashers,
    /// The overrides of operators, if there are any.
    pub(in crate::engine) orders: Option<&'a Held>,
    pub(in crate::engine) request: DescriptorRequest<'a>,
}

/// What the descriptors of a request find, and the limits that they bring along.
pub(in crate::engine) struct TreeLookups<'a> {
    pub(in crate::engine) found: Vec<Lookup<'a>>,
    own: Vec<Option<RequestedLimit>>,
}

impl<'a> TreeLookups<'a> {
    pub(in crate::engine) fn new(input: &TreeInput<'a>) -> Self {
        let (trees, request) = (&input.rules.trees, &input.request);
        let found = request.descriptors.iter();
        let found = found.map(|descriptor| trees.lookup(request.domain, descriptor));
        let mut found: Vec<_> = found.collect();
        envoy::drop_replaced(&mut found);
        let own = request.descriptors.iter().zip(&found);
        let own = own.map(|(descriptor, lookup)| RequestedLimit::of(trees, descriptor, lookup));
        Self {
            own: own.collect(),
            found,
        }
    }

    /// The values of each descriptor's key, by their places.
    pub(in crate::engine) fn keys<'k>(&'k self, input: &TreeInput<'k>) -> Vec<Facts<'k>> {
        let (trees, request) = (&input.rules.trees, &input.request);
        let each = request
            .descriptors
            .iter()
            .zip(self.found.iter().zip(&self.own));
        let keys = each.map(|(descriptor, (lookup, own))| {
            trees.by_place(request.domain, descriptor, lookup, own.as_ref())
        });
        keys.collect()
    }

    /// The limits that each descriptor meets, if it meets any.
    pub(in crate::engine) fn meet<'k>(
        &'k self,
        input: &TreeInput<'k>,
        keys: &'k [Facts<'k>],
    ) -> Vec<Option<Met<'k>>> {
        let (trees, request) = (&input.rules.trees, &input.request);
        let bypass = input.orders.and_then(Held::global_bypass);
        let each = self.found.iter().zip(&self.own);
        let each = each.zip(request.descriptors.iter().zip(keys));
        let met = each.map(|((lookup, own), (descriptor, facts))| {
            let mut met = match *lookup {
                Lookup::Limited(leaf) => {
                    let key = fingerprint(input.hashers, leaf, descriptor);
                    Met::new(Some(leaf), trees.limits(leaf), trees.key(facts, key)?)
                }
                Lookup::Asked {
                    unit, counts_as, ..
                } => {
                    let (domain, entries) = (request.domain, descriptor.entries);
                    let key = match counts_as {
                        Some(leaf) => fingerprint(input.hashers, leaf, descriptor),
                        None => {
                            (input.hashers).feed(|put| envoy::asked_key(domain, entries, unit, put))
                        }
                    };
                    let limits = slice::from_ref(&own.as_ref()?.limit);
                    Met::new(None, limits, trees.key(facts, key)?)
                }
                Lookup::Nothing | Lookup::Replaced(_) => None,
            }?;
            met.charge = envoy::charge(descriptor, request.hits_addend);
            match input.orders {
                Some(orders) => under(met, orders, bypass, lookup),
                None => Some(met),
            }
        });
        met.collect()
    }
}

/// It under the overrides of operators; none if they let it pass. A bypass of everything is for each descriptor.
#[cold]
fn under<'a>(
    mut met: Met<'a>,
    orders: &'a Held,
    everything: Option<OverrideRef>,
    lookup: &Lookup<'_>,
) -> Option<Met<'a>> {
    // Orders of trees name a descriptor, and have no patterns that facts could match.
    let no_facts = Facts::new();
    let rulings = lookup
        .counts_as()
        .map(|leaf| orders.of(Limiter::Leaf(leaf.id), met.key.fingerprint(), &no_facts));
    let rulings = rulings.unwrap_or_default();
    let (block, bypass) = (rulings.block, everything.or(rulings.bypass));
    let changed = rulings.changed.map(|changed| changed.order);
    if let Some(acts) = block.or(bypass).or(changed) {
        orders.note(acts);
    }
    met.blocked = block.map(|order| blocked_until(order.until, orders.now));
    if let Some(changed) = rulings.changed.filter(|_| lookup.leaf().is_some()) {
        (met.limits, met.is_changed) = (&changed.limits, true);
    }
    (met.blocked.is_some() || bypass.is_none()).then_some(met)
}
