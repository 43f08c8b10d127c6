//! The connection: how scripts get to the node that has their keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::cluster::{ClusterClient, ClusterClientBuilder};
use ::redis::cluster_async::ClusterConnection;
use ::redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, ServerErrorKind, TlsMode, Value,
};

use crate::address::{Address, Node, Place};
use crate::error::StoreError;
use crate::failure::FailureKind;
use crate::host::Host;
use crate::script::Script;

use super::{probe, reason};

/// Without an answer for so long, a connection is given up; or for as long as decisions wait.
const STALLED: Duration = Duration::from_secs(1);
/// How long a connection may take to come up.
const CONNECTING: Duration = Duration::from_secs(1);

/// Makes connections.
pub(crate) struct Connector {
    to: To,
    address: Address,
    stalled: Duration,
    /// Whether there was a connection: what is spoken at the other side is known then.
    was_met: AtomicBool,
}

enum To {
    Single(Box<Client>),
    // The client remembers which sentinel answered.
    Sentinel(Arc<tokio::sync::Mutex<SentinelClient>>),
    Cluster(Box<ClusterClient>),
    #[cfg(feature = "simulation")]
    World(Arc<dyn crate::simulation::World>),
}

/// A connection that is up, shared by all calls.
#[derive(Clone)]
pub(crate) enum Link {
    Direct(MultiplexedConnection),
    Cluster(ClusterConnection),
    /// A simulated one, given up like others after so long without an answer.
    #[cfg(feature = "simulation")]
    Simulated(Arc<dyn crate::simulation::Wire>, Duration),
}

/// Why a call failed, and what that means for the connection.
pub(crate) struct Failure {
    pub(crate) error: StoreError,
    pub(crate) link: AfterFailure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    /// It works.
    Keep,
    /// It is lost: the call may or may not have been carried out.
    Lost,
    /// It leads to the wrong place.
    Wrong,
}

impl Connector {
    /// Connections that decisions wait for so long for.
    pub(crate) fn new(
        address: &Address,
        timeout: Duration,
        host: &Host,
    ) -> Result<Self, StoreError> {
        let stalled = STALLED.max(timeout);
        let to = To::new(address, stalled, host).map_err(|error| match address.tls {
            // Files that can't be read, or hold no certificate.
            Some(_) => reason::unreachable(FailureKind::Tls, &error.to_string()),
            None => reason::store_error(&error),
        })?;
        Ok(Self {
            to,
            address: address.clone(),
            stalled,
            was_met: AtomicBool::new(false),
        })
    }

    /// Whether keys of different slots may be on different nodes.
    pub(crate) fn is_cluster(&self) -> bool {
        match &self.to {
            To::Cluster(_) => true,
            #[cfg(feature = "simulation")]
            To::World(world) => world.is_cluster(),
            _ => false,
        }
    }

    /// Connects, in bounded time.
    pub(crate) async fn connect(&self) -> Result<Link, StoreError> {
        // Sentinels and nodes are tried one after the other.
        let connected = match tokio::time::timeout(3 * CONNECTING, self.reach()).await {
            Ok(connected) => connected,
            Err(_) => {
                let why = format!("no connection within {:?}", 3 * CONNECTING);
                Err(reason::unreachable(FailureKind::TimedOut, &why))
            }
        };
        match connected {
            Ok(_) => self.was_met.store(true, Ordering::Relaxed),
            Err(_) if self.was_met.load(Ordering::Relaxed) => {}
            #[cfg(feature = "simulation")]
            Err(_) if matches!(self.to, To::World(_)) => {}
            Err(error) => return Err(probe::explained(error, &self.address).await),
        }
        connected
    }

