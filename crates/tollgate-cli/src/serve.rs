//! `tollgate serve`: a rate-limit service on one policy.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tollgate::clock::Monotonic;
use tollgate_engine::Policy;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_http::Dialect;
use tollgate_redis::Redis;
use tollgate_server::{
    Address, Addresses, Bounds, RlsClosed, Secret, Server, Settings, StartError,
};

use crate::policy::{self, PolicyFailure, duration};

mod settings;

pub use settings::{Origin, Setting};

/// The policy of those who have none yet.
const EXAMPLE: &str = include_str!("serve/example.yaml");

/// Options of `tollgate serve`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Each option can also be said in the environment (TOLLGATE_HTTP for --http) or in a file that --config
names (http: 127.0.0.1:8080). A flag counts before the environment, and that before the file.

Exit code 0: it was ended by SIGTERM or Ctrl-C; 1: it couldn't start; 2: wrong usage.

Examples:
  tollgate serve
  tollgate serve policy.yaml --http 0.0.0.0:8080 --resp off
  tollgate serve ratelimit/config/ --backend redis://127.0.0.1:6379")]
pub struct Serve {
    /// A policy, or a folder of policies, in our form or envoyproxy/ratelimit's; an example without.
    pub policy: Option<PathBuf>,
    /// Where HTTP is answered: an address, unix:PATH, or off.
    #[arg(
        long,
        env = "TOLLGATE_HTTP",
        value_name = "ADDR",
        default_value = "127.0.0.1:8080"
    )]
    pub http: Address,
    /// Where Envoy is answered.
    #[arg(
        long,
        env = "TOLLGATE_GRPC",
        value_name = "ADDR",
        default_value = "127.0.0.1:8081"
    )]
    pub grpc: Address,
    /// Where Redis clients are answered.
    #[arg(
        long,
        env = "TOLLGATE_RESP",
        value_name = "ADDR",
        default_value = "127.0.0.1:6380"
    )]
    pub resp: Address,
    /// Where probes and operators are answered.
    #[arg(
        long,
        env = "TOLLGATE_ADMIN",
        value_name = "ADDR",
        default_value = "127.0.0.1:6070"
    )]
    pub admin: Address,
    /// Where limits are counted: memory, or the URL of a store.
    #[arg(
        long,
        env = "TOLLGATE_BACKEND",
        value_name = "URL",
        default_value = "memory"
    )]
    pub backend: String,
    /// Don't start while the store can't be asked.
    #[arg(long, env = "TOLLGATE_REQUIRE_STORE")]
    pub require_store: bool,
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
    /// What Envoy is told while a store can't be asked about a limit that is closed: error, or deny.
    #[arg(
        long,
        env = "TOLLGATE_RLS_CLOSED",
        value_name = "ANSWER",
        default_value = "error"
    )]
    pub rls_closed: RlsClosed,
    /// A file whose first line operators tell by AUTH.
    #[arg(long, env = "TOLLGATE_RESP_PASSWORD_FILE", value_name = "FILE")]
    pub resp_password_file: Option<PathBuf>,
    /// A file whose first line operators send as Authorization: Bearer.
    #[arg(long, env = "TOLLGATE_HTTP_TOKEN_FILE", value_name = "FILE")]
    pub http_token_file: Option<PathBuf>,
    /// A file that gets one JSON object with the addresses, once all are bound.
    #[arg(long, env = "TOLLGATE_READY_FILE", value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// Keys of CL.THROTTLE that are kept in memory.
    #[arg(
        long,
        env = "TOLLGATE_THROTTLE_KEYS",
        value_name = "N",
        default_value = "1000000"
    )]
    pub throttle_keys: usize,
    /// How much clients may bring and take.
    #[command(flatten)]
    pub most: Most,
    /// A file of settings: YAML, or TOML if it ends so.
    #[arg(long, env = "TOLLGATE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Show what all settings are, and where each is from, and end.
    #[arg(long)]
    pub print_config: bool,
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
        default_value = "10000"
    )]
    pub max_connections: usize,
    /// Bytes of a request: a command, a body, a message.
    #[arg(
        long,
        env = "TOLLGATE_MAX_REQUEST_BYTES",
        value_name = "N",
        default_value = "65536"
    )]
    pub max_request_bytes: usize,
    /// Bytes of the first lines of a request of HTTP.
    #[arg(
        long,
        env = "TOLLGATE_MAX_HEAD_BYTES",
        value_name = "N",
        default_value = "8192"
    )]
    pub max_head_bytes: usize,
    /// Bytes of a key, or of one fact.
    #[arg(
        long,
        env = "TOLLGATE_MAX_KEY_BYTES",
        value_name = "N",
        default_value = "8192"
    )]
    pub max_key_bytes: usize,
    /// Arguments of a command.
    #[arg(
        long,
        env = "TOLLGATE_MAX_ARGUMENTS",
        value_name = "N",
        default_value = "1024"
    )]
    pub max_arguments: usize,
    /// Descriptors of a request of Envoy.
    #[arg(
        long,
        env = "TOLLGATE_MAX_DESCRIPTORS",
        value_name = "N",
        default_value = "64"
    )]
    pub max_descriptors: usize,
    /// Requests of one batch of HTTP.
    #[arg(
        long,
        env = "TOLLGATE_MAX_BATCH",
        value_name = "N",
        default_value = "1000"
    )]
    pub max_batch: usize,
    /// Commands or requests that are answered in one write.
    #[arg(
        long,
        env = "TOLLGATE_MAX_PIPELINE",
        value_name = "N",
        default_value = "1000"
    )]
    pub max_pipeline: usize,
    /// Calls of one connection of HTTP/2 at the same time.
    #[arg(
        long,
        env = "TOLLGATE_MAX_STREAMS",
        value_name = "N",
        default_value = "256"
    )]
    pub max_streams: u32,
    /// What callers may hold at the same time.
    #[arg(
        long,
        env = "TOLLGATE_MAX_HOLDS",
        value_name = "N",
        default_value = "100000"
    )]
    pub max_holds: usize,
    /// How long a slot is held that was taken over RLS or RESP, if nobody gives it back.
    #[arg(long, env = "TOLLGATE_HOLD_TIME", value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub hold_time: Duration,
    /// How long a client may take to send a request, and to read its answer.
    #[arg(long, env = "TOLLGATE_REQUEST_TIME", value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub request_time: Duration,
    /// How long a connection may be quiet.
    #[arg(long, env = "TOLLGATE_IDLE_TIME", value_name = "TIME", default_value = "10m", value_parser = duration)]
    pub idle_time: Duration,
}

