//! How many nodes there are: each leaves a sign of life in the store, and learns the count from the answers.
//!
//! A sign of life is a slot of a limit that everyone may have, so it runs out by itself like any other. While the
//! store can't be asked the count stays as it was.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::host::{Host, HostClock, HostWall, ProcessIdentity};
use crate::local_limits::LocalLimits;
use crate::lock::lock;
use crate::query::{LimitParams, StoreOp, StoreQuery};
use crate::store::Store;
use crate::store_key;

/// Between signs of life.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// A node that left none for so long is gone.
const NODE_TTL: Duration = Duration::from_secs(16);
/// There are never so many.
const MAX_NODES: u64 = 1 << 32;

/// Whether the number of nodes is learned.
#[derive(Debug)]
pub(crate) struct NodeRegistry {
    local: Arc<LocalLimits<HostClock, HostWall>>,
    /// Held while the count changes: what was said stays, whatever answer comes meanwhile.
    is_learned: Mutex<bool>,
    heartbeat_query: StoreQuery,
    /// The name of this node in the store.
    node: ProcessIdentity,
    /// Held while one is left or taken back.
    heartbeat_lock: tokio::sync::Mutex<()>,
    store: Weak<Store>,
    host: Host,
}

impl NodeRegistry {
    /// A fleet of so many nodes; of as many as leave signs of life if the number isn't given.
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

    /// From now on there are so many, whatever the store says.
    pub(crate) fn fix_count(&self, count: u64) {
        let mut is_learned = lock(&self.is_learned);
        *is_learned = false;
        self.local.set_node_count(count);
    }

    /// Leaves a sign of life. Whether there is still a reason to.
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
        let is_learned = lock(&self.is_learned);
        if let Some(left) = left
            && *is_learned
        {
            self.local.set_node_count(MAX_NODES.saturating_sub(left));
        }
        *is_learned
    }

    /// Takes the sign of life back: others needn't wait until it runs out. The count stays as it was.
    pub(crate) async fn leave(&self) {
        let was_learned = std::mem::replace(&mut *lock(&self.is_learned), false);
        let _signing = self.heartbeat_lock.lock().await;
        if let Some(store) = self.store.upgrade().filter(|_| was_learned) {
            // If the store can't be told, it runs out.
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
