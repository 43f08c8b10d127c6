//! Connection limits: one for each listener, and one for all clients together by the file descriptors that the system
//! grants. Unfinished handshakes are evicted first.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::oneshot;

use crate::address::ClientNetwork;

/// File descriptors for listeners, files, the store and operators; fewer where the limit is low.
const RESERVED_DESCRIPTORS: usize = 128;
/// The descriptor limit if the system has none.
const ASSUMED_LIMIT: u64 = 1 << 20;

/// The open connections of a listener, and their limit.
#[derive(Debug)]
pub(crate) struct ListenerConnections {
    now: AtomicUsize,
    most: usize,
    /// The limit that it shares with other listeners.
    shared: Arc<SharedConnections>,
    /// Connections whose handshake is unfinished; `None` for listeners without handshakes.
    beginning: Option<Mutex<PendingHandshakes>>,
}

/// The connections of several listeners together. The count is relaxed, as no other data depends on it.
#[derive(Debug)]
pub(crate) struct SharedConnections {
    now: AtomicUsize,
    most: usize,
}

impl SharedConnections {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            now: AtomicUsize::new(0),
            most,
        })
    }
}

/// Unfinished handshakes, the oldest first. Dropping a handshake's sender evicts it.
#[derive(Debug, Default)]
struct PendingHandshakes {
    next: u64,
    waiting: BTreeMap<u64, (ClientNetwork, oneshot::Sender<()>)>,
    /// The number of unfinished handshakes of each client network.
    from: HashMap<ClientNetwork, usize>,
}

/// How the connections of a listener begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionStart {
    Immediately,
    WithHandshake,
}

/// The permit of one open connection.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    open: Arc<ListenerConnections>,
    /// The id of its handshake and the eviction signal, until the handshake is finished.
    handshake: Option<(u64, oneshot::Receiver<()>)>,
}

impl ListenerConnections {
    pub(crate) fn new(
        most: usize,
        shared: &Arc<SharedConnections>,
        begins: ConnectionStart,
    ) -> Arc<Self> {
        Arc::new(Self {
            now: AtomicUsize::new(0),
            most,
            shared: Arc::clone(shared),
            beginning: (begins == ConnectionStart::WithHandshake).then(Mutex::default),
        })
    }

    /// A permit for one more connection. If none is free, the oldest unfinished handshake is evicted: clients that
    /// connect and send nothing must not keep others out.
    pub(crate) fn acquire(self: &Arc<Self>, from: ClientNetwork) -> Option<ConnectionPermit> {
        // Both counts rise before they are checked, so two threads can't take the last permit. `&` isn't lazy: the drop
        // of the permit lowers both.
        let has_room = (self.now.fetch_add(1, Ordering::Relaxed) < self.most)
            & (self.shared.now.fetch_add(1, Ordering::Relaxed) < self.shared.most);
        let mut place = ConnectionPermit {
            open: Arc::clone(self),
            handshake: None,
        };
        let Some(mut beginning) = self.beginning() else {
            // Dropping the permit takes the excess connection off the counts.
            return has_room.then_some(place);
        };
        if !has_room && !beginning.evict_oldest() {
            drop(beginning);
            return None;
        }
        place.handshake = Some(beginning.add(from));
        drop(beginning);
        Some(place)
    }

    /// The number of open connections.
    pub(crate) fn count(&self) -> usize {
        // Only for display: nothing depends on it.
        self.now.load(Ordering::Relaxed)
    }

    /// Aborts all unfinished handshakes.
    pub(crate) fn abort_handshakes(&self) {
        if let Some(mut beginning) = self.beginning() {
            beginning.waiting.clear();
            beginning.from.clear();
        }
    }

    fn beginning(&self) -> Option<MutexGuard<'_, PendingHandshakes>> {
        let beginning = self.beginning.as_ref()?;
        Some(beginning.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PendingHandshakes {
    fn add(&mut self, from: ClientNetwork) -> (u64, oneshot::Receiver<()>) {
        let (wanted, receiver) = oneshot::channel();
        let id = self.next;
        self.next += 1;
        self.waiting.insert(id, (from, wanted));
        *self.from.entry(from).or_default() += 1;
        (id, receiver)
    }

    /// Evicts the oldest handshake of the network that has the most. A client that begins many handshakes and finishes
    /// none loses its own, not those of slow clients elsewhere. `false` if there is none.
    fn evict_oldest(&mut self) -> bool {
        let most = self.from.iter().max_by_key(|(_, count)| **count);
        let Some(most) = most.map(|(from, _)| *from) else {
            return false;
        };
        let mut waiting = self.waiting.iter();
        let oldest = waiting.find(|(_, (from, _))| *from == most);
        let oldest = oldest.map(|(id, _)| *id);
        oldest.is_some_and(|id| self.remove(id))
    }

    /// `false` if the handshake was evicted already.
    fn remove(&mut self, id: u64) -> bool {
        let Some((from, _)) = self.waiting.remove(&id) else {
            return false;
        };
        if let Some(count) = self.from.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                self.from.remove(&from);
            }
        }
        true
    }
}

