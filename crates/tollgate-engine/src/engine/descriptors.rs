//! Requests that come as lists of descriptors, Envoy's form, decided by a tree of them.

use std::pin::pin;
use std::slice;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::{Algorithm, Align, Clock, Decision, Outcome, Rate};

use super::Engine;
use super::key::{Key, KeyHashers, KeyPlan};
use super::rules::Rules;
use crate::backend::{Answer, Backend, Check, Limit, LimitKind, Memory};
use crate::document::MOST_DEPTH;
use crate::envoy::{self, Charge, Compiled, Leaf, Lookup, StatusCode};
use crate::facts::{Descriptor, Facts};
use crate::matcher::Slots;
use crate::observer::{Event, Observer};
use crate::policy::{KeyPart, Mode, OnStoreFailure};
use crate::verdict::{Cause, Permits, is_near};

/// Trees of descriptors, and the limits of their leaves.
#[derive(Debug)]
pub(crate) struct Trees {
    compiled: Compiled,
    /// By a leaf's number.
    limits: Box<[Box<[Limit]>]>,
    /// The key of each number of values, by their places.
    plans: Box<[KeyPlan]>,
}

impl Trees {
    /// Compiles trees; `limits` gives those of a leaf their state.
    pub(crate) fn new<E>(
        domains: &envoy::Domains,
        mut limits: impl FnMut(&Leaf) -> Result<Vec<Limit>, E>,
    ) -> Result<Self, E> {
        let compiled = Compiled::new(domains);
        let of_leaves = compiled
            .leaves()
            .iter()
            .map(|leaf| Ok(limits(leaf)?.into()));
        let of_leaves = of_leaves.collect::<Result<_, E>>()?;
        // Values are found by their places, not by numbers.
        let mut slots = Slots::default();
        let part = |place: usize| KeyPart::Fact(PLACES[place].to_owned());
        let mut plan = |length: usize| {
            let parts: Vec<_> = (0..length).map(part).collect();
            KeyPlan::new(&parts, &mut slots)
        };
        let lengths = 0..=if domains.is_empty() { 0 } else { MOST_DEPTH };
        Ok(Self {
            limits: of_leaves,
            plans: lengths.map(&mut plan).collect(),
            compiled,
        })
    }

    /// All leaves and what they allow.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&Leaf, &[Limit])> {
        let leaves = self.compiled.leaves().iter();
        leaves.map(|leaf| (leaf, self.limits(leaf)))
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
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # use tollgate_engine::facts::Descriptor;
/// let file = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]";
/// let engine = Engine::new(Policy::from_text(file, Format::Yaml)?.policy, memory)?;
/// let ada = [Descriptor::new(&[("user", "ada")])];
/// assert!(engine.decide_descriptors("edge", &ada, 1).is_allowed());
/// let refused = engine.decide_descriptors("edge", &ada, 1);
/// assert_eq!(refused.retry_after.as_secs(), 3_600);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a verdict that is dropped gives back the slots that it holds"]
pub struct DescriptorVerdict {
    /// Whether the request passes.
    pub code: StatusCode,
    /// The answer for each descriptor, in their order.
    pub statuses: Vec<DescriptorStatus>,
    /// How long until what refused would pass; zero if it passes.
    pub retry_after: Duration,
    /// What decided if a store couldn't be asked; none if it was, or there is none.
    pub fallback: Option<OnStoreFailure>,
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
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # use tollgate_engine::{envoy::StatusCode, facts::Descriptor};
/// let file = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]";
/// let engine = Engine::new(Policy::from_text(file, Format::Yaml)?.policy, memory)?;
/// let descriptors = [Descriptor::new(&[("user", "ada")]), Descriptor::new(&[("path", "/")])];
/// let statuses = engine.decide_descriptors("edge", &descriptors, 1).statuses;
/// assert_eq!(statuses[0].limit.as_deref(), Some("edge/user"));
/// assert_eq!((statuses[1].code, &statuses[1].limit), (StatusCode::Ok, &None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// None of one that the proxy asks for.
    leaf: Option<&'a Leaf>,
    limits: &'a [Limit],
    key: Key<'a>,
    charge: Charge,
}

impl<'a> Met<'a> {
    fn checks(&self, cost: u64) -> impl Iterator<Item = Check<'a>> {
        let key = self.key;
        self.limits
            .iter()
            .map(move |limit| Check { limit, key, cost })
    }

    /// What it takes: nothing if it gives back.
    fn cost(&self) -> u64 {
        match self.charge {
            Charge::Take(cost) => cost,
            Charge::GiveBack(_) => 0,
        }
    }