/// Why a service didn't start, or ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeFailure {
    /// What was asked for can't be done.
    Usage(String),
    /// The policy can't be used.
    Policy(PolicyFailure),
    /// It couldn't start.
    Start(StartError),
    /// The store can't be asked.
    Store(String),
    /// The system refused something that every program needs.
    System(io::Error),
}

impl Serve {
    fn settings(&self) -> Result<Settings, ServeFailure> {
        let secret = |file: &Option<PathBuf>| {
            let read = file.as_ref().map(Secret::from_file).transpose();
            read.map_err(ServeFailure::Usage)
        };
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
        Ok(Settings {
            http: self.http.clone(),
            grpc: self.grpc.clone(),
            resp: self.resp.clone(),
            admin: self.admin.clone(),
            dialects: self.headers.clone(),
            rls_headers: self.rls_headers.clone(),
            rls_closed: self.rls_closed,
            password: secret(&self.resp_password_file)?,
            token: secret(&self.http_token_file)?,
            throttle_keys: self.throttle_keys,
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
            ..Settings::default()
        })
    }

    fn policy(&self) -> Result<Policy, ServeFailure> {
        match &self.policy {
            Some(path) => policy::policy(path).map_err(ServeFailure::Policy),
            None => Policy::from_text(EXAMPLE, Format::Yaml)
                .map(|checked| checked.policy)
                .map_err(|rejected| ServeFailure::Policy(rejected.into())),
        }
    }

