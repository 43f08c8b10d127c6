//! What is measured of clients: how long they wait for answers, and how many are connected.

use std::sync::{Arc, OnceLock};

use tollgate::Timestamp;
use tollgate::clock::{Clock, Monotonic, Wall};
use tollgate_engine::tally::Histogram;

use crate::listen::Open;

/// From here to there in nanoseconds: 10 µs to 10 s.
static UP_TO: [u64; 14] = [
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

/// What is spoken by a listener. The first three are for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Grpc,
    Resp,
    Admin,
    Metrics,
}

impl Protocol {
    pub(crate) const ALL: [Self; 5] = [
        Self::Http,
        Self::Grpc,
        Self::Resp,
        Self::Admin,
        Self::Metrics,
    ];
    /// Those whose requests are timed.
    pub(crate) const TIMED: [Self; 3] = [Self::Http, Self::Grpc, Self::Resp];

    /// As metrics call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Resp => "resp",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }
}

/// Times and connections, by protocol.
#[derive(Debug)]
pub(crate) struct Measured {
    times: [Histogram; Protocol::TIMED.len()],
    /// None where nobody listens.
    open: [OnceLock<Arc<Open>>; Protocol::ALL.len()],
    clock: Monotonic,
    /// When it started, since 1970.
    pub(crate) since: Timestamp,
}

impl Measured {
    pub(crate) fn new() -> Self {
        Self {
            times: std::array::from_fn(|_| Histogram::new(&UP_TO)),
            open: Default::default(),
            clock: Monotonic::default(),
            since: Wall.now(),
        }
    }

    /// The time, for [`took`](Self::took).
    #[inline]
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// So many requests have come together, at this time, and their answers are ready.
    #[inline]
    pub(crate) fn took(&self, protocol: Protocol, since: Timestamp, requests: u64) {
        if let (Some(times), 1..) = (self.times.get(protocol as usize), requests) {
            times.add_many(self.now() - since, requests);
        }
    }

    /// How long answers took.
    pub(crate) fn times(&self) -> impl Iterator<Item = (Protocol, &Histogram)> {
        Protocol::TIMED.into_iter().zip(&self.times)
    }

    /// Connections of this protocol are counted there.
    pub(crate) fn listens(&self, protocol: Protocol, open: &Arc<Open>) {
        // A listener is bound once.
        let _ = self.open[protocol as usize].set(Arc::clone(open));
    }

    /// How many connections there are.
    pub(crate) fn connections(&self, protocol: Protocol) -> usize {
        let open = self.open[protocol as usize].get();
        open.map_or(0, |open| open.count())
    }
}
