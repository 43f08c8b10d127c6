//! The driver: the task that keeps the connections and sends queued requests to the nodes that have their keys.

mod slot_refresh;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::OptionFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, sleep_until};

use super::batch::Batch;
use super::clock_skew;
use super::connect::Connector;
use super::hash_slots::{self, SLOTS, SlotReply};
use super::link::{AskingMode, CallFailure, FailureAction, StoreConnection};
use super::peer::{ConnectedPeer, Peer, PeerId, PeerState};
use super::shared_state::DriverState;
use crate::address::Node;
use crate::error::{FailureKind, StoreError};

use slot_refresh::SlotRefresh;

/// How often a call follows redirections.
const MAX_REDIRECTS: u8 = 5;
/// The pause before each redirection after the second, and between attempts at keys that are being migrated.
const MIGRATION_RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Which node has which key.
enum SlotMap {
    /// One server has all keys.
    Single,
    /// Not known yet, or why it can't be found out.
    Unknown(Option<StoreError>),
    /// The node of each hash slot.
    Slots(Box<[Option<PeerId>]>),
}

/// The result of a call.
struct FinishedCall {
    batch: Batch,
    peer: PeerId,
    /// The number of the peer's connection.
    link: u64,
    result: Result<Vec<i64>, CallFailure>,
}

type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub(crate) struct Driver {
    shared: Arc<DriverState>,
    connector: Arc<Connector>,
    peers: BTreeMap<PeerId, Peer>,
    next_peer: PeerId,
    map: SlotMap,
    /// Calls that wait until the hash slots are known.
    parked: Vec<Batch>,
    calls: FuturesUnordered<Task<FinishedCall>>,
    connecting: FuturesUnordered<Task<(PeerId, Result<StoreConnection, StoreError>)>>,
    slot_query: Option<Task<SlotReply>>,
    slot_refresh: SlotRefresh,
    /// Whether a connection may be needed, or the hash slots; `wake_at` is when to check in any case.
    needs_mending: bool,
    wake_at: Option<Instant>,
}

impl Driver {
    pub(crate) fn new(shared: Arc<DriverState>, connector: Connector) -> Self {
        let seeds = connector.seeds();
        let (looks, is_one) = (SlotRefresh::new(seeds), seeds.is_none());
        let mut driver = Self {
            shared,
            connector: Arc::new(connector),
            peers: BTreeMap::new(),
            next_peer: 0,
            map: if is_one {
                SlotMap::Single
            } else {
                SlotMap::Unknown(None)
            },
            parked: Vec::new(),
            calls: FuturesUnordered::new(),
            connecting: FuturesUnordered::new(),
            slot_query: None,
            slot_refresh: looks,
            needs_mending: true,
            wake_at: None,
        };
        if is_one {
            driver.add_peer(None);
        }
        driver
    }

