//! `/debug/limiters` and `/admin/top`: the limits in force, with the state of those that have a single counter, and the
//! keys with the most denials.

use tollgate::Algorithm;
use tollgate_engine::backend::LimitKind;
use tollgate_engine::engine::{KeyLimitState, LimiterState};
use tollgate_engine::overrides::Target;
use tollgate_http::json;

use super::write_field;

use crate::decision_service::CounterStore;
use crate::http::session::{HttpError, HttpSession};
use crate::log::format_time;

impl<B: CounterStore> HttpSession<B> {
    pub(super) async fn limiters(&mut self) -> Result<(), HttpError> {
        let engine = &self.service.decider.engine;
        let mut states = Vec::new();
        for state in engine.limiter_states() {
            // A store would be queried for each limit, and a limit with keys has a state for each key.
            let found = if B::IS_LOCAL && state.key.is_empty() {
                let Ok(found) = engine.find_async(&Target::rule(&*state.name)).await;
                found.ok().and_then(|mut found| found.pop())
            } else {
                None
            };
            states.push((state, found.map_or_else(Vec::new, |found| found.limits)));
        }
        let limiters = states.iter().flat_map(|(state, found)| {
            let kinds = state.limits.iter().enumerate();
            kinds.map(move |(number, kind)| (state, kind, found.get(number)))
        });
        json::object(&mut self.answer.body, |object| {
            json::array(object.field("limiters"), limiters, write_limiter);
            // For all limits together.
            write_field(object, "waiting", engine.waiter_count());
        });
        Ok(())
    }

    pub(super) fn top(&mut self) -> Result<(), HttpError> {
        let Some(top) = self.service.decider.engine.top_keys() else {
            return Err((404, "this service doesn't count denials by key".to_owned()));
        };
        json::object(&mut self.answer.body, |object| {
            write_field(object, "since", format_time(top.since));
            json::array(object.field("keys"), &top.keys, |out, key| {
                json::object(out, |object| {
                    write_field(object, "rule", &key.limiter);
                    write_field(object, "key", &key.key);
                    write_field(object, "denied", key.denied);
                    // The count may be too high by this, with denials of other keys.
                    write_field(object, "error", key.overcount);
                    write_field(object, "shadow", key.is_shadow);
                });
            });
            // The denials of all keys that were counted, and those that weren't because of too many concurrent denials.
            write_field(object, "counted", top.counted);
            write_field(object, "missed", top.missed);
        });
        Ok(())
    }
}

/// Writes one limit of a rule, a tier or a tree, with its state if it has a single counter in this process.
fn write_limiter(
    out: &mut Vec<u8>,
    (state, kind, found): (&LimiterState, &LimitKind, Option<&KeyLimitState>),
) {
    let found = found.filter(|_| !matches!(kind, LimitKind::Adaptive(_)));
    // An override may have replaced the limit.
    let kind = found.map_or(kind, |found| &found.kind);
    let (rate, algorithm) = match kind {
        LimitKind::Rate { rate, algorithm } => (Some(rate), Some(algorithm_name(*algorithm))),
        _ => (None, None),
    };
    let a_second = rate.and_then(|rate| {
        let period = rate.period()?.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "it is shown")]
        Some(rate.count() as f64 / period)
    });
    let burst = rate.map(|rate| rate.burst_size());
    let decision = found.map(|found| &found.decision);
    let is_adaptive = matches!(kind, LimitKind::Adaptive(_));
    let adaptive = state.adaptive.filter(|_| is_adaptive);
    let left = adaptive.map(|now| u64::from(now.limit.saturating_sub(now.in_flight)));
    let left = decision.map(|decision| decision.remaining).or(left);
    let full_after = decision.map(|decision| decision.reset_after.as_secs_f64());
    json::object(out, |object| {
        write_field(object, "name", &state.name);
        write_field(object, "sort", state.sort.name());
        write_field(object, "key", &state.key);
        write_field(object, "fallback_keys", &state.fallback_keys);
        let choice = state.on_missing_key.map(|choice| choice.name());
        write_field(object, "on_missing_key", choice);
        write_field(object, "mode", state.mode.name());
        write_field(object, "limit", kind.to_string());
        write_field(object, "algorithm", algorithm);
        write_field(object, "rate", a_second);
        write_field(object, "burst", burst.or_else(|| kind.quota()));
        write_field(
            object,
            "law",
            adaptive.map(|now| now.adaptive.algorithm.name()),
        );
        write_field(object, "limit_now", adaptive.map(|now| now.limit));
        write_field(object, "in_flight", adaptive.map(|now| now.in_flight));
        write_field(object, "tokens", left);
        write_field(object, "full_after", full_after);
        write_field(object, "waiting", state.waiting);
        write_field(object, "overrides", state.overrides);
        // When the policy with this limit came into force.
        write_field(object, "since", format_time(state.since));
    });
}

/// The algorithm's name in policies.
const fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::TokenBucket => "token-bucket",
        Algorithm::LeakyBucket => "leaky",
        Algorithm::FixedWindow(_) => "fixed-window",
        Algorithm::SlidingLog => "sliding-log",
        Algorithm::SlidingCounter => "sliding-window",
        _ => "gcra",
    }
}
