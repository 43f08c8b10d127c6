//! The options of `tollgate serve`, and their conversion to settings of the service.

use std::io;
use std::num::{IntErrorKind, ParseIntError};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Arg, Args};
use tollgate_http::HeaderDialect;
use tollgate_server::{
    Address, AdminHost, AdminToken, DenialLog, DrainSettings, Level, Log, LogFormat, PolicyWatch,
    Protocol, RequestBounds, RlsFailureMode, SampleRate, Secret, Settings, ShadowVisibility,
    StateOptions,
};

use super::Setting;
use super::settings::env_variable;
use crate::outcome::CliError;
use crate::policy::parse_duration;

mod secure;

pub use secure::SecurityOptions;

/// More keys would need more memory than a machine has.
const MAX_THROTTLE_KEYS: usize = 1_000_000_000;

/// Options of `tollgate serve`.
#[derive(Args, Clone, Debug)]
#[command(
    allow_negative_numbers = true,
    mut_args(with_env_variable),
    after_help = "\
Each option can also be set in the environment (TOLLGATE_HTTP for --http) or in the --config file
(http: 127.0.0.1:8080). Precedence: flag, environment, file, default.

Exit code 0: ended by SIGTERM or Ctrl-C; 1: it couldn't start; 2: errors in the settings or wrong usage;
130 or 143: ended immediately by a second Ctrl-C or SIGTERM. SIGHUP reads the policy, certificates and
secrets again.

With --check 0: it could start; 2: errors in the settings or the policy; 3: in certificates or secrets;
4: the store is unreachable; 5: a port isn't free, or a file or folder can't be written. With several
errors, the smallest code.

Examples:
  tollgate serve
  tollgate serve policy.yaml --http 0.0.0.0:8080 --resp off
  tollgate serve policy.yaml --config settings.yaml --check
  tollgate serve ratelimit/config/ --backend redis://127.0.0.1:6379"
)]
pub struct ServeOptions {
    /// A policy file or a folder of policy files, native or in envoyproxy/ratelimit's form. Without it, an example
    /// policy is used.
    pub policy: Option<PathBuf>,
    /// Listener for HTTP: an address, a port, unix:PATH, unix:PATH?mode=0660, or off.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub http: Address,
    /// Listener for Envoy (RLS v3, gRPC), as for --http.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081")]
    pub grpc: Address,
    /// Listener for Redis clients, as for --http.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6380")]
    pub resp: Address,
    /// Listener for operators and probes (tollgate admin, /healthz, /readyz), as for --http.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6070")]
    pub admin: Address,
    /// The backend: memory, or the URL of a store, as redis://:password@host:6379.
    #[arg(
        long,
        hide_env_values = true,
        value_name = "URL",
        default_value = "memory"
    )]
    pub backend: String,
    /// In memory, the number of processes that share the limits. They count separately, so each enforces its share.
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_positive::<u32>)]
    pub replicas: u32,
    /// Don't start while the store is unreachable.
    #[arg(long, value_parser = parse_switch)]
    pub require_store: bool,
    /// How long a decision waits for the store before each rule's on_store_failure decides.
    #[arg(long, value_name = "TIME", default_value = "25ms", value_parser = parse_positive_duration)]
    pub store_timeout: Duration,
    /// State that outlives the process.
    #[command(flatten)]
    pub state_options: PersistenceOptions,
    /// Rate-limit header fields of responses: draft-8, draft-7, draft-6, draft-3, github; several with commas.
    #[arg(
        long,
        value_name = "DIALECT",
        value_delimiter = ',',
        default_value = "draft-8"
    )]
    pub headers: Vec<HeaderDialect>,
    /// Header fields that Envoy adds to its responses, as for --headers. The default is none.
    #[arg(long, value_name = "DIALECT", value_delimiter = ',')]
    pub rls_headers: Vec<HeaderDialect>,
    /// What Envoy gets for a decision that failed: error, or deny.
    #[arg(long, value_name = "ANSWER", default_value = "error")]
    pub rls_closed: RlsFailureMode,
    /// Certificates and secrets.
    #[command(flatten)]
    pub security: SecurityOptions,
    /// Reloading the policy, and shutdown.
    #[command(flatten)]
    pub lifetime: LifecycleOptions,
    /// A file of operators' tokens for --admin, one a line. Without it, a token is generated at the start.
    #[arg(long, value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,
    /// Host names of --admin besides its address and localhost; several with commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub admin_host: Vec<AdminHost>,
    /// Metrics and logs.
    #[command(flatten)]
    pub observability: ObservabilityOptions,
    /// A file to which the addresses are written as one JSON object, once all listeners are bound.
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// The most keys of CL.THROTTLE in memory.
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = parse_throttle_keys)]
    pub throttle_keys: usize,
    /// Bounds on clients' requests and connections.
    #[command(flatten)]
    pub limits: LimitOptions,
    /// A file of settings: YAML, or TOML if its name ends in .toml.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Actions instead of serving.
    #[command(flatten)]
    pub checks: CheckOptions,
    /// The origin of each setting.
    #[arg(skip)]
    pub origins: Vec<Setting>,
}

