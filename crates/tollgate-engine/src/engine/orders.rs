//! Operators' orders, held by the engine: made, listed, withdrawn, and put over each policy that comes into force.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::FixedState;
use tollgate::Timestamp;

use super::Engine;
use super::rules::Rules;
use crate::address::Network;
use crate::backend::Backend;
use crate::facts::{IP, KNOWN_FACTS, is_known_fact};
use crate::lint::never_met;
use crate::orders::{
    Act, Effect, LONGEST_ORDER, MOST_ORDERS, NewOrder, Order, OrderError, OrderFacts, Replacement,
    Target, TargetKey,
};
use crate::suggest::closest;

mod acted;
mod find;
mod overlay;
mod pattern;
mod place;
mod reset;
mod saved;
mod table;
mod target_keys;

pub use find::{Found, FoundLimit};
pub(crate) use overlay::{Held, InForce, Overlay};
pub use reset::{Reset, ResetRule, ResetScope};
pub(super) use saved::BookForm;
pub(crate) use table::{Limiter, Override, Timed};

use acted::Acted;
use table::Table;

/// How much text an order's target has at the most.
const TARGET_BYTES: usize = 2_048;
/// And the name of who wants it.
const BY_BYTES: usize = 256;
/// How many sets of facts there are orders by that name no rule: a request is looked up by each of them.
const MOST_SORTS: usize = 16;
/// How many orders there are by globs and networks: a request is matched with each of them.
const MOST_PATTERNS: usize = 256;
/// A wall clock that shows so much less than when an order was made was set back.
const SET_BACK: Duration = Duration::from_secs(1);

/// All orders of an engine.
#[derive(Clone, Debug, Default)]
pub(super) struct Book {
    orders: Vec<Order>,
    /// What each has done, by its number.
    acted: HashMap<u64, Arc<Acted>, FixedState>,
    /// How many there were.
    made: u64,
}

impl Book {
    /// Takes out those that have ended; whether anything is another than before. Where the clock was set back, none lasts
    /// longer from now on than was ordered.
    fn end(&mut self, now: Timestamp) -> bool {
        let before = self.orders.len();
        self.orders.retain(|order| order.until > now);
        let mut has_changed = self.orders.len() < before;
        if has_changed {
            self.forget_ended();
        }
        for order in &mut self.orders {
            if order.made_at > now + SET_BACK {
                let lasts = order.until - order.made_at;
                (order.made_at, order.until) = (now, now + lasts);
                has_changed = true;
            }
        }
        has_changed
    }

    /// Forgets what orders have done that are gone.
    fn forget_ended(&mut self) {
        let ids: HashSet<u64, FixedState> = self.orders.iter().map(|order| order.id).collect();
        self.acted.retain(|id, _| ids.contains(id));
    }

    /// Where it is counted what an order does.
    fn acted(&mut self, id: u64) -> Arc<Acted> {
        Arc::clone(self.acted.entry(id).or_default())
    }

    /// An order, with what it has done so far.
    fn with_acted(&self, mut order: Order) -> Order {
        let acted = self.acted.get(&order.id).map(|acted| acted.read());
        (order.acted, order.last_acted) = acted.unwrap_or_default();
        order
    }
}

