//! Connections: to one server, to the master behind sentinels, to a node of a cluster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, TlsMode,
};

use crate::address::{Address, Node, Topology};
use crate::error::{FailureKind, StoreError};
use crate::host::Host;

use super::certificate_files::{CertificateFiles, LoadedCertificates};
use super::link::StoreConnection;
use super::{error_reason, tls_probe};

/// A connection without a reply for this long is closed; or for as long as decisions wait, if that is longer.
const MIN_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Makes connections.
pub(crate) struct Connector {
    to: Target,
    address: Address,
    files: CertificateFiles,
    response_timeout: Duration,
    /// Whether there was a connection: then TLS and the protocol are known to match.
    has_connected: AtomicBool,
}

enum Target {
    Server(ConnectionAddr),
    // The client remembers which sentinel answered. `None` after a failed connection if the certificates may
    // have changed.
    Sentinel(Box<tokio::sync::Mutex<Option<SentinelClient>>>),
    /// To each node of the cluster.
    Cluster(Vec<Node>),
    #[cfg(feature = "simulation")]
    World(std::sync::Arc<dyn crate::simulation::World>),
}

impl Connector {
    /// A connector for decisions with this timeout.
    pub(crate) fn new(
        address: &Address,
        timeout: Duration,
        host: &Host,
    ) -> Result<Self, StoreError> {
        let stalled = MIN_RESPONSE_TIMEOUT.max(timeout);
        let unusable = |error| unusable_address(address, &error);
        let files = CertificateFiles::read(address).map_err(unusable)?;
        let to = Target::new(address, &files.last_loaded(), host).map_err(unusable)?;
        Ok(Self {
            to,
            files,
            address: address.clone(),
            response_timeout: stalled,
            has_connected: AtomicBool::new(false),
        })
    }

    /// Whether keys of different hash slots may be on different nodes.
    pub(crate) fn is_cluster(&self) -> bool {
        match &self.to {
            Target::Cluster(_) => true,
            #[cfg(feature = "simulation")]
            Target::World(world) => world.is_cluster(),
            _ => false,
        }
    }

    /// The nodes of a cluster that its address names; `None` if there is a single connection.
    pub(super) fn seeds(&self) -> Option<&[Node]> {
        match &self.to {
            Target::Cluster(nodes) => Some(nodes),
            _ => None,
        }
    }

    /// Connects within a bounded time: to this node of a cluster, or to the only server.
    pub(super) async fn connect(&self, to: Option<&Node>) -> Result<StoreConnection, StoreError> {
        // Sentinels are tried one after the other.
        let connected =
            match tokio::time::timeout(3 * CONNECT_TIMEOUT, self.connect_by_topology(to)).await {
                Ok(connected) => connected,
                Err(_) => {
                    let why = format!("no connection within {:?}", 3 * CONNECT_TIMEOUT);
                    Err(StoreError::unreachable(FailureKind::TimedOut, why))
                }
            };
        match connected {
            Ok(_) => self.has_connected.store(true, Ordering::Relaxed),
            Err(_) if self.has_connected.load(Ordering::Relaxed) => {}
            #[cfg(feature = "simulation")]
            Err(_) if matches!(self.to, Target::World(_)) => {}
            Err(error) => return Err(tls_probe::explain_failure(error, &self.address).await),
        }
        connected
    }

    async fn connect_by_topology(&self, to: Option<&Node>) -> Result<StoreConnection, StoreError> {
        match (&self.to, to) {
            (Target::Cluster(_), Some(node)) => {
                self.open(connection_addr(node, &self.address)).await
            }
            (Target::Cluster(_), None) => {
                let why = "a cluster is reached by its nodes, and none is named";
                Err(StoreError::unreachable(FailureKind::NotFound, why))
            }
            (Target::Server(addr), _) => self.open(addr.clone()).await,
            (Target::Sentinel(client), _) => self
                .connect_by_sentinels(client)
                .await
                .map(StoreConnection::Direct),
            #[cfg(feature = "simulation")]
            (Target::World(world), _) => {
                let connected = world.connect().await;
                let linked =
                    connected.map(|wire| StoreConnection::Simulated(wire, self.response_timeout));
                linked.map_err(|why| {
                    error_reason::store_error(&RedisError::from(std::io::Error::other(why)))
                })
            }
        }
    }

    fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(self.response_timeout))
    }

    async fn connect_by_sentinels(
        &self,
        known: &tokio::sync::Mutex<Option<SentinelClient>>,
    ) -> Result<MultiplexedConnection, StoreError> {
        let mut known = known.lock().await;
        let mut client = match known.take() {
            Some(client) => client,
            None => sentinel_client(&self.address, &self.files.reload(&self.address).await)
                .map_err(|error| unusable_address(&self.address, &error))?,
        };
        let connection = client
            .get_async_connection_with_config(&self.config())
            .await;
        let connection = match connection {
            Ok(connection) => Ok(connection),
            Err(error) => Err(attribute_rejection(&mut client, &error).await),
        };
        if connection.is_ok() || self.address.tls.is_none() {
            *known = Some(client);
        }
        connection
    }

    async fn open(&self, addr: ConnectionAddr) -> Result<StoreConnection, StoreError> {
        let files = self.files.reload(&self.address).await;
        let client = redis_client(addr, &self.address, &files);
        let client = client.map_err(|error| unusable_address(&self.address, &error))?;
        let config = self.config();
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        match connection.await {
            Ok(connection) => self.check_login(connection).await,
            Err(error) => Err(error_reason::store_error(&error)),
        }
    }

    /// The connection, unless the server needs a password that wasn't given: it reports that only for a
    /// command.
    async fn check_login(
        &self,
        connection: MultiplexedConnection,
    ) -> Result<StoreConnection, StoreError> {
        let mut link = StoreConnection::Direct(connection);
        if self.address.login.password.is_some() {
            return Ok(link);
        }
        let greeting = link.send(&::redis::cmd("PING")).await;
        match greeting.map_err(|error| error_reason::store_error(&error)) {
            Err(error @ StoreError::Unreachable { .. }) => Err(error),
            Err(error) if error.kind() == FailureKind::Auth => Err(error),
            // Any other error is reported to the requests that meet it.
            _ => Ok(link),
        }
    }
}

