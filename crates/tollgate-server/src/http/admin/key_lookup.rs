//! `/admin/key` and `/admin/reset`: the remaining tokens of a key, and resets of its counters.

use std::fmt::Display;
use std::time::Duration;

use tollgate::Timestamp;
use tollgate_engine::backend::{LimitKind, RefundResult};
use tollgate_engine::engine::{KeyLimitState, KeyState, ResetRule};
use tollgate_engine::overrides::Target;
use tollgate_http::json;

use super::admin_request::{AdminRequest, RequestKind};
use super::overrides::{override_error, write_override};
use super::write_field;
use crate::decision_answer::STORE_UNREACHABLE;
use crate::decision_service::CounterStore;
use crate::http::session::{HttpError, HttpSession};
use crate::log::Quoted;

impl<B: CounterStore> HttpSession<B> {
    /// Looks up a key.
    pub(super) async fn look_up_key(&mut self, asked: AdminRequest<'_>) -> Result<(), HttpError> {
        asked.check(
            RequestKind::Target,
            self.service.decider.bounds.max_arguments,
        )?;
        let found = self.find_keys(&asked.target()?).await?;
        let now = self.wall_time();
        json::object(&mut self.answer.body, |object| {
            json::array(object.field("keys"), &found, |out, found| {
                write_key(out, found, now)
            });
        });
        Ok(())
    }

    async fn find_keys(&self, target: &Target) -> Result<Vec<KeyState>, HttpError> {
        let Ok(found) = self.service.decider.engine.find_async(target).await;
        found.map_err(override_error)
    }

    pub(super) async fn reset(&mut self, body: &[u8]) -> Result<(), HttpError> {
        let asked = self.read_request(body, RequestKind::Reset)?;
        let (target, scope) = (asked.target()?, asked.reset_scope());
        let before = describe_limits(&self.find_keys(&target).await?);
        let engine = &self.service.decider.engine;
        let Ok(reset) = engine.reset_async(&target, scope).await;
        let reset = reset.map_err(override_error)?;
        let now = match reset.refund_result {
            RefundResult::Refunded => describe_limits(&self.find_keys(&target).await?),
            RefundResult::Lost => Quoted("unknown: the store can't be asked".to_owned()),
        };
        let whose = Quoted(target.to_string());
        let said: [(&str, &dyn Display); 3] = [("key", &whose), ("before", &before), ("now", &now)];
        self.log_change("admin reset", &said);
        if reset.refund_result == RefundResult::Lost {
            return Err((503, STORE_UNREACHABLE.to_owned()));
        }
        json::object(&mut self.answer.body, |object| {
            json::array(object.field("rules"), &reset.rules, write_reset);
        });
        Ok(())
    }
}

/// Writes one key of a rule.
fn write_key(out: &mut Vec<u8>, found: &KeyState, now: Timestamp) {
    json::object(out, |object| {
        write_field(object, "rule", &found.rule);
        write_field(object, "key", &found.key);
        write_field(object, "mode", found.mode.name());
        // For a tier: whether it is the key's own tier.
        if let Some(applies) = found.applies {
            write_field(object, "applies", applies);
        }
        json::array(object.field("limits"), &found.limits, write_limit);
        json::array(object.field("overrides"), &found.orders, |out, order| {
            write_override(out, order, now, None);
        });
    });
}

/// Writes the decision of one limit for a request with a cost of 1.
fn write_limit(out: &mut Vec<u8>, found: &KeyLimitState) {
    let (decision, is_known) = (&found.decision, is_known(found));
    let retry = decision.wait_or_max();
    // `None` stands for never.
    let retry = (retry != Duration::MAX).then_some(retry.as_secs_f64());
    json::object(out, |object| {
        write_field(object, "limit", found.kind.to_string());
        write_field(object, "allowed", decision.is_allowed());
        write_field(object, "remaining", is_known.then_some(decision.remaining));
        write_field(object, "of", if is_known { decision.limit } else { 0 });
        write_field(object, "retry_after", retry);
        write_field(object, "reset_after", decision.reset_after.as_secs_f64());
        write_field(object, "waiting", found.waiting);
    });
}

/// Writes the limits of a rule's key that were reset, and the quotas that were kept.
fn write_reset(out: &mut Vec<u8>, of: &ResetRule) {
    let shown = |kinds: &[LimitKind]| kinds.iter().map(ToString::to_string).collect::<Vec<_>>();
    json::object(out, |object| {
        write_field(object, "rule", &of.rule);
        write_field(object, "reset", shown(&of.reset));
        write_field(object, "kept", shown(&of.kept));
    });
}

/// Whether the remaining tokens are known: an open limit allows everything while its store is unreachable.
fn is_known(found: &KeyLimitState) -> bool {
    found.is_known && !found.decision.is_unlimited()
}

/// The remaining tokens of each limit, for the log.
fn describe_limits(found: &[KeyState]) -> Quoted {
    let each = found.iter().flat_map(|found| {
        let limits = found.limits.iter();
        limits.map(|limit| {
            let (rule, decision) = (&found.rule, &limit.decision);
            if is_known(limit) {
                format!("{rule} {}/{}", decision.remaining, decision.limit)
            } else {
                format!("{rule} unknown")
            }
        })
    });
    Quoted(each.collect::<Vec<_>>().join(", "))
}
