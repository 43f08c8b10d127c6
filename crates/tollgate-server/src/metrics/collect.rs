//! The names and help texts of all metrics, and their values.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use tollgate_engine::backend::TableStats;
use tollgate_engine::counters::{Histogram, LimiterCounts};
use tollgate_engine::verdict::DenyReason;
use tollgate_redis::FailureKind;

use super::{LimiterCapacity, Scrape, backend_stats, count_overrides, limiter_capacities, seconds};
use crate::address::Protocol;
use crate::decision_service::{BackendStats, CounterStore};
use crate::health::Concern;
use crate::protocol_errors::ErrorKind;

/// Each metric: its kind, its name, and its help text.
const METRICS: &str = "\
counter tollgate_allowed Requests that a limiter applied to and allowed.
counter tollgate_denied Requests that a limiter denied, by reason.
counter tollgate_shadow_denied Requests that a limiter in shadow mode would have denied.
counter tollgate_near_limit Requests that a limiter allowed when it was nearly used up.
counter tollgate_missing_key Requests that a limiter applied to, but that lacked its key; for (tier), requests without a tenant.
gauge tollgate_key_never_found 1 if the first hundred requests of a limiter all lacked its key, and the policy doesn't set on_missing_key: pass.
counter tollgate_unknown_tier Requests of tenants without a tier in the policy.
histogram tollgate_wait_seconds How long requests waited in queues, where a rule permits that.
gauge tollgate_limit_rate Requests a second that a limiter allows in the long run: the lowest of its rates.
gauge tollgate_limit_burst Requests that a limiter allows at one moment: the least of its bursts, quotas and concurrency limits.
gauge tollgate_adaptive_limit The current limit of an adaptive concurrency limit.
gauge tollgate_adaptive_in_flight Requests in flight under an adaptive concurrency limit.
gauge tollgate_active_keys Keys with spent tokens or held permits in this process, by table.
gauge tollgate_key_capacity Keys that a table has room for, by table.
counter tollgate_evictions Keys that were dropped, by reason: idle, for want of capacity, or reset by an operator.
counter tollgate_key_overflows Checks of keys that a table had no room for; they share one bucket.
gauge tollgate_waiters Requests that wait in queues.
gauge tollgate_in_flight Permits of concurrency limits that are held in this process.
gauge tollgate_holds Permits and reservations that callers hold, by id or until they expire.
counter tollgate_holds_full Requests that weren't decided for want of reservation capacity (--max-holds).
counter tollgate_store_failures Requests to the store that failed, by kind.
gauge tollgate_store_clock_offset_seconds How far the store's clock is ahead of this machine's; 0 if it isn't known.
gauge tollgate_fallback_active Whether requests are decided without the store.
gauge tollgate_breaker_state The circuit breaker of the store: 0 closed, 1 half-open (a probe is in flight or is next), 2 open.
gauge tollgate_lease_tokens Leased tokens that this process holds.
counter tollgate_store_round_trips Round trips to the store.
counter tollgate_store_requests Requests that these round trips answered.
histogram tollgate_request_seconds Time from reading a request until its response was ready.
gauge tollgate_connections Open connections.
counter tollgate_grpc_resets Calls that clients reset before their messages were complete.
counter tollgate_protocol_errors Protocol errors of clients, and exceeded bounds.
counter tollgate_wrong_secrets Wrong passwords and tokens.
counter tollgate_rls_undecided Requests of Envoy that couldn't be decided, by answer: an error, for which its failure_mode_deny applies, or a denial.
counter tollgate_unknown_domain Requests of domains that the policy has no limit for.
counter tollgate_state_saves Saves of the state, by outcome.
gauge tollgate_state_set_aside State files that couldn't be read at the start, and were set aside.
gauge tollgate_state_saved_timestamp_seconds Time of the latest save, since 1970; 0 if there was none.
gauge tollgate_state_bytes Size of the latest snapshot.
counter tollgate_reloads Reloads of the policy, by outcome.
gauge tollgate_concern Current concerns, as in /readyz: 1 if raised.
gauge tollgate_overrides Operators' overrides in force, by kind.
gauge tollgate_certificate_expiry_timestamp_seconds Expiry of the served certificate, since 1970.
counter tollgate_log_dropped Log lines that were dropped because the log's reader was too slow.
gauge process_start_time_seconds Start time of the process, since 1970.
info tollgate_policy The policy in force, by a hash of its content.
info tollgate_build The version of the program, and the backend of its limits.
";

