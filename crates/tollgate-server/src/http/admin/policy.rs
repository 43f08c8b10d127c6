//! `/admin/rules`, `/admin/reload` and `/admin/log`: the policy in force with its counters, reloads of the policy, and
//! the level of the log.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use tollgate_engine::counters::{LimiterCounts, limiter_name};
use tollgate_engine::diff::PolicyDiff;
use tollgate_engine::verdict::DenyReason;
use tollgate_http::json;

use super::write_field;

use crate::decision_service::CounterStore;
use crate::http::body::parse_body;
use crate::http::session::{HttpError, HttpSession, bad_request};
use crate::log::Level;
use crate::policy_reload::Reloadable;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LogLevelRequest {
    level: String,
}

impl<B: CounterStore> HttpSession<B> {
    #[expect(clippy::unnecessary_wraps, reason = "as all that a route does")]
    pub(super) fn list_rules(&mut self) -> Result<(), HttpError> {
        let engine = &self.service.decider.engine;
        let mut tallies: HashMap<_, _> = engine
            .counters()
            .into_iter()
            .map(|tally| (tally.limiter.to_string(), tally))
            .collect();
        let mut rules = Vec::new();
        for limiter in engine.limiter_states() {
            let tally = tallies.remove(&*limiter_name(&limiter.name));
            let limits: Vec<_> = limiter.limits.iter().map(ToString::to_string).collect();
            rules.push((limiter.name, limits, tally));
        }
        let mut others: Vec<_> = tallies.into_values().collect();
        others.retain(|tally| {
            let counted = tally.allowed + tally.denied_total() + tally.shadow_denied;
            counted + tally.missing_key > 0
        });
        others.sort_by(|one, other| one.limiter.cmp(&other.limiter));
        let others = others.into_iter();
        rules.extend(others.map(|tally| (tally.limiter.to_string(), Vec::new(), Some(tally))));
        let warnings: Vec<_> = engine.warnings().iter().map(ToString::to_string).collect();
        json::object(&mut self.answer.body, |object| {
            json::array(object.field("rules"), &rules, write_rule);
            // Limits of the policy in force that never apply, in sentences.
            write_field(object, "warnings", warnings);
        });
        Ok(())
    }

    /// What a reload would change.
    pub(super) async fn preview_reload(&mut self) -> Result<(), HttpError> {
        let diff = self
            .run_blocking(|service| service.reloader().preview(service))
            .await?;
        self.write_reload(&diff)
    }

    pub(super) async fn reload(&mut self) -> Result<(), HttpError> {
        let who = format!("admin {}", self.peer);
        let diff = self
            .run_blocking(move |service| service.reloader().reload(service, &who))
            .await;
        let now = match &diff {
            Ok(diff) => diff.summary(),
            Err((_, why)) => format!("refused: {why}"),
        };
        self.log_change("admin reload", &[("now", &now)]);
        self.write_reload(&diff?)
    }

    /// Runs a reload on a blocking thread, as it reads and compiles.
    async fn run_blocking(
        &self,
        doing: impl FnOnce(&dyn Reloadable) -> Result<PolicyDiff, String> + Send + 'static,
    ) -> Result<PolicyDiff, HttpError> {
        let service = Arc::clone(&self.service);
        let done = tokio::task::spawn_blocking(move || doing(&*service)).await;
        let done = done.map_err(|error| (500, error.to_string()))?;
        done.map_err(|why| (422, why))
    }

    #[expect(clippy::unnecessary_wraps, reason = "as all that a route does")]
    fn write_reload(&mut self, diff: &PolicyDiff) -> Result<(), HttpError> {
        let reloads = self.service.reloader.counts();
        json::object(&mut self.answer.body, |object| {
            write_field(object, "summary", diff.summary());
            // The text that `tollgate diff` prints.
            write_field(object, "text", diff.to_string());
            write_field(object, "changes", &diff.changes);
            write_field(object, "reloads", reloads);
        });
        Ok(())
    }

    pub(super) fn log_level(&mut self) -> Result<(), HttpError> {
        let level = self.service.monitor.log.level().to_string();
        self.write_field("level", level)
    }

    pub(super) fn set_log_level(&mut self, body: &[u8]) -> Result<(), HttpError> {
        let asked: LogLevelRequest = parse_body(body).map_err(bad_request)?;
        let level: Level = asked
            .level
            .parse()
            .map_err(|why| bad_request(format!("level: {why}")))?;
        let before = self.service.monitor.log.level();
        self.service.monitor.log.set_level(level);
        self.log_change("admin log", &[("before", &before), ("now", &level)]);
        self.log_level()
    }
}

/// Writes a limiter, its limits as a policy writes them, and its counters since the start.
fn write_rule(
    out: &mut Vec<u8>,
    (name, limits, tally): &(String, Vec<String>, Option<LimiterCounts>),
) {
    let count = |of: fn(&LimiterCounts) -> u64| tally.as_ref().map_or(0, of);
    let reasons = DenyReason::ALL.into_iter().filter_map(|reason| {
        let denied = tally.as_ref()?.denied(reason);
        (denied > 0).then_some((reason.name(), denied))
    });
    json::object(out, |object| {
        write_field(object, "name", name);
        write_field(object, "limits", limits);
        write_field(object, "allowed", count(|tally| tally.allowed));
        write_field(object, "denied", count(LimiterCounts::denied_total));
        write_field(object, "near_limit", count(|tally| tally.near_limit));
        write_field(object, "shadow_denied", count(|tally| tally.shadow_denied));
        write_field(object, "missing_key", count(|tally| tally.missing_key));
        write_field(object, "reasons", reasons.collect::<BTreeMap<_, _>>());
    });
}