/// Bounds on clients' requests and connections.
#[derive(Args, Clone, Debug)]
pub struct LimitOptions {
    /// The most concurrent connections of each protocol.
    #[arg(long, value_name = "N", default_value = "10000", value_parser = parse_positive::<usize>)]
    pub max_connections: usize,
    /// The most bytes of a request: a command, a body, a message.
    #[arg(long, value_name = "N", default_value = "65536", value_parser = parse_positive::<usize>)]
    pub max_request_bytes: usize,
    /// The most bytes of the header of an HTTP request.
    #[arg(long, value_name = "N", default_value = "8192", value_parser = parse_positive::<usize>)]
    pub max_head_bytes: usize,
    /// The most bytes of a key or of one fact.
    #[arg(long, value_name = "N", default_value = "8192", value_parser = parse_positive::<usize>)]
    pub max_key_bytes: usize,
    /// The most arguments of a command, facts of a request, or entries of all its descriptors.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = parse_positive::<usize>)]
    pub max_arguments: usize,
    /// The most descriptors of a request from Envoy.
    #[arg(long, value_name = "N", default_value = "64", value_parser = parse_positive::<usize>)]
    pub max_descriptors: usize,
    /// The most requests in one HTTP batch.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = parse_positive::<usize>)]
    pub max_batch: usize,
    /// The most commands or requests that are answered in one write.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = parse_positive::<usize>)]
    pub max_pipeline: usize,
    /// The most concurrent streams of an HTTP/2 connection.
    #[arg(long, value_name = "N", default_value = "256", value_parser = parse_positive::<u32>)]
    pub max_streams: u32,
    /// The most holds of all clients together.
    #[arg(long, value_name = "N", default_value = "100000", value_parser = parse_count)]
    pub max_holds: usize,
    /// How long a permit is held that was taken without an id (over RLS, RESP or /v1/check) and isn't released.
    #[arg(id = "hold_time", long = "hold-time", value_name = "TIME", default_value = "60s", value_parser = parse_positive_duration)]
    pub permit_ttl: Duration,
    /// The timeout for a client to send a request, and to read its response.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_positive_duration)]
    pub request_time: Duration,
    /// How long a connection may be idle.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_positive_duration)]
    pub idle_time: Duration,
}

impl LimitOptions {
    fn bounds(&self) -> RequestBounds {
        RequestBounds {
            max_connections: self.max_connections,
            request_bytes: self.max_request_bytes,
            head_bytes: self.max_head_bytes,
            key_bytes: self.max_key_bytes,
            max_arguments: self.max_arguments,
            max_descriptors: self.max_descriptors,
            max_batch: self.max_batch,
            max_pipeline: self.max_pipeline,
            max_streams: self.max_streams,
            max_reservations: self.max_holds,
            reservation_timeout: self.permit_ttl,
            request_timeout: self.request_time,
            idle_timeout: self.idle_time,
        }
    }
}

