//! A master, two replicas and three sentinels that watch them.

use std::time::Duration;

use super::{Builder, Server, wait_until};

/// The sentinels' name for the master.
const MASTER_NAME: &str = "mymaster";
/// How long starting everything may take.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A master, its two replicas and three sentinels, two of which must agree that the master is down.
///
/// ```
/// use tollgate_testkit::redis::Sentinels;
///
/// let sentinels = Sentinels::start();
/// assert!(sentinels.url().ends_with("/mymaster/0"));
/// sentinels.master().command(&["SET", "key", "value"]);
/// ```
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts all six and waits until the sentinels know each other and the replicas are in sync.
    ///
    /// # Panics
    /// If a server doesn't start.
    pub fn start() -> Self {
        Self::start_with(Server::builder())
    }

    /// The same with servers built in another way, such as `Server::builder().valkey()`.
    ///
    /// # Panics
    /// If a server doesn't start.
    pub fn start_with(server: Builder) -> Self {
        let master = server.clone().start();
        let place = format!("127.0.0.1 {}", master.port());
        let replica = || server.clone().arg("replicaof", &place).start();
        let servers = vec![master, replica(), replica()];
        // The sentinels start last: they query a master without replicas only every ten seconds.
        wait_until(START_TIMEOUT, "two replicas in sync", || {
            let in_sync =
                |server: &&Server| server.info("replication", "master_link_status") == "up";
            servers.iter().skip(1).filter(in_sync).count() == 2
                && servers[0].info("replication", "connected_slaves") == "2"
        });
        let sentinel = |_| {
            let mut sentinel = Server::builder()
                .sentinel()
                .arg("sentinel monitor", &format!("{MASTER_NAME} {place} 2"))
                // A sentinel connects to a new master only once a second. With less it would take that master
                // for dead too, and fail over again.
                .arg("sentinel down-after-milliseconds", &format!("{MASTER_NAME} 1500"))
                .arg("sentinel failover-timeout", &format!("{MASTER_NAME} 3000"));
            sentinel.valkey = server.valkey;
            if let Some(password) = &server.password {
                sentinel = sentinel.arg("sentinel auth-pass", &format!("{MASTER_NAME} {password}"));
            }
            sentinel.start()
        };
        let sentinels = (0..3).map(sentinel).collect();
        let started = Self { servers, sentinels };
        wait_until(START_TIMEOUT, "the sentinels to know everybody", || {
            started.sentinels.iter().all(|sentinel| {
                sentinel.info("sentinel", "master0").contains("status=ok")
                    && sentinel
                        .info("sentinel", "master0")
                        .ends_with("slaves=2,sentinels=3")
            })
        });
        started
    }

    /// Their address: the three sentinels, the master's name and the database.
    pub fn url(&self) -> String {
        let places: Vec<String> = self
            .sentinels
            .iter()
            .map(|sentinel| sentinel.address().to_string())
            .collect();
        let user = self.servers[0].settings().login();
        format!(
            "redis+sentinel://{user}{}/{MASTER_NAME}/0",
            places.join(",")
        )
    }

    /// The master and the replicas, in any order.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The three sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The master, by the first sentinel that answers. After a failure this is the old one until the sentinels
    /// have agreed.
    ///
    /// # Panics
    /// If no sentinel answers.
    pub fn master(&self) -> &Server {
        let named = self
            .sentinels
            .iter()
            .find_map(|one| self.master_named_by(one));
        named.expect("a sentinel that answers")
    }

    /// Kills the master and returns it: [`restart_empty`](Server::restart_empty) makes it a replica of
    /// the new one, in time.
    ///
    /// # Panics
    /// If no sentinel answers.
    pub fn kill_master(&self) -> &Server {
        let master = self.master();
        master.kill();
        master
    }

    /// Waits until every sentinel that answers names the same master without doubts or pending work, and that
    /// server answers as a master. Returns it.
    ///
    /// # Panics
    /// If that takes longer than `deadline`.
    pub fn wait_for_new_master(&self, deadline: Duration) -> &Server {
        let mut found = None;
        wait_until(deadline, "the sentinels to agree on a master", || {
            let answering = self.sentinels.iter().filter(|one| one.answers());
            let sure =
                |(server, flags): (&Server, String)| (flags == "master").then(|| server.port());
            let mut named: Vec<Option<u16>> = answering
                .map(|one| self.master_seen_by(one).and_then(sure))
                .collect();
            named.dedup();
            let &[Some(port)] = &named[..] else {
                return false;
            };
            found = self.servers.iter().find(|server| server.port() == port);
            found.is_some_and(|server| server.answers() && is_master(server))
        });
        found.expect("the master that was agreed on")
    }

    /// The master, as a sentinel sees it.
    fn master_named_by(&self, sentinel: &Server) -> Option<&Server> {
        self.master_seen_by(sentinel).map(|(server, _)| server)
    }

    /// The master as a sentinel sees it, with its flags: just `master` if it is healthy.
    fn master_seen_by(&self, sentinel: &Server) -> Option<(&Server, String)> {
        let reply = sentinel
            .client()
            .ok()?
            .command(&["SENTINEL", "MASTER", MASTER_NAME])
            .ok()?;
        let mut fields = reply.items().chunks_exact(2);
        let mut field = |name| fields.find(|pair| pair[0] == name).map(|pair| &pair[1]);
        // Evaluated in the order of the reply's fields.
        let (port, flags) = (field("port")?.integer()?, field("flags")?.text()?);
        let server = self
            .servers
            .iter()
            .find(|one| i64::from(one.port()) == port)?;
        Some((server, flags))
    }
}

fn is_master(server: &Server) -> bool {
    let role = server
        .client()
        .and_then(|mut one| one.info("replication", "role"));
    role.is_ok_and(|role| role == "master")
}
