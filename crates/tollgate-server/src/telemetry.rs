//! What is known of a service while it runs: what it logs, whether it is well, and what is measured of clients.

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

/// From here to there in nanoseconds: 10 µs to 10 s.
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

/// Domains that the policy doesn't know and that are named in the log; others are only counted.
const MAX_LOGGED_DOMAINS: usize = 100;

/// What all parts of a service report to.
pub(crate) struct Telemetry {
    pub(crate) log: Log,
    /// Whether it should be asked.
    pub(crate) health: Health,
    /// Logs some of the denials.
    pub(crate) denials: Arc<DenialLogger>,
    pub(crate) measured: ClientMetrics,
    /// What clients do that their protocol doesn't allow.
    pub(crate) errors: Arc<ProtocolErrors>,
    /// Whether the store was there when it was asked last.
    pub(crate) store_probes: LastProbe,
    /// One scrape at a time: each looks at all keys.
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

/// Times and connections, by protocol.
#[derive(Debug)]
pub(crate) struct ClientMetrics {
    times: [Histogram; Protocol::TIMED.len()],
    /// None where nobody listens.
    connection_counts: [OnceLock<Arc<ListenerConnections>>; Protocol::ALL.len()],
    /// Calls that were reset before their messages were complete.
    resets: AtomicU64,
    clock: Monotonic,
    /// Requests of Envoy that could not be decided, by what Envoy was told.
    undecided: [AtomicU64; 2],
    /// Requests of domains that the policy doesn't know, and the first of those domains.
    unknown: (AtomicU64, Mutex<BTreeSet<String>>),
    /// When it started, since 1970.
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

    /// The time, for [`took`](Self::took).
    #[inline]
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// So many requests have come together, at this time, and their answers are ready.
    #[inline]
    pub(crate) fn record_requests(&self, protocol: Protocol, since: Timestamp, requests: u64) {
        if let (Some(times), 1..) = (self.times.get(protocol as usize), requests) {
            times.add_many(self.now() - since, requests);
        }
    }

    /// A client gave up a call before its message was complete.
    pub(crate) fn record_reset(&self) {
        // It is shown, and nothing depends on it.
        self.resets.fetch_add(1, Relaxed);
    }

    /// How many such calls there were.
    pub(crate) fn resets(&self) -> u64 {
        self.resets.load(Relaxed)
    }

    /// A request of Envoy couldn't be decided, and Envoy is told so.
    #[cold]
    pub(crate) fn record_undecided(&self, told: RlsFailureMode) {
        self.undecided[told as usize].fetch_add(1, Relaxed);
    }

    /// How many requests of Envoy couldn't be decided, by what Envoy was told.
    pub(crate) fn undecided(&self) -> [(&'static str, u64); 2] {
        let count = |told: RlsFailureMode| self.undecided[told as usize].load(Relaxed);
        [RlsFailureMode::Error, RlsFailureMode::Deny].map(|told| (told.name(), count(told)))
    }

    /// Counts a request of a domain that the policy doesn't know. Whether that is to be said: once a domain, and of so many.
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

    /// How many requests were of a domain that the policy doesn't know.
    pub(crate) fn unknown_domains(&self) -> u64 {
        self.unknown.0.load(Relaxed)
    }

    /// How long answers took.
    pub(crate) fn times(&self) -> impl Iterator<Item = (Protocol, &Histogram)> {
        Protocol::TIMED.into_iter().zip(&self.times)
    }

    /// Connections of this protocol are counted there.
    pub(crate) fn register_listener(&self, protocol: Protocol, open: &Arc<ListenerConnections>) {
        // A listener is bound once.
        let _ = self.connection_counts[protocol as usize].set(Arc::clone(open));
    }

    /// How many connections there are.
    pub(crate) fn connections(&self, protocol: Protocol) -> usize {
        let open = self.connection_counts[protocol as usize].get();
        open.map_or(0, |open| open.count())
    }
}
