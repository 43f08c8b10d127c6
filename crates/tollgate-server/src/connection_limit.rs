//! How many connections may be open: of a listener, of all together by the file descriptors that the system grants, and who
//! makes room while handshakes take their time.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::oneshot;

use crate::address::ClientNetwork;

/// What listeners, files, the store and operators have to themselves; less where there are few.
const RESERVED_DESCRIPTORS: usize = 128;
/// Where the system knows no bound.
const ASSUMED_LIMIT: u64 = 1 << 20;

/// How many connections are open, and may be.
#[derive(Debug)]
pub(crate) struct ListenerConnections {
    now: AtomicUsize,
    most: usize,
    /// What it shares with other listeners.
    shared: Arc<SharedConnections>,
    /// Those that haven't begun to be spoken on; none where they begin at once.
    beginning: Option<Mutex<PendingHandshakes>>,
}

/// The connections of several listeners together. The count is relaxed: nothing else depends on it.
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

/// Handshakes that aren't over, by when they began: who drops one's sender has its place.
#[derive(Debug, Default)]
struct PendingHandshakes {
    next: u64,
    waiting: BTreeMap<u64, (ClientNetwork, oneshot::Sender<()>)>,
    /// How many of them come from where.
    from: HashMap<ClientNetwork, usize>,
}

/// How connections of a listener begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionStart {
    Immediately,
    WithHandshake,
}

/// One of the connections that may be open.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    open: Arc<ListenerConnections>,
    /// Its handshake, until that is over.
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

    /// A place for one more. If all are taken, one that is only beginning makes room: those who connect and say nothing
    /// mustn't keep others out.
    pub(crate) fn acquire(self: &Arc<Self>, from: ClientNetwork) -> Option<ConnectionPermit> {
        let has_room = (self.now.fetch_add(1, Ordering::Relaxed) < self.most)
            & (self.shared.now.fetch_add(1, Ordering::Relaxed) < self.shared.most);
        let mut place = ConnectionPermit {
            open: Arc::clone(self),
            handshake: None,
        };
        let Some(mut beginning) = self.beginning() else {
            // The place that is too much leaves as it is dropped.
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

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        // It is shown, and nothing depends on it.
        self.now.load(Ordering::Relaxed)
    }

    /// Ends those whose handshake isn't over.
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

    /// Ends the oldest of those from where most are: whoever begins many and ends none loses his own, not the place of
    /// somebody who is slow. No if there is none.
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

    /// No if it isn't there any more.
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
    /// Waits until another needs it, as long as its handshake isn't over.
    pub(crate) async fn wait_for_eviction(&mut self) {
        match &mut self.handshake {
            // Nobody sends anything: the sender is dropped.
            Some((_, wanted)) => drop(wanted.await),
            None => std::future::pending().await,
        }
    }

    /// Its handshake is over: it stays for as long as its client does. No if another has got its place meanwhile.
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

/// How many file descriptors there are, and for whom. A process without a free one accepts nobody, reads no policy and answers
/// no probe, so clients get all but a reserve, and whoever comes beyond that is told so at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorLimit {
    pub(crate) limit: usize,
}

impl DescriptorLimit {
    /// Raises the soft limit to the hard one. Where that isn't allowed, the soft one stays.
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

    /// What no client gets.
    pub(crate) fn reserve(self) -> usize {
        RESERVED_DESCRIPTORS.min(self.limit / 4)
    }

    /// Connections of clients, over all listeners.
    pub(crate) fn for_clients(self) -> usize {
        self.limit - self.reserve()
    }

    /// Connections of each listener for operators and scrapes.
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
        // It is over just as its place is wanted: both can't have it.
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
        // As many addresses as he likes, of one network.
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
