//! Looks after a service from time to time: whether nearly everything is refused, and whether its store is back.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tollgate_engine::tally::Requests;

use crate::health::Concern;
use crate::log::Level;
use crate::service::{Service, Store};

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
    loop {
        ticks.tick().await;
        let excess = rate.look(Instant::now(), service.engine.requests());
        tell(&service, excess);
        service.denials.say_left_out();
        let concerns = service.health.concerns();
        let is_missed = concerns.iter().any(|(one, _)| *one == Concern::Store);
        // Where requests need the store, they tell whether it is back.
        if is_missed && service.engine.backend().answers().await {
            service.health.settle(Concern::Store);
        }
    }
}

fn tell<B: Store>(service: &Service<B>, excess: Option<Excess>) {
    let (health, log) = (&service.health, &service.log);
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
