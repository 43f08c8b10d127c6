//! Operators' orders, held by the engine: made, listed, withdrawn, and put over each policy that comes into force.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use tollgate::Timestamp;

use super::Engine;
use super::rules::Rules;
use crate::backend::Backend;
use crate::orders::{
    Act, Effect, LONGEST_ORDER, MOST_ORDERS, NewOrder, Order, OrderError, Replacement, Target,
    TargetKey,
};

mod find;
mod overlay;
mod place;
mod saved;
mod table;

pub use find::{Found, FoundLimit, Reset};
pub(crate) use overlay::{Held, InForce, Overlay};
pub(crate) use table::{Limiter, Override, Timed};

use table::Table;

/// How much text an order's target has at the most.
const TARGET_BYTES: usize = 2_048;
/// And the name of who wants it.
const BY_BYTES: usize = 256;
/// How many sets of facts there are orders by that name no rule: a request is looked up by each of them.
const MOST_SORTS: usize = 16;
/// A wall clock that shows so much less than when an order was made was set back.
const SET_BACK: Duration = Duration::from_secs(1);

/// All orders of an engine.
#[derive(Clone, Debug, Default)]
pub(super) struct Book {
    orders: Vec<Order>,
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
        for order in &mut self.orders {
            if order.made_at > now + SET_BACK {
                let lasts = order.until - order.made_at;
                (order.made_at, order.until) = (now, now + lasts);
                has_changed = true;
            }
        }
        has_changed
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
    /// use tollgate_engine::verdict::Reason;
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
    /// assert_eq!(verdict.reason(), Some(Reason::Blocked));
    /// assert_eq!(verdict.decision().retry_after, hour);
    /// assert!(engine.decide(&Facts::new().with("user", "bob")).passed().is_some());
    /// # wall.advance(hour);
    /// // An hour later:
    /// assert!(engine.decide(&mallory).passed().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn order(&self, new: NewOrder) -> Result<Order, OrderError> {
        is_sound(&new)?;
        let now = self.backend.wall();
        let mut book = self.book();
        book.end(now);
        let NewOrder {
            act,
            target,
            lasts,
            by,
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
        };
        // Whether it does anything is found out by itself: one more table, of this order alone.
        let mut alone = Table::default();
        order.effect = alone.add(&order, &rules, (&self.hashers, &self.backend));
        if let Effect::Idle(why) = order.effect {
            return Err(why);
        }
        let is_other =
            |other: &Order| other.target != order.target || other.act.name() != order.act.name();
        let others = book.orders.iter().filter(|other| is_other(other));
        if others.clone().count() >= MOST_ORDERS {
            return Err(OrderError::Full);
        }
        is_of_a_known_sort(&order, others)?;
        book.orders.retain(is_other);
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
        let now = self.backend.wall();
        let mut book = self.book();
        book.end(now);
        let place = book.orders.iter().position(is_meant)?;
        let order = book.orders.remove(place);
        let rules = self.rules.load_full();
        self.put_over(&rules, &mut book);
        drop(book);
        self.turns.poke_all();
        Some(order)
    }

    /// All orders that haven't ended, from the oldest, and what each does by the policy in force.
    pub fn orders(&self) -> Vec<Order> {
        let now = self.backend.wall();
        let mut book = self.book();
        if book.end(now) {
            let rules = self.rules.load_full();
            self.put_over(&rules, &mut book);
        }
        book.orders.clone()
    }

    /// Puts all orders over a policy, which may be about to come into force: then the book stays locked until it is.
    pub(super) fn put_over(&self, rules: &Rules, book: &mut Book) {
        let mut table = Table::default();
        for order in &mut book.orders {
            order.effect = table.add(order, rules, (&self.hashers, &self.backend));
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
        let now = self.backend.wall();
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
        (Act::Override(_), None, TargetKey::Everybody | TargetKey::Facts(_)) => {
            Err(OrderError::WantsRule)
        }
        _ => Ok(()),
    }
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
