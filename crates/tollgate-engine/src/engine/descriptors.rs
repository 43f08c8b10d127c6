//! Requests that come as lists of descriptors, Envoy's form, decided by a tree of them.

use std::time::Duration;

use tollgate::{Clock, Decision, Outcome};

use super::Engine;
use super::key::{Key, KeyHashers, KeyPlan};
use super::rules::Rules;
use crate::backend::{Check, Limit, Memory};
use crate::document::MOST_DEPTH;
use crate::envoy::{self, Charge, Compiled, Leaf, Lookup, StatusCode};
use crate::facts::{Descriptor, Facts};
use crate::matcher::Slots;
use crate::policy::KeyPart;
use crate::verdict::Permits;

/// Trees of descriptors, and the limits of their leaves.
#[derive(Debug)]
pub(crate) struct Trees {
    compiled: Compiled,
    /// By a leaf's number.
    limits: Box<[Box<[Limit]>]>,
    /// The key of an entry list of each length: its values by their places.
    plans: Box<[KeyPlan]>,
}

impl Trees {
    /// Compiles trees; `limits` gives those of a leaf their state.
    pub(crate) fn new<E>(
        domains: &envoy::Domains,
        slots: &mut Slots,
        mut limits: impl FnMut(&Leaf) -> Result<Vec<Limit>, E>,
    ) -> Result<Self, E> {
        let compiled = Compiled::new(domains);
        let of_leaves = compiled
            .leaves()
            .iter()
            .map(|leaf| Ok(limits(leaf)?.into()));
        let of_leaves = of_leaves.collect::<Result<_, E>>()?;
        let longest = compiled.leaves().iter().map(|leaf| leaf.steps.len()).max();
        let part = |place: usize| KeyPart::Fact(PLACES[place].to_owned());
        let plan = |length: usize| KeyPlan::new(&(0..length).map(part).collect::<Vec<_>>(), slots);
        Ok(Self {
            limits: of_leaves,
            plans: (0..=longest.unwrap_or(0).min(MOST_DEPTH))
                .map(plan)
                .collect(),
            compiled,
        })
    }

    fn limits(&self, leaf: &Leaf) -> &[Limit] {
        let limits = usize::try_from(leaf.id)
            .ok()
            .and_then(|id| self.limits.get(id));
        limits.map_or(&[], |limits| limits)
    }
}

/// Names of the places of an entry list, as facts of a key.
const PLACES: [&str; MOST_DEPTH + 1] = {
    let mut places = [""; MOST_DEPTH + 1];
    let names = "00010203040506070809101112131415161718192021222324252627282930313233343536373839\
                 40414243444546474849505152535455565758596061626364";
    let mut place = 0;
    while place <= MOST_DEPTH {
        let (_, from) = names.split_at(2 * place);
        let (name, _) = from.split_at(2);
        places[place] = name;
        place += 1;
    }
    places
};

/// The answer to a request of several descriptors.
#[derive(Debug)]
#[must_use = "a verdict that is dropped gives back the slots that it holds"]
pub struct DescriptorVerdict {
    /// Whether the request passes.
    pub code: StatusCode,
    /// The answer for each descriptor, in their order.
    pub statuses: Vec<DescriptorStatus>,
    /// How long until what refused would pass; zero if it passes.
    pub retry_after: Duration,
    permits: Permits,
}

impl DescriptorVerdict {
    /// Whether the request may pass.
    pub fn is_allowed(&self) -> bool {
        self.code == StatusCode::Ok
    }

    /// What holds the slots of the request while it runs.
    pub fn into_permits(self) -> Permits {
        self.permits
    }
}

/// The answer for one descriptor.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DescriptorStatus {
    /// Whether it passes by itself.
    pub code: StatusCode,
    /// The limit that was found, as `domain/key=value/key`; none if there is none.
    pub limit: Option<String>,
    /// What that says, if it limits.
    pub decision: Option<Decision>,
    /// A limit in shadow mode would have refused it.
    pub would_refuse: bool,
}

/// One descriptor that meets a limit.
struct Met<'a> {
    leaf: &'a Leaf,
    limits: &'a [Limit],
    key: Key<'a>,
    cost: u64,
}

impl<'a> Met<'a> {
    fn checks(&self, cost: u64) -> impl Iterator<Item = Check<'a>> {
        let key = self.key;
        self.limits
            .iter()
            .map(move |limit| Check { limit, key, cost })
    }

    fn is_alone(&self) -> bool {
        !self.leaf.limit.shadow && !self.leaf.limit.quota_mode
    }
}

