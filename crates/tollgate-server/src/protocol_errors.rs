//! Clients' protocol errors: counted by listener and kind, and logged at most once in a while for each.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::clock::{Clock, Monotonic};

use crate::address::{Peer, Protocol};
use crate::log::Log;

/// The time between two log lines of one kind, in nanoseconds.
const LOG_INTERVAL_NANOS: u64 = 10_000_000_000;

/// The kind of a protocol error.
#[derive(Clone, Copy, Debug, derive_more::Display, PartialEq, Eq)]
#[display(rename_all = "snake_case")]
pub(crate) enum ErrorKind {
    /// The input violates the protocol.
    Malformed,
    /// The input exceeds a size limit.
    TooLarge,
    /// The client took too long to send, or to read.
    Timeout,
    /// The client opened more connections or calls than the limit.
    Rejected,
    /// The client sent more control frames than its calls explain.
    Flood,
}

impl ErrorKind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Malformed,
        Self::TooLarge,
        Self::Timeout,
        Self::Rejected,
        Self::Flood,
    ];
}

/// The errors of one kind on one listener.
#[derive(Debug, Default)]
struct ErrorCounter {
    count: AtomicU64,
    /// The count at the latest log line.
    logged: AtomicU64,
    /// When the next line may be logged.
    next: AtomicU64,
}

/// The protocol errors of a service, by listener and kind.
///
/// The counts are relaxed: each is shown by itself. The thread that advances `next` logs the line, so only one thread
/// does.
#[derive(Debug)]
pub(crate) struct ProtocolErrors {
    counters: [[ErrorCounter; ErrorKind::ALL.len()]; Protocol::ALL.len()],
    log: Log,
    clock: Monotonic,
}

/// Records the protocol errors of one client.
#[derive(Clone, Debug)]
pub(crate) struct ErrorSource {
    errors: Arc<ProtocolErrors>,
    protocol: Protocol,
    peer: Peer,
}

impl ProtocolErrors {
    pub(crate) fn new(log: Log) -> Arc<Self> {
        Arc::new(Self {
            counters: Default::default(),
            log,
            clock: Monotonic::default(),
        })
    }

    /// The recorder of a listener's client.
    pub(crate) fn source(self: &Arc<Self>, protocol: Protocol, peer: Peer) -> ErrorSource {
        ErrorSource {
            errors: Arc::clone(self),
            protocol,
            peer,
        }
    }

    /// The number of errors.
    pub(crate) fn count(&self, protocol: Protocol, kind: ErrorKind) -> u64 {
        self.counters[protocol as usize][kind as usize]
            .count
            .load(Ordering::Relaxed)
    }
}

impl ErrorSource {
    /// Counts a request that can't be parsed: it is malformed or too large.
    #[cold]
    pub(crate) fn record_unreadable(&self, is_too_large: bool, detail: &dyn Display) {
        let kind = if is_too_large {
            ErrorKind::TooLarge
        } else {
            ErrorKind::Malformed
        };
        self.record(kind, detail);
    }

    /// Counts an error, and logs it unless one of this kind was logged a moment ago.
    #[cold]
    pub(crate) fn record(&self, kind: ErrorKind, detail: &dyn Display) {
        let counter = &self.errors.counters[self.protocol as usize][kind as usize];
        let count = counter.count.fetch_add(1, Ordering::Relaxed) + 1;
        let now = self.errors.clock.now().as_nanos();
        let next = counter.next.load(Ordering::Relaxed);
        let is_due = now >= next
            && counter
                .next
                .compare_exchange(
                    next,
                    now + LOG_INTERVAL_NANOS,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok();
        if !is_due {
            return;
        }
        let logged = counter.logged.swap(count, Ordering::Relaxed);
        let since = count.saturating_sub(logged);
        self.errors.log.warn(
            "protocol error",
            &[
                ("listener", &self.protocol),
                ("kind", &kind),
                ("peer", &self.peer),
                ("detail", detail),
                ("count", &since),
            ],
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::log::LogFormat;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn all_are_counted_and_one_of_each_kind_is_logged_at_once() {
        let lines = Lines::default();
        let errors = ProtocolErrors::new(Log::to_writer(lines.clone(), LogFormat::Text));
        let peer = Peer::Tcp("192.0.2.1:5000".parse().unwrap());
        let source = errors.source(Protocol::Resp, peer);
        for _ in 0..3 {
            source.record(ErrorKind::Malformed, &"no array");
        }
        source.record(ErrorKind::Timeout, &"it took too long");
        assert_eq!(errors.count(Protocol::Resp, ErrorKind::Malformed), 3);
        assert_eq!(errors.count(Protocol::Resp, ErrorKind::Timeout), 1);
        assert_eq!(errors.count(Protocol::Http, ErrorKind::Malformed), 0);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let said: Vec<_> = text.lines().map(|line| &line[25..]).collect();
        assert_eq!(
            said,
            [
                "warning: protocol error listener=resp kind=malformed peer=192.0.2.1:5000 detail=no array count=1",
                "warning: protocol error listener=resp kind=timeout peer=192.0.2.1:5000 detail=it took too long count=1",
            ]
        );
    }
}
