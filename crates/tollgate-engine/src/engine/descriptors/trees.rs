//! From descriptors to limits: trees of them compiled, and what each descriptor of a request meets there.

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

/// Trees of descriptors, and the limits of their leaves.
#[derive(Debug)]
pub(crate) struct Trees {
    pub(in crate::engine) compiled: DescriptorIndex,
    /// By a leaf's number.
    limits: Box<[Box<[Limit]>]>,
    /// What each leaf is called, as an answer says it.
    names: Box<[String]>,
    /// Names of the places of a list of values, as facts of a key.
    place_names: Box<[String]>,
    /// The key of each number of values, by their places.
    key_plans: Box<[KeyPlan]>,
    /// Where each leaf is counted, by its number; none if nothing is.
    tallies: Box<[u32]>,
    /// Whether any request met a limit.
    pub(crate) presence: FactPresence,
}

/// The values of a limit that counts as no configured one: the domain, the unit, and the entries.
const UNCONFIGURED_PLACES: usize = 3;

impl Trees {
    /// Compiles trees; `limits` gives those of a leaf their state.
    pub(crate) fn new<E>(
        domains: &envoy::DescriptorDomains,
        mut limits: impl FnMut(&CompiledLimit) -> Result<Vec<Limit>, E>,
    ) -> Result<Self, E> {
        let compiled = DescriptorIndex::new(domains);
        let leaves = compiled.leaves();
        let of_leaves = leaves.iter().map(|leaf| Ok(limits(leaf)?.into()));
        let of_leaves = of_leaves.collect::<Result<_, E>>()?;
        let deepest = leaves.iter().map(|leaf| leaf.steps.len()).max();
        // Proxies may bring limits along where no tree has any.
        let most = deepest.unwrap_or(0).max(UNCONFIGURED_PLACES);
        let places: Box<[_]> = (0..most).map(|place| format!("{place:02}")).collect();
        // Values are found by their places, not by numbers.
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

    /// All leaves and what they allow.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = (&CompiledLimit, &[Limit])> {
        let leaves = self.compiled.leaves().iter();
        leaves.map(|leaf| (leaf, self.limits(leaf)))
    }

    /// A leaf by its number, and what it allows.
    pub(crate) fn leaf(&self, number: u32) -> (&CompiledLimit, &[Limit]) {
        let leaf = &self.compiled.leaves()[number as usize];
        (leaf, self.limits(leaf))
    }

    /// What a leaf is called.
    pub(super) fn name(&self, leaf: &CompiledLimit) -> &str {
        &self.names[leaf.id as usize]
    }

    /// Counts what the leaves decide there, in their order.
    pub(crate) fn assign_tallies(&mut self, tallies: Box<[u32]>) {
        self.tallies = tallies;
    }

    /// Where a leaf is counted.
    pub(crate) fn tally(&self, leaf: &CompiledLimit) -> u32 {
        let row = self.tallies.get(leaf.id as usize);
        row.copied().unwrap_or(UNCOUNTED)
    }

    pub(super) fn limits(&self, leaf: &CompiledLimit) -> &[Limit] {
        self.limits
            .get(leaf.id as usize)
            .map_or(&[], |limits| limits)
    }

    /// What tells a descriptor's counter from others, as facts by their places: the values of its entries, or
    /// the patterns that they count together by. A limit that counts as no other is told by all that was
    /// asked for.
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

