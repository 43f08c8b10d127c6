//! The options of `tollgate serve`, and what they mean to the service.

use std::num::{IntErrorKind, ParseIntError};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use tollgate_http::Dialect;
use tollgate_server::{Address, Bounds, Log, RlsClosed, Settings};

use super::{ServeFailure, Setting};
use crate::policy::duration;

mod instead;
mod keep;
mod lifetime;
mod operators;
mod secure;
mod telling;

pub use instead::Instead;
pub use keep::Keep;
pub use lifetime::Lifetime;
pub use operators::Operators;
pub use secure::Secure;
pub use telling::Telling;

/// More keys than this would be more memory than a machine has.
const MOST_KEYS: usize = 1_000_000_000;

/// Options of `tollgate serve`.
#[derive(Args, Clone, Debug)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Each option can also be said in the environment (TOLLGATE_HTTP for --http) or in a file that --config
names (http: 127.0.0.1:8080). A flag counts before the environment, and that before the file.

Exit code 0: it was ended by SIGTERM or Ctrl-C; 1: it couldn't start; 2: wrong usage;
130 or 143: a second Ctrl-C or SIGTERM ended it at once. SIGHUP reads the policy,
certificates and secrets again.

With --check 0: it could start; 2: the settings or the policy are wrong; 3: certificates or secrets;
4: the store can't be asked; 5: a port isn't free, or a file or folder can't be written. If several
are wrong, the smallest.

Examples:
  tollgate serve
  tollgate serve policy.yaml --http 0.0.0.0:8080 --resp off
  tollgate serve policy.yaml --config settings.yaml --check
  tollgate serve ratelimit/config/ --backend redis://127.0.0.1:6379"
)]
pub struct Serve {
    /// A policy, or a folder of policies, in our form or envoyproxy/ratelimit's; an example without.
    #[arg(env = "TOLLGATE_POLICY")]
    pub policy: Option<PathBuf>,
    /// Where HTTP is answered: an address, a port, unix:PATH, unix:PATH?mode=0660, or off.
    #[arg(
        long,
        env = "TOLLGATE_HTTP",
        value_name = "ADDR",
        default_value = "127.0.0.1:8080"
    )]
    pub http: Address,
    /// Where Envoy is answered (RLS v3, gRPC), as for --http.
    #[arg(
        long,
        env = "TOLLGATE_GRPC",
        value_name = "ADDR",
        default_value = "127.0.0.1:8081"
    )]
    pub grpc: Address,
    /// Where Redis clients are answered, as for --http.
    #[arg(
        long,
        env = "TOLLGATE_RESP",
        value_name = "ADDR",
        default_value = "127.0.0.1:6380"
    )]
    pub resp: Address,
    /// Where operators and probes are answered (tollgate admin, /healthz, /readyz), as for --http.
    #[arg(
        long,
        env = "TOLLGATE_ADMIN",
        value_name = "ADDR",
        default_value = "127.0.0.1:6070"
    )]
    pub admin: Address,
    /// Where limits are counted: memory, or the URL of a store, as redis://:password@host:6379.
    #[arg(
        long,
        env = "TOLLGATE_BACKEND",
        hide_env_values = true,
        value_name = "URL",
        default_value = "memory"
    )]
    pub backend: String,
    /// In memory, how many processes share the limits: each enforces its part, as they count apart.
    #[arg(
        long,
        env = "TOLLGATE_REPLICAS",
        value_name = "N",
        default_value = "1",
        value_parser = at_least_one::<u32>
    )]
    pub replicas: u32,
    /// Don't start while the store can't be asked.
    #[arg(long, env = "TOLLGATE_REQUIRE_STORE", value_parser = yes_or_no)]
    pub require_store: bool,
    /// How long a decision waits for the store, before each rule's on_store_failure decides.
    #[arg(long, env = "TOLLGATE_STORE_TIMEOUT", value_name = "TIME", default_value = "25ms", value_parser = some_time)]
    pub store_timeout: Duration,
    /// What outlives the process.
    #[command(flatten)]
    pub keep: Keep,
    /// Header fields that tell what is left: draft-8, draft-7, draft-6, draft-3, github; several with commas.
    #[arg(
        long,
        env = "TOLLGATE_HEADERS",
        value_name = "DIALECT",
        value_delimiter = ',',
        default_value = "draft-8"
    )]
    pub headers: Vec<Dialect>,
    /// Header fields that Envoy adds to its answers, as for --headers; none without.
    #[arg(
        long,
        env = "TOLLGATE_RLS_HEADERS",
        value_name = "DIALECT",
        value_delimiter = ','
    )]
    pub rls_headers: Vec<Dialect>,
    /// What Envoy is told of a decision that could not be made: error, or deny.
    #[arg(
        long,
        env = "TOLLGATE_RLS_CLOSED",
        value_name = "ANSWER",
        default_value = "error"
    )]
    pub rls_closed: RlsClosed,
    /// Certificates and secrets.
    #[command(flatten)]
    pub secure: Secure,
    /// When the policy is read again, and how it ends.
    #[command(flatten)]
    pub lifetime: Lifetime,
    /// Who may operate it.
    #[command(flatten)]
    pub operators: Operators,
    /// Metrics and logs.
    #[command(flatten)]
    pub telling: Telling,
    /// A file that gets one JSON object with the addresses, once all are bound.
    #[arg(long, env = "TOLLGATE_READY_FILE", value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// Keys of CL.THROTTLE that are kept in memory.
    #[arg(
        long,
        env = "TOLLGATE_THROTTLE_KEYS",
        value_name = "N",
        default_value = "1000000",
        value_parser = some_keys
    )]
    pub throttle_keys: usize,
    /// How much clients may bring and take.
    #[command(flatten)]
    pub most: Most,
    /// A file of settings: YAML, or TOML if it ends so.
    #[arg(long, env = "TOLLGATE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What is done in place of serving.
    #[command(flatten)]
    pub instead: Instead,
    /// Where each setting is from.
    #[arg(skip)]
    pub origins: Vec<Setting>,
}