impl<C: Clock + 'static, W: Clock> Engine<Memory<C, W>> {
    /// Decides a request that a proxy describes by lists of entries, in one of the policy's domains.
    ///
    /// Limits that stand alone are charged all or none. Those in shadow or quota mode are charged by
    /// themselves, if the others pass. A limit that the proxy asks for by itself, and one that is
    /// given back, are only looked at: what the policy doesn't name has no state here.
    ///
    /// ```
    /// use tollgate::clock::Manual;
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_engine::document::Format;
    /// use tollgate_engine::facts::Descriptor;
    /// use tollgate_engine::{Engine, Policy};
    ///
    /// let file = "domain: edge\\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 2}}]";
    /// let policy = Policy::from_text(file, Format::Yaml).expect("their form").policy;
    /// let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let engine = Engine::new(policy, memory).expect("a policy");
    /// let ada = [Descriptor::new(&[("user", "ada")])];
    /// let passed = (0..5).filter(|_| engine.decide_descriptors("edge", &ada, 1).is_allowed());
    /// assert_eq!(passed.count(), 2);
    /// assert!(engine.decide_descriptors("mesh", &ada, 1).is_allowed());
    /// ```
    pub fn decide_descriptors(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        hits_addend: u32,
    ) -> DescriptorVerdict {
        let rules = self.rules.load();
        let trees = &rules.trees;
        let mut found: Vec<_> = descriptors
            .iter()
            .map(|descriptor| trees.compiled.lookup(domain, descriptor))
            .collect();
        envoy::drop_replaced(&mut found);
        let facts: Vec<Facts<'_>> = descriptors.iter().map(by_place).collect();
        let met: Vec<Option<Met<'_>>> = descriptors
            .iter()
            .zip(&facts)
            .zip(&found)
            .map(|((descriptor, facts), lookup)| {
                meet(
                    &rules,
                    &self.hashers,
                    descriptor,
                    (facts, *lookup, hits_addend),
                )
            })
            .collect();
        let alone = met.iter().flatten().filter(|met| met.is_alone());
        let checks: Vec<_> = alone.flat_map(|met| met.checks(met.cost)).collect();
        let answer = self.backend.answer(&checks);
        let mut permits = Permits {
            own: answer.pass,
            ..Permits::default()
        };
        let refused = (!answer.allowed).then_some(answer.decision);
        let mut statuses = Vec::with_capacity(descriptors.len());
        let mut told = Vec::with_capacity(descriptors.len());
        for (met, lookup) in met.iter().zip(&found) {
            let decision = met.as_ref().map(|met| match refused {
                Some(refused) => self.would_say(met, &refused),
                None if met.is_alone() => self.left(met),
                None => {
                    let checks: Vec<_> = met.checks(met.cost).collect();
                    let answer = self.backend.answer(&checks);
                    permits.shadows.push(answer.pass);
                    answer.decision
                }
            });
            let status = envoy::status(*lookup, decision.as_slice());
            told.push(DescriptorStatus {
                code: status.code,
                limit: lookup.leaf().map(ToString::to_string),
                decision,
                would_refuse: status.would_refuse,
            });
            statuses.push(status);
        }
        let code = envoy::overall(&statuses, rules.mode);
        let waits = told.iter().filter_map(|status| {
            let over = status.code == StatusCode::OverLimit;
            status
                .decision
                .filter(|_| over)
                .map(|decision| decision.retry_after)
        });
        DescriptorVerdict {
            retry_after: match code {
                StatusCode::Ok => Duration::ZERO,
                StatusCode::OverLimit => waits.max().unwrap_or_default(),
            },
            code,
            statuses: told,
            permits,
        }
    }

    /// What is left of a descriptor's limits.
    fn left(&self, met: &Met<'_>) -> Decision {
        let checks: Vec<_> = met.checks(0).collect();
        self.backend.answer(&checks).decision
    }

    /// What a descriptor's limits would have said, had the request not been refused.
    fn would_say(&self, met: &Met<'_>, refused: &Decision) -> Decision {
        let mut decision = self.left(met);
        if decision.remaining < met.cost {
            decision.outcome = match met.cost > decision.limit {
                true => Outcome::Never,
                false => Outcome::Denied,
            };
            decision.retry_after = refused.retry_after;
        }
        decision
    }
}

/// The entries of a descriptor as facts by their places.
fn by_place<'a>(descriptor: &Descriptor<'a>) -> Facts<'a> {
    let values = descriptor.entries.iter().map(|(_, value)| *value);
    PLACES.into_iter().zip(values).collect()
}

fn meet<'a>(
    rules: &'a Rules,
    hashers: &KeyHashers,
    descriptor: &Descriptor<'_>,
    (facts, lookup, hits_addend): (&'a Facts<'a>, Lookup<'a>, u32),
) -> Option<Met<'a>> {
    let Lookup::Limited(leaf) = lookup else {
        return None;
    };
    let limits = rules.trees.limits(leaf);
    let plan = rules.trees.plans.get(descriptor.entries.len())?;
    if limits.is_empty() {
        return None;
    }
    let fingerprint =
        hashers.feed(|put| envoy::counter_key(leaf, descriptor.entries, |piece| put(piece)));
    let cost = match envoy::charge(descriptor, hits_addend) {
        Charge::Take(cost) => cost,
        Charge::GiveBack(_) => 0,
    };
    Some(Met {
        leaf,
        limits,
        key: Key::new(plan, facts, fingerprint),
        cost,
    })
}
