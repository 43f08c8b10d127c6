//! The settings of a service, and the addresses that it listens on.

use std::path::PathBuf;

use serde::Serializer as _;
use serde_json::{Serializer, Value};
use tollgate_engine::policy::OnStoreFailure;
use tollgate_http::HeaderDialect;

use crate::address::Address;
use crate::denial_log::DenialLog;
use crate::log::Log;
use crate::operators::{AdminHost, AdminToken};
use crate::policy_reload::PolicyWatch;
use crate::request_bounds::RequestBounds;
use crate::rls_failure_mode::RlsFailureMode;
use crate::secret::Secret;
use crate::store_events::StoreEvents;
use crate::tls::Tls;

/// The settings of a service.
///
/// ```
/// use tollgate_server::{Address, Settings};
///
/// let settings = Settings { resp: Address::Disabled, ..Settings::default() };
/// assert_eq!(settings.http.to_string(), "127.0.0.1:8080");
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// Listener for HTTP and JSON.
    pub http: Address,
    /// Listener for Envoy's rate-limit protocol (gRPC).
    pub grpc: Address,
    /// Listener for Redis clients (RESP).
    pub resp: Address,
    /// Listener for operators and health checks.
    pub admin: Address,
    /// Listener for Prometheus and health checks alone.
    pub metrics: Address,
    /// How many limiters the metrics show by name. All others are counted together.
    pub max_named_limiters: usize,
    /// Bounds on requests and connections.
    pub bounds: RequestBounds,
    /// The rate-limit header fields of HTTP responses.
    pub header_dialects: Vec<HeaderDialect>,
    /// The header fields that Envoy adds to the requests and responses it forwards. None by default, as Envoy has its
    /// own.
    pub rls_headers: Vec<HeaderDialect>,
    /// Envoy's answer when no decision can be made.
    pub rls_failure_mode: RlsFailureMode,
    /// The operators' password on RESP. Without one, RESP has no operator commands.
    pub resp_operator_password: Option<Secret>,
    /// The clients' password on RESP; the operators' password works too. Without one, every client is served.
    pub resp_client_password: Option<Secret>,
    /// The operators' token on HTTP.
    pub http_operator_token: Option<Secret>,
    /// The clients' token on HTTP; the operators' token works too. Without one, every client is served. Health checks
    /// need none.
    pub http_client_token: Option<Secret>,
    /// The operators' token on the admin listener.
    pub admin_token: AdminToken,
    /// Host names of the admin listener, in addition to its address.
    pub admin_hosts: Vec<AdminHost>,
    /// Certificates, for listeners with TLS.
    pub tls: Option<Tls>,
    /// Whether HTTP responses have a `Date` header.
    pub http_date: DateHeader,
    /// How many wrong passwords or tokens of one address are answered immediately in a minute. Each further one is
    /// delayed by a second.
    pub max_wrong_secrets: u64,
    /// How many keys of `CL.THROTTLE` are kept in memory.
    pub max_throttle_keys: usize,
    /// How `CL.THROTTLE` decides while the store is unreachable.
    pub throttle_on_store_failure: OnStoreFailure,
    /// How many replicas share the limits while each counts in its own memory: each enforces its share. It has no
    /// effect with a store, where all replicas count together.
    pub replicas: u32,
    /// A file that the addresses are written to once all listeners are bound.
    pub ready_file: Option<PathBuf>,
    /// The service's log; disabled by default.
    pub log: Log,
    /// Which denials are logged.
    pub denial_log: DenialLog,
    /// Whether responses of `/v1/check` and `/v1/peek` name the rules in shadow mode that would have denied the
    /// request.
    pub shadow_visibility: ShadowVisibility,
    /// Receives the store's events, if the service should report the store's state.
    pub store_events: Option<StoreEvents>,
    /// The file or folder that the policy is read from, also on reload; `None` if the policy has another source.
    pub policy_path: Option<PathBuf>,
    /// Whether that file is watched for changes.
    pub policy_watch: PolicyWatch,
}

/// Whether HTTP responses have a `Date` header. HTTP asks for one; leave it out to compare responses byte by byte.
///
/// ```
/// use tollgate_server::{DateHeader, Settings};
///
/// assert_eq!(Settings::default().http_date, DateHeader::On);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DateHeader {
    /// Responses have the header.
    #[default]
    On,
    /// Responses don't have the header.
    Off,
}

impl Default for Settings {
    fn default() -> Self {
        let local = |port: u16| Address::Tcp(([127, 0, 0, 1], port).into());
        Self {
            http: local(8080),
            grpc: local(8081),
            resp: local(6380),
            admin: local(6070),
            metrics: Address::Disabled,
            max_named_limiters: 1_000,
            bounds: RequestBounds::default(),
            header_dialects: vec![HeaderDialect::Draft8],
            rls_headers: Vec::new(),
            rls_failure_mode: RlsFailureMode::default(),
            resp_operator_password: None,
            resp_client_password: None,
            http_operator_token: None,
            http_client_token: None,
            admin_token: AdminToken::Disabled,
            admin_hosts: Vec::new(),
            tls: None,
            http_date: DateHeader::On,
            max_wrong_secrets: 10,
            max_throttle_keys: 1_000_000,
            throttle_on_store_failure: OnStoreFailure::Local,
            replicas: 1,
            ready_file: None,
            log: Log::disabled(),
            denial_log: DenialLog::default(),
            shadow_visibility: ShadowVisibility::default(),
            store_events: None,
            policy_path: None,
            policy_watch: PolicyWatch::On,
        }
    }
}

/// The addresses that a service listens on; `None` for a disabled listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Addresses {
    /// HTTP and JSON.
    pub http: Option<Address>,
    /// Envoy's protocol.
    pub grpc: Option<Address>,
    /// Redis' protocol.
    pub resp: Option<Address>,
    /// Operators and health checks.
    pub admin: Option<Address>,
    /// Prometheus and health checks.
    pub metrics: Option<Address>,
    /// The file with the operators' token, if there is one.
    pub admin_token_file: Option<PathBuf>,
}

impl Addresses {
    /// A JSON object with each address, and the id of the process.
    ///
    /// ```
    /// use tollgate_server::Addresses;
    ///
    /// let text = String::from_utf8(Addresses::default().to_json())?;
    /// assert_eq!(text, format!("{{\"pid\":{}}}\n", std::process::id()));
    /// # Ok::<(), std::string::FromUtf8Error>(())
    /// ```
    pub fn to_json(&self) -> Vec<u8> {
        let each = [
            ("http", &self.http),
            ("grpc", &self.grpc),
            ("resp", &self.resp),
            ("admin", &self.admin),
            ("metrics", &self.metrics),
        ];
        let each = each.into_iter().filter_map(|(name, address)| {
            let address = address.as_ref()?.client_form();
            Some((name, Value::from(address)))
        });
        let file = self.admin_token_file.iter();
        let file = file.map(|file| ("admin_token_file", file.to_string_lossy().into()));
        let pid = ("pid", Value::from(std::process::id()));
        let mut out = Vec::new();
        // Writing to a `Vec` can't fail.
        let _ = Serializer::new(&mut out).collect_map(each.chain(file).chain([pid]));
        out.push(b'\n');
        out
    }
}

/// Whether responses name the rules in shadow mode that would have denied a request.
///
/// ```
/// use tollgate_server::{Settings, ShadowVisibility};
///
/// assert_eq!(Settings::default().shadow_visibility, ShadowVisibility::Hidden);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShadowVisibility {
    /// No: clients see nothing of rules that aren't enforced.
    #[default]
    Hidden,
    /// Yes, in the field `shadow`.
    Shown,
}
