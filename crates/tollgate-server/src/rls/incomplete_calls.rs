//! Bounds on incomplete calls, whose messages haven't arrived completely: their number over all clients, and the bytes
//! of their messages.
//!
//! A proxy sends a call in one write, so almost none of its calls are incomplete. Beyond the bounds, connections with
//! few such calls, and short messages, are still accepted: a client that begins many calls and completes none keeps no
//! other client out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most incomplete calls of all connections together.
const MAX_CALLS: usize = 16_384;
/// A connection may always have this many.
const CALLS_OF_ANY: usize = 4;
/// The most bytes of all incomplete messages together.
const MAX_BYTES: usize = 64 << 20;
/// A message may always have this many.
const BYTES_OF_ANY: usize = 1_024;

/// The incomplete calls of a service. The counts are relaxed: nothing else depends on them.
#[derive(Debug, Default)]
pub(crate) struct IncompleteCalls {
    calls: AtomicUsize,
    bytes: AtomicUsize,
}

/// One incomplete call.
#[derive(Debug)]
pub(super) struct IncompleteCall {
    all: Arc<IncompleteCalls>,
    /// Shared by all incomplete calls of a connection: its strong count is their number, plus one.
    _of_connection: Arc<()>,
    bytes: usize,
}

impl IncompleteCall {
    /// Adds a call of a connection; `None` if there are too many.
    pub(super) fn enter(all: &Arc<IncompleteCalls>, of_connection: &Arc<()>) -> Option<Self> {
        let before = all.calls.fetch_add(1, Ordering::Relaxed);
        let own = Self {
            all: Arc::clone(all),
            _of_connection: Arc::clone(of_connection),
            bytes: 0,
        };
        // The connection itself and the new call have one reference each.
        let others = Arc::strong_count(of_connection) - 2;
        (before < MAX_CALLS || others < CALLS_OF_ANY).then_some(own)
    }

    /// Whether its message may have this many bytes while it is incomplete.
    pub(super) fn may_keep(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        self.bytes += more;
        let before = self.all.bytes.fetch_add(more, Ordering::Relaxed);
        bytes <= BYTES_OF_ANY || before + more <= MAX_BYTES
    }
}

impl Drop for IncompleteCall {
    fn drop(&mut self) {
        self.all.calls.fetch_sub(1, Ordering::Relaxed);
        self.all.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_many_keeps_nobody_else_out() {
        let (all, greedy, other) = (Arc::default(), Arc::new(()), Arc::new(()));
        let enter = |whose: &Arc<()>| IncompleteCall::enter(&all, whose);
        let mut many: Vec<_> = (0..MAX_CALLS).filter_map(|_| enter(&greedy)).collect();
        assert_eq!(many.len(), MAX_CALLS);
        assert!(enter(&greedy).is_none());
        let few: Vec<_> = (0..5).map(|_| enter(&other)).collect();
        let entered: Vec<_> = few.iter().map(Option::is_some).collect();
        assert_eq!(entered, [true, true, true, true, false]);
        drop(few);
        let whole = MAX_BYTES / MAX_CALLS;
        assert!(many.iter_mut().all(|one| one.may_keep(whole)));
        assert!(!many[0].may_keep(whole + 1));
        let mut short = enter(&other).expect("room");
        assert!(short.may_keep(BYTES_OF_ANY));
        assert!(!short.may_keep(BYTES_OF_ANY + 1));
        drop((many, short));
        assert_eq!(all.calls.load(Ordering::Relaxed), 0);
        assert_eq!(all.bytes.load(Ordering::Relaxed), 0);
    }
}
