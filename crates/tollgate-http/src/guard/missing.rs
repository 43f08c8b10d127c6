//! Requests without a key, and the word of warning if there are only such.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Mistake;
use super::hooks;
use super::keys::{Address, KeyOf};
use super::request::Request;
use crate::client::Network;

/// If so many requests come before the first that has a key, something is in the wrong order.
const STRANGE: u32 = 100;

/// A request had a key: nothing is strange any more.
const SOME_HAVE_ONE: u32 = u32::MAX;

/// What becomes of a request that has no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// It is answered 500, and that is logged: somebody forgot to put the key there.
    #[default]
    Fail,
    /// It is counted by the address of its connection.
    Peer,
    /// It passes.
    Pass,
}

/// What was chosen, and how many came without a key so far, until one had one.
#[derive(Debug, Default)]
pub(super) struct Keyless {
    pub(super) missing: Missing,
    peer: Address,
    seen: AtomicU32,
}

/// What becomes of one.
pub(super) enum Instead {
    Peer(Network),
    Pass,
    Fail(Mistake),
}

impl Keyless {
    /// A request has a key.
    #[inline]
    pub(super) fn some_have_one(&self) {
        // By default the first without one is told of at once, so none are counted. Nothing is ordered by the number.
        if self.missing != Missing::Fail && self.seen.load(Ordering::Relaxed) != SOME_HAVE_ONE {
            self.seen.store(SOME_HAVE_ONE, Ordering::Relaxed);
        }
    }

    /// What becomes of a request without one.
    #[cold]
    pub(super) fn instead<R: Request + ?Sized>(&self, request: &R) -> Instead {
        let instead = match self.missing {
            Missing::Fail => return Instead::Fail(Mistake::NoKey),
            Missing::Pass => Instead::Pass,
            Missing::Peer => match self.peer.key(request) {
                Some(address) => Instead::Peer(address),
                None => return Instead::Fail(Mistake::NoKey),
            },
        };
        let count = |seen| (seen < STRANGE).then(|| seen + 1);
        let before = self
            .seen
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        if before == Ok(STRANGE - 1) {
            tracing::warn!(
                target: hooks::TARGET,
                requests = STRANGE,
                missing = ?self.missing,
                "not one request so far had the key that it should be limited by: put the layer that finds it before \
                 this one"
            );
        }
        instead
    }
}
