//! Records the store's events in the log and in the service's health.

use std::sync::{Arc, Mutex, PoisonError};

use tollgate_engine::counters::RequestCounts;
use tollgate_redis::StoreEvent;

use crate::health::{Concern, Health};
use crate::log::{Level, Log};

/// Records the events of a store: in a log, and as a concern of the service that is started with it. A failure that
/// persists is logged once.
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
    /// The latest logged failure.
    last: Mutex<String>,
}

impl StoreEvents {
    /// Records events in this log.
    pub fn new(log: Log) -> Self {
        Self(Arc::new(StoreEventsInner {
            log,
            health: Health::default(),
            last: Mutex::default(),
        }))
    }

    /// Records an event; to be passed to `RedisBuilder::on_event`.
    pub fn record(&self, event: &StoreEvent<'_>) {
        let StoreEventsInner { log, health, last } = &*self.0;
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let level = match event {
            StoreEvent::Failed { error, .. } | StoreEvent::KeyFailed { error, .. } => {
                // If only a key failed, the store itself is healthy.
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

    /// Raises the concern for a store that was unreachable before the first request.
    pub fn report_unreachable(&self, why: &str) {
        self.0.health.raise_concern(Concern::Store, why);
    }

    /// The health of the service that has these concerns.
    pub(crate) fn health(&self) -> Health {
        self.0.health.clone()
    }
}

/// The outcome of a probe, if no request was decided since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    /// The store answered, and no request was decided since.
    Answers,
    /// The store didn't answer, and no request was decided since.
    Missing,
    /// Requests were decided since: their outcome is newer.
    AskRequests,
}

/// The latest probe of the store, with the request counts at that time.
#[derive(Debug, Default)]
pub(crate) struct LastProbe(Mutex<Option<(RequestCounts, ProbeResult)>>);

impl LastProbe {
    /// The outcome of the probe, if the request counts haven't changed since.
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
