//! The number of nodes in the fleet: each node has an entry in the store, and learns the count when it renews
//! the entry.
//!
//! An entry is a permit of a limit that is never full, so it expires by itself like any other. While the store
//! is unreachable, the count stays as it was.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::host::{Host, HostClock, HostWall, ProcessIdentity};
use crate::local_limits::LocalLimits;
use crate::lock::lock;
use crate::query::{LimitParams, StoreOp, StoreQuery};
use crate::store::Store;
use crate::store_key;

/// The time between renewals.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// A node whose entry wasn't renewed for this long counts as gone.
const NODE_TTL: Duration = Duration::from_secs(16);
/// More than any fleet has.
const MAX_NODES: u64 = 1 << 32;

/// The registry entry of this node, and whether the number of nodes is learned.
#[derive(Debug)]
pub(crate) struct NodeRegistry {
    local: Arc<LocalLimits<HostClock, HostWall>>,
    /// Held while the count changes, so that a reply in flight can't replace a count that was fixed.
    is_learned: Mutex<bool>,
    heartbeat_query: StoreQuery,
    /// The name of this node in the store.
    node: ProcessIdentity,
    /// Held while the entry is renewed or removed.
    heartbeat_lock: tokio::sync::Mutex<()>,
    store: Weak<Store>,
    host: Host,
}

impl NodeRegistry {
    /// A fleet with this many nodes; if it is `None`, with as many as have entries.
    pub(crate) fn new(
        store: &Arc<Store>,
        local: Arc<LocalLimits<HostClock, HostWall>>,
        prefix: &str,
        said: Option<u64>,
        host: &Host,
    ) -> Arc<Self> {
        let nodes = Arc::new(Self {
            local,
            is_learned: Mutex::new(said.is_none()),
            heartbeat_query: StoreQuery {
                key: store_key::node_registry_key(prefix).into(),
                op: StoreOp::Decide,
                params: LimitParams::slots(MAX_NODES, NODE_TTL),
                cost: 1,
                holder: None,
            },
            node: ProcessIdentity::new(host),
            heartbeat_lock: tokio::sync::Mutex::default(),
            store: Arc::downgrade(store),
            host: host.clone(),
        });
        match said {
            Some(count) => nodes.local.set_node_count(count),
            None => host.spawn_every(HEARTBEAT_INTERVAL, &nodes, async |nodes| {
                nodes.send_heartbeat().await
            }),
        }
        nodes
    }

    /// Fixes the number of nodes, whatever the store counts.
    pub(crate) fn fix_count(&self, count: u64) {
        let mut is_learned = lock(&self.is_learned);
        *is_learned = false;
        self.local.set_node_count(count);
    }

    /// Renews the entry. Returns whether to go on.
    async fn send_heartbeat(&self) -> bool {
        let Some(store) = self.store.upgrade() else {
            return false;
        };
        let signing = self.heartbeat_lock.lock().await;
        if !*lock(&self.is_learned) {
            return false;
        }
        let asked = store
            .ask(vec![self.heartbeat_for(StoreOp::Decide)], None)
            .await;
        drop(signing);
        let raw = asked
            .ok()
            .and_then(|answers| answers.replies.first().copied());
        let left = raw.and_then(|raw| u64::try_from(raw.remaining).ok());
        // Read again after the query, because the count may have been fixed in the meantime.
        let is_learned = lock(&self.is_learned);
        if let Some(left) = left
            && *is_learned
        {
            // Each node takes one permit of the registry, so the permits in use are the nodes.
            self.local.set_node_count(MAX_NODES.saturating_sub(left));
        }
        *is_learned
    }

    /// Removes the entry, so that other nodes needn't wait until it expires. The count stays as it was.
    pub(crate) async fn leave(&self) {
        // Cleared before the lock: a renewal that waits for the lock then adds no new entry.
        let was_learned = std::mem::replace(&mut *lock(&self.is_learned), false);
        let _signing = self.heartbeat_lock.lock().await;
        if let Some(store) = self.store.upgrade().filter(|_| was_learned) {
            // If the store is unreachable, the entry expires.
            let _ = store
                .ask(vec![self.heartbeat_for(StoreOp::Release)], None)
                .await;
        }
    }

    fn heartbeat_for(&self, op: StoreOp) -> StoreQuery {
        let node = self.node.number(&self.host);
        StoreQuery {
            op,
            holder: Some(format!("{node:016x}").into()),
            ..self.heartbeat_query.clone()
        }
    }
}