impl Target {
    fn new(address: &Address, files: &LoadedCertificates, host: &Host) -> Result<Self, RedisError> {
        #[cfg(feature = "simulation")]
        if let Some(world) = host.world() {
            return Ok(Self::World(world.clone()));
        }
        #[cfg(not(feature = "simulation"))]
        let _ = host;
        let server = |addr: ConnectionAddr| {
            // An unusable address is reported now.
            redis_client(addr.clone(), address, files)?;
            Ok(Self::Server(addr))
        };
        match &address.topology {
            Topology::Single(node) => server(connection_addr(node, address)),
            Topology::Socket(path) => server(ConnectionAddr::Unix(path.clone())),
            Topology::Sentinel { .. } => {
                let client = sentinel_client(address, files)?;
                Ok(Self::Sentinel(Box::new(Some(client).into())))
            }
            Topology::Cluster(nodes) => {
                for node in nodes {
                    redis_client(connection_addr(node, address), address, files)?;
                }
                Ok(Self::Cluster(nodes.clone()))
            }
        }
    }
}

/// Why there is no connection to a master: the sentinels, which have a login of their own, rejected it, or the
/// master did.
async fn attribute_rejection(client: &mut SentinelClient, error: &RedisError) -> StoreError {
    let told = error_reason::store_error(error);
    let is_refused = |kind| matches!(kind, FailureKind::Auth | FailureKind::NoPermission);
    if !is_refused(told.kind()) {
        return told;
    }
    let asked = query_sentinels(client).await;
    match asked.map_err(|error| error_reason::sentinel_error(&error)) {
        Err(theirs) if is_refused(theirs.kind()) => theirs,
        _ => told,
    }
}

/// The error of the sentinels, when none of them knows a usable master.
async fn query_sentinels(client: &mut SentinelClient) -> Result<(), RedisError> {
    let sentinel = client.async_get_sentinel_client().await?;
    let mut connection = sentinel.get_multiplexed_async_connection().await?;
    let masters = ::redis::cmd("SENTINEL").arg("MASTERS").take();
    masters.query_async(&mut connection).await
}

/// The error of an address that can't be used with any server.
fn unusable_address(address: &Address, error: &RedisError) -> StoreError {
    match address.tls {
        // Files that can't be read, or have no certificate.
        Some(_) => StoreError::unreachable(FailureKind::Tls, error.to_string()),
        None => error_reason::store_error(error),
    }
}

fn sentinel_client(
    address: &Address,
    files: &LoadedCertificates,
) -> Result<SentinelClient, RedisError> {
    let (sentinels, name) = match &address.topology {
        Topology::Sentinel { sentinels, name } => (&sentinels[..], &**name),
        _ => (&[][..], ""),
    };
    let sentinels = sentinels.iter().map(|node| connection_addr(node, address));
    let master = SentinelServerType::Master;
    let mut builder = SentinelClientBuilder::new(sentinels, name, master)?
        .set_client_to_redis_db(address.database);
    if let Some(user) = &address.login.user {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = &address.login.password {
        builder = builder.set_client_to_redis_password(password);
    }
    if let Some(user) = &address.sentinel.user {
        builder = builder.set_client_to_sentinel_username(user);
    }
    if let Some(password) = &address.sentinel.password {
        builder = builder.set_client_to_sentinel_password(password);
    }
    if address.tls.is_some() {
        builder = builder
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_sentinel_tls_mode(TlsMode::Secure);
        #[cfg(feature = "tls")]
        {
            builder = builder
                .set_client_to_redis_certificates(files.clone())
                .set_client_to_sentinel_certificates(files.clone());
        }
        #[cfg(not(feature = "tls"))]
        let () = *files;
    }
    builder.build()
}

fn redis_client(
    addr: ConnectionAddr,
    address: &Address,
    files: &LoadedCertificates,
) -> Result<Client, RedisError> {
    let info = addr
        .into_connection_info()?
        .set_redis_settings(connection_settings(address));
    #[cfg(feature = "tls")]
    if address.tls.is_some() {
        return Client::build_with_tls(info, files.clone());
    }
    #[cfg(not(feature = "tls"))]
    let () = *files;
    Client::open(info)
}

fn connection_addr(node: &Node, address: &Address) -> ConnectionAddr {
    let Node { host, port } = node.clone();
    match address.tls {
        None => ConnectionAddr::Tcp(host, port),
        Some(_) => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        },
    }
}

fn connection_settings(address: &Address) -> RedisConnectionInfo {
    let mut info = RedisConnectionInfo::default().set_db(address.database);
    if let Some(user) = &address.login.user {
        info = info.set_username(user);
    }
    if let Some(password) = &address.login.password {
        info = info.set_password(password);
    }
    info
}
