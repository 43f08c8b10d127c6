//! Looking for one key of a rule, as operators do: what is left of its limits, and what is ordered of it. And forgetting
//! what it has spent.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tollgate::{Clock, Decision};

use super::overlay::{Held, InForce, Rulings};
use super::place::{borrowed, key_of, named, place};
use super::table::Limiter;
use crate::backend::fallback::is_failure;
use crate::backend::{Backend, Gift, Memory};
use crate::engine::Engine;
use crate::engine::descriptors::LeafKey;
use crate::engine::rules::{Applied, Rules};
use crate::engine::turns::Spot;
use crate::engine::warm::is_gate;
use crate::facts::{Descriptor, Facts};
use crate::limits::{Check, KeyHashers, Limit, LimitKind, RequestKey};
use crate::orders::{Order, OrderError, Target, TargetKey};
use crate::policy::Mode;

/// One key of a rule, as it is now.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// use tollgate_engine::orders::Target;
///
/// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 5/h}]", Format::Yaml)?.policy;
/// let engine = Engine::new(policy, memory)?;
/// assert!(engine.decide(&Facts::new().with("user", "ada")).passed().is_some());
/// let found = engine.find(&Target::key("per-user", [("user", "ada")]))?;
/// assert_eq!((found[0].rule.as_str(), found[0].key.as_str()), ("per-user", "user=ada"));
/// assert_eq!(found[0].limits[0].decision.remaining, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Found {
    /// The rule, tier or limit of a tree.
    pub rule: String,
    /// The facts or the entries of a descriptor that make the key: `user=ada plan=free`.
    pub key: String,
    /// Whether it is enforced for this key, or only counts.
    pub mode: Mode,
    /// What is left of each limit that is in force for it, also while it is blocked or bypassed.
    pub limits: Vec<FoundLimit>,
    /// What operators have ordered of it, of all of the rule, or of everything.
    pub orders: Vec<Order>,
}

/// What is left of one limit of a key.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Policy};
/// # use tollgate_engine::orders::Target;
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let policy = Policy::from_text("limits: [{name: all, rate: [5/h, 9/d]}]", Format::Yaml)?.policy;
/// let found = Engine::new(policy, memory)?.find(&Target::rule("all"))?;
/// let limits: Vec<_> = found[0].limits.iter().map(|limit| limit.kind.to_string()).collect();
/// assert_eq!(limits, ["5/h", "9/d"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FoundLimit {
    /// Which, as it is in force for this key.
    pub kind: LimitKind,
    /// Whether it stands beside a rate only until the rule is warm.
    pub is_warm_up: bool,
    /// Whether somebody could be asked: else a limit that is closed then refuses everything.
    pub is_known: bool,
    /// What a request of the rule's usual cost would be told by it alone: what is left, after how long it would pass, and
    /// when it is as if never used.
    pub decision: Decision,
    /// How many requests wait for it, because the rule says `over: wait`.
    pub waiting: usize,
}

/// What was forgotten.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::{Gift, Memory};
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # use tollgate_engine::orders::Target;
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
/// let engine = Engine::new(policy, memory)?;
/// let ada = Facts::new().with("user", "ada");
/// assert!(engine.decide(&ada).passed().is_some());
/// let reset = engine.reset(&Target::facts([("user", "ada")]))?;
/// assert_eq!((reset.rules, reset.gift), (vec!["per-user".to_owned()], Gift::Given));
/// assert!(engine.decide(&ada).passed().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reset {
    /// The rules of which it was.
    pub rules: Vec<String>,
    /// Whether a store could be told.
    pub gift: Gift,
}

/// Where a key's counters are, before they are looked at.
struct Key<'a> {
    limiter: Limiter,
    rule: String,
    mode: Mode,
    key: RequestKey<'a>,
    shown: String,
    limits: &'a [Limit],
    gates: &'a [Limit],
    cost: u64,
}

