//! Starts and ends: listeners are bound before anything is served, and end together.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;
use tollgate::LimitError;
use tollgate::clock::Clock;
use tollgate_engine::backend::Memory;
use tollgate_engine::policy::OnStoreFailure;
use tollgate_engine::{Engine, Policy, PolicyError};
use tollgate_http::{Dialect, json};
use tollgate_redis::Redis;

use crate::bounds::Bounds;
use crate::cells::{Here, There};
use crate::connection::{self, Patience, Speaks};
use crate::holds::Holds;
use crate::listen::{Address, Client, Listener, Open, Place, take};
use crate::rls::RlsClosed;
use crate::secret::Secret;
use crate::service::{Service, Store};
use crate::{http, resp, rls};

/// What a client is told that is one too many.
const RESP_FULL: &[u8] = b"-ERR max number of clients reached\r\n";
const HTTP_FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\nretry-after: 1\r\n\r\n";

/// Where a service listens, and how.
///
/// ```
/// use tollgate_server::{Address, Settings};
///
/// let settings = Settings { resp: Address::Off, ..Settings::default() };
/// assert_eq!(settings.http.to_string(), "127.0.0.1:8080");
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// For HTTP and JSON.
    pub http: Address,
    /// For Envoy.
    pub grpc: Address,
    /// For Redis clients.
    pub resp: Address,
    /// For operators and probes.
    pub admin: Address,
    /// How much clients may bring and take.
    pub bounds: Bounds,
    /// The header fields that tell what is left.
    pub dialects: Vec<Dialect>,
    /// The header fields that Envoy adds to what it passes on; by default none, as it has some of its own.
    pub rls_headers: Vec<Dialect>,
    /// What Envoy is told of a decision that could not be made.
    pub rls_closed: RlsClosed,
    /// What operators tell on RESP; none is an operator there without.
    pub password: Option<Secret>,
    /// What operators tell on HTTP.
    pub token: Option<Secret>,
    /// Keys of `CL.THROTTLE` that are kept in memory.
    pub throttle_keys: usize,
    /// What `CL.THROTTLE` is answered while a store can't be asked.
    pub throttle_on_store_failure: OnStoreFailure,
    /// How many services share the limits, each of which counts in its own memory: each enforces a part. On a store
    /// they count together, and this says nothing.
    pub replicas: u32,
    /// A file that gets the addresses once all are bound.
    pub ready_file: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        let local = |port: u16| Address::Tcp(([127, 0, 0, 1], port).into());
        Self {
            http: local(8080),
            grpc: local(8081),
            resp: local(6380),
            admin: local(6070),
            bounds: Bounds::default(),
            dialects: vec![Dialect::Draft8],
            rls_headers: Vec::new(),
            rls_closed: RlsClosed::default(),
            password: None,
            token: None,
            throttle_keys: 1_000_000,
            throttle_on_store_failure: OnStoreFailure::Local,
            replicas: 1,
            ready_file: None,
        }
    }
}

/// A service that runs, until it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    addresses: Addresses,
    tasks: JoinSet<()>,
}

/// Where a service listens in the end; none where it doesn't.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Addresses {
    /// HTTP and JSON.
    pub http: Option<Address>,
    /// Envoy's protocol.
    pub grpc: Option<Address>,
    /// Redis' protocol.
    pub resp: Option<Address>,
    /// Operators and probes.
    pub admin: Option<Address>,
}

/// Why a service didn't start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// An address can't be listened on.
    Listen {
        /// For what.
        protocol: &'static str,
        /// Which.
        address: Address,
        /// Why not.
        error: io::Error,
    },
    /// What the policy says can't be done.
    Policy(PolicyError),
    /// The keys of `CL.THROTTLE` can't be kept.
    Throttle(LimitError),
    /// The file that tells the addresses can't be written.
    ReadyFile(PathBuf, io::Error),
}