/// How much clients may bring and take.
#[derive(Args, Clone, Debug)]
pub struct Most {
    /// Connections of each protocol at the same time.
    #[arg(
        long,
        env = "TOLLGATE_MAX_CONNECTIONS",
        value_name = "N",
        default_value = "10000",
        value_parser = at_least_one::<usize>
    )]
    pub max_connections: usize,
    /// Bytes of a request: a command, a body, a message.
    #[arg(
        long,
        env = "TOLLGATE_MAX_REQUEST_BYTES",
        value_name = "N",
        default_value = "65536",
        value_parser = at_least_one::<usize>
    )]
    pub max_request_bytes: usize,
    /// Bytes of the first lines of a request of HTTP.
    #[arg(
        long,
        env = "TOLLGATE_MAX_HEAD_BYTES",
        value_name = "N",
        default_value = "8192",
        value_parser = at_least_one::<usize>
    )]
    pub max_head_bytes: usize,
    /// Bytes of a key, or of one fact.
    #[arg(
        long,
        env = "TOLLGATE_MAX_KEY_BYTES",
        value_name = "N",
        default_value = "8192",
        value_parser = at_least_one::<usize>
    )]
    pub max_key_bytes: usize,
    /// Arguments of a command, facts of a request, or entries of all its descriptors.
    #[arg(
        long,
        env = "TOLLGATE_MAX_ARGUMENTS",
        value_name = "N",
        default_value = "1024",
        value_parser = at_least_one::<usize>
    )]
    pub max_arguments: usize,
    /// Descriptors of a request of Envoy.
    #[arg(
        long,
        env = "TOLLGATE_MAX_DESCRIPTORS",
        value_name = "N",
        default_value = "64",
        value_parser = at_least_one::<usize>
    )]
    pub max_descriptors: usize,
    /// Requests of one list of HTTP.
    #[arg(
        long,
        env = "TOLLGATE_MAX_BATCH",
        value_name = "N",
        default_value = "1000",
        value_parser = at_least_one::<usize>
    )]
    pub max_batch: usize,
    /// Commands or requests that are answered in one write.
    #[arg(
        long,
        env = "TOLLGATE_MAX_PIPELINE",
        value_name = "N",
        default_value = "1000",
        value_parser = at_least_one::<usize>
    )]
    pub max_pipeline: usize,
    /// Calls of one connection of HTTP/2 at the same time.
    #[arg(
        long,
        env = "TOLLGATE_MAX_STREAMS",
        value_name = "N",
        default_value = "256",
        value_parser = at_least_one::<u32>
    )]
    pub max_streams: u32,
    /// What callers may hold at the same time.
    #[arg(
        long,
        env = "TOLLGATE_MAX_HOLDS",
        value_name = "N",
        default_value = "100000",
        value_parser = whole
    )]
    pub max_holds: usize,
    /// How long a slot is held that was taken without a name (over RLS, RESP or /v1/check), if nobody gives it back.
    #[arg(long, env = "TOLLGATE_HOLD_TIME", value_name = "TIME", default_value = "60s", value_parser = some_time)]
    pub hold_time: Duration,
    /// How long a client may take to send a request, and to read its answer.
    #[arg(long, env = "TOLLGATE_REQUEST_TIME", value_name = "TIME", default_value = "10s", value_parser = some_time)]
    pub request_time: Duration,
    /// How long a connection may be quiet.
    #[arg(long, env = "TOLLGATE_IDLE_TIME", value_name = "TIME", default_value = "10m", value_parser = some_time)]
    pub idle_time: Duration,
}

