//! `/admin/rules`, `/admin/reload` and `/admin/log`: the policy in force with what it has decided, putting its file in
//! force again, and how much is logged.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tollgate_engine::diff::{Change, Diff};
use tollgate_engine::tally::{Tally, limiter_name};
use tollgate_engine::verdict::DenyReason;

use super::record;
use crate::address::Peer;
use crate::decider::Store;
use crate::http::body::read;
use crate::http::session::{Session, Wrong, bad};
use crate::log::Level;
use crate::reload::{Reloadable, Reloads};

#[derive(Serialize)]
struct Rules {
    rules: Vec<Rule>,
    /// Limits of the policy in force that apply to nobody, in sentences.
    warnings: Vec<String>,
}

/// A limiter, and what it has decided since the service started.
#[derive(Serialize)]
struct Rule {
    name: String,
    /// As a policy writes them; none of what no rule decided, as `(none)`.
    limits: Vec<String>,
    allowed: u64,
    denied: u64,
    near_limit: u64,
    shadow_denied: u64,
    /// Requests that it was for, but that lacked its key.
    missing_key: u64,
    /// Why it denied, without those that never were a reason.
    reasons: BTreeMap<&'static str, u64>,
}

/// What a reload changes.
#[derive(Serialize)]
struct Reload<'d> {
    summary: String,
    /// As `tollgate diff` tells it.
    text: String,
    changes: &'d [Change],
    reloads: Reloads,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedLevel {
    level: String,
}

impl<B: Store> Session<B> {
    pub(super) fn rules(&mut self) -> Result<(), Wrong> {
        let engine = &self.service.decider.engine;
        let mut tallies: HashMap<_, _> = engine
            .tallies()
            .into_iter()
            .map(|tally| (tally.limiter.to_string(), tally))
            .collect();
        let mut rules: Vec<_> = engine
            .limiter_states()
            .into_iter()
            .map(|limiter| {
                let tally = tallies.remove(&*limiter_name(&limiter.name));
                let limits = limiter.limits.iter().map(ToString::to_string).collect();
                Rule::of(limiter.name, limits, tally.as_ref())
            })
            .collect();
        let mut others: Vec<_> = tallies.into_values().collect();
        others.retain(|tally| {
            let counted = tally.allowed + tally.denied_total() + tally.shadow_denied;
            counted + tally.missing_key > 0
        });
        others.sort_by(|one, other| one.limiter.cmp(&other.limiter));
        let others = others
            .iter()
            .map(|tally| Rule::of(tally.limiter.to_string(), Vec::new(), Some(tally)));
        rules.extend(others);
        let warnings = engine.warnings().iter().map(ToString::to_string).collect();
        self.tell(&Rules { rules, warnings })
    }

    /// What a reload would change.
    pub(super) async fn preview(&mut self) -> Result<(), Wrong> {
        let diff = self
            .off_thread(|service| service.reloader().preview(service))
            .await?;
        self.tell_reload(&diff)
    }

    pub(super) async fn reload(&mut self, from: Peer) -> Result<(), Wrong> {
        let who = format!("admin {from}");
        let diff = self
            .off_thread(move |service| service.reloader().reload(service, &who))
            .await;
        let now = match &diff {
            Ok(diff) => diff.summary(),
            Err((_, why)) => format!("refused: {why}"),
        };
        record(
            &self.service.monitor.log,
            "admin reload",
            from,
            &[("now", &now)],
        );
        self.tell_reload(&diff?)
    }

    /// Reads and compiles where nobody is served meanwhile.
    async fn off_thread(
        &self,
        doing: impl FnOnce(&dyn Reloadable) -> Result<Diff, String> + Send + 'static,
    ) -> Result<Diff, Wrong> {
        let service = Arc::clone(&self.service);
        let done = tokio::task::spawn_blocking(move || doing(&*service)).await;
        let done = done.map_err(|error| (500, error.to_string()))?;
        done.map_err(|why| (422, why))
    }

    fn tell_reload(&mut self, diff: &Diff) -> Result<(), Wrong> {
        let reloads = self.service.reloader.counts();
        self.tell(&Reload {
            summary: diff.summary(),
            text: diff.to_string(),
            changes: &diff.changes,
            reloads,
        })
    }

    pub(super) fn log_level(&mut self) -> Result<(), Wrong> {
        let level = self.service.monitor.log.level().to_string();
        self.tell_as("level", &level)
    }

    pub(super) fn set_log_level(&mut self, body: &[u8], from: Peer) -> Result<(), Wrong> {
        let asked: AskedLevel = read(body).map_err(bad)?;
        let level: Level = asked
            .level
            .parse()
            .map_err(|why| bad(format!("level: {why}")))?;
        let before = self.service.monitor.log.level();
        self.service.monitor.log.set_level(level);
        let fields: [(&str, &dyn std::fmt::Display); 2] = [("before", &before), ("now", &level)];
        record(&self.service.monitor.log, "admin log", from, &fields);
        self.log_level()
    }
}

impl Rule {
    fn of(name: String, limits: Vec<String>, tally: Option<&Tally>) -> Self {
        let count = |of: fn(&Tally) -> u64| tally.map_or(0, of);
        let reasons = DenyReason::ALL.into_iter().filter_map(|reason| {
            let denied = tally?.denied(reason);
            (denied > 0).then_some((reason.name(), denied))
        });
        Self {
            name,
            limits,
            allowed: count(|tally| tally.allowed),
            denied: count(Tally::denied_total),
            near_limit: count(|tally| tally.near_limit),
            shadow_denied: count(|tally| tally.shadow_denied),
            missing_key: count(|tally| tally.missing_key),
            reasons: reasons.collect(),
        }
    }
}
