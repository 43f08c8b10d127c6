//! The telemetry of a running service: its log, its health, and its metrics about clients.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tollgate::Timestamp;
use tollgate::clock::{Clock, Monotonic, Wall};
use tollgate_engine::counters::Histogram;

use crate::address::Protocol;
use crate::connection_limit::ListenerConnections;
use crate::denial_log::DenialLogger;
use crate::health::Health;
use crate::log::Log;
use crate::protocol_errors::ProtocolErrors;
use crate::rls_failure_mode::RlsFailureMode;
use crate::settings::Settings;
use crate::store_events::{LastProbe, StoreEvents};

/// The upper ends of the histograms' buckets, in nanoseconds: 10 µs to 10 s.
static BUCKET_ENDS: [u64; 14] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    50_000_000,
    250_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// How many unknown domains are named in the log; further ones are only counted.
const MAX_LOGGED_DOMAINS: usize = 100;

/// The telemetry that all parts of a service report to.
pub(crate) struct Telemetry {
    pub(crate) log: Log,
    /// Whether clients should be sent here, and current concerns.
    pub(crate) health: Health,
    /// Logs a sample of the denials.
    pub(crate) denials: Arc<DenialLogger>,
    pub(crate) measured: ClientMetrics,
    /// Clients' protocol errors.
    pub(crate) errors: Arc<ProtocolErrors>,
    /// The outcome of the latest probe of the store.
    pub(crate) store_probes: LastProbe,
    /// Lets one scrape run at a time, as each visits all keys.
    pub(crate) scrape_lock: Arc<tokio::sync::Mutex<()>>,
}

impl Telemetry {
    pub(crate) fn new(settings: &Settings) -> Self {
        let log = settings.log.clone();
        let health = settings.store_events.as_ref().map(StoreEvents::health);
        Self {
            health: health.unwrap_or_default(),
            denials: Arc::new(DenialLogger::new(log.clone(), settings.denial_log)),
            measured: ClientMetrics::new(),
            errors: ProtocolErrors::new(log.clone()),
            store_probes: LastProbe::default(),
            scrape_lock: Arc::default(),
            log,
        }
    }
}

/// Metrics about clients, by protocol.
#[derive(Debug)]
pub(crate) struct ClientMetrics {
    times: [Histogram; Protocol::TIMED.len()],
    /// Empty for disabled listeners.
    connection_counts: [OnceLock<Arc<ListenerConnections>>; Protocol::ALL.len()],
    /// Calls that were reset before their messages were complete.
    resets: AtomicU64,
    clock: Monotonic,
    /// Requests of Envoy that could not be decided, by Envoy's answer.
    undecided: [AtomicU64; 2],
    /// The number of requests of unknown domains, and the first of those domains.
    unknown: (AtomicU64, Mutex<BTreeSet<String>>),
    /// The time of the start, since 1970.
    pub(crate) started_at: Timestamp,
}

impl ClientMetrics {
    pub(crate) fn new() -> Self {
        Self {
            times: std::array::from_fn(|_| Histogram::new(&BUCKET_ENDS)),
            connection_counts: Default::default(),
            resets: AtomicU64::new(0),
            clock: Monotonic::default(),
            undecided: Default::default(),
            unknown: Default::default(),
            started_at: Wall.now(),
        }
    }

    /// The time, for [`record_requests`](Self::record_requests).
    #[inline]
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Records requests that arrived together at `since` and are answered now.
    #[inline]
    pub(crate) fn record_requests(&self, protocol: Protocol, since: Timestamp, requests: u64) {
        if let (Some(times), 1..) = (self.times.get(protocol as usize), requests) {
            times.add_many(self.now() - since, requests);
        }
    }

    /// Records a call that was reset before its message was complete.
    pub(crate) fn record_reset(&self) {
        // Relaxed: nothing depends on it.
        self.resets.fetch_add(1, Relaxed);
    }

    /// The number of such calls.
    pub(crate) fn resets(&self) -> u64 {
        self.resets.load(Relaxed)
    }

    /// Records a request of Envoy that couldn't be decided.
    #[cold]
    pub(crate) fn record_undecided(&self, told: RlsFailureMode) {
        self.undecided[told as usize].fetch_add(1, Relaxed);
    }

    /// The number of undecided requests of Envoy, by Envoy's answer.
    pub(crate) fn undecided(&self) -> [(&'static str, u64); 2] {
        let count = |told: RlsFailureMode| self.undecided[told as usize].load(Relaxed);
        [RlsFailureMode::Error, RlsFailureMode::Deny].map(|told| (told.name(), count(told)))
    }

    /// Counts a request of an unknown domain. Returns whether to log it: once for each domain, up to a bound.
    #[cold]
    pub(crate) fn is_new_unknown_domain(&self, domain: &str) -> bool {
        self.unknown.0.fetch_add(1, Relaxed);
        let mut known = self
            .unknown
            .1
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        known.len() < MAX_LOGGED_DOMAINS
            && !known.contains(domain)
            && known.insert(domain.to_owned())
    }

    /// The number of requests of unknown domains.
    pub(crate) fn unknown_domains(&self) -> u64 {
        self.unknown.0.load(Relaxed)
    }

    /// The histograms of response times.
    pub(crate) fn times(&self) -> impl Iterator<Item = (Protocol, &Histogram)> {
        Protocol::TIMED.into_iter().zip(&self.times)
    }

    /// Registers the connection count of a protocol's listener.
    pub(crate) fn register_listener(&self, protocol: Protocol, open: &Arc<ListenerConnections>) {
        // Each listener is bound only once.
        let _ = self.connection_counts[protocol as usize].set(Arc::clone(open));
    }

    /// The number of open connections.
    pub(crate) fn connections(&self, protocol: Protocol) -> usize {
        let open = self.connection_counts[protocol as usize].get();
        open.map_or(0, |open| open.count())
    }
}