impl<'a> Key<'a> {
    fn of_rule(
        (number, rule): (u32, &'a Applied),
        facts: &'a Facts<'a>,
        fingerprint: [u64; 2],
        now: tollgate::Timestamp,
    ) -> Self {
        let key = RequestKey::new(&rule.key, facts, fingerprint);
        Self {
            limiter: Limiter::Applied(number),
            rule: rule.name.to_string(),
            mode: rule.mode_for(&key),
            shown: key.to_string(),
            key,
            limits: rule.limits.as_slice(),
            gates: rule.gates(Some(now)),
            cost: rule.default_cost,
        }
    }

    /// As is ordered.
    fn changed_by(self, rulings: &Rulings<'a>) -> Self {
        match rulings.changed {
            Some(changed) => Self {
                limits: &changed.limits,
                gates: &[],
                ..self
            },
            None => self,
        }
    }

    fn checks(&self) -> Vec<Check<'a>> {
        let (key, cost) = (self.key, self.cost);
        let limits = self.limits.iter().chain(self.gates);
        limits.map(|limit| Check { limit, key, cost }).collect()
    }
}

/// What a target names, to be borrowed from.
struct Named<'a> {
    facts: Facts<'a>,
    descriptor: Option<(&'a str, Descriptor<'a>)>,
}

/// The entries of a target that is a descriptor.
fn entries(target: &Target) -> Vec<(&str, &str)> {
    match &target.key {
        TargetKey::Descriptor { entries, .. } => borrowed(entries).collect(),
        _ => Vec::new(),
    }
}

impl<'a> Named<'a> {
    fn of(rules: &'a Rules, target: &'a Target, entries: &'a [(&'a str, &'a str)]) -> Self {
        match &target.key {
            TargetKey::Everybody => Self {
                facts: Facts::new(),
                descriptor: None,
            },
            TargetKey::Facts(facts) => Self {
                facts: borrowed(facts).collect(),
                descriptor: None,
            },
            TargetKey::Descriptor { domain, .. } => {
                let descriptor = Descriptor::new(entries);
                let lookup = rules.trees.lookup(domain, &descriptor);
                Self {
                    facts: rules.trees.by_place(domain, &descriptor, &lookup, None),
                    descriptor: Some((domain, descriptor)),
                }
            }
        }
    }

    /// All keys that it names.
    fn keys(
        &'a self,
        rules: &'a Rules,
        target: &Target,
        (hashers, now): (&KeyHashers, tollgate::Timestamp),
    ) -> Result<Vec<Key<'a>>, OrderError> {
        let fingerprint = |rule: &Applied| key_of(rules, hashers, rule, &self.facts);
        if let Some((domain, descriptor)) = &self.descriptor {
            let placed = place(rules, hashers, target)?;
            let asked = (rules.trees.lookup(domain, descriptor), None);
            let leaf = asked.0.leaf();
            let met = (rules.trees).meet(hashers, (domain, descriptor), asked, &self.facts);
            let key = met.map(|met| met.key).ok_or(OrderError::NoSuchLimit {
                rule: placed.name.clone(),
                sort: "limit",
            })?;
            return Ok(vec![Key {
                limiter: placed.place.limiter,
                rule: placed.name,
                mode: placed.mode,
                shown: leaf.map_or_else(String::new, |leaf| LeafKey(leaf, key).to_string()),
                key,
                limits: placed.limits,
                gates: &[],
                cost: 1,
            }]);
        }
        if let Some(name) = &target.rule {
            if let Some((number, rule)) = named(rules, name) {
                let fingerprint = match target.key {
                    TargetKey::Everybody => fingerprint(rule)?,
                    _ => place(rules, hashers, target)?
                        .place
                        .fingerprint
                        .unwrap_or_default(),
                };
                let key = Key::of_rule((number, rule), &self.facts, fingerprint, now);
                return Ok(vec![key]);
            }
            let rule = place(rules, hashers, target)?.name;
            return Err(OrderError::WantsDescriptor { rule });
        }
        let keyed = (0..).zip(rules.applied.iter());
        let keyed = keyed.filter(|(_, rule)| rule.key.facts().next().is_some());
        let keys: Vec<_> = keyed
            .filter_map(|(number, rule)| {
                let fingerprint = fingerprint(rule).ok()?;
                Some(Key::of_rule((number, rule), &self.facts, fingerprint, now))
            })
            .collect();
        if keys.is_empty() {
            return Err(OrderError::NoKey);
        }
        Ok(keys)
    }
}