/// Persistence of counters in memory.
#[derive(Args, Clone, Debug)]
pub struct PersistenceOptions {
    /// In memory, a folder that keeps the counters across restarts. Each process needs its own.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The interval between saves of --state. A killed process loses at most this much.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_positive_duration)]
    pub state_every: Duration,
}

impl PersistenceOptions {
    /// The settings of persistence, if it is enabled.
    pub(super) fn state_options(&self) -> Option<StateOptions> {
        let folder = self.state.as_ref()?;
        Some(StateOptions {
            save_interval: self.state_every,
            ..StateOptions::in_folder(folder)
        })
    }
}

/// Reloading the policy, and shutdown.
#[derive(Args, Clone, Debug)]
pub struct LifecycleOptions {
    /// Whether the policy is read again when its files change: on, or off. SIGHUP reads it in any case.
    #[arg(long, value_name = "ON|OFF", default_value = "on", value_parser = parse_watch)]
    pub watch: PolicyWatch,
    /// After SIGTERM, how long new requests are still accepted while probes report that the service is not ready.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    pub drain_delay: Duration,
    /// After the delay, how long requests in flight may take. Then their connections are closed.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_positive_duration)]
    pub drain_time: Duration,
}

impl LifecycleOptions {
    /// The settings of the shutdown.
    pub(super) const fn drain(&self) -> DrainSettings {
        DrainSettings {
            delay: self.drain_delay,
            timeout: self.drain_time,
        }
    }
}

/// Metrics and logs.
#[derive(Args, Clone, Debug)]
pub struct ObservabilityOptions {
    /// Listener for Prometheus (/metrics) and probes, as for --http. --admin has /metrics too.
    #[arg(long, value_name = "ADDR", default_value = "off")]
    pub metrics: Address,
    /// The most limiters that metrics show by name. Further ones are counted together.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = parse_positive::<usize>)]
    pub metrics_limiters: usize,
    /// The format of log lines: text, or json.
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub log_format: LogFormat,
    /// The least severe level that is logged: error, warning, info or debug.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: Level,
    /// The part of denials that is logged, such as 1%; 0 for none.
    #[arg(long, value_name = "SHARE", default_value = "1%")]
    pub log_denials: SampleRate,
    /// The most denials that are logged in any second.
    #[arg(long, value_name = "N", default_value = "10", value_parser = parse_positive::<u32>)]
    pub log_denials_per_second: u32,
    /// Name the shadow rules that would have denied, in responses of /v1/check and /v1/peek, by the field "shadow".
    #[arg(long)]
    pub show_shadow: bool,
}

impl ObservabilityOptions {
    /// Opens the log on standard error.
    pub(super) fn open_log(&self) -> io::Result<Log> {
        let log = Log::queued(io::stderr(), self.log_format)?;
        log.set_level(self.log_level);
        Ok(log)
    }
}

/// Actions instead of serving. Only the command line can set them.
#[derive(Args, Clone, Debug)]
pub struct CheckOptions {
    /// Check everything that a start needs (policy, certificates, secrets, store, ports, state), and exit.
    #[arg(long, conflicts_with_all = ["print_config", "print_policy"])]
    pub check: bool,
    /// Print all settings and the origin of each, and exit.
    #[arg(long, conflicts_with = "print_policy")]
    pub print_config: bool,
    /// Print the policy that would be in force, with all included files, and exit.
    #[arg(long)]
    pub print_policy: bool,
}

