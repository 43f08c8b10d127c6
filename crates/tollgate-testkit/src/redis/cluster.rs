//! A cluster of three masters with a replica each.

use std::time::Duration;

use super::{Builder, Migration, Reply, Server, wait_until};

/// The number of hash slots, and of the masters that share them.
const SLOTS: u16 = 16_384;
const MASTERS: u16 = 3;
/// How long starting everything may take, or a change until every node knows it.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Six nodes: three masters that share the hash slots, each with a replica.
///
/// ```
/// use tollgate_testkit::redis::{Cluster, hash_slot};
///
/// let cluster = Cluster::start();
/// let owner = cluster.master_of(hash_slot("tenant"));
/// owner.command(&["SET", "tenant", "acme"]);
/// ```
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
}

/// The hash slot of a key: of the text between its first `{` and the next `}`, if there is any.
///
/// ```
/// use tollgate_testkit::redis::hash_slot;
///
/// assert_eq!(hash_slot("123456789"), 12739);
/// assert_eq!(hash_slot("{tenant}:a"), hash_slot("b:{tenant}"));
/// assert_ne!(hash_slot("{}a"), hash_slot("{}b"));
/// ```
pub fn hash_slot(key: impl AsRef<[u8]>) -> u16 {
    let key = key.as_ref();
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    // CRC-16 with polynomial 0x1021 from zero, as in the cluster's specification.
    let crc = tag.unwrap_or(key).iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    crc % SLOTS
}

impl Cluster {
    /// Starts six nodes, joins them and waits until every node reports a healthy cluster and the replicas are
    /// in sync.
    ///
    /// # Panics
    /// If a node doesn't start.
    pub fn start() -> Self {
        Self::start_with(Server::builder())
    }

    /// The same with nodes built in another way, such as `Server::builder().valkey()`.
    ///
    /// # Panics
    /// If a node doesn't start.
    pub fn start_with(node: Builder) -> Self {
        let node = node
            .cluster()
            .arg("cluster-node-timeout", "2000")
            // Replicas stay with their masters, however long they have been disconnected.
            .arg("cluster-allow-replica-migration", "no")
            .arg("cluster-replica-validity-factor", "0");
        let nodes = (0..2 * MASTERS).map(|_| node.clone().start()).collect();
        let cluster = Self { nodes };
        cluster.join_nodes();
        cluster.wait_until_ok(START_TIMEOUT);
        cluster
    }

    /// Their address: all six, in no special order.
    pub fn url(&self) -> String {
        let places: Vec<String> = self
            .nodes
            .iter()
            .map(|node| node.address().to_string())
            .collect();
        let user = self.nodes[0].settings().login();
        format!("redis+cluster://{user}{}", places.join(","))
    }

    /// All six.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The nodes that answer and are masters.
    pub fn masters(&self) -> impl Iterator<Item = &Server> {
        let role = |node: &Server| node.client()?.info("replication", "role");
        let is_master = move |node: &&Server| role(node).is_ok_and(|role| role == "master");
        self.nodes
            .iter()
            .filter(|node| node.answers())
            .filter(is_master)
    }

    /// The master of a hash slot, by the first node that answers. After a failure this is the old one until the
    /// cluster has noticed.
    ///
    /// # Panics
    /// If no node answers, or the hash slot has no owner.
    pub fn master_of(&self, slot: u16) -> &Server {
        let mut answering = self.nodes.iter().filter(|node| node.answers());
        let owner = answering.find_map(|node| self.owner_seen_by(node, slot));
        owner.unwrap_or_else(|| panic!("nobody serves slot {slot}"))
    }

    /// Kills the master of a hash slot and returns it: [`restart_empty`](Server::restart_empty) makes it a
    /// replica of its successor.
    ///
    /// # Panics
    /// If the hash slot has no master.
    pub fn kill_master_of(&self, slot: u16) -> &Server {
        let master = self.master_of(slot);
        master.kill();
        master
    }

    /// Waits until every node that answers reports a healthy cluster, all of them name the same owners, the
    /// owners answer as masters, and their replicas are in sync.
    ///
    /// # Panics
    /// If that takes longer than `deadline`.
    pub fn wait_until_ok(&self, deadline: Duration) {
        wait_until(deadline, "a cluster in which all is well", || {
            self.is_ok().unwrap_or(false)
        });
    }

    /// Moves a hash slot with its keys to another master and waits until every node knows.
    ///
    /// # Panics
    /// If a step fails.
    pub fn migrate_slot(&self, slot: u16, to: &Server) {
        let migration = self.begin_migration(slot, to);
        while migration.move_keys(100) > 0 {}
        migration.finish();
    }

    /// Begins to move a hash slot to another master. The returned value does it step by step, so that a test
    /// can stop half-way: the old owner then answers `ASK` for keys that have moved.
    ///
    /// ```
    /// use tollgate_testkit::redis::{Cluster, hash_slot};
    ///
    /// let cluster = Cluster::start();
    /// let slot = hash_slot("tenant");
    /// let from = cluster.master_of(slot);
    /// let to = cluster.masters().find(|one| one.port() != from.port()).expect("another");
    /// from.command(&["SET", "tenant", "acme"]);
    ///
    /// let migration = cluster.begin_migration(slot, to);
    /// assert_eq!(migration.move_keys(100), 1);
    /// let asked = from.client()?.command(&["GET", "tenant"]);
    /// assert_eq!(asked.unwrap_err(), format!("ASK {slot} {}", to.address()));
    /// migration.finish();
    /// assert_eq!(to.command(&["GET", "tenant"]), "acme");
    /// # Ok::<(), String>(())
    /// ```
    ///
    /// # Panics
    /// If a step fails.
    pub fn begin_migration<'a>(&'a self, slot: u16, to: &'a Server) -> Migration<'a> {
        Migration::start_migration(self, slot, to)
    }