impl<B: Backend> Engine<B> {
    /// Carries out an order from now on, until it ends: a key or a rule is [blocked](Act::Block),
    /// [let through](Act::Bypass), or has [another limit](Act::Override). One of the same sort for the same target takes
    /// the place of that.
    ///
    /// Orders lie over the policy. A [reload](Self::reload) keeps them: they are for the rule of their name, and idle while
    /// there is none. They are for requests of facts and of descriptors. Of a block, a bypass and an override of one
    /// request the first decides, and an override for its key before one for all of the rule. They end by the wall
    /// clock; if that is set back, no later than as if they were made then. There are at most [10,000](MOST_ORDERS), for at most [30 days](LONGEST_ORDER) each.
    ///
    /// Each engine has its own: with a shared store, an order is for the requests that this process decides.
    ///
    /// # Errors
    /// If it can't be carried out by the policy in force, or there are too many.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// use tollgate_engine::orders::{Act, NewOrder, Target};
    /// use tollgate_engine::verdict::DenyReason;
    ///
    /// # let wall = Manual::new();
    /// # let memory = Memory::builder().clock(Manual::new()).wall(wall.clone()).build();
    /// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 5/s}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let hour = Duration::from_secs(3_600);
    /// engine.order(NewOrder::new(Act::Block, Target::key("per-user", [("user", "mallory")]), hour).by("ada"))?;
    ///
    /// let mallory = Facts::new().with("user", "mallory");
    /// let verdict = engine.decide(&mallory);
    /// assert_eq!(verdict.reason(), Some(DenyReason::Blocked));
    /// assert_eq!(verdict.decision().wait(), hour);
    /// assert!(engine.decide(&Facts::new().with("user", "bob")).passed().is_some());
    /// # wall.advance(hour);
    /// // An hour later:
    /// assert!(engine.decide(&mallory).passed().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn order(&self, new: NewOrder) -> Result<Order, OrderError> {
        is_sound(&new)?;
        let now = self.clocks.wall.now();
        let mut book = self.book();
        book.end(now);
        let NewOrder {
            act,
            target,
            lasts,
            by,
            facts: names,
        } = new;
        let rules = self.rules.load_full();
        let mut order = Order {
            id: book.made + 1,
            act,
            target,
            by,
            made_at: now,
            until: now + lasts,
            effect: Effect::InForce,
            acted: 0,
            last_acted: None,
        };
        can_match(&rules, &order.target, names)?;
        // Whether it does anything is found out by itself: one more table, of this order alone.
        let mut alone = Table::default();
        let alone_acted = Arc::default();
        order.effect = alone.add(
            (&order, alone_acted),
            &rules,
            (&self.hashers, &self.backend),
        );
        if let Effect::Idle(why) = order.effect {
            return Err(why);
        }
        let is_other =
            |other: &Order| other.target != order.target || other.act.name() != order.act.name();
        let others = book.orders.iter().filter(|other| is_other(other));
        if others.clone().count() >= MOST_ORDERS {
            return Err(OrderError::Full);
        }
        is_of_a_known_sort(&order, others.clone())?;
        has_few_patterns(&order, others)?;
        book.orders.retain(is_other);
        book.forget_ended();
        book.made = order.id;
        book.orders.push(order.clone());
        self.put_over(&rules, &mut book);
        drop(book);
        self.turns.poke_all();
        Ok(order)
    }

    /// Ends an order before its time; none if there is none with this number.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # use tollgate_engine::orders::{Act, NewOrder, Target};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let engine = Engine::new(Policy::default(), memory)?;
    /// let target = Target::facts([("ip", "203.0.113.7")]);
    /// let order = engine.order(NewOrder::new(Act::Block, target, Duration::from_secs(60)))?;
    /// let facts = Facts::new().with("ip", "203.0.113.7");
    /// assert!(engine.decide(&facts).refused().is_some());
    /// assert!(engine.withdraw(order.id).is_some());
    /// assert!(engine.decide(&facts).refused().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn withdraw(&self, id: u64) -> Option<Order> {
        self.withdraw_where(|order| order.id == id)
    }

    /// Ends the order of this sort for exactly this target before its time; none if there is none. What an override says
    /// makes no difference.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::{Engine, Policy};
    /// # use tollgate_engine::orders::{Act, NewOrder, Target};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let engine = Engine::new(Policy::default(), memory)?;
    /// let target = Target::facts([("ip", "203.0.113.7")]);
    /// engine.order(NewOrder::new(Act::Block, target.clone(), Duration::from_secs(60)))?;
    /// assert!(engine.withdraw_from(&target, &Act::Bypass).is_none());
    /// assert!(engine.withdraw_from(&target, &Act::Block).is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn withdraw_from(&self, target: &Target, act: &Act) -> Option<Order> {
        self.withdraw_where(|order| order.target == *target && order.act.name() == act.name())
    }

    fn withdraw_where(&self, is_meant: impl Fn(&Order) -> bool) -> Option<Order> {
        let now = self.clocks.wall.now();
        let mut book = self.book();
        book.end(now);
        let place = book.orders.iter().position(is_meant)?;
        let order = book.orders.remove(place);
        let order = book.with_acted(order);
        book.forget_ended();
        let rules = self.rules.load_full();
        self.put_over(&rules, &mut book);
        drop(book);
        self.turns.poke_all();
        Some(order)
    }

    /// All orders that haven't ended, from the oldest, and what each does by the policy in force.
    pub fn orders(&self) -> Vec<Order> {
        let now = self.clocks.wall.now();
        let mut book = self.book();
        if book.end(now) {
            let rules = self.rules.load_full();
            self.put_over(&rules, &mut book);
        }
        let orders = book.orders.iter().cloned();
        orders.map(|order| book.with_acted(order)).collect()
    }

    /// Puts all orders over a policy, which may be about to come into force: then the book stays locked until it is.
    pub(super) fn put_over(&self, rules: &Rules, book: &mut Book) {
        let mut table = Table::default();
        for place in 0..book.orders.len() {
            let acted = book.acted(book.orders[place].id);
            let order = &mut book.orders[place];
            order.effect = table.add((order, acted), rules, (&self.hashers, &self.backend));
        }
        rules.orders.set((!book.orders.is_empty()).then_some(table));
    }

    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The orders over this policy, and the time by which they end; none if there are none.
    #[inline]
    pub(super) fn ordered(&self, rules: &Rules) -> Option<Held> {
        if rules.orders.is_any() {
            self.ordered_now(rules)
        } else {
            None
        }
    }

    #[cold]
    fn ordered_now(&self, rules: &Rules) -> Option<Held> {
        let table = rules.orders.load()?;
        let now = self.clocks.wall.now();
        if table.is_old(now)
            && let Ok(mut book) = self.orders.try_lock()
        {
            book.end(now);
            let rules = self.rules.load_full();
            self.put_over(&rules, &mut book);
        }
        Some(Held { table, now })
    }
}

