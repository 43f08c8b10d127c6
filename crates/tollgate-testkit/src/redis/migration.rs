//! The migration of a hash slot from one master to another.

use super::cluster::id_of;
use super::{Cluster, Reply, Server};

/// A migration in progress, made by [`Cluster::begin_migration`]. Dropping it leaves the hash slot half-way.
#[derive(Debug)]
pub struct Migration<'a> {
    cluster: &'a Cluster,
    slot: u16,
    from: &'a Server,
    to: &'a Server,
}

impl<'a> Migration<'a> {
    pub(super) fn start_migration(cluster: &'a Cluster, slot: u16, to: &'a Server) -> Self {
        let from = cluster.master_of(slot);
        assert_ne!(from.port(), to.port(), "slot {slot} is there already");
        let migration = Self {
            cluster,
            slot,
            from,
            to,
        };
        // In this order no client is ever redirected to a node that doesn't expect it.
        migration.set_slot_state(to, "IMPORTING", &id_of(from));
        migration.set_slot_state(from, "MIGRATING", &id_of(to));
        migration
    }

    /// The old owner.
    pub fn from(&self) -> &'a Server {
        self.from
    }

    /// The new owner.
    pub fn to(&self) -> &'a Server {
        self.to
    }

    /// Moves at most this many keys of the hash slot, and returns how many were moved.
    ///
    /// # Panics
    /// If that fails.
    pub fn move_keys(&self, at_most: usize) -> usize {
        let (slot, most) = (self.slot.to_string(), at_most.to_string());
        let mut client = self.from.client().expect("the slot's owner");
        let keys = client
            .command(&["CLUSTER", "GETKEYSINSLOT", &slot, &most])
            .expect("the keys of a slot");
        let port = self.to.port().to_string();
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000"];
        if let Some(password) = &self.to.settings().password {
            words.extend(["AUTH", password]);
        }
        words.push("KEYS");
        let mut words: Vec<&[u8]> = words.into_iter().map(str::as_bytes).collect();
        words.extend(keys.items().iter().filter_map(Reply::bytes));
        let count = keys.items().len();
        if count > 0 {
            client.command(&words).expect("keys that can be moved");
        }
        count
    }

    /// Makes the new master the owner, and waits until every node knows. Keys that weren't moved are lost, so
    /// call [`move_keys`](Self::move_keys) until there are none.
    ///
    /// # Panics
    /// If that fails.
    pub fn finish(self) {
        let id = id_of(self.to);
        self.cluster.wait_until_informed(self.to);
        // The new owner first: if the old one let go before, the hash slot would have no owner.
        self.set_slot_state(self.to, "NODE", &id);
        self.set_slot_state(self.from, "NODE", &id);
        self.cluster.wait_until_owned(self.slot, self.to);
    }

    fn set_slot_state(&self, node: &Server, how: &str, id: &str) {
        node.command(&["CLUSTER", "SETSLOT", &self.slot.to_string(), how, id]);
    }
}