    /// What it would have said, had the request not been refused, by what is left.
    fn would_say(&self, mut left: Decision, refused: &Decision) -> Decision {
        if left.remaining < self.cost() {
            left.outcome = match self.cost() > left.limit {
                true => Outcome::Never,
                false => Outcome::Denied,
            };
            left.retry_after = refused.retry_after;
        }
        left
    }

    fn is_alone(&self) -> bool {
        self.leaf
            .is_none_or(|leaf| !leaf.limit.shadow && !leaf.limit.quota_mode)
    }
}

impl<C: Clock + 'static, W: Clock> Engine<Memory<C, W>> {
    /// Decides a request that a proxy describes by lists of entries, in one of the policy's domains.
    ///
    /// Limits that stand alone are charged all or none, and so are those that the proxy asks for in
    /// place of the policy's, which count in the same counter if they are by the same unit. Those in
    /// shadow or quota mode are charged by themselves, if the others pass. What a descriptor gives back is given back first, and it passes.
    ///
    /// ```
    /// use tollgate::clock::Manual;
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_engine::document::Format;
    /// use tollgate_engine::facts::Descriptor;
    /// use tollgate_engine::{Engine, Policy};
    ///
    /// let file = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 2}}]";
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
        let deciding = pin!(self.decide_descriptors_by(domain, descriptors, hits_addend));
        match deciding.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(verdict)) => verdict,
            Poll::Ready(Err(never)) => match never {},
            Poll::Pending => unreachable!("memory answers at once"),
        }
    }
}

impl<B: Backend> Engine<B> {
    /// Decides a request of descriptors, as [`decide_descriptors`](Self::decide_descriptors) does, by a backend
    /// that may take its time.
    ///
    /// # Errors
    /// If the backend couldn't be asked.
    pub async fn decide_descriptors_by(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        hits_addend: u32,
    ) -> Result<DescriptorVerdict, B::Error> {
        let started = self.started();
        let rules = self.rules.load_full();
        let trees = &rules.trees;
        let mut found: Vec<_> = descriptors
            .iter()
            .map(|descriptor| trees.compiled.lookup(domain, descriptor))
            .collect();
        envoy::drop_replaced(&mut found);
        let facts: Vec<Facts<'_>> = descriptors
            .iter()
            .zip(&found)
            .map(|(descriptor, lookup)| by_place(domain, descriptor, lookup))
            .collect();
        let asked: Vec<Option<Limit>> = found
            .iter()
            .map(|lookup| asked_for(trees, lookup))
            .collect();
        let met: Vec<Option<Met<'_>>> = descriptors
            .iter()
            .zip(facts.iter().zip(&asked))
            .zip(&found)
            .map(|((descriptor, (facts, asked)), lookup)| {
                let lookup = (domain, *lookup, asked.as_ref());
                let mut met = meet(&rules, &self.hashers, descriptor, (facts, lookup))?;
                met.charge = envoy::charge(descriptor, hits_addend);
                Some(met)
            })
            .collect();
        for met in met.iter().flatten() {
            if let Charge::GiveBack(units) = met.charge {
                let checks: Vec<_> = met.checks(units).collect();
                self.backend.give_back(&checks).await?;
            }
        }
        let alone = met.iter().flatten().filter(|met| met.is_alone());
        let checks: Vec<_> = alone.flat_map(|met| met.checks(met.cost())).collect();
        let (answer, each) = self.backend.check_each(&checks).await?;
        let mut permits = Permits {
            own: answer.pass,
            ..Permits::default()
        };
        let mut each = checks.iter().zip(each);
        let mut statuses = Vec::with_capacity(descriptors.len());
        let mut told = Vec::with_capacity(descriptors.len());
        for (met, lookup) in met.iter().zip(&found) {
            let decision = match met {
                None => None,
                Some(met) if met.is_alone() => {
                    let own = each.by_ref().take(met.limits.len());
                    let (checks, decisions): (Vec<_>, Vec<_>) = own.unzip();
                    let checks: Vec<_> = checks.into_iter().copied().collect();
                    Some(Answer::over(&checks, &decisions).decision)
                }
                Some(met) => {
                    // Charged by itself, if the others pass.
                    let cost = if answer.allowed { met.cost() } else { 0 };
                    let checks: Vec<_> = met.checks(cost).collect();
                    let own = self.backend.check(&checks).await?;
                    permits.shadows.push(own.pass);
                    Some(match answer.allowed {
                        true => own.decision,
                        false => met.would_say(own.decision, &answer.decision),
                    })
                }
            };
            let status = envoy::status(*lookup, decision.as_slice());
            told.push(DescriptorStatus {
                code: status.code,
                limit: lookup.leaf().map(ToString::to_string),
                decision,
                would_refuse: status.would_refuse,
            });
            statuses.push(status);
        }
        if let (Some(observer), Some(started)) = (&self.observer, started) {
            let took = self.backend.now() - started;
            tell(&**observer, &rules, &found, &told, took);
        }
        let code = envoy::overall(&statuses, rules.mode);
        let waits = told.iter().filter_map(|status| {
            let over = status.code == StatusCode::OverLimit;
            status
                .decision
                .filter(|_| over)
                .map(|decision| decision.retry_after)
        });
        Ok(DescriptorVerdict {
            retry_after: match code {
                StatusCode::Ok => Duration::ZERO,
                StatusCode::OverLimit => waits.max().unwrap_or_default(),
            },
            code,
            statuses: told,
            fallback: answer.fallback,
            permits,
        })
    }
}

