//! From descriptors to limits: compiled trees, and the limits of each descriptor of a request.

use std::fmt;
use std::mem;
use std::time::Duration;

use tollgate::{Algorithm, Decision, Rate, core::WindowAlignment};

use crate::counters::UNCOUNTED;
use crate::engine::presence::FactPresence;
use crate::envoy::{self, Charge, CompiledLimit, DescriptorIndex, LookupResult};
use crate::facts::{Descriptor, Facts};
use crate::key_text::{QuotedText, write_pair};
use crate::limits::{Check, Counter, KeyHashers, KeyPlan, Limit, LimitKind, RequestKey};
use crate::matcher::FactIndex;
use crate::policy::KeyPart;

/// Descriptor trees, and the limits of their leaves.
#[derive(Debug)]
pub(crate) struct Trees {
    pub(in crate::engine) compiled: DescriptorIndex,
    /// The limits of each leaf, by its number.
    limits: Box<[Box<[Limit]>]>,
    /// The name of each leaf, as in findings.
    names: Box<[String]>,
    /// Names for the positions of a list of values, used as facts of a key.
    place_names: Box<[String]>,
    /// The key plan for each number of values, by their positions.
    key_plans: Box<[KeyPlan]>,
    /// The tally row of each leaf, by its number. Empty if nothing is counted.
    tallies: Box<[u32]>,
    /// Whether any request had a limit.
    pub(crate) presence: FactPresence,
}

/// The number of values in the key of a requested limit without a configured one: the domain, the unit, and the
/// entries.
const UNCONFIGURED_PLACES: usize = 3;

impl Trees {
    /// Compiles trees. `limits` gives each limit of a leaf its counter.
    pub(crate) fn new<E>(
        domains: &envoy::DescriptorDomains,
        mut limits: impl FnMut(&CompiledLimit) -> Result<Vec<Limit>, E>,
    ) -> Result<Self, E> {
        let compiled = DescriptorIndex::new(domains);
        let leaves = compiled.leaves();
        let of_leaves = leaves.iter().map(|leaf| Ok(limits(leaf)?.into()));
        let of_leaves = of_leaves.collect::<Result<_, E>>()?;
        let deepest = leaves.iter().map(|leaf| leaf.steps.len()).max();
        // Proxies may send limits even if no tree has any.
        let most = deepest.unwrap_or(0).max(UNCONFIGURED_PLACES);
        let places: Box<[_]> = (0..most).map(|place| format!("{place:02}")).collect();
        // Values are found by their positions, not by fact numbers, so this index is dropped.
        let mut slots = FactIndex::default();
        let parts: Vec<_> = places.iter().cloned().map(KeyPart::Fact).collect();
        let plans = (0..=most).map(|length| KeyPlan::new(&parts[..length], &mut slots));
        Ok(Self {
            limits: of_leaves,
            names: leaves.iter().map(ToString::to_string).collect(),
            key_plans: plans.collect(),
            place_names: places,
            compiled,
            tallies: Box::default(),
            presence: FactPresence::default(),
        })
    }

