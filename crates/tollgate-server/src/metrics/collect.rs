//! The names and help of all metrics, and which values they have.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, MetricEncoder,
    NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use tollgate_engine::backend::TableStats;
use tollgate_engine::tally::Tally;
use tollgate_engine::verdict::DenyReason;
use tollgate_redis::FailureKind;

use super::{Allows, Scrape, Times, allows, backend_stats, overrides, seconds};
use crate::address::Protocol;
use crate::decider::{BackendStats, Store};
use crate::health::Concern;
use crate::protocol_errors::ErrorKind;

/// A label of one name.
type One<'a> = [(&'static str, &'a str); 1];

/// Where metrics are written to.
struct Out<'e>(DescriptorEncoder<'e>);

impl<B: Store> Collector for Scrape<B> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        let tallies = self.0.decider.engine.tallies();
        let allows = allows(&self.0.decider.engine, &tallies);
        let stats = backend_stats(&self.0);
        self.decisions(&mut out, &tallies, &allows)?;
        limits(&mut out, &allows)?;
        self.keys(&mut out, &stats)?;
        store(&mut out, &stats)?;
        self.clients(&mut out)?;
        self.state(&mut out)?;
        self.service(&mut out, stats.backend)
    }
}

impl<B: Store> fmt::Debug for Scrape<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

/// What each limiter allows, by its name.
type AllAllow = BTreeMap<Arc<str>, Allows>;

impl<B: Store> Scrape<B> {
    fn decisions(&self, out: &mut Out<'_>, tallies: &[Tally], allows: &AllAllow) -> fmt::Result {
        let of = |count: fn(&Tally) -> u64| {
            let all = tallies.iter();
            all.map(move |tally| ([("limiter", &*tally.limiter)], count(tally)))
        };
        out.counters(
            "tollgate_allowed",
            "Requests that a limiter applied to, and that passed.",
            of(|tally| tally.allowed),
        )?;
        let denied = tallies.iter().flat_map(|tally| {
            DenyReason::ALL.map(|reason| {
                let labels = [("limiter", &*tally.limiter), ("reason", reason.name())];
                (labels, tally.denied(reason))
            })
        });
        out.counters(
            "tollgate_denied",
            "Requests that a limiter refused, by why.",
            denied,
        )?;
        out.counters(
            "tollgate_shadow_denied",
            "Requests that a limiter would have refused, were it enforced.",
            of(|tally| tally.shadow_denied),
        )?;
        out.counters(
            "tollgate_near_limit",
            "Requests that passed by a limiter that was nearly used up.",
            of(|tally| tally.near_limit),
        )?;
        out.counters(
            "tollgate_missing_key",
            "Requests that a limiter was for, but that lacked its key; of (tier), requests without a tenant.",
            of(|tally| tally.missing_key),
        )?;
        let never = allows.iter();
        let never = never.filter_map(|(name, own)| Some((&**name, own.never_finds_its_key?)));
        out.gauges(
            "tollgate_key_never_found",
            "1 if the first hundred requests of a limiter all lacked its key, and the policy doesn't say on_missing_key: pass.",
            never.map(|(name, never)| ([("limiter", name)], u64::from(never))),
        )?;
        let engine = &self.0.decider.engine;
        out.counter(
            "tollgate_unknown_tier",
            "Requests of a tenant that no tier of the policy was found for.",
            engine.requests().unknown_tier,
        )?;
        let help = "How long requests waited for their turn, where a rule lets them.";
        let waits = engine.waits().map(Times::of).unwrap_or_default();
        let mut metric = out.begin("tollgate_wait_seconds", help, MetricType::Histogram)?;
        waits.write(&mut metric)
    }

    fn keys(&self, out: &mut Out<'_>, stats: &BackendStats) -> fmt::Result {
        let (tables, decider) = (&stats.tables, &self.0.decider);
        let of = |count: fn(&TableStats) -> usize| {
            let all = tables.iter();
            all.map(move |table| ([("table", table.table)], count(table)))
        };
        out.gauges(
            "tollgate_active_keys",
            "Keys that have something spent or held in this process, by what counts them.",
            of(|table| table.active),
        )?;
        out.gauges(
            "tollgate_key_capacity",
            "Keys that are sure of a place, by what counts them.",
            of(|table| table.capacity),
        )?;
        let sum = |count: fn(&TableStats) -> u64| tables.iter().map(count).sum::<u64>();
        let evictions = [
            ("idle", sum(|table| table.expired)),
            ("capacity", sum(|table| table.evicted)),
            ("reset", sum(|table| table.reset)),
        ];
        out.counters(
            "tollgate_evictions",
            "Keys that were forgotten: idle, for want of room, or by an operator.",
            by("reason", evictions),
        )?;
        out.counter(
            "tollgate_key_overflows",
            "Checks of keys for which there was no place.",
            sum(|table| table.overflowed),
        )?;
        out.gauge(
            "tollgate_waiters",
            "Requests that wait for their turn.",
            decider.engine.waiting(),
        )?;
        out.gauge(
            "tollgate_in_flight",
            "Slots of concurrency limits that are held in this process.",
            stats.in_flight,
        )?;
        out.gauge(
            "tollgate_holds",
            "Permits and reservations that callers hold by name, or until they run out.",
            decider.holds.count(),
        )?;
        out.counter(
            "tollgate_holds_full",
            "Requests that weren't decided because no more may be held.",
            decider.holds.times_full(),
        )
    }