/// The capacity of each limiter, by its name.
type LimiterCapacities = BTreeMap<Arc<str>, LimiterCapacity>;

/// Writes metrics.
struct MetricWriter<'e>(DescriptorEncoder<'e>);

impl<B: CounterStore> Collector for Scrape<B> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = MetricWriter(encoder);
        let counters = self.0.decider.engine.counters();
        let allows = limiter_capacities(&self.0.decider.engine, &counters);
        let stats = backend_stats(&self.0);
        self.decisions(&mut out, &counters, &allows)?;
        limits(&mut out, &allows)?;
        self.keys(&mut out, &stats)?;
        store(&mut out, &stats)?;
        self.clients(&mut out)?;
        self.state(&mut out)?;
        self.service(&mut out, stats.backend)
    }
}

impl<B: CounterStore> Scrape<B> {
    fn decisions(
        &self,
        out: &mut MetricWriter<'_>,
        counters: &[LimiterCounts],
        allows: &LimiterCapacities,
    ) -> fmt::Result {
        let of = |count: fn(&LimiterCounts) -> u64| {
            let all = counters.iter();
            all.map(move |counts| ([("limiter", &*counts.limiter)], count(counts)))
        };
        let denied = counters.iter().flat_map(|counts| {
            DenyReason::ALL.map(|reason| {
                let labels = [("limiter", &*counts.limiter), ("reason", reason.name())];
                (labels, counts.denied(reason))
            })
        });
        let never = per_limiter(allows, |own| own.never_finds_its_key.map(u64::from));
        let engine = &self.0.decider.engine;
        out.counters("tollgate_allowed", of(|counts| counts.allowed))?;
        out.counters("tollgate_denied", denied)?;
        out.counters("tollgate_shadow_denied", of(|counts| counts.shadow_denied))?;
        out.counters("tollgate_near_limit", of(|counts| counts.near_limit))?;
        out.counters("tollgate_missing_key", of(|counts| counts.missing_key))?;
        out.gauges("tollgate_key_never_found", never)?;
        out.counter("tollgate_unknown_tier", engine.requests().unknown_tier)?;
        write_histogram(
            &mut out.begin("tollgate_wait_seconds")?,
            engine.wait_times(),
        )
    }

    fn keys(&self, out: &mut MetricWriter<'_>, stats: &BackendStats) -> fmt::Result {
        let (tables, decider) = (&stats.tables, &self.0.decider);
        let of = |count: fn(&TableStats) -> usize| {
            let all = tables.iter();
            all.map(move |table| ([("table", table.table)], count(table)))
        };
        let sum = |count: fn(&TableStats) -> u64| tables.iter().map(count).sum::<u64>();
        let evictions = [
            ("idle", sum(|table| table.expired)),
            ("capacity", sum(|table| table.evicted)),
            ("reset", sum(|table| table.reset)),
        ];
        out.gauges("tollgate_active_keys", of(|table| table.active))?;
        out.gauges("tollgate_key_capacity", of(|table| table.capacity))?;
        out.counters("tollgate_evictions", with_label("reason", evictions))?;
        out.counter("tollgate_key_overflows", sum(|table| table.overflowed))?;
        out.gauge("tollgate_waiters", decider.engine.waiter_count())?;
        out.gauge("tollgate_in_flight", stats.in_flight)?;
        out.gauge("tollgate_holds", decider.reservations.count())?;
        out.counter("tollgate_holds_full", decider.reservations.times_full())
    }