impl Server {
    /// Starts a service that keeps its state in this process. The clock is that of the memory.
    ///
    /// # Errors
    /// What keeps it from starting.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::clock::Monotonic;
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_engine::document::Format;
    /// use tollgate_server::{Address, Server, Settings};
    ///
    /// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 10/s}]", Format::Yaml)?.policy;
    /// let any: Address = "127.0.0.1:0".parse()?;
    /// let settings =
    ///     Settings { http: any.clone(), grpc: any.clone(), resp: any, admin: Address::Off, ..Settings::default() };
    /// let server = Server::in_memory(policy, (Memory::new(), Monotonic::default()), settings).await?;
    /// println!("{:?}", server.addresses().http);
    /// server.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn in_memory<C, W>(
        policy: Policy,
        (memory, clock): (Memory<C, W>, C),
        settings: Settings,
    ) -> Result<Self, StartError>
    where
        C: Clock + 'static,
        W: Clock + 'static,
    {
        let cells = Here::new(settings.throttle_keys, clock).map_err(StartError::Throttle)?;
        let policy = policy.divided(settings.replicas).policy;
        let engine = Engine::new(policy, memory).map_err(StartError::Policy)?;
        Self::start(engine, cells, settings).await
    }

    /// Starts a service that shares its state with others, in a store.
    ///
    /// # Errors
    /// What keeps it from starting.
    pub async fn on_store(
        policy: Policy,
        redis: Redis,
        mut settings: Settings,
    ) -> Result<Self, StartError> {
        settings.replicas = 1;
        let cells = There::new(redis.clone(), settings.throttle_on_store_failure);
        let engine = Engine::new(policy, redis).map_err(StartError::Policy)?;
        Self::start(engine, cells, settings).await
    }

    async fn start<B: Store>(
        engine: Engine<B>,
        cells: B::Cells,
        settings: Settings,
    ) -> Result<Self, StartError> {
        if let Some(path) = &settings.ready_file {
            // Whoever waits for it mustn't find that of a service before.
            let _ = std::fs::remove_file(path);
        }
        let http = bind("HTTP", &settings.http).await?;
        let grpc = bind("gRPC", &settings.grpc).await?;
        let resp = bind("RESP", &settings.resp).await?;
        let admin = bind("admin", &settings.admin).await?;
        let address =
            |listener: &Option<Listener>| listener.as_ref().and_then(|one| one.address().ok());
        let addresses = Addresses {
            http: address(&http),
            grpc: address(&grpc),
            resp: address(&resp),
            admin: address(&admin),
        };
        let holds = Holds::new(settings.bounds.holds);
        let service = Arc::new(Service {
            engine: engine.with_bounds(tollgate_engine::Bounds {
                descriptors: settings.bounds.descriptors,
                fact_bytes: settings.bounds.key_bytes,
                ..tollgate_engine::Bounds::default()
            }),
            cells,
            holds,
            bounds: settings.bounds,
            dialects: settings.dialects,
            rls_headers: settings.rls_headers,
            rls_closed: settings.rls_closed,
            replicas: settings.replicas.max(1),
            password: settings.password,
            token: settings.token,
        });
        if let Some(path) = settings.ready_file {
            write_whole(&path, &addresses.to_json())?;
        }
        let mut tasks = JoinSet::new();
        let watched = Arc::clone(&service);
        tasks.spawn(async move { watched.holds.watch().await });
        let ids = AtomicU64::new(1);
        serve_bytes(&mut tasks, resp, &service, RESP_FULL, move |service| {
            resp::Session::new(service, ids.fetch_add(1, Ordering::Relaxed))
        });
        let by = |door| move |service| http::Session::new(service, door);
        serve_bytes(
            &mut tasks,
            http,
            &service,
            HTTP_FULL,
            by(http::Door::Public),
        );
        serve_bytes(
            &mut tasks,
            admin,
            &service,
            HTTP_FULL,
            by(http::Door::Admin),
        );
        serve_grpc(&mut tasks, grpc, &service);
        Ok(Self { addresses, tasks })
    }

    /// Where it listens.
    pub const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Ends it: no more clients are taken, and connections are closed.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