    fn clients(&self, out: &mut Out<'_>) -> fmt::Result {
        let monitor = &self.0.monitor;
        let measured = &monitor.measured;
        let help = "From when a request was read until its answer was ready.";
        let mut metric = out.begin("tollgate_request_seconds", help, MetricType::Histogram)?;
        for (protocol, times) in measured.times() {
            let labels = [("protocol", protocol.name())];
            Times::of(times).write(&mut metric.encode_family(&labels)?)?;
        }
        let connections = Protocol::ALL.map(|one| (one.name(), measured.connections(one)));
        out.gauges(
            "tollgate_connections",
            "Connections that are open.",
            by("protocol", connections),
        )?;
        out.counter(
            "tollgate_grpc_resets",
            "Calls that clients gave up before their messages were complete.",
            measured.resets(),
        )?;
        let errors = Protocol::ALL.into_iter().flat_map(|protocol| {
            ErrorKind::ALL.map(|kind| {
                let labels = [("protocol", protocol.name()), ("kind", kind.name())];
                (labels, monitor.errors.count(protocol, kind))
            })
        });
        out.counters(
            "tollgate_protocol_errors",
            "What clients did that their protocol doesn't allow, or that is bounded.",
            errors,
        )?;
        // Envoy and Prometheus bring no secret along.
        let guesses = self.0.credentials.guesses.counts();
        let guesses =
            guesses.filter(|(protocol, _)| !matches!(protocol, Protocol::Grpc | Protocol::Metrics));
        out.counters(
            "tollgate_wrong_secrets",
            "Wrong passwords and tokens.",
            by("protocol", guesses.map(|(one, count)| (one.name(), count))),
        )?;
        out.counters(
            "tollgate_rls_undecided",
            "Requests of Envoy that couldn't be decided, by what Envoy was told: an error, which its failure_mode_deny reads, or a denial.",
            by("answer", measured.undecided()),
        )?;
        out.counter(
            "tollgate_unknown_domain",
            "Requests of a domain that the policy has no limit for.",
            measured.unknown_domains(),
        )
    }

    fn state(&self, out: &mut Out<'_>) -> fmt::Result {
        let state = self.0.state.told().unwrap_or_default();
        out.counters(
            "tollgate_state_saves",
            "How often state was saved, by what came of it.",
            by("outcome", [("ok", state.saves), ("failed", state.failures)]),
        )?;
        out.gauge(
            "tollgate_state_set_aside",
            "Files of state that couldn't be read at the start: what was in them is forgotten.",
            state.set_aside,
        )?;
        out.gauge(
            "tollgate_state_saved_timestamp_seconds",
            "When state was saved last, since 1970; 0 if it wasn't.",
            state.last_saved_unix,
        )?;
        out.gauge(
            "tollgate_state_bytes",
            "The size of what was saved last.",
            state.bytes,
        )
    }

    fn service(&self, out: &mut Out<'_>, backend: &str) -> fmt::Result {
        let (engine, monitor) = (&self.0.decider.engine, &self.0.monitor);
        let reloads = self.0.reloader.counts();
        let reloads = [
            ("ok", reloads.ok),
            ("rejected", reloads.rejected),
            ("unchanged", reloads.unchanged),
        ];
        out.counters(
            "tollgate_reloads",
            "How often the policy was read again, by what came of it.",
            by("outcome", reloads),
        )?;
        let raised = monitor.health.concerns();
        let is_raised = |one: Concern| raised.iter().any(|(other, _)| *other == one);
        let concerns = Concern::ALL.map(|one| (one.name(), u64::from(is_raised(one))));
        out.gauges(
            "tollgate_concern",
            "What is wrong now, as /readyz says it with its reason: 1 if it is.",
            by("concern", concerns),
        )?;
        out.gauges(
            "tollgate_overrides",
            "Blocks, bypasses and other limits that operators have put in force, by kind.",
            by("kind", overrides(engine)),
        )?;
        if let Some(end) = self.0.credentials.renewed.certificate_not_after() {
            out.gauge(
                "tollgate_certificate_expiry_timestamp_seconds",
                "When the certificate ends that clients are shown, since 1970.",
                end,
            )?;
        }
        out.counter(
            "tollgate_log_dropped",
            "Lines of the log that nobody read in time.",
            monitor.log.dropped(),
        )?;
        out.gauge(
            "process_start_time_seconds",
            "When it was started, since 1970.",
            seconds(monitor.measured.since.as_nanos()),
        )?;
        let help = "What runs, and where its limits are counted.";
        let policy = "The policy in force, by a hash of what it says.";
        out.begin("tollgate_policy", policy, MetricType::Info)?
            .encode_info(&[("hash", format!("{:016x}", engine.policy().fingerprint()))])?;
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("backend", backend),
            ("os", std::env::consts::OS),
            ("arch", std::env::consts::ARCH),
        ];
        out.begin("tollgate_build", help, MetricType::Info)?
            .encode_info(&labels)
    }
}

