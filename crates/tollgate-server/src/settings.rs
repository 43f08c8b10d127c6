//! What a service is told when it starts, and where it listens then.

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

/// Where a service listens, and how.
///
/// ```
/// use tollgate_server::{Address, Settings};
///
/// let settings = Settings { resp: Address::Disabled, ..Settings::default() };
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
    /// For Prometheus and probes alone.
    pub metrics: Address,
    /// How many limiters metrics show by name; all others are counted together.
    pub max_named_limiters: usize,
    /// How much clients may bring and take.
    pub bounds: RequestBounds,
    /// The header fields that tell what is left.
    pub header_dialects: Vec<HeaderDialect>,
    /// The header fields that Envoy adds to what it passes on; by default none, as it has some of its own.
    pub rls_headers: Vec<HeaderDialect>,
    /// What Envoy is told of a decision that could not be made.
    pub rls_failure_mode: RlsFailureMode,
    /// What operators tell on RESP; none is an operator there without.
    pub resp_operator_password: Option<Secret>,
    /// What everybody tells on RESP, or the operators' password: without, anybody is answered.
    pub resp_client_password: Option<Secret>,
    /// What operators tell on HTTP.
    pub http_operator_token: Option<Secret>,
    /// What everybody tells on HTTP, or the operators' token: without, anybody is answered. Probes needn't.
    pub http_client_token: Option<Secret>,
    /// What operators tell on the admin listener.
    pub admin_token: AdminToken,
    /// Names by which operators reach it, beside its address.
    pub admin_hosts: Vec<AdminHost>,
    /// Certificates, for the listeners that speak TLS.
    pub tls: Option<Tls>,
    /// Whether answers of HTTP have a `Moment`.
    pub http_date: DateHeader,
    /// So many wrong passwords or tokens of an address are answered immediately in a minute; more wait for a second each.
    pub max_wrong_secrets: u64,
    /// Keys of `CL.THROTTLE` that are kept in memory.
    pub max_throttle_keys: usize,
    /// What `CL.THROTTLE` is answered while a store can't be asked.
    pub throttle_on_store_failure: OnStoreFailure,
    /// How many services share the limits, each of which counts in its own memory: each enforces a part. On a store
    /// they count together, and this says nothing.
    pub replicas: u32,
    /// A file that gets the addresses once all are bound.
    pub ready_file: Option<PathBuf>,
    /// Where it says what happens to it; nowhere unless told.
    pub log: Log,
    /// Which refusals are said there.
    pub denial_log: DenialLog,
    /// Whether answers of `/v1/check` and `/v1/peek` name the rules in shadow that would have refused.
    pub shadow_visibility: ShadowVisibility,
    /// What hears of the store, if that is to be a concern of this service.
    pub store_events: Option<StoreEvents>,
    /// The file or folder that the policy was read from, and is read from again; none if it is from elsewhere.
    pub policy_path: Option<PathBuf>,
    /// Whether that is looked after.
    pub policy_watch: PolicyWatch,
}

/// Whether answers of HTTP have a `Moment`, as they should: whoever compares them byte by byte leaves it out.
///
/// ```
/// use tollgate_server::{DateHeader, Settings};
///
/// assert_eq!(Settings::default().http_date, DateHeader::On);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DateHeader {
    /// They have.
    #[default]
    On,
    /// They haven't.
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
    /// Prometheus and probes.
    pub metrics: Option<Address>,
    /// The file with the token of operators, if there is one.
    pub admin_token_file: Option<PathBuf>,
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
        // Nothing fails to be written to bytes.
        let _ = Serializer::new(&mut out).collect_map(each.chain(file).chain([pid]));
        out.push(b'\n');
        out
    }
}

/// Whether answers name the rules in shadow that would have refused a request.
///
/// ```
/// use tollgate_server::{Settings, ShadowVisibility};
///
/// assert_eq!(Settings::default().shadow_visibility, ShadowVisibility::Hidden);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShadowVisibility {
    /// No: clients see nothing of a rule that isn't enforced.
    #[default]
    Hidden,
    /// Yes, by the field `shadow`.
    Shown,
}
