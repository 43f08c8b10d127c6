//! The limit that each descriptor of a request finds in the trees, and the values of its key there.

use super::DescriptorRequest;
use super::trees::{OwnLimit, Trees};
use crate::envoy::{self, Lookup};
use crate::facts::Facts;

/// The lookup of each descriptor of a request, and the limits that come along with them.
pub(in crate::engine) struct Lookups<'a> {
    pub(in crate::engine) found: Vec<Lookup<'a>>,
    own: Vec<Option<OwnLimit>>,
}

impl<'a> Lookups<'a> {
    pub(in crate::engine) fn new(trees: &'a Trees, request: &DescriptorRequest<'_>) -> Self {
        let lookups = request.descriptors.iter();
        let lookups = lookups.map(|descriptor| trees.lookup(request.domain, descriptor));
        let mut found: Vec<_> = lookups.collect();
        envoy::drop_replaced(&mut found);
        let own = request.descriptors.iter().zip(&found);
        let own = own.map(|(descriptor, lookup)| OwnLimit::of(trees, descriptor, lookup));
        Self {
            own: own.collect(),
            found,
        }
    }

    /// Each lookup, and the limit that its descriptor brings along.
    pub(in crate::engine) fn each(&self) -> impl Iterator<Item = (Lookup<'a>, Option<&OwnLimit>)> {
        let own = self.own.iter().map(Option::as_ref);
        self.found.iter().copied().zip(own)
    }

    /// The values that make the key of each descriptor.
    pub(in crate::engine) fn keys<'k>(
        &'k self,
        trees: &'k Trees,
        request: &DescriptorRequest<'k>,
    ) -> Vec<Facts<'k>> {
        let keys = request.descriptors.iter().zip(self.each());
        keys.map(|(descriptor, (lookup, own))| {
            trees.by_place(request.domain, descriptor, &lookup, own)
        })
        .collect()
    }
}
