//! `/admin/block`, `/admin/unblock`, `/admin/override`, `/admin/bypass` and `/admin/overrides`: operators' overrides of
//! the policy, each for a limited time.

use std::fmt::Display;
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::Clock as _;
use tollgate_engine::overrides::{
    NewOverride, Override, OverrideAction, OverrideError, Target, TargetKey,
};
use tollgate_http::json;

use super::admin_request::RequestKind;
use super::write_field;
use crate::decision_service::CounterStore;
use crate::health_watch::report_bypasses;
use crate::http::session::{HttpError, HttpSession};
use crate::log::{Quoted, format_time};

/// Where to find the existing overrides.
const LIST_HINT: &str = "tollgate admin overrides shows all (GET /admin/overrides)";

impl<B: CounterStore> HttpSession<B> {
    pub(super) fn add_override(
        &mut self,
        takes: RequestKind,
        body: &[u8],
    ) -> Result<(), HttpError> {
        let asked = self.read_request(body, takes)?;
        let (act, from) = (asked.act(takes)?, self.peer);
        let target = asked.target()?;
        let by = match asked.why()? {
            Some(why) => format!("{from}: {why}"),
            None => from.to_string(),
        };
        let lasts = asked.lasts()?;
        let before = self.find_override(&target, &act);
        let new = NewOverride::new(act, target, lasts).author(by);
        let new = new.naming(asked.order_facts());
        let made = self
            .service
            .decider
            .engine
            .add_override(new)
            .map_err(override_error)?;
        let (event, now) = (
            format!("admin {}", made.act.name()),
            describe_override(&made),
        );
        match &before {
            Some(before) => self.log_override_change(&event, &describe_override(before), &now),
            None => self.log_override_change(&event, &"none", &now),
        }
        let now = self.wall_time();
        write_override(&mut self.answer.body, &made, now, before.as_ref());
        Ok(())
    }

    pub(super) fn remove_block(&mut self, body: &[u8]) -> Result<(), HttpError> {
        let target = self.read_request(body, RequestKind::Target)?.target()?;
        let engine = &self.service.decider.engine;
        let ended = engine.remove_override_for(&target, &OverrideAction::Block);
        self.answer_removed("admin unblock", ended, &format!("block of {target}"))
    }

    pub(super) fn remove_override(&mut self, path: &str) -> Result<(), HttpError> {
        let id = path.rsplit('/').next().unwrap_or_default();
        let engine = &self.service.decider.engine;
        let ended = id.parse().ok().and_then(|id| engine.remove_override(id));
        self.answer_removed("admin order ended", ended, &format!("order {id}"))
    }

    fn answer_removed(
        &mut self,
        event: &str,
        order: Option<Override>,
        what: &str,
    ) -> Result<(), HttpError> {
        let order = order.ok_or_else(|| (404, format!("no {what}: {LIST_HINT}")))?;
        self.log_override_change(event, &describe_override(&order), &"none");
        let now = self.wall_time();
        write_override(&mut self.answer.body, &order, now, None);
        Ok(())
    }

    /// Logs an override that was added or removed.
    fn log_override_change(&self, event: &str, before: &dyn Display, now: &dyn Display) {
        self.log_change(event, &[("before", before), ("now", now)]);
        let (orders, health) = (
            self.service.decider.engine.overrides(),
            &self.service.monitor.health,
        );
        report_bypasses(&orders, health);
    }

    #[expect(clippy::unnecessary_wraps, reason = "as all that a route does")]
    pub(super) fn list_overrides(&mut self) -> Result<(), HttpError> {
        let (orders, now) = (self.service.decider.engine.overrides(), self.wall_time());
        json::object(&mut self.answer.body, |object| {
            json::array(object.field("overrides"), &orders, |out, order| {
                write_override(out, order, now, None);
            });
        });
        Ok(())
    }

    fn find_override(&self, target: &Target, act: &OverrideAction) -> Option<Override> {
        let mut orders = self.service.decider.engine.overrides().into_iter();
        orders.find(|other| other.target == *target && other.act.name() == act.name())
    }

    /// The current time of the overrides' clock.
    pub(super) fn wall_time(&self) -> Timestamp {
        self.service.decider.engine.backend().clocks().wall.now()
    }
}

/// Writes an override as JSON, with the one that it replaced.
pub(super) fn write_override(
    out: &mut Vec<u8>,
    order: &Override,
    now: Timestamp,
    before: Option<&Override>,
) {
    let key = match order.target.target_key() {
        TargetKey::AllRequests => None,
        whose => Some(whose.to_string()),
    };
    let left = Duration::from_nanos(order.until.nanos_since(now));
    json::object(out, |object| {
        write_field(object, "id", order.id);
        write_field(object, "act", order.act.name());
        write_field(object, "limits", override_limits(order));
        write_field(object, "rule", order.target.rule_name());
        write_field(object, "key", key);
        write_field(object, "by", &order.by);
        write_field(object, "made_at", format_time(order.made_at));
        write_field(object, "until", format_time(order.until));
        write_field(object, "left", left.as_secs());
        write_field(object, "effect", order.effect.to_string());
        // The number of requests it has decided, and the time of the latest.
        write_field(object, "applied", order.used_count);
        write_field(object, "last_applied", order.last_used_at.map(format_time));
        object.optional("in_place_of", before, |out, before| {
            json::object(out, |object| {
                write_field(object, "id", before.id);
                write_field(object, "limits", override_limits(before));
                write_field(object, "until", format_time(before.until));
            });
        });
    });
}

/// The limits of an override.
fn override_limits(order: &Override) -> Option<String> {
    match &order.act {
        OverrideAction::Limit(limits) => Some(limits.to_string()),
        _ => None,
    }
}

/// An override for the log. Quoted, so that its texts can't look like other fields.
fn describe_override(order: &Override) -> Quoted {
    let Override { id, target, by, .. } = order;
    let with = override_limits(order).map_or_else(String::new, |limits| format!(" with {limits}"));
    let (act, until) = (order.act.name(), format_time(order.until));
    Quoted(format!("{id}: {act} {target}{with} until {until} by {by}"))
}

/// The HTTP error for an override that can't be added.
pub(super) fn override_error(why: OverrideError) -> HttpError {
    let status = match why {
        OverrideError::UnknownRule { .. }
        | OverrideError::NoKey
        | OverrideError::OtherLimit { .. } => 404,
        OverrideError::Full
        | OverrideError::TooManyFactSets(_)
        | OverrideError::TooManyPatterns(_) => 409,
        _ => 400,
    };
    (status, why.to_string())
}
