//! Looks after a service from time to time: whether nearly everything is refused, whether operators bypass limits, whether
//! there is room for what requests hold, and whether its store is there, also if no request asks it.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tollgate_engine::orders::{Act, Effect, Order};
use tollgate_engine::tally::Requests;

use crate::decider::Store;
use crate::health::{Concern, Health};
use crate::log::{Level, date};
use crate::service::Service;
use crate::store_events::StoreSight;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(5);
/// What is looked at of refusals.
const WINDOW: Duration = Duration::from_secs(60);
/// Fewer requests in it say nothing.
const FEW: u64 = 100;
/// From so many percent on, nearly everything is refused.
const NEARLY_ALL: u64 = 95;

/// What was decided in the last minute.
#[derive(Debug, Default)]
struct DenialRate(VecDeque<(Instant, Requests)>);

/// Too many of the last minute's requests were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Excess {
    refused: u64,
    all: u64,
}

impl DenialRate {
    /// Adds what was decided until now: whether nearly everything was refused of late.
    fn look(&mut self, now: Instant, until_now: Requests) -> Option<Excess> {
        let Self(looks) = self;
        looks.push_back((now, until_now));
        while looks.get(1).is_some_and(|(at, _)| now - *at >= WINDOW) {
            looks.pop_front();
        }
        let (_, before) = *looks.front()?;
        let refused = until_now.refused - before.refused;
        let all = refused + (until_now.passed - before.passed);
        let is_excess = all >= FEW && refused * 100 >= all * NEARLY_ALL;
        is_excess.then_some(Excess { refused, all })
    }
}

/// Looks after a service until it is dropped.
pub(crate) async fn watch<B: Store>(service: Arc<Service<B>>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rate = DenialRate::default();
    let mut times_full = 0;
    loop {
        ticks.tick().await;
        let excess = rate.look(Instant::now(), service.decider.engine.requests());
        tell(&service, excess);
        service.monitor.denials.say_left_out();
        report_bypasses(&service.decider.engine.orders(), &service.monitor.health);
        times_full = look_at_holds(&service, times_full);
        look_at_store(&service).await;
    }
}

/// Asks the store, for a replica without requests hears neither that it is gone nor that it is back.
async fn look_at_store<B: Store>(service: &Service<B>) {
    if B::IS_HERE {
        return;
    }
    let (before, requests) = (
        service
            .monitor
            .store_probes
            .at(service.decider.engine.requests()),
        service.decider.engine.requests(),
    );
    let probed = service.decider.engine.backend().probe().await;
    let (health, log) = (&service.monitor.health, &service.monitor.log);
    let concerns = health.concerns();
    let is_known = concerns.iter().any(|(one, _)| *one == Concern::Store);
    match probed {
        Ok(()) => {
            // Requests that fell back since are told by their own end of it.
            if service.decider.engine.requests() != requests {
                return;
            }
            service
                .monitor
                .store_probes
                .note(requests, StoreSight::Answers);
            if is_known {
                health.settle(Concern::Store);
                log.say(Level::Info, "store: it answers again", &[]);
            }
        }
        Err(why) => {
            service
                .monitor
                .store_probes
                .note(requests, StoreSight::Missing);
            health.raise(Concern::Store, why.clone());
            if !is_known && before != StoreSight::Missing {
                let said: [(&str, &dyn Display); 1] = [("why", &why)];
                log.say(
                    Level::Error,
                    "store: it doesn't answer, though no request asks it",
                    &said,
                );
            }
        }
    }
}

/// How many bypasses are named in one text.
const NAMED: usize = 3;

/// Says which limits operators let requests pass, or that they no longer do. A limit that is bypassed looks as one that
/// nobody reaches, so this is the only sign of it.
pub(crate) fn report_bypasses(orders: &[Order], health: &Health) {
    let is_bypass = |order: &&Order| order.act == Act::Bypass && order.effect == Effect::InForce;
    let bypasses: Vec<_> = orders.iter().filter(is_bypass).collect();
    if bypasses.is_empty() {
        return health.settle(Concern::Bypass);
    }
    let named = bypasses.iter().take(NAMED).map(|order| {
        let until = date(order.until);
        format!("{}: {} until {until}", order.id, order.target)
    });
    let mut why = named.collect::<Vec<_>>().join("; ");
    if let Some(more) = bypasses.len().checked_sub(NAMED).filter(|more| *more > 0) {
        why.push_str(&format!("; and {more} more"));
    }
    health.raise(Concern::Bypass, format!("limits are bypassed: {why}"));
}

/// Says that requests weren't decided since the last look because no more may be held, or that all are again. How many so far.
fn look_at_holds<B: Store>(service: &Service<B>, before: u64) -> u64 {
    let (health, log) = (&service.monitor.health, &service.monitor.log);
    let (times_full, most) = (
        service.decider.holds.times_full(),
        service.decider.bounds.holds,
    );
    let concerns = health.concerns();
    let was_there = concerns.iter().any(|(one, _)| *one == Concern::Holds);
    match times_full - before {
        0 if was_there => {
            health.settle(Concern::Holds);
            log.say(Level::Info, "there is room for what requests hold", &[]);
        }
        0 => {}
        since => {
            let why = format!(
                "{since} requests weren't decided in the last five seconds: {most} are held, which is --max-holds"
            );
            if !was_there {
                let said: [(&str, &dyn Display); 1] = [("why", &why)];
                log.say(Level::Error, "no more may be held", &said);
            }
            health.raise(Concern::Holds, why);
        }
    }
    times_full
}

fn tell<B: Store>(service: &Service<B>, excess: Option<Excess>) {
    let (health, log) = (&service.monitor.health, &service.monitor.log);
    let concerns = health.concerns();
    let was_there = concerns.iter().any(|(one, _)| *one == Concern::Denials);
    match excess {
        Some(Excess { refused, all }) => {
            let why = format!("{refused} of the {all} requests of the last minute were refused");
            if !was_there {
                let said: [(&str, &dyn Display); 1] = [("why", &why)];
                log.say(Level::Warn, "nearly everything is refused", &said);
            }
            health.raise(Concern::Denials, why);
        }
        None if was_there => {
            health.settle(Concern::Denials);
            log.say(Level::Info, "no longer nearly everything is refused", &[]);
        }
        None => {}
    }
}
