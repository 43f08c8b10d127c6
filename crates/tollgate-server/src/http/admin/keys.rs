//! `/admin/key` and `/admin/reset`: what one key has left of its limits, and giving back what it has spent.

use std::fmt::Display;
use std::time::Duration;

use tollgate::Timestamp;
use tollgate_engine::backend::{Gift, LimitKind};
use tollgate_engine::engine::{Found, FoundLimit, ResetRule};
use tollgate_engine::orders::Target;
use tollgate_http::json;

use super::admin_request::{Asked, RequestKind};
use super::overrides::{write_override, wrong};
use super::put;
use crate::decision_answer::LOST;
use crate::decision_service::Store;
use crate::http::session::{Session, Wrong};
use crate::log::Quoted;

impl<B: Store> Session<B> {
    /// Looks for a key.
    pub(super) async fn look_up(&mut self, asked: Asked<'_>) -> Result<(), Wrong> {
        asked.check(RequestKind::Target, self.service.decider.bounds.arguments)?;
        let found = self.found(&asked.target()?).await?;
        let now = self.now();
        json::object(&mut self.answer.body, |object| {
            json::array(object.field("keys"), &found, |out, found| {
                write_key(out, found, now)
            });
        });
        Ok(())
    }

    async fn found(&self, target: &Target) -> Result<Vec<Found>, Wrong> {
        let Ok(found) = self.service.decider.engine.find_async(target).await;
        found.map_err(wrong)
    }

    pub(super) async fn reset(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let asked = self.asked(body, RequestKind::Reset)?;
        let (target, scope) = (asked.target()?, asked.reset_scope());
        let before = in_words(&self.found(&target).await?);
        let engine = &self.service.decider.engine;
        let Ok(reset) = engine.reset_async(&target, scope).await;
        let reset = reset.map_err(wrong)?;
        let now = match reset.gift {
            Gift::Given => in_words(&self.found(&target).await?),
            Gift::Lost => Quoted("unknown: the store can't be asked".to_owned()),
        };
        let whose = Quoted(target.to_string());
        let said: [(&str, &dyn Display); 3] = [("key", &whose), ("before", &before), ("now", &now)];
        self.record("admin reset", &said);
        if reset.gift == Gift::Lost {
            return Err((503, LOST.to_owned()));
        }
        json::object(&mut self.answer.body, |object| {
            json::array(object.field("rules"), &reset.rules, write_reset);
        });
        Ok(())
    }
}

/// One key of a rule.
fn write_key(out: &mut Vec<u8>, found: &Found, now: Timestamp) {
    json::object(out, |object| {
        put(object, "rule", &found.rule);
        put(object, "key", &found.key);
        put(object, "mode", found.mode.name());
        // Of a tier, whether it is the key's own.
        if let Some(applies) = found.applies {
            put(object, "applies", applies);
        }
        json::array(object.field("limits"), &found.limits, write_limit);
        json::array(object.field("orders"), &found.orders, |out, order| {
            write_override(out, order, now, None);
        });
    });
}

/// What a request that costs one would be told by one limit now.
fn write_limit(out: &mut Vec<u8>, found: &FoundLimit) {
    let (decision, is_known) = (&found.decision, is_known(found));
    let retry = decision.wait();
    // None is never.
    let retry = (retry != Duration::MAX).then_some(retry.as_secs_f64());
    json::object(out, |object| {
        put(object, "limit", found.kind.to_string());
        put(object, "allowed", decision.is_allowed());
        put(object, "remaining", is_known.then_some(decision.remaining));
        put(object, "of", if is_known { decision.limit } else { 0 });
        put(object, "retry_after", retry);
        put(object, "reset_after", decision.reset_after.as_secs_f64());
        put(object, "waiting", found.waiting);
    });
}

/// What was forgotten of one rule's key, and which quotas stay as they are.
fn write_reset(out: &mut Vec<u8>, of: &ResetRule) {
    let shown = |kinds: &[LimitKind]| kinds.iter().map(ToString::to_string).collect::<Vec<_>>();
    json::object(out, |object| {
        put(object, "rule", &of.rule);
        put(object, "reset", shown(&of.reset));
        put(object, "kept", shown(&of.kept));
    });
}

/// Whether anybody knows what is left: an open limit passes everything while its store can't be asked.
fn is_known(found: &FoundLimit) -> bool {
    found.is_known && !found.decision.is_unlimited()
}

/// What is left of each limit, for the log.
fn in_words(found: &[Found]) -> Quoted {
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