    /// Waits until a node knows every change that the others know. Otherwise it would give its own change the
    /// number of another one; the old owner of a hash slot may win that, and the slot's keys are lost.
    pub(super) fn wait_until_informed(&self, node: &Server) {
        let epoch = |node: &Server| {
            let text = node.client().ok()?.command(&["CLUSTER", "INFO"]).ok()?;
            let text = text.text()?;
            let line = |line: &str| line.strip_prefix("cluster_current_epoch:")?.parse().ok();
            text.lines().find_map(line)
        };
        wait_until(START_TIMEOUT, "a node to know what the others know", || {
            let answering = self.nodes.iter().filter(|node| node.answers());
            let latest: Option<u64> = answering.filter_map(epoch).max();
            latest.is_some() && epoch(node) >= latest
        });
    }

    /// Waits until every node that answers names this owner of a hash slot.
    pub(super) fn wait_until_owned(&self, slot: u16, owner: &Server) {
        wait_until(
            START_TIMEOUT,
            "every node to know the slot's new owner",
            || {
                self.nodes.iter().filter(|node| node.answers()).all(|node| {
                    let named = self.owner_seen_by(node, slot);
                    named.is_some_and(|named| named.port() == owner.port())
                })
            },
        );
    }

    /// Joins nodes that don't know each other to one cluster.
    fn join_nodes(&self) {
        let (first, rest) = self.nodes.split_first().expect("six nodes");
        for (number, node) in (1u16..).zip(&self.nodes) {
            // Different epochs from the start spare the nodes a resolution of collisions.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &number.to_string()]);
        }
        let (port, bus) = (first.port(), first.bus_port().expect("a node of a cluster"));
        for node in rest {
            let (port, bus) = (port.to_string(), bus.to_string());
            node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        let (masters, replicas) = self.nodes.split_at(usize::from(MASTERS));
        for (number, master) in (0..MASTERS).zip(masters) {
            let start = u32::from(number) * u32::from(SLOTS) / u32::from(MASTERS);
            let end = (u32::from(number) + 1) * u32::from(SLOTS) / u32::from(MASTERS) - 1;
            let (start, end) = (start.to_string(), end.to_string());
            master.command(&["CLUSTER", "ADDSLOTSRANGE", &start, &end]);
        }
        wait_until(START_TIMEOUT, "the nodes to meet", || {
            self.nodes.iter().all(|node| {
                let known = node.command(&["CLUSTER", "INFO"]).text();
                let known = known.unwrap_or_default();
                known.contains("cluster_known_nodes:6") && known.contains("cluster_state:ok")
            })
        });
        for (replica, master) in replicas.iter().zip(masters) {
            replica.command(&["CLUSTER", "REPLICATE", &id_of(master)]);
        }
    }

    fn is_ok(&self) -> Result<bool, String> {
        let mut views = Vec::new();
        for node in self.nodes.iter().filter(|node| node.answers()) {
            let mut client = node.client()?;
            let state = client.command(&["CLUSTER", "INFO"])?.text();
            if !state.is_some_and(|state| state.contains("cluster_state:ok")) {
                return Ok(false);
            }
            if client.info("replication", "role")? == "slave"
                && client.info("replication", "master_link_status")? != "up"
            {
                return Ok(false);
            }
            views.push(owners(&client.command(&["CLUSTER", "SLOTS"])?));
        }
        views.dedup();
        let [view] = &views[..] else {
            return Ok(false);
        };
        let masters: Vec<i64> = self.masters().map(|node| node.port().into()).collect();
        Ok(view.iter().all(|(_, _, port)| masters.contains(port)))
    }

    /// The owner of a hash slot, as a node sees it.
    fn owner_seen_by(&self, node: &Server, slot: u16) -> Option<&Server> {
        let reply = node.client().ok()?.command(&["CLUSTER", "SLOTS"]).ok()?;
        let slot = i64::from(slot);
        let (_, _, port) = owners(&reply)
            .into_iter()
            .find(|(start, end, _)| (*start..=*end).contains(&slot))?;
        self.nodes
            .iter()
            .find(|node| i64::from(node.port()) == port)
    }
}

/// The reply to `CLUSTER SLOTS`, in order: the first and the last hash slot, and the owner's port.
fn owners(reply: &Reply) -> Vec<(i64, i64, i64)> {
    let number = |items: &[Reply], index: usize| items.get(index).and_then(Reply::integer);
    let range = |range: &Reply| {
        let items = range.items();
        let owner = items.get(2)?.items();
        Some((number(items, 0)?, number(items, 1)?, number(owner, 1)?))
    };
    let mut ranges: Vec<_> = reply.items().iter().filter_map(range).collect();
    ranges.sort_unstable();
    ranges
}

/// The id of a node in its cluster.
pub(super) fn id_of(node: &Server) -> String {
    let id = node.command(&["CLUSTER", "MYID"]).text();
    id.expect("a node's id is text")
}