    /// Runs until the store is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            if self.shared.queue.is_closed() {
                return;
            }
            while let Some(batch) = self.shared.queue.take() {
                self.dispatch(batch);
            }
            self.reconnect_due_peers();
            let wake = self.wake_at;
            // The fixed order makes a simulated run repeatable. No branch can starve another: the rare ones
            // come first, and everything that is due or can be sent is handled above, before each round.
            tokio::select! {
                biased;
                Some((peer, link)) = self.connecting.next(), if !self.connecting.is_empty() => {
                    self.handle_connection(peer, link);
                }
                Some(looked) = OptionFuture::from(self.slot_query.as_mut()), if self.slot_query.is_some() => {
                    self.slot_query = None;
                    self.handle_slots(looked);
                }
                Some(done) = self.calls.next(), if !self.calls.is_empty() => self.handle_reply(done),
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
                () = self.shared.queue.changed.notified() => {}
            }
        }
    }

    fn add_peer(&mut self, node: Option<Node>) -> PeerId {
        let id = self.next_peer;
        self.next_peer += 1;
        self.peers.insert(id, Peer::new(node));
        self.needs_mending = true;
        id
    }

    /// The peer of this node, added if it is new.
    fn peer_for_node(&mut self, node: Node) -> PeerId {
        let is_it = |peer: &Peer| peer.node.as_ref() == Some(&node);
        match self.peers.iter().find(|(_, peer)| is_it(peer)) {
            Some((id, _)) => *id,
            None => self.add_peer(Some(node)),
        }
    }

    /// Sends a call to the node that has its keys.
    fn dispatch(&mut self, batch: Batch) {
        let slot = batch.lane % SLOTS;
        let peer = match &self.map {
            SlotMap::Single => self.peers.keys().next().copied(),
            SlotMap::Slots(slots) => slots[usize::from(slot)],
            // The first reply about hash slots sends it, or fails it.
            SlotMap::Unknown(None) => return self.parked.push(batch),
            SlotMap::Unknown(Some(error)) => {
                let error = error.clone();
                return self.fail_unsent(batch, &error);
            }
        };
        match peer {
            Some(peer) => self.send_to_peer(peer, batch, AskingMode::Plain, Duration::ZERO),
            None => {
                self.schedule_refresh();
                let why = format!("no node of the cluster has hash slot {slot}");
                self.fail_unsent(batch, &StoreError::unreachable(FailureKind::Moved, why));
            }
        }
    }

    fn send_to_peer(&mut self, id: PeerId, batch: Batch, manner: AskingMode, after: Duration) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return self.fail_unsent(batch, &StoreError::Stopped);
        };
        match &peer.state {
            PeerState::Up(up) => {
                (self.calls).push(Box::pin(run_call(id, up, batch, manner, after)));
            }
            PeerState::New => peer.parked.push((batch, manner)),
            PeerState::Down(error) => {
                let error = error.clone();
                self.fail_unsent(batch, &error);
            }
        }
    }

    /// Fails a call that wasn't sent.
    fn fail_unsent(&self, batch: Batch, error: &StoreError) {
        let (lane, stats) = (batch.lane, &self.shared.stats);
        stats.failed_calls.fetch_add(1, Ordering::Relaxed);
        batch.fail_all(error);
        self.shared.queue.finish_call(lane, Vec::new());
    }

    /// Sends a parked call, without its cancelled requests.
    fn unpark(&mut self, mut batch: Batch, to: Option<(PeerId, AskingMode)>) {
        batch.drop_abandoned();
        match to {
            _ if batch.is_empty() => self.shared.queue.finish_call(batch.lane, Vec::new()),
            Some((peer, manner)) => self.send_to_peer(peer, batch, manner, Duration::ZERO),
            None => self.dispatch(batch),
        }
    }

    /// Makes the connections that are due, and queries the hash slots.
    fn reconnect_due_peers(&mut self) {
        let now = Instant::now();
        if !self.needs_mending && self.wake_at.is_none_or(|wake| now < wake) {
            return;
        }
        (self.needs_mending, self.wake_at) = (false, None);
        let is_one = matches!(self.map, SlotMap::Single);
        let in_part = !is_one && self.peers.values().any(Peer::has_answered);
        let stats = &self.shared.stats;
        stats.answers_in_part.store(in_part, Ordering::Relaxed);
        for (id, peer) in &mut self.peers {
            if peer.is_up() || peer.is_connecting {
                continue;
            }
            if now < peer.retry_at {
                let at = peer.retry_at;
                self.wake_at = Some(self.wake_at.map_or(at, |wake| wake.min(at)));
                continue;
            }
            peer.is_connecting = true;
            let (id, node) = (*id, peer.node.clone());
            let connector = Arc::clone(&self.connector);
            self.connecting.push(Box::pin(async move {
                (id, connector.connect(node.as_ref()).await)
            }));
        }
        let looks_at = self.refresh_slots_if_due(now);
        self.wake_at = self.wake_at.into_iter().chain(looks_at).min();
    }

    fn handle_connection(&mut self, id: PeerId, link: Result<StoreConnection, StoreError>) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        self.needs_mending = true;
        let is_new = matches!(peer.state, PeerState::New);
        let parked = std::mem::take(&mut peer.parked);
        match link {
            Ok(link) => {
                self.shared.stats.connects.fetch_add(1, Ordering::Relaxed);
                let ended = peer.mark_connected(link.clone());
                clock_skew::watch_clock(id, link, ended, &self.shared);
            }
            Err(error) => {
                peer.mark_unreachable(error, &self.shared);
                // A newer connection may have replaced it.
                if is_new {
                    self.schedule_refresh();
                }
            }
        }
        for (batch, manner) in parked {
            self.unpark(batch, Some((id, manner)));
        }
    }

    fn handle_reply(&mut self, done: FinishedCall) {
        let (batch, peer, link) = (done.batch, done.peer, done.link);
        let lane = batch.lane;
        if batch.is_empty() {
            return self.shared.queue.finish_call(lane, Vec::new());
        }
        let is_lost = (done.result.as_ref()).is_err_and(|failure| failure.action.is_lost());
        if !is_lost && let Some(peer) = self.peers.get_mut(&peer) {
            self.needs_mending |= peer.record_answer(link);
        }
        match done.result {
            Ok(numbers) => {
                let stats = &self.shared.stats;
                stats.record_call(batch.len());
                stats.is_failing.store(false, Ordering::Relaxed);
                match batch.deliver(numbers) {
                    Ok(strange) => stats.strange_keys.fetch_add(strange, Ordering::Relaxed),
                    Err(_) => stats.failed_calls.fetch_add(1, Ordering::Relaxed),
                };
                self.shared.queue.finish_call(lane, Vec::new());
            }
            Err(failure) => self.handle_failure(batch, peer, link, failure),
        }
    }

    fn handle_failure(&mut self, batch: Batch, peer: PeerId, link: u64, failure: CallFailure) {
        let CallFailure {
            error,
            action: then,
        } = failure;
        let Some(batch) = self.follow_redirect(batch, peer, &then) else {
            return;
        };
        let (lane, stats) = (batch.lane, &self.shared.stats);
        stats.record_call(batch.len());
        stats.is_failing.store(true, Ordering::Relaxed);
        stats.failed_calls.fetch_add(1, Ordering::Relaxed);
        let mut again = Vec::new();
        match then {
            FailureAction::Lost => again = batch.take_retryable(&error),
            _ => batch.fail_all(&error),
        }
        if then.is_lost()
            && let Some(peer) = self.peers.get_mut(&peer)
            && peer.handle_loss(link, &then, &error, &self.shared)
        {
            self.needs_mending = true;
            self.schedule_refresh();
        }
        self.shared.queue.finish_call(lane, again);
    }

    /// Sends a call to the node that a redirection names; returns it if that node isn't known.
    fn follow_redirect(
        &mut self,
        mut batch: Batch,
        peer: PeerId,
        then: &FailureAction,
    ) -> Option<Batch> {
        let asked = self.peers.get(&peer).and_then(|peer| peer.node.clone());
        let Some(asked) = asked.filter(|_| !matches!(self.map, SlotMap::Single)) else {
            return Some(batch);
        };
        let (to, manner) = match then {
            FailureAction::Moved(to) => (to, AskingMode::Plain),
            FailureAction::Ask(to) => (to, AskingMode::Asking),
            FailureAction::TryAgain => {
                self.split_batch(batch);
                return None;
            }
            FailureAction::UnknownOwner => {
                self.schedule_refresh();
                return Some(batch);
            }
            FailureAction::Keep | FailureAction::Lost | FailureAction::WrongNode => {
                return Some(batch);
            }
        };
        let Some(node) = hash_slots::redirect_target(to, &asked) else {
            self.schedule_refresh();
            return Some(batch);
        };
        let peer = self.peer_for_node(node);
        if manner == AskingMode::Plain {
            if let SlotMap::Slots(slots) = &mut self.map {
                slots[usize::from(batch.lane % SLOTS)] = Some(peer);
            }
            self.schedule_refresh();
        }
        batch.hops += 1;
        if batch.hops > MAX_REDIRECTS {
            return Some(batch);
        }
        batch.drop_abandoned();
        if batch.is_empty() {
            self.shared.queue.finish_call(batch.lane, Vec::new());
            return None;
        }
        let after = MIGRATION_RETRY_PAUSE * u32::from(batch.hops.saturating_sub(2));
        self.send_to_peer(peer, batch, manner, after);
        None
    }

    /// Some keys of a call are being migrated: sends each request by itself. A single request whose own keys
    /// are split waits until the migration is complete.
    fn split_batch(&mut self, mut batch: Batch) {
        batch.drop_abandoned();
        let lane = batch.lane;
        if batch.requests.len() <= 1 {
            let owner = match &self.map {
                SlotMap::Slots(slots) => slots[usize::from(lane % SLOTS)],
                _ => None,
            };
            match owner {
                Some(owner) => {
                    self.send_to_peer(owner, batch, AskingMode::Plain, MIGRATION_RETRY_PAUSE)
                }
                None => self.dispatch(batch),
            }
        } else {
            self.shared.queue.requeue_unmerged(batch)
        }
    }

    fn unpark_all(&mut self) {
        for batch in std::mem::take(&mut self.parked) {
            self.unpark(batch, None);
        }
    }
}

/// The driver ends with its runtime, or by a panic. Every request gets an error immediately.
impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.queue.close();
    }
}

/// Runs a call on a connection, until the connection ends.
fn run_call(
    peer: PeerId,
    up: &ConnectedPeer,
    mut batch: Batch,
    manner: AskingMode,
    after: Duration,
) -> impl Future<Output = FinishedCall> + Send + use<> {
    let (mut connection, link, mut ends) = (up.link.clone(), up.number, up.subscribe_end());
    async move {
        let run = async {
            if !after.is_zero() {
                sleep(after).await;
                batch.drop_abandoned();
            }
            if batch.is_empty() {
                Ok(Vec::new())
            } else {
                connection.run(&mut batch, manner).await
            }
        };
        let result = tokio::select! {
            biased;
            result = run => result,
            _ = ends.changed() => {
                let error = ends.borrow().clone().unwrap_or(StoreError::Stopped);
                Err(CallFailure { error, action: FailureAction::Lost })
            }
        };
        FinishedCall {
            batch,
            peer,
            link,
            result,
        }
    }
}
