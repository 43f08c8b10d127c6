//! Envoy's request in the form in which it is decided: a domain, its descriptors, and the cost.

use derive_more::Display;
use tollgate_engine::engine::DescriptorRequest;
use tollgate_engine::facts::Descriptor;

use crate::decision_answer::store_unreachable_for;
use crate::request_bounds::RequestBounds;
use crate::reservations::CapacityExceeded;

/// A request: a domain, its descriptors, and the cost of the whole request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RlsRequest<'a> {
    pub(crate) domain: &'a str,
    pub(crate) descriptors: &'a [Descriptor<'a>],
    /// Envoy sends 0 and means 1.
    pub(crate) hits_addend: u32,
}

/// Why a request is undecided.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
pub(crate) enum Undecided {
    /// The request is malformed.
    Invalid(String),
    /// The store is unreachable, and this limit's fallback is closed.
    #[display("{}", store_unreachable_for(_0))]
    Unavailable(String),
    /// There is no capacity for its permits.
    Full(CapacityExceeded),
}

impl RlsRequest<'_> {
    /// The key of such a request: its domain and its entries.
    pub(super) fn request_key(&self) -> Vec<u8> {
        let mut name = vec![b'd'];
        let entries = self.descriptors.iter().flat_map(|one| one.entries);
        let texts = entries.flat_map(|(key, value)| [*key, *value]);
        for text in std::iter::once(self.domain).chain(texts) {
            name.extend((text.len() as u64).to_le_bytes());
            name.extend(text.as_bytes());
        }
        name
    }

    /// What rules are charged or refunded, once for the request: the first cost of its descriptors that isn't zero.
    /// `None` if no cost is set: then it is 1, or the rule's own cost.
    pub(super) fn cost(&self) -> Option<u64> {
        let whole = self.whole_cost();
        let gives_back = self.is_refund();
        let such = self
            .descriptors
            .iter()
            .filter(|one| one.refund == gives_back);
        let mut costs = such.map(|one| one.cost.or(whole));
        costs.find(|cost| *cost != Some(0)).unwrap_or(Some(0))
    }

    /// The cost of each descriptor that sets none.
    pub(super) fn whole_cost(&self) -> Option<u64> {
        (self.hits_addend > 0).then(|| u64::from(self.hits_addend))
    }

    /// Whether a descriptor brings a limit along.
    pub(super) fn brings_limit(&self) -> bool {
        self.descriptors.iter().any(|one| one.limit.is_some())
    }

    /// Whether all descriptors are refunds.
    pub(super) fn is_refund(&self) -> bool {
        self.descriptors.iter().all(|one| one.refund)
    }

    /// Whether no descriptor takes tokens: a peek or a refund holds no permits.
    pub(super) fn is_free(&self) -> bool {
        let takes = |one: &Descriptor<'_>| !one.refund && one.cost != Some(0);
        !self.descriptors.iter().any(takes)
    }

    /// The descriptors with this replica's share of the limits that come along; `None` if nothing changes.
    pub(super) fn divided_descriptors(&self, by: u32) -> Option<Vec<Descriptor<'_>>> {
        if by <= 1 || !self.brings_limit() {
            return None;
        }
        let part = |requests: u32| (requests / by).max(requests.min(1));
        let each = self.descriptors.iter().map(|one| Descriptor {
            limit: one.limit.map(|(requests, unit)| (part(requests), unit)),
            ..*one
        });
        Some(each.collect())
    }

    /// The request in the type of the engine's trees.
    pub(super) fn descriptor_request(&self) -> DescriptorRequest<'_> {
        DescriptorRequest {
            domain: self.domain,
            descriptors: self.descriptors,
            hits_addend: self.hits_addend,
        }
    }

    pub(super) fn check(&self, bounds: &RequestBounds) -> Result<(), Undecided> {
        let (found, most) = (self.descriptors.len(), bounds.max_descriptors);
        let entries: usize = self.descriptors.iter().map(|one| one.entries.len()).sum();
        let wrong = match (self.domain, found) {
            ("", _) => "the domain is empty".to_owned(),
            (_, 0) => "there are no descriptors".to_owned(),
            _ if found > most => {
                format!("{found} descriptors, more than the {most} that are taken")
            }
            _ if entries > bounds.max_arguments => {
                let most = bounds.max_arguments;
                format!("{entries} entries, more than the {most} that are taken")
            }
            _ => return Ok(()),
        };
        Err(Undecided::Invalid(wrong))
    }
}
