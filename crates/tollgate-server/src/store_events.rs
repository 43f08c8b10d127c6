//! What happens to the store, for the log and for those who ask whether the service is well.

use std::sync::{Arc, Mutex, PoisonError};

use tollgate_engine::counters::RequestCounts;
use tollgate_redis::StoreEvent;

use crate::health::{Concern, Health};
use crate::log::{Level, Log};

/// Hears what happens to a store, says it in a log, and makes it a concern of the service that is started with it.
/// A failure that goes on is said once.
///
/// ```
/// use tollgate_redis::StoreEvent;
/// use tollgate_server::{Log, StoreEvents};
///
/// let events = StoreEvents::new(Log::disabled());
/// let own = events.clone();
/// let on_event = move |event: &StoreEvent<'_>| own.record(event);
/// on_event(&StoreEvent::FallbackStarted);
/// ```
#[derive(Clone, Debug)]
pub struct StoreEvents(Arc<StoreEventsInner>);

#[derive(Debug)]
struct StoreEventsInner {
    log: Log,
    health: Health,
    /// The failure that was said last.
    last: Mutex<String>,
}

impl StoreEvents {
    /// Says them there.
    pub fn new(log: Log) -> Self {
        Self(Arc::new(StoreEventsInner {
            log,
            health: Health::default(),
            last: Mutex::default(),
        }))
    }

    /// Something happened: for `RedisBuilder::on_event`.
    pub fn record(&self, event: &StoreEvent<'_>) {
        let StoreEventsInner { log, health, last } = &*self.0;
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let level = match event {
            StoreEvent::Failed { error, .. } | StoreEvent::KeyFailed { error, .. } => {
                // If a key failed, the store itself is well.
                if matches!(event, StoreEvent::Failed { .. }) {
                    health.raise_concern(Concern::Store, *error);
                }
                if *last == *error {
                    return;
                }
                (*error).clone_into(&mut last);
                Level::Error
            }
            StoreEvent::FallbackStarted | StoreEvent::CircuitOpened { .. } => {
                health.raise_concern(Concern::Store, event.to_string());
                Level::Warn
            }
            StoreEvent::FallbackEnded { .. } => {
                last.clear();
                health.clear_concern(Concern::Store);
                Level::Info
            }
            _ => Level::Info,
        };
        log.log(level, &format!("store: {event}"), &[]);
    }

    /// It couldn't be asked before anybody needed it.
    pub fn report_unreachable(&self, why: &str) {
        self.0.health.raise_concern(Concern::Store, why);
    }

    /// The concerns of the service that hears of them.
    pub(crate) fn health(&self) -> Health {
        self.0.health.clone()
    }
}

/// What is known of a store beside what requests tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    /// It answered, and no request was decided since.
    Answers,
    /// It didn't, and no request was decided since.
    Missing,
    /// Requests were decided since: they know better.
    AskRequests,
}

/// What came of the last look at the store.
#[derive(Debug, Default)]
pub(crate) struct LastProbe(Mutex<Option<(RequestCounts, ProbeResult)>>);

impl LastProbe {
    /// What is known once so many requests are decided.
    pub(crate) fn at(&self, requests: RequestCounts) -> ProbeResult {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match last {
            Some((then, sight)) if then == requests => sight,
            _ => ProbeResult::AskRequests,
        }
    }

    pub(crate) fn note(&self, requests: RequestCounts, sight: ProbeResult) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((requests, sight));
    }
}
