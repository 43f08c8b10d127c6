//! `/admin/key` and `/admin/reset`: what one key has left of its limits, and giving back what it has spent.

use serde::Serialize;
use tollgate_engine::backend::{Gift, LimitKind};
use tollgate_engine::engine::{Found, FoundLimit, ResetRule};
use tollgate_engine::orders::Target;

use super::asked::{Asked, Takes};
use super::orders::{Shown, wrong};
use super::record;
use crate::address::Peer;
use crate::answers::{LOST, mode_name};
use crate::decider::Store;
use crate::http::body::read;
use crate::http::session::{Session, Wrong, bad};
use crate::log::Quoted;

/// One key of a rule.
#[derive(Serialize)]
struct Key {
    rule: String,
    key: String,
    mode: &'static str,
    /// Of a tier, whether it is the key's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    applies: Option<bool>,
    limits: Vec<Limit>,
    orders: Vec<Shown>,
}

/// What a request that costs one would be told by one limit now.
#[derive(Serialize)]
struct Limit {
    limit: String,
    allowed: bool,
    /// None if the store couldn't be asked.
    remaining: Option<u64>,
    of: u64,
    /// Seconds; none is never.
    retry_after: Option<f64>,
    reset_after: f64,
    waiting: usize,
}

/// What was forgotten of one rule's key, and which quotas stay as they are.
#[derive(Serialize)]
struct ResetOf {
    rule: String,
    reset: Vec<String>,
    kept: Vec<String>,
}

impl ResetOf {
    fn new(of: &ResetRule) -> Self {
        let shown = |kinds: &[LimitKind]| kinds.iter().map(ToString::to_string).collect();
        Self {
            rule: of.rule.clone(),
            reset: shown(&of.reset),
            kept: shown(&of.kept),
        }
    }
}

impl<B: Store> Session<B> {
    /// Looks for a key by what stands in the address.
    pub(super) async fn look_up(&mut self, query: &str) -> Result<(), Wrong> {
        let asked = Asked::of_query(query)?;
        self.look_for(&asked).await
    }

    /// The same by a body.
    pub(super) async fn look_up_by(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let asked: Asked<'_> = read(body).map_err(bad)?;
        self.look_for(&asked).await
    }

    async fn look_for(&mut self, asked: &Asked<'_>) -> Result<(), Wrong> {
        asked.check(Takes::Target, self.service.decider.bounds.arguments)?;
        let found = self.found(&asked.target()?).await?;
        let keys: Vec<_> = found.iter().map(|found| self.key(found)).collect();
        self.tell_as("keys", &keys)
    }

    async fn found(&self, target: &Target) -> Result<Vec<Found>, Wrong> {
        let Ok(found) = self.service.decider.engine.find_async(target).await;
        found.map_err(wrong)
    }

    fn key(&self, found: &Found) -> Key {
        Key {
            rule: found.rule.clone(),
            key: found.key.clone(),
            mode: mode_name(found.mode),
            applies: found.applies,
            limits: found.limits.iter().map(Limit::of).collect(),
            orders: found.orders.iter().map(|order| self.shown(order)).collect(),
        }
    }

    pub(super) async fn reset(&mut self, body: &[u8], from: Peer) -> Result<(), Wrong> {
        let asked: Asked<'_> = read(body).map_err(bad)?;
        asked.check(Takes::Reset, self.service.decider.bounds.arguments)?;
        let target = asked.target()?;
        let before = in_words(&self.found(&target).await?);
        let scope = asked.reset_scope();
        let Ok(reset) = self
            .service
            .decider
            .engine
            .reset_async(&target, scope)
            .await;
        let reset = reset.map_err(wrong)?;
        let now = match reset.gift {
            Gift::Given => in_words(&self.found(&target).await?),
            Gift::Lost => Quoted("unknown: the store can't be asked".to_owned()),
        };
        let whose = Quoted(target.to_string());
        let said: [(&str, &dyn std::fmt::Display); 3] =
            [("key", &whose), ("before", &before), ("now", &now)];
        record(&self.service.monitor.log, "admin reset", from, &said);
        match reset.gift {
            Gift::Given => {
                let rules: Vec<_> = reset.rules.iter().map(ResetOf::new).collect();
                self.tell_as("rules", &rules)
            }
            Gift::Lost => Err((503, LOST.to_owned())),
        }
    }
}

impl Limit {
    fn of(found: &FoundLimit) -> Self {
        let decision = &found.decision;
        let retry = decision.wait();
        Self {
            limit: found.kind.to_string(),
            allowed: decision.is_allowed(),
            remaining: is_known(found).then_some(decision.remaining),
            of: if is_known(found) { decision.limit } else { 0 },
            retry_after: (retry != std::time::Duration::MAX).then_some(retry.as_secs_f64()),
            reset_after: decision.reset_after.as_secs_f64(),
            waiting: found.waiting,
        }
    }
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
