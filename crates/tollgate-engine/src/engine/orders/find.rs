//! Looking for one key of a rule, as operators do: what is left of its limits, and what is ordered of it.

use tollgate::{Clock, Decision};

use super::overlay::{Held, InForce, Rulings};
use super::place::as_descriptor;
use super::table::Limiter;
use super::target_keys::{Named, addresses, entries};
use crate::backend::{Backend, Memory};
use crate::engine::rules::Tiered;
use crate::engine::turns::Spot;
use crate::engine::warm::is_gate;
use crate::engine::{Engine, ready};
use crate::facts::Facts;
use crate::limits::LimitKind;
use crate::matcher::Known;
use crate::orders::{Order, OrderError, Target};
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
    /// Of a tier, whether it is the one that a request with these facts has; none of a rule, whose match decides that.
    pub applies: Option<bool>,
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
        let target = match as_descriptor(&rules, target) {
            Ok(target) => target,
            Err(why) => return Ok(Err(why)),
        };
        let target = &*target;
        let orders = self.ordered(&rules);
        let orders = orders.as_ref().map(Held::in_force);
        let entries = entries(target);
        let addresses = addresses(target);
        let named = Named::of(&rules, target, &entries, &addresses);
        let times = (&self.hashers, self.backend.now());
        let keys = match named.keys(&rules, target, times) {
            Ok(keys) => keys,
            Err(why) => return Ok(Err(why)),
        };
        let mut known = Known::new(rules.matcher.slots(), &named.literal);
        known.look_up();
        let tier = match rules.tiers.of(|slot| known.text(slot)) {
            Tiered::In(number) => Some(number),
            Tiered::Unknown(default) => default,
            _ => None,
        };
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            let applies = match key.limiter {
                Limiter::Applied(number) if rules.applied[number as usize].is_tier => {
                    Some(tier == Some(number))
                }
                _ => None,
            };
            let rulings =
                orders.map(|orders| orders.of(key.limiter, key.key.fingerprint(), &named.facts));
            let rulings = rulings.unwrap_or_default();
            let key = key.changed_by(&rulings);
            let checks = key.checks();
            let each = self.backend.peek(&checks).await?;
            let limits = checks.iter().zip(each).map(|(check, said)| FoundLimit {
                kind: check.limit.kind().clone(),
                is_warm_up: is_gate(check.limit),
                is_known: said.is_ok(),
                decision: said.unwrap_or_else(|store| store.decision()),
                waiting: self.turns.waiting_at(Spot::of(check)),
            });
            found.push(Found {
                limits: limits.collect(),
                orders: self.orders_of(&rulings, orders, &named.facts),
                key: key.shown,
                applies,
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
        let meant = book.orders.iter().filter(is_meant).cloned();
        meant.map(|order| book.with_acted(order)).collect()
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Engine<Memory<C, W>> {
    /// The key of a rule that a target names, or those of all rules whose keys its facts make. Nothing is charged.
    ///
    /// # Errors
    /// If there is no such key by the policy in force.
    pub fn find(&self, target: &Target) -> Result<Vec<Found>, OrderError> {
        ready(self.find_async(target))
    }
}
