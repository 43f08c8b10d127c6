//! Wrong passwords and tokens: counted, logged now and then, and answered with a delay if an address sends many.
//!
//! A correct secret is never rejected or delayed, whatever others at its address have sent: a broken client must not
//! harm a hundred good ones behind the same address. A connection is closed after a few wrong secrets.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::clock::Monotonic;
use tollgate::{KeyedLimiter, Limiter, Rate};

use crate::address::{Peer, Protocol};
use crate::log::Log;

/// How many wrong secrets close a connection.
pub(crate) const MAX_TRIES: u8 = 5;
/// The delay of an answer to an address that has sent too many. Other connections aren't delayed.
const DELAY: Duration = Duration::from_secs(1);
/// How many addresses have a counter of their own; further ones share one.
const MAX_ADDRESSES: usize = 10_000;

/// Records wrong secrets.
#[derive(Debug)]
pub(crate) struct WrongSecrets {
    log: Log,
    counts: [AtomicU64; Protocol::ALL.len()],
    by_address: KeyedLimiter<Monotonic>,
    /// Bounds the log lines.
    line_limiter: Limiter,
    suppressed: AtomicU64,
}

impl WrongSecrets {
    /// `free` wrong secrets of each address are answered immediately, and as many in each minute.
    pub(crate) fn new(free: u64, log: Log) -> Self {
        Self {
            log,
            counts: Default::default(),
            by_address: KeyedLimiter::new(Rate::per_minute(free.max(1)), MAX_ADDRESSES),
            line_limiter: Limiter::new(Rate::per_second(1)),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Counts a wrong secret. Returns the delay of its answer.
    #[cold]
    pub(crate) fn record_wrong_secret(&self, protocol: Protocol, from: Peer) -> Duration {
        self.counts[protocol as usize].fetch_add(1, Ordering::Relaxed);
        if self.line_limiter.check().is_allowed() {
            let more = self.suppressed.swap(0, Ordering::Relaxed);
            let fields: [(&str, &dyn Display); 3] =
                [("protocol", &protocol), ("from", &from), ("more", &more)];
            self.log.warn("wrong password or token", &fields);
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
        if self.by_address.check(&from.network()).is_allowed() {
            Duration::ZERO
        } else {
            DELAY
        }
    }

    /// The number of wrong secrets, by protocol.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (Protocol, u64)> {
        let counts = self.counts.each_ref();
        let counts = counts.map(|count| count.load(Ordering::Relaxed));
        Protocol::ALL.into_iter().zip(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::LogFormat;

    #[test]
    fn an_address_that_guesses_is_answered_late_and_no_other() {
        let guesses = WrongSecrets::new(10, Log::to_writer(std::io::sink(), LogFormat::Text));
        let wrong = |address: &str| {
            let from = Peer::Tcp(address.parse().expect("an address"));
            guesses.record_wrong_secret(Protocol::Resp, from)
        };
        for port in 1..=10 {
            assert_eq!(wrong(&format!("192.0.2.1:{port}")), Duration::ZERO);
        }
        assert_eq!(wrong("192.0.2.1:11"), DELAY);
        assert_eq!(wrong("192.0.2.2:1"), Duration::ZERO);
        // All addresses of one site share a counter.
        for host in 1..=10 {
            assert_eq!(wrong(&format!("[2001:db8::{host}]:1")), Duration::ZERO);
        }
        assert_eq!(wrong("[2001:db8::b]:1"), DELAY);
        assert_eq!(wrong("[2001:db8:0:1::b]:1"), Duration::ZERO);
        let counted: u64 = guesses.counts().map(|(_, count)| count).sum();
        assert_eq!(counted, 24);
    }
}
