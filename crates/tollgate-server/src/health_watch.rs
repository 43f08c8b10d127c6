//! Looks after a service from time to time: whether nearly everything is refused, whether operators bypass limits, whether
//! there is room for what requests hold, and whether its store is there, also if no request asks it.

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

/// Between two looks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// What is looked at of refusals.
const WINDOW: Duration = Duration::from_secs(60);
/// Fewer requests in it say nothing.
const MIN_REQUESTS: u64 = 100;
/// From so many percent on, nearly everything is refused.
const DENIAL_PERCENT: u64 = 95;

/// What was decided in the last minute.
#[derive(Debug, Default)]
struct DenialRate(VecDeque<(Instant, RequestCounts)>);

/// Too many of the last minute's requests were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ExcessDenials {
    refused: u64,
    all: u64,
}

impl DenialRate {
    /// Adds what was decided until now: whether nearly everything was refused of late.
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

/// Looks after a service until it is dropped.
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

/// Asks the store, for a replica without requests hears neither that it is gone nor that it is back.
async fn probe_store<B: CounterStore>(service: &Service<B>) {
    if B::IS_LOCAL {
        return;
    }
    let (engine, monitor) = (&service.decider.engine, &service.monitor);
    let requests = engine.requests();
    let before = monitor.store_probes.at(requests);
    match engine.backend().probe().await {
        Ok(()) => {
            // Requests that fell back since are told by their own end of it.
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

/// How many bypasses are named in one text.
const NAMED: usize = 3;

/// Says which limits operators let requests pass, or that they no longer do. A limit that is bypassed looks as one that
/// nobody reaches, so this is the only sign of it.
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

/// Says that requests weren't decided since the last look because no more may be held, or that all are again. How many so far.
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
        format!("{refused} of the {all} requests of the last minute were refused")
    });
    let told = [
        "nearly everything is refused",
        "no longer nearly everything is refused",
    ];
    report(monitor, Concern::Denials, Level::Warn, why, told);
}

/// Raises a concern if there is a reason, or settles it, and logs that it has begun or is over.
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