    fn clients(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let monitor = &self.0.monitor;
        let measured = &monitor.measured;
        let mut metric = out.begin("tollgate_request_seconds")?;
        for (protocol, own) in measured.times() {
            let labels = [("protocol", protocol.to_string())];
            write_histogram(&mut metric.encode_family(&labels)?, Some(own))?;
        }
        let connections = Protocol::ALL.map(|one| (one, measured.connections(one)));
        let errors = Protocol::ALL.into_iter().flat_map(|protocol| {
            ErrorKind::ALL.map(|kind| {
                let labels = [
                    ("protocol", protocol.to_string()),
                    ("kind", kind.to_string()),
                ];
                (labels, monitor.errors.count(protocol, kind))
            })
        });
        // Envoy and Prometheus send no secrets.
        let guesses = self.0.credentials.wrong_secrets.counts();
        let guesses =
            guesses.filter(|(protocol, _)| !matches!(protocol, Protocol::Grpc | Protocol::Metrics));
        let guesses = with_label("protocol", guesses);
        out.gauges("tollgate_connections", with_label("protocol", connections))?;
        out.counter("tollgate_grpc_resets", measured.resets())?;
        out.counters("tollgate_protocol_errors", errors)?;
        out.counters("tollgate_wrong_secrets", guesses)?;
        out.counters(
            "tollgate_rls_undecided",
            with_label("answer", measured.undecided()),
        )?;
        out.counter("tollgate_unknown_domain", measured.unknown_domains())
    }

    fn state(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let state = self.0.state.status().unwrap_or_default();
        let (saves, at) = (
            [("ok", state.saves), ("failed", state.failures)],
            state.last_saved_unix,
        );
        out.counters("tollgate_state_saves", with_label("outcome", saves))?;
        out.gauge("tollgate_state_set_aside", state.damaged_files)?;
        out.gauge("tollgate_state_saved_timestamp_seconds", at)?;
        out.gauge("tollgate_state_bytes", state.bytes)
    }

    fn service(&self, out: &mut MetricWriter<'_>, backend: &str) -> fmt::Result {
        let (engine, monitor) = (&self.0.decider.engine, &self.0.monitor);
        let reloads = self.0.reloader.counts();
        let reloads = [
            ("ok", reloads.ok),
            ("rejected", reloads.rejected),
            ("unchanged", reloads.unchanged),
        ];
        let raised = monitor.health.concerns();
        let is_raised = |one: Concern| raised.iter().any(|(other, _)| *other == one);
        let concerns = Concern::ALL.map(|one| (one, u64::from(is_raised(one))));
        let began = seconds(monitor.measured.started_at.as_nanos());
        out.counters("tollgate_reloads", with_label("outcome", reloads))?;
        out.gauges("tollgate_concern", with_label("concern", concerns))?;
        out.gauges(
            "tollgate_overrides",
            with_label("kind", count_overrides(engine)),
        )?;
        if let Some(end) = self.0.credentials.file_reloader.certificate_not_after() {
            out.gauge("tollgate_certificate_expiry_timestamp_seconds", end)?;
        }
        out.counter("tollgate_log_dropped", monitor.log.dropped())?;
        out.gauge("process_start_time_seconds", began)?;
        out.begin("tollgate_policy")?
            .encode_info(&[("hash", format!("{:016x}", engine.policy().fingerprint()))])?;
        out.begin("tollgate_build")?.encode_info(&[
            ("version", env!("CARGO_PKG_VERSION")),
            ("backend", backend),
            ("os", std::env::consts::OS),
            ("arch", std::env::consts::ARCH),
        ])
    }
}

fn limits(out: &mut MetricWriter<'_>, allows: &LimiterCapacities) -> fmt::Result {
    let adaptive = per_limiter(allows, |own| Some(own.adaptive?.limit));
    let in_flight = per_limiter(allows, |own| Some(own.adaptive?.in_flight));
    out.gauges("tollgate_limit_rate", per_limiter(allows, |own| own.rate))?;
    out.gauges("tollgate_limit_burst", per_limiter(allows, |own| own.burst))?;
    out.gauges("tollgate_adaptive_limit", adaptive)?;
    out.gauges("tollgate_adaptive_in_flight", in_flight)
}