impl<B: Backend> Engine<B> {
    /// The key of a rule that a target names, or those of all rules whose keys its facts make, by a backend that may take
    /// its time. Nothing is charged.
    ///
    /// # Errors
    /// If the backend couldn't be asked; inside, if there is no such key by the policy in force.
    pub async fn find_async(
        &self,
        target: &Target,
    ) -> Result<Result<Vec<Found>, OrderError>, B::Error> {
        let rules = self.rules.load_full();
        let orders = self.ordered(&rules);
        let orders = orders.as_ref().map(Held::in_force);
        let entries = entries(target);
        let named = Named::of(&rules, target, &entries);
        let times = (&self.hashers, self.backend.now());
        let keys = match named.keys(&rules, target, times) {
            Ok(keys) => keys,
            Err(why) => return Ok(Err(why)),
        };
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            let rulings = orders.map(|orders| orders.of(key.limiter, key.key.fingerprint()));
            let rulings = rulings.unwrap_or_default();
            let key = key.changed_by(&rulings);
            let checks = key.checks();
            let each = self.backend.peek(&checks).await?;
            let limits = checks.iter().zip(each).map(|(check, decision)| FoundLimit {
                kind: check.limit.kind().clone(),
                is_warm_up: is_gate(check.limit),
                is_known: !is_failure(check, &decision),
                decision,
                waiting: self.turns.waiting_at(Spot::of(check)),
            });
            found.push(Found {
                limits: limits.collect(),
                orders: self.orders_of(&rulings, orders, &named.facts),
                key: key.shown,
                mode: key.mode,
                rule: key.rule,
            });
        }
        Ok(Ok(found))
    }

    /// The orders among these, and those about a request with these facts.
    fn orders_of(
        &self,
        rulings: &Rulings<'_>,
        orders: Option<InForce<'_>>,
        facts: &Facts<'_>,
    ) -> Vec<Order> {
        let of_request = orders.map(|orders| orders.of_request(facts));
        let of_request = of_request.unwrap_or_default();
        let changed = rulings.changed.map(|changed| changed.order);
        let timed = [
            rulings.block,
            rulings.bypass,
            changed,
            of_request.block,
            of_request.bypass,
        ];
        let ids: Vec<_> = timed.into_iter().flatten().map(|timed| timed.id).collect();
        if ids.is_empty() {
            return Vec::new();
        }
        let book = self.book();
        let is_meant = |order: &&Order| ids.contains(&order.id);
        book.orders.iter().filter(is_meant).cloned().collect()
    }

    /// Forgets what the keys that [`find_async`](Self::find_async) finds have spent. Slots that are held stay held. Of a store
    /// that others ask too, they may repeat what they were refused before, as long as that was said to hold.
    ///
    /// # Errors
    /// If the backend couldn't be asked; inside, if there is no such key by the policy in force.
    pub async fn reset_async(
        &self,
        target: &Target,
    ) -> Result<Result<Reset, OrderError>, B::Error> {
        let rules = self.rules.load_full();
        let entries = entries(target);
        let named = Named::of(&rules, target, &entries);
        let times = (&self.hashers, self.backend.now());
        let keys = match named.keys(&rules, target, times) {
            Ok(keys) => keys,
            Err(why) => return Ok(Err(why)),
        };
        let mut reset = Reset {
            rules: Vec::with_capacity(keys.len()),
            gift: Gift::Given,
        };
        for key in keys {
            let checks = key.checks();
            reset.gift = reset.gift.max(self.backend.forget(&checks).await?);
            for check in &checks {
                self.turns.poke(Spot::of(check));
            }
            reset.rules.push(key.rule);
        }
        Ok(Ok(reset))
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Engine<Memory<C, W>> {
    /// The key of a rule that a target names, or those of all rules whose keys its facts make. Nothing is charged.
    ///
    /// # Errors
    /// If there is no such key by the policy in force.
    pub fn find(&self, target: &Target) -> Result<Vec<Found>, OrderError> {
        at_once(self.find_async(target))
    }

    /// Forgets what the keys that [`find`](Self::find) finds have spent. Slots that are held stay held.
    ///
    /// # Errors
    /// If there is no such key by the policy in force.
    pub fn reset(&self, target: &Target) -> Result<Reset, OrderError> {
        at_once(self.reset_async(target))
    }
}

/// What memory says, which it does at once.
fn at_once<T>(asking: impl Future<Output = Result<T, std::convert::Infallible>>) -> T {
    match pin!(asking).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(said)) => said,
        Poll::Ready(Err(never)) => match never {},
        Poll::Pending => unreachable!("memory answers at once"),
    }
}