/// Tells of each descriptor that met a limit, or that none did.
#[cold]
fn tell(
    observer: &dyn Observer,
    rules: &Rules,
    found: &[Lookup<'_>],
    told: &[DescriptorStatus],
    took: Duration,
) {
    let mut event = Event {
        cause: Cause::Nothing,
        mode: rules.mode,
        decision: Decision::UNLIMITED,
        near_limit: false,
        took,
    };
    for (lookup, status) in found.iter().zip(told) {
        let Some(decision) = status.decision else {
            continue;
        };
        let is_shadow = lookup.leaf().is_some_and(|leaf| leaf.limit.shadow);
        let own = if is_shadow {
            Mode::Shadow
        } else {
            Mode::Enforce
        };
        event = Event {
            cause: status
                .limit
                .as_deref()
                .map_or(Cause::Asked, Cause::Descriptor),
            mode: rules.mode.max(own),
            decision,
            near_limit: is_near(&decision, rules.near_limit_percent),
            took,
        };
        observer.decided(&event);
    }
    if event.cause == Cause::Nothing {
        observer.decided(&event);
    }
}

/// What tells a descriptor's counter from others, as facts by their places: the values of its entries, or the
/// patterns that they count together by. A limit that counts as no other is told by all that was asked for.
fn by_place<'a>(domain: &'a str, descriptor: &Descriptor<'a>, lookup: &Lookup<'a>) -> Facts<'a> {
    let entries = descriptor.entries.iter();
    if let Lookup::Asked {
        unit,
        counts_as: None,
        ..
    } = lookup
    {
        let names = entries.flat_map(|(key, value)| [*key, *value]);
        let values = [domain, unit.name()].into_iter().chain(names);
        return PLACES.into_iter().zip(values).collect();
    }
    let leaf = lookup.counts_as();
    let values = entries.enumerate().map(|(at, (_, value))| {
        let step = leaf.and_then(|leaf| leaf.steps.get(at));
        let shared = step.filter(|step| step.shared);
        shared
            .and_then(|step| step.value.as_deref())
            .unwrap_or(value)
    });
    PLACES.into_iter().zip(values).collect()
}

/// The limit that a proxy asks for in place of the policy's: a window of its unit.
fn asked_for(trees: &Trees, lookup: &Lookup<'_>) -> Option<Limit> {
    let Lookup::Asked {
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
        algorithm: Algorithm::FixedWindow(Align::default()),
    };
    // Its unit is part of its key, so one counter stands for all that are asked for.
    let limit = Limit::apart(kind, "asked").ok()?;
    let configured = counts_as.and_then(|leaf| trees.limits(leaf).first());
    Some(match configured {
        Some(configured) => limit.counting_as(configured),
        None => limit,
    })
}

fn meet<'a>(
    rules: &'a Rules,
    hashers: &KeyHashers,
    descriptor: &Descriptor<'_>,
    (facts, (domain, lookup, asked)): (&'a Facts<'a>, (&str, Lookup<'a>, Option<&'a Limit>)),
) -> Option<Met<'a>> {
    let entries = descriptor.entries;
    let (leaf, limits, fingerprint) = match lookup {
        Lookup::Limited(leaf) => {
            let key = |put: &mut dyn FnMut(&[u8])| envoy::counter_key(leaf, entries, put);
            (Some(leaf), rules.trees.limits(leaf), hashers.feed(key))
        }
        Lookup::Asked {
            unit, counts_as, ..
        } => {
            let key = |put: &mut dyn FnMut(&[u8])| match counts_as {
                Some(leaf) => envoy::counter_key(leaf, entries, put),
                None => envoy::asked_key(domain, entries, unit, put),
            };
            (None, asked.map(slice::from_ref)?, hashers.feed(key))
        }
        Lookup::Nothing | Lookup::Replaced(_) => return None,
    };
    let plans = &rules.trees.plans;
    let plan = plans.get(facts.iter().count()).or(plans.last())?;
    if limits.is_empty() {
        return None;
    }
    Some(Met {
        leaf,
        limits,
        key: Key::new(plan, facts, fingerprint),
        charge: Charge::Take(0),
    })
}