impl ServeOptions {
    /// The listeners with the common name of each protocol.
    pub(super) fn listeners(&self) -> [(Protocol, &'static str, &Address); 5] {
        [
            (Protocol::Http, "HTTP", &self.http),
            (Protocol::Grpc, "gRPC", &self.grpc),
            (Protocol::Resp, "RESP", &self.resp),
            (Protocol::Admin, "admin", &self.admin),
            (Protocol::Metrics, "metrics", &self.observability.metrics),
        ]
    }

    /// The settings of the service, or the error of a secret that can't be read.
    pub(super) fn settings(&self, log: &Log) -> Result<Settings, CliError> {
        let (secure, telling) = (&self.security, &self.observability);
        let secret = |flag: &str, file: &Option<PathBuf>| {
            let read = file.as_ref().map(Secret::from_file).transpose();
            read.map_err(|why| CliError::usage(format_args!("--{flag}: {why}")))
        };
        Ok(Settings {
            http: self.http.clone(),
            grpc: self.grpc.clone(),
            resp: self.resp.clone(),
            admin: self.admin.clone(),
            metrics: telling.metrics.clone(),
            max_named_limiters: telling.metrics_limiters,
            bounds: self.limits.bounds(),
            header_dialects: self.headers.clone(),
            rls_headers: self.rls_headers.clone(),
            rls_failure_mode: self.rls_closed,
            resp_operator_password: secret("resp-password-file", &secure.resp_password_file)?,
            http_operator_token: secret("http-token-file", &secure.http_token_file)?,
            resp_client_password: secret(
                "resp-client-password-file",
                &secure.resp_client_password_file,
            )?,
            http_client_token: secret("http-client-token-file", &secure.http_client_token_file)?,
            admin_token: match secret("admin-token-file", &self.admin_token_file)? {
                Some(secret) => AdminToken::File(secret),
                None => AdminToken::Generated(self.state_options.state.clone()),
            },
            admin_hosts: self.admin_host.clone(),
            tls: secure.tls(),
            max_throttle_keys: self.throttle_keys,
            replicas: self.replicas,
            ready_file: self.ready_file.clone(),
            log: log.clone(),
            denial_log: DenialLog {
                share: telling.log_denials,
                max_per_second: telling.log_denials_per_second,
            },
            shadow_visibility: if telling.show_shadow {
                ShadowVisibility::Shown
            } else {
                ShadowVisibility::Hidden
            },
            policy_path: self.policy.clone(),
            policy_watch: self.lifetime.watch,
            ..Settings::default()
        })
    }
}

/// Parses a count that must be at least 1.
fn parse_positive<T>(text: &str) -> Result<T, String>
where
    T: FromStr<Err = ParseIntError> + PartialEq + Default,
{
    match text.parse() {
        Ok(count) if count != T::default() => Ok(count),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => {
            Err("it should be smaller: there is no room for so many".to_owned())
        }
        _ => Err("it should be a whole number of at least 1".to_owned()),
    }
}

/// Parses a number of keys, each of which takes 25 bytes.
fn parse_throttle_keys(text: &str) -> Result<usize, String> {
    match parse_positive(text)? {
        count if count <= MAX_THROTTLE_KEYS => Ok(count),
        _ => Err(format!(
            "it should be at most {MAX_THROTTLE_KEYS}: each key takes 25 bytes"
        )),
    }
}

/// Parses a count that may be 0.
fn parse_count(text: &str) -> Result<usize, String> {
    let read = text.parse();
    read.map_err(|_| "it should be a whole number".to_owned())
}

/// Parses a boolean, as environment variables have them.
fn parse_switch(text: &str) -> Result<bool, String> {
    match text.to_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err("it should be true or false".to_owned()),
    }
}

/// Parses a duration above zero.
fn parse_positive_duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("it should be longer than nothing, as 10s".to_owned()),
        time => Ok(time),
    }
}

/// Gives each option an environment variable, except the actions instead of serving.
fn with_env_variable(arg: Arg) -> Arg {
    let id = arg.get_id().to_string();
    match id.as_str() {
        "check" | "print_config" | "print_policy" => arg,
        name => arg.env(env_variable(name)),
    }
}

/// Parses whether the policy's files are watched.
fn parse_watch(text: &str) -> Result<PolicyWatch, String> {
    match parse_switch(text) {
        Ok(true) => Ok(PolicyWatch::On),
        Ok(false) => Ok(PolicyWatch::Off),
        Err(_) => Err("it should be on or off".to_owned()),
    }
}