    async fn start(&self, out: &mut impl Write) -> Result<Server, ServeFailure> {
        let (policy, settings) = (self.policy()?, self.settings()?);
        let about = match &self.policy {
            Some(path) => path.display().to_string(),
            None => "an example, as no policy was given".to_owned(),
        };
        let server = if self.backend == "memory" {
            let memory = (Memory::new(), Monotonic::default());
            Server::in_memory(policy, memory, settings).await
        } else {
            if let Some(warning) = self.rls_closed.warning(&policy) {
                writeln!(out, "warning: {warning}").map_err(ServeFailure::System)?;
            }
            let redis = self.store().await?;
            Server::on_store(policy, redis, settings).await
        };
        let server = server.map_err(ServeFailure::Start)?;
        let said = self.say(out, &about, server.addresses());
        said.map_err(ServeFailure::System)?;
        Ok(server)
    }

    async fn store(&self) -> Result<Redis, ServeFailure> {
        let builder = Redis::builder(&self.backend);
        let builder = builder.map_err(|error| ServeFailure::Usage(error.to_string()))?;
        let redis = builder
            .build()
            .map_err(|error| ServeFailure::Store(error.to_string()))?;
        if let Err(error) = redis.ready(Duration::from_secs(2)).await
            && self.require_store
        {
            return Err(ServeFailure::Store(error.to_string()));
        }
        Ok(redis)
    }

    fn say(&self, out: &mut impl Write, about: &str, addresses: &Addresses) -> io::Result<()> {
        writeln!(out, "tollgate {} serves {about}", env!("CARGO_PKG_VERSION"))?;
        if self.backend == "memory" {
            writeln!(
                out,
                "limits are counted in this process: several of them count apart"
            )?;
        }
        let each = [
            ("HTTP ", &addresses.http),
            ("gRPC ", &addresses.grpc),
            ("RESP ", &addresses.resp),
            ("admin", &addresses.admin),
        ];
        for (name, address) in each {
            if let Some(address) = address {
                writeln!(out, "{name} on {address}")?;
            }
        }
        if let Some(Address::Tcp(http)) = addresses.http {
            writeln!(
                out,
                "try: curl -s -H 'content-type: application/json' -d '{{\"facts\":{{\"user\":\"ada\"}}}}' http://{http}/v1/check"
            )?;
        }
        if let Some(Address::Tcp(resp)) = addresses.resp {
            writeln!(
                out,
                "try: redis-cli -h {} -p {} TG.CHECK user=ada",
                resp.ip(),
                resp.port()
            )?;
        }
        out.flush()
    }
}

/// Serves until it is told to end.
///
/// # Errors
/// What keeps it from starting.
pub fn serve(options: &Serve, out: &mut impl Write) -> Result<(), ServeFailure> {
    if options.print_config {
        let lines: String = options.origins.iter().map(Setting::line).collect();
        return out
            .write_all(lines.as_bytes())
            .map_err(ServeFailure::System);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(ServeFailure::System)?;
    runtime.block_on(async {
        let mut end = end().map_err(ServeFailure::System)?;
        let server = options.start(out).await?;
        end.recv().await;
        server.stop().await;
        Ok(())
    })
}

/// What ends it: SIGTERM, or Ctrl-C.
struct End {
    term: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

fn end() -> io::Result<End> {
    use tokio::signal::unix::{SignalKind, signal};
    Ok(End {
        term: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
    })
}

impl End {
    async fn recv(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

impl ServeFailure {
    /// Whether the arguments are at fault.
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::Usage(_) | Self::Policy(PolicyFailure::Usage(_)))
    }
}

impl fmt::Display for ServeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(why) | Self::Store(why) => f.write_str(why),
            Self::Policy(failure) => failure.fmt(f),
            Self::Start(error) => error.fmt(f),
            Self::System(error) => error.fmt(f),
        }
    }
}
