//! When the hash slots are queried from which nodes, and what the driver does with the reply.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Driver, SlotMap};
use crate::address::Node;
use crate::error::StoreError;
use crate::store::hash_slots::{self, SLOTS, SlotRange, SlotReply, SlotSource};
use crate::store::link::FailureAction;
use crate::store::peer::{MIN_RECONNECT_PAUSE, Peer, PeerId, PeerState, next_attempt_at};

/// The shortest time between two queries, however many calls are redirected.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(50);
/// How many nodes are queried concurrently, of those that are connected; without any, all known nodes are.
const MAX_CONNECTED_SOURCES: usize = 3;
const MAX_UNCONNECTED_SOURCES: usize = 16;

/// When the hash slots are queried.
pub(super) struct SlotRefresh {
    due: Option<Instant>,
    last: Option<Instant>,
    pause: Duration,
    /// All nodes of the cluster, to query when none is connected.
    known: Vec<Node>,
}

impl SlotRefresh {
    /// Due immediately, from these nodes; never without a cluster.
    pub(super) fn new(seeds: Option<&[Node]>) -> Self {
        Self {
            due: seeds.map(|_| Instant::now()),
            last: None,
            pause: MIN_RECONNECT_PAUSE,
            known: seeds.unwrap_or_default().to_vec(),
        }
    }
}

impl Driver {
    /// Queries the hash slots if that is due. Otherwise returns when it will be.
    pub(super) fn refresh_slots_if_due(&mut self, now: Instant) -> Option<Instant> {
        let due = self
            .slot_refresh
            .due
            .filter(|_| self.slot_query.is_none())?;
        if now < due {
            return Some(due);
        }
        (self.slot_refresh.due, self.slot_refresh.last) = (None, Some(now));
        let looking = hash_slots::query_slots(Arc::clone(&self.connector), self.slot_sources());
        self.slot_query = Some(Box::pin(looking));
        None
    }

    pub(super) fn schedule_refresh(&mut self) {
        if matches!(self.map, SlotMap::Single) {
            return;
        }
        let now = Instant::now();
        let due = self
            .slot_refresh
            .last
            .map_or(now, |last| last + MIN_REFRESH_INTERVAL);
        let due = due.max(now);
        self.slot_refresh.due = Some(self.slot_refresh.due.map_or(due, |before| before.min(due)));
        self.needs_mending = true;
    }

    /// The nodes to query: some that are connected, chosen at random; or else all that were ever named.
    fn slot_sources(&self) -> Vec<SlotSource> {
        let linked = |(&id, peer): (&PeerId, &Peer)| match (&peer.node, &peer.state) {
            (Some(node), PeerState::Up(up)) => {
                let link = up.link.clone();
                Some(SlotSource::Connected(node.clone(), link, (id, up.number)))
            }
            _ => None,
        };
        let mut all: Vec<_> = self.peers.iter().filter_map(linked).collect();
        let mut most = MAX_CONNECTED_SOURCES;
        if all.is_empty() {
            all = self
                .slot_refresh
                .known
                .iter()
                .cloned()
                .map(SlotSource::Unconnected)
                .collect();
            most = MAX_UNCONNECTED_SOURCES;
        }
        while all.len() > most {
            let number = self.shared.random_part(all.len() as u128).as_nanos();
            all.swap_remove(usize::try_from(number).unwrap_or(0));
        }
        all
    }

    pub(super) fn handle_slots(&mut self, looked: SlotReply) {
        self.needs_mending = true;
        for ((id, link), error) in looked.lost {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.handle_loss(link, &FailureAction::Lost, &error, &self.shared);
            }
        }
        match looked.ranges {
            Ok(ranges) => self.adopt_ranges(ranges),
            Err(error) => {
                if let SlotMap::Unknown(before) = &mut self.map {
                    let was_told = before.as_ref().map(StoreError::kind) == Some(error.kind());
                    if !was_told {
                        let kind = error.kind().name();
                        tracing::warn!(target: "tollgate", kind, "no rate-limit store: {error}");
                    }
                    *before = Some(error);
                }
            }
        }
        let SlotMap::Slots(slots) = &self.map else {
            self.slot_refresh.due =
                Some(next_attempt_at(&mut self.slot_refresh.pause, &self.shared));
            return self.unpark_all();
        };
        // An unreachable node may be replaced by others, and can't report it.
        let is_away = |id: &PeerId| {
            let peer = self.peers.get(id);
            peer.is_none_or(|peer| matches!(peer.state, PeerState::Down(_)))
        };
        let mut owners: Vec<PeerId> = slots.iter().flatten().copied().collect();
        owners.dedup();
        let is_settled = slots.iter().all(Option::is_some) && !owners.iter().any(is_away);
        if is_settled {
            self.slot_refresh.pause = MIN_RECONNECT_PAUSE;
        } else if self.slot_refresh.due.is_none() {
            self.slot_refresh.due =
                Some(next_attempt_at(&mut self.slot_refresh.pause, &self.shared));
        }
        self.unpark_all();
    }

    fn adopt_ranges(&mut self, ranges: Vec<SlotRange>) {
        let mut ids: HashMap<Node, PeerId> = HashMap::new();
        let mut slots = vec![None; usize::from(SLOTS)].into_boxed_slice();
        let mut known = self.connector.seeds().unwrap_or_default().to_vec();
        for SlotRange { first, last, nodes } in ranges {
            let Some(master) = nodes.first() else {
                continue;
            };
            let id = match ids.get(master) {
                Some(id) => *id,
                None => {
                    let id = self.peer_for_node(master.clone());
                    ids.insert(master.clone(), id);
                    known.extend(nodes.iter().cloned());
                    id
                }
            };
            if let Some(own) = slots.get_mut(usize::from(first)..=usize::from(last)) {
                own.fill(Some(id));
            }
        }
        known.sort_unstable();
        known.dedup();
        self.slot_refresh.known = known;
        self.map = SlotMap::Slots(slots);
        self.drop_slotless_peers(&ids);
    }

    /// Drops nodes without hash slots once their connection is lost. One that still answers may get some.
    fn drop_slotless_peers(&mut self, owners: &HashMap<Node, PeerId>) {
        let owners: Vec<PeerId> = owners.values().copied().collect();
        let mut parked = Vec::new();
        self.peers.retain(|id, peer| {
            let stays = peer.is_up() || owners.contains(id);
            if !stays {
                parked.append(&mut peer.parked);
            }
            stays
        });
        for (batch, _) in parked {
            self.unpark(batch, None);
        }
    }
}