    /// All leaves and their limits.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = (&CompiledLimit, &[Limit])> {
        let leaves = self.compiled.leaves().iter();
        leaves.map(|leaf| (leaf, self.limits(leaf)))
    }

    /// A leaf by its number, and its limits.
    pub(crate) fn leaf(&self, number: u32) -> (&CompiledLimit, &[Limit]) {
        let leaf = &self.compiled.leaves()[number as usize];
        (leaf, self.limits(leaf))
    }

    /// The name of a leaf.
    pub(super) fn name(&self, leaf: &CompiledLimit) -> &str {
        &self.names[leaf.id as usize]
    }

    /// Sets the tally rows of the leaves, in their order.
    pub(crate) fn assign_tallies(&mut self, tallies: Box<[u32]>) {
        self.tallies = tallies;
    }

    /// The tally row of a leaf.
    pub(crate) fn tally(&self, leaf: &CompiledLimit) -> u32 {
        let row = self.tallies.get(leaf.id as usize);
        row.copied().unwrap_or(UNCOUNTED)
    }

    pub(super) fn limits(&self, leaf: &CompiledLimit) -> &[Limit] {
        self.limits
            .get(leaf.id as usize)
            .map_or(&[], |limits| limits)
    }

    /// The key of a descriptor's counter, as facts named by their positions: the values of its entries, or the
    /// patterns by which values count together. A requested limit without a configured one has the domain, the unit
    /// and all entries as its key.
    pub(crate) fn key_facts<'a>(
        &'a self,
        domain: &'a str,
        descriptor: &Descriptor<'a>,
        lookup: &LookupResult<'a>,
        own: Option<&'a RequestedLimit>,
    ) -> Facts<'a> {
        let places = self.place_names.iter().map(String::as_str);
        if let (LookupResult::Requested { unit, .. }, Some(entries)) =
            (lookup, own.and_then(|own| own.entries.as_deref()))
        {
            return places.zip([domain, unit.name(), entries]).collect();
        }
        let leaf = lookup.counts_as();
        let values = descriptor.entries.iter().enumerate();
        let values = values.map(|(at, (_, value))| {
            let step = leaf.and_then(|leaf| leaf.steps.get(at));
            let shared = step.filter(|step| step.shared);
            shared
                .and_then(|step| step.value.as_deref())
                .unwrap_or(value)
        });
        places.zip(values).collect()
    }

    /// Whether any of these lookups leads to a leaf with limits.
    pub(crate) fn has_limits(&self, found: &[LookupResult<'_>]) -> bool {
        let mut leaves = found.iter().filter_map(LookupResult::leaf);
        leaves.any(|leaf| !self.limits(leaf).is_empty())
    }

    /// Whether there are any limits.
    pub(crate) fn is_any(&self) -> bool {
        !self.limits.is_empty()
    }

    /// The lookup result of a descriptor.
    pub(crate) fn lookup(&self, domain: &str, descriptor: &Descriptor<'_>) -> LookupResult<'_> {
        self.compiled.lookup(domain, descriptor)
    }

    /// The limit of a descriptor, and the fingerprint of its counter.
    pub(crate) fn leaf_of(
        &self,
        hashers: &KeyHashers,
        domain: &str,
        descriptor: &Descriptor<'_>,
    ) -> Option<(&CompiledLimit, [u64; 2])> {
        let leaf = self.lookup(domain, descriptor).leaf()?;
        Some((leaf, fingerprint(hashers, leaf, descriptor)))
    }

    /// The key with this fingerprint. Its values are found by their positions in the facts.
    pub(in crate::engine) fn key<'a>(
        &'a self,
        facts: &'a Facts<'a>,
        fingerprint: [u64; 2],
    ) -> Option<RequestKey<'a>> {
        let plan = self.key_plans.get(facts.iter().count())?;
        Some(RequestKey::new(plan, facts, fingerprint))
    }
}

pub(super) fn fingerprint(
    hashers: &KeyHashers,
    leaf: &CompiledLimit,
    descriptor: &Descriptor<'_>,
) -> [u64; 2] {
    hashers.feed(|put| envoy::counter_key(leaf, descriptor.entries, put))
}

/// A limit that a proxy sends in place of the policy's.
pub(crate) struct RequestedLimit {
    pub(super) limit: Limit,
    /// All entries in one text, if no configured limit has the counter: there may be more entries than any tree is
    /// deep.
    entries: Option<String>,
}

impl RequestedLimit {
    /// A window with the unit of the request.
    pub(super) fn of(
        trees: &Trees,
        descriptor: &Descriptor<'_>,
        lookup: &LookupResult<'_>,
    ) -> Option<Self> {
        let LookupResult::Requested {
            requests,
            unit,
            counts_as,
        } = lookup
        else {
            return None;
        };
        let period = Duration::from_secs(unit.seconds());
        let kind = LimitKind::Rate {
            rate: Rate::new(u64::from(*requests), period),
            algorithm: Algorithm::FixedWindow(WindowAlignment::default()),
        };
        // The unit is part of the key, so all requested limits share one counter number.
        let counter = Counter {
            name: "asked".to_owned(),
            ordinal: 0,
            // No other counter of the engine has a number as large.
            id: u64::MAX,
        };
        let limit = Limit::new(kind, counter).ok()?;
        let configured = counts_as.and_then(|leaf| trees.limits(leaf).first());
        Some(match configured {
            Some(configured) => Self {
                limit: limit.with_counter_of(configured),
                entries: None,
            },
            None => {
                let entries = descriptor.entries.iter();
                let entries = entries.map(|(key, value)| (*key, Some(*value)));
                Self {
                    limit,
                    entries: Some(envoy::path_name("", entries)),
                }
            }
        })
    }
}