    async fn reach(&self) -> Result<Link, StoreError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECTING))
            .set_response_timeout(Some(self.stalled));
        let connected = match &self.to {
            To::Single(client) => {
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                match connection.await {
                    Ok(connection) => return self.greeted(connection).await,
                    Err(error) => Err(error),
                }
            }
            To::Sentinel(client) => {
                let mut client = client.lock().await;
                let connection = client.get_async_connection_with_config(&config).await;
                connection.map(Link::Direct)
            }
            To::Cluster(client) => client.get_async_connection().await.map(Link::Cluster),
            #[cfg(feature = "simulation")]
            To::World(world) => {
                let connected = world.connect().await;
                let linked = connected.map(|wire| Link::Simulated(wire, self.stalled));
                linked.map_err(|why| RedisError::from(std::io::Error::other(why)))
            }
        };
        connected.map_err(|error| reason::store_error(&error))
    }

    /// The connection, unless it wants a password that it wasn't given: it says so only when it is asked
    /// something.
    async fn greeted(&self, connection: MultiplexedConnection) -> Result<Link, StoreError> {
        let mut link = Link::Direct(connection);
        if self.address.password.is_some() {
            return Ok(link);
        }
        let greeting = link.send(&::redis::cmd("PING")).await;
        match greeting.map_err(|error| reason::store_error(&error)) {
            Err(error @ StoreError::Unreachable { .. }) => Err(error),
            Err(error) if error.kind() == FailureKind::Auth => Err(error),
            // What else it may say is for those who ask.
            _ => Ok(link),
        }
    }
}

impl To {
    fn new(address: &Address, stalled: Duration, host: &Host) -> Result<Self, RedisError> {
        #[cfg(feature = "simulation")]
        if let Some(world) = host.world() {
            return Ok(Self::World(Arc::clone(world)));
        }
        #[cfg(not(feature = "simulation"))]
        let _ = host;
        let info = login(address);
        let client = |addr: ConnectionAddr| -> Result<Client, RedisError> {
            let info = addr
                .into_connection_info()?
                .set_redis_settings(info.clone());
            with_tls(address, info)
        };
        match &address.place {
            Place::Single(node) => client(addr(node, address)).map(Box::new).map(Self::Single),
            Place::Socket(path) => client(ConnectionAddr::Unix(path.clone()))
                .map(Box::new)
                .map(Self::Single),
            Place::Sentinel { sentinels, name } => {
                let sentinels = sentinels.iter().map(|node| addr(node, address));
                let master = SentinelServerType::Master;
                let mut builder = SentinelClientBuilder::new(sentinels, name, master)?
                    .set_client_to_redis_db(address.database);
                if let Some(user) = &address.user {
                    builder = builder.set_client_to_redis_username(user);
                }
                if let Some(password) = &address.password {
                    builder = builder.set_client_to_redis_password(password);
                }
                if address.tls.is_some() {
                    builder = builder
                        .set_client_to_redis_tls_mode(TlsMode::Secure)
                        .set_client_to_sentinel_tls_mode(TlsMode::Secure);
                    #[cfg(feature = "tls")]
                    {
                        let certificates = tls::certificates(address)?;
                        builder = builder
                            .set_client_to_redis_certificates(certificates.clone())
                            .set_client_to_sentinel_certificates(certificates);
                    }
                }
                let client = Arc::new(tokio::sync::Mutex::new(builder.build()?));
                Ok(Self::Sentinel(client))
            }
            Place::Cluster(nodes) => {
                let nodes = nodes.iter().map(|node| addr(node, address));
                let nodes = nodes.map(IntoConnectionInfo::into_connection_info);
                let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
                let mut builder = ClusterClientBuilder::new(nodes)
                    .connection_timeout(CONNECTING)
                    .response_timeout(stalled)
                    .retries(3)
                    .min_retry_wait(1)
                    .max_retry_wait(100);
                if let Some(user) = &address.user {
                    builder = builder.username(user);
                }
                if let Some(password) = &address.password {
                    builder = builder.password(password);
                }
                #[cfg(feature = "tls")]
                if address.tls.is_some() {
                    let certificates = tls::certificates(address)?;
                    builder = builder.tls(TlsMode::Secure).certs(certificates);
                }
                builder.build().map(Box::new).map(Self::Cluster)
            }
        }
    }
}

impl Link {
    /// Runs a script, which the store may have to be told first.
    pub(crate) async fn run(
        &mut self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> Result<Vec<i64>, Failure> {
        let known = self
            .send(&command("EVALSHA", &script.sha, keys, args))
            .await;
        let reply = match known {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.send(&command("EVAL", &script.text, keys, args)).await
            }
            known => known,
        };
        reply.map_err(|error| failure(&error)).and_then(numbers)
    }

    async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let value = match self {
            Self::Direct(connection) => connection.send_packed_command(command).await,
            Self::Cluster(connection) => connection.req_packed_command(command).await,
            #[cfg(feature = "simulation")]
            Self::Simulated(wire, stalled) => {
                let reply = tokio::time::timeout(*stalled, wire.send(command.get_packed_command()));
                let stalled = || std::io::Error::from(std::io::ErrorKind::TimedOut);
                let reply = reply.await.map_err(|_| stalled()).flatten();
                ::redis::parse_redis_value(&reply?)
            }
        }?;
        value.extract_error()
    }
}