/// Whether an order is one that is taken at all.
fn is_sound(new: &NewOrder) -> Result<(), OrderError> {
    if new.lasts.is_zero() || new.lasts > LONGEST_ORDER {
        return Err(OrderError::Lasts(new.lasts));
    }
    let texts = [
        ("the target", new.target.bytes(), TARGET_BYTES),
        ("the name of who orders", new.by.len(), BY_BYTES),
    ];
    let too_long = texts.into_iter().find(|(_, bytes, most)| bytes > most);
    if let Some((what, bytes, most)) = too_long {
        return Err(OrderError::TooLong { what, bytes, most });
    }
    match (&new.act, &new.target.rule, &new.target.key) {
        (Act::Block, None, TargetKey::Everybody) => Err(OrderError::NamesNobody),
        (Act::Override(replacement), ..) if *replacement == Replacement::default() => {
            Err(OrderError::NoReplacement)
        }
        (
            Act::Override(_),
            None,
            TargetKey::Everybody | TargetKey::Facts(_) | TargetKey::Patterns(_),
        ) => Err(OrderError::WantsRule),
        _ => Ok(()),
    }
}

/// Whether any request could be one that an order by facts is for.
fn can_match(rules: &Rules, target: &Target, names: OrderFacts) -> Result<(), OrderError> {
    let pairs: Vec<(&str, &str)> = match &target.key {
        TargetKey::Facts(facts) => place::borrowed(facts).collect(),
        TargetKey::Patterns(facts) => {
            let facts = facts.iter();
            facts
                .map(|(fact, own)| (fact.as_str(), own.text()))
                .collect()
        }
        _ => return Ok(()),
    };
    let slots = rules.matcher.slots();
    for (fact, value) in pairs {
        let is_named = || slots.names().iter().any(|own| **own == *fact);
        // A rule says by itself which facts its key has.
        if target.rule.is_none()
            && names == OrderFacts::Known
            && !is_known_fact(fact)
            && !is_named()
        {
            let named = slots.names().iter().map(|own| &**own);
            return Err(OrderError::UnknownFact {
                fact: fact.to_owned(),
                near: match fact {
                    REMOTE_ADDRESS => Some(IP),
                    _ => closest(fact, KNOWN_FACTS.into_iter().chain(named)),
                }
                .map(str::to_owned),
            });
        }
        let is_written_for_all = target.rule.is_none() && names == OrderFacts::Known;
        if is_no_address(fact, value) || is_written_for_all && is_no_ip(fact, value) {
            return Err(OrderError::NotAnAddress {
                fact: fact.to_owned(),
                value: value.to_owned(),
            });
        }
        if is_written_for_all && let Some(slip) = never_met(fact, value) {
            return Err(OrderError::NeverMatches {
                why: slip.message,
                help: slip.help,
            });
        }
    }
    Ok(())
}

/// Envoy's name of the fact `ip`.
const REMOTE_ADDRESS: &str = "remote_address";

/// Whether a value is no address, network or glob of them, though requests have addresses there.
fn is_no_ip(fact: &str, value: &str) -> bool {
    fact == IP && !value.contains('*') && Network::parse(value).is_none()
}

/// Whether a value was meant as an address or a network, and is none.
fn is_no_address(fact: &str, value: &str) -> bool {
    let is_of_addresses = |sign: char| sign.is_ascii_hexdigit() || matches!(sign, '.' | ':' | '/');
    let is_like_one = value.contains(['.', ':', '/']) && value.chars().all(is_of_addresses);
    fact == "ip" && is_like_one && Network::parse(value).is_none()
}

/// The names of the facts that an order is by, if it names no rule.
fn sort_of(order: &Order) -> Option<Vec<&str>> {
    match (&order.target.rule, &order.target.key) {
        (None, TargetKey::Facts(facts)) => {
            Some(facts.iter().map(|(name, _)| name.as_str()).collect())
        }
        _ => None,
    }
}

/// Whether requests are looked up by these facts anyway, or by few others.
fn is_of_a_known_sort<'a>(
    order: &Order,
    others: impl Iterator<Item = &'a Order>,
) -> Result<(), OrderError> {
    let Some(own) = sort_of(order) else {
        return Ok(());
    };
    let mut sorts: Vec<_> = others.filter_map(sort_of).collect();
    sorts.push(own);
    sorts.sort_unstable();
    sorts.dedup();
    if sorts.len() > MOST_SORTS {
        return Err(OrderError::TooManySorts(MOST_SORTS));
    }
    Ok(())
}

/// Whether requests aren't matched with too many patterns.
fn has_few_patterns<'a>(
    order: &Order,
    others: impl Iterator<Item = &'a Order>,
) -> Result<(), OrderError> {
    let is_pattern = |order: &Order| matches!(order.target.key, TargetKey::Patterns(_));
    if is_pattern(order) && others.filter(|other| is_pattern(other)).count() >= MOST_PATTERNS {
        return Err(OrderError::TooManyPatterns(MOST_PATTERNS));
    }
    Ok(())
}
