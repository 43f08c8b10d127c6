//! Periodic health checks: an excess of denials, bypassed limits, exhausted reservations, and the store, also without
//! requests.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tollgate_engine::counters::RequestCounts;
use tollgate_engine::overrides::{Override, OverrideAction, OverrideStatus};

use crate::decision_service::CounterStore;
use crate::health::{Concern, Health};
use crate::log::{Level, format_time};
use crate::service::Service;
use crate::store_events::ProbeResult;
use crate::telemetry::Telemetry;

/// The time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The window of the denial rate.
const WINDOW: Duration = Duration::from_secs(60);
/// Fewer requests than this in the window are no evidence.
const MIN_REQUESTS: u64 = 100;
/// The percentage of denials that counts as an excess.
const DENIAL_PERCENT: u64 = 95;

/// The decisions of the last minute.
#[derive(Debug, Default)]
struct DenialRate(VecDeque<(Instant, RequestCounts)>);

/// An excess of denials in the last minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ExcessDenials {
    refused: u64,
    all: u64,
}

impl DenialRate {
    /// Records the totals so far. Returns the excess of denials in the window, if there is one.
    fn record(&mut self, now: Instant, until_now: RequestCounts) -> Option<ExcessDenials> {
        let Self(looks) = self;
        looks.push_back((now, until_now));
        while looks.get(1).is_some_and(|(at, _)| now - *at >= WINDOW) {
            looks.pop_front();
        }
        let (_, before) = *looks.front()?;
        let refused = until_now.denied - before.denied;
        let all = refused + (until_now.passed - before.passed);
        let is_excess = all >= MIN_REQUESTS && refused * 100 >= all * DENIAL_PERCENT;
        is_excess.then_some(ExcessDenials { refused, all })
    }
}

/// Checks the service's health until the task is aborted.
pub(crate) async fn watch<B: CounterStore>(service: Arc<Service<B>>) {
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rate = DenialRate::default();
    let mut times_full = 0;
    loop {
        ticks.tick().await;
        let excess = rate.record(Instant::now(), service.decider.engine.requests());
        report_excess(&service.monitor, excess);
        service.monitor.denials.log_suppressed();
        report_bypasses(&service.decider.engine.overrides(), &service.monitor.health);
        times_full = check_reservations(&service, times_full);
        probe_store(&service).await;
    }
}

/// Probes the store: a replica without requests would notice neither its failure nor its recovery.
async fn probe_store<B: CounterStore>(service: &Service<B>) {
    if B::IS_LOCAL {
        return;
    }
    let (engine, monitor) = (&service.decider.engine, &service.monitor);
    let requests = engine.requests();
    let before = monitor.store_probes.at(requests);
    match engine.backend().probe().await {
        Ok(()) => {
            // A request was decided meanwhile, and its own store events report the recovery.
            if engine.requests() != requests {
                return;
            }
            monitor.store_probes.note(requests, ProbeResult::Answers);
            if monitor.health.clear_concern(Concern::Store) {
                monitor.log.info("store: it answers again", &[]);
            }
        }
        Err(why) => {
            monitor.store_probes.note(requests, ProbeResult::Missing);
            let known = monitor.health.raise_concern(Concern::Store, why.clone());
            if known.is_none() && before != ProbeResult::Missing {
                let event = "store: it doesn't answer, though no request asks it";
                monitor.log.error(event, &[("why", &why)]);
            }
        }
    }
}

/// How many bypasses one text names.
const NAMED: usize = 3;

/// Reports the limits that operators bypass, or that none are bypassed any more. A bypassed limit looks like an
/// unreached one, so this is the only sign of it.
pub(crate) fn report_bypasses(orders: &[Override], health: &Health) {
    let is_bypass = |order: &&Override| {
        order.act == OverrideAction::Bypass && order.effect == OverrideStatus::InForce
    };
    let bypasses: Vec<_> = orders.iter().filter(is_bypass).collect();
    if bypasses.is_empty() {
        health.clear_concern(Concern::Bypass);
        return;
    }
    let named = bypasses.iter().take(NAMED).map(|order| {
        let until = format_time(order.until);
        format!("{}: {} until {until}", order.id, order.target)
    });
    let mut why = named.collect::<Vec<_>>().join("; ");
    if let Some(more) = bypasses.len().checked_sub(NAMED).filter(|more| *more > 0) {
        why.push_str(&format!("; and {more} more"));
    }
    health.raise_concern(Concern::Bypass, format!("limits are bypassed: {why}"));
}

/// Reports whether requests weren't decided since the last check for want of reservation capacity. Returns the total so
/// far.
fn check_reservations<B: CounterStore>(service: &Service<B>, before: u64) -> u64 {
    let times_full = service.decider.reservations.times_full();
    let most = service.decider.bounds.max_reservations;
    let why = (times_full > before).then(|| {
        let since = times_full - before;
        format!(
            "{since} requests weren't decided in the last five seconds: {most} are held, which is --max-holds"
        )
    });
    let told = [
        "no more may be held",
        "there is room for what requests hold",
    ];
    report(&service.monitor, Concern::Holds, Level::Error, why, told);
    times_full
}

fn report_excess(monitor: &Telemetry, excess: Option<ExcessDenials>) {
    let why = excess.map(|ExcessDenials { refused, all }| {
        format!("{refused} of the {all} requests of the last minute were denied")
    });
    let told = [
        "nearly all requests are denied",
        "no longer nearly all requests are denied",
    ];
    report(monitor, Concern::Denials, Level::Warn, why, told);
}

/// Raises or clears a concern, and logs the change.
fn report(
    monitor: &Telemetry,
    concern: Concern,
    level: Level,
    why: Option<String>,
    [began, over]: [&str; 2],
) {
    let Some(why) = why else {
        if monitor.health.clear_concern(concern) {
            monitor.log.info(over, &[]);
        }
        return;
    };
    if monitor
        .health
        .raise_concern(concern, why.as_str())
        .is_none()
    {
        monitor.log.log(level, began, &[("why", &why)]);
    }
}