    /// Whether any of these lookups leads to a leaf that limits.
    pub(crate) fn has_limits(&self, found: &[LookupResult<'_>]) -> bool {
        let mut leaves = found.iter().filter_map(LookupResult::leaf);
        leaves.any(|leaf| !self.limits(leaf).is_empty())
    }

    /// Whether there are any limits.
    pub(crate) fn is_any(&self) -> bool {
        !self.limits.is_empty()
    }

    /// What is said about a descriptor.
    pub(crate) fn lookup(&self, domain: &str, descriptor: &Descriptor<'_>) -> LookupResult<'_> {
        self.compiled.lookup(domain, descriptor)
    }

    /// The limit that a descriptor meets, and the fingerprint of its counter.
    pub(crate) fn leaf_of(
        &self,
        hashers: &KeyHashers,
        domain: &str,
        descriptor: &Descriptor<'_>,
    ) -> Option<(&CompiledLimit, [u64; 2])> {
        let leaf = self.lookup(domain, descriptor).leaf()?;
        Some((leaf, fingerprint(hashers, leaf, descriptor)))
    }

    /// The key with this fingerprint; its values are found by place in the facts.
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

/// A limit that a proxy asks for in place of the policy's.
pub(crate) struct RequestedLimit {
    pub(super) limit: Limit,
    /// All entries in one text, if it counts as no configured limit: there may be more than any tree is deep.
    entries: Option<String>,
}

impl RequestedLimit {
    /// A window of the unit that is asked for.
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
        // Its unit is part of its key, so one counter stands for all that are asked for.
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

/// One descriptor that meets a limit.
pub(crate) struct DescriptorMatch<'a> {
    /// None of one that the proxy asks for.
    leaf: Option<&'a CompiledLimit>,
    pub(super) limits: &'a [Limit],
    pub(crate) key: RequestKey<'a>,
    pub(super) charge: Charge,
    /// An order that refuses it, and what it is told.
    pub(super) blocked: Option<Decision>,
    /// Whether its limits are an order's.
    pub(super) is_changed: bool,
}

/// A key of a limit, as the descriptors that have it: `user=ada plan=free`.
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

/// What a refusal of one limit means for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DenialEffect {
    /// It is refused.
    Denies,
    /// It is refused if all others of this kind refuse it too.
    DeniesTogether,
    /// Nothing.
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

    /// What it is given back before anything is charged, if it is.
    pub(in crate::engine) fn refund_checks(&self) -> Option<Vec<Check<'a>>> {
        match self.charge {
            Charge::Refund(units) => Some(self.checks(units).collect()),
            Charge::Spend(_) => None,
        }
    }

    /// What its limits are asked. Who gives back isn't asked for a slot: it would have to take one.
    pub(in crate::engine) fn checks(&self, cost: u64) -> impl Iterator<Item = Check<'a>> {
        let key = self.key;
        let gives_back = matches!(self.charge, Charge::Refund(_));
        let is_slots = |limit: &Limit| matches!(limit.kind(), LimitKind::Concurrency(_));
        self.limits
            .iter()
            .filter(move |limit| !(gives_back && is_slots(limit)))
            .map(move |limit| Check { limit, key, cost })
    }

    /// What it takes: nothing if it gives back.
    pub(in crate::engine) fn cost(&self) -> u64 {
        match self.charge {
            Charge::Spend(cost) => cost,
            Charge::Refund(_) => 0,
        }
    }

    pub(super) fn denial_effect(&self) -> DenialEffect {
        match self.leaf.map(|leaf| &leaf.limit) {
            Some(limit) if limit.shadow => DenialEffect::Shadow,
            // What is blocked is refused, whatever else has room.
            Some(limit) if limit.quota_mode && self.blocked.is_none() => {
                DenialEffect::DeniesTogether
            }
            _ => DenialEffect::Denies,
        }
    }

    /// Whether it is of those that refuse only together, be it in shadow.
    pub(super) fn is_quota(&self) -> bool {
        self.leaf.is_some_and(|leaf| leaf.limit.quota_mode)
    }

    /// The first of its counters, which no limit but its own and those of the same entries have.
    pub(super) fn counter(&self) -> CounterId {
        let limit = self.limits.first().map(|limit| limit.id);
        (limit.unwrap_or_default(), self.key.fingerprint())
    }
}

/// The number of a limit's counter, and the fingerprint of a key.
pub(super) type CounterId = (u64, [u64; 2]);
