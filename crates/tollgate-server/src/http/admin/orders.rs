//! `/admin/block`, `/admin/unblock`, `/admin/override`, `/admin/bypass`, `/admin/orders`: what operators order over the
//! policy, each for a while.

use std::time::Duration;

use serde::Serialize;
use tollgate_engine::orders::{Act, NewOrder, Order, OrderError, Target, TargetKey};

use super::asked::{Asked, Takes};
use super::record;
use crate::address::Peer;
use crate::decider::Store;
use crate::http::body::read;
use crate::http::session::{Session, Wrong, bad};
use crate::log::{Quoted, date};
use crate::vitals::report_bypasses;

/// Where those are that there are.
const SHOWS_ORDERS: &str = "tollgate admin orders shows all (GET /admin/orders)";

/// What can be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ordered {
    Block,
    Bypass,
    Override,
}

/// An order, as operators see it.
#[derive(Serialize)]
pub(super) struct Shown {
    id: u64,
    act: &'static str,
    /// The limits of an override.
    limits: Option<String>,
    rule: Option<String>,
    /// Whose: the facts, or the descriptor; none if everybody's.
    key: Option<String>,
    by: String,
    made_at: String,
    until: String,
    /// Seconds until it ends.
    left: u64,
    effect: String,
    /// How many requests it has decided, and when it did so last.
    acted: u64,
    last_acted: Option<String>,
    /// The one whose place it has taken, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_place_of: Option<InPlaceOf>,
}

/// An order that ended because another took its place.
#[derive(Serialize)]
struct InPlaceOf {
    id: u64,
    limits: Option<String>,
    until: String,
}

impl<B: Store> Session<B> {
    pub(super) fn order(&mut self, ordered: Ordered, body: &[u8], from: Peer) -> Result<(), Wrong> {
        let asked: Asked<'_> = read(body).map_err(bad)?;
        let takes = match ordered {
            Ordered::Block => Takes::Order,
            Ordered::Bypass => Takes::Bypass,
            Ordered::Override => Takes::Override,
        };
        asked.check(takes, self.service.decider.bounds.arguments)?;
        let act = match ordered {
            Ordered::Block => Act::Block,
            Ordered::Bypass => Act::Bypass,
            Ordered::Override => Act::Override(asked.replacement()?),
        };
        let target = asked.target()?;
        let by = match asked.why()? {
            Some(why) => format!("{from}: {why}"),
            None => from.to_string(),
        };
        let lasts = asked.lasts()?;
        let before = self.ordered_before(&target, &act);
        let new = NewOrder::new(act, target, lasts).by(by);
        let new = new.naming(asked.order_facts());
        let made = self.service.decider.engine.order(new).map_err(wrong)?;
        let in_place_of = before.as_ref().map(|before| InPlaceOf {
            id: before.id,
            limits: limits_of(before),
            until: date(before.until),
        });
        let (before, now) = (in_words(before.as_ref()), in_words(Some(&made)));
        let event = format!("admin {}", made.act.name());
        self.changed(&event, from, &[("before", &before), ("now", &now)]);
        let shown = Shown {
            in_place_of,
            ..self.shown(&made)
        };
        self.tell(&shown)
    }

    pub(super) fn unblock(&mut self, body: &[u8], from: Peer) -> Result<(), Wrong> {
        let asked: Asked<'_> = read(body).map_err(bad)?;
        asked.check(Takes::Target, self.service.decider.bounds.arguments)?;
        let target = asked.target()?;
        let ended = self
            .service
            .decider
            .engine
            .withdraw_from(&target, &Act::Block);
        let missing = || (404, format!("no block of {target}: {SHOWS_ORDERS}"));
        self.ended("admin unblock", &ended.ok_or_else(missing)?, from)
    }

    pub(super) fn end_order(&mut self, path: &str, from: Peer) -> Result<(), Wrong> {
        let id = path.rsplit('/').next().unwrap_or_default();
        let ended = id
            .parse()
            .ok()
            .and_then(|id| self.service.decider.engine.withdraw(id));
        let missing = || (404, format!("no order {id}: {SHOWS_ORDERS}"));
        self.ended("admin order ended", &ended.ok_or_else(missing)?, from)
    }

    fn ended(&mut self, event: &str, order: &Order, from: Peer) -> Result<(), Wrong> {
        let before = in_words(Some(order));
        self.changed(event, from, &[("before", &before), ("now", &"none")]);
        let shown = self.shown(order);
        self.tell(&shown)
    }

    /// Writes down what was ordered, or withdrawn.
    fn changed(&self, event: &str, from: Peer, fields: &[(&str, &dyn std::fmt::Display)]) {
        let monitor = &self.service.monitor;
        record(&monitor.log, event, from, fields);
        report_bypasses(&self.service.decider.engine.orders(), &monitor.health);
    }

    pub(super) fn orders(&mut self) -> Result<(), Wrong> {
        let orders = self.service.decider.engine.orders();
        let orders: Vec<_> = orders.iter().map(|order| self.shown(order)).collect();
        self.tell_as("orders", &orders)
    }

    fn ordered_before(&self, target: &Target, act: &Act) -> Option<Order> {
        let mut orders = self.service.decider.engine.orders().into_iter();
        orders.find(|other| other.target == *target && other.act.name() == act.name())
    }

    pub(super) fn shown(&self, order: &Order) -> Shown {
        let now = self.service.decider.engine.backend().clocks().wall.now();
        let key = match order.target.whose() {
            TargetKey::Everybody => None,
            whose => Some(whose.to_string()),
        };
        Shown {
            id: order.id,
            act: order.act.name(),
            limits: limits_of(order),
            rule: order.target.rule_name().map(ToOwned::to_owned),
            key,
            by: order.by.clone(),
            made_at: date(order.made_at),
            until: date(order.until),
            left: Duration::from_nanos(order.until.nanos_since(now)).as_secs(),
            effect: order.effect.to_string(),
            acted: order.acted,
            last_acted: order.last_acted.map(date),
            in_place_of: None,
        }
    }
}

/// The limits of an override.
fn limits_of(order: &Order) -> Option<String> {
    match &order.act {
        Act::Override(limits) => Some(limits.to_string()),
        _ => None,
    }
}

/// For the log, where nothing that somebody has chosen may look like something else.
fn in_words(order: Option<&Order>) -> Box<dyn std::fmt::Display> {
    order.map_or_else(
        || Box::new("none") as Box<dyn std::fmt::Display>,
        |order| {
            let Order {
                id, act, target, ..
            } = order;
            let with = match act {
                Act::Override(limits) => format!(" with {limits}"),
                _ => String::new(),
            };
            let (act, until, by) = (act.name(), date(order.until), &order.by);
            let words = format!("{id}: {act} {target}{with} until {until} by {by}");
            Box::new(Quoted(words))
        },
    )
}

/// How it is told that something can't be ordered.
pub(super) fn wrong(why: OrderError) -> Wrong {
    let status = match why {
        OrderError::UnknownRule { .. } | OrderError::NoKey | OrderError::OtherLimit { .. } => 404,
        OrderError::Full | OrderError::TooManySorts(_) | OrderError::TooManyPatterns(_) => 409,
        _ => 400,
    };
    (status, why.to_string())
}
