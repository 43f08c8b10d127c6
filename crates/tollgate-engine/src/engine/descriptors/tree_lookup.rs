//! The limits of a request's descriptors: those of the trees, those that the proxy sends, and overrides of operators.

use std::slice;

use super::DescriptorRequest;
use super::trees::{DescriptorMatch, RequestedLimit, fingerprint};
use crate::engine::overrides::{ActiveOverrides, Limiter, OverrideRef};
use crate::engine::request_match::blocked_until;
use crate::engine::rules::CompiledPolicy;
use crate::envoy::{self, LookupResult};
use crate::facts::Facts;
use crate::limits::KeyHashers;

/// The input of the trees for a request.
#[derive(Clone, Copy)]
pub(in crate::engine) struct TreeInput<'a> {
    pub(in crate::engine) rules: &'a CompiledPolicy,
    pub(in crate::engine) hashers: &'a KeyHashers,
    /// The overrides of operators, if there are any.
    pub(in crate::engine) orders: Option<&'a ActiveOverrides>,
    pub(in crate::engine) request: DescriptorRequest<'a>,
}

/// The lookup results of a request's descriptors, and the limits that the proxy sends.
pub(in crate::engine) struct TreeLookups<'a> {
    pub(in crate::engine) lookups: Vec<LookupResult<'a>>,
    requested_limits: Vec<Option<RequestedLimit>>,
}

impl<'a> TreeLookups<'a> {
    pub(in crate::engine) fn new(input: &TreeInput<'a>) -> Self {
        let (trees, request) = (&input.rules.trees, &input.request);
        let found = request.descriptors.iter();
        let found = found.map(|descriptor| trees.lookup(request.domain, descriptor));
        let mut found: Vec<_> = found.collect();
        envoy::remove_replaced_limits(&mut found);
        let own = request.descriptors.iter().zip(&found);
        let own = own.map(|(descriptor, lookup)| RequestedLimit::of(trees, descriptor, lookup));
        Self {
            requested_limits: own.collect(),
            lookups: found,
        }
    }

    /// The values of each descriptor's key, named by their positions.
    pub(in crate::engine) fn key_facts<'k>(&'k self, input: &TreeInput<'k>) -> Vec<Facts<'k>> {
        let (trees, request) = (&input.rules.trees, &input.request);
        let each = request
            .descriptors
            .iter()
            .zip(self.lookups.iter().zip(&self.requested_limits));
        let keys = each.map(|(descriptor, (lookup, own))| {
            trees.key_facts(request.domain, descriptor, lookup, own.as_ref())
        });
        keys.collect()
    }

    /// The limits of each descriptor, if it has any.
    pub(in crate::engine) fn match_limits<'k>(
        &'k self,
        input: &TreeInput<'k>,
        keys: &'k [Facts<'k>],
    ) -> Vec<Option<DescriptorMatch<'k>>> {
        let (trees, request) = (&input.rules.trees, &input.request);
        let bypass = input.orders.and_then(ActiveOverrides::global_bypass);
        let each = self.lookups.iter().zip(&self.requested_limits);
        let each = each.zip(request.descriptors.iter().zip(keys));
        let met = each.map(|((lookup, own), (descriptor, facts))| {
            let mut met = match *lookup {
                LookupResult::Limited(leaf) => {
                    let key = fingerprint(input.hashers, leaf, descriptor);
                    DescriptorMatch::new(Some(leaf), trees.limits(leaf), trees.key(facts, key)?)
                }
                LookupResult::Requested {
                    unit, counts_as, ..
                } => {
                    let (domain, entries) = (request.domain, descriptor.entries);
                    let key = match counts_as {
                        Some(leaf) => fingerprint(input.hashers, leaf, descriptor),
                        None => (input.hashers)
                            .feed(|put| envoy::requested_limit_key(domain, entries, unit, put)),
                    };
                    let limits = slice::from_ref(&own.as_ref()?.limit);
                    DescriptorMatch::new(None, limits, trees.key(facts, key)?)
                }
                LookupResult::NoMatch | LookupResult::Replaced(_) => None,
            }?;
            met.charge = envoy::descriptor_charge(descriptor, request.hits_addend);
            match input.orders {
                Some(orders) => apply_overrides(met, orders, bypass, lookup),
                None => Some(met),
            }
        });
        met.collect()
    }
}

/// Applies the overrides of operators. `None` if one bypasses the limit. `everything` is a bypass of all requests,
/// which applies to each descriptor.
#[cold]
fn apply_overrides<'a>(
    mut met: DescriptorMatch<'a>,
    orders: &'a ActiveOverrides,
    everything: Option<OverrideRef>,
    lookup: &LookupResult<'_>,
) -> Option<DescriptorMatch<'a>> {
    // Overrides of trees name a descriptor, and have no patterns for facts.
    let no_facts = Facts::new();
    let rulings = lookup
        .counts_as()
        .map(|leaf| orders.for_key(Limiter::Leaf(leaf.id), met.key.fingerprint(), &no_facts));
    let rulings = rulings.unwrap_or_default();
    let (block, bypass) = (rulings.block, everything.or(rulings.bypass));
    let changed = rulings.limits.map(|changed| changed.order);
    if let Some(acts) = block.or(bypass).or(changed) {
        orders.record_use(acts);
    }
    met.blocked = block.map(|order| blocked_until(order.until, orders.now));
    if let Some(changed) = rulings.limits.filter(|_| lookup.leaf().is_some()) {
        (met.limits, met.is_changed) = (&changed.limits, true);
    }
    (met.blocked.is_some() || bypass.is_none()).then_some(met)
}