fn store(out: &mut MetricWriter<'_>, stats: &BackendStats) -> fmt::Result {
    let store = &stats.store;
    let failures = FailureKind::ALL.map(|kind| {
        let found = store.failures.iter().find(|one| one.kind == kind);
        (kind.name(), found.map_or(0, |one| one.count))
    });
    let offset = micros_to_seconds(store.clock_offset_micros.unwrap_or(0));
    let is_without_store = u64::from(stats.is_fallback_active);
    out.counters("tollgate_store_failures", with_label("kind", failures))?;
    out.gauge("tollgate_store_clock_offset_seconds", offset)?;
    out.gauge("tollgate_fallback_active", is_without_store)?;
    out.gauge("tollgate_breaker_state", store.breaker as u64)?;
    out.gauge("tollgate_lease_tokens", store.leased_tokens)?;
    out.counter("tollgate_store_round_trips", store.round_trips)?;
    out.counter("tollgate_store_requests", store.queries)
}

/// Writes a histogram of durations; an empty one without data.
fn write_histogram(metric: &mut MetricEncoder<'_>, histogram: Option<&Histogram>) -> fmt::Result {
    let Some(histogram) = histogram else {
        return metric.encode_histogram::<NoLabelSet>(0.0, 0, &[], None);
    };
    let (sum, counts) = (histogram.sum().as_secs_f64(), histogram.counts());
    let ends = histogram.up_to().iter().map(|nanos| seconds(*nanos));
    let ranges = ends.chain([f64::INFINITY]).zip(counts.iter().copied());
    let ranges: Vec<_> = ranges.collect();
    metric.encode_histogram::<NoLabelSet>(sum, counts.iter().sum(), &ranges, None)
}

impl MetricWriter<'_> {
    /// Begins a metric of the table.
    fn begin(&mut self, name: &'static str) -> Result<MetricEncoder<'_>, fmt::Error> {
        let mut metrics = METRICS.lines().map(|line| line.splitn(3, ' '));
        let (kind, help) = metrics
            .find_map(|mut parts| {
                let kind = parts.next()?;
                (parts.next()? == name).then_some((kind, parts.next()?))
            })
            .ok_or(fmt::Error)?;
        let kind = match kind {
            "counter" => MetricType::Counter,
            "gauge" => MetricType::Gauge,
            "histogram" => MetricType::Histogram,
            _ => MetricType::Info,
        };
        self.0.encode_descriptor(name, help, None, kind)
    }

    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &'static str,
        series: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut metric = self.begin(name)?;
        for (labels, value) in series {
            let mut one = metric.encode_family(&labels)?;
            one.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &'static str, value: u64) -> fmt::Result {
        let mut metric = self.begin(name)?;
        metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
    }

    fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &'static str,
        series: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut metric = self.begin(name)?;
        for (labels, value) in series {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &'static str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.begin(name)?.encode_gauge(&value)
    }
}

/// Values by one label.
fn with_label<V>(
    label: &'static str,
    values: impl IntoIterator<Item = (impl fmt::Display, V)>,
) -> impl Iterator<Item = ([(&'static str, String); 1], V)> {
    let values = values.into_iter();
    values.map(move |(word, value)| ([(label, word.to_string())], value))
}

/// Values of the limiters that have them.
fn per_limiter<V>(
    allows: &LimiterCapacities,
    of: impl Fn(&LimiterCapacity) -> Option<V>,
) -> impl Iterator<Item = ([(&'static str, &str); 1], V)> {
    let all = allows.iter();
    all.filter_map(move |(name, own)| Some(([("limiter", &**name)], of(own)?)))
}

/// Microseconds as seconds, the unit of Prometheus.
#[allow(clippy::cast_precision_loss)] // Clocks aren't centuries apart.
fn micros_to_seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}
