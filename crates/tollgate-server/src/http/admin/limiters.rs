//! `/debug/limiters` and `/admin/top`: each limit in force, where one counter is all of it what that has left, and the keys
//! that are refused most.

use serde::Serialize;
use tollgate::Algorithm;
use tollgate_engine::backend::LimitKind;
use tollgate_engine::engine::{FoundLimit, LimiterState};
use tollgate_engine::orders::Target;

use crate::answers::mode_name;
use crate::decider::Store;
use crate::http::session::{Session, Wrong};
use crate::log::date;

#[derive(Serialize)]
struct Limiters {
    limiters: Vec<Limiter>,
    /// Requests that wait for their turn, of all limits together.
    waiting: usize,
}

/// One limit of a rule, a tier or a tree.
#[derive(Serialize)]
struct Limiter {
    name: String,
    sort: &'static str,
    /// The facts that make its keys; none if it has one counter for everybody.
    key: Vec<String>,
    /// The facts of each key to fall back to, in their order.
    fallback_keys: Vec<Vec<String>>,
    /// What happens to requests without a key; none if it has one counter for everybody.
    on_missing_key: Option<&'static str>,
    mode: &'static str,
    /// As a policy writes it.
    limit: String,
    algorithm: Option<&'static str>,
    /// So many a second.
    rate: Option<f64>,
    burst: Option<u64>,
    /// The law that finds it, how many at once that allows now, and how many run; none of one that doesn't adapt.
    law: Option<&'static str>,
    limit_now: Option<u32>,
    in_flight: Option<u32>,
    /// What is left, if it has one counter for everybody and that is kept in this process.
    tokens: Option<u64>,
    /// When that is as if it had never been used, in seconds.
    full_after: Option<f64>,
    waiting: usize,
    orders: usize,
    /// When the policy came into force that says so.
    since: String,
}

#[derive(Serialize)]
struct Top {
    since: String,
    keys: Vec<Key>,
    /// Refusals of all keys that were counted, and those that weren't because too much was refused at once.
    counted: u64,
    missed: u64,
}

/// A key that was refused often.
#[derive(Serialize)]
struct Key {
    rule: String,
    key: String,
    denied: u64,
    /// So many of these may have been others'.
    error: u64,
    /// They passed, as the rule is in shadow.
    shadow: bool,
}

impl<B: Store> Session<B> {
    pub(super) async fn limiters(&mut self) -> Result<(), Wrong> {
        let engine = &self.service.decider.engine;
        let mut limiters = Vec::new();
        for state in engine.limiter_states() {
            // A store would be asked for each of them, and a key has tokens of its own.
            let found = if B::IS_HERE && state.key.is_empty() {
                let Ok(found) = engine.find_async(&Target::rule(&*state.name)).await;
                found.ok().and_then(|mut found| found.pop())
            } else {
                None
            };
            let found = found.map_or_else(Vec::new, |found| found.limits);
            for (number, kind) in state.limits.iter().enumerate() {
                let is_found = !matches!(kind, LimitKind::Adaptive(_));
                let found = found.get(number).filter(|_| is_found);
                limiters.push(Limiter::of(&state, kind, found));
            }
        }
        let waiting = engine.waiting();
        self.tell(&Limiters { limiters, waiting })
    }

    pub(super) fn top(&mut self) -> Result<(), Wrong> {
        let Some(top) = self.service.decider.engine.top() else {
            return Err((404, "this service doesn't count who is refused".to_owned()));
        };
        let keys = top.keys.into_iter().map(|key| Key {
            rule: key.limiter,
            key: key.key,
            denied: key.denied,
            error: key.error,
            shadow: key.is_shadow,
        });
        let top = Top {
            since: date(top.since),
            keys: keys.collect(),
            counted: top.counted,
            missed: top.missed,
        };
        self.tell(&top)
    }
}

impl Limiter {
    fn of(state: &LimiterState, kind: &LimitKind, found: Option<&FoundLimit>) -> Self {
        // An order may have put another in its place.
        let kind = found.map_or(kind, |found| &found.kind);
        let (rate, algorithm) = match kind {
            LimitKind::Rate { rate, algorithm } => (Some(rate), Some(word(*algorithm))),
            _ => (None, None),
        };
        let a_second = rate.and_then(|rate| {
            let period = rate.period()?.as_secs_f64();
            #[expect(clippy::cast_precision_loss, reason = "it is shown")]
            Some(rate.count() as f64 / period)
        });
        let decision = found.map(|found| &found.decision);
        let is_adaptive = matches!(kind, LimitKind::Adaptive(_));
        let adaptive = state.adaptive.filter(|_| is_adaptive);
        let left = adaptive.map(|now| u64::from(now.limit.saturating_sub(now.in_flight)));
        Self {
            name: state.name.clone(),
            sort: state.sort.name(),
            key: state.key.clone(),
            fallback_keys: state.fallback_keys.clone(),
            on_missing_key: state.on_missing_key.map(|choice| choice.name()),
            mode: mode_name(state.mode),
            limit: kind.to_string(),
            algorithm,
            rate: a_second,
            burst: rate.map(|rate| rate.burst_size()).or_else(|| kind.quota()),
            law: adaptive.map(|now| now.adaptive.law.name()),
            limit_now: adaptive.map(|now| now.limit),
            in_flight: adaptive.map(|now| now.in_flight),
            tokens: decision.map(|decision| decision.remaining).or(left),
            full_after: decision.map(|decision| decision.reset_after.as_secs_f64()),
            waiting: state.waiting,
            orders: state.orders,
            since: date(state.since),
        }
    }
}

/// As a policy calls it.
const fn word(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::TokenBucket => "token-bucket",
        Algorithm::LeakyBucket => "leaky",
        Algorithm::FixedWindow(_) => "fixed-window",
        Algorithm::SlidingLog => "sliding-log",
        Algorithm::SlidingCounter => "sliding-window",
        _ => "gcra",
    }
}
