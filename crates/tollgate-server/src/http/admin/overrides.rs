//! `/admin/block`, `/admin/unblock`, `/admin/override`, `/admin/bypass`, `/admin/orders`: what operators order over the
//! policy, each for a while.

use std::fmt::Display;
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::Clock as _;
use tollgate_engine::orders::{Act, NewOverride, Order, OrderError, Target, TargetKey};
use tollgate_http::json;

use super::admin_request::RequestKind;
use super::put;
use crate::decision_service::Store;
use crate::health_watch::report_bypasses;
use crate::http::session::{Session, Wrong};
use crate::log::{Quoted, date};

/// Where those are that there are.
const SHOWS_ORDERS: &str = "tollgate admin orders shows all (GET /admin/orders)";

impl<B: Store> Session<B> {
    pub(super) fn order(&mut self, takes: RequestKind, body: &[u8]) -> Result<(), Wrong> {
        let asked = self.asked(body, takes)?;
        let (act, from) = (asked.act(takes)?, self.from);
        let target = asked.target()?;
        let by = match asked.why()? {
            Some(why) => format!("{from}: {why}"),
            None => from.to_string(),
        };
        let lasts = asked.lasts()?;
        let before = self.find_override(&target, &act);
        let new = NewOverride::new(act, target, lasts).by(by);
        let new = new.naming(asked.order_facts());
        let made = self.service.decider.engine.order(new).map_err(wrong)?;
        let (event, now) = (format!("admin {}", made.act.name()), in_words(&made));
        match &before {
            Some(before) => self.changed(&event, &in_words(before), &now),
            None => self.changed(&event, &"none", &now),
        }
        let now = self.now();
        write_override(&mut self.answer.body, &made, now, before.as_ref());
        Ok(())
    }

    pub(super) fn unblock(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let target = self.asked(body, RequestKind::Target)?.target()?;
        let engine = &self.service.decider.engine;
        let ended = engine.withdraw_from(&target, &Act::Block);
        self.ended("admin unblock", ended, &format!("block of {target}"))
    }

    pub(super) fn end_order(&mut self, path: &str) -> Result<(), Wrong> {
        let id = path.rsplit('/').next().unwrap_or_default();
        let engine = &self.service.decider.engine;
        let ended = id.parse().ok().and_then(|id| engine.withdraw(id));
        self.ended("admin order ended", ended, &format!("order {id}"))
    }

    fn ended(&mut self, event: &str, order: Option<Order>, what: &str) -> Result<(), Wrong> {
        let order = order.ok_or_else(|| (404, format!("no {what}: {SHOWS_ORDERS}")))?;
        self.changed(event, &in_words(&order), &"none");
        let now = self.now();
        write_override(&mut self.answer.body, &order, now, None);
        Ok(())
    }

    /// Writes down what was ordered, or withdrawn.
    fn changed(&self, event: &str, before: &dyn Display, now: &dyn Display) {
        self.record(event, &[("before", before), ("now", now)]);
        let (orders, health) = (
            self.service.decider.engine.orders(),
            &self.service.monitor.health,
        );
        report_bypasses(&orders, health);
    }

    #[expect(clippy::unnecessary_wraps, reason = "as all that a route does")]
    pub(super) fn orders(&mut self) -> Result<(), Wrong> {
        let (orders, now) = (self.service.decider.engine.orders(), self.now());
        json::object(&mut self.answer.body, |object| {
            json::array(object.field("orders"), &orders, |out, order| {
                write_override(out, order, now, None);
            });
        });
        Ok(())
    }

    fn find_override(&self, target: &Target, act: &Act) -> Option<Order> {
        let mut orders = self.service.decider.engine.orders().into_iter();
        orders.find(|other| other.target == *target && other.act.name() == act.name())
    }

    /// The time, by the clock of orders.
    pub(super) fn now(&self) -> Timestamp {
        self.service.decider.engine.backend().clocks().wall.now()
    }
}

/// An order, as operators see it, and the one whose place it has taken.
pub(super) fn write_override(
    out: &mut Vec<u8>,
    order: &Order,
    now: Timestamp,
    before: Option<&Order>,
) {
    let key = match order.target.whose() {
        TargetKey::Everybody => None,
        whose => Some(whose.to_string()),
    };
    let left = Duration::from_nanos(order.until.nanos_since(now));
    json::object(out, |object| {
        put(object, "id", order.id);
        put(object, "act", order.act.name());
        put(object, "limits", override_limits(order));
        put(object, "rule", order.target.rule_name());
        put(object, "key", key);
        put(object, "by", &order.by);
        put(object, "made_at", date(order.made_at));
        put(object, "until", date(order.until));
        put(object, "left", left.as_secs());
        put(object, "effect", order.effect.to_string());
        // How many requests it has decided, and when it did so last.
        put(object, "acted", order.acted);
        put(object, "last_acted", order.last_acted.map(date));
        object.optional("in_place_of", before, |out, before| {
            json::object(out, |object| {
                put(object, "id", before.id);
                put(object, "limits", override_limits(before));
                put(object, "until", date(before.until));
            });
        });
    });
}

/// The limits of an override.
fn override_limits(order: &Order) -> Option<String> {
    match &order.act {
        Act::Override(limits) => Some(limits.to_string()),
        _ => None,
    }
}

/// For the log, where nothing that somebody has chosen may look like something else.
fn in_words(order: &Order) -> Quoted {
    let Order { id, target, by, .. } = order;
    let with = override_limits(order).map_or_else(String::new, |limits| format!(" with {limits}"));
    let (act, until) = (order.act.name(), date(order.until));
    Quoted(format!("{id}: {act} {target}{with} until {until} by {by}"))
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
