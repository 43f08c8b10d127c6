//! `/metrics`: all counters and gauges, read at each scrape. Other modules count.
//!
//! No label has a text from clients. The number of limiters with names is bounded, and all other labels are constants
//! of this program, so the number of series is bounded: `docs/reference/metrics.md` has the sum.

use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tollgate_engine::Engine;
use tollgate_engine::backend::LimitKind;
use tollgate_engine::counters::{LimiterCounts, limiter_name};
use tollgate_engine::engine::{AdaptiveState, LimiterKind};
use tollgate_engine::overrides::{Override, OverrideStatus};

use crate::decision_service::{BackendStats, CounterStore};
use crate::service::Service;
use crate::store_events::ProbeResult;
use crate::throttle_keys::ThrottleKeys;

mod collect;

/// The exposition format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    /// Prometheus' text format.
    Classic,
    /// OpenMetrics, on request.
    OpenMetrics,
}

impl MetricsFormat {
    /// The format that the `Accept` header asks for.
    pub(crate) fn negotiate(accept: Option<&[u8]>) -> Self {
        let types = accept.unwrap_or_default().split(|byte| *byte == b',');
        let mut names = types.filter_map(|one| one.split(|byte| *byte == b';').next());
        let is_wanted = |name: &[u8]| {
            name.trim_ascii()
                .eq_ignore_ascii_case(b"application/openmetrics-text")
        };
        if names.any(is_wanted) {
            Self::OpenMetrics
        } else {
            Self::Classic
        }
    }

    /// The format's `Content-Type`.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The capacity of one limiter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct LimiterCapacity {
    /// Tokens a second in the long run: the lowest of its rates.
    rate: Option<f64>,
    /// The most tokens at one moment: the least of its bursts, quotas and concurrency limits.
    burst: Option<u64>,
    /// The state of its adaptive limit.
    adaptive: Option<AdaptiveState>,
    /// Whether all of its first hundred requests lacked its key, unless the policy sets `on_missing_key: pass`; `None`
    /// for limiters without a key.
    never_finds_its_key: Option<bool>,
}

/// A scrape of a service.
#[derive(derive_more::Debug)]
#[debug("Scrape")]
pub(super) struct Scrape<B: CounterStore>(Arc<Service<B>>);

/// Renders all metrics as text. It visits all keys, so it must run on a blocking thread.
pub(crate) fn render<B: CounterStore>(service: Arc<Service<B>>, form: MetricsFormat) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(service)));
    let mut text = String::new();
    // Writing to a string can't fail.
    let _ = encode(&mut text, &registry);
    match form {
        MetricsFormat::OpenMetrics => text,
        MetricsFormat::Classic => to_classic(&text),
    }
}

/// The backend's statistics, with the table of `CL.THROTTLE` keys.
fn backend_stats<B: CounterStore>(service: &Service<B>) -> BackendStats {
    let engine = &service.decider.engine;
    let mut stats = engine.backend().backend_stats();
    stats
        .tables
        .push(service.decider.throttle_keys.table_stats());
    // A probe of the store since the latest request knows better than that request.
    match service.monitor.store_probes.at(engine.requests()) {
        ProbeResult::Answers => stats.is_fallback_active = false,
        ProbeResult::Missing => stats.is_fallback_active = true,
        ProbeResult::AskRequests => {}
    }
    stats
}

/// The number of overrides in force, by kind.
fn count_overrides<B: CounterStore>(engine: &Engine<B>) -> [(&'static str, u64); 3] {
    let orders = engine.overrides();
    let in_force = |kind: &str| {
        let is_own =
            |order: &&Override| order.act.name() == kind && order.effect == OverrideStatus::InForce;
        orders.iter().filter(is_own).count() as u64
    };
    ["block", "bypass", "limit"].map(|kind| (kind, in_force(kind)))
}

/// The capacities of the limiters with names. Several limiters of one name show the strictest.
fn limiter_capacities<B: CounterStore>(
    engine: &Engine<B>,
    tallies: &[LimiterCounts],
) -> BTreeMap<Arc<str>, LimiterCapacity> {
    let names = tallies.iter().map(|tally| &tally.limiter);
    let mut all: BTreeMap<_, _> = names
        .map(|name| (Arc::clone(name), LimiterCapacity::default()))
        .collect();
    for limiter in engine.limiter_states() {
        let Some(own) = all.get_mut(&*limiter_name(&limiter.name)) else {
            continue;
        };
        own.adaptive = own.adaptive.or(limiter.adaptive);
        if limiter.sort != LimiterKind::Descriptor && !limiter.key.is_empty() {
            let others = own.never_finds_its_key.unwrap_or(false);
            own.never_finds_its_key = Some(others || limiter.is_key_always_missing);
        }
        for kind in &limiter.limits {
            let (rate, burst) = match kind {
                LimitKind::Adaptive(_) => (None, limiter.adaptive.map(|now| u64::from(now.limit))),
                LimitKind::Rate { rate, .. } if rate.is_unlimited() => continue,
                LimitKind::Rate { rate, .. } => {
                    (Some(rate.as_per_second()), Some(rate.burst_size()))
                }
                other => (None, other.quota()),
            };
            own.rate = [own.rate, rate].into_iter().flatten().reduce(f64::min);
            own.burst = [own.burst, burst].into_iter().flatten().min();
        }
    }
    all
}

/// Nanoseconds as seconds, the unit of Prometheus.
#[allow(clippy::cast_precision_loss)] // Below 2^53 nanoseconds it is exact, and nobody asks for more.
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// Converts OpenMetrics to Prometheus' text format, which names counters in full in the head, and has no end marker.
fn to_classic(open: &str) -> String {
    let mut classic = String::with_capacity(open.len());
    // The help text of the current metric, until its type is known.
    let mut help = "";
    for line in open.lines() {
        if line.starts_with("# UNIT ") || line == "# EOF" {
            continue;
        }
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest;
            continue;
        }
        let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        else {
            classic.push_str(line);
            classic.push('\n');
            continue;
        };
        let (suffix, kind) = match kind {
            "counter" => ("_total", kind),
            "info" => ("_info", "gauge"),
            _ => ("", kind),
        };
        let help = help.strip_prefix(name).unwrap_or_default();
        classic.push_str(&format!("# HELP {name}{suffix}{help}\n"));
        classic.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
    }
    classic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_is_for_those_who_ask_for_it() {
        let prometheus =
            b"application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(
            MetricsFormat::negotiate(Some(prometheus)),
            MetricsFormat::OpenMetrics
        );
        for other in [None, Some(&b"*/*"[..]), Some(b"text/plain;version=0.0.4")] {
            assert_eq!(MetricsFormat::negotiate(other), MetricsFormat::Classic);
        }
    }

    #[test]
    fn counters_and_infos_are_named_in_full_and_the_rest_stays() {
        let open = "# HELP a How many.\n# TYPE a counter\na_total{b=\"# EOF\"} 1\n# HELP c What.\n# TYPE c info\n\
                    c_info 1\n# HELP d_seconds Time.\n# TYPE d_seconds gauge\n# UNIT d_seconds seconds\n\
                    d_seconds 2\n# EOF\n";
        let classic = "# HELP a_total How many.\n# TYPE a_total counter\na_total{b=\"# EOF\"} 1\n\
                       # HELP c_info What.\n# TYPE c_info gauge\nc_info 1\n# HELP d_seconds Time.\n\
                       # TYPE d_seconds gauge\nd_seconds 2\n";
        assert_eq!(to_classic(open), classic);
    }
}