/// A descriptor with its limits.
pub(crate) struct DescriptorMatch<'a> {
    /// `None` for a limit that the proxy sends.
    leaf: Option<&'a CompiledLimit>,
    pub(super) limits: &'a [Limit],
    pub(crate) key: RequestKey<'a>,
    pub(super) charge: Charge,
    /// The denial by an override that blocks it.
    pub(super) blocked: Option<Decision>,
    /// Whether its limits are those of an override.
    pub(super) is_changed: bool,
}

/// A key of a limit, in the form of its descriptors: `user=ada plan=free`.
pub(crate) struct LeafKey<'a>(pub(crate) &'a CompiledLimit, pub(crate) RequestKey<'a>);

impl fmt::Display for LeafKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut steps, mut space) = (self.0.steps.iter(), "");
        self.1.try_each(|place, value| {
            let name = steps.next().map_or(place, |step| &step.key);
            f.write_str(mem::replace(&mut space, " "))?;
            write_pair(f, name, QuotedText(value))
        })
    }
}

/// The effect of a limit's denial on the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DenialEffect {
    /// The request is denied.
    Denies,
    /// The request is denied if all other limits in quota mode deny it too.
    DeniesTogether,
    /// No effect.
    Shadow,
}

impl<'a> DescriptorMatch<'a> {
    pub(super) fn new(
        leaf: Option<&'a CompiledLimit>,
        limits: &'a [Limit],
        key: RequestKey<'a>,
    ) -> Option<Self> {
        (!limits.is_empty()).then_some(Self {
            leaf,
            limits,
            key,
            charge: Charge::Spend(0),
            blocked: None,
            is_changed: false,
        })
    }

    /// The checks to refund before anything is charged, if the descriptor refunds.
    pub(in crate::engine) fn refund_checks(&self) -> Option<Vec<Check<'a>>> {
        match self.charge {
            Charge::Refund(units) => Some(self.checks(units).collect()),
            Charge::Spend(_) => None,
        }
    }

    /// The checks of its limits. A refund has no check of a concurrency limit, which would take a permit.
    pub(in crate::engine) fn checks(&self, cost: u64) -> impl Iterator<Item = Check<'a>> {
        let key = self.key;
        let gives_back = matches!(self.charge, Charge::Refund(_));
        let is_slots = |limit: &Limit| matches!(limit.kind(), LimitKind::Concurrency(_));
        self.limits
            .iter()
            .filter(move |limit| !(gives_back && is_slots(limit)))
            .map(move |limit| Check { limit, key, cost })
    }

    /// The cost: zero for a refund.
    pub(in crate::engine) fn cost(&self) -> u64 {
        match self.charge {
            Charge::Spend(cost) => cost,
            Charge::Refund(_) => 0,
        }
    }

    pub(super) fn denial_effect(&self) -> DenialEffect {
        match self.leaf.map(|leaf| &leaf.limit) {
            Some(limit) if limit.shadow => DenialEffect::Shadow,
            // A block denies, whether or not other limits in quota mode have room.
            Some(limit) if limit.quota_mode && self.blocked.is_none() => {
                DenialEffect::DeniesTogether
            }
            _ => DenialEffect::Denies,
        }
    }

    /// Whether its limit is in quota mode, enforced or in shadow mode.
    pub(super) fn is_quota(&self) -> bool {
        self.leaf.is_some_and(|leaf| leaf.limit.quota_mode)
    }

    /// Its first counter. Only its own limit and those of equal entries use it.
    pub(super) fn counter(&self) -> CounterId {
        let limit = self.limits.first().map(|limit| limit.id);
        (limit.unwrap_or_default(), self.key.fingerprint())
    }
}

/// The number of a limit's counter, and the fingerprint of a key.
pub(super) type CounterId = (u64, [u64; 2]);