impl Serve {
    /// What the service is told.
    pub(super) fn settings(&self, log: &Log) -> Result<Settings, ServeFailure> {
        let Most {
            max_connections,
            max_request_bytes,
            max_head_bytes,
            max_key_bytes,
            max_arguments,
            max_descriptors,
            max_batch,
            max_pipeline,
            max_streams,
            max_holds,
            hold_time,
            request_time,
            idle_time,
        } = self.most;
        let mut settings = Settings {
            http: self.http.clone(),
            grpc: self.grpc.clone(),
            resp: self.resp.clone(),
            admin: self.admin.clone(),
            dialects: self.headers.clone(),
            rls_headers: self.rls_headers.clone(),
            rls_closed: self.rls_closed,
            throttle_keys: self.throttle_keys,
            replicas: self.replicas,
            ready_file: self.ready_file.clone(),
            bounds: Bounds {
                connections: max_connections,
                request_bytes: max_request_bytes,
                head_bytes: max_head_bytes,
                key_bytes: max_key_bytes,
                arguments: max_arguments,
                descriptors: max_descriptors,
                batch: max_batch,
                pipeline: max_pipeline,
                streams: max_streams,
                holds: max_holds,
                hold_time,
                request_time,
                idle_time,
            },
            log: log.clone(),
            policy_path: self.policy.clone(),
            watch: self.lifetime.watch,
            ..Settings::default()
        };
        self.telling.put_into(&mut settings);
        let put = self.secure.put_into(&mut settings);
        let put = put.and_then(|()| {
            self.operators
                .put_into(&mut settings, self.keep.state.as_deref())
        });
        put.map_err(ServeFailure::Usage)?;
        Ok(settings)
    }
}

/// A count of what there has to be some of.
fn at_least_one<T>(text: &str) -> Result<T, String>
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

/// Keys of which each takes 25 bytes.
fn some_keys(text: &str) -> Result<usize, String> {
    match at_least_one(text)? {
        count if count <= MOST_KEYS => Ok(count),
        _ => Err(format!(
            "it should be at most {MOST_KEYS}: each key takes 25 bytes"
        )),
    }
}

/// A count of what there may be none of.
fn whole(text: &str) -> Result<usize, String> {
    let read = text.parse();
    read.map_err(|_| "it should be a whole number".to_owned())
}

/// A switch, as the environment tells it.
fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err("it should be true or false".to_owned()),
    }
}

/// A time in which something can happen.
fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it should be longer than nothing, as 10s".to_owned()),
        time => Ok(time),
    }
}