async fn bind(protocol: &'static str, address: &Address) -> Result<Option<Listener>, StartError> {
    let bound = Listener::bind(address).await;
    bound.map_err(|error| StartError::Listen {
        protocol,
        address: address.clone(),
        error,
    })
}

/// Writes a file that others see whole or not at all.
fn write_whole(path: &std::path::Path, text: &[u8]) -> Result<(), StartError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| StartError::ReadyFile(path.to_owned(), error))
}

/// Serves those who come by this listener, each by a session of its own.
fn serve_bytes<B: Store, P: Speaks + 'static>(
    tasks: &mut JoinSet<()>,
    listener: Option<Listener>,
    service: &Arc<Service<B>>,
    full: &'static [u8],
    session: impl Fn(Arc<Service<B>>) -> P + Send + 'static,
) {
    let Some(listener) = listener else { return };
    let open = Open::new(service.bounds.connections);
    let service = Arc::clone(service);
    let serve = move |client, place: Place| {
        let session = session(Arc::clone(&service));
        let patience = Patience {
            idle: service.bounds.idle_time,
            request: service.bounds.request_time,
        };
        async move {
            let _place = place;
            // A connection that breaks is over: there is nobody to tell.
            let _ = match client {
                Client::Tcp(stream) => connection::serve(stream, session, patience).await,
                Client::Unix(stream) => connection::serve(stream, session, patience).await,
            };
        }
    };
    tasks.spawn(take(listener, open, full, serve));
}

fn serve_grpc<B: Store>(
    tasks: &mut JoinSet<()>,
    listener: Option<Listener>,
    service: &Arc<Service<B>>,
) {
    let Some(listener) = listener else { return };
    let open = Open::new(service.bounds.connections);
    let service = Arc::clone(service);
    let serve = move |client, place: Place| {
        let service = Arc::clone(&service);
        async move {
            let _place = place;
            let _ = match client {
                Client::Tcp(stream) => rls::serve(stream, service).await,
                Client::Unix(stream) => rls::serve(stream, service).await,
            };
        }
    };
    tasks.spawn(take(listener, open, b"", serve));
}

impl Addresses {
    /// One object with each address that there is, and the id of the process.
    ///
    /// ```
    /// use tollgate_server::Addresses;
    ///
    /// let text = String::from_utf8(Addresses::default().to_json())?;
    /// assert_eq!(text, format!("{{\"pid\":{}}}\n", std::process::id()));
    /// # Ok::<(), std::string::FromUtf8Error>(())
    /// ```
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = b"{".to_vec();
        let each = [
            ("http", &self.http),
            ("grpc", &self.grpc),
            ("resp", &self.resp),
            ("admin", &self.admin),
        ];
        for (name, address) in each {
            if let Some(address) = address {
                json::string(&mut out, name);
                out.push(b':');
                json::string(&mut out, &address.to_string());
                out.push(b',');
            }
        }
        out.extend(b"\"pid\":");
        json::number(&mut out, u64::from(std::process::id()));
        out.extend(b"}\n");
        out
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen {
                protocol,
                address,
                error,
            } if error.kind() == io::ErrorKind::AddrInUse => {
                let flag = protocol.to_lowercase();
                let by = match address {
                    Address::Unix(_) => "by another process, or is no socket",
                    _ => "by another process",
                };
                write!(
                    f,
                    "{address} is in use {by}: choose another address for {protocol} by --{flag}, or --{flag} off"
                )
            }
            Self::Listen {
                protocol,
                address,
                error,
            } => {
                let flag = protocol.to_lowercase();
                write!(
                    f,
                    "can't listen on {address} for {protocol}: {error}; choose another address by --{flag}"
                )
            }
            Self::Policy(error) => error.fmt(f),
            Self::Throttle(error) => write!(f, "the keys of CL.THROTTLE: {error}"),
            Self::ReadyFile(path, error) => {
                write!(f, "can't write --ready-file {}: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for StartError {}
