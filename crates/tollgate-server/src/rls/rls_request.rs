//! What Envoy asks, as it is decided: a domain, its descriptors, and what that costs.

use derive_more::Display;
use tollgate_engine::engine::DescriptorRequest;
use tollgate_engine::facts::Descriptor;

use crate::decision_answer::store_unreachable_for;
use crate::request_bounds::RequestBounds;
use crate::reservations::CapacityExceeded;

/// What is asked: a domain, its descriptors, and what the whole request costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RlsRequest<'a> {
    pub(crate) domain: &'a str,
    pub(crate) descriptors: &'a [Descriptor<'a>],
    /// Envoy sends zero and means one.
    pub(crate) hits_addend: u32,
}

/// Why nothing was decided.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
pub(crate) enum Undecided {
    /// The question makes no sense.
    Invalid(String),
    /// The store can't be asked about this limit, and nothing passes without it.
    #[display("{}", store_unreachable_for(_0))]
    Unavailable(String),
    /// What it would hold can't be kept.
    Full(CapacityExceeded),
}

impl RlsRequest<'_> {
    /// What a request like this is known by: its domain and its entries.
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

    /// What rules are charged or given back, once a request: what the first of its descriptors says that isn't zero.
    /// None if nothing is said: it is one then, or what the rule says.
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

    /// What each descriptor costs that says nothing else.
    pub(super) fn whole_cost(&self) -> Option<u64> {
        (self.hits_addend > 0).then(|| u64::from(self.hits_addend))
    }

    /// Whether a descriptor brings a limit along.
    pub(super) fn brings_limit(&self) -> bool {
        self.descriptors.iter().any(|one| one.limit.is_some())
    }

    /// All of it is given back.
    pub(super) fn is_refund(&self) -> bool {
        self.descriptors.iter().all(|one| one.refund)
    }

    /// Nothing is taken: who looks or gives back holds no slot afterwards.
    pub(super) fn is_free(&self) -> bool {
        let takes = |one: &Descriptor<'_>| !one.refund && one.cost != Some(0);
        !self.descriptors.iter().any(takes)
    }

    /// The same with the part of limits that come along, where several count apart.
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

    /// The same for the engine's trees.
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