fn limits(out: &mut Out<'_>, allows: &AllAllow) -> fmt::Result {
    let rates = allows.iter();
    let rates = rates.filter_map(|(name, own)| Some((&**name, own.rate?)));
    out.gauges(
        "tollgate_limit_rate",
        "What a limiter allows a second in the long run: the lowest of its rates.",
        rates.map(|(name, rate)| ([("limiter", name)], rate)),
    )?;
    let bursts = allows.iter();
    let bursts = bursts.filter_map(|(name, own)| Some((&**name, own.burst?)));
    out.gauges(
        "tollgate_limit_burst",
        "What a limiter allows at once: the least of its bursts, totals and slots.",
        bursts.map(|(name, burst)| ([("limiter", name)], burst)),
    )?;
    let adaptive = || {
        let all = allows.iter();
        all.filter_map(|(name, own)| Some(([("limiter", &**name)], own.adaptive?)))
    };
    out.gauges(
        "tollgate_adaptive_limit",
        "How many at once a limit that adapts allows at present.",
        adaptive().map(|(labels, now)| (labels, now.limit)),
    )?;
    out.gauges(
        "tollgate_adaptive_in_flight",
        "How many run at present under a limit that adapts.",
        adaptive().map(|(labels, now)| (labels, now.in_flight)),
    )
}

fn store(out: &mut Out<'_>, stats: &BackendStats) -> fmt::Result {
    let store = &stats.store;
    let failures = FailureKind::ALL.map(|kind| {
        let found = store.failures.iter().find(|one| one.kind == kind);
        (kind.name(), found.map_or(0, |one| one.count))
    });
    out.counters(
        "tollgate_store_failures",
        "Questions that the store didn't answer, by why.",
        by("kind", failures),
    )?;
    out.gauge(
        "tollgate_store_clock_offset_seconds",
        "How far the store's clock is ahead of this machine's; 0 if it isn't known.",
        micros(store.clock_offset_micros.unwrap_or(0)),
    )?;
    out.gauge(
        "tollgate_fallback_active",
        "Whether requests are decided without the store.",
        u64::from(stats.is_without_store),
    )?;
    out.gauge(
        "tollgate_breaker_state",
        "Whether rules that circuit-break ask the store: 0 they do, 1 one of them tries or the next will, 2 they don't.",
        store.breaker as u64,
    )?;
    out.gauge(
        "tollgate_lease_tokens",
        "Tokens that this process holds of leased limits.",
        store.leased,
    )?;
    out.counter(
        "tollgate_store_round_trips",
        "Calls of the store.",
        store.round_trips,
    )?;
    out.counter(
        "tollgate_store_questions",
        "Questions that these calls answered.",
        store.questions,
    )
}

impl Times {
    fn write(&self, metric: &mut MetricEncoder<'_>) -> fmt::Result {
        metric.encode_histogram::<NoLabelSet>(self.sum, self.count, &self.ranges, None)
    }
}

impl Out<'_> {
    fn begin<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, kind)
    }

    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut metric = self.begin(name, help, MetricType::Counter)?;
        for (labels, value) in series {
            count(&mut metric.encode_family(&labels)?, &value)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        count(&mut self.begin(name, help, MetricType::Counter)?, &value)
    }

    fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut metric = self.begin(name, help, MetricType::Gauge)?;
        for (labels, value) in series {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.begin(name, help, MetricType::Gauge)?
            .encode_gauge(&value)
    }
}

fn count(metric: &mut MetricEncoder<'_>, value: &impl EncodeCounterValue) -> fmt::Result {
    metric.encode_counter::<NoLabelSet, _, f64>(value, None)
}

/// Values by the words of one label.
fn by<'a, V>(
    label: &'static str,
    values: impl IntoIterator<Item = (&'a str, V)>,
) -> impl Iterator<Item = (One<'a>, V)> {
    let values = values.into_iter();
    values.map(move |(word, value)| ([(label, word)], value))
}

/// Microseconds as Prometheus counts time.
#[allow(clippy::cast_precision_loss)] // Clocks aren't centuries apart.
fn micros(micros: i64) -> f64 {
    micros as f64 / 1e6
}
