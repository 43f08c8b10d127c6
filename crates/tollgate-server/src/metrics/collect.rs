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
counter tollgate_allowed Requests that a limiter applied to, and that passed.
counter tollgate_denied Requests that a limiter refused, by why.
counter tollgate_shadow_denied Requests that a limiter would have refused, were it enforced.
counter tollgate_near_limit Requests that passed by a limiter that was nearly used up.
counter tollgate_missing_key Requests that a limiter was for, but that lacked its key; of (tier), requests without a tenant.
gauge tollgate_key_never_found 1 if the first hundred requests of a limiter all lacked its key, and the policy doesn't say on_missing_key: pass.
counter tollgate_unknown_tier Requests of a tenant that no tier of the policy was found for.
histogram tollgate_wait_seconds How long requests waited for their turn, where a rule lets them.
gauge tollgate_limit_rate What a limiter allows a second in the long run: the lowest of its rates.
gauge tollgate_limit_burst What a limiter allows at once: the least of its bursts, totals and slots.
gauge tollgate_adaptive_limit How many at once a limit that adapts allows at present.
gauge tollgate_adaptive_in_flight How many run at present under a limit that adapts.
gauge tollgate_active_keys Keys that have something spent or held in this process, by what counts them.
gauge tollgate_key_capacity Keys that are sure of a place, by what counts them.
counter tollgate_evictions Keys that were forgotten: idle, for want of room, or by an operator.
counter tollgate_key_overflows Checks of keys for which there was no place.
gauge tollgate_waiters Requests that wait for their turn.
gauge tollgate_in_flight Slots of concurrency limits that are held in this process.
gauge tollgate_holds Permits and reservations that callers hold by name, or until they run out.
counter tollgate_holds_full Requests that weren't decided because no more may be held.
counter tollgate_store_failures Questions that the store didn't answer, by why.
gauge tollgate_store_clock_offset_seconds How far the store's clock is ahead of this machine's; 0 if it isn't known.
gauge tollgate_fallback_active Whether requests are decided without the store.
gauge tollgate_breaker_state Whether rules that circuit-break ask the store: 0 they do, 1 one of them tries or the next will, 2 they don't.
gauge tollgate_lease_tokens Tokens that this process holds of leased limits.
counter tollgate_store_round_trips Calls of the store.
counter tollgate_store_questions Questions that these calls answered.
histogram tollgate_request_seconds From when a request was read until its answer was ready.
gauge tollgate_connections Connections that are open.
counter tollgate_grpc_resets Calls that clients gave up before their messages were complete.
counter tollgate_protocol_errors What clients did that their protocol doesn't allow, or that is bounded.
counter tollgate_wrong_secrets Wrong passwords and tokens.
counter tollgate_rls_undecided Requests of Envoy that couldn't be decided, by what Envoy was told: an error, which its failure_mode_deny reads, or a denial.
counter tollgate_unknown_domain Requests of a domain that the policy has no limit for.
counter tollgate_state_saves How often state was saved, by what came of it.
gauge tollgate_state_set_aside Files of state that couldn't be read at the start: what was in them is forgotten.
gauge tollgate_state_saved_timestamp_seconds When state was saved last, since 1970; 0 if it wasn't.
gauge tollgate_state_bytes The size of what was saved last.
counter tollgate_reloads How often the policy was read again, by what came of it.
gauge tollgate_concern What is wrong now, as /readyz says it with its reason: 1 if it is.
gauge tollgate_overrides Blocks, bypasses and other limits that operators have put in force, by kind.
gauge tollgate_certificate_expiry_timestamp_seconds When the certificate ends that clients are shown, since 1970.
counter tollgate_log_dropped Lines of the log that nobody read in time.
gauge process_start_time_seconds When it was started, since 1970.
info tollgate_policy The policy in force, by a hash of what it says.
info tollgate_build What runs, and where its limits are counted.
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
    out.counter("tollgate_store_questions", store.queries)
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