fn command(name: &str, script: &str, keys: &[&str], args: &[&[u8]]) -> Cmd {
    let mut command = ::redis::cmd(name);
    command.arg(script).arg(keys.len());
    for key in keys {
        command.arg(*key);
    }
    for arg in args {
        command.arg(*arg);
    }
    command
}

fn numbers(value: Value) -> Result<Vec<i64>, Failure> {
    let garbled = |value: &Value| Failure {
        error: StoreError::Garbled {
            what: format!("a list of numbers expected, {value:?} came"),
        },
        link: AfterFailure::Keep,
    };
    let Value::Array(values) = value else {
        return Err(garbled(&value));
    };
    let number = |value| match value {
        Value::Int(number) => Ok(number),
        other => Err(garbled(&other)),
    };
    values.into_iter().map(number).collect()
}

fn failure(error: &RedisError) -> Failure {
    let link = match error.kind() {
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => {
            AfterFailure::Wrong
        }
        // Redis 6.2 tells so of a script in the midst of its text.
        _ if error
            .detail()
            .is_some_and(|text| text.contains("-READONLY ")) =>
        {
            AfterFailure::Wrong
        }
        ErrorKind::Server(_) | ErrorKind::Extension => AfterFailure::Keep,
        _ => AfterFailure::Lost,
    };
    let error = reason::store_error(error);
    Failure { error, link }
}

fn addr(node: &Node, address: &Address) -> ConnectionAddr {
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

fn login(address: &Address) -> RedisConnectionInfo {
    let mut info = RedisConnectionInfo::default().set_db(address.database);
    if let Some(user) = &address.user {
        info = info.set_username(user);
    }
    if let Some(password) = &address.password {
        info = info.set_password(password);
    }
    info
}

#[cfg(feature = "tls")]
fn with_tls(address: &Address, info: ::redis::ConnectionInfo) -> Result<Client, RedisError> {
    match address.tls {
        None => Client::open(info),
        Some(_) => Client::build_with_tls(info, tls::certificates(address)?),
    }
}

#[cfg(not(feature = "tls"))]
fn with_tls(_address: &Address, info: ::redis::ConnectionInfo) -> Result<Client, RedisError> {
    Client::open(info)
}

#[cfg(feature = "tls")]
mod tls {
    //! Certificates from files.

    use std::path::Path;

    use ::redis::{ClientTlsConfig, ErrorKind, RedisError, TlsCertificates};

    use crate::address::Address;

    pub(super) fn certificates(address: &Address) -> Result<TlsCertificates, RedisError> {
        // Someone else may have chosen before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let files = address.tls.clone().unwrap_or_default();
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| {
                let what = format!("{}: {error}", path.display());
                RedisError::from((ErrorKind::InvalidClientConfig, "can't read", what))
            })
        };
        let client_tls = match (&files.cert, &files.key) {
            (Some(cert), Some(key)) => Some(ClientTlsConfig {
                client_cert: read(cert)?,
                client_key: read(key)?,
            }),
            _ => None,
        };
        let root_cert = files.ca.as_deref().map(read).transpose()?;
        Ok(TlsCertificates {
            client_tls,
            root_cert,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_the_wrong_place_in_every_wording() {
        let error = |code: &str, text: &str| {
            let reply = ::redis::parse_redis_value(format!("-{code} {text}\r\n").as_bytes());
            let error = reply.and_then(Value::extract_error).unwrap_err();
            failure(&error).link
        };
        let text = "You can't write against a read only replica. script: a1, on @user_script:1.";
        assert_eq!(error("READONLY", text), AfterFailure::Wrong);
        let text = "Error running script (call to f_a1): @user_script:1: @user_script: 1: \
                    -READONLY You can't write against a read only replica.";
        assert_eq!(error("ERR", text), AfterFailure::Wrong);
        let text = "Error running script (call to f_a1): @user_script:1: -OOM command not allowed";
        assert_eq!(error("ERR", text), AfterFailure::Keep);
        assert_eq!(error("BUSY", "Redis is busy"), AfterFailure::Keep);
    }
}