impl ConnectionPermit {
    /// Waits until the handshake is evicted; forever once it is finished.
    pub(crate) async fn wait_for_eviction(&mut self) {
        match &mut self.handshake {
            // The sender never sends: it was dropped.
            Some((_, wanted)) => drop(wanted.await),
            None => std::future::pending().await,
        }
    }

    /// Marks the handshake as finished, after which the connection can't be evicted. `false` if it was evicted before.
    pub(crate) fn finish_handshake(&mut self) -> bool {
        match (self.handshake.take(), self.open.beginning()) {
            (Some((id, _)), Some(mut beginning)) => beginning.remove(id),
            _ => true,
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.finish_handshake();
        self.open.now.fetch_sub(1, Ordering::Relaxed);
        self.open.shared.now.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The limit on file descriptors. A process without a free descriptor can't accept clients, read its policy or answer
/// health checks, so clients get all but a reserve, and a client beyond that is rejected immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorLimit {
    pub(crate) limit: usize,
}

impl DescriptorLimit {
    /// Raises the soft limit to the hard limit. Where that isn't permitted, the soft limit stays.
    pub(crate) fn raise() -> Self {
        let found = getrlimit(Resource::Nofile);
        let hard = found.maximum.unwrap_or(ASSUMED_LIMIT);
        let mut limit = found.current.unwrap_or(hard);
        let wanted = Rlimit {
            current: Some(hard),
            maximum: found.maximum,
        };
        if limit < hard && setrlimit(Resource::Nofile, wanted).is_ok() {
            limit = hard;
        }
        Self {
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
        }
    }

    /// The descriptors that no client gets.
    pub(crate) fn reserve(self) -> usize {
        RESERVED_DESCRIPTORS.min(self.limit / 4)
    }

    /// The most connections of clients, over all listeners.
    pub(crate) fn for_clients(self) -> usize {
        self.limit - self.reserve()
    }

    /// The most connections of each listener for operators and scrapes.
    pub(crate) fn for_operators(self) -> usize {
        self.reserve() / 4
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::address::Peer;

    fn open(most: usize) -> Arc<ListenerConnections> {
        Arc::new(ListenerConnections {
            now: AtomicUsize::new(0),
            most,
            shared: SharedConnections::new(1_000),
            beginning: Some(Mutex::default()),
        })
    }

    fn network(text: &str) -> ClientNetwork {
        Peer::Tcp((text.parse::<IpAddr>().unwrap(), 1).into()).network()
    }

    #[test]
    fn a_place_that_another_got_is_not_kept() {
        let (open, here) = (open(1), network("127.0.0.1"));
        let mut first = open.acquire(here).expect("room");
        let mut second = open.acquire(here).expect("the place of the first");
        // The handshake finishes just as it is evicted: only one of both can win.
        assert!(!first.finish_handshake());
        assert!(second.finish_handshake());
        assert!(open.acquire(here).is_none());
        drop((first, second));
        assert_eq!(open.count(), 0);
        assert!(open.beginning().unwrap().from.is_empty());
    }

    #[test]
    fn listeners_share_what_they_have_together() {
        let shared = SharedConnections::new(2);
        let open = || {
            Arc::new(ListenerConnections {
                now: AtomicUsize::new(0),
                most: 10,
                shared: Arc::clone(&shared),
                beginning: None,
            })
        };
        let (one, other, here) = (open(), open(), Peer::Disconnected.network());
        let first = one.acquire(here).expect("room");
        let _second = other.acquire(here).expect("room");
        assert!(one.acquire(here).is_none() && other.acquire(here).is_none());
        drop(first);
        assert!(other.acquire(here).is_some());
    }

    #[test]
    fn whoever_begins_many_makes_room_himself() {
        let open = open(4);
        let mut slow = open.acquire(network("192.0.2.1")).expect("room");
        // A client may have any number of addresses in one network.
        let many: Vec<_> = (0..100)
            .map(|number| open.acquire(network(&format!("2001:db8::{number}"))))
            .collect();
        assert!(many.iter().all(Option::is_some));
        assert!(slow.finish_handshake());
        let kept = many
            .into_iter()
            .flatten()
            .filter_map(|mut place| place.finish_handshake().then_some(()));
        assert_eq!(kept.count(), 3);
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
    }

    #[test]
    fn clients_get_all_but_a_reserve() {
        for (limit, clients, operators) in [(256, 192, 16), (1_024, 896, 32), (65_536, 65_408, 32)]
        {
            let own = DescriptorLimit { limit };
            assert_eq!(
                (own.for_clients(), own.for_operators()),
                (clients, operators)
            );
        }
    }
}
